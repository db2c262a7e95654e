"""Messages that wait inside the broker until they are due: delay levels and the timer wheel.

The delayed messages that wait are those from their level's offset in delayOffset.json on; the unit in the
consume queue holds the delivery time. A timer message (5.x) waits first in the queue of its topic, then in
the timer log until the time of the wheel has passed. A message that is due in more than two days is stored
again on the way (`rolled`); its own property holds the delivery time.

Records of POP wait in the timer too, until the broker looks at their messages again: they are no messages of
users, and a kind of their own.

`overdue` messages are due but not delivered yet: the broker is late.

Source: ScheduleMessageService, TimerMessageStore; spec 02 section 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import tzinfo
from typing import NamedTuple

import numpy as np

from rmqtool import times
from rmqtool.message.rows import Row
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.queue.units import UnitReader
from rmqtool.read.pending_timers import UNKNOWN, pending_timers
from rmqtool.read.store import Store
from rmqtool.report.stats.dimensions import QUARTER_MS, start_of
from rmqtool.storage import config_files
from rmqtool.storage.buffers import Array

DELAYED, TIMER, POP = "delayed", "timer", "pop"
"""The kinds: of a delay level, of the timer, and records of POP in the timer."""
FIELDS = (
    "kind", "level", "due_hour_timestamp_ms", "due_hour_time", "count", "bytes", "overdue",
    "first_due_timestamp_ms", "first_due_time", "last_due_timestamp_ms", "last_due_time",
)  # fmt: skip
TABLE_FIELDS = ("kind", "level", "first_due_time", "count", "overdue", "last_due_time", "bytes",
                "due_hour_time")  # fmt: skip


class Waiting(NamedTuple):
    """Waiting messages of one kind; `due` (ms since 1970) and `sizes` (bytes) are i8 of one shape."""

    kind: str
    level: int | None
    due: Array
    sizes: Array


class NextDue(NamedTuple):
    """When messages, or records of POP, are due next.

    `first_ms` is None if no delivery time is known; `overdue` of the `waiting` ones are due already.
    """

    of_pop: bool
    waiting: int
    first_ms: int | None
    overdue: int


def next_due(waiting: Iterable[Waiting], now_ms: int) -> Iterator[NextDue]:
    """What waits: the messages first, then the records of POP; neither if there are none."""
    found = list(waiting)
    for of_pop in (False, True):
        parts = [each.due for each in found if (each.kind == POP) is of_pop]
        if parts:
            due = np.concatenate(parts)
            known = due[due != UNKNOWN]
            first = int(known.min()) if len(known) else None
            yield NextDue(of_pop, len(due), first, int((known <= now_ms).sum()))


def pending_rows(waiting: Iterable[Waiting], now_ms: int, tz: tzinfo | None) -> Iterator[Row]:
    """Rows per kind, level and hour of delivery; `overdue` counts messages due at `now_ms`."""
    for each in waiting:
        quarters, inverse = np.unique(each.due // QUARTER_MS, return_inverse=True)
        starts = np.array(
            [start_of(quarter * 900_000, "hour", tz) for quarter in quarters.tolist()], np.int64
        )
        hours, which = np.unique(starts[inverse], return_inverse=True)
        for number, hour in enumerate(hours.tolist()):
            mine = which == number
            due = each.due[mine]
            known = bool(due.min() != UNKNOWN)
            row: Row = {"kind": each.kind, "level": each.level}
            row |= _times("due_hour", hour if known else None, tz)
            row |= {"count": len(due), "bytes": int(each.sizes[mine].sum())}
            row["overdue"] = int((due <= now_ms).sum()) if known else None
            for name, time in (("first_due", due.min()), ("last_due", due.max())):
                row |= _times(name, int(time) if known else None, tz)
            yield row


def _times(name: str, time_ms: int | None, tz: tzinfo | None) -> Row:
    text = None if time_ms is None else times.format_time(time_ms, tz)
    return {f"{name}_timestamp_ms": time_ms, f"{name}_time": text}


def delayed(store: Store, at_ms: int | None = None) -> Iterator[Waiting]:
    """Delayed messages of every level that have not been delivered.

    With `at_ms`, those that waited at that time: stored before it and due then or later. Late deliveries are
    not recorded, so messages that were overdue then are left out, unless they still wait.

    Raises:
        InputError: delayOffset.json cannot be read or parsed.
    """
    folder = store.layout.config_folder
    if folder is None or store.layout.kind != "store":
        return
    offsets = config_files.delay_offsets(folder)
    with UnitReader() as reader:
        for (topic, queue_id), queue in sorted(store.queues.items()):
            if topic != SCHEDULE_TOPIC or not isinstance(queue, ConsumeQueue):
                continue
            stop, level = queue.max_offset(), queue_id + 1
            live = store.first_live(topic, queue_id)
            place = max(offsets.get(level, 0), live)
            found = list(reader.live_between(queue, live if at_ms is not None else place, stop))
            if not found:
                continue
            numbers, units = (np.concatenate(each) for each in zip(*found, strict=True))
            due, known = queue.extension.tags_codes(units["tags_code"])
            if at_ms is not None:
                delay = _delay_of(store, units[known], due[known])
                chosen = known & (due - delay < at_ms) & ((due >= at_ms) | (numbers >= place))
                units, due, known = units[chosen], due[chosen], known[chosen]
            due[~known] = UNKNOWN
            if len(units):
                yield Waiting(DELAYED, level, due, units["size"].astype(np.int64))


def _delay_of(store: Store, units: Array, due: Array) -> int:
    """The delay of a level, ms: the delivery time minus the store time of its last message."""
    head = store.head(int(units["physical_offset"][-1])) if len(units) else None
    return int(due[-1]) - head.store_timestamp if head is not None else 0


def timers(store: Store) -> Iterator[Waiting]:
    """Timer messages that have not been delivered.

    Raises: as `pending_timers`.
    """
    found = pending_timers(store)
    for kind, chosen in ((TIMER, ~found.is_pop), (POP, found.is_pop)):
        if chosen.any():
            yield Waiting(kind, None, found.due[chosen], found.sizes[chosen])
