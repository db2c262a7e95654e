"""The timer wheel of 5.x: its slots, the timer log's units, and the file `config/timercheck`.

    timerwheel    1,209,600 slots of 32 bytes:
                  time i64 | first_position i64 | last_position i64 | num i32 | magic i32
    timerlog      units of 52 bytes in files of one size; a blank of 16 bytes if a unit and 16 more do not fit
    timercheck    seven i64, then zeros up to 4096 bytes

A slot stands for one step of the wheel's precision (a second). The units of its messages form a
chain through `previous_position`, newest first, that starts at the slot's last_position.
Everything is big-endian.

Source: TimerWheel, Slot, TimerLog, TimerCheckpoint; spec 01 sections 9.9 and 9.10.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import checked
from rmqtool.formats.declare import Layout
from rmqtool.formats.parts import Int32sb, Int64sb, Struct
from rmqtool.lazy_pattern import pattern

SNAPSHOT_NAME = pattern(r"timerwheel\.[0-9]{1,19}", re.ASCII)
"""The name of a copy of the wheel, with a position in the timer log (timerWheelSnapshotFlush of 5.4)."""
SLOT = Layout(
    "timer wheel slot",
    Struct(
        "time" / Int64sb * "delivery time in units of the precision since 1970 (seconds by default)",
        "first_position" / Int64sb * "byte offset in the timer log of the oldest unit, -1 for none",
        "last_position" / Int64sb * "byte offset in the timer log of the newest unit, -1 for none",
        "num" / Int32sb * "pending messages in this slot",
        "magic" / Int32sb * "not used, 0",
    ),
    "Slot n holds the messages of the times t with t mod 1,209,600 = n. A slot with another time than the"
    " requested one is empty.",
)
LOG_UNIT = Layout(
    "timer log unit",
    Struct(
        "size" / Int32sb * "52",
        "previous_position" / Int64sb * "byte offset of the slot's previous unit, -1 for none",
        "magic" / Int32sb * "bits: 1 always set, 2 stored again later (roll), 4 delete request",
        "write_time" / Int64sb * "when the unit was written, ms since 1970",
        "delay" / Int32sb * "delivery time minus write_time, ms",
        "physical_offset" / Int64sb * "offset of the message's record in the commit log, bytes",
        "message_size" / Int32sb * "total_size of that record, bytes",
        "topic_hash" / Int32sb * "hash of the topic that the message is for",
        "reserved" / Int64sb * "0",
    ),
    "One message in the timer, or a request to delete one.",
)
LOG_BLANK = Layout(
    "timer log blank",
    Struct(
        "size" / Int32sb * "bytes left in the file, this field included",
        "reserved" / Int64sb * "0",
        "magic" / Int32sb * "CBD43194",
    ),
    "End of a timer log file.",
)
CHECK = Layout(
    "timer checkpoint",
    Struct(
        "last_read_time" / Int64sb * "wheel time up to which messages were delivered, ms since 1970",
        "last_timer_log_flush_position" / Int64sb * "timer log bytes known to be on disk",
        "last_timer_queue_offset" / Int64sb * "next queue offset of rmq_sys_wheel_timer to be read",
        "master_timer_queue_offset" / Int64sb * "the master's value of last_timer_queue_offset",
        "state_version" / Int64sb * "data version: state",
        "timestamp" / Int64sb * "data version: time of the last change, ms since 1970",
        "counter" / Int64sb * "data version: number of changes",
    ),
    "The first 56 of the 4096 bytes of config/timercheck; the rest is zero.",
)

DEFAULT_SLOTS = 604_800 * 2
WHEEL_SIZE = DEFAULT_SLOTS * SLOT.size
DEFAULT_PRECISION_MS = 1000
CHECK_FILE_SIZE = 4096
LOG_BLANK_MAGIC = -875286124  # 0xCBD43194, the magic of the commit log's blank
MAGIC_DEFAULT, MAGIC_ROLL, MAGIC_DELETE = 1, 2, 4
MAGIC_BITS = 0xF
assert (SLOT.size, LOG_UNIT.size, LOG_BLANK.size, CHECK.size) == (32, 52, 16, 56)


class Slot(NamedTuple):
    """One slot of the wheel, as stored; see `SLOT` for what the fields mean."""

    time: int
    first_position: int
    last_position: int
    num: int
    magic: int = 0


class LogUnit(NamedTuple):
    """One timer log unit, as stored; see `LOG_UNIT` for what the fields mean."""

    size: int
    previous_position: int
    magic: int
    write_time: int
    delay: int
    physical_offset: int
    message_size: int
    topic_hash: int
    reserved: int = 0

    @property
    def deliver_time(self) -> int:
        """When the message is due, ms since 1970."""
        return self.write_time + self.delay


class LogBlank(NamedTuple):
    """The end of a timer log file, as stored; see `LOG_BLANK` for what the fields mean."""

    size: int
    reserved: int = 0
    magic: int = LOG_BLANK_MAGIC


_ZEROS = LogBlank(0, 0, 0)


class Check(NamedTuple):
    """The timer checkpoint, as stored; see `CHECK` for what the fields mean."""

    last_read_time: int
    last_timer_log_flush_position: int
    last_timer_queue_offset: int
    master_timer_queue_offset: int
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


def decode_slot(buffer: bytes | memoryview, offset: int = 0) -> Slot:
    """The slot at byte `offset` of `buffer`. Raises FormatError when fewer than 32 bytes are left."""
    return Slot(*checked.unpack(SLOT, buffer, offset))


def encode_slot(slot: Slot) -> bytes:
    """The 32 bytes of `slot`. Raises FormatError for a value that does not fit its field."""
    return checked.pack(SLOT, *slot)


def decode_log(data: bytes | memoryview) -> Iterator[tuple[int, LogUnit | LogBlank]]:
    """The units of a timer log file with their byte offsets in it, up to the blank, zeros or the end.

    Raises:
        FormatError: neither a unit nor a blank nor zeros; a broker cuts its timer log there.
    """
    position = 0
    while LOG_BLANK.size <= len(data) - position:
        blank = LogBlank(*LOG_BLANK.unpack(data, position))
        if blank.magic == LOG_BLANK_MAGIC:
            yield position, blank
            return
        if blank == _ZEROS:
            return
        unit = decode_log_unit(data, position)
        yield position, unit
        position += LOG_UNIT.size


def is_log_blank(data: bytes) -> bool:
    """Whether `data` begins with the end of a timer log file."""
    if len(data) < LOG_BLANK.size:
        return False
    return LogBlank(*LOG_BLANK.unpack(data[: LOG_BLANK.size])).magic == LOG_BLANK_MAGIC


def decode_log_unit(buffer: bytes | memoryview, offset: int = 0) -> LogUnit:
    """The unit at byte `offset` of `buffer`.

    Raises:
        FormatError: too few bytes, or a size or magic that no unit has.
    """
    unit = LogUnit(*checked.unpack(LOG_UNIT, buffer, offset))
    if unit.size != LOG_UNIT.size or unit.magic & ~MAGIC_BITS:
        raise FormatError(f"timer log: no unit at byte {offset}: size {unit.size}, magic {unit.magic}")
    return unit


def encode_log_unit(unit: LogUnit) -> bytes:
    """The 52 bytes of `unit`. Raises FormatError for a value that does not fit its field."""
    return checked.pack(LOG_UNIT, *unit)


def encode_log_blank(left: int) -> bytes:
    """The 16 bytes that end a timer log file of which `left` bytes remain."""
    return checked.pack(LOG_BLANK, *LogBlank(left))


def last_unit_offset(file_size: int) -> int:
    """Byte offset in a full timer log file of its last unit. Source: TimerLog#getOffsetForLastUnit."""
    return (file_size - LOG_BLANK.size) // LOG_UNIT.size * LOG_UNIT.size - LOG_UNIT.size


def decode_check(data: bytes | memoryview) -> Check:
    """The timer checkpoint in the bytes of its file.

    Raises:
        FormatError: fewer than 56 bytes.
    """
    return Check(*checked.unpack(CHECK, data))


def encode_check(check: Check) -> bytes:
    """The 4096 bytes of a timercheck file. Raises FormatError for a value that does not fit its field."""
    return checked.pack(CHECK, *check).ljust(CHECK_FILE_SIZE, b"\0")
