"""The record codec: golden bytes by field, fast codec = declaration, any bytes, both directions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from construct import ConstructError
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError
from rmqtool.formats import declare, message, properties
from rmqtool.formats.message import Message

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)

# Spec 01 section 14.1, field by field.
GOLDEN_V1 = """
    00 00 00 7a  da a3 20 a7  36 10 a6 86  00 00 00 03  00 00 00 00
    00 00 00 00 00 00 00 07  00 00 00 00 00 00 04 00  00 00 00 00
    00 00 01 8b cf e5 68 00  c0 a8 00 0a 00 00 d4 31
    00 00 01 8b cf e5 68 7b  0a 00 00 01 00 00 2a 9f
    00 00 00 00  00 00 00 00 00 00 00 00
    00 00 00 05  68 65 6c 6c 6f  09  54 6f 70 69 63 54 65 73 74
    00 11  4b 45 59 53 01 6b 31 02 54 41 47 53 01 54 61 67 41
"""
PROPERTIES_4X = b"KEYS\x01k1\x02TAGS\x01TagA"
PROPERTIES_5X = b"TAGS\x01TagA\x02KEYS\x01k1\x02"
GOLDEN = Message(
    total_size=122,
    magic=message.MAGIC_V1,
    body_crc=907060870,
    queue_id=3,
    flag=0,
    queue_offset=7,
    physical_offset=1024,
    sys_flag=0,
    born_timestamp=1700000000000,
    born_host=bytes([192, 168, 0, 10, 0, 0, 0xD4, 0x31]),
    store_timestamp=1700000000123,
    store_host=bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F]),
    reconsume_times=0,
    prepared_transaction_offset=0,
    body_length=5,
    body=b"hello",
    topic_bytes=b"TopicTest",
    properties_length=17,
    properties_bytes=PROPERTIES_4X,
)


def sized(record: Message, **changes: Any) -> Message:
    """`record` with changes, its lengths made right."""
    record = dataclasses.replace(record, **changes)
    version = message.VERSION_BY_MAGIC[record.magic]
    lengths = (len(record.body), len(record.topic_bytes), len(record.properties_bytes))
    return dataclasses.replace(
        record,
        total_size=message.record_size(version, record.sys_flag, *lengths),
        body_length=lengths[0],
        properties_length=lengths[2],
    )


@st.composite
def records(draw: st.DrawFn) -> Message:
    """Sound records of both versions with all four kinds of hosts."""
    version = draw(st.sampled_from((1, 2)))
    sys_flag = draw(I32)
    hosts = {
        name: draw(st.binary(min_size=size, max_size=size))
        for name, bit in (("born_host", message.BORN_HOST_V6), ("store_host", message.STORE_HOST_V6))
        for size in (message.HOST_V6_SIZE if sys_flag & bit else message.HOST_V4_SIZE,)
    }
    numbers = {name: draw(I32) for name in ("body_crc", "queue_id", "flag", "reconsume_times")} | {
        name: draw(I64)
        for name in ("queue_offset", "physical_offset", "born_timestamp", "store_timestamp",
                     "prepared_transaction_offset")
    }  # fmt: skip
    return sized(
        GOLDEN,
        magic=message.MAGIC_BY_VERSION[version],
        sys_flag=sys_flag,
        body=draw(st.binary(max_size=40)),
        topic_bytes=draw(st.binary(max_size=127 if version == 1 else 300)),
        properties_bytes=draw(st.binary(max_size=40)),
        **hosts,
        **numbers,
    )


def as_declared(record: Message) -> dict[str, Any]:
    """A record's values by the names of the declaration."""
    values = dataclasses.asdict(record)
    values["topic"] = values.pop("topic_bytes")
    values["topic_length"] = len(record.topic_bytes)
    values["properties"] = values.pop("properties_bytes")
    return values


def test_golden_record_by_field() -> None:
    data = bytes.fromhex(GOLDEN_V1)
    assert message.decode(data) == GOLDEN
    assert message.encode(GOLDEN) == data
    assert (GOLDEN.version, GOLDEN.topic, GOLDEN.transaction_type) == (1, "TopicTest", 0)
    parsed = message.RECORD.parse(data)
    assert {name: parsed[name] for name in as_declared(GOLDEN)} == as_declared(GOLDEN)
    assert message.masked_crc(b"hello") == GOLDEN.body_crc


def test_golden_offsets() -> None:
    offsets = message.HEADS[0].offsets
    assert list(offsets.values()) == [0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 84]
    v6 = message.HEADS[message.BORN_HOST_V6 | message.STORE_HOST_V6].offsets
    assert [v6[name] for name in ("born_host", "store_timestamp", "store_host", "reconsume_times")] == [
        48, 68, 76, 96,
    ]  # fmt: skip


def test_golden_record_of_5x() -> None:
    record = sized(GOLDEN, properties_bytes=PROPERTIES_5X)
    data = message.encode(record)
    assert data[:4] == bytes.fromhex("0000007b")
    assert data[103:] == bytes.fromhex("0012 54414753015461674102 4b455953016b3102")
    assert message.decode(data) == record


def test_golden_record_with_property_crc() -> None:
    reserved = properties.reserve_property_crc(PROPERTIES_5X)
    record = properties.seal_property_crc(message.encode(sized(GOLDEN, properties_bytes=reserved)))
    assert (record[:4], record[103:105]) == (bytes.fromhex("0000008f"), bytes.fromhex("0026"))
    assert record[-20:] == b"__CRC32#\x018736787821\x02"
    assert properties.property_crc(record) == 1287876378
    assert properties.property_crc_ok(record) is True
    alone = message.encode(sized(GOLDEN, properties_bytes=properties.reserve_property_crc(b"")))
    alone = properties.seal_property_crc(alone)
    assert (len(alone), alone[103:105]) == (125, bytes.fromhex("0014"))
    assert alone[-11:] == b"6377431412\x02"


def test_golden_record_with_ipv6_hosts() -> None:
    record = sized(
        GOLDEN,
        sys_flag=0x30,
        born_host=bytes.fromhex("20010db800000000000000000000000a0000d431"),
        store_host=bytes(15) + b"\x01" + bytes.fromhex("00002a9f"),
    )
    data = message.encode(record)
    assert (record.total_size, data[36:40]) == (146, bytes.fromhex("00000030"))
    assert (data[48:68], data[76:96]) == (record.born_host, record.store_host)
    assert message.decode(data) == record


def test_golden_record_of_version_2() -> None:
    topic = b"%RETRY%" + 121 * b"g"
    record = sized(GOLDEN, magic=message.MAGIC_V2, topic_bytes=topic, properties_bytes=PROPERTIES_5X)
    data = message.encode(record)
    assert data[:8] == bytes.fromhex("000000f3 daa320ab")
    assert data[93:95] == bytes.fromhex("0080")
    assert message.decode(data) == record
    assert record.version == 2


def test_golden_blank() -> None:
    assert message.encode_blank(96) == bytes.fromhex("00000060 cbd43194")
    assert message.BLANK.unpack(message.encode_blank(96)) == (96, message.BLANK_MAGIC)


@pytest.mark.parametrize(
    ("data", "crc"),
    [(b"hello", 907060870), (b"world", 980881731), (b"a", 1756872259), (b"abc", 891568578), (b"", 0)],
)
def test_golden_crc(data: bytes, crc: int) -> None:
    assert message.masked_crc(data) == crc


@given(records())
def test_fast_codec_equals_declaration(record: Message) -> None:
    data = message.encode(record)
    assert len(data) == record.total_size
    assert message.RECORD.build(as_declared(record)) == data
    assert message.decode(data) == record
    parsed = message.RECORD.parse(data)
    assert {name: parsed[name] for name in as_declared(record)} == as_declared(record)


@given(records(), st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_is_found_at_its_offset(record: Message, before: bytes, behind: bytes) -> None:
    data = message.encode(record)
    assert message.decode(before + data + behind, len(before)) == record
    assert message.decode(memoryview(before + data), len(before)) == record


@given(records(), st.data())
def test_damaged_records_give_a_value_or_a_format_error(record: Message, data: st.DataObject) -> None:
    damaged = bytearray(message.encode(record))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    read_any(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    read_any(bytes(damaged))


@given(st.binary(max_size=300))
def test_any_bytes_give_a_value_or_a_format_error(data: bytes) -> None:
    read_any(data)
    read_any(data[:4] + message.MAGIC_V1.to_bytes(4, signed=True) + data[8:])
    start = len(data).to_bytes(4) + message.MAGIC_V2.to_bytes(4, signed=True)
    read_any(start + data[8:])


def read_any(data: bytes) -> None:
    """What can be read must be what is there, and what the declaration reads."""
    try:
        record = message.decode(data)
    except FormatError:
        return
    assert message.encode(record) == data[: record.total_size]
    parsed = message.RECORD.parse(data)
    assert {name: parsed[name] for name in as_declared(record)} == as_declared(record)


@pytest.mark.parametrize(
    "changes",
    [
        {"total_size": 121},
        {"total_size": 123},
        {"total_size": -1},
        {"total_size": 0x7FFFFFFF},
        {"magic": message.BLANK_MAGIC},
        {"body_length": 6},
        {"body_length": 0x7FFFFFFF},
        {"body_length": -1},
        {"properties_length": 16},
        {"properties_length": -2},
        {"sys_flag": message.STORE_HOST_V6, "store_host": bytes(20)},
    ],
)
def test_lengths_that_do_not_add_up_are_refused(changes: dict[str, Any]) -> None:
    data = message.encode(dataclasses.replace(GOLDEN, **changes))
    with pytest.raises(FormatError):
        message.decode(data)


def test_every_cut_is_refused() -> None:
    data = bytes.fromhex(GOLDEN_V1)
    for length in range(len(data)):
        with pytest.raises(FormatError):
            message.decode(data[:length])
        with pytest.raises((ConstructError, FormatError)):
            message.RECORD.parse(data[:length])


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_id": 1 << 31},
        {"physical_offset": 1 << 63},
        {"topic_bytes": bytes(128)},
        {"properties_length": 1 << 15},
        {"magic": message.MAGIC_V2, "topic_bytes": bytes(1 << 15)},
    ],
)
def test_values_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="does not fit"):
        message.encode(dataclasses.replace(GOLDEN, **changes))


def test_a_topic_that_is_not_utf8_reads_as_replacement() -> None:
    record = sized(GOLDEN, topic_bytes=b"a\xffb")
    assert record.topic == "a\ufffdb"
    assert message.encode(message.decode(message.encode(record))) == message.encode(record)


@pytest.mark.parametrize("layout", [*message.HEADS.values(), message.BLANK, properties.CRC_PROPERTY])
def test_a_layout_agrees_with_its_declaration(layout: declare.Layout) -> None:
    assert layout.dtype.itemsize == layout.size == layout.codec.size
    assert sum(field.size or 0 for field in layout.fields) == layout.size
    data = bytes(range(7, 7 + layout.size))
    data = data[:36] + bytes.fromhex("00000000") + data[40:] if len(data) > 40 else data
    values = layout.unpack(data)
    assert layout.pack(*values) == data
    row = np.frombuffer(data, layout.dtype)[0]
    for field, value in zip(layout.fields, values, strict=True):
        assert field.text, f"{layout.name}.{field.name} has no text"
        stored = row[field.name]
        assert (stored.tobytes() if field.kind == "bytes" else stored) == value
        assert layout.dtype.fields is not None
        assert layout.dtype.fields[field.name][1] == layout.offsets[field.name] == field.offset


def test_fields_behind_a_length_have_no_fixed_place() -> None:
    fields = {field.name: field for field in declare.fields_of(message.RECORD, sys_flag=0)}
    assert (fields["body"].offset, fields["body"].size) == (88, None)
    assert (fields["topic_length"].offset, fields["properties"].offset) == (None, None)
    assert fields["sys_flag"] == declare.Field("sys_flag", 36, 4, "i32", fields["sys_flag"].text)
    assert all(field.text for field in fields.values())


def test_a_layout_wants_fixed_sizes() -> None:
    with pytest.raises(TypeError, match="no fixed size"):
        declare.Layout("record", message.RECORD, "", sys_flag=0)
