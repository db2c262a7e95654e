"""The commit log of a store, read: one record by its offset, all of them forwards or backwards, its end.

Everything here is plain Python and reads what it needs: a whole log is scanned by `rmqtool.scan`.

Source: MappedFileQueue#findMappedFileByOffset, CommitLog#lookMessageByOffset; spec 02 0.3, 8.1.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from rmqtool.errors import FormatError, InputError
from rmqtool.formats import message as form
from rmqtool.formats.message import Message
from rmqtool.scan.events import BODY_CRC, FOREIGN, Bad, Blank, Reason, Record, ZeroRest
from rmqtool.scan.reference import frame_lengths, walk_reference
from rmqtool.scan.source import open_source
from rmqtool.store.layout import StoreFile, StoreLayout
from rmqtool.store.log_heads import Head, heads_of_file
from rmqtool.store.open_files import OpenFiles

_READ_AHEAD = 4096  # most records are smaller
_ANCHOR_STEP = 4096  # records walked again at a time on the way back
_HINTS = 16  # furthest queue units that are tried; units that point nowhere are damage


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record of the log.

    `physical_offset` is its place in the log, `file` the file's name as rows show it. `status` has
    the bits BODY_CRC and FOREIGN of `scan.events`; 0 is a sound record.
    """

    message: Message
    physical_offset: int
    path: Path
    file: str
    status: int = 0

    @property
    def end(self) -> int:
        """The physical offset just behind the record."""
        return self.physical_offset + self.message.total_size


@dataclass(frozen=True, slots=True)
class StoredBlank:
    """The blank that ends a file: `size` is what it says is left of the file."""

    physical_offset: int
    size: int
    path: Path
    file: str


@dataclass(frozen=True, slots=True)
class StoredZeros:
    """Zeros up to the end of a file."""

    physical_offset: int
    length: int
    path: Path
    file: str


@dataclass(frozen=True, slots=True)
class StoredDamage:
    """Bytes that are no sound record; with `to_end` nothing sound follows in the file.

    `reason` is None where the operating system could not read the bytes.
    """

    physical_offset: int
    length: int
    path: Path
    file: str
    reason: Reason | None
    to_end: bool


def status_of(message: Message, physical_offset: int) -> int:
    """The status bits of a record that lies at `physical_offset`; 0 for a sound one."""
    status = 0 if message.physical_offset == physical_offset else FOREIGN
    if message.body and form.masked_crc(message.body) != message.body_crc:
        status |= BODY_CRC
    return status


LogEvent = StoredMessage | StoredBlank | StoredZeros | StoredDamage


def _before(limit: int, events: Iterable[LogEvent]) -> Iterator[LogEvent]:
    return takewhile(lambda event: event.physical_offset < limit, events)


def _is_wanted(event: LogEvent, start: int) -> bool:
    """Whether an event that may begin before `start` is part of a walk from there."""
    if isinstance(event, StoredDamage | StoredZeros):
        return event.physical_offset + event.length > start
    return event.physical_offset >= start


class CommitLog:
    """The files of a commit log, as they were when the layout was made."""

    def __init__(self, layout: StoreLayout, files: OpenFiles) -> None:
        self.files: tuple[StoreFile, ...] = layout.commit_log
        self.file_size = layout.commit_log_file_size
        self._layout = layout
        self._open_files = files
        self._starts = [file.file_from_offset for file in self.files]

    @property
    def min_offset(self) -> int:
        """Where the log begins; -1 without files, as the broker says. Source: CommitLog#getMinOffset."""
        return self.files[0].file_from_offset if self.files else -1

    def file_of(self, physical_offset: int) -> StoreFile | None:
        """The file that holds a physical offset; None outside the log and in a gap."""
        place = bisect_right(self._starts, physical_offset) - 1
        if place < 0 or physical_offset >= self.files[place].end:
            return None
        return self.files[place]

    def read(self, physical_offset: int) -> StoredMessage | StoredBlank:
        """The record or blank at `physical_offset`.

        Every length is checked before it is used. CRC and stored offset are not required to be
        right: `status` of the result says so.

        Raises:
            FormatError: no file holds the offset, or no whole record starts there.
            UnreadableError: the file cannot be read.
        """
        file = self.file_of(physical_offset)
        if file is None:
            raise FormatError("no file of the commit log holds this offset", physical_offset=physical_offset)
        name = self._layout.relative(file.path)
        try:
            found = self._read(file, physical_offset - file.file_from_offset)
        except FormatError as error:
            raise FormatError(
                f"no record here: {error.message}", path=name, physical_offset=physical_offset
            ) from error
        if isinstance(found, int):
            return StoredBlank(physical_offset, found, file.path, name)
        return StoredMessage(found, physical_offset, file.path, name, status_of(found, physical_offset))

    def _read(self, file: StoreFile, position: int) -> Message | int:
        """The record at `position` of `file`, or the size that a blank there states."""
        left = file.size - position
        data = self._open_files.read(file.path, position, min(_READ_AHEAD, left))
        if len(data) < form.BLANK_SIZE:
            raise FormatError(f"only {left} bytes are left in the file")
        total_size, magic = form.BLANK.unpack(data)
        if magic == form.BLANK_MAGIC:
            return int(total_size)
        version = form.VERSION_BY_MAGIC.get(magic)
        if version is not None and len(data) < total_size <= left:
            # Read a long record only when its parts add up: a size alone may be any number.
            def read(at: int, length: int) -> bytes:
                return self._open_files.read(file.path, at, length)

            if frame_lengths(read, position, total_size, version) is None:
                raise FormatError(f"record size {total_size}, but its parts do not add up to it")
            data = read(position, total_size)
        return form.decode(data)

    def walk(
        self,
        start: int | None = None,
        stop: int | None = None,
        units_before: Callable[[int], Iterable[tuple[int, int]]] | None = None,
    ) -> Iterator[LogEvent]:
        """Everything in the log in order, from `start` on and before `stop`.

        Args:
            start: physical offset of a record, or anything up to the next one; None: the log's start.
            stop: records that start at or behind it are left out.
            units_before: gives (physical offset, size) of queue units at or before an offset: with
                them a start inside a record need not be looked for from the file's start on.

        After damage the walk goes on with the next sound record of the file, else with the next
        file. A file that vanished or cannot be opened is one StoredDamage without a reason.
        """
        first = self.min_offset if start is None else start
        for file in self.files:
            if file.end <= first:
                continue
            if stop is not None and file.file_from_offset >= stop:
                return
            begin = self._record_before(file, first, units_before)
            for event in self._walk_file(file, begin, stop):
                if _is_wanted(event, first):
                    yield event

    def _record_before(
        self,
        file: StoreFile,
        offset: int,
        units_before: Callable[[int], Iterable[tuple[int, int]]] | None,
    ) -> int:
        """A place in `file` to walk from so that nothing at or behind `offset` is missed."""
        if offset <= file.file_from_offset or self._sound_record(offset):
            return max(offset, file.file_from_offset)
        units = units_before(offset) if units_before is not None else ()
        for place, _ in sorted(units, reverse=True)[:_HINTS]:
            if place < file.file_from_offset:
                break
            if self._sound_record(place):
                return place
        return file.file_from_offset

    def _walk_file(self, file: StoreFile, start: int, stop: int | None) -> Iterator[LogEvent]:
        """What starts in [start, stop) of `file`; a record, or nothing that is known, is at `start`."""
        base, name = file.file_from_offset, self._layout.relative(file.path)
        end = file.end if stop is None else min(stop, file.end)
        if start >= end:
            return
        try:
            source = open_source(file.path)
        except OSError:
            yield StoredDamage(start, end - start, file.path, name, None, True)
            return
        with closing(source):
            reported = 0
            walk = walk_reference(source, file_from_offset=base, start=start - base, stop=end - base)
            for event in walk:
                for low, high in source.unreadable[reported:]:
                    reported += 1
                    yield StoredDamage(base + low, high - low, file.path, name, None, high == source.size)
                match event:
                    case Record(position=at, status=status, message=message):
                        yield StoredMessage(message, base + at, file.path, name, status)
                    case Blank(position=at, size=size):
                        yield StoredBlank(base + at, size, file.path, name)
                    case ZeroRest(position=at, length=length):
                        yield StoredZeros(base + at, length, file.path, name)
                    case Bad(position=at, length=length, reason=reason, to_end=to_end):
                        yield StoredDamage(base + at, length, file.path, name, reason, to_end)

    def walk_back(
        self,
        start: int | None = None,
        stop: int | None = None,
        units: Iterable[tuple[int, int]] = (),
    ) -> Iterator[LogEvent]:
        """What `walk` yields for the same bounds, from the last to the first.

        Args:
            start: see `walk`.
            stop: see `walk`.
            units: (physical offset, size) of records, falling by offset: the store's queue units.
                They only save work: what lies between them is walked, and a unit whose record is
                not there is left out of account.
        """
        low = self.min_offset if start is None else start
        upper = max((file.end for file in self.files), default=0)
        stop = upper if stop is None else min(stop, upper)
        upper = stop
        for offset, size in units:
            if offset < low:
                break
            if offset >= upper or size <= 0:
                continue
            record = self._sound_record(offset)
            if record is None or record.message.total_size != size or record.end > upper:
                continue
            yield from self._range_back(record.end, upper, stop)
            yield record
            upper = offset
        yield from self._range_back(low, upper, stop)

    def _sound_record(self, offset: int) -> StoredMessage | None:
        try:
            found = self.read(offset)
        except InputError:
            return None
        return found if isinstance(found, StoredMessage) and not found.status else None

    def _range_back(self, start: int, upper: int, stop: int) -> Iterator[LogEvent]:
        """What `walk(start, stop)` yields before `upper`, where a record or `stop` is, backwards."""
        for file in reversed(self.files):
            if file.file_from_offset >= upper or file.end <= start or start >= upper:
                continue
            begin = self._record_before(file, start, None)
            # First the places to start from, then the pieces between them, the last one first.
            anchors = array("q")
            for count, event in enumerate(_before(upper, self._walk_file(file, begin, stop))):
                if count % _ANCHOR_STEP == 0:
                    anchors.append(event.physical_offset)
            limit = upper
            for anchor in reversed(anchors):
                piece = list(_before(limit, self._walk_file(file, anchor, stop)))
                yield from (event for event in reversed(piece) if _is_wanted(event, start))
                limit = anchor

    def end_offset(self, units: Iterable[tuple[int, int]] = ()) -> int:
        """The physical offset behind the last whole record: where a broker would go on writing.

        Args:
            units: (physical offset, size) of the newest unit of every queue, in any order.

        The place is walked to from the furthest unit whose record is there, or from the start of
        the newest file that begins with a record, whichever is further. A walk ends at the first
        place that is neither record nor blank; the last record counts only when its CRC is right.
        0 for a log without files.
        """
        if not self.files:
            return 0
        heads = (file.file_from_offset for file in reversed(self.files))
        start = next((head for head in heads if self._sound_record(head)), self.min_offset)
        for offset, _ in sorted(units, reverse=True)[:_HINTS]:
            if offset <= start:
                break
            if self._sound_record(offset):
                start = offset
                break
        return self._end_from(start)

    def _end_from(self, position: int) -> int:
        """The log's end, when a record, a blank or the end is at `position`."""
        last = None
        while (file := self.file_of(position)) is not None:
            record, stop, is_blank = self._last_of_file(file, position)
            last = last if record is None else record
            if not is_blank or self.file_of(file.end) is None:
                position = stop
                break
            position, last = file.end, None
        if last is not None and not self._sound_record(last):
            return last
        return position

    def _last_of_file(self, file: StoreFile, start: int) -> tuple[int | None, int, bool]:
        """Walk the heads from `start` on: (last record, end, whether a blank is there), as offsets."""
        last, stop = None, start
        for head in heads_of_file(self._open_files, file, start):
            if head.total_size == 0:
                return last, head.physical_offset, True
            last, stop = head.physical_offset, head.physical_offset + head.total_size
        return last, stop, False

    def heads(self, start: int) -> Iterator[Head]:
        """The heads of the records from `start` on, where one starts, up to the log's end.

        Only the first bytes of every record are looked at; CRC and lengths are not.
        """
        position = start
        while (file := self.file_of(position)) is not None:
            is_blank = False
            for head in heads_of_file(self._open_files, file, position):
                is_blank = head.total_size == 0
                if not is_blank:
                    yield head
            if not is_blank:
                return
            position = file.end
