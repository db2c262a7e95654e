"""Append whole tables of messages: columns in, records in the log, at the speed of memory.

Rows that are plain (nearly all) are encoded by `write.encode`, many at once, while the records before
them are being written. Every other row (delayed, compressed, part of a transaction, wrong) goes through
`put`, which says what a broker would do with it, so both ways keep one set of rules.

Source: CommitLog#asyncPutMessage; spec 01 10.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from rmqtool.errors import RmqtoolError, StoreInUseError, UnwritableError
from rmqtool.formats.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.buffers import Array
from rmqtool.write import encode
from rmqtool.write.encode import Batch
from rmqtool.write.recent import Part
from rmqtool.write.table.batch import BatchBuilder
from rmqtool.write.table.columns import read_columns
from rmqtool.write.table.queues import Queues
from rmqtool.write.table.schema import WrongRowError, message_of, wrong_row

if TYPE_CHECKING:
    from rmqtool.write.store_writer import StoreWriter

__all__ = ["TableAppender", "TableResult", "WrongRowError"]

ROWS_AT_ONCE = 1 << 14
"""Rows that are stored together, with no other put between them."""
BUFFER_SIZE = 4 << 20
_BUFFERS = 6
_WITHOUT_OFFSET = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)

OnError = Literal["stop", "skip"]


@dataclass(frozen=True, slots=True)
class TableResult:
    """The outcome of appending a table.

    Attributes:
        rows: messages stored.
        bytes: of their records, without blanks.
        first_physical_offset: of the first record; None without one.
        last_physical_offset: of the last record.
        queues: (first queue offset, messages) by (topic as stored, queue id); prepared and rolled back
            messages take no queue offset and are in none.
        skipped: rows left out because they were wrong.
        flushed: whether all of it is known to be on the device.
    """

    rows: int = 0
    bytes: int = 0
    first_physical_offset: int | None = None
    last_physical_offset: int | None = None
    queues: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    skipped: int = 0
    flushed: bool = False


class TableAppender:
    """Appends tables to one store; what was appended so far is in `result()`, also after an error.

    Columns, of which only `topic` must be there; null stands for what is in brackets:

        topic, tags, uniq_key                   text; [none; without uniq_key one is made]
        body                                    text or binary [empty]
        keys                                    text, or lists of text [none]
        properties                              map<string, string> [empty]
        properties_bytes                        binary: the string of a stored record, kept as it is
        queue_id                                whole number [the write queues of the topic in turn]
        flag, sys_flag, reconsume_times, delay_level, prepared_transaction_offset     whole numbers [0]
        born_timestamp_ms, store_timestamp_ms   ms since 1970 [now]
        born_host, store_host                   text ip:port, or 8 or 20 bytes [the writer's]
        wait                                    bool [true]
        body_compression                        none, zlib, lz4 or zstd [none]

    Texts may be dictionaries. See `NewMessage` for what the columns mean.
    """

    def __init__(
        self,
        writer: StoreWriter,
        *,
        on_error: OnError = "stop",
        report: Callable[[WrongRowError], None] = lambda error: None,
    ) -> None:
        """Prepare for `append`.

        Args:
            writer: of the store.
            on_error: what a wrong row does: `stop` raises, when the rows before it are stored; `skip`
                leaves it out.
            report: called for every row left out.
        """
        self._writer = writer
        self._on_error = on_error
        self._report = report
        self._queues = Queues(writer)
        self._builder = BatchBuilder(writer, self._queues)
        self._end = -1  # of the log, when the put lock was let go of
        self._seen = 0  # rows of the batches before
        self._tally = Tally()
        self._flushed = False
        self._single: dict[tuple[str, int], tuple[int, int]] = {}  # queues of rows that went through `put`

    def append(
        self, tables: pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch]
    ) -> TableResult:
        """Store all rows, in their order.

        Returns:
            `result()`.

        Raises:
            WrongRowError: a row that cannot be stored, with its number; the rows before it are stored.
            UsageError, InputError: the columns are not those of messages.
            UnwritableError: the records could not be written; what is before them is stored.
        """
        log = self._writer.log
        self._flushed = False
        with Pipe(self._writer, self._tally) as pipe:
            for batch in _batches(tables):
                with self._writer.lock:
                    self._writer.check_writable()
                    if log.end != self._end:
                        self._queues.forget()
                    try:
                        self._append(batch, pipe)
                    finally:
                        self._end = log.end
                self._seen += len(batch)
        last = self._tally.last_physical_offset
        if self._writer.options.flush == "sync" and last is not None:
            self._writer.targets.save()
            self._flushed = log.flush() > last
        return self.result()

    def result(self) -> TableResult:
        """Return the counts of what was stored so far."""
        queues = self._queues.used()
        for key, (first, count) in self._single.items():
            known_first, known_count = queues.get(key, (first, 0))
            queues[key] = (min(first, known_first), count + known_count)
        tally = self._tally
        return TableResult(
            tally.rows, tally.bytes, tally.first_physical_offset, tally.last_physical_offset, queues,
            tally.skipped, self._flushed,
        )  # fmt: skip

    def _append(self, batch: pa.RecordBatch, pipe: Pipe) -> None:
        """Store one batch. The caller holds the put lock."""
        columns = read_columns(batch, self._writer.options.compress_over)
        plain = encode.is_for_plain(self._seen + len(batch))
        made = self._builder.build(columns, time.time_ns() // 1_000_000, plain=plain)
        row = 0
        while row < len(batch):
            stop = row + columns.slow.first(row)
            if row < stop:
                stop = self._builder.place(made, columns, row, stop)
            if row < stop:
                self._writer.targets.save_made()
                try:
                    self._encode(made.batch, row, stop, pipe, plain=plain)
                finally:
                    self._settle(pipe)
            if stop < len(batch):
                self._put(batch, stop, columns.slow.column_of(stop))
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
        """Wait until all is written; queue offsets are those after it. Raises UnwritableError."""
        try:
            pipe.drain()
        finally:  # of an interrupt while it waits: what was sent is written all the same
            pipe.drain()
            self._queues.next_offsets = pipe.next_offsets
            self._queues.save()
        pipe.check()

    def _put(self, batch: pa.RecordBatch, row: int, column: str) -> None:
        """Store one row by itself, or say why it cannot be."""
        try:
            new = message_of(batch, row)
            result = self._writer.put(new)
        except (UnwritableError, StoreInUseError):
            raise
        except RmqtoolError as error:
            wrong = wrong_row(self._seen + row, column, error)
            if self._on_error == "stop":
                raise wrong from error
            self._tally.skipped += 1
            self._report(wrong)
            return
        # The broker takes the bits of a transaction off a half message.
        if new.sys_flag & TRANSACTION_MASK not in _WITHOUT_OFFSET or result.topic != new.topic:
            key = (result.topic, result.queue_id)
            first, count = self._single.get(key, (result.queue_offset, 0))
            self._single[key] = (first, count + 1)
        self._queues.forget()
        self._tally.count(1, result.size, result.physical_offset, result.physical_offset)


def _batches(
    tables: pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Pieces of at most ROWS_AT_ONCE rows, none empty."""
    if isinstance(tables, pa.Table):
        tables = tables.to_batches(max_chunksize=ROWS_AT_ONCE)
    elif isinstance(tables, pa.RecordBatch):
        tables = [tables]
    for batch in tables:
        for start in range(0, len(batch), ROWS_AT_ONCE):
            yield batch.slice(start, ROWS_AT_ONCE)


@dataclass(slots=True)
class Tally:
    """Counters of what was appended to the log so far.

    Attributes:
        rows: messages.
        bytes: of their records.
        first_physical_offset: of the first record; None without one.
        last_physical_offset: of the last record.
        skipped: rows left out.
    """

    rows: int = 0
    bytes: int = 0
    first_physical_offset: int | None = None
    last_physical_offset: int | None = None
    skipped: int = 0

    def count(self, rows: int, size: int, first: int, last: int) -> None:
        """Add records of `size` bytes; the first and the last of them are at these physical offsets."""
        self.rows += rows
        self.bytes += size
        self.last_physical_offset = last
        if self.first_physical_offset is None:
            self.first_physical_offset = first


class Pipe:
    """Buffers on their way into the log, one written while the next is filled.

    The caller holds the put lock from `restart` to `drain`.

    Attributes:
        end: physical offset after the last buffer sent.
        room: bytes of records that fit after it into the log's current file.
        next_offsets: of the queues, after what was written; valid after `drain`.
    """

    def __init__(self, writer: StoreWriter, tally: Tally) -> None:
        """Write to the log of `writer`, and count in `tally` what was written."""
        self.end = self.room = 0
        self.next_offsets = np.empty(0, np.int64)
        self._writer = writer
        self._tally = tally
        self._free = deque(np.empty(BUFFER_SIZE, np.uint8) for _ in range(_BUFFERS))
        self._filling: Array = self._free[0]
        self._sent: deque[Future[Array]] = deque()
        self._error: UnwritableError | None = None
        self._hand = ThreadPoolExecutor(1, "append")

    def __enter__(self) -> Pipe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hand.shutdown(wait=True)

    def restart(self, next_offsets: Array) -> None:
        """Go on at the log's end; nothing is on its way."""
        self.next_offsets = next_offsets
        self.end = self._writer.log.end
        self.room = self._writer.log.room()

    def buffer(self, size: int) -> Array:
        """A buffer to fill, of at least `size` bytes; waits for one."""
        if not self._free:
            self._take_back()
        self._filling = self._free.popleft()
        self._writer.recent.reclaim(self._filling)
        if len(self._filling) < size:
            self._filling = np.empty(size, np.uint8)
        return self._filling

    def send(self, used: int, rows: int, last_size: int, store_timestamp: int, next_offsets: Array) -> None:
        """Send the first `used` bytes of the buffer that `buffer` gave last.

        Args:
            used: bytes.
            rows: records in them.
            last_size: bytes of the last one.
            store_timestamp: of the last one.
            next_offsets: of all queues, after these records.
        """
        task = self._hand.submit(
            self._write, self._filling, used, self.end, rows, last_size, store_timestamp, next_offsets
        )
        self._sent.append(task)
        self.end += used
        self.room -= used

    def roll(self) -> None:
        """Go on in the log's next file. Raises UnwritableError."""
        self.drain()
        self.check()
        self._writer.log.roll()
        self.restart(self.next_offsets)

    def drain(self) -> None:
        """Wait until all that was sent is written, or has failed. Interrupted, it can be called again."""
        while self._sent:
            self._take_back()

    def check(self) -> None:
        """Raises the UnwritableError of the first buffer that failed; none after it was written."""
        if self._error is not None:
            raise self._error

    def _take_back(self) -> None:
        self._free.append(self._sent[0].result())
        self._sent.popleft()  # after the wait, which may be interrupted

    def _write(
        self, buffer: Array, used: int, start: int, rows: int, last_size: int, store_timestamp: int,
        next_offsets: Array,
    ) -> Array:  # fmt: skip
        if self._error is not None:
            return buffer
        try:
            self._writer.log.append(buffer[:used].data, start)
        except UnwritableError as error:
            self._error = error
            return buffer
        self._writer.recent.offer(Part(start, buffer[:used]))
        self.next_offsets = next_offsets
        self._tally.count(rows, used, start, start + used - last_size)
        self._writer.appended(store_timestamp)
        return buffer
