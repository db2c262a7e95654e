"""The filler: a record that takes the place of lost bytes, so that brokers and consumers get past them.

    with an owner    the lost record's own topic, queue and queue offset, so that the queue keeps its numbers;
                     consumers of `*` get one message tagged RMQTOOL_FILLER
    without          type rollback, topic RMQTOOL_FILLER: in no queue and no index

The body is FF bytes (zeros would read as messages where an old unit points into it), the hosts are
127.0.0.1:0, the times those of a neighbour. The version is 1 unless the owner's topic is too long for it.
In a store with property CRCs the filler ends with one: a broker that checks them would otherwise treat
it as the end of the log.

Source: spec 03, tried on brokers 4.9.7, 5.3.3 and 5.4.0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from rmqtool.errors import FormatError
from rmqtool.formats import message, properties
from rmqtool.formats.message import Message
from rmqtool.lazy_dataclass import dataclass

TAG: Final = "RMQTOOL_FILLER"
"""The tag of fillers with an owner, and the topic of those without."""
FIELDS: Final = "physical_offset,topic,queue_id,queue_offset,store_time"
"""The columns in which fillers differ: their bodies only fill the space."""
SIZE_MAX: Final = 4 << 20
"""Most bytes of a filler: brokers allocate the size of a record before they check it."""
SIZE_MIN: Final = message.MIN_RECORD_SIZE
"""Fewest bytes of a filler."""

HOST: Final = bytes((127, 0, 0, 1)) + bytes(4)
"""Both hosts of a filler, as stored: 127.0.0.1 with port 0."""

_TOPIC: Final = TAG.encode()
_V1_TOPIC_MAX: Final = 127

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """The lost record whose place a filler takes.

    Attributes:
        topic: bytes as stored, at most 32767.
        queue_id: of the lost record.
        queue_offset: of the lost record; the first one of an inner batch.
        required: properties without which a broker would mishandle the filler.
        optional: further properties, in this order; each is written if it fits.
    """

    topic: bytes
    queue_id: int
    queue_offset: int
    required: Pairs = ()
    optional: Pairs = ((properties.TAGS, TAG),)


def is_filler(record: Message) -> bool:
    """Whether a record has the content of a filler that `encode` makes."""
    if record.born_host != HOST or record.store_host != HOST:
        return False
    if record.body.count(0xFF) != len(record.body):
        return False
    is_ownerless = record.transaction_type == message.TRANSACTION_ROLLBACK
    return not is_ownerless or record.topic_bytes == _TOPIC[: len(record.topic_bytes)]


def smallest(owner: Owner | None, *, property_crc: bool = False) -> int:
    """Bytes of the shortest filler for `owner`; without an owner the topic may be cut to nothing."""
    more = message.PROPERTY_CRC_SIZE if property_crc else 0
    if owner is None:
        return SIZE_MIN + more
    version = 1 if len(owner.topic) <= _V1_TOPIC_MAX else 2
    stored = _stored(owner.required, property_crc)
    return message.record_size(version, 0, 0, len(owner.topic), len(stored) + more)


def encode(
    size: int,
    physical_offset: int,
    *,
    born_timestamp: int,
    store_timestamp: int,
    owner: Owner | None = None,
    property_crc: bool = False,
) -> bytes:
    """A filler of exactly `size` bytes.

    Args:
        size: bytes; at least `smallest`.
        physical_offset: where it will be in the commit log.
        born_timestamp: ms since 1970, a neighbour's.
        store_timestamp: ms since 1970, a neighbour's; above 0, or a broker does not start at a file
            that begins with it.
        owner: whose place it takes; None for a rolled back record of no queue.
        property_crc: end it with the property CRC.

    Raises:
        FormatError: `size` is too small for it.
    """
    least = smallest(owner, property_crc=property_crc)
    if size < least:
        raise FormatError(f"{size} bytes are too few for a filler: it takes {least}")
    if owner is None:
        topic, stored = _TOPIC[: size - least], b""
    else:
        topic, stored = owner.topic, _fitting(owner, size, property_crc)
    reserved = properties.reserve_property_crc(stored) if property_crc else stored
    version = 1 if len(topic) <= _V1_TOPIC_MAX else 2
    body = b"\xff" * (size - message.record_size(version, 0, 0, len(topic), len(reserved)))
    record = message.encode(
        Message(
            total_size=size,
            magic=message.MAGIC_BY_VERSION[version],
            body_crc=message.masked_crc(body),
            queue_id=owner.queue_id if owner else 0,
            flag=0,
            queue_offset=owner.queue_offset if owner else 0,
            physical_offset=physical_offset,
            sys_flag=0 if owner else message.TRANSACTION_ROLLBACK,
            born_timestamp=born_timestamp,
            born_host=HOST,
            store_timestamp=store_timestamp,
            store_host=HOST,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body_length=len(body),
            body=body,
            topic_bytes=topic,
            properties_length=len(reserved),
            properties_bytes=reserved,
        )
    )
    return properties.seal_property_crc(record) if property_crc else record


@lru_cache(maxsize=1024)
def _stored(pairs: Pairs, property_crc: bool) -> bytes:
    """The property string; it ends with 0x02 if the CRC follows."""
    return properties.encode(pairs, dialect="5.x" if property_crc else "4.x")


def _fitting(owner: Owner, size: int, property_crc: bool) -> bytes:
    """All required properties, and each optional one that fits into `size` bytes."""
    chosen = owner.required
    for pair in owner.optional:
        more = (*chosen, pair)
        if smallest(Owner(owner.topic, 0, 0, more), property_crc=property_crc) <= size:
            chosen = more
    return _stored(chosen, property_crc)
