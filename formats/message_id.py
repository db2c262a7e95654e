"""Hosts and message ids.

    offset message id   address 4|16 | port i32 | physical_offset i64           32 or 56 hex digits
    unique id           address 4|16 | pid u16 | loader_hash i32 | month_ms u32 | counter u16
                                                                                32 or 56 hex digits
    gRPC unique id      version u8 = 1 | mac 6 | pid u16 | seconds u32 | sequence u32
                                                                                34 hex digits

An offset message id names a record by store host and physical offset; it is derived, never
stored. A unique id is made by the producer and stored as the property UNIQ_KEY. The text of the
two has the same lengths: nothing in it tells one from the other. Digits are written upper-case.

Source: MessageDecoder#createMessageId, #decodeMessageId, MessageClientIDSetter#createUniqID,
org.apache.rocketmq.client.java.message.MessageIdCodec; spec 01 section 4.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import checked
from rmqtool.formats.declare import Layout
from rmqtool.formats.parts import Bytes, Int8ub, Int16ub, Int32sb, Int32ub, Int64sb, Part, Struct

_PORT = struct.Struct(">i")
_PORT_TEXT = re.compile("-?[0-9]{1,10}")
_V4_SIZE = 4
_V6_SIZE = 16
_MAC_SIZE = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GRPC_EPOCH_MS = 1_609_459_200_000  # 2021-01-01T00:00:00Z


def _address_field(size: int) -> Part:
    return "address" / Bytes(size) * "IPv4 or IPv6 address"


def _offset_id(size: int) -> Struct:
    return Struct(
        _address_field(size),
        "port" / Int32sb * "port of the broker's store host",
        "physical_offset" / Int64sb * "offset of the record in the commit log, bytes",
    )


def _unique_id(size: int) -> Struct:
    return Struct(
        _address_field(size),
        "pid" / Int16ub * "lower 16 bits of the producer's process id",
        "loader_hash" / Int32sb * "a number that differs from run to run (hash code of a class loader)",
        "month_ms" / Int32ub * "ms since the first day of the month began, in the producer's time zone",
        "counter" / Int16ub * "lower 16 bits of the messages that the process has made",
    )


OFFSET_MESSAGE_ID: dict[int, Layout] = {
    size: Layout(
        "offset message id",
        _offset_id(size),
        "Names a record by where it is stored: upper-case hex, 32 digits for IPv4, 56 for IPv6.",
    )
    for size in (_V4_SIZE, _V6_SIZE)
}
"""By the bytes of an address: 4 or 16."""

UNIQUE_ID: dict[int, Layout] = {
    size: Layout(
        "unique id",
        _unique_id(size),
        "The property UNIQ_KEY, made by the producer: upper-case hex, 32 digits for IPv4, 56 for IPv6.",
    )
    for size in (_V4_SIZE, _V6_SIZE)
}
"""By the bytes of an address: 4 or 16."""

GRPC_UNIQUE_ID = Layout(
    "gRPC unique id",
    Struct(
        "version" / Int8ub * "1",
        "mac" / Bytes(_MAC_SIZE) * "hardware address of the producer",
        "pid" / Int16ub * "lower 16 bits of the producer's process id",
        "seconds" / Int32ub * "seconds since 2021-01-01T00:00:00Z",
        "sequence" / Int32ub * "messages that the process has made",
    ),
    "The property UNIQ_KEY of messages from gRPC clients (5.x): 34 hex digits.",
)
assert [OFFSET_MESSAGE_ID[size].size for size in (4, 16)] == [16, 28]
assert [UNIQUE_ID[size].size for size in (4, 16)] == [16, 28]
assert GRPC_UNIQUE_ID.size == 17


class Host(NamedTuple):
    """An address and a port; `address` is IPv4 or IPv6 text, IPv6 in its short form."""

    address: str
    port: int

    def __str__(self) -> str:
        """`ip:port`, with the address in brackets for IPv6."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@lru_cache(maxsize=4096)
def address_text(address: bytes) -> str:
    """The text of 4 or 16 address bytes.

    Raises:
        FormatError: neither 4 nor 16 bytes.
    """
    if len(address) == _V4_SIZE:
        return ".".join(map(str, address))
    if len(address) != _V6_SIZE:
        raise FormatError(f"an address of {len(address)} bytes")
    from ipaddress import IPv6Address

    parsed = IPv6Address(address)
    # Python 3.13 and later print these so, earlier ones in hex.
    return f"::ffff:{parsed.ipv4_mapped}" if parsed.ipv4_mapped else parsed.compressed


@lru_cache(maxsize=4096)
def address_bytes(text: str) -> bytes:
    """The 4 or 16 bytes of an address in IPv4 or IPv6 text form.

    Raises:
        FormatError: no such address; names and zones (`%eth0`) are none.
    """
    from ipaddress import ip_address

    try:
        parsed = ip_address(text)
    except ValueError as error:
        raise FormatError(f"{text!r} is no IP address") from error
    if "%" in text:
        raise FormatError(f"{text!r}: an address with a zone cannot be stored")
    return parsed.packed


def decode_host(data: bytes | memoryview) -> Host:
    """The host in 8 or 20 bytes: address, then port as a signed 32-bit number.

    Raises:
        FormatError: another number of bytes.
    """
    data = bytes(data)
    if len(data) not in (_V4_SIZE + _PORT.size, _V6_SIZE + _PORT.size):
        raise FormatError(f"a host of {len(data)} bytes")
    (port,) = _PORT.unpack(data[-_PORT.size :])
    return Host(address_text(data[: -_PORT.size]), port)


def parse_host(text: str) -> Host:
    """The host in `ip:port` or `[ip]:port` text.

    Raises:
        FormatError: not of that form.
    """
    address, found, port = text.rpartition(":")
    bracketed = address.startswith("[") and address.endswith("]")
    if not found or bracketed != (":" in address) or not _PORT_TEXT.fullmatch(port):
        raise FormatError(f"{text!r} is not ip:port or [ip]:port")
    return Host(address_text(address_bytes(address[1:-1] if bracketed else address)), int(port))


def encode_host(host: Host) -> bytes:
    """The 8 or 20 bytes of a host.

    Raises:
        FormatError: no IP address, or a port that does not fit 32 bits.
    """
    try:
        return address_bytes(host.address) + _PORT.pack(host.port)
    except struct.error as error:
        raise FormatError(f"port {host.port} does not fit") from error


def host_text(data: bytes | memoryview) -> str:
    """`ip:port` of the 8 or 20 stored bytes; IPv6 in brackets. Raises FormatError."""
    return str(decode_host(data))


def host_bytes(text: str) -> bytes:
    """The 8 or 20 stored bytes of `ip:port` or `[ip]:port`. Raises FormatError."""
    return encode_host(parse_host(text))


def _from_hex(text: str, what: str) -> bytes:
    # Not bytes.fromhex alone: it passes over spaces.
    if text.isascii() and text.isalnum():
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise FormatError(f"{text!r} is no {what}: hex digits expected")


def _unpack_id(layouts: dict[int, Layout], text: str, what: str) -> tuple[Any, ...]:
    data = _from_hex(text, what)
    for layout in layouts.values():
        if len(data) == layout.size:
            return layout.unpack(data)
    raise FormatError(f"{text!r} is no {what}: 32 or 56 hex digits expected")


def _to_hex(layout: Layout, values: tuple[Any, ...]) -> str:
    return checked.pack(layout, *values).hex().upper()


@dataclass(frozen=True, slots=True)
class OffsetMessageId:
    """The store host and physical offset that an offset message id names."""

    store_host: Host
    physical_offset: int

    @classmethod
    def decode(cls, text: str) -> OffsetMessageId:
        """Raises FormatError when `text` is not 32 or 56 hex digits, of either case."""
        address, port, physical_offset = _unpack_id(OFFSET_MESSAGE_ID, text, "offset message id")
        return cls(Host(address_text(address), port), physical_offset)

    def encode(self) -> str:
        """The id's text, upper-case. Raises FormatError for a value that does not fit."""
        return offset_message_id(encode_host(self.store_host), self.physical_offset)


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The offset message id of a record from its stored host bytes (8 or 20) and offset.

    Raises:
        FormatError: a host of other length, or an offset that does not fit 64 bits.
    """
    address = store_host[: -_PORT.size]
    if len(address) not in OFFSET_MESSAGE_ID:
        raise FormatError(f"a host of {len(store_host)} bytes")
    (port,) = _PORT.unpack(store_host[-_PORT.size :])
    return _to_hex(OFFSET_MESSAGE_ID[len(address)], (address, port, physical_offset))


@dataclass(frozen=True, slots=True)
class UniqueId:
    """What a unique id of a remoting client says; see `UNIQUE_ID` for what the fields mean."""

    address: str
    pid: int
    loader_hash: int
    month_ms: int
    counter: int

    @classmethod
    def decode(cls, text: str) -> UniqueId:
        """Raises FormatError when `text` is not 32 or 56 hex digits, of either case."""
        address, *rest = _unpack_id(UNIQUE_ID, text, "unique id")
        return cls(address_text(address), *rest)

    def encode(self) -> str:
        """The id's text, upper-case. Raises FormatError for a value that does not fit."""
        address = address_bytes(self.address)
        values = (address, self.pid, self.loader_hash, self.month_ms, self.counter)
        return _to_hex(UNIQUE_ID[len(address)], values)

    def time_ms(self, not_after_ms: int, zone: tzinfo = UTC) -> int:
        """When the id was made, in ms since 1970.

        The id holds no month: the latest one is taken that puts the time at or before
        `not_after_ms` (a born timestamp, or now), months beginning in `zone`, the producer's.

        Raises:
            FormatError: `not_after_ms` is in no year that a calendar knows.

        Source: MessageClientIDSetter#getNearlyTimeFromID, which takes a time equal to now for the
        month before.
        """
        try:
            moment = (_EPOCH + timedelta(milliseconds=not_after_ms)).astimezone(zone)
            month = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
            while (made_ms := _ms(month) + self.month_ms) > not_after_ms:
                month = (month - timedelta(days=1)).replace(day=1)
        except (OverflowError, ValueError) as error:
            raise FormatError(f"{not_after_ms} ms is no usable time") from error
        return made_ms


def _ms(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class GrpcUniqueId:
    """What a unique id of a gRPC client (5.x) says; see `GRPC_UNIQUE_ID`."""

    version: int
    mac: bytes
    pid: int
    seconds: int
    sequence: int

    @classmethod
    def decode(cls, text: str) -> GrpcUniqueId:
        """Raises FormatError when `text` is not 34 hex digits that begin with 01."""
        data = _from_hex(text, "gRPC unique id")
        if len(data) != GRPC_UNIQUE_ID.size or data[0] != 1:
            raise FormatError(f"{text!r} is no gRPC unique id: 34 hex digits that begin with 01 expected")
        return cls(*GRPC_UNIQUE_ID.unpack(data))

    def encode(self) -> str:
        """The id's text, upper-case. Raises FormatError for a value that does not fit."""
        if len(self.mac) != _MAC_SIZE:
            raise FormatError(f"a hardware address of {len(self.mac)} bytes")
        return _to_hex(GRPC_UNIQUE_ID, (self.version, self.mac, self.pid, self.seconds, self.sequence))

    @property
    def time_ms(self) -> int:
        """When the id was made, in ms since 1970, to the second."""
        return _GRPC_EPOCH_MS + self.seconds * 1000


def decode_unique_id(text: str) -> UniqueId | GrpcUniqueId:
    """The unique id in `text`, of either kind of client.

    A UNIQ_KEY can be any text: producers may set their own.

    Raises:
        FormatError: `text` has the form of neither.
    """
    if len(text) == GRPC_UNIQUE_ID.size * 2:
        return GrpcUniqueId.decode(text)
    return UniqueId.decode(text)
