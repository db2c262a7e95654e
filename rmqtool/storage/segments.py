"""A file that is a part of another file: a member of a tar, sparse or not, or a part of the spool."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from rmqtool.storage.remote_file import RandomFile

Segment = tuple[int, int, int]
"""(offset in this file, bytes, offset in the containing file); between segments are holes."""


class PartFile:
    """A RandomFile made of segments of another one.

    Args:
        base: the containing file.
        size: bytes of this file.
        segments: the ranges outside of holes, in order of their offsets, disjoint and not empty.
        owns_base: close `base` together with this file.
    """

    def __init__(
        self, base: RandomFile, size: int, segments: Sequence[Segment], *, owns_base: bool = False
    ) -> None:
        self.size = size
        self.is_near = base.is_near
        self._base = base
        self._segments = segments
        self._starts = [start for start, _, _ in segments]
        self._owns_base = owns_base

    def read(self, offset: int, length: int) -> bytes:
        """See RandomFile."""
        stop = min(offset + length, self.size)
        if stop <= offset:
            return b""
        number = max(bisect_right(self._starts, offset) - 1, 0)
        if number < len(self._segments):
            start, count, place = self._segments[number]
            if start <= offset and stop <= start + count:
                return self._base.read(place + offset - start, stop - offset)
        data = bytearray(stop - offset)
        for start, count, place in self._segments[number:]:
            low, high = max(start, offset), min(start + count, stop)
            if start >= stop:
                break
            if low < high:
                found = self._base.read(place + low - start, high - low)
                data[low - offset : low - offset + len(found)] = found
        return bytes(data)

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        for start, count, place in self._segments[max(bisect_right(self._starts, offset) - 1, 0) :]:
            low = max(offset, start)
            if low < start + count:
                found = start + self._base.data_from(place + low - start) - place
                if found < start + count:
                    return found
        return self.size

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        for start, count, place in self._segments[max(bisect_right(self._starts, offset) - 1, 0) :]:
            if start > offset:
                return offset
            if offset < start + count:
                found = start + self._base.hole_from(place + offset - start) - place
                if found < start + count:
                    return found
                offset = start + count
        return min(offset, self.size)

    def close(self) -> None:
        """See RandomFile."""
        if self._owns_base:
            self._base.close()
