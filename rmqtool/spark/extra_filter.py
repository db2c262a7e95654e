"""The test of rows for what a Selection cannot say: on whole columns, never row by row."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.spark.request import ExtraPredicate, QueueRange
from rmqtool.storage.buffers import Array

_TIME_MIN, _TIME_MAX = -(1 << 63), (1 << 63) - 1


class ExtraFilter:
    """Lets those rows of batches through that a `ExtraPredicate` wants; one per partition."""

    def __init__(self, rest: ExtraPredicate) -> None:
        self._rest = rest
        self._pattern = None if rest.topic_pattern is None else re.compile(rest.topic_pattern)
        self._by_topic: dict[str, list[QueueRange]] = {}
        for each in rest.queues or ():
            self._by_topic.setdefault(each.topic, []).append(each)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass; the batch has the columns `ExtraPredicate.columns`."""
        rest = self._rest
        if rest.is_empty or not len(batch):
            return batch
        keep = np.ones(len(batch), np.bool_)
        if rest.start is not None or rest.stop is not None:
            offsets = _numbers(batch, "queue_offset")
            if rest.start is not None:
                keep &= offsets >= rest.start
            if rest.stop is not None:
                keep &= offsets < rest.stop
        if self._pattern is not None or rest.queues is not None:
            encoded = batch.column("topic").dictionary_encode()
            topics: list[str] = encoded.dictionary.to_pylist()
            numbers: Array = encoded.indices.to_numpy()
            if self._pattern is not None:
                wanted = [self._pattern.fullmatch(topic) is not None for topic in topics]
                keep &= np.array(wanted, np.bool_)[numbers]
            if rest.queues is not None:
                keep &= self._in_queues(batch, topics, numbers)
        return batch if keep.all() else batch.filter(pa.array(keep))

    def _in_queues(self, batch: pa.RecordBatch, topics: list[str], numbers: Array) -> Array:
        """Which rows are in one of the queues, and in its range."""
        known = [
            (number, each) for number, topic in enumerate(topics) for each in self._by_topic.get(topic, ())
        ]
        if not known:
            return np.zeros(len(batch), np.bool_)
        codes = np.array([_code(number, each.queue_id) for number, each in known], np.int64)
        order = np.argsort(codes)
        codes = codes[order]
        ranges = [known[place][1] for place in order]
        mine = (numbers.astype(np.int64) << 32) | (_numbers(batch, "queue_id") & 0xFFFFFFFF)
        places = np.minimum(np.searchsorted(codes, mine), len(codes) - 1)
        offsets = _numbers(batch, "queue_offset")
        keep = codes[places] == mine
        keep &= offsets >= np.array([each.start for each in ranges], np.int64)[places]
        keep &= offsets < np.array([each.stop for each in ranges], np.int64)[places]
        if "store_timestamp_ms" in self._rest.columns:
            times = _numbers(batch, "store_timestamp_ms")
            since = [_TIME_MIN if each.since is None else each.since for each in ranges]
            until = [_TIME_MAX if each.until is None else each.until for each in ranges]
            keep &= (times >= np.array(since, np.int64)[places]) & (times < np.array(until, np.int64)[places])
        return np.asarray(keep)


def _code(topic: int, queue_id: int) -> int:
    return (topic << 32) | (queue_id & 0xFFFFFFFF)


def _numbers(batch: pa.RecordBatch, name: str) -> Array:
    column: Array = pc.cast(batch.column(name), pa.int64()).to_numpy(zero_copy_only=False)
    return column
