"""Consume queues in RocksDB: keys and values of the column families `default` (units) and `offset` (ends).

    default   topic length i32 | 01 | topic | 01 | queue id i32 | 01 | queue offset i64
              -> physical offset i64 | size i32 | tags code i64 | store time i64
    offset    topic length i32 | 01 | topic | 01 | max or min | 01 | queue id i32
              -> physical offset i64 | queue offset i64

Everything is big-endian, so the keys of a queue are one run in the order of its units.

Source: RocksDBConsumeQueueTable, RocksDBConsumeQueueOffsetTable; spec 06 section 2.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import checked
from rmqtool.formats.declare import Layout
from rmqtool.formats.java import java_utf8_decode, java_utf8_encode
from rmqtool.formats.parts import Int32sb, Int64sb, Struct

UNIT_VALUE = Layout(
    "RocksDB queue unit",
    Struct(
        "physical_offset" / Int64sb * "offset of the record in the commit log, bytes",
        "size" / Int32sb * "total_size of the record, bytes",
        "tags_code" / Int64sb * "hash of the tags, 0 for none; in SCHEDULE_TOPIC_XXXX the delivery time",
        "store_timestamp" / Int64sb * "when the broker stored the record, ms since 1970",
    ),
    "One message of a queue that is kept in RocksDB: a value of the column family `default`. Its key: bytes"
    " of the topic (4), 01, topic, 01, queue id (4), 01, queue offset (8).",
)
END_VALUE = Layout(
    "RocksDB queue end",
    Struct(
        "physical_offset" / Int64sb * "offset of the record in the commit log, bytes",
        "queue_offset" / Int64sb * "queue offset of its unit",
    ),
    "The newest unit (`max`) or the first valid one (`min`) of a queue: a value of the column family"
    " `offset`. Its key: bytes of the topic (4), 01, topic, 01, `max` or `min`, 01, queue id (4). The `max`"
    " of CHECKPOINT_TOPIC, 8 bytes, is the end of the last dispatched record.",
)
CHECKPOINT_VALUE = struct.Struct(">q")
"""The `max` of CHECKPOINT_TOPIC."""
UNITS, ENDS = "default", "offset"
"""The column families."""
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"

_TOPIC_LENGTH = struct.Struct(">i")
_UNIT_TAIL = struct.Struct(">biq")
_QUEUE_TAIL = struct.Struct(">bib")
_END_TAIL = struct.Struct(">b3sbi")
_OFFSET = CHECKPOINT_VALUE
_CONTROL = 1
MAX_OFFSET = (1 << 63) - 1


class EndKey(NamedTuple):
    """A key of the column family `offset`."""

    topic: str
    is_max: bool
    queue_id: int


def _topic(topic: str) -> bytes:
    name = java_utf8_encode(topic)
    return b"%b\1%b\1" % (_TOPIC_LENGTH.pack(len(name)), name)


def queue_prefix(topic: str, queue_id: int) -> bytes:
    """What the keys of a queue's units begin with."""
    name = java_utf8_encode(topic)
    return b"%b\1%b" % (_TOPIC_LENGTH.pack(len(name)), name) + _QUEUE_TAIL.pack(_CONTROL, queue_id, _CONTROL)


def unit_key(topic: str, queue_id: int, queue_offset: int) -> bytes:
    """The key of a unit."""
    return queue_prefix(topic, queue_id) + _OFFSET.pack(queue_offset)


def end_key(key: EndKey) -> bytes:
    """The key of an end."""
    return _topic(key.topic) + (b"max\1" if key.is_max else b"min\1") + struct.pack(">i", key.queue_id)


def _topic_of(key: bytes) -> tuple[str, int]:
    """(topic, the position after it and its control byte). Raises FormatError."""
    length = _TOPIC_LENGTH.unpack_from(key)[0] if len(key) >= _TOPIC_LENGTH.size else -1
    start = _TOPIC_LENGTH.size + 1
    if length < 0 or start + length + 1 > len(key) or key[start - 1] != _CONTROL:
        raise FormatError(f"a key of {len(key)} bytes does not begin with a topic")
    return java_utf8_decode(key[start : start + length]), start + length


def decode_unit_key(key: bytes) -> tuple[str, int, int]:
    """(topic, queue id, queue offset) of a key of the units. Raises FormatError."""
    topic, at = _topic_of(key)
    if len(key) != at + _QUEUE_TAIL.size + _OFFSET.size:
        raise FormatError(f"a key of {len(key)} bytes is not that of a unit")
    first, queue_id, second = _QUEUE_TAIL.unpack_from(key, at)
    if first != _CONTROL or second != _CONTROL:
        raise FormatError("a key without the separators of a unit")
    return topic, queue_id, _OFFSET.unpack_from(key, at + _QUEUE_TAIL.size)[0]


def decode_end_key(key: bytes) -> EndKey:
    """Decode a key of the ends. Raises FormatError."""
    topic, at = _topic_of(key)
    if len(key) != at + _END_TAIL.size:
        raise FormatError(f"a key of {len(key)} bytes is not that of an end")
    first, kind, second, queue_id = _END_TAIL.unpack_from(key, at)
    if first != _CONTROL or second != _CONTROL or kind not in (b"max", b"min"):
        raise FormatError("a key without the separators of an end")
    return EndKey(topic, kind == b"max", queue_id)


def decode_end(value: bytes) -> tuple[int, int]:
    """(physical offset, queue offset) of an end. Raises FormatError."""
    if len(value) != END_VALUE.size:
        raise FormatError(f"an end of {len(value)} bytes instead of {END_VALUE.size}")
    physical_offset, queue_offset = checked.unpack(END_VALUE, value)
    return physical_offset, queue_offset


def decode_checkpoint(value: bytes) -> int:
    """The end of the last dispatched record, from the value of CHECKPOINT_TOPIC. Raises FormatError."""
    if len(value) != _OFFSET.size:
        raise FormatError(f"a checkpoint of {len(value)} bytes instead of {_OFFSET.size}")
    found: int = _OFFSET.unpack(value)[0]
    return found
