"""A compact cache of scan results, so that later passes need not read the log again.

A column is stored as differences from its smallest value, in the smallest type that holds them. A record with
its keys usually takes some 20 bytes, compared with a thousand in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.dispatch import KEY, MULTI_DISPATCH, Dispatch
from rmqtool.log.events import PROPERTIES_UNSOUND, Blank, TrailingZeros
from rmqtool.log.frames import FRAME, Frames
from rmqtool.storage.buffers import Buffers

if TYPE_CHECKING:
    from rmqtool.log.scan_cache_kernel import Pools

    Array = np.ndarray[Any, np.dtype[Any]]

LIMIT = 192 << 20
"""Most bytes of packed batches per pass."""
_ROWS = (
    "physical_offset", "store_timestamp", "queue_offset", "size", "queue_id", "sys_flag", "topic_id",
    "version",
)  # fmt: skip
"""The fields of a row that are kept, in the order of the kernels."""
_DISPATCH = {
    "tags_code": np.int64, "delay_level": np.int32, "inner_base": np.int64, "inner_count": np.int32,
    "flags": np.uint8,
}  # fmt: skip
_WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.int64}
_KEPT_BUFFERS = 4
_EXPENSIVE = MULTI_DISPATCH | PROPERTIES_UNSOUND
"""Flags of records that need their properties later; these are not cached, so such a batch is not either."""
_LONG = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class Packed:
    """One batch of a scan; its records start at the physical offsets `start` to `last`, inclusive.

    `places` and `pools` are those of `scan_cache_kernel`.
    """

    start: int
    last: int
    count: int
    key_count: int
    topics: list[bytes]
    file_from_offset: int
    places: Array
    pools: Pools

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the columns."""
        return int(self.places.nbytes + sum(pool.nbytes for pool in self.pools))


class Unpacking:
    """Unpacks batches into memory that is used again once a batch is no longer referenced; for one thread."""

    def __init__(self, batches: Sequence[Packed]) -> None:
        records = max((batch.count for batch in batches), default=0)
        self._rows = Buffers(records, FRAME, _KEPT_BUFFERS)
        self._keys = Buffers(max((batch.key_count for batch in batches), default=0), KEY, _KEPT_BUFFERS)
        self._columns = {name: Buffers(records, dtype, _KEPT_BUFFERS) for name, dtype in _DISPATCH.items()}

    def of(self, batch: Packed) -> tuple[Frames, Dispatch]:
        """The batch of the scan, without the bytes of its records.

        A row has the fields that dispatch needs; all others, including `status`, are 0.
        """
        from rmqtool.log import scan_cache_kernel as kernel

        rows, keys = self._rows.take()[: batch.count], self._keys.take()[: batch.key_count]
        columns = {name: buffers.take()[: batch.count] for name, buffers in self._columns.items()}
        kernel.unpack(rows, kernel.Columns(**columns), keys, batch.places, batch.pools)
        nothing = np.zeros(0, np.uint8)
        frames = Frames(rows, batch.topics, nothing, 0, batch.file_from_offset)
        return frames, Dispatch(**columns, keys=keys)


def pack(frames: Frames, dispatch: Dispatch) -> Packed | None:
    """Pack a batch; None if one of its records needs its properties later."""
    from rmqtool.log import scan_cache_kernel as kernel

    if (dispatch.flags & _EXPENSIVE).any():
        return None
    rows, keys = frames.rows, dispatch.keys
    columns = kernel.Columns(*(np.ascontiguousarray(getattr(dispatch, name)) for name in _DISPATCH))
    ends = np.empty((kernel.COLUMNS, 2), np.int64)
    ends[:] = _LONG.max, _LONG.min
    kernel.extremes(rows, columns, keys, ends)
    places = np.zeros((kernel.COLUMNS, 3), np.int64)
    used = dict.fromkeys(_WIDTHS, 0)
    for column, (least, most) in enumerate(ends.tolist()):
        if least < most:
            width = _width(most - least)
            places[column] = width, used[width], least
            used[width] += len(rows) if column < kernel.OF_RECORDS else len(keys)
        else:
            places[column, 2] = least
    pools = kernel.Pools(*(np.empty(used[width], dtype) for width, dtype in _WIDTHS.items()))
    kernel.pack(rows, columns, keys, places, pools)
    first, last = int(rows["physical_offset"][0]), int(rows["physical_offset"][-1])
    return Packed(
        first, last, len(rows), len(keys), list(frames.topics), frames.file_from_offset, places, pools
    )


def _width(difference: int) -> int:
    """The bytes for numbers up to `difference`; 8 stands for values as they are."""
    return next((width for width in (1, 2, 4) if difference >> 8 * width == 0), 8)


@dataclass(frozen=True)
class CachedScan:
    """The scan of a log file with sound records only, and the last event after them."""

    size: int
    batches: tuple[Packed, ...]
    end: Blank | TrailingZeros | None

    def events(self) -> Iterator[tuple[Frames, Dispatch] | Blank | TrailingZeros]:
        """The events of the scan, without the bytes of the records."""
        unpacking = Unpacking(self.batches)
        for batch in self.batches:
            yield unpacking.of(batch)
        if self.end is not None:
            yield self.end


@dataclass
class ScanCache:
    """The scans of sound files of a log, up to `LIMIT` bytes; any thread may use it."""

    _files: dict[Path, CachedScan] = field(default_factory=dict)
    _room: int = LIMIT
    _lock: Lock = field(default_factory=Lock)

    def find(self, path: Path, size: int) -> CachedScan | None:
        """The cached scan of a file; None if there is none, or the file had another size."""
        found = self._files.get(path)
        return found if found is not None and found.size == size else None

    def keep(self, path: Path) -> CacheEntryWriter:
        """Start the entry of a file."""
        return CacheEntryWriter(self, path)

    def take(self, count: int) -> bool:
        """Reserve `count` bytes; returns False if too few are left. A negative count releases bytes."""
        with self._lock:
            if self._room < count:
                return False
            self._room -= count
            return True

    def put(self, path: Path, file: CachedScan) -> None:
        """Add a file that was scanned to its end."""
        self._files[path] = file


class CacheEntryWriter:
    """Builds the cache entry of one file during its scan; gives up at a batch that cannot be cached."""

    def __init__(self, files: ScanCache, path: Path) -> None:
        self._files = files
        self._path = path
        self._batches: list[Packed] | None = []

    def add(self, frames: Frames, dispatch: Dispatch) -> None:
        """Add the next batch, whose records are all sound."""
        if self._batches is None:
            return
        batch = pack(frames, dispatch)
        if batch is not None and self._files.take(batch.nbytes):
            self._batches.append(batch)
        else:
            self.drop()

    def drop(self) -> None:
        """Give up: the file is not completely sound, or the cache is full."""
        if self._batches is not None:
            self._files.take(-sum(batch.nbytes for batch in self._batches))
        self._batches = None

    def finish(self, size: int, end: Blank | TrailingZeros | None) -> None:
        """Finish the entry; `end` is the last event of the scan, after the records."""
        if self._batches is not None:
            self._files.put(self._path, CachedScan(size, tuple(self._batches), end))
