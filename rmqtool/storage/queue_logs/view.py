"""Queue logs as a `Storage`: commitlog/, consumequeue/ and index/ as a broker's store has them.

    commitlog/NUMBER               a segment of some queue's log, named by its place (`model`)
    consumequeue/TOPIC/QUEUE/NAME  all units of a queue, in one file
    index/NUMBER                   the index entries of a queue: only in tiered storage

The bytes are made when they are read. So whatever reads a store reads these; records, units and entries have
places instead of offsets in the log of a queue. `relative` names the real file.
"""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import tiered as tiered_form
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE
from rmqtool.formats.index import Shape
from rmqtool.formats.message import BLANK, BLANK_MAGIC, BLANK_SIZE
from rmqtool.storage.open_files import open_file
from rmqtool.storage.queue_logs import compacted, tiered
from rmqtool.storage.queue_logs.log_file import LogFile
from rmqtool.storage.queue_logs.model import INDEX_LIMIT, SPAN, Found, Places, QueueLog, Segment
from rmqtool.storage.random_file import RandomFile
from rmqtool.storage.source import nonzero_end
from rmqtool.storage.storage import Entries, Recipe, Storage, StoragePath, mounted, path_at, status_of
from rmqtool.storage.unsupported import Unsupported

if TYPE_CHECKING:
    from rmqtool.storage.queue_logs.index_files import IndexView
    from rmqtool.storage.queue_logs.unit_file import SparseUnits

Key = tuple[str, int]
_LOG, _QUEUES, _INDEX = "commitlog", "consumequeue", "index"
_UNITS_LIMIT = 1 << 30
"""Bytes of the units of a compacted queue that are read at once; a queue keeps one unit for a key."""


class ViewFile(NamedTuple):
    """A file of the view: its name in it, the offset of its first byte, its size."""

    inner: str
    offset: int
    size: int


class QueueLogs(Storage):
    """The queue logs below `folder`."""

    kind: Literal["tiered", "compacted"]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[Path, RandomFile] = {}
        self._lock = Lock()

    def __reduce__(self) -> Recipe:
        """A copy of the layout on another machine opens the files itself."""
        return self.recipe()

    @cached_property
    @abstractmethod
    def found(self) -> Found:
        """What is in the folder."""

    @abstractmethod
    def _used(self, file: RandomFile) -> int:
        """How many bytes of a segment of a log are records."""

    @abstractmethod
    def _units(self, queue: QueueLog) -> ViewFile | None:
        """The file of a queue's units; None without units."""

    @abstractmethod
    def _open_units(self, queue: QueueLog) -> RandomFile: ...

    @cached_property
    def root(self) -> StoragePath:
        """The folder of the view."""
        return mounted(self, "")

    @cached_property
    def queues(self) -> dict[Key, QueueLog]:
        """The queue logs by topic and queue id."""
        return {queue.key: queue for queue in self.found.queues}

    @cached_property
    def places(self) -> dict[Key, Places]:
        """The places of every queue's records."""
        end = (sum(len(queue.log) for queue in self.found.queues) + 1) * SPAN
        found, number = {}, 1
        for queue in self.found.queues:
            found[queue.key] = Places(queue.log, number, end)
            number += len(queue.log)
        return found

    @cached_property
    def segments(self) -> tuple[tuple[QueueLog, Segment], ...]:
        """All segments of logs in the order of their numbers, which begin at 1, with their queues."""
        return tuple((queue, segment) for queue in self.found.queues for segment in queue.log)

    @property
    def size(self) -> int:
        """The bytes of all segments, of logs and of units."""
        parts = (part for queue in self.found.queues for part in (queue.log, queue.units))
        return sum(segment.size for part in parts for segment in part)

    def offset_of(self, place: int) -> int | None:
        """The offset in the log of its queue that a place stands for; None outside of all segments."""
        number = place // SPAN - 1
        inside = 0 <= number < len(self.segments)
        return self.segments[number][1].base + place % SPAN if inside else None

    def queue_at(self, place: int) -> Key | None:
        """The queue whose log has a place; None outside of all."""
        number = place // SPAN - 1
        return self.segments[number][0].key if 0 <= number < len(self.segments) else None

    def written(self, place: int) -> int:
        """How many bytes the file of the log at a place has before zeros: its segment and a blank."""
        return min(self.segments[place // SPAN - 1][1].size + BLANK_SIZE, SPAN)

    # the files of the view

    @cached_property
    def log_files(self) -> tuple[ViewFile, ...]:
        """The files of the log, in order."""
        numbers = range(1, len(self.segments) + 1)
        return tuple(ViewFile(f"{_LOG}/{number * SPAN:020}", number * SPAN, SPAN) for number in numbers)

    @cached_property
    def queue_files(self) -> dict[Key, ViewFile]:
        """The file of every queue that has units."""
        found = ((queue.key, self._units(queue)) for queue in self.found.queues)
        return {key: file for key, file in found if file is not None}

    def queue_folder(self, key: Key) -> StoragePath:
        """The folder of a queue in the view."""
        return self.root / _QUEUES / _folder_name(key[0]) / str(key[1])

    @property
    def index(self) -> IndexView | None:
        """The index; None if there is none that can be read."""
        return None

    @cached_property
    def index_files(self) -> dict[str, Key]:
        """The queues by the names of their index files."""
        if self.index is None:
            return {}
        return {
            f"{_INDEX}/{places.number:017}": key
            for key, places in self.places.items()
            if self.queues[key].log
        }

    @property
    def index_shape(self) -> Shape | None:
        """How index files are divided."""
        return None if self.index is None else self.index.shape

    @property
    def unread(self) -> tuple[Unsupported, ...]:
        """The parts that are not read."""
        return ()

    def relative(self, inner: str) -> str:
        """The name of the real file, from `folder` on."""
        part, _, rest = inner.partition("/")
        if part == _LOG and rest.isdigit() and 0 < int(rest) // SPAN <= len(self.segments):
            return self._below(path_at(self.segments[int(rest) // SPAN - 1][1].place))
        if part == _QUEUES:
            key = self._queue_of(rest)
            if key is not None and (units := self.queues[key].units):
                return self._below(path_at(units[0].place).parent)
        if inner in self.index_files:
            topic, queue_id = self.index_files[inner]
            folders = [self._below(path_at(segment.place).parent) for segment in self.found.index_segments]
            return f"{folders[0] if folders else _INDEX} ({topic}/{queue_id})"
        return inner

    def _below(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _queue_of(self, rest: str) -> Key | None:
        """The queue of TOPIC/QUEUE or TOPIC/QUEUE/NAME."""
        return self._folders.get("/".join(rest.split("/")[:2]))

    @cached_property
    def _folders(self) -> Mapping[str, Key]:
        return {f"{_folder_name(topic)}/{queue_id}": (topic, queue_id) for topic, queue_id in self.queues}

    # Storage

    def show(self, inner: str) -> str:
        """See Storage."""
        return f"{self.folder}/{self.relative(inner)}" if inner else str(self.folder)

    def recipe(self) -> Recipe:
        """See Storage."""
        return type(self), (self.folder,)

    @cached_property
    def _tree(self) -> dict[str, dict[str, os.stat_result]]:
        """The entries of every folder but the root and index/."""
        tree = {_LOG: {file.inner.rpartition("/")[2]: status_of(file.size) for file in self.log_files}}
        tree[_QUEUES] = {}
        for name, key in sorted(self._folders.items()):
            topic, _, queue_id = name.partition("/")
            tree[_QUEUES][topic] = status_of(None)
            tree.setdefault(f"{_QUEUES}/{topic}", {})[queue_id] = status_of(None)
            file = self.queue_files.get(key)
            tree[f"{_QUEUES}/{name}"] = (
                {} if file is None else {file.inner.rpartition("/")[2]: status_of(file.size)}
            )
        return tree

    @cached_property
    def _index_entries(self) -> dict[str, os.stat_result]:
        size = 0 if self.index is None else self.index.shape.size
        return {name.rpartition("/")[2]: status_of(size) for name in self.index_files}

    def _entries(self, inner: str) -> Mapping[str, os.stat_result]:
        if not inner:
            names = (_LOG, _QUEUES, *([_INDEX] if self.index_files else []))
            return {name: status_of(None) for name in names}
        if inner == _INDEX and self.index is not None:
            return self._index_entries
        if inner not in self._tree:
            raise self._missing(inner)
        return self._tree[inner]

    def entries(self, inner: str) -> Entries:
        """See Storage."""
        return list(self._entries(inner).items())

    def status(self, inner: str) -> os.stat_result:
        """See Storage."""
        folder, _, name = inner.rpartition("/")
        if not inner:
            return status_of(None)
        found = self._entries(folder).get(name)
        if found is None:
            raise self._missing(inner)
        return found

    def _missing(self, inner: str) -> OSError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.show(inner))

    def open(self, inner: str) -> RandomFile:
        """See Storage."""
        part, _, rest = inner.partition("/")
        if part == _LOG and rest.isdigit() and 0 < int(rest) // SPAN <= len(self.segments):
            number = int(rest) // SPAN
            segment = self.segments[number - 1][1]
            return LogFile(open_file(segment.place), segment.base, number * SPAN, self._used)
        if part == _QUEUES and (key := self._queue_of(rest)) is not None and rest.count("/") == 2:
            if key in self.queue_files and self.queue_files[key].inner == inner:
                return self._open_units(self.queues[key])
        if inner in self.index_files and self.index is not None:
            return _Padded(self.index.file(self.index_files[inner]), self.index.shape.size)
        raise self._missing(inner)

    def _read(self, segment: Segment, offset: int, length: int) -> bytes:
        """Bytes of a segment of units, which stays open."""
        with self._lock:
            return self._opened(segment).read(offset, length)

    def _data_from(self, segment: Segment, offset: int) -> int:
        """The first offset in a segment of units, from `offset` on, outside of holes; its end if none.

        `offset` if it cannot be read: reading it gives the error.
        """
        try:
            with self._lock:
                return self._opened(segment).data_from(offset)
        except OSError:
            return offset

    def _opened(self, segment: Segment) -> RandomFile:
        path = path_at(segment.place)
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = open_file(segment.place)
        return file

    def close(self) -> None:
        """See Storage."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


class TieredLogs(QueueLogs):
    """A tiered copy: `folder` is tieredStoreFilePath or the folder of a broker, `broker` the latter."""

    name = "tiered storage"
    kind = "tiered"

    def __init__(self, folder: Path, broker: Path, metadata: Path | None = None) -> None:
        super().__init__(folder)
        self.broker = broker
        self._metadata = metadata

    def recipe(self) -> Recipe:
        """See Storage."""
        return TieredLogs, (self.folder, self.broker, self._metadata)

    @cached_property
    def found(self) -> Found:
        """See QueueLogs."""
        return tiered.find_segments(self.broker)

    @cached_property
    def metadata(self) -> tiered.MetadataFile:
        """What the store's configuration says of the copy."""
        if self._metadata is not None:
            return tiered.read_metadata(self._metadata)
        return tiered.find_metadata(self.folder)

    def _used(self, file: RandomFile) -> int:
        coda = tiered_form.CODA
        end = file.read(file.size - coda.size, coda.size) if file.size >= coda.size else b""
        if len(end) == coda.size and coda.unpack(end)[:2] == (coda.size, BLANK_MAGIC):
            return file.size - coda.size
        return file.size

    def _units(self, queue: QueueLog) -> ViewFile | None:
        ends = [
            segment.end - segment.size % UNIT_SIZE for segment in queue.units if segment.size >= UNIT_SIZE
        ]
        bases = [segment.base for segment in queue.units if segment.base % UNIT_SIZE == 0]
        if not ends or not bases:
            return None
        start, stop = min(bases), max(ends) - max(ends) % UNIT_SIZE
        folder = self.queue_folder(queue.key).inner
        return ViewFile(f"{folder}/{start:020}", start, max(stop - start, 0))

    def _open_units(self, queue: QueueLog) -> RandomFile:
        from rmqtool.storage.queue_logs.unit_file import UnitFile

        file = self.queue_files[queue.key]
        segments = [segment for segment in queue.units if segment.base % UNIT_SIZE == 0]
        return UnitFile(
            segments, self.places[queue.key], self._read, self._data_from,
            file.offset, file.offset + file.size,
        )  # fmt: skip

    @cached_property
    def index_reason(self) -> str | None:
        """Why the index is not read; None if it is, or if there is none."""
        if not self.found.index_segments:
            return None
        if self.metadata.content is None:
            text = "without the metadata of the broker the topics of its items are not known"
            if self._metadata is not None:
                return text  # a store, or a broker.conf, names them; they are missing or damaged
            return f"{text}: name a --broker-conf whose storePathRootDir has config/{tiered_form.METADATA}"
        size = sum(segment.size for segment in self.found.index_segments)
        return f"it has more than {INDEX_LIMIT} bytes" if size > INDEX_LIMIT else None

    @cached_property
    def _index(self) -> IndexView | None:
        from rmqtool.storage.queue_logs.index_files import IndexView, items_of

        content = self.metadata.content
        if self.index_reason is not None or content is None:
            return None
        found = []
        for segment in self.found.index_segments:
            try:
                file = open_file(segment.place)
                try:
                    found.append(items_of(file.read, segment.size))
                finally:
                    file.close()
            except (FormatError, OSError):
                continue  # verify reports it
        return IndexView(found, self.places, content.topics) if found else None

    @property
    def index(self) -> IndexView | None:
        """See QueueLogs."""
        return self._index

    @property
    def unread(self) -> tuple[Unsupported, ...]:
        """See QueueLogs."""
        if self.index_reason is None:
            return ()
        folder = path_at(self.found.index_segments[0].place).parent
        return (Unsupported("index entries", folder, "tiered storage", self.index_reason),)


class CompactedLogs(QueueLogs):
    """The logs of compacted topics in `folder`, the folder compaction/ of a store."""

    name = "compacted topics"
    kind = "compacted"

    @cached_property
    def found(self) -> Found:
        """See QueueLogs."""
        return compacted.find_logs(self.folder)

    def _used(self, file: RandomFile) -> int:
        """A file ends in zeros, before which a full one has a blank; one that was compacted has none."""
        end = nonzero_end(file, 0, min(file.size, SPAN))
        start = end - BLANK_SIZE
        blank = file.read(start, BLANK_SIZE) if start >= 0 else b""
        is_blank = len(blank) == BLANK_SIZE and BLANK.unpack(blank) == (file.size - start, BLANK_MAGIC)
        return start if is_blank else end

    @cached_property
    def _sparse(self) -> dict[Key, SparseUnits]:
        return {}

    def sparse_units(self, queue: QueueLog) -> SparseUnits:
        """The units of a queue. Raises UnreadableError."""
        from rmqtool.storage.queue_logs.unit_file import SparseUnits

        found = self._sparse.get(queue.key)
        if found is None:
            data = b""
            for segment in queue.units:
                if len(data) + segment.size > _UNITS_LIMIT:
                    raise UnreadableError(
                        f"more than {_UNITS_LIMIT} bytes of units", path=path_at(segment.place)
                    )
                try:
                    data += self._read(segment, 0, segment.size - segment.size % BATCH_UNIT_SIZE)
                except OSError as error:
                    raise UnreadableError(
                        f"cannot read: {error.strerror}", path=path_at(segment.place)
                    ) from error
            found = self._sparse[queue.key] = SparseUnits(data)
        return found

    def _units(self, queue: QueueLog) -> ViewFile | None:
        try:
            units = self.sparse_units(queue)
        except UnreadableError:
            return None  # verify reports it
        if not len(units.offsets):
            return None
        folder = self.queue_folder(queue.key).inner
        start = units.first * UNIT_SIZE
        return ViewFile(f"{folder}/{start:020}", start, (units.stop - units.first) * UNIT_SIZE)

    def _open_units(self, queue: QueueLog) -> RandomFile:
        from rmqtool.storage.queue_logs.unit_file import SparseUnitFile

        return SparseUnitFile(self.sparse_units(queue), self.places[queue.key])


class _Padded:
    """Bytes in memory as the start of a RandomFile of zeros."""

    is_near = True

    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self.size = size

    def read(self, offset: int, length: int) -> bytes:
        """See RandomFile."""
        stop = min(offset + length, self.size)
        return self._data[offset:stop].ljust(max(stop - offset, 0), b"\0")

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        return offset if offset < len(self._data) else self.size

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        return max(offset, len(self._data))

    def close(self) -> None:
        """See RandomFile."""


def _folder_name(topic: str) -> str:
    return quote(topic, safe="%|-_") if "/" in topic or topic in (".", "..") else topic
