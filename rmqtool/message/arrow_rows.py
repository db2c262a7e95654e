"""The rows of a result: Arrow's values as JSON has them, by their types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Any

import numpy as np
import pyarrow as pa

from rmqtool.errors import InputError
from rmqtool.message.result_values import (
    numbered,
    shown_decimal,
    shown_float,
    shown_interval,
    shown_key,
    shown_plain_time,
    shown_time,
)
from rmqtool.message.rows import Row, spell_body

Show = Callable[[Any], Any]


def rows_of(batch: pa.RecordBatch, tz: tzinfo | None) -> Iterator[Row]:
    """The rows of a batch; repeated names get a number.

    Raises:
        InputError: a value that Python has nothing for.
    """
    names = numbered(batch.schema.names)
    columns = []
    for column in batch.columns:
        show = shower(column.type, tz)
        try:
            values = column.to_pylist()
        except (ValueError, OverflowError) as error:
            hint = "CAST(... AS VARCHAR) shows it"
            raise InputError(f"a value of the result cannot be shown: {error}", hint=hint) from error
        columns.append([None if value is None else show(value) for value in values])
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


def shower(kind: pa.DataType, tz: tzinfo | None) -> Show:
    """A function that gives a value of a type, never None, as JSON has it. Times are shown in `tz`."""
    types = pa.types
    if types.is_timestamp(kind):
        return (
            (lambda value: shown_time(_time(value), tz))
            if kind.tz
            else (lambda value: shown_plain_time(_time(value)))
        )
    if types.is_date(kind) or types.is_time(kind):
        return lambda value: value.isoformat()
    if types.is_decimal(kind):
        return shown_decimal
    if types.is_float32(kind):
        return lambda value: shown_float(float(str(np.float32(value))))
    if types.is_floating(kind):
        return shown_float
    if types.is_interval(kind):
        return _interval
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: spell_body(value, "text")[0]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = _or_none(shower(kind.value_type, tz))
        return lambda value: [item(each) for each in value]
    if types.is_struct(kind):
        items = [_or_none(shower(field.type, tz)) for field in kind]
        names = numbered([field.name for field in kind])
        return lambda value: {
            name: item(each) for name, item, each in zip(names, items, value.values(), strict=True)
        }
    if types.is_map(kind):
        key, item = shower(kind.key_type, tz), _or_none(shower(kind.item_type, tz))
        return lambda value: {shown_key(key(name)): item(each) for name, each in value}
    return lambda value: value if isinstance(value, str | int) else str(value)


def _or_none(show: Show) -> Show:
    return lambda value: None if value is None else show(value)


def _time(value: Any) -> datetime:
    """A time of Arrow; nanoseconds come as pandas' type if pandas is there."""
    if type(value) is datetime:
        return value
    found: datetime = value.to_pydatetime()
    return found


def _interval(value: Any) -> str:
    """Months as they are, for their length varies."""
    months, days, nanoseconds = value
    rest = timedelta(days=days, microseconds=nanoseconds // 1000)
    if not months:
        return shown_interval(rest)
    return f"{months} months" + (f" {shown_interval(rest)}" if rest else "")
