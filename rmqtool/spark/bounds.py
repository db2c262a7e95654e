"""Checks of names and offsets in options against the stores: topics, queues, queue and log offsets.

The rules of queue offsets are Kafka's: offsets by queue name exactly the queues that are read; -2 is a
queue's minimum, -1 its maximum. An offset outside of what the queue still has is data loss, an error unless
`failOnDataLoss` is false.

`check_names` and `check_offsets` are for batch reads. A stream waits for topics that come later, and
checks by itself where it was read up to. `spark-scan` names topics by globs and offsets as `dump` does,
and reports by itself what does not exist.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rmqtool.errors import InputError, UnsupportedStoreError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.selection import Selection
from rmqtool.spark.offsets import EARLIEST, LATEST, Bound, QueueName
from rmqtool.spark.request import QueueRange, topics_and_pattern

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.spark.options import SourceOptions
    from rmqtool.spark.stores import StoreLocation

Key = tuple[str, int]


class DataLossError(InputError):
    """Requested messages no longer exist."""


def report_data_loss(options: SourceOptions, what: str, path: str | None = None) -> None:
    """Report requested data that does not exist: an error, or a warning, as `failOnDataLoss` says."""
    if options.fail_on_data_loss:
        raise DataLossError(what, path=path, hint="failOnDataLoss=false reads what exists")
    warnings.warn(what if path is None else f"{path}: {what}", stacklevel=3)


def queue_test(options: SourceOptions) -> Callable[[str, int], bool]:
    """Whether options select a queue, by its topic and id; `assign` is ignored."""
    globs, pattern = topics_and_pattern(options)
    regex = None if pattern is None else re.compile(pattern)
    chosen = Selection(topics=globs, exclude_topics=options.exclude_topics)

    def is_selected(topic: str, queue_id: int) -> bool:
        if options.queues and queue_id not in options.queues:
            return False
        return chosen.matches_topic(topic) and (regex is None or regex.fullmatch(topic) is not None)

    return is_selected


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
        wanted = queue_test(self.options)
        found = [key for key in self.store.queues if wanted(*key)]
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
        """The range wanted of each queue; None where no option speaks of queues.

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
        for what, different in (("names", names - set(keys)), ("lacks", set(keys) - names)):
            if different:
                topic, queue_id = min(different)
                rest = f" and {len(different) - 1} more" if len(different) > 1 else ""
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
        report_data_loss(self.options, what, self.place.path)
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
    """Physical offsets [start, stop) that hold the records of ranges of queues; None where it is unknown.

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


def check_names(options: SourceOptions, stores: Sequence[tuple[StoreLocation, Store]]) -> None:
    """Report topics and queues that options name and no store has.

    A store knows its topics by queues and by topics.json. Where one of them has neither, nothing is checked.

    Raises:
        DataLossError: one of them does not exist, unless `failOnDataLoss` is false.
    """
    if not options.topics and not options.assign:
        return
    from rmqtool.read.known_topics import topic_names

    names = [topic_names(store.layout) for _, store in stores]
    if not all(names):
        return
    known = set().union(*names)
    for topic in options.topics:
        if topic not in known:
            near = ", ".join(get_close_matches(topic, known))
            report_data_loss(
                options, f"no store has the topic {topic}" + (f"; nearest: {near}" if near else "")
            )
    for name in options.assign:
        if not any(_has(store, name) for place, store in stores if name.broker in (None, place.broker_name)):
            report_data_loss(options, f"option assign: no store has queue {name}")


def _has(store: Store, name: QueueName) -> bool:
    """Whether a store has the queue: as files, in topics.json, or of a system topic without files."""
    from rmqtool.read.known_topics import queue_ids, topic_names

    if name.topic not in topic_names(store.layout):
        return False
    ids = queue_ids(store.layout, lambda topic: topic == name.topic)
    return ids is None or name.queue_id in ids


def log_bounds(store: Store) -> tuple[int, int] | None:
    """The first offset of the log, and the end of its last file; None where it has no files."""
    files = store.commit_log.files
    return (files[0].file_from_offset, files[-1].end) if files else None


def check_offsets(options: SourceOptions, place: StoreLocation, store: Store) -> None:
    """Report offsets in the log that options name and that lie outside of its files.

    Raises:
        DataLossError: as `check_names`.
    """
    bounds = log_bounds(store)
    for name, value in (
        ("startingPhysicalOffset", options.from_offset),
        ("endingPhysicalOffset", options.to_offset),
    ):
        if bounds is None or value is None or bounds[0] <= value <= bounds[1]:
            continue
        what = f"option {name}: the log has offsets {bounds[0]} to {bounds[1]}, not {value}"
        report_data_loss(options, what, place.path)
