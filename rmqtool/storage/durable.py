"""The only module that changes files of a store: creates, writes, flushes, renames and deletes them.

Nothing is written through a symbolic link. A new file or folder gets owner, group and mode of its folder;
only the folder of a new store is created as any other program would.
A short write is continued; every failure is an UnwritableError that names the file.

Every function makes one change, so that tests can stop the process before, between and after them.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rmqtool.errors import RefusedError, UnwritableError

Data = bytes | bytearray | memoryview
Name = Path | str
"""A path; text is cheaper when tens of thousands of files are created."""
_ZEROS = bytes(1 << 20)
_FILE_BITS = 0o666
_PRIVATE_BITS = 0o600
_MODE_BITS = 0o777
_FOLDER_BITS = 0o2777  # a folder with the set-group-ID bit passes its group on
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
# Errors of a file system that cannot reserve space.
_CANNOT_RESERVE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
# Errors of a system that cannot copy between two files: other file systems, old kernels.
_CANNOT_COPY = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM})
_COPY_BYTES = 1 << 30  # most bytes of one call


@contextmanager
def _explained(what: str, path: Name) -> Iterator[None]:
    try:
        yield
    except UnwritableError:
        raise
    except OSError as error:
        raise UnwritableError(f"cannot {what}: {error.strerror or error}", path=path) from error


def make_folder(path: Name, *, own: bool = False) -> None:
    """Create the folder `path` and its missing parents; an existing folder stays.

    Its entry is on the device after `sync_folder` of the parent.

    Args:
        path: the folder.
        own: True for a new store, whose parent often belongs to another user: the folder belongs to this
            process, and its mode comes from the umask. Otherwise owner, group and mode are those of the
            parent.

    Raises:
        UnwritableError: it cannot be created, or its name is taken, for example by a symbolic link.
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
    path: Name,
    size: int,
    *,
    reserve: bool = False,
    like: Path | None = None,
    own: bool = False,
    private: bool = False,
) -> int:
    """Create a file of `size` zero bytes and return a descriptor for reading and writing.

    Args:
        path: a file that does not exist.
        size: bytes.
        reserve: allocate its space now, so that a later write into it cannot fail for lack of space;
            otherwise the file is a hole.
        like: the file that it will replace; if it exists, the new file gets its owner, group and mode.
        own: the file is not part of a store: it gets the default owner and mode of a new file.
        private: with `own`: only its owner may read it.

    Raises:
        UnwritableError: the file exists, or there is no permission or no space; no file is left.
    """
    with _explained("make the file", path):
        bits = _PRIVATE_BITS if private else _FILE_BITS
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, bits)
        try:
            if like is not None and like.is_file():
                _take_owner(descriptor, like, _MODE_BITS)
            elif not own:
                _take_owner(descriptor, _above(path), _FILE_BITS)
            os.ftruncate(descriptor, size)  # first: a killed process leaves no file of another size
            if reserve:
                _reserve(descriptor, size)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):  # report the first failure
                os.unlink(path)
            raise
    return descriptor


def open_file(path: Name) -> int:
    """Open the existing plain file `path` for reading and writing; returns its descriptor.

    Raises:
        UnwritableError: it is missing, not writable, a symbolic link, or not a plain file.
    """
    with _explained("open for writing", path):
        try:
            descriptor = os.open(path, _FLAGS | os.O_NONBLOCK)
        except OSError:
            if os.path.islink(path):  # the system's message does not mention a link
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

    The file system copies them itself if it can.

    Raises:
        UnwritableError: a read or write failed, or the source is too short; a part may be written then.
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
            if done:  # some file systems return 0 if they cannot copy
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
    """Give the file or folder `path` the owner, group and mode of `like`; neither is a link.

    If `path` is a file and `like` a folder, the execute bits are left out.

    Raises:
        UnwritableError: not permitted; on most systems only root may give files away.
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
            if error.errno not in _CANNOT_RESERVE:  # a file system that cannot flush folders
                raise
        finally:
            os.close(descriptor)


def sync_all(folder: Path) -> bool:
    """Wait until the whole file system of `folder` is on the device; False if the system has no such call.

    Raises:
        UnwritableError: it could not be written.
    """
    import ctypes

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
    """Rename `old` to `new`, replacing a file of that name. Raises UnwritableError."""
    with _explained("rename", old):
        old.rename(new)


def remove(path: Name) -> None:
    """Delete the file `path` if it exists. Raises UnwritableError."""
    with _explained("delete", path):
        with suppress(FileNotFoundError):
            os.unlink(path)


def remove_folder(path: Name) -> None:
    """Delete the empty folder `path` if it exists. Raises UnwritableError."""
    with _explained("delete the folder", path):
        with suppress(FileNotFoundError):
            os.rmdir(path)


def write_new(
    path: Path, data: Data, *, like: Path | None = None, own: bool = False, private: bool = False
) -> None:
    """Create the file `path` with this content and flush it.

    Its entry is on the device after `sync_folder` of its folder. For `like`, `own` and `private` see
    `create_file`.

    Raises:
        UnwritableError: it exists, or cannot be created or written; no file is left.
    """
    descriptor = create_file(path, 0, like=like, own=own, private=private)
    try:
        write(descriptor, data, 0, path)
        sync(descriptor, path)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def check_replaceable(path: Path, option: str = "--output") -> None:
    """Check that nothing is at `path`, or a plain file, which a new one may replace.

    A rename would also replace `/dev/null`. A link counts as itself: `/dev/stdout` may lead to a plain file.

    Raises:
        RefusedError: a device, a pipe, a folder or a link is there.
        UnwritableError: what is there cannot be examined.
    """
    with _explained("examine", path), suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise RefusedError(
                "this is not a plain file and is not replaced",
                path=path,
                hint=f"{option} must name another file",
            )


def replace_file(path: Path, data: Data) -> None:
    """Replace a file that is not part of a store so that at every moment the old or the new one is complete.

    Missing folders above it are made.

    Raises:
        RefusedError: see `check_replaceable`.
        UnwritableError: the file is then as it was.
    """
    check_replaceable(path)
    if not path.parent.is_dir():
        make_folder(path.parent, own=True)
    new = path.with_name(f".rmqtool-{os.urandom(8).hex()}.new")
    try:
        write_new(new, data, like=path, own=True)
        try:
            rename(new, path)
        except BaseException:
            with suppress(UnwritableError):  # the first failure is the one to report
                remove(new)
            raise
    except UnwritableError as error:
        error.path = path  # not the temporary file
        raise


def _reserve(descriptor: int, size: int) -> None:
    """Allocate the space; by writing zeros if the system has no call for it."""
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
    """Give `made`, not a link, the owner and group of `model` and its permission bits within `bits`."""
    wanted, found = os.stat(model), os.stat(made)
    if (wanted.st_uid, wanted.st_gid) != (found.st_uid, found.st_gid):
        os.chown(made, wanted.st_uid, wanted.st_gid)
    mode = wanted.st_mode & bits
    if stat.S_IMODE(found.st_mode) != mode:
        os.chmod(made, mode)
