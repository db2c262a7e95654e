"""Compares two commit logs byte by byte where both have bytes, and finds what only one of them holds.

A slave has its master's bytes at the master's offsets, including blanks and the bytes after them. So the
common range [max(starts), min(ends)) of two copies of one log is byte-identical. The logs may start and
end at different offsets and have files of different sizes.

Source: DefaultMessageStore#appendToCommitLog; spec 02 12.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rmqtool.check.diff.ends import Only, SideName, TrailingRange, held_by, only_one_side, trailing_range
from rmqtool.check.diff.neighbours import Found, Neighbours, around, changed_fields
from rmqtool.check.diff.operands import Operand, ReadOptions
from rmqtool.check.diff.windows import Common, Piece, Range, Unread, common, differing, differing_bytes
from rmqtool.errors import FormatError
from rmqtool.findings import Progress
from rmqtool.formats import epoch
from rmqtool.storage.open_files import head_of

_NEAR = 4096  # differing bytes closer than this are one range: most are in one record
_OWN_FIELDS = 2  # different records differ in so many fields at least; in one only, one of them is damaged
_PIECE = 256 << 20  # bytes that one thread compares at a time
_EPOCH_FILE_MAX = 1 << 20


@dataclass(slots=True)
class DifferingRange:
    """Bytes [start, stop) of the common range; the first and the last of them differ.

    `count` is the number of differing bytes. `a` and `b` describe the records around `start`; `changed` names
    the fields in which the two records there differ.
    """

    start: int
    stop: int
    count: int
    a: Neighbours | None = None
    b: Neighbours | None = None
    changed: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "physical_offset": self.start,
            "length": self.stop - self.start,
            "differing_bytes": self.count,
            "changed_fields": self.changed,
            "a": self.a.row() if self.a is not None else None,
            "b": self.b.row() if self.b is not None else None,
        }


@dataclass(frozen=True, slots=True)
class Diverged:
    """From the physical offset `start` to its end, each log holds sound records of its own."""

    start: int
    a: Only
    b: Only

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {"physical_offset": self.start, "a": self.a.row(), "b": self.b.row()}


@dataclass(slots=True)
class LogDifference:
    """The two commit logs; see the module.

    [start, stop) is the common range, empty if `start` >= `stop`. `ranges` are the first differing ranges;
    `more` is whether further ones follow, of which only the bytes are counted. `epochs` are the epochs of the
    first differing offset, in controller mode. `diverged` is set if both logs were written independently.
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
    diverged: Diverged | None = None

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
            "only": [part.row() for part in self.only],
            "ahead": self.ahead,
            "ahead_bytes": self.ahead_bytes,
            "behind_end": self.behind_end.row() if self.behind_end is not None else None,
            "diverged": self.diverged.row() if self.diverged is not None else None,
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
    found = _Differences(limit)
    for part in _compare(both.pieces, reading, limit, jobs, progress):
        found.add(part, unread)
    unread_bytes = sum(high - low for side in (unread.a, unread.b) for low, high, _, _ in side)
    result = LogDifference(
        start, stop, max(both.size - unread_bytes, 0), found.count, found.ranges, found.more,
        tuple(only_one_side(a, b, both, start, stop)),
        "a" if a.end > b.end else "b" if b.end > a.end else None, abs(a.end - b.end),
        trailing_range(a, b, reading), unread,
    )  # fmt: skip
    for each in result.ranges:
        each.a, each.b = around(a, each.start, reading), around(b, each.start, reading)
        each.changed = changed_fields(each.a.at, each.b.at)
    if result.ranges:
        result.epochs = _epoch_of(a, result.ranges[0].start), _epoch_of(b, result.ranges[0].start)
        result.diverged = _diverged(a, b, result.ranges, stop, reading)
    return result


def _diverged(
    a: Operand, b: Operand, ranges: list[DifferingRange], stop: int, reading: ReadOptions
) -> Diverged | None:
    """Where two logs have diverged: two sound records at one offset, and the newest common ones differ too.

    A CRC does not cover the whole record, so a difference in a single field may be damage.
    """
    last_a, last_b = (_newest(around(side, stop - 1, reading)) for side in (a, b))
    if len(changed_fields(last_a, last_b)) < _OWN_FIELDS:
        return None
    for each in ranges:
        one, other = (None if part is None else _sound(part.at) for part in (each.a, each.b))
        if one is None or other is None or one.physical_offset != other.physical_offset:
            continue
        if len(each.changed) >= _OWN_FIELDS:
            start = one.physical_offset
            held_a, held_b = held_by("a", "after", a, start, a.end), held_by("b", "after", b, start, b.end)
            return Diverged(start, held_a, held_b)
    return None


def _newest(found: Neighbours) -> Found | None:
    """The sound record at the end of the common range, or before the blank there."""
    return _sound(found.at) or _sound(found.before)


def _sound(found: Found | None) -> Found | None:
    return found if found is not None and found.message is not None and found.status == "ok" else None


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


def _epoch_of(side: Operand, offset: int) -> int | None:
    """The epoch of controller mode in which an offset was written; None if unknown."""
    path = side.store.layout.epoch
    if path is None:
        return None
    try:
        entries = epoch.decode(head_of(path, _EPOCH_FILE_MAX))
    except FormatError:
        return None
    known = [entry.epoch for entry in entries if entry.start_offset <= offset]
    return known[-1] if known else None
