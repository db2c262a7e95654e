"""Access by consume queues: a selection of topics or queues.

A unit says where a record of its queue lies. Whether there are records that no unit names (of a topic
that was deleted, after the end of dispatch, of a damaged queue) only the log knows; so the queues
are trusted with a range of the log only where the records that all units of the store name lie end to
end in it, from the range's first byte on: then nothing else is there. What follows the last of them,
and every range of which this does not hold, is read from the log.

Whether they lie end to end is found without sorting or keeping them: with f any function, the sum of
f(end) - f(start) over all records is f(last end) - f(first start). With a random f of 64 bits it is
that only if they are such a chain: ends and starts that are not the same place do not cancel out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.read.access import LONG_MAX, Access, LogRange
from rmqtool.read.queue_units import Key, QueueUnits, Units
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.buffers import Array
from rmqtool.storage.source import open_source

_WORTH = 0.5
"""Queues are the way when they lead to less than this share of the log's bytes."""
_LARGE_BYTES = 64 << 20
"""In a log below this no way is slow, and the fewest bytes decide."""
_READ_BYTES = 16 << 10
"""Reading a record between others costs as much as reading this many bytes in sequence."""
_BLOCK_BYTES = 64 << 10
"""What a file system allocates at once, at most: a hole begins after it."""
_REMOTE_FILES_MAX = 2000
_MASK = (1 << 64) - 1


@dataclass
class _Sum:
    """What the units say about one range of the log."""

    chain: int = 0  # the sum of f(end) - f(start), modulo 2**64
    end: int = 0
    wanted_bytes: int = 0
    wanted: int = 0


def queue_access(store: Store, selection: Selection, log: Access, *, always: bool) -> Access | None:
    """The access by queues; None where they cannot answer for sure, or where the log costs no more.

    Args:
        store: the store.
        selection: what is wanted.
        log: how the log would be read.
        always: also where the log costs no more.
    """
    if not (selection.topics or selection.exclude_topics or selection.queues):
        return None
    if not log.ranges or not store.layout.has_files_of_queues or store.layout.kind != "store":
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
    """The range: what the queues know, then what only the log knows."""
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
    """What all units say about each range."""
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
