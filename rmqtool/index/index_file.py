"""Index files, read in small pieces: a header, a slot, the entries of one chain.

A look-up reads 4 bytes for the slot and 20 for each entry of its chain, whatever the size of the file.
Every number that comes from the file is checked: a chain goes to smaller and smaller entry numbers,
so that it ends also where the file is damaged. A slot that is empty is looked at once more: where a page
of slots was lost, every chain in it seems to have no entry.

Source: IndexFile#selectPhyOffset, IndexService#load; spec 01 sections 6.1 and 6.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import index
from rmqtool.formats.index import Entry, Header, Shape
from rmqtool.storage.open_files import OpenFiles

if TYPE_CHECKING:
    from rmqtool.storage.layout import IndexFilePath, StoreLayout

Broken = Callable[[str, int], None]
"""Told why a chain cannot be followed further, and at which entry."""

_SECTOR, _PAGE = 512, 4096  # what a disk, or a power failure, loses at once
_EXPECTED_MIN = 12  # slots in use that such a piece has on average: with so many, one without any was lost
_ENTRIES_READ_MAX = 1 << 20  # bytes of entries that are read to see whether one belongs to an empty slot
_SMALL = 1 << 18  # so many are looked at in every look-up


class IndexFileView:
    """One index file of a store.

    Raises UnreadableError when it cannot be read, FormatError when it is shorter than its header.
    """

    def __init__(self, files: OpenFiles, file: IndexFilePath, name: str, shape: Shape) -> None:
        self.name = name
        self.size = file.size
        self.shape = shape
        self._files = files
        self.path = file.path
        self.header: Header = index.decode_header(files.read(file.path, 0, index.HEADER_SIZE))

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
        """Whether size and header are what they can be; else nothing follows from what is not found."""
        header = self.header
        return (
            self.size == self.shape.size
            and 0 <= header.index_count <= self.shape.entries
            and 0 <= header.begin_physical_offset <= header.end_physical_offset
        )

    def slot_value(self, slot: int) -> int:
        """The number of the newest entry of a slot, as stored; 0 behind the file's end."""
        data = self._files.read(self.path, self.shape.slot_offset(slot), index.SLOT_SIZE)
        return index.decode_slot(data) if len(data) == index.SLOT_SIZE else 0

    def entry(self, number: int) -> Entry | None:
        """Entry `number`, which is above 0; None behind the file's end."""
        data = self._files.read(self.path, self.shape.entry_offset(number), index.ENTRY_SIZE)
        return index.decode_entry(data) if len(data) == index.ENTRY_SIZE else None

    def chain(self, slot: int, broken: Broken) -> Iterator[tuple[int, Entry]]:
        """(number, entry) of a slot's entries, the newest first.

        Entries that the header does not count yet are followed too: a broker writes entry and slot
        first. `broken` is told where the chain leaves the file, or does not fall.
        """
        number, limit = self.slot_value(slot), self.shape.entries
        while number:
            if not 0 < number < limit:
                broken("points to an entry that cannot precede it", number)
                return
            entry = self.entry(number)
            if entry is None:
                broken("points past the end of the file", number)
                return
            yield number, entry
            number, limit = entry.previous, number

    def offsets(self, key_hash: int, broken: Broken) -> Iterator[int]:
        """Physical offsets of the entries with a key hash, the newest first; other keys may share it.

        `broken` is also told where the chain comes to an entry of another slot: that it ends later
        does not mean that nothing was lost. So it is where the slot should not be empty, where an entry
        names a record of another file, or where a small file has more entries than the chain.
        """
        slot = key_hash % self.shape.slots
        if not self.slot_value(slot) and self._has_lost(slot, key_hash):
            broken("has lost its slot", slot)
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
        if self.is_small and reached < sum(1 for _ in _places(self._entries, key_hash)):
            broken("does not reach all of its entries", slot)

    def covers(self, physical_offset: int) -> bool:
        """Whether a record lies between the first and the last one that the header names."""
        header = self.header
        return header.begin_physical_offset <= physical_offset <= header.end_physical_offset

    @property
    def is_small(self) -> bool:
        """Whether all entries are looked at in every look-up."""
        return index.ENTRY_SIZE * self.header.next_entry <= _SMALL

    def _has_lost(self, slot: int, key_hash: int) -> bool:
        """Whether an empty slot had an entry with a key hash, as far as a few reads can tell."""
        shape = self.shape
        at = shape.slot_offset(slot)
        for length in (_SECTOR, _PAGE):
            start = max(at - at % length, shape.slot_offset(0))
            stop = min(at - at % length + length, shape.entry_offset(0))
            if self.header.hash_slot_count * (stop - start) >= _EXPECTED_MIN * index.SLOT_SIZE * shape.slots:
                if not self._files.read(self.path, start, stop - start).strip(b"\0"):
                    return True
                return self.is_small and any(_places(self._entries, key_hash))
        return any(_places(self._entries, key_hash))

    @cached_property
    def _entries(self) -> bytes:
        """The first entries, from number 0 on, as many as are read to see whether the chains lack one."""
        size = min(index.ENTRY_SIZE * self.header.next_entry, _ENTRIES_READ_MAX)
        return self._files.read(self.path, self.shape.entry_offset(0), size)


def _places(entries: bytes, key_hash: int) -> Iterator[int]:
    """Where the entries with a key hash begin, which is their first field; number 0 is none."""
    wanted = key_hash.to_bytes(4, "big")
    at = entries.find(wanted, index.ENTRY_SIZE)
    while at > 0:
        if at % index.ENTRY_SIZE == 0:
            yield at
        at = entries.find(wanted, at + 1)


def open_views(
    layout: StoreLayout, files: OpenFiles, failed: Callable[[str, str], None] | None = None
) -> list[IndexFileView]:
    """The index files of a store, oldest first; `failed` is told (name, why) of those that cannot be read."""
    views: list[IndexFileView] = []
    shape = Shape(layout.index_slots, layout.index_entries)
    for file in layout.index_files:
        name = layout.relative(file.path)
        try:
            views.append(IndexFileView(files, file, name, shape))
        except (UnreadableError, FormatError) as error:
            if failed is not None:
                failed(name, error.message)
    return views
