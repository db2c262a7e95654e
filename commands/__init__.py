"""The commands in the order of the help: each is a function, in the file of the same name."""

from __future__ import annotations

GROUPS: dict[str, tuple[str, ...]] = {
    "Look": ("info", "browse", "dump", "lookup", "tail", "stats", "sql", "report"),
    "Check": ("doctor", "verify", "diff", "bundle"),
    "Repair and clean up": ("recover", "rebuild", "reset_offset", "expire"),
    "Write messages": ("append", "deliver"),
    "Get messages out": ("export", "copy", "spark_scan"),
    "Prepare a start": ("warm",),
    "Serve and replicate": ("serve", "receive", "send_log"),
    "Explain": ("problems", "help", "completion"),
}
"""The commands by purpose, as the help shows them."""
COMMANDS: tuple[str, ...] = tuple(name for names in GROUPS.values() for name in names)

ALIASES: dict[str, str] = {"spark": "spark_scan"}
"""Other names of commands; the help does not list them."""

OPTION_ALIASES: dict[str, dict[str, str]] = {
    "lookup": {"--limit": "--max"},
    "export": {"--fields": "--columns"},
    "deliver": {"--now": "--at"},
}
"""By command, names that its options have in other commands, or had before; the help does not list them."""
