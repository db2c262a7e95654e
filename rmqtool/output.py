"""The one writer: data on stdout, everything else on stderr.

    rows     table, jsonl, json, csv, tsv
    object   text, json
    lines    each row as the text of a format string
    bytes    as they are, never on a terminal

A terminal changes format and colour, never values or order. Data is UTF-8 whatever the locale. Text
from a store is untrusted: control characters, and those that change the direction of writing, are
escaped before they reach a terminal (terminal.py).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import IO, TYPE_CHECKING, BinaryIO, Literal, NoReturn

from rmqtool.errors import EXIT_OK, InputError, RmqtoolError, UnwritableError, UsageError
from rmqtool.message.cells import (
    Row,
    TextColumns,
    TextLines,
    csv_text,
    field_value,
    json_text,
    plain_text,
    tsv_text,
)
from rmqtool.table import TABLE_BLOCK_ROWS, Heading, Sought, Table, coloured
from rmqtool.terminal import NARROWEST, PROGRESS_DELAY_SECONDS, ProgressBar, errors_held, escape, print_error

if TYPE_CHECKING:
    import subprocess

    from rmqtool.message.format_string import FormatString
    from rmqtool.page import Section

Headings = Sequence[Heading] | Callable[[Sequence[Row]], Sequence[Heading]]
"""The columns of a table, or a function that chooses them from the first block of rows."""

Block = Callable[[Row, int], Iterable[str]]
"""Returns the lines of a row as text, wrapped at so many columns; an upper-case severity may begin a line."""

_STDOUT = 1
_AGAIN_MS = 1500  # longer than signals count as one
FLUSH_SECONDS = 1.0  # no format holds back a row for longer once the next one has come


class OutputClosedError(Exception):
    """The reader of stdout has gone (`| head`). Not an error; a command that only reads can stop."""


@contextmanager
def _ending_with_the_reader() -> Iterator[None]:
    """Interrupts the block if stdout is a pipe and its reader ends, and raises OutputClosedError then.

    Otherwise `| head` would end the command only when it writes the next row, which may take a scan of the
    whole log.
    """
    main = threading.main_thread()
    has_handler = callable(signal.getsignal(signal.SIGINT))
    if threading.current_thread() is not main or not has_handler or not _is_pipe():
        yield
        return
    is_gone, is_done, lock = False, False, threading.Lock()
    ended, end = os.pipe()

    def watch() -> None:
        nonlocal is_gone
        poll = select.poll()
        poll.register(_STDOUT, 0)  # POLLERR comes without being asked for
        poll.register(ended, select.POLLIN)
        if all(descriptor != _STDOUT for descriptor, _ in poll.poll()):
            return
        poll.unregister(_STDOUT)
        has_ended = False
        while not has_ended:
            with lock:
                if is_done:
                    return
                is_gone = True
                signal.pthread_kill(main.ident or 0, signal.SIGINT)
            # A signal just before a system call that waits does not end the wait: the next one does.
            has_ended = bool(poll.poll(_AGAIN_MS))

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        watcher.start()
        try:
            yield
        finally:
            with lock:  # from here on no signal is sent, and one that was sent is met below
                is_done = True
            os.close(end)
            watcher.join()
            os.close(ended)
    except KeyboardInterrupt:
        if is_gone:
            raise OutputClosedError from None
        raise


def _is_pipe() -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(_STDOUT).st_mode)
    except OSError:  # closed
        return False


class TableLine(str):
    """A line of a table inside the text of an object: it is not broken."""

    __slots__ = ()


class Output:
    """The output of one command.

    Args:
        format: the value of `--format`; None for the default of what is written.
        default: the value of RMQTOOL_FORMAT, which replaces that default: a format of rows, or text.
        fields: the value of `--fields`: names separated by commas; None for all. A part of a field
            has a dotted name, `properties.TAGS`.
        quiet: no notes and no progress on stderr.
        progress: True and False for `--progress` and `--no-progress`; None: where stderr is a terminal.
        template: the value of `--format-string`; rows are written with it, and `fields` are what it needs.
        changes: the command changes a store. It continues without output if the reader of stdout has gone
            or its disk is full; for a full disk `lost_output` returns the error after the command.
        pages: a table on a terminal goes through a pager. Not for rows that come as they happen, nor for a
            command that changes a store: it must not wait for a reader.
        sought: as for `Table`.
    """

    def __init__(
        self,
        *,
        format: str | None = None,
        default: str | None = None,
        fields: str | None = None,
        quiet: bool = False,
        progress: bool | None = None,
        changes: bool = False,
        template: FormatString | None = None,
        pages: bool = True,
        sought: Sought | None = None,
    ) -> None:
        self.format = format
        self._default = default
        self.fields = None if fields is None else tuple(filter(None, map(str.strip, fields.split(","))))
        self._sought = sought
        self._template = template
        if template is not None:
            self.fields = template.names
        self.quiet = quiet
        self._progress = progress
        self._changes = changes
        self._bar: ProgressBar | None = None
        self._flushed = time.monotonic()
        self._terminal = _is_terminal(sys.stdout)
        self._pages = pages and not changes and self._terminal
        self._paging: ExitStack | None = None
        self._pager: IO[bytes] | None = None
        self._was_paged = False  # whether a pager was started, which `cat` is not
        self._colour = _has_colour()
        # Rows that go through a pipe often come out on the same terminal: `| grep`.
        self._may_reach_terminal = progress is None and _is_pipe()

    # data

    @property
    def chosen_format(self) -> str:
        """The requested format of rows, otherwise that of RMQTOOL_FORMAT, otherwise table."""
        default = "table" if self._default == "text" else self._default
        return self.format or default or "table"

    @property
    def is_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return self._terminal

    @property
    def shows_text(self) -> bool:
        """Whether nothing but text is requested, by an option or the environment."""
        return self.format in (None, "text") and self._default in (None, "text", "table")

    @property
    def line_format(self) -> Literal["jsonl", "csv"] | None:
        """The format of the `TextLines` that `write_rows` accepts; None if it accepts single rows only."""
        if self._template is not None:
            return None
        match self.chosen_format:
            case "jsonl":
                return "jsonl"
            case "csv" if not self._terminal:  # whose cells are escaped
                return "csv"
        return None

    @property
    def takes_cells(self) -> bool:
        """Whether `write_rows` accepts `TextColumns` after the first block of rows: nothing is cut."""
        return self._template is None and self.chosen_format == "table" and not self._terminal

    def write_rows(
        self,
        rows: Iterable[Row | TextLines | TextColumns | None],
        columns: Sequence[str],
        table: Headings | None = None,
        block: Block | None = None,
        typed: Mapping[str, str] | None = None,
        *,
        has_header: bool = False,
    ) -> int:
        """Writes rows as they come; returns how many.

        Args:
            rows: each row's keys are among `columns`. jsonl and json show the keys that a row has, the
                others all columns; `fields` replaces both. None announces that the next row may take long,
                and flushes the rows so far. `TextLines` are for `line_format` only, and `TextColumns`
                for `takes_cells`, with the columns that the table has.
            columns: every name that a row may have, in order.
            table: the columns of a table, if all would be too many to read.
            block: shows rows as text if neither a format nor fields are requested: for rows with sentences.
            typed: as for `Table`.
            has_header: whether a table without rows has a header.

        If `rows` raises or is interrupted, the output is complete up to there. Raises UsageError for an
        unknown field before anything is read. For `--fields help` see `check_fields`.
        """
        self.check_fields(columns)
        if block is not None and self.shows_text and self.fields is None:
            with _ending_with_the_reader(), self._paged():
                return self._blocks(rows, block)
        if self._changes:
            return self._written(rows, columns, table, typed, has_header=has_header)
        with _ending_with_the_reader():
            return self._written(rows, columns, table, typed, has_header=has_header)

    def _written(
        self,
        rows: Iterable[Row | TextLines | TextColumns | None],
        columns: Sequence[str],
        table: Headings | None,
        typed: Mapping[str, str] | None,
        *,
        has_header: bool,
    ) -> int:
        format = self.chosen_format
        if self._template is not None:
            return self._filled(map(_single, rows), self._template)
        if format == "jsonl":
            return self._json_rows(rows, array=False)
        if format in ("csv", "tsv"):
            return self._separated(rows, self.fields or columns, format)
        if format == "table":
            with self._paged():
                names = self.fields or table or columns
                count = self._table(rows, names, columns, typed)
                if has_header and not count:
                    self._write_block(None, [], names, typed)
                    self._flush()
                return count
        return self._json_rows(map(_single, rows), array=True)

    def check_fields(self, columns: Sequence[str]) -> None:
        """Raises UsageError if a name in `fields` is not in `columns`.

        A command that works before it shows rows calls this first. `--fields help` writes the columns,
        one per line, and ends the command (SystemExit).
        """
        for name in self.fields or ():
            if name == "help":
                self.show_names(columns)
            if name.partition(".")[0] not in columns:
                from difflib import get_close_matches

                near = get_close_matches(name.partition(".")[0], columns)
                hint = f"did you mean {' or '.join(near)}? --fields help lists them all" if near else None
                raise UsageError(f"unknown field: {name!r}", hint=hint or f"fields are: {', '.join(columns)}")

    def show_names(self, names: Iterable[str]) -> NoReturn:
        """Writes the names of fields for `--fields help`, one per line, and ends the command (SystemExit)."""
        self._write("".join(f"{name}\n" for name in names))
        raise SystemExit(EXIT_OK)

    def write_object(
        self, value: Row, text: Iterable[str] | None = None, *, is_repeated: bool = False
    ) -> bool:
        """Writes one object: as JSON, or as `text` (lines without their ends).

        If others follow (`is_repeated`), each is a line of JSON.

        Text that is longer than the screen of a terminal goes through a pager; returns whether it did.
        Text is broken between words, elsewhere at the columns of a terminal too: people read it in a pager.
        Without `text` the object's own names are shown, nested ones indented. A severity at the beginning of
        a line has its colour.
        """
        if (self.format or self._default) in ("json", "jsonl"):
            self._write(json_text(value, indented=not is_repeated) + "\n")
            self._flush()
            return False
        size = shutil.get_terminal_size()
        width = size.columns if self._terminal or text is not None else None
        shown = [
            [escape(line)] if isinstance(line, TableLine) else filled(escape(line), width)
            for line in (_text_lines(value) if text is None else text)
        ]
        is_long = sum(map(len, shown)) >= size.lines
        with self._paged() if is_long else nullcontext():
            for pieces in shown:
                lines = "".join(f"{piece}\n" for piece in pieces)
                self._write(coloured(lines) if self._colour else lines)
            self._flush()
        return is_long and self._was_paged

    def write_lines(self, lines: Iterable[str]) -> None:
        """Writes lines, without their ends, as they are but escaped."""
        for line in lines:
            self._write(escape(line) + "\n")
        self._flush()

    def write_page(self, sections: Iterable[Section]) -> None:
        """Writes a page of the manual, on a terminal through the program of PAGER."""
        text = page_text(sections)
        with self._paged():
            self._write(text)
            self._flush()

    def write_bytes(self, pieces: Iterable[bytes | memoryview]) -> int:
        """Writes bytes as they are; returns how many. Raises UsageError on a terminal."""
        if self._terminal:
            raise UsageError("bytes of a store do not go to a terminal", hint="redirect them to a file")
        count = 0
        for piece in pieces:
            self._write_bytes(piece)
            count += len(piece)
        self._flush()
        return count

    @staticmethod
    def table_lines(
        rows: Sequence[Row], columns: Sequence[str], indent: str = "", *, keeps_place: bool = False
    ) -> list[str]:
        """The lines of a small table inside the text of an object; `keeps_place` as for `Table`."""
        if not rows:
            return []
        width = shutil.get_terminal_size().columns - len(indent) if _is_terminal(sys.stdout) else None
        table = Table(columns, width=width, keeps_place=keeps_place)
        lines: list[str] = [TableLine(f"{indent}{line}") for line in table.lines(rows)]
        return [*lines, f"{indent}(times are of {table.shared})"] if table.shared else lines

    @contextmanager
    def _paged(self) -> Iterator[None]:
        """On a terminal, what the block writes goes through a pager, which starts with the first bytes."""
        with ExitStack() as stack:
            self._paging = stack if self._pages else None
            try:
                yield
            finally:
                self._paging = None

    @contextmanager
    def _pager_for_stdout(self) -> Iterator[None]:
        """The program of PAGER shows what is written; lines for stderr follow when it has ended."""
        pager = _start_pager()
        if pager is None:
            yield
            return
        assert pager.stdin is not None
        with errors_held():
            self._pager, self._was_paged = pager.stdin, True
            try:
                yield
            finally:
                self._pager = None
                with suppress(OSError):  # the reader has left the pager
                    pager.stdin.close()
                while pager.poll() is None:  # an interrupt ends the command, not the pager
                    with suppress(KeyboardInterrupt):
                        pager.wait()

    # everything else

    def note(self, text: str) -> None:
        """One line on stderr for the user, unless `quiet`."""
        if not self.quiet:
            if self._bar is not None:
                self._bar.hide()
            print_error(text)

    def note_of_progress(self, text: str) -> None:
        """One line on stderr about work that takes long, where a progress bar would be shown."""
        if self._shows_progress(_is_terminal(sys.stderr)):
            self.note(text)

    def _shows_progress(self, default: bool) -> bool:
        return not self.quiet and (default if self._progress is None else self._progress)

    @contextmanager
    def progress(
        self, title: str, total_bytes: int | None, *, line_seconds: float | None = None
    ) -> Iterator[ProgressBar]:
        """A progress bar on stderr for work that takes longer than a second; call `advance(n)`.

        With `line_seconds` a line every so many seconds if stderr is not a terminal, also without --progress.
        """
        terminal = _is_terminal(sys.stderr)
        shown = self._shows_progress(terminal or line_seconds is not None)
        every = PROGRESS_DELAY_SECONDS if self._progress or line_seconds is None else line_seconds
        self._bar = ProgressBar(title, total_bytes, shown=shown, terminal=terminal, line_seconds=every)
        try:
            yield self._bar
        finally:
            self._bar.hide()
            self._bar = None

    # formats

    def _ready(self, rows: Iterable[Row | TextLines | TextColumns | None]) -> Iterator[Row | TextLines]:
        for row in rows:
            if isinstance(row, TextLines):
                yield row
            elif (single := _single(row)) is None:
                self._flush()
            else:
                yield single

    def _json_rows(self, rows: Iterable[Row | TextLines | TextColumns | None], *, array: bool) -> int:
        count = 0
        try:
            for row in self._ready(rows):
                if isinstance(row, TextLines):
                    self._write_bytes(row.data)
                    count += row.count
                    continue
                if self.fields is not None:
                    row = {name: field_value(row, name) for name in self.fields}
                if array:
                    self._write(("[\n" if count == 0 else ",\n") + json_text(row))
                else:
                    self._write(json_text(row) + "\n")
                count += 1
        finally:
            if array:
                self._write("\n]\n" if count else "[]\n")
            self._flush()
        return count

    def _filled(self, rows: Iterable[Row | None], template: FormatString) -> int:
        shown = _escaped_bytes if self._terminal else None
        count = 0
        try:
            for row in self._ready(rows):
                assert not isinstance(row, TextLines)
                self._write_bytes(template.line(row, shown))
                count += 1
        finally:
            self._flush()
        return count

    def _separated(
        self, rows: Iterable[Row | TextLines | TextColumns | None], columns: Sequence[str], format: str
    ) -> int:
        cell, separator = (csv_text, ",") if format == "csv" else (tsv_text, "\t")
        if self._terminal:
            exact = cell

            def cell(value: object) -> str:
                return escape(exact(value))

        count = 0
        try:
            self._write(separator.join(map(cell, columns)) + "\n")
            for row in self._ready(rows):
                if isinstance(row, TextLines):
                    self._write_bytes(row.data)
                    count += row.count
                    continue
                self._write(separator.join(cell(field_value(row, name)) for name in columns) + "\n")
                count += 1
        finally:
            self._flush()
        return count

    def _blocks(self, rows: Iterable[Row | TextLines | TextColumns | None], block: Block) -> int:
        width, count = shutil.get_terminal_size().columns, 0
        try:
            for row in self._ready(rows):
                assert not isinstance(row, TextLines)
                for line in map(escape, block(row, width)):
                    self._write((coloured(line) if self._colour else line) + "\n")
                count += 1
        finally:
            self._flush()
        return count

    def _table(
        self,
        rows: Iterable[Row | TextLines | TextColumns | None],
        columns: Headings,
        known: Sequence[str],
        typed: Mapping[str, str] | None,
    ) -> int:
        """Write a table of `columns`. The note of those left out names only what --fields takes: `known`."""
        table: Table | None = None
        count = 0
        block: list[Row] = []
        start = time.monotonic()
        try:
            for each in rows:
                if each is None or isinstance(each, Mapping | TextLines):
                    row = _single(each)
                else:
                    if block:
                        ready, block = block, []
                        table = self._write_block(table, ready, columns, typed)
                    from rmqtool.table_columns import ColumnLines

                    assert table is not None
                    for piece in table.block(ColumnLines(each)):
                        self._write_bytes(piece)
                    count += each.count
                    continue
                if row is not None:
                    if not block:  # rows that arrive together are shown together, with the same widths
                        start = time.monotonic()
                    block.append(row)
                    count += 1
                late = row is None or time.monotonic() - start > FLUSH_SECONDS
                if block and (late or len(block) == TABLE_BLOCK_ROWS):
                    # Emptied before it is written: after an interrupt in between it must not be shown twice.
                    ready, block = block, []
                    table = self._write_block(table, ready, columns, typed)
        finally:
            if block:
                table = self._write_block(table, block, columns, typed)
            self._flush()
            if table is not None and table.shared:
                self.note(f"rmqtool: times are of {table.shared}")
            if table is not None and (said := table.said_of_all()):
                self.note(f"rmqtool: {', '.join(said)}")
            if table is not None and (chosen := [name for name in table.left_out if name in known]):
                names = ", ".join(chosen)
                self.note(f"rmqtool: the terminal is too narrow for {names}; --fields chooses columns")
        return count

    def _write_block(
        self,
        table: Table | None,
        block: Sequence[Row],
        columns: Headings,
        typed: Mapping[str, str] | None,
    ) -> Table:
        if table is None:
            headings = columns(block) if callable(columns) else columns
            width = shutil.get_terminal_size().columns if self._terminal else None
            table = Table(headings, colour=self._colour, width=width, sought=self._sought, typed=typed)
        self._write("".join(line + "\n" for line in table.lines(block)))
        self._flush()
        return table

    # bytes

    def _write(self, text: str) -> None:
        # A lone surrogate cannot be encoded; in JSON `\udc80` is its proper escape.
        self._write_bytes(text.encode("utf-8", "backslashreplace"))

    def _write_bytes(self, data: bytes | memoryview) -> None:
        if self._paging is not None:
            stack, self._paging = self._paging, None
            stack.enter_context(self._pager_for_stdout())
        if self._bar is not None and (self._terminal or self._may_reach_terminal):
            self._bar.hide(for_good=self._pager is not None)
        with self._explained():
            (self._pager or _stdout()).write(data)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        with self._explained():
            (self._pager or _stdout()).flush()
        self._flushed = time.monotonic()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raises OutputClosedError if the reader has gone, and other errors with the path of stdout.

        A command that changes a store continues after all of them.
        """
        try:
            yield
        except BrokenPipeError:
            if not self._changes:
                raise OutputClosedError from None
            forget_stdout()
        except OSError as error:
            failed = UnwritableError(f"cannot write: {error.strerror}", path="standard output")
            if not self._changes:
                raise failed from error
            failed.hint = "the command went on; what it still had to show is lost"
            _lost.append(failed)
            forget_stdout()
        except InputError as error:  # closed from the start
            if not self._changes:
                raise
            _lost.append(error)


def page_text(sections: Iterable[Section]) -> str:
    """The text of sections of the manual for stdout: coloured on a terminal, plain elsewhere."""
    from rmqtool.page import lines

    width = shutil.get_terminal_size().columns
    return "".join(f"{line}\n" for line in lines(sections, width, colour=_has_colour()))


LABEL_WIDTH = 13
"""Where the text of a labelled line begins: `state        stopped cleanly`."""


def filled(line: str, width: int | None) -> list[str]:
    """The line of a report as lines of at most `width` columns, broken between words.

    Only a text after a label is broken, and continues below itself. Command lines stay whole, to be copied.
    """
    label, text = line[:LABEL_WIDTH], line[LABEL_WIDTH:]
    is_labelled = label.endswith(" ") and text and not text.startswith(" ")
    is_command = label.strip().partition("  ")[0] in _COMMANDS or text.startswith("rmqtool ")
    if width is None or len(line) <= width or not is_labelled or is_command:
        return [line]
    from textwrap import wrap

    room = max(width - LABEL_WIDTH, NARROWEST)
    pieces = wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return [f"{' ' * LABEL_WIDTH if number else label}{piece}" for number, piece in enumerate(pieces)]


_COMMANDS = ("next", "undo", "run", "restore", "keep", "copy")  # labels of command lines


def _start_pager() -> subprocess.Popen[bytes] | None:
    """The program of PAGER, otherwise less; None if there is none, or it would show what a terminal does."""
    import shlex
    import subprocess

    try:
        words = shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:
        return None
    if not words or words == ["cat"] or os.environ.get("TERM") == "dumb":
        return None
    # less shows colours, cuts no line, and ends at once if a screen is enough.
    environment = {"LESS": "FRX", **os.environ}
    try:
        return subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)
    except OSError:
        return None


def _is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and stream.isatty()


def _has_colour() -> bool:
    return _is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_lost: list[RmqtoolError] = []


def lost_output() -> RmqtoolError | None:
    """Why output of a command that changes a store was lost, if it was; called once after the command."""
    first = _lost[0] if _lost else None
    _lost.clear()
    return first


def _single(row: Row | TextLines | TextColumns | None) -> Row | None:
    if row is not None and not isinstance(row, Mapping):
        raise TypeError("lines are for line_format alone, cells for tables")
    return row


def _escaped_bytes(value: bytes) -> bytes:
    """A value of a format string for a terminal."""
    return escape(value.decode("utf-8", "backslashreplace")).encode()


def _stdout() -> BinaryIO:
    if sys.stdout is None:
        raise InputError("standard output is closed")
    return sys.stdout.buffer


def forget_stdout() -> None:
    """Discards everything written to stdout from now on, by the interpreter too: the reader has gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _text_lines(value: Row, indent: str = "") -> Iterator[str]:
    """An object as `name  value` lines; nested objects and lists of objects below their name."""
    width = max((len(name) for name, item in value.items() if not _is_nested(item)), default=0)
    for name, item in value.items():
        if not _is_nested(item):
            text = "none" if isinstance(item, list | tuple) and not item else plain_text(item)
            yield f"{indent}{name:{width}}  {text}".rstrip()
            continue
        yield f"{indent}{name}:"
        if isinstance(item, Mapping):
            yield from _text_lines(item, indent + "  ")
        else:
            columns = tuple(dict.fromkeys(key for row in item for key in row))
            yield from Output.table_lines(item, columns, indent + "  ")


def _is_nested(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value)
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(item, Mapping) for item in value)
