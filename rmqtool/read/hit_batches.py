"""Thousands of records that the index names, judged and decoded together.

What is judged here are sound records with a requested name that the selection wants. All others (damaged
records, other keys of the same hash, what the selection leaves out) are left to `by_key`, which judges one
record at a time and says why it is not a hit. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.frames import Frames
from rmqtool.log.point_read import PickedFrames, pick_sound
from rmqtool.log.properties import Pairs, read_pairs, split_keys
from rmqtool.log.string_ranges import Ranges, TextSet, gather
from rmqtool.read.hits import Hit, KeyMatcher
from rmqtool.read.residual import Residual, held_texts
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.buffers import Array
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import open_source

_WINDOW = 16 << 20


@dataclass(frozen=True)
class HitBatch:
    """Hits in the log's order, all in one file and found through the index; their `status` is 0.

    Attributes:
        frames: the records.
        file: name of their file, as rows show it.
        names: the requested names that the records have; row k has names[stops[k] : stops[k + 1]].
        stops: i4, shape (rows + 1,).
    """

    frames: Frames
    file: str
    names: list[str]
    stops: Array

    def __len__(self) -> int:
        return len(self.frames.rows)

    def without_data(self) -> HitBatch:
        """The same hits, kept after the batch is no longer valid."""
        return replace(self, frames=self.frames.without_data())

    def first_from(self, physical_offset: int) -> int:
        """The first row at or after an offset."""
        return int(np.searchsorted(self.frames.rows["physical_offset"], physical_offset))

    def hit(self, store: Store, physical_offset: int) -> Hit:
        """One of the hits by itself.

        Raises:
            UnreadableError: the record cannot be read any more.
        """
        row = self.first_from(physical_offset)
        stored = store.find(physical_offset)
        if stored is None:
            raise UnreadableError("cannot be read again", path=self.file, physical_offset=physical_offset)
        return Hit(stored, "index", tuple(self.names[self.stops[row] : self.stops[row + 1]]))

    def part(self, start: int, stop: int) -> HitBatch:
        """Rows [start, stop)."""
        if (start, stop) == (0, len(self.frames.rows)):
            return self
        first, last = int(self.stops[start]), int(self.stops[stop])
        frames = replace(self.frames, rows=self.frames.rows[start:stop])
        return HitBatch(frames, self.file, self.names[first:last], self.stops[start : stop + 1] - first)


class BatchJudge:
    """Judges the records that the index names.

    Args:
        store: the store.
        wanted: the names; none of them is empty.
        selection: what else must hold; its limit is ignored.
    """

    def __init__(self, store: Store, wanted: KeyMatcher, selection: Selection) -> None:
        self._store = store
        self._kind = wanted.kind
        self._names = TextSet(held_texts(wanted.names))
        self._residual = Residual(selection)

    def judged(self, offsets: Array) -> Iterator[tuple[HitBatch | None, list[int]]]:
        """Hits, and the physical offsets among or next to them that are left to be judged one by one.

        Args:
            offsets: i8, ascending, each once.
        """
        log = self._store.commit_log
        first = 0
        while first < len(offsets):
            file = log.file_of(int(offsets[first]))
            if file is None:
                yield None, [int(offsets[first])]
                first += 1
                continue
            # A file that begins inside of this one holds what follows its start.
            ends = [each.file_from_offset for each in log.files if each.file_from_offset > offsets[first]]
            stop = int(np.searchsorted(offsets, min([file.end, *ends])))
            yield from self._of_file(file, offsets[first:stop])
            first = stop

    def _of_file(self, file: StoreFile, offsets: Array) -> Iterator[tuple[HitBatch | None, list[int]]]:
        try:
            source = open_source(file.path, listed_size=file.size)
        except OSError:
            yield None, offsets.tolist()
            return
        name = self._store.layout.relative(file.path)
        with closing(source):
            for frames in pick_sound(
                source, file_from_offset=file.file_from_offset, offsets=offsets, crc=True, window=_WINDOW
            ):
                yield self._of_frames(frames, name)

    def _of_frames(self, frames: PickedFrames, file: str) -> tuple[HitBatch | None, list[int]]:
        if not len(frames.rows):
            return None, frames.places.tolist()
        found, stops = self._found(frames)
        good = self._residual.mask(frames) & (stops[1:] > stops[:-1])
        is_hit = np.zeros(len(frames.places), np.bool_)
        is_hit[np.searchsorted(frames.places, frames.rows["physical_offset"][good])] = True
        if good.all():
            batch = HitBatch(frames, file, found, stops)
        else:
            batch = _chosen(frames, file, found, stops, np.flatnonzero(good))
        return batch if good.any() else None, frames.places[~is_hit].tolist()

    def _found(self, frames: Frames) -> tuple[list[str], Array]:
        """(names, stops): row k has the requested names [stops[k], stops[k + 1]), in the record's order."""
        rows, ranges = self._held(read_pairs(frames))
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        ranges = Ranges(ranges.data, ranges.starts[order], ranges.lengths[order])
        names = _texts(ranges)
        if (rows[1:] == rows[:-1]).any():
            kept = dict.fromkeys(zip(rows.tolist(), names, strict=True))
            rows, names = np.array([row for row, _ in kept]), [name for _, name in kept]
        stops = np.zeros(len(frames.rows) + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=len(frames.rows)), out=stops[1:])
        return names, stops

    def _held(self, pairs: Pairs) -> tuple[Array, Ranges]:
        """(rows, texts) of the values that are requested names: unique keys, or tags, and then keys."""
        values = pairs.tags if self._kind == "tag" else pairs.uniq_key
        rows = np.flatnonzero(self._names.holds(values))
        starts, lengths = values.starts[rows], values.lengths[rows]
        if self._kind == "key":
            stops, keys = split_keys(pairs.keys)
            held = np.flatnonzero(self._names.holds(keys))
            rows = np.concatenate([rows, np.searchsorted(stops, held, "right") - 1])
            starts = np.concatenate([starts, keys.starts[held]])
            lengths = np.concatenate([lengths, keys.lengths[held]])
        return rows, Ranges(values.data, starts, lengths)


def _chosen(frames: Frames, file: str, names: list[str], stops: Array, rows: Array) -> HitBatch:
    """Some rows of a batch."""
    counts = np.diff(stops)[rows]
    kept = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=kept[1:])
    places = np.arange(int(kept[-1])) + np.repeat(stops[rows] - kept[:-1], counts)
    return HitBatch(frames.at(rows), file, [names[place] for place in places.tolist()], kept)


def _texts(ranges: Ranges) -> list[str]:
    """The texts, which are UTF-8."""
    found = gather(ranges)
    data = found.data.tobytes()
    stops = found.offsets.tolist()
    if data.isascii():
        text = data.decode("ascii")
        return [text[start:stop] for start, stop in zip(stops[:-1], stops[1:], strict=True)]
    return [data[start:stop].decode() for start, stop in zip(stops[:-1], stops[1:], strict=True)]
