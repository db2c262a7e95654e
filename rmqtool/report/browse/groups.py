"""Consumer groups with their lag: one row for each topic that a group reads, and its queues."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.stats.lag import QueueLag, combined_status, group_lags


class GroupRow(NamedTuple):
    """One group in one topic. `group` is None if no group has an offset there, or the offsets are lost.

    `lag` is None if it is unknown in all queues.
    """

    group: str | None
    topic: str
    lag: int | None
    oldest_ms: int | None
    status: tuple[str, ...]
    queues: tuple[QueueLag, ...]


def group_rows(store: Store, topic: str | None = None) -> Iterator[GroupRow]:
    """The groups in order of their names, one row for each of their topics; only those of `topic` if given.

    Raises:
        UnsupportedStoreError: queues or offsets are in RocksDB.
        InputError, UsageError: see `consumer_offsets`.
    """
    selection = Selection() if topic is None else Selection(topics=(topic,))
    lags = group_lags(store, selection, sizes=False)
    for (group, name), members in groupby(lags, key=lambda lag: (lag.group, lag.topic)):
        queues = tuple(members)
        known = [lag.messages for lag in queues if lag.messages is not None]
        oldest = [lag.oldest_ms for lag in queues if lag.oldest_ms is not None and lag.messages]
        yield GroupRow(
            group, name, sum(known) if known else None, min(oldest, default=None),
            combined_status(queues), queues,
        )  # fmt: skip
