"""Tiered storage (5.x): names and contents of segments as the posix provider keeps them, and their metadata.

    ROOT/H_CLUSTER/BROKER/TOPIC/QUEUE/COMMIT_LOG/HOFFSET       records of this queue, one after the other
    ROOT/H_CLUSTER/BROKER/TOPIC/QUEUE/CONSUME_QUEUE/HOFFSET    units of 20 bytes, as in consumequeue/
    ROOT/H_CLUSTER/BROKER/rmq_sys_INDEX/0/INDEX/HOFFSET        index: header, slots, items by slot
    config/tieredStoreMetadata.json                            segments, topic ids

H is the first 8 hex digits of the MD5 of what follows: of the cluster's name, or of the offset as a decimal
number. The offset in a name has 20 digits and is that of the segment's first byte in its queue's own log or
queue. A record is the broker's own but for its physical offset, which is its place in that log. Some versions
end a commit log segment with 16 bytes (`CODA`).

Source: PosixFileSegment, MessageStoreUtil, CommitLogInputStream, MessageFormatUtil, IndexStoreFile,
IndexItem, DefaultMetadataStore, FileSegmentMetadata; spec 06 section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import checked
from rmqtool.formats.declare import Layout
from rmqtool.formats.fastjson import VALUE_LIMIT, resolve
from rmqtool.formats.parts import GreedyString, Int32sb, Int64sb, Struct

COMMIT_LOG, CONSUME_QUEUE, INDEX = "COMMIT_LOG", "CONSUME_QUEUE", "INDEX"
"""The types of segments; each is the name of a folder."""
TYPES = (COMMIT_LOG, CONSUME_QUEUE, INDEX)
INDEX_TOPIC = "rmq_sys_INDEX"
METADATA = "tieredStoreMetadata.json"
_HASH_DIGITS, _OFFSET_DIGITS = 8, 20
_HEX = frozenset("0123456789abcdef")

CODA = Layout(
    "tiered segment end",
    Struct(
        "size" / Int32sb * "16",
        "magic" / Int32sb * "CBD43194, as in a blank",
        "max_store_timestamp" / Int64sb * "highest store time of the segment, ms",
    ),
    "The last 16 bytes of a commit log segment of tiered storage that is complete. 5.4 does not write it.",
)

INDEX_HEADER = Layout(
    "tiered index header",
    Struct(
        "magic" / Int32sb * "BCC50285; BCC50289 while it is written",
        "begin_timestamp" / Int64sb * "store time of the first item, ms",
        "end_timestamp" / Int64sb * "store time of the last item, ms",
        "slots_used" / Int32sb * "slots that have an item",
        "items" / Int32sb * "number of items",
    ),
    "Start of an index file of tiered storage. The number of slots is not in it: the items of a complete file"
    " end at the file's end.",
)
INDEX_COMPLETE = 0xBCC50285 - (1 << 32)

INDEX_SLOT = Layout(
    "tiered index slot",
    Struct(
        "position" / Int32sb * "byte position of the slot's items in the file",
        "length" / Int32sb * "bytes of the slot's items, 0 for none",
    ),
    "A slot is the key hash modulo the number of slots (tieredStoreIndexFileMaxHashSlotNum).",
)

INDEX_ITEM = Layout(
    "tiered index item",
    Struct(
        "key_hash" / Int32sb * "absolute value of the Java hash of topic#key",
        "topic_id" / Int32sb * "topic, by its number in tieredStoreMetadata.json",
        "queue_id" / Int32sb * "queue",
        "offset" / Int64sb * "offset of the record in the tiered log of its queue, bytes",
        "size" / Int32sb * "bytes of the record",
        "seconds" / Int32sb * "store time, s after begin_timestamp",
    ),
    "One key of a message. The items of a slot follow each other. An index that is still written lies in"
    " tiered_index_file/: there the number of the previous item of the slot (4) follows each item.",
)

DOCUMENT = Struct(
    "document"
    / GreedyString("utf-8")
    * "JSON with bare integers as keys: commitLogFileSegmentTable, consumeQueueFileSegmentTable and"
    " indexFileSegmentTable hold the segments by path and offset, topicMetadataTable the ids of topics",
)
TEXT = "config/tieredStoreMetadata.json: the segments that a broker reads in tiered storage (5.x)."

_TABLES = {
    COMMIT_LOG: "commitLogFileSegmentTable", CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    INDEX: "indexFileSegmentTable",
}  # fmt: skip
_TIME_MAX = 1 << 62  # ms; a broker begins with -1
_SEGMENT_VALUES = 4  # a segment: an object with at least three fields
DELETED = 2
"""The status of a segment that is deleted."""


class IndexHeader(NamedTuple):
    """The fields of `INDEX_HEADER`."""

    magic: int
    begin_timestamp: int
    end_timestamp: int
    slots_used: int
    items: int


class SegmentMetadata(NamedTuple):
    """What the metadata say of a segment: `size` is what was committed, bytes."""

    size: int
    status: int


class Metadata(NamedTuple):
    """Segments by (type, path, base offset), path being BROKER/TOPIC/QUEUE, and topics by their ids."""

    segments: Mapping[tuple[str, str, int], SegmentMetadata]
    topics: Mapping[int, str]


def name_hash(text: str) -> str:
    """The 8 hex digits before a name."""
    import hashlib  # takes longer to load than the rest of this module

    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:_HASH_DIGITS]


def segment_name(base_offset: int) -> str:
    """The name of the segment that begins at an offset."""
    return f"{name_hash(str(base_offset))}{base_offset:0{_OFFSET_DIGITS}}"


def base_offset_of(name: str) -> int | None:
    """The offset in the name of a segment; None if it is not such a name, or its hash is wrong."""
    digits = name[_HASH_DIGITS:]
    if len(digits) != _OFFSET_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    offset = int(digits)
    return offset if offset < 1 << 63 and segment_name(offset) == name else None


def cluster_of(name: str) -> str | None:
    """The cluster that a folder of the root is named after; None if it is not such a folder."""
    digits, mark, cluster = (
        name[:_HASH_DIGITS],
        name[_HASH_DIGITS : _HASH_DIGITS + 1],
        name[_HASH_DIGITS + 1 :],
    )
    if mark != "_" or not cluster or not set(digits) <= _HEX:
        return None
    try:
        return cluster if name_hash(cluster) == digits else None
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return None


def decode_index_header(data: bytes) -> IndexHeader:
    """The header of a complete index file. Raises FormatError for another one."""
    header = IndexHeader(*checked.unpack(INDEX_HEADER, data))
    if header.magic != INDEX_COMPLETE:
        raise FormatError(
            f"tiered index: magic {header.magic & 0xFFFFFFFF:08X} is not that of a complete file"
        )
    if header.items < 0:
        raise FormatError(f"tiered index: {header.items} items")
    for name in ("begin_timestamp", "end_timestamp"):
        if not -1 <= getattr(header, name) <= _TIME_MAX:
            raise FormatError(f"tiered index: {name} {getattr(header, name)} is out of range")
    return header


def slots_of(header: IndexHeader, size: int) -> int:
    """The number of slots of a complete index file of `size` bytes. Raises FormatError if none fits."""
    rest = size - INDEX_HEADER.size - INDEX_ITEM.size * header.items
    slots, remainder = divmod(rest, INDEX_SLOT.size)
    if slots < 1 or remainder:
        raise FormatError(f"tiered index: {size} bytes do not hold {header.items} items and slots")
    return slots


def metadata_of(document: Any) -> Metadata:
    """What tieredStoreMetadata.json says.

    Raises:
        FormatError: a document of another form, or its references unfold to more values than one may have.
    """
    document = resolve(document)
    segments = {}
    values = 0  # a shared table counts each time it occurs
    for kind, name in _TABLES.items():
        for path, of_path in _table(document, name).items():
            if not isinstance(of_path, dict):
                raise FormatError(f"tiered metadata: {name} of {str(path)[:80]!r} is not an object")
            values += len(of_path)
            if values > VALUE_LIMIT // _SEGMENT_VALUES:
                raise FormatError(f"JSON: its references unfold to more than {VALUE_LIMIT} values")
            for each in of_path.values():
                base, size, status = (_integer(each, field) for field in ("baseOffset", "size", "status"))
                segments[kind, str(path), base] = SegmentMetadata(size, status)
    topics = {}
    for topic, each in _table(document, "topicMetadataTable").items():
        topics[_integer(each, "topicId")] = str(topic)
    return Metadata(segments, topics)


def _table(document: Any, name: str) -> dict[Any, Any]:
    table = document.get(name, {}) if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise FormatError(f"tiered metadata: {name} is not an object")
    return table


def _integer(fields: Any, name: str) -> int:
    value = fields.get(name) if isinstance(fields, dict) else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise FormatError(f"tiered metadata: {name} is not an integer")
    return value
