"""Pieces of an access that workers read on their own: together they give what the whole gives.

A piece begins where a record does: at one that a unit of a consume queue names and that is sound there,
or, without queues, at one that a walk over the heads from the last boundary reaches. A pattern of bytes
that looks like a record is never trusted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np

from rmqtool.errors import UnreadableError, UsageError
from rmqtool.read.access import Access, LogRange
from rmqtool.read.boundaries import QueueBoundaries, longest_keys
from rmqtool.read.queue_units import QueueUnits, Units
from rmqtool.read.store import Store
from rmqtool.storage.buffers import Array
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import open_source

_MANY = 16
"""Pieces of a range from which on its units are read at once: asking queues for each takes milliseconds."""
_STEP_MAX = 64
"""Units after which another one is checked where damage is long."""


def split(store: Store, access: Access, *, target_bytes: int, max_pieces: int | None = None) -> list[Access]:
    """Accesses that read what `access` does, in the same order, each about `target_bytes` of the log.

    Args:
        store: the store that the access was planned for.
        access: a whole one, or a piece.
        target_bytes: bytes of log that a piece reads, about; one record is never divided.
        max_pieces: upper bound of the number of pieces.

    Returns:
        At least one piece; each can be pickled. Where no record can be found to begin a piece with (a
        log elsewhere, without queues), a file is one piece.

    Raises:
        UsageError: a target or number below 1.
    """
    if target_bytes < 1 or (max_pieces is not None and max_pieces < 1):
        raise UsageError("the size and the number of pieces are at least 1")
    if max_pieces is not None:
        target_bytes = max(target_bytes, -(-access.bytes_read // max_pieces))
    groups: list[list[LogRange]] = [[]]
    filled = 0
    with closing(_Cuts(store, access)) as cuts:
        for each in access.ranges:
            for part in cuts.parts(each, target_bytes):
                is_full = filled and filled + part.bytes_read // 2 >= target_bytes
                if is_full and len(groups) != max_pieces:
                    groups.append([])
                    filled = 0
                groups[-1].append(part)
                filled += part.bytes_read
    return list(_pieces(access, groups))


def pieces_back(store: Store, access: Access, *, target_bytes: int) -> Iterator[Access]:
    """The pieces of `split`, the last one first; a range is divided when its turn comes."""
    ranges = list(_pieces(access, [[each] for each in access.ranges] or [[]]))
    for whole in reversed(ranges):
        yield from reversed(split(store, whole, target_bytes=target_bytes))


def _pieces(access: Access, groups: list[list[LogRange]]) -> Iterator[Access]:
    for number, group in enumerate(groups):
        start = access.start if number == 0 else group[0].start
        stop = access.stop if number + 1 == len(groups) else groups[number + 1][0].start
        low = 0 if start is None else bisect_left(access.offsets, start)
        high = len(access.offsets) if stop is None else bisect_left(access.offsets, stop)
        yield replace(
            access.of_ranges(tuple(group)), start=start, stop=stop,
            is_first=access.is_first and number == 0,
            offsets=access.offsets[low:high], sizes=access.sizes[low:high],
        )  # fmt: skip


class _Cuts:
    """Divides ranges at places where records begin."""

    def __init__(self, store: Store, access: Access) -> None:
        self._store = store
        self._units = QueueUnits(store.layout)
        self._wanted = access.queues
        self._indexed = Units(np.array(access.offsets, np.int64), np.array(access.sizes, np.int64))
        self._files = {store.layout.relative(file.path): file for file in store.layout.commit_log}
        self._boundaries = QueueBoundaries(store)

    def parts(self, each: LogRange, target_bytes: int) -> Iterator[LogRange]:
        """The range in parts of about `target_bytes` that are read."""
        if each.via == "log":
            yield from self._of_log(each, target_bytes)
        else:
            yield from self._of_places(each, target_bytes)

    def close(self) -> None:
        """Close the files of queues."""
        self._units.close()

    def _of_places(self, each: LogRange, target_bytes: int) -> Iterator[LogRange]:
        try:
            if each.via == "queue":
                offsets, sizes = self._units.records(self._wanted, each.start, each.stop)
            else:
                offsets, sizes = self._indexed.between(each.start, each.stop)
        except (OSError, UnreadableError):
            yield each
            return
        used = np.cumsum(sizes)
        first, start = 0, each.start
        while first < len(offsets):
            before = int(used[first - 1]) if first else 0
            last = max(int(np.searchsorted(used, before + target_bytes, "right")), first + 1)
            step = 1
            while last < len(offsets) and not self._store.commit_log.is_sound_at(int(offsets[last])):
                last = min(last + step, len(offsets))  # a hole is read as a whole
                step = min(2 * step, _STEP_MAX)
            stop = int(offsets[last]) if last < len(offsets) else each.stop
            yield replace(each, start=start, stop=stop, bytes_read=int(used[last - 1]) - before)
            first, start = last, stop

    def _of_log(self, each: LogRange, target_bytes: int) -> Iterator[LogRange]:
        file = self._files.get(each.path)
        start = each.start
        places = self._places(each) if each.size // target_bytes > _MANY else None
        while file is not None and each.stop - start > target_bytes + target_bytes // 2:
            if places is None:
                place = self._boundaries.before(start, start + target_bytes)
            else:
                place = self._boundaries.before_among(places, start, start + target_bytes)
            if place is not None and self._store.commit_log.file_of(place) != file:
                place = None  # a record of a file that overlaps this one
            if place is None and self._store.is_local:
                place = self._by_walk(file, start, start + target_bytes)
            if place is None or place >= each.stop:
                break
            yield replace(each, start=start, stop=place, bytes_read=place - start)
            start = place
        yield replace(each, start=start, bytes_read=each.stop - start)

    def _places(self, each: LogRange) -> Array | None:
        """Where units of the longest queues say that records of the range begin, rising."""
        try:
            return self._units.records(longest_keys(self._store), each.start, each.stop).offsets
        except (OSError, UnreadableError):
            return None

    def _by_walk(self, file: StoreFile, start: int, wanted: int) -> int | None:
        """The first record at or after `wanted`, by a walk from `start` that checks no body.

        None where something other than a sound record lies between.
        """
        from rmqtool.log.frames import Frames, walk

        try:
            source = open_source(file.path)
        except (OSError, UnreadableError):
            return None
        base = file.file_from_offset
        with closing(source):
            for event in walk(source, file_from_offset=base, start=start - base, crc=False,
                              entry_header=file.entry_header):  # fmt: skip
                if not isinstance(event, Frames) or event.rows["status"].any():
                    return None
                places = event.rows["physical_offset"]
                if places[-1] >= wanted:
                    return int(places[places >= wanted][0])
        return None
