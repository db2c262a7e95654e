"""Where the log of a store ends, byte for byte, after any end of its writer.

What lies after the last sound record is the rest of a write that was not completed, or damage. A writer that
flushes each file before it goes on in the next, and at least every UNSYNCED_BYTES, leaves the former within
that many bytes of the end, whatever order the device wrote them in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqtool.errors import RefusedError, UnreadableError
from rmqtool.log.damage import file_events, is_torn
from rmqtool.log.events import Blank, CorruptRange, TrailingZeros
from rmqtool.log.frames import Frames, walk
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.next_command import command_on
from rmqtool.storage.source import first_nonzero, nonzero_end, open_source

if TYPE_CHECKING:
    from rmqtool.storage.source import ByteSource

UNSYNCED_BYTES = 32 << 20


class LogEnd(NamedTuple):
    """Physical offsets: where the log begins, the end of its last sound record, and of its written bytes.

    `written` is `end` unless bytes follow that are not a sound record: a blank with what lies after it, or
    what an interrupted write has left. `is_blank` says which.
    """

    start: int
    end: int
    written: int
    is_blank: bool = False


def find_log_end(layout: StoreLayout, *, is_unclean: bool) -> LogEnd | None:
    """Find the end of a log; None if it has no files.

    The newest file that is not empty is walked from its start, bodies checked.

    Args:
        layout: of a store whose lock is held, or of one that nothing writes.
        is_unclean: the writer did not end by itself: it may have left parts of its last writes.

    Raises:
        RefusedError: damage, or files that do not follow each other.
        UnreadableError: a file cannot be read.
    """
    files = layout.commit_log
    _check_files(layout)
    for file in reversed(files):
        with _open(file) as source:
            if first_nonzero(source, 0, file.size) < file.size or file is files[0]:
                found = _end_in_file(layout, source, file, is_unclean=is_unclean)
                _check_read(source, file)
                return found._replace(start=files[0].file_from_offset)
    return None


def sound_end(layout: StoreLayout, file: StoreFile) -> int:
    """Where the first damage is in a file of the log that more of it follows: a physical offset.

    It is `file.end` if there is none; a missing blank at the file's end is not damage here.

    Raises UnreadableError if the file cannot be read.
    """
    with _open(file) as source:
        end, event = _sound_records(layout, source, file)
        _check_read(source, file)
    has_blank = isinstance(event, Blank) and event.ends_file
    has_zeros = isinstance(event, TrailingZeros) and end > file.file_from_offset
    return file.end if has_blank or has_zeros else end


@contextmanager
def _open(file: StoreFile) -> Iterator[ByteSource]:
    try:
        source = open_source(file.path)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
    with closing(source):
        yield source


def _check_read(source: ByteSource, file: StoreFile) -> None:
    if source.unreadable:
        offset = file.file_from_offset + source.unreadable[0][0]
        raise UnreadableError("cannot read the commit log", path=file.path, physical_offset=offset)


def _check_files(layout: StoreLayout) -> None:
    hint = command_on(layout, "verify")
    size = layout.commit_log_file_size
    for file in layout.commit_log:
        if file.size != size or file.file_from_offset % size:
            raise RefusedError(
                f"does not have the {size} bytes of a file of this log", path=file.path, hint=hint
            )
    for before, after in pairwise(layout.commit_log):
        if before.end != after.file_from_offset:
            raise RefusedError(f"the file before it ends at {before.end}", path=after.path, hint=hint)


def _sound_records(layout: StoreLayout, source: ByteSource, file: StoreFile) -> tuple[int, object]:
    """The end of the sound records at the start of a file, and the event there; None for a damaged record."""
    base = end = file.file_from_offset
    for event in file_events(walk(source, file_from_offset=base), source, file, layout.relative(file.path)):
        if not isinstance(event, Frames):
            return end, event
        bad = np.flatnonzero(event.rows["status"])
        if len(bad):
            return int(event.rows["physical_offset"][bad[0]]), None
        end = event.end
    return end, None


def _end_in_file(layout: StoreLayout, source: ByteSource, file: StoreFile, *, is_unclean: bool) -> LogEnd:
    base = file.file_from_offset
    end, event = _sound_records(layout, source, file)
    if isinstance(event, Blank) and event.ends_file:
        return LogEnd(base, end, file.end, is_blank=True)
    if isinstance(event, TrailingZeros):
        return LogEnd(base, end, end)
    if isinstance(event, CorruptRange) and is_torn(event):
        return LogEnd(base, end, event.nonzero_end)
    written = base + nonzero_end(source, end - base, file.size)
    if written > end and not (is_unclean and written - end <= UNSYNCED_BYTES):
        raise RefusedError(
            "damage in the file that the log ends in", path=file.path, physical_offset=end,
            hint=command_on(layout, "recover"),
        )  # fmt: skip
    return LogEnd(base, end, written)


def first_difference(ours: bytes, theirs: bytes | memoryview) -> tuple[int, bool] | None:
    """The place of the first byte that differs, and whether ours are zero wherever they differ; or None."""
    if ours == theirs:
        return None
    mine, other = np.frombuffer(ours, np.uint8), np.frombuffer(theirs, np.uint8)
    places = np.flatnonzero(mine != other)
    return int(places[0]), not mine[places].any()
