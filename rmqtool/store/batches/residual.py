"""The test of a selection on whole batches of records; the rules are those of `Selection.matches`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.formats.java import java_utf8_decode
from rmqtool.scan.frames import Frames
from rmqtool.scan.property_ranges import read_pairs, split_keys
from rmqtool.scan.texts import Array, Ranges, gather
from rmqtool.store.selection import Selection


class Residual:
    """Which records of a batch a selection wants; its limit is not looked at."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._tags = held_texts(selection.tags)
        self._keys = held_texts(selection.keys)

    def mask(self, frames: Frames) -> Array:
        """bool, shape (rows,)."""
        chosen = self._of_fields(frames)
        selection = self.selection
        if (selection.tags or selection.keys) and chosen.any():
            places = np.flatnonzero(chosen)
            chosen[places] = self._of_properties(replace(frames, rows=frames.rows[places]))
        if selection.filter is not None:
            places = np.flatnonzero(chosen)
            for place, data in zip(places.tolist(), _properties(frames, places), strict=True):
                chosen[place] = selection.matches_properties(data)
        return chosen

    def _of_fields(self, frames: Frames) -> Array:
        selection = self.selection
        rows: Any = frames.rows
        chosen = np.ones(len(rows), np.bool_)
        if selection.topics or selection.exclude_topics:
            topics = [java_utf8_decode(topic) for topic in frames.topics]
            chosen = np.fromiter(map(selection.matches_topic, topics), np.bool_, len(topics))[
                rows["topic_id"]
            ]
        if selection.queues:
            chosen &= np.isin(rows["queue_id"], list(selection.queues))
        time = "store_timestamp" if selection.time_field == "store" else "born_timestamp"
        for field, low, high in (
            (time, selection.since, selection.until),
            ("physical_offset", selection.from_offset, selection.to_offset),
        ):
            if low is not None:
                chosen &= rows[field] >= low
            if high is not None:
                chosen &= rows[field] < high
        return chosen

    def _of_properties(self, frames: Frames) -> Array:
        pairs = read_pairs(frames)
        chosen = np.ones(len(frames.rows), np.bool_)
        if self.selection.tags:
            chosen &= _is_in(pairs.tags, self._tags)
        if self.selection.keys:
            found = _is_in(pairs.uniq_key, self._keys)
            stops, keys = split_keys(pairs.keys)
            counts = np.cumsum(_is_in(keys, self._keys), dtype=np.int64)
            counts = np.concatenate([[0], counts])
            chosen &= found | (counts[stops[1:]] > counts[stops[:-1]])
        return chosen


def _properties(frames: Frames, places: Array) -> Iterator[bytes]:
    """The property bytes of the records at some places of a batch."""
    rows = frames.rows[places]
    stops = frames.starts()[places] + rows["size"]
    starts = stops - np.maximum(rows["properties_length"], 0)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        yield frames.data[start:stop].tobytes()


def held_texts(texts: Collection[str]) -> pa.Array:
    """The texts that a record can hold: what was read from disk has no lone surrogates."""
    found = []
    for text in texts:
        try:
            found.append(text.encode())
        except UnicodeEncodeError:
            continue
    return pa.array(found, pa.binary())


def _is_in(ranges: Ranges, values: pa.Array) -> Array:
    """Which rows have one of `values`; none of those without a value."""
    found = gather(ranges)
    buffers = [None, pa.py_buffer(found.offsets), pa.py_buffer(found.data)]
    texts = pa.Array.from_buffers(pa.binary(), len(ranges), buffers)
    mask: Array = pc.is_in(texts, value_set=values).to_numpy(zero_copy_only=False)
    return mask & (ranges.lengths >= 0)
