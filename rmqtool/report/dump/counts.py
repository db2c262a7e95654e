"""Counts of messages per topic and queue.

A whole log goes through the compiled walk, window by window. A selection by tag or key, and a log
that is smaller than what loading the kernels costs, is counted record by record; both ways give the
same rows and report the same findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any

from rmqtool import times
from rmqtool.findings import Progress, Report, ScanCounters
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import StoredMessage
from rmqtool.message.rows import Row
from rmqtool.problems import Finding
from rmqtool.read.log_items import log_items, record_findings
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.out_of_reach import report_out_of_reach

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
        report: called for each damaged range.
        progress: called with the bytes that were passed.
        tz: zone of the times; None is the local zone.
        looked: counts the records that were examined.
        compiled_from_bytes: logs from this size on go through the compiled walk.

    Sizes are in bytes as stored; times are ms since 1970.
    """
    size = sum(file.size for file in store.layout.commit_log)
    simple = not selection.looks_at_properties and selection.limit is None
    looked = ScanCounters() if looked is None else looked
    counts: dict[Key, Count] = {}
    if simple and size >= compiled_from_bytes:
        found = _compiled(store, selection, report, progress, looked)
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
    report_out_of_reach(store.layout, "commit log", report)
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
    store: Store, selection: Selection, report: Report, progress: Progress | None, looked: ScanCounters
) -> Iterator[tuple[Key, Count]]:
    from rmqtool.read.access import plan_access
    from rmqtool.read.messages import frame_batches

    # Also what lies outside of the times is checked, as it is record by record.
    access = plan_access(store, replace(selection, since=None, until=None), via="log")
    batches = frame_batches(store, selection, access=access, report=report, progress=progress, looked=looked)
    for frames, mask, _ in batches:
        topics = [topic.decode("utf-8", "replace") for topic in frames.topics]
        yield from _counts(frames.rows[mask], topics)


def _counts(rows: Any, topics: list[str]) -> Iterator[tuple[Key, Count]]:
    """The counts of these rows, at least one, queue by queue."""
    import numpy as np

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
