"""Append whole tables of messages: columns in, records in the log, at the speed of memory.

Rows that are plain (nearly all) are encoded by `write.encode`, many at once, while the records before
them are being written. Every other row (delayed, compressed, part of a transaction, wrong) goes through
`put`, which says what a broker would do with it, so both ways keep one set of rules.

Source: CommitLog#asyncPutMessage; spec 01 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from rmqtool.errors import RmqtoolError, StoreInUseError, UnwritableError
from rmqtool.formats.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqtool.lazy_dataclass import dataclass
from rmqtool.write import encode
from rmqtool.write.table.columns import read_columns
from rmqtool.write.table.pipe import Pipe, Tally
from rmqtool.write.table.rows import RowAppender
from rmqtool.write.table.schema import WrongRowError, message_of, wrong_row

if TYPE_CHECKING:
    from rmqtool.write.store_writer import StoreWriter

__all__ = ["TableAppender", "TableResult", "WrongRowError"]

ROWS_AT_ONCE = 1 << 14
"""Rows that are stored together, with no other put between them."""
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
        self._rows = RowAppender(writer)
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
        self._flushed = False
        with Pipe(self._writer, self._tally) as pipe:
            for batch in _batches(tables):
                with self._writer.lock:
                    self._writer.check_writable()
                    columns = read_columns(batch, self._writer.options.compress_over)
                    plain = encode.is_for_plain(self._seen + len(batch))
                    self._rows.append(columns, pipe, partial(self._put, batch), plain=plain)
                self._seen += len(batch)
        last = self._tally.last_physical_offset
        if self._writer.options.flush == "sync" and last is not None:
            self._writer.targets.save()
            self._flushed = self._writer.log.flush() > last
        return self.result()

    def result(self) -> TableResult:
        """Return the counts of what was stored so far."""
        queues = self._rows.used()
        for key, (first, count) in self._single.items():
            known_first, known_count = queues.get(key, (first, 0))
            queues[key] = (min(first, known_first), count + known_count)
        tally = self._tally
        return TableResult(
            tally.rows, tally.bytes, tally.first_physical_offset, tally.last_physical_offset, queues,
            tally.skipped, self._flushed,
        )  # fmt: skip

    def _put(self, batch: pa.RecordBatch, row: int, column: str) -> None:
        """Store one row by itself, or say why it cannot be."""
        try:
            new = message_of(batch, row)
            result = self._writer.append(new)
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
