"""Commit log bytes for the scan tests, whole and damaged, and events as values to compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from rmqtool.formats import message
from rmqtool.formats.ledger import FILE_END, HEADER, HEADER_SIZE
from rmqtool.formats.message import HEAD_SIZE_V4, Message
from rmqtool.log.events import StoredMessage
from rmqtool.log.frames import FRAME, Frames
from tests.support.records import HOST
from tests.support.records import record as make_record

HOST_V6 = bytes(range(16)) + (10911).to_bytes(4)
_OTHER_NAMES = {"physical_offset", "topic_id", "version", "status", "size", "topic_length"}
COLUMNS = [name for name in FRAME.names or () if name not in _OTHER_NAMES]
"""Columns whose name and value are those of a Message."""


def log(*records: Message, base: int = 0, end: bytes = b"") -> bytes:
    """The bytes of a file from physical offset `base` on: records in place, then `end`."""
    data = bytearray()
    for each in records:
        data += message.encode(replace(each, physical_offset=base + len(data)))
    return bytes(data) + end


def entries(*records: Message, base: int = 0, first: int = 0, term: int = 0, end: bytes = b"") -> bytes:
    """The bytes of a file of a DLedger log from physical offset `base` on: entries in place, then `end`."""
    data = bytearray()
    for number, each in enumerate(records, first):
        here, size = base + len(data), each.total_size
        data += HEADER.pack(1, HEADER_SIZE + size, number, term, here, 0, 0, 0, size)
        data += message.encode(replace(each, physical_offset=here + HEADER_SIZE))
    return bytes(data) + end


def file_end(left: int, behind: bytes = b"") -> bytes:
    """The end mark of a DLedger file with `left` bytes left, `behind` it, filled up with zeros."""
    return (FILE_END.pack(-1, left) + behind).ljust(left, b"\0")[:left]


def blank(left: int, behind: bytes = b"") -> bytes:
    """A blank of `left` bytes, `behind` its head, filled up with zeros."""
    return (message.encode_blank(left) + behind).ljust(left, b"\0")[:left]


def values(events: Iterable[Any]) -> list[Any]:
    """Events of either walk as comparable values; one tuple per record."""
    return list(_values(events))


def _values(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        if isinstance(event, Frames):
            yield from _rows(event)
        elif isinstance(event, StoredMessage):
            m = event.message
            yield (
                event.physical_offset, event.status, m.total_size, m.version,
                m.topic_bytes, m.properties_bytes, m.body, *(getattr(m, name) for name in COLUMNS),
            )  # fmt: skip
        else:
            yield event


def _rows(frames: Frames) -> Iterator[tuple[Any, ...]]:
    def part(start: int, length: int) -> bytes:
        return frames.data[start : start + max(length, 0)].tobytes()

    starts = zip(frames.body_starts(), frames.topic_starts(), frames.properties_starts(), strict=True)
    for row, (body, topic, properties) in zip(frames.rows, starts, strict=True):
        topic_bytes = frames.topics[row["topic_id"]]
        assert part(topic, row["topic_length"]) == topic_bytes
        yield (
            int(row["physical_offset"]), int(row["status"]), int(row["size"]), int(row["version"]),
            topic_bytes, part(properties, row["properties_length"]), part(body, row["body_length"]),
            *(int(row[name]) for name in COLUMNS),
        )  # fmt: skip


@st.composite
def sound_records(draw: st.DrawFn) -> Message:
    """A record of any version and host form."""
    flags = draw(st.sampled_from([0, 0, 0, 0x10, 0x20, 0x30, 0x4, 0xC]))
    hosts = {
        "born_host": HOST_V6 if flags & message.BORN_HOST_V6 else HOST,
        "store_host": HOST_V6 if flags & message.STORE_HOST_V6 else HOST,
    }
    return make_record(
        draw(st.sampled_from(["A", "TopicTest", "", "topic-of-23-characters", "x" * 130])),
        draw(st.one_of(st.binary(max_size=40), st.sampled_from([bytes(300), bytes(range(256)) * 3]))),
        draw(st.sampled_from([b"", b"KEYS\x01k\x02", b"\x00\xff" * 30])),
        sys_flag=flags,
        queue_id=draw(st.integers(-(2**31), 2**31 - 1)),
        queue_offset=draw(st.integers(-(2**63), 2**63 - 1)),
        **hosts,
    )


@st.composite
def sound_logs(draw: st.DrawFn, base: int) -> bytes:
    """Records in place, at times with records inside of bodies, then zeros, a blank or nothing."""
    data = b""
    for each in draw(st.lists(sound_records(), max_size=8)):
        placed = replace(each, physical_offset=base + len(data))
        if data and draw(st.integers(0, 4)) == 0:
            # a copy of an older piece, or a record that is right where it stands
            body = data[-draw(st.integers(1, len(data))) :][:600]
            if draw(st.booleans()):
                inside = base + len(data) + message.head_layout(placed.sys_flag).size
                body = message.encode(replace(make_record("in", b"inside"), physical_offset=inside)) + body
            placed = _with_body(placed, body)
        data += message.encode(placed)
    left = draw(st.integers(8, 400))
    ends = [
        b"",
        bytes(left),
        blank(left),
        blank(left, data[:300]),
        message.encode_blank(left + 1) + bytes(left),
    ]
    return data + draw(st.sampled_from(ends))


def _with_body(record: Message, body: bytes) -> Message:
    size = record.total_size - len(record.body) + len(body)
    crc = message.masked_crc(body)
    return replace(record, body=body, body_length=len(body), body_crc=crc, total_size=size)


@st.composite
def damaged_logs(draw: st.DrawFn, base: int) -> bytes:
    """A sound log with up to four kinds of damage anywhere."""
    return draw(damaged(draw(sound_logs(base))))


@st.composite
def entry_logs(draw: st.DrawFn, base: int) -> bytes:
    """The file of a DLedger log: entries in place, then zeros, an end mark or nothing."""
    data = entries(*draw(st.lists(sound_records(), max_size=8)), base=base, first=draw(st.integers(0, 9)))
    if data and draw(st.integers(0, 4)) == 0:  # an entry in the body of another, right where it stands
        body = entries(make_record("in", b"inside"), base=base + len(data) + HEADER_SIZE + HEAD_SIZE_V4)
        data += entries(make_record("T", body + data[:200]), base=base + len(data))
    left = draw(st.sampled_from([8, 9, 47, 48, 55, 56, 57, 200, 400]))
    ends = [b"", bytes(left), file_end(left), file_end(left, data[:300]), file_end(left + 1)]
    return data + draw(st.sampled_from(ends))


@st.composite
def damaged(draw: st.DrawFn, stored: bytes) -> bytes:
    """These bytes with up to four kinds of damage anywhere."""
    data = bytearray(stored)
    for _ in range(draw(st.integers(0, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        length = draw(st.sampled_from([1, 4, 8, 100, 700]))
        piece = slice(at, min(at + length, len(data)))
        size = piece.stop - piece.start
        kind = draw(st.sampled_from(["flip", "zero", "noise", "cut", "insert", "delete", "copy", "field"]))
        if kind == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "zero":
            data[piece] = bytes(size)
        elif kind == "noise":
            data[piece] = draw(st.binary(min_size=size, max_size=size))
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=length))
        elif kind == "delete":
            del data[piece]
        elif kind == "copy":
            other = draw(st.integers(0, len(data) - 1))
            data[piece] = data[other : other + size]
        else:
            magic = data.find(b"\xda\xa3\x20", at)
            place = magic + draw(st.sampled_from([-4, -1, 0, 3, 4, 24, 31, 32, 80, 83]))
            if magic >= 0 and 0 <= place < len(data):
                data[place] = draw(st.integers(0, 255))
    return bytes(data)
