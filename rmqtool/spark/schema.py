"""The columns of the source's tables: which there are, their Spark types, and what is read for each.

Names and types of messages come from `message.columns`, the one table, those of units and index entries
from `read/table_files`; what only Spark has (the Kafka names, `properties` as JSON text) is here. A user
chooses columns of messages by `columnSet`, of any table by `columns` or by `.schema(...)`. A schema can
choose any of the types listed for a column.

Source: rocketmq-spark's RocketMQSource#schema; Kafka's structured streaming guide.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rmqtool.errors import UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.columns import COLUMNS
from rmqtool.read.table_files import COLUMNS as TABLE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rmqtool.spark.options import SourceOptions

_SPARK_TYPES: Final = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "string": "string",
    "binary": "binary",
    "timestamp[us, tz=UTC]": "timestamp",
    "list<item: string>": "array<string>",
    "map<string, string>": "map<string,string>",
}
INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True)
class Field:
    """A column that a query can ask for.

    Attributes:
        name: Spark's name.
        types: the Spark types it can have, the usual one first.
        source: the column of `message.columns` (engine name) that it is made of; of the other tables the
            name in `tables`; None for a constant.
    """

    name: str
    types: tuple[str, ...]
    source: str | None


@dataclass(frozen=True, slots=True)
class RequestedColumn:
    """A column of a request: its name as the query spells it, its field, and the requested type."""

    name: str
    field: Field
    type: str


def _types(spark_type: str) -> tuple[str, ...]:
    if spark_type in INTEGERS:
        return INTEGERS[INTEGERS.index(spark_type) :]
    if spark_type in ("binary", "array<string>", "map<string,string>"):
        return (spark_type, "string")
    return (spark_type,)


FIELDS: Final = (
    *(Field(each.spark_name, _types(_SPARK_TYPES[each.arrow_type]), each.name) for each in COLUMNS),
    Field("brokerName", ("string",), None),
    Field("propertiesJson", ("string",), "properties"),
    Field("position", ("bigint",), "file"),
    Field("key", ("binary", "string"), "properties"),
    Field("value", ("binary", "string"), "body"),
    Field("partition", ("int", "bigint"), "queue_id"),
    Field("offset", ("bigint",), "queue_offset"),
    Field("timestamp", ("timestamp",), "store_time"),
    Field("timestampType", ("int", "bigint"), None),
    Field("headers", (HEADERS_TYPE,), "properties"),
)  # fmt: skip
BY_NAME: Final = {
    **{each.name: field for each, field in zip(COLUMNS, FIELDS, strict=False)},  # engine names do as well
    **{field.name.lower(): field for field in FIELDS},
}
TABLE_FIELDS: Final[Mapping[str, tuple[Field, ...]]] = {
    table: tuple(
        BY_NAME.get(each.spark_name.lower())
        or Field(each.spark_name, _types(_SPARK_TYPES[each.arrow_type]), each.name)
        for each in columns
    )
    for table, columns in TABLE_COLUMNS.items()
}
"""The columns of the tables that do not hold messages, in their order."""
_BY_NAME: Final = {
    "messages": BY_NAME,
    **{table: {each.name.lower(): each for each in fields} for table, fields in TABLE_FIELDS.items()},
}
CORRUPT: Final = Field("_corrupt_record", ("string",), None)
"""The finding on a range without a record, as JSON; an option names the column."""

_ROCKETMQ = (
    "topic flag body properties brokerName queueId queueOffset bornTimestamp storeTimestamp "
    "tags keys uniqKey offsetMsgId physicalOffset size sysFlag bornHost storeHost reconsumeTimes "
    "preparedTransactionOffset status file"
).split()
_KAFKA = "key value topic partition offset timestamp timestampType".split()
_MINIMAL = "topic queueId queueOffset physicalOffset size storeTimestamp".split()
_FULL = [*(each.spark_name for each in COLUMNS), "brokerName"]
COLUMN_SETS: Final[Mapping[str, Sequence[str]]] = {
    "rocketmq": _ROCKETMQ,
    "kafka": _KAFKA,
    "minimal": _MINIMAL,
    "full": _FULL,
}
_AS_TEXT = {("rocketmq", "properties")}  # rocketmq-spark has them as JSON text


def columns_by_options(options: SourceOptions) -> tuple[RequestedColumn, ...]:
    """Return the requested columns if the user gives no schema.

    Raises UsageError for an unknown name in `columns`.
    """
    if options.table != "messages":
        names: Sequence[str] = options.columns or [each.name for each in TABLE_FIELDS[options.table]]
        fields = (find_field(name, "", "option columns", options.table) for name in names)
        requested = (RequestedColumn(each.name, each, each.types[0]) for each in fields)
        return _checked(tuple(requested), "option columns")
    names = options.columns or COLUMN_SETS[options.column_set]
    if options.columns is None and options.column_set == "kafka" and options.include_headers:
        names = (*names, "headers")
    columns = []
    for name in names:
        field = find_field(name, options.corrupt_column, "option columns")
        shown = options.corrupt_column if field == CORRUPT else field.name
        as_text = (options.column_set, field.name) in _AS_TEXT
        columns.append(RequestedColumn(shown, field, "string" if as_text else field.types[0]))
    return _checked(tuple(columns), "option columns")


def columns_by_schema(
    fields: Iterable[tuple[str, str]], corrupt_column: str, table: str = "messages"
) -> tuple[RequestedColumn, ...]:
    """Return the requested columns of a schema of a table: (name, Spark type as in `simpleString`) of each.

    Raises:
        UsageError: an unknown column, twice the same one, or a type that it cannot have.
    """
    columns = []
    for name, kind in fields:
        field = find_field(name, corrupt_column, "schema", table)
        if kind not in field.types:
            raise UsageError(
                f"schema: column {name} cannot be {kind}", hint=f"it can be {' or '.join(field.types)}"
            )
        columns.append(RequestedColumn(name, field, kind))
    return _checked(tuple(columns), "schema")


def find_field(name: str, corrupt_column: str, where: str, table: str = "messages") -> Field:
    """Return the field of a name, in any case. Raises UsageError for a name that the table does not have."""
    low, by_name = name.lower(), _BY_NAME[table]
    if corrupt_column.lower() in BY_NAME:
        raise UsageError(f"option columnNameOfCorruptRecord: {corrupt_column} is a column of messages")
    if low == corrupt_column.lower() and table == "messages":
        return CORRUPT
    if low not in by_name:
        near = difflib.get_close_matches(low, by_name, 1)
        known = ", ".join(field.name for field in TABLE_FIELDS.get(table, FIELDS))
        raise UsageError(
            f"{where}: there is no column {name!r}",
            hint=f"did you mean {by_name[near[0]].name}?" if near else f"the columns are {known}",
        )
    return by_name[low]


def _checked(columns: tuple[RequestedColumn, ...], where: str) -> tuple[RequestedColumn, ...]:
    if not columns:
        raise UsageError(f"{where}: it names no column")
    seen: set[str] = set()
    for each in columns:
        if each.name.lower() in seen:
            raise UsageError(f"{where}: column {each.name} appears twice")
        seen.add(each.name.lower())
    return columns


def ddl(columns: Iterable[RequestedColumn]) -> str:
    """Return the columns as a DDL text for Spark, every one nullable."""
    return ", ".join(f"`{each.name.replace('`', '``')}` {each.type}" for each in columns)


def requested_columns(schema: StructType, options: SourceOptions) -> tuple[RequestedColumn, ...]:
    """Return the columns that a schema of Spark requests. Raises as `columns_by_schema`."""
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    if options.columns is not None and [name for name, _ in fields] != [
        each.name for each in columns_by_options(options)
    ]:
        raise UsageError("option columns and a schema contradict each other", hint="give one of them")
    return columns_by_schema(fields, options.corrupt_column, options.table)


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires of batches: it compares the first batch with it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: Any = to_arrow_schema(schema, timezone="UTC")
    return found


def sources_of(columns: Iterable[RequestedColumn]) -> frozenset[str]:
    """Return the engine columns that are read for these columns."""
    return frozenset(each.field.source for each in columns if each.field.source is not None)


def shows_damage(columns: Iterable[RequestedColumn]) -> bool:
    """Whether a row can show that it is not a message: by its status, or by the corrupt-record column."""
    return any(each.field == CORRUPT or each.field.name == "status" for each in columns)
