"""Folder listings of a store: one pass per folder, sizes from the directory entries.

A store in use changes while it is listed: files that vanish in between are left out. A folder that cannot
be listed is noted and treated as empty, so that the rest is still shown.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from rmqtool.errors import RmqtoolError, UnreadableError
from rmqtool.storage.single_file import offset_of_name
from rmqtool.storage.storage import Place, StoragePath, path_at

Seen = TypeVar("Seen")
Entries = list[tuple[str, os.stat_result]]

# Gone since it was listed, or not a folder any more: both happen in a live store.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


def _inside(folder: Place, name: str) -> Place:
    return folder / name if isinstance(folder, StoragePath) else f"{folder}/{name}"


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except FileNotFoundError:
        if not entry.is_symlink():
            raise
        return entry.stat(follow_symlinks=False)


class Listing:
    """Lists folders and records those that cannot be read, with the reason.

    It keeps the listings of the store's own folders, not those of queue folders: there may be 100,000.
    """

    def __init__(self) -> None:
        self._links: list[str] = []
        self._noted: dict[Path, str] = {}
        self._kept: dict[Path, Entries] = {}
        self._elsewhere: dict[StoragePath, Entries] = {}

    @property
    def unreadable(self) -> tuple[tuple[Path, str], ...]:
        """The paths whose listing or status could not be read, each once, with the reason."""
        return tuple(self._noted.items())

    @property
    def links(self) -> tuple[Path, ...]:
        """The symbolic links among all entries listed so far."""
        return tuple(map(Path, self._links))

    def is_unreadable(self, path: Path) -> bool:
        """Whether `path` itself could not be listed, or its status could not be read."""
        return path in self._noted

    def entries(self, folder: Path, *, must_exist: bool = False) -> Entries:
        """Name and status of every entry, sorted by name, as of the first call for this folder.

        Links are followed; a link that leads nowhere has the status of the link.

        Raises:
            UnreadableError: `must_exist` and the folder cannot be listed.
        """
        if folder not in self._kept:
            self._kept[folder] = self._scan(folder, must_exist=must_exist)
        return self._kept[folder]

    def _scan(self, folder: Place, *, must_exist: bool = False) -> Entries:
        """Name and status of every entry, sorted by name."""
        try:
            if isinstance(folder, StoragePath):
                return self._scan_elsewhere(folder)
            return self._look(folder, _status)
        except OSError as error:
            if isinstance(error, RmqtoolError):  # a damaged archive, or no space to unpack it
                raise
            if must_exist:
                raise UnreadableError(
                    f"cannot list the folder: {error.strerror}", path=path_at(folder)
                ) from error
            self._note(path_at(folder), error)
        return []

    def _look(self, folder: Place, look: Callable[[os.DirEntry[str]], Seen]) -> list[tuple[str, Seen]]:
        """Name of every entry and what `look` says of it, sorted by name. Raises OSError."""
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    self._links.append(entry.path)
                try:
                    found.append((entry.name, look(entry)))
                except OSError as error:
                    self._note(Path(entry.path), error)
        found.sort(key=itemgetter(0))
        return found

    def _scan_elsewhere(self, folder: StoragePath) -> Entries:
        """Lists a remote folder. Requests are slow, so listings that came with another folder are reused."""
        if folder not in self._elsewhere:
            self._elsewhere.update(folder.tree())
        return sorted(self._elsewhere[folder], key=itemgetter(0))

    def _types(self, folder: Place) -> list[tuple[str, bool]]:
        """Name of every entry and whether it is a folder, sorted by name; most need no look at the entry."""
        if isinstance(folder, StoragePath):
            return [(name, stat.S_ISDIR(status.st_mode)) for name, status in self._scan(folder)]
        try:
            return self._look(folder, os.DirEntry.is_dir)
        except OSError as error:
            self._note(path_at(folder), error)
        return []

    def _note(self, path: Path, error: OSError) -> None:
        if error.errno not in _GONE:
            self._noted.setdefault(path, error.strerror or type(error).__name__)

    def status(self, path: Path) -> os.stat_result | None:
        """The status of `path`, links followed; None if it does not exist or its status cannot be read."""
        try:
            return path.stat()
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            if isinstance(error, RmqtoolError):
                raise
            if isinstance(error, OSError):
                self._note(path, error)
            return None

    def has_file(self, folder: Path, name: str) -> bool:
        """Whether `folder` holds a plain file called `name`."""
        return any(entry == name and stat.S_ISREG(status.st_mode) for entry, status in self.entries(folder))

    def is_file(self, path: Path) -> bool:
        """Whether `path` is a plain file."""
        status = self.status(path)
        return status is not None and stat.S_ISREG(status.st_mode)

    def is_folder(self, path: Path) -> bool:
        """Whether `path` is a folder."""
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def names(self, folder: Path, *, must_exist: bool = False) -> frozenset[str]:
        """The names of all entries except links that lead nowhere. Raises as `entries` does."""
        entries = self.entries(folder, must_exist=must_exist)
        return frozenset(name for name, status in entries if not stat.S_ISLNK(status.st_mode))

    def folders(self, folder: Path) -> frozenset[str]:
        """The names of the folders in `folder`."""
        return frozenset(name for name, status in self.entries(folder) if stat.S_ISDIR(status.st_mode))

    def files(self, folder: Path) -> list[tuple[Path, int]]:
        """Path and size of the plain files in `folder`, by name."""
        return [
            (folder / name, status.st_size)
            for name, status in self.entries(folder)
            if stat.S_ISREG(status.st_mode)
        ]

    def folders_and_others(self, folder: Place) -> tuple[list[tuple[str, Place]], list[Path]]:
        """Name and place of the folders in `folder`, and all other entries, by name.

        Every call lists the folder again.
        """
        folders: list[tuple[str, Place]] = []
        others: list[Path] = []
        for name, is_folder in self._types(folder):
            if is_folder:
                folders.append((name, _inside(folder, name)))
            else:
                others.append(path_at(_inside(folder, name)))
        return folders, others

    def mapped_files(self, folder: Place) -> tuple[list[tuple[Place, int, int]], list[Path]]:
        """(place, offset from the name, size) of the mapped files, by offset, and all other entries.

        Every call lists the folder again.
        """
        files: list[tuple[Place, int, int]] = []
        strays: list[Path] = []
        for name, status in self._scan(folder):
            offset = offset_of_name(name)
            if offset is None or not stat.S_ISREG(status.st_mode):
                strays.append(path_at(_inside(folder, name)))
            else:
                files.append((_inside(folder, name), offset, status.st_size))
        return files, strays
