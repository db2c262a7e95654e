"""The text of an option -> its value; every error names the option."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC
from typing import TYPE_CHECKING, get_args

from rmqtool import sizes
from rmqtool.errors import FilterError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.times import parse_duration, parse_time

if TYPE_CHECKING:
    from rmqtool.read.filter import Expression


def wrong(name: str, what: str, hint: str | None = None) -> UsageError:
    """The error for a value of the option `name`."""
    return UsageError(f"option {name}: {what}", hint=hint)


def parse_text(name: str, text: str) -> str:
    """Any text but an empty one."""
    if not text.strip():
        raise wrong(name, "it is empty")
    return text.strip()


def parse_single(name: str, text: str) -> tuple[str, ...]:
    """One text, as a list of it; a comma in it means nothing."""
    return (parse_text(name, text),)


def parse_list(name: str, text: str) -> tuple[str, ...]:
    """`a,b`, or a JSON list of texts, for values with commas in them; each once, in order."""
    return tuple(dict.fromkeys(parse_names(name, text)))


def parse_names(name: str, text: str) -> tuple[str, ...]:
    """As `parse_list`, but duplicates stay, so that the caller can report them."""
    parts: object = None
    if text.lstrip().startswith("["):
        try:
            parts = json.loads(text)
        except (ValueError, RecursionError):
            parts = None  # a glob may begin with a bracket
    if not isinstance(parts, list):
        parts = [part.strip() for part in text.split(",")]
    if not all(isinstance(part, str) for part in parts):
        raise wrong(name, "it is not a list of strings")
    found = tuple(part for part in parts if part)
    if not found:
        raise wrong(name, "it is empty")
    return found


def parse_bool(name: str, text: str) -> bool:
    """`true` or `false`."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise wrong(name, f"{text!r} is neither true nor false")
    return word == "true"


def parse_switch(name: str, text: str) -> bool:
    """`on` or `off`."""
    word = text.strip().lower()
    if word not in ("on", "off"):
        raise wrong(name, f"{text!r} is neither on nor off")
    return word == "on"


def parse_number(name: str, text: str) -> int:
    """A whole number, 0 or more, of 63 bits."""
    word = text.strip()
    if not (word.isascii() and word.isdigit()) or len(word) > 19 or int(word) >= 1 << 63:
        raise wrong(name, f"{text!r} is not an integer from 0 to {(1 << 63) - 1}")
    return int(word)


def parse_count(name: str, text: str) -> int:
    """A whole number, 1 or more."""
    value = parse_number(name, text)
    if value < 1:
        raise wrong(name, "it must be 1 or more")
    return value


PARTITIONS_MAX = 100_000
"""More tasks are not planned, nor run, in any time worth waiting for."""


def parse_partitions(name: str, text: str) -> int:
    """A number of partitions."""
    value = parse_count(name, text)
    if value > PARTITIONS_MAX:
        raise wrong(name, f"{value} is more than {PARTITIONS_MAX}")
    return value


def parse_size(name: str, text: str) -> int:
    """Bytes, see `sizes.parse_size`."""
    try:
        return sizes.parse_size(text)
    except UsageError as error:
        raise wrong(name, error.message) from None


def parse_ids(name: str, text: str) -> tuple[int, ...]:
    """Queue ids: `3`, `0-3` or `0-3,7`, each once and in order."""
    try:
        return sizes.parse_queues(",".join(parse_list(name, text)))
    except UsageError as error:
        raise wrong(name, error.message) from None


def parse_moment(name: str, text: str) -> int:
    """A time as `rmqtool.times` knows it, without an offset in UTC; ms since 1970."""
    try:
        return parse_time(text, UTC, time.time_ns() // 1_000_000)
    except UsageError as error:
        raise wrong(name, error.message, error.hint) from None


def parse_regex(name: str, text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise wrong(name, f"{text!r} is not a pattern: {error}") from None
    return text


def parse_filter(name: str, text: str) -> Expression:
    """A filter of properties, as `rmqtool.read.filter` knows it."""
    from rmqtool.read.filter import parse

    try:
        return parse(parse_text(name, text))
    except FilterError as error:
        raise wrong(name, error.message, error.hint) from None


def parse_delay(name: str, text: str) -> int:
    """A time as 30s, 15m or 1h, or a number of ms; in ms."""
    word = text.strip()
    try:
        return int(word) if word.isascii() and word.isdigit() else parse_duration(word)
    except (UsageError, ValueError) as error:
        raise wrong(name, f"{text!r} is not a time like 30s, 15m or 1h") from error


def parse_tags(name: str, text: str) -> tuple[str, ...]:
    """The tags of a `subExpression`: `TagA || TagB`; none for `*`."""
    if text.strip() in ("", "*"):
        return ()
    return tuple(dict.fromkeys(part.strip() for part in text.split("||") if part.strip()))


@dataclass(frozen=True)
class OneOf:
    """A parser of some words, in any case."""

    words: tuple[str, ...]

    def __call__(self, name: str, text: str) -> str:
        """The word as it is spelled here. Raises UsageError, naming the option."""
        for word in self.words:
            if word.lower() == text.strip().lower():
                return word
        raise wrong(name, f"{text!r} is not one of {', '.join(self.words)}")


def one_of(choices: object) -> OneOf:
    """A parser of the words of a Literal."""
    return OneOf(get_args(choices))
