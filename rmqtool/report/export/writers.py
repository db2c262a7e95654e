"""Writers of one file: Parquet, Arrow, ORC, lines of JSON or CSV, or bare records.

A writer collects rows up to `group_bytes` and writes them together, as a row group of Parquet, a stripe of
ORC or batches of Arrow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.errors import MissingCodecError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.report.export.outputs import Draft
from rmqtool.report.export.text import TextForm, csv_header, csv_lines, json_lines

Format = Literal["parquet", "arrow", "orc", "jsonl", "csv", "records"]
Compression = Literal["zstd", "lz4", "gzip", "none"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
TEXT_FORMATS = frozenset({"jsonl", "csv"})
RECORD = "record"
BODY_TEXT = "body_text"

# Columns whose values rarely repeat: a dictionary would be useless.
_UNIQUE = frozenset({
    "physical_offset", "queue_offset", "body_crc", "body", BODY_TEXT, "stored_body", RECORD, "uniq_key",
    "offset_msg_id", "properties_base64",
})  # fmt: skip
_NO_STATISTICS = frozenset({"body", BODY_TEXT, "stored_body", RECORD, "properties_base64"})
_ZSTD_LEVEL = 1
_NS_RANGE_US = (1 << 63) // 1000


@dataclass(frozen=True)
class WriterForm:
    """The parameters of a writer.

    Attributes:
        format: format of the files.
        schema: schema of the batches.
        compression: compression of columns, or of a whole file of lines or records.
        group_bytes: bytes, in memory, of rows that are written together.
        text: how rows become lines.
    """

    format: Format
    schema: pa.Schema
    compression: Compression
    group_bytes: int
    text: TextForm | None = None


class Writer(ABC):
    """One file that is being written.

    Attributes:
        rows: number of rows, written or waiting.
        waiting_bytes: bytes, in memory, of rows that are not written yet.
    """

    def __init__(self, draft: Draft, form: WriterForm) -> None:
        self.draft = draft
        self.form = form
        self.rows = 0
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        with draft.explained():
            self.start()

    @property
    def size(self) -> int:
        """Bytes of the file so far."""
        return self.draft.written_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises UnwritableError."""
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        self.rows += len(batch)
        if self.waiting_bytes >= self.form.group_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the waiting rows. Raises UnwritableError."""
        if self._waiting:
            batches, self._waiting, self.waiting_bytes = self._waiting, [], 0
            with self.draft.explained():
                self.put(batches)

    def close(self) -> None:
        """Write the remaining rows and complete the draft. Raises UnwritableError."""
        self.flush()
        with self.draft.explained():
            self.end()

    @abstractmethod
    def start(self) -> None:
        """Write the beginning of the file."""

    @abstractmethod
    def put(self, batches: list[pa.RecordBatch]) -> None:
        """Write rows."""

    @abstractmethod
    def end(self) -> None:
        """Write the end of the file."""


class _Parquet(Writer):
    def start(self) -> None:
        from pyarrow import parquet

        names = _leaves(self.form.schema)
        self._file = parquet.ParquetWriter(
            self.draft.stream,
            self.form.schema,
            compression=self.form.compression,
            compression_level=_ZSTD_LEVEL if self.form.compression == "zstd" else None,
            use_dictionary=[path for path, name in names if name not in _UNIQUE],
            write_statistics=[path for path, name in names if name not in _NO_STATISTICS],
        )

    def put(self, batches: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches, self.form.schema)
        self._file.write_table(table, row_group_size=max(len(table), 1))

    def end(self) -> None:
        self._file.close()


def _leaves(schema: pa.Schema) -> list[tuple[str, str]]:
    """(path of a leaf column in Parquet, name of its column)."""
    found: list[tuple[str, str]] = []
    for field in schema:
        if pa.types.is_map(field.type):
            found += [(f"{field.name}.key_value.{part}", field.name) for part in ("key", "value")]
        elif pa.types.is_list(field.type):
            found.append((f"{field.name}.list.element", field.name))
        else:
            found.append((field.name, field.name))
    return found


class _Arrow(Writer):
    def start(self) -> None:
        compression = None if self.form.compression == "none" else self.form.compression
        options = pa.ipc.IpcWriteOptions(compression=compression)
        self._file = pa.ipc.new_file(self.draft.stream, self.form.schema, options=options)

    def put(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            self._file.write_batch(batch)

    def end(self) -> None:
        self._file.close()


class _Orc(Writer):
    def start(self) -> None:
        from pyarrow import orc

        compression = "uncompressed" if self.form.compression == "none" else self.form.compression
        self._sink = _Sink(self.draft.stream)
        self._file = orc.ORCWriter(self._sink, compression=compression)

    def put(self, batches: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches, self.form.schema)
        for place, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                table = table.set_column(place, field, _readable(table.column(place)))
        self._file.write(table)
        self._sink.check()

    def end(self) -> None:
        if not self.rows:
            self._file.write(self.form.schema.empty_table())
        self._file.close()
        self._sink.check()


class _Sink:
    """A stream that keeps its error until `check`: the ORC library would end the process at a second one."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._error: Exception | None = None

    def write(self, data: Any) -> int:
        """Write bytes; after an error they are dropped."""
        if self._error is None:
            try:
                self._stream.write(data)
            except (OSError, ValueError, pa.ArrowException) as error:
                self._error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing: the draft closes the stream."""

    def close(self) -> None:
        """Do nothing: the draft closes the stream."""

    def check(self) -> None:
        """Raises the error of an earlier write."""
        if self._error is not None:
            raise self._error


def _readable(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times, null outside of the years 1678 to 2261: readers with nanoseconds would reject the whole file."""
    us = times.cast(pa.int64())
    inside = pc.and_(pc.greater(us, -_NS_RANGE_US), pc.less(us, _NS_RANGE_US))
    return pc.if_else(inside, times, pa.scalar(None, times.type))


class _Bytes(Writer):
    """A sequence of bytes, compressed as a whole if requested."""

    def start(self) -> None:
        compression = self.form.compression
        self._stream: Any = self.draft.stream
        if compression != "none":
            self._stream = self.draft.compressing = pa.CompressedOutputStream(self.draft.stream, compression)
        head = self.head()
        if head:
            self._stream.write(head)

    def put(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            self._stream.write(self.data(batch))

    def end(self) -> None:
        if self._stream is not self.draft.stream:
            self._stream.close()

    def head(self) -> bytes:
        """The first bytes."""
        return b""

    @abstractmethod
    def data(self, batch: pa.RecordBatch) -> Any:
        """The bytes of rows."""

    @property
    def text(self) -> TextForm:
        """How rows become lines."""
        assert self.form.text is not None
        return self.form.text


class _Jsonl(_Bytes):
    def data(self, batch: pa.RecordBatch) -> Any:
        return json_lines(batch, self.text)


class _Csv(_Bytes):
    def head(self) -> bytes:
        return csv_header(self.text)

    def data(self, batch: pa.RecordBatch) -> Any:
        return csv_lines(batch, self.text)


class _Records(_Bytes):
    def data(self, batch: pa.RecordBatch) -> Any:
        records = batch.column(RECORD)
        _, offsets, data = records.buffers()
        ends = pa.Array.from_buffers(pa.int32(), len(records) + 1, [None, offsets], offset=records.offset)
        return data.slice(ends[0].as_py(), ends[-1].as_py() - ends[0].as_py()) if data else b""


_WRITERS: dict[Format, type[Writer]] = {
    "parquet": _Parquet, "arrow": _Arrow, "orc": _Orc, "jsonl": _Jsonl, "csv": _Csv, "records": _Records,
}  # fmt: skip


def new_writer(draft: Draft, form: WriterForm) -> Writer:
    """The writer of a new file. Raises UnwritableError."""
    return _WRITERS[form.format](draft, form)


def check_format(format: Format, compression: Compression) -> None:
    """Raises UsageError for a compression that the format lacks, MissingCodecError if pyarrow has no ORC."""
    by_format: dict[str, tuple[Compression, ...]] = {
        "parquet": COMPRESSIONS, "arrow": ("zstd", "lz4", "none"), "orc": ("zstd", "lz4", "none"),
    }  # fmt: skip
    known = by_format.get(format, ("gzip", "zstd", "none"))
    if compression not in known:
        raise UsageError(f"{format} has no compression {compression}", hint=f"it has {', '.join(known)}")
    if format == "orc":
        try:
            import pyarrow.orc  # noqa: F401
        except ImportError:
            raise MissingCodecError("this pyarrow has no ORC", hint="pip install pyarrow") from None
