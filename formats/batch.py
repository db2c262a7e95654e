"""The body of a batch: messages one after the other, each without topic, queue or times.

    total_size i32 | magic i32 | body_crc i32 | flag i32 | body_length i32 | body
    properties_length i16 | properties

A producer sends this as the body of a batch. The broker stores each item as a record of its own;
in a topic with queue.type=BatchCQ (5.x, sys_flag INNER_BATCH) the record keeps the whole batch as
its body, and item i has the queue offset INNER_BASE + i.

Clients write 0 for magic and body_crc. Readers use the two lengths only, never total_size.

Source: MessageDecoder#encodeMessage, #decodeMessage, #decodeMessages; spec 01 section 10.5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from rmqtool.errors import FormatError
from rmqtool.formats import checked
from rmqtool.formats.declare import Layout
from rmqtool.formats.parts import Bytes, Int16sb, Int32sb, Part, Struct
from rmqtool.lazy_dataclass import dataclass

_HEAD_FIELDS: tuple[Part, ...] = (
    "total_size" / Int32sb * "bytes of the item, this field included: 22 + body_length + properties_length",
    "magic" / Int32sb * "0",
    "body_crc" / Int32sb * "0: the broker computes it",
    "flag" / Int32sb * "the application's flag",
    "body_length" / Int32sb * "bytes of body that follow",
)

ITEM = Struct(
    *_HEAD_FIELDS,
    "body" / Bytes(lambda context: context.body_length) * "the message's body, never compressed individually",
    "properties_length" / Int16sb * "bytes of properties",
    "properties"
    / Bytes(lambda context: context.properties_length)
    * "name 0x01 value 0x02 ..., UTF-8, as the client wrote them",
)
HEAD = Layout("batch item head", Struct(*_HEAD_FIELDS), "")
MIN_ITEM_SIZE = HEAD.size + 2
assert MIN_ITEM_SIZE == 22
ITEMS_MAX = (1 << 15) - 1
"""The most messages of a batch: the field of a batch unit is a short."""

_I16 = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One message of a batch, as stored; see `ITEM` for what the fields mean.

    `total_size`, `magic` and `body_crc` are what the client wrote; they may be wrong.
    """

    total_size: int
    magic: int
    body_crc: int
    flag: int
    body: bytes
    properties_bytes: bytes


def item(body: bytes, properties_bytes: bytes, *, flag: int = 0) -> BatchItem:
    """The item that a client writes for a message."""
    size = MIN_ITEM_SIZE + len(body) + len(properties_bytes)
    return BatchItem(size, 0, 0, flag, body, properties_bytes)


def decode_items(body: bytes | memoryview) -> Iterator[BatchItem]:
    """The items of a batch body (decompressed, where its record says so), in order.

    Raises:
        FormatError: the next bytes are not a whole item, or ITEMS_MAX items were yielded and more follow:
            each 22 zero bytes are an item, and a compressed body can unpack to millions of them. All items
            before were yielded.
    """
    view = memoryview(body)
    position = count = 0
    while position < len(view):
        if count == ITEMS_MAX:
            raise FormatError(f"the batch has more than {ITEMS_MAX} messages")
        decoded, position = _decode_item(view, position)
        count += 1
        yield decoded


def _decode_item(view: memoryview, start: int) -> tuple[BatchItem, int]:
    total_size, magic, body_crc, flag, body_length = checked.unpack(HEAD, view, start)
    position = start + HEAD.size
    if not 0 <= body_length <= len(view) - position - _I16.size:
        raise FormatError(f"batch item at byte {start}: body length {body_length} does not fit")
    body = bytes(view[position : position + body_length])
    position += body_length
    (properties_length,) = _I16.unpack_from(view, position)
    position += _I16.size
    if not 0 <= properties_length <= len(view) - position:
        raise FormatError(f"batch item at byte {start}: properties length {properties_length} does not fit")
    properties = bytes(view[position : position + properties_length])
    return BatchItem(total_size, magic, body_crc, flag, body, properties), position + properties_length


def encode_items(items: Iterable[BatchItem]) -> bytes:
    """The batch body of `items`, every field as given.

    Raises:
        FormatError: a value does not fit its field.
    """
    parts: list[bytes] = []
    for each in items:
        parts.append(
            checked.pack(HEAD, each.total_size, each.magic, each.body_crc, each.flag, len(each.body))
        )
        parts.append(each.body)
        try:
            parts.append(_I16.pack(len(each.properties_bytes)))
        except struct.error as error:
            raise FormatError(f"properties of {len(each.properties_bytes)} bytes do not fit") from error
        parts.append(each.properties_bytes)
    return b"".join(parts)
