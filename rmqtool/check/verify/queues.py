"""Pass `queues`, log side: every record of the log must have its unit, and that unit must be right.

    for a record of transaction type 0 or commit, in topic t, queue i, queue offset q:
        unit q of t/i  ==  (physical offset, size, tags code)

Records of several windows of the log are grouped by queue and compared with the units read in runs. What
stays is small: per queue the ranges of queue offsets that matched, and the ranges that did not, by kind.
The other direction, units that no record explains, is `unit_check.py`.

Source: CommitLogDispatcherBuildConsumeQueue#dispatch, ConsumeQueue#putMessagePositionInfo; spec 01
section 5, spec 02 section 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.check.verify.context import Context
from rmqtool.check.verify.spans import Break, Key, Mismatch, Span, Spans, UnitFault
from rmqtool.formats import properties
from rmqtool.formats.consume_queue import MAX_EXT_ADDRESS
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.message import INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqtool.log.dispatch import MULTI_DISPATCH, Dispatch
from rmqtool.log.events import OFFSET_MISMATCH
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.queue.build import order_by_queue
from rmqtool.queue.light_queues import light_units
from rmqtool.queue.rocksdb_units import store_times
from rmqtool.queue.units import BATCH_UNIT_DTYPE, UNIT_DTYPE, UnitReader, present
from rmqtool.read.delay_levels import configured, is_delay
from rmqtool.storage.counted_queues import topics_of_batches
from rmqtool.storage.layout import QueueFiles

if TYPE_CHECKING:
    from rmqtool.check.verify.log_findings import ScannedFile
    from rmqtool.log.frames import Frames

_RESTART_MS = 2000  # in which no broker starts twice
_NUMBER_LIMIT = 10**18  # queue offsets that sums of them stay within 64 bits
_RECORDS_MIN, _RECORDS_MAX = 1 << 14, 1 << 19  # that are compared together, of 80 bytes each
_OF_EACH_QUEUE = 64

_RIGHT = -1  # instead of a UnitFault: the unit is right
_REPORTED = -2  # another finding says why the unit differs or cannot be had


class Columns(NamedTuple):
    """The fields of records that are compared: arrays of shape (n,). `queue` is the number of a queue."""

    queue: np.ndarray
    queue_offset: np.ndarray
    physical_offset: np.ndarray
    size: np.ndarray
    store_timestamp: np.ndarray
    sys_flag: np.ndarray
    foreign: np.ndarray
    clock_back: np.ndarray
    tags: np.ndarray
    level: np.ndarray
    inner_base: np.ndarray
    inner_count: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, dispatch: Dispatch, queues: np.ndarray) -> Columns:
        """Copies of the columns of records; `queues` are the numbers of their queues."""
        stored = rows["store_timestamp"].copy()
        clock_back = np.zeros(len(rows), bool)
        np.less(stored[1:], stored[:-1], out=clock_back[1:])
        return cls(
            queue=queues,
            queue_offset=rows["queue_offset"].copy(),
            physical_offset=rows["physical_offset"].copy(),
            size=rows["size"].copy(),
            store_timestamp=stored,
            sys_flag=rows["sys_flag"].copy(),
            foreign=(rows["status"] & OFFSET_MISMATCH) != 0,
            clock_back=clock_back,
            tags=dispatch.tags_code.copy(),
            level=dispatch.delay_level.copy(),
            inner_base=dispatch.inner_base.copy(),
            inner_count=dispatch.inner_count.copy(),
        )

    def cut(self, start: int, stop: int) -> Columns:
        """Records [start, stop)."""
        return Columns(*(column[start:stop] for column in self))

    def pick(self, numbers: np.ndarray) -> Columns:
        """The records `numbers`."""
        return Columns(*(column[numbers] for column in self))


class QueueCheck:
    """The log side of the pass. Comparisons run in threads, `take` in log order; then `spans` is complete.

    `failed` are queues of which some units could not be read, so that a part was not compared.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.spans = Spans()
        self.failed: dict[Key, OSError] = {}
        self.batch_topics = set(topics_of_batches(context.layout))
        self.delays_ms = configured(context.layout.broker_conf)
        # Thousands of short reads: threads that pass the GIL to each other at every one take twice as long.
        # Reads over a network are slow enough to wait for them side by side.
        self.turn: AbstractContextManager[Any] = Lock() if context.store.is_local else nullcontext()

    def reader(self) -> UnitReader:
        """A reader for one thread."""
        return UnitReader(self.context.open, self.context.files_per_reader)

    def comparison(self, spans: Spans) -> Comparison:
        """Compares the records of one part of the log; what is found is added to `spans`. For one thread."""
        return Comparison(self, spans)

    def seen(self, keys: Sequence[Key], starts: np.ndarray, rows: Columns, of_batches: np.ndarray) -> None:
        """Called with records in the order of their queues, in each in physical order; from any thread.

        Args:
            keys: the queues.
            starts: the number of the first record of each.
            rows: the records.
            of_batches: which of the queues are batch queues, bool.
        """

    def is_batch(self, key: Key, sys_flag: int) -> bool:
        """Whether a queue is a batch queue: by its topic, or by the flags of a record. None is in RocksDB.

        Source: RocksDBConsumeQueueStore#findOrCreateConsumeQueue, DispatchEntry#from.
        """
        if not self.context.layout.has_queues_in_files:
            return False
        return key[0] in self.batch_topics or bool(sys_flag & INNER_BATCH)

    def units_of(self, queue: QueueFiles, offsets: np.ndarray, reader: UnitReader) -> np.ndarray:
        """The units with these queue offsets, shape (n,); those of negative ones are zero. Raises OSError."""
        if offsets[0] >= 0 and (offsets[1:] > offsets[:-1]).all():
            if offsets[-1] - offsets[0] == len(offsets) - 1:
                return reader.read(queue, int(offsets[0]), len(offsets))
            return reader.gather(queue, offsets)
        units = np.zeros(len(offsets), UNIT_DTYPE)
        usable = np.flatnonzero(offsets >= 0)
        usable = usable[np.argsort(offsets[usable], kind="stable")]
        units[usable] = reader.gather(queue, offsets[usable])
        return units

    def resolve(
        self, key: Key, rows: Columns, code: np.ndarray, reader: UnitReader
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the tags codes for which extension units stand, and whether each of these is wrong.

        An extension unit is wrong if it is missing, or if its store time differs from the record's.
        Both arrays have the shape (rows,). Raises OSError.

        Args:
            key: the queue.
            rows: records whose units have an address instead of a tags code.
            code: the addresses.
            reader: for the extension files.
        """
        found = self.context.extension(key, reader).units(code)
        right = found.there & (found.store_timestamp == rows.store_timestamp)
        self.extended(key, rows.pick(right), code[right], found.size[right])
        return np.where(found.there, found.tags_code, code), ~right

    def wrong_store_times(self, key: Key, rows: Columns) -> np.ndarray:
        """Whether the store time in the unit of each record differs from the record's, shape (rows,).

        Only units in RocksDB have one. Raises OSError.

        Args:
            key: the queue.
            rows: records whose units name them, so that no two have the same queue offset.
        """
        wrong = np.zeros(len(rows.queue_offset), bool)
        layout = self.context.layout
        if layout.rocksdb is not None and layout.has_queues_in_rocksdb:
            order = np.argsort(rows.queue_offset, kind="stable")
            times = store_times(layout.rocksdb, key, rows.queue_offset[order])
            wrong[order] = times != rows.store_timestamp[order]
        return wrong

    def extended(self, key: Key, rows: Columns, address: np.ndarray, size: np.ndarray) -> None:
        """Called with records of a queue whose extension units are right, from any thread.

        Args:
            key: the queue.
            rows: the records.
            address: of their extension units.
            size: of these, bytes.
        """

    def delayed(self, key: Key, rows: Columns, delays_ms: np.ndarray, kinds: np.ndarray) -> None:
        """Called with records of a queue of SCHEDULE_TOPIC_XXXX, from any thread.

        Args:
            key: the queue.
            rows: the records.
            delays_ms: from each record's store time to the delivery time in its unit; undefined without one.
            kinds: a `UnitFault` for each, negative where the unit is right.
        """

    def compare_batch(self, key: Key, rows: Columns, offsets: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Per record of a batch queue a `UnitFault`, or `_RIGHT` where the unit is right. Raises OSError.

        The units of a batch queue are found by their physical offsets.
        """
        kinds = np.full(len(offsets), int(UnitFault.MISSING), np.int8)
        units = self.batch_units(key)
        if not len(units):
            return kinds
        physical = units["physical_offset"].astype(np.int64)
        slot = np.minimum(np.searchsorted(physical, rows.physical_offset), len(units) - 1)
        there = physical[slot] == rows.physical_offset
        unit = units[slot]
        right = (
            (unit["size"] == rows.size)
            & (unit["base_offset"] == offsets)
            & (unit["batch_size"] == counts)
            & (unit["store_timestamp"] == rows.store_timestamp)
        )
        kinds[there] = UnitFault.WRONG
        kinds[there & right] = np.where(unit["tags_code"] == rows.tags, _RIGHT, int(UnitFault.TAGS))[
            there & right
        ]
        return kinds

    def batch_units(self, key: Key) -> np.ndarray:
        """All units of a batch queue that are present, by physical offset. Raises OSError."""
        queue = self.context.layout.batch_queues.get(key)
        parts = [np.zeros(0, BATCH_UNIT_DTYPE)]
        if queue is not None:
            with self.reader() as reader:
                for file in queue.files:
                    blocks = reader.blocks(file, queue.unit_size)
                    parts += (units[present(units)] for _, units in blocks)
        units = np.concatenate(parts)
        return units[np.argsort(units["physical_offset"].astype(np.int64), kind="stable")]

    def light_records(
        self, frames: Frames, dispatch: Dispatch, chosen: np.ndarray
    ) -> dict[Key, list[tuple[int, int]]]:
        """Rows and queue offsets in light queues: one more unit per queue named in INNER_MULTI_DISPATCH.

        Only queues that exist are checked: the broker writes them with multi-dispatch on.
        Source: spec 02 5.3, MultiDispatch.
        """
        rows = frames.rows
        found: dict[Key, list[tuple[int, int]]] = {}
        for row in chosen[(dispatch.flags[chosen] & MULTI_DISPATCH) != 0].tolist():
            topic = frames.topics[int(rows["topic_id"][row])]
            named = properties.decode(_properties(frames, row))
            for name, queue_id, offset in light_units(named, int(rows["queue_id"][row])):
                if 0 <= offset < _NUMBER_LIMIT and self.is_light(topic, (name, queue_id)):
                    found.setdefault((name, queue_id), []).append((row, offset))
        return found

    def is_light(self, topic: bytes, key: Key) -> bool:
        """Whether the light queue `key` should hold units of records of `topic` that name it."""
        return key in self.context.layout.consume_queues

    def take(self, scan: ScannedFile) -> None:
        """Add what was found in one file; called in the order of the log."""
        if scan.queues is not None:
            self.spans.extend(scan.queues)
            scan.queues = None


class Comparison:
    """Compares the records of a part of the log with their units, one window after the other.

    Records are collected until there are many of each queue, for each queue costs a read and some calls: then
    the records of all queues are compared together.
    """

    def __init__(self, check: QueueCheck, spans: Spans) -> None:
        self._check = check
        self._spans = spans
        self._reader = check.reader()
        self._layout = check.context.layout
        self._wanted = _RECORDS_MIN
        self._expect(len(self._layout.consume_queues) + len(self._layout.batch_queues))
        self._topics = _Topics()
        self._parts: list[Columns] = []
        self._count = 0

    def close(self) -> None:
        """Close every open file."""
        self._reader.close()

    def add(self, frames: Frames, dispatch: Dispatch) -> None:
        """Compare one window of records, at once or later; windows come in the order of the log."""
        rows = frames.rows
        kind = rows["sys_flag"] & TRANSACTION_MASK
        chosen = np.flatnonzero((kind == 0) | (kind == TRANSACTION_COMMIT))
        if not len(chosen):
            return
        topics = np.array([self._topics[name] for name in frames.topics])
        queues = (topics[rows["topic_id"]] << 32) | (rows["queue_id"].astype(np.int64) & 0xFFFFFFFF)
        every = Columns.of(rows, dispatch, queues)
        self._add(every if len(chosen) == len(rows) else every.pick(chosen))
        for (topic, queue_id), pairs in self._check.light_records(frames, dispatch, chosen).items():
            columns = every.pick(np.array([row for row, _ in pairs]))
            number = np.full(len(pairs), (self._topics[topic] << 32) | (queue_id & 0xFFFFFFFF))
            offsets = np.array([offset for _, offset in pairs], np.int64)
            self._add(columns._replace(queue=number, queue_offset=offsets))
        if self._count >= self._wanted:
            self.finish()

    def _expect(self, queues: int) -> None:
        self._wanted = max(self._wanted, min(_OF_EACH_QUEUE * queues, _RECORDS_MAX))

    def _add(self, columns: Columns) -> None:
        self._parts.append(columns)
        self._count += len(columns.queue)

    def finish(self) -> None:
        """Compare what was collected."""
        if not self._count:
            return
        rows = Columns(*map(np.concatenate, zip(*self._parts, strict=True)))
        self._parts, self._count = [], 0
        if (rows.queue[1:] < rows.queue[:-1]).any():
            rows = rows.pick(order_by_queue(rows.queue))
        cuts = np.flatnonzero(rows.queue[1:] != rows.queue[:-1]) + 1
        starts, stops = np.append(0, cuts), np.append(cuts, len(rows.queue))
        keys = [
            (self._topics.names[number >> 32], _signed(number & 0xFFFFFFFF))
            for number in rows.queue[starts].tolist()
        ]
        self._expect(len(keys))  # those of the layout may be gone
        groups = _Groups(keys, starts, stops, rows, in_rocksdb=not self._layout.has_queues_in_files)
        self._compare(groups)
        for key, span in groups.spans():
            self._spans.add(key, span)

    def _compare(self, groups: _Groups) -> None:
        """Fill in `kinds` of all records."""
        check, rows = self._check, groups.rows
        units = np.zeros(len(rows.queue), UNIT_DTYPE)
        plain: list[tuple[int, int, Key]] = []
        decided: list[tuple[int, int, np.ndarray | int]] = []
        flags = rows.sys_flag[groups.starts].tolist()
        of_batches = [check.is_batch(key, flag) for key, flag in zip(groups.keys, flags, strict=True)]
        check.seen(groups.keys, groups.starts, rows, np.array(of_batches))
        with check.turn:
            for number, (key, start, stop) in enumerate(groups):
                try:
                    if of_batches[number]:
                        groups.count_batch(number, start, stop)
                        columns = rows.cut(start, stop), groups.offsets[start:stop], groups.steps[start:stop]
                        decided.append((start, stop, check.compare_batch(key, *columns)))
                    elif (queue := self._layout.consume_queues.get(key)) is None:
                        decided.append((start, stop, int(UnitFault.MISSING)))
                    else:
                        units[start:stop] = check.units_of(queue, rows.queue_offset[start:stop], self._reader)
                        plain.append((start, stop, key))
                except OSError as error:
                    decided.append((start, stop, self._failed(key, error)))
        codes = rows.tags
        if plain:
            groups.kinds, codes = self._judged(units, rows, plain, decided)
        for start, stop, kinds in decided:
            groups.kinds[start:stop] = kinds
        for key, start, stop in groups:
            if key[0] == SCHEDULE_TOPIC:
                waits = codes[start:stop] - rows.store_timestamp[start:stop]
                check.delayed(key, rows.cut(start, stop), waits, groups.kinds[start:stop])
        groups.kinds[rows.foreign & (groups.kinds >= 0)] = _REPORTED  # by CL06

    def _failed(self, key: Key, error: OSError) -> int:
        if not isinstance(error, FileNotFoundError):
            self._check.failed.setdefault(key, error)
        return _REPORTED  # by CQ15, when the units are read as such

    def _judged(
        self, units: np.ndarray, rows: Columns, plain: Sequence[tuple[int, int, Key]],
        decided: list[tuple[int, int, np.ndarray | int]],
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Per record a `UnitFault`, or `_RIGHT` where the unit is right, and the tags code of its unit.

        Both are undefined for records of other queues than plain ones.

        Args:
            units: of all records.
            rows: the records.
            plain: where the records of plain queues are.
            decided: gets those whose extension files, or store times, cannot be read.
        """
        physical, size = units["physical_offset"].astype(np.int64), units["size"].astype(np.int32)
        code = units["tags_code"].astype(np.int64)
        found = np.full(len(units), _RIGHT, np.int8)
        bad_extension = np.zeros(len(units), bool)
        named = np.flatnonzero((code <= MAX_EXT_ADDRESS) & (physical == rows.physical_offset))
        for start, stop, key in plain if len(named) else ():
            here = named[slice(*np.searchsorted(named, (start, stop)))]
            if not len(here):
                continue
            try:
                code[here], bad_extension[here] = self._check.resolve(
                    key, rows.pick(here), code[here], self._reader
                )
            except OSError as error:
                decided.append((start, stop, self._failed(key, error)))
        found[code != rows.tags] = UnitFault.TAGS
        for start, stop, key in plain:
            if key[0] == SCHEDULE_TOPIC:
                part = slice(start, stop)
                waits, delayed = code[part] - rows.store_timestamp[part], rows.level[part] > 0
                found[part][delayed] = _RIGHT
                found[part][delayed & ~is_delay(waits)] = UnitFault.DELIVERY
                delayed &= (physical[part] == rows.physical_offset[part]) & is_delay(waits)
                of_queue = rows.store_timestamp[part], rows.level[part], waits, delayed
                found[part][_contradicting(*of_queue, self._check.delays_ms)] = UnitFault.DELIVERY
        found[bad_extension] = UnitFault.EXTENSION
        found[(physical != rows.physical_offset) | (size != rows.size)] = UnitFault.WRONG
        found[(physical < 0) | (size <= 0)] = UnitFault.MISSING
        found[rows.queue_offset < 0] = UnitFault.WRONG
        if self._layout.has_queues_in_rocksdb:
            for start, stop, key in plain:
                right = np.flatnonzero(found[start:stop] == _RIGHT) + start
                try:
                    wrong = self._check.wrong_store_times(key, rows.pick(right))
                except OSError as error:
                    decided.append((start, stop, self._failed(key, error)))
                else:
                    found[right[wrong]] = UnitFault.STORE_TIME
        return found, code


def _contradicting(
    stored: np.ndarray, level: np.ndarray, delays_ms: np.ndarray, delayed: np.ndarray,
    configured_ms: Sequence[int] | None,
) -> np.ndarray:  # fmt: skip
    """Numbers of the records of one queue whose delay is surely wrong, although a broker can have it.

    A broker changes its delays when it starts, and not for single messages. So of three runs of equal delays
    the one in the middle is wrong if the others are longer and agree, and either the broker had no time to
    start twice between them, or broker.conf sets the delay of the others.

    Args:
        stored: store timestamps, ms.
        level: the level of each.
        delays_ms: from the store time to the delivery time.
        delayed: which records have a level.
        configured_ms: messageDelayLevel of broker.conf; None without.
    """
    rows = np.flatnonzero(delayed)
    wait, level = delays_ms[rows], level[rows]
    starts = np.append(0, np.flatnonzero((wait[1:] != wait[:-1]) | (level[1:] != level[:-1])) + 1)
    if len(starts) < 3:
        return rows[:0]
    stops = np.append(starts[1:], len(rows))
    count, around = stops - starts, wait[starts]
    least = np.minimum(count[:-2], count[2:])
    agree = (around[:-2] == around[2:]) & (level[starts[:-2]] == level[starts[1:-1]])
    agree &= (level[starts[2:]] == level[starts[1:-1]]) & (least > count[1:-1])
    table = np.array(configured_ms or (-1,), np.int64)
    is_configured = table[np.minimum(level[starts[:-2]], len(table)) - 1] == around[:-2]
    soon = stored[rows[starts[2:]]] - stored[rows[stops[:-2] - 1]] < _RESTART_MS
    wrong = np.flatnonzero(agree & (soon | is_configured)) + 1
    found: np.ndarray = rows[
        np.concatenate([np.arange(starts[run], stops[run]) for run in wrong] or [rows[:0]])
    ]
    return found


class _Topics(dict[bytes | str, int]):
    """Numbers of topics, in the order in which they are asked for. Those of light queues are by text."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __missing__(self, name: bytes | str) -> int:
        self[name] = number = len(self.names)
        self.names.append(name if isinstance(name, str) else java_utf8_decode(name))
        return number


class _Groups:
    """Records in the order of their queues, in each in physical order, and what is found of each of them.

    Attributes:
        kinds: per record a `UnitFault`, `_RIGHT` or `_REPORTED`.
        offsets: the queue offset of each record, of a batch that of its first message.
        steps: how many queue offsets it has.
        in_rocksdb: the queues are in RocksDB only.
    """

    def __init__(
        self, keys: Sequence[Key], starts: np.ndarray, stops: np.ndarray, rows: Columns, *, in_rocksdb: bool
    ) -> None:
        self.keys, self.starts, self.stops, self.rows = keys, starts, stops, rows
        self.in_rocksdb = in_rocksdb
        self.offsets, self.steps = rows.queue_offset, np.ones(len(rows.queue), np.int64)
        self.kinds = np.full(len(rows.queue), _RIGHT, np.int8)
        self._of_batches: set[int] = set()

    def __iter__(self) -> Iterator[tuple[Key, int, int]]:
        return zip(self.keys, self.starts.tolist(), self.stops.tolist(), strict=True)

    def count_batch(self, number: int, start: int, stop: int) -> None:
        """A queue is a batch queue: its records are counted by their messages."""
        if not self._of_batches:
            self.offsets = self.offsets.copy()
        self._of_batches.add(number)
        inner = self.rows.inner_count[start:stop] > 0
        self.offsets[start:stop][inner] = self.rows.inner_base[start:stop][inner]
        self.steps[start:stop][inner] = self.rows.inner_count[start:stop][inner]

    def spans(self) -> Iterator[tuple[Key, Span]]:
        """Each queue with what was found of it."""
        rows, starts, last = self.rows, self.starts, self.stops - 1
        follows = self.offsets[1:] == self.offsets[:-1] + self.steps[:-1]
        breaks = ~follows
        leaves_out = self._leave_out()
        if leaves_out.any():
            forward = self.offsets[1:] > self.offsets[:-1]
            breaks &= ~(forward & np.repeat(leaves_out, self.stops - starts)[1:])
        same_queue = rows.queue[1:] == rows.queue[:-1]
        ends = rows.physical_offset + rows.size
        spans = [
            Span(count, first, physical, clock_back, after + step, end, number in self._of_batches,
                 leaves_out=bool(leaves_out[number]))
            for number, (count, first, physical, clock_back, after, step, end) in enumerate(
                zip(
                    (self.stops - starts).tolist(), self.offsets[starts].tolist(),
                    rows.physical_offset[starts].tolist(), rows.clock_back[starts].tolist(),
                    self.offsets[last].tolist(), self.steps[last].tolist(), ends[last].tolist(), strict=True,
                )
            )
        ]  # fmt: skip
        self._add_breaks(spans, np.flatnonzero(same_queue & breaks) + 1, ends)
        changes = (self.kinds[1:] != self.kinds[:-1]) | ~follows | ~same_queue
        self._add_runs(spans, np.append(0, np.flatnonzero(changes) + 1), ends)
        return zip(self.keys, spans, strict=True)

    def _leave_out(self) -> np.ndarray:
        """Which queues have batch records that have one unit each, shape (queues,). See `Span`."""
        if not self.in_rocksdb:
            return np.zeros(len(self.keys), bool)
        inner = (self.rows.sys_flag & INNER_BATCH) != 0
        found: np.ndarray = np.logical_or.reduceat(inner, self.starts)
        return found

    def _add_breaks(self, spans: Sequence[Span], places: np.ndarray, ends: np.ndarray) -> None:
        rows, before = self.rows, places - 1
        found = zip(
            (np.searchsorted(self.starts, places, side="right") - 1).tolist(),
            rows.physical_offset[places].tolist(), self.offsets[places].tolist(),
            self.offsets[before].tolist(), self.steps[before].tolist(), ends[before].tolist(),
            rows.clock_back[places].tolist(), strict=True,
        )  # fmt: skip
        for number, start, offset, last, step, after, clock_back in found:
            spans[number].breaks.append(Break(start, offset, last + step, after, clock_back))

    def _add_runs(self, spans: Sequence[Span], places: np.ndarray, ends: np.ndarray) -> None:
        """Add the runs of equal kind with consecutive queue offsets, which begin at `places`."""
        last = np.append(places[1:], len(self.kinds)) - 1
        runs = zip(
            (np.searchsorted(self.starts, places, side="right") - 1).tolist(), self.kinds[places].tolist(),
            self.offsets[places].tolist(), self.offsets[last].tolist(), self.steps[last].tolist(),
            self.rows.physical_offset[places].tolist(), ends[last].tolist(), strict=True,
        )  # fmt: skip
        for number, kind, low, final, step, start, end in runs:
            high = final + step
            if kind == _RIGHT:
                spans[number].matched.append((low, high))
            elif kind >= 0:
                spans[number].mismatches.append(Mismatch(UnitFault(kind), low, high - 1, start, end))


def _properties(frames: Frames, row: int) -> bytes:
    start = int(frames.properties_starts()[row])
    return bytes(frames.data[start : start + int(frames.rows["properties_length"][row])])


def _signed(number: int) -> int:
    """The low 32 bits of a queue id as the queue id."""
    return number - (1 << 32) if number >> 31 else number
