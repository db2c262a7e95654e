"""Consume queues as rows: one per unit, batch queues included.

Files are read block by block; blocks of zeros, the unused end of a file, are passed over. What
stands between present units without being one is told as CQ08, a hole between files as CQ10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any

from rmqtool import times
from rmqtool.errors import UnreadableError, UsageError
from rmqtool.findings import Report
from rmqtool.formats import consume_queue, java
from rmqtool.formats.consume_queue import BatchUnit, Unit
from rmqtool.message.explain import Explanation, explain_structure
from rmqtool.message.rows import Row
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.problems import finding
from rmqtool.queue.extension import Extension
from rmqtool.read.selection import Selection
from rmqtool.storage.layout import QueueFiles, StoreFile, StoreLayout
from rmqtool.storage.open_files import OpenFiles, data_ranges, pread, reading
from rmqtool.storage.out_of_reach import report_out_of_reach

if TYPE_CHECKING:
    from rmqtool.storage.random_file import RandomFile

FIELDS = (
    "topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code", "deliver_timestamp_ms",
    "deliver_time", "batch_size", "store_timestamp_ms", "store_time", "blank", "file",
)  # fmt: skip
_TABLE_FIELDS: tuple[str, ...] = FIELDS[:6]
_BLOCK_UNITS = 4096


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the units of a queue are read. `numbers`: unit n has queue offset n."""

    unit_size: int
    decode: Callable[[bytes], Iterator[Any]]
    numbers: bool


_UNITS = _Kind(consume_queue.UNIT_SIZE, consume_queue.decode_units, True)
_BATCH_UNITS = _Kind(consume_queue.BATCH_UNIT_SIZE, consume_queue.decode_batch_units, False)


def table_fields(rows: Sequence[Mapping[str, Any]], *, gaps: bool = False) -> Sequence[str]:
    """The columns of a table that begins with `rows`: units of delayed messages hold the time of delivery."""
    due = ["deliver_time" in row for row in rows]
    fields = _TABLE_FIELDS[:5] if all(due) else _TABLE_FIELDS
    fields += ("deliver_time",) if any(due) else ()
    return (*fields, "blank") if gaps else fields


def queue_rows(
    layout: StoreLayout,
    selection: Selection,
    report: Report,
    *,
    tz: tzinfo | None = UTC,
    reverse: bool = False,
    gaps: bool = False,
) -> Iterator[Row]:
    """Rows of the units of the selected queues, queue by queue.

    Args:
        layout: the store's files.
        selection: topics, queues, tags (compared by their hash) and limit; `from_offset` and
            `to_offset` are queue offsets here.
        report: told about bad places; their offset is in bytes from the file's start.
        tz: zone of the times; None is the local zone.
        reverse: the newest unit of each queue first.
        gaps: also the fillers that a broker writes before the first unit of a queue.

    Raises:
        UsageError: a test that a unit has nothing for: keys, times.
    """
    if selection.keys or selection.since is not None or selection.until is not None:
        raise UsageError("a consume queue unit has no key and no time of its message")
    report_out_of_reach(layout, "consume queues", report)
    reader = _Reader(layout, selection, report, tz, reverse, gaps)
    left = selection.limit
    for row in reader.rows():
        if left == 0:
            return
        left = None if left is None else left - 1
        yield row


@dataclass(frozen=True)
class _Reader:
    layout: StoreLayout
    selection: Selection
    report: Report
    tz: tzinfo | None
    reverse: bool
    gaps: bool

    def rows(self) -> Iterator[Row]:
        tags = {java.tags_code(tag) for tag in self.selection.tags}
        with OpenFiles() as files:
            for queue, kind in _chosen(self.layout, self.selection):
                found = self.layout.ext_queues.get((queue.topic, queue.queue_id))
                extension = Extension(() if found is None else found.files, files.read)
                for number, unit, file in self._units(queue, kind):
                    code = extension.tags_code(unit.tags_code)
                    if self._selected(number, unit, tags, code):
                        yield self._row(queue, number, unit, self.layout.relative(file.path), code)

    def _units(self, queue: QueueFiles, kind: _Kind) -> Iterator[tuple[int, Unit | BatchUnit, StoreFile]]:
        """(number, unit, file) of the present units in order; the number is unit n of the queue."""
        expected: int | None = None
        before: StoreFile | None = None
        for file in reversed(queue.files) if self.reverse else queue.files:
            if before is not None:
                low, high = (file, before) if self.reverse else (before, file)
                if low.end < high.file_from_offset:
                    path = self.layout.relative(queue.folder)
                    self.report(finding("CQ10", path, None, high.file_from_offset - low.end))
                    expected = None
            before = file
            for number, unit in self._units_of(file, kind):
                if expected is not None and number != expected:
                    self._tell_invalid(file, kind, number, expected)
                expected = number + (-1 if self.reverse else 1)
                yield number, unit, file

    def _units_of(self, file: StoreFile, kind: _Kind) -> Iterator[tuple[int, Unit | BatchUnit]]:
        first, total = file.file_from_offset // kind.unit_size, file.size // kind.unit_size
        low, high = 0, total
        if kind.numbers:  # elsewhere a unit's place does not tell its queue offset
            low = max((self.selection.from_offset or 0) - first, 0)
            high = min(total, (self.selection.to_offset or first + total) - first)
        try:
            with reading(file.path) as opened:
                blocks = list(_blocks(opened, file.size, kind.unit_size, low, high))
                for start, count in reversed(blocks) if self.reverse else blocks:
                    data = pread(opened, count * kind.unit_size, start * kind.unit_size)
                    if data.count(0) == len(data):
                        continue
                    units = list(kind.decode(data))
                    for place in reversed(range(len(units))) if self.reverse else range(len(units)):
                        if units[place].is_present:
                            yield first + start + place, units[place]
        except OSError as error:
            name = self.layout.relative(file.path)
            self.report(finding("CQ15", name, 0, file.size, reason=error.strerror))

    def _tell_invalid(self, file: StoreFile, kind: _Kind, number: int, expected: int) -> None:
        low, high = (number + 1, expected + 1) if self.reverse else (expected, number)
        start = low * kind.unit_size - file.file_from_offset
        size = (high - low) * kind.unit_size
        self.report(finding("CQ08", self.layout.relative(file.path), max(start, 0), size))

    def _selected(self, number: int, unit: Unit | BatchUnit, tags: set[int], code: int | None) -> bool:
        if isinstance(unit, BatchUnit):
            start, stop = self.selection.from_offset, self.selection.to_offset
            if start is not None and unit.base_offset + unit.batch_size <= start:
                return False
            if stop is not None and unit.base_offset >= stop:
                return False
        elif unit.is_pre_blank:
            return self.gaps
        return not tags or code is None or code in tags  # as a broker matches what it cannot read

    def _row(
        self, queue: QueueFiles, number: int, unit: Unit | BatchUnit, file: str, code: int | None
    ) -> Row:
        batch = isinstance(unit, BatchUnit)
        row: Row = {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "queue_offset": unit.base_offset if isinstance(unit, BatchUnit) else number,
            "physical_offset": unit.physical_offset,
            "size": unit.size,
            "tags_code": unit.tags_code,
        }
        if queue.topic == SCHEDULE_TOPIC and not batch:
            row["deliver_timestamp_ms"] = code
            row["deliver_time"] = None if code is None else times.format_time(code, self.tz)
        if isinstance(unit, BatchUnit):
            row["batch_size"] = unit.batch_size
            row["store_timestamp_ms"] = unit.store_timestamp
            row["store_time"] = times.format_time(unit.store_timestamp, self.tz)
        elif unit.is_pre_blank:
            row["blank"] = True
        row["file"] = file
        return row


def _blocks(opened: RandomFile, size: int, unit_size: int, low: int, high: int) -> Iterator[tuple[int, int]]:
    """(first unit, number of units) of the blocks of units [low, high) that are no hole in the file."""
    for data_start, data_stop in data_ranges(opened, size):
        start, stop = max(low, data_start // unit_size), min(high, -(-data_stop // unit_size))
        for first in range(start, stop, _BLOCK_UNITS):
            yield first, min(_BLOCK_UNITS, stop - first)


def _chosen(layout: StoreLayout, selection: Selection) -> Iterator[tuple[QueueFiles, _Kind]]:
    """The selected queues; in a single file that was taken for one the names are not tested."""
    kinds = [(queue, _UNITS) for queue in layout.consume_queues.values()]
    kinds += [(queue, _BATCH_UNITS) for queue in layout.batch_queues.values()]
    for queue, kind in sorted(kinds, key=lambda pair: (pair[0].topic, pair[0].queue_id)):
        chosen = not selection.queues or queue.queue_id in selection.queues
        if chosen and selection.matches_topic(queue.topic):
            yield queue, kind


def explain_unit(
    layout: StoreLayout, selection: Selection, queue_offset: int, tz: tzinfo | None = UTC
) -> Explanation:
    """One consume queue unit, field by field.

    Args:
        layout: the store's files.
        selection: topics and queues that select a single queue.
        queue_offset: the unit's queue offset.
        tz: zone of the times; None is the local zone.

    Raises:
        UsageError: more or fewer than one queue is selected, or a batch queue.
        UnreadableError: the file cannot be read, or no file holds the offset.
    """
    chosen: Sequence[tuple[QueueFiles, _Kind]] = list(_chosen(layout, selection))
    if len(chosen) != 1 or not chosen[0][1].numbers:
        raise UsageError(
            f"{len(chosen)} queues are selected, the unit of one consume queue can be explained"
            if len(chosen) != 1
            else "the unit of a batch consume queue cannot be explained",
            hint="give --topic and --queue that select one queue",
        )
    position = queue_offset * consume_queue.UNIT_SIZE
    for file in chosen[0][0].files:
        if file.file_from_offset <= position < file.end:
            start = position - file.file_from_offset
            try:
                with reading(file.path) as opened:
                    data = pread(opened, consume_queue.UNIT_SIZE, start)
            except OSError as error:
                raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
            return explain_structure(consume_queue.UNIT.declaration, data, start, tz)
    raise UnreadableError(f"no file of the queue holds queue offset {queue_offset}", path=chosen[0][0].folder)
