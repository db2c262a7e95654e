"""What is left of a record that cannot be read as a whole: its header, properties, parts of its body.

Nothing is guessed. A header counts if it has a magic number, its own offset, the size that the unit says, and
times. The end of a record counts if topic and properties, with their lengths, fill it to the byte at which
the unit says that the record ends. Pages of zeros, and zeros at the start and at the end of the record, are
lost bytes.

Source: MessageDecoder; spec 01 section 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats.java import java_utf8_encode
from rmqtool.log.damage import PAGE

_TOPIC_MAX = 32767
_HEAD_MAX = max(layout.size for layout in form.HEADS.values())
_LENGTH = struct.Struct(">h")
_INTEGER = struct.Struct(">i")


class Remains(NamedTuple):
    """The parts of a record that are left; positions are bytes from its start, ranges half-open.

    Attributes:
        size: of the whole record, bytes.
        head: the values of the header by name; None if it is lost.
        body: the ranges of the body that are there.
        body_length: None if it is unknown.
        topic_at: where the length of the topic is, at the end of the body; None if the end is lost.
        topic: of the end.
        properties: the property string of the end.
    """

    size: int
    head: dict[str, Any] | None
    body: tuple[tuple[int, int], ...]
    body_length: int | None
    topic_at: int | None
    topic: bytes
    properties: bytes | None

    @property
    def body_bytes(self) -> int:
        """How many bytes of the body are there."""
        return sum(stop - start for start, stop in self.body)


def remains_of(data: bytes, physical_offset: int, position: int, size: int, topic: str) -> Remains | None:
    """What is left of a record; None if nothing that is certain.

    Args:
        data: the bytes from the start of the record, as many as its file has, at most `size`.
        physical_offset: of the record.
        position: of the record in its file.
        size: of the record, bytes, as its unit says.
        topic: of the record, as its queue says.
    """
    data, name = data[:size], java_utf8_encode(topic)
    zeros = list(_lost_ranges(data, position, size))
    head = _head(data[: zeros[0][0]] if zeros else data, physical_offset, size)
    after = zeros[-1][1] if zeros else 0
    end = _end(data, after, size, name) if len(data) == size else None
    if head is not None and end is not None and head[1] + head[0]["body_length"] != end[0]:
        head = None
    if head is None and end is None:
        return None
    topic_at, found = end if end is not None else (None, None)
    start, length = _body(data, head, topic_at)
    stop = len(data) if topic_at is None else topic_at
    if length is not None and start is not None:
        stop = min(stop, start + length)
    ranges = tuple(_without(zeros, max(after, _HEAD_MAX) if start is None else start, stop))
    if start is None and not zeros:
        ranges = ()  # nothing shows where the body begins
    values = head[0] if head is not None else None
    return Remains(size, values, ranges, length, topic_at, name, found)


def _lost_ranges(data: bytes, position: int, size: int) -> Iterator[tuple[int, int]]:
    """Zeros at the start, whole pages of zeros of the file, and zeros at the end of the record."""
    first = len(data) - len(data.lstrip(b"\0"))
    last = len(data.rstrip(b"\0")) if len(data) == size else len(data)
    if len(data) - last < form.BLANK_SIZE:
        last = len(data)
    if first >= form.BLANK_SIZE:
        yield 0, first
    for start in range(-position % PAGE, last - PAGE + 1, PAGE):
        if start >= first and data.count(0, start, start + PAGE) == PAGE:
            yield start, start + PAGE
    if first <= last < len(data):
        yield last, len(data)


def _without(lost: list[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of a range that are in no lost one."""
    for low, high in lost:
        if start < min(low, stop):
            yield start, min(low, stop)
        start = max(start, high)
    if start < stop:
        yield start, stop


def _head(data: bytes, physical_offset: int, size: int) -> tuple[dict[str, Any], int] | None:
    """The values of the header and its size; `data` ends where the first bytes are lost."""
    if len(data) < form.HEAD_SIZE_V4:
        return None
    layout = form.head_layout(_INTEGER.unpack_from(data, form.SYS_FLAG_OFFSET)[0])
    if len(data) < layout.size:
        return None
    values = layout.unpack(data[: layout.size])
    found = dict(zip(layout.offsets, values, strict=True))
    is_own = found["magic"] in form.VERSION_BY_MAGIC and found["physical_offset"] == physical_offset
    fits = found["total_size"] == size and 0 <= found["body_length"] <= size - layout.size - 3
    has_times = found["born_timestamp"] > 0 and found["store_timestamp"] > 0
    return (found, layout.size) if is_own and fits and has_times else None


def _end(data: bytes, after: int, size: int, topic: bytes) -> tuple[int, bytes] | None:
    """Where the length of the topic is, and the properties after it, which end the record."""
    if len(topic) > _TOPIC_MAX:
        return None
    name = (bytes([len(topic)]) if len(topic) < 128 else _LENGTH.pack(len(topic))) + topic
    stop = size
    while (place := data.rfind(name, after, stop)) >= 0:
        at = place + len(name)
        if at + _LENGTH.size <= size and at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0] == size:
            string = data[at + _LENGTH.size :]
            return (place, string) if string and properties.sound(string) else None
        stop = at - 1
    return None


def _body(
    data: bytes, head: tuple[dict[str, Any], int] | None, topic_at: int | None
) -> tuple[int | None, int | None]:
    """Where the body begins, and its length; None where that is unknown."""
    if head is not None:
        return head[1], head[0]["body_length"]
    if topic_at is None:
        return None, None
    for layout in form.HEADS.values():  # of a damaged header the length of the body may be right
        length = topic_at - layout.size
        if length >= 0 and _INTEGER.unpack_from(data, layout.size - _INTEGER.size)[0] == length:
            return layout.size, length
    return None, None
