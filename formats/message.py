"""The commit log record: message version 1 and 2, and the blank at a file's end.

    total_size i32 | magic i32 | body_crc i32 | queue_id i32 | flag i32 | queue_offset i64
    physical_offset i64 | sys_flag i32 | born_timestamp i64 | born_host 8|20
    store_timestamp i64 | store_host 8|20 | reconsume_times i32 | prepared_transaction_offset i64
    body_length i32 | body | topic_length i8 (version 1) or i16 (version 2) | topic
    properties_length i16 | properties

All integers are big-endian. Records follow each other without padding, and none spans two files:
a record of n bytes is written only if n + 8 bytes are left, else a blank (8 bytes: the bytes left
of the file, BLANK_MAGIC) ends the file. The bytes after a blank's 8 are undefined.

`RECORD` declares the record once; the four fixed heads (IPv4 or IPv6 hosts) derive from it.

Source: MessageExtEncoder#encode, CommitLog#checkMessageAndReturnSize, MessageDecoder#decode;
spec 01 section 3.
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

from rmqtool.errors import FormatError
from rmqtool.formats.declare import Layout
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.parts import Bytes, IfThenElse, Int8sb, Int16sb, Int32sb, Int64sb, Part, Struct
from rmqtool.lazy_dataclass import dataclass

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB
BLANK_MAGIC = -875286124  # 0xCBD43194
VERSION_BY_MAGIC = {MAGIC_V1: 1, MAGIC_V2: 2}
MAGIC_BY_VERSION = {1: MAGIC_V1, 2: MAGIC_V2}

# sys_flag bits (MessageSysFlag)
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_TYPE_MASK = 0x700

HOST_V4_SIZE = 8  # 4 address bytes, port as i32
HOST_V6_SIZE = 20  # 16 address bytes, port as i32
CRC_MASK = 0x7FFFFFFF
PROPERTY_CRC_NAME = "__CRC32#"
PROPERTY_CRC_SIZE = 20  # name, 0x01, ten digits, 0x02


def _host_size(bit: int) -> Any:
    return lambda context: HOST_V6_SIZE if context.sys_flag & bit else HOST_V4_SIZE


HEAD_FIELDS: tuple[Part, ...] = (
    "total_size" / Int32sb * "bytes of the whole record, this field included",
    "magic" / Int32sb * "version: DAA320A7 is version 1, DAA320AB version 2",
    "body_crc" / Int32sb * "CRC-32 of the body as stored, top bit cleared; not checked without a body",
    "queue_id" / Int32sb * "queue within the topic",
    "flag" / Int32sb * "the application's flag",
    "queue_offset" / Int64sb * "number of the record's unit in its queue; 0 for prepared and rollback",
    "physical_offset" / Int64sb * "the record's own offset in the commit log, bytes",
    "sys_flag" / Int32sb * "compression, transaction type, IPv6 hosts, inner batch (see sys_flag bits)",
    "born_timestamp" / Int64sb * "when the producer created the message, ms since 1970",
    "born_host" / Bytes(_host_size(BORN_HOST_V6)) * "producer: 4 or 16 address bytes, port as i32",
    "store_timestamp" / Int64sb * "when the broker stored the record, ms since 1970",
    "store_host" / Bytes(_host_size(STORE_HOST_V6)) * "broker: 4 or 16 address bytes, port as i32",
    "reconsume_times" / Int32sb * "how often a consumer has sent the message back",
    "prepared_transaction_offset" / Int64sb * "in a committed message: physical offset of its half message",
    "body_length" / Int32sb * "bytes of body that follow; 0 is allowed",
)  # fmt: skip

RECORD = Struct(
    *HEAD_FIELDS,
    "body"
    / Bytes(lambda context: max(context.body_length, 0))
    * "the body as stored (compressed, or a batch)",
    "topic_length"
    / IfThenElse(lambda context: context.magic == MAGIC_V2, Int16sb, Int8sb)
    * "bytes of topic: i8 in version 1, i16 in version 2; signed",
    "topic" / Bytes(lambda context: context.topic_length) * "topic, UTF-8",
    "properties_length" / Int16sb * "bytes of properties; signed",
    "properties"
    / Bytes(lambda context: max(context.properties_length, 0))
    * "name 0x01 value 0x02 ..., UTF-8; 4.x omits the last 0x02",
)

BLANK = Layout(
    "blank",
    Struct(
        "total_size" / Int32sb * "bytes left in the file, this field included",
        "magic" / Int32sb * "CBD43194",
    ),
    "End of a commit log file: no further record fits. The bytes after these 8 are undefined.",
)
BLANK_SIZE = BLANK.size
assert BLANK_SIZE == 8

_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
HEADS: dict[int, Layout] = {
    bits: Layout("message head", Struct(*HEAD_FIELDS), "", sys_flag=bits)
    for bits in (0, BORN_HOST_V6, STORE_HOST_V6, _HOST_BITS)
}
"""The fixed part of a record, from total_size to body_length, by the IPv6 bits of sys_flag."""

SYS_FLAG_OFFSET = HEADS[0].offsets["sys_flag"]
PHYSICAL_OFFSET_OFFSET = HEADS[0].offsets["physical_offset"]
QUEUE_ID_OFFSET = HEADS[0].offsets["queue_id"]
QUEUE_OFFSET_OFFSET = HEADS[0].offsets["queue_offset"]
HEAD_SIZE_V4 = HEADS[0].size
RECORD_SIZE_MAX = 1 << 28
"""The largest record that is read whole into memory, bytes. A broker's usual limit is 4 MiB of body
(maxMessageSize); more than this is damage, or a file made to exhaust the memory."""
MIN_RECORD_SIZE = HEAD_SIZE_V4 + 1 + 2  # version 1, IPv4, no body, topic or properties
assert (HEAD_SIZE_V4, HEADS[_HOST_BITS].size, MIN_RECORD_SIZE) == (88, 112, 91)

_START = struct.Struct(">ii")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Message:
    """One commit log record, field by field as stored; see `RECORD` for what the fields mean.

    `body`, `topic_bytes` and `properties_bytes` are the stored bytes, so `encode` gives the
    record back byte for byte. `properties_length` is negative only in unusual records of other
    writers; the stored number is kept.
    """

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_length: int
    body: bytes
    topic_bytes: bytes
    properties_length: int
    properties_bytes: bytes

    @property
    def version(self) -> int:
        """1 or 2."""
        return VERSION_BY_MAGIC[self.magic]

    @property
    def topic(self) -> str:
        """The topic; bytes that are not UTF-8 read as U+FFFD, as in Java."""
        return java_utf8_decode(self.topic_bytes)

    @property
    def ends_in_zeros(self) -> bool:
        """Whether its last bytes may never have been written: writers do not end properties or a topic in 0.

        The body's CRC does not cover them, so a record that is torn there looks whole. The exception is a
        4.x broker, where the last property of a message ends in a NUL character; see `properties.closed`.
        """
        return ends_in_zeros(self.properties_bytes, self.topic_bytes)

    @property
    def transaction_type(self) -> int:
        """0, TRANSACTION_PREPARED, TRANSACTION_COMMIT or TRANSACTION_ROLLBACK."""
        return self.sys_flag & TRANSACTION_MASK


def ends_in_zeros(properties: bytes, topic: bytes) -> bool:
    """See `Message.ends_in_zeros`; for the last two parts of a record, as stored."""
    return (properties or topic)[-1:] == b"\0"


def head_layout(sys_flag: int) -> Layout:
    """The layout of a record's fixed part, by the IPv6 bits of its sys_flag."""
    return HEADS[sys_flag & _HOST_BITS]


def record_size(
    version: int, sys_flag: int, body_length: int, topic_length: int, properties_length: int
) -> int:
    """Bytes of a record with these lengths; negative body and properties count as 0.

    Source: CommitLog#calMsgLength.
    """
    return (
        head_layout(sys_flag).size
        + max(body_length, 0)
        + version
        + topic_length
        + 2
        + max(properties_length, 0)
    )


def masked_crc(data: bytes | memoryview) -> int:
    """CRC-32 with the top bit cleared. Source: UtilAll#crc32."""
    return crc32(data) & CRC_MASK


def decode(buffer: bytes | memoryview, offset: int = 0) -> Message:
    """The record that starts at `offset` of `buffer`.

    Every length is checked against the bytes that are left before it is used. The CRC and the
    stored physical offset are not checked here.

    Raises:
        FormatError: the bytes are not a whole record whose lengths add up to its total_size.
    """
    view = memoryview(buffer)
    left = len(view) - offset
    if left < MIN_RECORD_SIZE:
        raise FormatError(f"{left} bytes are too few for a record")
    total_size, magic = _START.unpack_from(view, offset)
    if magic not in VERSION_BY_MAGIC:
        raise FormatError(f"no message magic (found {magic & 0xFFFFFFFF:08X})")
    if not MIN_RECORD_SIZE <= total_size <= left:
        raise FormatError(f"record size {total_size} does not fit into the {left} bytes left")
    (sys_flag,) = _I32.unpack_from(view, offset + SYS_FLAG_OFFSET)
    head = head_layout(sys_flag)
    end = offset + total_size
    if offset + head.size > end:
        raise FormatError(f"record size {total_size} is less than its head")
    values = head.unpack(view, offset)
    body, position = _sized(view, offset + head.size, values[-1], end, "body")
    if magic == MAGIC_V1:
        _need(position, 1, end, "topic length")
        topic_length, position = int.from_bytes(view[position : position + 1], signed=True), position + 1
    else:
        _need(position, 2, end, "topic length")
        (topic_length,), position = _I16.unpack_from(view, position), position + 2
    if topic_length < 0:
        raise FormatError(f"topic length {topic_length} is negative")
    topic, position = _sized(view, position, topic_length, end, "topic")
    _need(position, 2, end, "properties length")
    (properties_length,), position = _I16.unpack_from(view, position), position + 2
    properties, position = _sized(view, position, properties_length, end, "properties")
    if position != end:
        raise FormatError(f"record size {total_size}, but its parts are {position - offset} bytes")
    return Message(*(*values, body, topic, properties_length, properties))


def _need(position: int, size: int, end: int, what: str) -> None:
    if size > end - position:
        raise FormatError(f"{what} needs {size} bytes, the record has {end - position} left")


def _sized(view: memoryview, position: int, size: int, end: int, what: str) -> tuple[bytes, int]:
    size = max(size, 0)
    _need(position, size, end, what)
    return bytes(view[position : position + size]), position + size


def encode(message: Message) -> bytes:
    """The bytes of `message`, every field as given: total_size and CRC are not computed.

    Raises:
        FormatError: a value does not fit its field.
    """
    lengths = Int8sb if message.magic == MAGIC_V1 else Int16sb
    layout = head_layout(message.sys_flag)
    sizes = {field.name: field.size for field in layout.fields}
    for name, host in (("born_host", message.born_host), ("store_host", message.store_host)):
        if len(host) != sizes[name]:
            raise FormatError(f"{name} has {len(host)} bytes, sys_flag says {sizes[name]}")
    try:
        head = layout.pack(
            message.total_size, message.magic, message.body_crc, message.queue_id, message.flag,
            message.queue_offset, message.physical_offset, message.sys_flag, message.born_timestamp,
            message.born_host, message.store_timestamp, message.store_host, message.reconsume_times,
            message.prepared_transaction_offset, message.body_length,
        )  # fmt: skip
        topic_length = len(message.topic_bytes).to_bytes(lengths.sizeof(), signed=True)
        properties_length = _I16.pack(message.properties_length)
    except (struct.error, OverflowError) as error:
        raise FormatError(f"a value does not fit its field: {error}") from error
    return b"".join(
        (head, message.body, topic_length, message.topic_bytes, properties_length, message.properties_bytes)
    )


def encode_blank(left: int) -> bytes:
    """The 8 bytes that end a file of which `left` bytes remain."""
    return BLANK.pack(left, BLANK_MAGIC)
