"""Filters that Spark pushes down -> what helps to read less.

Spark offers the parts of a WHERE that are joined by AND, each on one column. None of them is taken
off Spark's hands: it tests every row again, so a filter may be used to leave out what cannot pass
and need not be exact. So nothing here can change a result.

That holds for the scan that the filters are of. Spark 4.3.0 keeps one plan for each source that was
loaded, though, that of the filters which came last, and uses it for every scan of it: a data frame or
view that is scanned twice, in one query or in two, is then read by the wrong filters, and rows are
missing (`tests/spark/test_source.py` shows it). So filters are taken only with the option
`pushdown=on`, for data frames that are scanned once; options select as well, and always rightly.

Filters are known by the names of their classes: this module needs no pyspark.
Source: pyspark.sql.datasource, classes below `Filter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rmqtool.errors import UsageError
from rmqtool.spark.request import Pushed, Range, intersect
from rmqtool.spark.schema import find_field

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SETS: Final = {"topic": "topics", "queue_id": "queues", "tags": "tags", "uniq_key": "keys"}
_RANGES: Final = {
    "queue_offset": "queue_offsets",
    "physical_offset": "physical_offsets",
    "store_timestamp_ms": "store_times",
    "store_time": "store_times",
}
_SET_TYPES: Final = {"topics": str, "queues": int, "tags": str, "keys": str, "brokers": str}


def pushed_of(filters: Iterable[Any], corrupt_column: str) -> Pushed:
    """Combine the filters that Spark offers; one that does not narrow the reading is left out."""
    pushed = Pushed()
    for each in filters:
        pushed = _with(pushed, each, corrupt_column)
    return pushed


def _with(pushed: Pushed, each: Any, corrupt_column: str) -> Pushed:
    path = getattr(each, "attribute", None)
    if not isinstance(path, tuple) or len(path) != 1 or not hasattr(each, "value"):
        return pushed
    try:
        field = find_field(path[0], corrupt_column, "filter")
    except UsageError:
        return pushed  # a field of a struct, or whatever else is not a column: Spark tests it
    kind, value = type(each).__name__, each.value
    if kind == "StringStartsWith" and field.source == "topic" and isinstance(value, str):
        longer = max(pushed.topic_prefix or "", value, key=len)
        return replace(pushed, topic_prefix=longer)
    name = "brokers" if field.name == "brokerName" else _SETS.get(field.source or "")
    if field.name == "key" and field.source == "properties":
        return _with_key(pushed, kind, value)
    if name is not None:
        values = _values(kind, value)
        if values is None or not all(type(one) is _SET_TYPES[name] for one in values):
            return pushed
        known: frozenset[Any] | None = getattr(pushed, name)
        if name == "keys" and known is not None:
            return pushed  # two conditions on keys: one is enough to find the messages
        changed: Any = {name: values if known is None else known & values}
        return replace(pushed, **changed)
    return _with_range(pushed, field.source or "", kind, value)


def _with_key(pushed: Pushed, kind: str, value: Any) -> Pushed:
    """Kafka's `key` is all keys of a message as one text: where that is one key, it can be looked up."""
    values = _values(kind, value)
    if values is None or pushed.keys is not None:
        return pushed
    keys = set()
    for one in values:
        try:
            text = bytes(one).decode() if isinstance(one, bytes | bytearray) else one
        except UnicodeDecodeError:
            return pushed
        if not isinstance(text, str) or not text or " " in text or "\ufffd" in text:
            return pushed
        keys.add(text)
    return replace(pushed, keys=frozenset(keys))


def _values(kind: str, value: Any) -> frozenset[Any] | None:
    """The values that an equality or a list allows; None for another filter. Null equals nothing."""
    if kind in ("EqualTo", "EqualNullSafe"):
        return None if value is None else frozenset((value,))
    if kind == "In":
        return frozenset(one for one in value if one is not None)
    return None


def _with_range(pushed: Pushed, source: str, kind: str, value: Any) -> Pushed:
    name = _RANGES.get(source)
    floor = _floor_ms if source == "store_time" else _floor
    found = None if name is None else _range(kind, value, floor)
    if name is None or found is None:
        return pushed
    changed: Any = {name: intersect(getattr(pushed, name), found)}
    return replace(pushed, **changed)


def _range(kind: str, value: Any, floor: Callable[[Any], tuple[int, bool] | None]) -> Range | None:
    """Whole numbers that a comparison lets through, half-open; None for another filter."""
    if kind == "In":
        found = [floor(one) for one in value if one is not None]
        known = [one for one in found if one is not None]
        if not known or len(known) != len(found):
            return None
        return min(known)[0], max(known)[0] + 1
    rounded = None if value is None else floor(value)
    if rounded is None:
        return None
    low, exact = rounded
    bounds: dict[str, Range] = {
        "EqualTo": (low, low + 1),
        "EqualNullSafe": (low, low + 1),
        "GreaterThan": (low + 1, None),
        "GreaterThanOrEqual": (low if exact else low + 1, None),
        "LessThan": (None, low if exact else low + 1),
        "LessThanOrEqual": (None, low + 1),
    }
    return bounds.get(kind)


def _floor(value: Any) -> tuple[int, bool] | None:
    """(value, True) of a whole number; None for anything else."""
    return (value, True) if type(value) is int else None


def _floor_ms(value: Any) -> tuple[int, bool] | None:
    """(milliseconds since 1970 rounded down, whether that is exact) of a time; None for anything else."""
    if not isinstance(value, datetime):
        return None
    if value.tzinfo is None:
        value = value.astimezone()  # PySpark makes a time without a zone one of the worker's zone
    since = value - _EPOCH
    return since // _MILLISECOND, since % _MILLISECOND == timedelta(0)
