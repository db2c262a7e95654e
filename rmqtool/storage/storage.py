"""Storages: trees of files on a disk of this machine, at a URL, in an archive, or compressed one by one.

A store's files are named by paths. A plain `pathlib.Path` belongs to the disks of this machine. A
`StoragePath` belongs to a `Storage`, which lists its folders and opens its files; such a path is joined,
compared, sorted and taken apart as any other. The system's own calls (`os.open`, `os.stat`) refuse it with
an OSError, so code that reads local files only fails with one and never reads another file by mistake.
A `StoragePath` prints as a URL or a path without secrets.

Everything that reads a store, wherever it lies, goes through `Listing` (folders), `open_files` (small
reads) and `source` (scans). The other modules that ask which kind of path they have do what only a local file
allows: they lock it, ask for its permissions, or resolve its links.

The first two parts of a `StoragePath` are `/` and a name of its storage that is valid in this process
only; a pickled path carries what makes its storage again.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path, PosixPath
from threading import RLock
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rmqtool.storage.random_file import RandomFile

Entries = list[tuple[str, os.stat_result]]
Place = Path | str
"""A path, as text if it is one of this machine: making a `Path` takes as long as opening the file."""
Recipe = tuple[Callable[..., "Storage"], tuple[Any, ...]]

_SECTOR = 512  # st_blocks counts these, whatever the file system's own block size
_LATEST = 7_258_118_400.0  # 2200
_FILE_MODE, _FOLDER_MODE = stat.S_IFREG | 0o444, stat.S_IFDIR | 0o555
_storages: dict[str, Storage] = {}
_restored: dict[Recipe, str] = {}
_lock = RLock()


def path_at(place: Place) -> Path:
    """The place as a path."""
    return Path(place) if isinstance(place, str) else place


def status_of(size: int | None, mtime: float = 0.0) -> os.stat_result:
    """The status of a file of `size` bytes, or of a folder (None); `mtime` in seconds since 1970."""
    mode = _FOLDER_MODE if size is None else _FILE_MODE
    mtime = mtime if 0 <= mtime < _LATEST else 0.0  # an archive may hold any number
    size, times = size or 0, (mtime, mtime, mtime)
    values = (mode, 0, 0, 1, 0, 0, size, *map(int, times), *times, *(int(1e9 * each) for each in times))
    return os.stat_result(values, {"st_blocks": -(-size // _SECTOR), "st_blksize": _SECTOR})


def disk_bytes(status: os.stat_result) -> int:
    """The bytes that a file takes on its disk: none for its holes, whole blocks for the rest."""
    return status.st_blocks * _SECTOR


class Storage(ABC):
    """A tree of files elsewhere than on this machine's disks, named by text: `bucket/store/commitlog/000...`.

    Every method raises OSError as the system's calls do, with a text that shows no secret.
    """

    name: str
    """The kind of storage in a few words, such as `s3` or `a tar archive`."""

    @abstractmethod
    def show(self, inner: str) -> str:
        """How a path in this storage is shown."""

    def typed(self, inner: str) -> str:
        """How a path in this storage is named in a command line, without secrets."""
        return self.show(inner)

    @abstractmethod
    def recipe(self) -> Recipe:
        """The recipe that creates this storage in another process; picklable."""

    @abstractmethod
    def entries(self, inner: str) -> Entries:
        """Name and status of the entries of a folder, in no particular order."""

    def tree(self, inner: str) -> dict[str, Entries]:
        """The entries of a folder, and of the folders below it where one request lists them all."""
        return {inner: self.entries(inner)}

    @abstractmethod
    def status(self, inner: str) -> os.stat_result:
        """The status of a file or folder."""

    @abstractmethod
    def open(self, inner: str) -> RandomFile:
        """A plain file, for reads at any offset."""

    @abstractmethod
    def close(self) -> None:
        """Release connections and temporary files; they are made again when they are needed."""


def mounted(storage: Storage, inner: str) -> StoragePath:
    """The path `inner` in a storage that has no path yet."""
    with _lock:
        token = f"{storage.name}:{len(_storages) + 1}"
        _storages[token] = storage
    return _path(token, inner)


def restored(make: Callable[..., Storage], arguments: tuple[Any, ...], inner: str) -> StoragePath:
    """The path `inner` in the storage that `make(*arguments)` returns; each is made once per process."""
    recipe = (make, arguments)
    with _lock:
        if recipe not in _restored:
            _restored[recipe] = mounted(make(*arguments), inner).parts[1]
        return _path(_restored[recipe], inner)


def _path(token: str, inner: str) -> StoragePath:
    return StoragePath("/", token, *(part for part in inner.split("/") if part))


class StoragePath(PosixPath):
    """A file or folder in a storage. Made by `mounted` and `restored`.

    A relative path, as `relative_to` returns it, has no storage.
    """

    @property
    def storage(self) -> Storage:
        """The storage that it belongs to. Raises FileNotFoundError for a path without one."""
        storage = _storages.get(self.parts[1]) if len(self.parts) > 1 else None
        if storage is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), PosixPath.__str__(self))
        return storage

    @property
    def inner(self) -> str:
        """Its name in the storage."""
        return "/".join(self.parts[2:])

    def __str__(self) -> str:
        storage = _storages.get(self.parts[1]) if len(self.parts) > 1 else None
        return "/".join(self.parts) or "." if storage is None else storage.show(self.inner)

    def typed(self) -> str:
        """Its text in a command line."""
        return self.storage.typed(self.inner) if self.is_absolute() else str(self)

    def __repr__(self) -> str:
        return f"StoragePath({str(self)!r})"

    def __fspath__(self) -> NoReturn:
        raise OSError(
            errno.ENOTSUP, "it is compressed, in an archive or at a URL, and not a plain file", str(self)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoragePath) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __reduce__(self) -> Any:
        if not self.is_absolute():
            return StoragePath, self.parts
        make, arguments = self.storage.recipe()
        return restored, (make, arguments, self.inner)

    def as_posix(self) -> str:
        """The same as `str`."""
        return str(self)

    def is_absolute(self) -> bool:
        """Whether it belongs to a storage."""
        return len(self.parts) > 1 and self.parts[1] in _storages

    def absolute(self) -> StoragePath:
        """Itself."""
        return self

    def resolve(self, strict: bool = False) -> StoragePath:
        """Itself: there are no links."""
        if strict:
            self.stat()
        return self

    def expanduser(self) -> StoragePath:
        """Itself."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its status; there are no links to follow. Raises OSError."""
        return self.storage.status(self.inner)

    def lstat(self) -> os.stat_result:
        """See `stat`."""
        return self.stat()

    def _mode(self) -> int:
        """Its type and permissions; 0 if there is no such entry or its status cannot be read."""
        try:
            return self.stat().st_mode
        except OSError:
            return 0

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether there is a file or folder of that name."""
        return self._mode() != 0

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a plain file."""
        return stat.S_ISREG(self._mode())

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self._mode())

    def is_symlink(self) -> bool:
        """False: there are no links."""
        return False

    def entries(self) -> Entries:
        """Name and status of the entries of a folder. Raises OSError."""
        return self.storage.entries(self.inner)

    def tree(self) -> dict[StoragePath, Entries]:
        """The entries of a folder, and of some below it: see `Storage.tree`. Raises OSError."""
        found = self.storage.tree(self.inner)
        return {_path(self.parts[1], inner): entries for inner, entries in found.items()}

    def iterdir(self) -> Iterator[StoragePath]:  # type: ignore[override]  # typeshed: Generator[Self]
        """The entries of a folder. Raises OSError."""
        yield from (self / name for name, _ in self.entries())

    def read_bytes(self) -> bytes:
        """The content of a file. Raises OSError."""
        file = self.storage.open(self.inner)
        try:
            return file.read(0, file.size)
        finally:
            file.close()

    def read_text(self, encoding: str | None = None, errors: str | None = None, *_: Any) -> str:
        """All of a file as text, by default UTF-8. Raises OSError."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(self, mode: str = "r", *_: Any, **__: Any) -> IO[Any]:  # type: ignore[override]
        """The whole file in memory, with mode `rb` only; meant for small files. Raises OSError."""
        if mode != "rb":
            raise OSError(errno.EROFS, "nothing is written here", str(self))
        return io.BytesIO(self.read_bytes())
