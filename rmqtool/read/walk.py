"""The records of one range of a commit log file, batch by batch, and what lies between them.

The same as `CommitLog.walk` yields record by record, by the compiled walk. A range of which queues or the
index name all records is read at these places only (`PointReads`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.log.damage import corrupt_range, file_events, unreadable_range
from rmqtool.log.events import LogGap, Reason
from rmqtool.log.frames import Frames, walk
from rmqtool.log.point_read import pick
from rmqtool.read.access import LONG_MAX, LogRange
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import WINDOW, ByteSource, open_source

if TYPE_CHECKING:
    from rmqtool.read.queue_units import Units

Item = Frames | LogGap


class RangeWalk:
    """One range of a file. `passed` is the physical offset that the walk has reached.

    Args:
        file: the file.
        each: the range. Events that begin in it are yielded.
        end: the physical offset where the reading ends, as the selection or a live log does; None: at the
            file's end.
        crc: whether bodies are checked.
        window: bytes that are walked in one go.
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
            yield unreadable_range(start, stop, self.file.path, self.each.path, to_end=True)
            return
        with closing(source):
            for item in file_events(self._walked(source, start), source, self.file, self.each.path):
                self.passed = max(self.passed, item.end)
                yield item
            if self.end == LONG_MAX < self.each.stop:
                base, stop = self.file.file_from_offset, source.size
                rest = corrupt_range(source, base, self.end - base, stop, Reason.UNSOUND, to_end=True)
                yield replace(rest, path=self.file.path, file=self.each.path)

    def _walked(self, source: ByteSource, start: int) -> Iterator[Item]:
        """Yield the events that begin within the range."""
        base, stop = self.file.file_from_offset, self.each.stop
        events = walk(
            source, file_from_offset=base, start=start - base, stop=self.end - base, crc=self.crc,
            window=self.window, entry_header=self.file.entry_header,
        )  # fmt: skip
        for event in events:
            if event.physical_offset >= stop:
                return
            if isinstance(event, Frames) and event.rows["physical_offset"][-1] >= stop:
                yield replace(event, rows=event.rows[: np.searchsorted(event.rows["physical_offset"], stop)])
                return
            yield event
            if isinstance(event, Frames) and stop < self.end and event.end + self.file.entry_header >= stop:
                return  # where the range ends before the reading does, a record begins


class PointReads(RangeWalk):
    """One range of a file, read at known places: `units` are its records.

    Where a record is not what it should be, or may be torn, the rest of the range is walked, so that the
    rows are those of a walk. Units may also have gone since the access was planned: then all of the range is
    walked.
    """

    def __init__(
        self, file: StoreFile, each: LogRange, end: int | None, units: Units | None, *, crc: bool, window: int
    ) -> None:
        super().__init__(file, each, end, crc=crc, window=window)
        self._units = units

    def items(self) -> Iterator[Item]:
        """See RangeWalk."""
        units = self._units
        ends = None if units is None else units.offsets + units.sizes
        if units is None or ends is None or not self._is_sound(units):
            yield from super().items()
            return
        base = self.file.file_from_offset
        try:
            source = open_source(self.file.path)
        except (OSError, UnreadableError):
            yield from super().items()
            return
        with closing(source):
            found = 0
            for frames in pick(
                source, file_from_offset=base, offsets=units.offsets, sizes=units.sizes, crc=self.crc,
                window=self.window,
            ):  # fmt: skip
                found += len(frames.rows)
                self.passed = int(ends[found - 1])
                if found == len(units.offsets) and frames.last().ends_in_zeros()[0]:
                    # It may be the log's last record, and torn: what follows it decides.
                    found -= 1
                    self.passed = int(units.offsets[found])
                    frames = replace(frames, rows=frames.rows[:-1])  # noqa: PLW2901
                if len(frames.rows):
                    yield frames
        if found < len(units.offsets):
            yield from self.walked_from(self.passed)

    def _is_sound(self, units: Units) -> bool:
        """Whether the units can be those that the access was planned with."""
        ends = units.offsets + units.sizes
        if int(units.sizes.sum()) != self.each.bytes_read:
            return False
        return bool((ends[:-1] <= units.offsets[1:]).all()) and (
            not len(ends) or int(ends[-1]) <= self.file.end
        )
