"""Cuts queues and index back to a physical offset, so that dispatch can go on from there.

After a crash nothing is known of the units and entries of records after the offset up to which queues and
index were on the device: some are there, some are not, and after a loss of power parts of them. All that
belongs to records at or after that offset is cleared, whatever it is. What belongs to records before it stays
as it is, sound or not. A run that was killed is simply repeated.

A queue or an index file without anything left is deleted. The slots of the index file that is cut are
computed from its entries, because a slot may name an entry that is not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.formats import index as form
from rmqtool.index.build import PAGE, SlotTable
from rmqtool.index.index_file import IndexFile, header_of
from rmqtool.queue.units import UnitReader, live
from rmqtool.storage import durable as disk
from rmqtool.storage.buffers import Array
from rmqtool.storage.layout import IndexFilePath, QueueFiles, StoreFile, StoreLayout
from rmqtool.storage.random_file import LocalFile
from rmqtool.storage.source import ByteSource, nonzero_end, open_source
from rmqtool.write.dispatcher import sync_files

TimeOf = Callable[[int], int | None]
"""Gives the store time of the record at a physical offset, ms; None if it cannot be read."""
_ZEROS = bytes(1 << 20)


def cut_back(layout: StoreLayout, offset: int, shape: form.Shape, store_timestamp: TimeOf) -> None:
    """Clear the units and entries of all records at or after the physical offset `offset`.

    Args:
        layout: of a store whose lock is held.
        offset: what belongs to records before it is on the device.
        shape: of the index files; one of another shape is left as it is, with those before it.
        store_timestamp: see `TimeOf`.

    Raises:
        UnreadableError, UnwritableError: a file.
    """
    assert layout.root is not None
    cut = _Cut()
    with UnitReader() as reader:
        for queue in (*layout.consume_queues.values(), *layout.batch_queues.values()):
            cut.queue(queue, offset, reader)
    cut.index(layout, offset, shape, store_timestamp)
    sync_files(layout.root, cut.files, cut.folders)


class _Cut:
    """What was changed, and is to be put on the device."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.folders: set[str] = set()

    def _remove(self, path: Path) -> None:
        disk.remove(path)
        self.folders.add(str(path.parent))

    def _clear(self, path: Path, begin: int, size: int) -> None:
        """Write zeros from `begin` on."""
        with closing(_opened(path)) as source:
            end = nonzero_end(source, begin, size)
        if end == begin:
            return
        descriptor = disk.open_file(path)
        try:
            for place in range(begin, end, len(_ZEROS)):
                disk.write(descriptor, _ZEROS[: end - place], place, path)
        finally:
            os.close(descriptor)
        self.files.append(str(path))

    # queues

    def queue(self, queue: QueueFiles, offset: int, reader: UnitReader) -> None:
        """Clear the units at the end of one queue, in its newest file first."""
        for file in reversed(queue.files):
            count = _staying(queue, file, offset, reader)
            if count:
                self._clear(file.path, count * queue.unit_size, file.size)
                return
            self._remove(file.path)
        if queue.files and not queue.strays:
            disk.remove_folder(queue.folder)
            self.folders.discard(str(queue.folder))
            self.folders.add(str(queue.folder.parent))

    # index

    def index(self, layout: StoreLayout, offset: int, shape: form.Shape, store_timestamp: TimeOf) -> None:
        """Clear the entries at the end of the index, in its newest file first."""
        files = list(layout.index_files)
        while files:
            file = files.pop()
            if file.size == shape.size:
                found = _staying_entries(file.path, shape, offset)
                if found is not None:
                    self._cut_index_file(file.path, shape, found, store_timestamp)
                    return
            elif not _was_being_made(file, files, shape, offset):
                return
            self._remove(file.path)

    def _cut_index_file(
        self, path: Path, shape: form.Shape, found: _Entries, store_timestamp: TimeOf
    ) -> None:
        """Clear entries first, then write slots, and the header last: it never counts what is not there."""
        self._clear(path, shape.entry_offset(found.stop), shape.size)
        timestamp = store_timestamp(found.newest)
        header = found.header._replace(
            end_timestamp=found.about_ms if timestamp is None else timestamp,
            end_physical_offset=found.newest,
            hash_slot_count=int(np.count_nonzero(found.slots)),
            index_count=found.stop,
        )
        descriptor = disk.open_file(path)
        try:
            table = SlotTable(shape)
            table.load(LocalFile(descriptor))
            wrong = np.flatnonzero(table.values != found.slots)
            table.dirty[(form.HEADER_SIZE + form.SLOT_SIZE * wrong) // PAGE] = 1
            table.values[:] = found.slots
            for place, data in table.changed():
                disk.write(descriptor, data, place, path)
            disk.write(descriptor, form.encode_header(header), 0, path)
        finally:
            os.close(descriptor)
        self.files.append(str(path))


def _opened(path: Path) -> ByteSource:
    try:
        return open_source(path)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error


def _last_before(offsets: Array, offset: int, newest: int) -> tuple[int, int]:
    """(place, offset) of the last of ascending `offsets` that is below `offset`; (-1, newest) for none.

    Halves of offsets and zeros, which a loss of power leaves, are below those that were before them.
    """
    below = np.where(offsets < offset, offsets, -1)
    highest = np.maximum(np.maximum.accumulate(below), newest)
    found = np.flatnonzero(below == highest)
    return (int(found[-1]), int(highest[-1])) if len(found) else (-1, newest)


def _staying(queue: QueueFiles, file: StoreFile, offset: int, reader: UnitReader) -> int:
    """How many units at the start of a file stay: up to the last live one of a record before `offset`."""
    count, newest, base = 0, 0, file.file_from_offset // queue.unit_size
    for first, units in reader.blocks(file, queue.unit_size):
        offsets = np.where(live(units), units["physical_offset"], -1)
        place, newest = _last_before(offsets, offset, newest)
        if place >= 0:
            count = first - base + place + 1
    reader.must_be_read(file)
    return count


def _was_being_made(
    file: IndexFilePath, before: Sequence[IndexFilePath], shape: form.Shape, offset: int
) -> bool:
    """Whether a file of another size is short since a loss of power, and not one of another shape.

    What was on the device when `offset` was noted had its size. So a short file is a new one if one `before`
    it has the right size, or if its header names no record before `offset`.
    """
    header = header_of(file.path)
    return file.size < shape.size and (
        any(each.size == shape.size for each in before)
        or header.index_count <= 1
        or header.begin_physical_offset >= offset
    )


class _Entries(NamedTuple):
    """The entries of an index file that stay: [1, stop); `about_ms` is roughly the last one's time."""

    header: form.Header
    stop: int
    newest: int
    about_ms: int
    slots: Array


def _staying_entries(path: Path, shape: form.Shape, offset: int) -> _Entries | None:
    """The entries of a file up to the last one of a record before `offset`; None for none."""
    with closing(_opened(path)) as source:
        file = IndexFile(source, shape, path=path)
        count = newest = seconds = 0
        for first, entries in file.blocks(file.used):
            # One of 2^31 keys has the hash 0; an entry whose first bytes were lost always has it.
            offsets = np.where(entries["key_hash"] != 0, entries["physical_offset"], -1)
            place, newest = _last_before(offsets, offset, newest)
            if place >= 0:
                count, seconds = first + place + 1, int(entries["time_diff"][place])
        slots = np.zeros(shape.slots, np.int32)
        for first, entries in file.blocks(count):
            slots[entries["key_hash"] % shape.slots] = np.arange(first, first + len(entries), dtype=np.int32)
        if source.unreadable:
            raise UnreadableError("cannot read the index", path=path)
    if not count:
        return None
    return _Entries(file.header, count, newest, file.header.begin_timestamp + 1000 * seconds, slots)
