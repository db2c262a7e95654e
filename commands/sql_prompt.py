"""The prompt of `rmqtool sql`: reads lines from a terminal, and runs a query at its semicolon."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rmqtool.errors import RmqtoolError
from rmqtool.lazy_pattern import pattern
from rmqtool.terminal import print_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rmqtool.message.rows import Row
    from rmqtool.output import Output

_FIRST, _NEXT = "sql> ", "...> "
_HELP = (
    "A query ends with a semicolon. Ctrl-C stops it, Ctrl-D ends the prompt.",
    ".tables         list the tables",
    ".schema [TABLE] show the columns of all tables, or of one",
    ".quit           end",
)
_QUOTED = pattern(r"""--[^\n]*|/\*.*?\*/|'(?:''|[^'])*'|"(?:""|[^"])*\"""", re.DOTALL)


def prompt(run: Callable[[str], int], writer: Output, limit: int) -> None:
    """Read and run queries until the end of the input or .quit. Errors of queries are shown.

    `run` shows the rows of a query, `limit` at most, and returns how many.
    """
    try:
        import readline  # noqa: F401 - gives `input` a history of this run, and keys to edit
    except ImportError:
        pass
    writer.note("rmqtool: .help shows the commands of this prompt")
    for text in statements(input):
        try:
            if text.startswith("."):
                if not command(writer, text):
                    return
            elif run(text) == limit:
                writer.note(f"rmqtool: these are the first {limit} rows; --limit shows more")
        except RmqtoolError as error:
            print_error(f"rmqtool: {error.in_one_line}")
            if error.hint:
                print_error(f"  {error.hint}")
        except KeyboardInterrupt:
            print_error("rmqtool: interrupted")


def statements(read: Callable[[str], str]) -> Iterator[str]:
    """The queries, and the lines with commands, that `read` gives line by line, until its EOFError.

    Ctrl-C while a line is typed discards the query so far.
    """
    lines: list[str] = []
    while True:
        try:
            line = read(_NEXT if lines else _FIRST)
        except KeyboardInterrupt:
            lines = []
            print_error("")
            continue
        except EOFError:
            if "\n".join(lines).strip():
                yield "\n".join(lines)
            return
        if not lines and line.strip().startswith("."):
            yield line.strip()
            continue
        if not lines and not line.strip():
            continue
        lines.append(line)
        text = "\n".join(lines)
        if is_complete(text):
            lines = []
            yield text


def script(text: str) -> Iterator[str]:
    """The parts of a text without a prompt: lines with commands, and what stands between them."""
    lines = iter(text.splitlines())

    def read(_: str) -> str:
        for line in lines:
            return line
        raise EOFError

    yield from statements(read)


def is_complete(text: str) -> bool:
    """Whether a text ends with a semicolon outside of quotes and comments."""
    rest = _QUOTED.sub(" ", text)
    return rest.rstrip().endswith(";") and "'" not in rest and '"' not in rest and "/*" not in rest


def command(writer: Output, text: str) -> bool:
    """Run a command such as .tables; returns whether more follows."""
    name, _, argument = text.partition(" ")
    if name in (".quit", ".exit"):
        return False
    if name == ".tables":
        writer.write_rows(table_rows(), ("table", "columns", "row"))
    elif name == ".schema":
        rows = list(column_rows(argument.strip()))
        if rows:
            writer.write_rows(rows, ("table", "column", "type", "meaning"))
        else:
            print_error(f"rmqtool: there is no table {argument.strip()}; .tables lists them")
    else:
        if name != ".help":
            print_error(f"rmqtool: unknown command {name}")
        writer.write_lines(_HELP)
    return True


def table_rows() -> Iterator[Row]:
    """The tables, each with the number of its columns and what its rows are."""
    from rmqtool.report.sql.tables import COLUMNS_OF, ROWS

    for view, columns in COLUMNS_OF.items():
        yield {"table": view, "columns": len(columns), "row": ROWS[view]}


def column_rows(table: str) -> Iterator[Row]:
    """The columns of a table, of all tables for an empty name."""
    from rmqtool.report.sql.tables import COLUMNS_OF

    for view, columns in COLUMNS_OF.items():
        if table.rstrip(";").lower() in ("", view):
            for each in columns:
                yield {
                    "table": view,
                    "column": each.spark_name,
                    "type": each.arrow_type,
                    "meaning": each.spark_text,
                }
