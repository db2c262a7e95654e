"""The start of one broker, step by step: load, recover, dispatch, truncate, dispatch again (4.x).

One scan of the log serves the starts of several brokers: `BrokerStart.take` gets its events. `start_file`
finds the file where the scan of a broker begins, which depends on its version and on how it ended.

Source: DefaultMessageStore#load, #start, CommitLog#recoverNormally, #recoverAbnormally,
#isMappedFileMatchedRecover; spec 02 sections 1 to 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.broker.config import unread_config
from rmqtool.broker.dispatch import Folder, QueueDispatch, Topics
from rmqtool.broker.extension import Extensions, check_extension
from rmqtool.broker.index import IndexBuild
from rmqtool.broker.load import NO_BATCH_QUEUES, Loaded, QueueKey, is_combined_store, load, writes_twice
from rmqtool.broker.log_scan import Batch, Event, first_unsound
from rmqtool.broker.queue_reader import QueueReader, StartError
from rmqtool.broker.queues import QueueState
from rmqtool.broker.reput import LogFile, Reput
from rmqtool.broker.rules import ARRAY_BYTES_MAX, StartRules, StartSettings
from rmqtool.errors import UnreadableError
from rmqtool.formats import message as form
from rmqtool.formats.checkpoint import Checkpoint
from rmqtool.formats.index import Shape
from rmqtool.formats.java import java_utf8_decode
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.source import open_source

if TYPE_CHECKING:
    from rmqtool.broker.combined import StartFileSearch

    Array = np.ndarray[Any, np.dtype[Any]]


_THIRD_LAST = 3


class FirstRecord(NamedTuple):
    """The fields that a broker reads of a file's first record."""

    physical_offset: int  # as stored
    store_timestamp: int


def start_file(
    files: Sequence[StoreFile],
    open_files: OpenFiles,
    rules: StartRules,
    settings: StartSettings,
    *,
    abort: bool,
    queue_end: int,
    checkpoint: Checkpoint,
    in_rocksdb: bool = False,
    search: StartFileSearch | None = None,
) -> int:
    """The index of the first file that is scanned; 0 without files.

    Args:
        files: of the log, as loaded.
        open_files: reads them.
        rules: the broker's.
        settings: the broker's.
        abort: whether the abort file exists.
        queue_end: the largest `max_physical` of all queues; -1 if all are empty.
        checkpoint: of the store; zeros without one.
        in_rocksdb: `queue_end` is the noted end of dispatch, which decides after a crash as well.
        search: of queues that are written twice: which of the files that match it accepts.

    Raises:
        UnreadableError: a file cannot be read.
    """
    last = len(files) - 1
    if not abort and rules.normal_start == "third_last":
        return max(0, len(files) - _THIRD_LAST)
    if not abort and rules.normal_start == "queue_end":
        while last > 0 and files[last].file_from_offset > queue_end:
            last -= 1
        return max(last, 0)
    left = settings.files_back if rules.limits_files_back else len(files)
    for number in range(last, -1 if abort else 0, -1):
        left -= 1
        if left <= 0 and search is None:  # only 5.4 has a limit; for the others this is file 0
            return number
        found = _first_record(files[number], open_files, rules, settings)
        by_time = abort and not in_rocksdb
        if found is not None and _is_usable(found, settings, by_time, checkpoint, rules):
            matches = _matches(found, settings, by_time, queue_end, checkpoint, rules)
            if search is not None:
                matches = search.accepts(found.physical_offset, completes_files=matches)
            if matches:
                return number
        if left <= 0:
            return number
    return 0


def _is_usable(
    found: FirstRecord, settings: StartSettings, by_time: bool, checkpoint: Checkpoint, rules: StartRules
) -> bool:
    """Whether a file with this first record is compared with the queues at all."""
    is_bound_by_index = (
        settings.index_enabled and settings.index_safe and (rules.checks_first_record or not by_time)
    )
    if found.store_timestamp == 0:
        return False
    return not is_bound_by_index or found.store_timestamp <= checkpoint.index_msg_timestamp


def _matches(
    found: FirstRecord,
    settings: StartSettings,
    by_time: bool,
    queue_end: int,
    checkpoint: Checkpoint,
    rules: StartRules,
) -> bool:
    """Whether the queues can be completed from a usable file."""
    if not by_time:
        return found.physical_offset <= queue_end
    is_safe = settings.index_enabled and settings.index_safe and not rules.checks_first_record
    limit = checkpoint.min_timestamp_index if is_safe else checkpoint.min_timestamp
    return found.store_timestamp <= limit


def _first_record(
    file: StoreFile, open_files: OpenFiles, rules: StartRules, settings: StartSettings
) -> FirstRecord | None:
    """The first record of a file; None if the broker does not start at this file."""
    if rules.checks_first_record:
        return _checked(file, rules, settings)
    size = form.HEAD_SIZE_V4 + form.HOST_V6_SIZE
    head = open_files.read(file.path, 0, size).ljust(size, b"\0")
    version = form.VERSION_BY_MAGIC.get(form.BLANK.unpack(head[: form.BLANK_SIZE])[1])
    if version is None or (version == 2 and not rules.profile.writes_version_2):
        return None
    sys_flag = int.from_bytes(head[form.SYS_FLAG_OFFSET : form.SYS_FLAG_OFFSET + 4], signed=True)
    at = form.HEADS[sys_flag & form.BORN_HOST_V6].offsets["store_timestamp"]
    stored = int.from_bytes(head[form.PHYSICAL_OFFSET_OFFSET : form.PHYSICAL_OFFSET_OFFSET + 8], signed=True)
    return FirstRecord(stored, int.from_bytes(head[at : at + 8], signed=True))


def _checked(file: StoreFile, rules: StartRules, settings: StartSettings) -> FirstRecord | None:
    """The first record if it passes the checks of the scan, else None."""
    from rmqtool.broker.log_scan import Batch, file_events, first_unsound

    try:
        source = open_source(file.path)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
    try:
        event = next(file_events(source, file, crc=settings.checks_crc, stop=1))
        if not isinstance(event, Batch) or first_unsound(event, rules, settings) == 0:
            return None
        row = event.rows[0]
        return FirstRecord(int(row["physical_offset"]), int(row["store_timestamp"]))
    finally:
        source.close()


_LARGE = 64 << 20  # bytes; every broker's heap has more than this
_SOUND = 0  # status of a record with a correct CRC, at its stored offset


@dataclass
class DiscardedTail:
    """Sound records after the end that recovery finds, with their smallest and largest store time, ms.

    `end` is the physical offset after the last byte that is not zero, `files` the numbers of the files with
    such bytes after the end.
    """

    records: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    end: int = 0
    files: set[int] = field(default_factory=set)

    def take(self, number: int, event: Event, first: int = 0) -> None:
        """Take an event of file `number`; of a batch the rows from `first` on."""
        if isinstance(event, Batch):
            self.files.add(number)
            self._count(event, first)
        elif event.end > event.at:  # otherwise only zeros, or a blank
            self.files.add(number)
            self.end = max(self.end, event.end)

    def _count(self, batch: Batch, first: int) -> None:
        rows = batch.rows[first:]
        rows = rows[rows["status"] == _SOUND]
        if not len(rows):
            return
        self.end = max(self.end, batch.end)
        self.records += len(rows)
        counts = np.bincount(rows["topic_id"], minlength=len(batch.topics))
        for topic, count in zip(batch.topics, counts.tolist(), strict=True):
            if count:
                self.topics[java_utf8_decode(topic)] += count
        low, high = int(rows["store_timestamp"].min()), int(rows["store_timestamp"].max())
        self.first_timestamp = low if self.first_timestamp is None else min(low, self.first_timestamp)
        self.last_timestamp = high if self.last_timestamp is None else max(high, self.last_timestamp)


@dataclass(frozen=True)
class StartInputs:
    """The inputs that all starts of a store share."""

    layout: StoreLayout
    open_files: OpenFiles
    checkpoint: Checkpoint
    is_batch_topic: Callable[[str], bool]
    abort: bool
    settings: StartSettings
    index_slots: bool
    unreachable: bool
    topics: Topics = field(default_factory=Topics)

    @property
    def in_rocksdb(self) -> bool:
        """Whether the queues are in RocksDB."""
        return not self.layout.has_queues_in_files and not self.twice

    @property
    def twice(self) -> bool:
        """Whether a broker that supports it writes the queues twice."""
        return writes_twice(self.layout, self.settings)

    @property
    def is_batch(self) -> Callable[[str], bool]:
        """Whether a topic has batch queues: none has if the queues are in RocksDB only."""
        return (lambda topic: False) if self.in_rocksdb else self.is_batch_topic

    @property
    def extended(self) -> bool:
        """Whether the broker writes extension units."""
        configured = self.settings.extends_units
        return self.layout.writes_extensions if configured is None else configured


class BrokerStart:
    """One broker's start.

    Attributes:
        end: physical offset at which the scan ends; None while it runs.
        error: why load fails; None if it does not.
        crashes: the process ends with an OutOfMemoryError.
        claimed_bytes: the size field of the damaged record at `end`, if the broker allocates it and it is
            large.
        hangs: start() never returns; `hangs_at` is the offset.
        first: index of the first scanned file.
        begin: physical offset in that file where the scan begins, if it does not at the start of the file.
        deleted: log files that are deleted.
        log: the log's files after recovery.
        loaded_spans: (min, max) of every queue after load().
        passed_over: records in the scanned files, after a blank, that the broker skips.
        not_after_noted: a record begins at the noted end of dispatch (queues in RocksDB).
        combines: the queues are written twice.
        initialized: number of queues in RocksDB that get the ends of the files.
        parted: queues that end elsewhere in files than in RocksDB, which gives the queue offsets.
        unread_config: parts of the configuration that the broker cannot read.
    """

    def __init__(self, world: StartInputs, rules: StartRules) -> None:
        self.world, self.rules = world, rules
        self.unread_config = unread_config(world.layout, rules)
        self.loaded: Loaded = load(
            world.layout, rules, world.is_batch_topic, world.settings, extended=world.extended
        )
        self.combines = rules.combines and world.twice
        self._check_extensions()
        self.error, self.error_path = self.loaded.error, self.loaded.path
        self.end: int | None = None
        self.ends_with_blank = False
        self.crashes = self.hangs = False
        self.hangs_at: int | None = None
        self.claimed_bytes: int | None = None
        self.first = self._file = self.begin = 0
        self.queue_end = -1
        self.not_after_noted = False
        self.initialized = 0
        self.parted: frozenset[QueueKey] = frozenset()
        self.abandoned = DiscardedTail()
        self.deleted: list[StoreFile] = []
        self.log: list[LogFile] = []
        self.loaded_spans: dict[QueueKey, tuple[int, int]] = {}
        self.before: dict[QueueKey, tuple[int, int]] = {}
        self.passed_over = 0
        self.index_deleted: tuple[Any, ...] = ()
        self.dispatch: QueueDispatch | None = None
        self.extensions: Extensions | None = None
        self.index: IndexBuild | None = None
        self._indexes: list[IndexBuild] = []

    def _check_extensions(self) -> None:
        """Check the extension files: recovery of a queue reads them, and load() fails if it cannot."""
        loaded = self.loaded
        for files in loaded.extensions.values() if loaded.recovers else ():
            wrong = check_extension(files, self.world.open_files)
            if wrong is not None:
                loaded.fails(*wrong)
                loaded.recovers = False
                return

    @property
    def runs(self) -> bool:
        """Whether it gets as far as the scan."""
        return self.loaded.recovers

    # before the scan

    def prepare(self, recovered: dict[QueueKey, QueueState], batch: dict[QueueKey, QueueState]) -> None:
        """Recover queues and index, and find the start file; the passed states are copied.

        Raises:
            UnreadableError: a file cannot be read.
        """
        world, rules = self.world, self.rules
        layout, files = world.layout, world.open_files
        plain = {key: recovered[key].copy() for key in self.loaded.queues}
        batches = {key: batch[key].copy() for key in self.loaded.batch_queues}
        if world.extended:
            self.extensions = Extensions(layout, files, self.loaded)
        self.dispatch = QueueDispatch(
            self._rocksdb_folder()
            if world.in_rocksdb
            else Folder(plain, layout, files, world.topics, is_batch=False, extensions=self.extensions),
            Folder(batches, layout, files, world.topics, is_batch=True),
            rules, world.settings, world.is_batch, world.topics,
            self._rocksdb_folder() if self.combines else None,
        )  # fmt: skip
        self.queue_end = self._noted_end() if world.in_rocksdb else self._queue_end()
        limit = world.checkpoint.index_msg_timestamp
        dropped = [file for file in self.loaded.index if world.abort and file.header.end_timestamp > limit]
        self.index_deleted = tuple(dropped)
        self.index = IndexBuild(
            tuple(file for file in self.loaded.index if file not in dropped),
            Shape(layout.index_slots, layout.index_entries),
            tags=rules.profile.indexes_tags,
            enabled=world.settings.index_enabled,
            flushes=rules.flushes_index,
            slots=world.index_slots,
        )
        self._indexes = [self.index]
        from rmqtool.broker.combined import StartFileSearch

        search = StartFileSearch(self._noted_end(), world.settings) if self.combines else None
        self.first = self._file = start_file(
            self.loaded.log, files, rules, world.settings,
            abort=world.abort, queue_end=self.queue_end, checkpoint=world.checkpoint,
            in_rocksdb=world.in_rocksdb, search=search,
        )  # fmt: skip
        if search is not None:
            self.queue_end = min(self.queue_end, self._noted_end())
            if search.fails:  # Source: CombineConsumeQueueStore#isMappedFileMatchedRecover
                side = "RocksDB" if world.settings.serves_from_rocksdb else "files"
                self._fails_to_load(
                    f"clients are served from {side}, which cannot be completed from the log files that are"
                    " read"
                )
        if not self.loaded.log:
            self.end = 0
        elif rules.combines and world.settings.accelerates and world.in_rocksdb:
            self._begin_inside()

    def _begin_inside(self) -> None:
        """Begin the scan at the noted end of dispatch. Source: CommitLog#recoverNormally of 5.4.0."""
        file, noted = self.loaded.log[self.first], self._noted_end()
        if noted > file.end:
            self._fails_to_load(
                f"with enableAcceleratedRecovery the scan begins at the noted end of dispatch, {noted}, which"
                f" is not in the file {file.path.name}"
            )
        elif noted > file.file_from_offset:
            self.begin = noted

    def _fails_to_load(self, error: str) -> None:
        """Recovery throws, and load() fails."""
        self.loaded.fails(error, None)
        self.loaded.recovers = False
        self.error, self.error_path = self.loaded.error, self.loaded.path
        self.dispatch = self.index = None

    def _rocksdb_folder(self) -> Folder:
        from rmqtool.broker.rocksdb import RocksdbFolder

        world = self.world
        return RocksdbFolder(world.layout, world.open_files, world.topics, world.layout.rocksdb)

    def _noted_end(self) -> int:
        """The end of dispatch that the database notes; 0 without one."""
        queues = self.world.layout.rocksdb
        return 0 if queues is None else queues.checkpoint or 0

    def states(self) -> dict[QueueKey, QueueState]:
        """The present state of all queues."""
        if self.dispatch is None:
            return {}
        return self.dispatch.plain.states | self.dispatch.batch.states

    def folders(self, *, served: bool) -> list[Folder]:
        """The queues from which clients are served, or those that are only written as well."""
        dispatch = self.dispatch
        if dispatch is None:
            return []
        files, database = [dispatch.plain, dispatch.batch], dispatch.second
        if database is None:
            return files if served else []
        return [database] if served == self.world.settings.serves_from_rocksdb else files

    def _queue_end(self) -> int:
        return max((state.max_physical for state in self.states().values()), default=-1)

    # the scan

    def scans_like(self, other: BrokerStart) -> bool:
        """Whether both scans read the same records and dispatch them equally, except for indexed tags."""
        mine, others = self.rules, other.rules
        return (
            (self.first, self.begin) == (other.first, other.begin)
            and self.combines == other.combines
            and mine.profile.writes_version_2 == others.profile.writes_version_2
            and mine.has_batch_queues == others.has_batch_queues
            and mine.knows_delays == others.knows_delays
            and mine.bounds_size == others.bounds_size
            and mine.dispatches_normally == others.dispatches_normally
        )

    def lead(self, other: BrokerStart) -> None:
        """Scan also for another start for which `scans_like` holds; only its index is separate."""
        self._indexes.append(other._indexes[0])

    def follow(self, other: BrokerStart) -> None:
        """Copy the results of the scan from the start that led this one."""
        assert other.dispatch is not None and self.dispatch is not None
        other.dispatch.finish()
        self.dispatch.take_over(other.dispatch)
        self.end, self.ends_with_blank, self.crashes = other.end, other.ends_with_blank, other.crashes
        self.claimed_bytes, self.not_after_noted = other.claimed_bytes, other.not_after_noted
        self.abandoned, self.passed_over = other.abandoned, other.passed_over

    def take(self, number: int, event: Event) -> None:
        """Process an event of file `number`; files come in order, from `first` or an earlier one.

        The broker does not read files before `first`: their records are only noted as held by the log.
        """
        if number < self.first:
            if isinstance(event, Batch):
                self._hold(event, len(event.rows))
            return
        if self.end is None and self.begin and self._is_before(number, event):
            return
        if self.end is not None:
            self.abandoned.take(number, event)
        elif number < self._file:  # after a blank that is not at the end of its file
            if isinstance(event, Batch):
                self.passed_over += len(event.rows)
                self._hold(event, len(event.rows))
        elif isinstance(event, Batch):
            start = int(np.searchsorted(event.positions, self.begin)) if number == self.first else 0
            count = first_unsound(event, self.rules, self.world.settings, start)
            self._scanned(event, count, start)
            if count < len(event.rows):
                self._stop(int(event.positions[count]))
                self.abandoned.take(number, event, count)
        elif not event.is_blank:
            self._stop(event.at)
            self.abandoned.take(number, event)
        else:
            self._file += 1
            if self._file == len(self.loaded.log):
                self.ends_with_blank = True
                self._stop(event.at)

    def _is_before(self, number: int, event: Event) -> bool:
        """Whether the broker does not see an event, since its scan begins later; it may end there at once."""
        if number > self.first:
            if self._file == self.first:  # the scan begins at the very end of its file
                self._stop(self.begin)
            return False
        if isinstance(event, Batch):
            count = int(np.searchsorted(event.positions, self.begin))
            end = int(event.positions[count - 1] + event.rows["size"][count - 1]) if count else self.begin
            if end > self.begin:  # the scan begins inside of a record
                self._hold(event, count)
                self._stop(self.begin)
                self.abandoned.take(number, event, count)
            elif count == len(event.rows):
                self._hold(event, count)
            return end > self.begin or count == len(event.rows)
        if event.at >= self.begin:
            return False
        if not event.is_blank and event.end > self.begin:
            self._stop(self.begin)
        return True

    def _scanned(self, batch: Batch, count: int, start: int) -> None:
        """Process the rows [start, count), which are sound for this broker; it does not see those before."""
        if not count:
            return
        dispatch = self.dispatch
        assert dispatch is not None
        self._hold(batch, count)
        if self.world.abort:
            self._dispatch(batch, None if count - start == len(batch.rows) else np.arange(start, count))
            return
        offsets = batch.rows["physical_offset"][:count]
        behind = offsets > self.queue_end if self.rules.dispatches_normally else offsets >= self.queue_end
        passed = np.flatnonzero(~behind)
        if self.world.in_rocksdb and (offsets == self.queue_end).any():
            self.not_after_noted = True
        if len(passed):
            dispatch.pass_over(batch, passed)
        if self.rules.dispatches_normally and len(passed) < count:
            self._dispatch(batch, np.flatnonzero(behind))

    def _hold(self, batch: Batch, count: int) -> None:
        if self.world.unreachable:
            assert self.dispatch is not None
            self.dispatch.hold(batch, count)

    def _dispatch(self, batch: Batch, chosen: Array | None) -> None:
        assert self.dispatch is not None
        self.dispatch.put(batch, chosen)
        for index in self._indexes:
            index.put(batch, chosen)

    def _stop(self, at: int) -> None:
        self.end = at
        if self.rules.bounds_size:
            return
        file = next((file for file in self.loaded.log if file.file_from_offset <= at < file.end), None)
        if file is None:  # the end of the log; or a name near the largest i64, where Java's sums overflow
            return
        head = self.world.open_files.read(file.path, at - file.file_from_offset, form.BLANK_SIZE)
        if len(head) == form.BLANK_SIZE:
            total, magic = form.BLANK.unpack(head)
            limit = min(self.world.settings.heap_bytes, ARRAY_BYTES_MAX)
            if magic == form.MAGIC_V1 and total > min(limit, _LARGE):
                self.claimed_bytes, self.crashes = total, total > limit

    # after the scan

    def finish(self, reader: QueueReader) -> None:
        """Cut log and queues, and start; `reader` reads the queues.

        Raises:
            UnreadableError: a file cannot be read.
        """
        dispatch, index = self.dispatch, self.index
        assert dispatch is not None and index is not None
        if self.end is None:  # the scan began at the end of the log's last file
            self._stop(self.begin)
        assert self.end is not None
        dispatch.finish()
        is_combined = is_combined_store(self.world.layout, self.rules, self.world.settings)
        if is_combined and dispatch.batch.states:
            topic, _ = min(dispatch.batch.states)
            self._fails_to_load(f"{NO_BATCH_QUEUES}: the log has messages of {topic}")
            return
        if self.crashes:
            self.error = self.error or "OutOfMemoryError: a damaged size field is allocated"
        elif not self.loaded.log:
            for folder in dispatch.folders():
                for state in folder.states.values():
                    state.destroy()
            for extension in self.extensions.states.values() if self.extensions is not None else ():
                extension.destroy()
        else:
            measured = self._queue_end() if self.rules.measures_after_dispatch else self.queue_end
            self._cut_log(self.end)
            if self.world.in_rocksdb:
                self._settle_rocksdb(self.end)
            elif measured >= self.end:
                for state in self.states().values():
                    reader.truncate(state, self.end)
            if self.combines:
                self._settle_rocksdb(self.end)
        if not self.crashes:
            if not self.world.in_rocksdb:
                self._find_minimums(reader)
            if self.rules.makes_delay_queues:
                self._make_delay_queues()
            self.loaded_spans = {
                key: state.span() for each in self.folders(served=True) for key, state in each.states.items()
            }
            if self.combines and self.error is None:
                self._compare_sides()
            if self.error is None and self.rules.dispatches_at_start:
                self._reput(reader)
        index.finish()
        for folder in dispatch.folders():
            folder.settle_made()

    def _settle_rocksdb(self, end: int) -> None:
        from rmqtool.broker.rocksdb import RocksdbFolder

        assert self.dispatch is not None
        folder = self.dispatch.second if self.combines else self.dispatch.plain
        assert isinstance(folder, RocksdbFolder)
        folder.settle(self.min_offset, end)

    def _compare_sides(self) -> None:
        """Compare the ends of queues that are written twice. Source: #verifyAndInitOffsetForAllStore."""
        from rmqtool.broker.combined import differing, initialize
        from rmqtool.broker.rocksdb import RocksdbFolder

        assert self.dispatch is not None and isinstance(self.dispatch.second, RocksdbFolder)
        files, database = self.dispatch.plain.states, self.dispatch.second
        ends = differing(files, database)
        if self.world.settings.assigns_from_rocksdb:
            self.parted = frozenset(ends)
            return
        if self.world.settings.serves_from_rocksdb and any(ends.values()):
            topic, queue_id = min(key for key in ends if ends[key])
            self.error = (
                "clients are served from RocksDB, where queues end elsewhere than in files, for example queue"
                f" {queue_id} of {topic}"
            )
            return
        self.initialized = len(ends)
        initialize(files, database)

    def _cut_log(self, end: int) -> None:
        """Source: MappedFileQueue#truncateDirtyFiles."""
        size = self.world.layout.commit_log_file_size
        for file in self.loaded.log:
            if file.file_from_offset + size <= end:
                self.log.append(LogFile(file, size))
            elif end >= file.file_from_offset:
                self.log.append(LogFile(file, end % size))
            else:
                self.deleted.append(file)

    @property
    def min_offset(self) -> int:
        """The physical offset where the log begins; -1 without files."""
        return self.log[0].file.file_from_offset if self.log else -1

    @property
    def max_offset(self) -> int:
        """The physical offset where the log ends for the broker; 0 without files."""
        if not self.log:
            return 0
        return self.log[-1].file.file_from_offset + self.log[-1].position

    def _find_minimums(self, reader: QueueReader) -> None:
        for state in self.states().values():
            before, searches = state.min_logic, self.rules.profile.searches_min_offset
            try:
                reader.correct_min(state, self.min_offset, searches=searches)
                if self.extensions is not None and not state.is_batch:
                    self.extensions.cut_before(state, reader, before, searches=searches)
            except StartError as error:
                self.error = self.error or str(error)
                return

    def _make_delay_queues(self) -> None:
        """Source: ScheduleMessageService#correctDelayOffset."""
        assert self.dispatch is not None
        size = self.world.layout.consume_queue_file_size
        for number in range(len(self.world.settings.delays_ms)):
            empty = QueueState(SCHEDULE_TOPIC, number, False, size)
            self.dispatch.plain.states.setdefault((SCHEDULE_TOPIC, number), empty)

    def _reput(self, reader: QueueReader) -> None:
        dispatch, index = self.dispatch, self.index
        assert dispatch is not None and index is not None

        def put(batch: Batch, count: int) -> None:
            self._dispatch(batch, None if count == len(batch.rows) else np.arange(count))

        for folder in dispatch.folders():
            folder.forget()
        reput = Reput(
            self.log, self.world.layout.commit_log_file_size, self.rules, put,
            is_master=self.world.settings.is_master,
        )  # fmt: skip
        self.hangs = not reput.run(self._queue_end())
        if self.hangs:
            self.hangs_at = reput.position
        dispatch.finish()
        self._find_minimums(reader)
