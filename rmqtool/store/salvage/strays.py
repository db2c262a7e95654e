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
from rmqtool.scan.frames import Frames, walk
from rmqtool.store.layout import StoreLayout
from rmqtool.store.salvage.file_set import FileSet
from rmqtool.store.salvage.full_size import of_full_size
from rmqtool.store.salvage.model import LogFile, Misplaced

if TYPE_CHECKING:
    from rmqtool.scan.source import ByteSource


def misplaced_strays(
    layout: StoreLayout, files: FileSet, opened: Callable[[Path], ByteSource], stopped: Event
) -> Iterator[Misplaced]:
    """The strays that hold sound records, and those that cannot be read to know.

    Only plain files are opened, also behind a link and right below a folder, and no more is read of one than
    a log file holds. Files whose names do not fit into the log are strays too.
    """
    taken = {file.file_from_offset for file in files.files if not file.is_missing}
    own = {file.path.resolve() for file in files.files}
    paths = [file.path for file in files.odd]
    for stray in layout.commit_log_strays:
        try:
            paths += (path for path in _files_of(stray) if path.resolve() not in own)
        except OSError:
            yield Misplaced(layout.relative(stray), is_readable=False)
    for path in paths:
        size = min(path.stat().st_size, layout.commit_log_file_size)
        name = layout.relative(path)
        try:
            source = opened(path)
        except OSError:
            yield Misplaced(name, is_readable=False)
            continue
        with closing(source):
            records, offset = _sound_records(source, LogFile(path, name, 0, size, size), stopped)
            if records:
                yield Misplaced(name, records, f"{offset:020}" if offset >= 0 else None, offset in taken)
            elif source.unreadable:
                yield Misplaced(name, is_readable=False)


def _files_of(path: Path) -> Iterator[Path]:
    """A plain file that holds anything, or those of a folder; what is a link to one is one."""
    is_folder = path.is_dir() and not path.is_symlink()
    for each in sorted(path.iterdir()) if is_folder else [path]:
        if each.is_file() and each.stat().st_size:
            yield each


def _sound_records(source: ByteSource, file: LogFile, stopped: Event) -> tuple[int, int]:
    """How many records are sound, wherever they belong; the offset that the first one gives the file."""
    count, offset = 0, -1
    for event in walk(of_full_size(source, file), file_from_offset=0, check_stored_offset=False):
        if stopped.is_set():
            break
        if not isinstance(event, Frames):
            continue
        good = np.flatnonzero(event.rows["status"] == 0)
        if len(good) and not count:
            start = int(event.starts()[good[0]])
            stored = bytes(event.data[start + PHYSICAL_OFFSET_OFFSET :][:8])
            offset = int.from_bytes(stored, "big", signed=True) - (event.data_position + start)
        count += len(good)
    return count, offset
