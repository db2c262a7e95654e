"""Counts of messages per topic and queue.

A whole log goes through the compiled walk, window by window. A selection by tag or key, and a log
that is smaller than what loading the kernels costs, is counted record by record; both ways give the
same rows and report the same bad places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any

from rmqtool import times
from rmqtool.errors import UnreadableError
from rmqtool.findings import Progress, Report, ScanCounters
from rmqtool.log.commit_log import StoredBlank, StoredDamage, StoredMessage, StoredZeros
from rmqtool.log.damage import DamageClassifier, FileFindings
from rmqtool.log.events import Blank, CorruptRange, TrailingZeros
from rmqtool.message.rows import Row
from rmqtool.problems import Finding, finding
from rmqtool.read.log_items import CODE_BY_STATUS, end_of_selection, log_items, record_findings
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.out_of_reach import report_out_of_reach
from rmqtool.storage.ranges import Unreadable
from rmqtool.storage.source import open_source

if TYPE_CHECKING:
    import numpy as np

    from rmqtool.log.frames import Frames

FIELDS = (
    "topic", "queue_id", "count", "bytes", "body_bytes", "min_queue_offset", "max_queue_offset",
    "first_physical_offset", "last_physical_offset", "first_store_timestamp_ms", "first_store_time",
    "last_store_timestamp_ms", "last_store_time",
)  # fmt: skip
TABLE_FIELDS = (*FIELDS[:7], "first_store_time", "last_store_time")
COMPILED_FROM_BYTES = 16 << 20
_EXTREMES = ("queue_offset", "physical_offset", "store_timestamp")

Key = tuple[str, int]


@dataclass(slots=True)
class Count:
    """The selected records of one queue.

    `low` and `high` are the smallest and largest queue offset, physical offset and store timestamp.
    """

    count: int
    bytes: int
    body_bytes: int
    low: tuple[int, ...]
    high: tuple[int, ...]

    def add(self, other: Count) -> None:
        """Counts the records of `other` too."""
        self.count += other.count
        self.bytes += other.bytes
        self.body_bytes += other.body_bytes
        self.low = tuple(map(min, self.low, other.low))
        self.high = tuple(map(max, self.high, other.high))

    def row(self, topic: str, queue_id: int, tz: tzinfo | None) -> Row:
        """The row of the queue."""
        *places, first, last = (value for pair in zip(self.low, self.high, strict=True) for value in pair)
        spelled = (each for time in (first, last) for each in (time, times.format_time(time, tz)))
        values = (topic, queue_id, self.count, self.bytes, self.body_bytes, *places, *spelled)
        return dict(zip(FIELDS, values, strict=True))


def count_rows(
    store: Store,
    selection: Selection,
    report: Report,
    progress: Progress | None = None,
    *,
    tz: tzinfo | None = UTC,
    looked: ScanCounters | None = None,
    compiled_from_bytes: int = COMPILED_FROM_BYTES,
) -> Iterator[Row]:
    """Counts of the selected messages per topic and queue, in the order of their names.

    Args:
        store: the store.
        selection: which messages; `limit` counts messages.
        report: told about bad places.
        progress: told about the bytes that were passed.
        tz: zone of the times; None is the local zone.
        looked: told about the records that were looked at.
        compiled_from_bytes: logs from this size on go through the compiled walk.

    Sizes are in bytes as stored; times are ms since 1970.
    """
    report_out_of_reach(store.layout, "commit log", report)
    size = sum(file.size for file in store.layout.commit_log)
    simple = not selection.looks_at_properties and selection.limit is None
    looked = ScanCounters() if looked is None else looked
    counts: dict[Key, Count] = {}
    if simple and size >= compiled_from_bytes:
        found = _compiled(store, selection, report, progress or (lambda _: None), looked)
    else:
        found = _one_by_one(store, selection, report, progress, looked)
    for key, count in found:
        have = counts.get(key)
        if have is None:
            counts[key] = count
        else:
            have.add(count)
    for (topic, queue_id), count in sorted(counts.items(), key=lambda pair: pair[0]):
        if topic in selection.topics:
            looked.topics.add(topic)
        yield count.row(topic, queue_id, tz)


def _one_by_one(
    store: Store, selection: Selection, report: Report, progress: Progress | None, looked: ScanCounters
) -> Iterator[tuple[Key, Count]]:
    for item in log_items(store, selection, progress=progress, looked=looked):
        if isinstance(item, Finding):
            report(item)
        elif isinstance(item, StoredMessage):
            for each in record_findings(item, []):
                report(each)
            record = item.message
            extremes = (record.queue_offset, item.physical_offset, record.store_timestamp)
            count = Count(1, record.total_size, max(record.body_length, 0), extremes, extremes)
            yield (record.topic, record.queue_id), count


def _compiled(
    store: Store, selection: Selection, report: Report, progress: Progress, looked: ScanCounters
) -> Iterator[tuple[Key, Count]]:
    stop = end_of_selection(store, selection)
    judge = DamageClassifier(store.commit_log, store.end_offset)
    files = FileFindings(store.layout, selection.from_offset or 0, stop, reverse=False)
    for file in store.layout.commit_log:
        before = selection.from_offset is not None and file.end <= selection.from_offset
        if before or not file.size or (stop is not None and file.file_from_offset >= stop):
            continue
        for each in files.passed(file.file_from_offset):
            report(each)
        yield from _one_file(store, file, selection, stop, judge, report, looked)
        progress(file.size)
    for each in files.passed(None):
        report(each)


def _one_file(
    store: Store,
    file: StoreFile,
    selection: Selection,
    stop: int | None,
    judge: DamageClassifier,
    report: Report,
    looked: ScanCounters,
) -> Iterator[tuple[Key, Count]]:
    from rmqtool.log.frames import Frames, walk

    base, name = file.file_from_offset, store.layout.relative(file.path)
    end = file.size if stop is None else min(file.size, stop - base)
    try:
        source = open_source(file.path, listed_size=file.size)
    except (OSError, UnreadableError):
        report(finding("CL12", name, base, file.size))
        return
    with closing(source):
        unread = Unreadable()
        told = 0
        for event in walk(source, file_from_offset=base, stop=end):
            for start, last in source.unreadable[told:]:
                told += 1
                unread.note(start, last)
                report(finding("CL12", name, base + start, last - start))
            if isinstance(event, Frames):
                stored = event.rows["store_timestamp"]
                looked.add(len(stored), int(stored.min()), int(stored.max()))
                yield from _frames(event, selection, name, report)
            else:
                found = _stored(event, file, name, unread)
                if selection.matches_offset(found.physical_offset):
                    for each in judge(found):
                        report(each)
        for start, last in source.unreadable[told:]:
            report(finding("CL12", name, base + start, last - start))


def _stored(
    event: Blank | TrailingZeros | CorruptRange, file: StoreFile, name: str, unread: Unreadable
) -> StoredBlank | StoredZeros | StoredDamage:
    offset = file.file_from_offset + event.position
    if isinstance(event, Blank):
        return StoredBlank(offset, event.size, file.path, name)
    if unread.touches(event.position, event.position + event.length):
        to_end = isinstance(event, TrailingZeros) or event.to_end
        return StoredDamage(offset, event.length, file.path, name, None, to_end)
    if isinstance(event, TrailingZeros):
        return StoredZeros(offset, event.length, file.path, name)
    return StoredDamage(offset, event.length, file.path, name, event.reason, event.to_end)


def _frames(frames: Frames, selection: Selection, name: str, report: Report) -> Iterator[tuple[Key, Count]]:
    import numpy as np

    topics = [topic.decode("utf-8", "replace") for topic in frames.topics]
    rows = frames.rows[_selected(frames, topics, selection)]
    for row in rows[rows["status"] != 0]:
        for bit, code in CODE_BY_STATUS:
            if row["status"] & bit:
                report(finding(code, name, int(row["physical_offset"]), int(row["size"])))
    if not len(rows):
        return
    keys = rows["topic_id"].astype(np.int64) << 32 | rows["queue_id"].astype(np.int64) & 0xFFFFFFFF
    order = np.argsort(keys, kind="stable")
    rows, keys = rows[order], keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    totals: list[Any] = [np.diff(starts, append=len(rows))]
    bodies = np.maximum(rows["body_length"], 0)
    totals += [np.add.reduceat(values.astype(np.int64), starts) for values in (rows["size"], bodies)]
    low = [np.minimum.reduceat(rows[field], starts) for field in _EXTREMES]
    high = [np.maximum.reduceat(rows[field], starts) for field in _EXTREMES]
    for number, start in enumerate(starts):

        def at(columns: list[Any], number: int = number) -> tuple[int, ...]:
            return tuple(int(column[number]) for column in columns)

        count, size, body_bytes = at(totals)
        key = topics[rows["topic_id"][start]], int(rows["queue_id"][start])
        yield key, Count(count, size, body_bytes, at(low), at(high))


def _selected(frames: Frames, topics: list[str], selection: Selection) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows match; the selection has neither tags nor keys."""
    import numpy as np

    rows = frames.rows
    by_topic = np.fromiter(map(selection.matches_topic, topics), np.bool_, len(topics))
    chosen: np.ndarray[Any, np.dtype[np.bool_]] = by_topic[rows["topic_id"]]
    if selection.queues:
        chosen &= np.isin(rows["queue_id"], list(selection.queues))
    times = rows["store_timestamp" if selection.time_field == "store" else "born_timestamp"]
    tests: list[tuple[int | None, Callable[[int], Any]]] = [
        (selection.since, lambda low: times >= low),
        (selection.until, lambda high: times < high),
        (selection.from_offset, lambda low: rows["physical_offset"] >= low),
        (selection.to_offset, lambda high: rows["physical_offset"] < high),
    ]
    for bound, test in tests:
        if bound is not None:
            chosen &= test(bound)
    return chosen
