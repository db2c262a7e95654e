"""A message store, opened for reading; `rmqtool.StoreWriter` writes one.

    from rmqtool import Store

    with Store.open("/data/store") as store:
        for stored in store.messages():
            print(stored.physical_offset, stored.message.topic, stored.message.body)

Opening reads the folders and nothing else. No lock is taken, so a store that a broker is using can
be read too: its end moves, and files may vanish. Files that it adds later are not seen: open it again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from rmqtool.errors import FormatError, UnreadableError, UnsupportedStoreError
from rmqtool.formats.consume_queue import BatchUnit, Unit
from rmqtool.formats.message_id import OffsetMessageId
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.commit_log import CommitLog, sound
from rmqtool.log.events import Blank, CorruptRange, LogEvent, StoredMessage, TrailingZeros
from rmqtool.log.log_heads import Head
from rmqtool.queue.consume_queue import AnyQueue, BatchConsumeQueue, ConsumeQueue, End, Span, open_queue
from rmqtool.read.selection import Selection
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.counted_queues import counted_queues
from rmqtool.storage.layout import StoreFile, StoreLayout, detect
from rmqtool.storage.locate import find_layout, located
from rmqtool.storage.open_files import Failure, OpenFiles, path_of
from rmqtool.storage.profile import Profile, WrittenBy, named, written_by
from rmqtool.storage.storage import StoragePath

if TYPE_CHECKING:
    from rmqtool.log.remains import Remains
    from rmqtool.storage.lock import LockState

__all__ = [
    "AnyQueue", "BatchConsumeQueue", "Blank", "CommitLog", "ConsumeQueue", "CorruptRange", "LogEvent",
    "Store", "StoreLayout", "StoredMessage", "TrailingZeros", "detect",
]  # fmt: skip


_MANY_QUEUES = 500  # worth loading numpy to look at their ends together
_MERGE_UNITS = 1 << 18  # units held in memory on a way back through all queues


def _places(units: Iterable[Unit | BatchUnit | None]) -> Iterator[tuple[int, int]]:
    """(physical offset, size) of units, until their file cannot be read: a live store deletes files."""
    try:
        for unit in units:
            if unit is not None:
                yield unit.physical_offset, unit.size
    except UnreadableError:
        return


class OpenQueues(Mapping[tuple[str, int], AnyQueue]):
    """The queues of a store by (topic, queue id); each is opened when it is first asked for."""

    def __init__(self, layout: StoreLayout, files: OpenFiles) -> None:
        self._layout = layout
        self._files = files
        self._listed = counted_queues(layout)
        self._open: dict[tuple[str, int], AnyQueue] = {}

    def __getitem__(self, key: tuple[str, int]) -> AnyQueue:
        queue = self._open.get(key)
        if queue is None:
            listed = self._listed[key]
            queue = self._open[key] = open_queue(listed, self._files, self._layout.ext_queues.get(key))
        return queue

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def __contains__(self, key: object) -> bool:
        return key in self._listed


@dataclass(frozen=True)
class NewestUnits:
    """The newest unit of every queue that has one and can be read, as one look at each found it.

    `units` is by topic and queue id; each unit comes with its number.
    """

    units: Mapping[tuple[str, int], tuple[int, Unit | BatchUnit]]

    def places(self) -> Iterator[tuple[int, int]]:
        """(physical offset, size) of each unit."""
        return ((unit.physical_offset, unit.size) for _, unit in self.units.values())

    @property
    def end(self) -> int:
        """The physical offset after the newest record that has a unit; -1 without units."""
        units = (unit for _, unit in self.units.values() if not unit.is_pre_blank)
        return max((unit.physical_offset + unit.size for unit in units), default=-1)


class Store:
    """A store, a folder of commit log files, or a single file of one. Made by `Store.open`."""

    def __init__(self, layout: StoreLayout) -> None:
        self.layout = layout
        self._files = OpenFiles()
        self._first_live: dict[tuple[str, int], int] = {}
        self.commit_log = CommitLog(layout, self._files)
        self.location = Location.of(layout.place, {})

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        commitlog_paths: Sequence[Path | str] = (),
        read_only_paths: Sequence[Path | str] = (),
        broker_conf: Path | str | BrokerConf | None = None,
        file_sizes: Mapping[str, int] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        announce: Callable[[str], None] | None = None,
        profile: str | None = None,
    ) -> Store:
        """Open what lies at `path` for reading.

        `path` may be a URL too (`s3://bucket/store`, `webhdfs://host:port/store`), a tar, and what is
        compressed with gzip or zstd: a tar, a single file, a store file by file.

        Args:
            path: where the store is.
            commitlog_paths: see `layout.detect`, as for the next three.
            read_only_paths: see there.
            broker_conf: see there.
            file_sizes: see there.
            storage_options: for a URL, by the names that fsspec or pyarrow's S3 have for them, never printed.
            announce: called with a few words before something large is unpacked, and about a part of a file.
            profile: the version that used the store last, where its files do not show it.

        Raises:
            UsageError: a URL that names no store.
            MissingCodecError: a library for the place is not installed.
            FormatError: an archive that is damaged, cut short or refused.
            InputError: see `layout.detect`.
        """
        given = None if profile is None else named(profile)
        found = {
            "commitlog_paths": tuple(map(located, commitlog_paths)),
            "read_only_paths": tuple(map(located, read_only_paths)),
            "broker_conf": located(broker_conf) if isinstance(broker_conf, str | Path) else broker_conf,
            "file_sizes": file_sizes,
        }
        arguments: dict[str, Any] = {name: value for name, value in found.items() if value}
        place = located(path, storage_options)
        store = cls(find_layout(place, announce or (lambda _: None), **arguments))
        if given is not None:
            store.written_by = given
            arguments["profile"] = profile
        store.location = Location.of(place, arguments)
        return store

    @property
    def failures(self) -> Mapping[Path, Failure]:
        """The files that could not be read so far, each with its first failure; see `OpenFiles`."""
        return self._files.failures

    def note_failure(self, error: UnreadableError) -> None:
        """Keep in mind that a file could not be read by who went on without it."""
        self._files.failures.setdefault(path_of(error), Failure(None, None, error.message))

    def note_unread(self, path: Path, reason: str) -> None:
        """The same by its path and the system's reason."""
        self.note_failure(UnreadableError(f"cannot read: {reason}", path=path))

    def close(self) -> None:
        """Close the files. The store can still be used: they are opened again when needed."""
        self._files.close()
        for part in (self.layout.rocksdb, self.layout.pop, self.layout.rocksdb_messages):
            if part is not None:
                part.close()
        place = self.layout.place
        if isinstance(place, StoragePath):
            place.storage.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # state

    @cached_property
    def written_by(self) -> WrittenBy:
        """The broker version that used the store last, or the one given; it may be a guess."""
        return written_by(self.layout)

    @property
    def profile(self) -> Profile:
        """The broker version that is taken for the one that used the store last."""
        return self.written_by.profile

    @property
    def is_local(self) -> bool:
        """Whether its files are on a disk of this machine, and no archive or compressed file holds them."""
        return not isinstance(self.layout.place, StoragePath)

    @property
    def holder(self) -> LockState:
        """Who holds the store's lock now; unknown where `is_local` is False."""
        from rmqtool.storage import lock

        place = self.layout.place
        return lock.elsewhere(place) if isinstance(place, StoragePath) else lock.holder(self.layout.lock)

    @property
    def live(self) -> bool:
        """Whether a broker, or another rmqtool, is using the store now."""
        return self.holder.is_held

    # offsets

    @cached_property
    def queues(self) -> Mapping[tuple[str, int], AnyQueue]:
        """All queues by (topic, queue id), batch queues included."""
        return OpenQueues(self.layout, self._files)

    def queue(self, topic: str, queue_id: int) -> AnyQueue | None:
        """One queue; None where the store has none of that name.

        Raises:
            UnsupportedStoreError: the queues are in RocksDB.
        """
        found = self.queues.get((topic, queue_id))
        if found is None and not self.layout.has_files_of_queues:
            raise UnsupportedStoreError("the consume queues are in RocksDB", path=self.layout.root)
        return found

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The smallest queue offset that the broker would serve; 0 for an unknown queue."""
        queue = self.queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset(self.commit_log.min_offset, self.profile)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message would get; 0 for an unknown queue."""
        queue = self.queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset()

    def first_live(self, topic: str, queue_id: int) -> int:
        """The queue offset of the first message that the log still holds; the maximum without one.

        Found once for each queue that exists.
        """
        key = topic, queue_id
        if key not in self._first_live:
            self._first_live[key] = self.queues[key].first_live(self.commit_log.min_offset)
        return self._first_live[key]

    def end_offset(self) -> int:
        """The physical offset after the last whole record. See `CommitLog.end_offset`."""
        return self.commit_log.end_offset(self.newest_units().places())

    def dispatched_end(self) -> int:
        """The physical offset after the newest record that has a unit in some queue; -1 without units.

        A queue that cannot be read is left out.
        """
        return self.newest_units().end

    def newest_units(self) -> NewestUnits:
        """Look at the end of every queue, once; for a caller that needs more than one thing of it."""
        found: dict[tuple[str, int], tuple[int, Unit | BatchUnit]] = {}
        seen = self._seen_ends()
        for key in self.queues:
            try:
                end, unit = seen[key][:2] if key in seen else self.queues[key].end_and_last()
            except UnreadableError:
                continue
            if unit is not None:
                found[key] = end - 1, unit
        return NewestUnits(found)

    def last_stored_ms(self) -> int | None:
        """The store time of the log's last whole record, ms since 1970; None without one."""
        last = self.commit_log.tail(self.newest_units().places()).last
        return None if last is None else last.store_timestamp

    def spans(self) -> Iterator[tuple[tuple[str, int], Span | UnreadableError]]:
        """Topic and queue id of every queue, and its span, or why it cannot be read."""
        seen = self._seen_ends()
        start, profile = self.commit_log.min_offset, self.profile
        for key, queue in self.queues.items():
            try:
                if key in seen and isinstance(queue, ConsumeQueue):
                    yield key, queue.seen_span(seen[key], start, profile)
                else:
                    yield key, queue.span(start, profile)
            except UnreadableError as error:
                yield key, error

    def _seen_ends(self) -> Mapping[tuple[str, int], End]:
        """The ends of queues, as far as they can be seen together; none where there are few queues."""
        if len(self.queues) < _MANY_QUEUES:
            return {}
        from rmqtool.queue.newest import ends_of

        return ends_of(self.layout.consume_queues.values())

    # messages

    def get(self, physical_offset: int) -> StoredMessage | None:
        """The message at a physical offset; None where no file holds the offset, or a blank is there.

        Raises:
            FormatError: the bytes there are not a whole record, or one that belongs elsewhere.
            UnreadableError: the file cannot be read.
        """
        if self.commit_log.file_of(physical_offset) is None:
            return None
        found = self.commit_log.read(physical_offset)
        if isinstance(found, Blank):
            return None
        if found.message.physical_offset != physical_offset:
            raise FormatError(
                f"the record here was stored for offset {found.message.physical_offset}",
                path=found.file,
                physical_offset=physical_offset,
            )
        return found

    def head(self, physical_offset: int) -> Head | None:
        """The head of the record at a physical offset, without its body; None where none can be read.

        As with `find` CRC and stored offset need not be right.
        """
        try:
            return self.commit_log.head(physical_offset)
        except UnreadableError:
            return None

    def find(self, physical_offset: int) -> StoredMessage | None:
        """The record at a physical offset, sound or not; None where no whole record can be read."""
        try:
            found = self.commit_log.read(physical_offset)
        except (FormatError, UnreadableError):
            return None
        return found if isinstance(found, StoredMessage) else None

    def units_of(self, physical_offset: int) -> Iterator[tuple[str, int, int, Unit | BatchUnit]]:
        """(topic, queue id, queue offset, unit) of each unit that leads to a physical offset.

        Queues that cannot be read are left out.
        """
        for (topic, queue_id), queue in self.queues.items():
            try:
                number = queue.number_after(physical_offset) - 1
                unit = queue.by_number(number)
            except (FormatError, UnreadableError):  # whoever needs the queue reports it
                continue
            if unit is not None and unit.physical_offset == physical_offset and not unit.is_pre_blank:
                yield topic, queue_id, queue.queue_offset(number, unit), unit

    def remains(self, physical_offset: int) -> Remains | None:
        """What is left of the damaged record at a physical offset; None if nothing is.

        A unit, or the header that is left, shows that a record begins there.
        """
        sizes = [(unit.size, topic) for topic, _, _, unit in self.units_of(physical_offset)]
        for size, topic in (*sizes, (0, None)):
            try:
                found = self.commit_log.remains(physical_offset, size, topic)
            except UnreadableError:  # whoever needs the log reports it
                return None
            if found is not None:
                return found
        return None

    def get_by_id(self, offset_msg_id: str) -> StoredMessage | None:
        """The message with an offset message id; its host is not compared, as in the broker.

        Raises:
            FormatError: no such id, or see `get`.
        """
        return self.get(OffsetMessageId.decode(offset_msg_id).physical_offset)

    def get_by_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
        """The message at a queue offset; None where the queue has no unit for it.

        In a batch queue it is the record that holds the offset. Raises as `get` does.
        """
        queue = self.queue(topic, queue_id)
        unit = queue.unit(queue_offset) if queue is not None else None
        return None if unit is None or unit.is_pre_blank else self.get(unit.physical_offset)

    def events(
        self, start: int | None = None, stop: int | None = None, *, reverse: bool = False
    ) -> Iterator[LogEvent]:
        """Messages, blanks, zeros and damage of the log in [start, stop), physical offsets."""
        if reverse:
            # All queues are read side by side: the more there are, the less of each is held.
            block = max(_MERGE_UNITS // max(len(self.queues), 1), 1)
            places = (
                _places(unit for _, unit in queue.units(reverse=True, block=block))
                for queue in self.queues.values()
            )
            return self.commit_log.walk_back(start, stop, heapq.merge(*places, reverse=True))
        return self.commit_log.walk(start, stop, self._units_before)

    def record_before(self, file: StoreFile, offset: int) -> int:
        """Physical offset of a sound record of `file` at or before `offset`, else of the file's start.

        The nearest that the queues know of; a walk from there misses nothing from `offset` on.
        """
        return self.commit_log.record_before(file, offset, self._units_before)

    def _units_before(self, physical_offset: int) -> Iterator[tuple[int, int]]:
        """(physical offset, size) of every queue's last unit at or before an offset."""
        return self._places_in_queues(lambda queue: queue.before(physical_offset))

    def _places_in_queues(
        self, unit_of: Callable[[AnyQueue], Unit | BatchUnit | None]
    ) -> Iterator[tuple[int, int]]:
        """(physical offset, size) in one unit of each queue that has it and can be read."""
        return (place for queue in self.queues.values() for place in _places(map(unit_of, (queue,))))

    def messages(
        self,
        selection: Selection | None = None,
        *,
        reverse: bool = False,
        damage: Literal["raise", "skip"] = "raise",
    ) -> Iterator[StoredMessage]:
        """The selected messages in the log's order, those whose body does not match its CRC included.

        `status` says which these are.

        Args:
            selection: what to yield; None is everything.
            reverse: from the last to the first.
            damage: what to do with bytes that are not a sound record and precede sound ones. A torn last
                record and the zeros after the log's end are not damage.

        Raises:
            FormatError: damage, unless it is to be skipped.
            UnreadableError: bytes that the operating system could not read, unless to be skipped.
        """
        selection = selection or Selection()
        events = self.events(selection.from_offset, selection.to_offset, reverse=reverse)
        found = (
            event
            for event in (events if damage == "skip" else sound(events, reverse=reverse))
            if isinstance(event, StoredMessage) and selection.matches(event.message, event.physical_offset)
        )
        yield from islice(found, selection.limit)

    def queue_messages(
        self,
        topic: str,
        queue_id: int,
        start: int | None = None,
        stop: int | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[StoredMessage]:
        """The messages of one queue by queue offset in [start, stop); without bounds, what is served.

        Raises as `get` does, for a unit that names no record.
        """
        queue = self.queue(topic, queue_id)
        if queue is None:
            return
        first = self.min_offset(topic, queue_id) if start is None else start
        for _, unit in queue.units(first, stop, reverse=reverse):
            found = self.get(unit.physical_offset)
            if found is not None:
                yield found


@dataclass(frozen=True, slots=True)
class Location:
    """The arguments that open a store again, in another process or on another machine that reaches it.

    It can be pickled. Its repr shows no secret; its pickle holds those that are needed.
    """

    path: Path
    arguments: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, path: Path, arguments: Mapping[str, Any]) -> Location:
        """Of the store at `path`, opened with these arguments; relative paths are made absolute."""
        return cls(path.absolute(), tuple((name, _absolute(value)) for name, value in arguments.items()))

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> Store:
        """The same store, opened for reading. Raises as `Store.open` does."""
        store: Store = Store.open(self.path, **dict(self.arguments))
        return store


def _absolute(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(path.absolute() for path in value)
    return value.absolute() if isinstance(value, Path) else value
