"""Thousands of records that the index names, judged and decoded together.

What is judged here are sound records: those with a requested name that the selection wants, and those of
another key of the same hash. All others (damaged records, what the selection leaves out) are left to
`by_key`, which judges one record at a time and says why it is not a hit. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.formats.index import KeyKind
from rmqtool.formats.java import java_utf8_decode
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.frames import Frames
from rmqtool.log.point_read import PickedFrames, pick_sound
from rmqtool.log.properties import Pairs, read_pairs, split_keys, stored_properties
from rmqtool.read.hits import Hit
from rmqtool.read.name_table import NameTable
from rmqtool.read.residual import Residual
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
        table: the requested names, the same for all batches.
        numbers: i4, those that the records have: row k has numbers[stops[k] : stops[k + 1]].
        stops: i4, shape (rows + 1,).
    """

    frames: Frames
    file: str
    table: NameTable
    numbers: Array
    stops: Array

    @property
    def names(self) -> list[str]:
        """The names with `numbers`."""
        return [self.table.names[number] for number in self.numbers.tolist()]

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
        return Hit(stored, "index", tuple(self.part(row, row + 1).names))

    def part(self, start: int, stop: int) -> HitBatch:
        """Rows [start, stop)."""
        if (start, stop) == (0, len(self.frames.rows)):
            return self
        first, last = int(self.stops[start]), int(self.stops[stop])
        frames = replace(self.frames, rows=self.frames.rows[start:stop])
        stops = self.stops[start : stop + 1] - first
        return HitBatch(frames, self.file, self.table, self.numbers[first:last], stops)


Judged = tuple[HitBatch | None, list[int], list[tuple[int, str, bytes]]]
"""Hits; physical offsets that are left to be judged one by one; (physical offset, topic, properties) of sound
records without a requested name."""


class BatchJudge:
    """Judges the records that the index names.

    Args:
        store: the store.
        table: the names; none of them is empty.
        kind: what the names are.
        selection: what else must hold; its limit is ignored.
    """

    def __init__(self, store: Store, table: NameTable, kind: KeyKind, selection: Selection) -> None:
        self._store = store
        self._kind = kind
        self._table = table
        self._residual = Residual(selection)
        self._by_place = selection.from_offset is not None or selection.to_offset is not None

    def judged(self, offsets: Array) -> Iterator[Judged]:
        """Hits, and what is among or next to them and is none.

        Args:
            offsets: i8, ascending, each once.
        """
        log = self._store.commit_log
        first = 0
        while first < len(offsets):
            file = log.file_of(int(offsets[first]))
            if file is None:
                yield None, [int(offsets[first])], []
                first += 1
                continue
            # A file that begins inside of this one holds what follows its start.
            ends = [each.file_from_offset for each in log.files if each.file_from_offset > offsets[first]]
            stop = int(np.searchsorted(offsets, min([file.end, *ends])))
            yield from self._of_file(file, offsets[first:stop])
            first = stop

    def _of_file(self, file: StoreFile, offsets: Array) -> Iterator[Judged]:
        try:
            source = open_source(file.path, listed_size=file.size)
        except OSError:
            yield None, offsets.tolist(), []
            return
        name = self._store.layout.relative(file.path)
        with closing(source):
            for frames in pick_sound(
                source, file_from_offset=file.file_from_offset, offsets=offsets, crc=True, window=_WINDOW
            ):
                yield self._of_frames(frames, name)

    def _of_frames(self, frames: PickedFrames, file: str) -> Judged:
        if not len(frames.rows):
            return None, frames.places.tolist(), []
        numbers, stops = self._found(frames)
        has_name = stops[1:] > stops[:-1]
        good = self._residual.mask(frames) & has_name
        is_known = np.zeros(len(frames.places), np.bool_)
        offsets = frames.rows["physical_offset"]
        is_known[np.searchsorted(frames.places, offsets[good])] = True
        collisions = np.zeros(0, np.int64) if self._by_place else np.flatnonzero(~has_name)
        is_known[np.searchsorted(frames.places, offsets[collisions])] = True
        batch = HitBatch(frames, file, self._table, numbers, stops)
        if not good.all():
            batch = _chosen(batch, np.flatnonzero(good))
        return (
            batch if good.any() else None, frames.places[~is_known].tolist(), _collisions(frames, collisions),
        )  # fmt: skip

    def _found(self, frames: Frames) -> tuple[Array, Array]:
        """(numbers, stops): row k has the names numbers[stops[k] : stops[k + 1]], in the record's order."""
        rows, numbers = self._held(read_pairs(frames))
        order = np.argsort(rows, kind="stable")
        rows, numbers = rows[order], numbers[order]
        if (rows[1:] == rows[:-1]).any():
            kept = list(dict.fromkeys(zip(rows.tolist(), numbers.tolist(), strict=True)))
            rows, numbers = np.array(kept, np.int32).T
        stops = np.zeros(len(frames.rows) + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=len(frames.rows)), out=stops[1:])
        return numbers, stops

    def _held(self, pairs: Pairs) -> tuple[Array, Array]:
        """(rows, numbers) of the values that are requested names: unique keys, or tags, and then keys."""
        found = self._table.texts.numbers(pairs.tags if self._kind == "tag" else pairs.uniq_key)
        rows = np.flatnonzero(found >= 0)
        numbers = found[rows]
        if self._kind == "key":
            stops, keys = split_keys(pairs.keys)
            found = self._table.texts.numbers(keys)
            held = np.flatnonzero(found >= 0)
            rows = np.concatenate([rows, np.searchsorted(stops, held, "right") - 1])
            numbers = np.concatenate([numbers, found[held]])
        return rows, numbers


def _chosen(batch: HitBatch, rows: Array) -> HitBatch:
    """Some rows of a batch."""
    counts = np.diff(batch.stops)[rows]
    kept = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=kept[1:])
    places = np.arange(int(kept[-1])) + np.repeat(batch.stops[rows] - kept[:-1], counts)
    return HitBatch(batch.frames.at(rows), batch.file, batch.table, batch.numbers[places], kept)


def _collisions(frames: PickedFrames, rows: Array) -> list[tuple[int, str, bytes]]:
    """(physical offset, topic, properties) of some records."""
    stored = stored_properties(frames)
    return [
        (
            int(frames.rows["physical_offset"][row]),
            java_utf8_decode(frames.topics[frames.rows["topic_id"][row]]),
            stored.bytes_of(row),
        )
        for row in rows.tolist()
    ]
