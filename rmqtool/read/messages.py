"""The selected messages of a store as Arrow batches or as frames, in the log's order.

Several threads read ranges; their results are returned in the order of the ranges. Each thread reads one
range at a time and is a few results ahead of the consumer, so memory stays bounded. An exception of a thread
is raised instead of its result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from rmqtool.errors import UsageError
from rmqtool.findings import BatchRecords, Progress, Report, ScanCounters
from rmqtool.formats import body as body_form
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.message import COMPRESSED, INNER_BATCH, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import codes_of
from rmqtool.log.dispatch import dispatch_columns
from rmqtool.log.events import Blank, LogGap, TrailingZeros
from rmqtool.log.fillers import filler_places
from rmqtool.log.frames import Frames
from rmqtool.message.column_arrays import (
    BODY_COLUMNS,
    BodyKind,
    Chunk,
    column,
    plain_bodies,
    stored_bodies,
)
from rmqtool.message.schema import Names, arrow_schema
from rmqtool.message.system_topics import DueOf
from rmqtool.problems import Finding, finding
from rmqtool.read.access import Access, LogRange, plan_access
from rmqtool.read.due_times import due_of
from rmqtool.read.reading import BytesScanned, FrameBatch, RangeReader, Readers, Reading, chosen
from rmqtool.read.selection import Selection
from rmqtool.read.split import split
from rmqtool.read.store import Store
from rmqtool.storage.buffers import Array
from rmqtool.storage.source import WIDE_WINDOW, WINDOW

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2
_TICK_SECONDS = 0.2


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _End:
    pass


def in_order(
    tasks: Sequence[Task], work: Callable[[Task], Iterator[Result]], jobs: int
) -> Generator[tuple[Task, Iterator[Result]], None, None]:
    """(task, its results) of every task in order; the results are to be taken before the next task."""
    if jobs == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, work(task)
        return
    pool = _Pool(tasks, work, min(jobs, len(tasks)))
    try:
        for number, task in enumerate(tasks):
            yield task, pool.results(number)
    finally:
        pool.stop()


class _Pool(Generic[Task, Result]):
    def __init__(self, tasks: Sequence[Task], work: Callable[[Task], Iterator[Result]], jobs: int) -> None:
        self._tasks = tasks
        self._work = work
        self._stopped = Event()
        self._queues: list[Queue[Result | _Failure | _End]] = [Queue(_AHEAD) for _ in tasks]
        self._next: Queue[int] = Queue()
        for number in range(len(tasks)):
            self._next.put(number)
        self._threads = [Thread(target=self._run, daemon=True) for _ in range(jobs)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, even in the middle of a range."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def results(self, number: int) -> Iterator[Result]:
        """The results of one task."""
        while True:
            found = self._queues[number].get()
            if isinstance(found, _Failure):
                raise found.error
            if isinstance(found, _End):
                return
            yield found

    def _run(self) -> None:
        with suppress(Empty):
            while not self._stopped.is_set():
                number = self._next.get_nowait()
                last: _Failure | _End = _End()
                try:
                    for result in self._work(self._tasks[number]):
                        if not self._put(number, result):
                            return
                except BaseException as error:  # noqa: BLE001 - raised again by `results`
                    last = _Failure(error)
                self._put(number, last)

    def _put(self, number: int, result: Result | _Failure | _End) -> bool:
        while not self._stopped.is_set():
            with suppress(Full):
                self._queues[number].put(result, timeout=_TICK_SECONDS)
                return True
        return False


MAX_ROWS = 1 << 16
MAX_BYTES = 16 << 20
_MAX_BYTES_LIMIT = 1 << 30
_ROW_BYTES = 256
"""Approximate size of the fixed columns of a row."""
_PARTS = 4
"""Parts of the log that each thread works on, at least, one after the other."""
_PART_BYTES = 32 << 20
_FULL = 4
"""A batch of 1 / _FULL of the bytes allowed goes out without waiting for more: bodies are seldom copied."""


@dataclass(frozen=True)
class BatchWithFindings:
    """A batch, the findings on its records, and its batch records, if they are counted."""

    batch: pa.RecordBatch
    findings: list[Finding]
    batch_records: BatchRecords | None = None


Step = BatchWithFindings | LogGap | BytesScanned


def message_batches(
    store: Store,
    selection: Selection = Selection(),  # noqa: B008 - frozen
    *,
    columns: Sequence[str] | None = None,
    access: Access | None = None,
    body: BodyKind = "plain",
    names: Names = "engine",
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
    jobs: int = 1,
    crc: bool = True,
    hold_s: float | None = None,
    report: Report | None = None,
    progress: Progress | None = None,
    looked: ScanCounters | None = None,
    batch_records: BatchRecords | None = None,
) -> Iterator[pa.RecordBatch]:
    """The selected messages in the log's order, as batches of `arrow_schema(columns, names=names)`.

    Args:
        store: the store.
        selection: which messages; its limit counts the messages of this call.
        columns: engine names of the columns wanted, in this order; only these are computed.
        access: how they are reached, or a piece of that (`split`); None: `plan_access`.
        body: `plain` is unpacked, null where that cannot be done; `stored` is as it is in the record.
        names: `spark` calls the columns by their Spark names.
        max_rows: rows of a batch, at most.
        max_bytes: bytes of a batch, about, at most; one record with a larger body is a batch of its own.
        jobs: threads that read; batches keep their order.
        crc: check bodies and, for `status`, whole records; without it CL03 is not found.
        hold_s: seconds that rows wait for more of them, about; None: until a batch is worth while.
        report: called for damaged ranges, and for records of which the walk or `status` says so.
        progress: called with the bytes of log that were passed.
        looked: counts the records that were examined; then `jobs` is 1.
        batch_records: counts the batch records among the messages.

    `status` holds CL14 and UN01 only where `body` is `plain`.

    Raises:
        UsageError: an unknown column or body form, or a bound below 1.
    """
    schema = arrow_schema(columns, names=names)
    wanted = tuple(arrow_schema(columns).names)
    if body not in ("plain", "stored"):
        raise UsageError(f"body {body!r} is neither plain nor stored")
    if min(max_rows, max_bytes, jobs) < 1:
        raise UsageError("rows, bytes and jobs are at least 1")
    if looked is not None and jobs > 1:
        raise UsageError("only one thread counts what it looks at")
    due = due_of(store) if "system" in wanted else None
    maker = _Maker(schema, wanted, body, max_rows, min(max_bytes, _MAX_BYTES_LIMIT), selection.limit, due)
    maker.counts_batches = batch_records is not None
    batches = BatchRecords() if batch_records is None else batch_records
    return _messages(store, selection, access, maker, jobs, crc, hold_s, report, progress, looked, batches)


def _messages(
    store: Store, selection: Selection, access: Access | None, maker: _Maker, jobs: int, crc: bool,
    hold_s: float | None, report: Report | None, progress: Progress | None, looked: ScanCounters | None,
    batch_records: BatchRecords,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    access = plan_access(store, selection) if access is None else access
    reading = Reading(store, selection, access, report, progress)
    window = max(min(maker.window, maker.max_bytes), 64 << 10)
    if selection.limit is not None:
        jobs = 1
    ranges = _shared(store, access, jobs)

    readers = Readers(lambda: RangeReader(store, selection, access, crc=crc, window=window, looked=looked))

    def steps(each: LogRange) -> Iterator[Step]:
        return maker.steps(readers.of_this_thread().items(each), each.path)

    pending = _Pending(maker, hold_s)
    reading.begin()
    with closing(readers), closing(in_order(ranges, steps, jobs)) as tasks:
        yield from _reported(tasks, reading, maker, pending, batch_records)
    yield from pending.rest()


def _shared(store: Store, access: Access, jobs: int) -> tuple[LogRange, ...]:
    """The ranges, long ones divided so that all threads have something to do."""
    if jobs == 1 or len(access.ranges) >= _PARTS * jobs:
        return access.ranges
    target_bytes = max(access.bytes_read // (_PARTS * jobs), _PART_BYTES)
    return tuple(each for piece in split(store, access, target_bytes=target_bytes) for each in piece.ranges)


def _reported(
    tasks: Iterable[tuple[LogRange, Iterable[Step]]], reading: Reading, maker: _Maker, pending: _Pending,
    batch_records: BatchRecords,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The batches of all ranges; everything else is reported."""
    for each, found in tasks:
        reading.come_to(each.start)
        for step in found:
            if isinstance(step, BatchWithFindings):
                for wrong in step.findings:
                    reading.report(wrong)
                if step.batch_records is not None:
                    batch_records.add(step.batch_records)
                yield from pending.add(step.batch)
            elif isinstance(step, BytesScanned):
                reading.passed(step.count)
                yield from pending.late()
            else:
                reading.come_to(step.physical_offset)
                reading.gap(step)
        if maker.is_done:
            return
    reading.come_to(None)


def batches_of_frames(
    store: Store,
    frames: Frames,
    file: str,
    *,
    columns: Sequence[str],
    body: BodyKind = "plain",
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> Iterator[BatchWithFindings]:
    """Records of one file as batches; see `message_batches` for the arguments."""
    schema = arrow_schema(columns)
    wanted = tuple(schema.names)
    due = due_of(store) if "system" in wanted else None
    return _Maker(schema, wanted, body, max_rows, max_bytes, None, due).batches(frames, file)


def frame_batches(
    store: Store,
    selection: Selection = Selection(),  # noqa: B008 - frozen
    *,
    access: Access | None = None,
    crc: bool = True,
    report: Report | None = None,
    progress: Progress | None = None,
    looked: ScanCounters | None = None,
) -> Iterator[FrameBatch]:
    """The records of the log in batches, with a mask of those selected; see `message_batches`.

    Batches without a selected record are left out. Findings on records are reported for selected ones.
    """
    found: list[Finding] | None = None if report is None else []
    for item in _frame_items(store, selection, access, crc, found, progress, looked):
        if isinstance(item, FrameBatch):
            if looked is not None:
                looked.batches.add(batch_records_of(item.frames, item.mask))
            yield item
        elif isinstance(item, Finding) and report is not None:
            report(item)


FrameItem = FrameBatch | Finding | Blank | TrailingZeros


def frame_items(
    store: Store,
    selection: Selection = Selection(),  # noqa: B008 - frozen
    *,
    access: Access | None = None,
    progress: Progress | None = None,
    looked: ScanCounters | None = None,
) -> Iterator[FrameItem]:
    """The batches of `frame_batches`, and in its place everything that lies between them.

    These are findings, and as `log_items` has them blanks and zeros. Findings on records precede their batch.
    `looked` does not count batch records.
    """
    return _frame_items(store, selection, access, True, [], progress, looked)


def _frame_items(
    store: Store, selection: Selection, access: Access | None, crc: bool, found: list[Finding] | None,
    progress: Progress | None, looked: ScanCounters | None,
) -> Iterator[FrameItem]:  # fmt: skip
    """See `frame_items`; with `found` None nothing but batches."""
    access = plan_access(store, selection) if access is None else access
    reading = Reading(store, selection, access, None if found is None else found.append, progress)
    left = selection.limit
    with closing(RangeReader(store, selection, access, crc=crc, window=WINDOW, looked=looked)) as reader:
        reading.begin()
        for each in access.ranges:
            if left == 0:
                return
            reading.come_to(each.start)
            for item in reader.items(each):
                if left == 0:
                    return
                if isinstance(item, FrameBatch):
                    places = np.flatnonzero(item.mask)
                    if left is not None:
                        item.mask[places[left:]] = False
                        left -= min(left, len(places))
                    if len(places):
                        yield from _taken(found)
                        if found is not None:
                            yield from _record_findings(item.frames.rows, item.file, item.mask)
                        yield item
                elif isinstance(item, BytesScanned):
                    reading.passed(item.count)
                else:
                    reading.come_to(item.physical_offset)
                    yield from _taken(found)
                    yield from reading.between(item)
    reading.come_to(None)
    yield from _taken(found)


def _taken(found: list[Finding] | None) -> Iterator[Finding]:
    """Yield the findings and empty the list."""
    yield from found or ()
    if found is not None:
        found.clear()


def batch_records_of(frames: Frames, mask: Array | None = None) -> BatchRecords:
    """Which of the records, or of those of `mask`, are batch records, and which are fillers."""
    flags = frames.rows["sys_flag"]
    fillers = flags[filler_places(frames, mask)]
    of_no_queue = int(np.count_nonzero((fillers & TRANSACTION_MASK) == TRANSACTION_ROLLBACK))
    counts = BatchRecords(fillers=len(fillers) - of_no_queue, fillers_of_no_queue=of_no_queue)
    is_batch = (flags & INNER_BATCH) != 0
    places = np.flatnonzero(is_batch if mask is None else is_batch & mask)
    if not len(places):
        return counts
    topics = {java_utf8_decode(frames.topics[each]) for each in np.unique(frames.rows["topic_id"][places])}
    messages = int(dispatch_columns(frames.at(places)).inner_count.clip(1).sum())
    return replace(counts, records=len(places), messages=messages, topics=topics)


def _record_findings(rows: Any, file: str, mask: Array | None = None) -> Iterator[Finding]:
    """Yield the findings of the walk on these records, or on those of `mask`."""
    wrong = rows["status"] != 0
    if not wrong.any():
        return
    for row in rows[wrong if mask is None else wrong & mask]:
        for code in codes_of(row["status"]):
            yield finding(code, file, int(row["physical_offset"]), int(row["size"]))


class _Maker:
    """Makes batches of frames: cut where rows or bytes are enough, with the columns wanted."""

    def __init__(
        self, schema: pa.Schema, wanted: tuple[str, ...], body: BodyKind, max_rows: int, max_bytes: int,
        left: int | None, due_of: DueOf | None,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self._wanted = wanted
        self._body = body
        self._has_body = bool(BODY_COLUMNS & set(wanted))
        self._judges_bodies = body == "plain" and "status" in wanted
        self._left = left
        self._due_of = due_of
        self.counts_batches = False

    @property
    def window(self) -> int:
        """Bytes of log to look at in one go."""
        return WINDOW if self._has_body else WIDE_WINDOW

    @property
    def is_done(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def steps(self, items: Iterator[FrameBatch | LogGap | BytesScanned], file: str) -> Iterator[Step]:
        """Batches for the frames of one range, and everything else as it is."""
        for item in items:
            if self.is_done:
                return
            if not isinstance(item, FrameBatch):
                yield item
                continue
            frames = chosen(item, self._left)
            if self._left is not None:
                self._left -= len(frames.rows)
            yield from self.batches(frames, file)

    def batches(self, frames: Frames, file: str) -> Iterator[BatchWithFindings]:
        """Batches for records of one file."""
        rows: Any = frames.rows
        lengths = rows["size"].astype(np.int64) + _ROW_BYTES
        if not self._needs_bodies(rows):
            lengths -= np.maximum(rows["body_length"], 0)
            if 0 < len(rows) <= self.max_rows and int(lengths.sum()) <= self.max_bytes:
                yield self._made(frames, file)
                return
        weights = np.cumsum(lengths)
        first = 0
        while first < len(rows):
            before = int(weights[first - 1]) if first else 0
            stop = int(np.searchsorted(weights, before + self.max_bytes, "right"))
            stop = max(min(stop, first + self.max_rows), first + 1)
            part = frames if stop - first == len(rows) else replace(frames, rows=rows[first:stop])
            made = self._made(part, file)
            yield made
            first += made.batch.num_rows

    def _needs_bodies(self, rows: Any) -> bool:
        """Whether they are wanted, or a status that says whether they unpack."""
        return self._has_body or (self._judges_bodies and bool(np.any(rows["sys_flag"] & COMPRESSED)))

    def _made(self, frames: Frames, file: str) -> BatchWithFindings:
        bodies = None
        if self._needs_bodies(frames.rows):
            plain = self._body == "plain"
            bodies = plain_bodies(frames, self.max_bytes) if plain else stored_bodies(frames)
            if len(bodies.ranges) < len(frames.rows):
                frames = replace(frames, rows=frames.rows[: len(bodies.ranges)])
        chunk = Chunk(frames, file, bodies, self._due_of)
        arrays = [column(name, chunk) for name in self._wanted]
        if arrays:
            batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        else:
            batch = pa.RecordBatch.from_struct_array(pa.array([{}] * len(chunk), pa.struct([])))
        counts = batch_records_of(chunk.frames) if self.counts_batches else None
        return BatchWithFindings(batch, list(self._findings(chunk)), counts)

    def _findings(self, chunk: Chunk) -> Iterator[Finding]:
        if "status" not in self._wanted:
            yield from _record_findings(chunk.rows, chunk.file)
            return
        for place in np.flatnonzero(chunk.status).tolist():
            row = chunk.rows[place]
            for code in codes_of(chunk.status[place]):
                detail = {}
                if code == "UN01":
                    stored = stored_bodies(chunk.frames).ranges.bytes_of(place)
                    detail["reason"] = body_form.missing_codec(stored, int(row["sys_flag"]))
                yield finding(code, chunk.file, int(row["physical_offset"]), int(row["size"]), **detail)


class _Pending:
    """Small batches, put together until they are worth a batch."""

    def __init__(self, maker: _Maker, hold_s: float | None) -> None:
        self._hold_s = hold_s
        self._since = 0.0
        self._max_rows, self._max_bytes = maker.max_rows, maker.max_bytes
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add a batch; yield the batches that are full now."""
        size = batch.nbytes
        if self._rows + batch.num_rows > self._max_rows or self._bytes + size > self._max_bytes:
            yield from self.rest()
        if not self._batches:
            self._since = time.monotonic()
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += size
        if self._rows == self._max_rows or self._bytes * _FULL >= self._max_bytes:
            yield from self.rest()

    def late(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that have waited long enough."""
        if self._hold_s is not None and time.monotonic() - self._since > self._hold_s:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are left, as one batch."""
        if self._batches:
            yield self._batches[0] if len(self._batches) == 1 else pa.concat_batches(self._batches)
        self._batches, self._rows, self._bytes = [], 0, 0
