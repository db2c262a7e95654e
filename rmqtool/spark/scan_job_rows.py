"""Rows of Spark as rows for the writer: messages as `rmqtool dump` shows them, results of SQL as they are."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any

from rmqtool.errors import InputError
from rmqtool.message.columns import BY_NAME, COLUMNS, FIXED_NAMES
from rmqtool.message.rows import BodyForm, Row, spell_body
from rmqtool.spark.scan_job import ScanRequest, messages, spark_errors, spark_name
from rmqtool.spark.scan_job_damage import DAMAGE, RECORD, Report, findings_of
from rmqtool.spark.scan_job_values import CAST, numbered, shower
from rmqtool.times import format_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FIELDS = (*(column.name for column in COLUMNS), "broker_name")
_TIMES = {"born_time": "born_timestamp_ms", "store_time": "store_timestamp_ms"}
_OF_BODY = {"body_encoding", "system"}
_DAMAGE_FIELDS = ("physical_offset", "size", "status", "file", "broker_name")
_OPTIONAL = ("stored_body", "properties_base64")
"""What a row has without being asked where it says something. `system` would take too long."""
_ALL = tuple(name for name in FIELDS if name in (*FIXED_NAMES, *_OPTIONAL, "broker_name"))
_TAKEN_MAX = 1000  # rows that are fetched at once; more come partition by partition


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
    with it. `report` is told about these, and about damaged records, where they come.
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
    """With properties as a list of pairs: a map of Spark comes to Python as a dict of any order."""
    from pyspark.sql import functions

    if "properties" not in frame.columns:
        return frame
    return frame.withColumn("properties", functions.map_entries("properties"))


def first_rows(frame: DataFrame, limit: int | None) -> Iterator[Any]:
    """The first rows of the first partitions; only as many partitions are computed as it takes."""
    if limit is not None and limit <= _TAKEN_MAX:
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
    """The rows of any DataFrame; names that are there twice get a number.

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
