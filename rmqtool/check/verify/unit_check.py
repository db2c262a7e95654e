"""Pass `queues`, unit side: units that no record explains; and what every difference is called.

    slot has no unit, newer units follow            CQ08   (CQ10 where a whole file is missing)
    trailing records have no unit                   CQ01 if a start dispatches them, else CQ02
    unit names another record of its own queue      CQ04
    unit names something else                       CQ05   (CQ14 when no record claims its slot)
    unit points past the log's end                  CQ03
    tags code, delivery time, extension address     CQ06, CQ07, CQ16

Units of expired records and units that point into a damaged range of the log are not findings: the
log's own finding reports it. Source: spec 02 section 15.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqtool.check.verify.context import Context, reason_of
from rmqtool.check.verify.live import look_again
from rmqtool.check.verify.queue_order import OutOfOrder, judge_order
from rmqtool.check.verify.queues import QueueCheck
from rmqtool.check.verify.spans import RANGES_MAX, Key, Mismatch, Span, UnitFault
from rmqtool.errors import FormatError
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, EXT_HEAD, MAX_EXT_ADDRESS, UNIT_SIZE, ext_offset
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.segments import committed_units, units_name
from rmqtool.problems import Finding, finding
from rmqtool.queue.light_queues import LIGHT_PREFIX
from rmqtool.queue.units import UnitReader, pre_blank, present
from rmqtool.storage.counted_queues import counted_queues
from rmqtool.storage.layout import QueueFiles, StoreFile, can_be_folder
from rmqtool.storage.queue_logs.view import TieredLogs
from rmqtool.storage.ranges import contains, inside, merged, overlaps, runs

if TYPE_CHECKING:
    from rmqtool.storage.source import ByteSource

_SIMPLE = {UnitFault.TAGS: "CQ06", UnitFault.DELIVERY: "CQ07", UnitFault.EXTENSION: "CQ16",
           UnitFault.STORE_TIME: "RD03"}  # fmt: skip


class Run(NamedTuple):
    """Consecutive slots [first, last] whose units no record claimed; the first unit's record offset.

    `doubled`: a unit of a batch queue that does not name a later record than the one before it.
    """

    first: int
    last: int
    start: int
    doubled: bool = False


@dataclass
class Units:
    """The content of the files of one queue: slots of present units and units without a record.

    `gaps` and `unread` are half-open: slots without a unit, slots that could not be read. Beyond
    RANGES_MAX gaps or runs the last one reaches over all that follow. `newest` is the last unit of a
    batch queue so far. `extended_to` is the largest offset of an extension unit that a unit names.
    """

    last: int = -1
    count: int = 0
    newest: Run | None = None
    extended_to: int = -1
    gaps: list[tuple[int, int]] = field(default_factory=list)
    unread: list[tuple[int, int]] = field(default_factory=list)
    unclaimed: list[Run] = field(default_factory=list)

    def add_gap(self, first: int, stop: int) -> None:
        """Slots [first, stop) have no unit, later ones do."""
        if len(self.gaps) < RANGES_MAX:
            self.gaps.append((first, stop))
        else:
            self.gaps[-1] = (self.gaps[-1][0], stop)

    def add_unclaimed(self, run: Run) -> None:
        """Units that no record claimed."""
        if len(self.unclaimed) < RANGES_MAX:
            self.unclaimed.append(run)
        else:
            self.unclaimed[-1] = self.unclaimed[-1]._replace(last=run.last)


class UnitCheck:
    """The unit side of the pass. It runs after the walk, when `check` has seen every record."""

    def __init__(self, context: Context, check: QueueCheck) -> None:
        self.context = context
        self.check = check
        self.units: dict[Key, Units] = {}
        self.out_of_order: dict[Key, OutOfOrder] = {}
        self._covered = merged(context.covered)
        self._source: ByteSource | None = None

    def run(self) -> Iterator[Finding]:
        """All findings of the pass, queue by queue."""
        context, layout = self.context, self.context.layout
        with self.reader() as reader:
            if context.spread is not None:
                yield from context.spread.read_queues(self)
            else:
                for queue in counted_queues(layout).values():
                    yield from self.read_queue(queue, reader)
            context.queue_ends.update(
                (key, max(units.last + 1, context.noted_end(key)))
                for key, units in self.units.items()
                if not units.unread
            )
            spans = self.check.spans.queues
            if self.check.spans.left_out:
                yield finding("UN01", "commitlog", what="queues beyond the first 200000",
                              form=f"{self.check.spans.left_out} records")  # fmt: skip
            yield from judge_order(context, spans, self.out_of_order)
            if context.live:
                look_again(context, self.check, self.units, reader)
            for key in sorted({*spans, *self.units}):
                yield from self._queue(key, spans.get(key), self.units.get(key), reader)

    # Reading

    def read_queue(self, queue: QueueFiles, reader: UnitReader) -> Iterator[Finding]:
        """Read all units of a queue into `units`, and compare them with what its records claimed."""
        if queue.is_batch:
            yield from self._read(queue, partial(self._read_batch_file, queue.key, reader))
        else:
            yield from self._read(queue, partial(self._read_file, queue.key, reader))
            yield from self._extension(queue.key, reader)

    def reader(self) -> UnitReader:
        """A reader for `read_queue`."""
        return UnitReader(self._open, self.context.files_per_reader)

    def _open(self, path: Path) -> ByteSource:
        self._source = self.context.open(path)
        return self._source

    def _read(self, queue: QueueFiles, read: Callable[[StoreFile], None]) -> Iterator[Finding]:
        """Read all files of one queue; in a batch queue it is unknown which slots cannot be read."""
        key, unit_size = queue.key, None if queue.is_batch else queue.unit_size
        units = self.units[key] = Units()
        reported = False
        for file in queue.files:
            failed: list[tuple[int, int]] = []
            try:
                self._source = None
                read(file)
                failed = [] if self._source is None else self._source.unreadable
            except FileNotFoundError:
                reported = True
                units.unread.append(_slots(file, 0, file.size, unit_size))
            except OSError as error:
                reported = True
                units.unread.append(_slots(file, 0, file.size, unit_size))
                if not self.context.layout.has_queues_in_rocksdb:  # else the damaged block is reported
                    yield finding("CQ15", self.context.name(file.path), 0, file.size, reason=reason_of(error))
            for start, stop in failed:
                reported = True
                units.unread.append(_slots(file, start, stop, unit_size))
                if not self.context.layout.has_queues_in_rocksdb:
                    yield finding("CQ15", self.context.name(file.path), start, stop - start)
        error_before = self.check.failed.get(key)
        if error_before is not None and not reported:
            yield finding("CQ15", self.context.name(queue.folder), reason=reason_of(error_before))
        units.unread = merged(units.unread)
        self.context.report.units += units.count

    def _read_file(self, key: Key, reader: UnitReader, file: StoreFile) -> None:
        span = self.check.spans.queues.get(key)
        claimed = merged(span.matched) if span else []
        for first, block in reader.blocks(file, UNIT_SIZE):
            self._block(self.units[key], first, block, claimed)

    def _extension(self, key: Key, reader: UnitReader) -> Iterator[Finding]:
        """Check that a broker can walk the extension files and reaches all units that are named."""
        extension, named = self.context.extension(key, reader), self.units[key].extended_to
        place = {"topic": key[0], "queue_id": key[1]}
        for file in extension.files:
            name = self.context.name(file.path)
            try:
                end = extension.end_of(file)
            except FormatError as error:
                start = error.physical_offset or 0
                yield finding("CQ17", name, start, file.size - start, reason=error.message, **place)
            except FileNotFoundError:
                continue  # it has gone since the folder was listed
            except OSError as error:
                yield finding("CQ15", name, 0, file.size, reason=reason_of(error), **place)
            else:
                named_here = named - file.file_from_offset
                if file is extension.files[-1] and end <= named_here < file.size:
                    yield finding("CQ17", name, end, named_here + EXT_HEAD.size - end, **place)

    def _block(self, units: Units, first: int, block: np.ndarray, claimed: Sequence[tuple[int, int]]) -> None:
        there = present(block)
        slots = np.flatnonzero(there) + first
        if not len(slots):
            return
        if units.last >= 0 and slots[0] > units.last + 1:
            units.add_gap(units.last + 1, int(slots[0]))
        for cut in np.flatnonzero(np.diff(slots) > 1).tolist():
            units.add_gap(int(slots[cut]) + 1, int(slots[cut + 1]))
        units.last = int(slots[-1])
        units.count += len(slots)
        codes = block["tags_code"][there].astype(np.int64)
        named = codes[codes <= MAX_EXT_ADDRESS]
        if len(named):
            units.extended_to = max(units.extended_to, ext_offset(int(named.max())))
        if contains(claimed, int(slots[0]), int(slots[-1]) + 1):
            return
        physical = block["physical_offset"].astype(np.int64)
        loose = there & ~pre_blank(block) & ~inside(claimed, np.arange(first, first + len(block)))
        for mask in self._judged(physical):
            numbers = np.flatnonzero(loose & mask)
            for low, high in runs(numbers):
                start, stop = int(numbers[low]), int(numbers[high - 1])
                units.add_unclaimed(Run(first + start, first + stop, int(physical[start])))

    def _judged(self, physical: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which offsets a unit should have a record for: where the log was walked, and after its end."""
        context = self.context
        behind = (physical >= context.log_end) if context.log_end >= 0 else np.zeros(len(physical), bool)
        walked = inside(self._covered, physical) & ~inside(context.bad, physical)
        return walked & ~behind, behind & (physical >= context.log_start)

    def _read_batch_file(self, key: Key, reader: UnitReader, file: StoreFile) -> None:
        units, span = self.units[key], self.check.spans.queues.get(key)
        claimed = merged(span.matched) if span else []
        for _, block in reader.blocks(file, BATCH_UNIT_SIZE):
            rows = block[present(block)]
            if len(rows):
                self._batch_block(units, rows, claimed)

    def _batch_block(self, units: Units, rows: np.ndarray, claimed: Sequence[tuple[int, int]]) -> None:
        physical = rows["physical_offset"].astype(np.int64)
        base = rows["base_offset"].astype(np.int64)
        ends = base + rows["batch_size"]
        before = units.newest
        # Where two units hold the same offset either may be the wrong one.
        repeats = base < np.append(int(base[0]) if before is None else units.last + 1, ends[:-1])
        doubled = np.diff(physical, prepend=-1 if before is None else before.start) <= 0
        loose = repeats | np.append(repeats[1:], False) | doubled | ~inside(claimed, base)
        if repeats[0] and before is not None:
            units.add_unclaimed(before)
        for mask in self._judged(physical):
            for row in np.flatnonzero(loose & mask).tolist():
                number = int(base[row])
                units.add_unclaimed(Run(number, number, int(physical[row]), bool(doubled[row])))
        units.last = int(ends[-1]) - 1
        units.count += len(rows)
        units.newest = Run(int(base[-1]), int(base[-1]), int(physical[-1]))

    # Judging one queue

    def _queue(
        self, key: Key, span: Span | None, units: Units | None, reader: UnitReader
    ) -> Iterator[Finding]:
        out_of_order, unread = (
            self.out_of_order.get(key, OutOfOrder()),
            units.unread if units is not None else [],
        )
        mismatches = [
            item
            for item in (span.mismatches if span else ())
            if not out_of_order.explains(item)
            and not self.context.all_bad(item.start, item.end)
            and not contains(unread, item.first, item.last + 1)
        ]
        if units is None:
            yield from self._no_files(key, mismatches)
            return
        queue = self.context.layout.consume_queues.get(key)
        if queue is not None and queue.files and self._is_empty(queue.files[-1], units):
            yield finding("CQ12", self.context.name(queue.files[-1].path), 0, queue.files[-1].size)
        missing_files = self._missing_files(key)
        layout = self.context.layout
        has_gaps = layout.has_queues_in_rocksdb or layout.kind == "compacted"  # nothing stops at a gap there
        for low, high in () if has_gaps else units.gaps:
            if not contains(unread, low, high) and not contains(missing_files, low, high):
                yield self._finding("CQ08", key, low, high - 1)
        for item in mismatches:
            if item.kind is UnitFault.MISSING:
                yield from self._missing(key, item, units, missing_files)
            elif item.kind is UnitFault.WRONG:
                yield from self._wrong(key, item, reader)
            else:
                yield self._finding(_SIMPLE[item.kind], key, item.first, item.last, record=item.start)
        reported = [(item.first, item.last + 1) for item in mismatches]
        if key[0] in self.check.batch_topics:  # units are found by the record that they name
            reported += [
                (run.first, run.last + 1) for run in units.unclaimed if _is_named(mismatches, run.start)
            ]
        reported = merged([*reported, *unread])
        for run in units.unclaimed:
            if out_of_order.explains_unit(run.start):
                continue
            if not overlaps(reported, run.first, run.first + 1):
                yield from self._unclaimed(key, run)
            elif span is not None and run.first < span.next <= run.last:
                yield from self._behind_records(key, run._replace(first=span.next), reader)

    def _is_empty(self, file: StoreFile, units: Units) -> bool:
        """Whether a queue's last file holds no unit, although files or units should come before it.

        A broker that is running has just made it.
        """
        if self.context.live or contains(units.unread, *_slots(file, 0, file.size, UNIT_SIZE)):
            return False
        return file.size > 0 and file.file_from_offset > 0 and units.last * UNIT_SIZE < file.file_from_offset

    def _no_files(self, key: Key, mismatches: list[Mismatch]) -> Iterator[Finding]:
        if not mismatches or self._out_of_reach() or not can_be_folder(key[0]) or self._is_unread(key):
            return
        first, last = mismatches[0], mismatches[-1]
        is_dispatched = first.start >= self.context.dispatch_from and self.context.layout.kind != "compacted"
        code = "CQ01" if is_dispatched else "CQ13"
        if code == "CQ13" and self.context.is_deleted(key[0]):
            return
        count = sum(item.last - item.first + 1 for item in mismatches)
        yield self._finding(code, key, first.first, last.last, record=first.start, records=count)

    def _is_unread(self, key: Key) -> bool:
        """Whether a folder that may hold its files could not be listed, which is a finding of its own."""
        failed = {self.context.name(path) for path, _ in self.context.layout.unreadable}
        topic = f"consumequeue/{key[0]}"
        places = ("consumequeue", topic, f"{topic}/{key[1]}")
        return any(place in failed or f"batch{place}" in failed for place in places)

    def _out_of_reach(self) -> bool:
        """Whether there is nothing to compare with: single files, or queues in RocksDB."""
        layout = self.context.layout
        return not layout.has_files_of_queues or not layout.is_whole

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
        layout = self.context.layout
        has_gaps = layout.has_queues_in_rocksdb or layout.kind == "compacted"
        gaps = () if has_gaps else (*units.gaps, *missing_files)
        if any(low <= item.first and item.last < high for low, high in gaps):
            return
        own = layout.queue_logs is not None  # each queue may lag behind the log that it has
        dispatched = item.first > units.last and (own or item.start >= self.context.dispatch_from)
        dispatched &= layout.kind != "compacted"  # a start cuts the log where its queue ends
        if dispatched and isinstance(layout.queue_logs, TieredLogs):  # what is committed is not written again
            dispatched = item.first * UNIT_SIZE >= committed_units(layout.queue_logs, key)
        yield self._finding("CQ01" if dispatched else "CQ02", key, item.first, item.last, record=item.start)

    def _wrong(self, key: Key, item: Mismatch, reader: UnitReader) -> Iterator[Finding]:
        queue = self.context.layout.consume_queues.get(key)
        if queue is None:
            yield self._finding("CQ05", key, item.first, item.last, record=item.start)
            return
        try:
            unit = reader.read(queue, item.first, 1)[0]
            last = int(reader.read(queue, item.last, 1)[0]["physical_offset"])
        except OSError:
            return  # it has gone since it was compared
        named = int(unit["physical_offset"])
        shift = self._shift(key, named, item.first)
        code = "CQ04" if shift else "CQ05"
        detail = {"shift": shift} if shift else {}
        found = self._finding(
            code, key, item.first, item.last, record=item.start, unit_physical_offset=named,
            unit_size=int(unit["size"]), **detail,
        )  # fmt: skip
        yield found if named == item.start else self._with_owner(found, key, named, last)

    def _with_owner(self, found: Finding, key: Key, named: int, last: int, more: str = "") -> Finding:
        """A finding with the queue of the records that its first and last unit lead to, if that is another.

        `more` is said then, too.
        """
        # A light queue has units of records of other queues.
        owner = None if key[0].startswith(LIGHT_PREFIX) else self._owner(named)
        if owner in (None, key) or owner != self._owner(last):
            return found
        one = found.detail["queue_offset"] == found.detail["last_queue_offset"]
        points = "the unit points to a record" if one else "the units point to records"
        return replace(
            found, message=f"{points} of another queue: {owner[0]} queue {owner[1]}{more}",
            detail={**found.detail, "unit_topic": owner[0], "unit_queue_id": owner[1]},
        )  # fmt: skip

    def _behind_records(self, key: Key, run: Run, reader: UnitReader) -> Iterator[Finding]:
        """Units after that of the queue's last record, which are wrong, as are those before them."""
        queue = self.context.layout.consume_queues.get(key)
        if queue is None:
            return
        try:
            first, last = (int(reader.read(queue, slot, 1)[0]["physical_offset"]) for slot in run[:2])
        except OSError:
            return  # it has gone since it was read
        more = f"; the next message would get queue offset {run.last + 1}, and not {run.first}"
        for found in self._unclaimed(key, run._replace(start=first)):
            yield self._with_owner(found, key, first, last, more) if found.problem.code == "CQ14" else found

    def _owner(self, physical_offset: int) -> Key | None:
        """The queue of the record at an offset; None if there is none."""
        found = self.context.store.find(physical_offset)
        return None if found is None else (found.message.topic, found.message.queue_id)

    def _unclaimed(self, key: Key, run: Run) -> Iterator[Finding]:
        context = self.context
        detail = {"unit_physical_offset": run.start}
        if context.log_end >= 0 and run.start >= context.log_end:
            if not context.live:
                yield self._finding("CQ03", key, run.first, run.last, **detail)
            return
        shift = self._shift(key, run.start, run.first)
        if shift is None and context.has_vanished(run.start):
            return
        if shift is None:
            yield self._finding("CQ14", key, run.first, run.last, **detail)
        elif shift or run.doubled:
            yield self._finding("CQ04", key, run.first, run.last, shift=shift, **detail)

    def _shift(self, key: Key, physical_offset: int, slot: int) -> int | None:
        """`slot` minus the queue offset of the record there, when it is one of this queue."""
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
        if queue is None and isinstance(layout.queue_logs, TieredLogs):
            folder = units_name(layout.queue_logs, key) or folder
        return finding(code, folder, None, (last - first + 1) * unit, **place)


def _is_named(mismatches: list[Mismatch], physical_offset: int) -> bool:
    return any(
        item.kind is not UnitFault.MISSING and item.start <= physical_offset < item.end for item in mismatches
    )


def _slots(file: StoreFile, start: int, stop: int, unit_size: int | None) -> tuple[int, int]:
    """The half-open slots of bytes [start, stop) of a file; all of them where they are unknown."""
    if unit_size is None:
        return 0, 1 << 63
    low, high = file.file_from_offset + start, file.file_from_offset + stop
    return low // unit_size, -(-high // unit_size)
