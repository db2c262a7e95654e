"""Reads of the source without a session: what a task would give, and what the library says it should."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmqtool.message.columns import BY_NAME, COLUMNS
from rmqtool.message.rows import RowFormat
from rmqtool.problems import Finding
from rmqtool.read.due_times import due_of
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.dump.log import message_rows
from rmqtool.spark.options import SourceOptions, parse_options
from rmqtool.spark.partitions import Piece, ScanPlan, plan_scan
from rmqtool.spark.schema import (
    HEADERS_TYPE,
    RequestedColumn,
    arrow_schema_of,
    columns_by_options,
    columns_by_schema,
)
from rmqtool.spark.task import read_piece

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES: dict[str, DataType] = {
    "tinyint": ByteType(), "smallint": ShortType(), "int": IntegerType(), "bigint": LongType(),
    "string": StringType(), "binary": BinaryType(), "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()), "map<string,string>": MapType(StringType(), StringType()),
    HEADERS_TYPE: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}  # fmt: skip
Row = dict[str, Any]


def struct(asked: Iterable[RequestedColumn]) -> StructType:
    """Spark's schema of columns, as it makes it of the source's text."""
    return StructType([StructField(each.name, TYPES[each.type]) for each in asked])


def read(options: Mapping[str, str], schema: Sequence[tuple[str, str]] | None = None) -> list[Row]:
    """The rows that tasks give for these options."""
    return read_table(options, schema).to_pylist()


def read_table(options: Mapping[str, str], schema: Sequence[tuple[str, str]] | None = None) -> pa.Table:
    """The same as a table; every batch has exactly Spark's schema and is valid."""
    settings = parse_options(options)
    return read_pieces(plan_scan(settings), settings, schema)


def read_pieces(
    plan: ScanPlan | Iterable[Piece], settings: SourceOptions, schema: Sequence[tuple[str, str]] | None = None
) -> pa.Table:
    """The rows of a plan; pieces travel as pickles."""
    asked = (
        columns_by_options(settings) if schema is None else columns_by_schema(schema, settings.corrupt_column)
    )
    wanted = struct(asked)
    arrow = arrow_schema_of(wanted)
    batches = []
    for piece in plan.pieces if isinstance(plan, ScanPlan) else plan:
        for batch in read_piece(pickle.loads(pickle.dumps(piece)), settings, asked, wanted):
            assert batch.schema.equals(arrow, check_metadata=True)
            batch.validate(full=True)
            batches.append(batch)
    return pa.Table.from_batches(batches, arrow)


@lru_cache(maxsize=2)
def library_rows(
    path: Path,
    selection: Selection = Selection(),  # noqa: B008 - frozen
    names: Sequence[str] | None = None,
) -> tuple[list[Row], list[Finding]]:
    """What the library says: rows by Spark name with Arrow's values, and the findings.

    `names` are engine names; None is all columns. For reading: the next test gets the same rows.
    """
    names = tuple(names or BY_NAME)
    has_body = bool({"body", "body_encoding"} & set(names))
    findings: list[Finding] = []
    with Store.open(path) as store:
        form = RowFormat(body="none", names=tuple(BY_NAME), due_of=due_of(store))
        forms = [replace(form, body="text"), replace(form, body="base64")] if has_body else [form, form]
        texts = list(message_rows(store, selection, forms[0], lambda found: None))
        plain = message_rows(store, selection, forms[1], findings.append)
        rows = [_spark_row(text, row, names) for text, row in zip(texts, plain, strict=True)]
    return rows, findings


def _spark_row(text: Row, plain: Row, names: Sequence[str]) -> Row:
    encoding = text["body_encoding"]
    row = dict(plain, body_encoding="binary" if encoding == "base64" else encoding)
    if row["body"] is not None:
        row["body"] = base64.b64decode(row["body"])
    if row["stored_body"] is not None:
        row["stored_body"] = base64.b64decode(row["stored_body"])
    for which in ("born", "store"):
        row[f"{which}_time"] = time_of(row[f"{which}_timestamp_ms"])
    row["properties"] = list(row["properties"].items())
    if row["system"] is not None:
        row["system"] = json.dumps(row["system"])
    return {BY_NAME[name].spark_name: row[name] for name in names}


def time_of(ms: int) -> datetime | None:
    """A time in milliseconds as Arrow gives it; None outside of the years that it can have."""
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


SPARK_NAMES = [column.spark_name for column in COLUMNS]
