"""Command lines in texts, to be copied into a shell."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rmqtool.lazy_pattern import pattern

# C0 and C1 controls, DEL, line separators, lone surrogates, and the marks that change the direction of
# writing.
UNPRINTABLE = pattern("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that are escaped before they are shown."""
_NOT_PLAIN = pattern(r"[^ -&(-\[\]-~]")


def command_line(*words: object) -> str:
    """Return the words as a shell reads them. What would be escaped when it is shown is written as $'...'."""
    return " ".join(_quoted(str(word)) for word in words)


def on_store(root: object, command: str, *words: str) -> str:
    """Return the line that runs a command of rmqtool on the store at `root`."""
    return command_line("rmqtool", command, argument(root), *words)


@runtime_checkable
class _Typed(Protocol):
    """A value that is shown in one way and typed in another: a path at a URL that has options."""

    def typed(self) -> str:
        """Return its text in a command line."""
        ...


def typed(value: object) -> str:
    """Return the text of a value in a command line."""
    return value.typed() if isinstance(value, _Typed) else str(value)


def argument(value: object) -> str:
    """Return the text of an argument; no program takes it for an option."""
    text = typed(value)
    return f"./{text}" if text.startswith("-") else text


def _quoted(word: str) -> str:
    if UNPRINTABLE.search(word) is None:
        from shlex import quote  # not needed by most commands

        return quote(word)
    return "$'" + _NOT_PLAIN.sub(lambda match: _escaped(match[0]), word) + "'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    # Bytes that are not UTF-8 come from a file name as surrogates of this range; others from a topic's name.
    errors = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors))
