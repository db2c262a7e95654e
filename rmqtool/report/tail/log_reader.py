"""Records of the log by their places, read in blocks, in files that come and go."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import message as form
from rmqtool.log.commit_log import status_of
from rmqtool.log.events import StoredMessage
from rmqtool.log.log_files import file_with, relisted
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.open_files import OpenFiles

_SPAN_BYTES = 4 << 20  # most that is read at once, but for a longer record
_REFRESH_S = 0.02
_KEPT_SPANS = 8
_AHEAD_BYTES = 512 << 10
_GAP_BYTES = 32 << 10  # bytes between two records that are cheaper to read than to pass over


class RecordRef(NamedTuple):
    """Where a record lies, as a queue unit says: physical offset and size in bytes."""

    physical_offset: int
    size: int


class Span(NamedTuple):
    """Bytes of one file, which may be anything, and the physical offset of the first."""

    start: int
    data: bytes


class LogReader:
    """Reads records; `refresh` looks for files that were made or deleted since.

    Args:
        layout: of the store.
        open_files: reads its files.
        keeps: the bytes of the log stay as they are, so the last spans are kept, and read ahead.
    """

    def __init__(self, layout: StoreLayout, open_files: OpenFiles, *, keeps: bool = False) -> None:
        self.layout = layout
        self._kept: deque[Span] = deque(maxlen=_KEPT_SPANS if keeps else 0)
        self._open_files = open_files
        self._names: dict[int, str] = {}
        self._refreshed = 0.0
        self._set(layout.commit_log)

    def _set(self, files: Sequence[StoreFile]) -> None:
        self.files = tuple(file for file in files if file.size)
        self._starts = [file.file_from_offset for file in self.files]
        self._names = {file.file_from_offset: self.layout.relative(file.path) for file in self.files}

    def refresh_soon(self) -> None:
        """`refresh`, unless that was a moment ago: for places that are met by the thousand."""
        if time.monotonic() - self._refreshed > _REFRESH_S:
            self.refresh()

    def refresh(self) -> None:
        """List the log's folders again."""
        self._refreshed = time.monotonic()
        self._set(relisted(self.layout, self.files))

    @property
    def min_offset(self) -> int:
        """The physical offset at which the log begins; -1 without files."""
        return self._starts[0] if self._starts else -1

    def file_of(self, place: RecordRef) -> StoreFile | None:
        """The file that holds a whole record; None where none does."""
        first = place.physical_offset
        return file_with(self.files, self._starts, first, first + place.size)

    def cut_file_of(self, place: RecordRef) -> StoreFile | None:
        """The file that holds a place or, when it has become shorter, held it; None where none does."""
        number = bisect_right(self._starts, place.physical_offset) - 1
        if number < 0 or place.physical_offset >= self._starts[number] + self.layout.commit_log_file_size:
            return None
        return self.files[number]

    def read(self, places: Sequence[RecordRef]) -> Iterator[StoredMessage | None]:
        """One item for each place, in their order, which should be that of the log.

        None where no file holds the place, the file is gone, or no record of that size is there.
        """
        for (offset, size), piece in zip(places, self.pieces(places), strict=True):
            yield None if piece is None else self._decoded(offset, size, *piece)

    def _decoded(self, offset: int, size: int, file: StoreFile, data: memoryview) -> StoredMessage | None:
        try:
            found = form.decode(data)
        except FormatError:
            return None
        if found.total_size != size:
            return None
        name = self._names[file.file_from_offset]
        return StoredMessage(found, offset, file.path, name, status_of(found, offset))

    def pieces(self, places: Sequence[RecordRef]) -> Iterator[tuple[StoreFile, memoryview] | None]:
        """As `read`, but the file of each place and the bytes there, which may be anything."""
        first = 0
        while first < len(places):
            file = self._file_or_new(places[first])
            if file is None:
                yield None
                first += 1
                continue
            last = self._run(places, first, file)
            yield from self._span(file, places[first:last])
            first = last

    def span(self, physical_offset: int, length: int) -> Span | None:
        """Bytes that hold [physical_offset, physical_offset + length), and may hold more.

        Queues whose records lie among each other are pulled in turn: where a span that is kept ends, the next
        one is read ahead for all of them. None where no file holds the bytes, or they cannot be read.
        """
        stop, follows = physical_offset + length, False
        for span in self._kept:
            if span.start <= physical_offset <= (end := span.start + len(span.data)):
                if stop <= end:
                    return span
                follows = True
        file = file_with(self.files, self._starts, physical_offset, stop)
        if file is None:
            return None
        if follows:
            stop = min(max(stop, physical_offset + _AHEAD_BYTES), file.end)
        at = physical_offset - file.file_from_offset
        try:
            data = self._open_files.read_listed(file.path, at, stop - physical_offset)
        except UnreadableError:
            return None
        self._kept.appendleft(Span(physical_offset, data))
        return Span(physical_offset, data)

    def _file_or_new(self, place: RecordRef) -> StoreFile | None:
        if not form.MIN_RECORD_SIZE <= place.size <= form.RECORD_SIZE_MAX or place.physical_offset < 0:
            return None
        file = self.file_of(place)
        if file is None and place.physical_offset > self.min_offset and self.layout.root is not None:
            self.refresh_soon()
            file = self.file_of(place)
        return file

    def _run(self, places: Sequence[RecordRef], first: int, file: StoreFile) -> int:
        """The number after the last of the places that are read together with `first`."""
        start, size = places[first]
        stop, at = start + size, first + 1
        while at < len(places):
            offset, size = places[at]
            end = offset + size
            if not stop <= offset <= stop + _GAP_BYTES or size < form.MIN_RECORD_SIZE:
                break
            if end > file.end or end - start > _SPAN_BYTES:
                break
            stop, at = end, at + 1
        return at

    def _span(
        self, file: StoreFile, places: Sequence[RecordRef]
    ) -> Iterator[tuple[StoreFile, memoryview] | None]:
        start = places[0].physical_offset
        length = places[-1].physical_offset + places[-1].size - start
        try:
            data = memoryview(self._open_files.read_listed(file.path, start - file.file_from_offset, length))
        except UnreadableError:
            if len(places) == 1:
                yield None
            else:  # most of them may lie where the file can be read
                for place in places:
                    yield from self._span(file, [place])
            return
        for offset, size in places:
            yield file, data[offset - start : offset - start + size]
