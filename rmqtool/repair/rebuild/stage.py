"""Queues and index written next to the store: dispatched from the log into a staging folder.

The writers are those of every append. What differs: queues that are right take no units; a queue that
has lost the records of its beginning starts from a file that is laid down first; where numbers are
left out fillers stand; index files get names that the plan knows.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqtool.check.verify.spans import Key
from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import index as index_format
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, PRE_BLANK, UNIT_SIZE, encode_unit
from rmqtool.formats.java import java_utf8_decode
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.queue.build import code_of, queue_codes
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.queue.units import present, unit_array
from rmqtool.repair.rebuild.database_task import DatabaseTask, DatabaseUnits
from rmqtool.repair.rebuild.due_times import KeptDues
from rmqtool.repair.rebuild.extension_task import Bits, KeptBits
from rmqtool.repair.rebuild.index_task import IndexTask
from rmqtool.repair.rebuild.queue_task import QueueTask
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import IndexFilePath, QueueFiles, Queues, StoreFile, StoreLayout
from rmqtool.storage.open_files import OpenFiles, opened, read_head
from rmqtool.write.dispatcher import PARTS, Dispatcher
from rmqtool.write.extension_writer import ExtensionWriter
from rmqtool.write.index_writer import IndexWriter
from rmqtool.write.options import WriteOptions
from rmqtool.write.queue_writer import Entry, QueueWriter

if TYPE_CHECKING:
    from rmqtool.check.verify.spans import Span
    from rmqtool.log.dispatch import Dispatch
    from rmqtool.log.frames import Frames
    from rmqtool.repair.rebuild.kept import Kept
    from rmqtool.storage.buffers import Array

_NO_UNITS = (1 << 63) - 1  # newest record of a queue that takes no unit
_FILLER = encode_unit(PRE_BLANK)
_SCHEDULE = SCHEDULE_TOPIC.encode()


class _Event(NamedTuple):
    """An irregular record of a queue: numbers are left out before it, or it has another number."""

    physical_offset: int
    key: Key
    first: int
    stop: int
    number: int | None


class ChosenQueues(QueueWriter):
    """Writes the queues of some tasks and no others; all queues into a database, if there is one."""

    def __init__(
        self, folder: Path, heads: Queues, tasks: Collection[QueueTask], unit_size: int, file_size: int,
        extension: ExtensionWriter | None = None, bits: KeptBits | None = None,
        database: DatabaseUnits | None = None, dues: KeptDues | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, heads, unit_size, file_size, extension)
        self._dues = dues
        self._bits = bits
        self._database = database
        self._tasks = {task.key: task for task in tasks}
        events = [
            _Event(gap.physical_offset, task.key, gap.first, gap.stop, None)
            for task in tasks
            for gap in task.shape.gaps
        ]
        events += (
            _Event(physical_offset, task.key, 0, 0, number)
            for task in tasks
            for physical_offset, number in task.shape.moved.items()
        )
        self._events = sorted(events, key=lambda event: event.physical_offset)
        self._places = [event.physical_offset for event in self._events]

    def _learn(self, topic: bytes, queue_id: int) -> None:
        super()._learn(topic, queue_id)
        task = self._tasks.get((java_utf8_decode(topic), queue_id))
        if self._extension is not None:
            is_extended = task is not None and task.extension is not None and bool(task.extension.files)
            self._extension.restart(is_extended=is_extended)
        if task is None:
            self._newest[-1] = _NO_UNITS
        elif self._newest[-1] != _NO_UNITS:
            # The newest record so far: by its end, in a batch queue by its start.
            self._newest[-1] = max(self._newest[-1], task.shape.from_offset - self._is_batch)

    def put(self, topic: bytes, queue_id: int, entry: Entry) -> None:
        """See QueueWriter."""
        if self._dues is not None and topic == _SCHEDULE:
            known = entry.physical_offset, entry.size, entry.store_timestamp, entry.tags_code
            entry = entry._replace(tags_code=self._dues.of(*known))
        if self._database is not None:
            self._database.put(self.topic(topic), queue_id, entry, self._names)
        key = (java_utf8_decode(topic), queue_id)
        for event in self._between(entry.physical_offset, entry.physical_offset):
            if event.key == key:
                entry = self._meet(event, topic, entry)
        if self._bits is not None and entry.ext_size:
            entry = entry._replace(ext_size=self._bits.size_of(entry.physical_offset))
        super().put(topic, queue_id, entry)

    def _meet(self, event: _Event, topic: bytes, entry: Entry) -> Entry:
        if event.number is not None:
            return entry._replace(queue_offset=event.number)
        self._fill(self._queue(topic, event.key[1]), event)
        return entry

    def put_entries(self, entries: Array) -> None:
        """See QueueWriter."""
        if not len(entries):
            return
        if self._dues is not None:
            entries = self._dues.set_codes(entries, self.topic(_SCHEDULE))
        if self._database is not None:
            self._database.put_entries(entries, self._names)
        if not self._tasks:
            return
        if self._bits is not None:
            entries = entries.copy()
            self._bits.set_sizes(entries)
        physical = entries["physical_offset"]
        events = self._between(int(physical[0]), int(physical[-1]))
        if not events:
            super().put_entries(entries)
            return
        entries = entries.copy()
        codes, done = queue_codes(entries), 0
        for event in events:
            topic = event.key[0].encode("utf-8", "surrogatepass")
            code = code_of(self.topic(topic), event.key[1])
            low, high = np.searchsorted(physical, (event.physical_offset, event.physical_offset + 1)).tolist()
            place = next((row for row in range(low, high) if codes[row] == code), None)
            if place is None:
                continue
            if event.number is not None:
                entries["queue_offset"][place] = event.number
                continue
            if place > done:
                super().put_entries(entries[done:place])
            done = place
            self.write_out()
            self._fill(self._queue(topic, event.key[1]), event)
        super().put_entries(entries[done:])

    def _between(self, first: int, last: int) -> list[_Event]:
        low, high = bisect_left(self._places, first), bisect_right(self._places, last)
        return self._events[low:high]

    def _fill(self, queue: int, event: _Event) -> None:
        """Write fillers for the slots that an event leaves out; nothing of the queue may wait."""
        if self._next[queue] != event.first:
            return
        self.write_out()
        self.write_units(queue, _FILLER * (event.stop - event.first))


class NamedIndex(IndexWriter):
    """Writes index files under names that are known before."""

    def __init__(
        self, folder: Path, kept: tuple[IndexFilePath, ...], shape: index_format.Shape, names: Iterable[str],
        *, tags: bool,
    ) -> None:  # fmt: skip
        super().__init__(folder, kept, shape, tags=tags)
        self._names = iter(names)

    def _name(self) -> str:
        name = next(self._names, None)
        if name is None:
            raise FormatError("the index needs more files than planned", path=self.folder)
        return name


class StagingDispatcher(Dispatcher):
    """Dispatches a store's log into a staging folder."""

    def __init__(
        self, staging: Path, options: WriteOptions, layout: StoreLayout, tasks: Collection[QueueTask],
        index: IndexTask | None, batch_topics: Collection[str], bits: KeptBits, dues: KeptDues,
        database: DatabaseUnits | None = None,
    ) -> None:  # fmt: skip
        staged = StoreLayout(
            staging, "store", commit_log=layout.commit_log, commit_log_folders=layout.commit_log_folders
        )
        options = replace(options, index=index is not None, multi_dispatch=True)  # only tasks get units
        super().__init__(staging, options, staged, start=0, batch_topics=set(batch_topics).__contains__)
        log_start = layout.commit_log[0].file_from_offset if layout.commit_log else 0

        def writer(part: str, unit: int, size: int) -> ChosenQueues:
            own = [task for task in tasks if task.is_batch == (unit == BATCH_UNIT_SIZE)]
            heads = lay_heads(staging / part, own, unit, size, log_start)
            if unit == BATCH_UNIT_SIZE:
                return ChosenQueues(staging / part, heads, own, unit, size, database=database)
            if not options.ext_queues:
                return ChosenQueues(staging / part, heads, own, unit, size, database=database, dues=dues)
            extension = ExtensionWriter(staging / PARTS[3], {}, options.ext_queue_file_size, bits)
            return ChosenQueues(staging / part, heads, own, unit, size, extension, bits, database, dues)

        self._queues = writer(PARTS[0], UNIT_SIZE, options.consume_queue_file_size)
        self._batch_queues = writer(PARTS[1], BATCH_UNIT_SIZE, options.batch_queue_file_size)
        kept, names = ((), ()) if index is None else (index.kept, index.names)
        tags = options.profile.indexes_tags
        self._index = NamedIndex(staging / PARTS[2], kept, options.index_shape, names, tags=tags)

    def take(self, frames: Frames, dispatch: Dispatch) -> None:
        """Dispatch records that were read before."""
        self._take_frames(frames, dispatch)
        if self._options.index:
            self._index.put_rows(frames.rows, dispatch.keys)


def lay_heads(folder: Path, tasks: Iterable[QueueTask], unit: int, file_size: int, log_start: int) -> Queues:
    """Make the first files of queues that begin in the middle of one, up to where they begin.

    Units of expired records come from the file that is there now; in a plain queue fillers stand for
    all others.
    """
    heads: Queues = {}
    for task in tasks:
        if task.head is None:
            continue
        start, length = task.head.file_from_offset, task.head_units * unit
        try:
            with opened(task.head.path) as descriptor:
                data = os.pread(descriptor, length, 0)
        except OSError:
            data = b""  # what cannot be read is as good as expired
        if not task.is_batch:
            units = unit_array(_FILLER * task.head_units, unit).copy()
            found = unit_array(data, unit)
            there = np.flatnonzero(present(found) & (found["physical_offset"] < log_start))
            units[there] = found[there]
            data = units.tobytes()
        own = folder / task.key[0] / str(task.key[1])
        disk.make_folder(own)
        path = own / f"{start:020}"
        descriptor = disk.create_file(path, file_size)
        try:
            disk.write(descriptor, data, 0, path)
        finally:
            os.close(descriptor)
        files = (StoreFile(path, start, file_size),)
        heads[task.key] = QueueFiles(*task.key, own, files, unit_size=unit)
    return heads


def stage(
    staging: Path, options: WriteOptions, layout: StoreLayout, tasks: Collection[QueueTask],
    index: IndexTask | None, *, start: int, end: int, batch_topics: Collection[str], kept: Kept, bits: Bits,
    spans: Mapping[Key, Span], database: DatabaseTask | None = None,
) -> None:  # fmt: skip
    """Write the files of `tasks` and `index` into the folder `staging`, from the log as it is now.

    Args:
        staging: an empty folder.
        options: how they are written.
        layout: whose log files are dispatched; they are there by now.
        tasks: the queues.
        index: the index, None to leave it out.
        start: physical offset; dispatch begins with the file that holds it.
        end: physical offset where it ends.
        batch_topics: topics whose queues are batch queues.
        kept: what is known of the log; where that is not all, it is read.
        bits: the extension units whose bits are kept.
        spans: what the survey found of each queue.
        database: the database of all queues, None to leave it out.

    Raises:
        UnreadableError: the log cannot be read.
        UnwritableError: the files cannot be written.
        FormatError: what came out is not what was planned: the log has changed since.
    """
    kept_bits = KeptBits(layout, bits, [task.key for task in tasks])
    units = None if database is None else DatabaseUnits(staging / PARTS[0], database)
    keys = {task.key for task in tasks} | set(() if database is None else database.shapes)
    dues = KeptDues(layout, sorted(keys), spans)
    dispatcher = StagingDispatcher(
        staging, options, layout, tasks, index, batch_topics, kept_bits, dues, units
    )
    try:
        for frames, dispatch in kept.batches(start):
            dispatcher.take(frames, dispatch)
        for file in () if kept.is_whole else layout.commit_log:
            stop = min(file.end, end)
            if file.size and file.file_from_offset % layout.commit_log_file_size == 0 and start < stop:
                dispatcher.position = file.file_from_offset
                dispatcher.run(stop)
        dispatcher.write_out()
        if units is not None:
            units.finish()
    finally:
        if units is not None:
            units.close()
        dispatcher.close()
        kept_bits.close()
    _check(staging, options, tasks, index)


def _check(staging: Path, options: WriteOptions, tasks: Iterable[QueueTask], index: IndexTask | None) -> None:
    """That the queues end where they should, and the index holds what it should."""
    for task in tasks:
        folder = staging / PARTS[task.is_batch] / task.key[0] / str(task.key[1])
        size = options.batch_queue_file_size if task.is_batch else options.consume_queue_file_size
        files = tuple(
            StoreFile(folder / f"{f.file_from_offset:020}", f.file_from_offset, size) for f in task.files
        )
        try:
            with OpenFiles() as open_files:
                queue = ConsumeQueue(QueueFiles(*task.key, folder, files), open_files)
                end = 0 if task.is_batch or not files else queue.end()
        except UnreadableError as error:
            raise _differs(folder) from error
        if not task.is_batch and files and end != task.shape.end:
            raise _differs(folder)
        extended = staging / PARTS[3] / task.key[0] / str(task.key[1])
        wanted = () if task.extension is None else task.extension.files
        made = {path.name for path in extended.iterdir()} if extended.exists() else set()
        if made != {f"{file.file_from_offset:020}" for file in wanted}:
            raise _differs(extended)
    entries = 0
    for name in () if index is None else index.names:
        data = read_head(staging / PARTS[2] / name, index_format.HEADER_SIZE)
        if data is None:
            raise _differs(staging / PARTS[2])
        entries += index_format.decode_header(data).next_entry - 1
    if index is not None and entries != index.keys:
        raise _differs(staging / PARTS[2])


def _differs(path: Path) -> FormatError:
    return FormatError("the rebuilt files differ from the plan", path=path, hint="make the plan again")
