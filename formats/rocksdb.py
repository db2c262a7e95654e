"""The files of a RocksDB database: log blocks, version edits, write batches, table blocks, checksums.

    MANIFEST-N, N.log   blocks of 32 KiB with records; a record may be split into fragments
      MANIFEST-N        each record is a version edit: which tables there are, column families, log numbers
      N.log             each record is a write batch: puts and deletes that no table holds yet
    N.sst               blocks, each with a trailer of 5 bytes; index, properties; a footer of 53 bytes

Integers of fixed size are little-endian, others are varints of 7 bits a byte, the lowest first. Keys inside
of a database are internal keys: the user's key and 8 bytes, sequence number << 8 | kind. What is not known
here (another format version, merge records, blob files, ...) is a FormatError and never skipped, unless the
format says that it may be.

Source: RocksDB 8.4: log_format.h, log_reader.cc, version_edit.cc, write_batch.cc, dbformat.h, format.cc,
block.cc, block_builder.cc, block_based_table_builder.cc; spec 06 section 12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import checked
from rmqtool.formats.declare import Layout
from rmqtool.formats.parts import Bytes, Int8ub, Int16ul, Int32ul, Int64ul, Struct

if TYPE_CHECKING:
    import numpy as np

FOOTER = Layout(
    "RocksDB table footer",
    Struct(
        "checksum_type" / Int8ub * "checksum of the blocks: 0 none, 1 CRC-32C",
        "handles" / Bytes(40) * "places of the meta index and the index: 4 varints, padded with zeros",
        "format_version" / Int32ul * "2 to 5",
        "magic" / Int64ul * "88E241B785F4CFF7",
    ),
    "The last 53 bytes of a table (.sst).",
)
TRAILER = Layout(
    "RocksDB block trailer",
    Struct(
        "compression" / Int8ub * "0 none, 1 snappy, 2 zlib, 4 and 5 lz4, 7 zstd",
        "checksum" / Int32ul * "masked checksum of the stored block and the byte before",
    ),
    "The 5 bytes after each block of a table. A compressed block of zlib, lz4 or zstd begins with a varint:"
    " its bytes when decompressed.",
)
LOG_HEAD = Layout(
    "RocksDB log record head",
    Struct(
        "checksum" / Int32ul * "masked CRC-32C of the type and the content",
        "length" / Int16ul * "bytes of the content",
        "type" / Int8ub * "1 whole, 2 first, 3 middle, 4 last fragment; 5 to 8 the same in a file used again",
    ),
    "The head of a record, or of a fragment of one, in a write-ahead log (.log) or a MANIFEST. No record"
    " crosses the end of a block of 32 KiB.",
)
BATCH_HEAD = Layout(
    "RocksDB write batch head",
    Struct(
        "sequence" / Int64ul * "sequence number of the first change",
        "count" / Int32ul * "changes",
    ),
    "The first bytes of a record in a write-ahead log. The changes follow: kind, column family if it is not"
    " the default, key, value.",
)
KEY_TAIL = Layout(
    "RocksDB internal key tail",
    Struct("packed" / Int64ul * "sequence number << 8 | kind: 0 delete, 1 put, 7 delete, 15 range delete"),
    "The 8 bytes after the key of an entry. The entry with the highest sequence number counts.",
)

MAGIC = 0x88E241B785F4CFF7
BLOCK_SIZE = 32 << 10
DELETE, PUT, SINGLE_DELETE, RANGE_DELETE = 0, 1, 7, 15
KEY_TAIL_SIZE = 8
_FORMATS = range(2, 6)
_CRC32C = 1
_U32 = Layout("", Struct("value" / Int32ul), "")
_PLAIN, _RECYCLED = range(1, 5), range(5, 9)
_FIRST, _MIDDLE, _LAST = 2, 3, 4
_LOG_NUMBER_BYTES = 4
_MAX_SEQUENCE = (1 << 56) - 1
_MAX_SEQUENCE_TAIL = (1 << 64) - 1 - 0xF0  # kMaxSequenceNumber << 8 | RANGE_DELETE
_RESTART_BYTES = 4
_HASH_INDEX = 1 << 31
NAMES_MAX = 1 << 20
"""Bytes of a key, or of a name, at most."""


# numbers


def varint(data: bytes, at: int, bits: int = 32) -> tuple[int, int]:
    """(the varint at `at`, the position after it). Raises FormatError if it is cut or too large."""
    value = shift = 0
    while True:
        if at >= len(data) or shift >= 70:
            raise FormatError(f"a number at byte {at} is cut or too long")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if value >> bits:
        raise FormatError(f"a number before byte {at} does not fit {bits} bits")
    return value, at


def text(data: bytes, at: int) -> tuple[bytes, int]:
    """(bytes after their length at `at`, the position after them). Raises FormatError."""
    length, at = varint(data, at)
    if length > len(data) - at:
        raise FormatError(f"{length} bytes at byte {at}, {len(data) - at} are left")
    return data[at : at + length], at + length


# checksums

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_CHUNK = 256  # bytes; the tables for it fit into the processor's cache
_CHUNKS = 1024  # of one step
_MASK_DELTA = 0xA282EAD8


@cache
def crc_table() -> tuple[int, ...]:
    """The CRC of each byte, without the inversions."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


@cache
def _chunk_tables() -> tuple[np.ndarray, list[list[int]]]:
    """(by position in a chunk and byte: its part of the CRC; the first four positions as lists)."""
    import numpy as np

    table = np.array(crc_table(), np.uint32)
    parts = np.empty((_CHUNK, 256), np.uint32)
    parts[-1] = table
    for place in range(_CHUNK - 2, -1, -1):
        after = parts[place + 1]
        parts[place] = (after >> np.uint32(8)) ^ table[after & np.uint32(0xFF)]
    return parts.ravel(), parts[:4].tolist()


def crc32c(data: bytes | memoryview) -> int:
    """The CRC-32C of `data`: byte by byte, of more than two chunks as arrays of their bytes."""
    crc = 0xFFFFFFFF
    whole = len(data) // _CHUNK if len(data) >= 2 * _CHUNK else 0
    if whole:
        import numpy as np

        parts, later = _chunk_tables()
        chunks = np.frombuffer(data, np.uint8, whole * _CHUNK).reshape(whole, _CHUNK)
        for first in range(0, whole, _CHUNKS):
            places = chunks[first : first + _CHUNKS] + np.arange(0, _CHUNK << 8, 256).astype(np.int32)
            for found in np.bitwise_xor.reduce(parts.take(places), 1).tolist():
                # the state before a chunk acts as its first four bytes
                crc = (found ^ later[0][crc & 0xFF] ^ later[1][crc >> 8 & 0xFF]
                       ^ later[2][crc >> 16 & 0xFF] ^ later[3][crc >> 24])  # fmt: skip
    table = crc_table()
    for byte in memoryview(data)[whole * _CHUNK :]:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A CRC as it is stored. Source: crc32c.h, Mask."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


# logs


def log_records(
    read: Callable[[int, int], bytes], size: int, number: int | None = None,
    data_from: Callable[[int], int] | None = None,
) -> Iterator[tuple[int, bytes]]:  # fmt: skip
    """(offset, content) of the records of a log, up to its end or to a record that is not complete there.

    Args:
        read: bytes [offset, offset + length) of the file.
        size: the file's.
        number: the number of a write-ahead log, which records of a file used again name; None for a
            MANIFEST, of which RocksDB takes no record with a wrong checksum for one that is being written.
        data_from: the first offset from an offset on that may hold anything but zeros.

    Raises:
        FormatError: a record is damaged; `physical_offset` says where.
    """
    start, content = -1, bytearray()
    base = -BLOCK_SIZE
    while (base := base + BLOCK_SIZE) < size:
        block = read(base, min(BLOCK_SIZE, size - base))
        if data_from is not None and not block.strip(b"\0"):
            base = max(base, data_from(base) // BLOCK_SIZE * BLOCK_SIZE - BLOCK_SIZE)
            continue
        at = 0
        while at + LOG_HEAD.size <= len(block):
            checksum, length, kind = LOG_HEAD.unpack(block, at)
            if kind == 0 and length == 0:
                break  # space that was allocated in advance
            head = LOG_HEAD.size + (_LOG_NUMBER_BYTES if kind in _RECYCLED else 0)
            stop = at + head + length
            if stop > len(block):
                if base + len(block) >= size:
                    return  # cut: it is being written, or a crash cut it
                raise _damaged(base + at, "a record crosses the end of its block")
            if kind not in _PLAIN and kind not in _RECYCLED:
                raise _damaged(base + at, f"a record of type {kind}, which is not read")
            if masked(crc32c(block[at + LOG_HEAD.size - 1 : stop])) != checksum:
                is_last = base + BLOCK_SIZE >= size and not block[stop:].strip(b"\0")
                if is_last and number is not None:
                    return  # the last record, of which not all bytes were written
                raise _damaged(base + at, "a record does not match its checksum")
            if kind in _RECYCLED:
                if number is not None and _U32.unpack(block, at + LOG_HEAD.size)[0] != number & 0xFFFFFFFF:
                    return  # left of the file's earlier use
                kind -= 4
            part, place, at = block[at + head : stop], base + at, stop
            if kind in (_MIDDLE, _LAST) and start < 0:
                raise _damaged(place, "a part of a record without its beginning")
            if kind in (1, _FIRST):
                start, content = place, bytearray()
            content += part
            if kind in (1, _LAST):
                yield start, bytes(content)
                start = -1


def _damaged(offset: int, reason: str) -> FormatError:
    return FormatError(reason, physical_offset=offset)


# version edits


class TableFile(NamedTuple):
    """A table as the MANIFEST names it; its keys are internal keys."""

    number: int
    size: int
    smallest: bytes
    largest: bytes

    @property
    def ends_before_largest(self) -> bool:
        """Whether the largest key is only the end of a range delete, which is exclusive."""
        return self.largest[-KEY_TAIL_SIZE:] == KEY_TAIL.pack(_MAX_SEQUENCE_TAIL)


class VersionEdit(NamedTuple):
    """What one record of the MANIFEST changes. `family` is the number of a column family.

    `group_left` is how many records of the same atomic group follow; None outside of a group.
    """

    family: int
    comparator: str | None
    log_number: int | None
    last_sequence: int | None
    added: str | None
    dropped: bool
    deleted_files: list[tuple[int, int]]
    new_files: list[tuple[int, TableFile]]
    next_file: int | None = None
    group_left: int | None = None


_SAFE_TO_IGNORE = 1 << 13
_FILE_FIELD_NEEDED = 1 << 6
_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _COMPACT_POINTER, _DELETED, _PREV_LOG, _MIN_LOG = (
    1, 2, 3, 4, 5, 6, 9, 10
)  # fmt: skip
_NEW_FILE_2, _NEW_FILE_4, _FAMILY, _ADD_FAMILY, _DROP_FAMILY, _MAX_FAMILY, _ATOMIC_GROUP = (
    100, 103, 200, 201, 202, 203, 300
)  # fmt: skip
_NUMBERS = {_LOG_NUMBER: "log_number", _LAST_SEQUENCE: "last_sequence", _NEXT_FILE: "next_file"}


def version_edit(data: bytes) -> VersionEdit:
    """Decode a record of the MANIFEST. Raises FormatError."""
    found: dict[str, Any] = {}
    deleted: list[tuple[int, int]] = []
    new: list[tuple[int, TableFile]] = []
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag == _COMPARATOR or tag == _ADD_FAMILY:
            name, at = text(data, at)
            found["comparator" if tag == _COMPARATOR else "added"] = name.decode("utf-8", "replace")
        elif tag in (_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _PREV_LOG, _MIN_LOG):
            value, at = varint(data, at, 64)
            found[_NUMBERS.get(tag, "other")] = value
        elif tag in (_FAMILY, _MAX_FAMILY, _ATOMIC_GROUP):
            value, at = varint(data, at)
            found[{_FAMILY: "family", _ATOMIC_GROUP: "group_left"}.get(tag, "other")] = value
        elif tag == _DROP_FAMILY:
            found["dropped"] = True
        elif tag == _COMPACT_POINTER:
            _, at = varint(data, at)
            _, at = text(data, at)
        elif tag == _DELETED:
            level, at = varint(data, at)
            number, at = varint(data, at, 64)
            deleted.append((level, number))
        elif tag in (_NEW_FILE_2, _NEW_FILE_4):
            level, file, at = _new_file(data, at, fields=tag == _NEW_FILE_4)
            new.append((level, file))
        elif tag & _SAFE_TO_IGNORE:
            _, at = text(data, at)
        else:
            raise FormatError(f"a version edit with the tag {tag}, which is not read")
    return VersionEdit(
        found.get("family", 0), found.get("comparator"), found.get("log_number"), found.get("last_sequence"),
        found.get("added"), "dropped" in found, deleted, new, found.get("next_file"), found.get("group_left"),
    )  # fmt: skip


def _new_file(data: bytes, at: int, *, fields: bool) -> tuple[int, TableFile, int]:
    level, at = varint(data, at)
    number, at = varint(data, at, 64)
    size, at = varint(data, at, 64)
    smallest, at = text(data, at)
    largest, at = text(data, at)
    _, at = varint(data, at, 64)
    _, at = varint(data, at, 64)
    if min(len(smallest), len(largest)) < KEY_TAIL_SIZE:
        raise FormatError(f"the keys of table {number} are too short")
    while fields:
        tag, at = varint(data, at)
        if tag == 1:
            break
        if tag & _FILE_FIELD_NEEDED:
            raise FormatError(f"table {number} has a field {tag}, which is not read")
        _, at = text(data, at)
    return level, TableFile(number, size, smallest, largest), at


# write batches


class Change(NamedTuple):
    """One change of a write batch; `value` is the end of a range delete."""

    family: int
    sequence: int
    kind: int
    key: bytes
    value: bytes


# tag -> (kind, whether a column family is named, whether a value follows)
_CHANGES = {
    0: (DELETE, False, False), 1: (PUT, False, True), 4: (DELETE, True, False), 5: (PUT, True, True),
    7: (SINGLE_DELETE, False, False), 8: (SINGLE_DELETE, True, False),
    14: (RANGE_DELETE, True, True), 15: (RANGE_DELETE, False, True),
}  # fmt: skip
_LOG_DATA, _NOOP = 3, 13


def changes(data: bytes) -> Iterator[Change]:
    """The changes of a write batch. Raises FormatError."""
    sequence, count = checked.unpack(BATCH_HEAD, data)
    if sequence + count > _MAX_SEQUENCE:
        raise FormatError(f"a write batch of {count} changes from the sequence number {sequence}")
    at, found = BATCH_HEAD.size, 0
    while at < len(data):
        tag = data[at]
        at += 1
        if tag == _LOG_DATA:
            _, at = text(data, at)
            continue
        if tag == _NOOP:
            continue
        if tag not in _CHANGES:
            raise FormatError(f"a write batch holds a change of kind {tag}, which is not read")
        kind, is_named, has_value = _CHANGES[tag]
        family, value = 0, b""
        if is_named:
            family, at = varint(data, at)
        key, at = text(data, at)
        if has_value:
            value, at = text(data, at)
        yield Change(family, sequence + found, kind, key, value)
        found += 1
    if found != count:
        raise FormatError(f"a write batch of {count} changes holds {found}")


# tables


class Handle(NamedTuple):
    """The place of a block: offset and bytes without its trailer."""

    offset: int
    size: int


class Footer(NamedTuple):
    """The footer of a table."""

    has_checksums: bool
    meta_index_at: Handle
    index_at: Handle


def handle(data: bytes, at: int = 0) -> tuple[Handle, int]:
    """(the place of a block, the position after it). Raises FormatError."""
    offset, at = varint(data, at, 64)
    size, at = varint(data, at, 64)
    return Handle(offset, size), at


def footer(data: bytes) -> Footer:
    """Decode the last bytes of a table. Raises FormatError."""
    checksum, handles, version, magic = checked.unpack(FOOTER, data)
    if magic != MAGIC:
        raise FormatError(f"a table does not end with the magic number {magic:016X}")
    if version not in _FORMATS:
        raise FormatError(f"a table of format version {version}, which is not read")
    if checksum not in (0, _CRC32C):
        raise FormatError(f"a table with checksums of type {checksum}, which are not read")
    meta_index, at = handle(handles)
    index, _ = handle(handles, at)
    return Footer(checksum == _CRC32C, meta_index, index)


def check_block(stored: bytes, crc: Callable[[bytes], int] = crc32c) -> None:
    """Check a block, given with its trailer, against its CRC, which `crc` computes. Raises FormatError."""
    found = masked(crc(stored[:-_RESTART_BYTES]))
    if found != _U32.unpack(stored, len(stored) - _RESTART_BYTES)[0]:
        raise FormatError("a block does not match its checksum")


def entries_end(block: bytes) -> int:
    """Where the entries of a decompressed block end, and its restarts begin. Raises FormatError."""
    if len(block) < _RESTART_BYTES:
        raise FormatError(f"a block of {len(block)} bytes")
    end = len(block) - _RESTART_BYTES
    count: int = _U32.unpack(block, end)[0]
    if count & _HASH_INDEX:
        count &= ~_HASH_INDEX
        if end < 2:
            raise FormatError("the hash index of a block is cut")
        end -= 2 + int.from_bytes(block[end - 2 : end], "little")
    end -= count * _RESTART_BYTES
    if end < 0:
        raise FormatError(f"{count} restarts in a block of {len(block)} bytes")
    return end


def block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of the entries of a decompressed block, in order. Raises FormatError."""
    at, end, key = 0, entries_end(block), b""
    block = block[:end]
    while at < end:
        if at + 3 <= end and block[at] | block[at + 1] | block[at + 2] < 0x80:
            shared, own, length = block[at], block[at + 1], block[at + 2]
            at += 3
        else:
            shared, at = varint(block, at)
            own, at = varint(block, at)
            length, at = varint(block, at)
        if shared > len(key) or own + length > end - at or shared + own > NAMES_MAX:
            raise FormatError(f"an entry before byte {at} of a block is longer than the block, or its key")
        key = key[:shared] + block[at : at + own]
        at += own + length
        yield key, block[at - length : at]


def index_entries(block: bytes, *, has_deltas: bool) -> Iterator[tuple[bytes, Handle]]:
    """(key, place of the block with keys up to it) of an index block. Raises FormatError."""
    if not has_deltas:
        for key, value in block_entries(block):
            yield key, handle(value)[0]
        return
    at, end, key, last = 0, entries_end(block), b"", Handle(0, 0)
    block = block[:end]
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        if shared > len(key) or own > end - at or shared + own > NAMES_MAX:
            raise FormatError(f"an entry before byte {at} of an index is longer than the index, or its key")
        key = key[:shared] + block[at : at + own]
        at += own
        if shared:
            delta, at = varint(block, at, 64)
            size = last.size + (delta >> 1 ^ -(delta & 1))
            last = Handle(last.offset + last.size + TRAILER.size, size)
        else:
            last, at = handle(block, at)
        if last.size < 0:
            raise FormatError("an index names a block of less than no bytes")
        yield key, last
