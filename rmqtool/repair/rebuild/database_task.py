"""The task of a rebuild for consume queues in RocksDB, the only ones or second ones: one new database.

A database is either right or built whole: its tables hold units of many queues. It gets a unit for every
dispatched record of the log, the end `max` of each queue, and the end of dispatch. A broker needs no `min`.
So a start after it dispatches nothing, and loses none of the units that its own rebuild loses: those of the
first record, and of all but the newest ten files (spec 06 2.6).

    a queue without records in the log    keeps its ends, and its newest unit, from the former database; if
                                          that lacks it, both ends are where it ends in files or, without
                                          files, at the largest committed offset: no number is used again
    numbers are left out                  have no unit: consumers do not pass such a gap
    numbers repeat                        as in files: the first record keeps the number
    batch queues                          one unit for each batch record, at its own number: 5.3 writes them
                                          so in addition to files; 5.4 does not start where it would have to

Source: RocksDBConsumeQueueStore, RocksDBConsumeQueue#initializeWithOffset; spec 06 2.2 to 2.8.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.check.verify.spans import Key
from rmqtool.errors import FormatError, InputError
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.rocksdb_queue import (
    CHECKPOINT_TOPIC,
    CHECKPOINT_VALUE,
    END_VALUE,
    ENDS,
    UNIT_VALUE,
    UNITS,
    EndKey,
    decode_end_key,
    end_key,
    queue_prefix,
    unit_key,
)
from rmqtool.lazy_dataclass import dataclass
from rmqtool.queue.build import ENTRY, queue_codes, queue_id_of
from rmqtool.repair.plan import Action
from rmqtool.repair.rebuild.database_files import Files, database_actions, present_files
from rmqtool.repair.rebuild.queue_task import Shape, Unmended, expired_end, refusal, shape_of
from rmqtool.storage.rocksdb.queues import OFFSET_LIMIT, RocksdbQueues
from rmqtool.storage.rocksdb.writer import DatabaseWriter
from rmqtool.storage.unsupported import queues_part

if TYPE_CHECKING:
    from rmqtool.repair.rebuild.survey import Survey
    from rmqtool.storage.buffers import Array
    from rmqtool.write.queue_writer import Entry

FOLDER = "consumequeue"
_ROW_BYTES = 20 + UNIT_VALUE.size  # of a unit, besides the name of its topic
_LIMIT = 1 << 14  # entries that wait

Row = tuple[str, bytes, bytes]


@dataclass(frozen=True)
class DatabaseTask:
    """A database that is built.

    Attributes:
        problems: codes of what is wrong with the present one.
        shapes: the content of its queues.
        kept: rows (column family, key, value) of the present one for queues without records in the log.
        end: the end of dispatch, a physical offset.
        old: names and sizes of the present one's files.
        is_batch: queues of batch records.
        committed: queues that begin at the largest committed offset.
    """

    problems: tuple[str, ...]
    shapes: dict[Key, Shape]
    kept: tuple[Row, ...]
    end: int
    old: Files
    is_batch: frozenset[Key] = frozenset()
    committed: tuple[Key, ...] = ()

    @property
    def units(self) -> int:
        """How many records get a unit."""
        return sum(shape.count for shape in self.shapes.values())

    @property
    def kept_ends(self) -> dict[Key, int]:
        """Where queues without records in the log end."""
        rows = ((decode_end_key(key), value) for family, key, value in self.kept if family == ENDS)
        return {
            (topic, queue_id): END_VALUE.unpack(value)[1] + 1
            for (topic, is_max, queue_id), value in rows
            if is_max
        }

    def actions(self) -> Iterator[Action]:
        """The changes, in the order of their paths."""
        size = sum(
            (_ROW_BYTES + len(topic.encode("utf-8", "surrogatepass"))) * shape.count
            for (topic, _), shape in self.shapes.items()
        )
        detail = {"queues": len(self.shapes), "units": self.units, "data_bytes": 2 * size + (1 << 16)}
        yield from database_actions(FOLDER, "queues", self.problems, self.old, detail)


def database_task(
    survey: Survey, wrong: Collection[str], deleted: Collection[Key], committed: Mapping[Key, int], *,
    is_final: bool,
) -> DatabaseTask | Unmended | None:  # fmt: skip
    """The task for the database of a store; None if nothing is wrong with it.

    Args:
        survey: the log and what the queues hold now.
        wrong: codes of what is wrong with the queues in it.
        deleted: queues that are not created.
        committed: the largest committed offset of each queue; empty if they are not needed.
        is_final: damage in the log stays.

    Raises:
        RefusedError: it cannot be built where the present one is.
    """
    layout = survey.view.layout
    part = queues_part(layout.not_written)
    assert part is not None
    codes = dict.fromkeys(
        item.problem.code
        for item in survey.findings
        if item.problem.code.startswith("RD") and item.path.partition("/")[0] == FOLDER
    )
    codes |= dict.fromkeys(wrong)
    if not codes:
        return None
    problems = tuple(sorted(codes, reverse=True))  # of the database before those of single queues
    shapes = {
        key: shape_of(survey, span)
        for key, span in sorted(survey.queues.spans.queues.items())
        if key not in deleted
    }
    is_batch = frozenset(key for key in shapes if survey.queues.spans.queues[key].is_batch)
    queues = layout.consume_queues if layout.rocksdb is not None else {}
    for key, shape in shapes.items():
        reason = refusal(survey, key, shape, queues.get(key), is_final=is_final, is_alone=False)
        if reason is not None:
            return Unmended(FOLDER, problems, f"{key[0]}/{key[1]}: {reason}", *key)
    old = present_files(part.path, "queues")
    kept = () if layout.rocksdb is None else tuple(_kept(survey, layout.rocksdb, shapes, deleted))
    known = {*shapes, *deleted}
    if layout.rocksdb is not None:
        known.update((topic, queue_id) for topic, is_max, queue_id in layout.rocksdb.ends if is_max)
    begun = dict(_begun(survey, committed, known))
    kept += tuple(row for key, end in sorted(begun.items()) for row in _initialized(key, end))
    return DatabaseTask(
        problems, shapes, kept, survey.end, old, is_batch, tuple(sorted(begun.keys() & committed.keys()))
    )


def _begun(survey: Survey, committed: Mapping[Key, int], known: Collection[Key]) -> Iterator[tuple[Key, int]]:
    """Queues without records in the log that the former database lacks, with the end that they had."""
    layout = survey.view.layout
    ends = {key: end for key, end in committed.items() if not survey.context.lacks_topic(key[0])}
    if layout.has_queues_in_files:
        ends |= {key: expired_end(units) for key, units in survey.units.units.items() if units.last >= 0}
    for key, end in ends.items():
        is_plain = key not in layout.batch_queues and key[0] not in survey.batch_topics
        if is_plain and key not in known and 0 < end < OFFSET_LIMIT:
            yield key, end


def _initialized(key: Key, end: int) -> Iterator[Row]:
    """The rows of a queue without units whose next message gets the queue offset `end`."""
    topic, queue_id = key
    for is_max, queue_offset in ((False, end), (True, end - 1)):
        yield ENDS, end_key(EndKey(topic, is_max, queue_id)), END_VALUE.pack(0, queue_offset)


def _kept(
    survey: Survey, queues: RocksdbQueues, shapes: Collection[Key], deleted: Collection[Key]
) -> Iterator[Row]:
    """The rows of the present database for queues whose records have all expired.

    A queue that has lost records together with the end of the log ends at its newest unit of an expired one.
    """
    for (topic, is_max, queue_id), end in sorted(queues.ends.items()):
        key = topic, queue_id
        if not is_max or key in shapes or key in deleted or not 0 <= end.queue_offset < OFFSET_LIMIT:
            continue
        if queues.is_initialized(*key):
            yield from _initialized(key, end.queue_offset + 1)
            continue
        units = survey.units.units.get(key)
        last = end.queue_offset if units is None or units.last < 0 else expired_end(units) - 1
        unit = _unit(queues, key, last)
        if unit is None and end.physical_offset >= survey.context.log_start:
            continue
        physical_offset = end.physical_offset if unit is None else UNIT_VALUE.unpack(unit)[0]
        last = end.queue_offset if unit is None else last
        yield ENDS, end_key(EndKey(topic, True, queue_id)), END_VALUE.pack(physical_offset, last)
        if unit is not None:
            yield UNITS, unit_key(topic, queue_id, last), unit


def _unit(queues: RocksdbQueues, key: Key, queue_offset: int) -> bytes | None:
    """The value of a unit; None if there is none, or it cannot be read."""
    if queue_offset < 0:
        return None
    try:
        value = queues.database.get(UNITS, unit_key(*key, queue_offset))
    except InputError:
        return None
    return value if value is not None and len(value) == UNIT_VALUE.size else None


class _Queue:
    """A queue while its units are written: the newest one so far."""

    def __init__(self, key: Key, shape: Shape | None) -> None:
        self.prefix = queue_prefix(*key)
        self.shape = shape
        self.last = -1
        self.physical_offset = -1
        moved = () if shape is None else sorted(shape.moved.items())
        self.moved = np.array(moved, np.int64).reshape(-1, 2)

    def numbers(self, entries: Array) -> Array:
        """The queue offset of each record; -1 for a record without a unit."""
        assert self.shape is not None
        numbers: Array = entries["queue_offset"].copy()
        physical = entries["physical_offset"]
        if len(self.moved):
            place = np.minimum(np.searchsorted(self.moved[:, 0], physical), len(self.moved) - 1)
            is_moved = self.moved[place, 0] == physical
            numbers[is_moved] = self.moved[place[is_moved], 1]
        numbers[(physical < self.shape.from_offset) | (numbers >= OFFSET_LIMIT)] = -1
        before = np.maximum.accumulate(np.append(self.last, numbers))[:-1]
        numbers[numbers <= before] = -1
        return numbers


class DatabaseUnits:
    """Takes the units that a dispatch makes, and writes those of a task into a new database."""

    def __init__(self, folder: Path, task: DatabaseTask) -> None:
        self.folder = folder
        self._task = task
        self._writer = DatabaseWriter(folder, (UNITS, ENDS))
        self._queues: dict[Key, _Queue] = {}
        self._names: list[bytes] = []
        self._waiting: list[tuple[int, ...]] = []

    def put(self, topic: int, queue_id: int, entry: Entry, names: list[bytes]) -> None:
        """Take one unit; `topic` is the topic's number in `names`."""
        if names is not self._names:  # of plain or of batch queues
            self._write_out()
            self._names = names
        self._waiting.append(
            (entry.physical_offset, entry.tags_code, entry.queue_offset, entry.store_timestamp, entry.size,
             entry.batch_size, topic, queue_id, entry.ext_size)
        )  # fmt: skip
        if len(self._waiting) >= _LIMIT:
            self._write_out()

    def put_entries(self, entries: Array, names: list[bytes]) -> None:
        """Take many: `queue.build.ENTRY` rows in the order of the log."""
        self._write_out()
        codes = queue_codes(entries)
        order = np.argsort(codes, kind="stable")
        cuts = np.flatnonzero(np.diff(codes[order])) + 1
        for rows in np.split(order, cuts) if len(order) else ():
            code = int(codes[rows[0]])
            self._put_queue((java_utf8_decode(names[code >> 32]), queue_id_of(code)), entries[rows])

    def _write_out(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self.put_entries(np.array(waiting, ENTRY), self._names)

    def _put_queue(self, key: Key, entries: Array) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(key, self._task.shapes.get(key))
        if queue.shape is None:
            return
        numbers = queue.numbers(entries)
        entries, numbers = entries[numbers >= 0], numbers[numbers >= 0]
        if not len(numbers):
            return
        queue.last, queue.physical_offset = int(numbers[-1]), int(entries["physical_offset"][-1])
        units = np.empty(len(entries), UNIT_VALUE.dtype)
        for name in ("physical_offset", "size", "tags_code", "store_timestamp"):
            units[name] = entries[name]
        self._writer.put(UNITS, _rows(queue.prefix, numbers.astype(">i8").tobytes(), units.tobytes()))

    def finish(self) -> None:
        """Write the ends, and close the database. Raises FormatError if it is not as planned."""
        self._write_out()
        task, ends = self._task, []
        for key, shape in task.shapes.items():
            queue = self._queues.get(key)
            if queue is None or (queue.last + 1 != shape.end and key not in task.is_batch):
                raise FormatError("the rebuilt queues differ from the plan", path=self.folder,
                                  hint="make the plan again")  # fmt: skip
            value = END_VALUE.pack(queue.physical_offset, queue.last)
            ends.append((end_key(EndKey(key[0], True, key[1])), value))
        ends.append((end_key(EndKey(CHECKPOINT_TOPIC, True, 0)), CHECKPOINT_VALUE.pack(task.end)))
        for family in (UNITS, ENDS):
            self._writer.put(family, ((key, value) for name, key, value in task.kept if name == family))
        self._writer.put(ENDS, ends)
        self._writer.finish()

    def close(self) -> None:
        """Close the database; one that is not finished cannot be opened as one."""
        self._writer.close()


def _rows(prefix: bytes, numbers: bytes, units: bytes) -> Iterator[tuple[bytes, bytes]]:
    size = UNIT_VALUE.size
    values = (units[at : at + size] for at in range(0, len(units), size))
    keys = (prefix + numbers[at : at + 8] for at in range(0, len(numbers), 8))
    return zip(keys, values, strict=True)
