"""The one writer: data on stdout, everything else on stderr.

    rows     table (on a terminal), jsonl (piped), json, csv, tsv
    object   text, json
    bytes    as they are, never on a terminal

A terminal changes format and colour, never values or order; a table, being for eyes, cuts long
cells and shows few columns wherever it goes. Data is UTF-8 whatever the locale. Text from a store
is untrusted: control characters, and those that turn the direction of writing, are escaped before
they can reach a terminal (terminal.py). Only this file uses tabulate, and loads it when needed.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, BinaryIO, SupportsInt

from rmqtool.errors import InputError, UsageError
from rmqtool.terminal import ProgressBar, escape, print_error

Row = Mapping[str, Any]

CELL_WIDTH = 60  # columns of a table cell; other formats never cut
TABLE_BLOCK_ROWS = 200  # rows that share their column widths; a table holds back no more
FLUSH_SECONDS = 1.0  # and no format a row for longer, once another one comes

_JSON_CONTROL = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SEVERITY_COLOURS = {"error": "31", "warning": "33", "note": "2"}


class OutputClosedError(Exception):
    """The reader of stdout went away (`| head`): no error, but nothing is left to do."""


def _plain(value: object) -> object:
    """What the JSON encoder does not know: paths, and numbers and arrays of numpy."""
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"no JSON for {type(value).__name__}")


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)
_indented = json.JSONEncoder(ensure_ascii=False, indent=2, default=_plain)


def _json(value: object, encoder: json.JSONEncoder = _compact) -> str:
    # Only strings can hold these characters, so the escape is valid JSON and means the same.
    return _JSON_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", encoder.encode(value))


def _text(value: object) -> str:
    """One value as exact text: empty for None, compact JSON for lists and objects."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | list | tuple | dict):
        return _json(value)
    return str(value)


def _csv(value: object) -> str:
    text = _text(value)
    # None is an empty cell and the empty string a quoted one: the csv module cannot tell them apart.
    quoted = text != text.strip() or any(character in text for character in ',"\r\n')
    if quoted or (not text and value is not None):
        return '"' + text.replace('"', '""') + '"'
    return text


def _tsv(value: object) -> str:
    text = _text(value).replace("\\", "\\\\")
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


class Output:
    """Where one command writes to.

    Args:
        format: the value of `--format`; None for the default of what is written.
        fields: the value of `--fields`: names separated by commas; None for all.
        quiet: no notes and no progress on stderr.
        progress: True and False for `--progress` and `--no-progress`; None: where stderr is a terminal.
    """

    def __init__(
        self,
        *,
        format: str | None = None,
        fields: str | None = None,
        quiet: bool = False,
        progress: bool | None = None,
    ) -> None:
        self.format = format
        self.fields = None if fields is None else tuple(filter(None, map(str.strip, fields.split(","))))
        self.quiet = quiet
        self._progress = progress
        self._bar: ProgressBar | None = None
        self._flushed = time.monotonic()
        self._terminal = sys.stdout is not None and sys.stdout.isatty()
        self._colour = self._terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    # data

    def write_rows(
        self, rows: Iterable[Row], columns: Sequence[str], table: Sequence[str] | None = None
    ) -> int:
        """Writes rows as they come; returns how many.

        Args:
            rows: each row's keys are among `columns`. jsonl and json show the keys that a row has,
                the others all columns; `fields` replaces both.
            columns: every name that a row may have, in order.
            table: the columns of a table, where all would be too many to read.

        What was written so far is complete when `rows` raises or is interrupted. Raises UsageError
        for an unknown field before anything is read.
        """
        format = self.format or ("table" if self._terminal else "jsonl")
        self._check_fields(columns)
        if format == "table":
            return self._table(rows, self.fields or table or columns)
        if format in ("csv", "tsv"):
            return self._separated(rows, self.fields or columns, format)
        return self._json_rows(rows, array=format == "json")

    def write_object(self, value: Row, text: Iterable[str] | None = None) -> None:
        """Writes one object: as JSON, or as `text` (lines without their ends).

        Without `text` the object's own names are shown, nested ones indented.
        """
        if self.format == "json":
            self._write(_json(value, _indented) + "\n")
        else:
            for line in _text_lines(value) if text is None else text:
                self._write(escape(line) + "\n")
        self._flush()

    def write_bytes(self, pieces: Iterable[bytes]) -> int:
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
    def table_lines(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
        """The lines of a small table that is a part of an object's text."""
        return _Table(columns, colour=False).lines(rows) if rows else []

    # everything else

    def note(self, text: str) -> None:
        """One line on stderr for the user, unless `quiet`."""
        if not self.quiet:
            if self._bar is not None:
                self._bar.hide()
            print_error(text)

    @contextmanager
    def progress(self, title: str, total_bytes: int) -> Iterator[ProgressBar]:
        """A progress bar on stderr for work that takes longer than a second; call `advance(n)`."""
        terminal = sys.stderr is not None and sys.stderr.isatty()
        shown = not self.quiet and (terminal if self._progress is None else self._progress)
        self._bar = ProgressBar(title, total_bytes, shown=shown, terminal=terminal)
        try:
            yield self._bar
        finally:
            self._bar.hide()
            self._bar = None

    # formats

    def _check_fields(self, columns: Sequence[str]) -> None:
        for name in self.fields or ():
            if name not in columns:
                from difflib import get_close_matches

                near = get_close_matches(name, columns) or columns
                raise UsageError(f"unknown field: {name!r}", hint=f"fields are: {', '.join(near)}")

    def _json_rows(self, rows: Iterable[Row], *, array: bool) -> int:
        count = 0
        try:
            for row in rows:
                if self.fields is not None:
                    row = {name: row.get(name) for name in self.fields}
                if array:
                    self._write(("[\n" if count == 0 else ",\n") + _json(row))
                else:
                    self._write(_json(row) + "\n")
                count += 1
        finally:
            if array:
                self._write("\n]\n" if count else "[]\n")
            self._flush()
        return count

    def _separated(self, rows: Iterable[Row], columns: Sequence[str], format: str) -> int:
        cell, separator = (_csv, ",") if format == "csv" else (_tsv, "\t")
        if self._terminal:
            exact = cell

            def cell(value: object) -> str:
                return escape(exact(value))

        count = 0
        try:
            self._write(separator.join(map(cell, columns)) + "\n")
            for row in rows:
                self._write(separator.join(cell(row.get(name)) for name in columns) + "\n")
                count += 1
        finally:
            self._flush()
        return count

    def _table(self, rows: Iterable[Row], columns: Sequence[str]) -> int:
        table = _Table(columns, colour=self._colour)
        count = 0
        block: list[Row] = []
        start = time.monotonic()
        try:
            for row in rows:
                block.append(row)
                count += 1
                if len(block) == TABLE_BLOCK_ROWS or time.monotonic() - start > FLUSH_SECONDS:
                    # Taken out before it is written: an interrupt in between must not show it twice.
                    ready, block = block, []
                    self._write_block(table, ready)
                    start = time.monotonic()
        finally:
            if block:
                self._write_block(table, block)
            self._flush()
        return count

    def _write_block(self, table: _Table, block: Sequence[Row]) -> None:
        self._write("".join(line + "\n" for line in table.lines(block)))
        self._flush()

    # bytes

    def _write(self, text: str) -> None:
        # A lone surrogate cannot be encoded; in JSON `\udc80` is its proper escape.
        self._write_bytes(text.encode("utf-8", "backslashreplace"))

    def _write_bytes(self, data: bytes) -> None:
        if self._terminal and self._bar is not None:
            self._bar.hide()
        with _closed_quietly():
            _stdout().write(data)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        with _closed_quietly():
            _stdout().flush()
        self._flushed = time.monotonic()


def _stdout() -> BinaryIO:
    if sys.stdout is None:
        raise InputError("standard output is closed")
    return sys.stdout.buffer


@contextmanager
def _closed_quietly() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise OutputClosedError from None


def _text_lines(value: Row, indent: str = "") -> Iterator[str]:
    """An object as `name  value` lines; nested objects and lists of objects below their name."""
    width = max((len(name) for name, item in value.items() if not _is_nested(item)), default=0)
    for name, item in value.items():
        if not _is_nested(item):
            yield f"{indent}{name:{width}}  {_text(item)}".rstrip()
            continue
        yield f"{indent}{name}:"
        if isinstance(item, Mapping):
            yield from _text_lines(item, indent + "  ")
        else:
            columns = tuple(dict.fromkeys(key for row in item for key in row))
            yield from (f"{indent}  {line}" for line in _Table(columns, colour=False).lines(item))


def _is_nested(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value)
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(item, Mapping) for item in value)


class _Table:
    """Lines of one table, block by block; a later block is at least as wide as those before."""

    def __init__(self, columns: Sequence[str], *, colour: bool) -> None:
        self._columns = columns
        self._headers = list(columns)
        self._colour = colour
        self._numbers: set[str] | None = None

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """The lines of a block of rows; the first block's begin with the header."""
        from tabulate import MIN_PADDING, tabulate

        first = self._numbers is None
        if self._numbers is None:
            self._numbers = {name for name in self._columns if all(_is_number(row.get(name)) for row in rows)}
        text = tabulate(
            [[self._cell(name, row.get(name)) for name in self._columns] for row in rows],
            headers=self._headers,
            tablefmt="simple",
            disable_numparse=True,
            colalign=["right" if name in self._numbers else "left" for name in self._columns],
        )
        header, rule, *body = text.split("\n")
        # Headers that are padded to their column keep its width in the next block.
        widths = (len(dashes) - MIN_PADDING for dashes in rule.split("  "))
        self._headers = [name.ljust(width) for name, width in zip(self._columns, widths, strict=True)]
        if not first:
            return [line.rstrip() for line in body]
        if self._colour:
            header = f"\x1b[1m{header}\x1b[0m"
        return [line.rstrip() for line in (header, rule, *body)]

    def _cell(self, name: str, value: object) -> str:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = ", ".join(value)
        text = _cut(escape(_text(value)))
        if self._colour and name == "severity" and text in _SEVERITY_COLOURS:
            return f"\x1b[{_SEVERITY_COLOURS[text]}m{text}\x1b[0m"
        return text


def _cut(text: str) -> str:
    """`text`, at most CELL_WIDTH columns wide; Chinese characters are two columns wide."""
    if text.isascii():
        return text if len(text) <= CELL_WIDTH else text[: CELL_WIDTH - 1] + "…"
    # tabulate aligns by the same widths.
    from wcwidth import wcwidth

    width = end = 0
    for index, character in enumerate(text):
        width += max(wcwidth(character), 0)
        if width > CELL_WIDTH:
            return text[:end] + "…"
        if width < CELL_WIDTH:
            end = index + 1
    return text


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, SupportsInt) and not isinstance(value, bool))
