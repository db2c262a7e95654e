"""The records of one range of a commit log file, batch by batch, and what lies between them.

The same as `CommitLog.walk` yields record by record: damage is passed, bytes that cannot be read are
an event, and a last record of which zeros have taken the end is torn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.log.commit_log import StoredBlank, StoredDamage, StoredZeros
from rmqtool.log.events import Blank, CorruptRange, Reason, TrailingZeros
from rmqtool.log.frames import Frames, walk
from rmqtool.log.python_scan import first_nonzero
from rmqtool.read.access import LONG_MAX, LogRange
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.ranges import Unreadable
from rmqtool.storage.source import WINDOW, ByteSource, open_source

Event = StoredBlank | StoredDamage | StoredZeros
Item = Frames | Event


class RangeWalk:
    """One range of a file. `passed` is the physical offset that the walk has come to.

    Args:
        file: the file.
        each: the range. Events that begin in it are yielded.
        end: the physical offset where the reading ends, as the selection or a live log does; None: at the
            file's end.
        crc: whether bodies are checked.
        window: bytes that are looked at in one go.
    """

    def __init__(
        self, file: StoreFile, each: LogRange, end: int | None, *, crc: bool, window: int = WINDOW
    ) -> None:
        self.file = file
        self.each = each
        self.end = min(file.end if end is None else min(end, file.end), LONG_MAX)
        self.crc = crc
        self.window = window
        self.passed = each.start

    def items(self) -> Iterator[Item]:
        """Batches of records, and events, by rising offset. A batch is valid until the next item."""
        yield from self.walked_from(self.each.start)

    def walked_from(self, start: int) -> Iterator[Item]:
        """The same for the rest of the range, from a record on."""
        try:
            source = open_source(self.file.path, listed_size=self.file.size)
        except (OSError, UnreadableError):
            stop = min(self.each.stop, self.end)
            yield StoredDamage(start, stop - start, self.file.path, self.each.path, None, True)
            return
        with closing(source):
            yield from self._walk(source, start)

    def _walk(self, source: ByteSource, start: int) -> Iterator[Item]:
        base = self.file.file_from_offset
        told = len(source.unreadable)
        unread = Unreadable()
        cut: Frames | None = None
        events = walk(
            source, file_from_offset=base, start=start - base, stop=self.end - base, crc=self.crc,
            window=self.window,
        )  # fmt: skip
        for event in events:
            if cut is not None:
                yield self._torn(cut) if isinstance(event, TrailingZeros) else cut
                cut = None
            for low, high in source.unreadable[told:]:
                unread.note(low, high)
                yield StoredDamage(
                    base + low, high - low, self.file.path, self.each.path, None, high == source.size
                )
            told = len(source.unreadable)
            if not isinstance(event, Frames):
                if base + event.position >= self.each.stop:
                    return
                yield self._stored(event, unread)
                continue
            frames, is_over = self._within(event)
            if len(frames.rows):
                last = frames.rows[-1]
                self.passed = int(last["physical_offset"]) + int(last["size"])
                if ends_in_zeros(frames):
                    cut = _copied(frames)
                    frames = replace(frames, rows=frames.rows[:-1])
            if len(frames.rows):
                yield frames
            if is_over:
                break
        if cut is not None:
            yield self._torn(cut) if self._is_unwritten(source, self.passed - base) else cut
        if self.end == LONG_MAX < self.each.stop:
            left = self.file.end - self.end
            yield StoredDamage(self.end, left, self.file.path, self.each.path, Reason.UNSOUND, True)

    def _within(self, frames: Frames) -> tuple[Frames, bool]:
        """The records that start within the range, and whether later ones do not."""
        rows, stop = frames.rows, self.each.stop
        last = rows[-1]
        if last["physical_offset"] < stop:
            # where the range ends before the reading does, a record begins
            return frames, stop < self.end and int(last["physical_offset"]) + int(last["size"]) >= stop
        count = int(np.searchsorted(rows["physical_offset"], self.each.stop))
        return replace(frames, rows=rows[:count]), True

    def _is_unwritten(self, source: ByteSource, start: int) -> bool:
        """Whether nothing but zeros follows in the file: the range ends where a torn record does."""
        return start < source.size and first_nonzero(source, start, source.size) >= source.size

    def _torn(self, cut: Frames) -> StoredDamage:
        row = cut.rows[0]
        start, size = int(row["physical_offset"]), int(row["size"])
        return StoredDamage(start, size, self.file.path, self.each.path, Reason.UNSOUND, True)

    def _stored(self, event: Blank | TrailingZeros | CorruptRange, unread: Unreadable) -> Event:
        path, name = self.file.path, self.each.path
        offset = self.file.file_from_offset + event.position
        if isinstance(event, Blank):
            self.passed = max(self.passed, offset)
            return StoredBlank(offset, event.size, path, name)
        self.passed = offset + event.length
        if unread.touches(event.position, event.position + event.length):
            to_end = isinstance(event, TrailingZeros) or event.to_end
            return StoredDamage(offset, event.length, path, name, None, to_end)
        if isinstance(event, TrailingZeros):
            return StoredZeros(offset, event.length, path, name)
        return StoredDamage(offset, event.length, path, name, event.reason, event.to_end)


def ends_in_zeros(frames: Frames) -> bool:
    """`Message.ends_in_zeros` of the last record."""
    last = replace(frames, rows=frames.rows[-1:])
    row = last.rows[0]
    stop = int(last.starts()[0]) + int(row["size"])
    if row["properties_length"] > 0:
        return bool(frames.data[stop - 1] == 0)
    return bool(row["topic_length"] > 0 and frames.data[stop - 3] == 0)  # before the length of the properties


def _copied(frames: Frames) -> Frames:
    """The last record alone, with bytes of its own."""
    row = frames.rows[-1:].copy()
    position = int(row["physical_offset"][0]) - frames.file_from_offset
    start = position - frames.data_position
    data = frames.data[start : start + int(row["size"][0])].copy()
    data.flags.writeable = False
    return Frames(row, frames.topics, data, position, frames.file_from_offset)
