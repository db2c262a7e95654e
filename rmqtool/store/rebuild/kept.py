"""What the survey has seen of every record, kept in little memory so that the log is read once.

Columns are kept as what they are above their least value, in the fewest bytes that hold it: mostly some
20 bytes for a record with its keys. Beyond a limit nothing is kept, and dispatch reads the log again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.scan.frames import FRAME, Frames
from rmqtool.scan.keys import KEY, MULTI_DISPATCH, PROPERTIES_UNSOUND, Dispatch

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

LIMIT = 192 << 20
_ROWS = (
    "physical_offset", "store_timestamp", "queue_offset", "size", "queue_id", "sys_flag", "topic_id",
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
class _Batch:
    """One batch of the walk."""

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
        return sum(column.nbytes for column in (*self.columns.values(), *self.keys.values()))

    def frames(self) -> tuple[Frames, Dispatch]:
        """The batch as the walk gave it, without the bytes of its records."""
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


@dataclass
class Kept:
    """The batches of a survey, from any thread; `is_whole` until there was too much of them."""

    is_whole: bool = True
    _batches: list[_Batch] = field(default_factory=list)
    _size: int = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, frames: Frames, dispatch: Dispatch) -> None:
        """Keep one batch."""
        if not self.is_whole:
            return
        batch = None
        if not (dispatch.flags & _EXPENSIVE).any():
            batch = _pack(frames, dispatch)
        with self._lock:
            self._size += batch.nbytes if batch is not None else LIMIT
            if batch is None or self._size >= LIMIT:
                self.drop()
            elif self.is_whole:
                self._batches.append(batch)

    def drop(self) -> None:
        """Keep nothing, and take nothing more."""
        self.is_whole = False
        self._batches.clear()

    def batches(self, start: int) -> Iterator[tuple[Frames, Dispatch]]:
        """The batches in the order of the log, from the one that holds the record at `start` on."""
        for batch in sorted(self._batches, key=lambda item: item.start):
            if batch.last >= start:
                yield batch.frames()


def _pack(frames: Frames, dispatch: Dispatch) -> _Batch:
    rows, keys = frames.rows, dispatch.keys
    columns = {name: _Column.of(rows[name]) for name in _ROWS}
    columns |= {name: _Column.of(getattr(dispatch, name)) for name in _DISPATCH}
    return _Batch(
        int(rows["physical_offset"][0]), int(rows["physical_offset"][-1]), len(rows), len(keys),
        list(frames.topics), frames.file_from_offset, columns,
        {name: _Column.of(keys[name]) for name in ("row", "key_hash", "kind")} if len(keys) else {},
    )  # fmt: skip
