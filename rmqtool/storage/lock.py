"""A store's `lock` file: `acquire` takes it; `holder` finds who holds it without locking or writing.

A running broker holds an exclusive POSIX record lock on byte 0. This process takes an
open-file-description lock if the system has them: a POSIX lock is dropped as soon as any descriptor of
the file is closed anywhere in the process. Only this module opens `lock`.

Source: DefaultMessageStore#start; spec 01 section 8, spec 03 claim B.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

from rmqtool.errors import StoreInUseError, UnwritableError
from rmqtool.formats.markers import LOCK_CONTENT
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage import durable as disk
from rmqtool.storage.open_files import opened
from rmqtool.storage.storage import StoragePath

# struct flock: Linux puts type and whence first, macOS last.
_FLOCK = struct.Struct("@hhqqi" if sys.platform == "linux" else "@qqihh")
_LOCK_LENGTH = 1  # the broker locks byte 0
_NAME = "lock"

_NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "beegfs", "afs", "9p", "gfs2",
    "ocfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.cephfs", "fuse.juicefs", "fuse.s3fs",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class LockState:
    """The state of a store's lock.

    Attributes:
        state: `held`, `free`, or `unknown` if the system cannot tell.
        pid: the holder's process id; None if the lock is free or the system does not report the holder
            (another container, another host, a process of another user).
        reason: why the state is unknown, or what limits the answer; empty otherwise.
        failure: why the file could not be read; empty otherwise.
    """

    state: Literal["free", "held", "unknown"]
    pid: int | None = None
    reason: str = ""
    failure: str = ""

    @property
    def is_held(self) -> bool:
        """Whether another process is known to hold the lock."""
        return self.state == "held"


_held: set[Path] = set()  # POSIX locks of this process: closing another descriptor would drop them


class StoreLock:
    """A store's lock, held until `release`. Made by `acquire`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Release the lock; the file stays, as a broker leaves it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self._path)


def acquire(path: Path) -> StoreLock:
    """Lock the file at `path`, which is created if missing.

    Raises:
        StoreInUseError: a broker or another rmqtool holds it.
        UnwritableError: the file cannot be created or locked.

    Source: DefaultMessageStore#start.
    """
    path = path.absolute()
    if path in _held:
        raise _in_use(path, os.getpid())
    try:
        descriptor = disk.create_file(path, 0)
    except UnwritableError as error:
        if not isinstance(error.__cause__, FileExistsError):
            raise
        descriptor = disk.open_file(path)
    try:
        fcntl.fcntl(descriptor, getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK), _flock(fcntl.F_WRLCK))
        if os.pread(descriptor, len(LOCK_CONTENT) + 1, 0) != LOCK_CONTENT:
            disk.write(descriptor, LOCK_CONTENT, 0, path)
    except OSError as error:
        pid = _ask(descriptor) if error.errno in (errno.EAGAIN, errno.EACCES) else None
        os.close(descriptor)
        if pid is not None:
            raise _in_use(path, pid) from error
        raise UnwritableError(f"cannot take the lock: {error.strerror or error}", path=path) from error
    if not hasattr(fcntl, "F_OFD_SETLK"):
        _held.add(path)
    return StoreLock(path, descriptor)


def _in_use(path: Path, pid: int) -> StoreInUseError:
    who = f"process {pid}" if pid > 0 else "another process"
    return StoreInUseError(f"the store is in use: {who} holds its lock", path=path, hint="stop it first")


def check_free(path: Path) -> None:
    """Raise StoreInUseError if another process holds the lock file at `path`, a database's, say."""
    state = holder(path)
    if state.is_held:
        raise _in_use(path, state.pid or -1)


def holder(path: Path | None) -> LockState:
    """The state of the lock file at `path`; the lock is free if `path` is None or the file is missing."""
    if path is None:
        return LockState("free")
    if isinstance(path, StoragePath):
        return elsewhere(path)
    if path.absolute() in _held:
        return LockState("held", os.getpid())
    try:
        with opened(path) as descriptor:
            found = _ask(descriptor)
            device = os.fstat(descriptor).st_dev
    except FileNotFoundError:
        return LockState("free")
    except OSError as error:
        failure = error.strerror or str(error)
        return LockState("unknown", reason=f"the lock cannot be asked for: {failure}", failure=failure)
    network = _network_file_system(device)
    if found is None:
        if network:
            return LockState("unknown", reason=f"locks of other hosts may not show on {network}")
        return LockState("free")
    if network:
        return LockState("held", reason=f"the holder may be on another host ({network})")
    if found <= 0:
        return LockState("held", reason="the system does not report the holder's process id")
    return LockState("held", found)


def elsewhere(path: StoragePath) -> LockState:
    """The state of the lock of a store that is not on a disk of this machine: unknown."""
    return LockState("unknown", reason=f"in {path.storage.name} no lock can be asked for")


def _ask(descriptor: int) -> int | None:
    """The process id of the holder, as the system reports it; None if the lock is free."""
    command = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK)  # F_GETLK does not see this process's own locks
    answer = fcntl.fcntl(descriptor, command, _flock(fcntl.F_WRLCK))
    if sys.platform == "linux":
        kind, _, _, _, pid = _FLOCK.unpack(answer[: _FLOCK.size])
    else:
        _, _, pid, kind, _ = _FLOCK.unpack(answer[: _FLOCK.size])
    if kind == fcntl.F_UNLCK:
        return None
    return int(pid) if pid > 0 else _owner(descriptor) or -1


def _owner(descriptor: int) -> int | None:
    """The process that holds an open-file-description lock on the file, as another rmqtool does.

    Such a lock belongs to no process: the one that has the locked file open is looked for in /proc, as far as
    this user may look; None if it is not found.
    """
    wanted = os.fstat(descriptor)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    if link.readlink().name != _NAME:  # of no other file is anything asked
                        continue
                    status = link.stat()
                    if (status.st_dev, status.st_ino) != (wanted.st_dev, wanted.st_ino):
                        continue
                    lines = (process / "fdinfo" / link.name).read_text("ascii", "replace").splitlines()
                    if any(line.startswith("lock:") and "OFDLCK" in line for line in lines):
                        return int(process.name)
    return None


def _flock(kind: int) -> bytes:
    if sys.platform == "linux":
        return _FLOCK.pack(kind, os.SEEK_SET, 0, _LOCK_LENGTH, 0)
    return _FLOCK.pack(0, _LOCK_LENGTH, 0, kind, os.SEEK_SET)


def _network_file_system(device: int) -> str:
    """The type of the file system with this device number if it is a network file system, else ''."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) > 2 and fields[2] == wanted and "-" in fields:
            kind = fields[fields.index("-") + 1]
            return kind if kind in _NETWORK else ""
    return ""
