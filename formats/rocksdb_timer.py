"""Timer messages in RocksDB (5.4): the column family `timer` of rocksdbstore/.

    timer   due time i64 | unique key -> record size i32 | physical offset i64

Two more entries have names as keys: how far the broker has read the queue of timer messages, and delivered.

Source: TimerRocksDBRecord, TimerMessageRocksDBStore, Timeline; spec 06 section 5.2.
"""

from __future__ import annotations

from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import checked
from rmqtool.formats.declare import Layout
from rmqtool.formats.parts import Int32sb, Int64sb, Struct

VALUE = Layout(
    "RocksDB timer message",
    Struct(
        "size" / Int32sb * "total_size of the record, bytes",
        "physical_offset" / Int64sb * "offset of the record of rmq_sys_wheel_timer in the commit log, bytes",
    ),
    "A timer message: a value of the column family `timer` in rocksdbstore/. Its key: due time in ms (8),"
    " unique key. Delivered messages stay for 30 minutes. `timeline_checkpoint`, 8 bytes, is the time up to"
    " which messages were delivered; `sys_topic_scan_offset_checkpoint` is the queue offset of"
    " rmq_sys_wheel_timer that the broker reads next.",
)
FAMILY = "timer"
TIMELINE, NEXT_OFFSET = b"timeline_checkpoint", b"sys_topic_scan_offset_checkpoint"
_TIME_BYTES = 8


class TimerEntry(NamedTuple):
    """A timer message, due at `due_ms`."""

    due_ms: int
    unique_key: bytes
    size: int
    physical_offset: int


def decode(key: bytes, value: bytes) -> TimerEntry:
    """The entry of a key and its value. Raises FormatError."""
    if len(key) < _TIME_BYTES or len(value) != VALUE.size:
        raise FormatError(f"a timer message with a key of {len(key)} and a value of {len(value)} bytes")
    size, physical_offset = checked.unpack(VALUE, value)
    return TimerEntry(
        int.from_bytes(key[:_TIME_BYTES], "big", signed=True), key[_TIME_BYTES:], size, physical_offset
    )


def decode_number(value: bytes) -> int:
    """The value of TIMELINE or NEXT_OFFSET. Raises FormatError."""
    if len(value) != _TIME_BYTES:
        raise FormatError(f"a number of {len(value)} bytes")
    return int.from_bytes(value, "big", signed=True)
