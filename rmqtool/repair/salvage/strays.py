"""The files that the log must have, and the entries of its folder that hold records under another name.

A renamed file of the log (`.bak`, leading zeros lost) looks like any other stray. Brokers do not load the log
until it is removed, but removing it loses its messages, unless it gets its original name back.

Brokers load a commit log only if every entry of its folder is a file of the full size and the names are
consecutive (spec 02 1.3, C7, C10 to C13). The backup keeps removed files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.formats.message import PHYSICAL_OFFSET_OFFSET
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.frames import Frames, walk
from rmqtool.repair.plan import Action
from rmqtool.repair.salvage.full_size import of_full_size
from rmqtool.repair.salvage.model import LogFile, Misplaced
from rmqtool.storage.layout import StoreFile, StoreLayout

if TYPE_CHECKING:
    from rmqtool.storage.source import ByteSource


MISSING_MAX = 256
"""More consecutive missing files are not created: the names are wrong, or it is not one log."""


@dataclass
class FileSet:
    """The files of a log, in its order, including missing ones.

    `misnamed` files overlap others, or their names are not multiples of the file size.
    """

    files: list[LogFile] = field(default_factory=list)
    misnamed: list[StoreFile] = field(default_factory=list)
    deletes: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def file_set(layout: StoreLayout) -> FileSet:
    """The files of the log of `layout`, from the listing of its folders only.

    Raises:
        UnreadableError: a folder of the log cannot be listed.
    """
    if "commitlog" in layout.unreadable_parts:
        path, reason = layout.unreadable[0]
        raise UnreadableError(f"cannot read: {reason}", path=path)
    found, full_size = FileSet(), layout.commit_log_file_size
    chosen: dict[int, StoreFile] = {}
    for file in layout.commit_log:
        known = chosen.get(file.file_from_offset)
        if file.file_from_offset % full_size or (known is not None and known.size >= file.size):
            found.misnamed.append(file)
            continue
        if known is not None:
            found.misnamed.append(known)
        chosen[file.file_from_offset] = file
    for stray in layout.commit_log_strays:
        is_folder = stray.is_dir() and not stray.is_symlink()
        what = "a folder" if is_folder else "an entry"
        size = 0 if is_folder else stray.lstat().st_size
        reason = f"{what} that is not a commit log file: a broker does not load the store"
        code = "CL27" if is_folder else "CL22"
        found.deletes.append(Action("delete", layout.relative(stray), 0, size, reason, code))
    for offset in sorted(chosen):
        _add(found, layout, chosen[offset], full_size)
    return found


def _add(found: FileSet, layout: StoreLayout, file: StoreFile, size: int) -> None:
    """Add a file, preceded by those that are missing before it."""
    last = found.files[-1] if found.files else None
    if last is not None:
        missing = (file.file_from_offset - last.full_end) // size
        if missing > MISSING_MAX:
            found.notes.append(
                f"{missing} files are missing before {layout.relative(file.path)}: too many to be created"
                " again"
            )
        else:
            for number in range(missing):
                offset = last.full_end + number * size
                path = last.path.with_name(f"{offset:020}")
                found.files.append(LogFile(path, layout.relative(path), offset, 0, size, is_missing=True))
    found.files.append(LogFile(file.path, layout.relative(file.path), file.file_from_offset, file.size, size))


def delete_misnamed(layout: StoreLayout, file: StoreFile) -> Action:
    """The deletion of a file whose name is not a multiple of the file size, or is that of another file."""
    return Action(
        "delete", layout.relative(file.path), 0, file.size,
        "its name does not fit into the log: records in it are found at wrong offsets", "CL25",
    )  # fmt: skip


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
