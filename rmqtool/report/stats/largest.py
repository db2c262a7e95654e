"""The largest messages by the size of the record, found during the scan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.message.rows import Row, RowFormat, message_row
from rmqtool.report.stats.scanner import Batch
from rmqtool.storage.buffers import Array

if TYPE_CHECKING:
    from rmqtool.read.store import Store

_SLACK = 4096


class Largest:
    """Keeps the `count` largest records of all batches; of equal ones the first in the log."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._sizes: Array = np.zeros(0, np.int64)
        self._places: Array = np.zeros(0, np.int64)
        self._least = 0

    def take(self, batch: Batch) -> None:
        """Add the selected records of a batch."""
        rows = batch.frames.rows[batch.chosen]
        rows = rows[rows["size"] > self._least]
        if len(rows):
            self._sizes = np.concatenate([self._sizes, rows["size"].astype(np.int64)])
            self._places = np.concatenate([self._places, rows["physical_offset"]])
            if len(self._sizes) > self._count + _SLACK:
                self._cut()

    def places(self) -> list[int]:
        """Physical offsets, the largest record's first."""
        self._cut()
        places: list[int] = self._places.tolist()
        return places

    def _cut(self) -> None:
        order = np.lexsort((self._places, -self._sizes))[: self._count]
        self._sizes, self._places = self._sizes[order], self._places[order]
        if len(self._sizes) == self._count and self._count:
            self._least = int(self._sizes[-1])


def largest_rows(store: Store, largest: Largest, form: RowFormat) -> Iterator[Row]:
    """The message rows of the largest records; one that is gone meanwhile is left out."""
    for place in largest.places():
        found = store.find(place)
        if found is not None:
            yield message_row(found.message, found.physical_offset, found.file, form)
