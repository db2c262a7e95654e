"""Compares two commit logs byte by byte where both have bytes, and finds what only one of them holds.

A slave has its master's bytes at the master's offsets, including blanks and the bytes after them. So the
common range [max(starts), min(ends)) of two copies of one log is byte-identical. The logs may start and
end at different offsets and have files of different sizes.

`around` finds the records at and around an offset where the logs differ. Its scan starts at a sound record
shortly before the offset, not at the beginning of the file: a record contains its own offset.

Source: DefaultMessageStore#appendToCommitLog; spec 02 12.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import field, replace
from typing import Any

import numpy as np

from rmqtool.check.diff.carried import COMPARED_BYTES, NOT_CARRIED, Carried, Wanted, carried
from rmqtool.check.diff.ends import Only, SideName, TrailingRange, held_by, only_one_side, trailing_range
from rmqtool.check.diff.lacking import (
    LackingRange,
    are_different,
    changed_fields,
    first_different,
    is_whole,
    lacking_ranges,
    parting,
    start_of_fillers,
)
from rmqtool.check.diff.operands import Operand, ReadOptions
from rmqtool.check.diff.whole_files import WholeFiles, whole_files
from rmqtool.check.diff.windows import Common, Piece, Range, Unread, common, differing, differing_bytes
from rmqtool.errors import FormatError
from rmqtool.findings import Progress
from rmqtool.formats import epoch
from rmqtool.formats.epoch import Entry
from rmqtool.formats.filler import is_filler
from rmqtool.formats.message import Message
from rmqtool.formats.properties import decode
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import BODY_CRC, OFFSET_MISMATCH, Blank, LogEvent, StoredMessage, TrailingZeros
from rmqtool.log.python_scan import walk_reference
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import head_of
from rmqtool.storage.source import ByteSource

_STEPS = (64 << 10, 4 << 20, 64 << 20)  # how far before the offset to search for a sound record
_STATUS = ((BODY_CRC, "body_crc"), (OFFSET_MISMATCH, "foreign"))


@dataclass(frozen=True, slots=True)
class Found:
    """One item of the log, [physical_offset, end); `message` is set if it is a record.

    `kind` is record, blank, unused (bytes after a blank, which no broker reads), zeros or damage.
    """

    kind: str
    physical_offset: int
    end: int
    status: str = "ok"
    message: Message | None = None

    def row(self) -> dict[str, Any]:
        """As JSON; a record with the fields that identify it."""
        row: dict[str, Any] = {
            "kind": self.kind,
            "physical_offset": self.physical_offset,
            "size": self.end - self.physical_offset,
            "status": self.status,
        }
        if self.message is not None:
            found = decode(self.message.properties_bytes)
            row |= {
                "topic": self.message.topic,
                "queue_id": self.message.queue_id,
                "queue_offset": self.message.queue_offset,
                "store_timestamp_ms": self.message.store_timestamp,
                "tags": found.get("TAGS"),
                "uniq_key": found.get("UNIQ_KEY"),
                "is_filler": is_filler(self.message),
            }
        return row


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The items before an offset, at it and after it; None if the file has none there."""

    before: Found | None
    at: Found | None
    after: Found | None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        parts = (("before", self.before), ("at", self.at), ("after", self.after))
        return {name: None if part is None else part.row() for name, part in parts}


def around(side: Operand, offset: int, reading: ReadOptions) -> Neighbours:
    """The items of `side` around a physical offset, as far as they can be read."""
    file = side.store.commit_log.file_of(offset)
    if file is None:
        return Neighbours(None, None, None)
    try:
        source = reading.open(file.path)
    except OSError:
        return Neighbours(None, None, None)
    with closing(source):
        position = offset - file.file_from_offset
        for step in _STEPS:
            start = max(position - step, 0)
            found = _around(source, file, start, position, sure=start == 0)
            if found is not None:
                return found
        return _around(source, file, 0, position, sure=True) or Neighbours(None, None, None)


def _around(
    source: ByteSource, file: StoreFile, start: int, position: int, *, sure: bool
) -> Neighbours | None:
    """See `around`; None if no sound record before `position` shows that the scan is aligned with records.

    `sure` is whether the scan begins at the start of a record.
    """
    before = at = None
    for event in walk_reference(source, file_from_offset=file.file_from_offset, start=start,
                                entry_header=file.entry_header):  # fmt: skip
        for found in _found(event):
            low = found.physical_offset - file.file_from_offset
            if low > position:
                return Neighbours(before, at, found) if sure else None
            if found.end - file.file_from_offset > position:
                at = found
            else:
                before = found
                sure = sure or (found.kind == "record" and found.status == "ok")
        if at is not None and not sure:
            return None
    return Neighbours(before, at, None) if sure else None


def _found(event: LogEvent) -> list[Found]:
    start, end = event.physical_offset, event.end
    if isinstance(event, StoredMessage):
        words = [word for bit, word in _STATUS if event.status & bit]
        if event.message.ends_in_zeros:
            words.append("ends_in_zeros")
        if not words and not is_whole(event.message, start):
            words.append("properties")
        return [Found("record", start, end, "+".join(words) or "ok", event.message)]
    if isinstance(event, Blank):
        blank = Found("blank", start, end, "ok" if event.ends_file else "wrong_size")
        unused = Found("unused", end, start + event.left)
        return [blank, unused] if event.ends_file and unused.end > end else [blank]
    if isinstance(event, TrailingZeros):
        return [Found("zeros", start, end)]
    return [Found("damage", start, end, event.reason.name.lower())]


_NEAR = 4096  # differing bytes closer than this are one range: most are in one record
_SEARCHED_RANGES = 100  # of which one may be where the logs part, even if fewer are listed
_PIECE = 256 << 20  # bytes that one thread compares at a time
_EPOCH_FILE_MAX = 1 << 20


@dataclass(slots=True)
class DifferingRange:
    """Bytes [start, stop) of the common range; the first and the last of them differ.

    `count` is the number of differing bytes. `a` and `b` describe the records around `start`; `changed` names
    the fields in which the two records there differ. `lacking` is what one side lacks where the other has
    messages.
    """

    start: int
    stop: int
    count: int
    a: Neighbours | None = None
    b: Neighbours | None = None
    changed: list[str] = field(default_factory=list)
    lacking: tuple[LackingRange, ...] = ()

    @property
    def first(self) -> int:
        """Where the first of the items around `start` begins, in either log."""
        places = (part.at.physical_offset for part in (self.a, self.b) if part is not None and part.at)
        return min((self.start, *places))

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "physical_offset": self.start,
            "length": self.stop - self.start,
            "differing_bytes": self.count,
            "changed_fields": self.changed,
            "lacking": [each.row() for each in self.lacking],
            "a": self.a.row() if self.a is not None else None,
            "b": self.b.row() if self.b is not None else None,
        }


@dataclass(frozen=True, slots=True)
class Diverged:
    """From the physical offset `start` to its end, each log holds sound records of its own.

    `carried` compares their messages by unique key; None if they are too many.
    """

    start: int
    a: Only
    b: Only
    carried: tuple[Carried, Carried] | None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        a, b = (None, None) if self.carried is None else (each.row() for each in self.carried)
        return {
            "physical_offset": self.start,
            "not_carried": NOT_CARRIED,
            "a": {**self.a.row(), "carried": a},
            "b": {**self.b.row(), "carried": b},
        }


@dataclass(slots=True)
class LogDifference:
    """The two commit logs; see the module.

    [start, stop) is the common range, empty if `start` >= `stop`. `ranges` are the first differing ranges;
    `more` is whether further ones follow, of which only the bytes are counted. `epochs` are the epochs of the
    first differing offset, in controller mode. There `epochs_end` is the offset up to which the logs must be
    equal by their epochs, None if they have none in common; `has_epochs`: both have an epoch file that can be
    read. `diverged` is set if both logs were written independently. `ahead_carried` compares the messages
    after the end of the shorter log by unique key, of logs that have not diverged; None if they are too many.
    `whole_files` are files to copy from one store to the other.
    """

    start: int
    stop: int
    compared_bytes: int
    differing_bytes: int
    ranges: list[DifferingRange]
    more: bool
    only: tuple[Only, ...]
    ahead: SideName | None
    ahead_bytes: int
    behind_end: TrailingRange | None
    unread: Unread
    epochs: tuple[int | None, int | None] = (None, None)
    has_epochs: bool = False
    epochs_end: int | None = None
    diverged: Diverged | None = None
    ahead_carried: Carried | None = None
    whole_files: tuple[WholeFiles, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether bytes differ, or are missing on one side, inside of the common range."""
        return bool(self.ranges) or any(part.place == "inside" for part in self.only)

    @property
    def is_same_extent(self) -> bool:
        """Whether both logs begin and end at the same offsets."""
        return all(part.place == "inside" for part in self.only)

    def row(self) -> dict[str, Any]:
        """As JSON; offsets and lengths in bytes."""
        return {
            "common_start": self.start,
            "common_end": max(self.stop, self.start),
            "compared_bytes": self.compared_bytes,
            "identical": not self.differs,
            "differing_bytes": self.differing_bytes,
            "first_difference": self.ranges[0].start if self.ranges else None,
            "ranges": [each.row() for each in self.ranges],
            "more_ranges": self.more,
            "epoch_a": self.epochs[0],
            "epoch_b": self.epochs[1],
            "has_epochs": self.has_epochs,
            "epochs_end": self.epochs_end,
            "only": [part.row() for part in self.only],
            "ahead": self.ahead,
            "ahead_bytes": self.ahead_bytes,
            "behind_end": self.behind_end.row() if self.behind_end is not None else None,
            "diverged": self.diverged.row() if self.diverged is not None else None,
            "ahead_carried": self.ahead_carried.row() if self.ahead_carried is not None else None,
            "whole_files": [each.row() for each in self.whole_files],
        }


def diff_logs(
    a: Operand, b: Operand, reading: ReadOptions, *, limit: int, jobs: int, progress: Progress
) -> LogDifference:
    """Compare the two commit logs; see `LogDifference`.

    Args:
        a: one side.
        b: the other.
        reading: how files are read.
        limit: most differing ranges that are listed.
        jobs: number of threads.
        progress: called with the bytes of the common range just compared, from any thread.
    """
    start, stop = common_range(a, b)
    unread = Unread()
    if start < stop:
        both = common(a.store.layout.commit_log, b.store.layout.commit_log, start, stop, _PIECE)
    else:
        both = Common((), (), ())
    searched = max(limit, _SEARCHED_RANGES)
    found = _Differences(searched)
    for part in _compare(both.pieces, reading, searched, jobs, progress):
        found.add(part, unread)
    unread_bytes = sum(high - low for side in (unread.a, unread.b) for low, high, _, _ in side)
    result = LogDifference(
        start, stop, max(both.size - unread_bytes, 0), found.count, found.ranges[:limit],
        found.more or len(found.ranges) > limit,
        tuple(only_one_side(a, b, both, start, stop)),
        "a" if a.end > b.end else "b" if b.end > a.end else None, abs(a.end - b.end),
        trailing_range(a, b, reading), unread,
    )  # fmt: skip
    for each in result.ranges:
        _describe(a, b, each, reading)
    epochs_a, epochs_b = _epochs_of(a), _epochs_of(b)
    if epochs_a and epochs_b:
        result.has_epochs = True
        result.epochs_end = epoch.common_end(epochs_a, a.end, epochs_b, b.end)
    parted = None
    if result.ranges:
        first = result.ranges[0].start
        result.epochs = _epoch_at(epochs_a, first), _epoch_at(epochs_b, first)
        parted = _parted(a, b, found.ranges, stop, reading)
        _look_for_lacking(a, b, result.ranges, parted)
    is_continued = start < stop or stop == 0  # an empty log ends at 0
    if result.ranges or (result.ahead is not None and is_continued):
        _compare_messages(a, b, result, parted, jobs)
    result.whole_files = tuple(whole_files(a, b, result, jobs))
    return result


def _describe(a: Operand, b: Operand, each: DifferingRange, reading: ReadOptions) -> None:
    each.a, each.b = around(a, each.start, reading), around(b, each.start, reading)
    one, other = (None if part.at is None else part.at.message for part in (each.a, each.b))
    each.changed = [] if one is None or other is None else changed_fields(one, other)


def _first_record(each: DifferingRange) -> int | None:
    """The offset of the records around the first byte; None unless both are sound and begin there."""
    one, other = (None if part is None else _sound(part.at) for part in (each.a, each.b))
    is_same = one is not None and other is not None and one.physical_offset == other.physical_offset
    return one.physical_offset if one is not None and is_same else None


def _look_for_lacking(a: Operand, b: Operand, ranges: list[DifferingRange], parted: int | None) -> None:
    """Find what one side lacks before the offset where the logs part: after it the messages are different."""
    searched = 0
    for each in ranges:
        if parted is None or each.first < parted:
            stop = each.stop if parted is None else min(each.stop, parted)
            found = lacking_ranges(a, b, each.first, stop)
            each.lacking = tuple(part for part in found if part.start >= searched)
            searched = max((searched, *(part.stop for part in found)))


def _parted(
    a: Operand, b: Operand, ranges: list[DifferingRange], stop: int, reading: ReadOptions
) -> int | None:
    """Where two logs have diverged: different messages at one offset, if the newest ones differ too."""
    one, other = _newest(a, b, ranges[0].start, stop, reading)
    if one is None or other is None or not are_different(one, other):
        return None
    for each in ranges:
        if each.a is None:
            _describe(a, b, each, reading)
        first = _first_record(each)
        if first is not None:
            found = parting(a, b, first, each.stop)
        elif (found := _end_of_one_file(each)) is None:
            found = first_different(a, b, each.first, each.stop)
        if found is not None:
            return found
    return None


def _end_of_one_file(each: DifferingRange) -> int | None:
    """The offset where one side has a sound record, and the other the blank that ends its file.

    A broker ends a file before a batch that does not fit into it, although its first message would fit.
    """
    one, other = (None if part is None else part.at for part in (each.a, each.b))
    if one is None or other is None or one.physical_offset != other.physical_offset:
        return None
    kinds = {found.kind for found in (one, other) if found.status == "ok"}
    return one.physical_offset if kinds == {"record", "blank"} else None


def _compare_messages(a: Operand, b: Operand, result: LogDifference, parted: int | None, jobs: int) -> None:
    """Compare the messages that one side has where the other lacks them, and those of its own end.

    Its own end begins where the logs part, or where the other log ends; if that is empty, at its start.
    """
    others: dict[SideName, SideName] = {"a": "b", "b": "a"}
    wanted = [
        Wanted(others[each.side], each.start, each.stop) for found in result.ranges for each in found.lacking
    ]
    begin = parted if parted is not None else max(result.start, result.stop)
    logs: tuple[tuple[SideName, Operand], ...] = (("a", a), ("b", b))
    ends = [
        Wanted(name, begin, side.end) for name, side in logs if parted is not None or name == result.ahead
    ]
    is_compared = max(a.end, b.end) - begin <= COMPARED_BYTES
    results = iter(carried(a, b, [*wanted, *(ends if is_compared else ())], jobs=jobs))
    for found in result.ranges:
        found.lacking = tuple(replace(each, carried=next(results)) for each in found.lacking)
    own = tuple(results)
    if parted is None:
        result.ahead_carried = own[0] if own else None
        return
    held_a, held_b = held_by("a", "after", a, parted, a.end), held_by("b", "after", b, parted, b.end)
    result.diverged = Diverged(parted, held_a, held_b, (own[0], own[1]) if own else None)


def _newest(
    a: Operand, b: Operand, first: int, stop: int, reading: ReadOptions
) -> tuple[Message | None, Message | None]:
    """The sound records at the end of the common range, or before the blank or the fillers there."""
    while stop > first:
        found = [_sound(each.at) or _sound(each.before)
                 for each in (around(side, stop - 1, reading) for side in (a, b))]  # fmt: skip
        starts = [start_of_fillers(side, first, each.end) for side, each in zip((a, b), found, strict=True)
                  if each is not None and each.message is not None and is_filler(each.message)]  # fmt: skip
        if not starts:
            one, other = (None if each is None else each.message for each in found)
            return one, other
        stop = min(starts)
    return None, None


def _sound(found: Found | None) -> Found | None:
    """A record that shows which message is there; for that its properties may be damaged."""
    is_message = found is not None and found.message is not None and found.status in ("ok", "properties")
    return found if is_message else None


def common_range(a: Operand, b: Operand) -> Range:
    """The physical offsets that both logs span, half-open; the start may be after the end."""
    return max(a.start, b.start, 0), min(a.end, b.end)


# bytes


@dataclass(slots=True)
class _Part:
    """The differences that one thread found in one piece."""

    ranges: list[DifferingRange] = field(default_factory=list)
    more: bool = False
    count: int = 0
    unread: Unread = field(default_factory=Unread)


def _compare(
    pieces: tuple[Piece, ...], reading: ReadOptions, limit: int, jobs: int, progress: Progress
) -> Iterator[_Part]:
    """The differences in every piece, in order."""
    with ThreadPoolExecutor(jobs, "rmqtool-diff") as pool:
        waiting: deque[Future[_Part]] = deque()
        try:
            for piece in pieces:
                waiting.append(pool.submit(_compare_piece, piece, reading, limit, progress))
                if len(waiting) > jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            if waiting and reading.limiter is not None:
                reading.limiter.stop()
            for future in waiting:
                future.cancel()


def _compare_piece(piece: Piece, reading: ReadOptions, limit: int, progress: Progress) -> _Part:
    part = _Part()
    for offset, a, b in differing(piece, (reading.open, reading.open), part.unread, progress=progress):
        for index, differs in differing_bytes(a, b):
            part.count += len(differs)
            _add_runs(part, offset + index, differs, limit)
    return part


def _add_runs(part: _Part, base: int, differs: np.ndarray, limit: int) -> None:
    """Add the differing bytes at `base + differs` (ascending, not empty) to the ranges."""
    cuts = np.flatnonzero(np.diff(differs) > _NEAR) + 1
    bounds = [0, *cuts[: limit + 1].tolist()]
    ends = [*bounds[1:], len(differs)]
    for first, last in zip(bounds, ends, strict=True):
        low, high = base + int(differs[first]), base + int(differs[last - 1]) + 1
        _join(part, DifferingRange(low, high, last - first), limit)


def _join(part: _Part | _Differences, new: DifferingRange, limit: int) -> None:
    known = part.ranges
    if known and not part.more and new.start - known[-1].stop < _NEAR:
        known[-1].stop, known[-1].count = new.stop, known[-1].count + new.count
    elif len(known) < limit:
        known.append(new)
    else:
        part.more = True


class _Differences:
    """The differing ranges of the whole log, joined piece by piece."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ranges: list[DifferingRange] = []
        self.more = False
        self.count = 0

    def add(self, part: _Part, unread: Unread) -> None:
        """Add the differences in the next piece."""
        self.count += part.count
        for each in part.ranges:
            _join(self, each, self.limit)
        self.more = self.more or part.more
        unread.a += part.unread.a
        unread.b += part.unread.b
        unread.gone += part.unread.gone


def _epochs_of(side: Operand) -> list[Entry]:
    """The epochs of controller mode; none without a file that can be read."""
    path = side.store.layout.epoch
    if path is None:
        return []
    try:
        return epoch.decode(head_of(path, _EPOCH_FILE_MAX))
    except FormatError:
        return []


def _epoch_at(entries: list[Entry], offset: int) -> int | None:
    """The epoch in which an offset was written; None if unknown."""
    known = [entry.epoch for entry in entries if entry.start_offset <= offset]
    return known[-1] if known else None
