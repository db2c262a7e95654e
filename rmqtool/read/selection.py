"""Selection: which messages a command, a library call or a Spark partition wants.

Frozen and picklable, so that it travels to workers as it is. An empty field selects everything;
several fields must all hold, several values of one field are alternatives. Ranges are half-open:
`since <= time < until`, `from_offset <= physical offset < to_offset`.

`limit` counts messages that match; whoever iterates stops there.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from rmqtool.errors import UsageError
from rmqtool.formats import properties
from rmqtool.formats.message import Message
from rmqtool.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rmqtool.read.body_pattern import BodyPattern
    from rmqtool.read.filter import Expression

TimeField = Literal["store", "born"]
_GLOB = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Selection:
    """The requested messages; all conditions must hold.

    Attributes:
        topics: globs (`*`, `?`, `[...]`; case matters) over the stored topic, one must match.
        exclude_topics: globs, none may match.
        queues: queue ids.
        tags: whole values of the property TAGS.
        keys: a key of the property KEYS, or the value of UNIQ_KEY.
        since: first time that is selected, ms since 1970.
        until: end of the time range, not selected itself, ms since 1970.
        time_field: which timestamp `since` and `until` speak of.
        from_offset: first physical offset that is selected, bytes.
        to_offset: end of the physical offsets, not selected itself, bytes.
        limit: how many messages at most.
        filter: an expression over properties that a broker would find true (`read.filter.parse`).
        grep: a pattern that the body contains once it is decompressed (`read.body_pattern`).

    Raises:
        UsageError: a range that ends before it starts, or a negative limit or offset.
    """

    topics: Collection[str] = ()
    exclude_topics: Collection[str] = ()
    queues: Collection[int] = ()
    tags: Collection[str] = ()
    keys: Collection[str] = ()
    since: int | None = None
    until: int | None = None
    time_field: TimeField = "store"
    from_offset: int | None = None
    to_offset: int | None = None
    limit: int | None = None
    filter: Expression | None = None
    grep: BodyPattern | None = None

    def __post_init__(self) -> None:
        """Refuse what could only select nothing by mistake; make the collections hashable."""
        for name in _COLLECTIONS:
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is a collection of texts, not one text")
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        _check_range("time", self.since, self.until)
        _check_range("offset", self.from_offset, self.to_offset)
        for name in ("from_offset", "to_offset", "limit"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"{name.replace('_', ' ')} {value} is negative")
        if self.time_field not in ("store", "born"):
            raise UsageError(f"time field {self.time_field!r} is neither store nor born")

    @property
    def selects_all(self) -> bool:
        """True when every message matches (a limit may still cut the list short)."""
        return not self.looks_inside and self.from_offset is None and self.to_offset is None

    @property
    def looks_inside(self) -> bool:
        """True when a test needs more than the offset: a message must be decoded to be judged."""
        tests = (self.since, self.until, self.filter, self.grep)
        return any(test is not None for test in tests) or any(getattr(self, name) for name in _COLLECTIONS)

    def matches_offset(self, physical_offset: int) -> bool:
        """True when a record at `physical_offset` lies in the offset range."""
        if self.from_offset is not None and physical_offset < self.from_offset:
            return False
        return self.to_offset is None or physical_offset < self.to_offset

    def matches_topic(self, topic: str) -> bool:
        """True when the topic globs let `topic` through."""
        if self.topics and not _any_glob(frozenset(self.topics), topic):
            return False
        return not (self.exclude_topics and _any_glob(frozenset(self.exclude_topics), topic))

    def matches(self, message: Message, physical_offset: int | None = None) -> bool:
        """True when `message` is selected; `limit` is ignored.

        `physical_offset` is where the record lies; without it the record's own field counts,
        which differs only for foreign records. The cheap tests come first; properties are decoded
        only when everything else holds and their bytes contain what is looked for, and bodies last.
        Raises MissingCodecError if the library for a body that `grep` needs is not installed.
        """
        if not self.matches_offset(message.physical_offset if physical_offset is None else physical_offset):
            return False
        if self.queues and message.queue_id not in self.queues:
            return False
        if self.since is not None or self.until is not None:
            time = message.store_timestamp if self.time_field == "store" else message.born_timestamp
            if self.since is not None and time < self.since:
                return False
            if self.until is not None and time >= self.until:
                return False
        if not self.matches_topic(message.topic):
            return False
        if self.looks_at_properties and not self.matches_properties(message.properties_bytes):
            return False
        return self.grep is None or self.grep.matches(message)

    @property
    def looks_at_properties(self) -> bool:
        """True when tags, keys or a filter decide."""
        return bool(self.tags or self.keys) or self.filter is not None

    def matches_properties(self, data: bytes) -> bool:
        """True when a message with these property bytes has the tags and keys and passes the filter."""
        if not (_mentions(data, self.tags) and _mentions(data, self.keys)):
            return False
        decoded = properties.decode(data)
        if self.tags and decoded.get(properties.TAGS) not in self.tags:
            return False
        if self.filter is not None and self.filter.matches(decoded) is not True:
            return False
        if not self.keys or decoded.get(properties.UNIQ_KEY) in self.keys:
            return True
        return any(key in self.keys for key in properties.keys_of(decoded))


_COLLECTIONS = ("topics", "exclude_topics", "queues", "tags", "keys")


def _check_range(what: str, first: int | None, last: int | None) -> None:
    if first is not None and last is not None and last < first:
        raise UsageError(f"the {what} range ends ({last}) before it starts ({first})")


def _mentions(data: bytes, values: Collection[str]) -> bool:
    """False only when none of `values` can be in `data`.

    Bytes that are not UTF-8 read as U+FFFD: a value with it cannot be ruled out by its bytes.
    """
    if not values:
        return True
    return any("�" in value or value.encode("utf-8", "surrogatepass") in data for value in values)


def is_glob(topic: str) -> bool:
    """Whether a topic is given as a pattern: `*`, `?` or `[` is in it."""
    return not _GLOB.isdisjoint(topic)


@lru_cache(maxsize=256)
def _pattern(globs: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(glob) for glob in sorted(globs)))


@lru_cache(maxsize=65536)
def _any_glob(globs: frozenset[str], topic: str) -> bool:
    return _pattern(globs).match(topic) is not None
