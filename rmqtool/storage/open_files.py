"""Store files, opened for reading only.

A store may have tens of thousands of files, so only the last used ones stay open. Nothing here
creates, touches or maps a file. `reading` opens a file for small reads, wherever it lies; `opened` gives the
descriptor of a local file.
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
from typing import NamedTuple

from rmqtool.errors import UnreadableError
from rmqtool.storage.random_file import CachedFile, LocalFile, RandomFile
from rmqtool.storage.storage import Place, StoragePath, disk_bytes, path_at

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
def reading(path: Path) -> Iterator[RandomFile]:
    """The plain file `path`, wherever it lies, for small reads in one thread; closed at the end of the block.

    Raises:
        OSError: as `opened`, and where a storage does not answer.
    """
    file = _open_for_small_reads(path)
    try:
        yield file
    finally:
        file.close()


def open_file(path: Place) -> RandomFile:
    """The plain file `path`, wherever it lies; the caller closes it. Raises OSError."""
    if isinstance(path, StoragePath):
        return path.storage.open(path.inner)
    return LocalFile(descriptor_of(path), str(path))


def _open_for_small_reads(path: Place) -> RandomFile:
    file = open_file(path)
    return file if isinstance(file, LocalFile) else CachedFile(file)


def descriptor_of(path: Place) -> int:
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


class Extents:
    """The data of an open file outside its holes, of which the last one is remembered.

    tmpfs takes a millisecond to find the end of a large one.
    """

    def __init__(self, file: RandomFile) -> None:
        self._file = file
        self._start = self._stop = 0

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The half-open ranges of data in [start, stop); all of it where holes are unknown."""
        while start < stop:
            if not self._start <= start < self._stop:
                first = self._file.data_from(start)
                if first >= min(stop, self._file.size):
                    return
                self._start, self._stop = first, max(self._file.hole_from(first), first + 1)
            start = max(start, self._start)
            end = min(self._stop, stop)
            yield start, end
            start = end


def data_ranges(file: RandomFile, size: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of a file's first `size` bytes outside its holes; all where holes are unknown."""
    return Extents(file).within(0, size)


def allocated_bytes(path: Place, size: int) -> int:
    """How many of a file's `size` bytes are outside its holes; `size` where the system does not report it."""
    if isinstance(path, StoragePath):
        return size
    try:
        return min(disk_bytes(path_at(path).stat()), size)
    except OSError:
        return size


def read_head(path: Path, length: int) -> bytes | None:
    """The first `length` bytes of a small file; None if it is gone, because a live broker deletes files.

    Raises:
        UnreadableError: it cannot be opened or read, or is not a plain file.
    """
    try:
        with reading(path) as file:
            return file.read(0, length)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error


def head_of(path: Path, length: int) -> bytes:
    """The first `length` bytes of a small file; none if it is gone or cannot be read."""
    try:
        with reading(path) as file:
            return file.read(0, length)
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
        self._open: OrderedDict[Place, RandomFile] = OrderedDict()
        self.failures: dict[Path, Failure] = {}

    def read(self, path: Place, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer at the end of the file.

        Raises:
            UnreadableError: the file is gone, or the operating system could not read it.
        """
        try:
            return self._file(path).read(offset, length)
        except OSError as error:
            raise self._failed(path, offset, length, error) from error

    def read_listed(self, path: Place, offset: int, length: int) -> bytes:
        """`length` bytes that the file had when it was listed.

        Raises:
            UnreadableError: as `read`, and if the file has become shorter since.
        """
        data = self.read(path, offset, length)
        if len(data) < length:
            error = OSError(errno.EIO, "the file became shorter while it was read")
            raise self._failed(path, offset + len(data), length - len(data), error)
        return data

    def first_hole(self, path: Place, size: int) -> int:
        """The offset of the first hole of a sparse file; `size` if it has none or holes are not known.

        Raises:
            UnreadableError: the file is gone, or cannot be opened.
        """
        return min(self._readable(path).hole_from(0), size)

    def next_data(self, path: Place, offset: int, size: int) -> int:
        """The first byte at or after `offset` outside a hole; `size` for none, `offset` if unknown.

        Raises:
            UnreadableError: the file is gone, or cannot be opened.
        """
        file = self._readable(path)
        found = file.data_from(offset)
        return size if found >= file.size else min(found, size)

    def _readable(self, path: Place) -> RandomFile:
        """As `_file`, but raises UnreadableError."""
        try:
            return self._file(path)
        except OSError as error:
            raise self._failed(path, None, None, error) from error

    def _failed(
        self, place: Place, offset: int | None, length: int | None, error: OSError
    ) -> UnreadableError:
        reason, path = error.strerror or str(error), path_at(place)
        if not isinstance(error, FileNotFoundError):
            self.failures.setdefault(path, Failure(offset, length, reason))
        return UnreadableError(f"cannot read: {reason}", path=path)

    def _file(self, path: Place) -> RandomFile:
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        file = self._open[path] = _open_for_small_reads(path)
        if len(self._open) > OPEN_LIMIT:
            self._open.popitem(last=False)[1].close()
        return file

    def close(self) -> None:
        """Close all files. A later read opens its file again."""
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
