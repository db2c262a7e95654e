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

from collections.abc import Iterable
from typing import Any, Final

from rmqtool.errors import UsageError
from rmqtool.read.pushed import BROKER, Operator, Pushed
from rmqtool.spark.schema import find_field

_OPERATORS: Final[dict[str, Operator]] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "In": "in",
    "StringStartsWith": "starts with",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}


def pushed_of(filters: Iterable[Any], corrupt_column: str) -> Pushed:
    """Combine the filters that Spark offers; one that does not narrow the reading is left out."""
    pushed = Pushed()
    for each in filters:
        pushed = _with(pushed, each, corrupt_column)
    return pushed


def _with(pushed: Pushed, each: Any, corrupt_column: str) -> Pushed:
    path = getattr(each, "attribute", None)
    operator = _OPERATORS.get(type(each).__name__)
    if not isinstance(path, tuple) or len(path) != 1 or operator is None or not hasattr(each, "value"):
        return pushed
    try:
        field = find_field(path[0], corrupt_column, "filter")
    except UsageError:
        return pushed  # a field of a struct, or whatever else is not a column: Spark tests it
    value = each.value
    if operator == "=" and value is None:
        return pushed  # null equals nothing, but EqualNullSafe lets it pass
    if field.name == "brokerName":
        return pushed.and_where(BROKER, operator, value)
    if field.name == "key" and field.source == "properties":
        return _with_key(pushed, operator, value)
    return pushed.and_where(field.source or "", operator, value)


def _with_key(pushed: Pushed, operator: Operator, value: Any) -> Pushed:
    """Kafka's `key` is all keys of a message as one text: where that is one key, it can be looked up."""
    if operator not in ("=", "in"):
        return pushed
    keys = set()
    for one in (value,) if operator == "=" else value:
        try:
            text = bytes(one).decode() if isinstance(one, bytes | bytearray) else one
        except UnicodeDecodeError:
            return pushed
        if text is None:
            continue
        if not isinstance(text, str) or not text or " " in text or "\ufffd" in text:
            return pushed
        keys.add(text)
    return pushed.and_where("uniq_key", "in", keys)
