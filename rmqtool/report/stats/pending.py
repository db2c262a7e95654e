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

from collections.abc import Iterable, Iterator, Mapping
from datetime import tzinfo
from typing import NamedTuple

import numpy as np

from rmqtool import times
from rmqtool.errors import InputError, UnreadableError
from rmqtool.formats import properties
from rmqtool.formats import timer as timer_format
from rmqtool.message.rows import Row
from rmqtool.message.system_topics import REVIVE_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.queue.units import UnitReader
from rmqtool.read.store import Store
from rmqtool.read.timer_loss import find_loss
from rmqtool.report.stats.dimensions import QUARTER_MS, start_of
from rmqtool.storage import config_files
from rmqtool.storage.buffers import Array
from rmqtool.storage.config_files import read_file
from rmqtool.storage.open_files import OpenFiles

DELAYED, TIMER, POP = "delayed", "timer", "pop"
"""The kinds: of a delay level, of the timer, and records of POP in the timer."""
FIELDS = (
    "kind", "level", "due_hour_timestamp_ms", "due_hour_time", "count", "bytes", "overdue",
    "first_due_timestamp_ms", "first_due_time", "last_due_timestamp_ms", "last_due_time",
)  # fmt: skip
TABLE_FIELDS = ("kind", "level", "first_due_time", "count", "overdue", "last_due_time", "bytes",
                "due_hour_time")  # fmt: skip
READ_MAX = 100_000
"""Most timer messages whose properties are read. Of others an unknown delivery time stays unknown, and
records of POP count as messages."""
UNKNOWN = 0
"""The value of an unknown delivery time."""


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
    """Timer messages that have not been delivered, in the timer log and not in it yet.

    If the timer log or its check file is lost, those of its topic without a later copy in the log.

    Raises:
        UnreadableError: the timer log, its check file or the log cannot be read.
        FormatError: timer messages in RocksDB cannot be read.
    """
    loss = find_loss(store)
    if loss is not None:  # neither the timer log nor timercheck shows alone what waits
        due = np.array([each.due_ms or UNKNOWN for each in loss.pending], np.int64)
        sizes = np.array([each.size for each in loss.pending], np.int64)
        is_pop = np.array([each.topic.startswith(REVIVE_PREFIX) for each in loss.pending], np.bool_)
        yield from _kinds(due, sizes, is_pop)
        return
    in_rocksdb = _in_rocksdb(store)
    if in_rocksdb is not None:
        due, sizes, places, next_offset = in_rocksdb
    else:  # without any of its files a broker takes all messages of the queue
        check = _check(store)
        last_read = check.last_read_time if check is not None else 0
        next_offset = check.last_timer_queue_offset if check is not None else 0
        due, sizes, places = _logged(store, last_read)
    queue = store.queues.get((TIMER_TOPIC, 0))
    if isinstance(queue, ConsumeQueue):
        live = store.first_live(TIMER_TOPIC, 0)
        with UnitReader() as reader:
            for _, units in reader.live_between(queue, max(next_offset, live), queue.max_offset()):
                sizes = np.concatenate([sizes, units["size"].astype(np.int64)])
                places = np.concatenate([places, units["physical_offset"].astype(np.int64)])
                due = np.concatenate([due, np.full(len(units), UNKNOWN)])
    deletes, is_pop = np.zeros((2, len(due)), np.bool_)
    first = np.argsort(due, kind="stable")[:READ_MAX]  # those without a delivery time
    for number in first.tolist():
        values = _properties(store, int(places[number]))
        if due[number] == UNKNOWN:
            deletes[number] = properties.TIMER_DEL_UNIQKEY in values
            due[number] = _due_time(values)
        is_pop[number] = values.get(properties.REAL_TOPIC, "").startswith(REVIVE_PREFIX)
    yield from _kinds(due[~deletes], sizes[~deletes], is_pop[~deletes])


def _kinds(due: Array, sizes: Array, is_pop: Array) -> Iterator[Waiting]:
    for kind, chosen in ((TIMER, ~is_pop), (POP, is_pop)):
        if chosen.any():
            yield Waiting(kind, None, due[chosen], sizes[chosen])


def _in_rocksdb(store: Store) -> tuple[Array, Array, Array, int] | None:
    """(due, size, physical offset, next queue offset) as the database has them; None without one."""
    database = store.layout.rocksdb_messages
    if database is None:
        return None
    from rmqtool.storage.rocksdb.messages import read_timers

    found = read_timers(database)
    if found is None:
        return None
    start = store.commit_log.min_offset
    waiting = [each for each in found.entries if each.due_ms > found.delivered_ms]
    waiting = [each for each in waiting if each.physical_offset >= start]
    columns = zip(*((each.due_ms, each.size, each.physical_offset) for each in waiting), strict=True)
    due, sizes, places = (
        (np.array(each, np.int64) for each in columns) if waiting else np.zeros((3, 0), np.int64)
    )
    return due, sizes, places, found.next_offset


def _logged(store: Store, last_read_ms: int) -> tuple[Array, Array, Array]:
    """(due, size, physical offset) of the waiting units of the timer log; due is UNKNOWN if rolled."""
    unit, empty = timer_format.LOG_UNIT, np.zeros(0, np.int64)
    found: list[tuple[Array, Array, Array]] = [(empty, empty, empty)]
    start = store.commit_log.min_offset
    for file in store.layout.timer_log:
        with OpenFiles() as files:
            data = files.read(file.path, 0, file.size)
        units = np.frombuffer(data, dtype=unit.dtype, count=len(data) // unit.size)
        good = (units["size"] == unit.size) & (units["magic"] & ~timer_format.MAGIC_BITS == 0)
        units = units[: int(np.argmin(good))] if not good.all() else units
        due = units["write_time"].astype(np.int64) + units["delay"]
        wanted = (due > last_read_ms) & (units["magic"] & timer_format.MAGIC_DELETE == 0)
        wanted &= units["physical_offset"] >= start
        rolled = (units["magic"] & timer_format.MAGIC_ROLL) != 0
        due = np.where(rolled, UNKNOWN, due)
        units, due = units[wanted], due[wanted]
        found.append((due, units["message_size"].astype(np.int64), units["physical_offset"].astype(np.int64)))
    due, sizes, places = (np.concatenate(each) for each in zip(*found, strict=True))
    _, last = np.unique(places[::-1], return_index=True)  # a unit that was written twice counts once
    chosen = np.sort(len(places) - 1 - last)
    return due[chosen], sizes[chosen], places[chosen]


def _properties(store: Store, physical_offset: int) -> dict[str, str]:
    """The properties of a record; none if it cannot be read."""
    found = store.find(physical_offset)
    return properties.decode(found.message.properties_bytes) if found is not None else {}


def _due_time(values: Mapping[str, str]) -> int:
    """The delivery time in the properties of a timer record, ms since 1970, or UNKNOWN."""
    text = values.get(properties.TIMER_OUT_MS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else UNKNOWN


def _check(store: Store) -> timer_format.Check | None:
    path = store.layout.timer_check
    if path is None:
        return None
    data = read_file(path, timer_format.CHECK_FILE_SIZE)
    try:
        return timer_format.decode_check(data)
    except InputError as error:
        raise UnreadableError(f"the timer's check file: {error.message}", path=path) from error
