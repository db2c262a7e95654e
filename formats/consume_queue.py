"""The consume queue: its unit, the unit of batch queues, and the extension unit with its address.

    unit        physical_offset i64 | size i32 | tags_code i64
    batch unit  physical_offset i64 | size i32 | tags_code i64 | store_timestamp i64 | base_offset i64
                batch_size i16 | compacted_offset i32 | reserved i32
    ext unit    size i16 | tags_code i64 | store_timestamp i64 | bit_map_size i16 | bit_map

A consume queue is a sequence of files of equal size, each named after the byte offset of its first
unit; the unit of queue offset q stands at byte 20 * q. In a batch queue units are dense and the
names say nothing about queue offsets. Everything is big-endian.

Source: ConsumeQueue, BatchConsumeQueue, ConsumeQueueExt; spec 01 section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import checked
from rmqtool.formats.declare import Layout
from rmqtool.formats.parts import Bytes, Int16sb, Int32sb, Int64sb, Part, Struct

UNIT = Layout(
    "consume queue unit",
    Struct(
        "physical_offset" / Int64sb * "offset of the record in the commit log, bytes",
        "size" / Int32sb * "total_size of the record, bytes; 7FFFFFFF in a filler",
        "tags_code" / Int64sb * "hash of the tags, 0 for none; in SCHEDULE_TOPIC_XXXX the delivery time"
        " (ms since 1970); at most -2147483649: address of an extension unit",
    ),
    "One message of a queue: the unit of queue offset q is at byte 20 * q of the queue."
    " Zeros are units that are not written yet.",
)
UNIT_SIZE = UNIT.size

BATCH_UNIT = Layout(
    "batch consume queue unit",
    Struct(
        "physical_offset" / Int64sb * "offset of the record in the commit log, bytes",
        "size" / Int32sb * "total_size of the record, bytes",
        "tags_code" / Int64sb * "hash of the tags, 0 for none",
        "store_timestamp" / Int64sb * "when the broker stored the record, ms since 1970",
        "base_offset" / Int64sb * "queue offset of the first message in the record",
        "batch_size" / Int16sb * "messages in the record, at least 1",
        "compacted_offset" / Int32sb * "-1",
        "reserved" / Int32sb * "0",
    ),
    "One record of a batch queue (topics with queue.type=BatchCQ, 5.x). It covers the queue offsets"
    " [base_offset, base_offset + batch_size). Units follow each other without gaps.",
)
BATCH_UNIT_SIZE = BATCH_UNIT.size

_EXT_HEAD_FIELDS: tuple[Part, ...] = (
    "size" / Int16sb * "bytes of the whole unit, 20 + bit_map_size; -1: nothing follows in this file",
    "tags_code" / Int64sb * "hash of the tags, 0 for none",
    "store_timestamp" / Int64sb * "when the broker stored the record, ms since 1970",
    "bit_map_size" / Int16sb * "bytes of bit_map, 0 for none",
)
EXT_HEAD = Layout("consume queue extension head", Struct(*_EXT_HEAD_FIELDS), "")
EXT_UNIT = Struct(
    *_EXT_HEAD_FIELDS,
    "bit_map"
    / Bytes(lambda context: context.bit_map_size)
    * "Bloom filter bits: bit i is in byte i / 8, mask 1 << i % 8",
)
EXT_UNIT_TEXT = (
    "The target of a consume queue unit's tags code when enableConsumeQueueExt is on. Its address is"
    " its byte offset in the extension files, minus 2^63."
)
EXT_END = b"\xff\xff"  # size -1: the rest of this extension file is unused
EXT_END_ROOM = 4  # bytes that stay free at the end of an extension file, for EXT_END

DEFAULT_UNITS = 300_000  # units of a queue file in a broker's default configuration
MAX_EXT_ADDRESS = -2147483649  # Integer.MIN_VALUE - 1: no tag hash is below Integer.MIN_VALUE
MAX_EXT_OFFSET = MAX_EXT_ADDRESS + (1 << 63)  # ConsumeQueueExt#MAX_REAL_OFFSET
_LONG_MIN = -(1 << 63)
_FILLER_SIZE = 0x7FFFFFFF
assert (UNIT_SIZE, BATCH_UNIT_SIZE, EXT_HEAD.size) == (20, 46, 20)


class Unit(NamedTuple):
    """One consume queue unit, as stored; see `UNIT` for what the fields mean."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_present(self) -> bool:
        """Whether a broker regards the unit as written. A filler counts as present."""
        return self.physical_offset >= 0 and self.size > 0

    @property
    def is_pre_blank(self) -> bool:
        """Whether this is a filler, written before the first unit of a queue that starts late."""
        return self == PRE_BLANK

    @property
    def messages(self) -> int:
        """How many messages its record holds."""
        return 1


PRE_BLANK = Unit(0, _FILLER_SIZE, 0)
"""The filler unit. Source: ConsumeQueue#fillPreBlank."""


class BatchUnit(NamedTuple):
    """One batch consume queue unit, as stored; see `BATCH_UNIT` for what the fields mean."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base_offset: int
    batch_size: int
    compacted_offset: int = -1
    reserved: int = 0

    @property
    def is_present(self) -> bool:
        """Whether a broker regards the unit as written."""
        return self.physical_offset >= 0 and self.size > 0 and self.base_offset >= 0 and self.batch_size > 0

    @property
    def is_pre_blank(self) -> bool:
        """Never: a broker writes no fillers into batch queues."""
        return False

    @property
    def messages(self) -> int:
        """How many messages its record holds."""
        return max(self.batch_size, 1)


class ExtUnit(NamedTuple):
    """One extension unit, as stored; see `EXT_UNIT` for what the fields mean."""

    size: int
    tags_code: int
    store_timestamp: int
    bit_map: bytes


def file_size(configured: int) -> int:
    """Bytes of a queue file for a configured mappedFileSizeConsumeQueue: rounded up to whole units.

    Batch queue files are not rounded. Source: MessageStoreConfig#getMappedFileSizeConsumeQueue.
    """
    return -(-configured // UNIT_SIZE) * UNIT_SIZE


def decode_unit(buffer: bytes | memoryview, offset: int = 0) -> Unit:
    """The unit at byte `offset` of `buffer`.

    Raises:
        FormatError: fewer than 20 bytes are left there.
    """
    return Unit(*checked.unpack(UNIT, buffer, offset))


def decode_units(data: bytes | memoryview) -> Iterator[Unit]:
    """The whole units of `data` from its start; bytes after the last whole unit are ignored."""
    whole = len(data) - len(data) % UNIT_SIZE
    for values in UNIT.codec.iter_unpack(memoryview(data)[:whole]):
        yield Unit(*values)


def count_present(data: bytes | memoryview) -> int:
    """How many units at the start of `data` are present: those before the first that is not, or not whole."""
    whole = len(data) - len(data) % UNIT_SIZE
    units = UNIT.codec.iter_unpack(memoryview(data)[:whole])
    for number, (physical_offset, size, _) in enumerate(units):
        if physical_offset < 0 or size <= 0:
            return number
    return whole // UNIT_SIZE


def encode_unit(unit: Unit) -> bytes:
    """The 20 bytes of `unit`. Raises FormatError for a value that does not fit its field."""
    return checked.pack(UNIT, *unit)


def decode_batch_unit(buffer: bytes | memoryview, offset: int = 0) -> BatchUnit:
    """The batch unit at byte `offset` of `buffer`.

    Raises:
        FormatError: fewer than 46 bytes are left there.
    """
    return BatchUnit(*checked.unpack(BATCH_UNIT, buffer, offset))


def decode_batch_units(data: bytes | memoryview) -> Iterator[BatchUnit]:
    """The whole batch units of `data`; bytes after the last whole unit are ignored."""
    whole = len(data) - len(data) % BATCH_UNIT_SIZE
    for values in BATCH_UNIT.codec.iter_unpack(memoryview(data)[:whole]):
        yield BatchUnit(*values)


def encode_batch_unit(unit: BatchUnit) -> bytes:
    """The 46 bytes of `unit`. Raises FormatError for a value that does not fit its field."""
    return checked.pack(BATCH_UNIT, *unit)


def is_ext_address(tags_code: int) -> bool:
    """Whether a unit's tags code is the address of an extension unit. Source: ConsumeQueueExt#isExtAddr."""
    return tags_code <= MAX_EXT_ADDRESS


def ext_offset(address: int) -> int:
    """Byte offset in the extension files of the unit with this address.

    Raises:
        FormatError: it is a tags code, not an address.
    """
    if not is_ext_address(address):
        raise FormatError(f"{address} is not an address of a consume queue extension unit")
    return address - _LONG_MIN


def ext_address(offset: int) -> int:
    """The address of the extension unit at byte `offset`. Raises FormatError when it has none."""
    address = offset + _LONG_MIN
    if offset < 0 or not is_ext_address(address):
        raise FormatError(f"offset {offset} is out of the range of extension addresses")
    return address


def decode_ext_unit(buffer: bytes | memoryview, offset: int = 0) -> ExtUnit:
    """The extension unit at byte `offset` of `buffer`.

    Raises:
        FormatError: size is not 20 + bit_map_size (so also at the end mark), or too few bytes are left.
    """
    size, tags_code, store_timestamp, bit_map_size = checked.unpack(EXT_HEAD, buffer, offset)
    if bit_map_size < 0 or size != EXT_HEAD.size + bit_map_size:
        raise FormatError(f"extension unit of {size} bytes with a bit map of {bit_map_size}")
    start = offset + EXT_HEAD.size
    if bit_map_size > len(buffer) - start:
        raise FormatError(f"bit map of {bit_map_size} bytes, {len(buffer) - start} are left")
    return ExtUnit(size, tags_code, store_timestamp, bytes(buffer[start : start + bit_map_size]))


def encode_ext_unit(unit: ExtUnit) -> bytes:
    """The bytes of `unit`. Raises FormatError for a value that does not fit its field."""
    head = checked.pack(EXT_HEAD, unit.size, unit.tags_code, unit.store_timestamp, len(unit.bit_map))
    return head + unit.bit_map
