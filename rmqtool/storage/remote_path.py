"""Paths of files at a URL or inside an archive.

A `RemotePath` is a `pathlib.Path`: it can be joined, compared, sorted and split, and the `FileSystem` that
it belongs to provides its status, entries and bytes. The system's own calls (`os.open`, `os.stat`) reject
it with an OSError, so code for local files only cannot read another file by mistake. It prints as a URL or
path without secrets.

The first two parts of such a path are `/` and a name of its place. The name is valid in this process
only; a pickled path carries the data to create its place again.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import PosixPath
from threading import RLock
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rmqtool.storage.remote_file import RandomFile

Entries = list[tuple[str, os.stat_result]]
Recipe = tuple[Callable[..., "FileSystem"], tuple[Any, ...]]

_BLOCK = 512  # st_blocks counts these
_LATEST = 7_258_118_400.0  # 2200
_FILE_MODE, _FOLDER_MODE = stat.S_IFREG | 0o444, stat.S_IFDIR | 0o555
_places: dict[str, FileSystem] = {}
_restored: dict[Recipe, str] = {}
_lock = RLock()


def status_of(size: int | None, mtime: float = 0.0) -> os.stat_result:
    """The status of a file of `size` bytes, or of a folder (None); `mtime` in seconds since 1970."""
    mode = _FOLDER_MODE if size is None else _FILE_MODE
    mtime = mtime if 0 <= mtime < _LATEST else 0.0  # an archive may contain any number
    size, times = size or 0, (mtime, mtime, mtime)
    values = (mode, 0, 0, 1, 0, 0, size, *map(int, times), *times, *(int(1e9 * each) for each in times))
    return os.stat_result(values, {"st_blocks": -(-size // _BLOCK), "st_blksize": _BLOCK})


class FileSystem(ABC):
    """A tree of files elsewhere. Its files are named by text: `bucket/store/commitlog/000...`.

    Every method raises OSError as the system's calls do, with a text that shows no secret.
    """

    name: str
    """A short description, such as `s3` or `a tar archive`."""

    @abstractmethod
    def show(self, inner: str) -> str:
        """The text that shows a path of this place."""

    @abstractmethod
    def recipe(self) -> Recipe:
        """A function and arguments that create this place in another process; picklable."""

    @abstractmethod
    def entries(self, inner: str) -> Entries:
        """Name and status of the entries of a folder, in no special order."""

    def tree(self, inner: str) -> dict[str, Entries]:
        """The entries of a folder, and of the folders below it if they cost nothing more."""
        return {inner: self.entries(inner)}

    @abstractmethod
    def status(self, inner: str) -> os.stat_result:
        """The status of a file or folder."""

    @abstractmethod
    def open(self, inner: str) -> RandomFile:
        """Open a plain file for random access."""

    @abstractmethod
    def close(self) -> None:
        """Release resources; they are acquired again when needed."""


def mounted(place: FileSystem, inner: str) -> RemotePath:
    """Register a new place and return its path `inner`."""
    with _lock:
        token = f"{place.name}:{len(_places) + 1}"
        _places[token] = place
    return _path(token, inner)


def restored(make: Callable[..., FileSystem], arguments: tuple[Any, ...], inner: str) -> RemotePath:
    """The path `inner` of the place `make(*arguments)`, which is created once per process."""
    recipe = (make, arguments)
    with _lock:
        if recipe not in _restored:
            _restored[recipe] = mounted(make(*arguments), inner).parts[1]
        return _path(_restored[recipe], inner)


def _path(token: str, inner: str) -> RemotePath:
    return RemotePath("/", token, *(part for part in inner.split("/") if part))


class RemotePath(PosixPath):
    """A file or folder of a place; see the module. Created by `mounted` and `restored`.

    The result of `relative_to` belongs to no place, as a relative path has no root.
    """

    @property
    def place(self) -> FileSystem:
        """The place that it belongs to. Raises FileNotFoundError for a path without one."""
        place = _places.get(self.parts[1]) if len(self.parts) > 1 else None
        if place is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), PosixPath.__str__(self))
        return place

    @property
    def inner(self) -> str:
        """Its name in that place."""
        return "/".join(self.parts[2:])

    def __str__(self) -> str:
        place = _places.get(self.parts[1]) if len(self.parts) > 1 else None
        return "/".join(self.parts) or "." if place is None else place.show(self.inner)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __fspath__(self) -> NoReturn:
        raise OSError(
            errno.ENOTSUP, "it is compressed, in an archive or at a URL, and not a plain file", str(self)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __reduce__(self) -> Any:
        if not self.is_absolute():
            return RemotePath, self.parts
        make, arguments = self.place.recipe()
        return restored, (make, arguments, self.inner)

    def as_posix(self) -> str:
        """The same as `str`."""
        return str(self)

    def is_absolute(self) -> bool:
        """Whether it belongs to a place."""
        return len(self.parts) > 1 and self.parts[1] in _places

    def absolute(self) -> RemotePath:
        """Itself."""
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        """Itself: there are no links."""
        if strict:
            self.stat()
        return self

    def expanduser(self) -> RemotePath:
        """Itself."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its status; there are no links to follow. Raises OSError."""
        return self.place.status(self.inner)

    def lstat(self) -> os.stat_result:
        """See `stat`."""
        return self.stat()

    def _mode(self) -> int:
        """Its type and permissions; 0 if it does not exist or its status cannot be read."""
        try:
            return self.stat().st_mode
        except OSError:
            return 0

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it exists."""
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
        return self.place.entries(self.inner)

    def tree(self) -> dict[RemotePath, Entries]:
        """The entries of a folder, and of some below it: see `FileSystem.tree`. Raises OSError."""
        found = self.place.tree(self.inner)
        return {_path(self.parts[1], inner): entries for inner, entries in found.items()}

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]  # typeshed: Generator[Self]
        """The entries of a folder. Raises OSError."""
        yield from (self / name for name, _ in self.entries())

    def read_bytes(self) -> bytes:
        """The content of a file. Raises OSError."""
        file = self.place.open(self.inner)
        try:
            return file.read(0, file.size)
        finally:
            file.close()

    def read_text(self, encoding: str | None = None, errors: str | None = None, *_: Any) -> str:
        """The content of a file as text, UTF-8 by default. Raises OSError."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(self, mode: str = "r", *_: Any, **__: Any) -> IO[Any]:  # type: ignore[override]
        """The whole file in memory, with mode `rb` only; meant for small files. Raises OSError."""
        if mode != "rb":
            raise OSError(errno.EROFS, "nothing is written here", str(self))
        return io.BytesIO(self.read_bytes())
