"""Compares two sequences of files, window by window, at the speed of memory.

A sequence is a commit log or a consume queue: files named by the offset of their first byte. The two
sequences may have files of different sizes, so the common range is cut into pieces that are in one file on
either side. Equal windows, and holes on both sides, are not yielded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.layout import StoreFile

if TYPE_CHECKING:
    from rmqtool.storage.source import ByteSource

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

Opener = Callable[[Path], "ByteSource"]
Range = tuple[int, int]

WINDOW = 4 << 20
_BLOCK = 256 << 10  # bytes compared at once: the result stays in the processor's cache


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets [start, stop) of both sequences, in the file `a` of one and `b` of the other."""

    start: int
    stop: int
    a: StoreFile
    b: StoreFile


@dataclass(frozen=True, slots=True)
class Common:
    """The ranges that both sequences hold, and those that only one does; half-open offsets, ascending."""

    pieces: tuple[Piece, ...]
    only_a: tuple[Range, ...]
    only_b: tuple[Range, ...]

    @property
    def size(self) -> int:
        """Bytes that both hold."""
        return sum(piece.stop - piece.start for piece in self.pieces)


@dataclass(slots=True)
class Unread:
    """Ranges that could not be compared: (start, stop, path, reason) by side, half-open offsets.

    `gone` are files that were deleted while they were read, as a running broker does.
    """

    a: list[tuple[int, int, Path, str]] = field(default_factory=list)
    b: list[tuple[int, int, Path, str]] = field(default_factory=list)
    gone: list[Path] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.a or self.b)


def covered(files: Sequence[StoreFile], start: int, stop: int) -> list[tuple[int, int, StoreFile]]:
    """(start, stop, file) of the parts of [start, stop) that the files hold, ascending, each byte once.

    A file that reaches into the next one counts up to that one's start. Source: MappedFileQueue, which looks
    a file up by its start.
    """
    found = []
    for place, file in enumerate(files):
        end = min(file.end, files[place + 1].file_from_offset) if place + 1 < len(files) else file.end
        low, high = max(file.file_from_offset, start), min(end, stop)
        if low < high:
            found.append((low, high, file))
    return found


def common(a: Sequence[StoreFile], b: Sequence[StoreFile], start: int, stop: int, cut: int = 0) -> Common:
    """The parts of [start, stop) that two sequences of files hold.

    Args:
        a: the files of one sequence, in order of their offsets.
        b: those of the other.
        start: the first offset.
        stop: the offset after the range.
        cut: most bytes of a piece; 0: no limit.
    """
    left, right = covered(a, start, stop), covered(b, start, stop)
    pieces: list[Piece] = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        step = cut or max(high - low, 1)
        pieces += (Piece(at, min(at + step, high), left[i][2], right[j][2]) for at in range(low, high, step))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    both = [(piece.start, piece.stop) for piece in pieces]
    return Common(
        tuple(pieces),
        without([(low, high) for low, high, _ in left], both),
        without([(low, high) for low, high, _ in right], both),
    )


def without(ranges: Sequence[Range], excluded: Sequence[Range]) -> tuple[Range, ...]:
    """The ascending `ranges` without the ascending `excluded`; adjacent results are joined."""
    rest: list[Range] = []
    place = 0
    for low, high in ranges:
        while place < len(excluded) and excluded[place][0] < high:
            if excluded[place][0] > low:
                rest.append((low, excluded[place][0]))
            low = max(low, excluded[place][1])
            place += 1
        if low < high:
            if rest and rest[-1][1] == low:
                rest[-1] = (rest[-1][0], high)
            else:
                rest.append((low, high))
    return tuple(rest)


def differing(
    piece: Piece, openers: tuple[Opener, Opener], unread: Unread, window: int = WINDOW, progress: Any = None
) -> Iterator[tuple[int, Bytes, Bytes]]:
    """(offset, bytes of a, bytes of b) of the windows of a piece that differ, in order.

    Args:
        piece: what to compare.
        openers: open a source over a file, for either side.
        unread: collects unreadable ranges; those bytes are equal in the yielded arrays.
        window: bytes of a window; the last one may be shorter.
        progress: called with the bytes just compared.

    Use the arrays before the next iteration.
    """
    if _is_same_file(piece):
        if progress is not None:
            progress(piece.stop - piece.start)
        return
    a = _opened(piece, piece.a, openers[0], unread.a, unread.gone)
    if a is None:
        return
    with closing(a):
        b = _opened(piece, piece.b, openers[1], unread.b, unread.gone)
        if b is None:
            return
        with closing(b):
            yield from _windows(piece, a, b, unread, window, progress)


def _windows(
    piece: Piece, a: ByteSource, b: ByteSource, unread: Unread, window: int, progress: Any
) -> Iterator[tuple[int, Bytes, Bytes]]:
    base_a, base_b = piece.a.file_from_offset, piece.b.file_from_offset
    sides = (_Side(a, base_a, piece.a.path, unread.a), _Side(b, base_b, piece.b.path, unread.b))
    position = piece.start
    while position < piece.stop:
        data = min(a.data_from(position - base_a) + base_a, b.data_from(position - base_b) + base_b)
        skipped = max(min(data, piece.stop) - position, 0) // window * window
        length = min(window, piece.stop - position - skipped)
        position += skipped
        if length > 0:
            left, right = (side.window(position, length) for side in sides)
            if any(side.has_new for side in sides):
                left, right = _masked(left, right, position, [side.take() for side in sides])
            if not equal(left, right):
                yield position, left, right
        if progress is not None:
            progress(skipped + length)
        position += length


class _Side:
    """One file of a comparison, addressed by offsets of its sequence."""

    def __init__(
        self, source: ByteSource, base: int, path: Path, unread: list[tuple[int, int, Path, str]]
    ) -> None:
        self.source = source
        self.base = base
        self.path = path
        self.unread = unread
        self.reported = 0

    @property
    def has_new(self) -> bool:
        """Whether something could not be read since the last call of `take`."""
        return len(self.source.unreadable) > self.reported

    def window(self, offset: int, length: int) -> Bytes:
        """`length` bytes at an offset; if the file has become shorter, zeros that are noted as unreadable."""
        data = self.source.window(offset - self.base, length)
        if len(data) < length:
            short = offset - self.base + len(data)
            self.source.unreadable.append((short, offset - self.base + length))
            data = np.concatenate((data, np.zeros(length - len(data), np.uint8)))
        return data

    def take(self) -> list[Range]:
        """Report the new unreadable ranges and return them, as offsets of the sequence."""
        new = [(low + self.base, high + self.base) for low, high in self.source.unreadable[self.reported :]]
        self.reported = len(self.source.unreadable)
        for low, high in new:
            reason = "input/output error" if high - self.base <= self.source.size else "it became shorter"
            if self.unread and self.unread[-1][1:3] == (low, self.path):
                low = self.unread.pop()[0]
            self.unread.append((low, high, self.path, reason))
        return new


def _masked(a: Bytes, b: Bytes, position: int, ranges: list[list[Range]]) -> tuple[Bytes, Bytes]:
    """Copies of two windows that are equal where either side could not be read."""
    a, b = a.copy(), b.copy()
    for low, high in (each for side in ranges for each in side):
        part = slice(max(low - position, 0), max(high - position, 0))
        a[part] = b[part] = 0
    return a, b


def _is_same_file(piece: Piece) -> bool:
    """Whether both sides are the same file, for example by a link: then there is nothing to compare."""
    if piece.a.file_from_offset != piece.b.file_from_offset:
        return False
    try:
        return piece.a.path.samefile(piece.b.path)
    except OSError:
        return False


def _opened(
    piece: Piece, file: StoreFile, opener: Opener, unread: list[tuple[int, int, Path, str]], gone: list[Path]
) -> ByteSource | None:
    try:
        return opener(file.path)
    except FileNotFoundError:
        gone.append(file.path)
    except OSError as error:
        reason = error.strerror or str(error)
        if unread and unread[-1][1:] == (piece.start, file.path, reason):
            unread.append((unread.pop()[0], piece.stop, file.path, reason))
        else:
            unread.append((piece.start, piece.stop, file.path, reason))
    return None


def equal(a: Bytes, b: Bytes) -> bool:
    """Whether two windows of the same length are equal; stops at the first block that differs."""
    for start in range(0, len(a), _BLOCK):
        if not _is_equal(a[start : start + _BLOCK], b[start : start + _BLOCK]):
            return False
    return True


def _is_equal(a: Bytes, b: Bytes) -> bool:
    if len(a) % 8 == a.ctypes.data % 8 == b.ctypes.data % 8 == 0:  # mostly; a quarter faster
        return bool((a.view(np.uint64) == b.view(np.uint64)).all())
    return bool((a == b).all())


def differing_bytes(a: Bytes, b: Bytes) -> Iterator[tuple[int, np.ndarray]]:
    """(start of the block, indices of differing bytes in it) of every block that differs."""
    for start in range(0, len(a), _BLOCK):
        left, right = a[start : start + _BLOCK], b[start : start + _BLOCK]
        if not _is_equal(left, right):
            yield start, np.flatnonzero(left != right)
