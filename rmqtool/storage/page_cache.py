"""Leaves the page cache as it was: drops exactly the pages that a scan brought in.

The page cache of a broker's host is the broker's memory. Before a range is read, mincore reports which
of its pages are not resident; after their use posix_fadvise drops them. Linux only. The system reports
residency only to users who own the file or may write it (to others every page seems resident). For other
users nothing is dropped, and the system's own read-ahead stays on.

`LockedMemory` holds the pages that a writer keeps in memory, as a broker does.
"""

from __future__ import annotations

import mmap
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from rmqtool.lazy_pattern import pattern

PAGE = os.sysconf("SC_PAGE_SIZE")

_REQUEST = 128 << 10  # bytes that the system fetches per request; it shortens longer ones
_CACHESTAT = 451  # the number of the system call; the C library has no name for it yet
_PROT_READ, _MAP_SHARED = 1, 1
_LOWEST_BIT = bytes(value & 1 for value in range(256))
_ABSENT = pattern(b"\0+")
_SCATTERED_LIMIT = 64
_MEMINFO = Path("/proc/meminfo")


class PageCache:
    """The pages of one open file: which are resident, and which this process fetched.

    `is_reported` is whether the system reports residency of this file to this process.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._fetched: list[tuple[int, int]] = []
        self._requested = (0, 0)
        self._has_cachestat = platform.machine() in ("x86_64", "aarch64")
        self.is_reported = os.fstat(fd).st_uid == os.geteuid() or os.access(
            f"/proc/self/fd/{fd}", os.W_OK, effective_ids=os.access in os.supports_effective_ids
        )
        self._address: int | None = None
        if self.is_reported:
            # No read-ahead except our own requests: it would not be known whose pages those are.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def resident(self, start: int, stop: int) -> bytes:
        """One byte per page that [start, stop) touches: 1 if the page is in the page cache."""
        from ctypes import create_string_buffer

        start -= start % PAGE
        pages = create_string_buffer(-(-(stop - start) // PAGE))
        address = self._mapped()
        if address is None or _libc().mincore(address + start, stop - start, pages) != 0:
            return b"\1" * len(pages)
        return pages.raw.translate(_LOWEST_BIT)

    def _mapped(self) -> int | None:
        """The address range that mincore needs, or None if the system cannot map the file.

        Most small files are in the cache, and are not mapped. The range is never accessed, so it has no page.
        """
        from ctypes import c_void_p

        if self._address is None:
            address = _libc().mmap(None, self._size, _PROT_READ, _MAP_SHARED, self._fd, 0)
            self._address = None if address in (None, c_void_p(-1).value) else address
        return self._address

    def are_resident(self, start: int, stop: int) -> bool:
        """Whether every page of [start, stop) is resident; False too if the system lacks cachestat."""
        return self._resident_pages(start, stop) == -(-stop // PAGE) - start // PAGE

    def is_absent(self, start: int, stop: int) -> bool:
        """Whether no page of [start, stop) is resident."""
        count = self._resident_pages(start, stop)
        return 1 not in self.resident(start, stop) if count is None else count == 0

    def _resident_pages(self, start: int, stop: int) -> int | None:
        """By cachestat, at a tenth of mincore's cost; None if the system lacks it."""
        if not self._has_cachestat:
            return None
        import ctypes

        place = (ctypes.c_uint64 * 2)(start, stop - start)
        counts = (ctypes.c_uint64 * 5)()
        if _libc().syscall(_CACHESTAT, self._fd, place, counts, 0) != 0:
            self._has_cachestat = False  # Linux before 6.5
            return None
        return int(counts[0])

    def fetch(self, start: int, stop: int) -> None:
        """Make the system read the missing pages of [start, stop), and note that this process caused it.

        It does not wait for them. Pages that the last call requested are not requested again.
        """
        last, self._requested = self._requested, (start, stop)
        if last[0] <= start <= last[1]:
            start = last[1]
        if start >= stop:
            return
        if not self.is_reported:
            self._request(start, stop)
            return
        if self.are_resident(start, stop):
            return
        first = start - start % PAGE
        for match in _ABSENT.finditer(self.resident(start, stop)):
            begin, end = first + match.start() * PAGE, first + match.end() * PAGE
            self._request(begin, end)
            if self._fetched and self._fetched[-1][1] == begin:
                begin = self._fetched.pop()[0]
            self._fetched.append((begin, end))

    def _request(self, start: int, stop: int) -> None:
        for step in range(start, stop, _REQUEST):
            os.posix_fadvise(self._fd, step, min(_REQUEST, stop - step), os.POSIX_FADV_WILLNEED)

    @property
    def is_scattered(self) -> bool:
        """Whether more than 64 ranges wait to be dropped."""
        return len(self._fetched) > _SCATTERED_LIMIT

    def fetched_outside(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Remove and return the fetched ranges outside of the pages of [start, stop)."""
        start, stop = start - start % PAGE, -(-stop // PAGE) * PAGE
        outside, inside = [], []
        for first, last in self._fetched:
            outside += [(first, min(last, start)), (max(first, stop), last)]
            inside.append((max(first, start), min(last, stop)))
        self._fetched = [part for part in inside if part[0] < part[1]]
        return [part for part in outside if part[0] < part[1]]

    def drop(self, start: int, stop: int) -> None:
        """Drop [start, stop) from the page cache; pages that a process has mapped stay."""
        os.posix_fadvise(self._fd, start, stop - start, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Give the address range back; the file stays open."""
        if self._address is not None:
            _libc().munmap(self._address, self._size)
            self._address = None


def resident_bytes(path: Path, start: int = 0, stop: int | None = None) -> int | None:
    """How many bytes of [start, stop) of the file, by default of all, are in the page cache.

    Counted in whole pages. None if the system does not report it to this user.

    Raises:
        OSError: the file cannot be opened.
    """
    if not is_available():
        return None
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        stop = size if stop is None else min(stop, size)
        if start >= stop:
            return 0
        pages = PageCache(file.fileno(), size)
        try:
            if not pages.is_reported:
                return None
            return min(pages.resident(start, stop).count(1) * PAGE, stop - start)
        finally:
            pages.close()


def available_memory() -> int:
    """Bytes that processes can use without swapping: MemAvailable, or all memory where it is not reported."""
    try:
        with _MEMINFO.open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@cache
def is_available() -> bool:
    """Whether this system reports which pages are resident, and can drop pages."""
    try:
        return hasattr(os, "posix_fadvise") and bool(_libc().mincore)
    except (OSError, AttributeError):
        return False


@cache
def _libc() -> Any:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    )  # fmt: skip
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return libc


class LockedMemory:
    """A mapping whose pages are locked where the system permits it (`is_locked`).

    Locking needs a permission (RLIMIT_MEMLOCK, CAP_IPC_LOCK); without it the pages are used unlocked.

    Source: TransientStorePool#init, DefaultMappedFile#warmMappedFile, #mlock.
    """

    def __init__(self, mapping: mmap.mmap) -> None:
        import ctypes

        self.mapping = mapping
        self._anchor = ctypes.c_char.from_buffer(mapping)
        self._address = ctypes.c_void_p(ctypes.addressof(self._anchor))
        self._size = ctypes.c_size_t(len(mapping))
        self.is_locked = _libc().mlock(self._address, self._size) == 0

    def close(self) -> None:
        """Unlock and unmap."""
        if self.is_locked:
            _libc().munlock(self._address, self._size)
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
