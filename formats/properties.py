"""The property string of a record: name 0x01 value 0x02 name 0x01 value 0x02 ...

Two dialects. 4.x leaves out the last 0x02, 5.x writes it; decoders of both take either form.
There is no escaping: a name or value that contains 0x01 or 0x02 is decoded differently.

A broker decodes the string of a request into a HashMap and encodes it again, so stored strings
are in the order of that map: 16 buckets on 4.x, and on 5.x in messages that the broker makes
itself; 128 buckets on 5.x in messages from clients. Items of a batch keep the client's bytes.

5.x can end a record with the property `__CRC32#`: 20 bytes, ten digits, the least significant
first. It covers every byte of the record before it, also topic and properties.

Source: MessageDecoder#messageProperties2String, #string2messageProperties, #createCrc32,
MessageExtEncoder#encode; spec 01 sections 3.4, 3.6, 14.3, 18.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from rmqtool.errors import FormatError
from rmqtool.formats.declare import Layout
from rmqtool.formats.java import hash_map_order, java_utf8_decode, java_utf8_encode, parse_integer
from rmqtool.formats.message import PROPERTY_CRC_NAME, PROPERTY_CRC_SIZE, masked_crc
from rmqtool.formats.parts import Bytes, Struct

Dialect = Literal["4.x", "5.x"]

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"
MAX_SIZE: Final = 0x7FFF  # bytes: properties_length is an i16
BUCKETS_4X: Final = 16
BUCKETS_5X: Final = 128
KEY_SEPARATOR: Final = " "

# Names that the store itself understands (MessageConst).
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANS_OFFSET: Final = "TRANS_OFFSET"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

NAMES_OF_BROKERS: Final = frozenset({
    KEYS, TAGS, UNIQ_KEY, WAIT, DELAY, CLUSTER, MSG_REGION, TRACE_ON, REAL_TOPIC, REAL_QID, RETRY_TOPIC,
    ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, TRAN_MSG, PGROUP, TRANSACTION_ID,
    TRANSACTION_CHECK_TIMES, TRANS_OFFSET, TRAN_PREPARED_QUEUE_OFFSET, TIMER_DELAY_SEC, TIMER_DELAY_MS,
    TIMER_DELIVER_MS, TIMER_OUT_MS, TIMER_ROLL_TIMES, TIMER_DEL_UNIQKEY, INNER_NUM, INNER_BASE,
    INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, PROPERTY_CRC_NAME, "1ST_POP_TIME", "ARRIVE_TIME",
    "BORN_TIMESTAMP", "BUYER_ID", "CHECK_IMMUNITY_TIME_IN_SECONDS", "CONSUME_START_TIME", "CORRECTION_FLAG",
    "CORRELATION_ID", "EXTEND_UNIQ_INFO", "E_T", "INSTANCE_ID", "MAX_OFFSET", "MAX_RECONSUME_TIMES",
    "MIN_OFFSET", "MQ2_FLAG", "MSG_TYPE", "ORIGIN_GROUP", "POP_CK", "POP_CK_OFFSET", "PUSH_REPLY_TIME",
    "RECONSUME_TIME", "REDIRECT", "REPLY_TO_CLIENT", "TIMER_DELAY_LEVEL", "TIMER_DEQUEUE_MS",
    "TIMER_ENQUEUE_MS", "TIMER_ROLL_LABEL", "TRACE_CONTEXT", "TRANSFER_FLAG", "TTL", "_SYS_MSG_PRIORITY_",
    "__BORNHOST", "__SHARDINGKEY",
})  # fmt: skip
"""The names of MessageConst (5.4), which brokers and clients give; all others are those of applications."""

CRC_PROPERTY = Layout(
    "property CRC",
    Struct(
        "name" / Bytes(8) * "the text __CRC32#",
        "name_end" / Bytes(1) * "01",
        "digits" / Bytes(10) * "CRC-32 of all preceding bytes, top bit cleared: decimal, lowest digit first",
        "value_end" / Bytes(1) * "02",
    ),
    "The last 20 bytes of a record, and of its properties, on 5.x brokers with"
    " enabledAppendPropCRC=true. A broker checks it only with forceVerifyPropCRC=true.",
)
assert CRC_PROPERTY.size == PROPERTY_CRC_SIZE
_CRC_NAME: Final = PROPERTY_CRC_NAME.encode()


def decode(data: bytes | memoryview) -> dict[str, str]:
    """The properties as Java reads them, in stored order.

    Pieces without 0x01 and those with an empty name or value are dropped. Of a repeated name the
    last value wins, at the place of the first, as in Java's map. Never raises.

    Source: MessageDecoder#string2messageProperties.
    """
    result: dict[str, str] = {}
    for piece in java_utf8_decode(data).split(VALUE_END):
        name, found, value = piece.partition(NAME_END)
        if found and name and value:
            result[name] = value
    return result


def pairs(data: bytes | memoryview) -> list[tuple[str, str]]:
    """Every (name, value) in stored order: repeated names, empty names and empty values too.

    Pieces without 0x01 are not pairs and are left out; `sound` is False if there are any.
    """
    pieces = (piece.partition(NAME_END) for piece in java_utf8_decode(data).split(VALUE_END))
    return [(name, value) for name, found, value in pieces if found]


def sound(data: bytes | memoryview) -> bool:
    """Whether every piece is UTF-8 text with a name and 0x01.

    An empty value is sound (brokers store it in batch items, readers drop it), and so are no
    bytes at all.
    """
    data = bytes(data)
    if not data:
        return True
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(piece.find(NAME_END) > 0 for piece in text.removesuffix(VALUE_END).split(VALUE_END))


def encode(properties: Mapping[str, str] | Iterable[tuple[str, str]], *, dialect: Dialect) -> bytes:
    """The property string of `properties` in their own order (see `java_order`).

    Raises:
        FormatError: a 0x01 or 0x02 in a name or value would end it there, a name is
            empty, or the string is longer than 32767 bytes.

    Source: MessageDecoder#messageProperties2String.
    """
    items = properties.items() if isinstance(properties, Mapping) else properties
    parts: list[str] = []
    for name, value in items:
        if not name or NAME_END in name or VALUE_END in name or VALUE_END in value:
            raise FormatError(f"property {name!r} cannot be stored: empty name, or 0x01 or 0x02 inside")
        parts += (name, NAME_END, value, VALUE_END)
    if dialect == "4.x":
        parts = parts[:-1]
    data = java_utf8_encode("".join(parts))
    if len(data) > MAX_SIZE:
        raise FormatError(f"properties of {len(data)} bytes: at most {MAX_SIZE} can be stored")
    return data


def closed(data: bytes) -> bytes:
    """The string with its last 0x02 if it ends in 0, so that a record with it does not end in zeros.

    A record that ends in zeros cannot be distinguished from one whose last bytes were not written: the CRC
    covers the body only (`Message.ends_in_zeros`). Only strings of the 4.x dialect can end so, and brokers
    of all versions read the string with its last 0x02 as the same properties.

    Source: MessageDecoder#string2messageProperties; spec 01 section 3.4, 02 section 4.1.
    """
    return data + VALUE_END.encode() if data.endswith(b"\0") else data


def java_order(properties: Mapping[str, str], buckets: int) -> dict[str, str]:
    """`properties` in the order in which a broker's HashMap of `buckets` gives them.

    Names that share a bucket keep the order they have in `properties`.
    """
    return {name: properties[name] for name in hash_map_order(properties, buckets)}


def round_trips(data: bytes | memoryview, *, dialect: Dialect | None = None) -> bool:
    """Whether `encode(decode(data))` gives `data` back, in `dialect` or (None) in either."""
    data = bytes(data)
    if dialect is None:
        dialect = "5.x" if data.endswith(b"\x02") else "4.x"
    try:
        return encode(decode(data), dialect=dialect) == data
    except FormatError:
        return False


def keys_of(properties: Mapping[str, str]) -> list[str]:
    """The index keys of a message: KEYS split at each space, empty pieces left out.

    Source: IndexService#buildIndex.
    """
    return [key for key in properties.get(KEYS, "").split(KEY_SEPARATOR) if key]


def batch_count(properties: Mapping[str, str]) -> int:
    """The messages in a batch record (sys_flag 80), as a broker counts them; 1 if it cannot.

    Source: CommitLog#checkMessageAndReturnSize.
    """
    if INNER_BASE not in properties or INNER_NUM not in properties:
        return 1
    return max(parse_integer(properties[INNER_NUM], 1 << 15) or 1, 1)


def property_crc_bytes(record: bytes | memoryview) -> bytes:
    """The 20 bytes of the CRC property that end the record which starts with `record`.

    Args:
        record: every byte before the property, final offsets and times included.

    Source: MessageDecoder#createCrc32.
    """
    digits = f"{masked_crc(record):010d}"[::-1].encode()
    return CRC_PROPERTY.pack(_CRC_NAME, b"\x01", digits, b"\x02")


def property_crc(data: bytes | memoryview) -> int | None:
    """The CRC that a record, or its property string, ends with; None if it has none.

    It is found by its place, not by name: in a record from a batch it can follow a value without 0x02
    between them, and Java's reader then takes it as part of that value.
    """
    tail = bytes(data[-PROPERTY_CRC_SIZE:])
    if len(tail) != PROPERTY_CRC_SIZE:
        return None
    name, name_end, digits, value_end = CRC_PROPERTY.unpack(tail)
    if (name, name_end, value_end) != (_CRC_NAME, b"\x01", b"\x02") or not digits.isdigit():
        return None
    return int(digits[::-1])


def property_crc_ok(record: bytes | memoryview) -> bool | None:
    """Whether the CRC property of a whole record matches; None for a record without one."""
    stored = property_crc(record)
    if stored is None:
        return None
    return stored == masked_crc(memoryview(record)[:-PROPERTY_CRC_SIZE])


def reserve_property_crc(data: bytes) -> bytes:
    """A property string with 20 zero bytes at its end for the CRC property.

    0x02 is put before them if the string does not end with it. `seal_property_crc` fills them
    when the rest of the record is final. Source: MessageExtEncoder#encode.
    """
    separator = b"" if not data or data.endswith(b"\x02") else b"\x02"
    return data + separator + bytes(PROPERTY_CRC_SIZE)


def seal_property_crc(record: bytes) -> bytes:
    """The whole record with its last 20 bytes replaced by the CRC property.

    Raises:
        FormatError: the record is shorter than that.
    """
    if len(record) < PROPERTY_CRC_SIZE:
        raise FormatError(f"a record of {len(record)} bytes has no room for the CRC property")
    head = record[:-PROPERTY_CRC_SIZE]
    return head + property_crc_bytes(head)
