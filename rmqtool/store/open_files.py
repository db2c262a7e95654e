"""Store files, opened for reading and nothing else.

A store may have tens of thousands of files, so only the last used ones stay open. Nothing here
creates, touches or maps a file.
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

from rmqtool.errors import UnreadableError

OPEN_LIMIT = 64  # well below the usual limit of 256 to 1,024 descriptors of a process

# A pipe in place of a file must not block the open.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A read-only descriptor of the plain file `path`, closed at the end of the block.

    Raises:
        OSError: the file cannot be opened, or is a folder, pipe, socket or device.
    """
    descriptor = _open(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    descriptor = os.open(path, _FLAGS)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        if hasattr(os, "posix_fadvise"):
            # Small reads here and there: read-ahead would fill the broker's page cache for nothing.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no plain file", str(path))


def data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of a file of `size` bytes outside of its holes; all of it where nobody can say."""
    stop = 0
    while stop < size:
        try:
            start = os.lseek(descriptor, stop, os.SEEK_DATA)
            stop = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: nothing but a hole is left
                yield stop, size
            return
        yield start, stop


def read_head(path: Path, length: int) -> bytes | None:
    """The first `length` bytes of a small file; None where it is gone: a live broker deletes files.

    Raises:
        UnreadableError: it cannot be opened or read, or is no plain file.
    """
    try:
        with opened(path) as descriptor:
            return os.pread(descriptor, length, 0)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error


def head_of(path: Path, length: int) -> bytes:
    """The first `length` bytes of a small file; nothing where it is gone or cannot be read."""
    try:
        with opened(path) as descriptor:
            return os.pread(descriptor, length, 0)
    except OSError:
        return b""


class OpenFiles:
    """Reads by path; keeps the OPEN_LIMIT last used files open. Not for use by several threads."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer at the end of the file.

        Raises:
            UnreadableError: the file is gone, or the operating system could not read it.
        """
        pieces: list[bytes] = []
        try:
            descriptor = self._descriptor(path)
            while length > 0:
                piece = os.pread(descriptor, length, offset)
                if not piece:
                    break
                pieces.append(piece)
                offset, length = offset + len(piece), length - len(piece)
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def first_hole(self, path: Path, size: int) -> int:
        """Where the first hole of a sparse file begins; `size` when it has none or nobody can say.

        Raises:
            UnreadableError: the file is gone, or cannot be opened.
        """
        try:
            descriptor = self._descriptor(path)
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
        try:
            return min(os.lseek(descriptor, 0, os.SEEK_HOLE), size)
        except OSError:  # EINVAL: a file system without the call; ENXIO: an empty file
            return size

    def _descriptor(self, path: Path) -> int:
        descriptor = self._descriptors.get(path)
        if descriptor is not None:
            self._descriptors.move_to_end(path)
            return descriptor
        descriptor = _open(path)
        self._descriptors[path] = descriptor
        if len(self._descriptors) > OPEN_LIMIT:
            os.close(self._descriptors.popitem(last=False)[1])
        return descriptor

    def close(self) -> None:
        """Close all files. Reading afterwards opens them again."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
