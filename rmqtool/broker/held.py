"""Which queue offsets the log holds for each queue: what its consumers could get, were its units there.

A consumer gets what its queue serves, from its minimum to its maximum. A record of the log outside of that
range has no unit that leads to it: no consumer gets it, however sound it is.

Source: DefaultMessageStore#getMessage (OFFSET_TOO_SMALL, OFFSET_OVERFLOW_BADLY, NO_MATCHED_LOGIC_QUEUE);
spec 02 8.2.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.queue.build import queue_codes, queue_id_of

if TYPE_CHECKING:
    from rmqtool.broker.load import QueueKey

    Array = np.ndarray[Any, np.dtype[Any]]

_BATCH_MAX = (1 << 15) - 1  # the field of a batch unit is a short


class HeldQueue(NamedTuple):
    """The queue offsets that the log holds for one queue: (first, stop) runs in the order of the log."""

    runs: Sequence[tuple[int, int]]

    @property
    def span(self) -> tuple[int, int]:
        """The lowest offset and the one behind the highest."""
        return min(first for first, _ in self.runs), max(stop for _, stop in self.runs)

    def outside(self, low: int, high: int) -> int:
        """How many lie outside [low, high); an offset that the log holds twice counts twice."""
        return sum(stop - first - max(min(stop, high) - max(first, low), 0) for first, stop in self.runs)


class Held:
    """The queue offsets of the records that were seen, by queue: 16 bytes for each run without a gap."""

    def __init__(self) -> None:
        self._runs: dict[int, array[int]] = {}

    def add(self, entries: Array, *, is_batch: bool) -> None:
        """Take ENTRY rows in the order of the log; of a batch queue a row holds several offsets."""
        codes = queue_codes(entries)
        order = np.argsort(codes, kind="stable")
        codes, firsts = codes[order], entries["queue_offset"][order]
        stops = firsts + (np.clip(entries["batch_size"][order], 1, _BATCH_MAX) if is_batch else 1)
        begins = np.flatnonzero(
            np.concatenate([[True], (codes[1:] != codes[:-1]) | (firsts[1:] != stops[:-1])])
        )
        ends = np.append(begins[1:], len(codes)) - 1
        for code, first, stop in zip(
            codes[begins].tolist(), firsts[begins].tolist(), stops[ends].tolist(), strict=True
        ):
            runs = self._runs.setdefault(code, array("q"))
            if runs and runs[-1] == first:
                runs[-1] = stop
            else:
                runs.extend((first, stop))

    def queues(self, names: Sequence[str]) -> Iterator[tuple[QueueKey, HeldQueue]]:
        """Every queue that the log holds records of; `names` are the topics by number."""
        for code, runs in self._runs.items():
            # Java's sums wrap, and so do these: such a run holds nothing
            pairs = [(first, stop) for first, stop in zip(runs[::2], runs[1::2], strict=True) if first < stop]
            if pairs:
                yield (names[code >> 32], queue_id_of(code)), HeldQueue(pairs)
