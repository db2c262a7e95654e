"""The one scan of `stats`: it passes every batch of records to all aggregators.

An aggregator copies everything that it keeps of a batch: the next batch reuses the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from rmqtool.findings import Progress, Report, ScanCounters
from rmqtool.formats import message as form
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.properties import TAGS
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.properties import value_ranges
from rmqtool.log.string_ranges import Ranges, distinct
from rmqtool.read.selection import Selection
from rmqtool.storage.buffers import Array

if TYPE_CHECKING:
    from rmqtool.log.frames import Frames
    from rmqtool.read.store import Store
    from rmqtool.report.stats.dimensions import Codes


@dataclass(frozen=True, slots=True)
class Records:
    """Columns of selected records, arrays of one length; they may be views of the batch's memory.

    `topics` and `tags` are codes (i8; tags are all 0 if they were not requested), lengths and sizes are in
    bytes, times in ms since 1970, `compressed` is whether the body is compressed.
    """

    topics: Array
    tags: Array
    queue_id: Array
    queue_offset: Array
    size: Array
    body_length: Array
    store_timestamp: Array
    born_timestamp: Array
    physical_offset: Array
    compressed: Array


@dataclass
class Batch:
    """Consecutive records of one file: `frames`, which of them are selected, and their topics.

    `topic_names` are those of frames.topics, `topic_codes` their codes in the whole scan.
    """

    frames: Frames
    mask: Array
    file: str
    topic_names: list[str]
    topic_codes: Array
    tags: Codes | None = None

    @cached_property
    def chosen(self) -> Array:
        """The indices of the selected records in frames.rows."""
        return np.flatnonzero(self.mask)

    @cached_property
    def records(self) -> Records:
        """The columns of the selected records."""
        rows = self.frames.rows if self.mask.all() else self.frames.rows[self.chosen]
        tags = None if self.tags is None else _tag_codes(self.frames.at(self.chosen), self.tags)
        return Records(
            self.topic_codes[rows["topic_id"]],
            np.zeros(len(rows), np.int64) if tags is None else tags,
            rows["queue_id"],
            rows["queue_offset"],
            rows["size"],
            np.maximum(rows["body_length"], 0),
            rows["store_timestamp"],
            rows["born_timestamp"],
            rows["physical_offset"],
            rows["sys_flag"] & form.COMPRESSED != 0,
        )


def _tag_codes(frames: Frames, tags: Codes) -> Array:
    """Per record the code of its tag, i8, or that of None; a value is decoded once, however many have it."""
    values = value_ranges(frames, TAGS)
    there = np.flatnonzero(values.lengths >= 0)
    codes = np.empty(len(frames.rows), np.int64)
    if len(there) < len(codes):
        codes[:] = tags.of([None])[0]
    if len(there):
        numbers, texts = distinct(Ranges(values.data, values.starts[there], values.lengths[there]))
        codes[there] = tags.of([java_utf8_decode(text) for text in texts])[numbers]
    return codes


class Aggregator(Protocol):
    """Sums up values of all batches of a scan."""

    def take(self, batch: Batch) -> None:
        """Add one batch; copy what is needed later."""


def scan(
    store: Store,
    selection: Selection,
    takers: Sequence[Aggregator],
    topics: Codes,
    *,
    tags: Codes | None = None,
    report: Report | None = None,
    progress: Progress | None = None,
    looked: ScanCounters | None = None,
    crc: bool = True,
) -> int:
    """Pass every batch of the log that has selected records to all aggregators, in the log's order.

    Returns the number of selected records.

    Args:
        store: the store.
        selection: which records are selected; it has no limit.
        takers: the aggregators.
        topics: collects the names of topics.
        tags: collects the tags of selected records; None if no aggregator needs them.
        report: called for each damaged place.
        progress: called with the bytes just read.
        looked: counts the scanned records.
        crc: check the CRC of bodies.
    """
    from rmqtool.read.messages import batch_records_of, frame_batches

    selected = 0
    for frames, mask, file in frame_batches(store, selection, crc=crc, report=report, progress=progress):
        names = [java_utf8_decode(topic) for topic in frames.topics]
        batch = Batch(frames, mask, file, names, topics.of(names), tags)
        if looked is not None:
            stored = frames.rows["store_timestamp"]
            looked.add(len(stored), int(stored.min()), int(stored.max()))
            looked.batches.add(batch_records_of(frames, mask))
            if selection.topics:
                present = np.bincount(frames.rows["topic_id"][mask], minlength=len(names)) > 0
                there = {name for name, is_present in zip(names, present.tolist(), strict=True) if is_present}
                looked.topics |= there & set(selection.topics)
        selected += len(batch.chosen)
        for taker in takers:
            taker.take(batch)
    return selected
