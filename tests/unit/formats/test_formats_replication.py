"""Replication: bytes of real masters, bytes split by field, both directions, and what no peer sends."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError
from rmqtool.formats import message
from rmqtool.formats import replication as wire
from rmqtool.formats.epoch import Entry

LAYOUTS = [
    (wire.REPORT, "0000000000085c2e", (547_886,)),
    (wire.FRAME, "0000000000084bfa 00001034", (543_738, 4_148)),
    (wire.HANDSHAKE, "00000001 0000 0001 0000000000000003", (1, 0, 1, 3)),
    (wire.HANDSHAKE_ANSWER, "00000001 00000018 0000000000085c2e 00000002", (1, 24, 547_886, 2)),
    (wire.EPOCH, "00000002 0000000000085800", (2, 546_816)),
    (wire.TRANSFER_REPORT, "00000002 0000000000085c2e", (2, 547_886)),
    (wire.TRANSFER_FRAME,
     "00000002 00000c06 0000000000084bfa 00000002 0000000000085800 0000000000085c2e",
     (2, 3_078, 543_738, 2, 546_816, 547_886)),
]  # fmt: skip


# What masters of 4.9.7 and 5.4.0 sent: the log of one message, after a report of 1, and then a heartbeat.
CLASSIC = [
    ("0000000000000001000000cb",
     "0000ccdaa320a73610a68600000003000000000000000000000000000000000000000000000000000001a21970bcf97f0000"
     "0100009410000001a21970bd187f0000010000346f0000000000000000000000000000000568656c6c6f06476f6c64656e00"
     "664b455953016b02554e49515f4b455901464430303030303030303030303030303030303030303030303030303030303231"
     "373736344530453246324138353038443446383030303002434c55535445520144656661756c74436c757374657202544147"
     "530174",
     "00000000000000cc00000000"),
    ("0000000000000001000000fd",
     "0000fedaa320a73610a68600000000000000000000000000000000000000000000000000000000000001a21970d4097f0000"
     "010000cc72000001a21970d42c7f0000010000428f0000000000000000000000000000000568656c6c6f06476f6c64656e00"
     "984d53475f524547494f4e0144656661756c74526567696f6e02554e49515f4b455901464430303030303030303030303030"
     "303030303030303030303030303030303231394533344530453246324138353038454330383030303002434c555354455201"
     "44656661756c74436c757374657202544147530174024b455953016b025741495401747275650254524143455f4f4e017472"
     "756502",
     "00000000000000fe00000000"),
]  # fmt: skip
# The same of 5.4.0 in controller mode: the answer to a handshake, and what follows a report of 0.
ANSWER, HEAD, BODY, HEARTBEAT = (
    "000000010000000c00000000000000fe00000001000000010000000000000000",
    "00000002000000fe000000000000000000000001000000000000000000000000000000fe",
    "000000fedaa320a73610a68600000002000000000000000000000000000000000000000000000000000001a21970f82a7f00"
    "00010000c0ac000001a21970f84f7f000001000052f20000000000000000000000000000000568656c6c6f06476f6c64656e"
    "00984d53475f524547494f4e0144656661756c74526567696f6e02554e49515f4b4559014644303030303030303030303030"
    "30303030303030303030303030303030303231434430344530453246324138353039313032413030303002434c5553544552"
    "0144656661756c74436c757374657202544147530174024b455953016b025741495401747275650254524143455f4f4e0174"
    "72756502",
    "000000020000000000000000000000fe00000001000000000000000000000000000000fe",
)  # fmt: skip


def check_record(data: bytes) -> None:
    """The message that was sent."""
    found = message.decode(data)
    assert found.total_size == len(data)
    assert (found.topic, found.body, found.physical_offset) == ("Golden", b"hello", 0)
    assert crc32(found.body) & message.CRC_MASK == found.body_crc


@pytest.mark.parametrize(("head", "body", "heartbeat"), CLASSIC)
def test_bytes_of_a_master_in_classic_mode(head: str, body: str, heartbeat: str) -> None:
    data = bytes.fromhex(body)
    assert wire.decode_frame(bytes.fromhex(head)) == (1, len(data), None, -1)
    check_record(b"\0" + data)
    assert wire.decode_frame(bytes.fromhex(heartbeat)) == (1 + len(data), 0, None, -1)


def test_bytes_of_a_master_in_controller_mode() -> None:
    answer, data, first = bytes.fromhex(ANSWER), bytes.fromhex(BODY), Entry(1, 0)
    head = wire.HANDSHAKE_ANSWER.size
    assert wire.decode_answer(answer[:head]) == (wire.EPOCH.size, len(data))
    assert wire.decode_epochs(answer[head:]) == [first]
    assert wire.decode_transfer_frame(bytes.fromhex(HEAD)) == (0, len(data), first, len(data))
    check_record(data)
    assert wire.decode_transfer_frame(bytes.fromhex(HEARTBEAT)) == (len(data), 0, first, len(data))


@pytest.mark.parametrize(("layout", "text", "values"), LAYOUTS)
def test_fields_are_where_a_broker_has_them(layout: wire.Layout, text: str, values: tuple[int, ...]) -> None:
    """Sizes and order, big-endian; the fast codec and construct agree."""
    data = bytes.fromhex(text)
    assert layout.unpack(data) == values
    assert layout.pack(*values) == data
    assert tuple(layout.declaration.parse(data)[field.name] for field in layout.fields) == values


def test_frames_of_both_modes() -> None:
    """A frame before a boundary has the next epoch already, whose start is after it."""
    assert wire.decode_frame(bytes.fromhex(LAYOUTS[1][1])) == (543_738, 4_148, None, -1)
    found = wire.decode_transfer_frame(bytes.fromhex(LAYOUTS[6][1]))
    assert found == (543_738, 3_078, Entry(2, 546_816), 547_886)


def test_the_answer_to_a_handshake() -> None:
    """Epochs follow the head, 12 bytes each."""
    epochs = [Entry(1, 0), Entry(2, 546_816)]
    data = wire.encode_answer(epochs, 547_886)
    assert data[:20] == bytes.fromhex(LAYOUTS[3][1])
    assert wire.decode_answer(data) == (24, 547_886)
    assert wire.decode_epochs(data[20:]) == epochs
    assert wire.encode_answer([], 5)[16:] == b"\xff" * 4


@pytest.mark.parametrize("size", [-1, wire.BODY_MAX + 1, -(1 << 31), (1 << 31) - 1])
def test_sizes_that_no_master_sends(size: int) -> None:
    """A slave reads frames into 4 MiB."""
    with pytest.raises(FormatError):
        wire.decode_frame(wire.FRAME.pack(0, size))
    with pytest.raises(FormatError):
        wire.decode_transfer_frame(wire.TRANSFER_FRAME.pack(2, size, 0, 1, 0, 0))
    with pytest.raises(FormatError):
        wire.decode_answer(wire.HANDSHAKE_ANSWER.pack(1, size, 0, 1))


@given(st.binary(min_size=36, max_size=36))
def test_any_bytes_give_values_or_an_error(data: bytes) -> None:
    """And a size that is taken is within the bounds."""
    for decode in (wire.decode_frame, wire.decode_transfer_frame):
        try:
            frame = decode(data)
        except FormatError:
            continue
        assert 0 <= frame.body_size <= wire.BODY_MAX
        assert frame.physical_offset >= 0
