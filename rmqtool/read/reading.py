"""One reading of an access: its records in batches, findings on what lies between them, in the log's order.

`RangeReader` does the slow work, range by range and in threads if wanted. What needs the whole
store (what damage is called, which files are missing) is done by `Reading`, in the caller's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.findings import Progress, Report, ScanCounters
from rmqtool.formats.java import java_utf8_decode
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import DamageClassifier, FileFindings, log_missing, unreadable_range
from rmqtool.log.events import Blank, LogGap, TrailingZeros
from rmqtool.log.frames import Frames
from rmqtool.problems import Finding
from rmqtool.read.access import Access, LogRange
from rmqtool.read.queue_units import QueueUnits, Units
from rmqtool.read.residual import Residual
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.read.walk import PointReads, RangeWalk
from rmqtool.storage.buffers import Array
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.out_of_reach import report_out_of_reach


class FrameBatch(NamedTuple):
    """Records of one file, all inside one window, and which of them are selected.

    `mask` is bool of shape (rows,), `file` the file's name as rows show it. `frames.data` is valid
    until the next batch is requested.
    """

    frames: Frames
    mask: Array
    file: str


@dataclass(frozen=True)
class BytesScanned:
    """The number of bytes of the log that were read since the last report."""

    count: int


class RangeReader:
    """Reads one range after the other; for one thread."""

    def __init__(
        self, store: Store, selection: Selection, access: Access, *, crc: bool, window: int,
        looked: ScanCounters | None = None,
    ) -> None:  # fmt: skip
        self._selection = selection
        self._access = access
        self._looked = looked
        self._crc = crc
        self._window = window
        self._residual = Residual(selection)
        self._units = QueueUnits(store.layout)
        self._indexed = Units(np.array(access.offsets, np.int64), np.array(access.sizes, np.int64))
        self._from = selection.from_offset
        self._files = {store.layout.relative(file.path): file for file in store.layout.commit_log}

    def items(self, each: LogRange) -> Iterator[FrameBatch | LogGap | BytesScanned]:
        """Batches, events that the selection's offsets touch, and how far it has come."""
        file = self._files.get(each.path)
        if file is None:  # it was there when the access was planned: a live store deletes files
            yield unreadable_range(each.start, each.stop, Path(each.path), each.path, to_end=True)
            yield BytesScanned(each.bytes_read)
            return
        walk = self._walk(file, each)
        reported = 0
        for item in walk.items():
            if isinstance(item, Frames):
                mask = self._residual.mask(item)
                if self._looked is not None:
                    self._count(item, mask, self._looked)
                yield FrameBatch(item, mask, each.path)
            elif self._is_wanted(item):
                yield item
            done = (walk.passed - each.start) * each.bytes_read // max(each.size, 1)
            if reported < done <= each.bytes_read:
                yield BytesScanned(done - reported)
                reported = done
        if reported < each.bytes_read:
            yield BytesScanned(each.bytes_read - reported)

    def close(self) -> None:
        """Close the files of queues."""
        self._units.close()

    def _walk(self, file: StoreFile, each: LogRange) -> RangeWalk:
        if each.via == "log":
            return RangeWalk(file, each, self._access.end, crc=self._crc, window=self._window)
        units: Units | None = None
        if each.via == "queue":
            with suppress(OSError, UnreadableError):
                units = self._units.records(self._access.queues, each.start, each.stop)
        else:
            units = self._indexed.between(each.start, each.stop)
        return PointReads(file, each, self._access.end, units, crc=self._crc, window=self._window)

    def _count(self, frames: Frames, mask: Array, looked: ScanCounters) -> None:
        """As `log_items` counts: records of the selected offsets, and topics that are named."""
        rows = (
            frames.rows if self._from is None else frames.rows[frames.rows["physical_offset"] >= self._from]
        )
        if len(rows):
            times = rows["store_timestamp"]
            looked.add(len(rows), int(times.min()), int(times.max()))
        if self._selection.topics:
            found = (frames.topics[number] for number in np.unique(frames.rows["topic_id"][mask]).tolist())
            looked.topics.update(
                {java_utf8_decode(topic) for topic in found}.intersection(self._selection.topics)
            )

    def _is_wanted(self, gap: LogGap) -> bool:
        if self._from is None:
            return True
        return gap.physical_offset >= self._from or (not isinstance(gap, Blank) and gap.end > self._from)


class Readers:
    """A range reader for every thread that asks for one."""

    def __init__(self, make: Callable[[], RangeReader]) -> None:
        self._make = make
        self._local = threading.local()
        self._all: list[RangeReader] = []

    def of_this_thread(self) -> RangeReader:
        """The reader of the thread that asks."""
        reader: RangeReader | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = self._make()
            self._all.append(reader)
        return reader

    def close(self) -> None:
        """Close what they have open; no thread may be at work any more."""
        for reader in self._all:
            reader.close()


class Reading:
    """Reports the findings of all range readers in log order."""

    def __init__(
        self,
        store: Store,
        selection: Selection,
        access: Access,
        report: Report | None,
        progress: Progress | None,
    ) -> None:
        self.store = store
        self.access = access
        self._report = report
        self._progress = progress
        self._judge = DamageClassifier(store.commit_log, store.end_offset)
        self._files: FileFindings | None = None
        if report is not None:
            self._files = FileFindings(store.layout, selection.from_offset or 0, access.end, reverse=False)

    def begin(self) -> None:
        """Report what is wrong with the log as a whole."""
        layout = self.store.layout
        if self._report is None or not self.access.is_first:
            return
        report_out_of_reach(layout, "commit log", self._report)
        if layout.lacks_log:
            self._report(log_missing(self.store.layout))

    def come_to(self, offset: int | None) -> None:
        """Report what is wrong with the files that were passed; None: with all of them."""
        if self._files is None:
            return
        low, high = self.access.start, self.access.stop
        for start, each in self._files.passed(offset):
            if (low is None or start >= low) and (high is None or start < high):
                self.report(each)

    def gap(self, gap: LogGap) -> None:
        """Report what is wrong between records."""
        if self._report is not None:
            for each in self._judge(gap):
                self._report(each)

    def between(self, gap: LogGap) -> Iterator[Finding | Blank | TrailingZeros]:
        """What `gap` would report; a sound blank and unused zeros as they are. Nothing where none reports."""
        if self._report is not None:
            yield from self._judge.between(gap)

    def report(self, found: Finding) -> None:
        """Report one finding."""
        if self._report is not None:
            self._report(found)

    def passed(self, count: int) -> None:
        """Report progress."""
        if self._progress is not None:
            self._progress(count)


def chosen(batch: FrameBatch, left: int | None) -> Frames:
    """The selected records of a batch, `left` at most."""
    return batch.frames.at(np.flatnonzero(batch.mask)[:left])
