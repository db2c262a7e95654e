"""The extension files of a queue that is rebuilt: how many, and which filter bits are kept.

Every record of the queue gets an extension unit, the first one at offset 0. The filter bits of an old unit
are kept if it belonged to the record; without bits a broker evaluates the filter on the record.

Source: ConsumeQueueExt#put, CommitLogDispatcherCalcBitMap, ExpressionMessageFilter#isMatchedByConsumeQueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.errors import FormatError
from rmqtool.formats.consume_queue import EXT_END_ROOM, EXT_HEAD
from rmqtool.lazy_dataclass import dataclass
from rmqtool.queue.extension import Extension
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.open_files import OpenFiles

if TYPE_CHECKING:
    from rmqtool.check.verify.spans import Key

    Array = np.ndarray[Any, np.dtype[Any]]

_BITS = np.dtype([("physical_offset", "i8"), ("queue_offset", "i8"), ("address", "i8"), ("size", "i4")])


@dataclass(frozen=True)
class ExtendedFile:
    """An extension file that is written: its first offset, the file that it replaces, and its used bytes."""

    file_from_offset: int
    old: StoreFile | None
    used: int


@dataclass(frozen=True)
class ExtensionTask:
    """The extension files of a queue: those that are written, and those that are dropped."""

    folder: str
    files: tuple[ExtendedFile, ...]
    dropped: tuple[StoreFile, ...]


class Bits:
    """Correct extension units with filter bits, by queue; any thread may add them."""

    def __init__(self) -> None:
        self._found: dict[Key, list[Array]] = {}
        self._lock = Lock()

    def add(self, key: Key, physical_offset: Array, queue_offset: Array, address: Array, size: Array) -> None:
        """Add the units, of those of some records, that have bits."""
        chosen = np.flatnonzero(size > EXT_HEAD.size)
        if not len(chosen):
            return
        rows = np.zeros(len(chosen), _BITS)
        rows["physical_offset"], rows["queue_offset"] = physical_offset[chosen], queue_offset[chosen]
        rows["address"], rows["size"] = address[chosen], size[chosen]
        with self._lock:
            self._found.setdefault(key, []).append(rows)

    def of(self, key: Key) -> Array:
        """The units of one queue, in the order of the log."""
        rows = np.concatenate(self._found.get(key, [np.zeros(0, _BITS)]))
        return rows[np.argsort(rows["physical_offset"], kind="stable")]


class KeptBits:
    """Reads the filter bits of records of some queues from the present extension files."""

    def __init__(self, layout: StoreLayout, bits: Bits, keys: Iterable[Key]) -> None:
        self._files = OpenFiles()
        self._places: dict[int, tuple[Extension, int, int]] = {}
        for key in keys:
            queue = layout.ext_queues.get(key)
            extension = Extension(() if queue is None else queue.files, self._files.read)
            for physical_offset, _, address, size in bits.of(key).tolist():
                self._places[physical_offset] = (extension, address, size)
        self.offsets = np.array(sorted(self._places), np.int64)
        self._sizes = np.array([self._places[offset][2] for offset in self.offsets.tolist()], np.int32)

    def size_of(self, physical_offset: int) -> int:
        """Bytes of the extension unit of a record."""
        known = self._places.get(physical_offset)
        return EXT_HEAD.size if known is None else known[2]

    def set_sizes(self, entries: Array) -> None:
        """Set `ext_size` of entries that get an extension unit with bits."""
        if not len(self.offsets):
            return
        at = np.minimum(np.searchsorted(self.offsets, entries["physical_offset"]), len(self.offsets) - 1)
        mine = (self.offsets[at] == entries["physical_offset"]) & (entries["ext_size"] > 0)
        entries["ext_size"][mine] = self._sizes[at[mine]]

    def __call__(self, physical_offset: int) -> bytes:
        """The bits of a record. Raises FormatError if the old unit has changed."""
        extension, address, size = self._places[physical_offset]
        unit = extension.unit(address)
        if unit is None or unit.size != size:
            raise FormatError("an extension unit has changed since the plan was made", path=extension.path)
        return unit.bit_map

    def close(self) -> None:
        """Close the old files."""
        self._files.close()


def extension_task(
    layout: StoreLayout, key: Key, slots: range, without: Iterable[range], moved: Mapping[int, int],
    bits: Bits, file_size: int, *, writes: bool,
) -> ExtensionTask | None:  # fmt: skip
    """The task for the extension files of a queue that is rebuilt; None if it has none and gets none.

    Args:
        layout: the store's.
        key: the queue.
        slots: the numbers of its units.
        without: numbers of units without a record.
        moved: physical offset -> unit number, for records whose unit has another number than they state.
        bits: the correct units with bits.
        file_size: bytes of an extension file.
        writes: whether its units get extension units.
    """
    queue = layout.ext_queues.get(key)
    existing = {} if queue is None else {file.file_from_offset: file for file in queue.files}
    used: list[int] = []
    if writes and len(slots):
        sizes = np.full(len(slots), EXT_HEAD.size, np.int64)
        for row in bits.of(key).tolist():
            slot = moved.get(row[0], row[1])
            if slot in slots:
                sizes[slot - slots.start] = row[3]
        for gap in without:
            sizes[gap.start - slots.start : gap.stop - slots.start] = 0
        used = _filled(sizes[sizes > 0], file_size - EXT_END_ROOM)
    if queue is None and not used:
        return None
    starts = [number * file_size for number in range(len(used))]
    files = tuple(
        ExtendedFile(start, existing.get(start), count) for start, count in zip(starts, used, strict=True)
    )
    dropped = tuple(file for start, file in existing.items() if start not in starts)
    return ExtensionTask(f"consumequeue_ext/{key[0]}/{key[1]}", files, dropped)


def _filled(sizes: Array, room: int) -> list[int]:
    """The used bytes of each file, if units of these sizes are written in order."""
    ends = np.cumsum(sizes)
    used: list[int] = []
    before = 0
    while before < (int(ends[-1]) if len(ends) else 0):
        place = int(np.searchsorted(ends, before + room, side="right"))
        after = int(ends[place - 1]) if place else before
        if after <= before:  # the unit is too large for any file: it is not written
            return used
        used.append(after - before)
        before = after
    return used
