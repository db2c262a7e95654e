"""The queue of a queue log as one file of 20-byte units, with the places of records instead of their offsets.

The file begins with the queue's first unit and ends after its last one; where units are missing it has zeros.
In tiered storage a queue is a row of segments of such units. Of a compacted topic it is a row of 46-byte
units, each with its queue offset, of which most are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.formats.consume_queue import BATCH_UNIT, UNIT, UNIT_SIZE
from rmqtool.storage.queue_logs.model import Places, Segment

if TYPE_CHECKING:
    from rmqtool.storage.buffers import Array

_OFFSETS_STOP = (1 << 62) // UNIT_SIZE
Read = Callable[[Segment, int, int], bytes]
"""Reads bytes of a segment; fewer at its end. Raises OSError."""


class UnitFile:
    """Units of 20 bytes in segments whose bases are byte offsets in the queue."""

    is_near = True

    def __init__(
        self,
        segments: Sequence[Segment],
        places: Places,
        read: Read,
        data_from: Callable[[Segment, int], int],
        start: int,
        stop: int,
    ) -> None:
        self.size = stop - start
        self._segments = segments
        self._places = places
        self._read = read
        self._data_from = data_from
        self._start = start

    def read(self, offset: int, length: int) -> bytes:
        """See RandomFile."""
        stop = min(offset + length, self.size)
        if stop <= offset:
            return b""
        low = offset - offset % UNIT_SIZE
        high = stop + -stop % UNIT_SIZE
        data = bytearray(high - low)
        first, last = self._start + low, self._start + high
        for segment in self._segments:
            start, end = max(segment.base, first), min(segment.end - segment.size % UNIT_SIZE, last)
            if start < end:
                units = self._read(segment, start - segment.base, end - start)
                units = units[: len(units) - len(units) % UNIT_SIZE]
                data[start - first : start - first + len(units)] = self._placed(units)
        return bytes(memoryview(data)[offset - low : stop - low])

    def _placed(self, data: bytes) -> bytes:
        units = np.frombuffer(data, UNIT.dtype).copy()
        written = units["size"] > 0
        units["physical_offset"][written] = self._places.places(
            units["physical_offset"][written].astype(np.int64)
        )
        return units.tobytes()

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        at = self._start + offset
        found = self._start + self.size
        for segment in self._segments:  # in the order of their bases
            if segment.base >= found:
                break
            if segment.end > at:
                data = self._data_from(segment, max(at - segment.base, 0))
                if data < segment.size:
                    found = min(found, segment.base + data)
        return found - self._start

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        return self.size

    def close(self) -> None:
        """See RandomFile. The segments stay open."""


class SparseUnits:
    """The units of a compacted queue, read once: `units` in the order of their queue offsets.

    Units without a size were never written; of two units with one queue offset the later one counts.
    `left_out` is the number of units with a queue offset that no queue has: its byte offset needs 64 bits.
    `miscounted` is the number of units with another batch size than 1.
    """

    def __init__(self, data: bytes) -> None:
        units = np.frombuffer(data[: len(data) - len(data) % BATCH_UNIT.size], BATCH_UNIT.dtype)
        units = units[units["size"] > 0]
        possible = (units["base_offset"] >= 0) & (units["base_offset"] < _OFFSETS_STOP)
        self.left_out = int(len(units) - np.count_nonzero(possible))
        self.miscounted = int(np.count_nonzero(units["batch_size"] != 1))
        units = units[possible][::-1]
        offsets = units["base_offset"].astype(np.int64)
        self.offsets, chosen = np.unique(offsets, return_index=True)
        self.units: Array = units[chosen]

    @property
    def first(self) -> int:
        """The first queue offset; 0 without units."""
        return int(self.offsets[0]) if len(self.offsets) else 0

    @property
    def stop(self) -> int:
        """The queue offset after the last unit; 0 without units."""
        return int(self.offsets[-1]) + 1 if len(self.offsets) else 0


class SparseUnitFile:
    """`SparseUnits` as a file of units."""

    is_near = True

    def __init__(self, units: SparseUnits, places: Places) -> None:
        self.size = (units.stop - units.first) * UNIT_SIZE
        self._units = units
        self._places = places

    def read(self, offset: int, length: int) -> bytes:
        """See RandomFile."""
        stop = min(offset + length, self.size)
        if stop <= offset:
            return b""
        low, high = offset // UNIT_SIZE, -(-stop // UNIT_SIZE)
        first = self._units.first
        begin, end = np.searchsorted(self._units.offsets, (first + low, first + high))
        units = np.zeros(high - low, UNIT.dtype)
        found, at = self._units.units[begin:end], self._units.offsets[begin:end] - first - low
        units["physical_offset"][at] = self._places.places(found["physical_offset"].astype(np.int64))
        for name in ("size", "tags_code"):
            units[name][at] = found[name]
        return units.tobytes()[offset - low * UNIT_SIZE : stop - low * UNIT_SIZE]

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        first = self._units.first
        found = int(np.searchsorted(self._units.offsets, first + offset // UNIT_SIZE))
        if found == len(self._units.offsets):
            return self.size
        return max(offset, (int(self._units.offsets[found]) - first) * UNIT_SIZE)

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        return self.size

    def close(self) -> None:
        """See RandomFile."""
