"""Files that one run has for itself while it lasts: drafts of outputs, the lock beside a cursor.

The lock is the system's, on a file of ours: a killed run leaves the file, never the lock.
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
_NO_LOCKS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL})  # file systems without


def claim_file(path: str, shown: str) -> int:
    """Make the file `path`, or take one over that a killed run left; a descriptor, to be closed.

    Raises:
        RefusedError: another run has it.
        UnwritableError: it is a link, a pipe or anything else than a plain file, or cannot be made.
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
        os.close(descriptor)  # the run that had it has just renamed or deleted it


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Within it no other run uses the cursor at `path`. Raises as `claim_file` does."""
    lock = str(path.with_name(f".{path.name}.rmqtool-lock"))
    descriptor = claim_file(lock, str(path))
    try:
        yield
    finally:
        with suppress(OSError):
            Path(lock).unlink()
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
