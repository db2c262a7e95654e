r"""Patterns that bodies contain: regular expressions over bytes, as Python's `re` reads them.

The pattern is encoded as UTF-8: `.` is one byte, `\w` an ASCII letter, digit or underscore, and `(?i)` at
the beginning ignores the case of ASCII letters. Most patterns are plain text, without a sign that means
something else: for these `literal` has the text, which compiled code finds.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

from rmqtool.errors import FormatError, UsageError
from rmqtool.formats import body
from rmqtool.formats.message import COMPRESSED, Message
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern

# `{` begins a repetition only before numbers; `}` and `]` that close nothing mean themselves.
_LITERAL = pattern(r"(?:[^\\.^$*+?{\[|()]|\{(?!\d*,?\d*\})|\\[^A-Za-z0-9])*", re.DOTALL)
_ESCAPED = pattern(r"\\(.)", re.DOTALL)


@lru_cache(maxsize=16)
def _compiled(text: str) -> re.Pattern[bytes]:
    with warnings.catch_warnings():  # on what a later version of Python might read otherwise
        warnings.simplefilter("ignore")
        return re.compile(text.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True)
class BodyPattern:
    """A pattern that selects messages by their bodies.

    Attributes:
        text: the pattern.

    Raises:
        UsageError: it is empty, or no regular expression.
    """

    text: str

    def __post_init__(self) -> None:
        """Check the pattern."""
        if not self.text:
            raise UsageError("the pattern is empty", hint="every body contains the empty text")
        try:
            _compiled(self.text)
        except (re.error, OverflowError, RecursionError, UnicodeEncodeError) as error:
            raise UsageError(
                f"the pattern cannot be read: {error}",
                hint="put a backslash before signs that mean themselves",
            ) from None

    @property
    def literal(self) -> bytes | None:
        """The bytes that a body must contain, if that is all the pattern says."""
        if not _LITERAL.fullmatch(self.text):
            return None
        return _ESCAPED.sub(r"\1", self.text).encode("utf-8", "surrogateescape")

    def found_in(self, data: bytes | memoryview) -> bool:
        """Whether the body, as the application sees it, contains the pattern."""
        return _compiled(self.text).search(data) is not None

    def span_in(self, text: str) -> tuple[int, int] | None:
        """Where the first match in a body, as text, begins and ends, in characters; None without a match."""
        data = text.encode("utf-8", "surrogateescape")
        found = _compiled(self.text).search(data)
        if found is None:
            return None
        start, end = (len(data[:place].decode("utf-8", "ignore")) for place in found.span())
        return start, end

    def found_in_stored(self, stored: bytes | memoryview, sys_flag: int) -> bool:
        """Whether a stored body contains the pattern; one that cannot be decompressed is searched as stored.

        Raises:
            MissingCodecError: the library for its compression is not installed.
        """
        if sys_flag & COMPRESSED:
            try:
                return self.found_in(body.decompress(bytes(stored), sys_flag))
            except FormatError:
                pass  # `status` shows that, and what is readable counts
        return self.found_in(stored)

    def matches(self, message: Message) -> bool:
        """Whether the body of a message contains the pattern; raises as `found_in_stored`."""
        return self.found_in_stored(message.body, message.sys_flag)
