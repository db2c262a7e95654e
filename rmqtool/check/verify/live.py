"""Second checks in a store that a broker is using: of work that was in progress at the first check.

The ends of the queues are read first, then the log's end; so every record below the queues' ends
must have its unit, and what lies above is not judged but for the question whether its unit comes.
Reading is not atomic: a unit may be half written, and a page may be read before a unit in it is
written and the next page after; so nothing that is missing is a finding before two seconds have
passed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.check.verify.context import Context
from rmqtool.check.verify.files import WAIT_S
from rmqtool.check.verify.queues import QueueCheck
from rmqtool.check.verify.spans import Key, Mismatch, UnitFault
from rmqtool.errors import UnreadableError
from rmqtool.queue.consume_queue import open_queue
from rmqtool.queue.units import UnitReader, present
from rmqtool.storage.counted_queues import counted_queues
from rmqtool.storage.layout import QueueFiles, can_be_folder
from rmqtool.storage.open_files import OpenFiles

if TYPE_CHECKING:
    from rmqtool.check.verify.unit_check import Units

_UNITS_MAX = 1 << 20  # checked again in one piece


def look_again(context: Context, check: QueueCheck, units: dict[Key, Units], reader: UnitReader) -> None:
    """Drop differences that have disappeared, and those beyond the dispatch at the start."""
    spans = check.spans.queues
    waiting = [key for key, found in units.items() if found.gaps]
    for key, span in spans.items():
        span.mismatches = [item for item in span.mismatches if _is_judged(context, item)]
        if any(item.kind is UnitFault.MISSING for item in span.mismatches):
            waiting.append(key)
    if not waiting:
        return
    time.sleep(WAIT_S)
    for key in sorted(set(waiting)):
        queue = _queue_now(context, key)
        if key in spans:
            found = spans[key].mismatches
            spans[key].mismatches = [item for item in found if _is_still(context, check, reader, queue, item)]
        if key in units:
            gaps = units[key].gaps
            units[key].gaps = [gap for gap in gaps if _come(reader, queue, *gap) < gap[1] - gap[0]]


def _is_judged(context: Context, item: Mismatch) -> bool:
    """Whether dispatch had passed these records at the start; whether a unit comes is always asked."""
    return item.kind is UnitFault.MISSING or item.start < context.dispatch_from


def _is_still(
    context: Context, check: QueueCheck, reader: UnitReader, queue: QueueFiles, item: Mismatch
) -> bool:
    """Whether units of `item` are still missing; those that have come are taken from its beginning."""
    if item.kind is not UnitFault.MISSING:
        return True
    if queue.is_batch:
        return _is_still_in_batch(check, queue.key, item)
    come = _come(reader, queue, item.first, item.last + 1)
    if come:
        first, last = (reader.read(queue, item.first + place, 1)[0] for place in (0, come - 1))
        if int(first["physical_offset"]) != item.start:
            return True
        item.first += come
        item.start = int(last["physical_offset"]) + int(last["size"])
    return item.first <= item.last


def _is_still_in_batch(check: QueueCheck, key: Key, item: Mismatch) -> bool:
    try:
        units = check.batch_units(key)
    except OSError:
        return True
    physical = units["physical_offset"].astype(np.int64)
    low, high = np.searchsorted(physical, (item.start, item.end)).tolist()
    if low == high or physical[low] != item.start:
        return True
    last = units[high - 1]
    item.first = int(last["base_offset"]) + int(last["batch_size"])
    item.start = int(last["physical_offset"]) + int(last["size"])
    return item.first <= item.last


def _come(reader: UnitReader, queue: QueueFiles, first: int, stop: int) -> int:
    """How many units from slot `first` on are there now, without one missing."""
    try:
        there = present(reader.read(queue, first, min(stop - first, _UNITS_MAX)))
    except OSError:
        return 0
    missing = np.flatnonzero(~there)
    return int(missing[0]) if len(missing) else len(there)


def queue_end_now(context: Context, key: Key) -> int | None:
    """The queue offset after a queue's last message, by its files as they are now; None without."""
    layout = context.layout
    queue = counted_queues(layout).get(key)
    with OpenFiles() as open_files:
        try:
            return None if queue is None else open_queue(queue.relisted(), open_files).max_offset()
        except UnreadableError:
            return None


def _queue_now(context: Context, key: Key) -> QueueFiles:
    """A queue with its files as they are now: a broker may have added some, or made the queue."""
    root, (topic, queue_id) = context.layout.root, key
    known = context.layout.consume_queues.get(key)
    if known is None and root is not None and can_be_folder(topic):
        known = QueueFiles(*key, root / "consumequeue" / topic / str(queue_id), ())
    return QueueFiles(*key, Path(), ()) if known is None else known.relisted()
