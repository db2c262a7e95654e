"""`rmqtool problems`: what the codes of findings mean."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqtool.commands import options
from rmqtool.errors import EXIT_OK, UsageError
from rmqtool.output import Output
from rmqtool.problems import BY_CODE, PROBLEMS

COLUMNS = ("problem", "name", "severity", "message", "broker", "repair", "source")
TABLE_COLUMNS = ("problem", "severity", "message", "broker")

Code = Annotated[
    list[str] | None, typer.Option("--code", metavar="CODE", help="Only this code, as CL21 (repeatable).")
]


def problems(code: Code = None, format: options.RowFormat = None, fields: options.Fields = None) -> int:
    """Explain the codes of findings: what is wrong, what the broker does with it, what mends it.

    The same table as rmqtool-problems(7). With --code, one code is shown in full.
    """
    output = Output(format=format, fields=fields)
    unknown = [name for name in code or () if name.upper() not in BY_CODE]
    if unknown:
        raise UsageError(f"there is no problem {unknown[0]!r}", hint="rmqtool problems lists all codes")
    chosen = [BY_CODE[name.upper()] for name in code] if code else PROBLEMS
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
    if code and format is None and fields is None:
        for row in rows:
            Output(format="text").write_object(row)
        return EXIT_OK
    output.write_rows(rows, COLUMNS, TABLE_COLUMNS)
    return EXIT_OK
