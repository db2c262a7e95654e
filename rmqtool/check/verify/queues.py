"""Pass `queues`, log side: every record of the log must have its unit, and that unit must be right.

    for a record of transaction type 0 or commit, in topic t, queue i, queue offset q:
        unit q of t/i  ==  (physical offset, size, tags code)

Each window of the log is grouped by queue and compared with the units read in runs. What stays is
small: per queue the ranges of queue offsets that matched, and the ranges that did not, by kind.
The other direction, units that no record explains, is `queue_units.py`.

Source: CommitLogDispatcherBuildConsumeQueue#dispatch, ConsumeQueue#putMessagePositionInfo; spec 01
section 5, spec 02 section 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

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
from rmqtool.queue.light_queues import light_units
from rmqtool.queue.units import BATCH_UNIT_DTYPE, UnitReader, present
from rmqtool.storage.layout import QueueFiles

if TYPE_CHECKING:
    from rmqtool.check.verify.log_findings import ScannedFile
    from rmqtool.log.frames import Frames

_YEAR_MS = 366 * 86_400_000
_NUMBER_LIMIT = 10**18  # queue offsets that sums of them stay within 64 bits


_RIGHT = -1  # instead of a UnitFault: the unit is right
_REPORTED = -2  # another finding says why the unit differs or cannot be had


class Columns(NamedTuple):
    """The fields of a window's records that are compared, in the order of queues: arrays of shape (n,)."""

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
    def of(cls, rows: np.ndarray, dispatch: Dispatch, order: np.ndarray) -> Columns:
        """The columns of the records `order`, numbers of rows."""
        clock_back = np.zeros(len(rows), bool)
        clock_back[1:] = np.diff(rows["store_timestamp"]) < 0
        return cls(
            queue_offset=rows["queue_offset"][order],
            physical_offset=rows["physical_offset"][order],
            size=rows["size"][order],
            store_timestamp=rows["store_timestamp"][order],
            sys_flag=rows["sys_flag"][order],
            foreign=(rows["status"][order] & OFFSET_MISMATCH) != 0,
            clock_back=clock_back[order],
            tags=dispatch.tags_code[order],
            level=dispatch.delay_level[order],
            inner_base=dispatch.inner_base[order],
            inner_count=dispatch.inner_count[order],
        )

    def cut(self, start: int, stop: int) -> Columns:
        """Records [start, stop)."""
        return Columns(*(column[start:stop] for column in self))

    def pick(self, numbers: np.ndarray) -> Columns:
        """The records `numbers`."""
        return Columns(*(column[numbers] for column in self))


class QueueCheck:
    """The log side of the pass. `part` runs in threads, `take` in log order; then `spans` is complete.

    `failed` are queues of which some units could not be read, so that a part was not compared.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.spans = Spans()
        self.failed: dict[Key, OSError] = {}
        self._batch_topics = {topic for topic, _ in context.layout.batch_queues}

    def reader(self) -> UnitReader:
        """A reader for one thread."""
        return UnitReader(self.context.open, self.context.files_per_reader)

    def part(self, frames: Frames, dispatch: Dispatch, reader: UnitReader, spans: Spans) -> None:
        """Compare one window of records with their units; adds what was found to `spans`."""
        rows = frames.rows
        kind = rows["sys_flag"] & TRANSACTION_MASK
        chosen = np.flatnonzero((kind == 0) | (kind == TRANSACTION_COMMIT))
        if not len(chosen):
            return
        topics = rows["topic_id"][chosen].astype(np.int64)
        codes = (topics << 32) | (rows["queue_id"][chosen].astype(np.int64) & 0xFFFFFFFF)
        by_queue = np.argsort(codes, kind="stable")
        order, codes = chosen[by_queue], codes[by_queue]
        columns = Columns.of(rows, dispatch, order)
        cuts = (np.flatnonzero(np.diff(codes)) + 1).tolist()
        for start, stop in zip([0, *cuts], [*cuts, len(order)], strict=True):
            topic = java_utf8_decode(frames.topics[int(rows["topic_id"][order[start]])])
            key = (topic, int(rows["queue_id"][order[start]]))
            spans.add(key, self._span(key, columns.cut(start, stop), reader))
        for key, span in self._light(frames, dispatch, chosen, reader):
            spans.add(key, span)

    def _span(self, key: Key, rows: Columns, reader: UnitReader) -> Span:
        """One queue's records of a window, in physical order."""
        is_batch = key[0] in self._batch_topics or bool(rows.sys_flag[0] & INNER_BATCH)
        offsets, steps = rows.queue_offset, np.ones(len(rows.queue_offset), np.int64)
        if is_batch:
            inner = rows.inner_count > 0
            offsets = np.where(inner, rows.inner_base, offsets)
            steps = np.where(inner, rows.inner_count, 1).astype(np.int64)
        physical, ends = rows.physical_offset, rows.physical_offset + rows.size
        span = Span(
            len(offsets), int(offsets[0]), int(physical[0]), bool(rows.clock_back[0]),
            int(offsets[-1]) + int(steps[-1]), int(ends[-1]), is_batch,
        )  # fmt: skip
        for row in (np.flatnonzero(offsets[1:] != offsets[:-1] + steps[:-1]) + 1).tolist():
            span.breaks.append(
                Break(int(physical[row]), int(offsets[row]), int(offsets[row - 1]) + int(steps[row - 1]),
                      int(ends[row - 1]), bool(rows.clock_back[row]))
            )  # fmt: skip
        try:
            if is_batch:
                kinds = self._compare_batch(key, rows, offsets, steps)
            else:
                kinds = self._compare(key, rows, reader)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self.failed.setdefault(key, error)
            kinds = np.full(len(offsets), _REPORTED, np.int8)  # by CQ15, when the units are read as such
        kinds[rows.foreign & (kinds >= 0)] = _REPORTED  # by CL06
        _add_runs(span, kinds, offsets, steps, physical, ends)
        return span

    def _compare(self, key: Key, rows: Columns, reader: UnitReader) -> np.ndarray:
        """Per record a `UnitFault`, or `_RIGHT` where the unit is right."""
        queue = self.context.layout.consume_queues.get(key)
        if queue is None:
            return np.full(len(rows.queue_offset), int(UnitFault.MISSING), np.int8)
        offsets = rows.queue_offset
        if bool((offsets[0] >= 0) and (offsets[1:] > offsets[:-1]).all()):
            return self._compare_sorted(key, queue, rows, reader)
        kinds = np.full(len(offsets), int(UnitFault.WRONG), np.int8)  # what stays so is below 0
        usable = np.flatnonzero(offsets >= 0)
        usable = usable[np.argsort(offsets[usable], kind="stable")]
        if len(usable):
            kinds[usable] = self._compare_sorted(key, queue, rows.pick(usable), reader)
        return kinds

    def _compare_sorted(self, key: Key, queue: QueueFiles, rows: Columns, reader: UnitReader) -> np.ndarray:
        units = reader.gather(queue, rows.queue_offset)
        unit_offset, unit_size = units["physical_offset"].astype(np.int64), units["size"].astype(np.int32)
        code, bad_extension = self._resolved(key, units, rows, reader)
        same_tags = code == rows.tags
        found = np.full(len(units), _RIGHT, np.int8)
        if key[0] == SCHEDULE_TOPIC:
            wait = code - rows.store_timestamp
            delayed = rows.level > 0
            found[delayed & ((wait <= 0) | (wait >= _YEAR_MS))] = UnitFault.DELIVERY
            found[~delayed & ~same_tags] = UnitFault.TAGS
        else:
            found[~same_tags] = UnitFault.TAGS
        found[bad_extension] = UnitFault.EXTENSION
        found[(unit_offset != rows.physical_offset) | (unit_size != rows.size)] = UnitFault.WRONG
        found[(unit_offset < 0) | (unit_size <= 0)] = UnitFault.MISSING
        return found

    def _resolved(
        self, key: Key, units: np.ndarray, rows: Columns, reader: UnitReader
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the tags codes that the units stand for, and whether each extension unit is wrong.

        An extension unit is wrong if it is missing, or if its store time differs from the record's.
        Both arrays have the shape (units,).
        """
        code = units["tags_code"].astype(np.int64)
        bad = np.zeros(len(code), bool)
        named = np.flatnonzero((code <= MAX_EXT_ADDRESS) & (units["physical_offset"] == rows.physical_offset))
        if len(named):
            addresses = code[named]
            found = self.context.extension(key, reader).units(addresses)
            right = found.there & (found.store_timestamp == rows.store_timestamp[named])
            bad[named] = ~right
            code[named] = np.where(found.there, found.tags_code, code[named])
            self.extended(key, rows.pick(named[right]), addresses[right], found.size[right])
        return code, bad

    def extended(self, key: Key, rows: Columns, address: np.ndarray, size: np.ndarray) -> None:
        """Called with records of a queue whose extension units are right, from any thread.

        Args:
            key: the queue.
            rows: the records.
            address: of their extension units.
            size: of these, bytes.
        """

    def _compare_batch(self, key: Key, rows: Columns, offsets: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The same for a batch queue, whose units are found by their physical offset."""
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

    def _light(
        self, frames: Frames, dispatch: Dispatch, chosen: np.ndarray, reader: UnitReader
    ) -> Iterator[tuple[Key, Span]]:
        """Units in light queues: one more per queue named in INNER_MULTI_DISPATCH.

        Only queues that exist are checked: the broker writes them with multi-dispatch on.
        Source: spec 02 5.3, MultiDispatch.
        """
        rows = frames.rows
        spans: dict[Key, list[tuple[int, int]]] = {}
        for row in chosen[(dispatch.flags[chosen] & MULTI_DISPATCH) != 0].tolist():
            topic = frames.topics[int(rows["topic_id"][row])]
            found = properties.decode(_properties(frames, row))
            for name, queue_id, offset in light_units(found, int(rows["queue_id"][row])):
                if 0 <= offset < _NUMBER_LIMIT and self.is_light(topic, (name, queue_id)):
                    spans.setdefault((name, queue_id), []).append((row, offset))
        for key, pairs in spans.items():
            columns = Columns.of(rows, dispatch, np.array([row for row, _ in pairs]))
            offsets = np.array([offset for _, offset in pairs], np.int64)
            yield key, self._span(key, columns._replace(queue_offset=offsets), reader)

    def is_light(self, topic: bytes, key: Key) -> bool:
        """Whether the light queue `key` should hold units of records of `topic` that name it."""
        return key in self.context.layout.consume_queues

    def take(self, scan: ScannedFile) -> None:
        """Add what was found in one file; called in the order of the log."""
        if scan.queues is not None:
            self.spans.extend(scan.queues)
            scan.queues = None


def _properties(frames: Frames, row: int) -> bytes:
    start = int(frames.properties_starts()[row])
    return bytes(frames.data[start : start + int(frames.rows["properties_length"][row])])


def _add_runs(
    span: Span, kinds: np.ndarray, offsets: np.ndarray, steps: np.ndarray, physical: np.ndarray,
    ends: np.ndarray,
) -> None:  # fmt: skip
    """Cut a window of one queue into runs of equal kind with consecutive queue offsets."""
    cuts = np.flatnonzero((kinds[1:] != kinds[:-1]) | (offsets[1:] != offsets[:-1] + steps[:-1])) + 1
    for first, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(kinds)], strict=True):
        low, high = int(offsets[first]), int(offsets[stop - 1]) + int(steps[stop - 1])
        if kinds[first] == _RIGHT:
            span.matched.append((low, high))
        elif kinds[first] >= 0:
            span.mismatches.append(
                Mismatch(
                    UnitFault(int(kinds[first])), low, high - 1, int(physical[first]), int(ends[stop - 1])
                )
            )
