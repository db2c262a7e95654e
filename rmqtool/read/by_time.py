"""Queue offsets by time: the answers of brokers, and the exact ones.

    4.x    looks into the queue file that was changed last at that time, and gives the nearest unit
    5.x    goes by the times of messages, and knows two bounds: `lower` is the first message at or
           after the time, `upper` the last one at or before it
    exact  the same two bounds, over all files of the queue

All assume that the times of a queue's messages rise, and bisect. Where they do not rise, or records are
gone, the answers differ: those of 4.x and 5.x follow the broker's own code, `exact` is `ConsumeQueue.first`.

Source: ConsumeQueue#getOffsetInQueueByTime (4.x), ConsumeQueueStore#getOffsetInQueueByTime,
MappedFileQueue#getConsumeQueueMappedFileByTime, ConsumeQueue#binarySearchInQueueByTime,
BatchConsumeQueue#getOffsetInQueueByTime (5.x); spec 02 section 8.4.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rmqtool.errors import UnreadableError
from rmqtool.formats.consume_queue import BatchUnit, Unit
from rmqtool.queue.consume_queue import AnyQueue, BatchConsumeQueue
from rmqtool.read.store import Store
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.profile import Profile, profile_named

Bound = Literal["lower", "upper"]

_NO_TIME = -1


def offset_by_time(
    store: Store,
    topic: str,
    queue_id: int,
    timestamp_ms: int,
    bound: Bound = "lower",
    *,
    broker: str | None = None,
) -> int:
    """The queue offset that a broker gives for a time.

    Args:
        store: the store.
        topic: the topic as stored.
        queue_id: its queue.
        timestamp_ms: the time, ms since 1970.
        bound: which of two neighbours, for 5.x; 4.x does not know it.
        broker: 4.9, 5.3 or 5.4; None is the broker that used the store last.

    0 for a queue that the store does not have. 4.x goes by the times of the queue's files.

    Raises:
        UnreadableError: the queue, or a record that the search looks at, cannot be read.
    """
    store.layout.check_forms(log=True)
    profile = store.profile if broker is None else profile_named(broker)
    queue = store.queue(topic, queue_id)
    if queue is None or not queue.files:
        return 0
    view = _Queue(store, queue, profile)
    is_batch = isinstance(queue, BatchConsumeQueue)
    if not profile.searches_min_offset:
        return 0 if is_batch else view.by_file_time(timestamp_ms)
    found = view.batch(timestamp_ms, bound) if is_batch else view.by_time(timestamp_ms, bound)
    return min(max(found, view.low), view.high)


class ExactOffset(NamedTuple):
    """The exact answer for a time in one queue.

    Attributes:
        queue_offset: of the message; where there is none, the end of the queue for `lower` and its
            minimum for `upper`.
        physical_offset: where its record lies, -1 without a message.
        store_timestamp: when it was stored, ms since 1970, -1 without a message.
    """

    queue_offset: int
    physical_offset: int = -1
    store_timestamp: int = _NO_TIME


def exact_offset_by_time(
    store: Store, topic: str, queue_id: int, timestamp_ms: int, bound: Bound = "lower"
) -> ExactOffset:
    """The first message of a queue at or after a time (`lower`), or the last at or before it (`upper`).

    Found by bisection over the units whose records are still in the log; where the clock was set
    back in between, one of several places that fit is given.

    Raises:
        UnreadableError: the queue, or a record that the search looks at, cannot be read.
    """
    store.layout.check_forms(log=True)
    queue = store.queue(topic, queue_id)
    if queue is None:
        return ExactOffset(0)
    view = _Queue(store, queue, store.profile)
    # A unit without a time, -1, is one whose record is gone from the log: the old end of the queue.
    after = timestamp_ms if bound == "lower" else timestamp_ms + 1
    number = queue.first(lambda unit: view.time_of(unit) >= after, view.stop)
    number -= bound == "upper"
    unit = queue.by_number(number) if number < view.stop else None
    time = _NO_TIME if unit is None else view.time_of(unit)
    if unit is None or time < 0:
        return ExactOffset(view.high if bound == "lower" else view.low)
    return ExactOffset(queue.queue_offset(number, unit), unit.physical_offset, time)


def first_stored(store: Store, queue: AnyQueue, time_ms: int, end: int) -> int:
    """The number of a queue's first unit whose record was stored at a time or later; `end` without one.

    Found by bisection, for store times rise along a queue; where a clock was set back it is one of the
    places that fit. A record that cannot be read has expired: what is looked for comes after it.

    Args:
        store: the store.
        queue: one of its queues.
        time_ms: ms since 1970.
        end: `queue.end()`.

    Raises:
        UnreadableError: the queue cannot be read.
    """

    def is_stored(unit: Unit | BatchUnit) -> bool:
        head = store.head(unit.physical_offset)
        return head is not None and head.store_timestamp >= time_ms

    return queue.first(is_stored, end)


class _Queue:
    """One queue as a broker sees it; it serves the queue offsets [low, high)."""

    def __init__(self, store: Store, queue: AnyQueue, profile: Profile) -> None:
        self._log = store.commit_log
        self._queue = queue
        self._min_physical = store.commit_log.min_offset
        self.low, self.high, _ = queue.span(self._min_physical, profile)
        self.stop = queue.end()

    def time(self, number: int) -> int:
        """When the record of a unit was stored, see `time_of`; -1 without a unit."""
        unit = self._queue.by_number(number)
        return _NO_TIME if unit is None else self.time_of(unit)

    def time_of(self, unit: Unit | BatchUnit) -> int:
        """When the record of a unit was stored, ms since 1970; -1 where it is not in the log any more.

        Raises UnreadableError: without this time the search would go the wrong way.

        Source: CommitLog#pickupStoreTimestamp.
        """
        if self._is_gone(unit):
            return _NO_TIME
        if isinstance(unit, BatchUnit):
            return unit.store_timestamp
        try:
            head = self._log.head(unit.physical_offset)
        except UnreadableError as error:
            if error.is_gone:  # a live broker has deleted it
                return _NO_TIME
            raise
        return _NO_TIME if head is None else head.store_timestamp

    def _is_gone(self, unit: Unit | BatchUnit) -> bool:
        return unit.physical_offset < self._min_physical

    def _is_number_gone(self, number: int) -> bool:
        unit = self._queue.by_number(number)
        return unit is None or self._is_gone(unit)

    def units_of(self, file: StoreFile) -> range:
        """The numbers of the units of one file, up to the queue's end."""
        numbers = self._queue.numbers_of(file)
        return range(numbers.start, max(numbers.start, min(numbers.stop, self.stop)))

    # 4.x

    def by_file_time(self, timestamp_ms: int) -> int:
        """The nearest unit of the file that was changed last at the time, or after it."""
        files = self._queue.files
        chosen = next((file for file in files if _changed_ms(file) >= timestamp_ms), files[-1])
        units = self.units_of(chosen)
        if not units:
            return 0
        low, high = max(self.low, units.start), units.stop - 1
        left = right = None
        left_time = right_time = _NO_TIME
        while high >= low:
            middle = (low + high) // 2
            if self._is_number_gone(middle):
                low, left = middle + 1, middle
                continue
            time = self.time(middle)
            if time < 0:
                return 0
            if time == timestamp_ms:
                return middle
            if time > timestamp_ms:
                high, right, right_time = middle - 1, middle, time
            else:
                low, left, left_time = middle + 1, middle, time
        if left_time == _NO_TIME or (
            right_time != _NO_TIME and abs(timestamp_ms - left_time) > abs(timestamp_ms - right_time)
        ):
            left = right
        # Without a unit Java divides the byte before the file's first one, and rounds towards zero.
        return units.start if left is None else left

    # 5.x

    def by_time(self, timestamp_ms: int, bound: Bound) -> int:
        """By the times of messages, in the file that they choose."""
        file = self._file_by_time(timestamp_ms, bound)
        units = self.units_of(file) if file is not None else range(0)
        if not units:
            return 0
        floor, ceiling = max(self.low, units.start), units.stop - 1
        is_lower = bound == "lower"
        if self.time(ceiling) < timestamp_ms:
            return ceiling + 1 if is_lower else ceiling
        if self.time(floor) > timestamp_ms:
            return units.start if is_lower else 0
        low, high = floor, ceiling
        left = right = None
        while high >= low:
            middle = (low + high) // 2
            if self._is_number_gone(middle):
                low, left = middle + 1, middle
                continue
            time = self.time(middle)
            if time < 0:
                return 0
            if time == timestamp_ms:
                return self._walk(middle, range(floor, ceiling + 1), -1 if is_lower else 1)
            if time > timestamp_ms:
                high, right = middle - 1, middle
            else:
                low, left = middle + 1, middle
        found = right if is_lower else left
        return units.start if found is None else found

    def _file_by_time(self, timestamp_ms: int, bound: Bound) -> StoreFile | None:
        files = self._queue.files
        if bound == "lower":
            ends = ((file, self.units_of(file)) for file in files[:-1])
            found = (file for file, units in ends if units and self.time(units[-1]) >= timestamp_ms)
            return next(found, files[-1])
        starts = ((file, self.units_of(file)) for file in reversed(files))
        return next((f for f, units in starts if not units or self.time(units[0]) <= timestamp_ms), None)

    def _walk(self, number: int, within: range, step: int) -> int:
        """The last unit from `number` on in steps that has the same time."""
        time = self.time(number)
        while number + step in within and self.time(number + step) == time:
            number += step
        return number

    def batch(self, timestamp_ms: int, bound: Bound) -> int:
        """By the times in the units of a batch queue: the base offset of a record; -1 where none is found."""
        file = self._batch_file(timestamp_ms)
        units = self.units_of(file) if file is not None else range(0)
        last = self._queue.by_number(units[-1]) if units else None
        if not isinstance(last, BatchUnit):
            return -1
        if timestamp_ms >= last.store_timestamp:
            return last.base_offset
        unit = self._queue.by_number(self._search_right(units, timestamp_ms, bound))
        return unit.base_offset if isinstance(unit, BatchUnit) else -1

    def _batch_file(self, timestamp_ms: int) -> StoreFile | None:
        """Source: BatchConsumeQueue#searchTimeFromFiles."""
        files = self._queue.files
        for place, file in reversed(tuple(enumerate(files))):
            units = self.units_of(file)
            if not units:
                continue
            if self._batch_time(units[-1]) < timestamp_ms:
                return file if file is files[-1] else files[place + 1]
            if self._batch_time(units[0]) <= timestamp_ms or place == 0:
                return file
        return None

    def _batch_time(self, number: int) -> int:
        unit = self._queue.by_number(number)
        return unit.store_timestamp if isinstance(unit, BatchUnit) else _NO_TIME

    def _search_right(self, units: range, timestamp_ms: int, bound: Bound) -> int:
        """BatchConsumeQueue#binarySearchRight, -1 for most upper bounds."""
        left, right = units.start, units.stop - 1
        while left <= right:
            middle = (left + right) // 2
            time = self._batch_time(middle)
            if middle in (left, right) and time >= timestamp_ms:
                return middle
            if middle == right:
                return -1
            if middle == left or (bound == "lower" and time < timestamp_ms):
                left = middle + 1
            elif bound == "lower":
                right = middle
            elif time <= timestamp_ms:
                left = middle
            else:
                right = middle - 1
        return -1


def _changed_ms(file: StoreFile) -> int:
    """When a file was changed last, ms since 1970; 0 where it is gone.

    Source: MappedFile#getLastModifiedTimestamp.
    """
    try:
        return file.path.stat().st_mtime_ns // 1_000_000
    except OSError:
        return 0
