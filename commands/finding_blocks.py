"""Findings as text: a block of lines for each, in which nothing is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rmqtool.lazy_pattern import pattern

_COMMAND = pattern(r"\brmqtool ([a-z-]+) STORE\b")
_LABEL = 10


class FindingBlocks:
    """Makes the block of each finding: severity, code and place; what is wrong; what to do.

    What was said of a problem is not repeated at its other places. `command` returns the command line of a
    command on the store.
    """

    def __init__(self, command: Callable[[str], str]) -> None:
        self._command = command
        self._said: dict[str, str] = {}

    def lines(self, row: Mapping[str, Any], width: int) -> Iterator[str]:
        """Yield the lines for the row of a finding, wrapped at `width` columns."""
        code, message = row["problem"], row["message"]
        is_new = self._said.get(code) != message
        if is_new and self._said:
            yield ""
        place = [row["path"]]
        if row["physical_offset"] is not None:
            place.append(f"offset {row['physical_offset']}")
        if row["length"] is not None:
            place.append(f"{row['length']} bytes")
        yield from wrapped(f"{row['severity'].upper()}: {code} {', '.join(place)}", width, indent=2)
        if is_new:
            yield from wrapped(f"  {message}", width, indent=2)
            if code not in self._said and row["repair"]:
                cure = _COMMAND.sub(lambda found: self._command(found[1]), row["repair"])
                yield from wrapped(f"{'  do':<{_LABEL}}{cure}", width, indent=_LABEL)
        self._said[code] = message


def wrapped(text: str, width: int, *, indent: int) -> list[str]:
    """Return `text` as lines of at most `width` columns, broken between words."""
    from textwrap import wrap

    return wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
