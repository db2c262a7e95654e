"""A record without its place, and how it gets one.

Source: MessageExtEncoder#encode, CommitLog.DefaultAppendMessageCallback#doAppend; spec 01 3.2, 10.4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmqtool.formats.message import PROPERTY_CRC_SIZE
from rmqtool.formats.properties import MAX_SIZE, property_crc_bytes
from rmqtool.write.records.deferred_offsets import DeferredOffsets, deferred_bytes
from rmqtool.write.records.property_map import illegal, too_large

pack_length = struct.Struct(">h").pack
LENGTH_SIZE = 2


class EncodedRecord(NamedTuple):
    """A record without its place in log and queue.

    Attributes:
        topic: under which it is stored (a delayed or half message: not the real one).
        queue_id: the queue of that topic.
        transaction_type: 0, TRANSACTION_PREPARED, _COMMIT or _ROLLBACK of `formats.message`.
        count: queue offsets that it takes: the messages of an inner batch, else 1.
        size: bytes of the record.
        store_timestamp: ms since 1970, where the message names one; None: the time of the append.
        light_queues: (name, queue id) of the light queues it goes to, besides its own.
        late: the properties hold queue offsets: `with_offsets` comes before `size` counts. None for
            nearly all messages.
        room: bytes that the record may have: a log file less its blank.
        pack_head: packs the fixed part.
        magic ... body: the fields of the record.
        topic_bytes: topic length and topic.
        properties_bytes: properties length and properties, without the property CRC.
        sealed: the property CRC ends the record; `size` counts it.
    """

    topic: str
    queue_id: int
    transaction_type: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name, which is not needed here
    size: int
    store_timestamp: int | None
    light_queues: tuple[tuple[str, int], ...]
    late: DeferredOffsets | None
    room: int
    pack_head: Callable[..., bytes]
    magic: int
    body_crc: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic_bytes: bytes
    properties_bytes: bytes
    sealed: bool


def pack(prepared: EncodedRecord, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
    """The record's bytes.

    Args:
        prepared: `with_offsets` was applied where it has `late`.
        queue_offset: of its (first) unit; 0 for prepared and rollback.
        physical_offset: where it will start in the log.
        store_timestamp: ms since 1970.
    """
    (
        _topic, queue_id, _type, _count, size, _time, _light, _late, _room, pack_head, magic,
        body_crc, flag, sys_flag, born_timestamp, born_host, store_host, reconsume_times,
        transaction_offset, body, topic_bytes, properties_bytes, sealed,
    ) = prepared  # fmt: skip
    head = pack_head(
        size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp,
        born_host, store_timestamp, store_host, reconsume_times, transaction_offset, len(body),
    )  # fmt: skip
    record = b"".join((head, body, topic_bytes, properties_bytes))
    return record + property_crc_bytes(record) if sealed else record


def with_offsets(
    prepared: EncodedRecord, queue_offset: int, light_offsets: Sequence[int] = ()
) -> EncodedRecord:
    """The same with its queue offsets in the properties; the size is final then.

    Args:
        prepared: a record with `late`.
        queue_offset: the first that it takes in its own queue.
        light_offsets: one for each of `light_queues`.

    Raises:
        IllegalMessageError: it becomes too large by that.
    """
    late = prepared.late
    if late is None:
        return prepared
    data = deferred_bytes(late, queue_offset, light_offsets)
    crc_size = PROPERTY_CRC_SIZE if prepared.sealed else 0
    if len(data) + crc_size > MAX_SIZE:
        raise too_large(len(data) + crc_size)
    size = prepared.size - len(prepared.properties_bytes) + LENGTH_SIZE + len(data)
    if size > late.size_limit:
        raise illegal(
            f"record of {size} bytes: with light queues at most {late.size_limit} can be stored",
            column="body",
        )
    check_room(size, prepared.room)
    return prepared._replace(size=size, properties_bytes=pack_length(len(data) + crc_size) + data, late=None)


def check_room(size: int, room: int) -> None:
    """Refuse a record that no log file holds: a broker would burn one file after the other.

    Raises:
        IllegalMessageError: it is larger than `room` bytes.
    """
    if size > room:
        raise illegal(f"record of {size} bytes: a commit log file has room for {room}", column="body")
