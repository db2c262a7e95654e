"""Java's rules and the property string: golden values, both dialects, HashMap order, property CRC.

Expected orders and decoded texts of Java were made with JDK 17.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqtool.errors import FormatError
from rmqtool.formats import java, properties
from rmqtool.formats.properties import Dialect

NAMES = ["KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON",
         "color", "城市", "emoji", "😀"]  # fmt: skip
COLLIDING = ["AaAaAaAa", "AaAaAaBB", "AaAaBBAa", "AaAaBBBB", "AaBBAaAa", "AaBBAaBB", "AaBBBBAa",
             "AaBBBBBB", "BBAaAaAa"]  # fmt: skip

# Text that can be stored: no separator inside, no lone surrogate.
PLAIN = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12
)
PROPERTIES = st.dictionaries(PLAIN, PLAIN, max_size=8)
# Bytes that look like property strings more often than chance would have it.
ODD_STRINGS = st.lists(
    st.sampled_from(
        [b"\x01", b"\x02", b"A", b"KEYS", b"__CRC32#", b"\xe4\xb8\xad", b"\xff", b"\xed\xa0\x80"]
    ),
    max_size=12,
).map(b"".join) | st.binary(max_size=60)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0), ("TagA", 2598919), ("TagB", 2598920), ("TagC", 2598921), ("*", 42),
        ("TopicTest#k1", 2746024), ("标签", 857175), ("😀", 1772899), ("Tag😀A", -1742508668),
        ("ZZZZZZZZZZ", -1095886784), ("aaaaaaaaaa", -799347552), ("polygenelubricants", -2147483648),
        ("\ud83d", 55357), ("\ude00\ud83d", 1817149), ("\ud83d\ude00", 1772899),
    ],
)  # fmt: skip
def test_string_hash(text: str, value: int) -> None:
    assert java.string_hash(text) == value
    assert java.tags_code(text) == value
    assert java.index_key_hash(text) == (0 if value == -(1 << 31) else abs(value))


SURROGATES_TOO = st.text(st.characters() | st.sampled_from(["😀", "\ud83d", "\ude00"]), max_size=12)


@given(st.lists(SURROGATES_TOO, max_size=4), st.lists(SURROGATES_TOO, max_size=4))
@example(["poly", "T#"], ["genelubricants", ""])  # the one whose number has no positive counterpart
def test_hashes_of_all_pairs(starts: list[str], ends: list[str]) -> None:
    wanted = {java.index_key_hash(start + end) for start in starts for end in ends}
    assert java.index_key_hashes(starts, ends) == wanted


def test_no_tags_is_code_0() -> None:
    assert java.tags_code(None) == 0


@given(st.text(max_size=30))
def test_a_hash_has_32_bits(text: str) -> None:
    assert -(1 << 31) <= java.string_hash(text) < 1 << 31


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("e4b8ad", "中"), ("f09f9880", "😀"), ("eda080", "\ufffd"), ("eda08041", "\ufffdA"),
        ("ed41", "\ufffdA"), ("eda0", "\ufffd"), ("e4b8", "\ufffd"), ("f09f98", "\ufffd"),
        ("f09f9841", "\ufffdA"), ("c0af", 2 * "\ufffd"), ("f8888080", 4 * "\ufffd"),
        ("f4908080", 4 * "\ufffd"), ("e0809f", 3 * "\ufffd"), ("41ff42", "A\ufffdB"),
        ("edb080edb080", 2 * "\ufffd"),
    ],
)  # fmt: skip
def test_utf8_is_decoded_as_java_does(data: str, text: str) -> None:
    assert java.java_utf8_decode(bytes.fromhex(data)) == text


@pytest.mark.parametrize(
    ("text", "data"),
    [("\ud83d", "3f"), ("\ude00\ud83d", "3f3f"), ("\ud83d\ude00", "f09f9880"), ("A\udc00", "413f")],
)
def test_utf8_is_encoded_as_java_does(text: str, data: str) -> None:
    assert java.java_utf8_encode(text).hex() == data


@pytest.mark.parametrize(
    ("buckets", "keys", "order"),
    [
        (16, NAMES, "TRACE_ON color emoji KEYS MSG_REGION 😀 UNIQ_KEY CLUSTER WAIT DELAY TAGS 城市"),
        (128, NAMES, "emoji MSG_REGION UNIQ_KEY CLUSTER DELAY TAGS color KEYS WAIT TRACE_ON 😀 城市"),
        (16, [*NAMES, "k13"],
         "TRACE_ON color emoji k13 KEYS MSG_REGION 😀 UNIQ_KEY CLUSTER WAIT DELAY TAGS 城市"),
        (16, ["q", *COLLIDING, "z", "a"], " ".join(["a", *COLLIDING, "q", "z"])),
        (16, ["WAIT", "DELAY", "WAIT"], "WAIT DELAY"),
        (16, ["DELAY", "WAIT"], "DELAY WAIT"),
    ],
)  # fmt: skip
def test_hash_map_order(buckets: int, keys: list[str], order: str) -> None:
    assert " ".join(java.hash_map_order(keys, buckets)) == order


def test_hash_map_order_of_a_table_that_doubles() -> None:
    names = [f"name-{number}" for number in range(97)]
    order = java.hash_map_order(names, 128)
    assert sorted(order) == sorted(names)
    assert [order[place] for place in (0, 1, 2, 10, 11, 46, 47, 96)] == [
        "name-11", "name-12", "name-10", "name-88", "name-89", "name-26", "name-27", "name-72",
    ]  # fmt: skip


def test_hash_map_wants_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        java.hash_map_order([], 12)


# Spec 01 section 14.3: (dialect, buckets, properties in the order of put, stored text).
BROKER_ORDERS: list[tuple[Dialect, int, dict[str, str], str]] = [
    ("4.x", 16, {"UNIQ_KEY": "U", "KEYS": "k1", "TAGS": "TagA", "CLUSTER": "DefaultCluster"},
     "KEYS^Ak1^BUNIQ_KEY^AU^BCLUSTER^ADefaultCluster^BTAGS^ATagA"),
    ("5.x", 128,
     {"UNIQ_KEY": "U", "KEYS": "k1", "WAIT": "true", "TAGS": "TagA", "CLUSTER": "DefaultCluster"},
     "UNIQ_KEY^AU^BCLUSTER^ADefaultCluster^BTAGS^ATagA^BKEYS^Ak1^BWAIT^Atrue^B"),
    ("4.x", 16,
     {"UNIQ_KEY": "U", "DELAY": "3", "CLUSTER": "c", "WAIT": "true", "REAL_TOPIC": "T", "REAL_QID": "2"},
     "REAL_TOPIC^AT^BUNIQ_KEY^AU^BCLUSTER^Ac^BDELAY^A3^BWAIT^Atrue^BREAL_QID^A2"),
    ("5.x", 128,
     {"UNIQ_KEY": "U", "WAIT": "true", "DELAY": "3", "CLUSTER": "c", "REAL_TOPIC": "T", "REAL_QID": "2"},
     "UNIQ_KEY^AU^BCLUSTER^Ac^BDELAY^A3^BWAIT^Atrue^BREAL_TOPIC^AT^BREAL_QID^A2^B"),
    ("5.x", 16, {"TAGS": "d", "WAIT": "true"}, "WAIT^Atrue^BTAGS^Ad^B"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "buckets", "found", "stored"), BROKER_ORDERS)
def test_golden_order_at_a_broker(dialect: Dialect, buckets: int, found: dict[str, str], stored: str) -> None:
    data = stored.replace("^A", "\x01").replace("^B", "\x02").encode()
    ordered = properties.java_order(found, buckets)
    assert properties.encode(ordered, dialect=dialect) == data
    assert list(properties.decode(data).items()) == list(ordered.items())
    assert properties.round_trips(data)
    assert properties.round_trips(data, dialect=dialect)
    assert not properties.round_trips(data, dialect="4.x" if dialect == "5.x" else "5.x")


@pytest.mark.parametrize(
    ("data", "found", "whole"),
    [
        (b"", {}, True),
        (b"A\x01b", {"A": "b"}, True),
        (b"A\x01b\x02", {"A": "b"}, True),
        (b"A\x01b\x02A\x01c", {"A": "c"}, True),
        (b"A\x01\x02B\x01c\x02", {"B": "c"}, True),
        (b"A\x01b\x01c\x02", {"A": "b\x01c"}, True),
        (b"\x01b\x02C\x01d", {"C": "d"}, False),
        (b"A\x02B\x01c", {"B": "c"}, False),
        (b"A\x01b\x02\x02C\x01d\x02", {"A": "b", "C": "d"}, False),
        (b"A\x01\xff\x02", {"A": "\ufffd"}, False),
        (b"\x02", {}, False),
    ],
)
def test_decoding_follows_java(data: bytes, found: dict[str, str], whole: bool) -> None:
    assert properties.decode(data) == found
    assert properties.sound(data) is whole


def test_doubled_names_keep_the_first_place_and_the_last_value() -> None:
    data = b"UNIQ_KEY\x01own\x02TAGS\x01t\x02empty\x01\x02UNIQ_KEY\x01batch\x02"
    assert list(properties.decode(data).items()) == [("UNIQ_KEY", "batch"), ("TAGS", "t")]
    assert properties.pairs(data) == [
        ("UNIQ_KEY", "own"), ("TAGS", "t"), ("empty", ""), ("UNIQ_KEY", "batch"),
    ]  # fmt: skip
    assert not properties.round_trips(data)
    assert properties.encode(properties.pairs(data), dialect="5.x") == data


@given(PROPERTIES, st.sampled_from(["4.x", "5.x"]))
def test_round_trip(found: dict[str, str], dialect: Dialect) -> None:
    data = properties.encode(found, dialect=dialect)
    assert list(properties.decode(data).items()) == list(found.items())
    assert properties.pairs(data) == list(found.items())
    assert properties.sound(data)
    assert properties.round_trips(data, dialect=dialect)
    assert data.endswith(b"\x02") is (dialect == "5.x" and bool(found))


@given(ODD_STRINGS)
def test_any_bytes_have_an_answer(data: bytes) -> None:
    found = properties.decode(data)
    assert set(found.items()) <= set(properties.pairs(data))
    assert all(found) and all(found.values())
    if properties.sound(data):
        ends = data.endswith(b"\x02")
        assert properties.encode(properties.pairs(data), dialect="5.x" if ends else "4.x") == data
    if properties.round_trips(data):
        assert properties.sound(data)
    properties.property_crc_ok(data)


@pytest.mark.parametrize("found", [{"": "a"}, {"A\x01": "b"}, {"A\x02": "b"}, {"A": "b\x02c"}])
def test_what_cannot_be_stored_is_refused(found: dict[str, str]) -> None:
    with pytest.raises(FormatError, match="cannot be stored"):
        properties.encode(found, dialect="5.x")


def test_properties_fit_an_i16() -> None:
    value = "v" * (properties.MAX_SIZE - 2)
    assert len(properties.encode({"A": value}, dialect="4.x")) == properties.MAX_SIZE
    with pytest.raises(FormatError, match="32768 bytes"):
        properties.encode({"A": value}, dialect="5.x")


def test_keys_are_split_at_single_spaces() -> None:
    assert properties.keys_of({"KEYS": " a  b\tc 中 "}) == ["a", "b\tc", "中"]
    assert properties.keys_of({}) == []


@given(st.binary(max_size=80))
def test_property_crc_both_ways(head: bytes) -> None:
    record = properties.seal_property_crc(head + bytes(20))
    assert record == head + properties.property_crc_bytes(head)
    assert properties.property_crc_ok(record) is True
    assert properties.property_crc_ok(memoryview(record)) is True
    for bit in range(0, len(head) * 8, 7):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        # The masked CRC cannot see an error whose only trace is its top bit; one flipped bit is none.
        assert properties.property_crc_ok(bytes(damaged)) is False


def test_property_crc_glued_to_a_value_is_found() -> None:
    head = b"record TAGS\x01a"
    record = head + properties.property_crc_bytes(head)
    assert properties.property_crc_ok(record) is True
    assert "__CRC32#" not in properties.decode(record)


@pytest.mark.parametrize(
    "data",
    [b"", b"short", bytes(20), b"__CRC32#\x0112345x7890\x02", b"__CRC32#\x01" + "١".encode() * 5 + b"\x02",
     b"__CRC32#\x011234567890\x01", b"x_CRC32#\x011234567890\x02", b"__CRC32#\x011234567890\x02tail"],
)  # fmt: skip
def test_no_property_crc(data: bytes) -> None:
    assert properties.property_crc(data) is None
    assert properties.property_crc_ok(data) is None


def test_reserve_puts_a_separator() -> None:
    assert properties.reserve_property_crc(b"A\x01b") == b"A\x01b\x02" + bytes(20)
    assert properties.reserve_property_crc(b"A\x01b\x02") == b"A\x01b\x02" + bytes(20)
    with pytest.raises(FormatError, match="no room"):
        properties.seal_property_crc(bytes(19))
