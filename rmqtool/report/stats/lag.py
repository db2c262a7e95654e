"""The messages that consumer groups have not consumed, from consumerOffset.json and the queues.

    lag       messages from the committed offset (or the first one that still exists) to the queue's end
    lost      messages after the committed offset that were deleted before the group consumed them
    ahead     how far the committed offset is beyond the end of the queue, which was created again

The lag in a queue for which a group has no offset is unknown (`never_committed`), except in the group's own
retry topic: there its consumers begin with the first message, so that it lags by all of them. A row of
several queues is `never_committed` only if the group has no offset in any of them, otherwise `partial`.

The lag of a group that is ahead in a queue with messages is unknown there: its offset counts messages that
are gone, or is wrong. So is the lag in a queue from which a group has consumed, but which has no files
(`queue_lost`). A queue without files is empty for a group whose offset is 0; a deleted topic (`no_topic`) has
no lag.

Lag counts all messages of the queue, also those that a filtered subscription skips. Bytes are the sizes of
the records, from the queue's units; only units after the committed offset are read.

`reads_from` is the broker's own estimate whether it would read the next message from memory: it compares
the distance to the end of the log with a part of the machine's memory (accessMessageInMemoryMaxRatio, 40 %).

The lag at an earlier time (`--at`) is computed as far as the files still show it. The store times of records
give the ends of the queues and of the log at that time, and op records show which transactions were finished.
Files that were deleted since are unknown, and so are offsets that consumers committed in between:
consumerOffset.json has only the offsets of its own last change.

Source: ConsumerOffsetManager, DefaultMessageStore#estimateInMemByCommitOffset; spec 02 8.2.
RebalancePushImpl#computePullFromWhereWithException (retry topics).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import tzinfo
from typing import Any

import numpy as np

from rmqtool import times
from rmqtool.errors import UnreadableError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.rows import Row
from rmqtool.message.system_topics import RETRY_PREFIX, is_system_topic
from rmqtool.queue.consume_queue import AnyQueue, BatchConsumeQueue
from rmqtool.queue.units import UnitReader
from rmqtool.read.by_time import first_stored
from rmqtool.read.consumer_offsets import consumer_offsets, offsets_are_lost, with_retry_groups
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.ends import consumed_without_files


@dataclass(frozen=True, slots=True)
class Past:
    """A store at a time in the past.

    `time_ms` is exclusive: a record stored in that millisecond does not exist yet. `log_end` is the physical
    offset where the log ended then. `offsets_known` is whether no committed offset has changed since.
    `unknown` lists what cannot be known, as texts.
    """

    time_ms: int
    log_end: int
    offsets_known: bool
    unknown: tuple[str, ...]


def look_back(store: Store, time_ms: int) -> Past:
    """The store at a time, ms since 1970."""
    unknown = []
    start = store.commit_log.min_offset
    if start > 0:
        unknown.append(f"records below physical offset {start}: their files were deleted since, or before")
    offsets_known = False
    folder = store.layout.config_folder
    if folder is not None and store.layout.kind == "store":
        try:
            changed = (folder / "consumerOffset.json").stat().st_mtime_ns // 1_000_000
            offsets_known = changed < time_ms and not store.live
        except OSError:
            offsets_known = False
        if not offsets_known:
            unknown.append("offsets that consumers had committed: consumerOffset.json was written later")
    ends = [start, *(_end_at(store, queue, time_ms) for queue in store.queues.values())]
    return Past(time_ms, max(ends), offsets_known, tuple(unknown))


def _end_at(store: Store, queue: AnyQueue, time_ms: int) -> int:
    """The physical offset after the queue's last record that was stored before a time; -1 if none."""
    try:
        unit = queue.unit(offset_at(store, queue, time_ms) - 1)
    except UnreadableError:
        return -1
    return -1 if unit is None or unit.is_pre_blank else unit.physical_offset + unit.size


def offset_at(store: Store, queue: AnyQueue, time_ms: int) -> int:
    """The queue offset where a queue ended at a time: that of its first message stored then or later.

    See `first_stored`. Raises UnreadableError.
    """
    end = queue.end()
    return queue.offset_at(first_stored(store, queue, time_ms, end), end)


MEMORY_RATIO = 40
"""Percent of the memory that the broker expects to be page cache (accessMessageInMemoryMaxRatio)."""
FIELDS = (
    "group", "topic", "queue_id", "queues", "min_offset", "max_offset", "committed_offset", "lag_messages",
    "lag_bytes", "lag_messages_min", "lag_messages_max", "lost_messages", "ahead_messages",
    "oldest_timestamp_ms", "oldest_time", "age_ms", "distance_bytes", "reads_from", "status",
    "lost_queues", "ahead_queues",
)  # fmt: skip
_NAMES = {"group": "group", "topic": "topic", "queue": "queue_id"}
_TABLE_FIELDS = ("lag_messages", "lag_bytes", "lost_messages", "oldest_time", "reads_from", "status")
QUEUE_LOST, AHEAD = "queue_lost", "ahead"
NEVER_COMMITTED, PARTIAL = "never_committed", "partial"
_NOT_READ = {NEVER_COMMITTED, "no_topic", "no_group", "offsets_missing", AHEAD}


def fields(by: Sequence[str]) -> tuple[str, ...]:
    """The names of the fields of a row by `group`, `topic`, `queue`."""
    left_out = {name for word, name in _NAMES.items() if word not in by}
    return tuple(name for name in FIELDS if name not in left_out)


def table_fields(by: Sequence[str]) -> tuple[str, ...]:
    """The fields that a table shows."""
    offsets = ("committed_offset", "min_offset", "max_offset") if "queue" in by else ("queues",)
    return (*(name for word, name in _NAMES.items() if word in by), *offsets, *_TABLE_FIELDS)


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker's machine: bytes of memory (None if unknown), percent of it that counts as page cache."""

    memory_bytes: int | None = None
    ratio: int = MEMORY_RATIO

    def reads_from(self, distance_bytes: int) -> str | None:
        """`memory` or `disk` for a message `distance_bytes` before the log's end; None if unknown."""
        if self.memory_bytes is None:
            return None
        return "disk" if distance_bytes > self.memory_bytes * self.ratio // 100 else "memory"


def this_broker(store: Store, memory_bytes: int | None) -> Broker:
    """The broker of a store: the given memory, else that of this machine; the ratio from broker.conf."""
    if memory_bytes is None:
        try:
            memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            memory_bytes = None
    conf = store.layout.broker_conf
    text = conf.text("accessMessageInMemoryMaxRatio") if conf is not None else None
    ratio = int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 4 else None
    return Broker(memory_bytes, MEMORY_RATIO if ratio is None else ratio)


@dataclass(slots=True)
class QueueLag:
    """The lag of one group in one queue; see the module. Unknown values are None.

    Without a group, no group has an offset for the topic (`status` is `no_group`), or the offsets are lost
    (`offsets_missing`).
    """

    group: str | None
    topic: str
    queue_id: int
    min_offset: int | None = None
    max_offset: int | None = None
    committed: int | None = None
    messages: int | None = None
    bytes: int | None = None
    at_least: int | None = None
    at_most: int | None = None
    lost: int | None = None
    ahead: int | None = None
    oldest_ms: int | None = None
    distance: int | None = None
    status: set[str] = field(default_factory=set)


def group_lags(
    store: Store, selection: Selection, past: Past | None = None, *, sizes: bool = True
) -> Iterator[QueueLag]:
    """The lag of every group in every queue of the topics for which it committed an offset.

    A group that is known only from the name of its retry topic counts too, as in `expire`.
    Ordered by group, topic and queue. Only topics and queues of the selection count. If the group never
    committed for a queue, its `status` is `never_committed`. Last come named topics
    for which no group has an offset; if the file with the offsets is missing, all topics, because their lag
    is unknown. Without `sizes` the lag in bytes is left out: it takes a read of every unit of the lag.

    Raises:
        UnsupportedStoreError: the queues are in RocksDB.
        InputError, UsageError: see `consumer_offsets`.
    """
    by_topic: dict[str, list[int]] = {}
    for topic, queue_id in store.queues:
        by_topic.setdefault(topic, []).append(queue_id)
    status = "offsets_missing" if offsets_are_lost(store) else "no_group"
    offsets = consumer_offsets(store)
    if status == "no_group":
        offsets = with_retry_groups(offsets, by_topic)
    store.layout.check_forms(queues=True)
    lost = frozenset(consumed_without_files(store, offsets))
    with UnitReader() as reader:
        for topic, group in sorted(offsets, key=lambda pair: (pair[1], pair[0])):
            if not selection.matches_topic(topic):
                continue
            of_queues = offsets[topic, group]
            for queue_id in sorted(of_queues.keys() | set(by_topic.get(topic, ()))):
                if selection.queues and queue_id not in selection.queues:
                    continue
                lag = QueueLag(group, topic, queue_id, committed=of_queues.get(queue_id))
                queue = store.queues.get((topic, queue_id))
                try:
                    if queue is None:
                        _without_files(lag, lost)
                    else:
                        _measure(store, queue, lag, reader if sizes else None, past)
                except (UnreadableError, OSError):
                    lag.status.add("unreadable")
                yield lag
        read = {topic for topic, _ in offsets}
        for topic in sorted(by_topic.keys() - read):
            is_requested = topic in selection.topics or status == "offsets_missing"
            if is_requested and selection.matches_topic(topic) and not is_system_topic(topic):
                yield from (
                    _unread(store, topic, queue_id, status)
                    for queue_id in sorted(by_topic[topic])
                    if not selection.queues or queue_id in selection.queues
                )


def _unread(store: Store, topic: str, queue_id: int, status: str) -> QueueLag:
    """The entry of a queue for which no group's offset is known."""
    lag = QueueLag(None, topic, queue_id, status={status})
    try:
        span = store.queues[topic, queue_id].span(store.commit_log.min_offset, store.profile)
    except (UnreadableError, OSError):
        lag.status.add("unreadable")
        return lag
    lag.min_offset, lag.max_offset = span.min_offset, span.max_offset
    return lag


def _without_files(lag: QueueLag, lost: frozenset[tuple[str, int]]) -> None:
    """Set the lag in a queue without files; see the module."""
    if (lag.committed or 0) <= 0:
        lag.min_offset = lag.max_offset = lag.messages = lag.bytes = lag.lost = lag.ahead = 0
    elif (lag.topic, lag.queue_id) in lost:
        lag.status.add(QUEUE_LOST)
        lag.at_least = 0
    else:
        lag.status.add("no_topic")


def _measure(
    store: Store, queue: AnyQueue, lag: QueueLag, reader: UnitReader | None, past: Past | None
) -> None:
    span = queue.span(store.commit_log.min_offset, store.profile)
    lag.max_offset = max(span.max_offset, 0)
    if past is not None:
        lag.max_offset = min(lag.max_offset, offset_at(store, queue, past.time_ms))
    first = min(store.first_live(lag.topic, lag.queue_id), lag.max_offset)
    lag.min_offset = first
    committed = lag.committed
    if committed is None:
        lag.status.add(NEVER_COMMITTED)
        if lag.topic != f"{RETRY_PREFIX}{lag.group}":
            return
        committed = 0
    lag.ahead = max(committed - lag.max_offset, 0)
    if past is not None and not past.offsets_known:
        # A committed offset only rises: at that time it was at most the present one.
        lag.status.add("committed_later")
        lag.at_least = max(lag.max_offset - max(committed, first), 0)
        lag.at_most = lag.max_offset - first
        lag.ahead = None
        if lag.at_least != lag.at_most:
            return
    start = max(committed, first)
    lag.lost = max(first - max(committed, 0), 0) if lag.committed is not None else 0
    lag.messages = max(lag.max_offset - start, 0)
    if reader is not None:
        lag.bytes = _bytes_of(queue, reader, start, lag.max_offset) if lag.messages else 0
    if lag.lost:
        lag.status.add("lost")
    if lag.ahead:
        lag.status.add(AHEAD)
        if lag.max_offset > first:
            lag.messages, lag.bytes = None, None
            lag.at_least, lag.at_most = 0, lag.max_offset - first
    if lag.messages:
        unit = queue.unit(start)
        head = store.head(unit.physical_offset) if unit is not None else None
        lag.oldest_ms = head.store_timestamp if head is not None else None
        if unit is not None:
            lag.distance = max(_log_end(store, past) - unit.physical_offset, 0)


def _log_end(store: Store, past: Past | None) -> int:
    return store.dispatched_end() if past is None else past.log_end


def _bytes_of(queue: AnyQueue, reader: UnitReader, start: int, stop: int) -> int:
    """The total size of the records of queue offsets [start, stop), bytes."""
    low, high = start, stop
    if isinstance(queue, BatchConsumeQueue):  # whose numbers are not queue offsets
        low, high = queue.start, queue.end()
    total = 0
    for _, units in reader.live_between(queue, low, high):
        if isinstance(queue, BatchConsumeQueue):
            base = units["base_offset"]
            units = units[(base < stop) & (base + units["batch_size"] > start)]
        total += int(np.sum(units["size"], dtype=np.int64))
    return total


def combined_status(members: Iterable[QueueLag]) -> tuple[str, ...]:
    """The statuses of a group in several queues, sorted.

    A group that has an offset in one of them has not `never_committed`: its offsets are `partial`.
    """
    lags = list(members)
    found = set().union(*(lag.status for lag in lags))
    if NEVER_COMMITTED in found and any(lag.committed is not None for lag in lags):
        found = found - {NEVER_COMMITTED} | {PARTIAL}
    return tuple(sorted(found))


def lag_rows(
    lags: Iterable[QueueLag], by: Sequence[str], broker: Broker, now_ms: int, tz: tzinfo | None
) -> list[Row]:
    """Rows of lag, summed up over the dimensions (`group`, `topic`, `queue`) that `by` does not name.

    `age_ms` is the age, at `now_ms`, of the oldest message that is not consumed. In a row of several queues
    the offsets are null, and so is a sum of which one value is unknown. `lost_queues` are those without
    files, `ahead_queues` those beyond whose end the committed offset is, as topic/queue.
    """
    key_fields = [name for word, name in _NAMES.items() if word in by]
    groups: dict[tuple[Any, ...], list[QueueLag]] = {}
    for lag in lags:
        groups.setdefault(tuple(getattr(lag, name) for name in key_fields), []).append(lag)
    return [
        dict(zip(key_fields, key, strict=True)) | _row(members, broker, now_ms, tz)
        for key, members in sorted(groups.items(), key=lambda item: [(at is None, at) for at in item[0]])
    ]


def _row(members: Sequence[QueueLag], broker: Broker, now_ms: int, tz: tzinfo | None) -> Row:
    single = members[0] if len(members) == 1 else None
    behind = [lag for lag in members if lag.messages]
    oldest = min((lag.oldest_ms for lag in behind if lag.oldest_ms is not None), default=None)
    distance = max((lag.distance for lag in behind if lag.distance is not None), default=None)
    return {
        "queues": len(members),
        "min_offset": single.min_offset if single else None,
        "max_offset": single.max_offset if single else None,
        "committed_offset": single.committed if single else None,
        "lag_messages": _sum(members, "messages"),
        "lag_bytes": _sum(members, "bytes"),
        "lag_messages_min": _sum(members, "at_least", "messages"),
        "lag_messages_max": _sum(members, "at_most", "messages"),
        "lost_messages": _sum(members, "lost"),
        "ahead_messages": _sum(members, "ahead"),
        "oldest_timestamp_ms": oldest,
        "oldest_time": None if oldest is None else times.format_time(oldest, tz),
        "age_ms": None if oldest is None else max(now_ms - oldest, 0),
        "distance_bytes": distance,
        "reads_from": None if distance is None else broker.reads_from(distance),
        "status": list(combined_status(members)) or ["ok"],
        "lost_queues": [f"{lag.topic}/{lag.queue_id}" for lag in members if QUEUE_LOST in lag.status],
        "ahead_queues": [f"{lag.topic}/{lag.queue_id}" for lag in members if AHEAD in lag.status],
    }


def _sum(members: Sequence[QueueLag], name: str, other: str | None = None) -> int | None:
    """The sum over the queues for which the group has committed; None if one value is unknown."""
    values: list[int | None] = []
    for lag in members:
        value: int | None = getattr(lag, name)
        if value is None and other is not None:
            value = getattr(lag, other)
        if value is None and lag.status & _NOT_READ:
            continue
        values.append(value)
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def worst_groups(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows in descending order of lag; unknown lag is last."""
    return sorted(
        rows, key=lambda row: -1 if row["lag_messages"] is None else row["lag_messages"], reverse=True
    )
