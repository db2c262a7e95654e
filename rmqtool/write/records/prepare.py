"""The encoding of a message, or a producer's batch, as a record: checks, and what client and broker add.

`prepare` does everything that does not depend on the position in the log; `pack` makes the bytes once the
position is known. An ordinary message takes `write.fast_path`, which gives the same bytes. `prepare_batch`
makes one record for each item of a batch, or one for all of them.

Source: DefaultMQProducerImpl#sendKernelImpl, SendMessageProcessor#sendMessage, HookUtils,
CommitLog#asyncPutMessage, MessageExtEncoder#encode; spec 01 10.1 to 10.5.
MessageBatch#generateFromList, DefaultMQProducer#batch, SendMessageProcessor#sendBatchMessage,
MessageExtEncoder#encode(MessageExtBatch); spec 01 10.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import index

from rmqtool.errors import IllegalMessageError
from rmqtool.formats import batch
from rmqtool.formats.batch import BatchItem
from rmqtool.formats.body import compress, compression_bits
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.message import (
    BORN_HOST_V6,
    COMPRESSED,
    CRC_MASK,
    INNER_BATCH,
    NEED_UNWRAP,
    PROPERTY_CRC_SIZE,
    STORE_HOST_V6,
    TRANSACTION_MASK,
)
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
from rmqtool.write.records.prepared import (
    LENGTH_SIZE,
    EncodedRecord,
    check_room,
    pack,
    pack_length,
    with_offsets,
)
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
from rmqtool.write.records.record_parts import CLOSED_TOPICS, load_crc32
from rmqtool.write.records.stored_properties import Stored, place_new, place_stored
from rmqtool.write.records.tables import EXTRA_SIZE, Tables, tables_for
from rmqtool.write.records.unique_id import UniqueIdMaker

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


__all__ = ["EXTRA_SIZE", "EncodedRecord", "pack", "prepare", "prepare_batch", "unique_ids", "with_offsets"]

unique_ids = UniqueIdMaker()
_crc32 = load_crc32()
_latest: tuple[WriteOptions | None, Tables] = None, tables_for(WriteOptions())
_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
_QUEUE_MAX = (1 << 31) - 1
_QUEUE_IDS = range(_QUEUE_MAX + 1)
_new = tuple.__new__  # the constructor of a named tuple takes three times as long
_I32 = range(-(1 << 31), 1 << 31)
_I64 = range(-(1 << 63), 1 << 63)
_POSITIVE = range(1, 1 << 63)  # a broker starts with no record stored at 0 or before


def _tables(options: WriteOptions) -> Tables:
    # Nearly always it is the same store as the last time, and to hash the options takes longer.
    global _latest
    known, tables = _latest
    if known is not options:
        tables = tables_for(options)
        _latest = options, tables
    return tables


def prepare(
    message: NewMessage,
    options: WriteOptions,
    now_ms: int,
    queue_id: int | None = None,
    *,
    batch_topic: bool = False,
    topic_flags: int = 0,
) -> EncodedRecord:
    """Check one message and make all of its record that needs no place.

    Args:
        message: what to store.
        options: of the store.
        now_ms: ms since 1970.
        queue_id: the queue that was chosen, for a message that names none; None is 0.
        batch_topic: the topic has queue.type=BatchCQ.
        topic_flags: bits of sys_flag that the topic asks for (MULTI_TAGS).

    Raises:
        IllegalMessageError: a broker would not take it; `status` is the broker's name for that.
        TypeError and others of Python's: a value of a wrong type; `wrong_values` says which.
    """
    tables = _tables(options)
    tables.topic_of(message.topic)  # refuses a name that cannot be
    hosts = tables.host_of(message.born_host, message.store_host)
    born_host, store_host, host_bits, head_size, pack_head = hosts
    sys_flag = (message.sys_flag or 0) | topic_flags  # None is 0 on the fast path too
    if sys_flag & INNER_BATCH and not options.profile.has_inner_batch:
        raise illegal(
            f"a broker {options.profile.name} does not support inner batches (sys_flag {sys_flag:#x})",
            column="sys_flag",
        )
    if message.queue_id is not None:
        queue_id = message.queue_id
    elif queue_id is None:
        queue_id = 0
    body = message.body
    if not isinstance(body, bytes):
        if not isinstance(body, bytearray | memoryview):
            raise illegal(f"a body must be bytes, not {type(body).__name__}")
        body = bytes(body)
    if message.compression != "none" and len(body) >= options.compress_over and not sys_flag & COMPRESSED:
        body = compress(body, message.compression)
        sys_flag |= compression_bits(message.compression)
    body_size = len(body)
    if body_size > tables.body_limit:
        raise illegal(f"body of {body_size} bytes: at most {tables.body_limit} can be stored", column="body")

    topic, queue_id, sys_flag, data, sealed, late, count = _place(
        message, options, now_ms, queue_id, sys_flag, born_host, batch_topic=batch_topic
    )
    crc_size = PROPERTY_CRC_SIZE if sealed else 0
    magic, topic_bytes, _ = tables.topic_of(topic)
    sys_flag = sys_flag & ~_HOST_BITS | host_bits
    size = head_size + body_size + len(topic_bytes) + LENGTH_SIZE + len(data) + crc_size
    if size > tables.record_limit:
        tables.check_record(size)
    flag, born_timestamp, store_timestamp = message.flag or 0, message.born_timestamp, message.store_timestamp
    reconsume_times = message.reconsume_times or 0
    transaction_offset = message.prepared_transaction_offset or 0
    _check_numbers(message, queue_id, sys_flag)
    return _new(EncodedRecord, (
        topic, queue_id, sys_flag & TRANSACTION_MASK, count, size, store_timestamp,
        late.light_queues if late else (), late, tables.room, pack_head, magic, _crc32(body) & CRC_MASK,
        flag, sys_flag, now_ms if born_timestamp is None else born_timestamp, born_host, store_host,
        reconsume_times, transaction_offset, body, topic_bytes,
        pack_length(len(data) + crc_size) + data, crc_size > 0,
    ))  # fmt: skip


def _place(
    message: NewMessage, options: WriteOptions, now_ms: int, queue_id: int, sys_flag: int, born_host: bytes,
    *, batch_topic: bool,
) -> Stored:  # fmt: skip
    """Return the values that the properties determine, for a message without a template."""
    own = message.properties
    if isinstance(own, bytes):
        return place_stored(message, options, queue_id, sys_flag, batch_topic=batch_topic)
    if message.topic in CLOSED_TOPICS:
        raise _closed(message.topic)
    uniq_key = message.uniq_key or own.get(UNIQ_KEY) or unique_ids.make(born_host, now_ms)
    return place_new(message, options, now_ms, queue_id, sys_flag, uniq_key, batch_topic=batch_topic)


def _closed(topic: str) -> IllegalMessageError:
    return illegal(
        f"no client may send to topic {topic}",
        hint="only records kept as stored may go there",
        column="topic",
    )


def _check_numbers(message: NewMessage, queue_id: int, sys_flag: int) -> None:
    """Refuse what does not fit its field. Raises IllegalMessageError."""
    _fits("queue_id", queue_id, _QUEUE_IDS)
    _fits("flag", message.flag or 0, _I32)
    _fits("sys_flag", sys_flag, _I32)
    _fits("reconsume_times", message.reconsume_times or 0, _I32)
    _fits("prepared_transaction_offset", message.prepared_transaction_offset or 0, _I64)
    if message.born_timestamp is not None:
        _fits("born_timestamp", message.born_timestamp, _I64)
    if message.store_timestamp is not None:
        _fits("store_timestamp", message.store_timestamp, _POSITIVE)


def _fits(name: str, value: int, allowed: range) -> None:
    column = f"{name}_ms" if name.endswith("timestamp") else name
    try:
        number = index(value)  # `in range` would try every number of the range for a float
    except TypeError:
        raise illegal(f"{name} {value!r} is not an integer", column=column) from None
    if number not in allowed:
        raise illegal(f"{name} {number}: it must be {allowed.start} to {allowed.stop - 1}", column=column)


def prepare_batch(
    messages: Sequence[NewMessage],
    options: WriteOptions,
    now_ms: int,
    queue_id: int | None = None,
    *,
    batch_topic: bool = False,
    topic_flags: int = 0,
) -> list[EncodedRecord]:
    """The records of one batch: they go one after the other into one file and one queue.

    For a BatchCQ topic it is one record, whose `count` is the number of messages. Bodies are not
    compressed, as no client does it in a batch. Times, hosts, `sys_flag` and `reconsume_times`
    are those of the first message.

    Args: as `prepare`.

    Raises:
        IllegalMessageError: as `prepare`; also for no messages, several topics, queues or values of
            `wait`, delayed or transactional messages, retry topics, and a batch that is too large.

    Source: MessageBatch#generateFromList, SendMessageProcessor#sendBatchMessage; spec 01 10.5.
    """
    tables = _tables(options)
    first = check_batch(messages)
    hosts = tables.host_of(first.born_host, first.store_host)
    items = []
    for message in messages:
        key = message.uniq_key or unique_ids.make(hosts.born, now_ms)
        items.append(batch.item(message.body, item_properties(message, options, key), flag=message.flag))
    body_size = sum(each.total_size for each in items)
    if body_size > tables.body_limit:
        raise illegal(f"batch of {body_size} bytes: at most {tables.body_limit} can be stored")
    shared = batch_map(first, options, unique_ids.make(hosts.born, now_ms))
    if batch_topic and options.profile.has_inner_batch:
        whole = inner_batch(first, items, shared, options)
        return [prepare(whole, options, now_ms, queue_id, batch_topic=True, topic_flags=topic_flags)]
    group = [
        prepare(each, options, now_ms, queue_id, batch_topic=batch_topic, topic_flags=topic_flags)
        for each in batch_records(messages, items, shared, options)
    ]
    check_room(sum(each.size for each in group), tables.room)
    return group
