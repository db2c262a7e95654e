"""Positions of records by the consume queues: where the records of which queue lie, and how long they are.

Units are read in blocks; nothing here looks into the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from rmqtool.queue.light_queues import LIGHT_PREFIX
from rmqtool.queue.units import UnitReader, live
from rmqtool.storage.buffers import Array
from rmqtool.storage.counted_queues import counted_queues
from rmqtool.storage.layout import QueueFiles, StoreFile, StoreLayout

Key = tuple[str, int]


class Units(NamedTuple):
    """Records that units name: physical offsets, mostly rising, and sizes in bytes, i8, of one shape."""

    offsets: Array
    sizes: Array

    def between(self, start: int, stop: int) -> Units:
        """Those that begin in [start, stop)."""
        inside = (self.offsets >= start) & (self.offsets < stop)
        return Units(self.offsets[inside], self.sizes[inside])


class QueueUnits:
    """Reads the units of many queues. What was seen of a file is remembered: where its records lie."""

    def __init__(self, layout: StoreLayout) -> None:
        self._queues: dict[Key, QueueFiles] = counted_queues(layout)
        self._reader = UnitReader()
        self._spans: dict[StoreFile, tuple[int, int]] = {}

    def close(self) -> None:
        """Close every open file."""
        self._reader.close()

    def __enter__(self) -> QueueUnits:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def keys(self) -> list[Key]:
        """Topic and queue id of every queue but light ones."""
        return [key for key in self._queues if not key[0].startswith(LIGHT_PREFIX)]

    def blocks(self, key: Key, start: int, stop: int) -> Iterator[Units]:
        """The units of a queue whose records begin in [start, stop), in blocks.

        Raises:
            OSError: a file cannot be read.
        """
        queue = self._queues.get(key)
        if queue is None:
            return
        for file in queue.files:
            low, high = self._spans.get(file, (start, stop))
            if low < stop and high > start:
                yield from self._blocks_of(file, queue.unit_size, start, stop)

    def _blocks_of(self, file: StoreFile, unit_size: int, start: int, stop: int) -> Iterator[Units]:
        low, high = np.iinfo(np.int64).max, -1
        for _, units in self._reader.blocks(file, unit_size):
            is_there = live(units)
            offsets = units["physical_offset"].astype(np.int64)
            sizes = units["size"].astype(np.int64)
            if not is_there.all():
                offsets, sizes = offsets[is_there], sizes[is_there]
            if not len(offsets):
                continue
            low, high = min(low, int(offsets.min())), max(high, int(offsets.max()) + 1)
            found = Units(offsets, sizes).between(start, stop)
            if len(found.offsets):
                yield found
        self._reader.must_be_read(file)
        self._spans[file] = (low, high)

    def records(self, keys: Iterable[Key], start: int, stop: int) -> Units:
        """The units of some queues whose records begin in [start, stop), by rising offset.

        Raises:
            OSError: a file cannot be read.
        """
        found = [block for key in keys for block in self.blocks(key, start, stop)]
        if not found:
            return Units(np.zeros(0, np.int64), np.zeros(0, np.int64))
        offsets = np.concatenate([block.offsets for block in found])
        sizes = np.concatenate([block.sizes for block in found])
        order = np.argsort(offsets, kind="stable")
        return Units(offsets[order], sizes[order])
