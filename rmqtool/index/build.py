"""Keys of messages to entries of an index file: IndexFile#putKey, and the same for many keys at once.

`State` is a file's header with the number of entries made for its newest record, in an array that
plain Python (`put_key`) and the compiled loop (`put_keys`) share.

Source: IndexFile#putKey, IndexService#buildIndex; spec 01 sections 6.1, 6.2, 6.6.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from rmqtool.formats.index import ENTRY, ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, Header, Shape
from rmqtool.storage.open_files import data_ranges

if TYPE_CHECKING:
    import numpy as np

    from rmqtool.storage.random_file import RandomFile

    Array = np.ndarray[Any, np.dtype[Any]]

# Places in a state
BEGIN_TIMESTAMP, END_TIMESTAMP, BEGIN_OFFSET, END_OFFSET, SLOT_COUNT, COUNT, NEWEST = range(7)
_DIFF_MAX = (1 << 31) - 1
PAGE = 4096
_PAGES_AT_ONCE = 256
_LOAD = 1 << 20  # bytes of slots read at once


class Slots(Protocol):
    """The number of the newest entry by slot; 0 for none."""

    def __getitem__(self, slot: int) -> int: ...

    def __setitem__(self, slot: int, entry: int) -> None: ...


def new_state(header: Header, newest: int = 0) -> array[int]:
    """The state of a file with this header, of which `newest` entries belong to its newest record."""
    return array("q", [*header[:5], header.next_entry, newest])


def header_of(state: array[int]) -> Header:
    """The header that a file with this state has; the count is 0 until there is an entry."""
    count = state[COUNT]
    return Header(*(*state[:COUNT], count if count > 1 else 0))


def header_after(state: array[int]) -> Header:
    """The header of the file after a full one with this state: times and offsets begin where that one ends.

    Source: IndexService#getAndCreateLastIndexFile.
    """
    timestamp, offset = max(state[END_TIMESTAMP], 0), max(state[END_OFFSET], 0)
    return Header(timestamp, timestamp, offset, offset, 0, 0)


def is_full(state: array[int], shape: Shape) -> bool:
    """Whether no entry can be added: entry 0 is never used."""
    return state[COUNT] >= shape.entries


def put_key(
    state: array[int], slots: Slots, key_hash: int, physical_offset: int,
    store_timestamp: int, shape: Shape,
) -> bytes:  # fmt: skip
    """Add one key to a file that is not full; the 20 bytes of its entry, number state[COUNT] before.

    The time of the first entry of a file is measured from the end of the file before it, as the
    broker does.
    """
    number = state[COUNT]
    slot = key_hash % shape.slots
    previous = slots[slot]
    if previous <= 0 or previous > number:
        previous = 0
        state[SLOT_COUNT] += 1
    begin = state[BEGIN_TIMESTAMP]
    seconds = (store_timestamp - begin) // 1000 if begin > 0 else 0
    entry = ENTRY.pack(key_hash, physical_offset, min(max(seconds, 0), _DIFF_MAX), previous)
    slots[slot] = number
    if number <= 1:
        state[BEGIN_OFFSET], state[BEGIN_TIMESTAMP] = physical_offset, store_timestamp
    state[NEWEST] = state[NEWEST] + 1 if physical_offset == state[END_OFFSET] else 1
    state[COUNT] = number + 1
    state[END_OFFSET], state[END_TIMESTAMP] = physical_offset, store_timestamp
    return entry


class SlotTable:
    """All slots of one file in memory, and which pages of the file they have changed."""

    def __init__(self, shape: Shape) -> None:
        import numpy as np

        self._shape = shape
        self.values = np.zeros(shape.slots, np.int32)
        self.dirty = np.zeros((shape.entry_offset(0) - 1) // PAGE + 1, np.uint8)

    def load(self, file: RandomFile) -> None:
        """Read the slots of a file outside of its holes. Raises OSError."""
        import numpy as np

        end = min(self._shape.entry_offset(0), file.size)
        for low, high in data_ranges(file, end):
            first, stop = max(low - HEADER_SIZE, 0) // SLOT_SIZE, (min(high, end) - HEADER_SIZE) // SLOT_SIZE
            for slot in range(first, stop, _LOAD // SLOT_SIZE):
                length = min(stop - slot, _LOAD // SLOT_SIZE) * SLOT_SIZE
                data = file.read(self._shape.slot_offset(slot), length)
                values = np.frombuffer(data, ">i4", len(data) // SLOT_SIZE)
                self.values[slot : slot + len(values)] = values

    def __getitem__(self, slot: int) -> int:
        return int(self.values[slot])

    def __setitem__(self, slot: int, entry: int) -> None:
        self.values[slot] = entry
        self.dirty[(HEADER_SIZE + SLOT_SIZE * slot) // PAGE] = 1

    def changed(self) -> Iterator[tuple[int, bytes]]:
        """(byte offset in the file, bytes) of the pages that have changed, neighbours together."""
        import numpy as np

        pages = np.flatnonzero(self.dirty)
        cuts = np.flatnonzero((np.diff(pages) > 1) | (pages[1:] % _PAGES_AT_ONCE == 0)) + 1
        for run in np.split(pages, cuts) if len(pages) else ():
            low = max(int(run[0]) * PAGE - HEADER_SIZE, 0) // SLOT_SIZE
            high = min(((int(run[-1]) + 1) * PAGE - HEADER_SIZE) // SLOT_SIZE, len(self.values))
            yield self._shape.slot_offset(low), self.values[low:high].astype(">i4").tobytes()

    def settle(self) -> None:
        """Note that all changes are written."""
        self.dirty[:] = 0


class EntryBuffer:
    """Entries that wait to be written after those of the file: packed, `limit` at most."""

    def __init__(self, limit: int) -> None:
        import numpy as np

        self.count = 0
        self.limit = limit
        self.words = np.empty(limit * (ENTRY_SIZE // 2), np.uint16)

    def data(self) -> memoryview:
        """Their bytes."""
        return self.words[: self.count * (ENTRY_SIZE // 2)].data.cast("B")


def put_keys(
    state: array[int], slots: SlotTable, buffer: EntryBuffer, rows: Array, keys: Array, first: int, skip: int,
    shape: Shape, *, tags: bool,
) -> int:  # fmt: skip
    """Add keys[first:] as far as file and buffer have room; where it went on to, len(keys) when done.

    Args:
        state: of the file.
        slots: of the file.
        buffer: takes the entries.
        rows: rows of one batch of the walk.
        keys: their keys, as `dispatch.dispatch_columns` gives them.
        first: where to begin.
        skip: how many keys of a record that starts where the newest one starts are there already.
        shape: of the file.
        tags: whether TAGS are indexed.
    """
    import numpy as np

    from rmqtool.index import build_kernel as kernel
    from rmqtool.log.dispatch import KIND_TAG

    filled = np.array([buffer.count], np.int64)
    left_out = -1 if tags else KIND_TAG
    limits = kernel.Limits(shape.entries, buffer.limit, left_out, HEADER_SIZE, SLOT_SIZE, PAGE)
    done = kernel.put_keys(
        rows, keys, first, skip, np.frombuffer(state, np.int64), slots.values, slots.dirty, buffer.words,
        filled, limits,
    )  # fmt: skip
    buffer.count = int(filled[0])
    return int(done)


def load_kernels(rows: Array, keys: Array) -> None:
    """Compile or load the kernel, with `rows` and `keys` of one batch of the walk; keys may be none."""
    state, shape = new_state(Header(0, 0, 0, 0, 0, 0)), Shape(1, 2)
    put_keys(state, SlotTable(shape), EntryBuffer(1), rows, keys, 0, 0, shape, tags=False)
