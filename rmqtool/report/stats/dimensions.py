"""The dimensions by which messages are counted, as integer codes per record.

    topic   the stored topic              queue   the queue id
    tag     TAGS, null without            hour, day   of the store time, in the requested zone
    size    the power of two at or below the record's size: [1024, 2048) and so on

Codes are small integers in the order in which values first occur. The name of a value is computed once
per value, never per record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool import times
from rmqtool.errors import UsageError
from rmqtool.message.rows import Row
from rmqtool.storage.buffers import Array

if TYPE_CHECKING:
    from rmqtool.report.stats.scanner import Records


NAMES = ("topic", "queue", "tag", "hour", "day", "size", "group")
"""The words of `--by`; `group` means lag, which module `lag` computes."""
FIELDS: dict[str, tuple[str, ...]] = {
    "topic": ("topic",),
    "queue": ("queue_id",),
    "tag": ("tag",),
    "hour": ("hour_timestamp_ms", "hour_time"),
    "day": ("day_timestamp_ms", "day_time"),
    "size": ("size_from_bytes", "size_to_bytes"),
}
"""The fields of a row that identify its group."""

QUARTER_MS = 900_000  # the hours of every zone begin at a quarter of an hour of UTC
_SIZE_CLASSES = 32


def parse_by(text: str) -> tuple[str, ...]:
    """The dimensions of a `--by` text such as `topic,queue`, each once.

    Raises:
        UsageError: an unknown word, none at all, or `group` with a dimension that lag does not have.
    """
    names = tuple(dict.fromkeys(filter(None, (piece.strip() for piece in text.split(",")))))
    for name in names:
        if name not in NAMES:
            raise UsageError(f"cannot count by {name[:40]!r}", hint=f"use {', '.join(NAMES)}")
    if not names:
        raise UsageError("--by names nothing", hint=f"use {', '.join(NAMES)}")
    if "group" in names and set(names) - {"group", "topic", "queue"}:
        raise UsageError(
            "lag of consumer groups is counted by group, topic and queue only", hint="use --by group,topic"
        )
    return names


OTHERS = -1
"""The code of every value beyond the first `VALUES_MAX`."""
VALUES_MAX = 500_000


class Codes:
    """Values of one kind and their codes, in the order in which they first occurred.

    Up to `values_max` are distinguished, so that a hostile log cannot fill the memory with names.
    """

    def __init__(self, values_max: int = VALUES_MAX) -> None:
        self._values_max = values_max
        self.values: list[Any] = []
        self._codes: dict[Any, int] = {}

    def of(self, values: Sequence[Any]) -> Array:
        """The codes of distinct values, i8 of the same length."""
        found = np.empty(len(values), np.int64)
        for place, value in enumerate(values):
            code = self._codes.get(value)
            if code is None and len(self.values) < self._values_max:
                code = self._codes[value] = len(self.values)
                self.values.append(value)
            elif code is None:
                code = OTHERS
            found[place] = code
        return found

    def of_column(self, column: Array, name: Callable[[int], Any] = int) -> Array:
        """The codes of a column of integers; `name` is called once per distinct value."""
        low = int(column.min()) if len(column) else 0
        span = int(column.max()) - low + 1 if len(column) else 1
        if span <= 1 << 16:
            shifted = column - low
            there = np.flatnonzero(np.bincount(shifted, minlength=1))
            table = np.zeros(span, np.int64)
            table[there] = self.of([name(low + value) for value in there.tolist()])
            known: Array = table[shifted]
            return known
        found, inverse = np.unique(column, return_inverse=True)
        codes: Array = self.of([name(value) for value in found.tolist()])[inverse]
        return codes


class Dimension:
    """One dimension: the codes of records, and the fields that a code stands for."""

    def __init__(self, name: str, tz: tzinfo | None) -> None:
        self.name = name
        self._tz = tz
        self._codes = Codes()

    def codes(self, records: Records) -> Array:
        """One code per record, i8."""
        match self.name:
            case "topic":
                return records.topics
            case "tag":
                return records.tags
            case "queue":
                return self._codes.of_column(records.queue_id.astype(np.int64))
            case "size":
                lengths = np.frexp(np.maximum(records.size, 1).astype(np.float64))[1]
                return self._codes.of_column(np.minimum(lengths.astype(np.int64), _SIZE_CLASSES))
            case _:
                return self._codes.of_column(records.store_timestamp // QUARTER_MS, self._period)

    def fields(self, code: int, topics: Codes, tags: Codes) -> Row:
        """The fields that identify the group in a row."""
        match self.name:
            case "topic":
                return {"topic": topics.values[code]}
            case "tag":
                return {"tag": tags.values[code]}
            case "queue":
                return {"queue_id": self._codes.values[code]}
            case "size":
                length = self._codes.values[code]
                return {"size_from_bytes": 1 << (length - 1), "size_to_bytes": 1 << length}
            case _:
                start = self._codes.values[code]
                return {
                    f"{self.name}_timestamp_ms": start,
                    f"{self.name}_time": times.format_time(start, self._tz),
                }

    def order(self, code: int, topics: Codes, tags: Codes) -> Any:
        """The sort key of rows; null is first."""
        if self.name in ("topic", "tag"):
            value = (topics if self.name == "topic" else tags).values[code]
            return (value is not None, value or "")
        return self._codes.values[code]

    def _period(self, quarter: int) -> int:
        """The start of the hour or day that holds a quarter of an hour of UTC, ms since 1970."""
        return start_of(quarter * QUARTER_MS, self.name, self._tz)


def start_of(time_ms: int, period: str, tz: tzinfo | None) -> int:
    """The start of the `hour` or `day` of a zone that holds a time, ms since 1970; None is the local zone.

    A time outside of the years 1 to 9999 counts in UTC.
    """
    length = times.DAY_MS if period == "day" else times.HOUR_MS
    try:
        local = datetime.fromtimestamp(time_ms // 1000, tz)
        local = local if tz is not None else local.astimezone()
        past = timedelta(minutes=local.minute, seconds=local.second)
        if period == "day":
            # Midnight of the local clock: a day may have 23 or 25 hours.
            midnight = local.replace(hour=0, minute=0, second=0, fold=0)
            midnight = midnight if tz is not None else midnight.replace(tzinfo=None).astimezone()
            return int(midnight.timestamp()) * 1000
        return time_ms // 1000 * 1000 - int(past.total_seconds()) * 1000
    except (ValueError, OverflowError, OSError):
        return time_ms // length * length
