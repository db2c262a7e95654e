"""Messages and bytes over time, in bounded memory, whatever times the records have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rmqtool.report.stats.scanner import Batch
from rmqtool.storage.buffers import Array

STEPS_MAX = 2048
_FIRST_STEP_MS = 1000


class Bars(NamedTuple):
    """Equal steps from `start_ms` on, with their messages and bytes.

    `left_out` is the number of messages whose times are far from all others.
    """

    start_ms: int
    step_ms: int
    counts: list[int]
    bytes: list[int]
    left_out: int


class Timeline:
    """Counts the selected messages of all batches per step of the store time.

    `step_ms` is one second and doubles when more than `STEPS_MAX` steps have messages. So a few wrong clocks
    make the chart coarser, but never take memory.
    """

    def __init__(self) -> None:
        self.step_ms = _FIRST_STEP_MS
        self._steps: Array = np.zeros(0, np.int64)
        self._sums: Array = np.zeros((0, 2), np.int64)

    def take(self, batch: Batch) -> None:
        """Count one batch."""
        self.add(batch.records.store_timestamp, batch.records.size)

    def add(self, times_ms: Array, sizes: Array) -> None:
        """Count records by their times and sizes."""
        if not len(sizes):
            return
        steps, inverse = np.unique(times_ms // self.step_ms, return_inverse=True)
        counts = np.bincount(inverse, minlength=len(steps))
        sizes = np.bincount(inverse, weights=sizes.astype(np.float64), minlength=len(steps))
        self._merge(steps, np.stack([counts, sizes.astype(np.int64)], axis=1))

    def points(self) -> tuple[Array, Array, Array]:
        """(start of the step, ms since 1970; messages; bytes) by time.

        Every step with messages, and the empty step after it, if a gap begins there.
        """
        empty = np.setdiff1d(self._steps + 1, self._steps)
        steps, sums = _added_up(
            np.concatenate([self._steps, empty]),
            np.concatenate([self._sums, np.zeros((len(empty), 2), np.int64)]),
        )
        return steps * self.step_ms, sums[:, 0], sums[:, 1]

    def bars(self, most: int) -> Bars | None:
        """The same in at most `most` equal steps without gaps; None without messages."""
        starts, counts, sizes = self.points()
        starts, sizes = starts[counts > 0], sizes[counts > 0]
        counts = counts[counts > 0]
        if not len(counts):
            return None
        low, high = _span(starts, counts)
        kept = (starts >= low) & (starts < high)
        step = self.step_ms
        while (high - low) / step > most:
            step *= 2
        first = low // step
        places = starts[kept] // step - first
        length = max(-(-(high - first * step) // step), 1)
        return Bars(
            first * step, step,
            np.bincount(places, counts[kept], length).astype(np.int64).tolist(),
            np.bincount(places, sizes[kept], length).astype(np.int64).tolist(),
            int(counts[~kept].sum()),
        )  # fmt: skip

    def _merge(self, steps: Array, sums: Array) -> None:
        steps = np.concatenate([self._steps, steps])
        sums = np.concatenate([self._sums, sums])
        self._steps, self._sums = _added_up(steps, sums)
        while len(self._steps) > STEPS_MAX and self.step_ms < 1 << 55:
            self.step_ms *= 2
            self._steps, self._sums = _added_up(self._steps // 2, self._sums)


def _added_up(steps: Array, sums: Array) -> tuple[Array, Array]:
    found, inverse = np.unique(steps, return_inverse=True)
    added = np.zeros((len(found), 2), np.int64)
    np.add.at(added, inverse, sums)
    return found, added


def _span(starts: Array, counts: Array) -> tuple[int, int]:
    """The half-open range of times with nearly all messages: the whole one, unless it is much longer.

    A few wrong clocks must not squeeze all other messages into one step.
    """
    first, last = int(starts[0]), int(starts[-1]) + 1
    passed, slack = np.cumsum(counts), int(counts.sum()) // 1000
    low = int(starts[np.searchsorted(passed, slack, "right")])
    high = int(starts[np.searchsorted(passed, int(passed[-1]) - slack)]) + 1
    if last - first <= 5 * max(high - low, _FIRST_STEP_MS):
        return first, last
    margin = (high - low) // 20
    return max(low - margin, first), min(high + margin, last)
