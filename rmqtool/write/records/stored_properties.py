"""The property string of a message that no template covers, and where it sends the message.

Source: SendMessageProcessor#sendMessage, HookUtils#checkInnerBatch, MessageExtEncoder#encode;
spec 01 3.6, 10.1 to 10.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rmqtool.formats import properties
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.message import INNER_BATCH, PROPERTY_CRC_NAME, PROPERTY_CRC_SIZE
from rmqtool.formats.properties import INNER_NUM, MAX_SIZE, VALUE_END, WAIT
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.storage.profile import Profile
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.deferred_offsets import DeferredOffsets, deferred_offsets
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.property_map import (
    broker_map,
    check_pairs,
    check_units,
    client_map,
    first_string,
    illegal,
    is_true,
    map_string,
    number_of,
    put_wait_last,
    too_large,
)
from rmqtool.write.records.rewrite import Target, rewrite

_END = VALUE_END.encode()
_INNER = b"INNER_"  # begins all names that make a record `late`


class Stored(NamedTuple):
    """What the properties of a message decide.

    Attributes:
        topic: where it goes, with `queue_id`.
        waits: WAIT.
        data: the property string, UTF-8, without the property CRC.
        sealed: the property CRC follows.
        late: offsets that it waits for.
        takes: how many queue offsets.
    """

    topic: str
    queue_id: int
    sys_flag: int
    waits: bool
    data: bytes
    sealed: bool
    late: DeferredOffsets | None
    takes: int


def place_new(
    message: NewMessage,
    options: WriteOptions,
    now_ms: int,
    queue_id: int,
    sys_flag: int,
    uniq_key: str,
    *,
    batch_topic: bool,
) -> Stored:
    """A new message, through every rule of the broker.

    Args:
        message: its `properties` are a mapping.
        options: of the store.
        now_ms: ms since 1970.
        queue_id: of its topic.
        sys_flag: with what compression and topic add.
        uniq_key: for UNIQ_KEY, when the properties have none.
        batch_topic: the topic has queue.type=BatchCQ.

    Raises:
        IllegalMessageError: see `prepare`.
    """
    profile = options.profile
    client = client_map(message, uniq_key)
    check_pairs(client.items())
    found = broker_map(client, options)
    if options.property_crc:
        found.pop(PROPERTY_CRC_NAME, None)
    text = first_string(found, profile)
    if profile.checks_properties_early:
        check_units(text)
    if not profile.stores_wait:
        put_wait_last(found)
    target = Target(message.topic, queue_id, sys_flag, found)
    rewrite(target, options, now_ms, message.reconsume_times)
    if target.rewritten:
        text = map_string(found, profile)
        if profile.checks_properties_early and target.topic != SCHEDULE_TOPIC:
            check_units(text)
    data = java_utf8_encode(text)
    check_size(data, sealed=options.property_crc)
    check_inner(found, sys_flag, profile, batch_topic=batch_topic)
    return Stored(
        target.topic, target.queue_id, target.sys_flag, is_true(found.get(WAIT)), data, options.property_crc,
        deferred_offsets(found, target.topic, target.queue_id, target.sys_flag, options),
        count_of(found, target.sys_flag),
    )  # fmt: skip


def place_stored(
    message: NewMessage, options: WriteOptions, queue_id: int, sys_flag: int, *, batch_topic: bool
) -> Stored:
    """A message whose properties are a stored string: only its property CRC is computed again.

    Raises:
        IllegalMessageError: fields that are properties are given too; the string is too large, or
            the message is an inner batch and the topic does not take it.
    """
    if message.tags or message.keys or message.uniq_key or message.delay_level:
        raise illegal("tags, keys, uniq_key and delay_level cannot join properties that are kept as stored")
    data = bytes(message.properties) if isinstance(message.properties, bytes) else b""
    sealed = True
    if properties.property_crc(data) is not None:
        data = data[:-PROPERTY_CRC_SIZE]
    elif options.property_crc:
        data += _END if data and not data.endswith(_END) else b""
    else:
        sealed = False
    check_size(data, sealed=sealed)
    found = properties.decode(data) if _INNER in data or sys_flag & INNER_BATCH else {}
    check_inner(found, sys_flag, options.profile, batch_topic=batch_topic)
    return Stored(
        message.topic, queue_id, sys_flag, message.wait, data, sealed,
        deferred_offsets(found, message.topic, queue_id, sys_flag, options, data), count_of(found, sys_flag),
    )  # fmt: skip


def check_size(data: bytes, *, sealed: bool) -> None:
    """Raises IllegalMessageError for more than 32767 bytes, those of the property CRC included."""
    size = len(data) + sealed * PROPERTY_CRC_SIZE
    if size > MAX_SIZE:
        raise too_large(size)


def check_inner(found: Mapping[str, str], sys_flag: int, profile: Profile, *, batch_topic: bool) -> None:
    """Refuse a batch in one record where none can be. Raises IllegalMessageError."""
    if not profile.has_inner_batch:
        return
    if sys_flag & INNER_BATCH:
        if not batch_topic:
            raise illegal(
                "an inner batch (sys_flag 80) is for topics with queue.type=BatchCQ only", column="sys_flag"
            )
    elif INNER_NUM in found:
        raise illegal("the property INNER_NUM is for an inner batch (sys_flag 80) only", column="properties")


def count_of(found: Mapping[str, str], sys_flag: int) -> int:
    """Queue offsets that a record takes. Raises IllegalMessageError: INNER_NUM is not a number."""
    return max(number_of(found, INNER_NUM), 1) if sys_flag & INNER_BATCH else 1
