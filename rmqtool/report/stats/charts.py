"""The data of charts: sums of the selected messages that rows do not have.

    queues    messages per queue, for the skew of topics
    backlog   for each group, the messages that it has not consumed, by the time when they were stored

The backlog at a time is what the group would have had to consume then with its present offsets. Its lag was
at least that much, because a committed offset only rises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

import numpy as np

from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.rows import Row
from rmqtool.report.stats.dimensions import Codes
from rmqtool.report.stats.lag import QueueLag
from rmqtool.report.stats.scanner import Batch
from rmqtool.report.stats.timeline import Timeline
from rmqtool.storage.buffers import Array

GROUPS_MAX = 6
"""Groups whose backlog is drawn: those with the largest lag."""
_QUEUES_MAX = 200_000


@dataclass
class Charts:
    """The data of all charts.

    Attributes:
        by: the dimensions of `groups`.
        groups: the rows of messages by these dimensions.
        sizes: the rows by size class.
        timeline: messages and bytes over time.
        lags: the lag by group.
        queues: messages of each topic by queue id.
        backlog: messages that wait, over time, by group.
    """

    by: tuple[str, ...] = ("topic",)
    groups: list[Row] = field(default_factory=list)
    sizes: list[Row] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    lags: list[Row] = field(default_factory=list)
    queues: dict[str, dict[int, int]] = field(default_factory=dict)
    backlog: dict[str, Timeline] = field(default_factory=dict)


class ChartSums:
    """Counts messages per queue, and those that the groups with the largest lag have not consumed."""

    def __init__(self, topics: Codes, lags: Iterable[QueueLag]) -> None:
        self._topics = topics
        self._counts: dict[tuple[int, int], int] = {}
        waiting: dict[str, int] = {}
        committed: dict[str, dict[tuple[str, int], int]] = {}
        for lag in lags:
            if lag.group is not None and lag.messages:
                waiting[lag.group] = waiting.get(lag.group, 0) + lag.messages
                committed.setdefault(lag.group, {})[lag.topic, lag.queue_id] = max(lag.committed or 0, 0)
        worst = sorted(waiting, key=lambda group: (-waiting[group], group))[:GROUPS_MAX]
        self._committed = {group: committed[group] for group in worst}
        self.backlog = {group: Timeline() for group in worst}

    def take(self, batch: Batch) -> None:
        """Count one batch."""
        records = batch.records
        if not len(records.size):
            return
        keys = np.stack([records.topics, records.queue_id.astype(np.int64)], axis=1)
        found, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        pairs = [(int(topic), int(queue_id)) for topic, queue_id in found.tolist()]
        for pair, count in zip(pairs, np.bincount(inverse).tolist(), strict=True):
            if pair in self._counts or len(self._counts) < _QUEUES_MAX:
                self._counts[pair] = self._counts.get(pair, 0) + count
        for group, timeline in self.backlog.items():
            waits = records.queue_offset >= self._firsts(group, pairs)[inverse]
            if waits.any():
                timeline.add(records.store_timestamp[waits], records.size[waits])

    def queues(self) -> dict[str, dict[int, int]]:
        """Messages by topic and queue id."""
        found: dict[str, dict[int, int]] = {}
        for (topic, queue_id), count in sorted(self._counts.items()):
            if topic >= 0:
                found.setdefault(self._topics.values[topic], {})[queue_id] = count
        return found

    def _firsts(self, group: str, pairs: Sequence[tuple[int, int]]) -> Array:
        """Per pair of topic and queue, the first queue offset that the group has not consumed."""
        committed, never = self._committed[group], np.iinfo(np.int64).max
        names = [(self._topics.values[topic] if topic >= 0 else "", queue_id) for topic, queue_id in pairs]
        return np.array([committed.get(name, never) for name in names], np.int64)
