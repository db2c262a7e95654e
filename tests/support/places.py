"""Where tests make their stores: in memory where a run has room there, and on a disk what is about disks.

A run makes, copies and flushes thousands of stores, and in memory no run waits for a device. The tests of the
page cache, of holes, extents and reserved space, and of two file systems use the fixture `disk_path`. With
TMPDIR set, all other tests make their stores there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rmqtool.storage.page_cache import available_memory

_MEMORY = Path("/dev/shm")
_DISK = Path("/var/tmp")  # what is here survives a restart of the machine: never in memory, as /tmp may be
_ROOM_BYTES = 2 << 30
"""A run with two workers holds 0.6 GB at most at a time, one with four twice as much."""


def choose_temporary_folder() -> None:
    """Let this process, and all that it starts, make temporary files in memory where that has room."""
    if "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


def _has_room() -> bool:
    """Whether the folder in memory is large enough, and enough memory is free for the tests themselves."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK | os.X_OK)):
        return False
    status = os.statvfs(_MEMORY)
    return status.f_bavail * status.f_frsize >= _ROOM_BYTES and available_memory() >= 3 * _ROOM_BYTES


def new_folder_on_disk() -> Path:
    """A new folder on a disk; the caller deletes it."""
    is_usable = _DISK.is_dir() and os.access(_DISK, os.W_OK | os.X_OK)
    return Path(tempfile.mkdtemp(prefix="rmqtool-", dir=_DISK if is_usable else None))
