"""The queue offsets of the records in the log, per queue.

A consumer receives only messages from the minimum to the maximum of its queue. No unit refers to a record
outside of that range, so no consumer receives it, even if it is sound.

Source: DefaultMessageStore#getMessage (OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY, NO_MATCHED_LOGIC_QUEUE);
spec 02 8.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.formats.batch import ITEMS_MAX
from rmqtool.queue.build import OffsetRuns, queue_id_of

if TYPE_CHECKING:
    import numpy as np

    from rmqtool.broker.load import QueueKey

    Array = np.ndarray[Any, np.dtype[Any]]


class HeldQueue(NamedTuple):
    """The queue offsets that the log holds for one queue: (first, stop) runs in the order of the log."""

    runs: Sequence[tuple[int, int]]

    @property
    def span(self) -> tuple[int, int]:
        """The lowest offset and the one after the highest."""
        return min(first for first, _ in self.runs), max(stop for _, stop in self.runs)

    def outside(self, served: Sequence[tuple[int, int]]) -> int:
        """The number of offsets in none of the ranges; an offset that the log holds twice counts twice."""
        return sum(
            stop - first - sum(max(min(stop, high) - max(first, low), 0) for low, high in served)
            for first, stop in self.runs
        )

    @property
    def former(self) -> HeldQueue:
        """The offsets before the queue began again with a lower one: those of a deleted queue of its name."""
        begins = [place for place, (one, other) in enumerate(pairwise(self.runs), 1) if other[0] < one[1]]
        return HeldQueue(self.runs[: begins[-1]] if begins else [])


class Held:
    """Collects the queue offsets of records by queue."""

    def __init__(self) -> None:
        self._runs = OffsetRuns()

    def add(self, entries: Array, *, is_batch: bool) -> None:
        """Add ENTRY rows in the order of the log; a row of a batch queue has several offsets."""
        self._runs.add(entries, ITEMS_MAX if is_batch else 1)

    def queues(self, names: Sequence[str]) -> Iterator[tuple[QueueKey, HeldQueue]]:
        """Every queue with records in the log; `names` are the topics by number."""
        for code, runs in self._runs.queues():
            # a sum that overflowed, as in Java: such a run is empty
            pairs = [(first, stop) for first, stop in runs if first < stop]
            if pairs:
                yield (names[code >> 32], queue_id_of(code)), HeldQueue(pairs)
