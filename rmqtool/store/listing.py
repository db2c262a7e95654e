"""Folder listings of a store: one pass per folder, sizes from the directory entries.

A store that a broker is using changes while it is listed: what vanishes in between is left out.
A folder that cannot be listed is noted and taken for empty, so that the rest is still shown.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from rmqtool.errors import UnreadableError
from rmqtool.store.single_file import offset_of_name

# Gone since it was listed, or no folder: what a live store does to a reader.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


class Listing:
    """Lists folders and keeps the list of what could not be read, with the reason."""

    def __init__(self) -> None:
        self.unreadable: list[tuple[Path, str]] = []

    def entries(self, folder: Path, *, must_exist: bool = False) -> list[tuple[str, os.stat_result]]:
        """Name and status of every entry, sorted by name; links are followed, dead ones left out.

        Raises:
            UnreadableError: `must_exist` and the folder cannot be listed.
        """
        found: list[tuple[str, os.stat_result]] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        found.append((entry.name, entry.stat()))
                    except OSError as error:
                        self._note(Path(entry.path), error)
        except OSError as error:
            if must_exist:
                raise UnreadableError(f"cannot list the folder: {error.strerror}", path=folder) from error
            self._note(folder, error)
        found.sort(key=lambda item: item[0])
        return found

    def _note(self, path: Path, error: OSError) -> None:
        if error.errno not in _GONE:
            self.unreadable.append((path, error.strerror or type(error).__name__))

    def status(self, path: Path) -> os.stat_result | None:
        """The status of `path`, links followed; None where there is nothing or it cannot be asked for."""
        try:
            return path.stat()
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            if isinstance(error, OSError):
                self._note(path, error)
            return None

    def is_file(self, path: Path) -> bool:
        """Whether `path` is a plain file."""
        status = self.status(path)
        return status is not None and stat.S_ISREG(status.st_mode)

    def is_folder(self, path: Path) -> bool:
        """Whether `path` is a folder."""
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def names(self, folder: Path, *, must_exist: bool = False) -> frozenset[str]:
        """The names of all entries. Raises as `entries` does."""
        return frozenset(name for name, _ in self.entries(folder, must_exist=must_exist))

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

    def folders_and_others(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """The folders in `folder`, and all other entries, by name."""
        folders: list[Path] = []
        others: list[Path] = []
        for name, status in self.entries(folder):
            (folders if stat.S_ISDIR(status.st_mode) else others).append(folder / name)
        return folders, others

    def mapped_files(self, folder: Path) -> tuple[list[tuple[Path, int, int]], list[Path]]:
        """(path, offset from the name, size) of the mapped files, by offset, and all other entries."""
        files: list[tuple[Path, int, int]] = []
        strays: list[Path] = []
        for name, status in self.entries(folder):
            offset = offset_of_name(name)
            if offset is None or not stat.S_ISREG(status.st_mode):
                strays.append(folder / name)
            else:
                files.append((folder / name, offset, status.st_size))
        return files, strays
