"""The first step of a start: which files a broker opens, and which of them it does not start with.

Source: DefaultMessageStore#load, MappedFileQueue#doLoad, ConsumeQueueStore#loadConsumeQueues,
IndexService#load; spec 02 1.2 and 1.3.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from rmqtool.broker.rules import StartRules, StartSettings
from rmqtool.errors import InputError
from rmqtool.formats.index import Header
from rmqtool.formats.java import parse_integer
from rmqtool.index.index_file import header_of
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.lost_config import what_happened_to
from rmqtool.storage.config_files import TOPICS, read_config
from rmqtool.storage.layout import Queues, StoreFile, StoreLayout
from rmqtool.storage.listing import Listing
from rmqtool.storage.queue_logs.compacted import loaded_files, without_counterpart, wrong_sizes
from rmqtool.storage.queue_logs.view import CompactedLogs
from rmqtool.storage.rocksdb.database import CURRENT
from rmqtool.storage.storage import path_at
from rmqtool.storage.unsupported import queues_part

QueueKey = tuple[str, int]

NO_BATCH_QUEUES = "with rocksdbCQDoubleWriteEnable the broker fails on every batch queue (ClassCastException)"
"""Why load() fails: a BatchConsumeQueue is made with the store of queues, a CombineConsumeQueueStore, cast to
ConsumeQueueStore. Source: BatchConsumeQueue of 5.4.0, the constructor; seen with its library."""
NO_COMPACTION = (
    "with queues in RocksDB, or rocksdbCQDoubleWriteEnable, the broker fails on every compacted topic"
    " (ClassCastException)"
)
"""The same of a SparseConsumeQueue, which is a BatchConsumeQueue, and a RocksDBConsumeQueueStore."""


class Entry(NamedTuple):
    """One entry of a folder of mapped files."""

    path: Path
    size: int
    is_folder: bool


class OpenedIndex(NamedTuple):
    """An index file that a broker opens: its size on disk and its header."""

    path: Path
    size: int
    header: Header


@dataclass
class Loaded:
    """The files that a broker has opened, and the reason why its load fails.

    Attributes:
        error: why load fails, for a person; None when it does not.
        path: the file or folder that it fails on.
        log: the commit log's files in the broker's order.
        queues: files of plain queues by (topic, queue id).
        batch_queues: the same of batch queues.
        extensions: extension files of plain queues by (topic, queue id).
        index: in the order of their names, those of a start with abort still included.
        deleted: empty files that were deleted.
        recovers: whether recovery runs: load does not fail, or fails after it.
    """

    error: str | None = None
    path: Path | None = None
    recovers: bool = False
    log: tuple[StoreFile, ...] = ()
    queues: dict[QueueKey, tuple[StoreFile, ...]] = field(default_factory=dict)
    batch_queues: dict[QueueKey, tuple[StoreFile, ...]] = field(default_factory=dict)
    extensions: dict[QueueKey, tuple[StoreFile, ...]] = field(default_factory=dict)
    index: tuple[OpenedIndex, ...] = ()
    deleted: list[Path] = field(default_factory=list)

    def fails(self, error: str, path: Path | None) -> None:
        """Load fails; the first reason counts."""
        if self.error is None:
            self.error, self.path = error, path


def writes_twice(layout: StoreLayout, settings: StartSettings) -> bool:
    """Whether a 5.4 broker writes the queues twice: as configured, else as the store shows."""
    if settings.combines is not None:
        return settings.combines
    return any(part.what == "second consume queues" for part in layout.not_written)


def is_combined_store(layout: StoreLayout, rules: StartRules, settings: StartSettings) -> bool:
    """Whether the broker has a CombineConsumeQueueStore, of one type of queues or of both."""
    return rules.combines and (settings.is_combined or writes_twice(layout, settings))


def reads_queues(layout: StoreLayout, rules: StartRules, settings: StartSettings) -> bool:
    """Whether a broker reads the queues where they are: not every version has them in RocksDB."""
    if layout.has_queues_in_files or writes_twice(layout, settings):
        return True
    return rules.combines if settings.is_combined else rules.reads_rocksdb


def load(
    layout: StoreLayout,
    rules: StartRules,
    is_batch_topic: Callable[[str], bool],
    settings: StartSettings,
    *,
    extended: bool = False,
) -> Loaded:
    """Return the files that a broker opens of this store.

    Args:
        layout: of a store root.
        rules: the broker's.
        settings: the broker's.
        extended: whether it opens extension files (enableConsumeQueueExt).
        is_batch_topic: whether topics.json gives a topic queue.type=BatchCQ.
    """
    loaded = Loaded()
    if rules.combines and settings.wrong_types is not None:
        loaded.fails(settings.wrong_types, None)
        return loaded
    log, strays = layout.commit_log, layout.commit_log_strays
    if layout.ledger is not None:  # DLedger opens its own files, later
        log = tuple(file for file in (*log, *layout.commit_log_ignored) if not file.entry_header)
        strays = tuple(stray for stray in strays if stray not in layout.ledger.data_strays)
    entries = _entries(log, [*strays, *([layout.guard] if layout.guard is not None else [])])
    entries.sort(key=lambda entry: entry.path.name)
    files = _mapped(loaded, entries, layout.commit_log_file_size, rules)
    if files is None:
        return loaded
    loaded.log = files
    twice = writes_twice(layout, settings)
    in_files = layout.has_queues_in_files
    wrong = _wrong_type(layout, is_batch_topic) if rules.has_batch_queues and in_files else None
    if wrong is not None:
        loaded.fails(_wrong_type_text(layout), wrong)
        return loaded
    queues = layout.consume_queues if in_files else {}
    _load_queues(loaded, loaded.queues, queues, layout.consume_queue_file_size, rules)
    combines = twice and rules.combines
    is_combined = is_combined_store(layout, rules, settings)
    if is_combined and (in_files or twice) and layout.batch_queues:
        loaded.fails(NO_BATCH_QUEUES, next(iter(layout.batch_queues.values())).folder)
        return loaded
    in_database = combines or not (twice or in_files)
    if in_database:
        _open_database(loaded, layout)
    if rules.combines and settings.compacts and (in_database or is_combined):
        compacted = _compacted(layout)
        if compacted is not None:
            loaded.fails(NO_COMPACTION, compacted)
    elif rules.has_batch_queues and settings.compacts:
        unmatched = _unmatched(layout)
        if unmatched is not None:
            loaded.fails("the log and the queue of a compacted topic have not the same files", unmatched)
    if extended:
        mine = {key: queue for key, queue in layout.ext_queues.items() if key in loaded.queues}
        _load_queues(loaded, loaded.extensions, mine, layout.ext_queue_file_size, rules)
    if rules.has_batch_queues and (twice or in_files):
        _load_queues(loaded, loaded.batch_queues, layout.batch_queues, layout.batch_queue_file_size, rules)
    if loaded.error is None:
        loaded.recovers = True
        loaded.index = tuple(_index(loaded, layout, rules))
    return loaded


def _wrong_type_text(layout: StoreLayout) -> str:
    expects = "so the broker expects consume queues for this topic, not batch queues"
    folder = layout.config_folder
    try:
        has_content = folder is not None and read_config(folder, TOPICS).source != "none"
    except InputError:  # a finding of its own
        has_content = False
    if not has_content:
        return f"{what_happened_to(layout, TOPICS)}, {expects}"
    return f"{TOPICS} gives this topic queues of the other type (queue.type)"


def _open_database(loaded: Loaded, layout: StoreLayout) -> None:
    """Load fails if RocksDB cannot open the queues' database; without one, the broker makes an empty one.

    Without CURRENT RocksDB makes one too, but not where a write-ahead log lies (DBImpl#Recover).
    """
    part = queues_part(layout.not_written)
    if layout.rocksdb is None:
        files = () if part is None else tuple(path.name for path, _ in Listing().files(part.path))
        if part is not None and (CURRENT in files or any(name.endswith(".log") for name in files)):
            loaded.fails(f"RocksDB cannot open the consume queues: {part.reason}", part.path)
        return
    error = layout.rocksdb.database.opening_error()
    if error is not None:
        path = layout.rocksdb.folder if error.path is None else Path(error.path)
        loaded.fails(f"RocksDB cannot open the consume queues: {error.message}", path)


def _compacted(layout: StoreLayout) -> Path | None:
    """The folder of the first compaction log that a broker opens. Source: CompactionStore#load."""
    if layout.root is None:
        return None
    listing, folder = Listing(), layout.root / "compaction"
    queues = {
        (topic, name)
        for topic, place in listing.folders_and_others(folder / "compactionCq")[0]
        for name, _ in listing.folders_and_others(place)[0]
    }
    for topic, place in listing.folders_and_others(folder / "compactionLog")[0]:
        for name, log in listing.folders_and_others(place)[0]:
            if (topic, name) in queues:
                return path_at(log)
    return None


def _unmatched(layout: StoreLayout) -> Path | None:
    """A file of a compacted topic whose log or queue has no file of the same name, if a broker compares them.

    It does not if a file has a wrong size: it starts without the topic's log. Source: CompactionLog of 5.4.0,
    TopicPartitionLog#init, #sanityCheck; seen with its broker.
    """
    for logs in layout.copies:
        if isinstance(logs, CompactedLogs):
            of_wrong_size = {queue.key for queue, _, _ in wrong_sizes(logs.found.queues)}
            for queue in logs.found.queues:
                if queue.key not in of_wrong_size and loaded_files(queue.log) and loaded_files(queue.units):
                    for segment in without_counterpart(queue):
                        return path_at(segment.place)
    return None


def _wrong_type(layout: StoreLayout, is_batch_topic: Callable[[str], bool]) -> Path | None:
    """A queue folder that is not of its topic's type. Source: ConsumeQueueStore#queueTypeShouldBe."""
    for queues, is_batch in ((layout.consume_queues, False), (layout.batch_queues, True)):
        for queue in queues.values():
            if is_batch_topic(queue.topic) != is_batch:
                return queue.folder
    return None


def _entries(files: Iterable[StoreFile], others: Iterable[Path]) -> list[Entry]:
    """The entries of a folder, by name."""
    found = [Entry(file.path, file.size, False) for file in files]
    more = False
    for path in others:
        try:
            status = path.stat()
        except OSError:  # a link that leads nowhere: Java sees a file of length 0
            found.append(Entry(path, 0, False))
        else:
            found.append(Entry(path, status.st_size, stat.S_ISDIR(status.st_mode)))
        more = True
    if more:
        found.sort(key=lambda entry: entry.path.name)
    return found


def _mapped(
    loaded: Loaded, entries: Sequence[Entry], size: int, rules: StartRules
) -> tuple[StoreFile, ...] | None:
    """The mapped files of one folder; None when load fails. Source: MappedFileQueue#doLoad."""
    files = []
    for number, entry in enumerate(entries):
        if entry.is_folder and rules.profile.skips_stray_folders:
            continue
        if entry.size == 0 and number == len(entries) - 1 and rules.deletes_empty_last:
            loaded.deleted.append(entry.path)
            continue
        if entry.size != size or entry.is_folder:
            what = "it is a folder" if entry.is_folder else f"it has {entry.size} bytes instead of {size}"
            loaded.fails(what, entry.path)
            return None
        start = parse_integer(entry.path.name, 1 << 63)
        if start is None:
            loaded.fails("its name is not an offset", entry.path)
            return None
        files.append(StoreFile(entry.path, start, entry.size))
    return tuple(files)


def _load_queues(
    loaded: Loaded, into: dict[QueueKey, tuple[StoreFile, ...]], queues: Queues, size: int, rules: StartRules
) -> None:
    """Open the queues of one folder, up to the first that cannot be opened."""
    for key, queue in queues.items():
        files = _mapped(loaded, _entries(queue.files, queue.strays), size, rules)
        if files is None:
            return
        into[key] = files


def _index(loaded: Loaded, layout: StoreLayout, rules: StartRules) -> list[OpenedIndex]:
    """The index files. A name that is not a number is skipped. Source: IndexService#load."""
    found: list[OpenedIndex] = []
    entries: Mapping[Path, int | None] = {file.path: file.size for file in layout.index_files} | {
        path: None for path in layout.index_strays
    }
    for path in sorted(entries):
        if parse_integer(path.name, 1 << 63) is None:
            continue
        size = entries[path]
        if size is None:
            try:
                status = path.stat()
                size = None if stat.S_ISDIR(status.st_mode) else status.st_size
            except OSError:
                size = None
        if size is None:
            if rules.index_must_load:
                loaded.fails("the index file cannot be opened", path)
            return found
        found.append(OpenedIndex(path, size, header_of(path)))
    return found
