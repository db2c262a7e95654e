"""Annotated bytes: every byte of a structure is shown once, with its field's text; damage is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.formats import consume_queue, message, properties
from rmqtool.formats.declare import fields_of
from rmqtool.message.explain import HEX_LIMIT, Explanation, explain_record, explain_structure
from tests.support.records import record


def values_of(explanation: Explanation) -> dict[str, str]:
    """Value by field name."""
    return {field.name: field.value for field in explanation.fields}


def test_every_field_of_the_declaration_is_shown_in_order() -> None:
    """With its offset in the log and the declaration's own text; together they are the record."""
    sound = record("TopicTest", b"hello", {"TAGS": "a"}, physical_offset=1000, queue_id=3)
    explained = explain_record(message.encode(sound), 1000)
    assert explained.problems == ()
    whole = [field for field in explained.fields if "." not in field.name]
    assert [(f.name, f.text) for f in whole] == [(f.name, f.text) for f in fields_of(message.RECORD)]
    assert b"".join(field.data for field in whole) == message.encode(sound)
    assert [field.offset for field in whole] == [
        1000 + sum(len(before.data) for before in whole[:index]) for index in range(len(whole))
    ]


def test_values_are_spelled_out() -> None:
    """Magic, flags, times and hosts in words."""
    flags = message.INNER_BATCH | message.TRANSACTION_COMMIT
    sound = record("TopicTest", b"hello", {"TAGS": "a"}, sys_flag=flags)
    values = values_of(explain_record(message.encode(sound), 0))
    assert values["magic"] == "DAA320A7  version 1"
    assert values["sys_flag"] == "0x88  inner batch, transaction commit"
    assert values["store_timestamp"] == "1700000000123  2023-11-14T22:13:20.123+00:00"
    assert values["born_host"] == "127.0.0.1:10911"
    assert values["topic"] == "TopicTest"
    assert values["body"] == "5 bytes"
    assert values["body.0"] == "|hello|"
    assert values["body_crc"] == f"{message.masked_crc(b'hello')}  matches"
    assert values["properties.TAGS"] == "a"


def test_a_row_cuts_long_bytes() -> None:
    """A body of megabytes must not fill the screen."""
    explained = explain_record(message.encode(record(body=bytes(1000))), 0)
    row = next(field.row() for field in explained.fields if field.name == "body")
    assert row["size"] == 1000
    assert row["hex"] == "00000000 " * 3 + "..."
    assert max(len(field.row()["hex"]) for field in explained.fields) == 2 * HEX_LIMIT + 3


def test_a_body_has_a_row_for_every_line() -> None:
    """As hex and ASCII, up to a limit that is told."""
    data = message.encode(record(body=b" ok\x00\xff" * 8))
    lines = [field for field in explain_record(data, 0).fields if field.name.startswith("body.")]
    assert [(field.name, len(field.data)) for field in lines] == [
        ("body.0", 16),
        ("body.16", 16),
        ("body.32", 8),
    ]
    assert lines[0].value == "| ok.. ok.. ok.. |"
    cut = [field for field in explain_record(data, 0, body_shown=16).fields if field.name.startswith("body.")]
    assert [(field.name, field.value) for field in cut[1:]] == [
        ("body.16", "24 more bytes: --body hex shows all")
    ]
    plain = explain_record(message.encode(record()), 0)
    assert values_of(plain)["sys_flag"] == "0x0  not compressed, no transaction, IPv4 hosts"


def test_ipv6_and_version_2() -> None:
    """The hosts and the topic length have other sizes there."""
    host = bytes(15) + b"\x01" + (9876).to_bytes(4)
    sound = record("t" * 200, b"", {}, sys_flag=message.BORN_HOST_V6, born_host=host)
    explained = explain_record(message.encode(sound), 0)
    assert explained.problems == ()
    assert values_of(explained)["born_host"] == "[::1]:9876"
    assert values_of(explained)["topic_length"] == "200"


def test_a_blank_is_explained() -> None:
    """Its size is what is left of the file."""
    explained = explain_record(message.encode_blank(100) + bytes(92), 5)
    assert values_of(explained) == {"total_size": "100", "magic": "CBD43194  blank"}
    assert explained.problems == ()
    assert explain_record(message.encode_blank(100), 5).problems == (
        "the blank says 100 bytes are left in its file, but there are 8",
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"body_crc": 1}, "the body's CRC is 907060870, the record says 1"),
        ({"physical_offset": 77}, "the record says it is at 77, but it is at 0"),
        ({"total_size": 200}, "the record at 0 says it has 200 bytes, its parts have 105"),
        ({"body_length": 2000}, "body cannot be read: 17 bytes are left at 88"),
        ({"found": b"oops"}, "the property string cannot be read in full"),
        (
            {"found": b"TAGS\x01a\x02long\x01value\0\0"},
            "the record ends in zeros: keys, tags or other properties may be lost",
        ),
    ],
)
def test_damage_is_named(fields: dict[str, int], says: str) -> None:
    """One sentence for each thing that is wrong."""
    assert says in explain_record(message.encode(record(**fields)), 0).problems  # type: ignore[arg-type]


def test_a_wrong_property_crc_is_named() -> None:
    """The last 20 bytes cover all before."""
    reserved = properties.reserve_property_crc(b"TAGS\x01a\x02")
    sealed = properties.seal_property_crc(message.encode(record(found=reserved)))
    assert explain_record(sealed, 0).problems == ()
    assert values_of(explain_record(sealed, 0))["properties.__CRC32#"].endswith("  matches")
    torn = sealed.replace(b"TAGS\x01a", b"TAGS\x01b")
    assert explain_record(torn, 0).problems == ("the record does not match its property CRC",)
    assert "  computed " in values_of(explain_record(torn, 0))["properties.__CRC32#"]


def test_a_cut_record_is_shown_as_far_as_it_goes() -> None:
    """At every length the fields before the cut are there."""
    data = message.encode(record("TopicTest", b"hello", {"TAGS": "a"}))
    for size in range(len(data)):
        explained = explain_record(data[:size], 0)
        assert explained.problems
        assert sum(len(f.data) for f in explained.fields if "." not in f.name) <= size


def test_other_structures_use_the_same_way() -> None:
    """A consume queue unit at byte 40 of its file."""
    data = consume_queue.encode_unit(consume_queue.Unit(1000, 107, 2598919))
    explained = explain_structure(consume_queue.UNIT.declaration, data, 40)
    assert [(f.offset, f.name, f.value) for f in explained.fields] == [
        (40, "physical_offset", "1000"), (48, "size", "107"), (52, "tags_code", "2598919"),
    ]  # fmt: skip
    assert explain_structure(consume_queue.UNIT.declaration, data[:9], 40).problems


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_can_be_explained(data: bytes, with_magic: bool) -> None:
    """No bytes are an exception, and none are shown that are not there."""
    if with_magic:
        data = data[:4] + message.MAGIC_V1.to_bytes(4, signed=True) + data[8:]
    for field in explain_record(data, 10).fields:
        assert data[field.offset - 10 : field.offset - 10 + len(field.data)] == field.data
        field.row()


def test_a_mutated_record_never_fails() -> None:
    """Every byte changed, once to each extreme."""
    data = message.encode(replace(record("T", b"hi", {"A": "b"}), physical_offset=3))
    for index in range(len(data)):
        for byte in (0, 0x7F, 0x80, 0xFF):
            explain_record(data[:index] + bytes((byte,)) + data[index + 1 :], 3)
