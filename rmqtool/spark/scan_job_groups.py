"""Counts as Spark jobs: of all messages, by group, by topic and queue. Only small columns are read.

Groups are columns, or what messages are counted by in `rmqtool stats`: `queue`, `tag`, `hour`, `day`.
Hours and days are those of a zone. Spark adds up quarters of an hour of UTC, because the hours of every zone
begin with one, and the quarters are added up here: Spark would need the name of the zone, which the local
zone does not have, and Java's rules for it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from rmqtool.errors import UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.rows import Row
from rmqtool.spark.errors import spark_errors
from rmqtool.spark.scan_job import (
    DAMAGE,
    RECORD,
    Bad,
    ScanRequest,
    bad_of,
    bad_sums,
    engine_name,
    messages,
    spark_name,
)  # fmt: skip
from rmqtool.times import DAY_MS, HOUR_MS, format_time

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


_Values = Mapping[str, tuple[str, str, Callable[[int, int], int]]]
"""By field of a row: Spark's aggregate, the column, and what makes one value of two."""

_SIZES: _Values = {
    "count": ("count", RECORD, operator.add),
    "bytes": ("sum", "size", operator.add),
    "body_bytes": ("sum", RECORD, operator.add),
}
_ENDS: _Values = {
    "min_queue_offset": ("min", "queueOffset", min),
    "max_queue_offset": ("max", "queueOffset", max),
    "first_physical_offset": ("min", "physicalOffset", min),
    "last_physical_offset": ("max", "physicalOffset", max),
}
_TIMES: _Values = {
    "first_store_timestamp_ms": ("min", "storeTimestampMs", min),
    "last_store_timestamp_ms": ("max", "storeTimestampMs", max),
}
_GROUP_VALUES = {**_SIZES, **_TIMES}
_QUEUE_VALUES = {**_SIZES, **_ENDS, **_TIMES}

_BUCKETS_MS = {"hour": HOUR_MS, "day": DAY_MS}
_QUARTER_MS = 900_000
_SHORT = {"queue": "queue_id", "tag": "tags"}
_TEXT_TIMES = {"born_time": "bornTimestampMs", "store_time": "storeTimestampMs"}
"""Times that a row shows as text are counted by their number."""
_NO_GROUPS = ("body", "properties", "keys", "status", "stored_body", "properties_base64", "system")
_NO_BODIES = {"includeBody": "false"}
"""A count does not check whether bodies unpack."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Group:
    """A dimension of a count: its name in rows, and the Spark column; `unit_ms` of a time."""

    name: str
    column: str
    unit_ms: int | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """Its fields in a row."""
        return (self.name,) if self.unit_ms is None else _with_times((f"{self.name}_timestamp_ms",))


def parse_groups(text: str) -> tuple[Group, ...]:
    """Groups given as names with commas between.

    Raises:
        UsageError: an unknown column, or one with lists or bodies.
    """
    groups: list[Group] = []
    for name in filter(None, map(str.strip, text.split(","))):
        if name in _BUCKETS_MS:
            groups.append(Group(name, "storeTimestampMs", _BUCKETS_MS[name]))
            continue
        column = spark_name(_SHORT.get(name, name))
        found = engine_name(column)
        if found in _NO_GROUPS:
            raise UsageError(f"messages are not counted by {name}")
        groups.append(Group(found, _TEXT_TIMES.get(found, column)))
    if not groups:
        raise UsageError("there is nothing to count by", hint="use --group-by topic,hour for instance")
    if len({group.name for group in groups}) < len(groups):
        raise UsageError("--group-by names the same twice")
    return tuple(groups)


def group_fields(groups: Sequence[Group]) -> tuple[str, ...]:
    """The fields of the rows of `group_rows`."""
    return (*(name for group in groups for name in group.fields), *_with_times(_GROUP_VALUES))


def _with_times(names: Iterable[str]) -> tuple[str, ...]:
    """The fields, and after each time in milliseconds the same as text."""
    return tuple(
        each
        for name in names
        for each in (name, *((name.replace("_timestamp_ms", "_time"),) if name.endswith("_ms") else ()))
    )


_QUEUES = (Group("topic", "topic"), Group("queue_id", "queueId"))
QUEUE_FIELDS = ("topic", "queue_id", *_with_times(_QUEUE_VALUES))
"""Of `queue_rows`: the same as those of `rmqtool dump --stats-only`."""


def count(session: SparkSession, request: ScanRequest) -> tuple[int, Bad]:
    """(messages, damage)."""
    from pyspark.sql import functions

    with spark_errors():
        frame = messages(session, request, [RECORD, DAMAGE], options=_NO_BODIES)
        found = frame.agg(functions.count(RECORD).alias("count"), *bad_sums()).first()
    assert found is not None
    return found["count"], bad_of(found)


class Counts:
    """Rows of groups; `bad` is the damage that was met, once the rows have begun."""

    def __init__(self, session: SparkSession, request: ScanRequest) -> None:
        self._session = session
        self._request = request
        self.bad = Bad()

    def group_rows(self, groups: Sequence[Group], tz: tzinfo | None) -> Iterator[Row]:
        """A row for every group that has messages, sorted by group."""
        return self._rows(groups, _GROUP_VALUES, tz)

    def queue_rows(self, tz: tzinfo | None) -> Iterator[Row]:
        """A row of QUEUE_FIELDS for every queue that has messages, sorted by topic and queue."""
        return self._rows(_QUEUES, _QUEUE_VALUES, tz)

    def _rows(self, groups: Sequence[Group], values: _Values, tz: tzinfo | None) -> Iterator[Row]:
        from pyspark.sql import functions

        fields = (*(name for group in groups for name in group.fields), *_with_times(values))
        units = [_unit(group, tz) for group in groups]
        keys = [
            _key(group, unit).alias(f"key{number}")
            for number, (group, unit) in enumerate(zip(groups, units, strict=True))
        ]
        no_record = functions.col(RECORD).isNull()
        read = [*(group.column for group in groups), *(column for _, column, _ in values.values()), DAMAGE]
        sums = [getattr(functions, aggregate)(column) for aggregate, column, _ in values.values()]
        with spark_errors():
            frame = messages(self._session, self._request, list(dict.fromkeys(read)), options=_NO_BODIES)
            found = frame.groupBy(no_record, *keys).agg(*sums, *bad_sums()).collect()
        merged: dict[tuple[Any, ...], Sequence[int]] = {}
        for row in found:
            self.bad += bad_of(row)
            if row[0]:
                continue
            key = tuple(
                value if group.unit_ms is None else _begin(value * unit, group, tz)
                for group, unit, value in zip(groups, units, row[1:], strict=False)
            )
            new = row[1 + len(groups) :][: len(values)]
            if key in merged:
                both = zip(values.values(), merged[key], new, strict=True)
                new = [merge(first, second) for (_, _, merge), first, second in both]
            merged[key] = new
        for key in sorted(merged, key=lambda parts: [(part is not None, part) for part in parts]):
            names = (*(group.fields[0] for group in groups), *values)
            shown = [
                format_time(part, tz) if group.name in _TEXT_TIMES else part
                for group, part in zip(groups, key, strict=True)
            ]
            values_of = dict(zip(names, (*shown, *merged[key]), strict=True))
            yield {
                name: values_of[name] if name in values_of else _time(values_of, name, tz) for name in fields
            }


def _unit(group: Group, tz: tzinfo | None) -> int:
    """Milliseconds that Spark takes together."""
    return _QUARTER_MS if group.unit_ms is not None and tz is not UTC else group.unit_ms or 1


def _key(group: Group, unit_ms: int) -> Column:
    from pyspark.sql import functions

    column = functions.col(group.column)
    return column if group.unit_ms is None else functions.floor(column / unit_ms)


def _begin(time_ms: int, group: Group, tz: tzinfo | None) -> int:
    """The start of the hour or day of the zone that a time lies in, ms; the time where the zone has none."""
    try:
        moment = (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(tz)
    except (ValueError, OverflowError, OSError):
        return time_ms
    start = moment.replace(minute=0, second=0, microsecond=0)
    if group.name == "day":
        start = start.replace(hour=0, fold=0)
        if tz is None:  # the zone's offset may be another one at midnight
            start = start.replace(tzinfo=None).astimezone()
    return (start - _EPOCH) // timedelta(milliseconds=1)


def _time(row: Row, name: str, tz: tzinfo | None) -> str | None:
    """The field `..._time` of a row that has `..._timestamp_ms`."""
    return format_time(row[f"{name}stamp_ms"], tz)
