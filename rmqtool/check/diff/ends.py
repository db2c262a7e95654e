"""The ends of two commit logs: ranges on one side only, and the bytes after the shorter log's end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Literal

import numpy as np

from rmqtool.check.diff.operands import Operand, ReadOptions
from rmqtool.check.diff.windows import Common
from rmqtool.errors import UnreadableError
from rmqtool.formats.message import BLANK, BLANK_SIZE
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.log_heads import is_blank

SideName = Literal["a", "b"]
Place = Literal["before", "inside", "after"]

_COUNTED_BYTES = 16 << 20  # in a longer range the records are not counted
_TAIL_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Only:
    """Bytes [start, stop) of the log that only one side holds.

    `place` is `before` or `after` the common range, or `inside` it: a file that the other side lacks,
    or has in part. `records` is None if they were not counted. Times, ms since 1970, are
    the oldest and the newest: messages that were carried over keep theirs. Of a long range its ends count.
    """

    side: SideName
    place: Place
    start: int
    stop: int
    records: int | None
    first_store_timestamp: int | None
    last_store_timestamp: int | None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "side": self.side,
            "place": self.place,
            "physical_offset": self.start,
            "length": self.stop - self.start,
            "records": self.records,
            "first_store_timestamp_ms": self.first_store_timestamp,
            "last_store_timestamp_ms": self.last_store_timestamp,
        }


@dataclass(frozen=True, slots=True)
class TrailingRange:
    """The bytes after the end of the shorter log, where the other one continues at `physical_offset`.

    That is the start of the next file if the shorter log ends with the same blank as the other one's file.
    `state` is `empty` (zeros), `part` (the first bytes of the other log's record, then zeros: it was being
    written) or `other` (a damaged record, or remains of an older log).
    """

    side: SideName
    physical_offset: int
    state: Literal["empty", "part", "other"]

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {"side": self.side, "physical_offset": self.physical_offset, "state": self.state}


def only_one_side(a: Operand, b: Operand, both: Common, start: int, stop: int) -> Iterator[Only]:
    """The ranges of the log that only one side holds; [start, stop) is the common range."""
    if start >= stop:
        for side in (a, b):
            if 0 <= side.start < side.end:
                place: Place = "after" if side.end >= max(a.end, b.end) else "before"
                yield held_by("a" if side is a else "b", place, side, side.start, side.end)
        return
    for side, other, inside in ((a, b, both.only_a), (b, a, both.only_b)):
        name: SideName = "a" if side is a else "b"
        if side.start < other.start:
            yield held_by(name, "before", side, side.start, start)
        for low, high in inside:
            yield held_by(name, "inside", side, low, high)
        if side.end > other.end:
            yield held_by(name, "after", side, stop, side.end)


def held_by(name: SideName, place: Place, side: Operand, low: int, high: int) -> Only:
    """The range [low, high) of one side, with its times, and the number of records if it is short."""
    log = side.store.commit_log
    count, times, sees_end = None, list[int](), False
    last = side.tail.last if high == side.end else None
    try:
        head = next(log.heads(low), None)  # after a blank at `low`, the first record of the next file
        if head is not None:
            times.append(head.store_timestamp)
        if last is not None:
            times.append(last.store_timestamp)
            sees_end = True
        if high - low <= _COUNTED_BYTES:
            count, position = 0, low
            for each in log.heads(low) if head is not None else ():
                if each.physical_offset >= high:
                    break
                count, position = count + 1, each.end
                times.append(each.store_timestamp)
            sees_end = sees_end or count > 0
            stop = high if last is None else last.end  # a file without a record may follow
            if head is None or (place == "after" and position < stop):
                count = None  # some of the bytes are not records: verify reports them
    except UnreadableError:
        count = None
    newest = max(times, default=None) if sees_end else None
    return Only(name, place, low, high, count, min(times, default=None), newest)


def trailing_range(a: Operand, b: Operand, reading: ReadOptions) -> TrailingRange | None:
    """The bytes after the shorter log's end; None if both end at one offset, or on a read error."""
    if a.end == b.end or min(a.start, b.start) < 0:
        return None
    name: SideName = "a" if a.end < b.end else "b"
    shorter, longer = (a, b) if a.end < b.end else (b, a)
    offset = shorter.end
    try:
        following = {_after_blank(side, offset, reading) for side in (a, b)}
        if len(following) == 1 and (start := following.pop()) is not None:
            return TrailingRange(name, start, "empty")
        head = longer.store.commit_log.head(offset)
        length = head.total_size if head is not None else BLANK_SIZE
        with (
            closing(_Bytes(shorter, offset, reading)) as here,
            closing(_Bytes(longer, offset, reading)) as there,
        ):
            return TrailingRange(name, offset, _state(here, there, length))
    except OSError:
        return None


def _after_blank(side: Operand, offset: int, reading: ReadOptions) -> int | None:
    """The end of the file that ends with a blank at an offset; None without one. Raises OSError."""
    file = side.store.commit_log.file_of(offset)
    if file is None:
        return None
    left = file.end - offset
    with closing(_Bytes(side, offset, reading)) as found:
        first, second = BLANK.unpack(found.read(0, BLANK_SIZE).tobytes())
    ends_file = is_blank(first, second, left, file.entry_header) and left in (first, second)
    return file.end if ends_file else None


class _Bytes:
    """The bytes of one side from an offset to the end of its file. Raises OSError."""

    def __init__(self, side: Operand, offset: int, reading: ReadOptions) -> None:
        file = side.store.commit_log.file_of(offset)
        self._source = reading.open(file.path) if file is not None else None
        self._position = offset - file.file_from_offset if file is not None else 0

    def read(self, start: int, length: int) -> np.ndarray:
        """`length` bytes; zeros after the file's end."""
        data = self._source.read(self._position + start, length) if self._source is not None else b""
        return np.frombuffer(data.ljust(length, b"\0"), np.uint8)

    def close(self) -> None:
        """Close the file."""
        if self._source is not None:
            self._source.close()


def _state(here: _Bytes, there: _Bytes, length: int) -> Literal["empty", "part", "other"]:
    """How `here` compares with the `length` bytes of `there`; see `TrailingRange`."""
    has_bytes = ended = False
    for start in range(0, length, _TAIL_BLOCK):
        size = min(_TAIL_BLOCK, length - start)
        left, right = here.read(start, size), there.read(start, size)
        differs = np.flatnonzero(left != right)
        tail = left if ended else left[int(differs[0]) :] if len(differs) else left[:0]
        if tail.any():
            return "other"
        has_bytes, ended = has_bytes or bool(left.any()), ended or bool(len(differs))
    return "part" if has_bytes else "empty"
