"""One pass over the log as it will be: what queues and index should hold, compared with what they do hold.

The checks are those of `verify`, without what makes them lenient towards a store at rest: nothing is
left to the next start of a broker, for after a repair there is nothing that it would dispatch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqtool.check.verify.context import Bounds, Context, Report
from rmqtool.check.verify.files import check_files
from rmqtool.check.verify.index import IndexCheck, IndexPart
from rmqtool.check.verify.log import LogCheck
from rmqtool.check.verify.queues import Columns, QueueCheck
from rmqtool.check.verify.rocksdb import check_rocksdb
from rmqtool.check.verify.spans import QUEUES_MAX, Key
from rmqtool.check.verify.state import read_checkpoint
from rmqtool.check.verify.unit_check import UnitCheck
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.formats.message import MULTI_TAGS
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.dispatch import KIND_TAG, Dispatch, dispatch_columns
from rmqtool.log.events import PROPERTIES_UNSOUND
from rmqtool.log.scan_cache import ScanCache
from rmqtool.problems import Finding, leaves_ledger
from rmqtool.read.store import Store
from rmqtool.repair.rebuild.due_times import SurveyedDues
from rmqtool.repair.rebuild.extension_task import Bits
from rmqtool.repair.rebuild.header_corrections import MisroutedRecord, misrouted_records
from rmqtool.repair.rebuild.kept import Kept
from rmqtool.repair.rebuild.log_view import LogView
from rmqtool.storage.counted_queues import topics_of_batches
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.unsupported import INDEX_IN_ROCKSDB, SIDE_FOLDER
from rmqtool.write.options import WriteOptions

if TYPE_CHECKING:
    from rmqtool.log.events import LogGap
    from rmqtool.log.frames import Frames
    from rmqtool.read.delay_levels import DelayLevels
    from rmqtool.storage.layout import StoreFile, StoreLayout
    from rmqtool.storage.rocksdb.queues import RocksdbQueues
    from rmqtool.storage.source import ByteSource, RateLimiter

_NEVER = (1 << 63) - 1
_DATABASES = ("consumequeue", SIDE_FOLDER)
_TIMES_MAX = 1 << 20
WINDOW = 16 << 20  # that of salvage, whose batches are taken where a file is sound
WHOLE_QUEUE = -1
"""Instead of a file's number: the newest record of a batch queue."""


class _LaidOver(Context):
    """A verification that sees the log as it will be."""

    view: LogView

    def dispatch_from_of(self, queues: RocksdbQueues) -> int:
        """See Context."""
        return _NEVER

    def open(self, path: Path) -> ByteSource:
        """See Context."""
        found = self.view.open(path, keep_cache=self.keep_cache, limiter=self.limiter)
        return super().open(path) if found is None else found


class Window(NamedTuple):
    """A part of one log file: its records start in [start, last]; how many keys they have."""

    path: Path
    file_from_offset: int
    start: int
    last: int
    keys: int
    last_key: int
    """Physical offset of the last record that has a key; -1 without."""
    entry_header: int
    """`StoreFile.entry_header`."""


class SurveyedQueues(QueueCheck):
    """The log side of the pass `queues`, for light queues that are gone too.

    `times` are store timestamps, ms, of the newest record by (queue, number of the queue file);
    `light` are the light queues, `multi_tags` the topics whose messages have several tags, `kept` is what
    dispatch needs of the records, `bits` the extension units that have bits of a filter, `dues` what is found
    of delayed messages.
    """

    def __init__(self, context: Context, options: WriteOptions, batch_topics: Collection[str]) -> None:
        super().__init__(context)
        self.batch_topics |= set(batch_topics)
        self._options = options
        self._any_light = replace(options, multi_dispatch=True)
        self._per_file = options.consume_queue_file_size // UNIT_SIZE
        self._times_lock = Lock()
        self.times: dict[tuple[Key, int], int] = {}
        self.light: set[Key] = set()
        self.multi_tags: set[str] = set()
        self.kept = Kept()
        self.bits = Bits()
        self.dues = SurveyedDues(context.layout)

    def seen(self, keys: Sequence[Key], starts: np.ndarray, rows: Columns, of_batches: np.ndarray) -> None:
        """See QueueCheck."""
        counts = np.diff(starts, append=len(rows.queue))
        with_tags = rows.sys_flag[starts + counts - 1] & MULTI_TAGS
        self.multi_tags.update(keys[number][0] for number in np.flatnonzero(with_tags).tolist())
        files = rows.queue_offset // self._per_file
        files[np.repeat(of_batches, counts)] = WHOLE_QUEUE
        ends = (files[1:] != files[:-1]) | (rows.queue[1:] != rows.queue[:-1])
        last = np.append(np.flatnonzero(ends), len(files) - 1)
        queues = np.repeat(np.arange(len(keys)), counts)[last]
        newest = zip(queues.tolist(), files[last].tolist(), rows.store_timestamp[last].tolist(), strict=True)
        with self._times_lock:
            for queue, number, time_ms in newest:
                if len(self.times) < _TIMES_MAX:
                    place = keys[queue], number
                    self.times[place] = max(time_ms, self.times.get(place, 0))

    def unite_topics(self) -> None:
        """Make all queues of a topic batch queues where one is: a queue may hold single messages only."""
        batch = {key[0] for key, span in self.spans.queues.items() if span.is_batch}
        for (topic, _), span in self.spans.queues.items():
            span.is_batch |= topic in batch

    def extended(self, key: Key, rows: Columns, address: np.ndarray, size: np.ndarray) -> None:
        """See QueueCheck."""
        self.bits.add(key, rows.physical_offset, rows.queue_offset, address, size)

    def delayed(self, key: Key, rows: Columns, delays_ms: np.ndarray, kinds: np.ndarray) -> None:
        """See QueueCheck."""
        with self.reader() as reader:
            self.dues.add(key, rows, delays_ms, kinds, reader)

    def is_light(self, topic: bytes, key: Key) -> bool:
        """See QueueCheck: by what the records say, for the queue may be gone."""
        wanted = self._options.multi_dispatch or key in self.context.layout.consume_queues
        found = wanted and bool(key[0]) and "/" not in key[0] and self._any_light.may_be_light(topic)
        if found and len(self.light) < QUEUES_MAX:
            self.light.add(key)
        return found


class SurveyedIndex(IndexCheck):
    """The pass `index`, with the number of keys of every part of the log."""

    def __init__(self, context: Context, options: WriteOptions) -> None:
        super().__init__(context)
        self._tags = options.profile.indexes_tags
        self._windows_lock = Lock()
        self._windows: list[Window] = []

    def _database(self) -> Database | None:
        """See IndexCheck: one that is lost, or cannot be opened, counts too."""
        parts = (part for part in self.context.layout.unsupported if part.what in INDEX_IN_ROCKSDB)
        part = next(parts, None)
        return super()._database() if part is None else Database(part.path)

    def part(self, frames: Frames, dispatch: Dispatch) -> IndexPart:
        """See IndexCheck."""
        if (dispatch.flags & PROPERTIES_UNSOUND).any():
            dispatch = dispatch_columns(frames)  # with the keys that verify leaves out, and dispatch does not
        keys = dispatch.keys if self._tags else dispatch.keys[dispatch.keys["kind"] != KIND_TAG]
        offsets = frames.rows["physical_offset"]
        last_key = int(offsets[keys["row"][-1]]) if len(keys) else -1
        file = self.context.store.commit_log.file_of(int(offsets[0]))
        assert file is not None
        window = Window(
            file.path, file.file_from_offset, int(offsets[0]), int(offsets[-1]), len(keys), last_key,
            file.entry_header,
        )  # fmt: skip
        with self._windows_lock:
            self._windows.append(window)
        return super().part(frames, dispatch) if self.files else IndexPart(len(keys))

    @property
    def windows(self) -> list[Window]:
        """All parts, in the order of the log."""
        return sorted(self._windows, key=lambda window: window.start)

    @property
    def first_missing(self) -> int:
        """Physical offset of the first record whose keys no usable file covers; -1 for none."""
        found = [miss.start for miss in (self._sums["IX08"], self._sums["IX10"]) if miss.count]
        return min(found, default=-1)


class SurveyedLog(LogCheck):
    """The walk, without the files that salvage found sound: what it has seen of them is seen again."""

    window = WINDOW

    def __init__(
        self, context: _LaidOver, queues: SurveyedQueues, index: SurveyedIndex | None, sound: ScanCache
    ) -> None:
        super().__init__(context, queues, index)
        self._view = context.view
        self._kept = queues.kept
        self._sound = sound

    def events(
        self, source: ByteSource, file: StoreFile, start: int, stop: int
    ) -> Iterator[tuple[Frames, Dispatch] | LogGap]:
        """See LogCheck."""
        found = None
        if (start, stop) == (0, file.size) and not self._view.changes(file.path):
            found = self._sound.find(file.path, file.size)
        if found is not None:
            self._kept.take(found.batches)
            yield from found.events()
            return
        for event in super().events(source, file, start, stop):
            if isinstance(event, tuple):
                self._kept.add(*event)
            yield event


@dataclass(frozen=True)
class Survey:
    """The result of the pass.

    Attributes:
        findings: those on queues and index.
        damage: what is wrong with a DLedger log, which no repair changes; empty of other logs.
        log_errors: the damaged places of another log.
        unreadable: the files of the log that could not be read in full; empty if all could.
        dispatched_from: a start of a broker, as the store stands, dispatches records from this physical
            offset on; None after a clean stop, when it dispatches none of these.
        misrouted: records that name another place among the queues than their own.
        delay_levels: the delays of delayed messages.
    """

    view: LogView
    store: Store
    options: WriteOptions
    context: Context
    queues: SurveyedQueues
    units: UnitCheck
    index: SurveyedIndex | None
    findings: list[Finding]
    damage: tuple[Finding, ...]
    log_errors: int
    unreadable: str
    dispatched_from: int | None
    misrouted: tuple[MisroutedRecord, ...]
    delay_levels: DelayLevels

    @property
    def end(self) -> int:
        """The physical offset where dispatch ends: the log's end, or an older log's start; 0 without any."""
        end = max(self.context.log_end, 0)
        zombies = self.context.zombies_from
        return end if zombies is None else min(end, zombies)

    def waits(self, reason: str) -> str:
        """Why a part stays wrong until the log is repaired, as a DLedger log never is."""
        if self.view.layout.ledger is not None:
            return f"{reason}, and rmqtool never changes a DLedger log"
        return f"{reason}: repair that first (rmqtool recover)"

    @cached_property
    def batch_topics(self) -> frozenset[str]:
        """The topics whose queues are batch queues."""
        known = {key[0] for key, span in self.queues.spans.queues.items() if span.is_batch}
        return topics_of_batches(self.view.layout) | known


def _is_of_queues_or_index(item: Finding) -> bool:
    area = item.problem.code[:2]
    return area in ("CQ", "IX") or (area == "RD" and item.path.partition("/")[0] in _DATABASES)


def _is_of_ledger(item: Finding, layout: StoreLayout) -> bool:
    """Whether a finding is an error of a DLedger log, or anything of it that another log is repaired for."""
    problem = item.problem
    is_wrong = problem.severity == "error" or leaves_ledger(problem)
    return layout.ledger is not None and problem.code.startswith(("CL", "DL")) and is_wrong


def _of_log(items: Iterable[Finding], layout: StoreLayout) -> tuple[list[Finding], int]:
    """The findings of the walk that count here, and the number of errors of a log that is not in DLedger."""
    found = list(items)
    errors = [each for each in found if each.problem.code[:2] == "CL" and each.problem.severity == "error"]
    return [item for item in found if _is_kept(item, layout)], 0 if layout.ledger else len(errors)


def _is_kept(item: Finding, layout: StoreLayout) -> bool:
    """Whether a finding of the walk counts: elsewhere than in DLedger, salvage has found the others."""
    return item.problem.code == "CL12" or _is_of_ledger(item, layout)


def survey(
    view: LogView,
    options: WriteOptions,
    *,
    batch_topics: Collection[str] = (),
    index: bool = True,
    crashed: bool = False,
    sound: ScanCache | None = None,
    jobs: int = 0,
    keep_cache: bool = False,
    limiter: RateLimiter | None = None,
    progress: Callable[[int], None] | None = None,
) -> Survey:
    """Walk the log of `view` and compare queues and index with it; nothing is changed.

    Args:
        view: the log.
        options: how queues and index are written.
        batch_topics: topics whose queues are batch queues, beyond those that have such a folder.
        index: whether the index is looked at.
        crashed: whether a crash has left the store, or a repair that was killed after it.
        sound: files that were walked already.
        jobs: threads; 0 for one per processor.
        keep_cache: leave what was read in the page cache.
        limiter: bounds the rate of reading.
        progress: called with bytes of the log as they are read, from any thread.
    """
    store = Store(view.layout)
    context = _LaidOver(
        store, Bounds(), Report(), jobs or os.cpu_count() or 1, keep_cache, limiter,
        progress or (lambda size: None), live=False,
    )  # fmt: skip
    context.view = view
    context.dispatch_from = _NEVER
    context.log_start = view.layout.commit_log[0].file_from_offset if view.layout.commit_log else 0
    queues = SurveyedQueues(context, options, batch_topics)
    of_index = SurveyedIndex(context, options) if index else None
    found = list(check_files(view.layout, store.profile))
    try:
        if of_index is not None:
            found += of_index.prepare()
        if of_index is not None and of_index.rocksdb is not None:
            sound = None  # the names of its entries are in the records
        check = SurveyedLog(context, queues, of_index, sound or ScanCache())
        of_log, log_errors = _of_log(check.run(), view.layout)
        queues.unite_topics()
        units = UnitCheck(context, queues)
        found += units.run()
        found += check_rocksdb(context, queues.spans.queues)
        with units.reader() as reader:
            misrouted = tuple(misrouted_records(context, queues.spans.queues, units.units, reader))
        if of_index is not None:
            found += of_index.finish()
        found += read_checkpoint(context)
        dispatched_from = context.recovery_start if crashed else None
    finally:
        if of_index is not None:
            of_index.close()
        store.close()
    damage = tuple(item for item in (*found, *of_log) if _is_of_ledger(item, view.layout))
    found = [item for item in found if _is_of_queues_or_index(item)]
    # A file that the plan makes longer is shorter than the view says.
    failed = (file.path for file in view.layout.commit_log
              if file.path in store.failures and not view.changes(file.path))  # fmt: skip
    unread = (item.path for item in of_log if item.problem.code == "CL12")
    unreadable = ", ".join(dict.fromkeys([*unread, *map(context.name, failed)]))
    delays = queues.dues.delays.levels(view.layout.broker_conf)
    options = replace(options, delays_ms=delays.delays_ms)
    return Survey(
        view, store, options, context, queues, units, of_index, found, damage, log_errors, unreadable,
        dispatched_from, misrouted, delays,
    )  # fmt: skip
