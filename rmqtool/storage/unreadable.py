"""The ranges of a file that could not be read, each byte once, however often it is requested."""

from __future__ import annotations

from bisect import bisect_left


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
