"""Records that were just appended, while the buffer that they were written from still holds them.

Dispatch reads them there: the same bytes in the page cache cost a mapping of every page, and the walk
over memory that another processor has just written.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any, NamedTuple

ENOUGH = 4 << 20
"""Bytes of log that are worth a run of dispatch at once."""

_PATIENCE_S = 0.1
"""How long a buffer is kept for a dispatch that lags; it reads the file then."""


class Part(NamedTuple):
    """Whole records at the physical offsets [start, start + len(data)); `data` is a uint8 array."""

    start: int
    data: Any

    @property
    def stop(self) -> int:
        """The offset after the last byte."""
        return self.start + len(self.data)


class Recent:
    """The parts that dispatch may still read, one after the other."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Called when there is a new part."""
        self._changed = Condition()
        self._parts: deque[Part] = deque()
        self._reading: Part | None = None

    def offer(self, part: Part) -> None:
        """Records that lie in the log's file now, and stay in this memory until they are reclaimed."""
        with self._changed:
            self._parts.append(part)
        self.wake()

    def reclaim(self, memory: Any) -> None:
        """Take `memory` back, to be filled again.

        Waits a while for a dispatch that reads it or is about to: for less than `ENOUGH` it does not come.
        """
        until = time.monotonic() + _PATIENCE_S
        with self._changed:
            while (part := self._part_in(memory)) is not None:
                left = until - time.monotonic()
                is_near = left > 0 and self._parts[-1].stop - self._parts[0].start >= ENOUGH
                if not is_near and part is not self._reading:
                    self._parts.remove(part)
                    return
                self._changed.wait(max(left, 0.001))

    def _part_in(self, memory: Any) -> Part | None:
        return next((part for part in self._parts if part.data.base is memory), None)

    @contextmanager
    def reading(self, offset: int) -> Iterator[Part | None]:
        """The part that holds the physical offset, not reclaimed before the block ends; None without one.

        What lies before `offset`, and the part itself when the block ends, is not offered any more.
        """
        with self._changed:
            while self._parts and self._parts[0].stop <= offset:
                self._parts.popleft()
            first = self._parts[0] if self._parts else None
            self._reading = first if first is not None and first.start <= offset else None
            self._changed.notify_all()
        try:
            yield self._reading
        finally:
            with self._changed:
                if self._reading is not None and self._parts and self._parts[0] is self._reading:
                    self._parts.popleft()
                self._reading = None
                self._changed.notify_all()

    def start_behind(self, offset: int) -> int | None:
        """Where the first part begins, when that is after `offset`."""
        with self._changed:
            return self._parts[0].start if self._parts and self._parts[0].start > offset else None
