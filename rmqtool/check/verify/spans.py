"""The ranges of queue offsets, queue by queue, that the comparison of log and queues keeps.

However damaged a store is, this stays bounded: beyond RANGES_MAX ranges in a queue the last one
reaches over all that follow, and beyond QUEUES_MAX queues the rest are counted and left out.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum

from rmqtool.lazy_dataclass import dataclass

RANGES_MAX = 5_000
QUEUES_MAX = 200_000

Key = tuple[str, int]
"""Topic and queue id."""


class UnitFault(IntEnum):
    """How a record and its unit differ."""

    MISSING = 0
    WRONG = 1
    TAGS = 2
    DELIVERY = 3
    EXTENSION = 4
    STORE_TIME = 5


@dataclass(slots=True)
class Mismatch:
    """Queue offsets [first, last] of one queue whose records lack their unit, or have a wrong one.

    `start` is the first record's physical offset, `end` the offset after the last one.
    """

    kind: UnitFault
    first: int
    last: int
    start: int
    end: int


@dataclass(slots=True)
class Break:
    """A record whose queue offset does not follow the one before it in its queue.

    `after` is the end of that record before it; `clock_back` says that the store timestamp is less
    than that of the record before it in the log.
    """

    physical_offset: int
    queue_offset: int
    expected: int
    after: int
    clock_back: bool

    def is_alone(self, following: Break | None) -> bool:
        """Whether the queue continues at the next break as if this record had had the right queue offset."""
        return (
            following is not None
            and following.expected == self.queue_offset + 1
            and following.queue_offset == self.expected + 1
        )


@dataclass(slots=True)
class Span:
    """One queue within one window, or, added up, within the log so far.

    `first` and `next` are queue offsets, `end` is after the last record; `matched` are half-open
    ranges of queue offsets whose units are right. `leaves_out`: batch records in RocksDB, which have one unit
    each and leave out the queue offsets of their other messages, so that a jump forward does not count as a
    break.
    """

    count: int
    first: int
    first_physical: int
    first_clock_back: bool
    next: int
    end: int
    is_batch: bool
    matched: list[tuple[int, int]] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    leaves_out: bool = False

    def append(self, span: Span) -> None:
        """Add what comes next in the log."""
        self.leaves_out |= span.leaves_out
        if span.first < self.next or (span.first > self.next and not self.leaves_out):
            self._add_break(
                Break(span.first_physical, span.first, self.next, self.end, span.first_clock_back)
            )
        for item in span.breaks:
            self._add_break(item)
        self.count += span.count
        self.next, self.end = span.next, span.end
        for first, stop in span.matched:
            last = self.matched[-1] if self.matched else None
            if last is not None and (last[1] == first or len(self.matched) >= RANGES_MAX):
                self.matched[-1] = (min(last[0], first), max(last[1], stop))
            else:
                self.matched.append((first, stop))
        for mismatch in span.mismatches:
            self._add_mismatch(mismatch)

    def _add_break(self, item: Break) -> None:
        if len(self.breaks) < RANGES_MAX:
            self.breaks.append(item)

    def _add_mismatch(self, item: Mismatch) -> None:
        last = self.mismatches[-1] if self.mismatches else None
        if last is not None and last.kind == item.kind and last.last + 1 == item.first:
            last.last, last.end = item.last, item.end
        elif last is not None and len(self.mismatches) >= RANGES_MAX:
            last.first, last.last = min(last.first, item.first), max(last.last, item.last)
            last.end = item.end
        else:
            self.mismatches.append(item)


class Spans:
    """All queues of a part of the log; `left_out` counts records of queues beyond QUEUES_MAX."""

    def __init__(self) -> None:
        self.queues: dict[Key, Span] = {}
        self.left_out = 0

    def add(self, key: Key, span: Span) -> None:
        """Add what one window holds of one queue; windows come in the order of the log."""
        whole = self.queues.get(key)
        if whole is not None:
            whole.append(span)
        elif len(self.queues) < QUEUES_MAX:
            self.queues[key] = span
        else:
            self.left_out += span.count

    def extend(self, later: Spans) -> None:
        """Add what comes next in the log."""
        for key, span in later.queues.items():
            self.add(key, span)
        self.left_out += later.left_out
