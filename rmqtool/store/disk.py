"""The one place where files of a store are changed: made, written, flushed, renamed, deleted.

Nothing is written through a symbolic link. What is made gets owner, group and mode of its folder.
A short write is gone on with; every failure is an UnwritableError that names the file.

Every function does one change, so that tests can stop the process before, between and after them.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmqtool.errors import UnwritableError

Data = bytes | bytearray | memoryview
_ZEROS = bytes(1 << 20)
_FILE_BITS = 0o666
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
# Where a file system cannot reserve space.
_CANNOT_RESERVE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


@contextmanager
def _explained(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except UnwritableError:
        raise
    except OSError as error:
        raise UnwritableError(f"cannot {what}: {error.strerror or error}", path=path) from error


def make_folder(path: Path) -> None:
    """Make the folder `path`, and the ones above it; nothing when it is there.

    Raises:
        UnwritableError: it cannot be made, or something else has its name.
    """
    if path.is_dir():
        return
    with _explained("make the folder", path):
        if not path.parent.is_dir():
            make_folder(path.parent)
        path.mkdir()
        _take_owner(path, path.parent, 0o777)


def create_file(path: Path, size: int, *, reserve: bool = False) -> int:
    """Make a file of `size` zero bytes and return a descriptor for reading and writing.

    Args:
        path: a file that does not exist.
        size: bytes.
        reserve: whether its space is taken from the file system now, so that writing into it cannot
            fail for lack of space; else it is a hole.

    Raises:
        UnwritableError: it exists, or there is no permission or no space; nothing is left behind.
    """
    with _explained("make the file", path):
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, _FILE_BITS)
        try:
            _take_owner(path, path.parent, _FILE_BITS)
            if reserve:
                _reserve(descriptor, size)
            os.ftruncate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
    return descriptor


def open_file(path: Path) -> int:
    """A descriptor of the existing plain file `path`, for reading and writing.

    Raises:
        UnwritableError: it is missing, a symbolic link or no plain file, or may not be written.
    """
    with _explained("open for writing", path):
        descriptor = os.open(path, _FLAGS | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no plain file")
    return descriptor


def write(descriptor: int, data: Data, offset: int, path: Path) -> None:
    """Write all of `data` at byte `offset`. Raises UnwritableError; a part may be written then."""
    try:  # not _explained: this is the path of every single message
        done = os.pwrite(descriptor, data, offset)
        while done < len(data):
            done += os.pwrite(descriptor, memoryview(data)[done:], offset + done)
    except OSError as error:
        raise UnwritableError(f"cannot write: {error.strerror or error}", path=path) from error


def sync(descriptor: int, path: Path) -> None:
    """Wait until the file's bytes, and its size, are on the device. Raises UnwritableError."""
    with _explained("flush", path):
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the folder's entries are on the device. Raises UnwritableError."""
    with _explained("flush the folder", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _CANNOT_RESERVE:  # a file system whose folders cannot be flushed
                raise
        finally:
            os.close(descriptor)


def rename(old: Path, new: Path) -> None:
    """Give `old` the name `new`, in place of what has it. Raises UnwritableError."""
    with _explained("rename", old):
        old.rename(new)


def remove(path: Path) -> None:
    """Delete the file `path`; nothing when it is gone. Raises UnwritableError."""
    with _explained("delete", path):
        path.unlink(missing_ok=True)


def write_new(path: Path, data: Data) -> None:
    """Make the file `path` with this content, on the device when it returns. Raises UnwritableError."""
    descriptor = create_file(path, 0)
    try:
        write(descriptor, data, 0, path)
        sync(descriptor, path)
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, size: int) -> None:
    """Take the space from the file system; by zeros where it has no call for it."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in _CANNOT_RESERVE:
                raise
        else:
            return
    for offset in range(0, size, len(_ZEROS)):
        piece = memoryview(_ZEROS)[: size - offset]
        done = 0
        while done < len(piece):
            done += os.pwrite(descriptor, piece[done:], offset + done)


def _take_owner(path: Path, folder: Path, bits: int) -> None:
    """Owner, group and permission bits (those of `bits`) as the folder has them."""
    wanted, found = folder.stat(), path.stat(follow_symlinks=False)
    if (wanted.st_uid, wanted.st_gid) != (found.st_uid, found.st_gid):
        os.chown(path, wanted.st_uid, wanted.st_gid, follow_symlinks=False)
    mode = wanted.st_mode & bits
    if stat.S_IMODE(found.st_mode) != mode:
        path.chmod(mode)
