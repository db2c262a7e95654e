"""State that the passes of a verification share: the store, its bounds, results of earlier passes."""

from __future__ import annotations

import errno
import resource
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.errors import RmqtoolError
from rmqtool.findings import Progress
from rmqtool.formats import checkpoint as checkpoint_format
from rmqtool.formats import config_json
from rmqtool.lazy_dataclass import dataclass
from rmqtool.queue.extension import Extension
from rmqtool.read.lost_config import lacks_topic, topics_with_queues
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.open_files import head_of
from rmqtool.storage.ranges import contains, overlaps

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmqtool.check.verify.distributed import Executor
    from rmqtool.log.frames import Frames
    from rmqtool.queue.units import UnitReader
    from rmqtool.read.store import Store
    from rmqtool.storage.layout import StoreFile
    from rmqtool.storage.rocksdb.queues import RocksdbQueues
    from rmqtool.storage.source import ByteSource, RateLimiter

    Observe = Callable[[StoreFile, Frames], None]

CONFIG_LIMIT = 64 << 20
"""A config file of more bytes is not read: brokers write a few megabytes at most."""

_FILES_MAX = 4096
_FILES_MIN = 4
_OTHER_FILES = 100  # what the store and the index keep open, one log file per thread, standard streams


def reason_of(error: Exception) -> str:
    """Return the text of an I/O error, without the path: the finding names it."""
    if isinstance(error, RmqtoolError):
        return error.message
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@dataclass(frozen=True)
class Bounds:
    """How much of the commit log is checked; everything by default.

    `since_ms` leaves out files whose records are all older; `limit_bytes` takes only the newest
    bytes of the log, counted back from its end to the record that holds the first of them; `sample`
    of (k, n) takes every n-th file from the k-th on.
    """

    since_ms: int | None = None
    limit_bytes: int | None = None
    sample: tuple[int, int] | None = None

    @property
    def bounded(self) -> bool:
        """Whether a part of the log may be left out."""
        return self.since_ms is not None or self.limit_bytes is not None or self.sample is not None


@dataclass
class Report:
    """The summary of a verification: its extent in counts. Complete when the findings are exhausted.

    `left_out` are passes that were requested but need a whole store.
    """

    passes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    files: int = 0
    records: int = 0
    fillers: dict[str, int] = field(default_factory=dict)
    """Records by topic that have the tag of fillers of `recover`, as their tags code says."""
    bytes: int = 0
    units: int = 0
    index_entries: int = 0
    rocksdb_index_entries: int = 0
    """How many of the index entries are in RocksDB."""
    timer_entries: int = 0
    """Units of the timer log, and timer messages in RocksDB."""
    keys: int = 0
    """Keys of the records that the broker that wrote them indexes: tags only since 5.4."""
    copied_records: int = 0
    """Records of a tiered copy, and of the logs of compacted topics, in the store."""
    compacted_records: int = 0
    """Those of them that are of compacted topics, and were compared with the log."""
    compacted_differ: bool = False
    """Whether anything is wrong with these: damage, or that they do not agree with the log."""
    seconds: float = 0.0
    log_end: int | None = None
    live: bool = False
    vanished: set[str] = field(default_factory=set)
    """Files that were deleted while they were checked, as a broker does with what has expired."""


@dataclass
class Context:
    """One verification under way.

    `bad` are ranges of the log that hold no sound record, `covered` ranges that were walked, both
    half-open physical offsets in ascending order. `log_end` is the end of the newest record, -1
    before it is known; of a log of nothing but zeros its start. `zombies_from` is where records of
    an older log begin, when there are any. `live` is whether a broker held the lock when the verification
    began. `spread` does the reading elsewhere than in threads of this process. `observe` gets the records of
    every window while they are in memory, from any thread.
    """

    store: Store
    bounds: Bounds
    report: Report
    jobs: int
    keep_cache: bool
    limiter: RateLimiter | None
    progress: Progress
    live: bool
    bad: list[tuple[int, int]] = field(default_factory=list)
    covered: list[tuple[int, int]] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)
    queue_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    log_start: int = 0
    log_end: int = -1
    last_store_timestamp: int = 0
    checkpoint: checkpoint_format.Checkpoint | None = None
    zombies_from: int | None = None
    spread: Executor | None = None
    observe: Observe | None = None

    @property
    def layout(self) -> StoreLayout:
        """The store's layout."""
        return self.store.layout

    @property
    def after_crash(self) -> bool:
        """Whether the next start is an abnormal one: abort is there and no broker is running."""
        return self.layout.abort is not None and not self.live

    def extension(self, key: tuple[str, int], reader: UnitReader) -> Extension:
        """The extension files of a queue, which may have none; read by `reader`."""
        queue = self.layout.ext_queues.get(key)
        return Extension(() if queue is None else queue.files, reader.read_bytes)

    def name(self, path: Path) -> str:
        """`path` as findings name it."""
        return self.layout.relative(path)

    def open(self, path: Path) -> ByteSource:
        """A source over a file of the store, read the way this verification is set up.

        Raises:
            FileNotFoundError: the file is gone since the folder was listed; the report says so.
            OSError: it cannot be opened.
        """
        from rmqtool.storage.source import open_source

        try:
            return open_source(path, keep_cache=self.keep_cache, limiter=self.limiter)
        except OSError as error:
            if not self.is_gone(path, error):
                raise
            raise FileNotFoundError(error.errno, error.strerror, str(path)) from error

    def is_gone(self, path: Path, error: OSError) -> bool:
        """Whether an error says that a file was deleted under the reader; the report then names it."""
        gone = error.errno in (errno.ENOENT, errno.ESTALE)
        if gone:
            self.report.vanished.add(self.name(path))
        return gone

    def has_vanished(self, offset: int) -> bool:
        """Whether the log file that held a physical offset was deleted since the folder was listed."""
        file = self.store.commit_log.file_of(offset)
        if file is None or file.path.exists():
            return False
        self.report.vanished.add(self.name(file.path))
        return True

    def in_bad(self, start: int, stop: int) -> bool:
        """Whether [start, stop) of the log touches a damaged range."""
        return overlaps(self.bad, start, stop)

    def all_bad(self, start: int, stop: int) -> bool:
        """Whether [start, stop) of the log lies in a damaged range."""
        return contains(self.bad, start, stop)

    def is_covered(self, offset: int) -> bool:
        """Whether the record at `offset` lies in a range that was walked."""
        return overlaps(self.covered, offset, offset + 1)

    @cached_property
    def topic_configs(self) -> dict[str, config_json.TopicConfig] | None:
        """The topics of topics.json or its .bak by name; None where neither can be read."""
        config = self.layout.config
        texts = (
            head_of(config[name], CONFIG_LIMIT) if name in config else None
            for name in ("topics.json", "topics.json.bak")
        )
        loaded = config_json.load_with_bak("topics.json", *texts)
        return config_json.topics(loaded.document) if loaded.document else None

    @property
    def compacted_topics(self) -> set[str]:
        """The topics whose dispatched messages the compaction log must have.

        Empty while a broker runs, and if broker.conf says enableCompaction=false. A topic is compacted from
        its creation on: cleanup.policy cannot be changed.
        """
        conf = self.layout.broker_conf
        if self.live or (conf is not None and not conf.flag("enableCompaction", default=True)):
            return set()
        return {name for name, config in (self.topic_configs or {}).items() if config.is_compacted}

    def lacks_topic(self, topic: str) -> bool:
        """Whether topics.json can be read and does not know the topic; see `lost_config.lacks_topic`."""
        return self.topic_configs is not None and lacks_topic(self.layout, self.topic_configs, topic)

    def is_deleted(self, topic: str) -> bool:
        """Whether a topic without queues is missing in topics.json, as after its deletion."""
        return self.lacks_topic(topic) and topic not in self._with_queues

    @cached_property
    def _with_queues(self) -> set[str]:
        return topics_with_queues(self.layout)

    def noted_end(self, key: tuple[str, int]) -> int:
        """Where a queue in RocksDB ends, also without units; 0 if it is not there, or not only there."""
        queues = self.layout.rocksdb if self.layout.has_queues_in_rocksdb else None
        return 0 if queues is None or key not in queues.queues else queues.queues[key].end

    @cached_property
    def files_per_reader(self) -> int:
        """How many queue files one thread may keep open, so that all threads stay within the limit."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            limit = _FILES_MAX
        return max((min(limit, _FILES_MAX) - _OTHER_FILES) // (self.jobs + 2), _FILES_MIN)

    @cached_property
    def end_offset(self) -> int:
        """The log's end by its tail alone. In a live store it moves, and this is where it was."""
        return self.store.end_offset()

    @cached_property
    def dispatch_from(self) -> int:
        """The next start, or the running broker, dispatches records from this offset on.

        After a clean stop dispatch continues after the newest unit of all queues, and 5.x leaves
        out the first record there unless it begins a file (spec 02 section 2, point 3). After a
        crash everything from the start file on is dispatched again. With a DLedger log dispatch always
        continues after the newest unit (DLedgerCommitLog#recoverAbnormally).
        """
        if self.layout.rocksdb is not None and self.layout.has_queues_in_rocksdb:
            return self.dispatch_from_of(self.layout.rocksdb)
        if self.after_crash and self.layout.ledger is None:
            return self.recovery_start
        end = self.store.dispatched_end()
        starts_file = any(file.file_from_offset == end for file in self.layout.commit_log)
        skips = self.store.profile.skips_dispatched and end >= 0 and not starts_file and not self.live
        return end + 1 if skips else end

    def dispatch_from_of(self, queues: RocksdbQueues) -> int:
        """As `dispatch_from`, for queues in RocksDB: a start begins at the end that they have noted.

        After a clean stop that means records after it, not one that begins there; after a crash it means
        all records from the file that holds it. 5.4 goes at most ten files back.

        Source: RocksDBConsumeQueueStore#recover, CommitLog#recoverNormally, #recoverAbnormally; spec 06 2.6.
        """
        noted = queues.checkpoint or 0
        if self.live:
            return noted
        most = self.store.profile.start_files_max
        files = self.layout.commit_log if most is None else self.layout.commit_log[-most:]
        starts = [file.file_from_offset for file in files]
        if not starts:
            return noted
        if self.layout.abort is not None:
            return next((start for start in reversed(starts) if start <= noted), starts[0])
        return max(noted + 1, starts[0])

    @cached_property
    def recovery_start(self) -> int:
        """Where an abnormal start begins to dispatch: offset of the start file (spec 02 3.1)."""
        limit = self.checkpoint.min_timestamp if self.checkpoint is not None else 0
        files = self.layout.commit_log
        most = self.store.profile.start_files_max
        tested = files if most is None else files[-most:]
        for file in reversed(tested):
            first = self.store.find(file.first_record)
            if first is not None and 0 < first.message.store_timestamp <= limit:
                return file.file_from_offset
        return tested[0].file_from_offset if tested else 0
