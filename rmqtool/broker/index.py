"""The index after dispatch: computes the headers of all files. Nothing is written.

Source: IndexService#buildIndex, #getAndCreateLastIndexFile, IndexFile#putKey; spec 02 5.5.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.broker.load import OpenedIndex
from rmqtool.formats.index import Header, Shape
from rmqtool.index import build as build
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.open_files import reading

if TYPE_CHECKING:
    import numpy as np

    from rmqtool.broker.log_scan import Batch
    from rmqtool.index.build import EntryBuffer, SlotTable

    Array = np.ndarray[Any, np.dtype[Any]]

_BUFFER_ENTRIES = 1 << 16


@dataclass
class IndexState:
    """One index file after the start; `path` is None for a file that the start creates."""

    path: Path | None
    header: Header
    has_changed: bool = False
    slots_counted: bool = True  # False: header.hash_slot_count is not updated


class IndexBuild:
    """The index of one broker during a start."""

    def __init__(
        self,
        files: tuple[OpenedIndex, ...],
        shape: Shape,
        *,
        tags: bool,
        enabled: bool,
        flushes: bool,
        slots: bool,
    ) -> None:
        """See the class.

        Args:
            files: the files that the broker opened and keeps, in order.
            shape: shape of the files.
            tags: whether tags are indexed.
            enabled: messageIndexEnable.
            flushes: whether files without entries get a count of 1 when the broker stops.
            slots: whether used slots are counted, which costs more than everything else.
        """
        self._flushes = flushes
        self.files = [
            IndexState(file.path, file.header, file.size < shape.size or self._gets_count(file.header))
            for file in files
        ]
        self.keys = 0
        self._shape = shape
        self._tags = tags
        self._enabled = enabled
        self._counts_slots = slots
        self._state: array[int] | None = None  # of the last file, once it gets keys
        self._table: SlotTable | None = None
        self._buffer: EntryBuffer | None = None

    def _gets_count(self, header: Header) -> bool:
        """Whether the flush at the broker's stop gives a file without entries a count of 1."""
        return self._flushes and header.index_count < 1

    def put(self, batch: Batch, chosen: Array | None) -> None:
        """Add the keys of the rows `chosen` (ascending indices; None: all) of a batch."""
        import numpy as np

        if not self._enabled:
            return
        rows, keys = batch.rows, self._keys(batch)
        last = len(rows) - 1
        if chosen is not None:
            if not len(chosen):
                return
            last = int(chosen[-1])
            if last - int(chosen[0]) + 1 == len(chosen):
                low, high = np.searchsorted(keys["row"], (int(chosen[0]), last + 1))
                keys = keys[low:high]
            else:
                mask = np.zeros(len(rows), bool)
                mask[chosen] = True
                keys = keys[mask[keys["row"]]]
        self._put(batch, keys, last)

    def _keys(self, batch: Batch) -> Array:
        """The keys of a batch that this broker indexes."""
        from rmqtool.log.dispatch import KIND_TAG

        keys = batch.dispatch.keys
        if self._tags:
            return keys
        if "untagged" not in batch.shared:
            batch.shared["untagged"] = keys[keys["kind"] != KIND_TAG]
        untagged: Array = batch.shared["untagged"]
        return untagged

    def _put(self, batch: Batch, keys: Array, last: int) -> None:
        state = self._current()
        done = 0
        while True:
            before = state[build.COUNT]
            # the slot table is large, and many starts add no key: do not load it for them
            done = self._put_some(state, batch, keys, done)
            self.keys += state[build.COUNT] - before
            if state[build.COUNT] > before:
                self.files[-1].has_changed = True
                self.files[-1].slots_counted = self._counts_slots
            if done == len(keys):
                break
            if build.is_full(state, self._shape):
                state = self._roll(state)
        if build.is_full(state, self._shape) and len(keys) and int(keys["row"][-1]) < last:
            self._roll(state)  # the next record creates the next file, although it has no key

    def _put_some(self, state: array[int], batch: Batch, keys: Array, done: int) -> int:
        from rmqtool.index.build import EntryBuffer, put_keys

        places = _counting(state, batch, keys, done)
        if not len(places):
            return len(keys)
        if not self._counts_slots:
            return self._count_some(state, batch.rows, keys, places)
        if self._buffer is None:
            self._buffer = EntryBuffer(_BUFFER_ENTRIES)
        self._buffer.count = 0
        return put_keys(
            state, self._slots(), self._buffer, batch.rows, keys, done, 0, self._shape, tags=self._tags
        )

    def _count_some(self, state: array[int], rows: Array, keys: Array, places: range | Array) -> int:
        """As `put_keys` but without slots: add the keys `places` as far as the file has room."""
        room = self._shape.entries - state[build.COUNT]
        added = places[:room]
        if len(added):
            first, last = (rows[keys["row"][int(place)]] for place in (added[0], added[-1]))
            if state[build.COUNT] <= 1:
                state[build.BEGIN_OFFSET] = int(first["physical_offset"])
                state[build.BEGIN_TIMESTAMP] = int(first["store_timestamp"])
            state[build.COUNT] += len(added)
            state[build.END_OFFSET] = int(last["physical_offset"])
            state[build.END_TIMESTAMP] = int(last["store_timestamp"])
        return len(keys) if len(places) <= room else int(places[room])

    def _current(self) -> array[int]:
        """The state of the file that gets keys: the last one, or a new one if that is full or missing."""
        if self._state is None:
            if not self.files:
                return self._make(Header(0, 0, 0, 0, 0, 0))
            self._state = build.new_state(self.files[-1].header)
        if build.is_full(self._state, self._shape):
            return self._roll(self._state)
        return self._state

    def _roll(self, state: array[int]) -> array[int]:
        self._keep(state)
        return self._make(build.header_after(state))

    def _make(self, header: Header) -> array[int]:
        self.files.append(IndexState(None, header, True))
        self._state = build.new_state(header)
        self._table = None
        return self._state

    def _slots(self) -> SlotTable:
        """The slots of the last file, read from it if it exists."""
        if self._table is None:
            from rmqtool.index.build import SlotTable

            self._table = SlotTable(self._shape)
            path = self.files[-1].path
            if path is not None:
                with reading(path) as file:
                    self._table.load(file)
        return self._table

    def _keep(self, state: array[int]) -> None:
        count = state[build.COUNT]
        if count > 1 or self.files[-1].has_changed:
            header = build.header_of(state)
            slots = (header.hash_slot_count + (1 << 31)) % (1 << 32) - (1 << 31)  # overflows as a Java int
            self.files[-1].header = header._replace(hash_slot_count=slots)

    def finish(self) -> None:
        """Update the headers after the last record and the broker's stop."""
        if self._state is not None:
            self._keep(self._state)
        for file in self.files:
            if self._gets_count(file.header):
                file.header = file.header._replace(index_count=1)


def _counting(state: array[int], batch: Batch, keys: Array, done: int) -> range | Array:
    """The indices, from `done` on, of keys that are indexed: no earlier key has a higher offset."""
    import numpy as np

    offsets = batch.rows["physical_offset"]
    if not batch.foreign:  # then offsets are ascending, like the rows of keys
        if int(offsets[0]) < state[build.END_OFFSET]:
            first = np.searchsorted(keys["row"], np.searchsorted(offsets, state[build.END_OFFSET]))
            done = max(done, int(first))
        return range(done, len(keys))
    offsets = offsets[keys["row"][done:]]
    lowest = np.maximum(np.maximum.accumulate(offsets), state[build.END_OFFSET])
    return done + np.flatnonzero(offsets >= lowest)
