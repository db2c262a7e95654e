"""Per file of a store: bytes in the page cache, allocated bytes, number of extents.

Nothing changes: no page is read to find out whether it is resident.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmqtool.read.store import Store
from rmqtool.storage.open_files import opened
from rmqtool.storage.source import resident_bytes
from rmqtool.storage.storage import disk_bytes

_FS_IOC_FIEMAP = 0xC020660B
# struct fiemap without extents: start, length, flags, mapped extents, room for extents, reserved
_FIEMAP = struct.Struct("=QQIIII")
_WHOLE_FILE = (1 << 64) - 1


def residency_rows(store: Store) -> Iterator[dict[str, Any]]:
    """One row per log, queue and index file: path, size_bytes, allocated_bytes, resident_bytes, extents.

    `resident_bytes` and `extents` are None if the system does not report them.
    """
    layout = store.layout
    paths = [file.path for file in layout.commit_log]
    paths += (file.path for queue in layout.unit_queues for file in queue.files)
    paths += (file.path for file in layout.index_files)
    for path in paths:
        try:
            status = path.stat()
            resident = resident_bytes(path) if store.is_local else None
        except OSError:
            continue  # a live broker deletes files
        yield {
            "path": layout.relative(path),
            "size_bytes": status.st_size,
            "allocated_bytes": disk_bytes(status),
            "resident_bytes": resident,
            "extents": extent_count(path),
        }


def extent_count(path: Path) -> int | None:
    """The number of extents of a file; None if the file system does not report it (Linux only)."""
    try:
        import fcntl

        with opened(path) as descriptor:
            request = bytearray(_FIEMAP.pack(0, _WHOLE_FILE, 0, 0, 0, 0))
            fcntl.ioctl(descriptor, _FS_IOC_FIEMAP, request)
    except OSError:
        return None
    return int(_FIEMAP.unpack(request)[3]) if os.uname().sysname == "Linux" else None
