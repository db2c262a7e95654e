"""Values of SQL results as values that JSON has, by their types."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rmqtool.errors import InputError
from rmqtool.store.rows import spell_body
from rmqtool.times import format_time

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

CAST = "CAST(... AS STRING) shows it, or to_json(...)"
Show = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def shower(data_type: DataType, tz: tzinfo | None) -> Show:
    """A function that gives a value of a type, never None, as JSON has it.

    Times are shown in `tz`; those without a zone as they are, and numbers that are none by their names.

    Raises:
        InputError: a type whose values do not get from Spark to Python.
    """
    from pyspark.sql import types

    if isinstance(data_type, types.TimestampType):
        return lambda value: _time(value, tz)
    if isinstance(data_type, types.TimestampNTZType):
        return lambda value: value.isoformat(timespec="milliseconds")
    if isinstance(data_type, types.DateType):
        return lambda value: value.isoformat()
    if isinstance(data_type, types.DecimalType):
        return _decimal
    if isinstance(data_type, types.FloatType | types.DoubleType):
        return lambda value: value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if isinstance(data_type, types.BinaryType):
        return lambda value: spell_body(bytes(value), "text")[0]
    if isinstance(data_type, types.ArrayType):
        item = _or_none(shower(data_type.elementType, tz))
        return lambda value: [item(each) for each in value]
    if isinstance(data_type, types.StructType):
        names = numbered(data_type.names)
        items = [_or_none(shower(field.dataType, tz)) for field in data_type.fields]
        return lambda value: {
            name: item(each) for name, item, each in zip(names, items, value, strict=True)
        }  # fmt: skip
    if isinstance(data_type, types.MapType):
        return _map(data_type, tz)
    if isinstance(data_type, types.CalendarIntervalType | types.YearMonthIntervalType):
        raise InputError(f"Spark gives Python no values of type {data_type.simpleString()}", hint=CAST)
    return lambda value: value if isinstance(value, str | int) else str(value)


def numbered(names: Sequence[str]) -> list[str]:
    """The names, where one is there twice with a number behind it."""
    found: list[str] = []
    for name in names:
        found.append(name if name not in found else f"{name}_{len(found) + 1}")
    return found


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _or_none(show: Show) -> Show:
    return lambda value: None if value is None else show(value)


def _map(data_type: Any, tz: tzinfo | None) -> Show:
    from pyspark.sql import types

    if isinstance(data_type.keyType, types.ArrayType | types.MapType | types.StructType):
        raise InputError(
            f"a map by {data_type.keyType.simpleString()} has no keys that can be shown", hint=CAST
        )
    key, item = shower(data_type.keyType, tz), _or_none(shower(data_type.valueType, tz))
    return lambda value: {str(key(name)): item(each) for name, each in value.items()}


def _time(value: datetime, tz: tzinfo | None) -> str | None:
    """Spark's times come in the zone of this process, without saying so."""
    time_ms = (value.astimezone(UTC) - _EPOCH) // _MS
    return format_time(time_ms, tz) or format_time(time_ms, UTC)


def _decimal(value: Decimal) -> int | float | str:
    """A number where JSON's readers get the same one, else its digits."""
    if value == value.to_integral_value():
        return int(value)
    near = float(value)
    return near if Decimal(repr(near)) == value else format(value, "f")
