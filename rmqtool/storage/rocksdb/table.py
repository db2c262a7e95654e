"""One table of a RocksDB database: its index, its blocks, its range deletes.

Source: block_based_table_reader.cc, table_properties.cc; spec 06 section 12.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from rmqtool.errors import FormatError, RmqtoolError, UnreadableError
from rmqtool.formats import rocksdb as format_
from rmqtool.formats.body import unpack_block
from rmqtool.formats.rocksdb import KEY_TAIL, KEY_TAIL_SIZE, Handle, TableFile

Parsed = TypeVar("Parsed")
Read = Callable[[Path, int, int], bytes]
"""Bytes [offset, offset + length) of a file. Raises OSError."""

BLOCK_LIMIT = 64 << 20
"""Bytes of a block, decompressed, at most."""
_INDEX_LIMIT = 1 << 30
_CODECS = {1: "snappy", 2: "zlib", 4: "lz4", 5: "lz4", 7: "zstd"}
_PROPERTIES, _RANGE_DELETES, _DICTIONARY = (
    b"rocksdb.properties", b"rocksdb.range_del", b"rocksdb.compression_dict"
)  # fmt: skip
_INDEX_TYPE = b"rocksdb.block.based.table.index.type"
_HAS_USER_KEYS, _HAS_DELTAS = b"rocksdb.index.key.is.user.key", b"rocksdb.index.value.is.delta.encoded"
_INGESTED = b"rocksdb.external_sst_file.version"
_INDEX_TYPES = (0, 1)  # binary search; the same with a hash index in blocks of its own


class RangeDelete(NamedTuple):
    """A range delete: the keys in [start, stop) with lower sequence numbers are deleted."""

    start: bytes
    stop: bytes
    sequence: int


class Entry(NamedTuple):
    """One entry of a database; without its value for a delete."""

    key: bytes
    sequence: int
    kind: int
    value: bytes


def split_key(key: bytes) -> tuple[bytes, int, int]:
    """(user key, sequence number, kind) of an internal key. Raises FormatError."""
    if len(key) < KEY_TAIL_SIZE:
        raise FormatError(f"a key of {len(key)} bytes, which is not an internal key")
    packed: int = KEY_TAIL.unpack(key, len(key) - KEY_TAIL_SIZE)[0]
    return key[:-KEY_TAIL_SIZE], packed >> 8, packed & 0xFF


class Table:
    """A table. The index is read by `Table.open`, a block when it is asked for.

    Every method that reads raises FormatError with path and offset, or OSError.
    """

    def __init__(
        self, path: Path, file: TableFile, read: Read, crc: Callable[[bytes], int] = format_.crc32c
    ) -> None:
        self.path = path
        self.number = file.number
        self.smallest = file.smallest[:-KEY_TAIL_SIZE]
        self.largest = file.largest[:-KEY_TAIL_SIZE]
        self.range_deletes: tuple[RangeDelete, ...] = ()
        self.properties: dict[bytes, bytes] = {}
        self._size = file.size
        self._read = read
        self._crc = crc
        self._has_checksums = True
        self._last_keys: list[bytes] = []
        self._handles: list[Handle] = []
        self._open(file)

    def _open(self, file: TableFile) -> None:
        size = format_.FOOTER.size
        at = self._size - size
        if at < 0:
            raise self._failed("a table that is shorter than its footer", 0)
        try:
            footer = format_.footer(self._bytes(at, size))
        except FormatError as error:
            raise self._failed(error.message, at) from error
        self._has_checksums = footer.has_checksums
        meta = self._listed(footer.meta_index_at, lambda block: dict(format_.block_entries(block)))
        if _DICTIONARY in meta:
            raise self._failed("a table that is compressed with a dictionary, which is not read", at)
        if _PROPERTIES not in meta:
            raise self._failed("a table without properties", footer.meta_index_at.offset)
        where = self._handle_of(meta[_PROPERTIES], footer.meta_index_at.offset)
        self.properties = self._listed(where, lambda block: dict(format_.block_entries(block)))
        kind = int.from_bytes(self.properties.get(_INDEX_TYPE, b""), "little")
        if kind not in _INDEX_TYPES:
            raise self._failed(f"a table with an index of type {kind}, which is not read", where.offset)
        if _INGESTED in self.properties:
            raise self._failed("a table that was ingested, which is not read", where.offset)
        self._list_blocks(footer.index_at)
        if _RANGE_DELETES in meta:
            place = self._handle_of(meta[_RANGE_DELETES], footer.meta_index_at.offset)
            self.range_deletes = self._listed(place, lambda block: tuple(self._deletes(block, file)))

    def _list_blocks(self, place: Handle) -> None:
        has_deltas = self.properties.get(_HAS_DELTAS, b"\0") != b"\0"
        entries = self._listed(
            place, lambda block: list(format_.index_entries(block, has_deltas=has_deltas)), _INDEX_LIMIT
        )
        cut = 0 if self.properties.get(_HAS_USER_KEYS, b"\0") != b"\0" else KEY_TAIL_SIZE
        for key, handle in entries:
            if handle.offset + handle.size + format_.TRAILER.size > self._size:
                raise self._failed(f"the index names a block at {handle.offset}, after the end", place.offset)
            self._last_keys.append(key[: len(key) - cut])
            self._handles.append(handle)
        if self._last_keys != sorted(self._last_keys):
            raise self._failed("the keys of the index do not rise", place.offset)

    def _deletes(self, block: bytes, file: TableFile) -> Iterator[RangeDelete]:
        """The range deletes, cut to the range of the table: beyond it they may be out of date.

        Source: TruncatedRangeDelIterator.
        """
        end = self.largest if file.ends_before_largest else self.largest + b"\0"
        for key, stop in format_.block_entries(block):
            start, sequence, kind = split_key(key)
            if kind != format_.RANGE_DELETE:
                raise FormatError(f"an entry of kind {kind} among the range deletes")
            start, stop = max(start, self.smallest), min(stop, end)
            if start < stop:
                yield RangeDelete(start, stop, sequence)

    def _handle_of(self, value: bytes, offset: int) -> Handle:
        try:
            return format_.handle(value)[0]
        except FormatError as error:
            raise self._failed(error.message, offset) from error

    def _listed(self, place: Handle, parse: Callable[[bytes], Parsed], limit: int = BLOCK_LIMIT) -> Parsed:
        """A block, decoded by `parse`, whose errors get the place of the block."""
        try:
            return parse(self._block(place, limit))
        except FormatError as error:
            if error.path is not None:
                raise
            raise self._failed(error.message, place.offset) from error

    # blocks

    @property
    def block_count(self) -> int:
        """How many data blocks it has."""
        return len(self._handles)

    @property
    def last_keys(self) -> Sequence[bytes]:
        """Of each data block, a key that is not below its last one."""
        return self._last_keys

    def handle(self, number: int) -> Handle:
        """The place of a data block."""
        return self._handles[number]

    def blocks_of(self, start: bytes, stop: bytes | None) -> range:
        """The numbers of the data blocks that may hold keys in [start, stop); None has no end."""
        first = bisect_left(self._last_keys, start)
        last = len(self._last_keys)
        if stop is not None:
            last = min(bisect_left(self._last_keys, stop) + 1, last)
        return range(first, max(first, last))

    def overlaps(self, start: bytes, stop: bytes | None) -> bool:
        """Whether it may hold keys in [start, stop)."""
        return self.largest >= start and (stop is None or self.smallest < stop)

    def block(self, number: int) -> bytes:
        """A data block, decompressed."""
        return self._block(self._handles[number], BLOCK_LIMIT)

    def check(self, number: int) -> None:
        """Read a data block, and check all but its entries."""
        self._listed(self._handles[number], format_.entries_end)

    def entries(self, number: int) -> list[Entry]:
        """The entries of a data block."""
        return self._listed(
            self._handles[number],
            lambda block: [Entry(*split_key(key), value) for key, value in format_.block_entries(block)],
        )

    def _block(self, place: Handle, limit: int) -> bytes:
        if place.size > limit or place.offset + place.size + format_.TRAILER.size > self._size:
            raise self._failed(f"a block of {place.size} bytes", place.offset)
        stored = self._bytes(place.offset, place.size + format_.TRAILER.size)
        try:
            if self._has_checksums:
                format_.check_block(stored, self._crc)
            return _unpacked(stored, limit)
        except RmqtoolError as error:
            error.path, error.physical_offset = self.path, place.offset
            raise

    def _bytes(self, offset: int, length: int) -> bytes:
        data = self._read(self.path, offset, length)
        if len(data) < length:
            raise self._failed(f"{length} bytes, {len(data)} are left", offset)
        return data

    def _failed(self, reason: str, offset: int) -> FormatError:
        return FormatError(reason, path=self.path, physical_offset=offset)


def _unpacked(stored: bytes, limit: int) -> bytes:
    kind, end = stored[-format_.TRAILER.size], len(stored) - format_.TRAILER.size
    if kind == 0:
        return stored[:end]
    if kind not in _CODECS:
        raise FormatError(f"a block with the compression {kind}, which is not read")
    # snappy has the length too, but as a part of its own format
    size, at = format_.varint(stored[:end], 0)
    if size > limit:
        raise FormatError(f"a block of {size} bytes when decompressed")
    return unpack_block(stored[0 if kind == 1 else at : end], _CODECS[kind], size)


def as_unreadable(error: FormatError) -> UnreadableError:
    """The same error for a caller that expects errors of the operating system."""
    return UnreadableError(
        f"cannot read: {error.message}", path=error.path, physical_offset=error.physical_offset
    )
