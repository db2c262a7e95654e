"""The topics at stake: whose messages lie in damaged ranges of the log, by the units that lead there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmqtool.errors import InputError
from rmqtool.problems import Finding
from rmqtool.queue.consume_queue import AnyQueue
from rmqtool.read.store import Store

_SEARCHES_MAX = 20_000  # queues times ranges; each is a bisection
_READ_MAX = 10_000  # units whose records are read


def damaged_ranges(findings: Iterable[Finding]) -> list[tuple[int, int]]:
    """The ranges [start, stop) of the log in which findings have lost records.

    Of a file that is too short it is what the file lacks: all that it has is checked, and found by itself.
    """
    ranges = []
    for each in findings:
        if each.problem.severity != "error" or not each.problem.code.startswith("CL"):
            continue
        if each.physical_offset is None or not each.length:
            continue
        start, stop = each.physical_offset, each.physical_offset + each.length
        if each.problem.code == "CL21":
            start, stop = stop, start + int(each.detail["expected_bytes"])
        if start < stop:
            ranges.append((start, stop))
    return ranges


def topics_at_stake(store: Store, ranges: Sequence[tuple[int, int]]) -> dict[str, int] | None:
    """How many messages of each topic begin in ranges [start, stop) of the log and are not sound, by queues.

    A message in several queues counts once, a message in no queue does not. A range may begin with a record
    that is sound but for its end. None if there are too many queues and ranges, or too many units in them, or
    the queues cannot be read.
    """
    try:
        queues = store.queues
    except InputError:  # of a form that cannot be read
        return None
    if len(queues) * len(ranges) > _SEARCHES_MAX:
        return None
    counts: dict[str, int] = {}
    found: set[int] = set()
    left = _READ_MAX
    for (topic, _), queue in queues.items():
        try:
            for start, stop in ranges:
                numbers = range(queue.number_after(start - 1), queue.number_after(stop - 1))
                left -= len(numbers)
                if left < 0:
                    return None
                offsets = (_offset_if_lost(store, queue, number) for number in numbers)
                lost = {offset for offset in offsets if offset is not None} - found
                found |= lost
                if lost:
                    counts[topic] = counts.get(topic, 0) + len(lost)
        except InputError:  # a queue that cannot be read is a finding
            continue
    return counts


def _offset_if_lost(store: Store, queue: AnyQueue, number: int) -> int | None:
    """The physical offset to which a unit points, if no sound record is there."""
    unit = queue.by_number(number)
    if unit is None:
        return None
    stored = store.find(unit.physical_offset)
    return unit.physical_offset if stored is None or stored.status else None
