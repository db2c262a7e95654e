"""The consume queues of a RocksDB database as a `Storage`: TOPIC/QUEUE/FILE, a file of units for each queue.

A file holds the units from the queue's first one up to its `max` entry, in the form of a queue in files: 20
bytes for each queue offset, zeros where the database has no unit. So whatever reads queues reads these. The
bytes are made when they are asked for. Units above `max` may exist after a broker has cut its log; a broker
does not read them, and they are not in the file.

`/` and names that lead elsewhere are escaped in the name of a topic's folder; the topic itself is not.

Source: RocksDBConsumeQueueStore, RocksDBConsumeQueueOffsetTable; spec 06 section 2.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rmqtool.errors import FormatError
from rmqtool.formats import rocksdb_queue as format_
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.formats.rocksdb_queue import ENDS, UNITS
from rmqtool.storage.listing import Listing
from rmqtool.storage.random_file import RandomFile
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.rocksdb.table import as_unreadable
from rmqtool.storage.storage import Entries, Recipe, Storage, StoragePath, mounted, status_of

OFFSET_LIMIT = 1 << 58
"""A larger `max` is damage: the bytes of the queue could not be counted."""
_TOPIC_BYTES = 4
_OFFSET_BYTES = 8

Bulk = Callable[["UnitRange"], bytes]


class End(NamedTuple):
    """A queue's newest or first unit, as the database has it."""

    physical_offset: int
    queue_offset: int


class UnitRange(NamedTuple):
    """The units [start, stop) of the queue whose keys begin with `prefix`."""

    database: Database
    prefix: bytes
    start: int
    stop: int

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """The keys of the units, half-open."""
        return key_of(self.prefix, self.start), key_of(self.prefix, self.stop)


class RocksdbQueue(NamedTuple):
    """A queue: the units [first, end), of which some may be missing."""

    topic: str
    queue_id: int
    prefix: bytes
    first: int
    end: int

    @property
    def folder(self) -> str:
        """Its folder in the storage."""
        name = self.topic
        if "/" in name or "%2" in name or name in ("", ".", ".."):
            name = quote(name, safe="") or "%2"
            name = name.replace(".", "%2E") if name in (".", "..") else name
        return f"{name}/{self.queue_id}"

    @property
    def file(self) -> str:
        """The name of its file: the byte offset of the first unit in the queue."""
        return f"{self.first * UNIT_SIZE:020}"

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return (self.end - self.first) * UNIT_SIZE


def key_of(prefix: bytes, queue_offset: int) -> bytes:
    """The key of a unit."""
    return prefix + queue_offset.to_bytes(_OFFSET_BYTES, "big")


def after(prefix: bytes) -> bytes:
    """The key after all units of a queue, negative queue offsets included."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


class RocksdbQueues(Storage):
    """The queues of the database in `folder`.

    Args:
        folder: where the database is.
        state: the state of its files that a pickled path was made for.
    """

    name = "RocksDB"

    def __init__(self, folder: Path, state: tuple[Any, ...] | None = None) -> None:
        self.folder = folder
        self.database = Database(folder)
        self.bulk: Bulk | None = None
        """Reads many units at once, in compiled code; set by the room that has it."""
        self._state = state

    def path(self, queue: RocksdbQueue) -> StoragePath:
        """The folder of a queue."""
        return self.root / queue.folder

    @cached_property
    def root(self) -> StoragePath:
        """The folder of all queues."""
        return mounted(self, "")

    # what the database says

    @cached_property
    def ends(self) -> dict[format_.EndKey, End]:
        """The entries `max` and `min`. Raises FormatError, UnreadableError."""
        found = {}
        for key, value in self.database.scan(ENDS):
            if len(value) > _OFFSET_BYTES:  # else it is the checkpoint
                found[self._placed(format_.decode_end_key, key)] = End(
                    *self._placed(format_.decode_end, value)
                )
        return found

    @cached_property
    def checkpoint(self) -> int | None:
        """The end of the last dispatched record; None without one. Raises FormatError, UnreadableError."""
        key = format_.end_key(format_.EndKey(format_.CHECKPOINT_TOPIC, True, 0))
        value = self.database.get(ENDS, key)
        return None if value is None else self._placed(format_.decode_checkpoint, value)

    def _placed(self, decode: Callable[[bytes], Any], data: bytes) -> Any:
        try:
            return decode(data)
        except FormatError as error:
            error.path = error.path or self.folder
            raise

    @cached_property
    def queues(self) -> dict[tuple[str, int], RocksdbQueue]:
        """The queues that have a `max`, by topic and queue id.

        Raises:
            FormatError: the ends cannot be read. Damage of the units does not show here.
            UnreadableError: a file cannot be read.
        """
        found = {}
        for (topic, is_max, queue_id), end in self.ends.items():
            if is_max and 0 <= end.queue_offset < OFFSET_LIMIT:
                prefix, stop = format_.queue_prefix(topic, queue_id), end.queue_offset + 1
                first = self.first_unit(prefix, 0, stop)
                found[topic, queue_id] = RocksdbQueue(topic, queue_id, prefix, first, stop)
        return dict(sorted(found.items()))

    def is_initialized(self, topic: str, queue_id: int) -> bool:
        """Whether both ends were set to where the next message goes, without any unit.

        A broker does that with queues that it writes twice, if they end elsewhere than in files. Source:
        RocksDBConsumeQueue#initializeWithOffset of 5.4.0.
        """
        newest = self.ends.get(format_.EndKey(topic, True, queue_id))
        first = self.ends.get(format_.EndKey(topic, False, queue_id))
        if newest is None or first is None:
            return False
        return newest.physical_offset == 0 and first.queue_offset == newest.queue_offset + 1

    def first_unit(self, prefix: bytes, start: int, stop: int) -> int:
        """The offset of the first unit in [start, stop); `stop` without one, `start` if damage hides it."""
        try:
            found = self.database.first(UNITS, key_of(prefix, start), key_of(prefix, stop))
        except FormatError:
            return start
        return stop if found is None else int.from_bytes(found[0][len(prefix) :][:_OFFSET_BYTES], "big")

    def queues_of_units(self) -> Iterator[tuple[str, int, bytes]]:
        """(topic, queue id, prefix) of every queue that has a unit. Raises FormatError, UnreadableError."""
        start = b""
        while (entry := self.database.first(UNITS, start)) is not None:
            topic, queue_id, _ = self._placed(format_.decode_unit_key, entry[0])
            prefix = entry[0][:-_OFFSET_BYTES]
            yield topic, queue_id, prefix
            start = after(prefix)

    def refresh(self) -> None:
        """Read the database again if its files have changed."""
        before, self._state = self._state, self.state()
        if before != self._state:
            self.database.reload()
            for name in ("ends", "checkpoint", "queues", "_folders"):
                self.__dict__.pop(name, None)

    def state(self) -> tuple[Any, ...]:
        """Names and sizes of the database's files."""
        entries = Listing().entries(self.folder)
        return tuple((name, status.st_size, status.st_mtime_ns) for name, status in entries)

    # Storage

    @cached_property
    def _folders(self) -> dict[str, RocksdbQueue]:
        return {queue.folder: queue for queue in self.queues.values()}

    def show(self, inner: str) -> str:
        """See Storage."""
        return f"{self.folder}/{inner}" if inner else str(self.folder)

    def recipe(self) -> Recipe:
        """See Storage."""
        if self._state is None:
            self._state = self.state()
        return RocksdbQueues, (self.folder, self._state)

    def __reduce__(self) -> Recipe:
        """As its paths do: another process opens the database itself."""
        return self.recipe()

    def entries(self, inner: str) -> Entries:
        """See Storage. The folder of a queue is listed as it is now."""
        self.refresh()
        if not inner:
            topics = {each.partition("/")[0] for each in self._folders}
            return [(name, status_of(None)) for name in sorted(topics)]
        if inner in self._folders:
            queue = self._folders[inner]
            return [(queue.file, status_of(queue.size))]
        ids = [folder.rpartition("/")[2] for folder in self._folders if folder.startswith(f"{inner}/")]
        if not ids:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.show(inner))
        return [(name, status_of(None)) for name in ids]

    def status(self, inner: str) -> os.stat_result:
        """See Storage."""
        queue = self._queue(inner)
        return status_of(None if queue is None else queue.size)

    def _queue(self, inner: str) -> RocksdbQueue | None:
        """The queue with this file; None for a folder. Raises FileNotFoundError."""
        folder, _, name = inner.rpartition("/")
        queue = self._folders.get(folder)
        if queue is not None and name == queue.file:
            return queue
        if not inner or any(each == inner or each.startswith(f"{inner}/") for each in self._folders):
            return None
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.show(inner))

    def open(self, inner: str) -> RandomFile:
        """See Storage."""
        queue = self._queue(inner)
        if queue is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.show(inner))
        return UnitFile(self, queue)

    def close(self) -> None:
        """See Storage."""
        self.database.close()


class UnitFile:
    """The units of a queue as a RandomFile."""

    is_near = True

    def __init__(self, storage: RocksdbQueues, queue: RocksdbQueue) -> None:
        self.size = queue.size
        self._storage = storage
        self._queue = queue

    def read(self, offset: int, length: int) -> bytes:
        """See RandomFile."""
        stop = min(offset + length, self.size)
        if stop <= offset:
            return b""
        low, high = offset // UNIT_SIZE, -(-stop // UNIT_SIZE)
        queue = self._queue
        units = UnitRange(self._storage.database, queue.prefix, queue.first + low, queue.first + high)
        try:
            data = (self._storage.bulk or read_units)(units)
        except FormatError as error:
            raise as_unreadable(error) from error
        return data[offset - low * UNIT_SIZE : stop - low * UNIT_SIZE]

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        queue = self._queue
        start, stop = key_of(queue.prefix, queue.first + offset // UNIT_SIZE), key_of(queue.prefix, queue.end)
        try:
            found = self._storage.database.first(UNITS, start, stop) if start < stop else None
        except FormatError:
            return offset  # a read of it fails
        if found is None:
            return self.size
        number = int.from_bytes(found[0][len(queue.prefix) : len(queue.prefix) + _OFFSET_BYTES], "big")
        return min(max(offset, (number - queue.first) * UNIT_SIZE), self.size)

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        return self.size

    def close(self) -> None:
        """See RandomFile. The database stays open."""


def read_units(units: UnitRange) -> bytes:
    """The bytes of units in the form of a queue in files, in plain Python. Raises FormatError, OSError."""
    data = bytearray((units.stop - units.start) * UNIT_SIZE)
    length = len(units.prefix) + _OFFSET_BYTES
    for key, value in units.database.scan(UNITS, *units.keys):
        if len(key) == length and len(value) == format_.UNIT_VALUE.size:
            at = (int.from_bytes(key[-_OFFSET_BYTES:], "big") - units.start) * UNIT_SIZE
            data[at : at + UNIT_SIZE] = value[:UNIT_SIZE]
    return bytes(data)
