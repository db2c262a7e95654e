"""A walk over a commit log file that looks at nothing but the heads of its records.

It finds the log's end and counts records at a fraction of a scan's price. CRC and lengths are not
checked: `scan` does that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from rmqtool.formats import message as form
from rmqtool.store.layout import StoreFile
from rmqtool.store.open_files import OpenFiles

_WINDOW = 256 << 10
_PLACE = struct.Struct(">qi")  # physical_offset, sys_flag
_HEAD_MAX = max(layout.size for layout in form.HEADS.values())


class Head(NamedTuple):
    """The first fields of a record: where it starts, its size in bytes, when it was stored."""

    physical_offset: int
    total_size: int
    store_timestamp: int


def heads_of_file(open_files: OpenFiles, file: StoreFile, start: int) -> Iterator[Head]:
    """The heads of the records of one file, from the one at physical offset `start` on.

    The blank that ends the file is a head of size 0. Ends without one where the bytes are no
    record's. Raises UnreadableError.
    """
    base = file.file_from_offset
    position = start - base
    window, window_start = b"", 0
    while True:
        at = position - window_start
        if at + _HEAD_MAX > len(window) and window_start + len(window) < file.size:
            window = open_files.read(file.path, position, min(_WINDOW, file.size - position))
            window_start, at = position, 0
        if len(window) - at < form.BLANK_SIZE:
            return
        total_size, magic = form.BLANK.unpack(window, at)  # a record begins with the same two
        if magic == form.BLANK_MAGIC:
            yield Head(base + position, 0, 0)
            return
        left = file.size - position
        if magic not in form.VERSION_BY_MAGIC or not form.MIN_RECORD_SIZE <= total_size <= left:
            return
        physical_offset, sys_flag = _PLACE.unpack_from(window, at + form.PHYSICAL_OFFSET_OFFSET)
        if physical_offset != base + position:
            return
        time_at = at + form.head_layout(sys_flag).offsets["store_timestamp"]
        if time_at + 8 > len(window):
            return
        yield Head(base + position, total_size, int.from_bytes(window[time_at : time_at + 8], signed=True))
        position += total_size
