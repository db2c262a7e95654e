"""Buffers of whole records on their way into the log, and the counters of what was written."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.errors import UnwritableError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.buffers import Array
from rmqtool.write.recent import Part

if TYPE_CHECKING:
    from rmqtool.write.store_writer import StoreWriter

BUFFER_SIZE = 4 << 20
_BUFFERS = 6


@dataclass(slots=True)
class Tally:
    """Counters of what was appended to the log so far.

    Attributes:
        rows: messages.
        bytes: of their records.
        first_physical_offset: of the first record; None without one.
        last_physical_offset: of the last record.
        skipped: rows left out.
    """

    rows: int = 0
    bytes: int = 0
    first_physical_offset: int | None = None
    last_physical_offset: int | None = None
    skipped: int = 0

    def count(self, rows: int, size: int, first: int, last: int) -> None:
        """Add records of `size` bytes; the first and the last of them are at these physical offsets."""
        self.rows += rows
        self.bytes += size
        self.last_physical_offset = last
        if self.first_physical_offset is None:
            self.first_physical_offset = first


class Pipe:
    """Buffers on their way into the log, one written while the next is filled.

    The caller holds the put lock from `restart` to `drain`. With `ahead` False each is written by `send`, in
    the caller's thread: for a few MiB at a time, which would wait longer for another thread.

    Attributes:
        end: physical offset after the last buffer sent.
        room: bytes of records that fit after it into the log's current file.
        next_offsets: of the queues, after what was written; valid after `drain`; None: taken over.
    """

    def __init__(self, writer: StoreWriter, tally: Tally, *, ahead: bool = True) -> None:
        """Write to the log of `writer`, and count in `tally` what was written."""
        self.end = self.room = 0
        self.next_offsets: Array | None = None
        self._writer = writer
        self._tally = tally
        self._free = deque(np.empty(BUFFER_SIZE, np.uint8) for _ in range(_BUFFERS if ahead else 1))
        self._filling: Array = self._free[0]
        self._sent: deque[Future[Array]] = deque()
        self._error: UnwritableError | None = None
        self._hand = ThreadPoolExecutor(1, "append") if ahead else None

    def __enter__(self) -> Pipe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hand is not None:
            self._hand.shutdown(wait=True)

    def reset(self) -> None:
        """Forget a buffer that failed, before the next attempt."""
        self._error = None

    def restart(self, next_offsets: Array) -> None:
        """Go on at the log's end; nothing is on its way."""
        self.next_offsets = next_offsets
        self.end = self._writer.log.end
        self.room = self._writer.log.room()

    def buffer(self, size: int) -> Array:
        """A buffer to fill, of at least `size` bytes; waits for one."""
        if not self._free:
            self._take_back()
        self._filling = self._free.popleft()
        self._writer.recent.reclaim(self._filling)
        if len(self._filling) < size:
            self._filling = np.empty(size, np.uint8)
        return self._filling

    def send(self, used: int, rows: int, last_size: int, store_timestamp: int, next_offsets: Array) -> None:
        """Send the first `used` bytes of the buffer that `buffer` gave last.

        Args:
            used: bytes.
            rows: records in them.
            last_size: bytes of the last one.
            store_timestamp: of the last one.
            next_offsets: of all queues, after these records.
        """
        buffer, start = self._filling, self.end
        if self._hand is None:
            self._free.append(
                self._write(buffer, used, start, rows, last_size, store_timestamp, next_offsets)
            )
        else:
            self._sent.append(self._hand.submit(
                self._write, buffer, used, start, rows, last_size, store_timestamp, next_offsets
            ))  # fmt: skip
        self.end += used
        self.room -= used

    def roll(self) -> None:
        """Go on in the log's next file. Raises UnwritableError."""
        self.drain()
        self.check()
        self._writer.log.roll()
        assert self.next_offsets is not None
        self.restart(self.next_offsets)

    def drain(self) -> None:
        """Wait until all that was sent is written, or has failed. Interrupted, it can be called again."""
        while self._sent:
            self._take_back()

    def check(self) -> None:
        """Raises the UnwritableError of the first buffer that failed; none after it was written."""
        if self._error is not None:
            raise self._error

    def _take_back(self) -> None:
        self._free.append(self._sent[0].result())
        self._sent.popleft()  # after the wait, which may be interrupted

    def _write(
        self, buffer: Array, used: int, start: int, rows: int, last_size: int, store_timestamp: int,
        next_offsets: Array,
    ) -> Array:  # fmt: skip
        if self._error is not None:
            return buffer
        try:
            self._writer.log.append(buffer[:used].data, start)
        except UnwritableError as error:
            self._error = error
            return buffer
        if self._hand is not None:  # else the buffer is wanted at once, and dispatch reads the file
            self._writer.recent.offer(Part(start, buffer[:used]))
        self.next_offsets = next_offsets
        self._tally.count(rows, used, start, start + used - last_size)
        self._writer.appended(store_timestamp)
        return buffer
