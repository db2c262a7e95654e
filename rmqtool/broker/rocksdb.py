"""Consume queues in RocksDB during a start: which units the database holds, and which dispatch adds.

A broker of storeType defaultRocksDB continues after the noted end of dispatch, p, which is 0 without a
database. After a clean stop it dispatches only records after p, so never one at p: if the database is gone,
the first record of the log. After a crash it dispatches all records from a file on: the newest one whose
first record is not after p, of which 5.4 tries commitLogRecoverMaxNum files. A unit stands at the queue
offset of its record, whatever stands before it, and `max` is that of the last record.

If the log ends before p, a broker searches the new end of each queue that has units after it. It fails for a
queue without any older unit, which keeps its old end.

Source: RocksDBConsumeQueueStore#recover, #truncateDirty, CommitLog#isMappedFileMatchedRecover; spec 06 2.6.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import field, replace
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.broker.dispatch import Folder, Topics
from rmqtool.broker.queues import QueueState
from rmqtool.errors import FormatError
from rmqtool.formats.rocksdb_queue import EndKey
from rmqtool.lazy_dataclass import dataclass
from rmqtool.queue.build import queue_codes, queue_id_of
from rmqtool.queue.rocksdb_units import columns, use
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.ranges import merged, runs
from rmqtool.storage.rocksdb.queues import RocksdbQueue, RocksdbQueues, UnitRange

if TYPE_CHECKING:
    from rmqtool.broker.load import QueueKey
    from rmqtool.storage.buffers import Array

_BLOCK = 1 << 15  # units read at once


@dataclass
class RocksdbState(QueueState):
    """A queue in RocksDB during a start.

    Attributes:
        queue: as it is in the database now; None for one that it lacks.
        now: (min, max) as a broker would serve it now; None for one that is not there; set by `settle`.
        dispatched: queue offsets of the units that dispatch writes, half-open, in its order.
        units: of those that are there after the start and served, half-open, ascending; set by `settle`.
        low: the first queue offset that is served; set by `settle`.
        top: the queue offset of the next message after the start; set by `settle`.
    """

    queue: RocksdbQueue | None = None
    now: tuple[int, int] | None = None
    dispatched: list[tuple[int, int]] = field(default_factory=list)
    units: list[tuple[int, int]] = field(default_factory=list)
    low: int = 0
    top: int = 0

    def copy(self) -> RocksdbState:
        """An independent copy."""
        return replace(self, dispatched=list(self.dispatched), units=list(self.units))

    def span(self) -> tuple[int, int]:
        """See QueueState."""
        return self.low, self.top

    @property
    def served(self) -> list[tuple[int, int]]:
        """See QueueState."""
        return [(first, min(stop, self.top)) for first, stop in self.units if first < self.top]

    def destroy(self) -> None:
        """Delete the units, because the log has no files. The broker has the end in memory until it stops.

        Source: RocksDBConsumeQueueStore#destroy, RocksDBConsumeQueueOffsetTable#load.
        """
        self.units, self.low, self.top = [], 0, 0 if self.queue is None else self.queue.end

    def begin_at(self, low: int) -> None:
        """Serve the units from the queue offset `low` on."""
        self.low, self.units = low, _from(low, self.units)


class RocksdbFolder(Folder):
    """All queues in RocksDB, and the units that dispatch would add; `queues` is None without a database."""

    def __init__(
        self, layout: StoreLayout, open_files: OpenFiles, topics: Topics, queues: RocksdbQueues | None
    ) -> None:
        self.queues = queues
        states: dict[QueueKey, QueueState] = {}
        if queues is not None:
            use(queues)
            for (topic, queue_id), queue in queues.queues.items():
                newest = queues.ends[EndKey(topic, True, queue_id)].physical_offset
                states[topic, queue_id] = RocksdbState(
                    topic, queue_id, False, 0, max_physical=newest, queue=queue
                )
        super().__init__(states, layout, open_files, topics, is_batch=False)

    def _state(self, code: int) -> RocksdbState:
        key = self._names[code >> 32], queue_id_of(code)
        state = self.states.setdefault(key, RocksdbState(*key, False, 0))
        assert isinstance(state, RocksdbState)
        return state

    def _by_queue(self, entries: Array) -> Iterator[tuple[RocksdbState, Array]]:
        codes = queue_codes(entries)
        order = np.argsort(codes, kind="stable")
        cuts = np.flatnonzero(np.diff(codes[order])) + 1
        for rows in np.split(order, cuts) if len(order) else ():
            yield self._state(int(codes[rows[0]])), entries[rows]

    def put(self, entries: Array, is_foreign: bool) -> None:
        """See Folder."""
        for state, rows in self._by_queue(entries):
            numbers = rows["queue_offset"]
            for low, high in runs(numbers):
                first, stop = int(numbers[low]), int(numbers[high - 1]) + 1
                if state.dispatched and state.dispatched[-1][1] == first:
                    first = state.dispatched.pop()[0]
                state.dispatched.append((first, stop))

    def pass_over(self, entries: Array) -> None:
        """See Folder: a record that is not after the end of its queue has its unit."""
        for state, rows in self._by_queue(entries):
            self.refused += int(np.count_nonzero(rows["physical_offset"] > state.max_physical))

    def finish(self) -> None:
        """See Folder."""

    def forget(self) -> None:
        """See Folder."""

    def settle_made(self) -> None:
        """See Folder."""

    def settle(self, start: int, end: int) -> None:
        """The units and ends after the start, for a log of [start, end). Raises OSError."""
        noted = 0 if self.queues is None else self.queues.checkpoint or 0
        dispatches = any(
            state.dispatched for state in self.states.values() if isinstance(state, RocksdbState)
        )
        for state in self.states.values():
            assert isinstance(state, RocksdbState)
            there = [] if state.queue is None else list(self._units(state.queue, start, end))
            noted_at, low = self._noted_min(state, start)
            state.top = 0
            if state.queue is not None:
                state.top = state.queue.end
                first = _searched_min(there, noted_at, state.top) if low is None else low
                if not there and state.max_physical >= start:  # the records of all units are lost
                    first = state.queue.first
                state.now = min(first, state.top), state.top
            if state.dispatched:
                state.top = state.dispatched[-1][1]
            elif state.queue is not None and state.max_physical >= end and noted > end:
                try:
                    low, state.top = self._cut_end(state.queue, low, start, end)
                except FormatError:
                    state.top = state.queue.end
                if dispatches and state.top != state.queue.end:
                    self.racing.add((state.topic, state.queue_id))
                if not there and state.top > state.queue.first:  # units without records stay
                    there = [(state.queue.first, state.top)]
                    self.stale.add((state.topic, state.queue_id))
            state.units = merged([*there, *state.dispatched])
            self.admitted += _count(state.units) - _count(there)
            low = _searched_min(state.units, noted_at, state.top) if low is None else low
            state.begin_at(min(low, state.top))

    def _noted_min(self, state: RocksdbState, start: int) -> tuple[int, int | None]:
        """The noted first queue offset, else 0, and the same as long as the log has its record, else None.

        Source: RocksDBConsumeQueueOffsetTable#isMinOffsetOk.
        """
        ends = {} if self.queues is None else self.queues.ends
        noted = ends.get(EndKey(state.topic, False, state.queue_id))
        if noted is None:
            return 0, None
        return noted.queue_offset, None if noted.physical_offset < start else noted.queue_offset

    def _cut_end(self, queue: RocksdbQueue, low: int | None, start: int, end: int) -> tuple[int | None, int]:
        """(first queue offset, end) of a queue that had units of records at `end` or later.

        A broker that meets a damaged block leaves both as they are. `low` is the noted first queue offset if
        that counts; else it is searched, and noted. Source: RocksDBConsumeQueueOffsetTable
        #truncateDirtyOffset, #getMinCqOffset, #correctMaxCqOffset.
        """
        assert self.queues is not None
        newest = queue.end - 1
        least = self.queues.ends.get(EndKey(queue.topic, False, queue.queue_id))
        if low is None:
            found = self._search(queue, 0 if least is None else least.queue_offset, start, is_min=True)
            if found is None:  # it throws, and the old end stays
                return None, queue.end
        else:
            assert least is not None
            found = least.physical_offset, least.queue_offset
        physical, first = found
        if physical > end:  # the same: all units of the queue are of records that are gone
            return first, queue.end
        last = self._search(queue, first, end, is_min=False)
        if last is not None:
            return first, last[1] + 1
        return first, queue.end if newest == first else first + 1

    def _search(self, queue: RocksdbQueue, low: int, target: int, *, is_min: bool) -> tuple[int, int] | None:
        """(physical offset, queue offset) of the first unit from `target` on, or of one before it.

        If a unit is exactly at `target`, the one before it need not be the last. Source:
        RocksDBConsumeQueueTable#binarySearchInCQ.
        """
        assert self.queues is not None
        high, found = queue.end - 1, None
        while high >= low:
            middle = low + (high - low) // 2
            unit = columns(UnitRange(self.queues.database, queue.prefix, middle, middle + 1)).values[0]
            physical = int(unit["physical_offset"])
            if not unit["size"]:
                low = middle + 1
            elif physical == target:
                return (physical, middle) if is_min else found
            elif physical > target:
                high = middle - 1
                found = (physical, middle) if is_min else found
            else:
                low = middle + 1
                found = found if is_min else (physical, middle)
        return found

    def _units(self, queue: RocksdbQueue, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The units whose records lie in [start, end) of the log, as ranges of queue offsets."""
        assert self.queues is not None
        stop = queue.first
        while stop < queue.end:
            # an end that is damaged may be far after the last unit
            first = self.queues.first_unit(queue.prefix, stop, queue.end)
            stop = min(first + _BLOCK, queue.end)
            units = UnitRange(self.queues.database, queue.prefix, first, stop)
            found = columns(units, self.unread).values
            physical = found["physical_offset"]
            good = (found["size"] > 0) & (physical >= start) & (physical < end)
            numbers = np.flatnonzero(good)
            for low, high in runs(numbers):
                yield first + int(numbers[low]), first + int(numbers[high - 1]) + 1


def _searched_min(units: list[tuple[int, int]], low: int, top: int) -> int:
    """The first queue offset that is served, searched from `low` on; `units` are those with a record.

    Source: RocksDBConsumeQueueOffsetTable#correctMinCqOffset, RocksDBConsumeQueueTable#binarySearchInCQ.
    """
    starts = [first for first, _ in units]
    high, found = top - 1, top
    while high >= low:
        middle = low + (high - low) // 2
        place = bisect_right(starts, middle) - 1
        if place >= 0 and middle < units[place][1]:
            high, found = middle - 1, middle
        else:
            low = middle + 1
    return found


def _from(first: int, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(max(low, first), stop) for low, stop in ranges if stop > first]


def _count(ranges: list[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in ranges)
