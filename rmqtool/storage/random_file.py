"""Files that are read at any offset, wherever they lie: local, remote, or parts of another file.

A `RandomFile` is the least that a storage has to provide. A *near* one is about as fast as a local file
(a member of a local tar, an unpacked temporary file) and is read as the caller asks. Each read of a far one
is a request over the network: `CachedFile` reads whole blocks and keeps the last used ones, `RemoteSource`
fetches the pieces of a scan in parallel and ahead of it.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rmqtool.storage.ranges import Unreadable

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from rmqtool.storage.source import Bytes, RateLimiter

BLOCK = 128 << 10  # bytes of a block of small reads
BLOCKS = 16  # blocks kept per file
_BLOCKS_OF_SOURCE = 4  # blocks kept per source: a scan of queues has a thousand sources
PIECE = 4 << 20  # bytes of one request of a scan
AHEAD = 4  # pieces requested before the scan gets there; as many requests run at once
_LARGE = 1 << 20  # bytes from which a read is a request of its own
_RUN = 3  # adjacent small windows after which the access counts as a scan


class RandomFile(Protocol):
    """A file read at any offset, by several threads at once unless its class says otherwise."""

    is_near: bool

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length), fewer at the end. Raises OSError."""
        ...

    def data_from(self, offset: int) -> int:
        """The first offset from `offset` on that may hold anything but zeros; `size` if none."""
        ...

    def hole_from(self, offset: int) -> int:
        """The first offset from `offset` on in a hole; `size` if none is known."""
        ...

    def close(self) -> None:
        """Release its resources; it is not read afterwards."""
        ...


class LocalFile:
    """A plain file of this machine: an open descriptor, which `close` closes, and its name in errors.

    `size` is its present size. Raises OSError.
    """

    is_near = True

    def __init__(self, descriptor: int, name: str | None = None) -> None:
        self._descriptor = descriptor
        self._name = name

    @property
    def size(self) -> int:
        """See RandomFile."""
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:  # its message does not name the file
            raise OSError(error.errno, error.strerror, self._name) from error

    def read(self, offset: int, length: int) -> bytes:
        """See RandomFile; unlike os.pread it returns fewer bytes only at the file's end."""
        data = os.pread(self._descriptor, length, offset)
        while 0 < len(data) < length and (
            more := os.pread(self._descriptor, length - len(data), offset + len(data))
        ):
            data += more
        return data

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            return self.size if error.errno == errno.ENXIO else offset

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_HOLE)
        except OSError:
            return self.size

    def close(self) -> None:
        """See RandomFile."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class CachedFile:
    """A RandomFile for small reads in one thread: of a far file it reads and keeps whole blocks."""

    def __init__(self, file: RandomFile, blocks: int = BLOCKS) -> None:
        self._file = file
        self.is_near = file.is_near
        self.size = file.size
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._blocks_max = blocks

    def read(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length), fewer at the end. Raises OSError."""
        stop = min(offset + length, self.size)
        if stop <= offset:
            return b""
        if self._file.is_near or stop - offset >= _LARGE:
            return self._file.read(offset, stop - offset)
        numbers = range(offset // BLOCK, -(-stop // BLOCK))
        missing = [number for number in numbers if number not in self._blocks]
        if missing:
            self._fetch(missing[0], missing[-1] + 1)
        blocks = [self._blocks[number] for number in numbers]
        for number in numbers:
            self._blocks.move_to_end(number)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        start = numbers[0] * BLOCK
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        return data[offset - start : stop - start]

    def _fetch(self, first: int, last: int) -> None:
        """Fetch the blocks [first, last) with one request."""
        start, stop = first * BLOCK, min(last * BLOCK, self.size)
        data = self._file.read(start, stop - start)
        for number in range(first, last):
            self._blocks[number] = data[number * BLOCK - start : (number + 1) * BLOCK - start]

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        return self._file.data_from(offset)

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        return self._file.hole_from(offset)

    def close(self) -> None:
        """Close the file and drop the cache."""
        self._blocks.clear()
        self._file.close()


class RemoteSource:
    """A ByteSource (`source`) over a RandomFile."""

    def __init__(self, file: RandomFile, name: str, limiter: RateLimiter | None = None) -> None:
        self.name = name
        self.size = file.size
        self._unreadable = Unreadable()
        self.unreadable = self._unreadable.ranges
        self._file = file
        self._small = CachedFile(file, _BLOCKS_OF_SOURCE)
        self._limiter = limiter
        self._pool: ThreadPoolExecutor | None = None
        self._pieces: dict[int, Future[bytes]] = {}
        self._last = (0, 0)  # the previous window
        self._run = 0

    def window(self, offset: int, length: int) -> Bytes:
        """See ByteSource."""
        import numpy as np

        stop = min(offset + length, self.size)
        offset = min(offset, stop)
        self._take(stop - offset)
        follows = self._last[0] <= offset <= self._last[1]
        self._run = self._run + 1 if follows else 0
        self._last = (offset, stop)
        if self._file.is_near or (stop - offset < _LARGE and self._run <= _RUN):
            return np.frombuffer(self._readable(offset, stop), np.uint8)
        return self._joined(offset, stop, ahead=AHEAD if follows else 0)

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        stop = min(offset + length, self.size)
        self._take(max(stop - offset, 0))
        for number in range(offset // PIECE, -(-stop // PIECE)):
            if number not in self._pieces:
                return self._readable(offset, stop)
        return self._joined(offset, stop, ahead=0).tobytes() if stop > offset else b""

    def data_from(self, offset: int) -> int:
        """See ByteSource."""
        return self._file.data_from(offset)

    def close(self) -> None:
        """See ByteSource."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._pieces.clear()
        self._small.close()

    def _take(self, count: int) -> None:
        if self._limiter is not None and count:
            self._limiter.take(count)

    def _readable(self, offset: int, stop: int) -> bytes:
        """Bytes [offset, stop); unreadable bytes are zeros and recorded in `unreadable`."""
        try:
            data = self._small.read(offset, stop - offset)
        except OSError:
            data = b""
        if len(data) < stop - offset:
            self._unreadable.note(offset + len(data), stop)
            data = data.ljust(stop - offset, b"\0")
        return data

    def _joined(self, offset: int, stop: int, *, ahead: int) -> Bytes:
        """Bytes [offset, stop), joined from pieces; requests `ahead` further pieces."""
        import numpy as np

        first, last = offset // PIECE, -(-stop // PIECE)
        for number in [number for number in self._pieces if number < first or number >= last + ahead]:
            self._pieces.pop(number).cancel()
        for number in range(first, min(last + ahead, -(-self.size // PIECE))):
            if number not in self._pieces:
                self._pieces[number] = self._executor().submit(self._fetch, number)
        window = np.empty(stop - offset, np.uint8)
        for number in range(first, last):
            start = max(offset, number * PIECE)
            end = min(stop, (number + 1) * PIECE)
            data = self._pieces[number].result()
            part = np.frombuffer(data, np.uint8)[start - number * PIECE : end - number * PIECE]
            window[start - offset : start - offset + len(part)] = part
            if len(part) < end - start:
                window[start - offset + len(part) : end - offset] = 0
                self._unreadable.note(start + len(part), end)
        window.flags.writeable = False
        return window

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="rmqtool-fetch")
        return self._pool

    def _fetch(self, number: int) -> bytes:
        """One piece; empty if it cannot be read."""
        start = number * PIECE
        try:
            return self._file.read(start, min(PIECE, self.size - start))
        except OSError:
            return b""


Segment = tuple[int, int, int]
"""(offset in this file, bytes, offset in the containing file); between segments are holes."""


class PartFile:
    """A RandomFile made of segments of another one: a member of a tar, sparse or not, or a part of the spool.

    Args:
        base: the containing file.
        size: bytes of this file.
        segments: the ranges outside of holes, in order of their offsets, disjoint and not empty.
        owns_base: close `base` together with this file.
    """

    def __init__(
        self, base: RandomFile, size: int, segments: Sequence[Segment], *, owns_base: bool = False
    ) -> None:
        self.size = size
        self.is_near = base.is_near
        self._base = base
        self._segments = segments
        self._starts = [start for start, _, _ in segments]
        self._owns_base = owns_base

    def read(self, offset: int, length: int) -> bytes:
        """See RandomFile."""
        stop = min(offset + length, self.size)
        if stop <= offset:
            return b""
        number = max(bisect_right(self._starts, offset) - 1, 0)
        if number < len(self._segments):
            start, count, place = self._segments[number]
            if start <= offset and stop <= start + count:
                return self._base.read(place + offset - start, stop - offset)
        data = bytearray(stop - offset)
        for start, count, place in self._segments[number:]:
            low, high = max(start, offset), min(start + count, stop)
            if start >= stop:
                break
            if low < high:
                found = self._base.read(place + low - start, high - low)
                data[low - offset : low - offset + len(found)] = found
        return bytes(data)

    def data_from(self, offset: int) -> int:
        """See RandomFile."""
        for start, count, place in self._segments[max(bisect_right(self._starts, offset) - 1, 0) :]:
            low = max(offset, start)
            if low < start + count:
                found = start + self._base.data_from(place + low - start) - place
                if found < start + count:
                    return found
        return self.size

    def hole_from(self, offset: int) -> int:
        """See RandomFile."""
        for start, count, place in self._segments[max(bisect_right(self._starts, offset) - 1, 0) :]:
            if start > offset:
                return offset
            if offset < start + count:
                found = start + self._base.hole_from(place + offset - start) - place
                if found < start + count:
                    return found
                offset = start + count
        return min(offset, self.size)

    def close(self) -> None:
        """See RandomFile."""
        if self._owns_base:
            self._base.close()
