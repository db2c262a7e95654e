"""Tables of messages for tests, and two stores to compare: one takes tables, the other single messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqtool.errors import RmqtoolError
from rmqtool.formats import message
from rmqtool.write.store_writer import StoreWriter
from rmqtool.write.table import schema
from rmqtool.write.table.appender import TableAppender, WrongRowError
from rmqtool.write.table.batch import BatchBuilder
from rmqtool.write.table.columns import read_columns
from rmqtool.write.table.queues import Queues
from rmqtool.write.table.schema import message_of

PROFILES = ("4.9", "5.3", "5.4")
NOW = 1_700_000_000_000
HOSTS = ("10.0.0.1:10911", "[2001:db8::1]:80", "127.0.0.1:0")
Row = dict[str, Any]

# With the forms that inputs do not have: lists of keys, hosts as bytes.
TYPES = {**schema.TYPES, "keys": pa.list_(pa.string()), "store_host": pa.binary()}


def plain_row(number: int = 0, **values: Any) -> Row:
    """A row that `put` stores the same at any time."""
    return {
        "topic": "TopicTest", "queue_id": number % 4, "body": f"body {number}".encode(),
        "uniq_key": f"{number:032X}", "born_timestamp_ms": NOW, "store_timestamp_ms": NOW + 5, **values,
    }  # fmt: skip


def table_of(rows: list[Row], **types: pa.DataType) -> pa.RecordBatch:
    """The rows with the columns that any of them has."""
    names = [name for name in TYPES if any(name in row for row in rows)]
    return pa.record_batch(
        {name: pa.array([row.get(name) for row in rows], types.get(name, TYPES[name])) for name in names}
    )


def make(path: Path, profile: str = "5.4", **options: Any) -> StoreWriter:
    settings: dict[str, Any] = {
        "auto_create_queues": 4, "index": False, "reserve": False, "commit_log_file_size": 1 << 30,
    }  # fmt: skip
    return StoreWriter.create(path, profile, **{**settings, **options})


def log_bytes(writer: StoreWriter, start: int, end: int) -> bytes:
    """The bytes of a log of one file."""
    with (writer.root / "commitlog" / f"{0:020d}").open("rb") as file:
        file.seek(start)
        return file.read(end - start)


def slow_rows(writer: StoreWriter, batch: pa.RecordBatch) -> dict[int, str]:
    """The rows that do not take the fast way, with the column that is said to be the reason."""
    columns = read_columns(batch, writer.options.compress_over)
    builder = BatchBuilder(writer, Queues(writer))
    made = builder.build(columns, NOW, plain=True)
    row = 0
    while row < len(batch):
        row = 1 + builder.place(made, columns, row, row + columns.slow.first(row))
    return {row: columns.slow.column_of(row) for row in columns.slow.columns.nonzero()[0].tolist()}


class Pair:
    """Two stores with the same history: one takes tables, the other the same rows one by one."""

    def __init__(self, root: Path, profile: str, **options: Any) -> None:
        self.fast, self.slow = (make(root / name, profile, **options) for name in ("fast", "slow"))
        for writer in (self.fast, self.slow):
            writer.topics.add("pubOrder", 2, order=True)
            writer.topics.add("pubReadOnly", 4, perm=4)

    def close(self) -> None:
        self.fast.close()
        self.slow.close()

    def check(self, batch: pa.RecordBatch) -> list[WrongRowError]:
        """Append the rows to both; the errors of the wrong ones."""
        start = self.fast.log.end
        errors: list[WrongRowError] = []
        result = TableAppender(self.fast, on_error="skip", report=errors.append).append(batch)
        expected = []
        queues: dict[tuple[str, int], tuple[int, int]] = {}
        size = rows = 0
        for row in range(len(batch)):
            try:
                put = self.slow.put(message_of(batch, row))
            except RmqtoolError as error:
                expected.append((row, getattr(error, "status", "MESSAGE_ILLEGAL"), error.message, error.hint))
                continue
            size, rows = size + put.size, rows + 1
            record = message.decode(log_bytes(self.slow, put.physical_offset, self.slow.log.end))
            if record.transaction_type in (0, message.TRANSACTION_COMMIT):
                first, count = queues.get((put.topic, put.queue_id), (put.queue_offset, 0))
                queues[put.topic, put.queue_id] = (first, count + 1)
        assert [(each.row, each.status, each.reason.message, each.hint) for each in errors] == expected
        assert self.fast.log.end == self.slow.log.end
        end = self.slow.log.end
        assert log_bytes(self.fast, start, end) == log_bytes(self.slow, start, end)
        assert (result.rows, result.bytes, result.skipped) == (rows, size, len(expected))
        assert result.queues == queues
        for queue in queues:
            assert self.fast.offsets.next(*queue) == self.slow.offsets.next(*queue)
        return errors
