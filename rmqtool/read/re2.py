r"""A regular expression over bytes, as Python's `re` takes it apart, in the syntax of RE2.

RE2 searches as fast as it reads, whatever the pattern is, but it has no look-around, no references to groups
and no repeats that keep what they took. Such a part is replaced by what finds it and more, so that RE2 misses
no match: `Re2Pattern.is_exact` is whether it finds the same. Every byte stands for a character of Latin-1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rmqtool.lazy_pattern import pattern

_CATEGORIES = {"DIGIT": pattern(rb"\d"), "SPACE": pattern(rb"\s"), "WORD": pattern(rb"\w")}
_NO_MOST = (1 << 32) - 1  # re._constants.MAXREPEAT
_REPEATS_MAX = 1000  # of RE2
_NOTHING = r"(?:\z[\x00-\xff])"
_ANYTHING = r"[\x00-\xff]*"
_PLACES = {
    "AT_BEGINNING_STRING": r"\A", "AT_END_STRING": r"\z", "AT_BOUNDARY": r"\b", "FAILURE": _NOTHING,
}  # fmt: skip


class Re2Pattern(NamedTuple):
    """What RE2 is asked for.

    Attributes:
        text: the pattern in the syntax of RE2.
        is_exact: whether RE2 finds it in the same bytes as `re`; it may find it in others too if not.
    """

    text: str
    is_exact: bool


def in_re2(items: Sequence[tuple[Any, Any]], flags: int) -> Re2Pattern:
    """A pattern in the syntax of RE2.

    Args:
        items: the pattern from `re._parser`, of bytes.
        flags: of the pattern, without re.LOCALE.
    """
    writer = _Writer()
    text = writer.sequence(items, flags, ends=True)
    return Re2Pattern(text, writer.is_exact)


class _Writer:
    """Writes one pattern; `is_exact` turns False with the first part that RE2 does not have."""

    def __init__(self) -> None:
        self.is_exact = True

    def sequence(self, items: Sequence[tuple[Any, Any]], flags: int, *, ends: bool) -> str:
        """Items one after the other; `ends` is whether the pattern ends with them."""
        last = len(items) - 1
        return "".join(
            self._item(item, flags, ends=ends and place == last) for place, item in enumerate(items)
        )

    def _item(self, item: tuple[Any, Any], flags: int, *, ends: bool) -> str:
        name, argument = item[0].name, item[1]
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return _set(name, argument, flags)
        if name == "AT":
            return self._place(argument.name, flags, ends=ends)
        if name == "SUBPATTERN":
            _, added, removed, inner = argument
            return f"(?:{self.sequence(inner, (flags | added) & ~removed, ends=ends)})"
        if name == "BRANCH":
            return f"(?:{'|'.join(self.sequence(each, flags, ends=ends) for each in argument[1])})"
        if name in ("MAX_REPEAT", "MIN_REPEAT"):  # which match is found first does not matter here
            return self._repeat(argument, flags)
        self.is_exact = False
        if name == "POSSESSIVE_REPEAT":
            return self._repeat(argument, flags)
        if name == "ATOMIC_GROUP":
            return f"(?:{self.sequence(argument, flags, ends=False)})"
        return "" if name in ("ASSERT", "ASSERT_NOT") else _ANYTHING

    def _repeat(self, repeat: tuple[int, int, Sequence[tuple[Any, Any]]], flags: int) -> str:
        low, high, items = repeat
        if low > _REPEATS_MAX or _REPEATS_MAX < high != _NO_MOST:
            self.is_exact = False
        most = "" if high > _REPEATS_MAX else high
        return f"(?:{self.sequence(items, flags, ends=False)}){{{min(low, _REPEATS_MAX)},{most}}}"

    def _place(self, name: str, flags: int, *, ends: bool) -> str:
        if name in _PLACES:
            return _PLACES[name]
        if name == "AT_BEGINNING":
            return "(?m:^)" if flags & re.MULTILINE else r"\A"
        if name == "AT_END" and flags & re.MULTILINE:
            return "(?m:$)"
        if name == "AT_END" and ends:
            return r"\n?\z"
        self.is_exact = False
        return ""


def _set(name: str, argument: Any, flags: int) -> str:
    """An item that stands for one byte."""
    wanted = {byte for byte in range(256) if _is_in(name, argument, byte, flags)}
    if not wanted:
        return _NOTHING
    firsts = sorted(byte for byte in wanted if byte - 1 not in wanted)
    lasts = sorted(byte for byte in wanted if byte + 1 not in wanted)
    ranges = zip(firsts, lasts, strict=True)
    return "[" + "".join(rf"\x{first:02x}-\x{last:02x}" for first, last in ranges) + "]"


def _is_in(name: str, argument: Any, byte: int, flags: int) -> bool:
    """Whether an item that stands for one byte stands for this one."""
    one = bytes([byte])
    cases = {byte, *one.lower(), *one.upper()} if flags & re.IGNORECASE else {byte}
    if name == "LITERAL":
        return argument in cases
    if name == "NOT_LITERAL":
        return argument not in cases
    if name == "ANY":
        return bool(flags & re.DOTALL) or one != b"\n"
    if name == "RANGE":
        return any(argument[0] <= each <= argument[1] for each in cases)
    if name == "CATEGORY":
        kind, is_not = argument.name.removeprefix("CATEGORY_").removeprefix("NOT_"), "_NOT_" in argument.name
        return (_CATEGORIES[kind].match(one) is not None) != is_not
    parts = [(part.name, value) for part, value in argument if part.name != "NEGATE"]
    return any(_is_in(*part, byte, flags) for part in parts) == (len(parts) == len(argument))
