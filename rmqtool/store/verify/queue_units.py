"""Pass `queues`, unit side: units that no record explains; and what every difference is called.

    slot has no unit, newer units follow            CQ08   (CQ10 where a whole file is missing)
    trailing records have no unit                   CQ01 if a start dispatches them, else CQ02
    unit names another record of its own queue      CQ04
    unit names something else                       CQ05   (CQ14 when no record claims its slot)
    unit points behind the log's end                CQ03
    tags code, delivery time, extension address     CQ06, CQ07, CQ16

Units of expired records and units that point into a damaged range of the log are no findings: the
log's own finding tells it. Source: spec 02 section 15.2.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE
from rmqtool.problems import Finding, finding
from rmqtool.scan.queues import BATCH_UNIT_DTYPE, UnitReader, pre_blank, present
from rmqtool.scan.source import open_source
from rmqtool.store.layout import QueueFiles, StoreFile
from rmqtool.store.verify.context import Context, reason_of
from rmqtool.store.verify.queue_order import Odd, judge_order
from rmqtool.store.verify.queues import QueueCheck
from rmqtool.store.verify.ranges import merged, overlaps, runs
from rmqtool.store.verify.spans import Key, Kind, Mismatch, Span

_LIVE_WAIT_S = 2.0
_SIMPLE = {Kind.TAGS: "CQ06", Kind.DELIVERY: "CQ07", Kind.EXTENSION: "CQ16"}


class Run(NamedTuple):
    """Consecutive slots [first, last] whose units no record claimed; the first unit's record offset."""

    first: int
    last: int
    start: int


@dataclass
class Units:
    """What the files of one queue hold: slots of present units and units without a record."""

    first: int = -1
    last: int = -1
    end: int = -1
    count: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)  # half-open slots without a unit
    unclaimed: list[Run] = field(default_factory=list)


class UnitCheck:
    """Runs after the log was walked: `check` has then seen every record."""

    def __init__(self, context: Context, check: QueueCheck) -> None:
        self.context = context
        self.check = check
        self.units: dict[Key, Units] = {}
        self.odd: dict[Key, Odd] = {}

    def run(self) -> Iterator[Finding]:
        """All findings of the pass, queue by queue."""
        context, layout = self.context, self.context.layout
        opener = lambda path: open_source(path, keep_cache=context.keep_cache, limiter=context.limiter)  # noqa: E731
        with UnitReader(opener) as reader, UnitReader(opener, BATCH_UNIT_DTYPE) as batch_reader:
            for key, queue in layout.consume_queues.items():
                yield from self._read(key, queue, reader)
            for key, queue in layout.batch_queues.items():
                yield from self._read_batch(key, queue, batch_reader)
            context.queue_ends.update((key, units.last + 1) for key, units in self.units.items())
            spans = self.check.spans.queues
            if self.check.spans.left_out:
                yield finding("UN01", "commitlog", what="queues beyond the first 200000",
                              form=f"{self.check.spans.left_out} records")  # fmt: skip
            yield from judge_order(context, spans, self.odd)
            if context.live:
                self._look_again(reader)
            for key in sorted({*spans, *self.units}):
                yield from self._queue(key, spans.get(key), self.units.get(key), reader)

    # Reading

    def _read(self, key: Key, queue: QueueFiles, reader: UnitReader) -> Iterator[Finding]:
        units = self.units[key] = Units()
        span = self.check.spans.queues.get(key)
        claimed = np.array(merged(span.matched) if span else [], np.int64).reshape(-1, 2)
        for file in queue.files:
            base = file.file_from_offset // UNIT_SIZE
            try:
                for first, block in reader.blocks(file):
                    self._block(units, base + first, block, claimed)
            except OSError as error:
                yield finding("CQ15", self.context.name(file.path), 0, file.size, reason=reason_of(error))
        self.context.report.units += units.count

    def _block(self, units: Units, first: int, block: np.ndarray, claimed: np.ndarray) -> None:
        there = present(block)
        slots = np.flatnonzero(there) + first
        if not len(slots):
            return
        if units.last >= 0 and slots[0] > units.last + 1:
            units.gaps.append((units.last + 1, int(slots[0])))
        for cut in np.flatnonzero(np.diff(slots) > 1).tolist():
            units.gaps.append((int(slots[cut]) + 1, int(slots[cut + 1])))
        if units.first < 0:
            units.first = int(slots[0])
        units.last = int(slots[-1])
        units.count += len(slots)
        physical = block["physical_offset"].astype(np.int64)
        blank = pre_blank(block)
        real = there & ~blank
        if real.any():
            newest = int(np.flatnonzero(real)[-1])
            units.end = max(units.end, int(physical[newest]) + int(block["size"][newest]))
        all_slots = np.arange(first, first + len(block))
        place = np.searchsorted(claimed[:, 0], all_slots, side="right") - 1
        is_claimed = (place >= 0) & (all_slots < (claimed[place, 1] if len(claimed) else 0))
        loose = real & ~is_claimed & (physical >= self.context.log_start)
        numbers = np.flatnonzero(loose)
        for low, high in runs(numbers):
            start, stop = int(numbers[low]), int(numbers[high - 1])
            units.unclaimed.append(Run(first + start, first + stop, int(physical[start])))

    def _read_batch(self, key: Key, queue: QueueFiles, reader: UnitReader) -> Iterator[Finding]:
        units = self.units[key] = Units()
        span = self.check.spans.queues.get(key)
        claimed = merged(span.matched) if span else []
        for file in queue.files:
            try:
                for _, block in reader.blocks(file):
                    rows = block[present(block)]
                    units.count += len(rows)
                    if not len(rows):
                        continue
                    units.end = max(units.end, int(rows["physical_offset"][-1]) + int(rows["size"][-1]))
                    units.last = int(rows["base_offset"][-1]) + int(rows["batch_size"][-1]) - 1
                    if units.first < 0:
                        units.first = int(rows["base_offset"][0])
                    loose = np.flatnonzero(rows["physical_offset"] >= self.context.log_start)
                    for row in loose.tolist():
                        base = int(rows["base_offset"][row])
                        if not overlaps(claimed, base, base + 1):
                            units.unclaimed.append(Run(base, base, int(rows["physical_offset"][row])))
            except OSError as error:
                yield finding("CQ15", self.context.name(file.path), 0, file.size, reason=reason_of(error))
        self.context.report.units += units.count

    def _look_again(self, reader: UnitReader) -> None:
        """A broker is running: what dispatch had not reached is judged again after two seconds."""
        waiting = [
            (key, item)
            for key, span in self.check.spans.queues.items()
            for item in span.mismatches
            if item.kind is Kind.MISSING and key in self.context.layout.consume_queues
        ]
        if not waiting:
            return
        time.sleep(_LIVE_WAIT_S)
        for key, item in waiting:
            files = self.context.layout.consume_queues[key].files
            units = reader.gather(files, np.arange(item.first, item.last + 1))
            if present(units).all() and int(units["physical_offset"][0]) == item.start:
                self.check.spans.queues[key].mismatches.remove(item)

    # Judging one queue

    def _queue(
        self, key: Key, span: Span | None, units: Units | None, reader: UnitReader
    ) -> Iterator[Finding]:
        odd = self.odd.get(key, Odd())
        in_bad = self.context.in_bad
        mismatches = [
            item
            for item in (span.mismatches if span else ())
            if not odd.explains(item) and not in_bad(item.start, item.end)
        ]
        if units is None:
            yield from self._no_files(key, mismatches)
            return
        queue = self.context.layout.consume_queues.get(key)
        if queue is not None and queue.files and self._is_empty(queue.files[-1], units):
            yield finding("CQ12", self.context.name(queue.files[-1].path), 0, queue.files[-1].size)
        missing_files = self._missing_files(key)
        for low, high in units.gaps:
            if not any(start <= low and high <= stop for start, stop in missing_files):
                yield self._finding("CQ08", key, low, high - 1)
        for item in mismatches:
            if item.kind is Kind.MISSING:
                yield from self._missing(key, item, units, missing_files)
            elif item.kind is Kind.WRONG:
                yield from self._wrong(key, item, reader)
            else:
                yield self._finding(_SIMPLE[item.kind], key, item.first, item.last, record=item.start)
        told = merged((item.first, item.last + 1) for item in mismatches)
        for run in units.unclaimed:
            if not odd.explains_unit(run.start) and not overlaps(told, run.first, run.first + 1):
                yield from self._unclaimed(key, run)

    def _is_empty(self, file: StoreFile, units: Units) -> bool:
        """Whether a queue's last file holds no unit, although files or units should come before it."""
        return file.size > 0 and file.file_from_offset > 0 and units.last * UNIT_SIZE < file.file_from_offset

    def _no_files(self, key: Key, mismatches: list[Mismatch]) -> Iterator[Finding]:
        if not mismatches or self._out_of_reach():
            return
        first, last = mismatches[0], mismatches[-1]
        code = "CQ01" if first.start >= self.context.dispatch_from else "CQ13"
        if code == "CQ13" and self._deleted(key[0]):
            return
        count = sum(item.last - item.first + 1 for item in mismatches)
        yield self._finding(code, key, first.first, last.last, record=first.start, records=count)

    def _out_of_reach(self) -> bool:
        """Without queue files at all nothing is compared: single files, or queues in RocksDB."""
        layout = self.context.layout
        return not layout.has_files_of_queues or layout.kind != "store"

    def _deleted(self, topic: str) -> bool:
        """Whether the topic was deleted: topics.json can be read and does not know it any more."""
        known = self.context.known_topics
        return known is not None and topic not in known

    def _missing_files(self, key: Key) -> list[tuple[int, int]]:
        """Half-open slots of files that are missing between two others."""
        queue = self.context.layout.consume_queues.get(key)
        if queue is None:
            return []
        return [
            (before.end // UNIT_SIZE, after.file_from_offset // UNIT_SIZE)
            for before, after in zip(queue.files, queue.files[1:], strict=False)
            if before.end < after.file_from_offset
        ]

    def _missing(
        self, key: Key, item: Mismatch, units: Units, missing_files: list[tuple[int, int]]
    ) -> Iterator[Finding]:
        gaps = (*units.gaps, *missing_files)
        if any(low <= item.first and item.last < high for low, high in gaps):
            return
        dispatched = item.first > units.last and item.start >= self.context.dispatch_from
        yield self._finding("CQ01" if dispatched else "CQ02", key, item.first, item.last, record=item.start)

    def _wrong(self, key: Key, item: Mismatch, reader: UnitReader) -> Iterator[Finding]:
        queue = self.context.layout.consume_queues.get(key)
        if queue is None:
            yield self._finding("CQ05", key, item.first, item.last, record=item.start)
            return
        unit = reader.read(queue.files, item.first, 1)[0]
        named = int(unit["physical_offset"])
        shift = self._shift(key, named, item.first)
        code = "CQ05" if shift is None else "CQ04"
        detail = {} if shift is None else {"shift": shift}
        yield self._finding(
            code, key, item.first, item.last, record=item.start, unit_physical_offset=named,
            unit_size=int(unit["size"]), **detail,
        )  # fmt: skip

    def _unclaimed(self, key: Key, run: Run) -> Iterator[Finding]:
        context = self.context
        detail = {"unit_physical_offset": run.start}
        if context.log_end >= 0 and run.start >= context.log_end:
            if not context.live:
                yield self._finding("CQ03", key, run.first, run.last, **detail)
        elif context.is_covered(run.start) and not context.in_bad(run.start, run.start + 1):
            shift = self._shift(key, run.start, run.first)
            if shift is None:
                yield self._finding("CQ14", key, run.first, run.last, **detail)
            else:
                yield self._finding("CQ04", key, run.first, run.last, shift=shift, **detail)

    def _shift(self, key: Key, physical_offset: int, slot: int) -> int | None:
        """How far `slot` is behind the queue offset of the record there, when it is one of this queue."""
        found = self.context.store.find(physical_offset)
        if found is None or (found.message.topic, found.message.queue_id) != key:
            return None
        return slot - found.message.queue_offset

    def _finding(self, code: str, key: Key, first: int, last: int, **detail: int) -> Finding:
        """A finding on slots [first, last]: the file that holds the first, and where in it."""
        layout = self.context.layout
        numbers = {"queue_offset": first, "last_queue_offset": last, **detail}
        place: dict[str, object] = {"topic": key[0], "queue_id": key[1], **numbers}
        queue, unit = layout.consume_queues.get(key), UNIT_SIZE
        if queue is None and key in layout.batch_queues:
            folder = self.context.name(layout.batch_queues[key].folder)
            return finding(code, folder, None, (last - first + 1) * BATCH_UNIT_SIZE, **place)
        for file in queue.files if queue is not None else ():
            if file.file_from_offset <= first * unit < file.end:
                offset = first * unit - file.file_from_offset
                return finding(code, self.context.name(file.path), offset, (last - first + 1) * unit, **place)
        span = self.check.spans.queues.get(key)
        if queue is None and span is not None and span.is_batch:
            return finding(code, f"batchconsumequeue/{key[0]}/{key[1]}", None, None, **place)
        folder = f"consumequeue/{key[0]}/{key[1]}" if queue is None else self.context.name(queue.folder)
        return finding(code, folder, None, (last - first + 1) * unit, **place)
