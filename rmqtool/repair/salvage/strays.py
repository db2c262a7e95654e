"""Entries of the commit log's folder whose names are none of a log: do they hold records of it?

A file of the log that was renamed (`.bak`, leading zeros lost) looks like any other stray. No broker
loads the log before it has gone, but with it go its messages, unless it gets its name back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.formats.message import PHYSICAL_OFFSET_OFFSET
from rmqtool.log.frames import Frames, walk
from rmqtool.repair.salvage.file_set import FileSet
from rmqtool.repair.salvage.full_size import of_full_size
from rmqtool.repair.salvage.model import LogFile, Misplaced
from rmqtool.storage.layout import StoreLayout

if TYPE_CHECKING:
    from rmqtool.storage.source import ByteSource


def misplaced_strays(
    layout: StoreLayout, files: FileSet, opened: Callable[[Path], ByteSource], stopped: Event
) -> Iterator[Misplaced]:
    """The strays that hold sound records, and those that cannot be read to know.

    Only plain files are opened, also behind a link and right below a folder, and no more is read of one than
    a log file holds.
    """
    own = {file.path.resolve() for file in files.files}
    for stray in layout.commit_log_strays:
        try:
            paths = [path for path in _files_of(stray) if path.resolve() not in own]
        except OSError:
            yield Misplaced(layout.relative(stray), is_readable=False)
            continue
        for path in paths:
            size = min(path.stat().st_size, layout.commit_log_file_size)
            file = LogFile(path, layout.relative(path), 0, size, size)
            found, _ = misplaced_file(file, files, opened, stopped)
            if found is not None:
                yield found


def misplaced_file(
    file: LogFile, files: FileSet, opened: Callable[[Path], ByteSource], stopped: Event
) -> tuple[Misplaced | None, int]:
    """A file that is none of the log, where it holds sound records or cannot be read; how many are in place.

    In place are those that lie where they say, by the file's name.
    """
    try:
        source = opened(file.path)
    except OSError:
        return Misplaced(file.name, is_readable=False), 0
    with closing(source):
        records, in_place, offset = _sound_records(source, file, stopped)
        if records:
            taken = any(each.file_from_offset == offset and not each.is_missing for each in files.files)
            return Misplaced(file.name, records, f"{offset:020}" if offset >= 0 else None, taken), in_place
        return (Misplaced(file.name, is_readable=False) if source.unreadable else None), 0


def _files_of(path: Path) -> Iterator[Path]:
    """A plain file that holds anything, or those of a folder; what is a link to one is one."""
    is_folder = path.is_dir() and not path.is_symlink()
    for each in sorted(path.iterdir()) if is_folder else [path]:
        if each.is_file() and each.stat().st_size:
            yield each


def _sound_records(source: ByteSource, file: LogFile, stopped: Event) -> tuple[int, int, int]:
    """How many records are sound, wherever they belong, and how many of them lie where they say.

    And the offset that the first one gives the file; -1 without any.
    """
    count, in_place, offset = 0, 0, -1
    for event in walk(of_full_size(source, file), file_from_offset=0, check_stored_offset=False):
        if stopped.is_set():
            break
        if not isinstance(event, Frames):
            continue
        starts = event.starts()[event.rows["status"] == 0]
        if not len(starts):
            continue
        at = starts[:, np.newaxis] + (PHYSICAL_OFFSET_OFFSET + np.arange(8))
        stored = event.data[at].view(">i8")[:, 0].astype(np.int64)
        belongs = stored - (event.data_position + starts)
        if not count:
            offset = int(belongs[0])
        count += len(starts)
        in_place += int(np.count_nonzero(belongs == file.file_from_offset))
    return count, in_place, offset
