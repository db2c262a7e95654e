"""One pull from one queue, answered as the broker's own store answers it.

Source: DefaultMessageStore#getMessage, #isTheBatchFull, #estimateInMemByCommitOffset; spec 02 8.3.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from rmqtool.errors import InputError, UnreadableError, UsageError
from rmqtool.formats import properties
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import StoredMessage
from rmqtool.queue.consume_queue import BLOCK, AnyQueue, BatchConsumeQueue
from rmqtool.read.store import Store
from rmqtool.report.tail.subscription import Subscription
from rmqtool.storage.layout import StoreFile

SCANNED_BYTES = 16_000  # maxFilterMessageSize: at least this much of a queue is examined
PULL_BYTES_MIN, PULL_BYTES_MAX = 100, 128 << 20
_MEMORY_PERCENT = 40  # accessMessageInMemoryMaxRatio


class TransferLimits(NamedTuple):
    """Most bytes and messages of an answer; records count as on disk far before the end of the log."""

    memory_bytes: int = 262_144  # maxTransferBytesOnMessageInMemory
    memory_count: int = 32  # maxTransferCountOnMessageInMemory
    disk_bytes: int = 65_536
    disk_count: int = 8


BROKER_LIMITS = TransferLimits()


class GetMessageStatus(StrEnum):
    """The status of a pull. A store of files never gives NO_MATCHED_LOGIC_QUEUE: it makes the queue."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class Pulled:
    """One record of a pull: its queue offset (the first of a batch), place, size and message count.

    Nothing changes it; not frozen, because a server makes thousands of them in a second.
    """

    queue_offset: int
    physical_offset: int
    size: int
    count: int = 1


@dataclass(frozen=True)
class GetMessageResult:
    """The answer to a pull; `min_offset` and `max_offset` are the queue's, half-open."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: tuple[Pulled, ...] = ()

    @property
    def message_count(self) -> int:
        """Messages in all records, those of batches counted one by one."""
        return sum(record.count for record in self.records)

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(record.size for record in self.records)

    def messages(self, store: Store) -> Iterator[StoredMessage]:
        """The records, read and decoded; raises as `Store.get` does."""
        for record in self.records:
            found = store.get(record.physical_offset)
            if found is not None:
                yield found


def get_message(
    store: Store,
    topic: str,
    queue_id: int,
    offset: int,
    max_messages: int = 32,
    subscription: Subscription | None = None,
    *,
    max_bytes: int = PULL_BYTES_MAX,
    memory_bytes: int | None = None,
) -> GetMessageResult:
    """Return the answer of a broker of the store's version to a pull.

    Args:
        store: the store.
        topic: the queue's topic.
        queue_id: the queue; one that is not there is an empty one, as in a broker.
        offset: the first queue offset wanted; any number.
        max_messages: as the consumer asks for; never more than 32 are given, 8 from disk.
        subscription: what is wanted; None is everything. The client's own comparison of tags is not
            made: records whose tags merely hash alike are in the answer.
        max_bytes: most bytes of records, within 100 and 128 MiB (5.x).
        memory_bytes: the broker's memory; None: this machine's. Records that lie further than 40 %
            of it before the log's end count as on disk.

    Raises:
        UsageError: fewer than one message is requested.
        UnreadableError: the queue cannot be read.
        UnsupportedStoreError: the queues are in RocksDB.
    """
    if max_messages < 1:
        raise UsageError(f"at least one message must be asked for, not {max_messages}")
    store.layout.check_forms(log=True)
    queue = store.queue(topic, queue_id)
    window = Window(
        store.min_offset(topic, queue_id),
        store.max_offset(topic, queue_id),
        0 if queue is None else queue.end(),
    )
    memory = _memory_bytes() if memory_bytes is None else memory_bytes
    return answer_pull(
        store, queue, window, offset, max_messages, subscription or Subscription(),
        max_bytes=max_bytes, memory_bytes=memory,
    )  # fmt: skip


class Window(NamedTuple):
    """What of a queue is served: the queue offsets [low, high), and the number after its last unit."""

    low: int
    high: int
    end: int


def answer_pull(
    store: Store,
    queue: AnyQueue | None,
    window: Window,
    offset: int,
    max_messages: int,
    subscription: Subscription,
    *,
    max_bytes: int = PULL_BYTES_MAX,
    memory_bytes: int = 0,
    limits: TransferLimits = BROKER_LIMITS,
) -> GetMessageResult:
    """As `get_message`, of a queue of which the caller knows where it begins and ends.

    Raises UnreadableError: the queue cannot be read.
    """
    low, high, end = window

    def ended(status: GetMessageStatus, following: int) -> GetMessageResult:
        return GetMessageResult(status, following, low, high)

    if queue is None or high == 0:
        return ended(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)
    if offset < low:
        return ended(GetMessageStatus.OFFSET_TOO_SMALL, low)
    if offset == high:
        return ended(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset)
    if offset > high:
        return ended(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high)
    far = memory_bytes * _MEMORY_PERCENT // 100
    pull = _Pull(store, subscription, offset, max_messages, far, limits)
    pull.max_bytes = min(max(max_bytes, PULL_BYTES_MIN), PULL_BYTES_MAX)
    units = _units(queue, offset, end, BLOCK)
    if units is None:
        return ended(GetMessageStatus.OFFSET_FOUND_NULL, _next_file(store, queue, offset))
    pull.run(units, high, queue.unit_size)
    return GetMessageResult(pull.status, pull.next, low, high, tuple(pull.records))


class _Unit(NamedTuple):
    """A unit of either kind of queue; `tags_code` is None where an extension unit cannot be read."""

    queue_offset: int
    messages: int
    physical_offset: int
    size: int
    tags_code: int | None


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _units(queue: AnyQueue, offset: int, end: int, block: int) -> Iterator[_Unit] | None:
    """The units from `offset` to the end of its file, before the number `end`; `block` are read at once."""
    if isinstance(queue, BatchConsumeQueue):
        number = queue.number_of(offset)
        file = None if number is None else queue.file_of(number)
        if number is None or file is None:
            return None
        return (
            _Unit(unit.base_offset, unit.batch_size, unit.physical_offset, unit.size, unit.tags_code)
            for _, unit in queue.numbered_in(file, number, end, block=block)
        )
    file = queue.file_of(offset)
    if file is None:
        return None
    numbered = queue.numbered_in(file, offset, end, block=block)
    tags_code = queue.tags_code
    return (_Unit(at, 1, unit.physical_offset, unit.size, tags_code(unit)) for at, unit in numbered)


def _next_file(store: Store, queue: AnyQueue, offset: int) -> int:
    """Source: ConsumeQueue#rollNextFile; a batch queue answers 0."""
    if isinstance(queue, BatchConsumeQueue):
        return 0
    room = store.layout.consume_queue_file_size // queue.unit_size
    return offset - offset % room + room


class _Pull:
    """The scan of one pull: what it has accepted so far, and how it would end now."""

    def __init__(
        self,
        store: Store,
        wanted: Subscription,
        offset: int,
        most: int,
        memory: int,
        limits: TransferLimits,
    ) -> None:
        self.limits = limits
        self.store = store
        self.wanted = wanted
        self.offset = offset
        self.most = most
        self.memory = memory
        self.max_bytes = PULL_BYTES_MAX
        self.status = GetMessageStatus.NO_MATCHED_MESSAGE
        self.next = offset
        self.records: list[Pulled] = []
        self._count = 0
        self._size = 0
        self._gone_to: int | None = None  # end of the last log file that was not there
        self._file: StoreFile | None = None  # of the last record: mostly of the next one too
        self._end = max((file.end for file in store.commit_log.files), default=0)
        self._limits_bytes = store.profile.limits_pull_bytes

    def run(self, units: Iterator[_Unit], high: int, unit_size: int) -> None:
        """Goes through units until the batch is full, enough was examined, or they end."""
        scanned = max(SCANNED_BYTES, self.most * unit_size)
        for at, count, place, size, code in units:
            if at >= high or (at - self.offset) * unit_size >= scanned:
                return
            removed = self._gone_to is not None and place < self._gone_to
            if removed and not self._limits_bytes:
                self.next = at + count
                continue
            if self._is_full(size, count, place):
                return
            self.next = at + count
            if not removed:
                self._look(at, count, place, size, code)

    def _look(self, at: int, count: int, place: int, size: int, code: int | None) -> None:
        if not self.wanted.matches_unit(code):
            self._rejected(GetMessageStatus.NO_MATCHED_MESSAGE)
            return
        file = self._file
        if file is None or not file.file_from_offset <= place < file.end:
            file = self._file = self.store.commit_log.file_of(place)
        if file is None or place + size > file.end:
            self._rejected(GetMessageStatus.MESSAGE_WAS_REMOVING)
            file_size = self.store.commit_log.file_size
            self._gone_to = place - place % file_size + file_size
            return
        if self.wanted.filter is not None and not self.wanted.matches_record(self._properties(place)):
            self._rejected(GetMessageStatus.NO_MATCHED_MESSAGE)
            return
        self.records.append(Pulled(at, place, size, count))
        self._count += count
        self._size += size
        self.status = GetMessageStatus.FOUND
        self._gone_to = None

    def _rejected(self, status: GetMessageStatus) -> None:
        if not self._size:
            self.status = status

    def _properties(self, place: int) -> dict[str, str]:
        try:
            found = self.store.commit_log.read(place)
        except UnreadableError:
            raise
        except InputError:
            return {}
        return properties.decode(found.message.properties_bytes) if isinstance(found, StoredMessage) else {}

    def _is_full(self, size: int, count: int, place: int) -> bool:
        if not self._size or not self._count:
            return False
        if self._count + count > self.most or (self._limits_bytes and self._size + size > self.max_bytes):
            return True
        limits = self.limits
        if self._end_of_log - place <= self.memory:
            most_bytes, most = limits.memory_bytes, limits.memory_count
        else:
            most_bytes, most = limits.disk_bytes, limits.disk_count
        return self._size + size > most_bytes or self._count >= most

    @property
    def _end_of_log(self) -> int:
        return self._end
