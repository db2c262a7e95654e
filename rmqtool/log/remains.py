"""What is left of a record that cannot be read as a whole: its header, properties, parts of its body.

Nothing is guessed. A header counts if it has a magic number, its own offset, the size that the unit says, and
times. The end of a record counts if topic and properties, with their lengths, fill it to the byte at which
the unit says that the record ends. Pages of zeros, and zeros at the start and at the end of the record, are
lost bytes.

Without a unit, headers show where a record begins (`heads_in`), and an end shows it (`end_of`) if the length
of the body is left, with the fields before it.

Source: MessageDecoder; spec 01 section 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats.java import java_utf8_encode
from rmqtool.lazy_pattern import pattern
from rmqtool.log.damage import PAGE

_TOPIC_MAX = 32767
_HEAD_MAX = max(layout.size for layout in form.HEADS.values())
_TOPIC_SEARCHED = 1024  # bytes; brokers take 255
_PRINTABLE = 0x20
_FLAGS_STOP = 1 << 12  # of sys_flag
_BORN_STOP = 1 << 42  # of born_timestamp: the year 2109
_FLAGS_AND_BORN = struct.Struct(">iq")
_BODY_MAX = 16 << 20  # more than any broker takes for one message
_LENGTH = struct.Struct(">h")
_INTEGER = struct.Struct(">i")
_LAST_FIELDS = struct.Struct(">4siiq")  # the end of store_host to prepared_transaction_offset
_MAGIC_AT = form.HEADS[0].offsets["magic"]
_MAGICS = pattern(b"\xda\xa3\x20[\xa7\xab]")  # of form.VERSION_BY_MAGIC


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


class LeftHead(NamedTuple):
    """A header that is left: the record's physical offset, its values by name, and its size in bytes."""

    physical_offset: int
    values: dict[str, Any]
    size: int

    def topic_at(self) -> int:
        """The physical offset of the length of the topic."""
        return self.physical_offset + self.size + int(self.values["body_length"])


class End(NamedTuple):
    """The end of a record that is left; positions are bytes from the start of the data.

    Attributes:
        start: where the record begins; None if nothing shows it.
        topic_at: where the length of the topic is.
        topic: without its length.
        properties: the property string, which ends the record.
    """

    start: int | None
    topic_at: int
    topic: bytes
    properties: bytes


def heads_in(data: bytes, physical_offset: int) -> Iterator[LeftHead]:
    """The headers in `data`, which begins at `physical_offset`; of records in any place, in their order."""
    found = (match.start() - _MAGIC_AT for match in _MAGICS.finditer(data))
    for start in found:
        head = _head(data[start : start + _HEAD_MAX], physical_offset + start) if start >= 0 else None
        if head is not None:
            yield LeftHead(physical_offset + start, *head)


def end_of(data: bytes) -> End | None:
    """The end of the record with which `data` ends, whatever its topic; None if nothing shows one."""
    size = len(data)
    for at in range(size - _LENGTH.size - 1, max(size - _LENGTH.size - properties.MAX_SIZE - 1, -1), -1):
        if _LENGTH.unpack_from(data, at)[0] != size - at - _LENGTH.size:
            continue
        string = data[at + _LENGTH.size :]
        if properties.NAME_END.encode() not in string or not properties.sound(string):
            continue
        places = [(at - len(stored_topic(topic)), topic) for topic in _topics_before(data, at)]
        found = [End(_start_before(data, place), place, topic, string) for place, topic in places]
        proven = [end for end in found if end.start is not None] or found
        return proven[0] if len(proven) == 1 else None
    return None


def topic_from(data: bytes, at: int) -> bytes | None:
    """The topic whose length is at a position of `data`; None if it is not there as a whole."""
    for size in (1, _LENGTH.size):
        length = int.from_bytes(data[at : at + size], signed=True)
        topic = data[at + size : at + size + max(length, 0)]
        if len(topic) == length and _is_topic(topic) and len(stored_topic(topic)) == size + length:
            return topic
    return None


def stored_topic(topic: bytes) -> bytes:
    """A topic as a record has it, after its length."""
    return (bytes([len(topic)]) if len(topic) < 128 else _LENGTH.pack(len(topic))) + topic


def _topics_before(data: bytes, stop: int) -> Iterator[bytes]:
    """The topics that may end at a position of `data`: a letter can be the length of what follows it."""
    for start in range(stop - 1, max(stop - _TOPIC_SEARCHED, 1) - 1, -1):
        topic = data[start:stop]
        if data.endswith(stored_topic(topic), 0, stop) and _is_topic(topic):
            yield topic
        if data[start] < _PRINTABLE:
            break


def _is_topic(data: bytes) -> bool:
    """Whether these bytes can be a topic: text, although not each is a topic that a broker creates."""
    try:
        return bool(data) and data.decode("utf-8").isprintable()
    except UnicodeDecodeError:
        return False


def _start_before(data: bytes, topic_at: int) -> int | None:
    """Where the record begins whose body ends at `topic_at`: the length of the body shows it.

    The fields before that length have to be left too, because a body can end with a length and as many bytes.
    None if several places fit. The hosts are taken to be IPv4 unless the flags are left that say otherwise.
    """
    import numpy as np

    starts = []
    for shift in range(_INTEGER.size):
        count = min(topic_at - shift, _BODY_MAX) // _INTEGER.size
        if count > 0:
            low = topic_at - shift - count * _INTEGER.size
            values = np.frombuffer(data, ">i4", count, low)
            right = (topic_at - low - _INTEGER.size) - _INTEGER.size * np.arange(count)
            stops = low + (np.flatnonzero(values == right) + 1) * _INTEGER.size
            starts += [_start_of_header(data, stop) for stop in stops.tolist()]
    fitting = [start for start in starts if start is not None]
    return fitting[0] if len(fitting) == 1 else None


def _start_of_header(data: bytes, stop: int) -> int | None:
    """Where the header that ends at `stop` begins; None if its last fields cannot be those of a header."""
    start = stop - form.HEAD_SIZE_V4
    if start < 0:
        return None
    host, port, reconsumed, prepared = _LAST_FIELDS.unpack_from(
        data, stop - _INTEGER.size - _LAST_FIELDS.size
    )
    if not (any(host) and 0 < port < 1 << 16 and 0 <= reconsumed < 1 << 16 and 0 <= prepared < 1 << 48):
        return None
    for layout in form.HEADS.values():
        place = stop - layout.size
        if place < 0 or layout.size == form.HEAD_SIZE_V4:
            continue
        flags, born = _FLAGS_AND_BORN.unpack_from(data, place + form.SYS_FLAG_OFFSET)
        if 0 < flags < _FLAGS_STOP and form.head_layout(flags) is layout and 0 < born < _BORN_STOP:
            return place
    return start


def remains_of(
    data: bytes, physical_offset: int, position: int, size: int, topic: str | None
) -> Remains | None:
    """What is left of a record; None if nothing that is certain.

    Args:
        data: the bytes from the start of the record, as many as its file has, at most `size`.
        physical_offset: of the record.
        position: of the record in its file.
        size: of the record, bytes, as its unit says.
        topic: of the record, as its queue says; None if no queue has it, whichever its end names.
    """
    data, name = data[:size], None if topic is None else java_utf8_encode(topic)
    zeros = list(_lost_ranges(data, position, size))
    head = _head(data[: zeros[0][0]] if zeros else data, physical_offset)
    if head is not None and head[0]["total_size"] != size:
        head = None
    after = zeros[-1][1] if zeros else 0
    end = None
    if len(data) == size and name is not None:
        end = _end(data, after, size, name)
    elif len(data) == size and not data.endswith(b"\0"):
        left = end_of(data)
        if left is not None:
            end, name = (left.topic_at, left.properties), left.topic
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
    return Remains(size, values, ranges, length, topic_at, name or b"", found)


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


def _flags_at(data: bytes, start: int) -> int:
    """The sys_flag of the header at `start`."""
    return int(_INTEGER.unpack_from(data, start + form.SYS_FLAG_OFFSET)[0])


def _head(data: bytes, physical_offset: int) -> tuple[dict[str, Any], int] | None:
    """The values of the header and its size; `data` ends where the first bytes are lost."""
    if len(data) < form.HEAD_SIZE_V4:
        return None
    layout = form.head_layout(_flags_at(data, 0))
    if len(data) < layout.size:
        return None
    values = layout.unpack(data[: layout.size])
    found = dict(zip(layout.offsets, values, strict=True))
    is_own = found["magic"] in form.VERSION_BY_MAGIC and found["physical_offset"] == physical_offset
    fits = 0 <= found["body_length"] <= found["total_size"] - layout.size - 3
    has_times = found["born_timestamp"] > 0 and found["store_timestamp"] > 0
    return (found, layout.size) if is_own and fits and has_times else None


def _end(data: bytes, after: int, size: int, topic: bytes) -> tuple[int, bytes] | None:
    """Where the length of the topic is, and the properties after it, which end the record."""
    if len(topic) > _TOPIC_MAX:
        return None
    name = stored_topic(topic)
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
