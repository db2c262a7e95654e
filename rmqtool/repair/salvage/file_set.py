"""The set of files that the log must have: which belong to it, which are missing, which are removed.

Brokers load a commit log only if every entry of its folder is a file of the full size and the names are
consecutive (spec 02 1.3, C7, C10 to C13). The backup keeps removed files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqtool.errors import UnreadableError
from rmqtool.repair.plan import Action
from rmqtool.repair.salvage.model import LogFile
from rmqtool.storage.layout import StoreFile, StoreLayout

MISSING_MAX = 256
"""More consecutive missing files are not created: the names are wrong, or it is not one log."""


@dataclass
class FileSet:
    """`files` in the order of the log, including missing ones; `odd` files overlap others or are misnamed."""

    files: list[LogFile] = field(default_factory=list)
    odd: list[StoreFile] = field(default_factory=list)
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
            found.odd.append(file)
            continue
        if known is not None:
            found.odd.append(known)
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


def delete_odd(layout: StoreLayout, file: StoreFile) -> Action:
    """The deletion of a file whose name is not a multiple of the file size, or is that of another file."""
    return Action(
        "delete", layout.relative(file.path), 0, file.size,
        "its name does not fit into the log: records in it are found at wrong offsets", "CL25",
    )  # fmt: skip
