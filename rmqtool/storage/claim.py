"""Files and folders that one run uses at a time, by a system lock, which a killed run never leaves.

A part file, the lock file next to a cursor or to committed offsets, a folder for temporary files. What a
killed run has left stays; a later run may take it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rmqtool.errors import RefusedError, UnwritableError

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NO_LOCKS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL})  # no locks there


def claim_file(path: str, shown: str) -> int:
    """Create the file `path`, or reuse one that a killed run left; the caller closes the descriptor.

    Raises:
        RefusedError: another run uses it.
        UnwritableError: it is not a plain file (a link, a pipe, ...), or cannot be created.
    """
    while True:
        try:
            descriptor = os.open(path, _FLAGS, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP or (error.errno == errno.ENXIO and os.path.lexists(path)):
                raise _in_the_way(path) from None
            raise UnwritableError(f"cannot write: {error.strerror}", path=shown) from None
        try:
            status = os.fstat(descriptor)
            _check_plain(status, path)
            _lock(descriptor, shown)
            with suppress(FileNotFoundError):
                if os.path.samestat(status, os.lstat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another run has just renamed or deleted it


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """While it is active, no other run uses the file at `path`. Raises as `claim_file` does."""
    lock = str(path.with_name(f".{path.name}.rmqtool-lock"))
    descriptor = claim_file(lock, str(path))
    try:
        yield
    finally:
        with suppress(OSError):
            Path(lock).unlink()
        os.close(descriptor)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """While it is active, no other run uses a folder. Nothing is waited for.

    Raises:
        OSError: another process has it, or the folder is a link, is gone, or knows no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _check_plain(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _in_the_way(path)


def _lock(descriptor: int, shown: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RefusedError(
            "another run is using it", path=shown, hint="wait until that run has ended"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise UnwritableError(f"cannot lock: {error.strerror}", path=shown) from None


def _in_the_way(path: str) -> UnwritableError:
    return UnwritableError(
        "cannot write: an entry that is not a plain file has this name", path=path, hint="delete it"
    )
