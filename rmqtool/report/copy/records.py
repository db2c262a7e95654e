"""Converts records of the log to rows that `put_table` stores unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.findings import Report
from rmqtool.log.frames import Frames
from rmqtool.log.properties import property_crc_wrong, read_pairs
from rmqtool.log.string_ranges import Ranges, bodies, gather, hosts
from rmqtool.problems import finding
from rmqtool.read.reading import FrameBatch
from rmqtool.report.copy.topics import TopicChoice
from rmqtool.storage.buffers import Array

_NUMBERS = {
    "queue_id": pa.int32(), "flag": pa.int32(), "sys_flag": pa.int32(), "reconsume_times": pa.int32(),
    "prepared_transaction_offset": pa.int64(),
}  # fmt: skip


class RecordRows:
    """Converts batches of records to rows.

    Attributes:
        left_out: number of selected records that are damaged.
    """

    def __init__(self, choice: TopicChoice, report: Report) -> None:
        self.left_out = 0
        self._choice = choice
        self._report = report

    def batch(self, found: FrameBatch) -> pa.RecordBatch:
        """The selected records that are sound, with the columns of `put_table`.

        Damaged records are left out, because they would look sound in the copy; the scan has reported them.
        """
        frames, choice = found.frames, self._choice
        names = [topic.decode("utf-8", "replace") for topic in frames.topics]
        takes = np.array([*map(choice.takes, names), False])
        chosen = found.mask & takes[frames.rows["topic_id"]]
        sound = chosen & (frames.rows["status"] == 0) & ~self._crc_bad(found, chosen)
        self._tell_unsound(found, sound)
        self.left_out += int(np.count_nonzero(chosen & ~sound))
        places = np.flatnonzero(sound)
        rows = frames.rows[places]
        columns: dict[str, Any] = {name: pa.array(rows[name], kind) for name, kind in _NUMBERS.items()}
        new_names = pa.array([choice.name_of(name) for name in names], pa.string())
        columns["topic"] = pa.DictionaryArray.from_arrays(pa.array(rows["topic_id"]), new_names)
        for which in ("born", "store"):
            columns[f"{which}_timestamp_ms"] = pa.array(rows[f"{which}_timestamp"], pa.int64())
            columns[f"{which}_host"] = _bytes(hosts(frames, born=which == "born"), places)
        columns["body"] = _bytes(bodies(frames), places)
        columns["properties_bytes"] = self._properties(frames, places)
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _crc_bad(self, found: FrameBatch, chosen: Array) -> Array:
        bad = property_crc_wrong(found.frames)
        for row in found.frames.rows[bad & chosen]:
            self._report(finding("CL09", found.file, int(row["physical_offset"]), int(row["size"])))
        return bad

    def _tell_unsound(self, found: FrameBatch, chosen: Array) -> None:
        """Reports properties that cannot be read in full; they are copied unchanged, damage included."""
        frames = replace(found.frames, rows=found.frames.rows[chosen])
        for row in frames.rows[~read_pairs(frames).sound]:
            self._report(finding("CL13", found.file, int(row["physical_offset"]), int(row["size"])))

    def _properties(self, frames: Frames, places: Array) -> pa.Array:
        lengths = np.maximum(frames.rows["properties_length"], 0).astype(np.int32)
        strings = _bytes(Ranges(frames.data, frames.properties_starts(), lengths), places)
        changed = np.zeros(len(strings), np.bool_)
        for pattern in self._choice.patterns:
            changed |= pc.match_substring(strings, pattern).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(changed)
        if not len(rows):
            return strings
        values = [self._choice.renamed_properties(each) for each in strings.take(pa.array(rows)).to_pylist()]
        return pc.replace_with_mask(strings, pa.array(changed), pa.array(values, pa.binary()))


def _bytes(ranges: Ranges, places: Array) -> pa.Array:
    """A copy of the bytes of the rows at `places`."""
    starts = np.ascontiguousarray(ranges.starts[places])
    found = gather(Ranges(ranges.data, starts, np.ascontiguousarray(ranges.lengths[places])))
    buffers = [None, pa.py_buffer(found.offsets), pa.py_buffer(found.data)]
    return pa.Array.from_buffers(pa.binary(), len(places), buffers)
