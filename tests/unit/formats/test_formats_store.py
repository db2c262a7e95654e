"""Queue, index, checkpoint, marker, timer, epoch and trace codecs: golden bytes, both directions, any bytes.

Bytes marked "broker" are from stores that real brokers wrote; the others are worked examples of
the specification (01 section 14, 02 appendix A).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError
from rmqtool.formats import (
    STRUCTURES,
    checkpoint,
    compaction,
    consume_queue,
    epoch,
    fastjson,
    index,
    java,
    markers,
    remoting,
    timer,
    trace,
)
from rmqtool.formats.consume_queue import BatchUnit, ExtUnit, Unit
from rmqtool.formats.declare import Layout, fields_of
from rmqtool.formats.index import Entry, Header, Shape
from rmqtool.formats.java import index_key_hash
from rmqtool.formats.message import masked_crc
from rmqtool.formats.timer import Check, LogBlank, LogUnit, Slot

I16 = st.integers(-(1 << 15), (1 << 15) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)

GOLDEN: list[tuple[str, Any, Callable[[bytes], Any], Callable[[Any], bytes]]] = [
    # consume queue: of the record of 14.1; delay level 3; filler; the largest tags code below zero
    ("0000000000000400 0000007a 000000000027a807", Unit(1024, 122, 2598919),
     consume_queue.decode_unit, consume_queue.encode_unit),
    ("0000000000000400 0000007a 0000018bcfe58f8b", Unit(1024, 122, 1700000010123),
     consume_queue.decode_unit, consume_queue.encode_unit),
    ("0000000000000000 7fffffff 0000000000000000", consume_queue.PRE_BLANK,
     consume_queue.decode_unit, consume_queue.encode_unit),
    ("0000000000000000 00000001 ffffffff80000000", Unit(0, 1, -2147483648),
     consume_queue.decode_unit, consume_queue.encode_unit),
    # broker 4.9.7: pubMultiTag, and SCHEDULE_TOPIC_XXXX level 3
    ("00000000000896b9 000000e5 00000000001b0d63", Unit(562873, 229, 1772899),
     consume_queue.decode_unit, consume_queue.encode_unit),
    ("0000000000085fef 000001d7 000001a1fd4cdcc8", Unit(548847, 471, 1795251035336),
     consume_queue.decode_unit, consume_queue.encode_unit),
    ("0000000000000400 000001f4 000000000027a807 0000018bcfe5687b 0000000000000028 000a ffffffff 00000000",
     BatchUnit(1024, 500, 2598919, 1700000000123, 40, 10),
     consume_queue.decode_batch_unit, consume_queue.encode_batch_unit),
    # broker 5.3.3: pubBatchCQ
    ("00000000003855f0 00000222 0000000000000000 000001a1fd59b76d 0000000000000002 0002 ffffffff 00000000",
     BatchUnit(3692016, 546, 0, 1795251877741, 2, 2),
     consume_queue.decode_batch_unit, consume_queue.encode_batch_unit),
    ("0014 000000000027a807 0000018bcfe5687b 0000", ExtUnit(20, 2598919, 1700000000123, b""),
     consume_queue.decode_ext_unit, consume_queue.encode_ext_unit),
    ("0016 000000000027a807 0000018bcfe5687b 0002 8001", ExtUnit(22, 2598919, 1700000000123, b"\x80\x01"),
     consume_queue.decode_ext_unit, consume_queue.encode_ext_unit),
    # index: the three puts of 14.5
    ("0000018bcfe5687b 0000018bcfe577a0 0000000000000400 0000000000000524 00000002 00000004",
     Header(1700000000123, 1700000004000, 1024, 1316, 2, 4), index.decode_header, index.encode_header),
    ("0029e6a8 0000000000000400 00000000 00000000", Entry(2746024, 1024, 0, 0),
     index.decode_entry, index.encode_entry),
    ("0029e6a9 0000000000000492 00000002 00000000", Entry(2746025, 1170, 2, 0),
     index.decode_entry, index.encode_entry),
    ("0029e6a8 0000000000000524 00000003 00000001", Entry(2746024, 1316, 3, 1),
     index.decode_entry, index.encode_entry),
    ("00000003", 3, index.decode_slot, index.encode_slot),
    # broker 5.4.0
    ("000001a1fd54e098 000001a1fd55376b 0000000000000000 000000000002a67c 000001b6 000003c1",
     Header(1795251560600, 1795251582827, 0, 173692, 438, 961), index.decode_header, index.encode_header),
    # timer: broker 5.4.0
    ("000000006b015b52 0000000000000034 000000000000009c 00000002 00000000",
     Slot(1795251026, 52, 156, 2), timer.decode_slot, timer.encode_slot),
    ("00000034 ffffffffffffffff 00000001 000001a1fd4ca4c8 00000bb8 00000000000a08d3 0000019f 4ae56c86"
     " 0000000000000000", LogUnit(52, -1, 1, 1795251021000, 3000, 657619, 415, 1256549510),
     timer.decode_log_unit, timer.encode_log_unit),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value", "decode", "encode"), GOLDEN)
def test_golden(
    text: str, value: Any, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> None:
    data = bytes.fromhex(text)
    assert decode(data) == value
    assert encode(value) == data


@pytest.mark.parametrize(
    "decode",
    [
        consume_queue.decode_unit, consume_queue.decode_batch_unit, consume_queue.decode_ext_unit,
        index.decode_header, index.decode_entry, index.decode_slot, checkpoint.decode,
        timer.decode_slot, timer.decode_log_unit, timer.decode_check, epoch.decode, markers.decode_abort,
        trace.decode, lambda data: list(timer.decode_log(data)),
        lambda data: list(consume_queue.decode_units(data)),
        lambda data: list(consume_queue.decode_batch_units(data)),
        lambda data: [found.fields() for found in trace.decode(data)],
    ],
)  # fmt: skip
@given(data=st.one_of(st.binary(max_size=120), st.text(max_size=40).map(str.encode)))
def test_any_bytes_give_a_value_or_a_format_error(decode: Callable[[bytes], Any], data: bytes) -> None:
    try:
        decode(data)
    except FormatError as error:
        assert str(error)


LAYOUTS = [
    *(declaration for _, declaration, _ in STRUCTURES if isinstance(declaration, Layout)),
    remoting.HEAD,
    remoting.HEADER,
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@given(data=st.data())
def test_fast_codec_declaration_and_dtype_agree(layout: Layout, data: st.DataObject) -> None:
    packed = data.draw(st.binary(min_size=layout.size, max_size=layout.size))
    values = layout.unpack(packed)
    parsed = layout.declaration.parse(packed)
    assert values == tuple(parsed[field.name] for field in layout.fields)
    assert layout.pack(*values) == packed
    row = np.frombuffer(packed, layout.dtype)[0]
    for field, value in zip(layout.fields, values, strict=True):
        assert (row[field.name].tobytes() if field.kind == "bytes" else row[field.name]) == value


def test_every_structure_and_field_has_a_text() -> None:
    for title, declaration, text in STRUCTURES:
        fields = declaration.fields if isinstance(declaration, Layout) else tuple(fields_of(declaration))
        assert title and text and fields
        assert all(field.text for field in fields), title
    titles = [title for title, _, _ in STRUCTURES]
    assert len(set(titles)) == len(titles)


@given(st.builds(Unit, I64, I32, I64), st.builds(BatchUnit, I64, I32, I64, I64, I64, I16, I32, I32))
def test_units_round_trip(unit: Unit, batch: BatchUnit) -> None:
    assert consume_queue.decode_unit(consume_queue.encode_unit(unit)) == unit
    assert consume_queue.decode_batch_unit(consume_queue.encode_batch_unit(batch)) == batch


@pytest.mark.parametrize(
    "encode",
    [
        lambda: consume_queue.encode_unit(Unit(1 << 63, 0, 0)),
        lambda: consume_queue.encode_batch_unit(BatchUnit(0, 0, 0, 0, 0, 1 << 15)),
        lambda: index.encode_entry(Entry(1 << 31, 0, 0, 0)),
        lambda: checkpoint.encode(checkpoint.Checkpoint(1 << 63)),
        lambda: timer.encode_slot(Slot(0, 0, 0, 1 << 31)),
        lambda: markers.encode_abort(-1),
    ],
)
def test_values_that_do_not_fit_are_format_errors(encode: Callable[[], bytes]) -> None:
    with pytest.raises(FormatError):
        encode()


# consume queue


def test_units_of_a_file_leave_out_a_torn_last_one() -> None:
    unit = Unit(1024, 122, 2598919)
    data = consume_queue.encode_unit(unit) * 3
    assert list(consume_queue.decode_units(data + data[:7])) == [unit] * 3


@pytest.mark.parametrize(
    ("unit", "present", "pre_blank"),
    [
        (Unit(0, 91, 0), True, False),
        (Unit(0, 0, 0), False, False),
        (Unit(-1, 91, 0), False, False),
        (consume_queue.PRE_BLANK, True, True),
        (Unit(1, 0x7FFFFFFF, 0), True, False),
    ],
)
def test_present_units(unit: Unit, present: bool, pre_blank: bool) -> None:
    assert (unit.is_present, unit.is_pre_blank) == (present, pre_blank)


@pytest.mark.parametrize(("changed", "present"), [
    ({}, True), ({"physical_offset": -1}, False), ({"size": 0}, False), ({"base_offset": -1}, False),
    ({"batch_size": 0}, False),
])  # fmt: skip
def test_present_batch_units(changed: dict[str, int], present: bool) -> None:
    assert BatchUnit(0, 1, 0, 0, 0, 1)._replace(**changed).is_present is present


def test_extension_addresses() -> None:
    assert consume_queue.ext_address(0) == -9223372036854775808
    assert consume_queue.ext_address(34) == -9223372036854775774
    assert consume_queue.ext_offset(-2147483649) == 9223372034707292159
    assert consume_queue.is_ext_address(-2147483649)
    assert not consume_queue.is_ext_address(-2147483648)  # a tag hash
    for offset in (-1, 9223372034707292160):
        with pytest.raises(FormatError):
            consume_queue.ext_address(offset)
    with pytest.raises(FormatError):
        consume_queue.ext_offset(-2147483648)


@given(st.binary(max_size=300), I64, I64)
def test_extension_unit_round_trip_and_declaration(bit_map: bytes, tags_code: int, time: int) -> None:
    unit = ExtUnit(20 + len(bit_map), tags_code, time, bit_map)
    data = consume_queue.encode_ext_unit(unit)
    assert consume_queue.decode_ext_unit(b"x" + data + b"y", 1) == unit
    assert consume_queue.EXT_UNIT.parse(data).bit_map == bit_map
    with pytest.raises(FormatError):
        consume_queue.decode_ext_unit(data[:-1])


def test_extension_end_mark_is_no_unit() -> None:
    with pytest.raises(FormatError):
        consume_queue.decode_ext_unit(consume_queue.EXT_END + bytes(30))


def test_queue_file_sizes_are_rounded_up_to_units() -> None:
    assert [consume_queue.file_size(size) for size in (6_000_000, 20_000, 20_001, 1)] == [
        6_000_000, 20_000, 20_020, 20,
    ]  # fmt: skip


# index


def test_index_sizes_and_places() -> None:
    assert index.file_size(5_000_000, 20_000_000) == index.DEFAULT_SHAPE.size == 420_000_040
    assert index_key_hash("TopicTest#k1") % 5_000_000 == 2746024
    assert index.DEFAULT_SHAPE.slot_offset(2746024) == 10984136
    assert index.DEFAULT_SHAPE.entry_offset(1) == 20000060
    small = Shape(5, 4)
    assert [small.slot_offset(4), small.entry_offset(1), small.entry_offset(3)] == [56, 80, 120]
    assert (index_key_hash("TopicTest#k1") % 5, index_key_hash("TopicTest#k2") % 5) == (4, 0)
    assert index_key_hash("TopicTest#key1") % 5_000_000 == 984460
    assert index_key_hash("SCHEDULE_TOPIC_XXXX#key1") % 5_000_000 == 2441667
    assert index_key_hash("polygenelubricants") % 7 == 0


@pytest.mark.parametrize("shape", [index.DEFAULT_SHAPE, Shape(1000, 4000), Shape(5, 20)])
def test_likely_shapes_come_first(shape: Shape) -> None:
    assert next(index.shapes_of(shape.size)) == shape


@given(st.integers(1, 60), st.integers(1, 60))
def test_shapes_of_a_size_are_all_its_shapes(slots: int, entries: int) -> None:
    size = index.file_size(slots, entries)
    shapes = list(index.shapes_of(size))
    assert Shape(slots, entries) in shapes
    assert len(set(shapes)) == len(shapes)
    assert all(shape.size == size and min(shape) > 0 for shape in shapes)


@given(st.integers(-100, 500))
def test_odd_sizes_have_no_shape(size: int) -> None:
    shapes = list(index.shapes_of(size))
    assert bool(shapes) == (size >= 64 and size % 4 == 0)


def test_shapes_are_made_one_by_one() -> None:
    assert len(list(islice(index.shapes_of(1 << 50), 3))) == 3


@given(st.integers(1, 60), st.integers(2, 60), st.data())
def test_shape_follows_from_one_entry(slots: int, entries: int, data: st.DataObject) -> None:
    shape = Shape(slots, entries)
    number = data.draw(st.integers(1, entries - 1))
    offset = shape.entry_offset(number)
    assert index.shape_by_entry(shape.size, number, offset) == shape
    assert index.shape_by_entry(shape.size, number, offset + 1) is None
    assert index.shape_by_entry(shape.size, entries, shape.entry_offset(entries)) is None


def test_index_texts_in_broker_order() -> None:
    texts = list(index.texts_of("T", "U", "a b  a ", "TagA"))
    assert texts == [("uniq_key", "T#U"), ("key", "T#a"), ("key", "T#b"), ("key", "T#a"), ("tag", "T#T#TagA")]
    assert list(index.texts_of("T", None, None)) == []
    assert list(index.texts_of("T", "", "", "")) == [("uniq_key", "T#")]


def test_index_hashes_of_a_broker() -> None:
    """The first record of small-ipv6 of 5.4.0 and its three entries in the index."""
    texts = index.texts_of(
        "pubipv6B", "FD0000000000000000000000000000027EC74E0E2F2A68ECF8520000", "key-1",
        "a-very-long-tag-name-with-dashes_and_underscores",
    )  # fmt: skip
    assert [java.index_key_hash(text) for _, text in texts] == [0x59A0A93F, 0x22F2A622, 0x6169151C]


@given(*[st.integers(0, 9)] * 4)
def test_time_match_is_an_overlap(first: int, last: int, begin: int, end: int) -> None:
    header = Header(min(first, last), max(first, last), 0, 0, 0, 0)
    if begin <= end:
        assert header.is_time_matched(begin, end) == (
            begin <= header.end_timestamp and end >= header.begin_timestamp
        )


def test_index_header_numbers() -> None:
    header = Header(1700000000123, 0, 0, 0, 0, 0)
    assert header.next_entry == 1
    assert header._replace(index_count=4).next_entry == 4
    assert header.entry_timestamp(Entry(0, 0, 3, 0)) == 1700000003123


# checkpoint and markers

CHECKPOINT_HEX = "0000018bcfe5687b0000018bcfe56878" + "00" * 16 + "0000000000000524"
CHECKPOINT_497 = "000001a1fd4d49dd000001a1fd4d49dd000001a1fd4cd19d" + "00" * 16  # broker 4.9.7
CHECKPOINT_540 = "000001a1fd4d7e6c000001a1fd4d7e6c000001a1fd4cc63f" + "00" * 16  # broker 5.4.0


@pytest.mark.parametrize(("text", "fields"), [(CHECKPOINT_HEX, 5), (CHECKPOINT_497, 3), (CHECKPOINT_540, 5)])
def test_checkpoint_files_round_trip(text: str, fields: Any) -> None:
    data = bytes.fromhex(text).ljust(4096, b"\0")
    assert checkpoint.encode(checkpoint.decode(data), fields) == data


def test_checkpoint_values_and_minimum() -> None:
    values = checkpoint.decode(bytes.fromhex(CHECKPOINT_HEX))
    assert values == checkpoint.Checkpoint(1700000000123, 1700000000120, 0, 0, 1316)
    assert (values.min_timestamp, values.min_timestamp_index) == (1699999997120, 0)
    assert checkpoint.Checkpoint(2000, 9000).min_timestamp == 0
    assert checkpoint.encode(values, 3)[24:] == bytes(4096 - 24)


def test_short_checkpoint_is_extended_as_by_a_broker() -> None:
    data = bytes.fromhex(CHECKPOINT_497)
    assert checkpoint.decode(data[:24]) == checkpoint.decode(data)
    with pytest.raises(FormatError):
        checkpoint.decode(data[:23])


@pytest.mark.parametrize(("data", "pid"), [(b"", None), (b"29643", 29643)])
def test_abort(data: bytes, pid: int | None) -> None:
    assert markers.decode_abort(data) == pid
    assert markers.encode_abort(pid) == data


@pytest.mark.parametrize("data", [b"x", b"1\n", "\u0661".encode(), b"9" * 21])
def test_abort_of_something_else(data: bytes) -> None:
    with pytest.raises(FormatError):
        markers.decode_abort(data)


def test_lock_content() -> None:
    assert markers.LOCK.parse(markers.LOCK_CONTENT).text == b"lock"


# timer

CHECK_540 = (  # broker 5.4.0
    "000001a1fd4d7ba0 0000000000000340 0000000000000010 0000000000000010 0000000000000000 000001a1fd4d7db4"
    " 000000000000003c"
)


def test_timer_checkpoint() -> None:
    data = bytes.fromhex(CHECK_540).ljust(4096, b"\0")
    check = timer.decode_check(data)
    assert check == Check(1795251076000, 832, 16, 16, 0, 1795251076532, 60)
    assert timer.encode_check(check) == data


def test_timer_numbers() -> None:
    assert timer.last_unit_offset(104_857_600) == 104_857_532
    unit = LogUnit(52, -1, 1, 1795251021000, 3000, 657619, 415, 1256549510)
    assert unit.deliver_time == 1795251024000


def test_timer_log_ends_at_zeros_blank_or_damage() -> None:
    unit = LogUnit(52, -1, timer.MAGIC_DEFAULT | timer.MAGIC_ROLL, 1795251021000, 3000, 657619, 415, 1)
    packed = timer.encode_log_unit(unit)
    units = [(0, unit), (52, unit)]
    assert list(timer.decode_log(packed * 2)) == units
    assert list(timer.decode_log(packed * 2 + bytes(100))) == units
    blank = timer.encode_log_blank(96)
    assert blank == bytes.fromhex("00000060 0000000000000000 cbd43194")
    assert list(timer.decode_log(packed * 2 + blank + b"\xff" * 80)) == [*units, (104, LogBlank(96))]
    for wrong in (packed[:30], b"\x01" + packed[1:], packed[:12] + b"\x10" + packed[13:]):
        log = timer.decode_log(packed + wrong)
        assert next(log) == (0, unit)
        with pytest.raises(FormatError):
            next(log)


# epoch

EPOCHS = [epoch.Entry(7, 7000), epoch.Entry(8, 8000)]


def test_epoch_file() -> None:
    data = b"2\n773307083\n7-7000\n8-8000\n"
    assert epoch.decode(data) == EPOCHS
    assert epoch.encode(EPOCHS) == data
    parsed = epoch.EPOCH_FILE.parse(data)
    assert (parsed.count, parsed.crc, parsed.entries) == ("2", "773307083", "7-7000\n8-8000\n")


def test_epoch_file_without_crc_or_with_other_line_ends() -> None:
    assert epoch.decode(b"2\n0\n7-7000\n8-8000") == EPOCHS
    windows = b"7-7000\r\n8-8000\r\n"
    assert epoch.decode(b"2\r\n%d\r\n" % masked_crc(windows) + windows) == EPOCHS


@pytest.mark.parametrize("data", [
    b"", b"2", b"2\n", b"2\n773307083\n7-7000\n", b"3\n0\n7-7000\n8-8000\n",
    b"2\n773307083\n7-7000\n8-8001\n",
    b"1\n0\n7\n", b"1\n0\n7--1\n", b"1\n0\n\xff-1\n", b"a\n0\n", b"1\n0\n\n", b"1\n0\n99999999999-1\n",
])  # fmt: skip
def test_bad_epoch_files(data: bytes) -> None:
    with pytest.raises(FormatError):
        epoch.decode(data)


@given(st.lists(st.builds(epoch.Entry, st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1))))
def test_epoch_round_trip(entries: list[epoch.Entry]) -> None:
    assert epoch.decode(epoch.encode(entries)) == entries
    rising = sorted(entries) == entries and len({e.epoch for e in entries}) == len(entries)
    if epoch.is_ordered(entries):
        assert rising


def test_epochs_must_rise_in_both_numbers() -> None:
    assert epoch.is_ordered(EPOCHS) and epoch.is_ordered([])
    assert not epoch.is_ordered(EPOCHS[::-1])
    assert not epoch.is_ordered([epoch.Entry(7, 5), epoch.Entry(8, 5)])


# compaction


def test_compaction_positions() -> None:
    offsets = {("a_b", 0): 5, ("T", 12): 0}
    document = compaction.document_of(offsets)
    assert compaction.positions(document) == offsets
    data = b'{\n\t"empty":false,\n\t"queueOffsetMap":{\n\t\t"a_b_0":5,\n\t\t"T_12":0\n\t}\n}'
    assert fastjson.dump(document, "5.3") == data
    assert compaction.positions(fastjson.parse(data)) == offsets
    broker = b'{\n\t"empty":true,\n\t"queueOffsetMap":{\n\t\t\n\t}\n}'  # broker 5.4.0
    assert fastjson.dump(compaction.document_of({}), "5.4") == broker


@pytest.mark.parametrize("document", [
    None, [], {"queueOffsetMap": []}, {"queueOffsetMap": {"T": 1}}, {"queueOffsetMap": {"T_x": 1}},
    {"queueOffsetMap": {"_1": 1}}, {"queueOffsetMap": {"T_1": "1"}}, {"queueOffsetMap": {"T_1": True}},
    {"queueOffsetMap": {"$ref": "$"}},
])  # fmt: skip
def test_bad_compaction_checkpoints(document: Any) -> None:
    with pytest.raises(FormatError):
        compaction.positions(document)


# trace: written by TraceDataEncoder of the client 5.4.0, one context in every kind

TRACE_START = {"timestamp": 1700000000123, "region_id": "DefaultRegion", "group_name": "g1"}
TRACES = {
    "50756201313730303030303030303132330144656661756c74526567696f6e0167310154014d31016e756c6c016b31206b320131"
    "32372e302e302e313a3130393131013501370133014f31017472756502": {
        **TRACE_START, "topic": "T", "msg_id": "M1", "tags": None, "keys": "k1 k2",
        "store_host": "127.0.0.1:10911", "body_length": 5, "cost_time": 7, "msg_type": "Delay_Msg",
        "offset_msg_id": "O1", "success": True,
    },
    "526563616c6c01313730303030303030303132330144656661756c74526567696f6e0167310154014d31017472756502": {
        **TRACE_START, "topic": "T", "msg_id": "M1", "success": True,
    },
    "5375624265666f726501313730303030303030303132330144656661756c74526567696f6e016731015231014d310133016b3120"
    "6b3202": {**TRACE_START, "request_id": "R1", "msg_id": "M1", "retry_times": 3, "keys": "k1 k2"},
    "5375624166746572015231014d3101370174727565016b31206b320132013137303030303030303031323301673102": {
        "request_id": "R1", "msg_id": "M1", "cost_time": 7, "success": True, "keys": "k1 k2",
        "context_code": 2, "timestamp": 1700000000123, "group_name": "g1",
    },
    "456e645472616e73616374696f6e01313730303030303030303132330144656661756c74526567696f6e0167310154014d3101e6"
    "a087e7adbe016b31206b32013132372e302e302e313a3130393131013301583101434f4d4d49545f4d4553534147450166616c73"
    "6502": {
        **TRACE_START, "topic": "T", "msg_id": "M1", "tags": "标签", "keys": "k1 k2",
        "store_host": "127.0.0.1:10911", "msg_type": "Delay_Msg", "transaction_id": "X1",
        "transaction_state": "COMMIT_MESSAGE", "from_transaction_check": False,
    },
    # access channel CLOUD
    "5375624166746572015231014d3101370174727565016b31206b3201320102": {
        "request_id": "R1", "msg_id": "M1", "cost_time": 7, "success": True, "keys": "k1 k2",
        "context_code": 2, "timestamp": None,
    },
}  # fmt: skip


@pytest.mark.parametrize(("text", "fields"), TRACES.items())
def test_traces_of_a_client(text: str, fields: dict[str, Any]) -> None:
    body = bytes.fromhex(text)
    (found,) = trace.decode(body)
    assert found.fields() == fields
    assert trace.encode([found]) == body
    assert len(trace.BODY.parse(body).traces) == 1


def test_several_traces_in_one_body() -> None:
    body = b"".join(map(bytes.fromhex, TRACES))
    traces = trace.decode(body)
    assert [found.kind for found in traces] == [
        "Pub", "Recall", "SubBefore", "SubAfter", "EndTransaction", "SubAfter",
    ]  # fmt: skip
    assert trace.encode(traces) == body
    assert trace.decode(b"") == []


def test_traces_of_old_and_unknown_clients() -> None:
    old = "Pub 1 r g T M t k h 5 7 0 true".split()
    assert trace.Trace(old[0], tuple(old[1:])).fields()["success"] is True
    assert trace.Trace("Other", ("1", "2")).fields() == {}
    for values in (("x",), ("9" * 21,), ("1", "r", "g", "T", "M", "t", "k", "h", "5", "7", "5", "o", "true")):
        with pytest.raises(FormatError):
            trace.Trace("Pub", values).fields()


@given(st.lists(st.builds(
    trace.Trace, st.sampled_from(sorted(trace.KINDS)),
    st.lists(st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))).map(tuple),
)))  # fmt: skip
def test_traces_round_trip(traces: list[trace.Trace]) -> None:
    assert trace.decode(trace.encode(traces)) == traces
