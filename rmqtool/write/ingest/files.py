"""Rows from CSV, Parquet and Arrow files, batch by batch.

CSV: the first row names the columns; an empty cell is null and `""` the empty text, lists and objects
are JSON, as `dump --format csv` writes them. Rows count from the header, which is row 1. Parquet and
Arrow: columns may also have the names that Spark gives them; rows count from 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.errors import InputError
from rmqtool.message.columns import COLUMNS as MESSAGE_COLUMNS
from rmqtool.write.ingest.json_rows import UTF_16
from rmqtool.write.ingest.rows import COLUMNS, Raw, RowError, RowRules, unknown_column

BATCH_SIZE = 24 << 20
"""Bytes of a batch, about."""
ROWS_MAX = 1 << 15
CSV_BLOCK_SIZE = 16 << 20
"""Bytes that a row of CSV may have; one of up to twice as many may pass."""

_UNCLOSED = 'a cell starts with a quote (") that is never closed, so it contains the rest of the file'
_TOO_LONG = f'more than {CSV_BLOCK_SIZE} bytes, or a cell starts with a quote (") that is never closed'
COLUMNS_MAX = 4096
"""Columns that a CSV file may have."""
_CSV_END = "\0end of the input" + COLUMNS_MAX * ","

_OF_BYTES = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)

# Readers of CSV that were left. Freed while its thread still reads a pipe, one would wait for that thread,
# and hold what the thread needs to end: the interpreter's lock.
_left: list[Any] = []
_BY_SPARK_NAME = {column.spark_name: column.name for column in MESSAGE_COLUMNS}


class _LongRowError(InputError):
    """A row of CSV does not fit into a block."""


def csv_rows(file: BinaryIO, rules: RowRules) -> Iterator[Raw]:
    """The rows of a CSV file, all columns as bytes.

    Raises:
        RowError: the file ends inside a quoted cell, or a row is longer than CSV_BLOCK_SIZE; the rows before
            it were given.
        InputError: it has no header, or is not UTF-8.
    """
    from pyarrow import csv

    found = _UnreadableRows()
    source = _CsvBytes(file)
    with _explained("CSV"), _quiet_about(found.note):
        try:
            reader = csv.open_csv(
                pa.PythonFile(source, "r"),
                csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK_SIZE),
                csv.ParseOptions(newlines_in_values=True, invalid_row_handler=found.note),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(COLUMNS, pa.binary()),
                    strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""],
                ),
            )  # fmt: skip
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error) and source.has_quotes:  # all of it is the first cell
                raise RowError(_UNCLOSED, row=1) from error
            if "straddl" in str(error):
                raise InputError(f"a row has {_TOO_LONG}") from error  # the header, or the first row after it
            raise
        names = _names(reader.schema.names, rules, {})
    try:
        with _quiet_about(found.note):
            yield from _numbered_csv(reader, names, found)
    finally:
        if source.leave():
            _left.append(reader)


def _numbered_csv(
    reader: Iterator[pa.RecordBatch], names: Mapping[str, str], found: _UnreadableRows
) -> Iterator[Raw]:
    """The rows of a reader, those of `found` among them. Raises RowError for the row that takes the rest."""
    following, wrong = 2, found.wrong
    too_long = False
    try:
        for batch in _guarded(reader, "CSV"):
            numbers = np.arange(following, following + len(batch) + len(wrong))
            numbers = numbers[~np.isin(numbers, list(wrong))][: len(batch)]
            following = int(numbers[-1]) + 1 if len(numbers) else following
            if _holds_end(batch):
                found.unclosed = following - 1
                numbers, batch = numbers[:-1], batch.slice(0, len(batch) - 1)
            errors = {number: wrong.pop(number) for number in sorted(wrong) if number < following}
            for start, piece in _pieces(batch):
                yield Raw(_columns(piece, names), numbers[start : start + len(piece)], errors)
                errors = {}
            wrong.update(errors)  # where the batch is empty
    except _LongRowError:
        too_long = True
    following = max([following, *(number + 1 for number in wrong)])
    if wrong:
        yield Raw({}, np.zeros(0, np.int64), wrong)
    if too_long:
        raise RowError(_TOO_LONG, row=following)
    if found.unclosed is not None:
        raise RowError(_UNCLOSED, row=found.unclosed)


@contextmanager
def _quiet_about(handler: Callable[[Any], str]) -> Iterator[None]:
    """Print nothing where pyarrow cannot decode the row that it would pass to `handler`.

    It prints a traceback then, as for any error of a handler, and raises its own error afterwards.
    """
    former = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.object != handler or not isinstance(unraisable.exc_value, UnicodeDecodeError):
            former(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = former


class _UnreadableRows:
    """Rows that the CSV reader cannot read: `wrong` rows by number, and the row with an `unclosed` cell."""

    def __init__(self) -> None:
        self.wrong: dict[int, RowError] = {}
        self.unclosed: int | None = None

    def note(self, row: Any) -> str:
        """The reader's handler of rows with other cells than the header."""
        if row.text == _CSV_END:
            return "skip"
        if row.text.endswith(_CSV_END):
            self.unclosed = row.number
            return "skip"
        what = f"{row.actual_columns} cells, the header has {row.expected_columns}"
        self.wrong[row.number] = RowError(what, row=row.number)
        return "skip"


def _holds_end(batch: pa.RecordBatch) -> bool:
    """Whether the last cell has taken the rest of the file."""
    last = batch.column(batch.num_columns - 1)[-1].as_py() if len(batch) else None
    return last.endswith(_CSV_END.encode() if isinstance(last, bytes) else _CSV_END) if last else False


def parquet_rows(file: BinaryIO, rules: RowRules, advance: Callable[[int], None]) -> Iterator[Raw]:
    """The rows of a Parquet file; `advance` gets the bytes read, in proportion to the rows."""
    from pyarrow import parquet

    with _explained("Parquet"):
        # pyarrow opens the file itself: through a Python object every read would copy and take the GIL.
        own = pa.OSFile(f"/dev/fd/{file.fileno()}")
        # Without pre_buffer=False it reads all row groups into memory first, whatever the buffer's size.
        opened = parquet.ParquetFile(own, buffer_size=1 << 20, pre_buffer=False)
        names = _names(opened.schema_arrow.names, rules, _BY_SPARK_NAME)
        facts = opened.metadata
        size = sum(facts.row_group(group).total_byte_size for group in range(facts.num_row_groups))
        count = max(1, min(ROWS_MAX, BATCH_SIZE * facts.num_rows // max(size, 1)))
        batches = opened.iter_batches(batch_size=count, columns=list(names))
    size_each = own.size() / max(facts.num_rows, 1)
    for raw in _numbered(_guarded(batches, "Parquet"), names):
        advance(round(size_each * len(raw.numbers)))
        yield raw


def arrow_rows(file: BinaryIO, rules: RowRules, *, stream: bool) -> Iterator[Raw]:
    """The rows of an Arrow IPC file or stream."""
    with _explained("Arrow"):
        batches: Iterator[pa.RecordBatch]
        if stream:
            opened = pa.ipc.open_stream(file)
            batches = iter(opened)
        else:
            opened = pa.ipc.open_file(file)
            batches = map(opened.get_batch, range(opened.num_record_batches))
        names = _names(opened.schema.names, rules, _BY_SPARK_NAME)
    return _numbered(_guarded(batches, "Arrow"), names)


def _numbered(batches: Iterator[pa.RecordBatch], names: Mapping[str, str]) -> Iterator[Raw]:
    first = 1
    for batch in batches:
        for start, piece in _pieces(batch):
            begin = first + start
            yield Raw(_columns(piece, names), np.arange(begin, begin + len(piece)), {})
        first += len(batch)


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(first row, piece) of a batch in pieces of at most ROWS_MAX rows and about BATCH_SIZE bytes.

    A value of a dictionary counts in each row that has it: what decodes the column copies it.
    """
    repeated = _repeated_bytes(batch)
    if repeated is None:
        step = max(1, min(ROWS_MAX, BATCH_SIZE * len(batch) // max(batch.nbytes, 1)))
        for start in range(0, len(batch), step):
            yield start, batch.slice(start, step)
        return
    ends = np.cumsum(repeated + batch.nbytes // max(len(batch), 1))
    start = 0
    while start < len(batch):
        passed = int(ends[start - 1]) if start else 0
        fits = int(np.searchsorted(ends, passed + BATCH_SIZE, side="right")) - start
        count = max(1, min(ROWS_MAX, fits))
        yield start, batch.slice(start, count)
        start += count


def _repeated_bytes(batch: pa.RecordBatch) -> Any:
    """Of each row the bytes of its values that are in dictionaries, i8; None without such columns."""
    found = None
    for column in batch.columns:
        if not pa.types.is_dictionary(column.type):
            continue
        kind = column.dictionary.type
        if not any(is_kind(kind) for is_kind in _OF_BYTES):
            continue
        lengths = pc.fill_null(pc.binary_length(column.dictionary), 0).to_numpy().astype(np.int64)
        places = pc.fill_null(column.indices.cast(pa.int64()), len(lengths)).to_numpy()
        each = np.append(lengths, 0)[places]
        found = each if found is None else found + each
    return found


def _columns(batch: pa.RecordBatch, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: batch.column(old) for old, name in names.items()}


def _names(found: Sequence[str], rules: RowRules, others: Mapping[str, str]) -> dict[str, str]:
    """Names in the file to names of columns. Raises InputError for unknown and doubled ones."""
    names: dict[str, str] = {}
    for old in found:
        name = old if old in COLUMNS else others.get(old, old)
        if name not in COLUMNS:
            if rules.ignore_unknown:
                continue
            raise unknown_column(old, None)
        if old in names or name in names.values():
            raise InputError(f"the input has the column {name} twice")
        names[old] = name
    return names


class _CsvBytes:
    """The input as the CSV reader gets it: not UTF-16, and with one more row at the end, `_CSV_END`.

    A quoted cell that never ends contains it, with all rows that follow; pyarrow does not report such a cell.
    """

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = memoryview(f"\n{_CSV_END}".encode())
        self._started = False
        self._has_ended = self._is_left = False
        self.has_quotes = False

    def read(self, count: int = -1) -> bytes:
        """Up to `count` bytes; none once it was left."""
        if self._is_left:
            return b""
        data = self._file.read(count)
        if not self._started and data.startswith(UTF_16):
            raise InputError("the input is UTF-16, not UTF-8", hint="iconv -f UTF-16 -t UTF-8 converts it")
        if not data and self._started:
            size = len(self._end) if count < 0 else count
            data, self._end = bytes(self._end[:size]), self._end[size:]
        if not self._started and data.partition(b"\n")[0].count(b",") >= COLUMNS_MAX:
            raise InputError(f"the header has more than {COLUMNS_MAX} columns")
        self._started = True
        self._has_ended = not data
        self.has_quotes = self.has_quotes or b'"' in data
        return data

    def leave(self) -> bool:
        """End the input at the next read of the reader's thread; return whether there was more."""
        self._is_left = True
        return not self._has_ended

    def close(self) -> None:
        """Leaves the file to its owner."""


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Errors of pyarrow as InputError."""
    try:
        yield
    except InputError:
        raise
    except (pa.ArrowException, UnicodeDecodeError) as error:
        text = str(error).partition("\n")[0]
        if "straddl" in text:
            raise _LongRowError(text) from error
        elif isinstance(error, UnicodeDecodeError):
            text = "it is not UTF-8"
        raise InputError(f"cannot read the input as {what}: {text}") from error


def _guarded(batches: Iterator[pa.RecordBatch], what: str) -> Iterator[pa.RecordBatch]:
    """The batches, each validated first: pyarrow's functions trust offsets, and read wherever these lead."""
    while True:
        with _explained(what):
            batch = next(batches, None)
            if batch is not None:
                batch.validate(full=True)
        if batch is None:
            return
        yield batch
