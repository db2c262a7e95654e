"""Index files as arrays: header, slots, entries; their chains checked for all slots at once.

An index file is 40 bytes of header, `slots` i32 slot values and `entries` entries of 20 bytes.
Entry 0 is never used. A slot holds the number of its newest entry, an entry the number of the
entry before it in the same slot; 0 ends a chain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmqtool.formats import index
from rmqtool.scan.source import ByteSource

ENTRY_DTYPE = index.ENTRY.dtype
_BLOCK_ENTRIES = 1 << 18  # looked at together: bounds the memory
_EXAMPLES = 3


@dataclass(frozen=True)
class IndexArrays:
    """One index file as read-only arrays.

    `slots` has shape (slot_count,) of >i4; `entries` shape (entry_count,) with entry 0 unused;
    fewer of both where the file is short.
    """

    header: index.Header
    slots: np.ndarray
    entries: np.ndarray

    @property
    def used(self) -> int:
        """Entries [1, used) are in use according to the header, within the file."""
        return min(max(self.header.index_count, 1), max(len(self.entries), 1))


def read_index(source: ByteSource, slot_count: int, entry_count: int) -> IndexArrays:
    """The arrays of an index file. Raises FormatError when it is shorter than its header."""
    raw = source.window(0, source.size)
    header = index.decode_header(raw[: index.HEADER_SIZE].tobytes())
    slots_end = index.HEADER_SIZE + min(slot_count, (len(raw) - index.HEADER_SIZE) // 4) * 4
    entry_count = min(entry_count, (len(raw) - slots_end) // index.ENTRY_SIZE)
    slots = raw[index.HEADER_SIZE : slots_end].view(">i4")
    entries = raw[slots_end : slots_end + entry_count * index.ENTRY_SIZE].view(ENTRY_DTYPE)
    return IndexArrays(header, slots, entries)


def content_count(arrays: IndexArrays) -> int:
    """What index_count should be by the entries alone: one more than the last entry not all zero."""
    stop = len(arrays.entries)
    while stop > 0:
        start = max(stop - _BLOCK_ENTRIES, 0)
        raw = arrays.entries[start:stop].view(np.uint8)
        if raw.any():
            used = raw.reshape(-1, ENTRY_DTYPE.itemsize).any(axis=1)
            return start + int(np.flatnonzero(used)[-1]) + 1
        stop = start
    return 1


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


def check_entries(arrays: IndexArrays, count: int) -> EntryCheck:
    """Check entries [1, count), count >= 2, and all slots.

    The links of a sound file are known: an entry points to the next older entry of its slot, the
    slot to its newest. So no chain is ever followed, and none can loop. Memory: 4 bytes per slot.
    """
    from rmqtool.scan import index_kernel

    offsets = index.ENTRY.offsets
    last = np.zeros(max(len(arrays.slots), 1), np.int32)
    first_wrong = np.zeros(_EXAMPLES, np.int64)
    limits = np.iinfo(np.int64)
    state = np.array([limits.max, limits.min, limits.min, 1], np.int64)
    wrong = index_kernel.check_entries(
        arrays.entries.view(np.uint8), index.ENTRY_SIZE, offsets["key_hash"], offsets["physical_offset"],
        offsets["previous"], 1, count, len(last), last, first_wrong, state,
    )  # fmt: skip
    wrong_slots = 0
    first_slots: list[int] = []
    for start in range(0, len(arrays.slots), _BLOCK_ENTRIES):
        block = slice(start, start + _BLOCK_ENTRIES)
        found = np.flatnonzero(arrays.slots[block] != last[block])
        wrong_slots += len(found)
        first_slots += (found[: _EXAMPLES - len(first_slots)] + start).tolist()
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


def slots_in_use(arrays: IndexArrays) -> int:
    """How many slots are not zero."""
    return sum(
        int(np.count_nonzero(arrays.slots[start : start + _BLOCK_ENTRIES]))
        for start in range(0, len(arrays.slots), _BLOCK_ENTRIES)
    )
