"""Consume queues as rows: one per unit, batch queues included.

What stands between present units without being one is reported as CQ08, a hole between files as CQ10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

from rmqtool import times
from rmqtool.errors import UnreadableError, UsageError
from rmqtool.findings import Report
from rmqtool.formats import consume_queue, java
from rmqtool.formats.consume_queue import BatchUnit, Unit
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.explain import Explanation, explain_structure
from rmqtool.message.rows import Row
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.problems import finding
from rmqtool.queue.consume_queue import AnyQueue, ConsumeQueue, open_queue
from rmqtool.queue.extension import Extension
from rmqtool.read.selection import Selection
from rmqtool.storage.layout import QueueFiles, StoreFile, StoreLayout
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.out_of_reach import report_out_of_reach

FIELDS = (
    "topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code", "deliver_timestamp_ms",
    "deliver_time", "batch_size", "store_timestamp_ms", "store_time", "blank", "file",
)  # fmt: skip
_TABLE_FIELDS: tuple[str, ...] = FIELDS[:6]


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
        report: receives findings; their offset is in bytes from the file's start.
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
            for found in _chosen(self.layout, self.selection):
                extension = Extension(_files_of(self.layout.ext_queues.get(found.key)), files.read)
                queue = open_queue(found, files)
                for number, unit, file in self._units(queue, self.layout.relative(found.folder)):
                    code = extension.tags_code(unit.tags_code)
                    if self._selected(unit, tags, code):
                        yield self._row(queue, number, unit, self.layout.relative(file.path), code)

    def _units(self, queue: AnyQueue, folder: str) -> Iterator[tuple[int, Unit | BatchUnit, StoreFile]]:
        """(number, unit, file) of the present units in order."""
        expected: int | None = None
        before: StoreFile | None = None
        for file in reversed(queue.files) if self.reverse else queue.files:
            if before is not None:
                low, high = (file, before) if self.reverse else (before, file)
                if low.end < high.file_from_offset:
                    self.report(finding("CQ10", folder, None, high.file_from_offset - low.end))
                    expected = None
            before = file
            for number, unit in self._units_of(queue, file):
                if expected is not None and number != expected:
                    self._report_invalid(queue, file, number, expected)
                expected = number + (-1 if self.reverse else 1)
                yield number, unit, file

    def _units_of(self, queue: AnyQueue, file: StoreFile) -> Iterator[tuple[int, Unit | BatchUnit]]:
        numbers = queue.numbers_of(file)
        low, high = numbers.start, numbers.stop
        if isinstance(queue, ConsumeQueue):  # in a batch queue a number is not a queue offset
            low = max(self.selection.from_offset or low, low)
            high = min(self.selection.to_offset or high, high)
        try:
            yield from queue.numbered_in(file, low, high, reverse=self.reverse)
        except UnreadableError as error:
            reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error.message
            self.report(finding("CQ15", self.layout.relative(file.path), 0, file.size, reason=reason))

    def _report_invalid(self, queue: AnyQueue, file: StoreFile, number: int, expected: int) -> None:
        low, high = (number + 1, expected + 1) if self.reverse else (expected, number)
        start = low * queue.unit_size - file.file_from_offset
        size = (high - low) * queue.unit_size
        self.report(finding("CQ08", self.layout.relative(file.path), max(start, 0), size))

    def _selected(self, unit: Unit | BatchUnit, tags: set[int], code: int | None) -> bool:
        if isinstance(unit, BatchUnit):
            start, stop = self.selection.from_offset, self.selection.to_offset
            if start is not None and unit.base_offset + unit.batch_size <= start:
                return False
            if stop is not None and unit.base_offset >= stop:
                return False
        elif unit.is_pre_blank:
            return self.gaps
        return not tags or code is None or code in tags  # as a broker matches what it cannot read

    def _row(self, queue: AnyQueue, number: int, unit: Unit | BatchUnit, file: str, code: int | None) -> Row:
        batch = isinstance(unit, BatchUnit)
        row: Row = {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "queue_offset": queue.queue_offset(number, unit),
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


def _files_of(queue: QueueFiles | None) -> tuple[StoreFile, ...]:
    return () if queue is None else queue.files


def _chosen(layout: StoreLayout, selection: Selection) -> Iterator[QueueFiles]:
    """The selected queues; in a single file that was taken for one the names are not tested."""
    for queue in sorted(layout.unit_queues, key=lambda queue: queue.key):
        chosen = not selection.queues or queue.queue_id in selection.queues
        if chosen and selection.matches_topic(queue.topic):
            yield queue


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
    chosen = list(_chosen(layout, selection))
    if len(chosen) != 1 or chosen[0].is_batch:
        raise UsageError(
            f"{len(chosen)} queues are selected, the unit of one consume queue can be explained"
            if len(chosen) != 1
            else "the unit of a batch consume queue cannot be explained",
            hint="give --topic and --queue that select one queue",
        )
    with OpenFiles() as files:
        queue = open_queue(chosen[0], files)
        file = queue.file_of(queue_offset)
        if file is None:
            raise UnreadableError(
                f"no file of the queue holds queue offset {queue_offset}", path=chosen[0].folder
            )
        data = queue.data(file, queue_offset, queue_offset + 1)
    start = queue_offset * queue.unit_size - file.file_from_offset
    return explain_structure(consume_queue.UNIT.declaration, data, start, tz)
