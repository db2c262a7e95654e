"""Dispatch columns: tags codes, delays, inner batches and index keys, against the plain codecs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.formats import message, properties
from rmqtool.formats.index import key_text, tag_text
from rmqtool.formats.java import index_key_hash, java_utf8_decode, tags_code
from rmqtool.formats.message import Message
from rmqtool.log import dispatch as keys
from rmqtool.log import events
from rmqtool.log.dispatch import Dispatch, dispatch_columns
from rmqtool.log.frames import Frames, walk
from rmqtool.log.point_read import pick, pick_sound
from rmqtool.log.properties import value_ranges
from rmqtool.storage.source import BytesSource
from tests.support.records import record
from tests.support.scan_logs import log


def dispatch(*records: Message) -> Dispatch:
    (frames,) = walk(BytesSource(log(*records)), file_from_offset=0)
    assert isinstance(frames, Frames)
    return dispatch_columns(frames)


def one(found: dict[str, str] | bytes, **fields: Any) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """(columns, [(hash, kind)]) of one record with these properties."""
    columns = dispatch(record("TopicTest", b"x", found, **fields))
    named = {name: int(getattr(columns, name)[0])
             for name in ("tags_code", "delay_level", "inner_base", "inner_count", "flags")}  # fmt: skip
    return named, [(key, kind) for _, key, kind in columns.keys.tolist()]


def expected_keys(topic: bytes, stored: bytes, sys_flag: int) -> list[tuple[int, int]]:
    if sys_flag & message.TRANSACTION_MASK == message.TRANSACTION_ROLLBACK:
        return []
    name, found = java_utf8_decode(topic), properties.decode(stored)
    texts = [(key_text(name, found["UNIQ_KEY"]), keys.KIND_UNIQ)] if "UNIQ_KEY" in found else []
    texts += [(key_text(name, key), keys.KIND_KEY) for key in properties.keys_of(found)]
    texts += [(tag_text(name, found["TAGS"]), keys.KIND_TAG)] if "TAGS" in found else []
    return [(index_key_hash(text), kind) for text, kind in texts]


def expected_flags(stored: bytes, raw: bytes) -> int:
    found = properties.decode(stored)
    flags = keys.HAS_TAGS if "TAGS" in found else 0
    flags |= keys.MULTI_DISPATCH if "INNER_MULTI_DISPATCH" in found else 0
    flags |= 0 if properties.sound(stored) else events.PROPERTIES_UNSOUND
    if len(stored) >= message.PROPERTY_CRC_SIZE:
        crc = properties.property_crc_ok(raw)
        flags |= 0 if crc is None else keys.PROPERTY_CRC_PRESENT
        flags |= events.PROPERTY_CRC_BAD if crc is False else 0
    return flags


def test_keys_are_in_the_order_of_the_broker() -> None:
    _, found = one({"TAGS": "TagA", "KEYS": "k1  k2 k1 ", "UNIQ_KEY": "U"})
    texts = ["TopicTest#U", "TopicTest#k1", "TopicTest#k2", "TopicTest#k1", "TopicTest#T#TagA"]
    assert found == list(zip(map(index_key_hash, texts), [0, 1, 1, 1, 2], strict=True))


def test_hashes_are_java_s() -> None:
    for tags in ("TagA", "\u6807\u7b7e", "\U0001f600 emoji", "AaAa", "BBBB", "\u00e9"):
        columns, _ = one({"TAGS": tags})
        assert columns["tags_code"] == tags_code(tags)
    assert one({"TAGS": "polygenelubricants"})[0]["tags_code"] == -(2**31)
    # the one hash whose absolute value is negative
    assert one({"KEYS": "k"}, topic_bytes=b"")[1] == [(index_key_hash("#k"), 1)]


def test_rolled_back_records_have_no_keys() -> None:
    found = {"TAGS": "T", "KEYS": "a b", "UNIQ_KEY": "U"}
    assert one(found, sys_flag=message.TRANSACTION_ROLLBACK)[1] == []
    assert len(one(found, sys_flag=message.TRANSACTION_PREPARED)[1]) == 4


@pytest.mark.parametrize(
    ("text", "level", "flags"),
    [("3", 3, 0), ("-4", 0, 0), ("+18", 18, 0), ("0", 0, 0), ("007", 7, 0), ("2147483647", 2**31 - 1, 0),
     ("2147483648", keys.BAD_DELAY, events.BAD_NUMBER), ("x", keys.BAD_DELAY, events.BAD_NUMBER),
     ("-", keys.BAD_DELAY, events.BAD_NUMBER), ("3 ", keys.BAD_DELAY, events.BAD_NUMBER),
     ("-2147483648", 0, 0), ("-2147483649", keys.BAD_DELAY, events.BAD_NUMBER), ("0" * 30 + "1", 1, 0),
     ("\uff11", 1, 0), ("-\u0661\u07c2", 0, 0), ("\u0661\u07c2", 12, 0),
     ("\U0001d7d9", keys.BAD_DELAY, events.BAD_NUMBER), ("\u00b2", keys.BAD_DELAY, events.BAD_NUMBER)],
)  # fmt: skip
def test_delay_levels(text: str, level: int, flags: int) -> None:
    columns, _ = one({"DELAY": text})
    assert (columns["delay_level"], columns["flags"]) == (level, flags)
    assert one({})[0]["delay_level"] == keys.NO_DELAY


def test_inner_batches_need_base_and_number() -> None:
    columns, _ = one({"INNER_BASE": "12345678901", "INNER_NUM": "100"})
    assert (columns["inner_base"], columns["inner_count"]) == (12345678901, 100)
    columns, _ = one({"INNER_BASE": "5"})
    assert (columns["inner_base"], columns["inner_count"], columns["flags"]) == (-1, 0, 0)
    columns, _ = one({"INNER_BASE": str(-(2**63)), "INNER_NUM": "-32768"})
    assert (columns["inner_base"], columns["inner_count"], columns["flags"]) == (-(2**63), -32768, 0)
    columns, _ = one({"INNER_BASE": "5", "INNER_NUM": "32768"})
    assert (columns["inner_count"], columns["flags"]) == (0, events.BAD_NUMBER)


def test_property_crc() -> None:
    sealed = properties.seal_property_crc(
        message.encode(record("T", b"x", properties.reserve_property_crc(b"KEYS\x01k\x02")))
    )
    good, bad = message.decode(sealed), message.decode(sealed)
    bad = replace(bad, flag=77)
    columns = dispatch(good)
    assert columns.flags.tolist() == [keys.PROPERTY_CRC_PRESENT]
    # log() fills in the offset, which the CRC covers too
    columns = dispatch(good, bad)
    assert columns.flags.tolist()[1] == keys.PROPERTY_CRC_PRESENT | events.PROPERTY_CRC_BAD


def test_as_many_keys_as_fit_into_a_record() -> None:
    stored = ("KEYS\x01" + "a " * 16_000 + "\x02").encode()
    columns = dispatch(
        record("T", b"x", {"KEYS": "k"}), record("T", b"x", stored), record("T", b"", {"KEYS": "z"})
    )
    assert columns.keys["row"].tolist() == [0] + [1] * 16_000 + [2]


@st.composite
def property_strings(draw: st.DrawFn) -> bytes:
    """Property strings, sound and not."""
    names = st.sampled_from(
        [b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"INNER_BASE", b"INNER_NUM", b"INNER_MULTI_DISPATCH",
         b"__CRC32#", b"a", b"", "\u540d".encode(), b"TAG", b"KEYSS"]
    )  # fmt: skip
    texts = st.one_of(
        st.sampled_from(
            [b"", b"1", b"a b  c", b"x\x01y", "\u6807\u7b7e \U0001f600".encode(), b"\xed\xa0\x80", b"\xff"]
        ),
        st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.binary(max_size=6),
    )
    pieces = draw(
        st.lists(st.tuples(names, st.sampled_from([b"\x01", b"\x01", b"\x01", b""]), texts), max_size=6)
    )
    joined = b"\x02".join(name + mark + text for name, mark, text in pieces)
    return joined + draw(st.sampled_from([b"", b"\x02", b"\x02\x02", b"\0"]))


@given(
    st.lists(st.tuples(property_strings(), st.sampled_from([0, 4, 8, 12]), st.binary(max_size=5)), min_size=1)
)
def test_columns_are_those_of_the_codecs(drawn: list[tuple[bytes, int, bytes]]) -> None:
    records = [record("", b"x", stored, sys_flag=flag, topic_bytes=topic) for stored, flag, topic in drawn]
    data = log(*records)
    (frames,) = walk(BytesSource(data), file_from_offset=0)
    assert isinstance(frames, Frames)
    columns = dispatch_columns(frames)
    for row, (stored, flag, topic) in enumerate(drawn):
        start, size = int(frames.starts()[row]), int(frames.rows["size"][row])
        found = properties.decode(stored)
        mine = columns.keys[columns.keys["row"] == row]
        assert list(zip(mine["key_hash"].tolist(), mine["kind"].tolist(), strict=True)) == expected_keys(
            topic, stored, flag
        )
        assert columns.tags_code[row] == tags_code(found.get("TAGS"))
        flags = int(columns.flags[row])
        expected = expected_flags(stored, data[start : start + size])
        if records[row].ends_in_zeros:
            expected |= keys.ENDS_IN_ZEROS | events.PROPERTIES_UNSOUND
        assert flags & ~events.BAD_NUMBER == expected
        assert (columns.delay_level[row] == keys.NO_DELAY) == ("DELAY" not in found)
    assert (columns.keys["row"][1:] >= columns.keys["row"][:-1]).all()


@given(strings=st.lists(property_strings(), min_size=1, max_size=8))
def test_single_values_are_those_of_the_codecs(strings: list[bytes]) -> None:
    """Of the records that have the property, the others have none."""
    stored = [each for each in strings if len(each) < 1 << 15]
    records = [record("T", b"x", each) for each in stored]
    for frames in walk(BytesSource(log(*records)), file_from_offset=0):
        assert isinstance(frames, Frames)
        for name in (properties.TAGS, properties.KEYS, properties.UNIQ_KEY):
            values = value_ranges(frames, name)
            found = [None if values.lengths[row] < 0 else values.bytes_of(row) for row in range(len(values))]
            texts = [properties.decode(each).get(name) for each in stored]
            assert found == [None if text is None else text.encode() for text in texts]


def test_records_that_were_picked_have_the_same_columns() -> None:
    """They lie packed in their batch, not as in the file."""
    bodies = [b"x" * (30_000 * (number % 3)) for number in range(12)]
    records = [
        record("TopicTest", body, {"TAGS": f"t{number}", "KEYS": f"k{number}"})
        for number, body in enumerate(bodies)
    ]
    source = BytesSource(log(*records, base=1 << 20))
    (frames,) = walk(source, file_from_offset=1 << 20)
    assert isinstance(frames, Frames)
    offsets, sizes = (frames.rows[name][1::3].astype("i8") for name in ("physical_offset", "size"))
    (picked,) = pick(source, file_from_offset=1 << 20, offsets=offsets, sizes=sizes, crc=True, window=1 << 20)
    found = pick_sound(source, file_from_offset=1 << 20, offsets=offsets, crc=True, window=1 << 20)
    # Longer records than others are read again: all are in one batch.
    assert [each.rows.tolist() for each in found] == [picked.rows.tolist()]
    whole, part = dispatch_columns(frames), dispatch_columns(picked)
    assert part.tags_code.tolist() == [tags_code(f"t{number}") for number in range(1, 12, 3)]
    assert part.keys["key_hash"].tolist() == whole.keys["key_hash"].reshape(12, 2)[1::3].ravel().tolist()
