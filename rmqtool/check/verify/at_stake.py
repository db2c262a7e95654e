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
    """The ranges [start, stop) of the log in which findings have lost records."""
    return [
        (each.physical_offset, each.physical_offset + each.length)
        for each in findings
        if each.problem.severity == "error" and each.problem.code.startswith("CL")
        if each.physical_offset is not None and each.length
    ]


def topics_at_stake(store: Store, ranges: Sequence[tuple[int, int]]) -> dict[str, int] | None:
    """How many messages of each topic begin in ranges [start, stop) of the log and are not sound, by queues.

    A range may begin with a record that is sound but for its end. None if there are too many queues and
    ranges, or too many units in them, or the queues cannot be read.
    """
    try:
        queues = store.queues
    except InputError:  # of a form that cannot be read
        return None
    if len(queues) * len(ranges) > _SEARCHES_MAX:
        return None
    counts: dict[str, int] = {}
    left = _READ_MAX
    for (topic, _), queue in queues.items():
        try:
            for start, stop in ranges:
                numbers = range(queue.number_after(start - 1), queue.number_after(stop - 1))
                left -= len(numbers)
                if left < 0:
                    return None
                count = sum(not _is_sound(store, queue, number) for number in numbers)
                if count:
                    counts[topic] = counts.get(topic, 0) + count
        except InputError:  # a queue that cannot be read is a finding
            continue
    return counts


def _is_sound(store: Store, queue: AnyQueue, number: int) -> bool:
    unit = queue.by_number(number)
    stored = None if unit is None else store.find(unit.physical_offset)
    return stored is not None and not stored.status
