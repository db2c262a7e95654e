"""Rows of `lookup --time`: the queue offset that belongs to a time, one row for each queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, tzinfo

from rmqtool import times
from rmqtool.errors import UnreadableError
from rmqtool.message.rows import Row
from rmqtool.read.by_time import Bound, exact_offset_by_time, offset_by_time
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.profile import profile_named

TIME_FIELDS = (
    "topic", "queue_id", "timestamp_ms", "time", "bound", "broker", "broker_offset", "exact_offset",
    "store_timestamp_ms", "store_time", "physical_offset", "min_offset", "max_offset",
)  # fmt: skip
TIME_TABLE = ("topic", "queue_id", "time", "bound", "broker", "broker_offset", "exact_offset", "store_time")


def time_rows(
    store: Store,
    selection: Selection,
    timestamp_ms: int,
    bound: Bound,
    broker: str | None,
    tz: tzinfo | None = UTC,
) -> Iterator[Row]:
    """Yield the queue offset of a time for each selected queue: the broker's answer and the exact one.

    A queue without an answer because something cannot be read has no row: `store.failures` says what.
    Where no message fits the exact one is the queue's end for `lower`, and null for `upper`.

    Args:
        store: the store.
        selection: of topics and queues.
        timestamp_ms: the time, ms since 1970.
        bound: see `by_time`.
        broker: 4.9, 5.3 or 5.4; None is the one that used the store last.
        tz: zone of the times; None is the local zone.
    """
    store.layout.check_forms(log=True, queues=True)
    profile = store.profile if broker is None else profile_named(broker)
    for (topic, queue_id), queue in store.queues.items():
        if not selection.matches_topic(topic) or (selection.queues and queue_id not in selection.queues):
            continue
        try:
            answer = offset_by_time(store, topic, queue_id, timestamp_ms, bound, broker=profile.name)
            exact = exact_offset_by_time(store, topic, queue_id, timestamp_ms, bound)
            low, high, _ = queue.span(store.commit_log.min_offset, profile)
        except UnreadableError:
            continue
        there = exact.physical_offset >= 0
        yield {
            "topic": topic,
            "queue_id": queue_id,
            "timestamp_ms": timestamp_ms,
            "time": times.format_time(timestamp_ms, tz),
            "bound": bound,
            "broker": profile.name,
            "broker_offset": answer,
            "exact_offset": exact.queue_offset if there or bound == "lower" else None,
            "store_timestamp_ms": exact.store_timestamp if there else None,
            "store_time": times.format_time(exact.store_timestamp, tz) if there else None,
            "physical_offset": exact.physical_offset if there else None,
            "min_offset": low,
            "max_offset": high,
        }
