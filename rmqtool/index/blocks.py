"""Index files in blocks: header, slots, entries; their links checked in one pass.

An index file is 40 bytes of header, `slots` i32 slot values and `entries` entries of 20 bytes.
Entry 0 is never used. A slot holds the number of its newest entry, an entry the number of the
entry before it in the same slot; 0 ends a chain. Only what is in use is read: the rest is a hole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmqtool.formats import index
from rmqtool.storage.source import ByteSource

ENTRY_DTYPE = index.ENTRY.dtype
_BLOCK = 1 << 18  # entries or slots read together: bounds the memory
_EXAMPLES = 3


class IndexReader:
    """One index file of a known shape; `slot_count` and `entry_count` are less where it is short.

    Raises FormatError for a file that is shorter than its header.
    """

    def __init__(self, source: ByteSource, slot_count: int, entry_count: int) -> None:
        self.source = source
        self.header = index.decode_header(source.read(0, index.HEADER_SIZE))
        self.slot_count = max(min(slot_count, (source.size - index.HEADER_SIZE) // index.SLOT_SIZE), 0)
        self._start = index.HEADER_SIZE + slot_count * index.SLOT_SIZE
        self.entry_count = max(min(entry_count, (source.size - self._start) // index.ENTRY_SIZE), 0)

    @property
    def used(self) -> int:
        """Entries [1, used) are in use according to the header, within the file."""
        return min(max(self.header.index_count, 1), max(self.entry_count, 1))

    def entries(self, first: int, stop: int) -> np.ndarray:
        """Entries [first, stop), fewer at the end of the file: shape (n,)."""
        length = max(min(stop, self.entry_count) - first, 0) * index.ENTRY_SIZE
        data = self.source.read(self._start + first * index.ENTRY_SIZE, length)
        return np.frombuffer(data, ENTRY_DTYPE, len(data) // index.ENTRY_SIZE)

    def slots(self, first: int, stop: int) -> np.ndarray:
        """Slots [first, stop), fewer at the end of the file: shape (n,), i4."""
        length = max(min(stop, self.slot_count) - first, 0) * index.SLOT_SIZE
        data = self.source.read(index.HEADER_SIZE + first * index.SLOT_SIZE, length)
        return np.frombuffer(data, ">i4", len(data) // index.SLOT_SIZE).astype(np.int32)

    def physical_offset(self, number: int) -> int:
        """The physical offset in entry `number`, which is within the file."""
        return int(self.entries(number, number + 1)["physical_offset"][0])

    def first_from(self, physical_offset: int, stop: int) -> int:
        """The first of entries [1, stop), ascending by physical offset, at or behind this one."""
        low, high = 1, stop
        while low < high:
            middle = (low + high) // 2
            if self.physical_offset(middle) < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def content_count(self) -> int:
        """What index_count should be by the entries alone: one more than the last that is not all zero."""
        count = 1
        first = 1
        while first < self.entry_count:
            place = self.source.data_from(self._start + first * index.ENTRY_SIZE)
            first = max((place - self._start) // index.ENTRY_SIZE, first)
            block = self.entries(first, first + _BLOCK)
            if not len(block):
                break
            used = np.flatnonzero(block.view(np.uint8).reshape(len(block), -1).any(axis=1))
            if len(used):
                count = first + int(used[-1]) + 1
            first += len(block)
        return count

    def slots_in_use(self) -> int:
        """How many slots are not zero."""
        blocks = range(0, self.slot_count, _BLOCK)
        return sum(int(np.count_nonzero(self.slots(first, first + _BLOCK))) for first in blocks)


@dataclass(frozen=True)
class EntryCheck:
    """What one pass over the entries found.

    `wrong_entries` and `wrong_slots` count the links that are not what putKey writes, with the
    numbers of the first few. `ascending` says that physical offsets never fall from `low` to `high`.
    """

    wrong_entries: int
    first_wrong_entries: list[int]
    wrong_slots: int
    first_wrong_slots: list[int]
    low: int
    high: int
    ascending: bool


def check_entries(reader: IndexReader, count: int, *, grows: bool = False) -> EntryCheck:
    """Check entries [1, count), count >= 2, and all slots; of a file that `grows`, slots may name later ones.

    The links of a sound file are known: an entry points to the next older entry of its slot, the
    slot to its newest. So no chain is ever followed, and none can loop. Memory: 4 bytes per slot.
    """
    from rmqtool.index import blocks_kernel as index_kernel

    offsets = index.ENTRY.offsets
    places = (index.ENTRY_SIZE, offsets["key_hash"], offsets["physical_offset"], offsets["previous"])
    last = np.zeros(max(reader.slot_count, 1), np.int32)
    first_wrong = np.zeros(_EXAMPLES, np.int64)
    limits = np.iinfo(np.int64)
    state = np.array([limits.max, limits.min, limits.min, 1], np.int64)
    wrong = 0
    for first in range(1, count, _BLOCK):
        block = reader.entries(first, min(first + _BLOCK, count)).view(np.uint8)
        wrong = index_kernel.check_entries(block, first, *places, last, first_wrong, wrong, state)
    wrong_slots = 0
    first_slots: list[int] = []
    for first in range(0, reader.slot_count, _BLOCK):
        slots = reader.slots(first, first + _BLOCK)
        wrong_here = slots != last[first : first + len(slots)]
        if grows:
            wrong_here &= slots < count
        found = np.flatnonzero(wrong_here)
        wrong_slots += len(found)
        first_slots += (found[: _EXAMPLES - len(first_slots)] + first).tolist()
    low, high, _, ascending = state.tolist()
    return EntryCheck(
        wrong,
        first_wrong[: min(wrong, _EXAMPLES)].tolist(),
        wrong_slots,
        first_slots,
        low,
        high,
        bool(ascending),
    )
