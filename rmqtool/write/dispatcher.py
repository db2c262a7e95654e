"""The broker's reput: records of the log become units of consume queues and entries of the index.

Small ranges go through plain Python, large ones through compiled code; both give the same files. What
was dispatched waits in memory until `write_out`; a record that is dispatched again changes nothing,
so a dispatch may begin anywhere before the first record that is missing.

Damage in the log is skipped: dispatch continues with the next sound record, where a broker skips the
rest of the file.

Source: ReputMessageService, CommitLogDispatcherBuildConsumeQueue, IndexService; spec 01 5, 6; spec 02 5.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.errors import UnreadableError, UnwritableError
from rmqtool.formats import properties
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE
from rmqtool.formats.index import texts_of
from rmqtool.formats.java import index_key_hash, java_utf8_decode, parse_integer, tags_code
from rmqtool.formats.message import INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, Message
from rmqtool.log.events import StoredMessage
from rmqtool.log.python_scan import walk_reference
from rmqtool.message.system_topics import SCHEDULE_TOPIC, deliver_timestamp
from rmqtool.queue.light_queues import LightUnit, light_units, named_units, with_light
from rmqtool.storage import durable as disk
from rmqtool.storage.counted_queues import topics_of_batches
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.source import ByteSource, BytesSource, open_source
from rmqtool.write.extension_writer import ExtensionWriter
from rmqtool.write.index_writer import IndexWriter
from rmqtool.write.options import WriteOptions
from rmqtool.write.queue_writer import Entry, QueueWriter
from rmqtool.write.recent import Part, Recent

if TYPE_CHECKING:
    from rmqtool.log.dispatch import Dispatch
    from rmqtool.log.frames import Frames
    from rmqtool.storage.buffers import Array

PARTS = ("consumequeue", "batchconsumequeue", "index", "consumequeue_ext")
_COLD_BYTES = 1 << 20  # less, in all runs together, is not worth loading the compiled code
_WARM_BYTES = 16 << 10  # nor, when it is loaded, setting up a walk
_KERNELS = "rmqtool.queue.build_kernel"
_SYNC_ONE_BY_ONE = 64  # files; more are flushed with all of the file system
_WINDOW = 16 << 20
_SCHEDULE = SCHEDULE_TOPIC.encode()
_start_of = attrgetter("file_from_offset")


class Dispatcher:
    """Dispatches one store's log; for one thread.

    Attributes:
        recent: parts of the log that need not be read from its files.
        position: physical offset up to which everything was dispatched, in memory at least.
        store_timestamp: of the newest record dispatched, ms since 1970; 0 before the first.
    """

    def __init__(
        self,
        root: Path,
        options: WriteOptions,
        layout: StoreLayout,
        *,
        start: int,
        batch_topics: Callable[[str], bool],
    ) -> None:
        """A dispatcher that begins at the physical offset `start`, where a record begins or the log ends.

        Args:
            root: the store.
            options: sizes, profile, delays; what of light queues and index is wanted.
            layout: what lay in the store before; only this process has changed it since.
            start: physical offset.
            batch_topics: whether a topic's queues are batch queues (queue.type=BatchCQ); they are, whatever
                this says, if the first record that is dispatched is an inner batch: brokers store one only
                there, and the master of a replica may not have said what its topics are.
        """
        self.position = start
        self.store_timestamp = 0
        self._plain_bytes = 0
        self._root = root
        self._options = options
        self._log_folders = layout.commit_log_folders or (root / "commitlog",)
        self._log = sorted(layout.commit_log, key=_start_of)
        self._source: tuple[StoreFile, ByteSource] | None = None
        self.recent = Recent()
        self._failed: UnwritableError | None = None
        self._is_batch_topic = batch_topics
        self._batch_by_topic: dict[bytes, bool] = {}
        self._topic_codes: dict[bytes, int] = {}
        self._found_batch = set(topics_of_batches(layout))
        extension = None
        if options.ext_queues:
            extension = ExtensionWriter(root / PARTS[3], layout.ext_queues, options.ext_queue_file_size)
        self._queues = QueueWriter(
            root / PARTS[0], layout.consume_queues, UNIT_SIZE, options.consume_queue_file_size, extension
        )
        self._batch_queues = QueueWriter(
            root / PARTS[1], layout.batch_queues, BATCH_UNIT_SIZE, options.batch_queue_file_size
        )
        tags = options.profile.indexes_tags
        self._index = IndexWriter(root / PARTS[2], layout.index_files, options.index_shape, tags=tags)

    @property
    def index_timestamp(self) -> int:
        """end_timestamp of the newest index file that became full here and is on the device; 0 for none."""
        return self._index.full_timestamp

    # reading the log

    def run(self, stop: int) -> int:
        """Dispatch the records in [position, stop); how many they were.

        Args:
            stop: physical offset; a record that begins before it is dispatched whole.

        Raises:
            UnwritableError: a file could not be written; dispatch can go on from `position`.
            UnreadableError: the log has no file for some offset, or it cannot be read.
        """
        count = 0
        while self.position < stop:
            with self.recent.reading(self.position) as part:
                count += self._run_in_file(stop, part)
        return count

    def _run_in_file(self, stop: int, part: Part | None) -> int:
        """Dispatch up to `stop`, the file's or the part's end; how many records."""
        if part is None:
            file, source = self._source_at(self.position)
            stop = min(stop, self.recent.start_behind(self.position) or stop)
        else:
            file = self._file_at(self.position)
            source = BytesSource(part.data, str(file.path), first=part.start - file.file_from_offset)
            stop = min(stop, part.stop)
        end = min(stop, file.end)
        size = end - self.position
        if size < (_WARM_BYTES if _KERNELS in sys.modules else _COLD_BYTES - self._plain_bytes):
            count = self._run_plain(file, source, end)
            self._plain_bytes += size
        else:
            count = self._run_compiled(file, source, end)
        if source.unreadable:
            offset = file.file_from_offset + source.unreadable[0][0]
            raise UnreadableError("cannot read the commit log", path=file.path, physical_offset=offset)
        self.position = max(self.position, end)
        return count

    def _source_at(self, offset: int) -> tuple[StoreFile, ByteSource]:
        """The log file that holds an offset, open for reading."""
        if self._source is not None:
            file, source = self._source
            if file.file_from_offset <= offset < file.end:
                return self._source
            source.close()
            self._source = None
        file = self._file_at(offset)
        try:
            self._source = file, open_source(file.path, keep_cache=True, is_warm=True)
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
        return self._source

    def _file_at(self, offset: int) -> StoreFile:
        place = bisect_right(self._log, offset, key=_start_of) - 1
        if place >= 0 and offset < self._log[place].end:
            return self._log[place]
        if place < 0 and self._log:  # expired: a broker continues where the log begins
            self.position = self._log[0].file_from_offset
            return self._log[0]
        start = offset - offset % self._options.commit_log_file_size
        for folder in self._log_folders:
            path = folder / f"{start:020}"
            if path.is_file():
                file = StoreFile(path, start, path.stat().st_size)
                insort(self._log, file, key=_start_of)
                return file
        raise UnreadableError("no commit log file holds this offset", physical_offset=offset)

    # plain

    def _run_plain(self, file: StoreFile, source: ByteSource, end: int) -> int:
        first = file.file_from_offset
        count = 0
        for event in walk_reference(source, file_from_offset=first, start=self.position - first,
                                    stop=end - first, crc=False, entry_header=file.entry_header):  # fmt: skip
            if isinstance(event, StoredMessage):
                self._take_record(event.physical_offset, event.message)
                self.position = event.end
                self.store_timestamp = event.message.store_timestamp
                count += 1
        return count

    def _take_record(self, physical_offset: int, message: Message) -> None:
        found = properties.decode(message.properties_bytes)
        kind = message.transaction_type
        tags = found.get(properties.TAGS)
        if kind in (0, TRANSACTION_COMMIT):
            code = tags_code(tags)
            entry = Entry(
                physical_offset, code, message.queue_offset, message.store_timestamp, message.total_size, 1
            )
            queues = self._queues
            if self._is_batch(message.topic_bytes, is_inner_batch=bool(message.sys_flag & INNER_BATCH)):
                queues, entry = self._batch_queues, _with_batch(entry, found)
            elif message.topic_bytes == _SCHEDULE:
                entry = entry._replace(tags_code=self._delayed_code(found, message.store_timestamp, code))
            queues.put(message.topic_bytes, message.queue_id, entry)
            if queues is self._queues and self._options.may_be_light(message.topic_bytes):
                for unit in filter(_is_folder, light_units(found, message.queue_id)):
                    light = entry._replace(tags_code=code, queue_offset=unit.queue_offset, ext_size=0)
                    self._queues.put(unit.topic.encode(), unit.queue_id, light)
        if self._options.index:
            hashes = []
            if kind != TRANSACTION_ROLLBACK:
                indexed = tags if self._options.profile.indexes_tags else None
                uniq_key, keys = found.get(properties.UNIQ_KEY), found.get(properties.KEYS)
                texts = texts_of(message.topic, uniq_key, keys, indexed)
                hashes = [index_key_hash(text) for _, text in texts]
            self._index.put(physical_offset, message.store_timestamp, hashes)

    def _delayed_code(self, found: Mapping[str, str], store_timestamp: int, code: int) -> int:
        level = parse_integer(found.get(properties.DELAY, ""), 1 << 31)
        if level is None or level <= 0 or not self._options.delays_ms:
            return code
        return deliver_timestamp(store_timestamp, level, self._options.delays_ms)

    def _is_batch(self, topic: bytes, *, is_inner_batch: bool) -> bool:
        known = self._batch_by_topic.get(topic)
        if known is None:
            name = java_utf8_decode(topic)
            known = name in self._found_batch or self._is_batch_topic(name) or is_inner_batch
            self._batch_by_topic[topic] = known
        return known

    # compiled

    def _run_compiled(self, file: StoreFile, source: ByteSource, end: int) -> int:
        from rmqtool.log.dispatch import dispatch_columns
        from rmqtool.log.frames import Frames, walk

        first = file.file_from_offset
        count = 0
        for event in walk(source, file_from_offset=first, start=self.position - first, stop=end - first,
                          crc=False, window=_WINDOW, entry_header=file.entry_header):  # fmt: skip
            if isinstance(event, Frames):
                dispatch = dispatch_columns(event)
                self._take_frames(event, dispatch)
                if self._options.index:
                    self._index.put_rows(event.rows, dispatch.keys)
                last = event.rows[-1]
                self.position = int(last["physical_offset"]) + int(last["size"])
                self.store_timestamp = int(last["store_timestamp"])
                count += len(event.rows)
        return count

    def _take_frames(self, frames: Frames, dispatch: Dispatch) -> None:
        import numpy as np

        from rmqtool.queue.build import Delays, dispatched, entries_of

        rows = frames.rows
        chosen = np.flatnonzero(dispatched(rows["sys_flag"]))
        codes = list(map(self._topic_codes.get, frames.topics))
        if None in codes:
            flagged = set(rows["topic_id"][rows["sys_flag"] & INNER_BATCH != 0].tolist())
            codes = [self._topic_code(name, is_inner_batch=number in flagged)
                     for number, name in enumerate(frames.topics)]  # fmt: skip
        numbers = np.array(codes, np.int32)
        batch = (numbers & 1) != 0
        delayed = frames.topics.index(_SCHEDULE) if _SCHEDULE in frames.topics else -1
        delays = Delays(delayed, self._options.delays_ms)
        entries = entries_of(rows, dispatch, chosen, numbers >> 1, batch, delays)
        if batch.any():
            of_batch = batch[rows["topic_id"][chosen]]
            self._batch_queues.put_entries(entries[of_batch])
            entries, chosen = entries[~of_batch], chosen[~of_batch]
        if self._options.multi_dispatch:
            entries = self._with_light(frames, dispatch, chosen, entries)
        if len(entries):
            self._queues.put_entries(entries)

    def _topic_code(self, topic: bytes, *, is_inner_batch: bool) -> int:
        """Twice the topic's number, and 1 more when its queues are batch queues."""
        code = self._topic_codes.get(topic)
        if code is None:
            is_batch = self._is_batch(topic, is_inner_batch=is_inner_batch)
            number = (self._batch_queues if is_batch else self._queues).topic(topic)
            code = self._topic_codes[topic] = 2 * number + is_batch
        return code

    def _with_light(self, frames: Frames, dispatch: Dispatch, chosen: Array, entries: Array) -> Array:
        """`entries` of the records `chosen`, each followed by those of its light queues."""
        named = (
            each
            for each in named_units(frames, dispatch)
            if self._options.may_be_light(each.topic) and _is_folder(each.unit)
        )
        return with_light(entries, chosen, named, dispatch.tags_code, self._queues.topic)

    # files

    def write_out(self) -> None:
        """Write what waits into the files. Raises UnwritableError; what was not written still waits."""
        self._queues.write_out()
        self._batch_queues.write_out()
        self._index.write_out()

    def sync(self) -> None:
        """`write_out`, and wait until all files are on the device.

        Raises:
            UnwritableError: what could not be written still waits. Where the device refused, every later
                call raises this: a second try would succeed although bytes are lost.
        """
        if self._failed is not None:
            raise self._failed
        self.write_out()
        writers = (self._queues, self._batch_queues, self._index)
        files = [path for writer in writers for path in writer.unsynced_files()]
        if not files:
            return
        try:
            folders = {folder for writer in writers for folder in writer.unsynced_folders()}
            sync_files(self._root, files, folders)
        except UnwritableError as error:
            self._failed = error
            raise
        for writer in writers:
            writer.synced()

    def look_again(self, layout: StoreLayout) -> None:
        """Take what lies in the store now that its oldest files were deleted; nothing waits."""
        self._queues.look_again(layout.consume_queues, layout.ext_queues)
        self._batch_queues.look_again(layout.batch_queues)
        self._index.look_again(layout.index_files)

    def close(self) -> None:
        """Close all files; what waits is lost."""
        if self._source is not None:
            self._source[1].close()
            self._source = None
        self._queues.close()
        self._batch_queues.close()
        self._index.close()


def sync_files(root: Path, files: Sequence[str], folders: set[str]) -> None:
    """Wait until files of the queues and the index of the store at `root` are on the device.

    Args:
        root: the store.
        files: the files; many are flushed with all of their file systems, where a call does that.
        folders: folders that got or lost entries.

    Raises:
        UnwritableError: the device refused.
    """
    if len(files) <= _SYNC_ONE_BY_ONE or not _sync_all(root):
        for path in files:
            descriptor = disk.open_file(path)
            try:
                disk.sync(descriptor, path)
            finally:
                os.close(descriptor)
        for folder in sorted(folders):
            disk.sync_folder(folder)


def _sync_all(root: Path) -> bool:
    """Flush every file system that queues or index are on; False where no call does it."""
    parts = (root, *(root / name for name in PARTS))
    by_device = {part.stat().st_dev: part for part in parts if part.is_dir()}
    return all(disk.sync_all(part) for part in by_device.values())


def _with_batch(entry: Entry, found: Mapping[str, str]) -> Entry:
    """The entry of a record in a batch queue. Source: CommitLog#setBatchSizeIfNeeded."""
    base = parse_integer(found.get(properties.INNER_BASE, ""), 1 << 63)
    count = parse_integer(found.get(properties.INNER_NUM, ""), 1 << 15)
    if base is None or count is None:
        return entry
    return entry._replace(queue_offset=base, batch_size=count)


def _is_folder(unit: LightUnit) -> bool:
    """Whether the queue's name can be that of a folder; 5.x leaves the others out too."""
    return "/" not in unit.topic
