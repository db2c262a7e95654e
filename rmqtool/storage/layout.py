"""The layout of a store: its files by kind, and their sizes, found by one pass over the folders.

Only a few bytes of an index file are read here, and broker.conf if one is given. Sizes come from the
directory listing, so the layout of a store of 10,000 queues takes a fraction of a second.

Source: StorePathConfigHelper, BrokerPathConfigHelper, MappedFileQueue#load; spec 01 section 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rmqtool.errors import InputError, RefusedError, UnsupportedStoreError
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, DEFAULT_UNITS, UNIT_SIZE, file_size
from rmqtool.formats.index import DEFAULT_SHAPE, Shape
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.ledger import HEADER_SIZE as ENTRY_HEADER_SIZE
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.broker_conf import BrokerConf, read_broker_conf
from rmqtool.storage.index_shape import index_shape, usual_shape
from rmqtool.storage.ledger import PREFIX as LEDGER_PREFIX
from rmqtool.storage.ledger import Ledger, find_ledger
from rmqtool.storage.listing import Listing
from rmqtool.storage.next_command import options_of, out_of_ledger
from rmqtool.storage.open_files import allocated_bytes
from rmqtool.storage.roots import (
    as_path,
    check_new_log,
    commit_log_folders,
    folders_of_conf,
    is_store,
    not_a_store,
    nothing_at,
)
from rmqtool.storage.single_file import (
    SingleFile,
    is_index_name,
    offset_of_name,
    queue_id_of_name,
    recognise,
)
from rmqtool.storage.storage import Place, path_at
from rmqtool.storage.unexpected import FILES, FOLDERS, UnexpectedEntry, find_unexpected_entries
from rmqtool.storage.unsupported import (
    INDEX_IN_ROCKSDB,
    SIDE_STORE,
    Unsupported,
    find_unsupported,
    is_rocksdb_file,
)

if TYPE_CHECKING:
    from rmqtool.storage.queue_logs.view import QueueLogs
    from rmqtool.storage.rocksdb.config import RocksdbConfig
    from rmqtool.storage.rocksdb.database import Database
    from rmqtool.storage.rocksdb.queues import RocksdbQueue, RocksdbQueues

PARTS = (*FOLDERS, *FILES, "checkpoint", "kvStore", "rocksdbstore")
"""Names in the root of a store."""

LayoutKind = Literal["store", "tiered", "compacted", "commitlog", "consumequeue", "index"]
Origin = Literal["flag", "environment", "file", "detected", "default"]

GUARD_NAME = "rmqtool-repair"
NAME_BYTES_MAX = 255
"""Bytes of a folder's name at most."""
DEFAULT_COMMIT_LOG_FILE_SIZE = 1 << 30
DEFAULT_CONSUME_QUEUE_FILE_SIZE = DEFAULT_UNITS * UNIT_SIZE
DEFAULT_BATCH_QUEUE_FILE_SIZE = DEFAULT_UNITS * BATCH_UNIT_SIZE
DEFAULT_EXT_QUEUE_FILE_SIZE = 48 << 20

SIZES: dict[str, tuple[str, int]] = {
    "commit_log_file_size": ("mappedFileSizeCommitLog", DEFAULT_COMMIT_LOG_FILE_SIZE),
    "consume_queue_file_size": ("mappedFileSizeConsumeQueue", DEFAULT_CONSUME_QUEUE_FILE_SIZE),
    "batch_queue_file_size": ("mapperFileSizeBatchConsumeQueue", DEFAULT_BATCH_QUEUE_FILE_SIZE),
    "ext_queue_file_size": ("mappedFileSizeConsumeQueueExt", DEFAULT_EXT_QUEUE_FILE_SIZE),
    "index_slots": ("maxHashSlotNum", DEFAULT_SHAPE.slots),
    "index_entries": ("maxIndexNum", DEFAULT_SHAPE.entries),
}
"""The attributes of StoreLayout that are sizes: the setting of broker.conf, and the default, of each."""
_LEAST = {"batch_queue_file_size": BATCH_UNIT_SIZE, "index_entries": 2}
"""With less than one unit, or only the unused entry 0, a broker would create file after file."""


class StoreFile:
    """One file of a mapped-file queue. `file_from_offset` comes from its name, `size` is its length.

    `entry_header` is the number of bytes before each record of a commit log file: 48 in a DLedger log.

    A value: nothing changes it, and files with the same path, offset and size are equal.
    """

    __slots__ = ("_path", "entry_header", "file_from_offset", "place", "size")

    def __init__(self, place: Place, file_from_offset: int, size: int, entry_header: int = 0) -> None:
        self.place = place
        self._path: Path | None = None
        self.file_from_offset = file_from_offset
        self.size = size
        self.entry_header = entry_header

    @property
    def path(self) -> Path:
        """Where it is. To open many files once each, use `place`."""
        if self._path is None:
            self._path = path_at(self.place)
        return self._path

    @property
    def end(self) -> int:
        """The offset after the file's last byte."""
        return self.file_from_offset + self.size

    @property
    def allocated_bytes(self) -> int:
        """How many of its bytes are outside its holes."""
        return allocated_bytes(self.place, self.size)

    @property
    def first_record(self) -> int:
        """The physical offset of the first record in a commit log file."""
        return self.file_from_offset + self.entry_header

    def resized(self, size: int) -> StoreFile:
        """The same file with another size."""
        return StoreFile(self.place, self.file_from_offset, size, self.entry_header)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoreFile):
            return NotImplemented
        return (self.path, self.file_from_offset, self.size) == (
            other.path, other.file_from_offset, other.size
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.path, self.file_from_offset, self.size))

    def __repr__(self) -> str:
        return f"StoreFile({self.path!r}, {self.file_from_offset}, {self.size})"


@dataclass(eq=False, slots=True)
class QueueFiles:
    """The files of one queue, in the order of their offsets. Nothing changes it.

    `place` is its folder and `strays` are all entries of it that are not in `files`. `unit_size` is 20, or
    46 in a batch queue; extension files have units of many sizes. `is_made`: the file is made from a database
    that says where the queue ends, so a missing unit does not end it.
    """

    topic: str
    queue_id: int
    place: Place
    files: tuple[StoreFile, ...]
    strays: tuple[Path, ...] = ()
    unit_size: int = UNIT_SIZE
    is_made: bool = False

    @property
    def folder(self) -> Path:
        """The path of its folder. To open many folders once each, use `place`."""
        return path_at(self.place)

    @property
    def key(self) -> tuple[str, int]:
        """Topic and queue id."""
        return self.topic, self.queue_id

    @property
    def is_batch(self) -> bool:
        """Whether it is a batch queue."""
        return self.unit_size == BATCH_UNIT_SIZE

    def with_files(self, files: tuple[StoreFile, ...]) -> QueueFiles:
        """The same queue with other files."""
        return QueueFiles(
            self.topic, self.queue_id, self.place, files, self.strays, self.unit_size, self.is_made
        )

    def relisted(self) -> QueueFiles:
        """The queue with its files as they are now: a broker may have added or deleted some."""
        files = Listing().mapped_files(self.place)[0]
        return self.with_files(tuple(StoreFile(*file) for file in files))


@dataclass(frozen=True, slots=True)
class IndexFilePath:
    """One index file; `name_time` is its name: local time of creation, yyyyMMddHHmmssSSS."""

    path: Path
    size: int
    name_time: str


Queues = dict[tuple[str, int], QueueFiles]


@dataclass(eq=False, repr=False)  # neither is used, and generating them takes time
class StoreLayout:
    """All files of a store, by kind. See the module for how they are found.

    `root` is None if single files or a folder of commit log files were given. Sizes are in bytes, except
    `index_slots` and `index_entries`; `origins` maps the name of each size to its source (flag,
    environment, file, detected or default). `unreadable` names folders and files that could not be listed,
    each once, with the reason; `links` are symbolic links. `ledger` is the DLedger log, whose data files are
    among those of the commit log; `commit_log_ignored` are other files of the log that a broker with a
    DLedger log never reads. `read_only` are parts in a form that is read but not written: `rocksdb` the
    consume queues in RocksDB, the only ones or second ones, `rocksdb_config` the folder of a configuration in
    RocksDB, `pop` the database of POP records and `rocksdb_messages` that of timer messages. The lists of
    strays hold entries of a folder that are not files of that part, whatever their type; `unexpected_entries`
    are other entries whose type does not match their name. `queue_logs` are the logs of a store of kind
    `tiered` or `compacted`, where each queue has its own. `options` are words of a command line that say
    where its parts are.
    """

    root: Path | None
    kind: LayoutKind
    commit_log: tuple[StoreFile, ...] = ()
    commit_log_folders: tuple[Path, ...] = ()
    commit_log_file_size: int = DEFAULT_COMMIT_LOG_FILE_SIZE
    commit_log_strays: tuple[Path, ...] = ()
    commit_log_ignored: tuple[StoreFile, ...] = ()
    ledger: Ledger | None = None
    consume_queues: Queues = field(default_factory=dict)
    consume_queue_file_size: int = DEFAULT_CONSUME_QUEUE_FILE_SIZE
    consume_queue_strays: tuple[Path, ...] = ()
    batch_queues: Queues = field(default_factory=dict)
    batch_queue_file_size: int = DEFAULT_BATCH_QUEUE_FILE_SIZE
    batch_queue_strays: tuple[Path, ...] = ()
    ext_queues: Queues = field(default_factory=dict)
    ext_queue_file_size: int = DEFAULT_EXT_QUEUE_FILE_SIZE
    ext_queue_strays: tuple[Path, ...] = ()
    index_files: tuple[IndexFilePath, ...] = ()
    index_strays: tuple[Path, ...] = ()
    index_slots: int = DEFAULT_SHAPE.slots
    index_entries: int = DEFAULT_SHAPE.entries
    checkpoint: Path | None = None
    abort: Path | None = None
    abort_bak: Path | None = None
    lock: Path | None = None
    epoch: Path | None = None
    timer_wheel: Path | None = None
    timer_check: Path | None = None
    timer_log: tuple[StoreFile, ...] = ()
    timer_log_strays: tuple[Path, ...] = ()
    compaction_checkpoint: Path | None = None
    config: dict[str, Path] = field(default_factory=dict)
    guard: Path | None = None
    unsupported: tuple[Unsupported, ...] = ()
    read_only: tuple[Unsupported, ...] = ()
    rocksdb: RocksdbQueues | None = None
    rocksdb_config: RocksdbConfig | None = None
    pop: Database | None = None
    rocksdb_messages: Database | None = None
    queue_logs: QueueLogs | None = None
    unexpected_entries: tuple[UnexpectedEntry, ...] = ()
    unreadable: tuple[tuple[Path, str], ...] = ()
    links: tuple[Path, ...] = ()
    origins: dict[str, Origin] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    broker_conf: BrokerConf | None = None
    options: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it has a log with its queues and index, and not only files of one of them."""
        return self.kind in ("store", "tiered", "compacted")

    @cached_property
    def copies(self) -> tuple[QueueLogs, ...]:
        """The copies of messages in the folders of a store: its tiered copy, and its compacted topics."""
        from rmqtool.storage.queue_logs.find import copies_in

        return () if self.kind != "store" or self.root is None else copies_in(self.root)

    @property
    def has_messages(self) -> bool:
        """Whether it has a log, and not only files of queues or of the index."""
        return self.is_whole or self.kind == "commitlog"

    @property
    def index_file_size(self) -> int:
        """Bytes of an index file of this store."""
        return Shape(self.index_slots, self.index_entries).size

    @property
    def log_bytes(self) -> int:
        """Bytes of the commit log's files; of queue logs only those of their segments."""
        return sum(self.written_end(file) - file.file_from_offset for file in self.commit_log)

    def written_end(self, file: StoreFile) -> int:
        """The offset after a commit log file; of queue logs that before the zeros up to the next segment."""
        if self.queue_logs is None:
            return file.end
        return file.file_from_offset + self.queue_logs.written(file.file_from_offset)

    @property
    def unit_queues(self) -> tuple[QueueFiles, ...]:
        """All consume queues, then all batch queues; a topic and queue id may have one of each."""
        return (*self.consume_queues.values(), *self.batch_queues.values())

    @property
    def place(self) -> Path:
        """The root; without a root, the first folder or file."""
        if self.root is not None:
            return self.root
        folders = (queue.folder for queue in self.unit_queues)
        files = (*folders, *(file.path for file in self.index_files))
        return next(iter((*self.commit_log_folders, *files)), Path())

    @property
    def writes_extensions(self) -> bool:
        """Whether a broker writes an extension unit per unit: says broker.conf, else the existing files."""
        conf = self.broker_conf
        if conf is not None and conf.text("enableConsumeQueueExt") is not None:
            return conf.flag("enableConsumeQueueExt")
        return any(queue.files for queue in self.ext_queues.values())

    @property
    def config_folder(self) -> Path | None:
        """The folder of the config files as a broker sees them; None without a root."""
        if self.rocksdb_config is not None:
            return self.rocksdb_config.root
        return None if self.root is None else self.root / "config"

    @property
    def commit_log_not_files(self) -> tuple[Path, ...]:
        """Strays with the name of a commit log file that are pipes, folders or other than plain files."""
        return tuple(stray for stray in self.commit_log_strays if offset_of_name(stray.name) is not None)

    @property
    def has_files_of_queues(self) -> bool:
        """Whether the store's queues can be read: False if they are in RocksDB and that cannot be read."""
        return not any(part.what == "consume queues" for part in self.unsupported)

    @property
    def has_queues_in_rocksdb(self) -> bool:
        """Whether the store's queues are in RocksDB, where they are read, but not written."""
        return any(part.what == "consume queues" for part in self.read_only)

    @property
    def has_index_in_rocksdb(self) -> bool:
        """Whether a broker writes an index to RocksDB, in addition to index files or without them."""
        return any(part.what in INDEX_IN_ROCKSDB for part in self.read_only)

    @property
    def may_index_in_rocksdb(self) -> bool:
        """Whether there is an index in RocksDB, or a database that cannot be read may hold one."""
        return any(part.what in (*INDEX_IN_ROCKSDB, SIDE_STORE) for part in self.not_written)

    @property
    def has_queues_in_files(self) -> bool:
        """Whether a broker reads the queues from files."""
        return not any(part.what == "consume queues" for part in self.not_written)

    @property
    def not_written(self) -> tuple[Unsupported, ...]:
        """The parts in a form that rmqtool does not write: those that it does not read, and those it does."""
        return (*self.unsupported, *self.read_only)

    @property
    def has_files_of_log(self) -> bool:
        """Whether it is known where the commit log is: False if there are several DLedger logs."""
        return not any(part.what == "commit log" for part in self.unsupported)

    def check_forms(self, *, log: bool = False, queues: bool = False, files: bool = False) -> None:
        """Check that the required parts, commit log or queues, can be read.

        Args:
            log: the commit log is required.
            queues: the queues are required.
            files: the required parts must be in files.

        Raises:
            UnsupportedStoreError: a required part is in RocksDB that cannot be read, or in one of several
                DLedger logs; with `files`, it is in RocksDB.
        """
        wanted = {"commit log": log, "consume queues": queues}
        for part in self.not_written if files else self.unsupported:
            if wanted.get(part.what):
                verb = "is" if part.what == "commit log" else "are"
                reason = f", and cannot be read: {part.reason}" if part.reason else ""
                raise UnsupportedStoreError(f"the {part.what} {verb} in {part.form}{reason}", path=part.path)

    def check_log_changes(self) -> None:
        """Check that rmqtool may change the log. Raises RefusedError if it is a DLedger log."""
        if self.ledger is not None:
            raise RefusedError(
                "the commit log is in DLedger: its replicas would differ if one of them were changed",
                path=self.ledger.folder,
                hint=f"{out_of_ledger(self)}; see rmqtool help recovery",
            )

    @property
    def lacks_log(self) -> bool:
        """Whether the commit log has no files although queues or an index have.

        False if the log could not be listed, because it may have files then.
        """
        has_content = any(queue.files for queue in self.unit_queues) or bool(self.index_files)
        is_empty = not self.commit_log and "commitlog" not in self.unreadable_parts
        return is_empty and self.has_files_of_log and self.kind == "store" and has_content

    def entry_header_of(self, folder: Path) -> int:
        """`StoreFile.entry_header` of the files in one of the folders of the commit log."""
        return ENTRY_HEADER_SIZE if self.ledger is not None and folder == self.ledger.data_folder else 0

    @cached_property
    def unreadable_parts(self) -> frozenset[str]:
        """The parts that could not be listed completely: `commitlog`, `index`, `checkpoint`, ...

        The names are those in the root; `commitlog` stands for all folders of the log. A file that such a
        part lacks may exist.
        """
        parts = {self.part_of(path) for path, _ in self.unreadable}
        return frozenset(part for part in parts if part is not None)

    def part_of(self, path: Path) -> str | None:
        """The part that a path belongs to, by its name in the root; None for the root and paths outside."""
        if any(path.is_relative_to(folder) for folder in self.commit_log_folders):
            return "commitlog"
        if self.ledger is not None and path.is_relative_to(self.ledger.folder):
            return "ledger"
        for part in (self.rocksdb, self.rocksdb_config):
            if part is not None and path.is_relative_to(part.root):
                return part.folder.name
        if self.root is not None and path.is_relative_to(self.root) and path != self.root:
            return path.relative_to(self.root).parts[0]
        return None

    def relative(self, path: Path) -> str:
        """`path` as rows and findings show it: relative to the store root, with `/` between names."""
        logs = self.queue_logs
        if logs is not None:
            if path.is_relative_to(logs.root):
                return logs.relative("/".join(path.parts[2:]))
            return path.relative_to(logs.folder).as_posix() if path.is_relative_to(logs.folder) else str(path)
        if self.root is not None and path.is_relative_to(self.root):
            return path.relative_to(self.root).as_posix()
        for part in (self.rocksdb, self.rocksdb_config):
            if part is not None and path.is_relative_to(part.root):
                return "/".join((part.folder.name, *path.parts[2:]))
        return path.as_posix() if self.kind == "store" else path.name


def detect(
    path: Path | str,
    *,
    commitlog_paths: Sequence[Path | str] = (),
    read_only_paths: Sequence[Path | str] = (),
    broker_conf: Path | str | BrokerConf | None = None,
    file_sizes: Mapping[str, int] | None = None,
    queues: bool = True,
) -> StoreLayout:
    """Find out what lies at `path`: a store root, a folder of commit log files, or a single file.

    Args:
        path: the store root (storePathRootDir), or one of its commit log, queue or index files;
            also a path from a URL.
        commitlog_paths: the folders of the commit log, if not `commitlog` in the root.
        read_only_paths: folders of readOnlyCommitLogStorePaths.
        broker_conf: the broker's configuration; folders and sizes come from it.
        file_sizes: sizes given by the user, by attribute name (`commit_log_file_size`, ...).
        queues: False leaves out the queues of a store root, of which there may be 100,000.

    Arguments take precedence over broker.conf, broker.conf over detected sizes, and these over defaults.

    Raises:
        NotAStoreError: nothing at `path` is a message store.
        UnreadableError: the folder or file, or broker.conf, cannot be read.
        InputError: a commit log folder that was named does not exist.
    """
    path = as_path(path)
    conf = _conf(broker_conf)
    listing = Listing()
    if listing.is_file(path):
        layout = _single_file(path)
    elif not listing.is_folder(path):
        raise nothing_at(path, listing)
    else:
        listing.entries(path, must_exist=True)
        if commitlog_paths or is_store(path, listing):
            folders = commit_log_folders(path, listing, conf, commitlog_paths, read_only_paths)
            layout = _store(path, listing, folders, conf, queues=queues)
        else:
            from rmqtool.storage.queue_logs.find import as_store, find_queue_logs

            logs = find_queue_logs(path, listing, conf)
            if logs is not None:
                return as_store(logs, conf)
            layout = _folder_of_files(path, listing)
        layout.unreadable = tuple(each for each in listing.unreadable if _may_be_part(layout, each[0]))
        layout.links = listing.links
    layout.broker_conf = conf
    layout.options = tuple(options_of(commitlog_paths, read_only_paths, conf))
    _set_sizes(layout, dict(file_sizes or {}), conf)
    return layout


def new_layout(root: Path, *, broker_conf: Path | str | BrokerConf | None = None) -> StoreLayout:
    """The layout of a store that does not exist yet: no files, and the sizes of broker.conf or the defaults.

    Raises:
        UnreadableError, InputError: broker.conf cannot be read.
        FormatError: the broker would ignore a size in broker.conf, and use another one than the store.
        UsageError: broker.conf has the commit log in another folder.
    """
    conf = _conf(broker_conf)
    check_new_log(root, conf)
    if conf is not None:
        conf.check_integers([setting for setting, _ in SIZES.values()])
    unsupported = find_unsupported(root, Listing(), conf)
    layout = StoreLayout(root, "store", broker_conf=conf, unsupported=unsupported)
    _set_sizes(layout, {}, conf)
    return layout


def _may_be_part(layout: StoreLayout, path: Path) -> bool:
    """Whether a path that cannot be read may be part of the store: in its root only known names are."""
    return (
        path.parent != layout.root
        or path.name in PARTS
        or path.name.startswith(LEDGER_PREFIX)
        or path in layout.commit_log_folders
    )


def _conf(given: Path | str | BrokerConf | None) -> BrokerConf | None:
    return read_broker_conf(as_path(given)) if isinstance(given, str | Path) else given


def _single_file(path: Path) -> StoreLayout:
    found = recognise(path)
    file = StoreFile(path, found.file_from_offset, found.size, found.entry_header)
    if found.kind == "commitlog":
        return StoreLayout(None, "commitlog", commit_log=(file,), commit_log_folders=(path.parent,))
    if found.kind == "index":
        return StoreLayout(None, "index", index_files=(IndexFilePath(path, found.size, path.name),))
    return _one_queue(found, path.parent, (file,))


def _folder_of_files(path: Path, listing: Listing) -> StoreLayout:
    """The layout of a folder that is not a store root: the folder of a commit log or of a queue."""
    entries, others = listing.mapped_files(path)
    kind = recognise(path_at(entries[0][0])) if entries else None
    if kind is None or kind.kind == "index":
        raise not_a_store(path, listing)
    files = tuple(StoreFile(*entry, kind.entry_header) for entry in entries)
    if kind.kind == "commitlog":
        layout = StoreLayout(None, "commitlog", commit_log=files, commit_log_folders=(path,))
        layout.commit_log_strays, layout.guard = _strays_and_guard(others, listing)
        return layout
    return _one_queue(kind, path, files, tuple(others))


def _one_queue(
    kind: SingleFile, folder: Path, files: tuple[StoreFile, ...], strays: tuple[Path, ...] = ()
) -> StoreLayout:
    is_batch = kind.kind != "consumequeue"
    queue = QueueFiles(
        kind.topic, kind.queue_id, folder, files, strays, BATCH_UNIT_SIZE if is_batch else UNIT_SIZE
    )
    if is_batch:
        return StoreLayout(None, "consumequeue", batch_queues={queue.key: queue})
    return StoreLayout(None, "consumequeue", consume_queues={queue.key: queue})


def _store(
    root: Path, listing: Listing, folders: tuple[Path, ...], conf: BrokerConf | None, *, queues: bool
) -> StoreLayout:
    names = listing.names(root)
    layout = StoreLayout(root, "store", commit_log_folders=folders, folders=listing.folders(root))
    layout.unsupported = find_unsupported(root, listing, conf)
    if layout.unsupported:
        from rmqtool.storage.rocksdb.parts import open_parts

        open_parts(layout, root)
    log: list[StoreFile] = []
    strays: list[Path] = []
    for folder in folders:
        files, others = listing.mapped_files(folder)
        log += (StoreFile(*entry) for entry in files)
        strays += others
    layout.ledger = find_ledger(root, listing, conf, folders_of_conf(root, conf, "storePathDLedgerCommitLog"))
    if layout.ledger is not None:
        log = _with_ledger(layout, layout.ledger, log, listing)
        strays += layout.ledger.data_strays
    layout.commit_log = tuple(sorted(log, key=lambda file: (file.file_from_offset, file.path)))
    layout.commit_log_strays, layout.guard = _strays_and_guard(strays, listing)
    if queues:
        _list_queues(layout, root, listing)
    _index(layout, root / "index", listing)
    layout.unexpected_entries = find_unexpected_entries(root, listing)
    # The broker asks only whether these are there.
    for attribute, name in (("checkpoint", "checkpoint"), ("abort", "abort"), ("abort_bak", "abort.bak"),
                            ("lock", "lock")):  # fmt: skip
        if name in names:
            setattr(layout, attribute, root / name)
    layout.epoch = _plain_file(root, "epochFileCheckpoint", listing)
    layout.timer_wheel = _plain_file(root, "timerwheel", listing)
    timer_log, timer_strays = listing.mapped_files(root / "timerlog")
    layout.timer_log = tuple(StoreFile(*entry) for entry in timer_log)
    layout.timer_log_strays = tuple(timer_strays)
    layout.config = {entry.name: entry for entry, _ in listing.files(root / "config")}
    if layout.rocksdb_config is not None:
        made = layout.rocksdb_config
        for name in (*made.documents, *made.ignored):
            for each in (name, f"{name}.bak"):
                layout.config.pop(each, None)
        layout.config |= {name: made.root / name for name in made.documents}
    layout.timer_check = layout.config.get("timercheck")
    layout.compaction_checkpoint = _plain_file(root / "compaction", "position-checkpoint", listing)
    return layout


def _with_ledger(
    layout: StoreLayout, ledger: Ledger, log: list[StoreFile], listing: Listing
) -> list[StoreFile]:
    """The files of the log: those before the DLedger log, and its own.

    Source: DLedgerCommitLog#getData, dividedCommitlogOffset; spec 06 6.4.
    """
    data = [StoreFile(*entry, ENTRY_HEADER_SIZE) for entry in ledger.data]
    start = min((file.file_from_offset for file in data), default=None)
    if listing.is_folder(ledger.data_folder):
        layout.commit_log_folders += (ledger.data_folder,)
    if start is None:
        return log
    layout.commit_log_ignored = tuple(file for file in log if file.file_from_offset >= start)
    return [file for file in log if file.file_from_offset < start] + data


def rocksdb_queue_files(queues: RocksdbQueues, queue: RocksdbQueue) -> QueueFiles:
    """A queue in RocksDB as the one file of units that its storage makes of it."""
    folder = queues.path(queue)
    file = StoreFile(folder / queue.file, queue.first * UNIT_SIZE, queue.size)
    return QueueFiles(queue.topic, queue.queue_id, folder, (file,), is_made=True)


def _list_queues(layout: StoreLayout, root: Path, listing: Listing) -> None:
    if layout.has_queues_in_rocksdb:
        assert layout.rocksdb is not None
        for key, queue in layout.rocksdb.queues.items():
            layout.consume_queues[key] = rocksdb_queue_files(layout.rocksdb, queue)
    elif layout.has_files_of_queues:
        layout.consume_queues, strays = _queues(root / "consumequeue", listing)
        twice = any(part.what == "second consume queues" for part in layout.not_written)
        layout.consume_queue_strays = tuple(
            stray for stray in strays if not (twice and is_rocksdb_file(stray.name))
        )
    layout.batch_queues, layout.batch_queue_strays = _queues(
        root / "batchconsumequeue", listing, BATCH_UNIT_SIZE
    )
    layout.ext_queues, layout.ext_queue_strays = _queues(root / "consumequeue_ext", listing)


def _plain_file(folder: Path, name: str, listing: Listing) -> Path | None:
    return folder / name if listing.has_file(folder, name) else None


def _strays_and_guard(others: Sequence[Path], listing: Listing) -> tuple[tuple[Path, ...], Path | None]:
    """All other entries next to the log's files except guard files, and the first guard file."""
    guards = [entry for entry in others if entry.name == GUARD_NAME and listing.is_file(entry)]
    return tuple(entry for entry in others if entry not in guards), guards[0] if guards else None


def _queues(folder: Path, listing: Listing, unit_size: int = UNIT_SIZE) -> tuple[Queues, tuple[Path, ...]]:
    """The queues under `folder` (<topic>/<queue id>/<files>), and all other entries.

    Source: DefaultMessageStore#loadConsumeQueue, ConsumeQueueStore#loadConsumeQueues: they skip a queue
    folder whose name is not a number, and a plain file where a topic folder is expected.
    """
    queues: Queues = {}
    topics, strays = listing.folders_and_others(folder)
    for topic, place in topics:
        ids, others = listing.folders_and_others(place)
        strays += others
        for name, entry in ids:
            queue_id = queue_id_of_name(name)
            if queue_id is None:
                strays.append(path_at(entry))
                continue
            files, extra = listing.mapped_files(entry)
            store_files = tuple(StoreFile(*file) for file in files)
            queues[topic, queue_id] = QueueFiles(topic, queue_id, entry, store_files, tuple(extra), unit_size)
    return dict(sorted(queues.items())), tuple(strays)


def _index(layout: StoreLayout, folder: Path, listing: Listing) -> None:
    plain = {path: size for path, size in listing.files(folder) if is_index_name(path.name)}
    layout.index_files = tuple(IndexFilePath(path, size, path.name) for path, size in plain.items())
    entries = (folder / name for name, _ in listing.entries(folder))
    layout.index_strays = tuple(entry for entry in entries if entry not in plain)


def _set_sizes(layout: StoreLayout, given: Mapping[str, int], conf: BrokerConf | None) -> None:
    """Set the six sizes and their origins; precedence: flag > file > detected > default."""
    detected = _detected_sizes(layout, given, conf)
    for attribute, (setting, default) in SIZES.items():
        from_conf = conf.integer(setting) if conf is not None else None
        if from_conf is not None and attribute == "consume_queue_file_size":
            from_conf = file_size(from_conf)
        least, shown = _LEAST.get(attribute, 1), detected.get(attribute)
        shown = shown if shown is not None and shown >= least else None
        sources: tuple[tuple[Origin, int | None], ...] = (
            ("flag", given.get(attribute)), ("file", from_conf), ("detected", shown),
            ("default", default),
        )  # fmt: skip
        origin, value = next((origin, value) for origin, value in sources if value is not None)
        if value < least:
            few = "positive" if least == 1 else f"at least {least}"
            raise InputError(f"{setting} is {value}, it must be {few}", path=conf.path if conf else None)
        setattr(layout, attribute, value)
        layout.origins[attribute] = origin


def _detected_sizes(
    layout: StoreLayout, given: Mapping[str, int], conf: BrokerConf | None
) -> dict[str, int | None]:
    def of(queues: Queues, unit: int) -> int | None:
        spans = ([(file.file_from_offset, file.size) for file in queue.files] for queue in queues.values())
        return common_file_size(spans, unit)

    log = [(file.file_from_offset, file.size) for file in layout.commit_log]
    hints: list[Shape] = []
    slots = given.get("index_slots") or (conf.integer("maxHashSlotNum") if conf is not None else None)
    entries = given.get("index_entries") or (conf.integer("maxIndexNum") if conf is not None else None)
    if slots and entries:
        hints.append(Shape(slots, entries))
    files = [(file.path, file.size) for file in layout.index_files]
    shape = index_shape(files, hints) or _usual_shape(layout)
    return {
        "commit_log_file_size": common_file_size([log]),
        "consume_queue_file_size": of(
            {} if layout.has_queues_in_rocksdb else layout.consume_queues, UNIT_SIZE
        ),
        "batch_queue_file_size": of(layout.batch_queues, BATCH_UNIT_SIZE),
        "ext_queue_file_size": of(layout.ext_queues, 1),
        "index_slots": shape.slots if shape else None,
        "index_entries": shape.entries if shape else None,
    }


def _usual_shape(layout: StoreLayout) -> Shape | None:
    """The shape of index files without entries: the default ratio of slots to entries, if a size fits it."""
    shapes = (usual_shape(file.size) for file in layout.index_files)
    return next((shape for shape in shapes if shape is not None), None)


def common_file_size(queues: Iterable[Sequence[tuple[int, int]]], unit: int = 1) -> int | None:
    """The file size of a family of mapped-file queues; None if the files do not show it.

    Args:
        queues: per queue the (file_from_offset, size) of its files in order.
        unit: the size is a multiple of this, bytes.

    Every file's size and every step from one name to the next is a vote. If votes are equal, a size that
    divides all names wins, then the one that more files have, then the larger one.
    """
    votes: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    names: set[int] = set()
    for files in queues:
        for offset, size in files:
            names.add(offset)
            sizes[size] += 1
        for (left, _), (right, _) in pairwise(files):
            votes[right - left] += 1
    votes.update(sizes)
    candidates = [size for size in votes if size > 0 and size % unit == 0]
    if not candidates:
        return None
    # Only the sizes with most votes are compared with the names, so thousands of queues cost one pass.
    best = max(votes[size] for size in candidates)
    return max(
        (size for size in candidates if votes[size] == best),
        key=lambda size: (all(name % size == 0 for name in names), sizes[size], size),
    )


def can_be_folder(name: str) -> bool:
    """Whether a topic can have a queue: its folder has the topic's name and must lie in the folder of queues.

    A record may hold any topic. No queue of `..`, `.`, `a/b` or a name that is too long is ever read or
    written: its path would lead elsewhere, or to nothing.

    Source: StorePathConfigHelper#getStorePathConsumeQueue, ConsumeQueue's constructor; spec 01 section 1.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    return len(java_utf8_encode(name)) <= NAME_BYTES_MAX
