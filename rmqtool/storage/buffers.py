"""Arrays that are used again when nobody holds them any more.

Fresh memory costs a page fault per 4 KiB: a fifth of the time of a walk.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Buffers:
    """Arrays of `length` elements, of which the last `kept` ones are remembered.

    One thread takes them. A view counts as its array: whoever keeps a part of an array, in any thread,
    keeps it from being handed out again.
    """

    def __init__(self, length: int, dtype: np.dtype[Any] | type, kept: int) -> None:
        self.length = length
        self._dtype = dtype
        self._kept = kept
        self._arrays: list[Array] = []

    def take(self) -> Array:
        """An array that nobody holds; its content is that of an earlier use."""
        for number in range(len(self._arrays)):
            if getrefcount(self._arrays[number]) == 2:  # the list and the call
                return self._arrays[number]
        self._arrays = [*self._arrays[1 - self._kept :], np.empty(self.length, self._dtype)]
        return self._arrays[-1]
