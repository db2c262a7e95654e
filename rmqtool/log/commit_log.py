"""The commit log of a store, read: one record by its offset, all of them forwards or backwards, its end.

Records are read in plain Python, one by one: `frames` scans a whole log. Where a walk would pass records only
to find its place, the compiled walk finds it.

Source: MappedFileQueue#findMappedFileByOffset, CommitLog#lookMessageByOffset; spec 02 0.3, 8.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TypeGuard

from rmqtool.errors import FormatError, InputError, UnreadableError
from rmqtool.formats import message as form
from rmqtool.formats.message import Message
from rmqtool.log.damage import file_events, unreadable_range
from rmqtool.log.events import (
    BODY_CRC,
    OFFSET_MISMATCH,
    Blank,
    CorruptRange,
    LogEvent,
    Reason,
    StoredMessage,
    TrailingZeros,
)
from rmqtool.log.log_files import LogFiles
from rmqtool.log.log_heads import heads_of_file, is_blank, reader
from rmqtool.log.python_scan import frame_lengths, walk_reference
from rmqtool.log.remains import Remains, heads_in, remains_of
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.source import open_source

_READ_AHEAD = 4096  # most records are smaller
_PLAIN_BYTES = 256 << 10  # passed in plain Python: less is not worth loading the compiled walk
REMAINS_MAX = 16 << 20  # more than any broker takes for one message
_HINTS = 16  # furthest queue units that are tried; units that point nowhere are damage


def status_of(message: Message, physical_offset: int) -> int:
    """The status bits of a record that lies at `physical_offset`; 0 for a sound one."""
    status = 0 if message.physical_offset == physical_offset else OFFSET_MISMATCH
    if message.body and form.masked_crc(message.body) != message.body_crc:
        status |= BODY_CRC
    return status


def _before(limit: int, events: Iterable[LogEvent]) -> Iterator[LogEvent]:
    """The events before `limit`; unreadable bytes come before the event that has them, and end there."""
    for event in events:
        if _is_unreadable(event):
            left = limit - event.physical_offset
            if left > 0:
                yield event if event.end <= limit else replace(event, length=left)
        elif event.physical_offset < limit:
            yield event
        else:
            return


def _is_wanted(event: LogEvent, start: int) -> bool:
    """Whether an event that may begin before `start` is part of a walk from there."""
    if isinstance(event, CorruptRange | TrailingZeros):
        return event.end > start
    return event.physical_offset >= start


def _is_unreadable(event: LogEvent) -> TypeGuard[CorruptRange]:
    return isinstance(event, CorruptRange) and event.reason is Reason.UNREADABLE


def sound(events: Iterable[LogEvent], *, reverse: bool) -> Iterator[LogEvent]:
    """The events up to the first damage with records after it, which is raised."""
    gap: CorruptRange | TrailingZeros | None = None
    found_record = False
    for event in events:
        if isinstance(event, StoredMessage):
            if gap is not None and not reverse:
                raise _damage(gap)
            found_record = True
        elif isinstance(event, CorruptRange | TrailingZeros):
            if reverse and found_record:
                raise _damage(event)
            gap = event
        yield event


def _damage(gap: CorruptRange | TrailingZeros) -> InputError:
    unreadable = _is_unreadable(gap)
    kind = UnreadableError if unreadable else FormatError
    return kind(
        "cannot be read" if unreadable else "no sound record here, but some follow",
        path=gap.file,
        physical_offset=gap.physical_offset,
        hint="rmqtool verify shows the damage",
    )


class CommitLog(LogFiles):
    """The records of a commit log, in the files that it had when the layout was made."""

    def __init__(self, layout: StoreLayout, files: OpenFiles) -> None:
        super().__init__(layout.commit_log, files)
        self.file_size = layout.commit_log_file_size
        self._layout = layout

    def read(self, physical_offset: int) -> StoredMessage | Blank:
        """The record or blank at `physical_offset`.

        Every length is checked before it is used. CRC and stored offset are not required to be
        right: `status` of the result says so. A record above RECORD_SIZE_MAX is refused.

        Raises:
            FormatError: no file holds the offset, no whole record starts there, or it is too large.
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
            return Blank(physical_offset, found, file.end - physical_offset, file.path, name)
        return StoredMessage(found, physical_offset, file.path, name, status_of(found, physical_offset))

    def bytes_of(self, stored: StoredMessage) -> bytes:
        """The bytes of a record as its file has them. Raises UnreadableError."""
        file = self.file_of(stored.physical_offset)
        if file is None or file.path != stored.path:  # of files that overlap the other one
            file = next(each for each in self.files if each.path == stored.path)
        position, size = stored.physical_offset - file.file_from_offset, stored.message.total_size
        data = self._open_files.read(file.path, position, size)
        if len(data) < size:
            raise UnreadableError(
                "the file has become shorter", path=file.path, physical_offset=stored.physical_offset
            )
        return data

    def record_place(self, start: int) -> int:
        """Where the record begins of what starts at a physical offset: of an entry after its header."""
        file = self.file_of(start)
        return start if file is None else start + file.entry_header

    def remains(self, physical_offset: int, size: int, topic: str | None) -> Remains | None:
        """What is left of a record that `read` cannot read; None if nothing is, or if it is too large.

        Args:
            physical_offset: of the record.
            size: of the record, bytes, as its unit says; or of the bytes without a record that begin there.
            topic: of the record, as its queue says; None if no queue has it.

        Raises:
            UnreadableError: the file cannot be read.
        """
        file = self.file_of(physical_offset)
        if file is None:
            return None
        position = physical_offset - file.file_from_offset
        if topic is None:
            data = self._listed(file, position, _READ_AHEAD)
            head = next(heads_in(data, physical_offset), None)
            if head is not None and head.physical_offset == physical_offset:
                size = head.values["total_size"]
        if size > REMAINS_MAX:
            return None
        data = self._listed(file, position, size)
        return remains_of(data, physical_offset, position, size, topic)

    def is_zero(self, physical_offset: int, size: int) -> bool:
        """Whether a range of one file holds nothing but zeros, as far as there is such a file.

        Raises:
            UnreadableError: the file cannot be read.
        """
        file = self.file_of(physical_offset)
        if file is None:
            return True
        return not self._listed(file, physical_offset - file.file_from_offset, size).rstrip(b"\0")

    def _listed(self, file: StoreFile, position: int, size: int) -> bytes:
        """The bytes of a file from `position` on, `size` at most."""
        return self._open_files.read_listed(file.path, position, min(size, file.size - position))

    def _read(self, file: StoreFile, position: int) -> Message | int:
        """The record at `position` of `file`, or the size that a blank there states."""
        left = file.size - position
        data = self._open_files.read_listed(file.path, position, min(_READ_AHEAD, left))
        if len(data) < form.BLANK_SIZE:
            raise FormatError(f"only {left} bytes are left in the file")
        total_size, magic = form.BLANK.unpack(data)
        if is_blank(total_size, magic, left, file.entry_header):
            return left if file.entry_header else int(total_size)
        version = form.VERSION_BY_MAGIC.get(magic)
        if version is not None and total_size > left:
            raise FormatError(f"record size {total_size} does not fit into the {left} bytes left in the file")
        if version is not None and len(data) < total_size:
            # Read a long record only when its parts add up: a size alone may be any number.
            read = reader(self._open_files, file, position, data)
            if frame_lengths(read, position, total_size, version) is None:
                raise FormatError(f"record size {total_size}, but its parts do not add up to it")
            if total_size > form.RECORD_SIZE_MAX:
                raise FormatError(f"record size {total_size} is above {form.RECORD_SIZE_MAX}, the maximum")
            data = self._open_files.read_listed(file.path, position, total_size)
        return form.decode(data)

    def walk(
        self,
        start: int | None = None,
        stop: int | None = None,
        units_before: Callable[[int], Iterable[tuple[int, int]]] | None = None,
    ) -> Iterator[LogEvent]:
        """Yield the events of the log in order, from `start` on and before `stop`.

        Args:
            start: physical offset of a record, or anything up to the next one; None: the log's start.
            stop: records that start at or after it are left out.
            units_before: gives (physical offset, size) of queue units at or before an offset: with
                them a start inside a record need not be looked for from the file's start on.

        After damage the walk goes on with the next sound record of the file, else with the next
        file. A file that vanished or cannot be opened is one CorruptRange, unreadable.
        """
        first = self.min_offset if start is None else start
        for file in self.files:
            if file.end <= first:
                continue
            if stop is not None and file.file_from_offset >= stop:
                return
            begin = self.record_before(file, first, units_before)
            for event in self._walk_file(file, begin, stop):
                if _is_wanted(event, first):
                    yield event

    def record_before(
        self,
        file: StoreFile,
        offset: int,
        units_before: Callable[[int], Iterable[tuple[int, int]]] | None,
    ) -> int:
        """A place in `file` to walk from so that nothing at or after `offset` is missed."""
        if offset <= file.file_from_offset or self.is_sound_at(offset):
            return max(offset, file.file_from_offset)
        units = units_before(offset) if units_before is not None else ()
        begin = file.file_from_offset
        for place, _ in sorted(units, reverse=True)[:_HINTS]:
            if place < file.file_from_offset:
                break
            if self.is_sound_at(place):
                begin = place
                break
        return max(self._sound_records(file, begin, min(offset, file.end)), default=begin)

    def _walk_file(self, file: StoreFile, start: int, stop: int | None) -> Iterator[LogEvent]:
        """Yield the events that start in [start, stop) of `file`.

        `start` is the start of a record, or of a range without a known record.
        """
        base, name = file.file_from_offset, self._layout.relative(file.path)
        end = file.end if stop is None else min(stop, file.end)
        if start >= end:
            return
        try:
            source = open_source(file.path, listed_size=file.size)
        except OSError:
            yield unreadable_range(start, end, file.path, name, to_end=True)
            return
        with closing(source):
            walk = walk_reference(source, file_from_offset=base, start=start - base, stop=end - base,
                                  entry_header=file.entry_header)  # fmt: skip
            yield from file_events(walk, source, file, name)

    def walk_back(
        self,
        start: int | None = None,
        stop: int | None = None,
        units: Iterable[tuple[int, int]] = (),
    ) -> Iterator[LogEvent]:
        """Yield the events of `walk` for the same bounds, from the last to the first.

        Args:
            start: see `walk`.
            stop: see `walk`.
            units: (physical offset, size) of records, falling by offset: the store's queue units.
                They only save work: what lies between them is walked, and a unit whose record is
                not there is left out of account.
        """
        low = self.min_offset if start is None else start
        end = max((file.end for file in self.files), default=0)
        stop = end if stop is None else min(stop, end)
        places = iter(units)
        place = next(places, None)
        for file in reversed(self.files):
            begin, upper = max(low, file.file_from_offset), min(stop, file.end)
            while place is not None and place[0] >= begin:
                (offset, size), place = place, next(places, None)
                if offset >= upper or size <= 0:
                    continue
                record = self._sound_record(file, offset)
                if record is None or record.message.total_size != size or record.end > upper:
                    continue
                yield from self._range_back(file, record.end, upper, stop, after=record)
                yield record
                upper = offset
            yield from self._range_back(file, begin, upper, stop)

    def _sound_record(self, file: StoreFile, offset: int) -> StoredMessage | None:
        """The sound record of `file` at an offset; None without one, and where another file has it."""
        try:
            found = self.read(offset)
        except InputError:
            return None
        if not isinstance(found, StoredMessage) or found.status or found.message.ends_in_zeros:
            return None
        return found if found.path == file.path else None

    def _range_back(
        self, file: StoreFile, start: int, upper: int, stop: int, after: StoredMessage | None = None
    ) -> Iterator[LogEvent]:
        """Yield the events of `walk(start, stop)` in `file` before `upper`, the last first.

        A record starts at `upper`, or it is where the walk of the file ends. `after` is the sound record that
        ends at `start`, if one is known there.
        """
        if start >= upper:
            return
        known = () if after is None else ((after.physical_offset, after.message.total_size),)
        begin = self.record_before(file, start, lambda offset: known)
        # First the places to start from, then the pieces between them, the last one first.
        anchors = [begin, *self._sound_records(file, begin, upper)]
        limit = upper
        for anchor in reversed(anchors):
            piece = list(_before(limit, self._walk_file(file, anchor, stop)))
            yield from (event for event in reversed(piece) if _is_wanted(event, start))
            limit = anchor

    def _sound_records(self, file: StoreFile, start: int, stop: int) -> Iterator[int]:
        """Yield physical offsets of sound records in [start, stop), rising, about _PLAIN_BYTES apart.

        A walk from `start` reaches each of them. Yields none if the range has few records, or if the file
        cannot be read.
        """
        if not self._has_many_records(file, start, stop):
            return
        from rmqtool.log.frames import Frames, walk

        base, reached = file.file_from_offset, start
        try:
            source = open_source(file.path, listed_size=file.size)
        except (OSError, UnreadableError):
            return
        with closing(source):
            for event in walk(source, file_from_offset=base, start=start - base, stop=stop - base,
                              entry_header=file.entry_header):  # fmt: skip
                if not isinstance(event, Frames):
                    continue
                rows = event.rows
                # A walk beyond `stop` may judge the record that reaches over it otherwise.
                rows = rows[(rows["status"] == 0) & (rows["physical_offset"] + rows["size"] <= stop)]
                for offset in rows["physical_offset"].tolist():
                    if offset - reached >= _PLAIN_BYTES:
                        reached = offset
                        yield offset

    def _has_many_records(self, file: StoreFile, start: int, stop: int) -> bool:
        """Whether a walk from `start` to `stop` may pass more than _PLAIN_BYTES of records.

        The unused rest of a file does not count.
        """
        if stop - start <= _PLAIN_BYTES:
            return False
        end = start
        try:
            for head in heads_of_file(self._open_files, file, start):
                end = head.end
                if end - start > _PLAIN_BYTES or end >= stop:
                    return end < stop
            return any(self._open_files.read(file.path, end - file.file_from_offset, form.BLANK_SIZE))
        except UnreadableError:
            return False
