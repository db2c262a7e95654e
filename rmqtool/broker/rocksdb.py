"""Consume queues in RocksDB during a start: which units the database holds, and which dispatch adds.

A broker of storeType defaultRocksDB continues after the noted end of dispatch, p, which is 0 without a
database. After a clean stop it dispatches only records after p, so never one at p: if the database is gone,
the first record of the log. After a crash it dispatches all records from a file on: the newest one whose
first record is not after p, of which 5.4 tries commitLogRecoverMaxNum files. A unit stands at the queue
offset of its record, whatever stands before it, and `max` is that of the last record.

Source: RocksDBConsumeQueueStore#recover, #truncateDirty, CommitLog#isMappedFileMatchedRecover; spec 06 2.6.
"""

from __future__ import annotations

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
        dispatched: queue offsets of the units that dispatch writes, half-open, in its order.
        units: of those that are there after the start, half-open, ascending; set by `settle`.
        top: the queue offset of the next message after the start; set by `settle`.
    """

    queue: RocksdbQueue | None = None
    dispatched: list[tuple[int, int]] = field(default_factory=list)
    units: list[tuple[int, int]] = field(default_factory=list)
    top: int = 0

    def copy(self) -> RocksdbState:
        """An independent copy."""
        return replace(self, dispatched=list(self.dispatched), units=list(self.units))

    def span(self) -> tuple[int, int]:
        """See QueueState."""
        return (self.units[0][0] if self.units else self.top), self.top

    @property
    def served(self) -> list[tuple[int, int]]:
        """See QueueState."""
        return [(first, min(stop, self.top)) for first, stop in self.units if first < self.top]

    def destroy(self) -> None:
        """Delete the queue, because the log has no files."""
        self.units, self.top = [], 0


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
        """The units and ends after the start, for a log of [start, end). Raises FormatError, OSError."""
        for state in self.states.values():
            assert isinstance(state, RocksdbState)
            there = [] if state.queue is None else list(self._units(state.queue, start, end))
            state.top = 0 if state.queue is None else state.queue.end
            if state.dispatched:
                state.top = state.dispatched[-1][1]
            elif state.max_physical >= end:
                state.top = there[-1][1] if there else 0
            added = merged(state.dispatched)
            state.units = merged([*there, *added])
            self.admitted += _count(state.units) - _count(there)

    def _units(self, queue: RocksdbQueue, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The units whose records lie in [start, end) of the log, as ranges of queue offsets."""
        assert self.queues is not None
        for first in range(queue.first, queue.end, _BLOCK):
            stop = min(first + _BLOCK, queue.end)
            found = columns(UnitRange(self.queues.database, queue.prefix, first, stop)).values
            physical = found["physical_offset"]
            good = (found["size"] > 0) & (physical >= start) & (physical < end)
            numbers = np.flatnonzero(good)
            for low, high in runs(numbers):
                yield first + int(numbers[low]), first + int(numbers[high - 1]) + 1


def _count(ranges: list[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in ranges)


def database_error(queues: RocksdbQueues) -> FormatError | None:
    """Why a broker cannot open the database; None if it can."""
    try:
        for name in queues.database.families:
            for file in queues.database.families[name].files:
                queues.database.table(file)
    except FormatError as error:
        return error
    return None
