"""Half-open ranges and runs of numbers, kept instead of one value per record."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_LARGEST = (1 << 63) - 1


def runs(numbers: np.ndarray) -> Iterator[tuple[int, int]]:
    """(position of the first, position after the last) of every run of consecutive numbers.

    `numbers` is ascending, shape (n,); positions are indices into it.
    """
    import numpy as np

    if len(numbers):
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(numbers)], strict=True)


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The half-open ranges in ascending order; overlapping and adjacent ones become one."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1]:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return result


def overlaps(ranges: Sequence[tuple[int, int]], start: int, stop: int) -> bool:
    """Whether [start, stop) shares a number with one of `ranges`, which come from `merged`."""
    place = bisect_left(ranges, stop, key=lambda item: item[0]) - 1
    return place >= 0 and start < ranges[place][1]


def contains(ranges: Sequence[tuple[int, int]], start: int, stop: int) -> bool:
    """Whether one of `ranges`, which come from `merged`, holds all of [start, stop)."""
    place = bisect_right(ranges, start, key=lambda item: item[0]) - 1
    return place >= 0 and stop <= ranges[place][1]


def inside(ranges: Sequence[tuple[int, int]], numbers: np.ndarray) -> np.ndarray:
    """Which of `numbers`, shape (n,), lie in one of `ranges`, which come from `merged`: bool, shape (n,)."""
    import numpy as np

    if not ranges or not len(numbers):
        return np.zeros(len(numbers), bool)
    # Only ranges near the numbers: there can be one for each of many files.
    first, last = (
        bisect_right(ranges, int(edge), key=lambda item: item[0]) for edge in (numbers.min(), numbers.max())
    )
    ranges = ranges[max(first - 1, 0) : max(last, 1)]
    # The name of a file may be an offset near the largest i64.
    edges = np.array([(min(low, _LARGEST), min(high, _LARGEST)) for low, high in ranges], np.int64)
    place = np.searchsorted(edges[:, 0], numbers, side="right") - 1
    return np.asarray((place >= 0) & (numbers < edges[place, 1]))


class Unreadable:
    """Half-open ranges of bytes. `ranges` has them in the order in which they were found, and only grows."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self._starts: list[int] = []  # all of them merged, by position
        self._stops: list[int] = []

    def note(self, start: int, stop: int) -> None:
        """Add the new bytes of [start, stop); windows overlap, so a range may come again."""
        if start >= stop:
            return
        first = last = bisect_left(self._stops, start)
        low, new = start, start
        while last < len(self._starts) and self._starts[last] <= stop:
            if new < self._starts[last]:
                self.ranges.append((new, self._starts[last]))
            low = min(low, self._starts[last])
            new = max(new, self._stops[last])
            last += 1
        if new < stop:
            self.ranges.append((new, stop))
        self._starts[first:last] = [low]
        self._stops[first:last] = [max(new, stop)]

    def touches(self, start: int, stop: int) -> bool:
        """Whether a byte of [start, stop) is among them."""
        place = bisect_left(self._starts, stop) - 1
        return place >= 0 and start < self._stops[place]
