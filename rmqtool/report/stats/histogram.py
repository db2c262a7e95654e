"""Percentiles of many groups of numbers at once, in bounded memory and with a bounded error.

Buckets keep the first 8 binary digits of a number: they are 1 wide up to 255, above that at most 1/128 of
their lower end. A percentile is the middle of its bucket, so it is exact up to 255 and otherwise off by
at most 1/256 (0.4 %). If all groups together have more than `CELLS_MAX` buckets, all buckets lose one
digit, which doubles the error; see `relative_error`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rmqtool.storage.buffers import Array

DIGITS = 8
_TABLE_MAX = 1 << 18  # cells that are counted in a table
CELLS_MAX = 4 << 20
"""Most (group, bucket) pairs, 16 bytes each."""
VALUE_MAX = (1 << 52) - 1
"""Larger numbers count as this one, which a float holds exactly."""

_BUCKET_BITS = 14
_ZERO = 1 << (_BUCKET_BITS - 1)  # the bucket of 0; buckets of negative numbers are below


def buckets(values: Array, digits: int = DIGITS) -> Array:
    """The bucket of each number, i8 of the shape of `values` (integers); larger numbers, higher buckets."""
    table = _table(digits)
    is_small = (values >= 0) & (values < len(table))
    if is_small.all():
        found: Array = table[values]
        return found
    found = table[np.where(is_small, values, 0)]
    found[~is_small] = _computed(values[~is_small], digits)
    return found


@cache
def _table(digits: int) -> Array:
    """The buckets of small numbers, which most sizes and delays are: a look-up is faster."""
    return _computed(np.arange(1 << 16), digits)


def _computed(values: Array, digits: int) -> Array:
    magnitude = np.minimum(np.abs(values.astype(np.int64)), VALUE_MAX)
    # abs of the smallest int64 is negative
    magnitude = np.where(magnitude < 0, VALUE_MAX, magnitude)
    shift = np.maximum(np.frexp(magnitude.astype(np.float64))[1].astype(np.int64) - digits, 0)
    index = (shift << (digits - 1)) + (magnitude >> shift)
    found: Array = np.where(values < 0, -index, index) + _ZERO
    return found


def middles(indexes: Array, digits: int = DIGITS) -> Array:
    """The number in the middle of each bucket (rounded towards zero), i8."""
    index = np.abs(indexes - _ZERO)
    half = 1 << (digits - 1)
    shift = np.maximum(index // half - 1, 0)
    low = (index - shift * half) << shift
    middle = low + ((np.int64(1) << shift) - 1) // 2
    found: Array = np.where(indexes < _ZERO, -middle, middle)
    return found


class Histogram:
    """The count of numbers per group and bucket; groups are integers from 0 on."""

    def __init__(self, cells_max: int = CELLS_MAX) -> None:
        self._cells_max = cells_max
        self._digits = DIGITS
        self._cells: Array = np.zeros(0, np.int64)
        self._counts: Array = np.zeros(0, np.int64)
        self._waiting: list[tuple[Array, Array]] = []
        self._waiting_cells = 0

    @property
    def relative_error(self) -> float:
        """The largest relative error of a percentile."""
        return float(2.0**-self._digits)

    def add(self, groups: Array, values: Array) -> None:
        """Add numbers: `groups` and `values` are integers of the same shape."""
        found, counts = _counted(groups.astype(np.int64), buckets(values, self._digits))
        self._waiting.append((found, counts))
        self._waiting_cells += len(found)
        # Merge when the new cells outnumber the old, so that each cell is sorted O(log n) times.
        if self._waiting_cells > max(len(self._cells), 1 << 16):
            self._merge()

    def percentiles(self, group_count: int, parts: tuple[int, ...]) -> Array:
        """Percentiles by nearest rank, i8 of shape (group_count, len(parts)); 0 for a group without numbers.

        The p-th percentile of n numbers is number ceil(n * p / 100), counted from 1.
        """
        self._merge()
        result = np.zeros((group_count, len(parts)), np.int64)
        if not len(self._cells):
            return result
        groups, indexes = self._cells >> _BUCKET_BITS, self._cells & ((1 << _BUCKET_BITS) - 1)
        running = np.cumsum(self._counts)
        starts = np.searchsorted(groups, np.arange(group_count))
        stops = np.searchsorted(groups, np.arange(group_count), side="right")
        before = np.where(starts > 0, running[np.maximum(starts - 1, 0)], 0)
        totals = np.where(stops > starts, running[np.maximum(stops - 1, 0)] - before, 0)
        middle = middles(indexes, self._digits)
        for column, part in enumerate(parts):
            rank = -(-totals * part // 100)
            place = np.searchsorted(running, before + np.maximum(rank, 1))
            result[:, column] = np.where(totals > 0, middle[np.minimum(place, len(middle) - 1)], 0)
        return result

    def _merge(self) -> None:
        if self._waiting:
            cells = np.concatenate([self._cells, *(cells for cells, _ in self._waiting)])
            counts = np.concatenate([self._counts, *(counts for _, counts in self._waiting)])
            self._waiting, self._waiting_cells = [], 0
            self._cells, self._counts = _added_up(cells, counts)
        while len(self._cells) > self._cells_max and self._digits > 1:
            self._coarsen()

    def _coarsen(self) -> None:
        """Drop one digit of all buckets."""
        indexes = self._cells & ((1 << _BUCKET_BITS) - 1)
        fewer = self._digits - 1
        cells = self._cells - indexes + buckets(middles(indexes, self._digits), fewer)
        self._digits = fewer
        self._cells, self._counts = _added_up(cells, self._counts)


def _counted(groups: Array, indexes: Array) -> tuple[Array, Array]:
    """The cells that occur, in order, and how often each does, i8."""
    if len(indexes):
        low = int(indexes.min())
        width = int(indexes.max()) - low + 1
        if (int(groups.max()) + 1) * width <= _TABLE_MAX:  # counting is nine times as fast as sorting
            table = np.bincount(groups * width + (indexes - low))
            there = np.flatnonzero(table)
            return ((there // width) << _BUCKET_BITS) | (there % width + low), table[there]
    found, counts = np.unique((groups << _BUCKET_BITS) | indexes, return_counts=True)
    return found, counts.astype(np.int64)


def _added_up(cells: Array, counts: Array) -> tuple[Array, Array]:
    order = np.argsort(cells, kind="stable")
    cells, counts = cells[order], counts[order]
    starts = np.flatnonzero(np.diff(cells, prepend=cells[0] - 1)) if len(cells) else np.zeros(0, np.int64)
    return cells[starts], np.add.reduceat(counts, starts) if len(starts) else counts
