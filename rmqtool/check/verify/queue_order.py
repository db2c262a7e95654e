"""Pass `queues`: do the queue offsets in the log itself go up by one, record after record?

A jump forward is explained by records that were lost in a damaged range, or that a compaction has left out. A
jump back is one of:

    back to 0                                   the queue was made again (CL16): the topic was deleted
                                                and made again, or its folder was lost
    back, and the store time goes back with it  old records that a truncation has left (CL07)
    one record off, the next one right again    that record's queue offset is damaged (CL15)

Source: spec 02 section 15, C14, Q5, Q12.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from itertools import zip_longest

from rmqtool.check.verify.context import Context
from rmqtool.check.verify.spans import Break, Key, Mismatch, Span
from rmqtool.lazy_dataclass import dataclass
from rmqtool.problems import Finding, finding


@dataclass
class OutOfOrder:
    """Records of one queue whose queue offset says nothing about the queue's units.

    `records` are physical offsets; records before `from_offset` belong to a queue that no longer exists,
    those from `until` on to a log that no longer exists.
    """

    records: set[int] = field(default_factory=set)
    from_offset: int = -1
    until: int | None = None

    def explains(self, item: Mismatch) -> bool:
        """Whether the order in the log already explains why these records and units differ."""
        if item.start < self.from_offset or (self.until is not None and item.start >= self.until):
            return True
        return item.start in self.records

    def explains_unit(self, physical_offset: int) -> bool:
        """The same for a unit that names the record at `physical_offset`."""
        return physical_offset in self.records or physical_offset < self.from_offset


def judge_order(
    context: Context, spans: dict[Key, Span], out_of_order: dict[Key, OutOfOrder]
) -> Iterator[Finding]:
    """Findings on the order of queue offsets; fills `out_of_order` for the comparison with the units."""
    zombie = _zombie_start(context, spans)
    if zombie is not None:
        context.zombies_from = zombie
        for key in spans:
            out_of_order.setdefault(key, OutOfOrder()).until = zombie
        yield _at(context, "CL07", zombie, max(context.log_end - zombie, 0))
    for key in sorted(spans):
        state = out_of_order.setdefault(key, OutOfOrder())
        was_alone = False
        breaks = spans[key].breaks
        for item, following in zip_longest(breaks, breaks[1:]):
            if zombie is not None and item.physical_offset >= zombie:
                break
            if was_alone:
                was_alone = False
                continue
            if _lost_between(context, item):
                continue
            if context.layout.kind == "compacted" and item.queue_offset > item.expected:
                continue
            detail = {"topic": key[0], "queue_id": key[1], "queue_offset": item.queue_offset}
            detail["expected"] = item.expected
            is_alone = item.is_alone(following)
            if item.queue_offset == 0 and not is_alone:
                state.from_offset = item.physical_offset
                yield _at(context, "CL16", item.physical_offset, None, **detail)
                continue
            state.records.add(item.physical_offset)
            was_alone = is_alone
            yield _at(context, "CL15", item.physical_offset, None, **detail)


def _zombie_start(context: Context, spans: dict[Key, Span]) -> int | None:
    """The first record at which store time and queue offset go back together; None for no such place."""
    starts = [
        item.physical_offset
        for span in spans.values()
        for item in span.breaks
        if item.clock_back and 0 < item.queue_offset < item.expected and not _lost_between(context, item)
    ]
    return min(starts, default=None)


def _lost_between(context: Context, item: Break) -> bool:
    """Whether records between this one and its predecessor may be lost, or were not checked."""
    return item.queue_offset >= item.expected and may_have_lost(context, item.after, item.physical_offset)


def may_have_lost(context: Context, start: int, end: int) -> bool:
    """Whether records may be lost between the end of one record and the start of another, or unseen."""
    if context.in_bad(start, end):
        return True
    low = next((stop for first, stop in context.covered if first < start <= stop), start)
    files = context.layout.commit_log
    gap = any(a.end < b.file_from_offset and start <= a.end <= end
              for a, b in zip(files, files[1:], strict=False))  # fmt: skip
    unwalked = low < end and not context.is_covered(low)
    return gap or unwalked


def _at(context: Context, code: str, offset: int, length: int | None, **detail: object) -> Finding:
    for file in context.layout.commit_log:
        if file.file_from_offset <= offset < file.end:
            return finding(code, context.name(file.path), offset, length, **detail)
    return finding(code, "commitlog", offset, length, **detail)
