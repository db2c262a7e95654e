"""Counts as Spark jobs: of all messages, by group, by topic and queue. Only small columns are read.

Groups are columns, or what messages are counted by in `rmqtool stats`: `queue`, `tag`, `hour`, `day`.
Hours and days are those of a zone: Spark adds up quarters of an hour of UTC, with which every zone's
hours begin, and what is left is added up here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from rmqtool.errors import UsageError
from rmqtool.message.rows import Row
from rmqtool.spark.scan_job import ScanRequest, engine_name, messages, spark_errors, spark_name
from rmqtool.spark.scan_job_damage import DAMAGE, RECORD, Bad, bad_of, bad_sums
from rmqtool.times import format_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


VALUE_FIELDS = (
    "count", "bytes", "body_bytes", "first_store_timestamp_ms", "first_store_time",
    "last_store_timestamp_ms", "last_store_time",
)  # fmt: skip
QUEUE_FIELDS = (
    "topic", "queue_id", "count", "bytes", "body_bytes", "min_queue_offset", "max_queue_offset",
    "first_physical_offset", "last_physical_offset", *VALUE_FIELDS[3:],
)  # fmt: skip
"""Of `queue_rows`: the same as those of `rmqtool dump --stats-only`."""

_BUCKETS_MS = {"hour": 3_600_000, "day": 86_400_000}
_QUARTER_MS = 900_000
_SHORT = {"queue": "queue_id", "tag": "tags"}
_NO_GROUPS = ("body", "properties", "keys", "status", "stored_body", "properties_base64", "system")
_READ = ("size", RECORD, "storeTimestampMs")
_NO_BODIES = {"includeBody": "false"}
"""Whether they unpack is not looked at for a count."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Group:
    """One thing that messages are counted by: its name in rows, and the Spark column; `unit_ms` of a time."""

    name: str
    column: str
    unit_ms: int | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """Its fields in a row."""
        return (self.name,) if self.unit_ms is None else (f"{self.name}_timestamp_ms", f"{self.name}_time")


def parse_groups(text: str) -> tuple[Group, ...]:
    """Groups given as names with commas between.

    Raises:
        UsageError: a name that is no column, or one of many values.
    """
    groups: list[Group] = []
    for name in filter(None, map(str.strip, text.split(","))):
        if name in _BUCKETS_MS:
            groups.append(Group(name, "storeTimestampMs", _BUCKETS_MS[name]))
            continue
        column = spark_name(_SHORT.get(name, name))
        if engine_name(column) in _NO_GROUPS:
            raise UsageError(f"messages are not counted by {name}")
        groups.append(Group(engine_name(column), column))
    if not groups:
        raise UsageError("there is nothing to count by", hint="use --group-by topic,hour for instance")
    if len({group.name for group in groups}) < len(groups):
        raise UsageError("--group-by names the same twice")
    return tuple(groups)


def group_fields(groups: Sequence[Group]) -> tuple[str, ...]:
    """The fields of the rows of `group_rows`."""
    return (*(name for group in groups for name in group.fields), *VALUE_FIELDS)


def count(session: SparkSession, request: ScanRequest) -> tuple[int, Bad]:
    """(messages, what was bad)."""
    from pyspark.sql import functions

    with spark_errors():
        frame = messages(session, request, [RECORD, DAMAGE], options=_NO_BODIES)
        found = frame.agg(functions.count(RECORD).alias("count"), *bad_sums()).first()
    assert found is not None
    return found["count"], bad_of(found)


class Counts:
    """Rows of groups; `bad` is what was bad, once the rows have begun."""

    def __init__(self, session: SparkSession, request: ScanRequest) -> None:
        self._session = session
        self._request = request
        self.bad = Bad()

    def group_rows(self, groups: Sequence[Group], tz: tzinfo | None) -> Iterator[Row]:
        """A row for every group that has messages, sorted by group."""
        from pyspark.sql import functions

        units = {group.name: _unit(group, tz) for group in groups}
        keys = [_key(group, units[group.name]).alias(f"key{number}") for number, group in enumerate(groups)]
        with spark_errors():
            frame = self._frame([group.column for group in groups])
            no_record = functions.col(RECORD).isNull().alias("no_record")
            found = frame.groupBy(no_record, *keys).agg(*_sums()).collect()
        sums: dict[tuple[Any, ...], list[int]] = {}
        for row in found:
            self.bad += bad_of(row)
            if row["no_record"]:
                continue
            key = tuple(
                _begin(row[f"key{number}"] * units[group.name], group, tz)
                if group.unit_ms
                else row[f"key{number}"]
                for number, group in enumerate(groups)
            )
            _add(sums, key, [row[name] for name in ("count", "bytes", "body_bytes", "first", "last")])
        for key in sorted(sums, key=lambda values: [(value is not None, value) for value in values]):
            yield _row(groups, key, sums[key], tz)

    def queue_rows(self, tz: tzinfo | None) -> Iterator[Row]:
        """A row of QUEUE_FIELDS for every queue that has messages, sorted by topic and queue."""
        from pyspark.sql import functions

        ends = [
            function(column).alias(name)
            for function, column, name in (
                (functions.min, "queueOffset", "min_queue_offset"),
                (functions.max, "queueOffset", "max_queue_offset"),
                (functions.min, "physicalOffset", "first_physical_offset"),
                (functions.max, "physicalOffset", "last_physical_offset"),
            )
        ]
        with spark_errors():
            frame = self._frame(["topic", "queueId", "queueOffset", "physicalOffset"])
            no_record = functions.col(RECORD).isNull().alias("no_record")
            rows = frame.groupBy(no_record, "topic", "queueId").agg(*_sums(), *ends).collect()
        self.bad = sum(map(bad_of, rows), Bad())
        records = (row for row in rows if not row["no_record"])
        for row in sorted(records, key=lambda row: (row["topic"], row["queueId"])):
            values = {
                "topic": row["topic"],
                "queue_id": row["queueId"],
                **_times(row["first"], row["last"], tz),
            }
            values |= {name: row[name] for name in QUEUE_FIELDS if name in row}
            yield {name: values[name] for name in QUEUE_FIELDS}

    def _frame(self, columns: Sequence[str]) -> DataFrame:
        names = list(dict.fromkeys((*columns, *_READ, DAMAGE)))
        return messages(self._session, self._request, names, options=_NO_BODIES)


def _sums() -> list[Column]:
    from pyspark.sql import functions

    return [
        functions.count(functions.lit(1)).alias("count"),
        functions.sum("size").alias("bytes"),
        functions.sum("bodyLength").alias("body_bytes"),
        functions.min("storeTimestampMs").alias("first"),
        functions.max("storeTimestampMs").alias("last"),
        *bad_sums(),
    ]


def _unit(group: Group, tz: tzinfo | None) -> int:
    """Milliseconds that Spark takes together."""
    return _QUARTER_MS if group.unit_ms is not None and tz is not UTC else group.unit_ms or 1


def _key(group: Group, unit_ms: int) -> Column:
    from pyspark.sql import functions

    if group.unit_ms is None:
        return functions.col(group.column)
    return functions.floor(functions.col(group.column) / unit_ms)


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


def _add(sums: dict[tuple[Any, ...], list[int]], key: tuple[Any, ...], values: list[int]) -> None:
    have = sums.get(key)
    if have is None:
        sums[key] = values
        return
    for number in range(3):
        have[number] += values[number]
    have[3], have[4] = min(have[3], values[3]), max(have[4], values[4])


def _row(groups: Sequence[Group], key: tuple[Any, ...], values: list[int], tz: tzinfo | None) -> Row:
    row: Row = {}
    for group, value in zip(groups, key, strict=True):
        row[group.fields[0]] = value
        if group.unit_ms is not None:
            row[group.fields[1]] = format_time(value, tz)
    row |= dict(zip(VALUE_FIELDS, values, strict=False))
    return {**row, **_times(values[3], values[4], tz)}


def _times(first: int, last: int, tz: tzinfo | None) -> Row:
    return {
        "first_store_timestamp_ms": first,
        "first_store_time": format_time(first, tz),
        "last_store_timestamp_ms": last,
        "last_store_time": format_time(last, tz),
    }
