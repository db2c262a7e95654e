"""What people type instead of a command, an option or a page, and what leads them on.

These are the words of other tools (`restore`, `grep`, `--dry-run`) and of trouble (`lost`, `full`).
"""

from __future__ import annotations

_COMMANDS: tuple[tuple[str, str], ...] = (
    ("undo restore", "rmqtool recover STORE --undo BACKUP"),
    ("repair fix", "rmqtool recover STORE"),
    ("check", "rmqtool doctor STORE, or rmqtool verify STORE"),
    ("delete clean", "rmqtool expire STORE"),
    ("backup", "rmqtool copy STORE --output NEW; recover and rebuild keep a backup themselves"),
    ("merge", "rmqtool diff STORE OTHER shows how to append the messages that one lacks"),
    ("offsets groups", "rmqtool stats STORE --by group"),
    ("list topics", "rmqtool info STORE"),
    ("show cat", "rmqtool dump STORE"),
    ("grep", "rmqtool dump STORE --grep TEXT"),
    ("search find", "rmqtool lookup STORE KEY, or rmqtool dump STORE --grep TEXT"),
    ("start crash crashed", "rmqtool recover STORE shows what a start of a broker would do, and a repair"),
    ("broken corrupt damaged", "rmqtool doctor STORE says what is wrong, and what to run next"),
    ("lost missing", "for a message: rmqtool lookup STORE KEY --trace; for a store: rmqtool doctor STORE"),
    ("lag", "rmqtool stats STORE --by group"),
    ("slow", "rmqtool doctor STORE; for slow consumers: rmqtool stats STORE --by group"),
    ("full space disk", "rmqtool expire STORE shows which files can go"),
)
"""Words, and what leads on here."""

_OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("dump", "--tail", "rmqtool tail STORE --last N shows the newest messages"),
    ("dump tail stats export copy sql spark-scan verify", "--max", "--limit N is its name here"),
    (
        "tail",
        "extra argument",
        "it takes one STORE; -f is --follow here: --format-string FORMAT is the format of dump -f FORMAT",
    ),
    ("export", "'--format'", "--output-format names the format of the files; --format that of the report"),
    ("stats lookup tail verify", "--output", "the rows go to standard output: --format csv > FILE"),
    (
        "recover",
        "'--undo' requires",
        "--undo BACKUP: the folder STORE.rmqtool-backup-TIME next to the store",
    ),
    (
        "recover rebuild reset-offset expire deliver",
        "--dry-run",
        "without --apply the command shows what it would do, and changes nothing",
    ),
)
"""Commands, a part of the message with which they refuse an option, and what to use instead."""


def command_for(word: str) -> str | None:
    """Say which command does what `word` asks for; None if no command has that name in other tools."""
    return next((other for words, other in _COMMANDS if word.lower() in words.split()), None)


def instead(command: str, refusal: str) -> str | None:
    """Say what to use instead of what is refused; None if unknown.

    Args:
        command: the name of the command that refuses it; `rmqtool` for a word that is not a command.
        refusal: the message, as far as it names the word or the option.
    """
    if command == "rmqtool":
        return command_for(refusal.split("'")[1]) if "'" in refusal else None
    ways = (other for names, wrong, other in _OPTIONS if command in names.split() and wrong in refusal)
    return next(ways, None)
