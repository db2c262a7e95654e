"""The commands in help order: each is the function of that name in the file of that name."""

from __future__ import annotations

COMMANDS: tuple[str, ...] = (
    "info",
    "dump",
    "lookup",
    "tail",
    "verify",
    "recover",
    "rebuild",
    "diff",
    "expire",
    "append",
    "deliver",
    "export",
    "copy",
    "stats",
    "spark_scan",
    "problems",
)

ALIASES: dict[str, str] = {"spark": "spark_scan"}
"""Other names of commands; the help does not list them."""
