"""Rows: names and order, one value per column, damage as status codes and never as an exception."""

from __future__ import annotations

import base64
import json
import zlib
from datetime import UTC, timedelta, timezone
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import MissingCodecError, UsageError
from rmqtool.formats import body, message, properties
from rmqtool.message import columns
from rmqtool.message.rows import BODY_FORMS, Row, RowFormat, blank_row, damage_row, message_row
from tests.support.records import HOST, STORE_TIMESTAMP, record
from tests.support.stores import Library, case
from tests.support.sweep import sample
from tests.unit.read.test_ground_truth import HASH_DIGITS, REAL, java_host, raw_records

ROW_NAMES = (
    "physical_offset, size, version, topic, queue_id, queue_offset, flag, sys_flag, body_crc,"
    " born_timestamp_ms, born_time, born_host, store_timestamp_ms, store_time, store_host, reconsume_times,"
    " prepared_transaction_offset, body_length, body, body_encoding, body_compression, tags, keys, uniq_key,"
    " offset_msg_id, properties, status, file"
).split(", ")


def row_of(*arguments: Any, position: int = 0, form: RowFormat | None = None, **fields: Any) -> Row:
    """The row of a record built by `tests.support.records`."""
    return message_row(record(*arguments, **fields), position, "commitlog/0", form or RowFormat())


def test_a_row_has_the_documented_names_in_order() -> None:
    """JSON, CSV and Spark depend on names and order."""
    assert list(row_of()) == ROW_NAMES
    assert columns.FIXED_NAMES == tuple(ROW_NAMES)
    assert set(columns.NAMES) - set(ROW_NAMES) == {"stored_body", "properties_base64", "system"}


def test_columns_have_unique_spark_names_and_a_type_that_arrow_knows() -> None:
    """The Arrow types are text in the table, so that reading it needs no pyarrow."""
    known = {
        "int8",
        "int32",
        "int64",
        "string",
        "binary",
        "timestamp[us, tz=UTC]",
        "list<item: string>",
        "map<string, string>",
    }  # as pyarrow prints them
    assert {column.arrow_type for column in columns.COLUMNS} <= known
    assert all(column.text for column in columns.COLUMNS)
    spark = "topic flag body properties queueId queueOffset bornTimestamp storeTimestamp".split()
    assert set(spark) <= {column.spark_name for column in columns.COLUMNS}, "rocketmq-spark has these"


def test_the_values_of_a_plain_record() -> None:
    """Every column of one row."""
    found = {"KEYS": "k1 k2", "TAGS": "TagA", "UNIQ_KEY": "U", "a": "b"}
    assert row_of("TopicTest", b"hello", found, queue_offset=7, physical_offset=1234, position=1234) == {
        "physical_offset": 1234,
        "size": 91 + 5 + 9 + len(properties.encode(found, dialect="5.x")),
        "version": 1,
        "topic": "TopicTest",
        "queue_id": 0,
        "queue_offset": 7,
        "flag": 0,
        "sys_flag": 0,
        "body_crc": 907060870,
        "born_timestamp_ms": STORE_TIMESTAMP - 5,
        "born_time": "2023-11-14T22:13:20.118+00:00",
        "born_host": "127.0.0.1:10911",
        "store_timestamp_ms": STORE_TIMESTAMP,
        "store_time": "2023-11-14T22:13:20.123+00:00",
        "store_host": "127.0.0.1:10911",
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body_length": 5,
        "body": "hello",
        "body_encoding": "utf-8",
        "body_compression": "none",
        "tags": "TagA",
        "keys": ["k1", "k2"],
        "uniq_key": "U",
        "offset_msg_id": "7F00000100002A9F00000000000004D2",
        "properties": found,
        "status": ["ok"],
        "file": "commitlog/0",
    }


def test_without_properties_tags_and_keys_are_absent() -> None:
    """Null for one value, an empty list for several."""
    row = row_of()
    assert (row["tags"], row["keys"], row["uniq_key"], row["properties"]) == (None, [], None, {})


def test_times_are_in_the_zone_asked_for() -> None:
    """RFC 3339 with the zone's offset; the integer stays."""
    row = row_of(form=RowFormat(tz=timezone(timedelta(hours=8))))
    assert row["store_time"] == "2023-11-15T06:13:20.123+08:00"
    assert row["store_timestamp_ms"] == STORE_TIMESTAMP


def test_a_time_that_no_calendar_has_is_null() -> None:
    """Damaged records have such times; the integer says what is stored."""
    row = row_of(store_timestamp=2**62, born_timestamp=-(2**63))
    assert (row["store_time"], row["born_time"]) == (None, None)
    assert row["store_timestamp_ms"] == 2**62


@pytest.mark.parametrize(
    ("form", "spelled"),
    [("text", ("hello", "utf-8")), ("hex", ("68656c6c6f", "hex")), ("base64", ("aGVsbG8=", "base64")),
     ("none", (None, None))],
)  # fmt: skip
def test_body_forms(form: Any, spelled: tuple[str | None, str | None]) -> None:
    """Each form names its encoding."""
    row = row_of(form=RowFormat(body=form))
    assert (row["body"], row["body_encoding"]) == spelled


def test_a_body_that_is_no_text_becomes_base64() -> None:
    """So that it can be had back exactly."""
    row = row_of(body=b"\xff\x00\xfe")
    assert (row["body"], row["body_encoding"]) == ("/wD+", "base64")


def test_a_compressed_body_is_shown_decompressed() -> None:
    """body_length stays the stored one."""
    stored = zlib.compress(b"text" * 100)
    row = row_of(body=stored, sys_flag=message.COMPRESSED)
    assert (row["body"], row["body_compression"]) == ("text" * 100, "zlib")
    assert row["body_length"] == len(stored)


def test_properties_that_do_not_round_trip_are_given_as_bytes_too() -> None:
    """Doubled names and empty values are lost in the object."""
    stored = b"a\x01\x02b\x011\x02b\x012\x02"
    row = row_of(found=stored)
    assert row["properties"] == {"b": "2"}
    assert base64.b64decode(row["properties_base64"]) == stored
    assert list(row).index("properties_base64") == list(row).index("properties") + 1
    assert "properties_base64" not in row_of(found=b"b\x011"), "the 4.x dialect round-trips too"


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({"body_crc": 1}, ["CL03"]),
        ({"body": b"", "body_crc": 1}, ["ok"]),
        ({"physical_offset": 8}, ["CL06"]),
        ({"found": b"no name end"}, ["CL13"]),
        ({"found": b"TAGS\x01\xff\x02"}, ["CL13"]),
        ({"found": b"TAGS\x01a\x02long\x01value\0\0\0"}, ["CL13"]),
        ({"topic": "Orders\0", "found": {}}, ["CL13"]),
        ({"sys_flag": message.COMPRESSED}, ["CL14"]),
        ({"sys_flag": message.COMPRESSED | 0x700}, ["CL14"]),
        ({"body_crc": 1, "sys_flag": message.COMPRESSED}, ["CL03", "CL14"]),
    ],
)
def test_status_names_what_is_wrong(fields: dict[str, Any], codes: list[str]) -> None:
    """Codes of the table of problems; `ok` alone when there are none."""
    assert row_of(**fields)["status"] == codes


def test_an_unreadable_body_is_null() -> None:
    """Its bytes are still in the store: dump --raw gives them."""
    row = row_of(sys_flag=message.COMPRESSED | 0x700)
    assert (row["body"], row["body_encoding"], row["body_compression"]) == (None, None, None)


def test_a_body_that_grows_over_the_limit_is_a_status() -> None:
    """A decompression bomb ends at the limit."""
    form = RowFormat(body_limit=1000)
    row = row_of(body=zlib.compress(bytes(10**6)), sys_flag=message.COMPRESSED, form=form)
    assert (row["body"], row["status"]) == (None, ["CL14"])


def test_a_missing_codec_is_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not damage: out of reach here."""

    def missing(*_: object, **__: object) -> bytes:
        raise MissingCodecError("no zstd")

    monkeypatch.setattr(body, "decompress", missing)
    assert row_of()["status"] == ["UN01"]


def test_without_the_body_it_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--body none` is the fast way."""

    def never(*_: object, **__: object) -> bytes:
        raise AssertionError("unpacked")

    monkeypatch.setattr(body, "decompress", never)
    assert row_of(form=RowFormat(body="none"))["status"] == ["ok"]


def test_only_the_fields_asked_for_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order asked for; optional ones are there when they are named."""

    def never(*_: object, **__: object) -> dict[str, str]:
        raise AssertionError("decoded")

    monkeypatch.setattr(properties, "decode", never)
    row = row_of(form=RowFormat(names=("topic", "physical_offset")))
    assert list(row.items()) == [("topic", "TopicTest"), ("physical_offset", 0)]
    monkeypatch.undo()
    assert row_of(form=RowFormat(names=("system", "properties_base64"))) == {
        "system": None,
        "properties_base64": None,
    }


def test_an_unknown_field_or_form_is_a_usage_error() -> None:
    """Named before anything is read."""
    with pytest.raises(UsageError, match="bodi"):
        RowFormat(names=("bodi",))
    with pytest.raises(UsageError, match="xml"):
        RowFormat(body="xml")  # type: ignore[arg-type]


def test_a_wrong_property_crc_is_a_status() -> None:
    """5.x ends records with it when told to."""
    reserved = properties.reserve_property_crc(b"TAGS\x01a\x02")
    good = message.decode(properties.seal_property_crc(message.encode(record(found=reserved))))
    assert message_row(good, 0, "f")["status"] == ["ok"]
    bad = message.decode(message.encode(good).replace(b"TAGS\x01a", b"TAGS\x01b"))
    assert message_row(bad, 0, "f")["status"] == ["CL09"]


def test_rows_of_blanks_and_of_damage_are_short() -> None:
    """They name the place and what it is."""
    assert blank_row(5, 9, "f") == {"blank": True, "physical_offset": 5, "size": 9, "file": "f"}
    assert damage_row("CL02", 5, 9, "f") == {
        "physical_offset": 5,
        "size": 9,
        "status": ["CL02"],
        "file": "f",
    }
    with pytest.raises(KeyError):
        damage_row("XX99", 0, 0, "f")


@given(
    st.binary(max_size=80),
    st.binary(max_size=60),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=20),
)
def test_any_record_has_a_row(stored: bytes, found: bytes, flags: int, number: int, topic: bytes) -> None:
    """Whatever bytes a decodable record holds, its row can be made and is JSON."""
    v6 = bytes(16) + HOST[4:]
    values = record(
        body=stored, found=found, sys_flag=flags, store_timestamp=number, born_timestamp=number,
        topic_bytes=topic, queue_id=flags,
        born_host=v6 if flags & message.BORN_HOST_V6 else HOST,
        store_host=v6 if flags & message.STORE_HOST_V6 else HOST,
    )  # fmt: skip
    for form in BODY_FORMS:
        row = message_row(values, number, "f", RowFormat(body=form, tz=UTC))
        assert json.loads(json.dumps(row)) == row


@pytest.mark.sweep
@pytest.mark.parametrize("name", sample([name for name in REAL if name.startswith("ok_")], 3))
def test_rows_of_real_stores_say_what_java_says(name: str, cases: Library) -> None:
    """Every record of a real store: same values, status ok, bodies to the byte."""
    same = {
        "storeSize": "size", "version": "version", "topic": "topic", "queueId": "queue_id",
        "queueOffset": "queue_offset", "sysFlag": "sys_flag", "flag": "flag", "bodyCRC": "body_crc",
        "bornTimestamp": "born_timestamp_ms", "storeTimestamp": "store_timestamp_ms",
        "reconsumeTimes": "reconsume_times", "preparedTransactionOffset": "prepared_transaction_offset",
        "storedBodyLength": "body_length", "properties": "properties", "msgId": "offset_msg_id",
    }  # fmt: skip
    for fact, raw in raw_records(cases.path(name), case(name)):
        row = message_row(message.decode(raw), fact["physicalOffset"], "f")
        assert {java: row[mine] for java, mine in same.items()} == {java: fact[java] for java in same}
        assert row["born_host"] == java_host(fact["bornHost"])
        assert row["store_host"] == java_host(fact["storeHost"])
        assert row["status"] == ["ok"], fact
        plain = row["body"].encode() if row["body_encoding"] == "utf-8" else base64.b64decode(row["body"])
        assert sha256(plain).hexdigest()[:HASH_DIGITS] == fact["bodySha256"]
        json.dumps(row)
