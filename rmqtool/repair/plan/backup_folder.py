"""Where the backup of a run is made."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rmqtool.errors import RefusedError
from rmqtool.repair.plan.backup import Backup
from rmqtool.repair.plan.paths import Places
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.output_guard import keep_out


def default_backup(root: Path) -> Path:
    """A new folder next to the store: `<store>.rmqtool-backup-<yyyymmdd-HHMMSS>`, local time."""
    root = root.resolve()
    return _free_name(root.with_name(f"{root.name}.rmqtool-backup-{time.strftime('%Y%m%d-%H%M%S')}"))


def backup_folder(layout: StoreLayout, asked: Path | None) -> Path:
    """Where a run keeps its backup: `asked`, or `default_backup`.

    Where `asked` holds the backup of a run that was reverted, as a killed one is before the same command
    does all of it again, the next free `<asked>-<number>`: both are kept.
    """
    if asked is None:
        return default_backup(Places(layout).root)
    return _free_name(asked.absolute()) if Backup(asked).is_spent else asked


def _free_name(first: Path) -> Path:
    """A name not in use: this one, or with the smallest number appended."""
    path, number = first, 1
    while os.path.lexists(path):
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def check_backup(layout: StoreLayout, folder: Path) -> None:
    """Raise RefusedError unless a backup of the store of `layout` may be made in `folder`."""
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
        raise RefusedError("a backup needs a new or empty folder", path=folder)
    keep_out(layout, folder, "a backup")
