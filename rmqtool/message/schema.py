"""The Arrow types of message columns, from the one table of columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import pyarrow as pa

from rmqtool.message.columns import BY_NAME, COLUMNS, FIXED_NAMES
from rmqtool.message.rows import check_names

Names = Literal["engine", "spark"]

TYPES: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
    "list<item: string>": pa.list_(pa.string()),
    "map<string, string>": pa.map_(pa.string(), pa.string()),
}
"""The Arrow types by the texts that tables of columns have for them."""


@cache
def arrow_type(column: str) -> pa.DataType:
    """The Arrow type of one column, by its engine name."""
    return TYPES[BY_NAME[column].arrow_type]


def arrow_schema(columns: Sequence[str] | None = None, *, names: Names = "engine") -> pa.Schema:
    """The schema of `message_batches` for these columns.

    Args:
        columns: engine names, in the requested order; None is every column that is not optional.
        names: with `spark` the fields have their Spark names.

    Raises:
        UsageError: an unknown column.
    """
    wanted = FIXED_NAMES if columns is None else tuple(columns)
    check_names(wanted)
    return pa.schema(
        [(BY_NAME[name].spark_name if names == "spark" else name, arrow_type(name)) for name in wanted]
    )


assert {column.arrow_type for column in COLUMNS} <= set(TYPES)
