"""Extension files of consume queues: where the next unit of each queue goes, and writing them.

`QueueWriter` gives out the places, in compiled code; here they are found when a queue is first met, and
the units are written, before the units of the queue that name them. What lies after the last unit that a
queue names (units of a dispatch that was repeated) is cleared first, where a broker only writes over it.

Source: ConsumeQueueExt#put, #fullFillToEnd, #truncateByMaxAddress; spec 01 5.6.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats.consume_queue import (
    EXT_END,
    EXT_END_ROOM,
    EXT_HEAD,
    MAX_EXT_OFFSET,
    UNIT,
    UNIT_SIZE,
    ext_offset,
)
from rmqtool.queue.consume_queue import BLOCK, ConsumeQueue
from rmqtool.queue.extension import Extension
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import Queues, StoreFile
from rmqtool.storage.open_files import OpenFiles

if TYPE_CHECKING:
    from rmqtool.storage.buffers import Array

EXTENDED_SIZE = UNIT_SIZE + EXT_HEAD.size
"""Bytes of a unit that waits: itself, and the head of its extension unit, zero where it gets none."""

BitsOf = Callable[[int], bytes]
"""The bits of a filter for the record at a physical offset; as many as its extension unit has room for."""


class Piece(NamedTuple):
    """Extension units that follow each other, from an offset on."""

    start: int
    data: bytes


def no_bits(physical_offset: int) -> bytes:
    """The bits of records for which no broker computed any."""
    return b""


class ExtensionWriter:
    """The extension files below one folder, of queues that the caller numbers; for one thread.

    Attributes:
        next: per queue the offset of its next extension unit.
    """

    def __init__(self, folder: Path, existing: Queues, file_size: int, bits_of: BitsOf = no_bits) -> None:
        self.folder = folder
        self.file_size = file_size
        self.next = array("q")
        self._above = str(folder.parent), str(folder)
        self._existing = existing
        self._bits_of = bits_of
        self._folders: list[str] = []
        self._files: list[dict[int, StoreFile]] = []
        self._written = array("q")  # after the last unit that was written, -1 for none in this file
        self._stale: set[int] = set()  # queues that may have units after that
        self.unsynced: set[tuple[int, int]] = set()
        self.new_in: set[str] = set()

    def learn(self, name: str, queue_id: int, queue: ConsumeQueue | None, files: OpenFiles) -> None:
        """Find out where the next unit of the next queue by number goes; `queue` is as it is on disk."""
        found = self._existing.get((name, queue_id))
        known = () if found is None else found.files
        start, written = _next_of(Extension(known, files.read), queue, self.file_size)
        if known:
            self._stale.add(len(self._folders))
        self._folders.append(f"{self.folder}/{name}/{queue_id}")
        self._files.append({file.file_from_offset: file for file in known})
        self.next.append(start)
        self._written.append(written)

    def look_again(self, existing: Queues) -> None:
        """Take the files now that the oldest ones were deleted."""
        self._existing = existing

    def restart(self, *, is_extended: bool) -> None:
        """Have the queue that was learned last begin at offset 0; or get no extension units."""
        self.next[-1] = 0 if is_extended else MAX_EXT_OFFSET
        self._written[-1] = -1

    def place(self, queue: int, size: int) -> int:
        """The offset of a queue's next unit, of that size, which is given away; -1 for none.

        As `_put_extension` of `queue.build_kernel`.
        """
        start = self.next[queue]
        room = self.file_size - start % self.file_size - EXT_END_ROOM
        if size > room:
            start += room + EXT_END_ROOM
        if size <= 0 or size > self.file_size - EXT_END_ROOM or start > MAX_EXT_OFFSET - size:
            return -1
        self.next[queue] = start + size
        return start

    def split(self, rows: memoryview) -> tuple[memoryview, list[Piece]]:
        """Rows of EXTENDED_SIZE: the units, and the extension units in pieces."""
        import numpy as np

        table = np.frombuffer(rows, np.uint8).reshape(-1, EXTENDED_SIZE)
        units = np.ascontiguousarray(table[:, :UNIT_SIZE])
        heads = np.ascontiguousarray(table[:, UNIT_SIZE:])
        return units.reshape(-1).data, list(self._pieces(units.view(UNIT.dtype)[:, 0], heads))

    def _pieces(self, units: Array, heads: Array) -> Iterator[Piece]:
        import numpy as np

        sizes = heads.view(EXT_HEAD.dtype)[:, 0]["size"].astype(np.int64)
        given = np.flatnonzero(sizes)
        if not len(given):
            return
        units, heads, sizes = units[given], heads[given], sizes[given]
        starts = units["tags_code"].astype(np.int64) ^ np.int64(-(1 << 63))
        cuts = (np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1).tolist()
        for first, stop in zip([0, *cuts], [*cuts, len(given)], strict=True):
            if (sizes[first:stop] == EXT_HEAD.size).all():
                data = heads[first:stop].tobytes()
            else:
                places = units["physical_offset"][first:stop].tolist()
                data = b"".join(
                    heads[row].tobytes() + (self._bits_of(place) if sizes[row] > EXT_HEAD.size else b"")
                    for row, place in enumerate(places, first)
                )
            yield Piece(int(starts[first]), data)

    def write(self, queue: int, pieces: list[Piece]) -> None:
        """Write units of one queue; writing the same again is harmless. Raises UnwritableError."""
        for piece in pieces:
            start, data = piece.start, memoryview(piece.data)
            last = self._written[queue]
            if queue in self._stale:
                self._clear(queue, start if last < 0 else last)
            if last >= 0 and start // self.file_size > last // self.file_size:
                self._write_piece(queue, last, memoryview(EXT_END))
            self._write_piece(queue, start, data)
            self._written[queue] = start + len(data)

    def _write_piece(self, queue: int, start: int, data: memoryview) -> None:
        place = start % self.file_size
        file_from_offset = start - place
        path = f"{self._folders[queue]}/{file_from_offset:020}"
        if file_from_offset in self._files[queue]:
            descriptor = disk.open_file(path)
        else:
            if not self._files[queue]:
                disk.make_folder(self._folders[queue])
                self.new_in.update((*self._above, self._folders[queue].rpartition("/")[0]))
            descriptor = disk.create_file(path, self.file_size)
            self.new_in.add(self._folders[queue])
            self._files[queue][file_from_offset] = StoreFile(Path(path), file_from_offset, self.file_size)
        try:
            disk.write(descriptor, data, place, path)
        finally:
            os.close(descriptor)
        self.unsynced.add((queue, file_from_offset))

    def _clear(self, queue: int, start: int) -> None:
        """Zero what no unit names after `start`, and delete files that begin there."""
        for file_from_offset, file in sorted(self._files[queue].items(), reverse=True):
            if file_from_offset > start:
                disk.remove(file.path)
                del self._files[queue][file_from_offset]
            elif file.end > start:
                descriptor = disk.open_file(file.path)
                try:
                    place = start - file_from_offset
                    rest = os.pread(descriptor, file.size - place, place).rstrip(b"\0")
                    if rest:
                        disk.write(descriptor, bytes(len(rest)), place, file.path)
                finally:
                    os.close(descriptor)
        self._stale.discard(queue)

    # the device

    def unsynced_files(self) -> Iterator[str]:
        """The files that were written since `synced`."""
        for queue, file_from_offset in self.unsynced:
            yield f"{self._folders[queue]}/{file_from_offset:020}"

    def synced(self) -> None:
        """Note that all files are on the device."""
        self.unsynced.clear()
        self.new_in.clear()


def _next_of(extension: Extension, queue: ConsumeQueue | None, file_size: int) -> tuple[int, int]:
    """(offset of the next unit, the same where the file goes on or -1).

    Where the last unit that the queue names cannot be read, a new file after all others: a broker would
    write over units that are still named.
    """
    address = None if queue is None else queue.last_address(None if extension.files else BLOCK)
    if address is None and not extension.files:
        return 0, -1
    unit = None if address is None else extension.unit(address)
    if address is not None and unit is not None:
        end = ext_offset(address) + unit.size
        return end, end
    try:
        if address is None:
            end = extension.end(None)
            return end, end
    except (FormatError, UnreadableError):
        pass
    ends = [file.end for file in extension.files]
    ends += [] if address is None else [ext_offset(address) + 1]
    return -(-max(ends) // file_size) * file_size, -1
