"""Many messages at a time: what a follower that has fallen behind reads, as Arrow batches and lines.

The same messages in the same order as one by one. A round ends before the first record that is not plain in
every respect (not what its unit says, damaged, of a light queue); the follower reads that one, and reports
what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.errors import UnreadableError
from rmqtool.formats.consume_queue import PRE_BLANK
from rmqtool.formats.java import tags_code
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.column_arrays import BodyKind, ranges_of
from rmqtool.message.rows import OK
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.queue.units import UNIT_DTYPE, present, queue_offsets, unit_array
from rmqtool.read.access import Access, LogRange
from rmqtool.read.messages import message_batches
from rmqtool.read.residual import body_mask, held_texts
from rmqtool.read.store import Store
from rmqtool.report.tail.follower import BulkRound, Follower, mark_of
from rmqtool.report.tail.log_reader import RecordRef
from rmqtool.report.tail.queue_tail import DeliveredUnit, QueueTail
from rmqtool.report.tail.subscription import Subscription
from rmqtool.storage.buffers import Array
from rmqtool.storage.layout import StoreFile

BULK_UNITS = 512  # fewer are read one by one
_ROUND_UNITS = 1 << 16  # of all queues together
_ROUND_BYTES = 16 << 20
_JUDGED = (
    "physical_offset", "topic", "queue_id", "queue_offset", "store_timestamp_ms", "born_timestamp_ms",
    "body_crc", "tags", "status",
)  # fmt: skip
_REMEMBERED = 32  # units of each queue and round, to find the place where a queue was cut
_LOWEST_HASH = -(1 << 31)


@dataclass(frozen=True)
class _Units:
    """Units of one queue, present, and followed by another one.

    `newest` is the physical offset of that other one where it may be half written; else None.
    """

    tail: QueueTail
    number: int
    rows: Any
    is_full: bool = False
    newest: int | None = None


class Bulk:
    """Reads rounds of a follower in bulk.

    Args:
        follower: its queues are read; what they have in their buffers is read again.
        columns: engine names that the batches have besides those that are judged.
        body: whether bodies are unpacked, see `message_batches`.
    """

    def __init__(self, follower: Follower, columns: tuple[str, ...], body: BodyKind) -> None:
        self._follower = follower
        self._round_units = _ROUND_UNITS
        self._body: BodyKind = "plain" if follower.wanted.grep is not None else body
        self._columns = tuple(dict.fromkeys((*columns, *_JUDGED, *_tested_columns(follower.wanted))))
        self._files: object = None
        self.store = Store(follower.log.layout)

    def warm(self) -> list[pa.RecordBatch]:
        """One message in bulk, whichever: what has to be loaded or compiled is then there.

        Touches nothing of the follower, so that it may be done in a thread of its own.
        """
        layout = self._follower.log.layout
        with Store(copy(layout)) as store:
            for queue in store.queues.values():
                unit = queue.last_unit()
                if unit is None:
                    continue
                places, sizes = np.array([unit.physical_offset]), np.array([unit.size])
                access = _access(store, store.commit_log.files, places, sizes)
                if access is not None:
                    return list(message_batches(store, columns=self._columns, access=access, body=self._body))
        return []

    def round(self) -> BulkRound | None:
        """Read one round; None if this round must be read message by message."""
        follower = self._follower
        for tail in follower.tails:
            tail.forget()
        limit = max(self._round_units // max(len(follower.tails), 1), 16)
        self._round_units = min(2 * self._round_units, _ROUND_UNITS)
        first = [self._units(tail, limit) for tail in follower.tails]
        if (
            any(tail.is_suspect for tail in follower.tails)
            or sum(len(each.rows) for each in first) < BULK_UNITS
        ):
            return None
        bound = max(int(each.rows["physical_offset"].max()) for each in first if len(each.rows))
        blocks = [each if each.is_full else self._units(each.tail, limit) for each in first]
        for each in blocks:
            if each.is_full:
                bound = min(bound, int(each.rows["physical_offset"].max()))
            elif each.newest is not None:
                bound = min(bound, each.newest - 1)
        return self._read([_up_to(each, bound) for each in blocks])

    def _units(self, tail: QueueTail, limit: int) -> _Units:
        try:
            read = tail.read(limit)
        except UnreadableError:
            read = None  # reported when it is read by itself
        if read is None:
            return _Units(tail, tail.number, np.zeros(0, UNIT_DTYPE))
        number, count, data = read
        rows = unit_array(data, tail.queue.unit_size)
        absent = np.flatnonzero(~present(rows))
        there = int(absent[0]) if len(absent) else len(rows)
        if there > count or number + there == tail.stop:
            return _Units(tail, number, rows[: min(there, count)], is_full=number + count != tail.stop)
        newest = int(rows["physical_offset"][there - 1]) if there else None
        return _Units(tail, number, rows[: max(there - 1, 0)], newest=newest)

    def _read(self, blocks: list[_Units]) -> BulkRound | None:
        blocks = [each for each in blocks if len(each.rows)]
        if not blocks:
            return None
        places = np.concatenate([each.rows["physical_offset"] for each in blocks]).astype(np.int64)
        order = np.argsort(places, kind="stable")
        wanted = np.concatenate([self._looked_at(each) for each in blocks])[order]
        sizes = np.concatenate([each.rows["size"] for each in blocks]).astype(np.int64)[order]
        queues = np.repeat(np.arange(len(blocks)), [len(each.rows) for each in blocks])[order]
        numbers = np.concatenate([queue_offsets(each.rows, each.number) for each in blocks])[order]
        places = places[order]
        if int(sizes.sum()) > _ROUND_BYTES:
            if len(sizes) < BULK_UNITS:
                return None
            half = int(places[len(places) // 2])
            return self._read([_up_to(each, half) for each in blocks]) if half < places[-1] else None
        access = self._access_now(places[wanted], sizes[wanted])
        if access is None:
            return None
        batches = list(message_batches(self.store, columns=self._columns, access=access, body=self._body))
        rows = pa.Table.from_batches(batches).combine_chunks() if batches else None
        plain = self._plain(rows, blocks, places[wanted], queues[wanted], numbers[wanted])
        if plain < np.count_nonzero(wanted):
            first_other = int(places[wanted][plain])
            blocks = [_up_to(each, first_other - 1) for each in blocks]
            count = sum(len(each.rows) for each in blocks)
            # Where one is, others may follow: a small round does not read much in vain.
            self._round_units = max(2 * count, 2 * BULK_UNITS)
            return self._read(blocks) if count >= BULK_UNITS else None
        rows = rows if rows is None else rows.slice(0, plain)
        self._take(blocks, rows, places[wanted])
        return BulkRound(len(places), [] if rows is None else self._chosen(rows))

    def _looked_at(self, block: _Units) -> Any:
        """Which units may be those of wanted messages; see `Follower._is_looked_at`."""
        rows = block.rows
        chosen = ~((rows["physical_offset"] == PRE_BLANK.physical_offset) & (rows["size"] == PRE_BLANK.size))
        tags = self._follower.wanted.tags
        if tags and block.tail.topic != SCHEDULE_TOPIC:
            codes = rows["tags_code"].astype(np.int64)
            same = np.isin(codes.astype(np.int32), [tags_code(tag) for tag in tags])
            chosen &= same | (codes < _LOWEST_HASH)
        return chosen

    def _access_now(self, places: Any, sizes: Any) -> Access | None:
        """The way to these records, in the files that there are now; see `_access`."""
        log = self._follower.log
        if len(places) and (not log.files or int(places[-1] + sizes[-1]) > log.files[-1].end):
            log.refresh_soon()
        if self._files is not log.files:
            layout = copy(log.layout)
            layout.commit_log = log.files
            self.store, self._files = Store(layout), log.files
        return _access(self.store, log.files, places, sizes)

    @staticmethod
    def _plain(rows: pa.Table | None, blocks: list[_Units], places: Any, queues: Any, numbers: Any) -> int:
        """How many of the records, from the first on, are there, sound, and what their units stand for."""
        if rows is None:
            return 0
        count = min(len(rows), len(places))
        rows, places = rows.slice(0, count), places[:count]
        queues, numbers = queues[:count], numbers[:count]
        topics = pa.array([each.tail.topic for each in blocks]).take(pa.array(queues))
        ids = np.array([each.tail.queue_id for each in blocks])[queues]
        same = (
            (rows.column("physical_offset").to_numpy() == places)
            & (rows.column("queue_offset").to_numpy() == numbers)
            & (rows.column("queue_id").to_numpy() == ids)
            & _are_ok(rows).to_numpy(zero_copy_only=False)
            & pc.equal(rows.column("topic"), topics).to_numpy()
        )
        return count if same.all() else int(np.argmin(same))

    def _take(self, blocks: list[_Units], rows: pa.Table | None, places: Any) -> None:
        for each in blocks:
            units = each.rows[-_REMEMBERED:]
            first = each.number + len(each.rows) - len(units)
            marks = _marks(rows, places, units["physical_offset"])
            delivered = [
                DeliveredUnit(first + n, RecordRef(offset, size), mark)
                for n, (offset, size, mark) in enumerate(
                    zip(units["physical_offset"].tolist(), units["size"].tolist(), marks, strict=True)
                )
            ]
            each.tail.take_many(delivered, each.number + len(each.rows))

    def _chosen(self, rows: pa.Table) -> list[pa.RecordBatch]:
        """The wanted messages; see `Follower._is_wanted`."""
        if self._follower.since is not None:
            rows = rows.filter(pc.greater_equal(rows.column("store_timestamp_ms"), self._follower.since))
        batches: list[pa.RecordBatch] = _accepted(rows, self._follower.wanted).to_batches()
        return batches


def unwanted(store: Store, wanted: Subscription, places: Array, sizes: Array) -> frozenset[int]:
    """Physical offsets of sound records that a subscription does not want.

    The others may be wanted, may be damaged, or are not there.

    Args:
        store: opened for reading.
        wanted: looks inside messages.
        places: physical offsets of the records, shape (records,); in any order, and more than once.
        sizes: of the records, as their units say.
    """
    places, firsts = np.unique(places, return_index=True)
    access = _access(store, store.commit_log.files, places, sizes[firsts])
    if access is None:
        return frozenset()
    columns = ("physical_offset", "status", *_tested_columns(wanted))
    body: BodyKind = "plain" if wanted.grep is not None else "stored"
    passed: set[int] = set()
    for batch in message_batches(store, columns=columns, access=access, body=body):
        rows = pa.Table.from_batches([batch])
        rows = rows.filter(_are_ok(rows))
        passed.update(rows.column("physical_offset").to_pylist())
        passed.difference_update(_accepted(rows, wanted).column("physical_offset").to_pylist())
    return frozenset(passed)


def _tested_columns(wanted: Subscription) -> Iterator[str]:
    """The columns that `_accepted` looks at."""
    if wanted.tags:
        yield "tags"
    if wanted.filter is not None:
        yield "properties"
    if wanted.grep is not None:
        yield "body"


def _accepted(rows: pa.Table, wanted: Subscription) -> pa.Table:
    """The messages of sound rows that a subscription wants, see `Subscription.accepts`; bodies are plain."""
    if wanted.tags:
        tags = pa.array(held_texts(wanted.tags), pa.binary()).cast(pa.string())
        rows = rows.filter(pc.is_in(rows.column("tags"), value_set=tags))
    if wanted.filter is not None:
        found = [wanted.matches_record(dict(each or ())) for each in rows.column("properties").to_pylist()]
        rows = rows.filter(pa.array(found, pa.bool_()))
    if wanted.grep is not None:
        bodies = ranges_of(rows.column("body").combine_chunks())
        rows = rows.filter(pa.array(body_mask(wanted.grep, bodies, np.zeros(len(rows), np.int32))))
    return rows


def _are_ok(rows: pa.Table) -> pa.ChunkedArray:
    """Which rows have no status but ok: bool."""
    status = rows.column("status").combine_chunks()
    return pc.and_(pc.equal(pc.list_value_length(status), 1), pc.equal(pc.list_element(status, 0), OK))


_MARKED = ("store_timestamp_ms", "born_timestamp_ms", "body_crc", "queue_id")


def _marks(rows: pa.Table | None, places: Any, offsets: Any) -> list[int]:
    """The marks of the records at these offsets; 0 for those that were not read."""
    if rows is None:
        return [0] * len(offsets)
    at = np.minimum(np.searchsorted(places, offsets), len(places) - 1)
    columns = [rows.column(name).take(pa.array(at)).to_pylist() for name in _MARKED]
    read = (places[at] == offsets).tolist()
    return [mark_of(*values) if is_read else 0 for is_read, *values in zip(read, *columns, strict=True)]


def _up_to(block: _Units, bound: int) -> _Units:
    """The units before the first one that lies after a physical offset."""
    beyond = np.flatnonzero(block.rows["physical_offset"] > bound)
    if not len(beyond):
        return block
    return replace(block, rows=block.rows[: int(beyond[0])])


def _access(store: Store, files: Sequence[StoreFile], places: Any, sizes: Any) -> Access | None:
    """The way to these records, by rising offset; None where a file does not hold one of them."""
    ends = places + sizes
    if len(places) and not ((ends[:-1] <= places[1:]).all() and (sizes > 0).all()):
        return None
    of_files = np.searchsorted([file.file_from_offset for file in files], places, side="right") - 1
    touched, firsts = np.unique(of_files, return_index=True)
    ranges = []
    lasts = np.append(firsts, len(places))[1:]
    for number, low, high in zip(touched.tolist(), firsts, lasts, strict=True):
        start, stop = int(places[low]), int(ends[high - 1])
        if number < 0 or stop > files[number].end:
            return None
        name, count = store.layout.relative(files[number].path), int(sizes[low:high].sum())
        ranges.append(LogRange(name, files[number].file_from_offset, start, stop, count, "index"))
    stop = int(ends[-1]) if len(places) else 0
    return Access(
        "index", tuple(ranges), offsets=tuple(places.tolist()), sizes=tuple(sizes.tolist()),
        start=int(places[0]) if len(places) else 0, stop=stop, end=stop,
    )  # fmt: skip
