"""The one place where files of a store are changed: made, written, flushed, renamed, deleted.

Nothing is written through a symbolic link. What is made gets owner, group and mode of its folder;
only the folder of a new store is made as any other program would.
A short write is gone on with; every failure is an UnwritableError that names the file.

Every function does one change, so that tests can stop the process before, between and after them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rmqtool.errors import UnwritableError

Data = bytes | bytearray | memoryview
Name = Path | str
"""A path; text is cheaper where tens of thousands of files are made."""
_ZEROS = bytes(1 << 20)
_FILE_BITS = 0o666
_MODE_BITS = 0o777
_FOLDER_BITS = 0o2777  # a folder with the set-group-ID bit hands its group on
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
# Where a file system cannot reserve space.
_CANNOT_RESERVE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
# Where the system cannot copy between two files by itself: other file systems, old kernels.
_CANNOT_COPY = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM})
_COPY_BYTES = 1 << 30  # asked of the system at once


@contextmanager
def _explained(what: str, path: Name) -> Iterator[None]:
    try:
        yield
    except UnwritableError:
        raise
    except OSError as error:
        raise UnwritableError(f"cannot {what}: {error.strerror or error}", path=path) from error


def make_folder(path: Name, *, own: bool = False) -> None:
    """Make the folder `path`, and the ones above it; nothing when it is there.

    Its entry is on the device after `sync_folder` of the folder above.

    Args:
        path: the folder.
        own: it belongs to this process and its mode comes from the umask, as for a new store,
            which lies in a folder of somebody else as often as not; else owner, group and mode
            are those of the folder above.

    Raises:
        UnwritableError: it cannot be made, or something else has its name, as a symbolic link.
    """
    with _explained("make the folder", path):
        above = _above(path)
        try:
            os.mkdir(path)
        except FileNotFoundError:
            make_folder(above, own=own)
            with suppress(FileExistsError):
                os.mkdir(path)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise OSError(errno.ENOTDIR, "something else has its name") from None
            return
        if not own:
            _take_owner(path, above, _FOLDER_BITS)


def create_file(
    path: Name, size: int, *, reserve: bool = False, like: Path | None = None, own: bool = False
) -> int:
    """Make a file of `size` zero bytes and return a descriptor for reading and writing.

    Args:
        path: a file that does not exist.
        size: bytes.
        reserve: whether its space is taken from the file system now, so that writing into it cannot
            fail for lack of space; else it is a hole.
        like: the file that it will replace: owner, group and mode are that one's, where it exists.
        own: it is the caller's own, not one of a store: its owner and mode are as of any new file.

    Raises:
        UnwritableError: it exists, or there is no permission or no space; nothing is left behind.
    """
    with _explained("make the file", path):
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, _FILE_BITS)
        try:
            if like is not None and like.is_file():
                _take_owner(descriptor, like, _MODE_BITS)
            elif not own:
                _take_owner(descriptor, _above(path), _FILE_BITS)
            os.ftruncate(descriptor, size)  # first: a stopped process leaves no file of another size
            if reserve:
                _reserve(descriptor, size)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):  # the first failure is the one to tell
                os.unlink(path)
            raise
    return descriptor


def open_file(path: Name) -> int:
    """A descriptor of the existing plain file `path`, for reading and writing.

    Raises:
        UnwritableError: it is missing, a symbolic link or no plain file, or may not be written.
    """
    with _explained("open for writing", path):
        try:
            descriptor = os.open(path, _FLAGS | os.O_NONBLOCK)
        except OSError:
            if os.path.islink(path):  # the system's words for it name no link
                raise OSError(errno.ELOOP, "it is a symbolic link") from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a plain file")
    return descriptor


def write(descriptor: int, data: Data, offset: int, path: Name) -> None:
    """Write all of `data` at byte `offset`. Raises UnwritableError; a part may be written then."""
    try:  # not _explained: this is the path of every single message
        done = os.pwrite(descriptor, data, offset)
        while done < len(data):
            done += os.pwrite(descriptor, memoryview(data)[done:], offset + done)
    except OSError as error:
        raise UnwritableError(f"cannot write: {error.strerror or error}", path=path) from error


def copy_range(source: int, target: int, offset: int, length: int, path: Name) -> None:
    """Copy `length` bytes at byte `offset` of one file to the same place of another, `path`.

    By the file system itself where it can.

    Raises:
        UnwritableError: also where the source ends before; a part may be written then.
    """
    with _explained("copy to", path):
        end = offset + length
        while offset < end:
            done = _copy_piece(source, target, offset, end - offset)
            if done == 0:
                raise OSError(errno.EIO, f"what is to be copied ends at byte {offset}, before {end}")
            offset += done


def _copy_piece(source: int, target: int, offset: int, length: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            done = os.copy_file_range(source, target, min(length, _COPY_BYTES), offset, offset)
            if done:  # some file systems say 0 for what they cannot copy
                return done
        except OSError as error:
            if error.errno not in _CANNOT_COPY:
                raise
    return os.pwrite(target, os.pread(source, min(length, len(_ZEROS)), offset), offset)


def truncate(descriptor: int, size: int, path: Name) -> None:
    """Make the file `size` bytes long: cut it, or add a hole. Raises UnwritableError."""
    with _explained("set the size of", path):
        os.ftruncate(descriptor, size)


def set_mtime(path: Name, mtime_ns: int) -> None:
    """Set the mtime, ns since 1970, of a file or folder; its atime stays.

    It is on the device after a `sync` with `times`. Raises UnwritableError.
    """
    with _explained("set the time of", path):
        atime_ns = os.stat(path, follow_symlinks=False).st_atime_ns
        os.utime(path, ns=(atime_ns, mtime_ns), follow_symlinks=False)


def take_owner(path: Name, like: Name) -> None:
    """Give the file or folder `path` owner, group and mode of `like`; neither is a link.

    A file that is to be like a folder gets the mode without the bits to search it.

    Raises:
        UnwritableError: as where only root may give files away.
    """
    with _explained("set owner and mode of", path):
        bits = _FILE_BITS if os.path.isdir(like) else _MODE_BITS
        _take_owner(path, like, _FOLDER_BITS if os.path.isdir(path) else bits)


def sync(descriptor: int, path: Name, *, times: bool = False) -> None:
    """Wait until the file's bytes and size, and its mtime with `times`, are on the device.

    Raises UnwritableError.
    """
    with _explained("flush", path):
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        elif times:
            os.fsync(descriptor)
        else:
            os.fdatasync(descriptor)


def sync_folder(path: Name) -> None:
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


def sync_all(folder: Path) -> bool:
    """Wait until all of the file system that holds `folder` is on the device; False where no call does it.

    Raises:
        UnwritableError: it could not be written.
    """
    with _explained("flush the file system of", folder):
        call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if call is None:
            return False
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if call(descriptor) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(descriptor)
    return True


def rename(old: Path, new: Path) -> None:
    """Give `old` the name `new`, in place of what has it. Raises UnwritableError."""
    with _explained("rename", old):
        old.rename(new)


def remove(path: Name) -> None:
    """Delete the file `path`; nothing when it is gone. Raises UnwritableError."""
    with _explained("delete", path):
        with suppress(FileNotFoundError):
            os.unlink(path)


def remove_folder(path: Name) -> None:
    """Delete the empty folder `path`; nothing when it is gone. Raises UnwritableError."""
    with _explained("delete the folder", path):
        with suppress(FileNotFoundError):
            os.rmdir(path)


def write_new(path: Path, data: Data, *, like: Path | None = None, own: bool = False) -> None:
    """Make the file `path` with this content; its bytes are on the device when it returns.

    Its entry is after `sync_folder` of its folder. `like` and `own` as for `create_file`.

    Raises:
        UnwritableError: it exists, or cannot be made or written; nothing is left behind.
    """
    descriptor = create_file(path, 0, like=like, own=own)
    try:
        write(descriptor, data, 0, path)
        sync(descriptor, path)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
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


def _above(path: Name) -> str:
    return os.path.dirname(path) or "."


def _take_owner(made: Name | int, model: Name, bits: int) -> None:
    """Owner, group and permission bits (those of `bits`) as `model` has them; `made` is no link."""
    wanted, found = os.stat(model), os.stat(made)
    if (wanted.st_uid, wanted.st_gid) != (found.st_uid, found.st_gid):
        os.chown(made, wanted.st_uid, wanted.st_gid)
    mode = wanted.st_mode & bits
    if stat.S_IMODE(found.st_mode) != mode:
        os.chmod(made, mode)
