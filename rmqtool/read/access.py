"""How the records of a selection are reached: through the log, the consume queues or the index.

All paths give the same records: what a queue or the index cannot be trusted with is read from the log, and
every record that is read is tested against the whole selection. Look-ups by key do not use this module:
they go through `by_key`, which reads the index itself.

An `Access` is small and can be pickled: a worker that opened the same store can read it, or one of the
pieces that `split` makes of it.

Queues serve a selection of topics or queues. A unit says where a record of its queue lies. Only the log
knows of records that no unit names (of a topic that was deleted, after the end of dispatch, of a damaged
queue). So the queues are trusted with a range of the log only if the records that all units of the store name
lie end to end in it, from the range's first byte on: then nothing else is there. What follows the last of
them, and every range of which this does not hold, is read from the log. Whether records lie end to end is
found without sorting or keeping them: with f any function, the sum of f(end) - f(start) over all records is
f(last end) - f(first start). With a random f of 64 bits the sum has this value only for such a chain, because
ends and starts that are not the same place do not cancel out.

The index serves a selection by keys of topics that are named in full. It is trusted with what its files cover
if all of their links are sound (they are read once: 20 bytes for a key, where the log holds the message).
Ranges that no such file covers are read from the log, and so are those where an entry leads to no record. A
broker whose index was off for a while leaves records in the range of a file that no entry names: those that
the topics' queues have are read too. A topic without queues cannot be read by the index.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Literal

import numpy as np

from rmqtool.errors import FormatError, UnreadableError, UsageError
from rmqtool.formats import index
from rmqtool.formats.java import index_key_hashes
from rmqtool.index.index_file import IndexFile, open_index_files
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read import coverage
from rmqtool.read.boundaries import is_before, is_behind, time_bounds
from rmqtool.read.coverage import Gap
from rmqtool.read.log_items import end_of_selection
from rmqtool.read.queue_units import Key, QueueUnits, Units
from rmqtool.read.selection import Selection, is_glob
from rmqtool.read.store import Store
from rmqtool.storage.buffers import Array, distinct
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.source import open_source

LONG_MAX = (1 << 63) - 1
"""The largest Java long and the largest i8 of a column: bytes past it are never a record."""

AccessKind = Literal["log", "queue", "index"]
Via = Literal["auto", "log", "queue", "index"]


@dataclass(frozen=True, slots=True)
class LogRange:
    """The records of one file that start in [start, stop), physical offsets.

    A record, or nothing that is known, starts at `start`. `path` is the file as rows name it. By way of
    `queue` only the records that units of `Access.queues` name are read, by way of `index` only those
    at `Access.offsets`. `bytes_read` is what is read of it, about.
    """

    path: str
    file_from_offset: int
    start: int
    stop: int
    bytes_read: int
    via: AccessKind = "log"

    @property
    def size(self) -> int:
        """Bytes of log that it spans."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Access:
    """The ranges of the log to read for a selection, and the path that found them.

    Attributes:
        kind: the way that most of it goes.
        ranges: by rising offset; they do not overlap.
        queues: (topic, queue id) whose units name the records of the ranges of kind `queue`.
        offsets: physical offsets, rising, of the records of the ranges of kind `index`.
        sizes: their sizes, bytes.
        start: the first physical offset that this access stands for; None: the log's start.
        stop: the offset after the last one; None: the log's end.
        end: where the log ends for this reading, as a live store's end moves; None: at its files' end.
        is_first: whether it is a whole one or the first piece, which reports on the log as a whole.
        files_read: log files of which something is read.
        files_total: log files of the store.
        bytes_read: bytes of log that are read, at most.
        bytes_total: bytes of the log's files.
        reason: why this way, for a person.
    """

    kind: AccessKind
    ranges: tuple[LogRange, ...]
    queues: tuple[tuple[str, int], ...] = ()
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    start: int | None = None
    stop: int | None = None
    end: int | None = None
    is_first: bool = True
    files_read: int = 0
    files_total: int = 0
    bytes_read: int = 0
    bytes_total: int = 0
    reason: str = ""

    def of_ranges(self, ranges: tuple[LogRange, ...]) -> Access:
        """Return the access with other ranges, and new counts."""
        return replace(
            self,
            ranges=ranges,
            files_read=len({each.path for each in ranges}),
            bytes_read=sum(each.bytes_read for each in ranges),
        )


def plan_access(store: Store, selection: Selection = Selection(), *, via: Via = "auto") -> Access:  # noqa: B008 - frozen
    """Return the cheapest access to all records of a selection that can be trusted, or else the log.

    Args:
        store: the store.
        selection: what is wanted; its limit is ignored.
        via: `log` asks for the log; `queue` and `index` for these as far as they can serve at all.

    What of the log lies outside of the offsets or times of the selection is left out, and not checked.
    Store times rise along a log, so the first records of a file and of the next bound them, and in a
    large file records that queues name; a clock that was set back by less than ten minutes does no harm.
    Where each queue has a log of its own, files follow each other in any order of times, and all are read.

    Raises:
        UsageError: an unknown `via`.
    """
    if via not in ("auto", "log", "queue", "index"):
        raise UsageError(f"via {via!r} is none of auto, log, queue, index")
    access = _log_access(store, selection)
    found = None
    if via in ("auto", "index"):
        found = index_access(store, selection, access, always=via == "index")
    if found is None and via in ("auto", "queue"):
        found = queue_access(store, selection, access, always=via == "queue")
    return access if found is None else found


def _log_access(store: Store, selection: Selection) -> Access:
    end = end_of_selection(store, selection)
    layout = store.layout
    files = [file for file in layout.commit_log if file.size]
    first = _first_file(store, selection, files)
    last = _behind_last_file(store, selection, files)
    ranges, left_out = [], 0
    for file in files[first:last]:
        start, stop = file.file_from_offset, layout.written_end(file)
        if end is not None:
            stop = min(stop, end)
        if selection.from_offset is not None and selection.from_offset > start:
            inside = selection.from_offset < stop
            start = store.record_before(file, selection.from_offset) if inside else stop
        if file in (files[first], files[last - 1]):
            size = stop - start
            start, stop = time_bounds(store, start, stop, selection)
            left_out += size - (stop - start)
        if start < stop:
            name = layout.relative(file.path)
            ranges.append(LogRange(name, file.file_from_offset, start, stop, stop - start))
    by_time = len(files) - max(last - first, 0)
    parts = [f"{by_time} of {len(files)} files"] * bool(by_time) + ["parts of files"] * bool(left_out)
    reason = f"{' and '.join(parts)} are outside the time range" if parts else "the log is read"
    bounds = (
        files[first].file_from_offset if first else None,
        files[last].file_from_offset if last < len(files) else None,
    )
    access = Access(
        "log", (), start=bounds[0], stop=bounds[1], end=end, files_total=len(files),
        bytes_total=layout.log_bytes, reason=reason,
    )  # fmt: skip
    return access.of_ranges(tuple(ranges))


def _first_file(store: Store, selection: Selection, files: list[StoreFile]) -> int:
    """The number of the first file that may hold a record of the time range."""
    number = 0
    if selection.since is None or selection.time_field != "store" or store.layout.queue_logs is not None:
        return number
    while number + 1 < len(files):
        if not is_before(store, files[number + 1].first_record, selection.since):
            break
        number += 1
    return number


def _behind_last_file(store: Store, selection: Selection, files: list[StoreFile]) -> int:
    """One more than the number of the last file that may hold a record of the time range."""
    number = len(files)
    if selection.until is None or selection.time_field != "store" or store.layout.queue_logs is not None:
        return number
    while number > 1:
        if not is_behind(store, files[number - 1].first_record, selection.until):
            break
        number -= 1
    return number


_WORTH = 0.5
"""Queues are used if the records that they name are less than this share of the log's bytes."""
_LARGE_BYTES = 64 << 20
"""In a smaller log every path is fast, and the one that reads the fewest bytes is used."""
_READ_BYTES = 16 << 10
"""Reading a record between others costs as much as reading this many bytes in sequence."""
_BLOCK_BYTES = 64 << 10
"""Most bytes that a file system allocates at once: a hole begins after them."""
_REMOTE_FILES_MAX = 2000
_MASK = (1 << 64) - 1


@dataclass
class _Sum:
    """A summary of the units of one range of the log."""

    chain: int = 0  # the sum of f(end) - f(start), modulo 2**64
    end: int = 0
    wanted_bytes: int = 0
    wanted: int = 0


def queue_access(store: Store, selection: Selection, log: Access, *, always: bool) -> Access | None:
    """The access by queues; None if they cannot be trusted, or if the log costs no more.

    Args:
        store: the store.
        selection: what is wanted.
        log: how the log would be read.
        always: also where the log costs no more.
    """
    if not (selection.topics or selection.exclude_topics or selection.queues):
        return None
    if not log.ranges or not store.layout.has_files_of_queues or not store.layout.is_whole:
        return None
    with QueueUnits(store.layout) as units:
        keys = units.keys
        wanted = [key for key in keys if _is_wanted(selection, key)]
        if not keys or (len(wanted) == len(keys) and not always):
            return None
        files = sum(len(store.layout.consume_queues[key].files) for key in store.layout.consume_queues)
        if not store.is_local and files > _REMOTE_FILES_MAX:
            return None
        try:
            sums = _sums(units, keys, frozenset(wanted), log.ranges)
        except (OSError, UnreadableError):
            return None
    ranges = tuple(
        part for each, found in zip(log.ranges, sums, strict=True) for part in _parts(store, each, found)
    )
    if not any(each.via == "queue" for each in ranges) and ranges == log.ranges:
        return None
    found = log.of_ranges(ranges)
    cost = found.bytes_read
    if log.bytes_read >= _LARGE_BYTES:
        cost += _READ_BYTES * sum(each.wanted for each in sums)
    if cost > _WORTH * log.bytes_read and not always:
        return None
    return Access(
        "queue", found.ranges, queues=tuple(wanted), start=log.start, stop=log.stop, end=log.end,
        files_read=found.files_read, files_total=log.files_total, bytes_read=found.bytes_read,
        bytes_total=log.bytes_total,
        reason=f"{len(wanted)} of {len(keys)} consume queues name the records",
    )  # fmt: skip


def tiled_parts(store: Store, ranges: Sequence[LogRange]) -> list[LogRange]:
    """The ranges with `via` queue for the parts in which records of queues lie end to end, else log."""
    layout = store.layout
    files = sum(len(queue.files) for queue in layout.consume_queues.values())
    if not layout.has_files_of_queues or (not store.is_local and files > _REMOTE_FILES_MAX):
        return list(ranges)
    with QueueUnits(layout) as units:
        keys = units.keys
        try:
            sums = _sums(units, keys, frozenset(keys), ranges)
        except (OSError, UnreadableError):
            return list(ranges)
    return [part for each, found in zip(ranges, sums, strict=True) for part in _parts(store, each, found)]


def _is_wanted(selection: Selection, key: Key) -> bool:
    topic, queue_id = key
    return selection.matches_topic(topic) and (not selection.queues or queue_id in selection.queues)


def _parts(store: Store, each: LogRange, found: _Sum) -> list[LogRange]:
    """Divide a range into the part that the queues cover, and the rest, which only the log has.

    The range itself if its records do not lie end to end.
    """
    chain = (_spread_of(found.end) - _spread_of(each.start)) & _MASK
    if found.end <= each.start or found.chain != chain:
        return [each]
    known = min(found.end, each.stop)
    parts = []
    if found.wanted_bytes:
        parts.append(
            LogRange(each.path, each.file_from_offset, each.start, known, found.wanted_bytes, "queue")
        )
    if known < each.stop:
        cost = _written_bytes(store, known, each.stop)
        parts.append(LogRange(each.path, each.file_from_offset, known, each.stop, cost))
    return parts


def _written_bytes(store: Store, start: int, stop: int) -> int:
    """Bytes of [start, stop) that have to be read: hardly any where a log has ended and a hole is left."""
    file = store.commit_log.file_of(start)
    hole = start + _BLOCK_BYTES - start % _BLOCK_BYTES
    if file is not None and store.is_local and hole < stop:
        with suppress(OSError), closing(open_source(file.path)) as source:
            if file.file_from_offset + source.data_from(hole - file.file_from_offset) >= stop:
                return hole - start
    return stop - start


def _sums(
    units: QueueUnits, keys: Sequence[Key], wanted: frozenset[Key], ranges: Sequence[LogRange]
) -> list[_Sum]:
    """Return the summary of all units of each range."""
    starts = np.array([each.start for each in ranges], np.int64)
    stops = np.array([min(each.stop, LONG_MAX) for each in ranges], np.int64)
    sums = [_Sum(end=each.start) for each in ranges]
    for key in keys:
        for block in units.blocks(key, int(starts[0]), int(stops[-1])):
            _add(sums, block, starts, stops, is_wanted=key in wanted)
    return sums


def _add(sums: list[_Sum], block: Units, starts: Array, stops: Array, *, is_wanted: bool) -> None:
    offsets, sizes = block
    number = np.searchsorted(starts, offsets, "right") - 1
    outside = offsets >= stops[number]  # in a gap between ranges
    if outside.any():
        offsets, sizes, number = (values[~outside] for values in (offsets, sizes, number))
    if not len(offsets):
        return
    ends = offsets + sizes
    links = _spread(ends) - _spread(offsets)
    runs = np.concatenate([[0], np.flatnonzero(np.diff(number)) + 1])
    chains = np.add.reduceat(links, runs)
    last = np.maximum.reduceat(ends, runs)
    total = np.add.reduceat(sizes, runs)
    counts = np.diff(runs, append=len(offsets))
    for place, run in enumerate(runs.tolist()):
        found = sums[int(number[run])]
        found.chain = (found.chain + int(chains[place])) & _MASK
        found.end = max(found.end, int(last[place]))
        if is_wanted:
            found.wanted_bytes += int(total[place])
            found.wanted += int(counts[place])


def _spread(places: Array) -> Array:
    """The function f: SplitMix64 of each place, u8."""
    value = places.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _spread_of(place: int) -> int:
    return int(_spread(np.array([place], np.int64))[0])


_RECORDS_MAX = 1 << 20
_HASHES_MAX = 1 << 16
_SHARE = 4  # the log must be this many times what is read of the index


def index_access(store: Store, selection: Selection, log: Access, *, always: bool) -> Access | None:
    """The access by the index; None if it cannot be used, or costs no less than the log.

    Args:
        store: the store.
        selection: what is wanted.
        log: how the log would be read.
        always: also where the log costs no more.
    """
    if not (selection.keys and log.ranges and store.layout.is_whole):
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
        ranges += _index_parts(store, replace(each, via="log"), gaps, inside, sizes)
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
            offsets = distinct(units.records(keys, *coverage.covered_range(store, view)).offsets)
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


def _index_parts(
    store: Store, each: LogRange, gaps: Sequence[Gap], offsets: list[int], sizes: dict[int, int]
) -> list[LogRange]:
    """Divide a range of the log into parts that the index covers, and gaps; fill `sizes` of records."""
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
