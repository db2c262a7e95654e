"""The space that a store takes on its disks, by file and folder of its root, as `du` counts it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.storage import Place, disk_bytes

Failed = Callable[[Path, str], None]
"""Called with a path and the system's reason."""


class Usage(NamedTuple):
    """A file or folder of a store: its name, the bytes that its files take, and how many they are."""

    name: str
    bytes: int
    files: int


def usage(layout: StoreLayout, failed: Failed) -> list[Usage]:
    """The files and folders of a local store that take space, the largest first; none for a part of a store.

    Folders of the commit log outside the root count too, under their paths. What may not be listed is left
    out, for it may be none of the store (lost+found); the layout names it if it is. `failed` is called with
    what the system could not read.
    """
    root = layout.root
    if root is None:
        return []
    listed = _listed(layout)
    found = [
        _usage(entry.name, root / entry.name, listed, failed)
        for entry in _entries(root, failed)
        if not entry.is_symlink()
    ]
    inside = root.resolve()
    for folder in layout.commit_log_folders:
        if folder.is_symlink() or inside not in folder.resolve().parents:
            found.append(_usage(layout.relative(folder), folder, listed, failed))
    return sorted((each for each in found if each.bytes), key=lambda each: (-each.bytes, each.name))


def _listed(layout: StoreLayout) -> dict[Place, Sequence[StoreFile]]:
    """The files of the queue folders that hold nothing else: to list 100,000 folders again takes seconds."""
    queues = (layout.consume_queues, layout.batch_queues, layout.ext_queues)
    return {queue.place: queue.files for each in queues for queue in each.values() if not queue.strays}


def _usage(name: str, path: Path, listed: Mapping[Place, Sequence[StoreFile]], failed: Failed) -> Usage:
    """Return what the file takes, or the files below the folder `path`; links inside are not followed.

    `listed` are the files of folders that need not be listed.
    """
    sizes: list[int] = []
    folders: list[Path | str] = [path]
    if not path.is_dir():
        folders = []
        with _tried(path, failed):
            sizes.append(disk_bytes(os.lstat(path)))
    while folders:
        folder = folders.pop()
        if isinstance(folder, str) and folder in listed:
            for file in listed[folder]:
                with _tried(file.place, failed):
                    sizes.append(disk_bytes(os.lstat(file.place)))
            continue
        for entry in _entries(folder, failed):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
                continue
            with _tried(entry.path, failed):
                sizes.append(disk_bytes(entry.stat(follow_symlinks=False)))
    return Usage(name, sum(sizes), len(sizes))


def _entries(folder: Path | str, failed: Failed) -> list[os.DirEntry[str]]:
    with _tried(folder, failed), os.scandir(folder) as found:
        return list(found)
    return []


@contextmanager
def _tried(path: Place, failed: Failed) -> Iterator[None]:
    """Go on after an error, in silence where a live broker has deleted the file or it may not be read."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        pass
    except OSError as error:
        failed(Path(path), error.strerror or str(error))
