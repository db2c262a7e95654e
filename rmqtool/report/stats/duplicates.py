"""Unique keys that a topic holds more than once: a producer sent twice, or a log was replayed.

The first pass over the log keeps one 32-bit hash per message. The second reads and compares the keys of
all messages whose hash occurred twice, so two keys with one hash are not duplicates. If there are more
than `HASHES_MAX` or `SUSPECTS_MAX`, each step is split into parts with a pass each.

A broker stores delayed messages, half messages and retries again under another topic. So only equal keys
within one topic count, and system, retry and dead letter topics only if they are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool import times
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.properties import UNIQ_KEY
from rmqtool.log.dispatch import KIND_UNIQ, dispatch_columns
from rmqtool.log.properties import value_ranges
from rmqtool.log.string_ranges import gather
from rmqtool.message.rows import Row
from rmqtool.message.system_topics import BUILT_IN_PREFIX, BUILT_IN_TOPICS, DLQ_PREFIX, RETRY_PREFIX
from rmqtool.read.selection import Selection
from rmqtool.report.stats.dimensions import OTHERS, Codes
from rmqtool.report.stats.scanner import Aggregator, Batch
from rmqtool.storage.buffers import Array

if TYPE_CHECKING:
    import pyarrow as pa

HASHES_MAX = 32 << 20
"""Most hashes in memory at once, 4 bytes each (twice that while they are sorted)."""
SUSPECTS_MAX = 2 << 20
"""Most messages whose keys are compared at once, some 120 bytes each."""
FIELDS = (
    "topic", "uniq_key", "count", "bytes", "same_body", "first_physical_offset", "last_physical_offset",
    "first_store_timestamp_ms", "first_store_time", "last_store_timestamp_ms", "last_store_time",
)  # fmt: skip
TABLE_FIELDS = ("topic", "uniq_key", "count", "same_body", "first_physical_offset", "last_physical_offset",
                "first_store_time", "last_store_time")  # fmt: skip
_SUMS = {
    "count": "sum", "size": "sum", "first_place": "min", "last_place": "max", "first_time": "min",
    "last_time": "max", "low_body": "min", "high_body": "max",
}  # fmt: skip
_BITS_MAX = 8  # 256 parts: a store of terabytes
_MIX = np.uint32(0x9E3779B1)
_ROWS = 4096

Walk = Callable[[Aggregator], None]
"""Passes every batch of the log to one aggregator."""


def is_ordinary(topic: str) -> bool:
    """Whether the same unique key twice is a duplicate in this topic."""
    of_broker = topic in BUILT_IN_TOPICS or topic.startswith(BUILT_IN_PREFIX)
    return not (of_broker or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))


class _Seen:
    """The input of both passes: selected messages of ordinary topics, with the hash of their unique key."""

    def __init__(self, selection: Selection) -> None:
        self._all_topics = bool(selection.topics)

    def hashes(self, batch: Batch) -> tuple[Array, Array]:
        """(places in frames.rows, hashes u4) of the records that have a unique key."""
        wanted = np.array([self._all_topics or is_ordinary(name) for name in batch.topic_names], np.bool_)
        rows = batch.frames.rows
        places = np.flatnonzero(batch.mask & wanted[rows["topic_id"]])
        if not len(places):
            return places, np.zeros(0, np.uint32)
        keys = dispatch_columns(batch.frames.at(places)).keys
        keys = keys[keys["kind"] == KIND_UNIQ]
        # The low bits of Java's hash are unevenly distributed, and they choose the part: mix them.
        mixed = keys["key_hash"].astype(np.uint32) * _MIX
        return places[keys["row"]], mixed ^ (mixed >> np.uint32(15))


class _Hashes:
    """Collects the hashes of one part: those whose lowest `bits` bits are `part`."""

    def __init__(self, seen: _Seen, bits: int, part: int, hashes_max: int) -> None:
        self.bits = bits
        self._seen, self._part, self._max = seen, part, hashes_max
        self._found: list[Array] = []
        self._count = self._left_out = 0

    def take(self, batch: Batch) -> None:
        """Look at one batch."""
        self._add(self._of_part(self._seen.hashes(batch)[1]))
        if self._count > self._max:
            self._shrink()

    def _shrink(self) -> None:
        """Keep each hash at most twice; if that is not enough, drop one half of all hash values.

        Only the first part may do that: the later parts read the values that it dropped.
        """
        hashes, starts, counts = self._counted()
        kept = np.concatenate([hashes[starts], hashes[starts[counts > 1]]])
        self._left_out += len(hashes) - len(kept)
        self._found, self._count = [kept], len(kept)
        while self._part == 0 and self._count > self._max // 2 and self.bits < _BITS_MAX:
            self.bits += 1
            self._found, self._count = [], 0
            kept = self._of_part(kept)
            self._add(kept)
        # Whatever the distribution, do not shrink again with every batch.
        self._max = max(self._max, 2 * self._count)

    def _counted(self) -> tuple[Array, Array, Array]:
        """(all hashes, sorted; the start of each distinct one; how often it occurs)."""
        hashes = np.sort(np.concatenate([np.zeros(0, np.uint32), *self._found]))
        is_first = np.ones(len(hashes), np.bool_)
        is_first[1:] = hashes[1:] != hashes[:-1]
        starts = np.flatnonzero(is_first)
        return hashes, starts, np.diff(starts, append=len(hashes))

    def doubled(self) -> tuple[Array, int]:
        """(the hashes that occurred more than once, sorted; an upper bound of the records that have them)."""
        hashes, starts, counts = self._counted()
        self._found = []
        return hashes[starts[counts > 1]], int(counts[counts > 1].sum()) + self._left_out

    def _of_part(self, hashes: Array) -> Array:
        chosen: Array = hashes[hashes & np.uint32((1 << self.bits) - 1) == self._part]
        return chosen

    def _add(self, hashes: Array) -> None:
        if len(hashes):
            self._found.append(hashes)
            self._count += len(hashes)


class _Suspects:
    """Collects key, place, time and body of the records whose hash is in `hashes` (sorted)."""

    def __init__(self, seen: _Seen, hashes: Array, rows_max: int) -> None:
        self._seen, self._hashes, self._max = seen, hashes, rows_max
        self._tables: list[pa.Table] = []
        self._rows = 0

    def take(self, batch: Batch) -> None:
        """Look at one batch."""
        import pyarrow as pa

        places, hashes = self._seen.hashes(batch)
        found = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        places = places[self._hashes[found] == hashes]
        if not len(places):
            return
        frames = batch.frames.at(places)
        rows: Any = frames.rows
        keys = gather(value_ranges(frames, UNIQ_KEY))
        buffers = [None, pa.py_buffer(keys.offsets), pa.py_buffer(keys.data)]
        places, stored = rows["physical_offset"].copy(), rows["store_timestamp"].copy()
        body = rows["body_crc"].astype(np.int64) << 32 | np.maximum(rows["body_length"], 0)
        columns = {
            "topic": batch.topic_codes[rows["topic_id"]],
            "uniq_key": pa.Array.from_buffers(pa.binary(), len(rows), buffers),
            "count": np.ones(len(rows), np.int64), "size": rows["size"].astype(np.int64),
            "first_place": places, "last_place": places, "first_time": stored, "last_time": stored,
            "low_body": body, "high_body": body,
        }  # fmt: skip
        self._tables.append(pa.table(columns))
        self._rows += len(rows)
        if self._rows > self._max:
            self._merge()
            self._max = max(self._max, 2 * self._rows)

    def duplicates(self) -> pa.Table | None:
        """One row per key that a topic has more than once; None if there are none."""
        if not self._tables:
            return None
        import pyarrow.compute as pc

        table = self._merge()
        table = table.filter(pc.greater(table["count"], 1))
        return table if len(table) else None

    def _merge(self) -> pa.Table:
        """One row per topic and key."""
        import pyarrow as pa

        sums = [(name, kind) for name, kind in _SUMS.items()]
        table = pa.concat_tables(self._tables).group_by(["topic", "uniq_key"]).aggregate(sums)
        names = ["topic", "uniq_key", *_SUMS]
        table = table.select(["topic", "uniq_key", *(f"{name}_{kind}" for name, kind in sums)])
        self._tables = [table.rename_columns(names)]
        self._rows = len(table)
        return self._tables[0]


def duplicate_rows(
    walk: Walk,
    selection: Selection,
    topics: Codes,
    tz: tzinfo | None,
    *,
    hashes_max: int = HASHES_MAX,
    suspects_max: int = SUSPECTS_MAX,
) -> Iterator[Row]:
    """Unique keys of one topic that more than one selected message has, the most frequent first.

    Args:
        walk: passes the log's selected records to an aggregator; called once per pass.
        selection: which messages; if it names topics, system and retry topics count too.
        topics: the names of the topic codes in the batches.
        tz: zone of the times; None is the local zone.
        hashes_max: most hashes in memory at once.
        suspects_max: most messages compared at once.

    `same_body` is whether all of them have the same stored body, by CRC and length.
    """
    seen = _Seen(selection)
    first = _Hashes(seen, 0, 0, hashes_max)
    walk(first)
    doubled, suspects = first.doubled()
    parts = [doubled]
    for part in range(1, 1 << first.bits):
        later = _Hashes(seen, first.bits, part, hashes_max)
        walk(later)
        doubled, more = later.doubled()
        parts.append(doubled)
        suspects += more
    hashes = np.sort(np.concatenate(parts))
    tables = []
    for piece in np.array_split(hashes, max(-(-suspects // suspects_max), 1)):
        if len(piece):
            comparing = _Suspects(seen, piece, suspects_max)
            walk(comparing)
            found = comparing.duplicates()
            tables += [found] if found is not None else []
    if tables:
        import pyarrow as pa

        table = pa.concat_tables(tables)
        order = [("count", "descending"), ("first_place", "ascending")]
        for batch in table.sort_by(order).to_batches(max_chunksize=_ROWS):
            yield from (_row(found, topics, tz) for found in batch.to_pylist())


def _row(found: Row, topics: Codes, tz: tzinfo | None) -> Row:
    row: Row = {
        "topic": topics.values[found["topic"]] if found["topic"] != OTHERS else None,
        "uniq_key": java_utf8_decode(found["uniq_key"]),
        "count": found["count"],
        "bytes": found["size"],
        "same_body": found["low_body"] == found["high_body"],
        "first_physical_offset": found["first_place"],
        "last_physical_offset": found["last_place"],
    }
    for which in ("first", "last"):
        time = found[f"{which}_time"]
        row[f"{which}_store_timestamp_ms"] = time
        row[f"{which}_store_time"] = times.format_time(time, tz)
    return row
