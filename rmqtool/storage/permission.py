"""Whether this process may write a store, checked without writing.

A dry run uses it to report what the real run would meet at its first change. A read-only file system
refuses root too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from rmqtool.errors import UnwritableError
from rmqtool.lazy_pattern import pattern
from rmqtool.storage.layout import StoreLayout

# The kernel's own file systems: root has permission in their folders, but cannot create files there.
_OF_THE_KERNEL = frozenset({
    "proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "devpts", "pstore",
    "efivarfs", "selinuxfs", "binfmt_misc", "fusectl", "bpf",
})  # fmt: skip
_OCTAL = pattern(r"\\([0-7]{3})")  # blanks in the names of mountinfo


def check_store(layout: StoreLayout, root: Path, log_folders: Sequence[Path], parts: Sequence[str]) -> None:
    """Raise UnwritableError for the first folder, or file that is written first, that is not writable.

    Args:
        layout: of the store.
        root: its root.
        log_folders: folders of the commit log that are to be written.
        parts: names of the other folders in the root; a missing one is ignored, as it would be created.
    """
    for folder in (root, *log_folders, *(root / part for part in parts)):
        if folder.exists():
            _check(folder, os.W_OK | os.X_OK)
    files = [root / "lock", root / "checkpoint"]
    files += [file.path for file in layout.commit_log[-1:]] + [file.path for file in layout.index_files[-1:]]
    for file in files:
        if file.exists():
            _check(file, os.R_OK | os.W_OK)


def check_new(root: Path) -> None:
    """Raise UnwritableError if no store can be created in the folder `root`, which may be missing."""
    root = root.absolute()
    there = next(path for path in (root, *root.parents) if os.path.lexists(path))
    if not there.is_dir():  # a file, or a link that leads nowhere
        raise UnwritableError(f"cannot make the folder: {os.strerror(errno.ENOTDIR)}", path=there)
    _check(there, os.W_OK | os.X_OK)
    kind = _file_system(there)
    if kind in _OF_THE_KERNEL:
        raise UnwritableError(f"cannot make the folder: a file system of type {kind} has none", path=there)


def _file_system(folder: Path) -> str | None:
    """The type of the file system that holds `folder`; None if unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    place, best, kind = os.path.realpath(folder), -1, None
    for line in lines:  # the last mount at a place hides those before it
        own, _, more = line.partition(" - ")
        at = _OCTAL.sub(lambda found: chr(int(found[1], 8)), own.split(" ")[4])
        inside = place == at or place.startswith(at.rstrip("/") + "/")
        if inside and len(at) >= best:
            best, kind = len(at), more.partition(" ")[0]
    return kind


def check_mount(path: Path) -> None:
    """Raise UnwritableError if a file or folder is on a read-only file system."""
    try:
        is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError as error:
        raise UnwritableError(f"cannot write: {error.strerror}", path=path) from error
    if is_read_only:
        raise UnwritableError(f"cannot write: {os.strerror(errno.EROFS)}", path=path)


def _check(path: Path, wanted: int) -> None:
    if os.access(path, wanted):
        return
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    reason = os.strerror(errno.EROFS if is_read_only else errno.EACCES)
    raise UnwritableError(f"cannot write: {reason}", path=path)
