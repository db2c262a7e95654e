"""The commit log item by item: selected records, and what lies between them.

Everything is read in plain Python, record by record. For a range that `is_small` this is the fastest way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from rmqtool.findings import BatchRecords, Progress, ScanCounters
from rmqtool.formats import body, properties
from rmqtool.formats.message import INNER_BATCH
from rmqtool.log.damage import DamageClassifier, FileFindings, codes_of, log_missing
from rmqtool.log.events import Blank, StoredMessage, TrailingZeros
from rmqtool.message.rows import OK, Row, RowFormat, message_row
from rmqtool.problems import Finding, finding
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.open_files import data_ranges, reading

Item = StoredMessage | Blank | TrailingZeros | Finding

PLAIN_BYTES = 768 << 10
"""Bytes of log that plain Python reads sooner than the compiled walk is loaded."""
_PROGRESS_STEP = 1 << 20


def is_small(store: Store, start: int | None, stop: int | None) -> bool:
    """Whether the log holds at most PLAIN_BYTES in [start, stop), physical offsets; holes do not count."""
    left = PLAIN_BYTES
    for file in store.commit_log.files:
        low = max(file.file_from_offset, start or 0) - file.file_from_offset
        high = (file.end if stop is None else min(file.end, stop)) - file.file_from_offset
        if high - low <= left:
            left -= max(high - low, 0)
            continue
        if not store.is_local:
            return False
        with suppress(OSError), reading(file.path) as opened:  # what cannot be read is reported by the walk
            for first, last in data_ranges(opened, high):
                left -= max(last - max(first, low), 0)
                if left < 0:
                    return False
    return True


def end_of_selection(store: Store, selection: Selection) -> int | None:
    """Where a walk stops: the selection's end; on a live store the log's end, if that comes first."""
    if not store.live:
        return selection.to_offset
    end = store.end_offset()
    return end if selection.to_offset is None else min(end, selection.to_offset)


def log_items(
    store: Store,
    selection: Selection,
    *,
    reverse: bool = False,
    progress: Progress | None = None,
    looked: ScanCounters | None = None,
    pause: int | None = None,
) -> Iterator[Item]:
    """The selected messages, and all blanks, zeros and damaged ranges of the selected offsets, in order.

    Zeros are the unused rest of a file, or all of a file that was made ahead. A damaged range is a `Finding`;
    damage in a record that was read is in its `status`. On a live store nothing from the log's end on is
    read, for a broker is writing there. `progress` is called for every megabyte that was passed,
    `looked` counts every record.

    With `pause`, a physical offset, the walk ends early with the first record that ends there or later;
    backwards, with the first that begins there or earlier. `looked.paused` is then where that record ends,
    backwards where it begins, and a walk from there yields the rest.
    """
    looked = ScanCounters() if looked is None else looked
    stop = end_of_selection(store, selection)
    if store.layout.lacks_log:
        yield log_missing(store.layout)
    judge = DamageClassifier(store.commit_log, store.end_offset)
    files = FileFindings(store.layout, selection.from_offset or 0, stop, reverse=reverse)
    left = selection.limit
    reached: int | None = None
    for event in store.events(selection.from_offset, stop, reverse=reverse):
        if left == 0:
            return
        if progress is not None:
            reached = event.physical_offset if reached is None else reached
            if (passed := abs(event.physical_offset - reached)) > _PROGRESS_STEP:
                progress(passed)
                reached = event.physical_offset
        yield from (each for _, each in files.passed(event.physical_offset))
        if isinstance(event, StoredMessage):
            looked.add(1, event.message.store_timestamp, event.message.store_timestamp)
            if selection.matches(event.message, event.physical_offset):
                left = None if left is None else left - 1
                if event.message.topic in selection.topics:
                    looked.topics.add(event.message.topic)
                if event.message.sys_flag & INNER_BATCH:
                    found = properties.decode(event.message.properties_bytes)
                    one = BatchRecords(1, properties.batch_count(found), {event.message.topic})
                    looked.batches.add(one)
                yield event
            at = event.physical_offset if reverse else event.end
            if pause is not None and (at <= pause if reverse else at >= pause):
                looked.paused = at
                return
            continue
        yield from judge.between(event)
    yield from (each for _, each in files.passed(None))


def record_findings(item: StoredMessage, status: list[str]) -> Iterator[Finding]:
    """Findings on a record: those of the walk, and those of its row's `status`."""
    codes = [code for code in status if code != OK]
    for code in dict.fromkeys(codes_of(item.status) + codes):
        message, detail = item.message, {}
        if code == "UN01":
            detail["reason"] = body.missing_codec(message.body, message.sys_flag)
        yield finding(code, item.file, item.physical_offset, message.total_size, **detail)


def found_rows(store: Store, physical_offsets: Iterable[int], form: RowFormat) -> Iterator[Row]:
    """The rows of the records at these places; none for one whose file was deleted meanwhile."""
    for physical_offset in physical_offsets:
        found = store.find(physical_offset)
        if found is not None:
            yield message_row(found.message, physical_offset, store.layout.relative(found.path), form)
