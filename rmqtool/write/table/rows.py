"""Rows of columns become records in the log: the plain ones together, every other one by itself, in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmqtool.write import encode
from rmqtool.write.encode import Batch
from rmqtool.write.table.batch import BatchBuilder
from rmqtool.write.table.columns import Columns
from rmqtool.write.table.pipe import Pipe
from rmqtool.write.table.queues import Queues

if TYPE_CHECKING:
    from rmqtool.write.store_writer import StoreWriter

Put = Callable[[int, str], object]
"""Stores one row that is not plain, given its number and the column that is the reason."""
Stored = Callable[[int, int, Batch], object]
"""Gets the plain rows that were stored, from the first to the one after the last, and their batch."""


class RowAppender:
    """Appends columns to the log of one writer."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._queues = Queues(writer)
        self._builder = BatchBuilder(writer, self._queues)
        self._end = -1  # of the log, when the put lock was let go of

    def append(
        self, columns: Columns, pipe: Pipe, put: Put, *, plain: bool, stored: Stored | None = None
    ) -> None:
        """Store all rows, in their order. The caller holds the put lock.

        Args:
            columns: the rows.
            pipe: where records go.
            put: called for every row that is not plain. What it raises ends this; the rows before are stored.
            plain: whether plain Python encodes the rows.
            stored: called for plain rows after they were written.

        Raises:
            UnwritableError: records could not be written; what is before them is stored.
        """
        log = self._writer.log
        if log.end != self._end:
            self._queues.forget()
        try:
            self._append(columns, pipe, put, stored, plain=plain)
        finally:  # of an interrupt too: what was sent is written all the same
            self._settle(pipe)
            self._end = log.end

    def used(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(first queue offset, messages) by (topic, queue id) of the queues of plain rows."""
        return self._queues.used()

    def _append(self, columns: Columns, pipe: Pipe, put: Put, stored: Stored | None, *, plain: bool) -> None:
        made = self._builder.build(columns, time.time_ns() // 1_000_000, plain=plain)
        row, count = 0, columns.count
        while row < count:
            stop = row + columns.slow.first(row)
            if row < stop:
                stop = self._builder.place(made, columns, row, stop)
            if row < stop:
                self._writer.targets.save_made()
                self._encode(made.batch, row, stop, pipe, plain=plain)
                self._settle(pipe)
                pipe.check()
                if stored is not None:
                    stored(row, stop, made.batch)
            if stop < count:
                end = self._writer.log.end
                put(stop, columns.slow.column_of(stop))
                if self._writer.log.end != end:
                    self._queues.forget()
            row = stop + 1

    def _encode(self, batch: Batch, first: int, stop: int, pipe: Pipe, *, plain: bool) -> None:
        """Encode rows [first, stop) and hand them to the pipe."""
        next_offsets = self._queues.next_offsets
        pipe.restart(next_offsets)
        while first < stop:
            size = int(batch.rows["size"][first])
            if size > pipe.room:
                pipe.roll()
            buffer = pipe.buffer(size)
            next_offsets = next_offsets.copy()
            following, used = encode.encode_rows(
                batch, first, stop, next_offsets, pipe.end, pipe.room, buffer, plain=plain
            )
            last = batch.rows[following - 1]
            pipe.send(used, following - first, int(last["size"]), int(last["store_timestamp"]), next_offsets)
            first = following

    def _settle(self, pipe: Pipe) -> None:
        """Wait until all that was sent is written, or has failed; take over the queue offsets after it.

        Interrupted, it can be called again.
        """
        pipe.drain()
        if pipe.next_offsets is not None:
            self._queues.next_offsets = pipe.next_offsets
            self._queues.save()
            pipe.next_offsets = None
