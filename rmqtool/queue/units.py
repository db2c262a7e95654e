"""Units of consume queues as arrays, of either kind of queue: read in blocks and runs, never one by one.

`consume_queue` gives units as tuples, for a few of them and without numpy. The units here are the same
bytes as structured arrays, shape (units,), in the fields of `UNIT` or `BATCH_UNIT`: the size of a unit
decides which. `present`, `live` and `queue_offsets` are the rules of `Unit.is_present` and
`Unit.is_pre_blank` over such an array; `tests/unit/queue` holds the two together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.formats.consume_queue import BATCH_UNIT, PRE_BLANK, UNIT
from rmqtool.storage.buffers import Array
from rmqtool.storage.rocksdb.queues import RocksdbQueues
from rmqtool.storage.source import ByteSource, open_source
from rmqtool.storage.storage import StoragePath

UNIT_DTYPE = UNIT.dtype
BATCH_UNIT_DTYPE = BATCH_UNIT.dtype

_DTYPES = {UNIT.size: UNIT_DTYPE, BATCH_UNIT.size: BATCH_UNIT_DTYPE}
_OPEN_FILES_MAX = 256
_RUN_GAP_MAX = 512  # units: reading this many for nothing is cheaper than another read
_READ_UNITS = 1 << 15
_BLOCK_UNITS = 1 << 13  # a sparse file holds little: more would be zeros
_FEW_UNITS = 1 << 8  # of thousands of queues most hold less; the rest of their block is a hole


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


class UnitFiles(Protocol):
    """The files of one queue by rising offset: those of a layout, or of an open queue."""

    @property
    def files(self) -> Sequence[QueueFile]:
        """The files."""

    @property
    def unit_size(self) -> int:
        """Bytes of a unit: 20, or 46 in a batch queue."""


def unit_array(data: bytes | bytearray | Array, unit_size: int) -> Array:
    """The whole units at the start of `data`, shape (units,); a view."""
    return np.frombuffer(data, _DTYPES[unit_size], len(data) // unit_size)


class UnitReader:
    """Reads units of many queues through a bounded number of open files; one per thread.

    Args:
        opener: opens a file.
        open_max: how many files stay open, at most 256.
    """

    def __init__(
        self, opener: Callable[[Path], ByteSource] = open_source, open_max: int = _OPEN_FILES_MAX
    ) -> None:
        self._opener = opener
        self._open_max = min(open_max, _OPEN_FILES_MAX)
        self._open: OrderedDict[Path, ByteSource] = OrderedDict()

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
            if len(self._open) >= self._open_max:
                self._open.popitem(last=False)[1].close()
            if isinstance(path, StoragePath) and isinstance(path.storage, RocksdbQueues):
                from rmqtool.queue.rocksdb_units import use  # loads llvmlite

                use(path.storage)
            source = self._opener(path)
            self._open[path] = source
        else:
            self._open.move_to_end(path)
        return source

    def read_bytes(self, path: Path, offset: int, length: int) -> bytes:
        """Bytes of any file of the store, fewer at its end. Raises OSError."""
        return bytes(self._source(path).read(offset, length))

    def read(self, queue: UnitFiles, first: int, count: int) -> Array:
        """Units [first, first + count) of a queue, shape (count,); zeros where no file holds them."""
        size = queue.unit_size
        units = np.zeros(count, _DTYPES[size])
        raw = units.view(np.uint8)
        start, stop = first * size, (first + count) * size
        for file in queue.files:
            low, high = max(start, file.file_from_offset), min(stop, file.file_from_offset + file.size)
            if low < high:
                data = self._source(file.path).read(low - file.file_from_offset, high - low)
                raw[low - start : low - start + len(data)] = np.frombuffer(data, np.uint8)
        return units

    def gather(self, queue: UnitFiles, numbers: Array) -> Array:
        """The units with these numbers (ascending, shape (n,), >= 0): shape (n,).

        Neighbours are read together, so the cost follows the number of runs, and a hostile
        number cannot cause a large read.
        """
        count = len(numbers)
        if not count:
            return np.zeros(0, _DTYPES[queue.unit_size])
        first, last = int(numbers[0]), int(numbers[-1])
        steps = np.diff(numbers)
        if (steps == 1).all():
            return self.read(queue, first, count)
        units = np.zeros(count, _DTYPES[queue.unit_size])
        breaks = np.flatnonzero(steps > _RUN_GAP_MAX) + 1
        for run in np.split(np.arange(count), breaks):
            first, last = int(numbers[run[0]]), int(numbers[run[-1]])
            units[run] = self.read(queue, first, last - first + 1)[numbers[run] - first]
        return units

    def blocks(self, file: QueueFile, unit_size: int) -> Iterator[tuple[int, Array]]:
        """(number of the first unit, units) of all of one file, in blocks.

        Holes and blocks that are all zero are left out, so a sparse file costs what it holds.
        """
        source = self._source(file.path)
        base, count = file.file_from_offset // unit_size, min(file.size, source.size) // unit_size
        first = source.data_from(0) // unit_size
        while first < count:
            start, stop = first * unit_size, min(first + _BLOCK_UNITS, count) * unit_size
            data = source.read(start, min(_FEW_UNITS * unit_size, stop - start))
            if source.data_from(start + len(data)) < stop:
                data += source.read(start + len(data), stop - start - len(data))
            units = len(data) // unit_size
            if not units:
                return
            if data.count(0) != len(data):
                yield base + first, unit_array(data, unit_size)
            first = max(first + units, source.data_from((first + units) * unit_size) // unit_size)

    def must_be_read(self, file: QueueFile) -> None:
        """Raise UnreadableError if a part of a file that `blocks` has read could not be read.

        `blocks` gives zeros there, which a check reports by itself. A reader that takes them for absent units
        would leave out messages.
        """
        source = self._source(file.path)
        lost = [*source.unreadable, *([(source.size, file.size)] if source.size < file.size else [])]
        if lost:
            low, high = lost[0]
            raise UnreadableError(f"bytes {low} to {high} of a queue cannot be read", path=file.path)

    def live_between(self, queue: UnitFiles, start: int, stop: int) -> Iterator[tuple[Array, Array]]:
        """(numbers, units) of the live units [start, stop) of a queue, in blocks."""
        for first in range(start, stop, _READ_UNITS):
            units = self.read(queue, first, min(_READ_UNITS, stop - first))
            chosen = np.flatnonzero(live(units))
            yield chosen + first, units[chosen]


def _is_batch(units: Array) -> bool:
    return units.dtype == BATCH_UNIT_DTYPE


def present(units: Array) -> Array:
    """Which units a broker takes for valid: offset >= 0 and size > 0 (pre-blanks count).

    Of a batch queue also: first queue offset >= 0 and count > 0. Source: ConsumeQueue#recover,
    BatchConsumeQueue#recover.
    """
    valid = (units["physical_offset"] >= 0) & (units["size"] > 0)
    if _is_batch(units):
        valid &= (units["base_offset"] >= 0) & (units["batch_size"] > 0)
    return np.asarray(valid)


def pre_blank(units: Array) -> Array:
    """Which units are the filler below a queue's first live unit."""
    return np.asarray(
        (units["physical_offset"] == PRE_BLANK.physical_offset)
        & (units["size"] == PRE_BLANK.size)
        & (units["tags_code"] == PRE_BLANK.tags_code)
    )


def live(units: Array) -> Array:
    """Which units name a record: present, and not a filler. A batch queue has no fillers."""
    return present(units) if _is_batch(units) else present(units) & ~pre_blank(units)


def queue_offsets(units: Array, first: int) -> Array:
    """The queue offset of each unit, i8, of a batch that of its first message.

    `first` is the number of the first unit.
    """
    if _is_batch(units):
        return units["base_offset"].astype(np.int64)
    return np.arange(first, first + len(units))
