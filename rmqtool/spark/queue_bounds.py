"""Options that speak of queue offsets, as one store has them: which queues, from where to where.

The rules are Kafka's: offsets by queue name exactly the queues that are read; -2 is a queue's minimum,
-1 its maximum; what lies outside of what the queue still has is data loss, an error unless
`failOnDataLoss` is false.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqtool.errors import InputError, UnsupportedStoreError, UsageError
from rmqtool.read.selection import Selection
from rmqtool.spark.offsets import EARLIEST, LATEST, Bound, QueueName
from rmqtool.spark.request import QueueRange, topics_and_pattern

if TYPE_CHECKING:
    import re

    from rmqtool.read.store import Store
    from rmqtool.spark.options import SourceOptions
    from rmqtool.spark.stores import StoreLocation

Key = tuple[str, int]


class DataLossError(InputError):
    """Messages that were asked for are not there any more."""


def tell_loss(options: SourceOptions, what: str, path: str | None = None) -> None:
    """What was asked for is not there: an error, or a warning, as `failOnDataLoss` says."""
    if options.fail_on_data_loss:
        raise DataLossError(what, path=path, hint="failOnDataLoss=false reads what exists")
    warnings.warn(what if path is None else f"{path}: {what}", stacklevel=3)


@dataclass(frozen=True)
class StoreQueues:
    """The queues of one store that a read is of."""

    store: Store
    place: StoreLocation
    options: SourceOptions
    alone: bool
    """Whether this is the only store of the read: its broker need not be named."""

    def keys(self) -> list[Key]:
        """(topic, queue id) of the queues that the options choose, sorted.

        Raises:
            UnsupportedStoreError: the store has no queues in files.
        """
        if not self.store.layout.has_files_of_queues:
            raise UnsupportedStoreError(
                "queue offsets are asked for, but the consume queues are in RocksDB", path=self.place.path
            )
        globs, pattern = topics_and_pattern(self.options)
        regex = _compiled(pattern)
        chosen = Selection(topics=globs, exclude_topics=self.options.exclude_topics)
        found = [
            (topic, queue_id)
            for topic, queue_id in self.store.queues
            if chosen.matches_topic(topic)
            and (regex is None or regex.fullmatch(topic))
            and (not self.options.queues or queue_id in self.options.queues)
        ]
        if self.options.assign:
            assigned = {(name.topic, name.queue_id) for name in self.mine(self.options.assign)}
            found = [key for key in found if key in assigned]
        return sorted(found)

    def mine(self, names: Iterable[QueueName]) -> Iterator[QueueName]:
        """Those that are queues of this store's broker."""
        for name in names:
            if name.broker is None and not self.alone:
                raise UsageError(
                    f"queue {name} could be of several brokers", hint='write {"topic": {"broker": {"0": 23}}}'
                )
            if name.broker in (None, self.place.broker_name):
                yield name

    def ranges(self) -> tuple[QueueRange, ...] | None:
        """What is wanted of each queue; None where no option speaks of queues.

        Raises:
            UsageError: options and queues do not fit each other.
            DataLossError: offsets that the queue does not have (any more).
            UnsupportedStoreError: the store has no queues in files.
        """
        starting, ending = self.options.starting, self.options.ending
        if self.options.since is not None and self.options.timestamp_strategy == "error":
            for key in self.keys():
                self._check_time("startingTimestamp", key, self.options.since)
        if starting is not None and starting.kind == "latest":
            raise UsageError("option startingOffsets: latest (-1) is not a valid start of a batch read")
        named = [bound for bound in (starting, ending) if bound is not None and bound.names_queues]
        if not named and not self.options.assign:
            return None
        if self.options.assign and not named:
            names = sorted({(name.topic, name.queue_id) for name in self.mine(self.options.assign)})
            return tuple(QueueRange(*key) for key in names)
        keys = self.keys()
        starts = self._values("starting", starting, keys)
        ends = self._values("ending", ending, keys)
        return tuple(self._range(key, starts.get(key), ends.get(key)) for key in keys)

    def _values(self, which: str, bound: Bound | None, keys: list[Key]) -> Mapping[Key, tuple[str, int]]:
        """(kind, value) by queue. Raises UsageError where queues are missing or too many."""
        if bound is None or not bound.names_queues:
            return {}
        option = f"{which}Offsets" + ("ByTimestamp" if bound.kind == "times" else "")
        names = {(name.topic, name.queue_id) for name in self.mine(name for name, _ in bound.values)}
        values = {
            (name.topic, name.queue_id): value
            for name, value in bound.values
            if name.broker in (None, self.place.broker_name)
        }
        for what, odd in (("names", names - set(keys)), ("lacks", set(keys) - names)):
            if odd:
                topic, queue_id = min(odd)
                rest = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
                not_read = ", which is not read" if what == "names" else ""
                raise UsageError(f"option {option} {what} queue {queue_id} of {topic}{rest}{not_read}")
        return {key: (bound.kind, value) for key, value in values.items()}

    def _range(self, key: Key, start: tuple[str, int] | None, end: tuple[str, int] | None) -> QueueRange:
        low, high = self.store.min_offset(*key), self.store.max_offset(*key)
        since = start[1] if start is not None and start[0] == "times" else None
        until = end[1] if end is not None and end[0] == "times" else None
        first, stop = 0, (1 << 63) - 1
        if start is not None and start[0] == "offsets":
            if start[1] == LATEST:
                raise UsageError("option startingOffsets: latest (-1) is not a valid start of a batch read")
            first = low if start[1] == EARLIEST else self._there("startingOffsets", key, start[1], low, high)
        if end is not None and end[0] == "offsets":
            stop = high if end[1] == LATEST else self._there("endingOffsets", key, end[1], low, high)
        if first > stop or (since is not None and until is not None and until < since):
            raise UsageError(f"queue {key[1]} of {key[0]}: the end is before the start")
        if since is not None and self.options.timestamp_strategy == "error":
            self._check_time("startingOffsetsByTimestamp", key, since)
        return QueueRange(*key, first, stop, since, until)

    def _there(self, option: str, key: Key, value: int, low: int, high: int) -> int:
        if low <= value <= high:
            return value
        what = f"option {option}: queue {key[1]} of {key[0]} has offsets {low} to {high}, not {value}"
        tell_loss(self.options, what, self.place.path)
        return min(max(value, low), high)

    def _check_time(self, option: str, key: Key, since: int) -> None:
        queue = self.store.queue(*key)
        unit = None if queue is None else queue.last_unit()
        found = None if unit is None else self.store.find(unit.physical_offset)
        if found is None or found.message.store_timestamp < since:
            raise UsageError(
                f"option {option}: queue {key[1]} of {key[0]} ends before {since}",
                hint="startingOffsetsByTimestampStrategy=latest starts at its end",
            )


def envelope(store: Store, queues: Iterable[QueueRange]) -> tuple[int, int] | None:
    """Physical offsets [start, stop) that hold the records of ranges of queues; None where nobody can say.

    Units rise along a queue with the log, so a range of queue offsets is one of the log too. Only
    for queues that the way to the messages trusts.
    """
    low: int | None = None
    high = 0
    for wanted in queues:
        queue = store.queue(wanted.topic, wanted.queue_id)
        if queue is None:
            continue
        first, stop = queue.unit(wanted.start), queue.unit(wanted.stop - 1)
        if first is None:
            first = next((unit for _, unit in queue.units(wanted.start, wanted.stop)), None)
        last = queue.last_unit() if stop is None else stop
        if first is None or last is None:
            continue
        low = first.physical_offset if low is None else min(low, first.physical_offset)
        high = max(high, last.physical_offset + last.size)
    return None if low is None or high <= low else (max(low, 0), high)


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    import re

    return None if pattern is None else re.compile(pattern)
