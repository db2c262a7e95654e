"""The one reader of index files: header, chains, the entries of many keys, blocks, the check of all links.

An index file is 40 bytes of header, `slots` i32 slot values and `entries` entries of 20 bytes. Entry 0 is
never used. A slot holds the number of its newest entry, an entry the number of the entry before it in the
same slot; 0 ends a chain. `storage.index_shape` finds how a file is divided; `build` writes entries.

A look-up of one key (`offsets`) reads 4 bytes for the slot and 20 for each entry of its chain, whatever the
size of the file, and loads neither numpy nor compiled code. `many` follows the chains of thousands of keys
in compiled code and reads the used part of the file for that. A test holds the two together.

Every number that comes from the file is checked: a chain goes to smaller and smaller entry numbers, so it
ends even if the file is damaged. An empty slot is doubted (`_why_empty`): where a page of slots was
lost, every chain in it seems to have no entry.

Source: IndexFile#selectPhyOffset, IndexService#load; spec 01 sections 6.1 and 6.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import index
from rmqtool.formats.index import Entry, Header, Shape
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.open_files import OpenFiles, head_of
from rmqtool.storage.source import ByteSource, open_source

if TYPE_CHECKING:
    from rmqtool.index.index_file_kernel import FileLayout
    from rmqtool.storage.buffers import Array
    from rmqtool.storage.layout import IndexFilePath, StoreLayout

Broken = Callable[[str, int], None]
"""Called with the reason why a chain cannot be followed further, and the number of the entry."""

PAST_END = "points past the end of the file"
LOST_SLOT = "has lost its slot"
DOUBTED_SLOT = "may have lost its slot"
NOT_ALL_ENTRIES = "does not reach all of its entries"
OF_SLOTS = (LOST_SLOT, DOUBTED_SLOT, NOT_ALL_ENTRIES)
"""Reasons that come with the number of the slot instead."""
_BLOCK = 1 << 18  # entries or slots that are read together: bounds the memory
_EXAMPLES = 3
_SECTOR, _PAGE = 512, 4096  # what a disk, or a power failure, loses at once
_EXPECTED_MIN = 12  # slots in use that such a piece has on average: with that many, one without any was lost
_ENTRIES_READ_MAX = 1 << 20  # bytes of entries that are read to see whether one belongs to an empty slot
_SMALL = 1 << 18  # bytes of entries up to which all of them are read in every look-up
_ROOM = 1 << 16
_WINDOW_SLOTS, _WINDOW_ENTRIES = (((4 << 20) - 1) // size for size in (index.SLOT_SIZE, index.ENTRY_SIZE))
"""Slots, and entries, that are read together for many keys: less than `cold_reads` reads in advance."""
_NO_ENTRY = bytes(index.ENTRY_SIZE)
_TAIL = 64  # entries that are read together where those of the newest record are counted


class Candidates(NamedTuple):
    """Index entries with one of several hashes: the number of the hash, i4, and the physical offset, i8.

    `broken` are the numbers of hashes whose chain cannot be followed to its end.
    """

    keys: Array
    offsets: Array
    broken: Array


@dataclass(frozen=True)
class LinkCheck:
    """The result of one pass over all links.

    `wrong_entries` and `wrong_slots` count the links that are not what putKey writes, with the numbers of the
    first few. `slots_in_use` are the slots that are not zero. `ascending` says that physical offsets never
    fall from `low` to `high`.
    """

    wrong_entries: int
    first_wrong_entries: list[int]
    wrong_slots: int
    first_wrong_slots: list[int]
    slots_in_use: int
    low: int
    high: int
    ascending: bool


class IndexFile:
    """One index file of a known shape, as its header was when it was opened.

    `slot_count` and `entry_count` are less than in the shape if the file is short.

    Args:
        source: its bytes: `small_reads` for look-ups, `open_source` for whole files.
        shape: how the file is divided.
        name: the file's name as rows show it.
        path: the file.
        header: its header; None to read it.

    Raises:
        UnreadableError: the header cannot be read.
        FormatError: the file is shorter than its header.
    """

    def __init__(
        self, source: ByteSource, shape: Shape, *, name: str = "", path: Path | None = None,
        header: Header | None = None,
    ) -> None:  # fmt: skip
        self.source = source
        self.shape = shape
        self.name = name
        self.path = Path(source.name) if path is None else path
        self.header = (
            index.decode_header(source.read(0, index.HEADER_SIZE)) if header is None else header
        )  # fmt: skip
        self.slot_count = min(shape.slots, max(source.size - shape.slot_offset(0), 0) // index.SLOT_SIZE)
        self.entry_count = min(shape.entries, max(source.size - shape.entry_offset(0), 0) // index.ENTRY_SIZE)
        self._doubted = 0  # slots

    @contextmanager
    def scanning(self) -> Iterator[IndexFile]:
        """The same file with the same header, opened to be read as a whole.

        Bytes that cannot be read are zeros and are listed in `source.unreadable`. Raises OSError.
        """
        with closing(open_source(self.path)) as source:
            yield self.over(source)

    def over(self, source: ByteSource) -> IndexFile:
        """The same file with the same header, read through another source."""
        return IndexFile(source, self.shape, name=self.name, path=self.path, header=self.header)

    # the header

    @property
    def is_empty(self) -> bool:
        """Whether no key was ever put."""
        return self.header.next_entry <= 1

    @property
    def is_full(self) -> bool:
        """Whether the next key goes to another file."""
        return self.header.index_count >= self.shape.entries

    @property
    def is_plausible(self) -> bool:
        """Whether size and header have possible values. If not, what the file lacks proves nothing."""
        header = self.header
        return (
            self.source.size == self.shape.size
            and 0 <= header.index_count <= self.shape.entries
            and 0 <= header.begin_physical_offset <= header.end_physical_offset
        )

    @property
    def is_small(self) -> bool:
        """Whether all entries are read in every look-up."""
        return index.ENTRY_SIZE * self.header.next_entry <= _SMALL

    @property
    def used(self) -> int:
        """Entries [1, used) are in use according to the header, and lie within the file; at least 1."""
        return min(self.header.next_entry, max(self.entry_count, 1))

    def covers(self, physical_offset: int) -> bool:
        """Whether a record lies between the first and the last one that the header names."""
        header = self.header
        return header.begin_physical_offset <= physical_offset <= header.end_physical_offset

    # one slot, one entry, one chain

    def slot_value(self, slot: int) -> int:
        """The number of the newest entry of a slot, as stored; 0 past the file's end."""
        data = self.source.read(self.shape.slot_offset(slot), index.SLOT_SIZE)
        return index.decode_slot(data) if len(data) == index.SLOT_SIZE else 0

    def entry(self, number: int) -> Entry | None:
        """Entry `number`, which is above 0; None past the file's end."""
        data = self.source.read(self.shape.entry_offset(number), index.ENTRY_SIZE)
        return index.decode_entry(data) if len(data) == index.ENTRY_SIZE else None

    def chain(self, slot: int, broken: Broken) -> Iterator[tuple[int, Entry]]:
        """(number, entry) of a slot's entries, the newest first.

        Entries that the header does not count yet are followed too: a broker writes entry and slot first.
        `broken` is called where the chain leaves the file, or does not fall.
        """
        return self.chain_from(self.slot_value(slot), self.shape.entries, broken)

    def chain_from(self, newest: int, limit: int, broken: Broken) -> Iterator[tuple[int, Entry]]:
        """As `chain`, from entry `newest` on, which must be below `limit`."""
        number = newest
        while number:
            if not 0 < number < limit:
                broken("points to an entry that cannot precede it", number)
                return
            entry = self.entry(number)
            if entry is None:
                broken(PAST_END, number)
                return
            yield number, entry
            number, limit = entry.previous, number

    def offsets(self, key_hash: int, broken: Broken) -> Iterator[int]:
        """Physical offsets of the entries with a key hash, the newest first; other keys may share it.

        `broken` is also called where the chain reaches an entry of another slot, even if it ends later:
        entries may be lost. The same holds where the slot should not be empty, where an entry names a
        record of another file, and where a small file has more entries than the chain.
        """
        slot = key_hash % self.shape.slots
        why = None if self.slot_value(slot) else self._why_empty(slot, key_hash)
        if why is not None:
            broken(why, slot)
            return
        reached = 0
        for number, entry in self.chain(slot, broken):
            if entry.key_hash == key_hash:
                is_counted = number < self.header.next_entry
                if is_counted and not self.covers(entry.physical_offset):
                    broken("names a record that the file does not cover", number)
                reached += is_counted
                yield entry.physical_offset
            elif entry.key_hash % self.shape.slots != slot:
                broken("reaches an entry of another slot", number)
                return
        if self.is_small and reached < sum(1 for _ in _places(self._first_entries, key_hash)):
            broken(NOT_ALL_ENTRIES, slot)

    def _why_empty(self, slot: int, key_hash: int) -> str | None:
        """Why an empty slot is wrong, or doubted; None if it is neither, as far as the read entries show.

        It is wrong if an entry belongs to it, and doubted if its page was expected to have slots in use and
        has none. Keys that count up have neighbouring slots and leave pages empty, so all entries are read
        then: no slot is doubted where none of them belongs to it, and none is lost.
        """
        shape = self.shape
        at = shape.slot_offset(slot)
        is_doubted = False
        for length in (_SECTOR, _PAGE):
            start = max(at - at % length, shape.slot_offset(0))
            stop = min(at - at % length + length, shape.entry_offset(0))
            if self.header.hash_slot_count * (stop - start) >= _EXPECTED_MIN * index.SLOT_SIZE * shape.slots:
                is_doubted = not self.source.read(start, stop - start).strip(b"\0")
                if not is_doubted and not self.is_small:
                    return None
                break
        if is_doubted:
            return self._why_no_entry(slot, key_hash)
        return LOST_SLOT if any(_places(self._first_entries, key_hash)) else None

    def _why_no_entry(self, slot: int, key_hash: int) -> str | None:
        """As `_why_empty`, of a slot that is doubted: by all entries that are in use.

        The first such slot needs one pass over them; for all others a second pass notes where entries belong.
        """
        self._doubted += 1
        if self._doubted > 1:
            has_entries, lacks_some = self._slots_of_entries
            if slot < len(has_entries) and not has_entries[slot]:
                return DOUBTED_SLOT if lacks_some else None
        lacks_some = self.used < self.header.next_entry
        for entries in self._used_entries():
            if any(_places(entries, key_hash)):
                return LOST_SLOT
            lacks_some |= _lacks_some(entries)
        return DOUBTED_SLOT if lacks_some else None

    def _used_entries(self) -> Iterator[bytes]:
        """Entries [1, used) block by block, each after an entry that does not count."""
        for first in range(1, self.used, _BLOCK):
            yield self.entry_bytes(first - 1, min(first + _BLOCK, self.used))

    @cached_property
    def _slots_of_entries(self) -> tuple[Array, bool]:
        """(whether an entry in use belongs to each slot that the file has: bool; whether some are lost)."""
        import numpy as np

        found, lacks_some = np.zeros(self.slot_count, np.bool_), self.used < self.header.next_entry
        for entries in self._used_entries():
            count = len(entries) // index.ENTRY_SIZE
            hashes = np.frombuffer(entries, index.ENTRY.dtype, count)["key_hash"][1:]
            slots = hashes.astype(np.int64) % self.shape.slots
            found[slots[slots < self.slot_count]] = True
            lacks_some |= _lacks_some(entries)
        return found, lacks_some

    @cached_property
    def _first_entries(self) -> bytes:
        """The first entries, from number 0 on, as many as are read to see whether the chains lack one."""
        size = min(index.ENTRY_SIZE * self.header.next_entry, _ENTRIES_READ_MAX)
        return self.source.read(self.shape.entry_offset(0), size)

    # many chains

    def many(self, hashes: Sequence[Array]) -> tuple[list[Candidates], bool]:
        """The entries that have one of the hashes, in no order, and whether chains are broken or gone.

        The used part of the file is read once, window by window, because chains lead through all of it.
        Entries that the header does not count are not followed.

        Args:
            hashes: arrays of key hashes, i4, each looked up by itself; a hash may occur several times.
        """
        import numpy as np

        begin, end = self.header.begin_physical_offset, self.header.end_physical_offset
        walk = _ChainWalk(self, np.concatenate(hashes))
        used_slots = walk.read_slots()
        walk.read_entries()
        found = walk.found([len(each) for each in hashes])
        is_broken = any(
            len(each.broken) or bool(((each.offsets < begin) | (each.offsets > end)).any()) for each in found
        ) or (
            self.is_small
            and any(
                len(each.keys) < self._count_entries(wanted)
                for each, wanted in zip(found, hashes, strict=True)
            )
        )
        # Fewer slots in use than the header counts: chains are gone.
        has_lost_slots = used_slots < self.header.hash_slot_count
        return found, is_broken or bool(self.source.unreadable) or has_lost_slots

    def _count_entries(self, hashes: Array) -> int:
        """How many of the used entries have one of `hashes`; sound chains lead to as many."""
        import numpy as np

        there, counts = np.unique(self.entries(1, self.used)["key_hash"], return_counts=True)
        places = np.searchsorted(there, hashes)
        known = places < len(there)
        known[known] = there[places[known]] == hashes[known]
        return int(counts[places[known]].sum())

    # all entries, all slots

    def entry_bytes(self, first: int, stop: int) -> bytes:
        """The bytes of entries [first, stop), of fewer at the end of the file."""
        length = max(min(stop, self.entry_count) - first, 0) * index.ENTRY_SIZE
        return self.source.read(self.shape.entry_offset(first), length)

    def slot_bytes(self, first: int, stop: int) -> bytes:
        """The bytes of slots [first, stop), of fewer at the end of the file."""
        length = max(min(stop, self.slot_count) - first, 0) * index.SLOT_SIZE
        return self.source.read(self.shape.slot_offset(first), length)

    def entries(self, first: int, stop: int) -> Array:
        """Entries [first, stop), fewer at the end of the file: shape (n,), fields of `index.ENTRY`."""
        import numpy as np

        data = self.entry_bytes(first, stop)
        return np.frombuffer(data, index.ENTRY.dtype, len(data) // index.ENTRY_SIZE)

    def slots(self, first: int, stop: int) -> Array:
        """Slots [first, stop), fewer at the end of the file: shape (n,), i4."""
        import numpy as np

        data = self.slot_bytes(first, stop)
        return np.frombuffer(data, ">i4", len(data) // index.SLOT_SIZE).astype(np.int32)

    def blocks(self, stop: int) -> Iterator[tuple[int, Array]]:
        """Entries [1, stop) block by block, as (number of the first one, entries)."""
        for first in range(1, stop, _BLOCK):
            block = self.entries(first, min(first + _BLOCK, stop))
            if not len(block):
                return
            yield first, block

    def physical_offset(self, number: int) -> int:
        """The physical offset in entry `number`, which is within the file."""
        return int(self.entries(number, number + 1)["physical_offset"][0])

    def first_from(self, physical_offset: int, stop: int) -> int:
        """The first of entries [1, stop), ascending by physical offset, at or after this one; else `stop`."""
        low, high = 1, stop
        while low < high:
            middle = (low + high) // 2
            if self.physical_offset(middle) < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def content_count(self) -> int:
        """Return index_count by the entries alone: one more than the last one that is not all zero."""
        import numpy as np

        count = 1
        first = 1
        while first < self.entry_count:
            place = self.source.data_from(self.shape.entry_offset(first))
            first = max((place - self.shape.entry_offset(0)) // index.ENTRY_SIZE, first)
            block = self.entries(first, first + _BLOCK)
            if not len(block):
                break
            used = np.flatnonzero(block.view(np.uint32))
            if len(used):
                count = first + int(used[-1]) * np.dtype(np.uint32).itemsize // index.ENTRY_SIZE + 1
            first += len(block)
        return count

    def check(self, count: int, *, grows: bool = False) -> LinkCheck:
        """Check entries [1, count), count >= 2, and all slots.

        In a file that `grows`, slots may name later entries. The links of a sound file are known: an entry
        points to the next older entry of its slot, the slot to its newest. So no chain is followed, and none
        can loop. Memory: 4 bytes per slot.
        """
        import numpy as np

        from rmqtool.index import index_file_kernel as kernel

        layout = _file_layout(self.shape)
        last = np.zeros(max(self.slot_count, 1), np.int32)
        first_wrong = np.zeros(_EXAMPLES, np.int64)
        limits = np.iinfo(np.int64)
        state = np.array([limits.max, limits.min, limits.min, 1], np.int64)
        wrong = 0
        for first, block in self.blocks(count):
            wrong = kernel.check_entries(
                block.view(np.uint8), first, layout, last, first_wrong, wrong, state
            )  # fmt: skip
        wrong_slots = slots_in_use = 0
        first_slots: list[int] = []
        for first in range(0, self.slot_count, _BLOCK):
            slots = self.slots(first, first + _BLOCK)
            slots_in_use += int(np.count_nonzero(slots))
            wrong_here = slots != last[first : first + len(slots)]
            if grows:
                wrong_here &= slots < count
            found = np.flatnonzero(wrong_here)
            wrong_slots += len(found)
            first_slots += (found[: _EXAMPLES - len(first_slots)] + first).tolist()
        low, high, _, ascending = state.tolist()
        return LinkCheck(
            wrong,
            first_wrong[: min(wrong, _EXAMPLES)].tolist(),
            wrong_slots,
            first_slots,
            slots_in_use,
            low,
            high,
            bool(ascending),
        )


def _file_layout(shape: Shape) -> FileLayout:
    """The layout of files of a shape, for the kernels."""
    from rmqtool.index.index_file_kernel import FileLayout

    fields = index.ENTRY.offsets
    return FileLayout(
        slots_at=shape.slot_offset(0),
        slots=shape.slots,
        slot_size=index.SLOT_SIZE,
        entries_at=shape.entry_offset(0),
        entry_size=index.ENTRY_SIZE,
        hash_at=fields["key_hash"],
        physical_at=fields["physical_offset"],
        previous_at=fields["previous"],
    )


def holds(entries: Array, rows: Array, keys: Array, left_out: int = -1) -> bool:
    """Whether `entries` of a file are those of `keys` of the records `rows`, one by one in their order.

    Keys of the kind `left_out` have no entries; see `index_file_kernel.match_keys`.
    """
    import numpy as np

    from rmqtool.index import index_file_kernel as kernel

    layout = _file_layout(index.DEFAULT_SHAPE)  # of which only the fields of an entry count
    return bool(kernel.match_keys(entries.view(np.uint8), layout, rows, keys, left_out))


class _ChainWalk:
    """One pass over an index file along the chains of many keys, from its newest entries to its oldest."""

    def __init__(self, file: IndexFile, hashes: Array) -> None:
        import numpy as np

        self._file, self._hashes = file, hashes
        self._layout = _file_layout(file.shape)
        count = len(hashes)
        self._windows = -(-file.used // _WINDOW_ENTRIES)
        self._heads = np.full(self._windows, -1, np.int32)
        self._nexts = np.empty(count, np.int32)
        self._numbers, self._limits = np.empty(count, np.int32), np.empty(count, np.int32)
        self._broken = np.empty(count, np.int32)
        self._keys, self._offsets = np.empty(count + _ROOM, np.int32), np.empty(count + _ROOM, np.int64)
        self._state = np.zeros(3, np.int64)

    def read_slots(self) -> int:
        """Find the newest entry of every key; how many slots are in use."""
        import numpy as np

        from rmqtool.index import index_file_kernel as kernel

        file, shape = self._file, self._file.shape
        heads = np.full(-(-shape.slots // _WINDOW_SLOTS), kernel.NONE, np.int32)
        if file.used > 1:
            kernel.list_by_slot(self._hashes, self._layout, _WINDOW_SLOTS, heads, self._nexts)
        in_use = 0
        for place, k in enumerate(heads.tolist()):
            first = place * _WINDOW_SLOTS
            stop = min(first + _WINDOW_SLOTS, file.slot_count)
            if first >= stop:
                break
            data = file.source.window(shape.slot_offset(first), (stop - first) * index.SLOT_SIZE)
            in_use += int(np.count_nonzero(data.view(np.int32)))
            if k != kernel.NONE:
                kernel.newest_entries(
                    data, first, k, self._hashes, self._layout, _WINDOW_ENTRIES, file.used, self._heads,
                    self._nexts, self._numbers, self._limits, self._state, self._broken,
                )  # fmt: skip
        return in_use

    def read_entries(self) -> None:
        """Follow all chains to their ends."""
        import numpy as np

        from rmqtool.index import index_file_kernel as kernel

        file = self._file
        for place in reversed(range(self._windows)):
            if not self._state[kernel.KEYS_LEFT]:
                return
            if self._heads[place] == kernel.NONE:
                continue
            first = place * _WINDOW_ENTRIES
            length = (min(first + _WINDOW_ENTRIES, file.used) - first) * index.ENTRY_SIZE
            data = file.source.window(file.shape.entry_offset(first), length)
            while self._heads[place] != kernel.NONE:
                if self._state[kernel.FOUND] == len(self._keys):
                    self._keys, self._offsets = (
                        np.concatenate([each, np.empty_like(each)]) for each in (self._keys, self._offsets)
                    )
                kernel.follow_chains(
                    data, place, self._hashes, self._layout, _WINDOW_ENTRIES, self._heads, self._nexts,
                    self._numbers, self._limits, self._state, self._keys, self._offsets, self._broken,
                )  # fmt: skip

    def found(self, sizes: Sequence[int]) -> list[Candidates]:
        """The hits, for groups of keys of these sizes."""
        import numpy as np

        from rmqtool.index import index_file_kernel as kernel

        count, wrong = int(self._state[kernel.FOUND]), self._broken[: int(self._state[kernel.BROKEN])]
        keys, offsets = self._keys[:count], self._offsets[:count]
        if len(sizes) == 1:
            return [Candidates(keys, offsets, wrong)]
        order = np.argsort(keys, kind="stable")
        keys, offsets, wrong = keys[order], offsets[order], np.sort(wrong)
        found = []
        first = 0
        for size in sizes:
            part, bad = (
                slice(*np.searchsorted(each, (first, first + size)).tolist()) for each in (keys, wrong)
            )
            found.append(
                Candidates(keys[part] - np.int32(first), offsets[part], wrong[bad] - np.int32(first))
            )
            first += size
        return found


def _places(entries: bytes, key_hash: int) -> Iterator[int]:
    """Where the entries with a key hash begin, which is their first field; number 0 is never used."""
    wanted = key_hash.to_bytes(4, "big")
    at = entries.find(wanted, index.ENTRY_SIZE)
    while at > 0:
        if at % index.ENTRY_SIZE == 0:
            yield at
        at = entries.find(wanted, at + 1)


def _lacks_some(entries: bytes) -> bool:
    """Whether one of the entries after the first is all zero: it was never written, or is lost."""
    return entries.find(_NO_ENTRY, index.ENTRY_SIZE) > 0


class _SmallReads:
    """A file as a `ByteSource` that reads only what is requested, and raises UnreadableError."""

    def __init__(self, files: OpenFiles, path: Path, size: int) -> None:
        self.name = str(path)
        self.size = size
        self.unreadable: list[tuple[int, int]] = []
        self._files = files
        self._path = path

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        return self._files.read(self._path, offset, length)

    def window(self, offset: int, length: int) -> Any:
        """See ByteSource."""
        import numpy as np

        return np.frombuffer(self.read(offset, length), np.uint8)

    def data_from(self, offset: int) -> int:
        """See ByteSource."""
        return offset

    def close(self) -> None:
        """See ByteSource."""


def open_index_file(files: OpenFiles, file: IndexFilePath, shape: Shape, name: str = "") -> IndexFile:
    """One index file, for small reads through `files`. Raises as `IndexFile` does."""
    return IndexFile(_SmallReads(files, file.path, file.size), shape, name=name, path=file.path)


def open_index_files(
    layout: StoreLayout, files: OpenFiles, failed: Callable[[str, str], None] | None = None
) -> list[IndexFile]:
    """The index files of a store, oldest first; `failed` gets (name, why) of those that cannot be read."""
    opened: list[IndexFile] = []
    shape = Shape(layout.index_slots, layout.index_entries)
    for file in layout.index_files:
        name = layout.relative(file.path)
        try:
            opened.append(open_index_file(files, file, shape, name))
        except (UnreadableError, FormatError) as error:
            if failed is not None:
                failed(name, error.message)
    return opened


def entries_of_newest(newest_first: Iterable[IndexFile], physical_offset: int) -> int:
    """How many entries at the end of the index belong to the record at this offset."""
    count = 0
    for file in newest_first:
        stop = file.used
        while stop > 1:
            first = max(stop - _TAIL, 1)
            data = file.entry_bytes(first, stop)
            for place in range(len(data) - index.ENTRY_SIZE, -1, -index.ENTRY_SIZE):
                if index.decode_entry(data, place).physical_offset != physical_offset:
                    return count
                count += 1
            stop = first
    return count


def header_of(path: Path) -> Header:
    """The header of an index file; bytes that are missing or cannot be read are zero."""
    return index.decode_header(head_of(path, index.HEADER_SIZE).ljust(index.HEADER_SIZE, b"\0"))
