"""Records of real brokers, mutated: for each a buffer that starts with the record and goes on as a log does.

Everything comes from one seed. `MUTATIONS` names the kinds; each is a function of the random numbers
and a record that gives the bytes of the record's place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from rmqtool.formats import message, properties
from rmqtool.formats.message import Message

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
NUMBERS = (0, 1, -1, 2, 7, 8, 87, 88, 90, 91, 92, 100, 127, 128, 129, 255, 256, 0x7FFF, 0x8000, 0xFFFF,
           1 << 20, 1 << 26, 0x7FFFFFFF, -0x7FFFFFFF, -0x80000000, -2, -88, -128)  # fmt: skip
HUGE = 1 << 27
"""A total size of that many bytes or more may be too much for the memory of a 4.x broker."""

_PIECES = (
    "", "\x02", "\x01", "\x01\x02", "A\x01\x02", "\x01b\x02", "A\x01b", "A\x01b\x02", "A\x01b\x02\x02",
    "A\x01b\x01c\x02", "AB", "AB\x02", "TAGS\x01\x02", "TAGS\x01t\x02", "TAGS\x01a\x02TAGS\x01b\x02",
    "TAGS\x01AaAa\x02", "TAGS\x01BBBB\x02", "TAGS\x01标签\x02", "TAGS\x01\U0001f600\x02", "tags\x01t\x02",
    "KEYS\x01k\x02", "KEYS\x01 k1  k2 \x02", "KEYS\x01k1\x02KEYS\x01\x02", "UNIQ_KEY\x01u\x02",
    "UNIQ_KEY\x01\x02", "INNER_MULTI_DISPATCH\x01%LMQ%a\x02", "__CRC32#\x010123456789\x02",
    "__CRC32#\x01x\x02", "WAIT\x01false\x02", "DUP_INFO\x01a_b\x02",
)  # fmt: skip
_INTEGERS = (
    "0", "1", "2", "3", "4", "5", "99", "-1", "+1", "+0", "-0", "007", " 1", "1 ", "x", "1x", "0x1", "+", "-",
    "+-1", "1.0", "2147483647", "2147483648", "-2147483648", "-2147483649", "32767", "32768", "-32768",
    "-32769", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "99999999999999999999",
    "00000000000000000000000001", "\u0661", "\uff11", "\u07c1", "\U0001d7d9", "\u00b2", "",
)  # fmt: skip
_ODD_BYTES = (
    b"\xff",
    b"\xed\xa0\x80",
    b"\xc3",
    b"\xf0\x9f\x98",
    b"\x00",
    b"\xc0\x80",
    b"\xf8\x88\x80\x80\x80",
)

Mutation = Callable[[Random, Message], bytes]


def field_places(record: Message) -> list[tuple[int, int]]:
    """(offset, size) of every number of the record, the lengths of topic and properties included."""
    head = message.head_layout(record.sys_flag)
    places = [(field.offset, field.size) for field in head.fields if field.size in (4, 8)]
    topic = head.size + len(record.body)
    behind = topic + record.version + len(record.topic_bytes)
    return [*places, (topic, record.version), (behind, 2)]


def resized(record: Message, **changes: object) -> Message:
    """The record with other parts, its lengths and total size made to fit."""
    record = replace(record, **changes)  # type: ignore[arg-type]
    if "body" in changes:
        record = replace(record, body_length=len(record.body))
    if "properties_bytes" in changes:
        record = replace(record, properties_length=len(record.properties_bytes))
    lengths = len(record.body), len(record.topic_bytes), len(record.properties_bytes)
    return replace(record, total_size=message.record_size(record.version, record.sys_flag, *lengths))


def number_bytes(value: int, size: int) -> bytes:
    """The low bytes of `value`, big-endian."""
    return (value & ((1 << (8 * size)) - 1)).to_bytes(size)


# -- the kinds -------------------------------------------------------------------------------------


def whole(random: Random, record: Message) -> bytes:
    """As it is."""
    return message.encode(record)


def bit(random: Random, record: Message) -> bytes:
    """One bit anywhere."""
    data = bytearray(message.encode(record))
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def head_byte(random: Random, record: Message) -> bytes:
    """One byte of the head."""
    data = bytearray(message.encode(record))
    data[random.randrange(message.head_layout(record.sys_flag).size)] = random.randrange(256)
    return bytes(data)


def number(random: Random, record: Message) -> bytes:
    """A number replaced by an odd one, or moved a little."""
    data = bytearray(message.encode(record))
    offset, size = random.choice(field_places(record))
    old = int.from_bytes(data[offset : offset + size], signed=True)
    new = random.choice((random.choice(NUMBERS), old + random.choice((-2, -1, 1, 2, 8)), -old))
    data[offset : offset + size] = number_bytes(new, size)
    return bytes(data)


def total_size(random: Random, record: Message) -> bytes:
    """Only the total size is wrong."""
    near = record.total_size + random.randint(-12, 12)
    new = random.choice((near, near, random.choice(NUMBERS), random.randrange(-(1 << 31), 1 << 31)))
    return number_bytes(new, 4) + message.encode(record)[4:]


def magic(random: Random, record: Message) -> bytes:
    """Another magic, with lengths of the old version."""
    values = (
        message.MAGIC_V1,
        message.MAGIC_V2,
        message.BLANK_MAGIC,
        0,
        message.MAGIC_V1 + 1,
        record.magic ^ 1 << 16,
    )
    data = message.encode(record)
    return data[:4] + number_bytes(random.choice(values), 4) + data[8:]


def blank(random: Random, record: Message) -> bytes:
    """A blank in the record's place, of any size."""
    data = message.encode(record)
    size = random.choice((len(data), len(data) + random.randint(-3, 3), random.choice(NUMBERS)))
    return number_bytes(size, 4) + number_bytes(message.BLANK_MAGIC, 4) + data[8:]


def version(random: Random, record: Message) -> bytes:
    """The other version, all lengths right."""
    other = message.MAGIC_V2 if record.version == 1 else message.MAGIC_V1
    if other == message.MAGIC_V1 and len(record.topic_bytes) > 127:
        record = replace(record, topic_bytes=record.topic_bytes[:127])
    return message.encode(resized(record, magic=other))


def long_topic(random: Random, record: Message) -> bytes:
    """Topics around the limits of both versions; in version 1 the length's byte wraps."""
    size = random.choice((0, 1, 126, 127, 128, 129, 200, 255, 256, 32767))
    changed = resized(
        record, magic=message.MAGIC_V2, topic_bytes=random.randbytes(1) + b"t" * (size - 1) if size else b""
    )
    data = message.encode(changed)
    if random.random() < 0.5:
        return data
    at = message.head_layout(record.sys_flag).size + len(record.body)
    data = number_bytes(len(data) - 1, 4) + number_bytes(message.MAGIC_V1, 4) + data[8:at] + data[at + 1 :]
    return data


def topic(random: Random, record: Message) -> bytes:
    """Another topic, lengths right: odd bytes, the topic of delayed messages."""
    text = bytearray(random.choice((SCHEDULE_TOPIC, b"%RETRY%group", record.topic_bytes)))
    for _ in range(random.randrange(3)):
        text[random.randrange(len(text))] = random.choice((0, 1, 2, 0x7F, 0x80, 0xC3, 0xED, 0xFF))
    return message.encode(resized(record, topic_bytes=bytes(text)))


def hosts(random: Random, record: Message) -> bytes:
    """IPv6 bits in sys_flag toggled, with hosts of the new or of the old size; odd ports."""
    flipped = record.sys_flag ^ random.choice((message.BORN_HOST_V6, message.STORE_HOST_V6, 0x30))
    if random.random() < 0.3:
        data = message.encode(record)
        at = message.SYS_FLAG_OFFSET
        return data[:at] + number_bytes(flipped, 4) + data[at + 4 :]
    port = number_bytes(random.choice((0, 1, 10911, 65535, 65536, -1, 1 << 30)), 4)
    born, store = (
        (random.choice((bytes(10) + b"\xff\xff" + random.randbytes(4), random.randbytes(16))) if flipped & bit
         else random.randbytes(4)) + port
        for bit in (message.BORN_HOST_V6, message.STORE_HOST_V6)
    )  # fmt: skip
    return message.encode(resized(record, sys_flag=flipped, born_host=born, store_host=store))


def body(random: Random, record: Message) -> bytes:
    """Another body, lengths right; the CRC fits, fits but for its top bit, or does not."""
    new = random.randbytes(random.choice((0, 0, 1, 15, 16, 17, 64, 300, 4096)))
    crc = random.choice((message.masked_crc(new), message.masked_crc(new) - (1 << 31), record.body_crc, 0))
    return message.encode(resized(record, body=new, body_crc=crc))


def negative(random: Random, record: Message) -> bytes:
    """No body or no properties, their length negative: Java takes that for none."""
    changes: dict[str, object] = random.choice(
        ({"body": b""}, {"properties_bytes": b""}, {"body": b"", "properties_bytes": b""})
    )
    changed = resized(record, **changes)
    if "body" in changes:
        changed = replace(changed, body_length=-random.choice((1, 2, 88, 1 << 31)))
    if "properties_bytes" in changes:
        changed = replace(changed, properties_length=-random.choice((1, 2, 0x8000)))
    return message.encode(changed)


def property_string(random: Random, record: Message) -> bytes:
    """Properties that a client would not send, lengths right; at times in the topic of delayed messages."""
    parts = [random.choice(_PIECES).encode() for _ in range(random.randint(1, 4))]
    if random.random() < 0.25:
        parts.insert(random.randrange(len(parts) + 1), random.choice(_ODD_BYTES))
    return message.encode(_with_properties(random, record, b"".join(parts)))


def property_number(random: Random, record: Message) -> bytes:
    """DELAY, INNER_NUM and INNER_BASE that are numbers for Java, or almost."""
    names = random.choice((("DELAY",), ("DELAY", "TAGS"), ("INNER_NUM", "INNER_BASE"), ("INNER_NUM",)))
    text = "".join(f"{name}\x01{random.choice(_INTEGERS)}\x02" for name in names)
    odd = random.choice((b"", b"", b"\xff\x01\xff\x02"))
    return message.encode(_with_properties(random, record, odd + text.encode()))


def property_crc(random: Random, record: Message) -> bytes:
    """A property CRC at the end, right or not."""
    separator = b"" if record.properties_bytes[-1:] in (b"", b"\x02") else b"\x02"
    room = record.properties_bytes[: 0x7FFF - 21] + separator + bytes(20)
    data = bytearray(properties.seal_property_crc(message.encode(resized(record, properties_bytes=room))))
    if random.random() < 0.5:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def torn(random: Random, record: Message) -> bytes:
    """Zeros from some byte on, as a crash leaves it."""
    data = message.encode(record)
    at = random.choice((random.randrange(len(data)), len(data) - random.randint(1, min(60, len(data)))))
    return data[:at] + bytes(len(data) - at)


def cut(random: Random, record: Message) -> bytes:
    """The bytes end inside the record."""
    data = message.encode(record)
    return data[: random.choice((random.randrange(len(data)), random.randrange(12)))]


def shifted(random: Random, record: Message) -> bytes:
    """A few bytes put in, or left out, somewhere."""
    data = message.encode(record)
    at, count = random.randrange(len(data)), random.randint(1, 9)
    return data[:at] + (random.randbytes(count) + data[at:] if random.random() < 0.5 else data[at + count :])


def noise(random: Random, record: Message) -> bytes:
    """Random bytes behind a magic."""
    size = random.randrange(100, 400)
    return number_bytes(size, 4) + number_bytes(record.magic, 4) + random.randbytes(size - 8)


MUTATIONS: tuple[Mutation, ...] = (
    whole, bit, head_byte, number, total_size, magic, blank, version, long_topic, topic, hosts, body,
    negative, property_string, property_number, property_crc, torn, cut, shifted, noise,
)  # fmt: skip


def _with_properties(random: Random, record: Message, data: bytes) -> Message:
    changes: dict[str, object] = {"properties_bytes": data}
    if random.random() < 0.5:
        changes["topic_bytes"] = SCHEDULE_TOPIC
    return resized(record, **changes)


def mutated(records: Sequence[Message], count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """`count` pairs (kind, buffer): every kind equally often, behind it another record, zeros or nothing."""
    random = Random(seed)
    for number in range(count):
        mutation = MUTATIONS[number % len(MUTATIONS)]
        record = random.choice(records)
        data = mutation(random, record)
        if mutation is not cut:
            data += random.choice(
                (b"", bytes(random.randrange(1, 200)), message.encode(random.choice(records)))
            )
        yield mutation.__name__, data
