"""Reads the heads of records in commit log files: of one record or of all, and checks single bodies.

This finds the log's end and counts records at a fraction of the cost of a scan. Memory does not depend on
the size of records. Long runs of small records are left to the compiled walk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple
from zlib import crc32

from rmqtool.errors import UnreadableError
from rmqtool.formats import ledger
from rmqtool.formats import message as form
from rmqtool.log.python_scan import Lengths, frame_lengths
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.source import open_source

_PLAIN_HEADS = 256
"""Heads that plain Python reads sooner than the compiled walk is loaded."""
_SMALL_RECORD = 32 << 10
"""Bytes. Larger records are passed over without being read; the compiled walk would read them."""
_WINDOW = 256 << 10
_CRC_BLOCK = 1 << 20  # bytes of a body read at once
_PLACE = struct.Struct(">qi")  # physical_offset, sys_flag
_CRC_OFFSET = form.HEADS[0].offsets["body_crc"]
_HEAD_MAX = max(layout.size for layout in form.HEADS.values())


class Head(NamedTuple):
    """The first fields of a record: its physical offset, size in bytes, store time (ms) and version.

    `stored_offset` is the physical offset in the record itself; 0 in a blank.
    """

    physical_offset: int
    total_size: int
    store_timestamp: int
    version: int
    stored_offset: int

    @property
    def end(self) -> int:
        """The physical offset after the record."""
        return self.physical_offset + self.total_size


def heads_of_file(
    open_files: OpenFiles, file: StoreFile, start: int, *, only_last: bool = False
) -> Iterator[Head]:
    """The heads of the records of one file, from the one at physical offset `start`, or its entry, on.

    The blank that ends the file is a head of size 0. Without a blank, the iteration ends at bytes that are
    not a record. CRC and lengths are not checked. With `only_last` heads may be left out, but never the last
    two records. Raises UnreadableError.
    """
    position = start
    while True:
        begin, count = position, 0
        for head in _plain_heads(open_files, file, position):
            yield head
            position, count = head.end, count + 1
            if count >= _PLAIN_HEADS and position - begin < count * _SMALL_RECORD and head.total_size:
                break
        else:
            return
        for head in _walked_heads(open_files, file, position, only_last=only_last):
            yield head
            position = head.end


def _walked_heads(open_files: OpenFiles, file: StoreFile, start: int, *, only_last: bool) -> Iterator[Head]:
    """The heads of records whose lengths add up, by the compiled walk; see `heads_of_file`.

    The iteration ends before anything else, which `_plain_heads` judges.
    """
    from rmqtool.log.frames import Frames, walk

    base = file.file_from_offset
    try:
        source = open_source(file.path, listed_size=file.size)
    except (OSError, UnreadableError):
        return
    with closing(source):
        for event in walk(source, file_from_offset=base, start=start - base, stop=file.size, crc=False,
                          entry_header=file.entry_header):  # fmt: skip
            if source.unreadable or not isinstance(event, Frames):
                return
            rows = event.rows
            rows = rows[(rows["status"] == 0).cumprod(dtype=bool)]
            rows = rows[rows["physical_offset"] + rows["size"] <= file.end]
            is_whole = len(rows) == len(event.rows)
            if only_last:
                rows = rows[-2:]
            names = ("physical_offset", "size", "store_timestamp", "version")
            columns = (rows[name].tolist() for name in names)
            for offset, size, timestamp, version in zip(*columns, strict=True):
                yield Head(offset, size, timestamp, version, offset)
            # What follows the last record is not looked for: the walk would search the file for another one.
            after = event.end + file.entry_header
            following = head_at(open_files, file, after) if is_whole and after < file.end else None
            if following is None or following.stored_offset != after:
                return


def _plain_heads(open_files: OpenFiles, file: StoreFile, start: int) -> Iterator[Head]:
    """As `heads_of_file`, in plain Python."""
    base, entry_header = file.file_from_offset, file.entry_header
    position = start - base
    window, window_start = b"", 0
    while True:
        at = position - window_start
        if at + entry_header + _HEAD_MAX > len(window) and window_start + len(window) < file.size:
            window = open_files.read_listed(file.path, position, min(_WINDOW, file.size - position))
            window_start, at = position, 0
        if len(window) - at < form.BLANK_SIZE:
            return
        total_size, magic = form.BLANK.unpack(window, at)  # a record begins with the same two
        if is_blank(total_size, magic, file.size - position, entry_header):
            yield Head(base + position, 0, 0, 0, 0)
            return
        if entry_header and magic not in form.VERSION_BY_MAGIC:  # else this is a record, not its entry
            position, at = position + entry_header, at + entry_header
            if len(window) - at < form.BLANK_SIZE:
                return
            total_size, magic = form.BLANK.unpack(window, at)
        left = file.size - position
        if magic not in form.VERSION_BY_MAGIC or not form.MIN_RECORD_SIZE <= total_size <= left:
            return
        if len(window) - at < form.HEAD_SIZE_V4:
            return
        head = _head(window, at, base + position)
        if head is None or head.stored_offset != base + position:
            return
        yield head
        position += total_size


def is_blank(first: int, second: int, left: int, entry_header: int) -> bool:
    """Whether the first two numbers at a place where `left` bytes of a file are left are those of a blank."""
    if entry_header:
        return first == ledger.FILE_END_MAGIC and second == left
    return second == form.BLANK_MAGIC


def _head(data: bytes, at: int, physical_offset: int) -> Head | None:
    """The head of the record at `at` of `data` (at least HEAD_SIZE_V4 bytes); None without its store time."""
    total_size, magic = form.BLANK.unpack(data, at)
    stored_offset, sys_flag = _PLACE.unpack_from(data, at + form.PHYSICAL_OFFSET_OFFSET)
    time_at = at + form.head_layout(sys_flag).offsets["store_timestamp"]
    if time_at + 8 > len(data):
        return None
    timestamp = int.from_bytes(data[time_at : time_at + 8], signed=True)
    return Head(physical_offset, total_size, timestamp, form.VERSION_BY_MAGIC[magic], stored_offset)


def head_at(open_files: OpenFiles, file: StoreFile, physical_offset: int) -> Head | None:
    """The head of the record at an offset in `file`; None if the lengths there do not add up.

    CRC and stored offset are not checked. Raises UnreadableError.
    """
    found = _framed(open_files, file, physical_offset - file.file_from_offset)
    return _head(found[0], 0, physical_offset) if found is not None else None


def is_sound(open_files: OpenFiles, file: StoreFile, physical_offset: int) -> bool:
    """Whether a record with correct lengths, stored offset and CRC is at an offset in `file`.

    The body is read block by block. The body of a record above RECORD_SIZE_MAX is not checked. Raises
    UnreadableError.
    """
    position = physical_offset - file.file_from_offset
    found = _framed(open_files, file, position)
    if found is None:
        return False
    data, lengths = found
    head = _head(data, 0, physical_offset)
    if head is None or head.stored_offset != physical_offset:
        return False
    if lengths.body <= 0 or head.total_size > form.RECORD_SIZE_MAX:
        return True
    crc, at, stop = 0, position + lengths.head, position + lengths.head + lengths.body
    while at < stop:
        block = open_files.read_listed(file.path, at, min(_CRC_BLOCK, stop - at))
        crc = crc32(block, crc)
        at += len(block)
    stored = int.from_bytes(data[_CRC_OFFSET : _CRC_OFFSET + 4], signed=True)
    return crc & form.CRC_MASK == stored


def _framed(open_files: OpenFiles, file: StoreFile, position: int) -> tuple[bytes, Lengths] | None:
    """The first bytes of the record at `position`, and its lengths; None if these do not add up."""
    left = file.size - position
    data = open_files.read_listed(file.path, position, min(_HEAD_MAX, left))
    if len(data) < form.MIN_RECORD_SIZE:
        return None
    total_size, magic = form.BLANK.unpack(data)
    version = form.VERSION_BY_MAGIC.get(magic)
    if version is None or not form.MIN_RECORD_SIZE <= total_size <= left:
        return None
    lengths = frame_lengths(reader(open_files, file, position, data), position, total_size, version)
    return (data, lengths) if lengths is not None else None


def reader(open_files: OpenFiles, file: StoreFile, position: int, data: bytes) -> Callable[[int, int], bytes]:
    """A function that reads bytes of `file`, with zeros after its end; `data` is known, at `position`."""

    def read(at: int, length: int) -> bytes:
        start = at - position
        if 0 <= start and start + length <= len(data):
            return data[start : start + length]
        there = max(min(at + length, file.size) - at, 0)
        return open_files.read_listed(file.path, at, there).ljust(length, b"\0")

    return read
