"""Transactions: the half message, and the records that finish it.

    half        RMQ_SYS_TRANS_HALF_TOPIC      a producer's message that no consumer sees yet
    committed   its real topic and queue      the same message for consumers, sys_flag commit
    op          RMQ_SYS_TRANS_OP_HALF_TOPIC   says which half messages are finished

A commit puts the committed record first and the op record after it, so a crash between the two
leaves a half message that is checked again: twice is better than never. A rollback puts the op
record only.

Source: TransactionalMessageBridge, EndTransactionProcessor#endMessageTransaction,
TransactionalMessageServiceImpl#deletePrepareMessage; spec 01 10.3, spec 02 11.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rmqtool.errors import RefusedError
from rmqtool.formats import properties
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.message import (
    BORN_HOST_V6,
    PROPERTY_CRC_NAME,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    Message,
)
from rmqtool.formats.properties import (
    BUCKETS_4X,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TRAN_MSG,
    WAIT,
    java_order,
)
from rmqtool.message.system_topics import HALF_TOPICS, OP_TOPIC_OF, OP_TOPICS
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.property_map import TRUE, illegal, joined, map_string, number_of

_OP_TAG = "d"
_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6


def half(message: NewMessage, producer_group: str) -> NewMessage:
    """The message as the first step of a transaction of `producer_group`; `prepare` does the rest.

    Raises:
        IllegalMessageError: the group is empty, the message is delayed (no consumer would ever
            get it), or its properties are kept as stored.
    """
    if not producer_group:
        raise illegal("a transaction needs the producer's group")
    if message.delay_level > 0:
        raise illegal("a transaction cannot be delayed", column="delay_level")
    if not isinstance(message.properties, Mapping):
        raise illegal("properties that are kept as stored cannot make a half message", column="properties")
    own = {**message.properties, TRAN_MSG: TRUE, PGROUP: producer_group}
    return replace(message, properties=own, delay_level=0)


def commit(record: Message, options: WriteOptions, now_ms: int) -> list[NewMessage]:
    """Return the messages that commit a half message, in the order in which they must be put.

    Args:
        record: the half message as stored.
        options: of the store.
        now_ms: ms since 1970.

    Raises:
        RefusedError: the record is not a half message, or does not say where it belongs.
    """
    stored = _half_properties(record)
    kept = dict(stored)
    if not options.profile.committed_keeps_real:
        del kept[REAL_TOPIC], kept[REAL_QID]
    committed = NewMessage(
        topic=stored[REAL_TOPIC],
        body=record.body,
        properties=java_utf8_encode(map_string(kept, options.profile)),
        queue_id=number_of(stored, REAL_QID),
        flag=record.flag,
        sys_flag=record.sys_flag & ~(TRANSACTION_MASK | _HOST_BITS) | TRANSACTION_COMMIT,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.physical_offset,
    )
    return [committed, *rollback(record, options, now_ms)]


def rollback(record: Message, options: WriteOptions, now_ms: int) -> list[NewMessage]:
    """Return the messages that end a half message without delivering it; see `commit`."""
    _half_properties(record)
    topic = OP_TOPIC_OF[record.topic]
    return [op([record.queue_offset], record.queue_id, options, now_ms, topic=topic)]


def op(
    half_queue_offsets: Iterable[int],
    half_queue_id: int,
    options: WriteOptions,
    now_ms: int,
    *,
    topic: str = OP_TOPICS[0],
) -> NewMessage:
    """The op message that says which half messages are finished.

    Args:
        half_queue_offsets: of the half messages. 4.x knows one in a message.
        half_queue_id: their queue; the op message goes to the queue of the same number.
        options: of the store.
        now_ms: ms since 1970: when it was made.
        topic: of op messages.
    """
    separator = options.profile.op_separator
    offsets = list(half_queue_offsets)
    if not separator and len(offsets) != 1:
        raise illegal(f"an op message of {options.profile.name} names one half message, not {len(offsets)}")
    found = java_order({TAGS: _OP_TAG, WAIT: TRUE}, BUCKETS_4X)  # made by the broker: a map of 16 buckets
    return NewMessage(
        topic=topic,
        body="".join(f"{offset}{separator}" for offset in offsets).encode("ascii"),
        properties=java_utf8_encode(joined(found.items(), options.profile)),
        queue_id=half_queue_id,
        born_timestamp=now_ms,
        born_host=options.store_host,
    )


def _half_properties(record: Message) -> dict[str, str]:
    found = properties.decode(record.properties_bytes)
    found.pop(PROPERTY_CRC_NAME, None)  # of the half record only
    if record.topic not in HALF_TOPICS:
        raise RefusedError(
            f"the record is of topic {record.topic}, not a half message",
            physical_offset=record.physical_offset,
        )
    if not found.get(REAL_TOPIC) or not found.get(REAL_QID, "").isdecimal():
        raise RefusedError(
            "the half message does not name its topic and queue",
            physical_offset=record.physical_offset,
        )
    return found
