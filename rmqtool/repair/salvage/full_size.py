"""A commit log file as it should be: at its full size, whatever its present length.

The remaining bytes in a blank, and the last place where a record may end, depend on the full size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rmqtool.repair.salvage.model import LogFile

if TYPE_CHECKING:
    from rmqtool.storage.source import Bytes, ByteSource


def of_full_size(source: ByteSource, file: LogFile) -> ByteSource:
    """`source`, cut if the file is too long, or followed by zeros if it is too short."""
    if source.size >= file.full_size:
        source.size = file.full_size
        return source
    return _Padded(source, file.full_size)


class _Padded:
    """A source with zeros after its end, up to `size` bytes."""

    def __init__(self, source: ByteSource, size: int) -> None:
        self.name = source.name
        self.size = size
        self._source = source

    @property
    def unreadable(self) -> list[tuple[int, int]]:
        """See ByteSource."""
        return self._source.unreadable

    @unreadable.setter
    def unreadable(self, ranges: list[tuple[int, int]]) -> None:
        self._source.unreadable = ranges

    def window(self, offset: int, length: int) -> Bytes:
        """See ByteSource."""
        stop = min(offset + length, self.size)
        if stop <= self._source.size or stop <= offset:
            return self._source.window(offset, max(stop - offset, 0))
        window = np.zeros(stop - offset, np.uint8)
        if offset < self._source.size:
            there = self._source.window(offset, self._source.size - offset)
            window[: len(there)] = there
        window.flags.writeable = False
        return window

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource."""
        length = max(0, min(length, self.size - offset))
        there = self._source.read(offset, length) if offset < self._source.size else b""
        return there.ljust(length, b"\0")

    def data_from(self, offset: int) -> int:
        """See ByteSource."""
        if offset >= self._source.size:
            return self.size
        found = self._source.data_from(offset)
        return self.size if found >= self._source.size else found

    def close(self) -> None:
        """See ByteSource."""
        self._source.close()
