"""An input of many messages: rows from a file or a pipe, as batches of `table.schema` or one by one.

    with open_input(path) as file:
        rows = Input(file, format_of(file, path), RowRules())
        writer.put_table(rows.batches())

Memory holds a few batches of some MiB, however long the input is.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

from rmqtool.errors import InputError, RefusedError, RmqtoolError, UsageError
from rmqtool.storage.prefetch import ahead
from rmqtool.write.ingest.json_rows import BOM, UTF_16, JsonRows, line_blocks
from rmqtool.write.ingest.rows import Raw, RowError, RowRules
from rmqtool.write.records.message import NewMessage

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["jsonl", "csv", "parquet", "arrow"]
OnError = Literal["stop", "skip"]
Complete = Callable[["pa.RecordBatch"], tuple["pa.RecordBatch", dict[int, RmqtoolError]]]
"""A batch as it is to be; what is wrong, by row of the batch from 0."""
Look = Callable[["pa.RecordBatch"], None]
"""Sees a batch, of `table.schema`, before any of its rows is stored or checked."""

STANDARD_INPUT = Path("-")
_SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv",
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
_PACKED = {".gz": "zcat", ".zst": "zstdcat", ".bz2": "bzcat", ".xz": "xzcat"}
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_AHEAD = 2
_PATIENCE_MS = 200  # without new bytes: then what a pipe gave is taken
_LONGEST_MS = 1000  # after the first bytes: then they are taken although more come
_FIRST = 16  # rows of a batch that become messages before the others do
_NUMBERS_KEPT = 16  # batches whose row numbers are kept: more than can be between reading and writing


def row_error(error: RmqtoolError, number: int, column: str | None) -> RowError:
    """The same error with the row that has it; a refusal stays one."""
    found = RowError(
        error.message, column=column, row=number, status=getattr(error, "status", None), hint=error.hint
    )
    if isinstance(error, RefusedError):
        found.exit_code = error.exit_code
    return found


def open_input(path: Path, advance: Callable[[int], None] | None = None) -> io.BufferedReader:
    """The input at `path`, `-` for standard input; `advance` gets the number of bytes read.

    Raises:
        UsageError: standard input is a terminal.
        OSError: it cannot be opened.
    """
    if path != STANDARD_INPUT:
        return io.BufferedReader(CountedFile(io.FileIO(path), advance or _ignore), 1 << 20)
    if sys.stdin is None:
        raise InputError("standard input is closed")
    if sys.stdin.isatty():
        raise UsageError("standard input is a terminal", hint="pipe rows into it, or name a file")
    # Its own file: one that a thread waits for must not be closed when the interpreter ends.
    own = io.FileIO(sys.stdin.fileno(), closefd=False)
    return io.BufferedReader(CountedFile(own, advance or _ignore), 1 << 20)


def size_of(file: io.BufferedReader) -> int | None:
    """Bytes of an input; None for a pipe."""
    return os.fstat(file.fileno()).st_size if file.seekable() else None


def format_of(file: io.BufferedReader, path: Path) -> Format:
    """Return the format of an input, by its name or else by its first bytes.

    Raises:
        UsageError: neither shows it.
    """
    known = _SUFFIXES.get(path.suffix.lower())
    if known is not None:
        return known
    if path.suffix.lower() in _PACKED:
        raise UsageError(
            f"{path} is compressed",
            hint=f"{_PACKED[path.suffix.lower()]} {path} | rmqtool append ... --input -",
        )
    start = file.peek(64)
    if start.startswith(_PARQUET):
        return "parquet"
    if start.startswith((_ARROW_FILE, _ARROW_STREAM)):
        return "arrow"
    if start.startswith(UTF_16) or start.removeprefix(BOM).lstrip()[:1] in (b"{", b"[", b""):
        return "jsonl"
    hint = "--input-format jsonl, csv, parquet or arrow; rmqtool dump writes jsonl with --json"
    raise UsageError("the format of the input is unknown", hint=hint)


class Parsed(NamedTuple):
    """Rows of the input: their numbers, which are sound (`keep`), and what is wrong with the others."""

    batch: pa.RecordBatch
    numbers: Any
    keep: Any
    errors: dict[int, RowError]

    def since(self, number: int) -> Parsed:
        """The same without the rows before this one."""
        errors = {each: error for each, error in self.errors.items() if each >= number}
        return self._replace(keep=self.keep & (self.numbers >= number), errors=errors)


class Read(NamedTuple):
    """Sound rows of the input, and what is wrong with others among them, by their number."""

    batch: pa.RecordBatch
    errors: dict[int, RowError]


class Input:
    """One input, read once from its start to its end.

    Attributes:
        rows: messages handed out so far.
        skipped: wrong rows left out.
        empty: rows that hold no message (blanks).
        fillers: rows left out because they are fillers of `recover`, in the place of lost messages.
        rules: how rows are read; may be changed until the first one is.
        complete: gets every batch before `batches` hands it out, and may change it but for its rows.
    """

    def __init__(
        self,
        file: io.BufferedReader,
        format: Format,
        rules: RowRules,
        *,
        on_error: OnError = "stop",
        report: Callable[[RowError], None] = lambda error: None,
        skip_rows: int = 0,
    ) -> None:
        """Prepare for reading.

        Args:
            file: of `open_input`.
            format: what it is.
            rules: how rows are read.
            on_error: what a wrong row does: `stop` raises it, after the rows before it; `skip` leaves it
                out.
            report: called for every row left out.
            skip_rows: rows up to this number are ignored, right or wrong; numbers are those of RowError.
        """
        self.complete: Complete | None = None
        self.rows = self.skipped = self.empty = self.fillers = 0
        self._file = file
        self._format = format
        self.rules = rules
        self._on_error = on_error
        self._report = report
        self._skip_rows = skip_rows
        self._looked: list[Parsed] = []
        self._parsed = self._parse()
        # Replaced as a whole, never changed: the thread that reads ahead adds, the one that writes asks.
        self._numbers: tuple[tuple[int, Any], ...] = ()

    def number_of(self, index: int) -> int:
        """The row number of message `index` (from 0) of those that `batches` gave last."""
        for first, numbers in reversed(self._numbers):
            if first <= index < first + len(numbers):
                return int(numbers[index - first])
        return index + 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The messages as columns of `table.schema`, read ahead by another thread.

        Raises:
            RowError: a row is wrong; the rows before it were handed out.
            InputError: the input is not what it is taken for.
        """
        return self._handed(ahead(self._sound_batches(), _AHEAD))

    def messages(self, look: Look | None = None) -> Iterator[tuple[int, NewMessage]]:
        """(row number, message), one by one; wrong rows are reported in their place among them.

        `look` is called with each batch, of `table.schema`, before its first message is handed out.

        Raises: as `batches`.
        """
        for batch, errors in self._sound_batches():
            if look is not None and len(batch):
                look(batch)
            yield from self._one_by_one(batch, self._numbers[-1][1] if len(batch) else (), errors)

    def _one_by_one(
        self, batch: pa.RecordBatch, numbers: Any, errors: dict[int, RowError]
    ) -> Iterator[tuple[int, NewMessage]]:
        from rmqtool.write.table.schema import messages_of

        wrong = sorted(errors, reverse=True)
        parts = (batch.slice(0, _FIRST), batch.slice(_FIRST))  # whoever takes only the first ones waits less
        messages = chain.from_iterable(messages_of(part) for part in parts)
        for number, message in zip(numbers, messages, strict=True):
            while wrong and wrong[-1] < number:
                self._handle({wrong[-1]: errors[wrong.pop()]})
            yield int(number), message
        self._handle({number: errors[number] for number in wrong})

    def _handed(self, items: Iterator[Read]) -> Iterator[pa.RecordBatch]:
        """The batches; reports wrong rows in the thread of the consumer, in its order."""
        for batch, errors in items:
            if self._on_error == "skip":
                self._handle(errors)
            if len(batch):
                yield batch
            if self._on_error == "stop":
                self._handle(errors)

    def _sound_batches(self) -> Iterator[Read]:
        with _explained(self._format):
            yield from self._batches()

    def look(self, takes: Callable[[int, NewMessage], bool]) -> None:
        """Read up to the first message that `takes` takes, before anything is made for it; it is not lost.

        Rows before it are done: reported, if they are wrong. Memory holds those of some MiB.

        Args:
            takes: called with the row number and the message; False leaves it out.

        Raises:
            RowError: a row up to it, or one of the next ones (some MiB at most), is wrong, and wrong rows
                end the input. Also what `takes` raises.
            InputError: the input is not what it is taken for, or it has no such message.
        """
        import pyarrow as pa

        left_out = 0
        with _explained(self._format):
            for parsed in self._parsed:
                batch, numbers = parsed.batch.filter(pa.array(parsed.keep)), parsed.numbers[parsed.keep]
                for number, message in self._one_by_one(batch, numbers, parsed.errors):
                    if not takes(number, message):
                        left_out += 1
                        continue
                    if parsed.errors and self._on_error == "stop":
                        raise parsed.errors[min(parsed.errors)]
                    self._looked = [parsed.since(number)]
                    return
        raise self.without_message(left_out)

    def without_message(self, left_out: int) -> InputError:
        """Return the error of an input without a message for a new store; `left_out` cannot be stored."""
        after = f" after row {self._skip_rows}" if self._skip_rows else ""
        if left_out or self.skipped:
            return InputError(f"the input has no message{after} that can be stored")
        only = ", only fillers of recover" if self.fillers else ""
        return InputError(f"the input has no message{after}{only}")

    def _parse(self) -> Iterator[Parsed]:
        import numpy as np

        from rmqtool.write.ingest.columns import columns_of

        for columns, numbers, errors in self._raw():
            found = columns_of(columns, len(numbers), self.rules, spelled=self._format == "csv")
            wanted = numbers > self._skip_rows
            for row, error in found.errors.items():
                errors[int(numbers[row])] = error.at(int(numbers[row]))
            errors = {number: error for number, error in errors.items() if number > self._skip_rows}
            keep = wanted & ~found.empty & ~found.fillers
            bad = min(errors) if errors and self._on_error == "stop" else None
            if bad is not None:
                keep &= numbers < bad
            elif found.errors:
                keep[list(found.errors)] = False
            self.empty += int(np.count_nonzero(wanted & found.empty))
            self.fillers += int(np.count_nonzero(wanted & found.fillers))
            yield Parsed(found.batch, numbers, keep, errors)

    def _batches(self) -> Iterator[Read]:
        import numpy as np
        import pyarrow as pa

        looked, self._looked = self._looked, []
        for parsed, numbers, keep, errors in chain(looked, self._parsed):
            kept = numbers[keep]
            batch = parsed if keep.all() else parsed.filter(pa.array(keep))
            if self.complete is not None and len(kept):
                batch, wrong = self.complete(batch)
                use = np.ones(len(kept), np.bool_)
                for row, reason in wrong.items():
                    errors[int(kept[row])] = row_error(reason, int(kept[row]), reason.column)
                    use[row if self._on_error == "skip" else slice(row, None)] = False
                kept, batch = kept[use], batch.filter(pa.array(use)) if wrong else batch
            if len(kept):
                self._numbers = (*self._numbers[1 - _NUMBERS_KEPT :], (self.rows, kept))
                self.rows += len(kept)
            yield Read(batch, errors)
            if errors and self._on_error == "stop":
                return

    def _handle(self, errors: dict[int, RowError]) -> None:
        """Raises the first one, or reports all."""
        for number in sorted(errors):
            if self._on_error == "stop":
                raise errors[number]
            self.skipped += 1
            self._report(errors[number])

    def _raw(self) -> Iterator[Raw]:
        if self._format == "jsonl":
            yield from self._json_columns()
            return
        from rmqtool.write.ingest import files

        if self._format == "csv":
            yield from files.csv_rows(self._file, self.rules)
        elif self._format == "arrow" and not self._file.peek(8).startswith(_ARROW_FILE):
            yield from files.arrow_rows(self._file, self.rules, stream=True)
        else:
            with _searchable(self._file) as (file, advance):
                if self._format == "parquet":
                    yield from files.parquet_rows(file, self.rules, advance)
                else:
                    yield from files.arrow_rows(file, self.rules, stream=False)

    def _json_columns(self) -> Iterator[Raw]:
        import numpy as np

        decoder = JsonRows(self.rules)
        for lines in line_blocks(Flowing(self._file)):
            columns, numbers, errors = decoder.columns(lines)
            yield Raw(columns, np.array(numbers, np.int64), errors)


@contextmanager
def _explained(format: Format) -> Iterator[None]:
    """Turn Arrow's errors into one of the input: a type that cannot be, or bytes that are something else."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"the {format} input cannot be read as messages: {reason}") from error


@contextmanager
def _searchable(file: io.BufferedReader) -> Iterator[tuple[BinaryIO, Callable[[int], None]]]:
    """The file itself, or a nameless copy of a pipe; with what reads past `file` have to call."""
    if file.seekable():
        yield file, file.raw.advance if isinstance(file.raw, CountedFile) else _ignore
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy, 1 << 20)
        copy.seek(0)
        yield copy, _ignore  # the copying has called it


def _ignore(count: int) -> None:
    """Ignore progress."""


class CountedFile(io.RawIOBase):
    """A file that counts the bytes read from it, and passes them to `advance`."""

    def __init__(self, file: io.FileIO, advance: Callable[[int], None]) -> None:
        self._file = file
        self.advance = advance
        self.count = 0

    def readable(self) -> bool:
        """True: see io.RawIOBase."""
        return True

    def seekable(self) -> bool:
        """Whether it is a file, not a pipe."""
        return self._file.seekable()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """See io.RawIOBase."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """See io.RawIOBase."""
        return self._file.tell()

    def fileno(self) -> int:
        """Its descriptor."""
        return self._file.fileno()

    def readinto(self, buffer: Any, /) -> int | None:
        """See io.RawIOBase."""
        count = self._file.readinto(buffer)
        self.count += count or 0
        self.advance(count or 0)
        return count

    def close(self) -> None:
        """Closes the file too."""
        self._file.close()
        super().close()


class Flowing:
    """An input whose writer may pause, or be slow: gives what has come instead of waiting for a full buffer.

    Reads from the file itself, after the bytes that were peeked at: a thread that waits in the buffer would
    prevent others from closing it, for instance on an interrupt.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        """Read what `open_input` has opened, from its start."""
        self._raw: Any = file.raw
        self._coming = poll()  # not select(): that takes no descriptor above 1,023
        self._coming.register(file.fileno(), POLLIN)
        self._head = file.read(self._raw.count if isinstance(self._raw, CountedFile) else 0)

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer, or what of it can be filled without waiting for long; 0 at the end."""
        count = min(len(self._head), len(buffer))
        buffer[:count] = self._head[:count]
        self._head = self._head[count:]
        end = _end_of_wait() if count else None
        while count < len(buffer) and self._is_more(end):
            got = self._raw.readinto(buffer[count:])
            if not got:
                break
            count += got
            end = end or _end_of_wait()
        return count

    def _is_more(self, end: float | None) -> bool:
        """Whether there are more bytes, or the end; None waits for them, else not beyond that time."""
        if end is None:
            return bool(self._coming.poll())
        left_ms = min(_PATIENCE_MS, int(1000 * (end - time.monotonic())))
        return left_ms > 0 and bool(self._coming.poll(left_ms))


def _end_of_wait() -> float:
    return time.monotonic() + _LONGEST_MS / 1000
