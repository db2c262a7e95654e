"""What a walk has seen of sound records, kept in little memory so that the log is read once.

Columns are kept as what they are above their least value, in the fewest bytes that hold it: mostly
some 20 bytes for a record with its keys, where the log has a thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.log.dispatch import KEY, MULTI_DISPATCH, PROPERTIES_UNSOUND, Dispatch
from rmqtool.log.events import Blank, TrailingZeros
from rmqtool.log.frames import FRAME, Frames

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

LIMIT = 192 << 20
"""Bytes of packed batches that one pass may keep."""
_ROWS = (
    "physical_offset", "store_timestamp", "queue_offset", "size", "queue_id", "sys_flag", "topic_id",
    "version",
)  # fmt: skip
_DISPATCH = ("tags_code", "delay_level", "inner_base", "inner_count", "flags")
_UNSIGNED = (np.uint8, np.uint16, np.uint32)
_EXPENSIVE = MULTI_DISPATCH | PROPERTIES_UNSOUND
"""What such records say has to be looked up in their properties, which are not kept."""


class _Column(NamedTuple):
    """Values above `least`; None where all are equal to it."""

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
        """Write the values into an array of their number."""
        if self.above is None:
            into[:] = self.least
        else:
            np.add(self.above, into.dtype.type(self.least), out=into, casting="unsafe")

    @property
    def nbytes(self) -> int:
        return 0 if self.above is None else self.above.nbytes


@dataclass(frozen=True, slots=True)
class Packed:
    """One batch of a walk; its records start at the physical offsets [start, last]."""

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
        """Memory that the columns take."""
        return sum(column.nbytes for column in (*self.columns.values(), *self.keys.values()))

    def unpack(self) -> tuple[Frames, Dispatch]:
        """The batch as the walk gave it, without the bytes of its records.

        Of a row what dispatch needs is there: the rest, `status` among it, is 0.
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
    """A batch packed; None where what its records say cannot be had without their bytes."""
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
    """A log file in which a walk met sound records only, and what it ended with."""

    size: int
    batches: tuple[Packed, ...]
    end: Blank | TrailingZeros | None

    def events(self) -> Iterator[tuple[Frames, Dispatch] | Blank | TrailingZeros]:
        """What the walk gave, without the bytes of the records."""
        for batch in self.batches:
            yield batch.unpack()
        if self.end is not None:
            yield self.end


@dataclass
class ScanCache:
    """The sound files of a log, from any thread: as many as `LIMIT` bytes hold."""

    _files: dict[Path, CachedScan] = field(default_factory=dict)
    _room: int = LIMIT
    _lock: Lock = field(default_factory=Lock)

    def find(self, path: Path, size: int) -> CachedScan | None:
        """What is kept of a file that has `size` bytes."""
        found = self._files.get(path)
        return found if found is not None and found.size == size else None

    def keep(self, path: Path) -> CacheEntryWriter:
        """Begin with a file."""
        return CacheEntryWriter(self, path)

    def take(self, count: int) -> bool:
        """Have `count` bytes of what there may be; False where there are no more. Below 0: give back."""
        with self._lock:
            if self._room < count:
                return False
            self._room -= count
            return True

    def put(self, path: Path, file: CachedScan) -> None:
        """A file that was walked to its end."""
        self._files[path] = file


class CacheEntryWriter:
    """What is kept of one file while it is walked, until something in it cannot be kept."""

    def __init__(self, files: ScanCache, path: Path) -> None:
        self._files = files
        self._path = path
        self._batches: list[Packed] | None = []

    def add(self, frames: Frames, dispatch: Dispatch) -> None:
        """The next batch, all of its records sound."""
        if self._batches is None:
            return
        batch = pack(frames, dispatch)
        if batch is not None and self._files.take(batch.nbytes):
            self._batches.append(batch)
        else:
            self.drop()

    def drop(self) -> None:
        """The file is not sound in all: nothing of it is kept."""
        if self._batches is not None:
            self._files.take(-sum(batch.nbytes for batch in self._batches))
        self._batches = None

    def finish(self, size: int, end: Blank | TrailingZeros | None) -> None:
        """The walk is over, and `end` was its last event behind the records."""
        if self._batches is not None:
            self._files.put(self._path, CachedScan(size, tuple(self._batches), end))
