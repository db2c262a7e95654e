"""The order of queue offsets over the sound parts of the log: finds missing offsets, and zombies.

The log is split into pieces at holes and where the store time goes back. Only the first and the last queue
offset of each queue in a piece count, because nothing is missing inside a piece.

    a queue's next piece starts above the end of the last one   the records in between were lost
    most queues start below, the store time goes back, and      zombies: records that remained after a
    no later record is newer than those before                  truncation, spec 02 C14

This is a second scan of the heads only, and only if there are holes or the time goes back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.formats.message import INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.dispatch import dispatch_columns
from rmqtool.log.frames import Frames, walk
from rmqtool.repair.salvage.file_scan import FileScan
from rmqtool.repair.salvage.full_size import of_full_size
from rmqtool.storage.source import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rmqtool.storage.source import ByteSource

_WINDOW_MIN = 16 << 10

Key = tuple[bytes, int]
"""Topic as stored and queue id."""


@dataclass(slots=True)
class QueuePart:
    """One queue within one piece: queue offsets [first, next), and the physical range of its records."""

    first: int
    first_physical: int
    next: int
    end: int


@dataclass(slots=True)
class Gap:
    """Queue offsets [first, stop) that no sound record has, lost between two places of the log.

    `after` is the end of the sound record before the gap, -1 if the queue has none; `before` is the start of
    the one after it.
    """

    key: Key
    first: int
    stop: int
    after: int
    before: int


@dataclass
class Order:
    """The result of the scan.

    Attributes:
        gaps: missing queue offsets, in the order of the log.
        known: the parts of each queue, ascending, for look-ups.
        zombies_from: the physical offset where records of an older log begin; None if there are none.
        counts: (start, number of sound records) of every piece before that.
    """

    gaps: list[Gap] = field(default_factory=list)
    known: dict[Key, list[QueuePart]] = field(default_factory=dict)
    zombies_from: int | None = None
    counts: list[tuple[int, int]] = field(default_factory=list)

    def split(self, offset: int, torn: Sequence[int]) -> tuple[int, int]:
        """The numbers of sound records (before, at or after) a physical offset where the log is cut.

        Args:
            offset: the start of a piece, or of the first of `torn`.
            torn: starts, ascending, of sound records that are cut although their piece begins before it.
        """
        starts = [start for start, _ in self.counts]
        moved = sum(starts[bisect_right(starts, one) - 1] < offset for one in torn)
        before = sum(records for start, records in self.counts if start < offset)
        return before - moved, sum(records for _, records in self.counts) - before + moved

    def around(self, key: Key, offset: int) -> tuple[int, int | None]:
        """(next queue offset before a physical offset or -1, first queue offset after it or None)."""
        pieces = self.known.get(key, [])
        place = bisect_left(pieces, offset, key=lambda piece: piece.first_physical)
        before = pieces[place - 1].next if place else -1
        return before, pieces[place].first if place < len(pieces) else None


@dataclass(slots=True)
class _Piece:
    start: int
    stop: int
    is_back: bool
    records: int = 0
    queues: dict[Key, QueuePart] = field(default_factory=dict)


def read_order(scans: Sequence[FileScan], opener: Callable[[Path], ByteSource], jobs: int) -> Order:
    """Scan the heads in the sound parts of the log again and compare them queue by queue."""
    backs = _backs(scans)
    work = [(scan, _pieces(scan, backs)) for scan in scans if scan.kept]
    with ThreadPoolExecutor(jobs, "rmqtool-salvage") as pool:
        done = list(pool.map(lambda item: _read(item[0], item[1], opener), work))
    pieces = [piece for part in done for piece in part]
    order = Order(zombies_from=_zombies(pieces, scans))
    if order.zombies_from is not None:
        pieces = [piece for piece in pieces if piece.start < order.zombies_from]
    order.counts = [(piece.start, piece.records) for piece in pieces]
    _compare(pieces, order)
    return order


def has_backs(scans: Sequence[FileScan]) -> bool:
    """Whether the store time goes back anywhere in the log."""
    return bool(_backs(scans))


def _backs(scans: Sequence[FileScan]) -> frozenset[int]:
    """The offsets of sound records whose store time is before that of the one before them."""
    found: set[int] = set()
    last = 0
    for scan in scans:
        for number, segment in enumerate(scan.segments):
            if number or scan.first_ms < last:
                found.add(segment.start)
        last = scan.last_ms if scan.segments else last
    return frozenset(found)


def _pieces(scan: FileScan, backs: frozenset[int]) -> list[_Piece]:
    """The sound parts of one file: between its holes, cut where the time goes back."""
    pieces = []
    position = scan.file.file_from_offset
    ends = [(hole.start, hole.stop) for hole in scan.holes] + [(scan.end, scan.end)]
    cuts = sorted(segment.start for segment in scan.segments if segment.start in backs)
    for stop, behind in ends:
        inner = [cut for cut in cuts if position < cut < stop]
        for low, high in zip([position, *inner], [*inner, stop], strict=True):
            if low < high:
                pieces.append(_Piece(low, high, low in backs))
        position = behind
    return pieces


def _read(scan: FileScan, pieces: list[_Piece], opener: Callable[[Path], ByteSource]) -> list[_Piece]:
    source = of_full_size(opener(scan.file.path), scan.file)
    try:
        base = scan.file.file_from_offset
        for piece in pieces:
            # a scan allocates arrays per window: short pieces get short windows
            window = min(max(piece.stop - piece.start, _WINDOW_MIN), WINDOW)
            for event in walk(
                source, file_from_offset=base, start=piece.start - base, stop=piece.stop - base, crc=False,
                check_stored_offset=False, window=window,
            ):  # fmt: skip
                if isinstance(event, Frames):
                    _add(piece, event)
    finally:
        source.close()
    return pieces


def _add(piece: _Piece, frames: Frames) -> None:
    """Add one window to a piece: the first and the last record of each queue."""
    rows = frames.rows
    piece.records += len(rows)
    kind = rows["sys_flag"] & TRANSACTION_MASK
    chosen = np.flatnonzero((kind == 0) | (kind == TRANSACTION_COMMIT))
    if not len(chosen):
        return
    offsets, steps = rows["queue_offset"], np.ones(len(rows), np.int64)
    if (rows["sys_flag"] & INNER_BATCH).any():
        dispatch = dispatch_columns(frames)
        inner = dispatch.inner_count > 0
        offsets = np.where(inner, dispatch.inner_base, offsets)
        steps = np.where(inner, dispatch.inner_count, 1).astype(np.int64)
    topics = rows["topic_id"][chosen].astype(np.int64)
    codes = (topics << 32) | (rows["queue_id"][chosen].astype(np.int64) & 0xFFFFFFFF)
    by_queue = np.argsort(codes, kind="stable")
    chosen, codes = chosen[by_queue], codes[by_queue]
    cuts = (np.flatnonzero(np.diff(codes)) + 1).tolist()
    for low, high in zip([0, *cuts], [*cuts, len(chosen)], strict=True):
        first, last = int(chosen[low]), int(chosen[high - 1])
        key = (frames.topics[int(rows["topic_id"][first])], int(rows["queue_id"][first]))
        stop = int(offsets[last]) + int(steps[last])
        end = int(rows["physical_offset"][last]) + int(rows["size"][last])
        known = piece.queues.get(key)
        if known is None:
            start = int(rows["physical_offset"][first])
            piece.queues[key] = QueuePart(int(offsets[first]), start, stop, end)
        else:
            known.next, known.end = stop, end


def _compare(pieces: Iterable[_Piece], order: Order) -> None:
    """Set `gaps` and `known` of the order."""
    state: dict[Key, QueuePart] = {}
    for piece in pieces:
        for key, item in piece.queues.items():
            before = state.get(key)
            if before is not None and item.first > before.next:
                order.gaps.append(Gap(key, before.next, item.first, before.end, item.first_physical))
            elif before is None and item.first > 0:
                order.gaps.append(Gap(key, 0, item.first, -1, item.first_physical))
            order.known.setdefault(key, []).append(item)
            state[key] = item


def _zombies(pieces: Sequence[_Piece], scans: Sequence[FileScan]) -> int | None:
    """The physical offset from which on the log is an older one; None if there is none."""
    newest = 0  # before the piece
    behind = _newest_behind(scans)
    state: dict[Key, int] = {}
    times = _last_times(scans)
    for piece in pieces:
        if piece.is_back and behind.get(piece.start, newest + 1) <= newest:
            known = [(item.first, state[key]) for key, item in piece.queues.items() if key in state]
            repeats = sum(0 < first < stop for first, stop in known)
            if repeats > sum(first == stop for first, stop in known):
                return piece.start
        state.update((key, item.next) for key, item in piece.queues.items())
        newest = max(newest, times.get(piece.start, 0))
    return None


def _newest_behind(scans: Sequence[FileScan]) -> dict[int, int]:
    """By start of a segment, the newest store time in it or after it."""
    found: dict[int, int] = {}
    newest = 0
    for scan in reversed(scans):
        for segment in reversed(scan.segments):
            newest = max(newest, segment.last_ms)
            found[segment.start] = newest
    return found


def _last_times(scans: Sequence[FileScan]) -> dict[int, int]:
    """By start of a segment, its newest store time."""
    return {segment.start: segment.last_ms for scan in scans for segment in scan.segments}
