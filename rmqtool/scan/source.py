"""Where the bytes come from: windows of a file or of memory, the same for every scan.

A local file is mapped, and each window is populated before it is handed out: a page that cannot be
read is then an error of that call, not a SIGBUS that kills the process. Such pages read as zeros
and are listed in `unreadable`. Where the system cannot populate, windows are read into buffers.

The page cache belongs to the broker: pages that were not resident before are dropped after use,
unless `keep_cache` is set. Only this module maps files or advises the system about pages.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PAGE = mmap.PAGESIZE
_IS_LINUX = sys.platform == "linux"
_MADV_POPULATE_READ = 22  # Linux 5.14; Python has no name for it
_FETCHED_LIMIT = 8 << 20  # bytes that small reads may leave in the page cache until they are dropped


class ByteSource(Protocol):
    """Bytes of a known size, read window by window, by one thread at a time.

    `unreadable` lists the half-open ranges that the operating system could not read, in the order
    in which they were met; their bytes read as zero.
    """

    name: str
    size: int
    unreadable: list[tuple[int, int]]

    def window(self, offset: int, length: int) -> Bytes:
        """Bytes [offset, offset + length) as a read-only uint8 array; shorter at the end.

        To be used until the next window is asked for.
        """
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length); shorter at the end."""
        ...

    def data_from(self, offset: int) -> int:
        """The first place at or after `offset` that may hold anything but zeros; `size` when none."""
        ...

    def close(self) -> None:
        """Give the file back."""
        ...


class RateLimiter:
    """Bounds the rate of reading of all sources that share it, over threads too."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._lock = Lock()

    def take(self, count: int) -> None:
        """Wait until `count` bytes more may be read."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + count / self.bytes_per_second
        if start > now:
            time.sleep(start - now)


class BytesSource:
    """A source over bytes in memory."""

    def __init__(self, data: bytes, name: str = "memory") -> None:
        self.name = name
        self.size = len(data)
        self.unreadable: list[tuple[int, int]] = []
        self._data = data

    def window(self, offset: int, length: int) -> Bytes:
        """See ByteSource."""
        import numpy as np

        length = max(0, min(length, self.size - offset))
        return np.frombuffer(self._data, np.uint8, length, offset if length else 0)

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        return self._data[offset : offset + length]

    def data_from(self, offset: int) -> int:
        """See ByteSource."""
        return offset

    def close(self) -> None:
        """See ByteSource."""


def open_source(path: Path, *, keep_cache: bool = False, limiter: RateLimiter | None = None) -> ByteSource:
    """A source over a local file, of the size that it has now.

    Args:
        path: the file.
        keep_cache: leave what was read in the page cache.
        limiter: bounds the rate of reading; share it between sources.

    Raises:
        OSError: the file cannot be opened.
    """
    return FileSource(path, keep_cache=keep_cache, limiter=limiter)


class FileSource:
    """A local file; see `open_source`."""

    def __init__(self, path: Path, *, keep_cache: bool = False, limiter: RateLimiter | None = None) -> None:
        self.name = str(path)
        self.unreadable: list[tuple[int, int]] = []
        self._limiter = limiter
        self._keep_cache = keep_cache or not _IS_LINUX
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size
        self._map: mmap.mmap | None = None
        self._can_populate = _IS_LINUX
        # Ranges of pages that this source brought into the page cache, and has not dropped yet.
        self._fetched: list[tuple[int, int]] = []
        if not self._keep_cache:
            # No read-ahead behind what is asked for: it would stay in the cache.
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def window(self, offset: int, length: int) -> Bytes:
        """See ByteSource."""
        stop = min(offset + length, self.size)
        offset = min(offset, stop)
        if self._limiter is not None:
            self._limiter.take(stop - offset)
        if self._can_populate and stop > offset:
            window = self._mapped(offset, stop)
            if window is not None:
                return window
        return self._buffered(offset, stop)

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        length = max(0, min(length, self.size - offset))
        if self._limiter is not None:
            self._limiter.take(length)
        buffer = bytearray(length)
        done = 0
        if not self._keep_cache:
            done = self._read_resident(buffer, offset)
            if done < length:
                self._fetch(offset + done, offset + length)
        self._fill(memoryview(buffer)[done:], offset + done)
        return bytes(buffer)

    def data_from(self, offset: int) -> int:
        """See ByteSource."""
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            # ENXIO: nothing but a hole up to the end; others: the file system cannot tell
            return self.size if error.errno == errno.ENXIO else offset

    def close(self) -> None:
        """See ByteSource."""
        if self._fd >= 0:
            self._drop(self._fetched)
            self._map = None
            os.close(self._fd)
            self._fd = -1

    # windows

    def _mapped(self, offset: int, stop: int) -> Bytes | None:
        """The window as a part of the map; None when it cannot be populated."""
        import numpy as np

        if self._map is None:
            self._map = mmap.mmap(self._fd, self.size, prot=mmap.PROT_READ)
            self._map.madvise(mmap.MADV_SEQUENTIAL)
        start = offset - offset % PAGE
        if not self._keep_cache:
            self._drop_outside(start, _page_end(stop))
            self._fetched += self._missing(start, stop)
        try:
            self._map.madvise(_MADV_POPULATE_READ, start, stop - start)
        except OSError as error:
            # EINVAL: the system knows no such call. All else: some page cannot be read.
            self._can_populate = error.errno != errno.EINVAL
            return None
        return np.frombuffer(self._map, np.uint8, stop - offset, offset)

    def _buffered(self, offset: int, stop: int) -> Bytes:
        import numpy as np

        if not self._keep_cache and stop > offset:
            self._drop_outside(offset - offset % PAGE, _page_end(stop))
        window = np.empty(stop - offset, np.uint8)
        self._fill(window.data, offset)
        window.flags.writeable = False
        return window

    # reading with errors

    def _fill(self, buffer: memoryview, offset: int) -> None:
        """Read into all of `buffer`; what cannot be read becomes zeros and is noted."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._fd, [buffer[done:]], offset + done)
            except OSError:
                self._fill_by_page(buffer[done:], offset + done)
                return
            if count == 0:  # the file has become shorter
                buffer[done:] = bytes(len(buffer) - done)
                self._note_unreadable([(offset + done, offset + len(buffer))])
                return
            done += count

    def _fill_by_page(self, buffer: memoryview, offset: int) -> None:
        failed: list[tuple[int, int]] = []
        stop = offset + len(buffer)
        start = offset
        while start < stop:
            end = min(start - start % PAGE + PAGE, stop)
            try:
                data = os.pread(self._fd, end - start, start)
            except OSError:
                data = b""
            buffer[start - offset : end - offset] = data.ljust(end - start, b"\0")
            if len(data) < end - start:
                if failed and failed[-1][1] == start + len(data):
                    failed[-1] = (failed[-1][0], end)
                else:
                    failed.append((start + len(data), end))
            start = end
        self._note_unreadable(failed)

    def _note_unreadable(self, ranges: list[tuple[int, int]]) -> None:
        """Append what is not known yet; windows overlap, so a range may come again."""
        for start, stop in ranges:
            for known_start, known_stop in self.unreadable:
                if known_start <= start < known_stop:
                    start = min(known_stop, stop)
                if known_start < stop <= known_stop:
                    stop = max(known_start, start)
            if start < stop:
                self.unreadable.append((start, stop))

    # the page cache

    def _missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Ranges of pages of the map within [start, stop) that are not in the page cache."""
        import numpy as np

        assert self._map is not None
        resident = _resident(np.frombuffer(self._map, np.uint8, stop - start, start))
        if resident is None or resident.all():
            return
        edges = np.flatnonzero(np.diff(resident, prepend=True, append=True)) * PAGE + start
        yield from map(tuple, edges.reshape(-1, 2).tolist())

    def _read_resident(self, buffer: bytearray, offset: int) -> int:
        """Read what is in the page cache, up to the first page that is not; the number of bytes."""
        try:
            return os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            # EAGAIN: the first page is not resident. Others: the file system cannot tell.
            if error.errno != errno.EAGAIN:
                self._keep_cache = True
            return 0

    def _fetch(self, start: int, stop: int) -> None:
        """Note that [start, stop) comes into the page cache by a small read."""
        if sum(last - first for first, last in self._fetched) > _FETCHED_LIMIT:
            self._drop(self._fetched)
        if not self._keep_cache:
            self._fetched.append((start - start % PAGE, _page_end(stop)))

    def _drop_outside(self, start: int, stop: int) -> None:
        """Drop what was fetched, but for [start, stop)."""
        fetched, self._fetched = self._fetched, []
        for first, last in fetched:
            outside = [(first, min(last, start)), (max(first, stop), last)]
            self._drop([part for part in outside if part[0] < part[1]])
            if max(first, start) < min(last, stop):
                self._fetched.append((max(first, start), min(last, stop)))

    def _drop(self, ranges: list[tuple[int, int]]) -> None:
        """Drop `ranges` from the page cache and empty the list. Mapped pages would stay."""
        for start, stop in ranges:
            if self._map is not None:
                self._map.madvise(mmap.MADV_DONTNEED, start, min(stop, self.size) - start)
            os.posix_fadvise(self._fd, start, stop - start, os.POSIX_FADV_DONTNEED)
        ranges.clear()


def resident_bytes(path: Path) -> int | None:
    """How many bytes of the file are in the page cache; None where the system does not tell.

    Linux tells the truth only to those who may write the file; for others all is resident.

    Raises:
        OSError: the file cannot be opened.
    """
    import numpy as np

    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return 0
        mapped = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
    resident = _resident(np.frombuffer(mapped, np.uint8))
    return None if resident is None else min(int(resident.sum()) * PAGE, size)


def _resident(mapped: Bytes) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Per page of a mapped array that starts on a page: is it in the page cache? None: unknown."""
    import numpy as np

    try:
        mincore = ctypes.CDLL(None).mincore
    except AttributeError:
        return None
    pages = np.empty(-(-len(mapped) // PAGE), np.uint8)
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    if mincore(mapped.ctypes.data, len(mapped), pages.ctypes.data) != 0:
        return None
    return (pages & 1).view(np.bool_)


def _page_end(offset: int) -> int:
    """The end of the page that byte offset - 1 is in."""
    return -(-offset // PAGE) * PAGE
