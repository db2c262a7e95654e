"""Store files, opened for reading only.

A store may have tens of thousands of files, so only the last used ones stay open. Nothing here
creates, touches or maps a file. For small reads open a file, local or remote, with `reading` and read it
with `pread`; `opened` gives the descriptor of a local file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.errors import UnreadableError
from rmqtool.storage.remote_path import RemotePath

if TYPE_CHECKING:
    from rmqtool.storage.remote_file import CachedFile

    Reading = int | CachedFile
    """An open file: the descriptor of a local file, the cache of a remote one."""

OPEN_LIMIT = 64  # well below the usual limit of 256 to 1,024 descriptors of a process

# A pipe with the name of a file must not block the open.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A read-only descriptor of the plain file `path`, closed at the end of the block.

    Raises:
        OSError: the file cannot be opened, or is a folder, pipe, socket or device.
    """
    descriptor = descriptor_of(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def reading(path: Path) -> Iterator[Reading]:
    """The plain file `path`, local or remote, for `pread` and `size_of`; closed at the end of the block.

    Raises:
        OSError: as `opened`, and if a remote place does not answer.
    """
    file = _open_any(path)
    try:
        yield file
    finally:
        _close(file)


def pread(file: Reading, length: int, offset: int) -> bytes:
    """Bytes of a file of `reading`; fewer only at its end, unlike os.pread. Raises OSError."""
    if not isinstance(file, int):
        return file.read(offset, length)
    data = os.pread(file, length, offset)
    while 0 < len(data) < length and (more := os.pread(file, length - len(data), offset + len(data))):
        data += more
    return data


def size_of(file: Reading) -> int:
    """The size of a file of `reading`, in bytes."""
    return os.fstat(file).st_size if isinstance(file, int) else file.size


def _open_any(path: Path) -> Reading:
    if isinstance(path, RemotePath):
        from rmqtool.storage.remote_file import CachedFile

        return CachedFile(path.place.open(path.inner))
    return descriptor_of(path)


def _close(file: Reading) -> None:
    if isinstance(file, int):
        os.close(file)
    else:
        file.close()


def descriptor_of(path: Path) -> int:
    """As `opened`, but the caller closes the descriptor."""
    descriptor = os.open(path, _FLAGS)
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError as error:  # its message does not name the file
        os.close(descriptor)
        raise OSError(error.errno, error.strerror, str(path)) from error
    if is_file:
        if hasattr(os, "posix_fadvise"):
            # For small scattered reads, read-ahead would fill the broker's page cache needlessly.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a plain file", str(path))


def data_ranges(file: Reading, size: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of a file of `size` bytes outside of holes; the whole file if holes are not known."""
    if not isinstance(file, int):
        yield from file.data_ranges(size)
        return
    stop = 0
    while stop < size:
        try:
            start = os.lseek(file, stop, os.SEEK_DATA)
            stop = min(os.lseek(file, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: only a hole is left
                yield stop, size
            return
        yield start, stop


def read_head(path: Path, length: int) -> bytes | None:
    """The first `length` bytes of a small file; None if it is gone, because a live broker deletes files.

    Raises:
        UnreadableError: it cannot be opened or read, or is not a plain file.
    """
    try:
        with reading(path) as file:
            return pread(file, length, 0)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error


def head_of(path: Path, length: int) -> bytes:
    """The first `length` bytes of a small file; none if it is gone or cannot be read."""
    try:
        with reading(path) as file:
            return pread(file, length, 0)
    except OSError:
        return b""


def path_of(error: OSError) -> Path:
    """The file that could not be read."""
    path = error.path if isinstance(error, UnreadableError) else error.filename
    return path if isinstance(path, Path) else Path(str(path))


class Failure(NamedTuple):
    """Bytes of a file that could not be read; `offset` and `length` are None if it could not be opened."""

    offset: int | None
    length: int | None
    reason: str


class OpenFiles:
    """Reads by path; keeps the OPEN_LIMIT last used files open. Not for use by several threads.

    `failures` are the files that the operating system could not read, each with its first failure, so that a
    caller which continues without the bytes can report them at the end. Files that a live broker has
    deleted are not among them.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[Path, Reading] = OrderedDict()
        self.failures: dict[Path, Failure] = {}

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer at the end of the file.

        Raises:
            UnreadableError: the file is gone, or the operating system could not read it.
        """
        try:
            return pread(self._file(path), length, offset)
        except OSError as error:
            raise self._failed(path, offset, length, error) from error

    def read_listed(self, path: Path, offset: int, length: int) -> bytes:
        """`length` bytes that the file had when it was listed.

        Raises:
            UnreadableError: as `read`, and if the file has become shorter since.
        """
        data = self.read(path, offset, length)
        if len(data) < length:
            error = OSError(errno.EIO, "the file became shorter while it was read")
            raise self._failed(path, offset + len(data), length - len(data), error)
        return data

    def first_hole(self, path: Path, size: int) -> int:
        """The offset of the first hole of a sparse file; `size` if it has none or holes are not known.

        Raises:
            UnreadableError: the file is gone, or cannot be opened.
        """
        file = self._readable(path)
        if not isinstance(file, int):
            return min(file.hole_from(0), size)
        try:
            return min(os.lseek(file, 0, os.SEEK_HOLE), size)
        except OSError:  # EINVAL: a file system without the call; ENXIO: an empty file
            return size

    def next_data(self, path: Path, offset: int, size: int) -> int:
        """The first byte from `offset` on outside of holes; `size` if none, `offset` if holes are not known.

        Raises:
            UnreadableError: the file is gone, or cannot be opened.
        """
        file = self._readable(path)
        if not isinstance(file, int):
            return offset
        try:
            return min(os.lseek(file, offset, os.SEEK_DATA), size)
        except OSError as error:
            return size if error.errno == errno.ENXIO else offset

    def _readable(self, path: Path) -> Reading:
        """As `_file`, but raises UnreadableError."""
        try:
            return self._file(path)
        except OSError as error:
            raise self._failed(path, None, None, error) from error

    def _failed(self, path: Path, offset: int | None, length: int | None, error: OSError) -> UnreadableError:
        reason = error.strerror or str(error)
        if not isinstance(error, FileNotFoundError):
            self.failures.setdefault(path, Failure(offset, length, reason))
        return UnreadableError(f"cannot read: {reason}", path=path)

    def _file(self, path: Path) -> Reading:
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        file = self._open[path] = _open_any(path)
        if len(self._open) > OPEN_LIMIT:
            _close(self._open.popitem(last=False)[1])
        return file

    def close(self) -> None:
        """Close all files. A later read opens its file again."""
        while self._open:
            _close(self._open.popitem()[1])

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
