"""Ranges of which only known records are read: those that units of queues or entries of the index name.

Where a record is not what it should be, or may be torn, the rest of the range is walked, so that the rows
are those of a walk. Units may also have gone since the access was planned: then all of the range is walked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from rmqtool.errors import UnreadableError
from rmqtool.log.point_read import pick
from rmqtool.read.access import LogRange
from rmqtool.read.queue_units import Units
from rmqtool.read.walk import Item, RangeWalk, ends_in_zeros
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import open_source


class PointReads(RangeWalk):
    """One range of a file, read at known places; see `RangeWalk`. `units` are its records."""

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
                if found == len(units.offsets) and ends_in_zeros(frames):
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
