"""Consume queue files: units are checked, buffered over all queues, and written one run per file.

No descriptor is kept: a store may have 40,000 queues. A file is made sparse in its full size when its
first unit is written; a queue that starts late gets fillers before it.

`put` is the plain way for few records, `put_entries` the compiled one for many (`queue.build`,
which also names the rules). Both share what is known of each queue: its next unit, and where its
newest record ends.

Source: ConsumeQueue#putMessagePositionInfo, #fillPreBlank, BatchConsumeQueue; spec 01 sections 2, 5.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.errors import UnwritableError
from rmqtool.formats.consume_queue import (
    BATCH_UNIT,
    BATCH_UNIT_SIZE,
    EXT_HEAD,
    PRE_BLANK,
    UNIT,
    BatchUnit,
    encode_unit,
    ext_address,
)
from rmqtool.formats.java import java_utf8_decode
from rmqtool.queue.consume_queue import ConsumeQueue, open_queue
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import QueueFiles, Queues, can_be_folder
from rmqtool.storage.open_files import OpenFiles
from rmqtool.write.extension_writer import EXTENDED_SIZE, ExtensionWriter, Piece

if TYPE_CHECKING:
    from rmqtool.queue.build import Pending, QueueNumbers
    from rmqtool.storage.buffers import Array

PENDING_LIMIT = 1 << 21
"""Units that are buffered before they are written."""
_PLAIN_LIMIT = 1 << 14
# Runs: more are written by a thread, for most of the time is spent in the system. Not by two: they make
# files no faster, and with each call of the system they wait for one another in Python.
_MANY = 256
_NO_FILE = -1  # as queue_build.NO_FILE, which needs numpy
_NEVER = (1 << 63) - 1  # newest record of a queue that takes no unit


class Entry(NamedTuple):
    """One unit that is to be written; as the rows of `queue.build.ENTRY`."""

    physical_offset: int
    tags_code: int
    queue_offset: int
    store_timestamp: int
    size: int
    batch_size: int
    ext_size: int = EXT_HEAD.size


class _Run(NamedTuple):
    """Units of one queue, packed; the first one's number; the extension units that they name."""

    queue: int
    first: int
    data: memoryview
    extended: list[Piece]


class QueueWriter:
    """All queues below one folder, with units of one size; for one thread.

    Topics and queues are numbered in the order in which they are first seen: `topics` are the numbers
    of topics, by their bytes.
    """

    def __init__(
        self,
        folder: Path,
        existing: Queues,
        unit_size: int,
        file_size: int,
        extension: ExtensionWriter | None = None,
    ) -> None:
        self.folder = folder
        self._above = str(folder.parent), str(folder)
        self.topics: dict[bytes, int] = {}
        self._names: list[bytes] = []
        self._existing = existing
        self._unit_size = unit_size
        self._file_size = file_size
        self._is_batch = unit_size == BATCH_UNIT_SIZE
        self._extension = extension
        self._row_size = unit_size if extension is None else EXTENDED_SIZE  # of a unit that waits
        self._open_files = OpenFiles()
        self._numbers: dict[tuple[bytes, int], int] = {}
        # per queue, by its number
        self._codes = array("q")
        self._folders: list[str] = []
        self._next = array("q")
        self._newest = array("q")
        self._files_end = array("q")  # byte offset after the last file, or _NO_FILE
        # waiting
        self._plain: dict[int, bytearray] = {}
        self._plain_count = 0
        self._pending: Pending | None = None
        self._table: QueueNumbers | None = None
        self._runs: list[_Run] = []  # being written, the next one last
        self._writing: Future[None] | None = None  # by the thread
        self._thread: ThreadPoolExecutor | None = None
        # written, but perhaps not on the device
        self.unsynced: set[tuple[int, int]] = set()
        self._new_in: set[str] = set()

    # what is known of the queues

    def look_again(self, existing: Queues, extended: Queues | None = None) -> None:
        """Take the files of queues now that the oldest ones were deleted; the ends of known ones stay."""
        self._existing = existing
        if self._extension is not None and extended is not None:
            self._extension.look_again(extended)

    def topic(self, name: bytes) -> int:
        """The number of a topic."""
        number = self.topics.get(name)
        if number is None:
            number = self.topics[name] = len(self._names)
            self._names.append(name)
        return number

    def _queue(self, topic: bytes, queue_id: int) -> int:
        """The number of a queue."""
        number = self._numbers.get((topic, queue_id))
        if number is None:
            number = len(self._folders)
            self._learn(topic, queue_id)
            self._codes.append(self.topic(topic) << 32 | queue_id & 0xFFFFFFFF)
        return number

    def _learn(self, topic: bytes, queue_id: int) -> None:
        """Find out where the next queue by number stands."""
        name = java_utf8_decode(topic)
        files = self._existing.get((name, queue_id))
        next_unit, newest, files_end = _NO_FILE, -1, _NO_FILE
        if not can_be_folder(name):
            newest = _NEVER  # no path leaves the store
        elif files is not None and files.files:
            next_unit, newest = self._end_of(files)
            files_end = files.files[-1].end
        if self._extension is not None:
            queue = None if files is None else ConsumeQueue(files, self._open_files)
            self._extension.learn(name, queue_id, queue, self._open_files)
        self._numbers[topic, queue_id] = len(self._folders)
        self._folders.append(f"{self.folder}/{name}/{queue_id}")
        self._next.append(next_unit)
        self._newest.append(newest)
        self._files_end.append(files_end)

    def _end_of(self, files: QueueFiles) -> tuple[int, int]:
        """(number of the next unit, where the newest record ends or, in a batch queue, starts)."""
        queue = open_queue(files, self._open_files)
        end = queue.end()
        last = queue.by_number(end - 1)
        # A broker takes the offset of a filler for that of a record, and refuses records below it.
        if last is None or last.is_pre_blank:
            return end, -1
        return end, last.physical_offset + (0 if self._is_batch else last.size)

    # taking units

    def put(self, topic: bytes, queue_id: int, entry: Entry) -> None:
        """Take one unit, by the rules of `queue.build`. Raises UnwritableError when buffers are full."""
        if self._pending is not None and self._pending.count:
            self.write_out()
        queue = self._queue(topic, queue_id)
        number = self._admit(queue, entry)
        if number < 0:
            return
        if self._is_batch:
            unit = BATCH_UNIT.pack(
                *BatchUnit(entry.physical_offset, entry.size, entry.tags_code, entry.store_timestamp,
                           entry.queue_offset, entry.batch_size)
            )  # fmt: skip
        else:
            unit = self._pack(queue, entry)
        self._next[queue] = number + 1
        self._plain.setdefault(queue, bytearray()).extend(unit)
        self._plain_count += 1
        if self._plain_count >= _PLAIN_LIMIT:
            self.write_out()

    def _pack(self, queue: int, entry: Entry) -> bytes:
        """A unit as it waits."""
        plain = UNIT.pack(entry.physical_offset, entry.size, entry.tags_code)
        if self._extension is None:
            return plain
        start = self._extension.place(queue, entry.ext_size)
        if start < 0:
            return plain + bytes(EXT_HEAD.size)
        bits = entry.ext_size - EXT_HEAD.size
        head = EXT_HEAD.pack(entry.ext_size, entry.tags_code, entry.store_timestamp, bits)
        return UNIT.pack(entry.physical_offset, entry.size, ext_address(start)) + head

    def _admit(self, queue: int, entry: Entry) -> int:
        """The number of the entry's unit; -1 when it gets none."""
        number = self._next[queue]
        if self._is_batch:
            if entry.physical_offset <= self._newest[queue] or entry.queue_offset < 0 or entry.batch_size < 0:
                return -1
            self._newest[queue] = entry.physical_offset
            return max(number, 0)
        end = entry.physical_offset + entry.size
        if end <= self._newest[queue] or entry.queue_offset < 0:
            return -1
        if number == _NO_FILE:
            number = entry.queue_offset
        elif 0 != entry.queue_offset < number:
            return -1
        self._newest[queue] = end
        return number

    def put_entries(self, entries: Array) -> None:
        """Take many units: `queue.build.ENTRY` rows in the order of the log, topics by number.

        Raises:
            UnwritableError: units had to be written and could not; the same entries may be given again.
        """
        from rmqtool.queue.build import Pending, QueueNumbers, queue_codes

        if self._plain:
            self.write_out()
        if self._pending is None or self._table is None:
            ext_size = 0 if self._extension is None else self._extension.file_size
            self._pending = Pending(self._unit_size, PENDING_LIMIT, ext_size)
            self._table = QueueNumbers()
        numbers = self._table.of(queue_codes(entries), self._codes)
        for code in self._codes[len(self._folders) :]:
            self._learn(self._names[code >> 32], (code & 0xFFFFFFFF ^ 1 << 31) - (1 << 31))
        done = 0
        while done < len(entries):
            next_ext = None if self._extension is None else self._extension.next
            done = self._pending.add(entries, numbers, done, self._next, self._newest, next_ext)
            if self._pending.count == self._pending.limit:
                self._finish()
                self._begin()

    # writing

    def write_out(self) -> None:
        """Write everything that waits.

        Raises:
            UnwritableError: a unit could not be written; what was not written still waits.
        """
        self._finish()
        self._begin()
        self._finish()

    def write_units(self, queue: int, data: bytes) -> None:
        """Write packed units, as fillers, after those of a queue by its number; none of its units may wait.

        Raises:
            UnwritableError: they cannot be written.
        """
        run = _Run(queue, self._next[queue], memoryview(data), [])
        self._next[queue] += len(data) // self._unit_size
        self._write_runs([run])

    def _begin(self) -> None:
        """Begin to write what waits; where many files are to be written, a thread does it."""
        if self._pending is not None and self._pending.count:
            grouped = self._pending.take(len(self._codes))
            runs = list(self._cut(zip(grouped.queues, grouped.counts, strict=True), grouped.data))
        else:
            runs = [
                self._run(queue, len(data) // self._row_size, memoryview(data))
                for queue, data in self._plain.items()
            ]
            self._plain = {}
            self._plain_count = 0
        runs.reverse()
        self._runs = runs
        if len(runs) >= _MANY:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "queues")
            self._writing = self._thread.submit(self._write_runs, runs)

    def _finish(self) -> None:
        """Have all that was begun written. Raises UnwritableError; the rest can be begun again."""
        if self._writing is not None:
            wait([self._writing])
            writing, self._writing = self._writing, None
            writing.result()
        self._write_runs(self._runs)

    def _cut(self, counts: Iterable[tuple[int, int]], data: memoryview) -> Iterator[_Run]:
        start = 0
        for queue, count in counts:
            stop = start + count * self._row_size
            yield self._run(queue, count, data[start:stop])
            start = stop

    def _run(self, queue: int, count: int, data: memoryview) -> _Run:
        """The `count` newest units of a queue, as they waited."""
        extended: list[Piece] = []
        if self._extension is not None:
            data, extended = self._extension.split(data)
        return _Run(queue, self._next[queue] - count, data, extended)

    def _write_runs(self, runs: list[_Run]) -> None:
        """Write the runs, the last one first; those that are written are taken off the list."""
        while runs:
            queue, first, data, extended = runs[-1]
            if self._extension is not None:
                self._extension.write(queue, extended)
            start, size = first * self._unit_size, self._file_size
            while len(data):
                room = size - start % size
                self._write_piece(queue, start - start % size, start % size, data[:room])
                data, start = data[room:], start + room
            runs.pop()

    def _write_piece(self, queue: int, file_from_offset: int, start: int, data: memoryview) -> None:
        """Write `data` at byte `start` of one file, which is made when it is not there."""
        path = f"{self._folders[queue]}/{file_from_offset:020}"
        if file_from_offset < self._files_end[queue]:
            descriptor = disk.open_file(path)
        else:
            descriptor = self._make_file(queue, file_from_offset, start, path)
        try:
            disk.write(descriptor, data, start, path)
        except UnwritableError:
            self._zero_torn_unit(descriptor, start, data, path)
            raise
        finally:
            os.close(descriptor)
        self.unsynced.add((queue, file_from_offset))

    def _make_file(self, queue: int, file_from_offset: int, start: int, path: str) -> int:
        folder = self._folders[queue]
        if self._files_end[queue] == _NO_FILE:
            disk.make_folder(folder)
            self._new_in.update((*self._above, folder.rpartition("/")[0]))
        descriptor = disk.create_file(path, self._file_size)
        self._new_in.add(folder)
        if self._files_end[queue] == _NO_FILE and start:
            try:
                disk.write(descriptor, encode_unit(PRE_BLANK) * (start // self._unit_size), 0, path)
            except UnwritableError:
                os.close(descriptor)
                with suppress(UnwritableError):
                    disk.remove(path)  # half of the fillers would be taken for the queue's end
                raise
        self._files_end[queue] = file_from_offset + self._file_size
        return descriptor

    def _zero_torn_unit(self, descriptor: int, start: int, data: memoryview, path: str) -> None:
        """Zero the unit of which a failed write left a part; whole units are right and stay."""
        with suppress(OSError):  # the first error is the one to report
            written = os.pread(descriptor, len(data), start)
            same = len(os.path.commonprefix([written, bytes(data)]))
            whole = same - same % self._unit_size
            torn = written[whole : whole + self._unit_size].rstrip(b"\0")
            if torn and whole < len(data):
                disk.write(descriptor, bytes(len(torn)), start + whole, path)

    # the device

    def unsynced_files(self) -> Iterator[str]:
        """The files that were written since `synced`."""
        for queue, file_from_offset in self.unsynced:
            yield f"{self._folders[queue]}/{file_from_offset:020}"
        if self._extension is not None:
            yield from self._extension.unsynced_files()

    def unsynced_folders(self) -> set[str]:
        """The folders that got entries since `synced`."""
        return self._new_in if self._extension is None else self._new_in | self._extension.new_in

    def synced(self) -> None:
        """Note that all files are on the device."""
        self.unsynced.clear()
        self._new_in.clear()
        if self._extension is not None:
            self._extension.synced()

    def close(self) -> None:
        """Close what reading the queues' ends has opened; what waits is lost."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._open_files.close()
