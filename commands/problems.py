"""`rmqtool problems`: the meaning of the codes of findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from rmqtool.commands import options
from rmqtool.commands.finding_report import wrapped
from rmqtool.commands.groups import Only, with_groups
from rmqtool.errors import EXIT_OK, UsageError
from rmqtool.problems import BY_CODE, PROBLEMS

COLUMNS = ("problem", "name", "severity", "message", "broker", "repair", "source")
TABLE_COLUMNS = ("problem", "severity", "message", "broker")

_WIDTH = 80  # columns, however wide the terminal is
_LABEL = 10

Codes = Annotated[
    list[str] | None, typer.Argument(metavar="[CODE]...", help="Show only these codes, for example CL21.")
]
Code = Annotated[
    list[str] | None,
    typer.Option("--code", metavar="CODE", help="Show only this code, as the argument does (repeatable)."),
]


@with_groups
def problems(
    *,
    codes: Codes = None,
    code: Code = None,
    shown: Annotated[options.RowOutput, Only("format json fields")],
) -> int:
    """Explain the codes of findings.

    Explains for each code what is wrong, what the broker does, and how to repair it. Shows the same
    table as rmqtool-problems(7). Codes given as arguments are shown in full.

    Exits with 0, or with 2 for a usage error, such as a code that does not exist.
    """
    requested = [*(codes or ()), *(code or ())]
    unknown = [name for name in requested if name.upper() not in BY_CODE]
    if unknown:
        raise UsageError(f"unknown problem code {unknown[0]!r}", hint="rmqtool problems lists all codes")
    chosen = [BY_CODE[name.upper()] for name in requested] if requested else PROBLEMS
    rows = [
        {
            "problem": problem.code,
            "name": problem.name,
            "severity": problem.severity,
            "message": problem.message,
            "broker": problem.broker,
            "repair": problem.repair,
            "source": problem.source,
        }
        for problem in chosen
    ]
    writer = shown.writer()
    if requested and writer.shows_text and shown.fields is None:
        for number, row in enumerate(rows):
            writer.write_object(row, [*([""] if number else []), *_lines(row)])
        return EXIT_OK
    writer.write_rows(rows, COLUMNS, TABLE_COLUMNS, _block)
    return EXIT_OK


def _block(row: Mapping[str, object], width: int) -> Iterator[str]:
    """Yield the lines of one of many codes: severity, code and name; what is wrong; what a broker does."""
    yield f"{str(row['severity']).upper()}: {row['problem']} {row['name']}"
    yield from wrapped(f"  {row['message']}", width, indent=2)
    reaction = BY_CODE[str(row["problem"])].reaction
    yield from wrapped(f"{'  broker':<{_LABEL}}{reaction}", width, indent=_LABEL)


def _lines(row: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines of one code: a label and its text, in at most 80 columns."""
    from textwrap import wrap

    for name, value in row.items():
        text = "none" if value is None else str(value)
        if name == "broker":
            text = BY_CODE[str(row["problem"])].reaction
        elif name == "repair":
            text = BY_CODE[str(row["problem"])].remedy or "none"
        for number, piece in enumerate(wrap(text, _WIDTH - _LABEL, break_on_hyphens=False)):
            yield f"{name if number == 0 else '':<{_LABEL}}{piece}"
