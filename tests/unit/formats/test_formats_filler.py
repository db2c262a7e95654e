"""Fillers byte by byte: with an owner and without, with property CRC, as short as they can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError
from rmqtool.formats import filler, message, properties
from rmqtool.formats.filler import Owner
from tests.support.records import is_filler

TIME = 0x018BCFE568_7B


def made(size: int, owner: Owner | None = None, *, property_crc: bool = False) -> bytes:
    return filler.encode(
        size, 0x1234, born_timestamp=TIME - 1, store_timestamp=TIME, owner=owner, property_crc=property_crc
    )


def test_bytes_with_an_owner() -> None:
    body = "ff" * 5
    crc = f"{message.masked_crc(bytes.fromhex(body)):08x}"
    assert made(120, Owner(b"Topic", 3, 7)).hex() == (
        "00000078" "daa320a7" + crc + "00000003" "00000000"
        "0000000000000007" "0000000000001234" "00000000"
        "0000018bcfe5687a" "7f000001" "00000000"
        "0000018bcfe5687b" "7f000001" "00000000"
        "00000000" "0000000000000000"
        "00000005" + body +
        "05" + b"Topic".hex() + "0013" + b"TAGS\x01RMQTOOL_FILLER".hex()
    )  # fmt: skip


def test_bytes_without_an_owner() -> None:
    assert made(107).hex() == (
        "0000006b" "daa320a7" + f"{message.masked_crc(bytes([255, 255])):08x}" + "00000000" "00000000"
        "0000000000000000" "0000000000001234" "0000000c"
        "0000018bcfe5687a" "7f000001" "00000000"
        "0000018bcfe5687b" "7f000001" "00000000"
        "00000000" "0000000000000000"
        "00000002" "ffff"
        "0e" + b"RMQTOOL_FILLER".hex() + "0000"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "topic"), [(91, ""), (92, "R"), (104, "RMQTOOL_FILLE"), (105, "RMQTOOL_FILLER")]
)
def test_a_short_one_has_a_short_topic(size: int, topic: str) -> None:
    record = message.decode(made(size))
    assert (record.topic, record.body, record.body_crc) == (topic, b"", 0)
    assert record.transaction_type == message.TRANSACTION_ROLLBACK


def test_a_body_has_its_crc_and_none_is_zero() -> None:
    record = message.decode(made(5000))
    assert record.body == b"\xff" * len(record.body) and len(record.body) == 5000 - 105
    assert record.body_crc == message.masked_crc(record.body)


@pytest.mark.parametrize("owner", [None, Owner(b"T", 0, 1), Owner(b"T" * 200, 0, 1)])
@pytest.mark.parametrize("more", [0, 1, 19, 20, 21, 1000])
def test_property_crc(owner: Owner | None, more: int) -> None:
    least = filler.smallest(owner, property_crc=True)
    record = made(least + more, owner, property_crc=True)
    assert properties.property_crc_ok(record)
    assert len(record) == least + more == message.decode(record).total_size


def test_property_crc_digits() -> None:
    record = made(150, Owner(b"T", 0, 1), property_crc=True)
    digits = f"{message.masked_crc(record[:-20]):010d}"[::-1].encode()
    assert record[-20:] == b"__CRC32#\x01" + digits + b"\x02"
    assert record[-40:-20] == b"TAGS\x01RMQTOOL_FILLER\x02"


def test_a_long_topic_makes_version_2() -> None:
    record = message.decode(made(400, Owner(b"%RETRY%" + b"g" * 121, 1, 2)))
    assert (record.version, len(record.topic_bytes)) == (2, 128)
    assert message.decode(made(400, Owner(b"g" * 127, 1, 2))).version == 1


@pytest.mark.parametrize(("size", "tags"), [(91 + 4, None), (91 + 4 + 18, None), (91 + 4 + 19, filler.TAG)])
def test_optional_properties_are_written_where_they_fit(size: int, tags: str | None) -> None:
    record = message.decode(made(size, Owner(b"Four", 1, 2)))
    assert properties.decode(record.properties_bytes).get("TAGS") == tags


def test_required_properties_come_first() -> None:
    owner = Owner(
        b"S", 2, 5, (("REAL_TOPIC", "H"), ("REAL_QID", "0")), (("DELAY", "3"), ("TAGS", filler.TAG))
    )
    least = filler.smallest(owner)
    assert message.decode(made(least, owner)).properties_bytes == b"REAL_TOPIC\x01H\x02REAL_QID\x010"
    more = message.decode(made(least + 8, owner)).properties_bytes
    assert more == b"REAL_TOPIC\x01H\x02REAL_QID\x010\x02DELAY\x013"


@pytest.mark.parametrize("property_crc", [False, True])
@pytest.mark.parametrize("owner", [None, Owner(b"Topic", 0, 1), Owner(b"T" * 128, 0, 1, (("A", "b"),))])
def test_too_small(owner: Owner | None, property_crc: bool) -> None:
    least = filler.smallest(owner, property_crc=property_crc)
    assert len(made(least, owner, property_crc=property_crc)) == least
    with pytest.raises(FormatError, match=f"{least - 1} bytes are too few for a filler: it takes {least}"):
        made(least - 1, owner, property_crc=property_crc)


def test_is_filler_tells_them_from_messages() -> None:
    record = message.decode(made(300, Owner(b"Topic", 3, 7)))
    assert is_filler(record)
    assert is_filler(message.decode(made(93)))
    from dataclasses import replace

    assert not is_filler(replace(record, body=b"hello"))
    assert not is_filler(replace(record, born_host=bytes(8)))


@given(
    st.integers(0, 300), st.binary(min_size=1, max_size=200), st.booleans(), st.booleans(),
    st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 31) - 1),
)  # fmt: skip
def test_every_filler_decodes(
    more: int, topic: bytes, has_owner: bool, property_crc: bool, queue_offset: int, queue_id: int
) -> None:
    owner = Owner(topic, queue_id, queue_offset) if has_owner else None
    size = filler.smallest(owner, property_crc=property_crc) + more
    record = message.decode(made(size, owner, property_crc=property_crc))
    assert (record.total_size, record.physical_offset, record.store_timestamp) == (size, 0x1234, TIME)
    if owner is not None:
        assert (record.topic_bytes, record.queue_id, record.queue_offset) == (topic, queue_id, queue_offset)
        assert record.transaction_type == 0
    assert not record.body or record.body_crc == message.masked_crc(record.body)
