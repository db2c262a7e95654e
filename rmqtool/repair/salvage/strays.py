"""Finds entries in the commit log's folder that are not named as log files but hold records of the log.

A renamed file of the log (`.bak`, leading zeros lost) looks like any other stray. Brokers do not load the log
until it is removed, but removing it loses its messages, unless it gets its original name back.
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
    """The strays that hold sound records, and those that cannot be read.

    Only plain files are opened, including targets of links and files directly in a folder, and at most the
    size of a log file is read.
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
    """(the file if it holds sound records or cannot be read, else None; the number of records in place).

    A record is in place if its stored offset agrees with the offset in the file's name.
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
    """The file itself, or the files in a folder: plain files that are not empty, links followed."""
    is_folder = path.is_dir() and not path.is_symlink()
    for each in sorted(path.iterdir()) if is_folder else [path]:
        if each.is_file() and each.stat().st_size:
            yield each


def _sound_records(source: ByteSource, file: LogFile, stopped: Event) -> tuple[int, int, int]:
    """(number of sound records, how many are in place, the file's offset by its first record or -1)."""
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
