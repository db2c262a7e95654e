"""Hosts and message ids: golden values, both directions, any text and bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError
from rmqtool.formats import message_id
from rmqtool.formats.message_id import GrpcUniqueId, Host, OffsetMessageId, UniqueId


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("c0a8000a 0000d431", "192.168.0.10:54321"),
        ("00000000 ffffffff", "0.0.0.0:-1"),
        ("20010db800000000000000000000000a 00002a9f", "[2001:db8::a]:10911"),
        ("00000000000000000000000000000001 00002a9f", "[::1]:10911"),
        ("00000000000000000000ffff0a000001 00000050", "[::ffff:10.0.0.1]:80"),
    ],
)
def test_host_text_both_ways(data: str, text: str) -> None:
    assert message_id.host_text(bytes.fromhex(data)) == text
    assert message_id.host_bytes(text) == bytes.fromhex(data)


def test_long_ipv6_text_is_read() -> None:
    assert message_id.parse_host("[0:0:0:0:0:0:0:1]:80") == Host("::1", 80)


@given(st.binary(max_size=24))
def test_any_host_bytes(data: bytes) -> None:
    if len(data) not in (8, 20):
        with pytest.raises(FormatError, match="a host of"):
            message_id.host_text(data)
    else:
        assert message_id.host_bytes(message_id.host_text(data)) == data


@given(st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20))
def test_host_round_trip(data: bytes) -> None:
    host = message_id.decode_host(data)
    assert message_id.encode_host(host) == data
    assert message_id.parse_host(str(host)) == host


@pytest.mark.parametrize(
    "text",
    ["", ":", "1.2.3.4", "1.2.3.4:", "1.2.3.4:a", "1.2.3:80", "1.2.3.4:²", "[1.2.3.4]:80", "::1:80",
     "[::1]80", "[fe80::1%eth0]:80", "host:80", "1.2.3.4:2147483648", "1.2.3.4:--1", "1.2.3.4: 80",
     "[::1]:" + "9" * 5000],
)  # fmt: skip
def test_odd_host_text_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        message_id.host_bytes(text)


@given(st.text(max_size=60) | st.text("0123456789abcdefABCDEF:.[]% ", max_size=60))
def test_any_text_gives_a_value_or_a_format_error(text: str) -> None:
    for read in (message_id.host_bytes, OffsetMessageId.decode, message_id.decode_unique_id):
        try:
            read(text)
        except FormatError:
            continue


# Spec 01 section 14.6.
@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("10.0.0.1:10911", "0A00000100002A9F0000000000000400"),
        ("[2001:db8::1]:10911", "20010DB800000000000000000000000100002A9F0000000000000400"),
    ],
)
def test_golden_offset_message_id(host: str, text: str) -> None:
    assert message_id.offset_message_id(message_id.host_bytes(host), 1024) == text
    decoded = OffsetMessageId.decode(text)
    assert (str(decoded.store_host), decoded.physical_offset) == (host, 1024)
    assert decoded.encode() == text
    assert OffsetMessageId.decode(text.lower()) == decoded


def test_golden_unique_id() -> None:
    text = "C0A8000A303918B4AAC20012D687002A"
    decoded = message_id.decode_unique_id(text)
    assert decoded == UniqueId("192.168.0.10", 12345, 0x18B4AAC2, 1234567, 42)
    assert decoded.encode() == text


def test_unique_id_of_a_real_client() -> None:
    """UNIQ_KEY of a 5.4.0 client, with the born timestamp of its record."""
    decoded = UniqueId.decode("FD0000000000000000000000000000022CCC4E0E2F2A68E49C230000")
    assert (decoded.address, decoded.pid, decoded.counter) == ("fd00::2", 0x2CCC, 0)
    born_timestamp = 1795251012644
    assert 0 <= born_timestamp - decoded.time_ms(born_timestamp) < 1000


@given(
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    st.binary(min_size=12, max_size=12),
)
def test_ids_round_trip(address: bytes, rest: bytes) -> None:
    text = (address + rest).hex().upper()
    assert OffsetMessageId.decode(text).encode() == text
    unique = UniqueId.decode(text)
    assert unique.encode() == text
    size = len(address)
    for layout in (message_id.OFFSET_MESSAGE_ID[size], message_id.UNIQUE_ID[size]):
        parsed = layout.declaration.parse(address + rest)
        assert layout.declaration.build(dict(parsed)) == address + rest
        assert tuple(parsed[field.name] for field in layout.fields) == layout.unpack(address + rest)
        assert layout.dtype.itemsize == layout.size
        assert all(field.text for field in layout.fields)


@pytest.mark.parametrize("text", ["", "0A", "0" * 31, "0" * 33, "G" * 32, "0 " * 16, "0" * 34, "０" * 32])
def test_odd_ids_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        OffsetMessageId.decode(text)
    with pytest.raises(FormatError):
        message_id.decode_unique_id(text)


def ms(moment: datetime) -> int:
    """`moment` in ms since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def made(month_ms: int) -> UniqueId:
    """A unique id made `month_ms` into some month."""
    return UniqueId("127.0.0.1", 1, 2, month_ms, 3)


DAY = 86_400_000


def test_time_of_a_unique_id_needs_the_month() -> None:
    march = datetime(2024, 3, 20, 12, tzinfo=UTC)
    assert made(DAY).time_ms(ms(march)) == ms(datetime(2024, 3, 2, tzinfo=UTC))
    assert made(25 * DAY).time_ms(ms(march)) == ms(datetime(2024, 2, 26, tzinfo=UTC))
    exactly = made(ms(march) - ms(datetime(2024, 3, 1, tzinfo=UTC)))
    assert exactly.time_ms(ms(march)) == ms(march)
    assert exactly.time_ms(ms(march) - 1) == ms(march) - ms(datetime(2024, 3, 1, tzinfo=UTC)) + ms(
        datetime(2024, 2, 1, tzinfo=UTC)
    )


def test_time_of_a_unique_id_late_in_a_month_is_unsigned() -> None:
    """From day 25 on the number no longer fits 31 bits."""
    assert made(28 * DAY).time_ms(ms(datetime(2024, 3, 31, tzinfo=UTC))) == ms(
        datetime(2024, 3, 29, tzinfo=UTC)
    )


def test_time_of_a_unique_id_in_the_zone_of_its_producer() -> None:
    shanghai = timezone(timedelta(hours=8))
    born = datetime(2024, 3, 1, 1, tzinfo=shanghai)  # still February in UTC
    assert made(3_600_000).time_ms(ms(born), shanghai) == ms(born)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, (1 << 32) - 1))
def test_time_of_a_unique_id_for_any_number(not_after_ms: int, month_ms: int) -> None:
    try:
        found = made(month_ms).time_ms(not_after_ms)
    except FormatError:
        return
    assert found <= not_after_ms


def test_grpc_unique_id() -> None:
    text = "0156F7E71C361B21BC024CCDBE00000007"
    decoded = message_id.decode_unique_id(text)
    assert decoded == GrpcUniqueId(1, bytes.fromhex("56f7e71c361b"), 0x21BC, 0x024CCDBE, 7)
    assert decoded.encode() == text
    assert decoded.time_ms == ms(datetime(2021, 1, 1, tzinfo=UTC)) + 0x024CCDBE * 1000
    parsed = message_id.GRPC_UNIQUE_ID.declaration.parse(bytes.fromhex(text))
    assert (parsed.pid, parsed.sequence) == (decoded.pid, decoded.sequence)
    with pytest.raises(FormatError):
        GrpcUniqueId.decode("02" + text[2:])
    with pytest.raises(FormatError, match="hardware address"):
        GrpcUniqueId(1, b"short", 1, 1, 1).encode()


@pytest.mark.parametrize(
    "unique",
    [
        UniqueId("127.0.0.1", 1 << 16, 0, 0, 0),
        UniqueId("127.0.0.1", 0, 0, -1, 0),
        UniqueId("name", 0, 0, 0, 0),
    ],
)
def test_id_values_that_do_not_fit_are_refused(unique: UniqueId) -> None:
    with pytest.raises(FormatError):
        unique.encode()
    with pytest.raises(FormatError):
        OffsetMessageId(Host("127.0.0.1", 1 << 31), 0).encode()
    with pytest.raises(FormatError):
        message_id.offset_message_id(b"short", 0)
