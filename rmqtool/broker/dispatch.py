"""The units that dispatch would write: they are built, counted and compared with the files, never written.

Source: ConsumeQueue#putMessagePositionInfo, BatchConsumeQueue#putBatchMessagePositionInfo; spec 02 5.2, 5.3.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.broker.extension import Extensions
from rmqtool.broker.held import Held
from rmqtool.broker.load import QueueKey
from rmqtool.broker.log_scan import Batch
from rmqtool.broker.queues import QueueState
from rmqtool.broker.rules import StartRules, StartSettings
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, PRE_BLANK, UNIT, UNIT_SIZE, encode_unit
from rmqtool.formats.java import java_utf8_decode
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.queue.build import (
    NO_FILE,
    Delays,
    Pending,
    QueueNumbers,
    after_newest,
    dispatched,
    entries_of,
    note_last,
    queue_codes,
    queue_id_of,
)
from rmqtool.queue.light_queues import Named, with_light
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.open_files import OpenFiles, data_ranges, reading
from rmqtool.storage.profile import Profile
from rmqtool.write.options import WriteOptions

if TYPE_CHECKING:
    from rmqtool.errors import FormatError

    Array = np.ndarray[Any, np.dtype[Any]]


class Topics:
    """Numbers topics in the order in which they are first seen; shared by all starts."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, name: bytes) -> int:
        """The number of a topic, by its bytes."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(java_utf8_decode(name))
        return number


_PENDING = 1 << 17
_LONG_MAX = (1 << 63) - 1
_SCHEDULE = SCHEDULE_TOPIC.encode()
_PRE_BLANKS = encode_unit(PRE_BLANK) * (1 << 12)


class LightRule:
    """Which light queues one broker dispatches: 5.x skips some topics, and queues with a `/`."""

    def __init__(self, profile: Profile, *, enabled: bool) -> None:
        self._options = WriteOptions(profile=profile, multi_dispatch=enabled)

    def of(self, named: tuple[Named, ...]) -> tuple[Named, ...]:
        """The units that the broker writes."""
        return tuple(filter(self._takes, named)) if named else ()

    def _takes(self, named: Named) -> bool:
        is_new = self._options.profile.writes_version_2
        return self._options.may_be_light(named.topic) and not (is_new and "/" in named.unit.topic)


class Folder:
    """All queues with units of one size, and the units that dispatch would add to each.

    Attributes:
        states: the queues, including those that dispatch creates.
        refused: number of records after the newest one of their queue that get no unit.
        admitted: number of records that get one.
        changed: (queue, offset of the file) of files whose bytes change, including new ones.
        shifted: queues with units at another place than their queue offset.
        held: the queue offsets of the records passed to `QueueDispatch.hold`.
        racing: queues in RocksDB that keep their old ends if the thread is faster that writes dispatched
            units: their end then hides from the cut that there is something to cut.
        stale: queues in RocksDB that keep units of records that the log has lost.
        unread: damaged blocks of units: RocksDB opens the database, and fails when it reads them.
    """

    def __init__(
        self,
        states: dict[QueueKey, QueueState],
        layout: StoreLayout,
        open_files: OpenFiles,
        topics: Topics,
        *,
        is_batch: bool,
        extensions: Extensions | None = None,
    ) -> None:
        self.states = states
        self.extensions = extensions
        self.refused = self.admitted = 0
        self.changed: set[tuple[QueueKey, int]] = set()
        self.shifted: set[QueueKey] = set()
        self.held = Held()
        self.racing: set[QueueKey] = set()
        self.stale: set[QueueKey] = set()
        self.unread: list[FormatError] = []
        self._files = open_files
        self._is_batch = is_batch
        self._unit = BATCH_UNIT_SIZE if is_batch else UNIT_SIZE
        self._file_size = layout.batch_queue_file_size if is_batch else layout.consume_queue_file_size
        self._existing = layout.batch_queues if is_batch else layout.consume_queues
        self._names = topics.names
        self._table = QueueNumbers()
        self._codes = array("q")
        self._queues: list[QueueState] = []
        self._next, self._newest = array("q"), array("q")
        self._last_offset, self._last_size = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self._pending: Pending | None = None

    def put(self, entries: Array, is_foreign: bool) -> None:
        """Dispatch units: ENTRY rows in the order of the log.

        Args:
            entries: the rows.
            is_foreign: some records are not at their stored physical offset.
        """
        if self._pending is None:
            self._pending = Pending(self._unit, _PENDING)
        numbers = self._numbers(entries)
        if self.extensions is not None:
            entries = self._extended(entries, numbers, self.extensions)
        behind, wanted = after_newest(entries, numbers, self._newest, is_batch=self._is_batch)
        if not wanted:
            return
        if wanted < len(entries) and not is_foreign:
            entries, numbers = entries[behind], numbers[behind]
        if is_foreign:
            self._put_slowly(entries, numbers)
            return
        self._put(entries, numbers)

    def _numbers(self, entries: Array) -> Array:
        numbers = self._table.of(queue_codes(entries), self._codes)
        for code in self._codes[len(self._queues) :]:
            self._learn(self._names[code >> 32], queue_id_of(code))
        return numbers

    def _extended(self, entries: Array, numbers: Array, extensions: Extensions) -> Array:
        """The entries with the addresses of their extension units, also those that get no unit."""
        given = np.flatnonzero(entries["ext_size"])
        order = given[np.argsort(numbers[given], kind="stable")]
        cuts = np.flatnonzero(np.diff(numbers[order])) + 1
        entries = entries.copy()
        for rows in np.split(order, cuts) if len(order) else ():
            state = self._queues[int(numbers[rows[0]])]
            entries["tags_code"][rows] = extensions.put((state.topic, state.queue_id), entries[rows])
        return entries

    def pass_over(self, entries: Array) -> None:
        """Count, of records that are not dispatched, those that their queue lacks."""
        numbers = self._numbers(entries)
        self.refused += after_newest(entries, numbers, self._newest, is_batch=self._is_batch)[1]

    def _put(self, entries: Array, numbers: Array) -> None:
        pending = self._pending
        assert pending is not None
        self._grow()
        if self._is_batch:
            self._first_bases(entries, numbers)
        done = admitted = 0
        while True:
            before = pending.count
            done = pending.add(entries, numbers, done, self._next, self._newest)
            admitted += pending.count - before
            if pending.count == pending.limit:
                self.flush()
            if done == len(entries):
                break
        note_last(entries, numbers, self._last_offset, self._last_size)
        self.admitted += admitted
        self.refused += len(entries) - admitted

    def _put_slowly(self, entries: Array, numbers: Array) -> None:
        """Dispatch one by one to learn the number of each unit, for records not at their stored offset."""
        for row in range(len(entries)):
            number = int(numbers[row])
            entry = entries[row : row + 1]
            start = int(entry["physical_offset"][0])
            if start + (0 if self._is_batch else int(entry["size"][0])) <= self._newest[number]:
                continue
            admitted = self.admitted
            self._put(entry, numbers[row : row + 1])
            if self.admitted > admitted:
                place = start, int(entry["size"][0])
                self._queues[number].foreign[self._next[number] - 1] = place

    def _first_bases(self, entries: Array, numbers: Array) -> None:
        """Remember the first base offset that each queue gets."""
        first_numbers, rows = np.unique(numbers, return_index=True)
        for number, row in zip(first_numbers.tolist(), rows.tolist(), strict=True):
            if self._queues[number].first_batch < 0:
                self._queues[number].first_batch = int(entries["queue_offset"][row])

    def _grow(self) -> None:
        more = len(self._queues) - len(self._last_offset)
        if more > 0:
            self._last_offset = np.concatenate([self._last_offset, np.full(max(more, 256), -1, np.int64)])
            self._last_size = np.concatenate([self._last_size, np.zeros(max(more, 256), np.int32)])

    def _learn(self, topic: str, queue_id: int) -> None:
        state = self.states.get((topic, queue_id))
        if state is None:
            state = QueueState(topic, queue_id, self._is_batch, self._file_size)
        self._queues.append(state)
        self._next.append(state.end // self._unit if state.files else NO_FILE)
        self._newest.append(state.max_physical)

    def flush(self) -> None:
        """Update the states with all dispatched records."""
        if self._pending is None or not self._pending.count:
            return
        grouped = self._pending.take(len(self._codes))
        start = 0
        for number, count in zip(grouped.queues, grouped.counts, strict=True):
            stop = start + count * self._unit
            state = self._queues[number]
            end = self._next[number]
            is_new = not state.files
            if state.written is None and not self._is_batch:
                state.first_code = UNIT.unpack(grouped.data, start)[2]
            self.states.setdefault((state.topic, state.queue_id), state)
            state.wrote(end - count, end, self._newest[number])
            state.last_batch = int(self._last_offset[number]), int(self._last_size[number])
            if is_new and not self._is_batch:
                self._compare_pre_blank(state, end - count)
            self._compare(state, end - count, grouped.data[start:stop])
            start = stop

    def finish(self) -> None:
        """After the last record: note queues with units at the wrong place, and batch offsets."""
        self.flush()
        for number, state in enumerate(self._queues):
            last = int(self._last_offset[number]) if number < len(self._last_offset) else -1
            if last < 0:  # nothing was dispatched into it
                continue
            if self._is_batch:
                state.last_batch = last, int(self._last_size[number])
                state.max_offset = last + int(self._last_size[number])
                if state.min_offset == -1 and state.made:
                    state.min_offset = state.first_batch
            elif self._next[number] - 1 != last:
                self.shifted.add((state.topic, state.queue_id))

    def forget(self) -> None:
        """Forget the ends of the queues, because they were cut; the next `put` reads them again."""
        self.flush()
        self._table, self._codes = QueueNumbers(), array("q")
        self._queues, self._next, self._newest = [], array("q"), array("q")
        self._last_offset, self._last_size = np.zeros(0, np.int64), np.zeros(0, np.int32)

    # what changes on disk

    def _path(self, key: QueueKey, file_from_offset: int) -> Any:
        queue = self._existing.get(key)
        if queue is None:
            return None
        return next((file.path for file in queue.files if file.file_from_offset == file_from_offset), None)

    def name_of(self, key: QueueKey, file_from_offset: int) -> str:
        """A file's name below the store root."""
        folder = "batchconsumequeue" if self._is_batch else "consumequeue"
        return f"{folder}/{key[0]}/{key[1]}/{file_from_offset:020}"

    def _compare_pre_blank(self, state: QueueState, first: int) -> None:
        key, start = (state.topic, state.queue_id), first * self._unit
        offset = start - start % state.file_size
        for at in range(offset, start, len(_PRE_BLANKS)):
            if (key, offset) in self.changed:
                break
            self._compare(state, at // self._unit, memoryview(_PRE_BLANKS)[: start - at])

    def _compare(self, state: QueueState, first: int, data: memoryview) -> None:
        """Note the files that change when these units are written from number `first` on."""
        key = state.topic, state.queue_id
        start = first * self._unit
        while len(data):
            room = state.file_size - start % state.file_size
            offset = start - start % state.file_size
            piece = data[:room]
            if (key, offset) not in self.changed:
                path = self._path(key, offset)
                if path is None or self._files.read(path, start - offset, len(piece)) != piece:
                    self.changed.add((key, offset))
            data, start = data[room:], start + room

    def settle_made(self) -> None:
        """Note the files that are deleted and created again with other content."""
        for key, state in self.states.items():
            gone = {file.file_from_offset: file for file in state.deleted}
            low, high = state.written or (0, 0)
            for offset in state.made & gone.keys():
                if (key, offset) in self.changed:
                    continue
                start = max(low * self._unit, offset) - offset
                stop = min(high * self._unit, offset + state.file_size) - offset
                if not state.is_batch and low * self._unit - offset < state.file_size and start > 0:
                    start = 0  # fillers
                if self._has_data_outside(gone[offset].path, start, stop, state.file_size):
                    self.changed.add((key, offset))

    def _has_data_outside(self, path: Any, start: int, stop: int, size: int) -> bool:
        with reading(path) as file:
            ranges = list(data_ranges(file, size))
        for low, high in ranges:
            for begin, end in ((low, min(high, start)), (max(low, stop), high)):
                if begin < end and any(self._files.read(path, begin, end - begin)):
                    return True
        return False


def _with_wrapped_offsets(entries: Array) -> Array:
    """The entries with the queue offsets that Java compares.

    Java multiplies by the unit's size, which overflows for an invalid offset. Such an offset never becomes
    0, because 0 is not compared.
    """
    offsets = entries["queue_offset"]
    most = _LONG_MAX // UNIT_SIZE
    if not len(offsets) or (offsets.min() >= 0 and offsets.max() <= most):
        return entries
    out_of_range = (offsets < 0) | (offsets > most)
    wrapped = offsets[out_of_range] * UNIT_SIZE // UNIT_SIZE
    entries = entries.copy()
    entries["queue_offset"][out_of_range] = np.where(wrapped > 0, wrapped, -1)
    return entries


class QueueDispatch:
    """Dispatch into plain and batch queues by the rules of one broker.

    Attributes:
        plain: the plain queues.
        batch: the batch queues.
        second: plain queues in RocksDB that are written in addition to those in files; None if they are not.
        records: number of records passed to dispatch.
        has_light: whether one of them names a light queue that gets a unit.
    """

    def __init__(
        self,
        plain: Folder,
        batch: Folder,
        rules: StartRules,
        settings: StartSettings,
        is_batch_topic: Callable[[str], bool],
        topics: Topics,
        second: Folder | None = None,
    ) -> None:
        self._topics = topics
        self.plain = plain
        self.batch = batch
        self.second = second
        self.records = 0
        self.delays_ms = tuple(settings.delays_ms) if rules.knows_delays else ()
        self._is_batch_topic = is_batch_topic if rules.has_batch_queues else lambda _: False
        self._batch_by_topic: dict[bytes, bool] = {}
        self.has_light = False
        self._light = LightRule(rules.profile, enabled=settings.dispatches_light is not False)

    def folders(self) -> Iterator[Folder]:
        """All kinds of queues."""
        yield self.plain
        yield self.batch
        if self.second is not None:
            yield self.second

    def put(self, batch: Batch, chosen: Array | None) -> None:
        """Dispatch the rows `chosen` (ascending indices) of a batch; None: all."""
        self.records += len(batch.rows) if chosen is None else len(chosen)
        for folder, entries in self._entries(batch, chosen):
            folder.put(entries, batch.foreign)

    def pass_over(self, batch: Batch, chosen: Array) -> None:
        """Count the rows `chosen` as not dispatched."""
        for folder, entries in self._entries(batch, chosen):
            folder.pass_over(entries)

    def hold(self, batch: Batch, count: int) -> None:
        """Note the sound rows of the first `count` rows, which are in the log that the broker keeps."""
        chosen = None
        if not batch.plain or count < len(batch.rows):
            chosen = np.flatnonzero(batch.rows["status"][:count] == 0)
            chosen = None if len(chosen) == len(batch.rows) else chosen
        for folder, entries in self._entries(batch, chosen):
            folder.held.add(entries, is_batch=folder is self.batch)

    def _entries(self, batch: Batch, chosen: Array | None) -> Iterator[tuple[Folder, Array]]:
        """(folder, entries) for the rows `chosen`; entries are never empty."""
        is_batch = np.array([self._is_batch(topic) for topic in batch.topics], bool)
        delays_ms = self.delays_ms if _SCHEDULE in batch.topics else ()
        light = self._light.of(batch.light)
        self.has_light = self.has_light or bool(light)
        if chosen is None:
            key = (is_batch.tobytes(), delays_ms, light)
            if key not in batch.shared:
                every = np.arange(len(batch.rows))
                batch.shared[key] = self._made(batch, every, is_batch, delays_ms, light)
            plain, of_batch = batch.shared[key]
        else:
            plain, of_batch = self._made(batch, chosen, is_batch, delays_ms, light)
        if len(of_batch):
            yield self.batch, of_batch
        if len(plain):
            yield self.plain, plain
            if self.second is not None:
                yield self.second, plain

    def _made(
        self,
        batch: Batch,
        chosen: Array,
        is_batch: Array,
        delays_ms: tuple[int, ...],
        light: tuple[Named, ...],
    ) -> tuple[Array, Array]:
        """The entries of plain and of batch queues."""
        rows = batch.rows
        wanted = dispatched(rows["sys_flag"] if len(chosen) == len(rows) else rows["sys_flag"][chosen])
        if not wanted.all():
            chosen = chosen[wanted]
        numbers = np.array([self._topics.number(topic) for topic in batch.topics], np.int32)
        delayed = batch.topics.index(_SCHEDULE) if delays_ms else -1
        entries = entries_of(rows, batch.dispatch, chosen, numbers, is_batch, Delays(delayed, delays_ms))
        of_batch = np.zeros(0, np.intp)
        if is_batch.any():
            of_batch = np.flatnonzero(is_batch[rows["topic_id"][chosen]])
        plain = np.delete(entries, of_batch) if len(of_batch) else entries
        if light:
            places = np.delete(chosen, of_batch)
            plain = with_light(plain, places, light, batch.dispatch.tags_code, self._topics.number)
        return _with_wrapped_offsets(plain), entries[of_batch]

    def _is_batch(self, topic: bytes) -> bool:
        known = self._batch_by_topic.get(topic)
        if known is None:
            known = self._batch_by_topic[topic] = self._is_batch_topic(java_utf8_decode(topic))
        return known

    def take_over(self, other: QueueDispatch) -> None:
        """Copy the state of another dispatch, which is finished."""
        self.records, self.has_light = other.records, other.has_light
        for mine, others in zip(self.folders(), other.folders(), strict=True):
            mine.states = {key: state.copy() for key, state in others.states.items()}
            mine.refused, mine.admitted = others.refused, others.admitted
            mine.changed, mine.shifted = set(others.changed), set(others.shifted)
            if mine.extensions is not None and others.extensions is not None:
                mine.extensions.copy_from(others.extensions)
            mine.held = others.held

    def finish(self) -> None:
        """Finish all folders after the last record."""
        for folder in self.folders():
            folder.finish()
