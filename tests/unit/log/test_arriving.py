"""Bytes of a log that arrive in pieces: the records are those of the walk, never more than has arrived."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rmqtool.formats import message
from rmqtool.log.arriving import PAD, Arriving, Stop
from rmqtool.log.frames import Frames, walk
from rmqtool.storage.source import BytesSource
from tests.support.records import record

FILE_START, FILE_SIZE = 3 * 8192, 8192


def file_bytes(count: int = 30) -> bytes:
    """A full file: records, a blank, and what lies after it."""
    data, rng = b"", random.Random(1)
    for number in range(count):
        body = rng.randbytes(rng.choice((0, 1, 50, 300)))
        data += message.encode(record(body=body, physical_offset=FILE_START + len(data), queue_offset=number))
    return (data + message.encode_blank(FILE_SIZE - len(data))).ljust(FILE_SIZE, b"r")


def judged(arriving: Arriving, data: bytes, position: int) -> list[int]:
    """The offsets of records at the start of what has arrived from a position on."""
    end = position + len(data) == FILE_SIZE
    array = np.frombuffer(data + bytes(0 if end else PAD), np.uint8)
    found: list[int] = []
    for rows in arriving.rows(array, len(data), position, FILE_START, FILE_SIZE):
        found += rows["physical_offset"].tolist()
    return found


def walked(data: bytes) -> list[int]:
    """Those of the walk over the whole file."""
    events: list[Any] = list(walk(BytesSource(data), file_from_offset=FILE_START))
    return [
        offset for event in events if isinstance(event, Frames) for offset in event.rows["physical_offset"]
    ]


def test_every_prefix_has_its_whole_records() -> None:
    """A record is accepted with its last byte, without a look at the next one; a blank with its eighth."""
    data, arriving = file_bytes(), Arriving()
    offsets = walked(data)
    ends = [*offsets[1:], data.rindex(message.encode_blank(FILE_SIZE)[4:]) - 4 + FILE_START]
    for length in range(1, ends[-1] - FILE_START + 8):
        found = judged(arriving, data[:length], 0)
        assert found == [
            offset for offset, end in zip(offsets, ends, strict=True) if end <= FILE_START + length
        ]
        assert arriving.stop is Stop.MORE, (length, arriving.reason)
        assert arriving.position == (ends[len(found) - 1] - FILE_START if found else 0)
    judged(arriving, data[: ends[-1] - FILE_START + 8], 0)
    assert arriving.stop is Stop.BLANK


@pytest.mark.parametrize("seed", range(5))
def test_pieces_of_any_length_give_the_records_of_the_walk(seed: int) -> None:
    """Each begins where the one before it has stopped."""
    data, arriving, rng = file_bytes(), Arriving(), random.Random(seed)
    found: list[int] = []
    position = end = 0
    while arriving.stop is Stop.MORE:
        end = min(end + rng.randrange(1, 700), FILE_SIZE)
        found += judged(arriving, data[position:end], position)
        position = arriving.position
    assert found == walked(data)


@pytest.mark.parametrize("seed", range(30))
def test_a_changed_byte_is_found_or_harmless(seed: int) -> None:
    """Never a record that the walk does not call sound; all before the change are there."""
    rng, arriving = random.Random(seed), Arriving()
    data = bytearray(file_bytes())
    place = rng.randrange(4000)
    data[place] ^= 1 << rng.randrange(8)
    found = judged(arriving, bytes(data), 0)
    events: list[Any] = list(walk(BytesSource(bytes(data)), file_from_offset=FILE_START))
    sound = {int(row["physical_offset"]) for event in events if isinstance(event, Frames)
             for row in event.rows if not row["status"]}  # fmt: skip
    assert set(found) <= sound
    assert set(found) >= {offset for offset in walked(file_bytes()) if offset + 500 < FILE_START + place}


@pytest.mark.parametrize(
    "data",
    [
        bytes(100),
        b"\xff" * 100,
        (1 << 30).to_bytes(4) + message.encode(record())[4:],
        message.encode_blank(55),
    ],
)
def test_what_is_not_a_record(data: bytes) -> None:
    """Zeros too: a master sends what it has written, and a file ends with a blank."""
    arriving = Arriving()
    assert judged(arriving, data, 0) == []
    assert arriving.stop is Stop.DAMAGED
    assert arriving.reason


def test_a_record_that_is_too_large() -> None:
    """Refused by its size, before its bytes have come."""
    arriving = Arriving()
    head = ((1 << 28) + 1).to_bytes(4) + message.encode(record())[4:]
    array = np.frombuffer(head + bytes(PAD), np.uint8)
    assert list(arriving.rows(array, len(head), 0, 0, 1 << 30)) == []
    assert arriving.stop is Stop.DAMAGED
