"""The files of a commit log and the heads of their records: finds the file of an offset, and the log's end.

Source: MappedFileQueue#findMappedFileByOffset, CommitLog#getMinOffset; spec 02 0.3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import islice
from typing import NamedTuple

from rmqtool.errors import UnreadableError
from rmqtool.formats.message import PHYSICAL_OFFSET_OFFSET, VERSION_BY_MAGIC
from rmqtool.log.log_heads import Head, head_at, heads_of_file, is_sound
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import OpenFiles, read_head

_HINTS = 16  # most queue units that are tried, furthest first; damaged units may point nowhere
_HEAD_HINTS = 2  # most files with a record at their start that are tried after the units, newest first


class Tail(NamedTuple):
    """The log's end, a physical offset, and the head of the last whole record before it, if it was found."""

    end: int
    last: Head | None


def file_with(files: Sequence[StoreFile], starts: Sequence[int], first: int, stop: int) -> StoreFile | None:
    """The file that holds the physical offsets [first, stop); None if none does.

    Of overlapping files it is the one whose name is a multiple of its size; the others are misplaced (CL25).

    Args:
        files: of the log, in the order of their offsets.
        starts: their offsets.
        first: the start of the range.
        stop: the end of the range, exclusive.
    """
    found = None
    for place in range(bisect_right(starts, first) - 1, -1, -1):
        file = files[place]
        is_placed = file.size > 0 and file.file_from_offset % file.size == 0
        if stop <= file.end:
            if is_placed:
                return file
            found = found or file
        elif is_placed:
            break
    return found


def is_misnamed(layout: StoreLayout, file: StoreFile) -> bool:
    """Whether a log file's name is not a multiple of the size of the files (CL25).

    Of a single file that size is unknown: it may be a part of one.
    """
    is_single = layout.root is None and len(layout.commit_log) == 1
    return not is_single and file.file_from_offset % layout.commit_log_file_size != 0


def misnamed_files(layout: StoreLayout) -> dict[StoreFile, str | None]:
    """The misnamed files of a log, each with the name that its first record shows.

    None if it shows none, or if another file has that name.
    """
    starts = {file.file_from_offset for file in layout.commit_log}
    return {file: _own_name(layout, file, starts) for file in layout.commit_log if is_misnamed(layout, file)}


def _own_name(layout: StoreLayout, file: StoreFile, starts: Container[int]) -> str | None:
    try:
        data = read_head(file.path, PHYSICAL_OFFSET_OFFSET + 8) or b""
    except UnreadableError:
        return None
    if layout.ledger is not None or len(data) < PHYSICAL_OFFSET_OFFSET + 8:
        return None
    magic, offset = (
        int.from_bytes(data[at : at + size], "big", signed=True)
        for at, size in ((4, 4), (PHYSICAL_OFFSET_OFFSET, 8))
    )
    is_one = magic in VERSION_BY_MAGIC and offset >= 0 and offset % layout.commit_log_file_size == 0
    return f"{offset:020}" if is_one and offset not in starts else None


def relisted(layout: StoreLayout, known: Iterable[StoreFile]) -> tuple[StoreFile, ...]:
    """The files of a log as they are now; one that was emptied, and is not deleted yet, keeps its size."""
    listing = Listing()
    sizes = {file.file_from_offset: file.size for file in known}
    found = [
        StoreFile(place, offset, size or sizes.get(offset, 0), layout.entry_header_of(folder))
        for folder in layout.commit_log_folders
        for place, offset, size in listing.mapped_files(folder)[0]
    ]
    return tuple(sorted(found, key=lambda file: file.file_from_offset))


class LogFiles:
    """The files of a log in the order of their offsets, read through the heads of records."""

    def __init__(self, files: tuple[StoreFile, ...], open_files: OpenFiles) -> None:
        self._open_files = open_files
        self.set_files(files)

    def set_files(self, files: tuple[StoreFile, ...]) -> None:
        """Go on with other files: a program that uses the store makes and deletes some."""
        self.files = files
        self._starts = [file.file_from_offset for file in files]

    @property
    def min_offset(self) -> int:
        """The physical offset where the log begins; -1 without files. Source: CommitLog#getMinOffset."""
        return self.files[0].file_from_offset if self.files else -1

    def file_of(self, physical_offset: int) -> StoreFile | None:
        """The file that holds a physical offset; None outside of the log and in a gap."""
        return file_with(self.files, self._starts, physical_offset, physical_offset + 1)

    def head(self, physical_offset: int) -> Head | None:
        """The head of the record at an offset; None if no file or no whole record is there.

        Lengths are checked, CRC and stored offset are not. Raises UnreadableError.
        """
        file = self.file_of(physical_offset)
        return None if file is None else head_at(self._open_files, file, physical_offset)

    def following(self, head: Head) -> Head | None:
        """The head of the record after another one in its file; None without one. Raises UnreadableError."""
        file = self.file_of(head.physical_offset)
        return None if file is None else self.head(head.end + file.entry_header)

    def end_offset(self, units: Iterable[tuple[int, int]] = ()) -> int:
        """The physical offset after the last whole record. See `tail`."""
        return self.tail(units).end

    def tail(self, units: Iterable[tuple[int, int]] = ()) -> Tail:
        """The offset at which a broker would continue writing, and the last whole record.

        Args:
            units: (physical offset, size) of the newest unit of every queue, in any order.

        The scan starts at the furthest unit whose record exists, or at the newest file that begins with a
        record, whichever is further. Only heads are read. It ends at the first place that is neither record
        nor blank, or at a file that cannot be read; the last record counts only if its CRC matches. The end
        is 0 for a log without files.
        """
        if not self.files:
            return Tail(0, None)
        found = None
        for start in self._starts_of_tail(units):
            tail = self._tail_from(start)
            if tail.last is not None:
                return tail
            found = found or tail  # only a torn record: the last whole record before it is still needed
        return found or self._tail_from(self.min_offset)

    def _starts_of_tail(self, units: Iterable[tuple[int, int]]) -> Iterator[int]:
        starts = (file.first_record for file in reversed(self.files))
        heads = list(islice((start for start in starts if self._has_head(start)), _HEAD_HINTS))
        newest = heads[0] if heads else self.min_offset
        for offset, _ in nlargest(_HINTS, units):
            if offset <= newest:
                break
            if self._has_head(offset):
                yield offset
        yield from heads

    def _has_head(self, offset: int) -> bool:
        try:
            head = self.head(offset)
        except UnreadableError:
            return False
        return head is not None and head.stored_offset == offset

    def _tail_from(self, position: int) -> Tail:
        """The log's tail, given that a record, a blank or the end is at `position`."""
        last = before = None
        while (file := self.file_of(position)) is not None:
            found, is_blank = False, False
            try:
                for head in heads_of_file(self._open_files, file, position, only_last=True):
                    is_blank = head.total_size == 0
                    if not is_blank:
                        last, before, found, position = head, last, True, head.end
            except UnreadableError:
                is_blank = False
            if not is_blank or self.file_of(file.end) is None:
                if found and last is not None and not self.is_sound_at(last.physical_offset):
                    return Tail(last.physical_offset, before)
                break
            position = file.end
        return Tail(position, last)

    def is_sound_at(self, offset: int) -> bool:
        """Whether a record with correct lengths, stored offset and CRC is at an offset, and is readable."""
        file = self.file_of(offset)
        try:
            return file is not None and is_sound(self._open_files, file, offset)
        except UnreadableError:
            return False

    def heads(self, start: int) -> Iterator[Head]:
        """The heads of the records from `start`, the start of a record or its entry, up to the log's end.

        Only the first bytes of every record are read; CRC and lengths are not checked.
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
