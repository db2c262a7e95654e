"""The index file: header, hash slots, entries, and the key texts that are hashed.

    header 40 bytes | slots x i32 | entries x 20 bytes

    slot    number of the newest entry whose key hash falls into it, 0 for none
    entry   key_hash i32 | physical_offset i64 | time_diff i32 | previous i32

A file is named after the local time of its creation (yyyyMMddHHmmssSSS) and has its full size from
the start, mostly as a hole. Entry 0 is never used, so `entries` places hold entries - 1 keys.
Entries of one slot form a chain from newest to oldest through `previous`. Only the 31-bit hash is
stored: only the record shows whether a hit has the requested key. Big-endian.

Source: IndexFile, IndexHeader, IndexService; spec 01 section 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from rmqtool.formats import checked
from rmqtool.formats.declare import Layout
from rmqtool.formats.parts import Int32sb, Int64sb, Struct

HEADER = Layout(
    "index header",
    Struct(
        "begin_timestamp" / Int64sb * "store time of the first entry's message, ms since 1970",
        "end_timestamp" / Int64sb * "store time of the last entry's message, ms since 1970",
        "begin_physical_offset" / Int64sb * "offset of the first entry's record in the commit log, bytes",
        "end_physical_offset" / Int64sb * "offset of the last entry's record in the commit log, bytes",
        "hash_slot_count" / Int32sb * "slots in use",
        "index_count" / Int32sb * "number of the next entry: entries in use + 1; 0 in an unused file",
    ),
    "The first 40 bytes of an index file. In a file without entries the times and offsets are those"
    " at the end of the previous file.",
)
SLOT = Layout(
    "index slot",
    Struct("entry" / Int32sb * "number of the newest entry of this slot, 0 for none"),
    "Slot s is the i32 at 40 + 4 * s. A key belongs to slot key_hash mod slots.",
)
ENTRY = Layout(
    "index entry",
    Struct(
        "key_hash" / Int32sb * "absolute value of the hash of the key text; 0 for -2147483648",
        "physical_offset" / Int64sb * "offset of the record in the commit log, bytes",
        "time_diff" / Int32sb * "store time minus begin_timestamp, whole seconds, at least 0",
        "previous" / Int32sb * "number of the next older entry of the slot, 0 for none",
    ),
    "Entry n is at 40 + 4 * slots + 20 * n. The key text is topic#key or, on 5.4, topic#T#tags.",
)
HEADER_SIZE, SLOT_SIZE, ENTRY_SIZE = HEADER.size, SLOT.size, ENTRY.size
assert (HEADER_SIZE, SLOT_SIZE, ENTRY_SIZE) == (40, 4, 20)

KEY_SEPARATOR = " "  # between the keys of the KEYS property (MessageConst#KEY_SEPARATOR)
KeyKind = Literal["uniq_key", "key", "tag"]


class Header(NamedTuple):
    """An index file's header, as stored; see `HEADER` for what the fields mean."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int
    index_count: int

    @property
    def next_entry(self) -> int:
        """Number of the next entry to be written, at least 1: entries [1, next_entry) are in use."""
        return max(self.index_count, 1)

    def is_time_matched(self, begin: int, end: int) -> bool:
        """Whether a query for [begin, end], ms since 1970, both inclusive, searches this file.

        Source: IndexFile#isTimeMatched.
        """
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last

    def entry_timestamp(self, entry: Entry) -> int:
        """The store time that a query assumes for `entry`, ms since 1970: begin_timestamp + whole seconds."""
        return self.begin_timestamp + entry.time_diff * 1000


class Entry(NamedTuple):
    """One index entry, as stored; see `ENTRY` for what the fields mean."""

    key_hash: int
    physical_offset: int
    time_diff: int
    previous: int


class Shape(NamedTuple):
    """How an index file is divided: hash slots and places for entries, place 0 included."""

    slots: int
    entries: int

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return HEADER_SIZE + SLOT_SIZE * self.slots + ENTRY_SIZE * self.entries

    def slot_offset(self, slot: int) -> int:
        """Byte offset in the file of slot `slot`."""
        return HEADER_SIZE + SLOT_SIZE * slot

    def entry_offset(self, entry: int) -> int:
        """Byte offset in the file of entry `entry`."""
        return HEADER_SIZE + SLOT_SIZE * self.slots + ENTRY_SIZE * entry


DEFAULT_SHAPE = Shape(5_000_000, 20_000_000)  # MessageStoreConfig maxHashSlotNum, maxIndexNum


def file_size(slots: int, entries: int) -> int:
    """Bytes of an index file with this many slots and places for entries."""
    return Shape(slots, entries).size


def shapes_of(size: int) -> Iterator[Shape]:
    """Every shape that a file of `size` bytes can have, likely ones first; none if no shape has this size.

    First the default, then four entries a slot as in the default, then all others by rising
    number of slots. There can be millions: take as many as you need.
    """
    words, remainder = divmod(size - HEADER_SIZE, SLOT_SIZE)
    words_per_entry = ENTRY_SIZE // SLOT_SIZE
    if remainder or words < 1 + words_per_entry:
        return
    likely = []
    if size == DEFAULT_SHAPE.size:
        likely.append(DEFAULT_SHAPE)
    same_ratio, rest = divmod(words, 1 + 4 * words_per_entry)
    if not rest and Shape(same_ratio, 4 * same_ratio) not in likely:
        likely.append(Shape(same_ratio, 4 * same_ratio))
    yield from likely
    first = words % words_per_entry or words_per_entry
    for slots in range(first, words - words_per_entry + 1, words_per_entry):
        shape = Shape(slots, (words - slots) // words_per_entry)
        if shape not in likely:
            yield shape


def shape_by_entry(size: int, number: int, offset: int) -> Shape | None:
    """The shape of a file of `size` bytes whose entry `number` is at byte `offset`; None if there is none.

    The last entry in use has the header's end_physical_offset. Finding that number in the file gives
    the entry's place, and so the shape, without trying all shapes.
    """
    words, remainder = divmod(offset - ENTRY_SIZE * number - HEADER_SIZE, SLOT_SIZE)
    entries, rest = divmod(size - HEADER_SIZE - SLOT_SIZE * words, ENTRY_SIZE)
    if remainder or rest or words < 1 or not 0 < number < entries:
        return None
    return Shape(words, entries)


def key_text(topic: str, key: str) -> str:
    """The text that is hashed for a key or a unique key. Source: IndexService#buildKey."""
    return f"{topic}#{key}"


def tag_text(topic: str, tags: str) -> str:
    """The text that is hashed for the tags of a message (5.4)."""
    return f"{topic}#T#{tags}"


def texts_of(
    topic: str, uniq_key: str | None, keys: str | None, tags: str | None = None
) -> Iterator[tuple[KeyKind, str]]:
    """Yield the texts that a broker indexes for a message, in its order, as (kind, text).

    Args:
        topic: the topic as stored.
        uniq_key: the UNIQ_KEY property.
        keys: the KEYS property, keys separated by single spaces; a repeated key is indexed twice.
        tags: the TAGS property for broker 5.4; None for the others, which do not index it.

    Source: IndexService#buildIndex.
    """
    if uniq_key is not None:
        yield "uniq_key", key_text(topic, uniq_key)
    for key in (keys or "").split(KEY_SEPARATOR):
        if key:
            yield "key", key_text(topic, key)
    if tags:
        yield "tag", tag_text(topic, tags)


def decode_header(buffer: bytes | memoryview, offset: int = 0) -> Header:
    """The header at byte `offset` of `buffer`. Raises FormatError when fewer than 40 bytes are left."""
    return Header(*checked.unpack(HEADER, buffer, offset))


def encode_header(header: Header) -> bytes:
    """The 40 bytes of `header`. Raises FormatError for a value that does not fit its field."""
    return checked.pack(HEADER, *header)


def decode_entry(buffer: bytes | memoryview, offset: int = 0) -> Entry:
    """The entry at byte `offset` of `buffer`. Raises FormatError when fewer than 20 bytes are left."""
    return Entry(*checked.unpack(ENTRY, buffer, offset))


def encode_entry(entry: Entry) -> bytes:
    """The 20 bytes of `entry`. Raises FormatError for a value that does not fit its field."""
    return checked.pack(ENTRY, *entry)


def decode_slot(buffer: bytes | memoryview, offset: int = 0) -> int:
    """The entry number in the slot at byte `offset`. Raises FormatError when fewer than 4 bytes are left."""
    (entry,) = checked.unpack(SLOT, buffer, offset)
    return int(entry)


def encode_slot(entry: int) -> bytes:
    """The 4 bytes of a slot. Raises FormatError for a value that does not fit."""
    return checked.pack(SLOT, entry)
