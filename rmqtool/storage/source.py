"""Byte sources: windows of a file or of memory, the same for every scan.

A local file is read into buffers, never mapped: after a file becomes shorter, or if a block cannot be
read, access to a map is a SIGBUS. Unreadable bytes are zeros and are listed in `unreadable`. A buffer is
reused once its window is no longer referenced.

The page cache belongs to the broker: a window of which no page is resident is read past it (`cold_reads`);
elsewhere, pages that were not resident before are dropped after use. With `keep_cache` neither is done.
Only this module and `page_cache` advise the system on pages.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event, Lock, local
from typing import TYPE_CHECKING, Any, Protocol

from rmqtool.storage import page_cache
from rmqtool.storage.cold_reads import ColdReads
from rmqtool.storage.page_cache import PageCache
from rmqtool.storage.page_cache import resident_bytes as resident_bytes
from rmqtool.storage.random_file import LocalFile
from rmqtool.storage.ranges import Unreadable
from rmqtool.storage.storage import StoragePath

if TYPE_CHECKING:
    import numpy as np

    from rmqtool.storage.random_file import RandomFile

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

WINDOW = 4 << 20
"""Bytes of a window of a scan: two of them fit into the processor's cache."""
WIDE_WINDOW = 16 << 20
"""Where no body is copied: what is done per window, and not per record, is then small."""

PAGE_BYTES = page_cache.PAGE
_WAIT_SLICE_SECONDS = 0.1
_SMALL_BYTES = 64 << 10  # windows of at most this many bytes get new memory
_LONG_HOLE = 64 << 10  # bytes: shorter ones are read with the data around them
_KEPT_BUFFERS = {WINDOW: 4, WIDE_WINDOW: 2}
"""Per thread and size: of two files at once, or of one, the current and the previous window."""
_of_thread = local()


class ByteSource(Protocol):
    """Bytes of a known size, read window by window, by one thread at a time.

    `unreadable` lists the half-open ranges that the operating system could not read, in the order in which
    they were found, each byte once; their bytes read as zero. If a file has become shorter, all bytes from
    its new end to `size` are unreadable.
    """

    name: str
    size: int
    unreadable: list[tuple[int, int]]

    def window(self, offset: int, length: int) -> Bytes:
        """Bytes [offset, offset + length) as a read-only uint8 array; shorter at the end.

        The bytes do not change while the array, or a view of it, is referenced; only a new window shows
        changes of the file.
        """
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length); shorter at the end."""
        ...

    def data_from(self, offset: int) -> int:
        """The first offset from `offset` on that may hold anything but zeros; `size` if none."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


_ZERO_BLOCK = 64 << 10
_BLOCK_OF_ZEROS = bytes(_ZERO_BLOCK)


def first_nonzero(source: ByteSource, start: int, stop: int) -> int:
    """The first position in [start, stop) whose byte is not zero; `stop` when there is none."""
    position, read = source.data_from(start), 0
    while position < stop:
        block = min(_ZERO_BLOCK if read < WINDOW else WINDOW, stop - position)
        if block <= _ZERO_BLOCK:
            data = source.read(position, block)
            if data != _BLOCK_OF_ZEROS[: len(data)]:
                return position + len(data) - len(data.lstrip(b"\0"))
        else:  # so many zeros are worth loading numpy
            window = source.window(position, block)
            if window.any():
                return position + int((window != 0).argmax())
        read += block
        position = source.data_from(position + block)
    return stop


def nonzero_end(source: ByteSource | RandomFile, start: int, stop: int) -> int:
    """The position after the last byte of [start, stop) that is not zero; `start` when there is none."""
    step = _ZERO_BLOCK
    while stop > start:
        block = max(start, stop - step)
        if source.data_from(block) < stop:  # not a hole
            if step > WINDOW:
                step = WINDOW
                continue
            data = source.read(block, stop - block)
            if data != bytes(len(data)):
                return block + len(data.rstrip(b"\0"))
        stop, step = block, 2 * step  # what is empty is often long; a request to a far file takes long
    return start


class RateLimiter:
    """Limits the total read rate of all sources that share it, in all threads."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._lock = Lock()
        self._stopped = Event()

    def take(self, count: int) -> None:
        """Wait until `count` bytes more may be read, or until `stop` is called."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + count / self.bytes_per_second
        # In slices: a wait may be longer than the system's limit.
        while (left := start - time.monotonic()) > 0:
            if self._stopped.wait(min(left, _WAIT_SLICE_SECONDS)):
                return

    def stop(self) -> None:
        """End every wait, now and later, so that the threads of cancelled work return."""
        self._stopped.set()


class BytesSource:
    """A source over bytes in memory; `first` is the offset of their first byte in the source."""

    def __init__(self, data: bytes | Bytes, name: str = "memory", *, first: int = 0) -> None:
        self.name = name
        self.size = first + len(data)
        self.unreadable: list[tuple[int, int]] = []
        self._data = data
        self._first = first

    def window(self, offset: int, length: int) -> Bytes:
        """See ByteSource."""
        import numpy as np

        length = max(0, min(length, self.size - offset))
        window = np.frombuffer(self._data, np.uint8, length, offset - self._first if length else 0)
        window.flags.writeable = False
        return window

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        return bytes(self._data[offset - self._first : offset - self._first + length])

    def data_from(self, offset: int) -> int:
        """See ByteSource."""
        return offset

    def close(self) -> None:
        """See ByteSource."""


def open_source(
    path: Path, *, keep_cache: bool = False, limiter: RateLimiter | None = None, is_warm: bool = False,
    listed_size: int = 0,
) -> ByteSource:  # fmt: skip
    """A source over a file, of its current size or its listed size, whichever is larger.

    Args:
        path: the file; a `StoragePath` is read through its storage, and no page cache is involved.
        keep_cache: leave what was read in the page cache.
        limiter: bounds the rate of reading; share it between sources.
        is_warm: this process has just written what will be read: nothing is fetched ahead or dropped.
        listed_size: what a local file had when it was listed; bytes that it has lost since are unreadable.

    Raises:
        OSError: the file cannot be opened.
    """
    if isinstance(path, StoragePath):
        from rmqtool.storage.random_file import RemoteSource

        return RemoteSource(path.storage.open(path.inner), str(path), limiter)
    return FileSource(path, keep_cache=keep_cache, limiter=limiter, is_warm=is_warm, listed_size=listed_size)


def read_pieces(source: ByteSource, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """The ranges [starts, starts + lengths), each by itself; shorter where the file ends.

    For thousands of ranges far apart: nothing is fetched ahead or dropped. Unreadable bytes are zeros.
    """
    if isinstance(source, FileSource):
        return source.pieces(starts, lengths)
    return [source.read(start, length) for start, length in zip(starts, lengths, strict=True)]


class FileSource:
    """A local file; see `open_source`."""

    def __init__(
        self, path: Path, *, keep_cache: bool = False, limiter: RateLimiter | None = None,
        is_warm: bool = False, listed_size: int = 0,
    ) -> None:  # fmt: skip
        self.name = str(path)
        self._unreadable = Unreadable()
        self.unreadable = self._unreadable.ranges
        self._limiter = limiter
        self._pages: PageCache | None = None
        self._cold: ColdReads | None = None
        self._keep_cache = keep_cache
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = max(os.fstat(self._fd).st_size, listed_size)
            if self.size and not is_warm and page_cache.is_available():
                self._pages = PageCache(self._fd, self.size)
                self._cold = None if keep_cache else ColdReads(self._fd, self.size, self._pages)
        except OSError as error:
            os.close(self._fd)
            raise self._named(error) from error

    def window(self, offset: int, length: int) -> Bytes:
        """See ByteSource."""
        stop = min(offset + length, self.size)
        offset = min(offset, stop)
        window = buffer_of(stop - offset)
        if self._limiter is not None:
            self._limiter.take(stop - offset)
        if self._cold is not None and self._cold.fill(window.data, offset):
            self._drop(offset, stop)
        else:
            self._announce(offset, stop, is_window=True)
            self._fill(window.data, offset)
        window.flags.writeable = False
        return window

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        length = max(0, min(length, self.size - offset))
        if self._limiter is not None:
            self._limiter.take(length)
        buffer = memoryview(bytearray(length))
        for start, stop in self._ranges(offset, offset + length):
            self._announce(start, stop, is_window=False)
            self._fill(buffer[start - offset : stop - offset], start)
        return bytes(buffer)

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """What is read of [start, stop): not long holes, for which the system would have to make pages."""
        if stop - start < _LONG_HOLE:
            yield start, stop
            return
        file, end = LocalFile(self._fd), start
        while end < stop:
            data = min(self.data_from(end), stop)
            if data - end >= _LONG_HOLE:
                if start < end:
                    yield start, end
                start = data
            end = min(max(file.hole_from(data), data + 1), stop)
        if start < end:
            yield start, end

    def pieces(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """See `read_pieces`."""
        found = []
        for start, length in zip(starts, lengths, strict=True):
            if self._limiter is not None:
                self._limiter.take(length)
            try:
                data = os.pread(self._fd, length, start)
            except OSError:
                data = b""
            # Short: the end of the file, or bytes that cannot be read.
            found.append(data if len(data) == length else self.read(start, length))
        return found

    def descriptor_for(self, count: int) -> int:
        """The open file, for reads of `count` bytes in all; nothing is fetched ahead or dropped for them."""
        if self._limiter is not None:
            self._limiter.take(count)
        return self._fd

    def data_from(self, offset: int) -> int:
        """See ByteSource."""
        found = self._data_from(offset)
        if found >= self.size:  # a hole up to the end, which may have moved
            try:
                size = os.fstat(self._fd).st_size
            except OSError as error:
                raise self._named(error) from error
            self._unreadable.note(max(size, offset), self.size)
        return min(found, self.size)

    def _named(self, error: OSError) -> OSError:
        """The error of an operation on the descriptor, with the name of the file."""
        return OSError(error.errno, error.strerror, self.name)

    def _data_from(self, offset: int) -> int:
        found = self._sought(offset)
        rest = -offset % PAGE_BYTES
        if found > offset or not rest or self._pages is None or self._pages.is_absent(offset, offset + rest):
            return found
        # A page of a hole counts as data while it is in the cache, as the last one of a window is.
        try:
            is_zero = not any(os.pread(self._fd, rest, offset))
        except OSError:
            return offset
        return self._sought(offset + rest) if is_zero else offset

    def _sought(self, offset: int) -> int:
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            # ENXIO: only a hole up to the end; others: the file system does not report holes
            return self.size if error.errno == errno.ENXIO else offset

    def close(self) -> None:
        """See ByteSource."""
        if self._fd < 0:
            return
        if self._cold is not None:
            self._cold.close()
        if self._pages is not None:
            self._drop(0, 0)
            self._pages.close()
        os.close(self._fd)
        self._fd = -1

    def _announce(self, start: int, stop: int, *, is_window: bool) -> None:
        """Drop pages that are done with, fetch missing ones."""
        if self._pages is None or stop <= start:
            return
        if is_window:
            # Fetch the next window too, so that the disk works while this one is processed. But not a
            # hole: once its pages are in the cache, they would count as data.
            ahead = min(2 * stop - start, self.size)
            is_cold = self._cold is not None and self._cold.takes(stop, ahead)
            stop = ahead if stop < ahead and not is_cold and self._data_from(stop) < ahead else stop
        if is_window or self._pages.is_scattered:
            self._drop(start, stop)
        self._pages.fetch(start, stop)

    def _drop(self, start: int, stop: int) -> None:
        """Drop the pages that this source fetched, except those of [start, stop)."""
        assert self._pages is not None
        for first, last in self._pages.fetched_outside(start, stop):
            if not self._keep_cache:
                self._pages.drop(first, last)

    # reading with errors

    def _fill(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer`; unreadable bytes become zeros and are recorded.

        After a failure the rest is read page by page.
        """
        done = failed = 0
        by_page = False
        while done < len(buffer):
            place = offset + done
            stop = min(done + PAGE_BYTES - place % PAGE_BYTES, len(buffer)) if by_page else len(buffer)
            try:
                count = os.preadv(self._fd, [buffer[done:stop]], place)
            except OSError:
                if by_page:
                    buffer[done:stop] = bytes(stop - done)
                    failed += stop - done
                    done = stop
                by_page = True
                continue
            if count == 0:  # the file has become shorter
                buffer[done:] = bytes(len(buffer) - done)
                self._unreadable.note(place - failed, self.size)
                return
            self._unreadable.note(place - failed, place)
            failed = 0
            done += count
        self._unreadable.note(offset + done - failed, offset + done)


def buffer_of(length: int) -> Bytes:
    """Memory for a window: a part of a reused buffer of this thread, or a new array."""
    import numpy as np

    from rmqtool.storage.buffers import Buffers

    if not _SMALL_BYTES < length <= WIDE_WINDOW:
        return np.empty(length, np.uint8)
    size = WINDOW if length <= WINDOW else WIDE_WINDOW
    buffers: dict[int, Buffers] = _of_thread.__dict__.setdefault("buffers", {})
    if size not in buffers:
        buffers[size] = Buffers(size, np.uint8, _KEPT_BUFFERS[size])
    return buffers[size].take()[:length]
