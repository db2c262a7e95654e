"""Codes for texts of records: a value is decoded once, however many records have it."""

from __future__ import annotations

import numpy as np

from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.properties import TAGS
from rmqtool.log.frames import Frames
from rmqtool.log.properties import value_ranges
from rmqtool.log.string_ranges import Ranges, distinct
from rmqtool.report.stats.dimensions import Codes
from rmqtool.report.stats.scanner import part_of
from rmqtool.storage.buffers import Array


class TagCodes:
    """The code of each record's tag; records without a tag have the code of None."""

    def __init__(self, tags: Codes) -> None:
        self._tags = tags

    def __call__(self, frames: Frames, chosen: Array) -> Array:
        """The codes of the records at the places `chosen`, i8."""
        values = value_ranges(part_of(frames, chosen), TAGS)
        there = np.flatnonzero(values.lengths >= 0)
        codes = np.empty(len(chosen), np.int64)
        if len(there) < len(chosen):
            codes[:] = self._tags.of([None])[0]
        if len(there):
            numbers, texts = distinct(Ranges(values.data, values.starts[there], values.lengths[there]))
            codes[there] = self._tags.of([java_utf8_decode(text) for text in texts])[numbers]
        return codes
