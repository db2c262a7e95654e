"""The records of an answer: read together, checked one by one.

Consumers believe what they get: they do not compare the CRC of a body, and a wrong length ends their decoder,
which drops the rest of the answer without a word. So a record that is not sound is left out of an answer.

Source: MessageDecoder#decodesBatch (what a client checks).
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple
from zlib import crc32

from rmqtool.formats import message as form
from rmqtool.formats.java import java_utf8_encode
from rmqtool.report.tail.get_message import Pulled
from rmqtool.report.tail.log_reader import LogReader, RecordRef

_HEAD_V4 = struct.Struct(">iiiiiqqi44xi")  # from total_size to sys_flag; and body_length, with hosts of IPv4
_LENGTH = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_HOSTS_V6 = form.BORN_HOST_V6 | form.STORE_HOST_V6
_LENGTHS = "its lengths do not add up"
assert _HEAD_V4.size == form.HEAD_SIZE_V4
_LIGHT = "%LMQ%"  # a light queue: its records belong to another one


class Checked(NamedTuple):
    """One record of a pull with its bytes, or why it is not sound."""

    record: Pulled
    data: memoryview
    reason: str | None


@cache
def _crc32() -> Callable[[memoryview], int]:
    """`crc32` at memory speed, where its library is installed."""
    try:
        found: Callable[[memoryview], int] = importlib.import_module("isal.isal_zlib").crc32
    except ImportError:
        return crc32
    return found


def checked_records(
    log: LogReader, topic: str, queue_id: int, records: Sequence[Pulled]
) -> Iterator[Checked]:
    """The records of one queue, in their order."""
    places = [RecordRef(record.physical_offset, record.size) for record in records]
    owner = None if topic.startswith(_LIGHT) else (java_utf8_encode(topic), queue_id)
    for record, piece in zip(records, log.pieces(places), strict=True):
        if piece is None:
            yield Checked(record, memoryview(b""), "it cannot be read")
            continue
        number = None if owner is None else record.queue_offset
        data = piece[1]
        yield Checked(record, data, reason_unsound(data, record.physical_offset, number, owner))


def reason_unsound(
    data: memoryview, physical_offset: int, queue_offset: int | None, owner: tuple[bytes, int] | None
) -> str | None:
    """Why these bytes are not the record that a client expects; None for a sound one.

    Args:
        data: all bytes of the record, as many as its unit says.
        physical_offset: where it lies.
        queue_offset: of its unit; None: any.
        owner: topic and queue id of its queue; None: any.
    """
    size = len(data)
    if size < form.MIN_RECORD_SIZE:
        return "its unit has a wrong size"
    total, magic, crc, queue_id, _, number, stored, sys_flag, body_length = _HEAD_V4.unpack_from(data)
    if magic not in form.VERSION_BY_MAGIC:
        return "no record is there"
    if total != size:
        return "its size is not that of its unit"
    if stored != physical_offset:
        return "it was stored for another place"
    if queue_offset is not None and number != queue_offset:
        return "it was stored for another queue offset"
    head = form.HEAD_SIZE_V4
    if sys_flag & _HOSTS_V6:
        head = form.head_layout(sys_flag).size
        if head > size:
            return _LENGTHS
        (body_length,) = _LENGTH.unpack_from(data, head - 4)
    after = head + body_length if body_length > 0 else head
    version = 1 if magic == form.MAGIC_V1 else 2
    if after + version + 2 > size:
        return _LENGTHS
    topic_length = int.from_bytes(data[after : after + version], signed=True)
    end = after + version + topic_length
    if topic_length < 0 or end + 2 > size:
        return _LENGTHS
    (properties_length,) = _SHORT.unpack_from(data, end)
    if end + 2 + max(properties_length, 0) != size:
        return _LENGTHS
    if owner is not None and (queue_id != owner[1] or data[end - topic_length : end] != owner[0]):
        return "it belongs to another queue"
    if body_length > 0 and _crc32()(data[head:after]) & form.CRC_MASK != crc:
        return "its body does not have its CRC"
    return None
