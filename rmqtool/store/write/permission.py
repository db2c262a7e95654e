"""Whether this process may write a store, as far as it can be told without writing.

For a dry run: the real one meets the same at its first change. A file system that was mounted for reading
only refuses root too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from rmqtool.errors import UnwritableError
from rmqtool.store.layout import StoreLayout
from rmqtool.store.plan.space import above


def check_store(layout: StoreLayout, root: Path, log_folders: Sequence[Path], parts: Sequence[str]) -> None:
    """Raise UnwritableError, naming it, where a folder or a file that is written first may not be.

    Args:
        layout: of the store.
        root: its root.
        log_folders: folders of the commit log that are to be written.
        parts: names of the other folders in the root; a missing one would be made.
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
    """Raise UnwritableError where no store can be made in the folder `root`, missing or there."""
    _check(above(root), os.W_OK | os.X_OK)


def _check(path: Path, wanted: int) -> None:
    if os.access(path, wanted):
        return
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    reason = os.strerror(errno.EROFS if is_read_only else errno.EACCES)
    raise UnwritableError(f"cannot write: {reason}", path=path)
