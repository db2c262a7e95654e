r"""Patterns that bodies contain: regular expressions over bytes, as Python's `re` reads them.

The pattern is encoded as UTF-8: `.` is one byte, `\w` an ASCII letter, digit or underscore, and `(?i)` at
the beginning ignores the case of ASCII letters. Most patterns are plain text, or have a text that every
match contains: `required` is that text, which compiled code looks for. RE2, which is compiled too, looks for
the pattern in what has it: `re2` spells it for RE2. `re` decides what is then left.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar

from rmqtool.errors import FormatError, UsageError
from rmqtool.formats import body
from rmqtool.formats.message import COMPRESSED, Message
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.re2 import Re2Pattern, in_re2

_Read = TypeVar("_Read")


@lru_cache(maxsize=16)
def _compiled(text: str) -> re.Pattern[bytes]:
    return _quietly(re.compile, text)


def _parsed(text: str) -> Any:
    """The pattern as `re` takes it apart before it compiles it."""
    return _quietly(import_module("re._parser").parse, text)


def _quietly(read: Callable[[bytes], _Read], text: str) -> _Read:
    """Read a pattern without the warnings on what a later version of Python might read otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(text.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True)
class Required:
    """A text that is in every match of a pattern.

    Attributes:
        text: its bytes, at least one.
        ignores_case: ASCII letters of either case are meant.
        is_all: whatever contains the text matches.
    """

    text: bytes
    ignores_case: bool
    is_all: bool


@lru_cache(maxsize=16)
def _required(text: str) -> Required | None:
    """The longest text that is in every match; None if there is none, or if the locale counts."""
    parsed = _parsed(text)
    if parsed.state.flags & re.LOCALE:
        return None
    longest, run, is_all = b"", b"", True
    for each in _literals(parsed):
        run = b"" if each is None else run + bytes([each])
        longest = max(longest, run, key=len)
        is_all &= each is not None
    return Required(longest, bool(parsed.state.flags & re.IGNORECASE), is_all) if longest else None


def _literals(items: Iterable[tuple[Any, Any]]) -> Iterator[int | None]:
    """The bytes that a match has one after the other; None where something else may be between them.

    `items` are those of `re._parser`. An item that is not known here only ends a text.
    """
    for operation, argument in items:
        name = operation.name
        if name == "LITERAL":
            yield argument
        elif name == "SUBPATTERN" and not (argument[1] | argument[2]) & (re.IGNORECASE | re.LOCALE):
            yield from _literals(argument[3])
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] > 0:  # it is there once at least
            yield None
            yield from _literals(argument[2])
            yield None
        else:
            yield None


@lru_cache(maxsize=16)
def _re2(text: str) -> Re2Pattern | None:
    parsed = _parsed(text)
    flags = parsed.state.flags
    return None if flags & re.LOCALE else in_re2(parsed, flags)


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
    def required(self) -> Required | None:
        """A text that every body with the pattern contains, if one is known."""
        return _required(self.text)

    @property
    def re2(self) -> Re2Pattern | None:
        """The pattern for RE2 over bytes; None if the locale counts."""
        return _re2(self.text)

    def found_in(self, data: bytes | memoryview) -> bool:
        """Whether the body, as the application sees it, contains the pattern."""
        try:
            return _compiled(self.text).search(data) is not None
        except SystemError:  # `re` has a match, and spoiled its groups: those of (?:(a)|b)++ for example
            return True

    def span_in(self, text: str) -> tuple[int, int] | None:
        """Where the first match in a body, as text, begins and ends, in characters.

        None without a match, and for one whose place `re` does not give (see `found_in`).
        """
        data = text.encode("utf-8", "surrogateescape")
        try:
            found = _compiled(self.text).search(data)
        except SystemError:
            return None
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
