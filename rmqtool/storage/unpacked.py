"""Files of a store that are compressed one by one: `commitlog/00000000000000000000.zst`.

They are shown under their names before compression. When a folder is listed, all its files are unpacked,
because their sizes are unknown before. If the uncompressed file exists too, it is used. Files outside of
the store's folder are not listed.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from threading import Lock

from rmqtool.errors import FormatError
from rmqtool.storage.decompress import pieces, stem
from rmqtool.storage.listing import Listing
from rmqtool.storage.remote_file import LocalFile, RandomFile
from rmqtool.storage.remote_path import Entries, FileSystem, Recipe, status_of
from rmqtool.storage.segments import PartFile
from rmqtool.storage.single_file import is_index_name, offset_of_name
from rmqtool.storage.spool import FILE_LIMIT, Spool
from rmqtool.storage.tar import open_file


def is_compressed_file(name: str) -> bool:
    """Whether this is the name of a compressed file of a log, a queue or an index."""
    before = stem(name)
    return before is not None and (offset_of_name(before) is not None or is_index_name(before))


class UnpackedPlace(FileSystem):
    """The files of the folder `base / root`, or only the file `base / only`, whatever its name."""

    name = "compressed files"

    def __init__(self, base: Path, root: str, only: str = "") -> None:
        self._base = base
        self._root = root
        self._only = only
        self._lock = Lock()  # threads ask for files side by side
        self._spool: Spool | None = None
        self._parts: dict[str, tuple[int, int, Path]] = {}

    def show(self, inner: str) -> str:
        """See FileSystem."""
        return str(self._base / inner)

    def recipe(self) -> Recipe:
        """See FileSystem."""
        return UnpackedPlace, (self._base, self._root, self._only)

    def entries(self, inner: str) -> Entries:
        """See FileSystem.

        Raises:
            FormatError: a compressed file is damaged, or cut short.
            UnwritableError: there is too little space to unpack it.
        """
        if self._only or not f"{inner}/".startswith(f"{self._root}/"):
            raise PermissionError(errno.EACCES, "outside of the store", self.show(inner))
        listing = Listing()
        listed = listing.entries(self._base / inner)
        if not listed and listing.unreadable:
            raise OSError(errno.EIO, listing.unreadable[0][1], self.show(inner))
        plain = {name for name, _ in listed}
        found: Entries = []
        for name, status in listed:
            before = stem(name)
            if before is None or before in plain or not stat.S_ISREG(status.st_mode):
                found.append((name, status))
            else:
                size = self._unpacked(f"{inner}/{before}".lstrip("/"), self._base / inner / name)[1]
                found.append((before, status_of(size, status.st_mtime)))
        return found

    def status(self, inner: str) -> os.stat_result:
        """See FileSystem."""
        path = self._compressed(inner)
        if path is None:
            return (self._base / inner).stat()
        return status_of(self._unpacked(inner, path)[1], path.stat().st_mtime)

    def open(self, inner: str) -> RandomFile:
        """See FileSystem."""
        path = self._compressed(inner)
        if path is None:
            return open_file(self._base / inner)
        start, size, _ = self._unpacked(inner, path)
        assert self._spool is not None, "the part was just unpacked"
        base: LocalFile = self._spool.file()
        return PartFile(base, size, [(0, size, start)] if size else [], owns_base=True)

    def close(self) -> None:
        """See FileSystem. Files that are read again are unpacked again."""
        if self._spool is not None:
            self._spool.close()
        self._spool = None
        self._parts.clear()

    def _compressed(self, inner: str) -> Path | None:
        """The compressed file that is shown as `inner`; None if there is none, or an uncompressed one."""
        if self._only:
            path = self._base / self._only
            before = stem(path.name)
            return path if before is not None and inner == _sibling(self._only, before) else None
        if inner in self._parts:
            return self._parts[inner][2]
        plain = self._base / inner
        if plain.exists():
            return None
        names = {name for name, _ in Listing().entries(plain.parent) if stem(name) == plain.name}
        return plain.parent / min(names) if names else None

    def _unpacked(self, inner: str, path: Path) -> tuple[int, int, Path]:
        """(offset in the spool, size, compressed file) of `inner`; unpacks it on first use."""
        with self._lock:
            if inner not in self._parts:
                if self._spool is None:
                    self._spool = Spool()
                file = open_file(path)
                try:
                    self._parts[inner] = (*self._spool.add(pieces(file, path), FILE_LIMIT), path)
                except FormatError as error:
                    error.path = error.path or path
                    raise
                finally:
                    file.close()
            return self._parts[inner]


def _sibling(inner: str, name: str) -> str:
    return "/".join((*inner.split("/")[:-1], name))
