"""`rmqtool problems`: the meaning of the codes of findings, and of the names that doctor has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated

import typer

from rmqtool.commands import options
from rmqtool.commands.finding_report import wrapped
from rmqtool.commands.groups import Only, with_groups
from rmqtool.errors import EXIT_OK, UsageError
from rmqtool.problems import BY_CODE, PROBLEMS, Problem

COLUMNS = ("problem", "name", "severity", "message", "broker", "repair", "source")
TABLE_COLUMNS = ("problem", "severity", "message", "broker")

_WIDTH = 80  # columns, however wide the terminal is
_LABEL = 10

Codes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CODE]...", help="Show only these codes, or names of doctor: CL21, start_fails."),
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
    table as rmqtool-problems(7). Codes given as arguments are shown in full, and so are the names that doctor
    gives to what is not the damage of one file, such as start_fails.

    Exits with 0, or with 2 for a usage error, such as a code that does not exist.
    """
    requested = [*(codes or ()), *(code or ())]
    rows = list(map(_requested, requested)) if requested else list(map(_row, PROBLEMS))
    writer = shown.writer()
    if requested and writer.shows_text and shown.fields is None:
        for number, row in enumerate(rows):
            writer.write_object(row, [*([""] if number else []), *_lines(row)])
        return EXIT_OK
    writer.write_rows(rows, COLUMNS, TABLE_COLUMNS, _block)
    return EXIT_OK


def _requested(name: str) -> dict[str, str | None]:
    """Return the row of a code, or of a name of doctor. Raises UsageError for another one."""
    from rmqtool.report.doctor.names import NAMES

    if name.upper() in BY_CODE:
        return _row(BY_CODE[name.upper()])
    found = NAMES.get(name.lower())
    if found is None:
        near = get_close_matches(name.lower(), NAMES) or get_close_matches(name.upper(), BY_CODE)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise UsageError(f"unknown problem code {name!r}", hint=f"rmqtool problems lists all codes{hint}")
    return {
        "problem": found.name,
        "name": found.name.replace("_", " "),
        "severity": found.severity,
        "message": found.message,
        "broker": found.cost,
        "repair": found.cure,
        "source": "rmqtool-doctor(1)",
    }


def _row(problem: Problem) -> dict[str, str | None]:
    return {
        "problem": problem.code,
        "name": problem.name,
        "severity": problem.severity,
        "message": problem.message,
        "broker": problem.broker,
        "repair": problem.repair,
        "source": problem.source,
    }


def _block(row: Mapping[str, object], width: int) -> Iterator[str]:
    """Yield the lines of one of many codes: severity, code and name; what is wrong; what a broker does."""
    yield f"{str(row['severity']).upper()}: {row['problem']} {row['name']}"
    yield from wrapped(f"  {row['message']}", width, indent=2)
    reaction = BY_CODE[str(row["problem"])].reaction
    yield from wrapped(f"{'  broker':<{_LABEL}}{reaction}", width, indent=_LABEL)


def _lines(row: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines of one code: a label and its text, in at most 80 columns."""
    from textwrap import wrap

    problem = BY_CODE.get(str(row["problem"]))
    for name, value in row.items():
        text = "none" if value is None else str(value)
        if name == "broker":
            text = text if problem is None else problem.reaction
        elif name == "repair" and problem is not None:
            text = problem.remedy or "none"
        label = {"broker": "cost", "repair": "do"}.get(name, name) if problem is None else name
        for number, piece in enumerate(wrap(text, _WIDTH - _LABEL, break_on_hyphens=False)):
            yield f"{label if number == 0 else '':<{_LABEL}}{piece}"
