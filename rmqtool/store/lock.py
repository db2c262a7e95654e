"""Who holds a store's `lock` file: asked without taking anything and without writing.

A running broker holds an exclusive POSIX record lock on byte 0. A process that closes any of its
descriptors of a file drops its own POSIX locks on it, so nothing but this module opens `lock`.

Source: DefaultMessageStore#start; spec 01 section 8, spec 03 claim B.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rmqtool.store.open_files import opened

# struct flock: Linux puts type and whence first, macOS last.
_FLOCK = struct.Struct("@hhqqi" if sys.platform == "linux" else "@qqihh")
_LOCK_LENGTH = 1  # the broker locks byte 0

_NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "beegfs", "afs", "9p", "gfs2",
    "ocfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.cephfs", "fuse.juicefs", "fuse.s3fs",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class LockState:
    """What is known of a store's lock.

    Attributes:
        state: `held`, `free`, or `unknown` where the system cannot say.
        pid: the holder's process id; None when free, and where the system does not tell (another
            container, another host, an open-file-description lock).
        reason: why it is unknown, or what limits the answer; empty when there is nothing to say.
    """

    state: Literal["free", "held", "unknown"]
    pid: int | None = None
    reason: str = ""

    @property
    def is_held(self) -> bool:
        """Whether another process is known to hold the lock."""
        return self.state == "held"


def holder(path: Path | None) -> LockState:
    """Ask who holds the lock file at `path`; None or a missing file is a lock that nobody holds."""
    if path is None:
        return LockState("free")
    try:
        with opened(path) as descriptor:
            found = _ask(descriptor)
            device = os.fstat(descriptor).st_dev
    except FileNotFoundError:
        return LockState("free")
    except OSError as error:
        return LockState("unknown", reason=f"the lock cannot be asked for: {error.strerror}")
    network = _network_file_system(device)
    if found is None:
        if network:
            return LockState("unknown", reason=f"locks of other hosts may not show on {network}")
        return LockState("free")
    if network:
        return LockState("held", reason=f"the holder may be on another host ({network})")
    if found <= 0:
        return LockState("held", reason="the system does not tell the holder's process id")
    return LockState("held", found)


def _ask(descriptor: int) -> int | None:
    """The process id of who would keep a writer out, as the system tells it; None when nobody does."""
    command = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK)  # F_GETLK is blind to this process's own locks
    answer = fcntl.fcntl(descriptor, command, _flock(fcntl.F_WRLCK))
    if sys.platform == "linux":
        kind, _, _, _, pid = _FLOCK.unpack(answer[: _FLOCK.size])
    else:
        _, _, pid, kind, _ = _FLOCK.unpack(answer[: _FLOCK.size])
    return None if kind == fcntl.F_UNLCK else int(pid)


def _flock(kind: int) -> bytes:
    if sys.platform == "linux":
        return _FLOCK.pack(kind, os.SEEK_SET, 0, _LOCK_LENGTH, 0)
    return _FLOCK.pack(0, _LOCK_LENGTH, 0, kind, os.SEEK_SET)


def _network_file_system(device: int) -> str:
    """The type of the file system with this device number when it is a network's, else nothing."""
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
