"""Reads past the page cache, for ranges of which no page is resident.

A read through the page cache allocates, fills, copies and drops every page, which takes several times the
processor time of a direct read, and displaces pages of the broker meanwhile. A direct read takes none.
Linux only, and not on every file system.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.storage.page_cache import PAGE, PageCache

if TYPE_CHECKING:
    from concurrent.futures import Executor

CHUNK = 4 << 20
"""Most bytes of one read."""
_LARGEST_WINDOW = 16 << 20  # memory is bounded
_HUGE_PAGE = 2 << 20
_AHEAD = 2
"""Chunks that are read while the last window is processed."""


def _new_memory(*, is_huge: bool) -> memoryview:
    """CHUNK bytes at the start of a page of memory; `is_huge` asks for huge pages.

    A device gets one segment for each page: with pages of 4 KiB a long read takes more than twice as long. To
    clear a huge page takes longer than to read a small file.
    """
    import ctypes

    memory = mmap.mmap(-1, CHUNK + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if is_huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE_PAGE
    return memoryview(memory)[start : start + CHUNK]


class _Chunk(NamedTuple):
    """[start, stop) of the file, and what waits until it is in `memory` and returns the number of bytes."""

    start: int
    stop: int
    memory: memoryview
    wait: Callable[[], int]


class ColdReads:
    """Direct reads of the windows of one open file that follow each other; `pages` are those of the file.

    A file system that does not do what is asked for ends the use: every later `fill` is False.
    """

    def __init__(self, fd: int, size: int, pages: PageCache) -> None:
        self._size = size
        self._pages = pages
        self._is_usable = pages.is_reported and hasattr(os, "O_DIRECT")
        self._path = f"/proc/self/fd/{fd}"
        self._fd = -1
        self._lock = Lock()
        self._chunks: deque[_Chunk] = deque()
        self._free: list[memoryview] = []
        self._threads: Executor | None = None
        self._last = -1

    def takes(self, start: int, stop: int) -> bool:
        """Whether [start, stop), a large window or the last one, would be read past the page cache."""
        is_window = CHUNK <= stop - start <= _LARGEST_WINDOW or stop - start < CHUNK and stop == self._size
        return self._is_usable and start < stop and is_window and self._pages.is_absent(start, stop)

    def fill(self, buffer: memoryview, offset: int) -> bool:
        """Fill `buffer` with the bytes of a window, and begin to read what follows.

        False: the range is to be read through the page cache, as a part of it is resident, cannot be read, or
        another thread reads; the content of `buffer` is undefined then.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._fill(buffer, offset)
        # Direct reads are not supported, a block is bad, which the caller will find, or no thread can begin.
        except OSError:
            self._is_usable = False
            self._forget()
            return False
        finally:
            self._lock.release()

    def _fill(self, buffer: memoryview, offset: int) -> bool:
        stop = offset + len(buffer)
        is_again, self._last = offset <= self._last, offset
        if is_again:  # the file may have been written since
            self._forget()
        if not self.takes(offset, stop):
            return False
        while self._chunks and self._chunks[0].stop <= offset:
            self._free.append(self._chunks.popleft().memory)
        if self._chunks and self._chunks[0].start > offset:
            self._forget()
        self._begin(offset, stop)
        for chunk in self._chunks:
            first, last = max(chunk.start, offset), min(chunk.stop, stop)
            if first >= last:
                break
            if chunk.wait() < chunk.stop - chunk.start or not self._pages.is_absent(*chunk[:2]):
                raise OSError("a direct read was short, or went through the page cache")
            buffer[first - offset : last - offset] = chunk.memory[first - chunk.start : last - chunk.start]
        return True

    def close(self) -> None:
        """End reads that are under way."""
        self._forget()
        if self._threads is not None:
            self._threads.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin(self, offset: int, stop: int) -> None:
        """Read the chunks of [offset, stop), and some more that are absent; the first begins at a page."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        start = self._chunks[-1].stop if self._chunks else offset - offset % PAGE
        is_one = not self._chunks and start + CHUNK >= self._size
        goal = min(stop + _AHEAD * CHUNK, self._size)
        while start < goal:
            end = min(start + CHUNK, self._size)
            if not self._pages.is_absent(start, end):
                if start >= stop:
                    return
                end = min(-(-stop // PAGE) * PAGE, self._size)
            memory = self._free.pop() if self._free else _new_memory(is_huge=not is_one)
            self._chunks.append(_Chunk(start, end, memory, self._read(start, end, memory, is_one=is_one)))
            start = end

    def _read(self, start: int, stop: int, memory: memoryview, *, is_one: bool) -> Callable[[], int]:
        """Read [start, stop) in a thread, or at once if it is all; what waits for the number of bytes."""
        part = memory[: -(-(stop - start) // PAGE) * PAGE]
        if is_one:
            count = os.preadv(self._fd, [part], start)
            return lambda: count
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor  # not needed by most commands

            self._threads = ThreadPoolExecutor(_AHEAD, "rmqtool-reads")
        try:
            return self._threads.submit(os.preadv, self._fd, [part], start).result
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error

    def _forget(self) -> None:
        """Wait for all reads under way, and drop what they have read."""
        for chunk in self._chunks:
            with suppress(OSError):
                chunk.wait()
            self._free.append(chunk.memory)
        self._chunks.clear()
