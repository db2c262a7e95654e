"""The state of half messages, from the log alone.

    open           neither committed nor rolled back
    committed      the message is in its topic
    rolled_back    finished by an op record, and never committed
    put_back       stored again for another check, so that its copy counts; or discarded after too many

A committed message names the physical offset of its half message; an op record names the queue offsets
of half messages that are finished, either way. With transactions in RocksDB (5.4) it names one by its
physical offset, in a property. A half message that no op names is `put_back` if a copy
follows or the broker's check has passed it (the offset of CID_RMQ_SYS_TRANS, unless it is past the last half
message: then it says nothing), else open. If its op was lost
in a crash, a committed half message still counts as committed, and in `without_op`: a broker will check it
again. A copy has the unique key and the born time of the first record; ages and the broker's timeout count
from that time.

Finished ones are counted and dropped during the scan, so memory depends on the number of open ones.

Source: TransactionalMessageServiceImpl#check, EndTransactionProcessor; spec 02 section 11.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import tzinfo

import numpy as np

from rmqtool import times
from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.dispatch import KIND_UNIQ, dispatch_columns
from rmqtool.log.frames import Frames
from rmqtool.log.properties import read_pairs
from rmqtool.message.rows import Row
from rmqtool.message.string_table import decimals, gathered
from rmqtool.message.system_topics import HALF_TOPICS, OP_TOPICS, ROCKSDB_OP_TOPIC
from rmqtool.read.half_checks import checked_until
from rmqtool.report.stats.groups import PERCENTILES, PLACES
from rmqtool.report.stats.histogram import Histogram
from rmqtool.report.stats.scanner import Batch
from rmqtool.storage.buffers import Array

STATES = ("open", "committed", "rolled_back", "put_back")
FIELDS = (
    "state", "count", "bytes", "without_op", "first_timestamp_ms", "first_time", "last_timestamp_ms",
    "last_time", "oldest_age_ms", "first_physical_offset", "duration_mean_ms", "duration_p50_ms",
    "duration_p95_ms", "duration_p99_ms",
)  # fmt: skip
TABLE_FIELDS = ("state", "count", "bytes", "first_time", "last_time", "oldest_age_ms", "duration_p50_ms",
                "duration_p99_ms")  # fmt: skip
_COMPACT_FROM = 1 << 20  # half messages and ops in memory from which the finished ones are counted

Offsets = Mapping[tuple[str, str], Mapping[int, int]]

HALF = np.dtype(
    [("topic", "i1"), ("queue_id", "i4"), ("queue_offset", "i8"), ("place", "i8"), ("stored", "i8"),
     ("size", "i4"), ("committed", "i8"), ("born", "i8"), ("key", "u4"), ("copied", "?")]
)  # fmt: skip
"""A half message.

`committed` is the store time of the committed message, -1 if none; `key` a hash of the unique key, 0 if
none; `copied` whether it was stored again.
"""
OP = np.dtype([("topic", "i1"), ("queue_id", "i4"), ("queue_offset", "i8"), ("stored", "i8")])
COMMIT = np.dtype([("place", "i8"), ("stored", "i8")])
_SLOT = ["topic", "queue_id", "queue_offset"]


@dataclass
class _State:
    """The sums of one state; durations are from the half message to the op, ms."""

    count: int = 0
    bytes: int = 0
    without_op: int = 0
    first: int | None = None
    last: int | None = None
    first_born: int | None = None
    first_place: int | None = None
    duration_sum: int = 0
    duration_count: int = 0
    histogram: Histogram = field(default_factory=Histogram)

    def add(self, halves: Array, ended: Array | None, *, without_op: bool = False) -> None:
        """Count half messages; `ended` are the store times of their ops."""
        if not len(halves):
            return
        self.count += len(halves)
        self.bytes += int(halves["size"].sum(dtype=np.int64))
        self.without_op += len(halves) if without_op else 0
        oldest = int(np.argmin(halves["stored"]))
        first, last = int(halves["stored"][oldest]), int(halves["stored"].max())
        if self.first is None or first < self.first:
            self.first, self.first_place = first, int(halves["place"][oldest])
        self.last = last if self.last is None else max(self.last, last)
        born = int(halves["born"].min())
        self.first_born = born if self.first_born is None else min(self.first_born, born)
        if ended is not None:
            durations = ended - halves["stored"]
            self.duration_sum += int(durations.sum())
            self.duration_count += len(durations)
            self.histogram.add(np.zeros(len(durations), np.int64), durations)


class Transactions:
    """The half messages of a scan of the whole log; call `take` for every batch, then `rows`.

    Args:
        until_ms: only records stored before this time count (ms since 1970); None: all.
        compact_from: half messages and ops in memory from which the finished ones are counted; None:
            _COMPACT_FROM.
    """

    def __init__(self, until_ms: int | None = None, *, compact_from: int | None = None) -> None:
        self.unreadable_ops = 0
        self._until_ms = until_ms
        self._compact_from = _COMPACT_FROM if compact_from is None else compact_from
        self._states = {name: _State() for name in STATES}
        self._halves = np.zeros(0, HALF)
        self._ops = np.zeros(0, OP)
        self._commits = np.zeros(0, COMMIT)
        self._ends = np.zeros(0, COMMIT)
        self._stops: dict[tuple[int, int], int] = {}  # after the last half message, by topic and queue id
        self._new: dict[str, list[Array]] = {"halves": [], "ops": [], "commits": [], "ends": []}
        self._kept = 0

    def take(self, batch: Batch) -> None:
        """Add all records of a batch, selected or not."""
        rows = batch.frames.rows
        there = np.ones(len(rows), np.bool_)
        if self._until_ms is not None:
            there = rows["store_timestamp"] < self._until_ms
        kind = np.full(len(batch.topic_names), -1, np.int64)
        for number, name in enumerate(batch.topic_names):
            for base, names in ((0, HALF_TOPICS), (2, OP_TOPICS)):
                if name in names:
                    kind[number] = base + names.index(name)
        kinds = kind[rows["topic_id"]]
        self._take_halves(batch, kinds, there)
        self._take_ops(batch, kinds, there)
        commit = rows["sys_flag"] & form.TRANSACTION_MASK == form.TRANSACTION_COMMIT
        chosen = rows[commit & there & (kinds < 0)]
        if len(chosen):
            commits = np.zeros(len(chosen), COMMIT)
            commits["place"] = chosen["prepared_transaction_offset"]
            commits["stored"] = chosen["store_timestamp"]
            self._keep("commits", commits)
        if self._kept >= self._compact_from:
            self._compact()
            self._compact_from = max(self._compact_from, 2 * self._kept)

    def rows(self, offsets: Offsets, now_ms: int, tz: tzinfo | None) -> Iterator[Row]:
        """One row per state.

        Args:
            offsets: committed offsets by (topic, group) and queue id.
            now_ms: ages are relative to this time.
            tz: zone of the times; None is the local zone.
        """
        self._compact()
        self._finish(offsets)
        for name in STATES:
            state = self._states[name]
            row: Row = {"state": name, "count": state.count, "bytes": state.bytes,
                        "without_op": state.without_op}  # fmt: skip
            for which, time in (("first", state.first), ("last", state.last)):
                row[f"{which}_timestamp_ms"] = time
                row[f"{which}_time"] = None if time is None else times.format_time(time, tz)
            born = state.first_born if name == "open" else None
            row["oldest_age_ms"] = None if born is None else max(now_ms - born, 0)
            row["first_physical_offset"] = state.first_place
            count = state.duration_count
            row["duration_mean_ms"] = round(state.duration_sum / count, PLACES) if count else None
            parts = state.histogram.percentiles(1, PERCENTILES)[0].tolist()
            for part, value in zip(PERCENTILES, parts, strict=True):
                row[f"duration_p{part}_ms"] = value if count else None
            yield row

    def _take_halves(self, batch: Batch, kinds: Array, there: Array) -> None:
        places = np.flatnonzero(there & ((kinds == 0) | (kinds == 1)))
        if len(places):
            found = batch.frames.rows[places]
            halves = np.zeros(len(found), HALF)
            halves["topic"] = kinds[places]
            halves["place"], halves["stored"] = found["physical_offset"], found["store_timestamp"]
            halves["committed"], halves["born"] = -1, found["born_timestamp"]
            keys = dispatch_columns(batch.frames.at(places)).keys
            keys = keys[keys["kind"] == KIND_UNIQ]
            halves["key"][keys["row"]] = keys["key_hash"].astype(np.uint32)
            for name in ("queue_id", "queue_offset", "size"):
                halves[name] = found[name]
            for each in np.unique(halves[["topic", "queue_id"]]):
                last = halves["queue_offset"][halves[["topic", "queue_id"]] == each].max()
                key = int(each["topic"]), int(each["queue_id"])
                self._stops[key] = max(self._stops.get(key, 0), int(last) + 1)
            self._keep("halves", halves)

    def _take_ops(self, batch: Batch, kinds: Array, there: Array) -> None:
        rows = batch.frames.rows
        in_rocksdb = kinds == 2 + OP_TOPICS.index(ROCKSDB_OP_TOPIC)
        places = np.flatnonzero(there & in_rocksdb)
        if len(places):
            named, owners = _half_places(batch.frames.at(places))
            self.unreadable_ops += len(places) - len(named)
            ends = np.zeros(len(named), COMMIT)
            ends["place"], ends["stored"] = named, rows["store_timestamp"][places[owners]]
            self._keep("ends", ends)
        places = np.flatnonzero(there & (kinds >= 2) & ~in_rocksdb)
        if not len(places):
            return
        lengths = np.maximum(rows["body_length"][places], 0).astype(np.int64)
        text, ends = gathered(batch.frames.data, batch.frames.body_starts()[places], lengths)
        values, owners, bad = decimals(text, ends)
        self.unreadable_ops += int(bad.sum())
        ops = np.zeros(len(values), OP)
        which = places[owners]
        ops["topic"] = kinds[which] - 2
        ops["queue_offset"] = values
        ops["queue_id"], ops["stored"] = rows["queue_id"][which], rows["store_timestamp"][which]
        self._keep("ops", ops)

    def _keep(self, name: str, found: Array) -> None:
        self._new[name].append(found)
        self._kept += len(found)

    def _compact(self) -> None:
        """Count half messages that an op has finished, and drop them with their ops and commits."""
        halves = np.concatenate([self._halves, *self._new["halves"]])
        ops = np.concatenate([self._ops, *self._new["ops"]])
        commits = np.concatenate([self._commits, *self._new["commits"]])
        ends = np.concatenate([self._ends, *self._new["ends"]])
        self._new = {"halves": [], "ops": [], "commits": [], "ends": []}
        order = np.argsort(halves["place"], kind="stable")
        halves = halves[order]
        halves["copied"] |= _are_copied(halves)
        found, times_of = _joined(commits["place"], commits["stored"], halves["place"])
        halves["committed"] = np.where(found, times_of, halves["committed"])
        op_keys, half_keys = _keys(ops, halves)
        finished, ended = _joined(op_keys, ops["stored"], half_keys)
        named, times_of = _joined(ends["place"], ends["stored"], halves["place"])
        finished, ended = finished | named, np.where(named, times_of, ended)
        done, ended = halves[finished], ended[finished]
        committed = done["committed"] >= 0
        self._states["committed"].add(done[committed], ended[committed])
        self._states["rolled_back"].add(done[~committed], ended[~committed])
        self._halves = halves[~finished]
        # An op or a commit comes after its half message; if none was found so far, that was deleted.
        self._ops, self._commits = np.zeros(0, OP), np.zeros(0, COMMIT)
        self._kept = len(self._halves)

    def _finish(self, offsets: Offsets) -> None:
        left = self._halves
        committed = left["committed"] >= 0
        self._states["committed"].add(left[committed], None, without_op=True)
        left = left[~committed]
        passed = left["copied"].copy()
        for (number, queue_id), stop in self._stops.items():
            mine = (left["topic"] == number) & (left["queue_id"] == queue_id)
            progress = checked_until(offsets, HALF_TOPICS[number], queue_id, stop)
            passed |= mine & (left["queue_offset"] < progress)
        self._states["put_back"].add(left[passed], None)
        self._states["open"].add(left[~passed], None)
        self._halves = np.zeros(0, HALF)


def _half_places(frames: Frames) -> tuple[Array, Array]:
    """(physical offset of a half message i8, row of the op record that names it in TRANS_OFFSET)."""
    pairs = read_pairs(frames)
    word = np.frombuffer(properties.TRANS_OFFSET.encode(), np.uint8)
    chosen = np.flatnonzero(pairs.names.lengths == len(word))
    starts = pairs.names.starts[chosen]
    chosen = chosen[(pairs.names.data[starts[:, None] + np.arange(len(word))] == word).all(axis=1)]
    lengths = np.maximum(pairs.values.lengths[chosen], 0).astype(np.int64)
    values, owners, _ = decimals(*gathered(pairs.values.data, pairs.values.starts[chosen], lengths))
    rows = np.searchsorted(pairs.stops, chosen, side="right") - 1
    found, first = np.unique(rows[owners], return_index=True)
    return values[first], found


def _are_copied(halves: Array) -> Array:
    """Which of these, sorted by place, have a later copy of the same message: bool, shape (n,)."""
    order = np.lexsort((halves["born"], halves["key"]))  # stable: equal ones stay in the order of the log
    keys, born = halves["key"][order], halves["born"][order]
    copied = np.zeros(len(halves), np.bool_)
    copied[order[:-1]] = (keys[1:] == keys[:-1]) & (born[1:] == born[:-1]) & (keys[1:] != 0)
    return copied


def _keys(first: Array, second: Array) -> tuple[Array, Array]:
    """One number per row of both arrays; equal if topic, queue and queue offset are equal."""
    both = np.concatenate([first[_SLOT], second[_SLOT]])
    packed = np.zeros(len(both), [("a", "i8"), ("b", "i8")])
    packed["a"] = both["topic"].astype(np.int64) << 32 | both["queue_id"].astype(np.int64) & 0xFFFFFFFF
    packed["b"] = both["queue_offset"]
    queues, numbers = np.unique(packed["a"], return_inverse=True)
    if len(queues) == 1:
        keys: Array = packed["b"]
    else:
        offsets, places = np.unique(packed["b"], return_inverse=True)
        keys = numbers.astype(np.int64) * len(offsets) + places
    return keys[: len(first)], keys[len(first) :]


def _joined(keys: Array, values: Array, wanted: Array) -> tuple[Array, Array]:
    """For each of `wanted`: (whether it is in `keys`, the value of the first such key)."""
    if not len(keys):
        return np.zeros(len(wanted), np.bool_), np.zeros(len(wanted), np.int64)
    order = np.argsort(keys, kind="stable")
    places = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    there = order[places]
    return keys[there] == wanted, values[there]
