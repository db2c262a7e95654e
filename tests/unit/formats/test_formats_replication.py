"""Replication: bytes split by field, both directions, and what no peer sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.errors import FormatError
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
