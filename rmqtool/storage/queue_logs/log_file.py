"""A segment of a queue log as a file of a commit log: its bytes, a blank, and zeros up to `SPAN`.

A record states its offset in the log of its queue; here it states its place (`model`). It is known by its
magic and by that offset, which is that of its own first byte: nothing else in a log says where it is itself,
so no record has to be found by the one before it. A record that states another offset stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from rmqtool.formats.message import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
)
from rmqtool.storage.queue_logs.model import SPAN
from rmqtool.storage.random_file import RandomFile

_MAGIC_AT, _OFFSET_AT = (HEADS[0].offsets[name] for name in ("magic", "physical_offset"))
_OFFSET_BYTES = 8
_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_HEAD = _OFFSET_AT + _OFFSET_BYTES
_SMALL = 64 << 10  # bytes up to which records are found without numpy

Used = Callable[[RandomFile], int]
"""How many bytes of a segment are records."""


class LogFile:
    """A segment, opened: `file` holds the bytes from the offset `base` on, the first of which has `place`."""

    def __init__(self, file: RandomFile, base: int, place: int, used: Used) -> None:
        self.size = SPAN
        self.is_near = file.is_near
        self._file = file
        self._base = base
        self._place = place
        self._used_of = used

    @cached_property
    def used(self) -> int:
        """Bytes of records; a blank follows."""
        return min(self._used_of(self._file), self.size - BLANK_SIZE)

    def read(self, offset: int, length: int) -> bytes:
        """See RandomFile."""
        stop = min(offset + length, self.size)
        if stop <= offset:
            return b""
        data = b""
        if offset < self.used:
            data = self._records(offset, min(stop, self.used))
            if len(data) < min(stop, self.used) - offset:
                return data  # the segment has become shorter
        at = offset + len(data)
        if at < stop and at < self.used + BLANK_SIZE:
            blank = BLANK.pack(self.size - self.used, BLANK_MAGIC)
            data += blank[at - self.used : stop - self.used]
        return data.ljust(stop - offset, b"\0")

    def _records(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop), with the places of records in them."""
        low = max(start - _HEAD + 1, 0)
        data = bytearray(self._file.read(low, min(stop + _HEAD, self.used) - low))
        if len(data) <= _SMALL:
            self._patch(data, low)
        else:
            self._patch_many(data, low)
        return bytes(memoryview(data)[start - low : stop - low])

    def _patch(self, data: bytearray, low: int) -> None:
        for magic in _MAGICS:
            at = data.find(magic)
            while at >= 0:
                field = at - _MAGIC_AT + _OFFSET_AT
                position = low + at - _MAGIC_AT
                stated = data[field : field + _OFFSET_BYTES]
                if position >= 0 and stated == (self._base + position).to_bytes(_OFFSET_BYTES, "big"):
                    data[field : field + _OFFSET_BYTES] = (self._place + position).to_bytes(
                        _OFFSET_BYTES, "big"
                    )
                at = data.find(magic, at + 1)

    def _patch_many(self, data: bytearray, low: int) -> None:
        import numpy as np

        view = np.frombuffer(data, np.uint8)
        room = len(view) - (_HEAD - _MAGIC_AT) + 1
        found = np.flatnonzero(view[: max(room, 0)] == _MAGICS[0][0])
        for number in (1, 2):
            found = found[view[found + number] == _MAGICS[0][number]]
        found = found[np.isin(view[found + 3], [magic[3] for magic in _MAGICS])]
        fields = (found + (_OFFSET_AT - _MAGIC_AT))[:, None] + np.arange(_OFFSET_BYTES)
        stated = np.ascontiguousarray(view[fields]).view(">i8")[:, 0]
        positions = found.astype(np.int64) + (low - _MAGIC_AT)
        own = (positions >= 0) & (stated == self._base + positions)
        places = (self._place + positions[own]).astype(">i8")
        view[fields[own]] = places[:, None].view(np.uint8).reshape(-1, _OFFSET_BYTES)

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        return offset if offset < self.used + BLANK_SIZE else self.size

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        return max(offset, self.used + BLANK_SIZE)

    def close(self) -> None:
        """See RandomFile."""
        self._file.close()


assert _MAGICS[0][:3] == _MAGICS[1][:3]
