"""The passes over the log: `log` checks every record, `bodies` the content of bodies.

Pass `log` walks every file once, and also feeds the passes `queues` and `index`. Files are walked in parallel
(`jobs` threads; the kernels release the GIL) and judged in the order of their offsets: whether an unreadable
end of a file is a torn tail or damage depends on whether records follow in a later file. Only damage and sums
of each queue outlive a window, so memory does not grow with the log.

Of a DLedger log pass `log` also checks the numbers of entries, their index and the state (`ledger`).

Pass `bodies` checks that every compressed body decompresses and that every batch in a body can be read.
It is not among the default passes: it decompresses the whole log, one body after the other, and a body
that matches its CRC is what the producer sent.

Source: spec 01 sections 3.3 and 10.5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.check.verify.context import Context, reason_of
from rmqtool.check.verify.ledger import Entries, EntryIndex, LedgerCheck
from rmqtool.check.verify.log_findings import ScannedFile, judge
from rmqtool.check.verify.spans import Spans
from rmqtool.errors import FormatError, MissingCodecError
from rmqtool.formats import batch, body, filler
from rmqtool.formats.java import java_utf8_decode, tags_code
from rmqtool.formats.message import COMPRESSED, INNER_BATCH
from rmqtool.log.damage import full_status, has_zero_page, record_codes
from rmqtool.log.dispatch import ENDS_IN_ZEROS, Dispatch, dispatch_columns
from rmqtool.log.events import BODY_CRC, Blank, CorruptRange, LogGap
from rmqtool.log.frames import Frames, walk
from rmqtool.log.log_files import is_misnamed
from rmqtool.problems import Finding, finding
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.ranges import runs
from rmqtool.storage.source import WINDOW

if TYPE_CHECKING:
    from rmqtool.check.verify.index import IndexCheck
    from rmqtool.check.verify.queues import Comparison, QueueCheck
    from rmqtool.log.frames import Frames
    from rmqtool.storage.source import ByteSource


_FILLER_CODE = tags_code(filler.TAG)


def check_bodies(frames: Frames, where: str) -> Iterator[Finding]:
    """Findings on the bodies of one window; those that do not match their CRC are left out."""
    rows, starts = frames.rows, frames.body_starts()
    coded = (rows["sys_flag"] & (COMPRESSED | INNER_BATCH)) != 0
    sound = ((rows["status"] & BODY_CRC) == 0) & (rows["body_length"] > 0)
    for row in np.flatnonzero(coded & sound).tolist():
        sys_flag, length = int(rows["sys_flag"][row]), int(rows["body_length"][row])
        stored = bytes(frames.data[starts[row] : starts[row] + length])
        offset = int(rows["physical_offset"][row])
        try:
            content = body.decompress(stored, sys_flag)
            if sys_flag & INNER_BATCH:
                for _ in batch.decode_items(content):
                    pass
        except MissingCodecError as error:
            yield finding("UN01", where, offset, length, what="bodies", form=error.message)
        except FormatError as error:
            yield finding("CL14", where, offset, int(rows["size"][row]), reason=error.message)


class LogCheck:
    """The walk over the commit log's files, and what it means for the log as a whole."""

    window = WINDOW

    def __init__(
        self, context: Context, queues: QueueCheck | None, index: IndexCheck | None, *, bodies: bool = False
    ) -> None:
        self.context = context
        self.bodies = bodies
        self.queues = queues
        self.index = index
        self.ledger = LedgerCheck(context)
        self._stopped = Event()

    def run(self) -> Iterator[Finding]:
        """Walk all files within the bounds; findings in the order of the log."""
        pending: list[ScannedFile] = []
        tasks, spread = list(chosen_files(self.context)), self.context.spread
        with closing(self._threads(tasks) if spread is None else spread.scan_files(self, tasks)) as scans:
            for scan in scans:
                yield from self._take(scan, pending)
        for scan in pending:  # after the first of them there are only zeros
            yield from self._finish(scan, ends_log=True)
        yield from self.ledger.run()
        if self.context.bounds.bounded:  # the newest records may not be among those that were walked
            self.context.log_end = max(self.context.log_end, self.context.end_offset)
        elif self.context.log_end < 0 and pending and not self.context.bad:
            self.context.log_end = pending[0].file.file_from_offset  # all zero: nothing was lost

    def _threads(self, tasks: Sequence[tuple[StoreFile, int, int]]) -> Generator[ScannedFile]:
        """Walk the files in threads; in the order of `tasks`."""
        with ThreadPoolExecutor(self.context.jobs, "rmqtool-verify") as pool:
            waiting: deque[Future[ScannedFile]] = deque()
            is_done = False
            try:
                for task in tasks:
                    waiting.append(pool.submit(self.scan, *task))
                    if len(waiting) > self.context.jobs:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
                is_done = True
            finally:
                if not is_done:
                    self._stop(waiting)

    def _stop(self, waiting: Iterable[Future[ScannedFile]]) -> None:
        """Stop all threads soon, including those that wait for the rate limit."""
        self._stopped.set()
        if self.context.limiter is not None:
            self.context.limiter.stop()
        for future in waiting:
            future.cancel()

    def _take(self, scan: ScannedFile, pending: list[ScannedFile]) -> Iterator[Finding]:
        """Judge the files before `scan` once it is known that records follow them."""
        if scan.has_data:
            for before in pending:
                yield from self._finish(before, ends_log=False)
            pending.clear()
        pending.append(scan)

    def _finish(self, scan: ScannedFile, *, ends_log: bool) -> Iterator[Finding]:
        yield from judge(self.context, scan, ends_log=ends_log)
        is_torn = ends_log and not scan.done and scan.unsound_last is not None
        yield from self.ledger.take(scan, is_torn=is_torn)
        if self.queues is not None:
            self.queues.take(scan)
        if self.index is not None:
            self.index.take(scan)

    # One file, in a thread of the pool

    def scan(self, file: StoreFile, start: int, stop: int) -> ScannedFile:
        """Walk positions [start, stop) of one file, in bytes from its start."""
        scan, base = ScannedFile(file, start, stop), file.file_from_offset
        try:
            source = self.context.open(file.path)
        except FileNotFoundError:
            scan.gone = True
            return scan
        except OSError as error:
            scan.error = reason_of(error)
            scan.unreadable.append((base, file.end))
            return scan
        if source.size < stop:
            scan.error = "the file became shorter while it was read"
            scan.unreadable.append((base + source.size, base + stop))
            scan.stop = stop = source.size
        comparison = None
        entries = None
        if file.entry_header:
            scan.entries, entries = Entries(), EntryIndex(self.context)
        if self.queues is not None:
            scan.queues = Spans()
            comparison = self.queues.comparison(scan.queues)
        try:
            position = start
            for event in self.events(source, file, start, stop):
                if self._stopped.is_set():
                    break
                if isinstance(event, tuple):
                    if entries is not None:
                        self._entries(scan, event[0], entries)
                    position = self._frames(scan, source, *event, comparison, position)
                else:
                    _take_gap(scan, event)
            if comparison is not None and not self._stopped.is_set():
                comparison.finish()
            scan.unreadable += [(base + low, base + high) for low, high in source.unreadable]
        finally:
            source.close()
            if entries is not None:
                entries.close()
                scan.failed_entries = entries.failed
            if comparison is not None:
                comparison.close()
        return scan

    def events(
        self, source: ByteSource, file: StoreFile, start: int, stop: int
    ) -> Iterator[tuple[Frames, Dispatch] | LogGap]:
        """Walk the positions [start, stop) of a file, in order; records come with their dispatch columns."""
        events = walk(
            source, file_from_offset=file.file_from_offset, start=start, stop=stop, window=self.window,
            entry_header=file.entry_header, check_entries=True,
        )  # fmt: skip
        for event in events:
            if isinstance(event, Frames):
                yield event, without_cut(dispatch_columns(event))
            else:
                yield event

    def _frames(
        self, scan: ScannedFile, source: ByteSource, frames: Frames, dispatch: Dispatch,
        comparison: Comparison | None, position: int,
    ) -> int:  # fmt: skip
        rows = frames.rows
        scan.unsound_last = None
        self._flagged(scan, source, frames, dispatch)
        if self.context.observe is not None:
            self.context.observe(scan.file, frames)
        if self.bodies:
            scan.findings += check_bodies(frames, self.context.name(scan.file.path))
        scan.records += len(rows)
        scan.end = frames.end
        scan.last_store_timestamp = max(scan.last_store_timestamp, int(rows["store_timestamp"].max()))
        counts = np.bincount(rows["topic_id"], minlength=len(frames.topics))
        scan.count_topics(frames.topics, counts.tolist())
        is_filler = dispatch.tags_code == _FILLER_CODE
        if is_filler.any():
            for number, count in enumerate(np.bincount(rows["topic_id"][is_filler]).tolist()):
                if count:
                    topic = java_utf8_decode(frames.topics[number])
                    scan.fillers[topic] = scan.fillers.get(topic, 0) + count
        if comparison is not None:
            comparison.add(frames, dispatch)
        if self.index is not None:
            scan.index_parts.append(self.index.part(frames, dispatch))
            if self.index.rocksdb is not None:
                scan.rocksdb_index.append(self.index.rocksdb.part(frames))
        now = scan.end - scan.file.file_from_offset
        self.context.progress(now - position)
        return now

    def _entries(self, scan: ScannedFile, frames: Frames, index: EntryIndex) -> None:
        """Findings on the numbers and terms of entries of a DLedger log."""
        assert scan.entries is not None
        where = self.context.name(scan.file.path)
        for code, mask in scan.entries.take(frames, scan.file.entry_header, index):
            marked = np.flatnonzero(mask)
            for low, high in runs(marked):
                first, last = frames.rows[marked[low]], frames.rows[marked[high - 1]]
                stop = int(last["physical_offset"]) + int(last["size"])
                scan.add_records(code, where, int(first["physical_offset"]), stop, high - low)

    def _flagged(self, scan: ScannedFile, source: ByteSource, frames: Frames, dispatch: Dispatch) -> None:
        """Findings on records whose frame is sound but whose content is not; neighbours as one."""
        rows, base = frames.rows, scan.file.file_from_offset
        if not full_status(frames, dispatch).any() and int(rows["store_timestamp"].min()) > 0:
            return
        where = self.context.name(scan.file.path)
        for code, mask in record_codes(frames, dispatch):
            marked = np.flatnonzero(mask)
            for low, high in runs(marked):
                first, last = int(marked[low]), int(marked[high - 1])
                start = int(rows["physical_offset"][first])
                stop = int(rows["physical_offset"][last]) + int(rows["size"][last])
                zeroed = code == "CL03" and has_zero_page(source, start - base, stop - base)
                scan.add_records(code, where, start, stop, last - first + 1, zeroed=zeroed)
                if code == "CL13" and last == len(rows) - 1:
                    scan.unsound_last = scan.findings[-1]


def _take_gap(scan: ScannedFile, gap: LogGap) -> None:
    if isinstance(gap, CorruptRange):
        scan.unsound_last = None
        scan.add_bad(gap)
    elif isinstance(gap, Blank):
        scan.blanks.append(gap)
        scan.done = gap.ends_file
    else:
        scan.zero_from = gap.physical_offset


def without_cut(dispatch: Dispatch) -> Dispatch:
    """The same without the keys of records that end in zeros: what their properties say is not all of it."""
    cut = (dispatch.flags & ENDS_IN_ZEROS) != 0
    return replace(dispatch, keys=dispatch.keys[~cut[dispatch.keys["row"]]]) if cut.any() else dispatch


def chosen_files(context: Context) -> Iterator[tuple[StoreFile, int, int]]:
    """The commit log files to walk, oldest first, with the half-open range of positions in each."""
    bounds = context.bounds
    # A file at an impossible offset (CL25) is not a part of the log: its records would come three times.
    layout = context.layout
    files = [file for file in layout.commit_log if file.size and not is_misnamed(layout, file)]
    if bounds.since_ms is not None:
        files = files[_first_since(context, files, bounds.since_ms) :]
    if bounds.sample is not None:
        first, step = bounds.sample
        files = files[first - 1 :: step]
    oldest = 0 if bounds.limit_bytes is None else max(context.end_offset - bounds.limit_bytes, 0)
    for file in files:
        if file.end <= oldest:
            continue
        start = context.store.record_before(file, oldest) - file.file_from_offset
        logs = layout.queue_logs
        stop = file.size if logs is None else logs.written(file.file_from_offset)
        if context.live:
            stop = min(stop, context.end_offset - file.file_from_offset)
        if start < stop:
            yield file, start, stop


def _first_since(context: Context, files: Sequence[StoreFile], since_ms: int) -> int:
    """Number of the file that holds the first record stored at or after `since_ms`.

    That is the last file whose first record is older, for store timestamps rise along the log.
    """
    if context.layout.queue_logs is not None:  # each queue has a log, so the files are in no order of times
        return 0
    for number in range(len(files) - 1, -1, -1):
        first = context.store.find(files[number].first_record)
        if first is not None and first.message.store_timestamp < since_ms:
            return number
    return 0
