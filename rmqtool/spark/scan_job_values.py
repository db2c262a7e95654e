"""Values of SQL results as values that JSON has, by their types."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.errors import InputError
from rmqtool.message.rows import spell_body
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
        return lambda value: value.isoformat(timespec=_digits(value))
    if isinstance(data_type, types.DateType):
        return lambda value: value.isoformat()
    if isinstance(data_type, types.DecimalType):
        return _decimal
    if isinstance(data_type, types.FloatType):
        return lambda value: _float(float(str(np.float32(value))))
    if isinstance(data_type, types.DoubleType):
        return _float
    if isinstance(data_type, types.DayTimeIntervalType):
        return _interval
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
    """The names, where one is there twice with a number behind it that makes it another one."""
    found: list[str] = []
    for place, name in enumerate(names, 1):
        others = chain((name,), (f"{name}_{number}" for number in count(place)))
        taken = {*found, *names} if name in found else set(found)
        found.append(next(each for each in others if each not in taken))
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
    return lambda value: {_key(key(name)): item(each) for name, each in value.items()}


def _key(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time(value: datetime, tz: tzinfo | None) -> str | None:
    """Spark's times come in the zone of this process, without saying so."""
    if value.microsecond % 1000:
        return value.astimezone(tz).isoformat(timespec="microseconds")
    time_ms = (value.astimezone(UTC) - _EPOCH) // _MS
    return format_time(time_ms, tz) or format_time(time_ms, UTC)


def _digits(value: datetime) -> str:
    return "microseconds" if value.microsecond % 1000 else "milliseconds"


def _float(value: float) -> float | str:
    return value if math.isfinite(value) else _NOT_FINITE[str(value)]


def _interval(value: timedelta) -> str:
    """`[-]DAYS HH:MM:SS[.ffffff]`, as SQL writes it."""
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    hours, rest = divmod(value.seconds, 3600)
    seconds = f"{rest // 60:02}:{rest % 60:02}" + (f".{value.microseconds:06}" if value.microseconds else "")
    return f"{sign}{value.days} {hours:02}:{seconds}"


def _decimal(value: Decimal) -> int | float | str:
    """A number where JSON's readers get the same one, else its digits."""
    if value == value.to_integral_value():
        return int(value)
    near = float(value)
    return near if Decimal(repr(near)) == value else format(value, "f")
