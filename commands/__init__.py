"""The commands in help order: each is the function of that name in the file of that name."""

from __future__ import annotations

COMMANDS: tuple[str, ...] = (
    "info",
    "dump",
    "verify",
    "recover",
    "rebuild",
    "diff",
    "expire",
    "append",
    "deliver",
    "problems",
)
