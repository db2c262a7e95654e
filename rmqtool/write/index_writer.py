"""Index files: keys are put as the broker puts them, entries and slots are written in pieces.

Entries wait in a buffer. Slots: few changes are kept by themselves and read from the file one by one;
with the first large batch the whole table is loaded, and changed pages of 4 KiB are written. A file is
written in the order entries, slots, header, so that a header never counts what is not there.

Source: IndexService#buildIndex, #getAndCreateLastIndexFile; spec 01 section 6.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.formats import index as form
from rmqtool.formats.index import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, Shape
from rmqtool.index import build as build
from rmqtool.index.index_file import entries_of_newest, open_index_file
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import IndexFilePath
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.random_file import LocalFile

if TYPE_CHECKING:
    from rmqtool.index.build import EntryBuffer, SlotTable
    from rmqtool.storage.buffers import Array

_BUFFER_ENTRIES = 1 << 20
_PLAIN_BYTES = 1 << 20


class _FewSlots:
    """Slots of a file, read on first use; what was changed is kept until it is written."""

    def __init__(self, descriptor: int, shape: Shape) -> None:
        self._descriptor = descriptor
        self._shape = shape
        self._changed: dict[int, int] = {}

    def __getitem__(self, slot: int) -> int:
        entry = self._changed.get(slot)
        if entry is None:
            data = os.pread(self._descriptor, SLOT_SIZE, self._shape.slot_offset(slot))
            return form.decode_slot(data)
        return entry

    def __setitem__(self, slot: int, entry: int) -> None:
        self._changed[slot] = entry

    def changed(self) -> Iterator[tuple[int, bytes]]:
        """(byte offset in the file, bytes) of what has changed."""
        for slot, entry in sorted(self._changed.items()):
            yield self._shape.slot_offset(slot), form.encode_slot(entry)

    def settle(self) -> None:
        """Note that all changes are written."""
        self._changed.clear()


class _File:
    """The index file that is being written."""

    def __init__(self, path: Path, descriptor: int, shape: Shape, state: array[int]) -> None:
        self.path = path
        self.descriptor = descriptor
        self.shape = shape
        self.state = state
        self.written = state[build.COUNT]  # entries [1, written) are in the file
        self.header = b""  # as in the file
        self.few = _FewSlots(descriptor, shape)
        self.table: SlotTable | None = None
        self.plain = bytearray()  # entries from `written` on
        self.buffer: EntryBuffer | None = None  # the same, of a large batch

    @property
    def slots(self) -> SlotTable | _FewSlots:
        return self.few if self.table is None else self.table

    def load_table(self) -> SlotTable:
        """All slots, loaded if they are not. Nothing may wait in `few`."""
        if self.table is None:
            from rmqtool.index.build import SlotTable

            self.table = SlotTable(self.shape)
            self.table.load(LocalFile(self.descriptor))
        return self.table

    def write_entries(self) -> None:
        """Write the entries that wait. Raises UnwritableError; they still wait then."""
        data: bytearray | memoryview = self.plain
        if self.buffer is not None and self.buffer.count:
            data = self.buffer.data()
        if len(data):
            disk.write(self.descriptor, data, self.shape.entry_offset(self.written), self.path)
            self.written += len(data) // ENTRY_SIZE
            self.plain = bytearray()
            if self.buffer is not None:
                self.buffer.count = 0

    def write_out(self) -> bool:
        """Write all that waits; whether there was anything. Raises UnwritableError; it still waits then."""
        self.write_entries()
        header = form.encode_header(build.header_of(self.state))
        if header == self.header:
            return False
        for offset, data in self.slots.changed():
            disk.write(self.descriptor, data, offset, self.path)
        disk.write(self.descriptor, header, 0, self.path)
        self.slots.settle()
        self.header = header
        return True


class IndexWriter:
    """The index of a store; for one thread.

    Attributes:
        full_timestamp: end_timestamp of the newest file that became full here and is on the device;
            0 for none.
    """

    def __init__(self, folder: Path, existing: Sequence[IndexFilePath], shape: Shape, *, tags: bool) -> None:
        self.folder = folder
        self.full_timestamp = 0
        self._shape = shape
        self._tags = tags
        self._existing = existing
        self._newest_name = existing[-1].name_time if existing else ""
        self._file: _File | None = None
        self._buffer: EntryBuffer | None = None
        self._unsynced: dict[Path, int] = {}  # end_timestamp of a full file, else 0
        self._is_folder_new = self._is_file_new = False

    # the current file

    def look_again(self, existing: Sequence[IndexFilePath]) -> None:
        """Take the files that there are now that the oldest ones were deleted."""
        self._existing = existing

    def _current(self) -> _File:
        """The file that takes the next key: the last one, or a new one when there is none or it is full.

        Source: IndexService#getAndCreateLastIndexFile.
        """
        if self._file is None:
            self._file = self._open_last() or self._make(build.new_state(form.Header(0, 0, 0, 0, 0, 0)))
        elif build.is_full(self._file.state, self._shape):
            self._roll(self._file)
        return self._file

    def _open_last(self) -> _File | None:
        """The store's last file as it was found; None when there is none."""
        if not self._existing:
            return None
        last = self._existing[-1]
        descriptor = disk.open_file(last.path)
        header = form.decode_header(os.pread(descriptor, HEADER_SIZE, 0).ljust(HEADER_SIZE, b"\0"))
        state = build.new_state(header, self._entries_of_newest(header.end_physical_offset))
        if last.size == self._shape.size and not build.is_full(state, self._shape):
            file = _File(last.path, descriptor, self._shape, state)
            file.header = form.encode_header(header._replace(index_count=build.header_of(state).index_count))
            return file
        os.close(descriptor)
        return self._make(build.new_state(build.header_after(state), state[build.NEWEST]))

    def _entries_of_newest(self, physical_offset: int) -> int:
        """How many entries at the end of the index belong to the record at this offset."""
        whole = takewhile(lambda file: file.size == self._shape.size, reversed(self._existing))
        with OpenFiles() as files:
            newest_first = (open_index_file(files, file, self._shape) for file in whole)
            return entries_of_newest(newest_first, physical_offset)

    def _roll(self, file: _File) -> None:
        """Go on in a new file. Raises UnwritableError; nothing has changed then."""
        self._write(file)
        following = self._make(build.new_state(build.header_after(file.state), file.state[build.NEWEST]))
        os.close(file.descriptor)
        self._unsynced[file.path] = file.state[build.END_TIMESTAMP]
        self._file = following

    def _make(self, state: array[int]) -> _File:
        if not self.folder.is_dir():
            disk.make_folder(self.folder)
            self._is_folder_new = True
        path = self.folder / self._name()
        descriptor = disk.create_file(path, self._shape.size)
        self._newest_name = path.name
        self._is_file_new = True
        self._unsynced[path] = 0
        return _File(path, descriptor, self._shape, state)

    def _name(self) -> str:
        """A name for a new file: the local time, and later than that of every other.

        Source: UtilAll#timeMillisToHumanString.
        """
        now_ms = time.time_ns() // 1_000_000
        for late in range(1000):
            seconds, ms = divmod(now_ms + late, 1000)
            name = time.strftime("%Y%m%d%H%M%S", time.localtime(seconds)) + f"{ms:03}"
            if name > self._newest_name:
                return name
        return f"{int(self._newest_name) + 1:017}"  # of a clock that was ahead

    # taking keys

    def put(self, physical_offset: int, store_timestamp: int, key_hashes: Sequence[int]) -> None:
        """Take the keys of one record, in the broker's order; also a record without any.

        Raises:
            UnwritableError: a file could not be written or made; the same record may be given again.
        """
        file = self._current()
        newest = file.state[build.END_OFFSET]
        if physical_offset < newest:
            return
        if file.buffer is not None and file.buffer.count:
            file.write_entries()
        there = file.state[build.NEWEST] if physical_offset == newest else 0
        for key_hash in key_hashes[there:]:
            file = self._current()
            file.plain += build.put_key(
                file.state, file.slots, key_hash, physical_offset, store_timestamp, self._shape
            )
        if len(file.plain) >= _PLAIN_BYTES:
            file.write_entries()

    def put_rows(self, rows: Array, keys: Array) -> None:
        """Take the keys of many records: rows of one batch of the walk, and what `dispatch` says of them.

        Raises:
            UnwritableError: a file could not be written or made; the same rows may be given again.
        """
        from rmqtool.index.build import EntryBuffer, put_keys

        file = self._current()
        skip = file.state[build.NEWEST]
        if self._buffer is None:
            self._buffer = EntryBuffer(_BUFFER_ENTRIES)
        done = 0
        while True:
            if file.table is None or file.plain:
                self._write(file)
            file.buffer = self._buffer
            done = put_keys(
                file.state, file.load_table(), self._buffer, rows, keys, done, skip, self._shape,
                tags=self._tags,
            )  # fmt: skip
            if done == len(keys):
                break
            skip = 0
            file.write_entries()
            file = self._current()
        newest = int(rows["physical_offset"][-1])
        if build.is_full(file.state, self._shape) and file.state[build.END_OFFSET] < newest:
            self._current()  # a record without an entry after the last one makes the next file, too

    # writing

    def _write(self, file: _File) -> None:
        if file.write_out():
            self._unsynced.setdefault(file.path, 0)

    def write_out(self) -> None:
        """Write everything that waits. Raises UnwritableError; what was not written still waits then."""
        if self._file is not None:
            self._write(self._file)

    def unsynced_files(self) -> list[str]:
        """The files that were written since `synced`."""
        return [str(path) for path in self._unsynced]

    def unsynced_folders(self) -> list[str]:
        """The folders that got entries since `synced`."""
        return [str(self.folder.parent)] * self._is_folder_new + [str(self.folder)] * self._is_file_new

    def synced(self) -> None:
        """Note that everything is on the device."""
        self.full_timestamp = max(self.full_timestamp, *self._unsynced.values(), 0)
        self._unsynced.clear()
        self._is_folder_new = self._is_file_new = False

    def close(self) -> None:
        """Close the current file; what waits is lost."""
        if self._file is not None:
            os.close(self._file.descriptor)
            self._file = None
