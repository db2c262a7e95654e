"""The bytes of an input as they come: how many were read, and whether whoever writes them pauses."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from select import POLLIN, poll
from typing import Any

_PATIENCE_MS = 200  # without new bytes, after which what a pipe gave is taken
_LONGEST_MS = 1000  # behind the first bytes, after which it is taken though more come


class CountedFile(io.RawIOBase):
    """A file that is only read, and tells how far it was read; `count` is bytes."""

    def __init__(self, file: io.FileIO, advance: Callable[[int], None]) -> None:
        self._file = file
        self.advance = advance
        self.count = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Whether it is no pipe."""
        return self._file.seekable()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """As of any file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As of any file."""
        return self._file.tell()

    def fileno(self) -> int:
        """Its descriptor."""
        return self._file.fileno()

    def readinto(self, buffer: Any, /) -> int | None:
        """As of any file."""
        count = self._file.readinto(buffer)
        self.count += count or 0
        self.advance(count or 0)
        return count

    def close(self) -> None:
        """Closes the file too."""
        self._file.close()
        super().close()


class Flowing:
    """An input whose writer may pause, or be slow: what has come is given, in place of a full buffer.

    Read from the file itself, behind what was looked at: a thread that waits in the buffer would keep
    everybody from closing it, on an interrupt for instance.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        """Read what `open_input` has opened, from its start."""
        self._raw: Any = file.raw
        self._coming = poll()  # not select(): that takes no descriptor above 1,023
        self._coming.register(file.fileno(), POLLIN)
        self._head = file.read(self._raw.count if isinstance(self._raw, CountedFile) else 0)

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer, or what of it can be filled without waiting for long; 0 at the end."""
        count = min(len(self._head), len(buffer))
        buffer[:count] = self._head[:count]
        self._head = self._head[count:]
        end = _end_of_wait() if count else None
        while count < len(buffer) and self._is_more(end):
            got = self._raw.readinto(buffer[count:])
            if not got:
                break
            count += got
            end = end or _end_of_wait()
        return count

    def _is_more(self, end: float | None) -> bool:
        """Whether there are more bytes, or the end; None waits for them, else not beyond that time."""
        if end is None:
            return bool(self._coming.poll())
        left_ms = min(_PATIENCE_MS, int(1000 * (end - time.monotonic())))
        return left_ms > 0 and bool(self._coming.poll(left_ms))


def _end_of_wait() -> float:
    return time.monotonic() + _LONGEST_MS / 1000
