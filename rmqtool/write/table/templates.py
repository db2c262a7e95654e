"""How the property string of a new message is put together, learned from `prepare` itself.

`prepare` is given a sample for every set of property names. Where its values stand in the string that
comes back, later rows have theirs; all else is what client and broker add. So the order of names, the
separators and everything that depends on the broker's version are those of `prepare`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rmqtool.errors import IllegalMessageError
from rmqtool.formats.java import java_utf8_encode
from rmqtool.write.encode import Part, map_value
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.prepare import prepare
from rmqtool.write.records.tables import SPECIAL_NAMES

# The columns of values in a batch, by their place
UNIQ_KEY, TAGS, KEYS, STORED = range(4)
VALUE_COLUMNS = 4

STORED_TEMPLATE = (Part(b"", STORED),)
"""A row whose property string is given as it is stored."""

_TOPIC = "TopicTest"
_LENGTH_SIZE = 2  # of the properties' length


class Signature(NamedTuple):
    """Which properties a new message has: those of columns, the answer to `wait`, the names of its map."""

    has_tags: bool
    has_keys: bool
    wait: bool
    names: tuple[str, ...]


class Templates:
    """The templates of one writer, each learned once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._known: dict[Signature, tuple[Part, ...] | None] = {}

    def of(self, signature: Signature) -> tuple[Part, ...] | None:
        """The template of rows with these properties; None where each row needs a look of its own."""
        if signature not in self._known:
            self._known[signature] = self._learn(signature)
        return self._known[signature]

    def _learn(self, signature: Signature) -> tuple[Part, ...] | None:
        names = signature.names
        if not SPECIAL_NAMES.isdisjoint(names) or len(set(names)) != len(names):
            return None
        sources = {_mark(UNIQ_KEY): UNIQ_KEY}
        sources |= {_mark(TAGS): TAGS} if signature.has_tags else {}
        sources |= {_mark(KEYS): KEYS} if signature.has_keys else {}
        found: dict[str, str] = {}
        for number, name in enumerate(signature.names):
            found[name] = _mark(VALUE_COLUMNS + number)
            sources[found[name]] = map_value(number)
        sample = NewMessage(
            _TOPIC,
            tags=_mark(TAGS) if signature.has_tags else None,
            keys=(_mark(KEYS),) if signature.has_keys else (),
            properties=found,
            uniq_key=_mark(UNIQ_KEY),
            wait=signature.wait,
            queue_id=0,
        )
        try:
            stored = prepare(sample, self._options, 0, 0).properties_bytes[_LENGTH_SIZE:]
        except IllegalMessageError:
            return None
        by_bytes = {java_utf8_encode(mark): source for mark, source in sources.items()}
        pieces = re.split(b"(" + b"|".join(map(re.escape, by_bytes)) + b")", stored)
        if sorted(pieces[1::2]) != sorted(by_bytes):
            return None
        parts = [Part(text, by_bytes[mark]) for text, mark in zip(pieces[:-1:2], pieces[1::2], strict=True)]
        return (*parts, Part(pieces[-1])) if pieces[-1] else tuple(parts)


def _mark(number: int) -> str:
    """A value that stands for another; characters for private use, all of one length."""
    return f"\ue000{number:05d}\ue001"
