"""Splits the text of a filter into tokens, with the longest match at each place.

Source: the token manager of SelectorParser.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rmqtool.errors import FilterError

WORDS_4_9 = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})
WORDS = WORDS_4_9 | {"CONTAINS", "STARTSWITH", "ENDSWITH"}
"""Reserved words, in any case; 4.9 does not know the last three."""

# A line comment needs a line end: two dashes in the last line are two signs.
_SKIPPED = re.compile(
    r"(?:[ \t\n\r\f]+|--[^\n\r]*[\n\r]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*", re.ASCII
)  # fmt: skip
_TOKEN = re.compile(
    r"""(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
      | (?P<decimal>0|[1-9][0-9]*[lL]?)
      | (?P<string>'(?:''|[^'])*')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<mark><>|<=|>=|[=<>(),+-])""",
    re.ASCII | re.VERBOSE,
)


class Token(NamedTuple):
    """One token: `kind` is a reserved word, a mark, or float, decimal, string, name or end."""

    kind: str
    text: str
    position: int


class Tokens:
    """The tokens of a text, with one token of lookahead (`next`)."""

    def __init__(self, text: str, words: frozenset[str]) -> None:
        self._text = text
        self._words = words
        self._end = 0
        self.next = self._read()

    def _read(self) -> Token:
        skipped = _SKIPPED.match(self._text, self._end)
        start = self._end if skipped is None else skipped.end()
        if start == len(self._text):
            return Token("end", "", start)
        match = _TOKEN.match(self._text, start)
        if match is None or match.lastgroup is None:
            unclosed = self._text[start] == "'"
            problem = "the string does not end" if unclosed else f"{self._text[start]!r} has no meaning"
            hint = "the comparisons are = <> < <= > >=" if self._text[start] in "!~&|" else None
            raise FilterError(problem, position=start, hint=hint)
        self._end, kind, text = match.end(), match.lastgroup, match[0]
        if kind == "mark" or (kind == "name" and text.upper() in self._words):
            kind = text.upper()
        return Token(kind, text, start)

    def take(self) -> Token:
        """Return the next token and read the one after it."""
        taken = self.next
        self.next = self._read()
        return taken

    def expect(self, kind: str, what: str) -> Token:
        """Take the next token. Raises FilterError, saying that `what` is expected, if it is not `kind`."""
        if self.next.kind != kind:
            raise self.error(f"{what} is expected")
        return self.take()

    def error(self, problem: str, hint: str | None = None) -> FilterError:
        """An error at the next token."""
        found = "the text ends" if self.next.kind == "end" else f"found {self.next.text[:40]}"
        return FilterError(f"{problem}, {found}", position=self.next.position, hint=hint)
