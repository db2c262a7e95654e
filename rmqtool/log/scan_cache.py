"""A compact cache of scan results, so that later passes need not read the log again.

A column is stored as differences from its smallest value, in the smallest type that holds them. A record with
its keys usually takes some 20 bytes, compared with a thousand in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.dispatch import KEY, MULTI_DISPATCH, Dispatch
from rmqtool.log.events import PROPERTIES_UNSOUND, Blank, TrailingZeros
from rmqtool.log.frames import FRAME, Frames

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

LIMIT = 192 << 20
"""Most bytes of packed batches per pass."""
_ROWS = (
    "physical_offset", "store_timestamp", "queue_offset", "size", "queue_id", "sys_flag", "topic_id",
    "version",
)  # fmt: skip
_DISPATCH = ("tags_code", "delay_level", "inner_base", "inner_count", "flags")
_UNSIGNED = (np.uint8, np.uint16, np.uint32)
_EXPENSIVE = MULTI_DISPATCH | PROPERTIES_UNSOUND
"""Flags of records that need their properties later; these are not cached, so such a batch is not either."""


class _Column(NamedTuple):
    """The differences of values from `least`; None if all are equal to it."""

    least: int
    above: Array | None

    @classmethod
    def of(cls, values: Array) -> _Column:
        least, most = int(values.min()), int(values.max())
        if least == most:
            return cls(least, None)
        for dtype in _UNSIGNED:
            if most - least <= np.iinfo(dtype).max:
                return cls(least, (values - values.dtype.type(least)).astype(dtype))
        return cls(0, values.copy())

    def put(self, into: Array) -> None:
        """Write the values into an array of the same length."""
        if self.above is None:
            into[:] = self.least
        else:
            np.add(self.above, into.dtype.type(self.least), out=into, casting="unsafe")

    @property
    def nbytes(self) -> int:
        return 0 if self.above is None else self.above.nbytes


@dataclass(frozen=True, slots=True)
class Packed:
    """One batch of a scan; its records start at the physical offsets `start` to `last`, inclusive."""

    start: int
    last: int
    count: int
    key_count: int
    topics: list[bytes]
    file_from_offset: int
    columns: dict[str, _Column]
    keys: dict[str, _Column]

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the columns."""
        return sum(column.nbytes for column in (*self.columns.values(), *self.keys.values()))

    def unpack(self) -> tuple[Frames, Dispatch]:
        """The batch of the scan, without the bytes of its records.

        A row has the fields that dispatch needs; all others, including `status`, are 0.
        """
        rows = np.zeros(self.count, FRAME)
        for name in _ROWS:
            self.columns[name].put(rows[name])
        found = {}
        for name, dtype in zip(_DISPATCH, (np.int64, np.int32, np.int64, np.int32, np.uint8), strict=True):
            found[name] = np.empty(self.count, dtype)
            self.columns[name].put(found[name])
        keys = np.zeros(self.key_count, KEY)
        for name, column in self.keys.items():
            column.put(keys[name])
        nothing = np.zeros(0, np.uint8)
        return Frames(rows, self.topics, nothing, 0, self.file_from_offset), Dispatch(**found, keys=keys)


def pack(frames: Frames, dispatch: Dispatch) -> Packed | None:
    """Pack a batch; None if one of its records needs its properties later."""
    if (dispatch.flags & _EXPENSIVE).any():
        return None
    rows, keys = frames.rows, dispatch.keys
    columns = {name: _Column.of(rows[name]) for name in _ROWS}
    columns |= {name: _Column.of(getattr(dispatch, name)) for name in _DISPATCH}
    return Packed(
        int(rows["physical_offset"][0]), int(rows["physical_offset"][-1]), len(rows), len(keys),
        list(frames.topics), frames.file_from_offset, columns,
        {name: _Column.of(keys[name]) for name in ("row", "key_hash", "kind")} if len(keys) else {},
    )  # fmt: skip


@dataclass(frozen=True)
class CachedScan:
    """The scan of a log file with sound records only, and the last event after them."""

    size: int
    batches: tuple[Packed, ...]
    end: Blank | TrailingZeros | None

    def events(self) -> Iterator[tuple[Frames, Dispatch] | Blank | TrailingZeros]:
        """The events of the scan, without the bytes of the records."""
        for batch in self.batches:
            yield batch.unpack()
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
