"""The subscription of a consumer: tags as it writes them, or a filter over properties.

A broker compares the hash of a message's TAGS with those of the subscription, in the queue unit
alone, and the client then compares the text; a filter is evaluated by the broker on the record.

Source: FilterAPI#buildSubscriptionData, DefaultMessageFilter, ExpressionMessageFilter,
PullAPIWrapper#processPullResult; spec 02 8.3 and 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rmqtool.errors import UsageError
from rmqtool.formats import properties
from rmqtool.formats.consume_queue import is_ext_address
from rmqtool.formats.java import TRIMMED, tags_code
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from rmqtool.formats.message import Message
    from rmqtool.read.body_pattern import BodyPattern
    from rmqtool.read.filter import Expression

ALL = "*"


def split_tags(text: str) -> frozenset[str]:
    """The tags of `TagA || TagB`; none for `*` and for an empty text, which stand for every message.

    Raises:
        UsageError: nothing but separators.
    """
    if text in ("", ALL):
        return frozenset()
    tags = frozenset(filter(None, (tag.strip(TRIMMED) for tag in text.split("||"))))
    if not tags:
        raise UsageError(f"{text!r} names no tag")
    return tags


@dataclass(frozen=True)
class Subscription:
    """The messages that a consumer requests: `tags` and `filter` must both hold; none requests all.

    `grep` is not the consumer's: of what it gets, only messages whose body has the pattern are shown.
    """

    tags: frozenset[str] = frozenset()
    filter: Expression | None = None
    grep: BodyPattern | None = None

    @classmethod
    def of(
        cls, tags: Iterable[str] = (), filter: Expression | None = None, grep: BodyPattern | None = None
    ) -> Subscription:
        """The subscription that several tag expressions mean together; `*` among them is every tag."""
        sets = [split_tags(text) for text in tags]
        return cls(frozenset() if not all(sets) else frozenset().union(*sets), filter, grep)

    def __post_init__(self) -> None:
        """Work out the hashes that units are compared with."""
        object.__setattr__(self, "_codes", frozenset(map(tags_code, self.tags)))

    @property
    def looks_inside(self) -> bool:
        """Whether properties or the body decide, so that the unit alone is not enough."""
        return bool(self.tags) or self.filter is not None or self.grep is not None

    def may_match(self, topic: str, code: int) -> bool:
        """Whether a record must be examined, by its queue's topic and its unit's tags code.

        As `matches_unit`, but the records decide where units hold a time (delayed messages) or the address
        of an extension unit.
        """
        return topic == SCHEDULE_TOPIC or is_ext_address(code) or self.matches_unit(code)

    def matches_unit(self, code: int | None) -> bool:
        """Whether a broker would go on to the record of a unit with this tags code.

        None stands for one in an extension unit that cannot be read: such a message matches.
        """
        codes: frozenset[int] = getattr(self, "_codes")  # noqa: B009 - frozen, set once
        if not codes or code is None:
            return True
        return ((code + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) in codes

    def matches_record(self, found: Mapping[str, str]) -> bool:
        """Whether a broker would deliver a record with these properties, its unit having matched."""
        return self.filter is None or self.filter.matches(found) is True

    def accepts(self, message: Message) -> bool:
        """Whether the application would get the message: the client compares the text of TAGS too.

        Raises MissingCodecError if the library for a body that `grep` needs is not installed.
        """
        found = properties.decode(message.properties_bytes) if self.tags or self.filter is not None else {}
        if self.tags and found.get(properties.TAGS) not in self.tags:
            return False
        return self.matches_record(found) and (self.grep is None or self.grep.matches(message))
