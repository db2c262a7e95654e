"""Consume queue files as arrays: units by queue offset, read in runs, never one by one.

A queue is a row of equally long files named by byte offset; unit k stands at byte k * unit size.
Nothing here knows a store: a file is anything with `path`, `file_from_offset` and `size`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from rmqtool.formats import consume_queue
from rmqtool.storage.source import ByteSource

UNIT_DTYPE = consume_queue.UNIT.dtype
BATCH_UNIT_DTYPE = consume_queue.BATCH_UNIT.dtype

_OPEN_FILES_MAX = 256
_RUN_GAP_MAX = 512  # units: reading this many for nothing is cheaper than another read
_BLOCK_UNITS = 1 << 13  # a sparse file holds little: more would be zeros


class QueueFile(Protocol):
    """One file of a queue."""

    @property
    def path(self) -> Path:
        """Where it is."""

    @property
    def file_from_offset(self) -> int:
        """Byte offset of its first byte within the queue."""

    @property
    def size(self) -> int:
        """Its length in bytes."""


class UnitReader:
    """Reads units of many queues through a bounded number of open files; one per thread."""

    def __init__(self, opener: Callable[[Path], ByteSource], dtype: np.dtype[np.void] = UNIT_DTYPE) -> None:
        self._opener = opener
        self._open: OrderedDict[Path, ByteSource] = OrderedDict()
        self.dtype = dtype

    def close(self) -> None:
        """Close every open file."""
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> UnitReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _source(self, path: Path) -> ByteSource:
        source = self._open.get(path)
        if source is None:
            if len(self._open) >= _OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
            source = self._opener(path)
            self._open[path] = source
        else:
            self._open.move_to_end(path)
        return source

    def read_bytes(self, path: Path, offset: int, length: int) -> bytes:
        """Bytes of any file of the store, fewer at its end. Raises OSError."""
        return bytes(self._source(path).read(offset, length))

    def read(self, files: Sequence[QueueFile], first: int, count: int) -> np.ndarray:
        """Units [first, first + count) of a queue, shape (count,); zeros where no file holds them."""
        unit = self.dtype.itemsize
        units = np.zeros(count, self.dtype)
        raw = units.view(np.uint8)
        start, stop = first * unit, (first + count) * unit
        for file in files:
            low, high = max(start, file.file_from_offset), min(stop, file.file_from_offset + file.size)
            if low < high:
                data = self._source(file.path).read(low - file.file_from_offset, high - low)
                raw[low - start : low - start + len(data)] = np.frombuffer(data, np.uint8)
        return units

    def gather(self, files: Sequence[QueueFile], queue_offsets: np.ndarray) -> np.ndarray:
        """The units at `queue_offsets` (ascending, shape (n,), >= 0): shape (n,).

        Neighbours are read together, so the cost follows the number of runs, and a hostile
        queue offset cannot make a large read.
        """
        count = len(queue_offsets)
        if not count:
            return np.zeros(0, self.dtype)
        first, last = int(queue_offsets[0]), int(queue_offsets[-1])
        steps = np.diff(queue_offsets)
        if (steps == 1).all():
            return self.read(files, first, count)
        units = np.zeros(count, self.dtype)
        breaks = np.flatnonzero(steps > _RUN_GAP_MAX) + 1
        for run in np.split(np.arange(len(queue_offsets)), breaks):
            first, last = int(queue_offsets[run[0]]), int(queue_offsets[run[-1]])
            units[run] = self.read(files, first, last - first + 1)[queue_offsets[run] - first]
        return units

    def blocks(self, file: QueueFile) -> Iterator[tuple[int, np.ndarray]]:
        """(index of the first unit within the file, units) of one file, all of it, in blocks.

        Holes and blocks that are all zero are left out, so a sparse file costs what it holds.
        """
        unit = self.dtype.itemsize
        source = self._source(file.path)
        count = min(file.size, source.size) // unit
        first = source.data_from(0) // unit
        while first < count:
            data = source.read(first * unit, min(_BLOCK_UNITS, count - first) * unit)
            units = len(data) // unit
            if not units:
                return
            if data.count(0) != len(data):
                yield first, np.frombuffer(data, self.dtype, units)
            first = max(first + units, source.data_from((first + units) * unit) // unit)


def present(units: np.ndarray) -> np.ndarray:
    """Which units a broker takes for valid: offset >= 0 and size > 0 (pre-blanks count).

    Of a batch queue also: first queue offset >= 0 and count > 0. Source: ConsumeQueue#recover,
    BatchConsumeQueue#recover.
    """
    valid = (units["physical_offset"] >= 0) & (units["size"] > 0)
    if "batch_size" in (units.dtype.names or ()):
        valid &= (units["base_offset"] >= 0) & (units["batch_size"] > 0)
    return np.asarray(valid)


def pre_blank(units: np.ndarray) -> np.ndarray:
    """Which units are the filler below a queue's first live unit."""
    blank = consume_queue.PRE_BLANK
    return np.asarray(
        (units["physical_offset"] == blank.physical_offset)
        & (units["size"] == blank.size)
        & (units["tags_code"] == blank.tags_code)
    )
