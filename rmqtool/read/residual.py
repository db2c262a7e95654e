"""The test of a selection on whole batches of records; the rules are those of `Selection.matches`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.message import COMPRESSED
from rmqtool.log.frames import Frames
from rmqtool.log.properties import read_pairs, split_keys
from rmqtool.log.string_ranges import Ranges, TextSet, bodies, contain, gather
from rmqtool.read.body_pattern import BodyPattern
from rmqtool.read.re2 import Re2Pattern
from rmqtool.read.selection import Selection
from rmqtool.storage.buffers import Array

_FEW_ROWS = 64


class Residual:
    """Which records of a batch a selection wants; its limit is ignored."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._tags = TextSet(held_texts(selection.tags))
        self._keys = TextSet(held_texts(selection.keys))

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
        if selection.grep is not None and chosen.any():
            places = np.flatnonzero(chosen)
            searched = frames.at(places)
            chosen[places] = body_mask(selection.grep, bodies(searched), searched.rows["sys_flag"])
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
            chosen &= self._tags.holds(pairs.tags)
        if self.selection.keys:
            found = self._keys.holds(pairs.uniq_key)
            stops, keys = split_keys(pairs.keys)
            counts = np.cumsum(self._keys.holds(keys), dtype=np.int64)
            counts = np.concatenate([[0], counts])
            chosen &= found | (counts[stops[1:]] > counts[stops[:-1]])
        return chosen


def body_mask(pattern: BodyPattern, stored: Ranges, flags: Array) -> Array:
    """Which of the bodies have the pattern: bool, shape (rows,). Raises as `BodyPattern.matches`.

    Args:
        pattern: what is searched for.
        stored: the bodies, compressed where their flags say so.
        flags: the sysFlag of each body, shape (rows,); 0 for one that has been decompressed.
    """
    required = pattern.required
    is_open = (flags & COMPRESSED) != 0
    found: Array = ~is_open
    if required is not None:
        found &= contain(stored, required.text, ignores_case=required.ignores_case)
    if required is not None and required.is_all:
        rest = np.flatnonzero(is_open)
    else:
        is_decided = _search_by_re2(pattern, stored, found)
        rest = np.flatnonzero(is_open if is_decided else is_open | found)
    data = stored.data.data
    stops = stored.starts + stored.lengths
    for row in rest.tolist():
        part = data[int(stored.starts[row]) : int(stops[row])]
        found[row] = pattern.found_in_stored(part, int(flags[row]))
    return found


def _search_by_re2(pattern: BodyPattern, stored: Ranges, found: Array) -> bool:
    """Take from the rows in `found` those without what RE2 looks for; return whether the others match.

    A few rows are left to Python: loading RE2 takes longer.
    """
    places = np.flatnonzero(found)
    if len(places) <= _FEW_ROWS:
        return False
    re2 = _re2_of(pattern)
    if re2 is None:
        return False
    searched = Ranges(stored.data, stored.starts[places], stored.lengths[places])
    found[places] = _matched_by_re2(searched, re2.text)
    return re2.is_exact


@lru_cache(maxsize=16)
def _re2_of(pattern: BodyPattern) -> Re2Pattern | None:
    """`BodyPattern.re2`, unless RE2 refuses it: it limits repeats of repeats, and the size of a pattern."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pattern.re2
    if found is not None:
        try:
            pc.match_substring_regex(pa.array([b""]), found.text)  # without a text it looks at nothing
        except pa.ArrowInvalid:
            return None
    return found


def _matched_by_re2(texts: Ranges, pattern: str) -> Array:
    """Which texts RE2 finds a pattern in: bool, shape (rows,)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmqtool.message.column_arrays import binary_array

    found = pc.match_substring_regex(binary_array(gather(texts), pa.binary()), pattern)
    return np.array(found.to_numpy(zero_copy_only=False), np.bool_)


def _properties(frames: Frames, places: Array) -> Iterator[bytes]:
    """The property bytes of the records at some places of a batch."""
    rows = frames.rows[places]
    stops = frames.starts()[places] + rows["size"]
    starts = stops - np.maximum(rows["properties_length"], 0)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        yield frames.data[start:stop].tobytes()


def held_texts(texts: Collection[str]) -> list[bytes]:
    """The texts that a record can hold: what was read from disk has no lone surrogates."""
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError:
        found = []
    for text in texts:
        try:
            found.append(text.encode())
        except UnicodeEncodeError:
            continue
    return found
