"""How `rmqtool stats` shows its sections: rows of one, several as tables, lines or one object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rmqtool.errors import UsageError
from rmqtool.output import Output

if TYPE_CHECKING:
    from rmqtool.report.stats.overview import Overview, Section

BAR_WIDTH = 20
ROWS_SHOWN = 20
"""Rows of a section in a table that stands among others."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MEASURED = {"messages": "bytes", "lag": "lag_messages", "delayed": "count", "transactions": "count"}
_TITLES = {
    "messages": "Messages",
    "lag": "Lag of consumer groups",
    "largest": "Largest messages",
    "duplicates": "Unique keys stored more than once",
    "delayed": "Pending delayed messages",
    "transactions": "Transactions",
}

Row = dict[str, Any]


def write_sections(writer: Output, found: Overview) -> None:
    """Writes all sections; with one section its rows in any format.

    Raises:
        UsageError: csv or tsv for several sections.
    """
    is_table = writer.chosen_format == "table"
    if len(found.sections) == 1:
        section = found.sections[0]
        rows = _with_bars(section) if is_table else section.rows
        if not writer.write_rows(rows, section.fields, _headings(section)):
            writer.note(f"rmqtool: {_none_text(section)}")
        return
    if writer.chosen_format in ("csv", "tsv"):
        raise UsageError("csv and tsv can show only one section", hint="request one section, or use jsonl")
    if writer.fields is not None:
        raise UsageError("--fields can be used with only one section", hint="request one section")
    if is_table:
        writer.write_object({}, _tables(writer, found))
    elif writer.chosen_format == "json":
        whole: Row = {"as_of": found.as_of} if found.as_of is not None else {}
        writer.write_object(whole | {section.name: list(section.rows) for section in found.sections})
    else:
        names = dict.fromkeys(name for section in found.sections for name in section.fields)
        lines = ({"section": section.name, **row} for section in found.sections for row in section.rows)
        writer.write_rows(lines, ("section", *names))


def _tables(writer: Output, found: Overview) -> Iterator[str]:
    for number, section in enumerate(found.sections):
        rows = list(_with_bars(section))
        if number:
            yield ""
        yield f"{_TITLES[section.name]}:" if rows else _none_text(section)
        yield from writer.table_lines(rows[:ROWS_SHOWN], _headings(section))
        if len(rows) > ROWS_SHOWN:
            yield f"and {len(rows) - ROWS_SHOWN} more"


def _none_text(section: Section) -> str:
    """Say that a section has no rows. A store without offsets does not show that there is no lag."""
    if section.name == "lag":
        return "no consumer group has offsets here"
    return f"{_TITLES[section.name]}: none"


def _headings(section: Section) -> Sequence[str]:
    """The columns of a table: that with the bars stands first among the values."""
    name = _MEASURED.get(section.name)
    if name is None:
        return section.table_fields
    place = section.table_fields.index(name) + 1
    return (*section.table_fields[:place], "share", *section.table_fields[place:])


def _with_bars(section: Section) -> Iterable[Row]:
    """The rows for a table: with bars as long as their part of the largest, and rounded numbers."""
    name = _MEASURED.get(section.name)
    if name is None:
        yield from section.rows
        return
    rows = list(section.rows)
    most = max((row[name] or 0 for row in rows), default=0)
    for row in rows:
        yield _rounded(row) | {"share": bar(row[name] or 0, most)}


def bar(value: int, most: int) -> str:
    """A bar of up to BAR_WIDTH characters; empty for 0, and never so for more."""
    if value <= 0 or most <= 0:
        return ""
    eighths = max(round(value / most * BAR_WIDTH * 8), 1)
    return _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _rounded(row: Row) -> Row:
    return {name: round(value, 1) if isinstance(value, float) else value for name, value in row.items()}
