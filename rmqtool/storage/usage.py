"""The space that a store takes on its disks, by file and folder of its root, as `du` counts it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.storage import disk_bytes


class Usage(NamedTuple):
    """A file or folder of a store: its name, the bytes that its files take, and how many they are."""

    name: str
    bytes: int
    files: int


def usage(layout: StoreLayout) -> list[Usage]:
    """The files and folders of a local store that take space, the largest first; none for a part of a store.

    Folders of the commit log outside the root count too, under their paths. What cannot be listed is left
    out: the layout names it.
    """
    root = layout.root
    if root is None:
        return []
    found = [_usage(entry.name, root / entry.name) for entry in _entries(root) if not entry.is_symlink()]
    inside = root.resolve()
    for folder in layout.commit_log_folders:
        if folder.is_symlink() or inside not in folder.resolve().parents:
            found.append(_usage(layout.relative(folder), folder))
    return sorted((each for each in found if each.bytes), key=lambda each: (-each.bytes, each.name))


def _usage(name: str, path: Path) -> Usage:
    """Return what the file takes, or the files below the folder `path`; links inside are not followed."""
    sizes: list[int] = []
    folders: list[Path | str] = [path]
    if not path.is_dir():
        folders = []
        with suppress(OSError):  # a live broker has deleted it
            sizes.append(disk_bytes(os.lstat(path)))
    while folders:
        for entry in _entries(folders.pop()):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
                continue
            with suppress(OSError):
                sizes.append(disk_bytes(entry.stat(follow_symlinks=False)))
    return Usage(name, sum(sizes), len(sizes))


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:  # it cannot be listed, or is gone
        return []
