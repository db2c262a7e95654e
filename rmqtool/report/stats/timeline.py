"""Messages and bytes over time, for a chart: in equal steps, as short as their number allows."""

from __future__ import annotations

import numpy as np

from rmqtool.report.stats.scanner import Batch
from rmqtool.storage.buffers import Array

STEPS_MAX = 2048
_FIRST_STEP_MS = 1000


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
        records = batch.records
        if not len(records.size):
            return
        steps, inverse = np.unique(records.store_timestamp // self.step_ms, return_inverse=True)
        counts = np.bincount(inverse, minlength=len(steps))
        sizes = np.bincount(inverse, weights=records.size.astype(np.float64), minlength=len(steps))
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
