"""What becomes of a producer's batch: one record for each item, or one for all of them.

Source: MessageBatch#generateFromList, DefaultMQProducer#batch, SendMessageProcessor#
sendBatchMessage, MessageExtEncoder#encode(MessageExtBatch); spec 01 10.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rmqtool.formats import batch
from rmqtool.formats.batch import BatchItem
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.message import INNER_BATCH, NEED_UNWRAP, TRANSACTION_MASK
from rmqtool.formats.properties import (
    BUCKETS_4X,
    DELAY,
    INNER_NUM,
    MAX_SIZE,
    TRAN_MSG,
    UNIQ_KEY,
    VALUE_END,
    WAIT,
    java_order,
)
from rmqtool.message.system_topics import RETRY_PREFIX
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.property_map import (
    FALSE,
    TRUE,
    broker_map,
    check_pairs,
    client_map,
    illegal,
    is_true,
    joined,
    map_string,
    number_of,
    too_large,
)

_END = VALUE_END.encode()


def check_batch(messages: Sequence[NewMessage]) -> NewMessage:
    """The first message of a batch that a client could make of `messages`.

    Raises:
        IllegalMessageError: see `prepare_batch`.
    """
    if not messages:
        raise illegal("a batch has no messages")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise illegal("a batch cannot go to a retry topic")
    for message in messages:
        found = message.properties if isinstance(message.properties, Mapping) else {}
        given = {DELAY: str(message.delay_level), **found}
        if message.delay_level > 0 or number_of(given, DELAY, 32) > 0:
            raise illegal("a message of a batch cannot be delayed")
        if message.sys_flag & TRANSACTION_MASK or is_true(found.get(TRAN_MSG)):
            raise illegal("a message of a batch cannot be part of a transaction")
        if (message.topic, message.queue_id, message.wait) != (first.topic, first.queue_id, first.wait):
            raise illegal("the messages of a batch have one topic, one queue and one value of wait")
    return first


def item_properties(message: NewMessage, options: WriteOptions, uniq_key: str) -> bytes:
    """The property string that the client writes into the item.

    Raises:
        IllegalMessageError: a property that cannot be stored, or more than 32767 bytes.
    """
    if isinstance(message.properties, bytes):
        return message.properties
    client = client_map(message, uniq_key)
    check_pairs(client.items())
    data = java_utf8_encode(joined(java_order(client, BUCKETS_4X).items(), options.profile))
    if len(data) > MAX_SIZE:
        raise too_large(len(data))
    return data


def batch_map(first: NewMessage, options: WriteOptions, uniq_key: str) -> dict[str, str]:
    """The broker's map of the batch itself."""
    client = {WAIT: TRUE if first.wait else FALSE}
    if options.profile.batch_uniq_key:
        client[UNIQ_KEY] = uniq_key
    return broker_map(client, options)


def batch_records(
    messages: Sequence[NewMessage],
    items: Sequence[BatchItem],
    shared: Mapping[str, str],
    options: WriteOptions,
) -> Iterator[NewMessage]:
    """One message for each item, with its properties as they are stored.

    Those of the batch come last, so for a reader they count: its UNIQ_KEY hides the item's own.
    """
    common = b""
    if options.profile.appends_batch_properties:
        common = java_utf8_encode(map_string(shared, options.profile))
    for message, item in zip(messages, items, strict=True):
        data = item.properties_bytes
        if not isinstance(message.properties, bytes):
            between = _END if data and common and not data.endswith(_END) else b""
            data = data + between + common
        yield _as_stored(messages[0], item.body, data, item.flag, messages[0].sys_flag)


def inner_batch(
    first: NewMessage, items: Sequence[BatchItem], shared: Mapping[str, str], options: WriteOptions
) -> NewMessage:
    """The one message that holds all items, for a BatchCQ topic."""
    found = {**shared, INNER_NUM: str(len(items))}
    data = java_utf8_encode(map_string(found, options.profile))
    sys_flag = first.sys_flag | NEED_UNWRAP | INNER_BATCH
    return _as_stored(first, batch.encode_items(items), data, first.flag, sys_flag)


def _as_stored(first: NewMessage, body: bytes, data: bytes, flag: int, sys_flag: int) -> NewMessage:
    return replace(
        first, body=body, properties=data, flag=flag, sys_flag=sys_flag, tags=None, keys=(), uniq_key=None,
        delay_level=0, prepared_transaction_offset=0, compression="none",
    )  # fmt: skip
