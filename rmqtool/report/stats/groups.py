"""Records summed up per group: counts, sums, extremes and percentiles, as arrays.

Records are collected first, because the cost depends on the number of array operations more than on the
number of records. Up to `GROUPS_MAX` groups are distinguished; the records of all further groups are
summed up in one more, whose fields are null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from rmqtool.message.rows import Row
from rmqtool.report.stats.dimensions import OTHERS, Codes, Dimension
from rmqtool.report.stats.histogram import Histogram
from rmqtool.report.stats.scanner import Batch, Records
from rmqtool.storage.buffers import Array

GROUPS_MAX = 200_000
_FLUSH_RECORDS = 1 << 15  # columns of more records do not fit into the processor's cache
_CARDINALITY_MAX = 1 << 62
PERCENTILES = (50, 95, 99)
PLACES = 3  # decimal places of means and rates

SUMS = ("count", "bytes", "body_bytes", "compressed", "delay")
LOWS = ("size", "body", "delay", "queue_offset", "physical_offset", "store_timestamp", "born_timestamp")
_BIG = np.iinfo(np.int64).max


class Groups:
    """Records per group of `dimensions`; call `take` for every batch, then `ordered`."""

    def __init__(self, dimensions: Sequence[Dimension], *, groups_max: int = GROUPS_MAX) -> None:
        self.dimensions = tuple(dimensions)
        self.histograms = {name: Histogram() for name in ("size", "body", "delay")}
        self.has_others = False
        self._groups_max = groups_max
        self._keys: dict[tuple[int, ...], int] = {}
        self._waiting = {name: np.empty(_FLUSH_RECORDS, np.int64) for name in _COLUMNS}
        self._count = 0
        self._sums = np.zeros((0, len(SUMS)), np.int64)
        self._low = np.zeros((0, len(LOWS)), np.int64)
        self._high = np.zeros((0, len(LOWS)), np.int64)
        self._largest = np.zeros(0, np.int64)

    def take(self, batch: Batch) -> None:
        """Count the selected records of a batch."""
        records = batch.records
        if not len(records.size):
            return
        done, total = 0, len(records.size)
        while done < total:
            step = min(total - done, _FLUSH_RECORDS - self._count)
            for name, column in self._waiting.items():
                column[self._count : self._count + step] = getattr(records, name)[done : done + step]
            self._count, done = self._count + step, done + step
            if self._count == _FLUSH_RECORDS:
                self._flush()

    @property
    def relative_error(self) -> float:
        """The largest relative error of a percentile."""
        return max(each.relative_error for each in self.histograms.values())

    def ordered(self, topics: Codes, tags: Codes) -> Iterator[tuple[Row, Row]]:
        """(the fields that identify it, its values) of every group, sorted by these fields."""
        self._flush()
        count = len(self._sums)
        parts = {name: each.percentiles(count, PERCENTILES) for name, each in self.histograms.items()}

        def order(key: tuple[int, ...]) -> Any:
            pairs = zip(self.dimensions, key, strict=True)
            return key == _OTHERS[: len(key)], *(
                each.order(code, topics, tags) if code >= 0 else 0 for each, code in pairs
            )

        for key in sorted(self._keys, key=order):
            group = self._keys[key]
            name: Row = {}
            for each, code in zip(self.dimensions, key, strict=True):
                name |= each.fields(code, topics, tags) if code >= 0 else {}
            yield name, self._values(group, {part: found[group] for part, found in parts.items()})

    def _values(self, group: int, parts: dict[str, Array]) -> Row:
        values: Row = dict(zip(SUMS, self._sums[group].tolist(), strict=True))
        low, high = self._low[group].tolist(), self._high[group].tolist()
        for name, least, most in zip(LOWS, low, high, strict=True):
            values[f"{name}_low"], values[f"{name}_high"] = least, most
        for name, found in parts.items():
            least, most = values[f"{name}_low"], values[f"{name}_high"]
            values[f"{name}_parts"] = [min(max(value, least), most) for value in found.tolist()]
        return values | {"largest_body_at": int(self._largest[group])}

    def _flush(self) -> None:
        if not self._count:
            return
        records = Records(**{name: column[: self._count] for name, column in self._waiting.items()})
        self._count = 0
        keys, inverse = _distinct([each.codes(records) for each in self.dimensions], len(records.size))
        numbers = self._numbers(keys)
        groups = numbers[inverse]
        delay = records.store_timestamp - records.born_timestamp
        columns = {"size": records.size, "body": records.body_length, "delay": delay,
                   **{name: getattr(records, name) for name in LOWS[3:]}}  # fmt: skip
        for name, histogram in self.histograms.items():
            histogram.add(groups, columns[name])
        self._add_up(groups, columns, records.compressed)

    def _add_up(self, groups: Array, columns: dict[str, Array], compressed: Array) -> None:
        # Sort by group; numpy sorts 16-bit numbers by radix, ten times faster.
        small = groups.astype(np.uint16) if len(self._sums) <= 1 << 16 else groups
        order = np.argsort(small, kind="stable")
        ordered = groups[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
        there = ordered[starts]
        body, place = columns["body"], columns["physical_offset"][order]
        ordered_body = body[order]
        best = np.maximum.reduceat(ordered_body, starts)
        counts = np.diff(starts, append=len(ordered))
        first_best = np.minimum.reduceat(
            np.where(ordered_body == np.repeat(best, counts), place, _BIG), starts
        )
        better = best > self._high[there, LOWS.index("body")]
        self._largest[there] = np.where(better, first_best, self._largest[there])
        self._sums[there, 0] += counts
        summed = (columns["size"], body, compressed, columns["delay"])
        for column, values in enumerate(summed, 1):
            self._sums[there, column] += np.add.reduceat(values[order].astype(np.int64), starts)
        for column, name in enumerate(LOWS):
            values = columns[name][order]
            self._low[there, column] = np.minimum(
                self._low[there, column], np.minimum.reduceat(values, starts)
            )
            self._high[there, column] = np.maximum(
                self._high[there, column], np.maximum.reduceat(values, starts)
            )

    def _numbers(self, keys: Array) -> Array:
        """The number of each group, i8; the arrays grow for new ones."""
        numbers = np.empty(len(keys), np.int64)
        for place, key in enumerate(map(tuple, keys.tolist())):
            number = self._keys.get(key)
            if number is None:
                if OTHERS in key or len(self._keys) >= self._groups_max:
                    self.has_others = True
                    key = _OTHERS[: len(key)]
                number = self._keys.setdefault(key, len(self._keys))
            numbers[place] = number
        missing = len(self._keys) - len(self._sums)
        if missing > 0:
            more = max(missing, len(self._sums) // 2)
            self._sums = _longer(self._sums, more, 0)
            self._low, self._high = _longer(self._low, more, _BIG), _longer(self._high, more, -_BIG - 1)
            self._largest = _longer(self._largest, more, -1)
        return numbers


_OTHERS = (OTHERS,) * 8
_COLUMNS = tuple(each.name for each in fields(Records))


def _longer(values: Array, count: int, fill: int) -> Array:
    return np.concatenate([values, np.full((count, *values.shape[1:]), fill, np.int64)])


def _distinct(codes: Sequence[Array], count: int) -> tuple[Array, Array]:
    """The distinct combinations of codes, shape (n, dimensions), and the index of each record's."""
    if not codes:
        return np.zeros((1, 0), np.int64), np.zeros(count, np.int64)
    combined, size = np.zeros(count, np.int64), 1
    for each in codes:
        width = int(each.max()) + 2  # including OTHERS, -1
        if size > _CARDINALITY_MAX // width:
            found, combined = np.unique(combined, return_inverse=True)
            size = len(found)
        combined, size = combined * width + (each - OTHERS), size * width
    if size <= 1 << 20:
        there = np.flatnonzero(np.bincount(combined, minlength=size))
        table = np.zeros(size, np.int64)
        table[there] = np.arange(len(there))
        inverse = table[combined]
        first = np.zeros(len(there), np.int64)
        first[inverse[::-1]] = np.arange(count)[::-1]
    else:
        _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    return np.stack([each[first] for each in codes], axis=1), inverse
