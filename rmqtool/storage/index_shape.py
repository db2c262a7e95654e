"""The number of slots and entries of an index file. No field holds it, so it is found from the content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.formats.index import (
    ENTRY,
    ENTRY_SIZE,
    HEADER,
    HEADER_SIZE,
    SLOT,
    SLOT_SIZE,
    Entry,
    Header,
    Shape,
    shape_by_entry,
    shapes_of,
)
from rmqtool.storage.open_files import data_ranges, reading

if TYPE_CHECKING:
    from rmqtool.storage.random_file import RandomFile

_LIKELY = 2  # first results of `shapes_of`: the default, and its ratio of slots to entries
_SMALL = 4096  # bytes of a file for which every shape is tried
_SAMPLES = 48  # entries checked at each end of the used part
_SEARCH_LIMIT = 64 << 20  # bytes of data read, from its end, to find the entries
_SEARCH_STEP = 1 << 20
_HITS = 32  # hits of that search that are tried
_OFFSET_FIELD = ENTRY.offsets["physical_offset"]


def index_shape(files: Iterable[tuple[Path, int]], hints: Sequence[Shape] = ()) -> Shape | None:
    """The shape of a store's index files, found from their content; None if it shows no shape.

    Args:
        files: path and size of the index files.
        hints: shapes to try first.

    The result is the shape under which most entries are in the chains of their slots, at least half of
    them. Reads a few kilobytes of a file, or up to 64 MiB of its data if no usual shape fits.
    """
    for path, size in files:
        try:
            with reading(path) as file:
                shape = _shape_of_file(file, size, hints)
        except OSError:
            continue  # try the next file; the command that reads this one reports the error
        if shape is not None:
            return shape
    return None


def usual_shape(size: int) -> Shape | None:
    """The shape of an index file of `size` bytes with the default's ratio of four entries to a slot."""
    shape = next(shapes_of(size), None)
    return shape if shape is not None and shape.entries == 4 * shape.slots else None


def _shape_of_file(file: RandomFile, size: int, hints: Sequence[Shape]) -> Shape | None:
    head = file.read(0, HEADER_SIZE)
    if len(head) < HEADER_SIZE:
        return None
    header = Header(*HEADER.unpack(head))
    best, best_fit = None, (0.5, False)  # a few damaged entries must not hide the shape
    for shape in _candidates(file, size, header, hints):
        fit = (_chained_share(file, shape, header.next_entry), shape.slots >= header.hash_slot_count)
        if fit == (1, True):
            return shape
        if fit > best_fit:
            best, best_fit = shape, fit
    return best


def _candidates(file: RandomFile, size: int, header: Header, hints: Sequence[Shape]) -> Iterator[Shape]:
    """The shapes to try, likely ones first, each of them once."""
    usual = islice(shapes_of(size), _LIKELY if size > _SMALL else None)
    found = islice(_shapes_by_last_entry(file, size, header), _HITS)
    tried: set[Shape] = set()
    for shape in chain(hints, usual, found):
        if shape.size == size and shape not in tried:
            tried.add(shape)
            yield shape


def _chained_share(file: RandomFile, shape: Shape, next_entry: int) -> float:
    """The share, 0 to 1, of the first and the last entries that are in the chains of their slots.

    Entry n is in its chain if its slot holds n or a later entry, and its previous entry is the newest
    older one of the same slot. With few slots some wrong shapes have such entries too; in the right shape
    all entries are in their chains.
    """
    newest = min(next_entry, shape.entries) - 1
    middle = min(_SAMPLES, newest) + 1
    blocks = (range(1, middle), range(max(middle, newest - _SAMPLES), newest + 1))
    good = sum(_chained(file, shape, numbers) for numbers in blocks if numbers)
    return good / max(sum(map(len, blocks)), 1)


def _chained(file: RandomFile, shape: Shape, numbers: range) -> int:
    """How many of these entries are in their chains."""
    last: dict[int, int] = {}
    good = 0
    for number in numbers:
        entry = _entry(file, shape, number)
        if entry is None or entry.key_hash < 0 or not any(entry):
            continue
        slot = entry.key_hash % shape.slots
        if slot in last:
            follows = entry.previous == last[slot]
        else:
            follows = _is_in_slot(file, shape, entry.previous, slot, numbers.start)
        last[slot] = number
        data = file.read(shape.slot_offset(slot), SLOT_SIZE)
        # After a crash a slot may hold an entry that the header does not count yet.
        named = len(data) == SLOT_SIZE and number <= SLOT.unpack(data)[0] < shape.entries
        good += follows and named
    return good


def _is_in_slot(file: RandomFile, shape: Shape, number: int, slot: int, stop: int) -> bool:
    """Whether `number` is 0 (no entry), or the number of an entry of this slot below `stop`."""
    if not 0 < number < stop:
        return number == 0
    entry = _entry(file, shape, number)
    return entry is not None and entry.key_hash % shape.slots == slot


def _entry(file: RandomFile, shape: Shape, number: int) -> Entry | None:
    data = file.read(shape.entry_offset(number), ENTRY_SIZE)
    return Entry(*ENTRY.unpack(data)) if len(data) == ENTRY_SIZE else None


def _shapes_by_last_entry(file: RandomFile, size: int, header: Header) -> Iterator[Shape]:
    """The shapes under which the newest entry holds the header's last physical offset.

    The data is read backwards from its end: the entries are the last thing in the file.
    """
    if header.next_entry < 2 or header.end_physical_offset <= 0:
        return
    wanted = header.end_physical_offset.to_bytes(8)
    carried = b""
    for position, data in _data_backwards(file, size):
        block = data + carried
        found = block.rfind(wanted)
        while found >= 0:
            shape = shape_by_entry(size, header.next_entry - 1, position + found - _OFFSET_FIELD)
            if shape is not None:
                yield shape
            found = block.rfind(wanted, 0, found + len(wanted) - 1)
        carried = data[: len(wanted) - 1]


def _data_backwards(file: RandomFile, size: int) -> Iterator[tuple[int, bytes]]:
    """(position, bytes) of the file's allocated parts, last first, up to _SEARCH_LIMIT bytes."""
    left = _SEARCH_LIMIT
    for start, stop in reversed(_allocated(file, size)):
        while stop > start and left > 0:
            begin = max(start, stop - _SEARCH_STEP)
            yield begin, file.read(begin, stop - begin)
            left -= stop - begin
            stop = begin


def _allocated(file: RandomFile, size: int) -> list[tuple[int, int]]:
    """Half-open ranges of the file outside of holes; the whole file if the system does not report holes."""
    return list(data_ranges(file, size)) or [(0, size)]
