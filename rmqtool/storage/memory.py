"""Memory that is never swapped out: locked pages, anonymous or of a file.

Locking needs a permission (RLIMIT_MEMLOCK, CAP_IPC_LOCK); without it the pages are used unlocked.

Source: TransientStorePool#init, DefaultMappedFile#warmMappedFile, #mlock.
"""

from __future__ import annotations

import ctypes
import mmap

_LIBRARY = ctypes.CDLL(None, use_errno=True)


class LockedMemory:
    """A mapping whose pages are locked if the system permits it (`is_locked`)."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self.mapping = mapping
        self._anchor = ctypes.c_char.from_buffer(mapping)
        self._address = ctypes.c_void_p(ctypes.addressof(self._anchor))
        self._size = ctypes.c_size_t(len(mapping))
        self.is_locked = _LIBRARY.mlock(self._address, self._size) == 0

    def close(self) -> None:
        """Unlock and unmap."""
        if self.is_locked:
            _LIBRARY.munlock(self._address, self._size)
        del self._anchor
        self.mapping.close()


def anonymous(size: int) -> LockedMemory:
    """`size` bytes of locked memory, zero."""
    return LockedMemory(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def pages_of(descriptor: int, size: int) -> LockedMemory:
    """The first `size` bytes of an open file, read ahead and locked. Raises OSError."""
    mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
    if hasattr(mmap, "MADV_WILLNEED"):
        mapping.madvise(mmap.MADV_WILLNEED)
    return LockedMemory(mapping)
