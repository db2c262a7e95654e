"""Rows of Spark as rows for the writer: messages as `rmqtool dump` shows them, results of SQL as they are."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.errors import InputError
from rmqtool.message.columns import BY_NAME, COLUMNS, FIXED_NAMES
from rmqtool.message.result_values import (
    numbered,
    shown_decimal,
    shown_float,
    shown_interval,
    shown_key,
    shown_plain_time,
    shown_time,
)
from rmqtool.message.rows import BodyForm, Row, spell_body
from rmqtool.spark.errors import spark_errors
from rmqtool.spark.scan_job import (
    DAMAGE,
    RECORD,
    Report,
    ScanRequest,
    findings_of,
    messages,
    spark_name,
)
from rmqtool.times import format_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType


FIELDS = (*(column.name for column in COLUMNS), "broker_name")
_TIMES = {"born_time": "born_timestamp_ms", "store_time": "store_timestamp_ms"}
_OF_BODY = {"body_encoding", "system"}
_DAMAGE_FIELDS = ("physical_offset", "size", "status", "file", "broker_name")
_OPTIONAL = ("stored_body", "properties_base64")
"""Fields that a row shows by default if they have a value. `system` would take too long."""
_ALL = tuple(name for name in FIELDS if name in (*FIXED_NAMES, *_OPTIONAL, "broker_name"))
_FETCHED_MAX = 1000  # rows that are fetched at once; more come partition by partition

CAST = "CAST(... AS STRING) shows it, or to_json(...)"
Show = Callable[[Any], Any]


def columns_for(names: Sequence[str] | None, body: BodyForm) -> list[str]:
    """The Spark columns that rows with the fields `names` are made of; None: all that every row has."""
    wanted = dict.fromkeys(names or _ALL)
    left_out = {"body", "stored_body"} if body == "none" else set()
    sources = [_TIMES.get(name, name) for name in wanted if name not in left_out]
    if _OF_BODY & set(wanted) and body != "none":
        sources.append("body")
    sources = [name for name in sources if name != "body_encoding"]
    columns = [spark_name(name) for name in (*sources, *_DAMAGE_FIELDS)]
    return list(dict.fromkeys((*columns, RECORD, DAMAGE)))


def message_rows(
    session: SparkSession,
    request: ScanRequest,
    report: Report,
    *,
    names: Sequence[str] | None = None,
    body: BodyForm = "text",
    tz: tzinfo | None = UTC,
) -> Iterator[tuple[Row, bool]]:
    """The selected messages in the order of the log, store by store, up to the limit; True with each.

    A range that holds no record is a row of `physical_offset, size, status, file, broker_name`, False
    with it. `report` gets these ranges, and damaged records, in the order of the rows.
    """
    options = {"includeBody": "false"} if body == "none" else {}
    columns = columns_for(names, body)
    with spark_errors():
        frame = _in_order(messages(session, request, columns, options=options))
        for row in first_rows(frame, request.selection.limit):
            values = row.asDict()
            for each in findings_of(values):
                report(values["brokerName"], each)
            yield _message_row(values, names, body, tz), values[RECORD] is not None


def _in_order(frame: DataFrame) -> DataFrame:
    """With properties as a list of pairs: Python gets a map of Spark as a dict in any order."""
    from pyspark.sql import functions

    if "properties" not in frame.columns:
        return frame
    return frame.withColumn("properties", functions.map_entries("properties"))


def first_rows(frame: DataFrame, limit: int | None) -> Iterator[Any]:
    """The first rows of the first partitions; only as many partitions are computed as it takes."""
    if limit is not None and limit <= _FETCHED_MAX:
        yield from frame.take(limit)
        return
    yield from islice(frame.toLocalIterator(), limit)


def _message_row(
    values: dict[str, Any], names: Sequence[str] | None, body: BodyForm, tz: tzinfo | None
) -> Row:
    stored = {name: values.get(spark_name(name)) for name in (*BY_NAME, "broker_name")}
    if values[RECORD] is None:
        return {name: stored[name] for name in _DAMAGE_FIELDS}
    if stored["properties"] is not None:
        stored["properties"] = dict(map(tuple, stored["properties"]))
    stored["body"] = stored["body_encoding"] = None
    if values.get("body") is not None:
        stored["body"], stored["body_encoding"] = spell_body(bytes(values["body"]), body)
    if stored["stored_body"] is not None:
        stored["stored_body"] = base64.b64encode(stored["stored_body"]).decode()
    for name, source in _TIMES.items():
        time_ms: int | None = stored[source]
        stored[name] = None if time_ms is None else format_time(time_ms, tz)
    if stored["system"] is not None:
        stored["system"] = json.loads(stored["system"])
    if names is not None:
        return {name: stored[name] for name in names}
    return {name: stored[name] for name in _ALL if name not in _OPTIONAL or stored[name] is not None}


def sql_rows(frame: DataFrame, limit: int | None, tz: tzinfo | None) -> Iterator[Row]:
    """The rows of any DataFrame; repeated names get a number.

    Raises:
        InputError: a type, or a value, that Python has nothing for.
    """
    names = sql_columns(frame)
    shown = [shower(field.dataType, tz) for field in frame.schema.fields]
    try:
        for row in first_rows(frame, limit):
            yield {
                name: None if value is None else show(value)
                for name, show, value in zip(names, shown, row, strict=True)
            }
    except (ValueError, OverflowError) as error:  # a time that Python's do not reach
        raise InputError(f"a value of the result cannot be shown: {error}", hint=CAST) from error


def sql_columns(frame: DataFrame) -> list[str]:
    """The names of `sql_rows`."""
    return numbered(frame.columns)


# values of SQL, by their types


def shower(data_type: DataType, tz: tzinfo | None) -> Show:
    """A function that gives a value of a type, never None, as JSON has it.

    Times are shown in `tz`; those without a zone as they are, and numbers that are none by their names.

    Raises:
        InputError: a type whose values do not get from Spark to Python.
    """
    from pyspark.sql import types

    if isinstance(data_type, types.TimestampType):
        return lambda value: shown_time(value, tz)
    if isinstance(data_type, types.TimestampNTZType):
        return shown_plain_time
    if isinstance(data_type, types.DateType):
        return lambda value: value.isoformat()
    if isinstance(data_type, types.DecimalType):
        return shown_decimal
    if isinstance(data_type, types.FloatType):
        return lambda value: shown_float(float(str(np.float32(value))))
    if isinstance(data_type, types.DoubleType):
        return shown_float
    if isinstance(data_type, types.DayTimeIntervalType):
        return shown_interval
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


def _or_none(show: Show) -> Show:
    return lambda value: None if value is None else show(value)


def _map(data_type: Any, tz: tzinfo | None) -> Show:
    from pyspark.sql import types

    if isinstance(data_type.keyType, types.ArrayType | types.MapType | types.StructType):
        raise InputError(
            f"a map by {data_type.keyType.simpleString()} has no keys that can be shown", hint=CAST
        )
    key, item = shower(data_type.keyType, tz), _or_none(shower(data_type.valueType, tz))
    return lambda value: {shown_key(key(name)): item(each) for name, each in value.items()}
