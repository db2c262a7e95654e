"""Access by the index: a selection by keys of topics that are named in full.

The index is trusted with what its files cover and whose links are all sound (they are read once: 20
bytes for a key, where the log holds the message). Ranges that no such file covers are read from the log,
and so are those where an entry leads to no record. A broker whose index was off for a while leaves records
in the range of a file that no entry names: those that the topics' queues have are read too. A topic
without queues has no way by the index.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import index
from rmqtool.formats.java import index_key_hashes
from rmqtool.index.index_file import IndexFile, open_index_files
from rmqtool.read import coverage
from rmqtool.read.access import Access, LogRange
from rmqtool.read.coverage import Gap
from rmqtool.read.queue_access import tiled_parts
from rmqtool.read.queue_units import QueueUnits
from rmqtool.read.selection import Selection, is_glob
from rmqtool.read.store import Store
from rmqtool.storage.buffers import Array
from rmqtool.storage.open_files import OpenFiles

_RECORDS_MAX = 1 << 20
_HASHES_MAX = 1 << 16
_SHARE = 4  # the log must be this many times what is read of the index


def index_access(store: Store, selection: Selection, log: Access, *, always: bool) -> Access | None:
    """The access by the index; None where it cannot answer, or not at a better price than the log.

    Args:
        store: the store.
        selection: what is wanted.
        log: how the log would be read.
        always: also where the log costs no more.
    """
    if not (selection.keys and log.ranges and store.layout.kind == "store"):
        return None
    topics = set(selection.topics)
    # The index can answer only for topics that are known; the queues know those of these ranges.
    ranges = [replace(each, via="queue") for each in log.ranges]
    is_named = bool(topics) and not any(is_glob(topic) for topic in topics)
    if not is_named:
        topics = {topic for topic, _ in _queues(store) if selection.matches_topic(topic)}
    if not topics or len(selection.keys) * len(topics) > _HASHES_MAX:
        return None
    with OpenFiles() as files:
        views = open_index_files(store.layout, files)
        if _cost(views) * _SHARE > log.bytes_read and not always:
            return None
        if not is_named:
            # Where records of queues lie end to end, none has a topic without queues.
            ranges = tiled_parts(store, log.ranges)
        try:
            return _access(store, selection.keys, topics, log, ranges, views, files)
        except (OSError, UnreadableError, FormatError):
            return None


def _access(
    store: Store, names: Collection[str], topics: Collection[str], log: Access, known: Sequence[LogRange],
    views: Sequence[IndexFile], files: OpenFiles,
) -> Access | None:  # fmt: skip
    hashes = index_key_hashes((index.key_text(topic, "") for topic in topics), names)
    broken: set[str] = set()
    sound = [view for view in views if _is_sound(store, view)]
    found: set[int] = set()
    for view in sound:
        for key_hash in hashes:
            found.update(view.offsets(key_hash, partial(_note, broken, view.name)))
        if len(found) > _RECORDS_MAX:
            return None
    sound = [view for view in sound if view.name not in broken]
    unnamed = _unnamed(store, topics, sound)
    if unnamed is None or len(found) + len(unnamed) > _RECORDS_MAX:
        return None
    found.update(unnamed)
    unsound = {view.name for view in views} - {view.name for view in sound}
    gaps = coverage.gaps(store, views, files, damaged=unsound)
    sizes: dict[int, int] = {}
    ranges = []
    for each in known:
        if each.via == "log":
            ranges.append(each)
            continue
        inside = [offset for offset in found if each.start <= offset < each.stop]
        ranges += _parts(store, replace(each, via="log"), gaps, inside, sizes)
    if not any(each.via == "index" for each in ranges) and tuple(ranges) == log.ranges:
        return None
    offsets = tuple(sorted(sizes))
    access = replace(
        log, kind="index", offsets=offsets, sizes=tuple(sizes[offset] for offset in offsets),
        reason=f"{len(sound)} index files name {len(sizes.keys() - unnamed)} records"
        + (f", {len(sizes.keys() & unnamed)} of the topic are in none" if unnamed else ""),
    )  # fmt: skip
    return access.of_ranges(tuple(ranges))


def _queues(store: Store) -> list[tuple[str, int]]:
    return [*store.layout.consume_queues, *store.layout.batch_queues]


def _unnamed(store: Store, topics: Collection[str], views: Sequence[IndexFile]) -> set[int] | None:
    """Records of the topics, in the ranges of index files, that no entry names; None: that is not known."""
    keys = [key for key in _queues(store) if key[0] in topics]
    if {topic for topic, _ in keys} != set(topics):
        return None
    found: set[int] = set()
    with QueueUnits(store.layout) as units:
        for view in views:
            offsets = np.unique(units.records(keys, *coverage.covered_range(store, view)).offsets)
            found.update(offsets[~_named(view, offsets)].tolist())
            if len(found) > _RECORDS_MAX:
                return None
    return found


def _named(view: IndexFile, offsets: Array) -> Array:
    """Which of the rising physical offsets entries of a sound file name; bool, of their shape."""
    is_named = np.zeros(len(offsets), bool)
    with view.scanning() as file:
        for _, entries in file.blocks(view.header.next_entry):
            block = entries["physical_offset"]
            part = slice(*np.searchsorted(offsets, (int(block[0]), int(block[-1]) + 1)).tolist())
            named = np.ascontiguousarray(block, np.int64)
            places = np.searchsorted(named, offsets[part])
            is_named[part] |= named[np.minimum(places, len(named) - 1)] == offsets[part]
    return is_named


def _note(broken: set[str], name: str, why: str, entry: int) -> None:
    broken.add(name)


def _cost(views: Sequence[IndexFile]) -> int:
    """Bytes of the index files that are read to check them."""
    return sum(
        view.shape.slots * index.SLOT_SIZE + view.header.next_entry * index.ENTRY_SIZE
        for view in views
        if view.is_plausible and not view.is_empty
    )


def _is_sound(store: Store, view: IndexFile) -> bool:
    """Whether all links of a file are what a broker writes, and its header says what its entries do."""
    if not view.is_plausible or view.is_empty:
        return False
    header = view.header
    grows = view.path == max(store.layout.index_files, key=attrgetter("name_time")).path
    with view.scanning() as scanned:
        found = scanned.check(header.next_entry, grows=grows)
    return (
        not (found.wrong_entries or found.wrong_slots)
        and found.ascending
        and (found.low, found.high) == (header.begin_physical_offset, header.end_physical_offset)
    )


def _parts(
    store: Store, each: LogRange, gaps: Sequence[Gap], offsets: list[int], sizes: dict[int, int]
) -> list[LogRange]:
    """A range of the log: what the index knows, and its gaps. Sizes of records are put into `sizes`."""
    heads = [store.head(offset) for offset in offsets]
    known = {head.physical_offset: head.total_size for head in heads
             if head is not None and head.stored_offset == head.physical_offset}  # fmt: skip
    if len(known) < len(offsets):
        return [each]
    parts: list[LogRange] = []
    position = each.start
    inside = coverage.within(gaps, each.start, each.stop)
    for gap in [*inside, Gap(each.stop, each.stop, "")]:
        stop = each.stop if gap.stop is None else gap.stop
        covered = {offset: size for offset, size in known.items() if position <= offset < gap.start}
        if covered:
            bytes_read = sum(covered.values())
            parts.append(replace(each, start=position, stop=gap.start, bytes_read=bytes_read, via="index"))
            sizes.update(covered)
        if gap.start < stop:
            parts.append(replace(each, start=gap.start, stop=stop, bytes_read=stop - gap.start))
        position = stop
    return parts
