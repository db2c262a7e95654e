"""Messages written as files by the executors: Parquet, ORC, JSON lines or CSV, in folders by column.

Names are those of rmqtool's own rows. What a format has no type for is text: JSON lines and CSV hold
bodies as base64 with `body_encoding`, CSV holds lists and properties as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rmqtool.errors import RefusedError, UsageError
from rmqtool.message.columns import BY_NAME, COLUMNS
from rmqtool.spark.errors import spark_errors
from rmqtool.spark.scan_job import (
    DAMAGE,
    RECORD,
    Bad,
    ScanRequest,
    bad_of,
    bad_sums,
    engine_name,
    messages,
    spark_name,
)  # fmt: skip
from rmqtool.storage.locate import located
from rmqtool.storage.output_guard import keep_out_of
from rmqtool.storage.remote_url import is_url, local_path, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OutputFormat = Literal["parquet", "orc", "jsonl", "csv"]
PARTITIONS = ("date", "hour")
"""The partitions of files besides columns: parts of the store time, in UTC."""

_DEFAULT = tuple(
    column.name for column in COLUMNS if not column.optional and column.name != "body_encoding"
) + ("broker_name",)
_OF_LINES = (*_DEFAULT, "stored_body", "properties_base64")
"""JSON lines show a column only where it says something."""
_NO_PARTITION = ("body", "keys", "properties", "status", "stored_body", "properties_base64", "system")
_EXISTS = "PATH_ALREADY_EXISTS"


def partition_names(text: str) -> tuple[str, ...]:
    """The names in `--partition-by`. Raises UsageError for one that files cannot be parted by."""
    names = []
    for name in filter(None, map(str.strip, text.split(","))):
        found = name if name in PARTITIONS else engine_name(spark_name(name))
        if found in _NO_PARTITION:
            raise UsageError(f"files are not parted by {name}")
        names.append(found)
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--partition-by {text!r} names nothing, or something twice", hint="use date,topic")
    return tuple(names)


def output_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The columns of files in engine names. Raises UsageError for one that there is not."""
    return None if names is None else tuple(engine_name(spark_name(name)) for name in names)


def output_place(url: str, stores: Sequence[str]) -> str:
    """Return the path or URL to pass to Spark for `url`; Spark decodes nothing in it.

    Raises:
        RefusedError: it lies in one of `stores`, paths and URLs, or is a local folder that exists.
        UsageError: as `local_path`.
    """
    local = local_path(url)
    is_elsewhere = local is None and is_url(url)
    path = Path(local or url)
    for store in stores:
        keep_out_of(located(store), str(parse(url)) if is_elsewhere else path, "the folder")
    if is_elsewhere:
        return url
    if path.exists():
        raise _exists(url)
    return url if local is None else f"file://{local}"


def _exists(url: str) -> RefusedError:
    return RefusedError("something already exists", path=url, hint="name a new folder")


def write_messages(
    session: SparkSession,
    request: ScanRequest,
    url: str,
    *,
    format: OutputFormat = "parquet",
    partition_by: Sequence[str] = (),
    names: Sequence[str] | None = None,
    with_body: bool = True,
) -> Bad:
    """Write the selected messages below `url`, which must not exist; the limit counts messages.

    Returns:
        The damage that was met; ranges that hold no record are not written.

    Raises:
        RefusedError: something is there already.
        InputError: the job fails.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import Observation, functions

    bad = Observation()
    names = names or (_OF_LINES if format == "jsonl" else _DEFAULT)
    wanted = [name for name in names if with_body or name not in ("body", "stored_body")]
    parts = [name for name in partition_by if name not in PARTITIONS]
    columns = [spark_name(name) for name in (*wanted, *parts, "store_time")]
    with spark_errors():
        frame = messages(session, request, list(dict.fromkeys((*columns, RECORD, DAMAGE))))
        frame = frame.observe(bad, *bad_sums()).where(functions.col(RECORD).isNotNull())
        if request.selection.limit is not None:
            frame = frame.limit(request.selection.limit)
        frame = _shaped(frame, list(dict.fromkeys((*wanted, *parts))), partition_by, format)
        writer: Any = frame.write.mode("error")
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        if format == "csv":
            writer = writer.option("header", "true").option("emptyValue", '""').option("escape", '"')
        try:
            writer.format("json" if format == "jsonl" else format).save(url)
        except AnalysisException as error:
            if error.getCondition() == _EXISTS:
                raise _exists(url) from error
            raise
    return bad_of(bad.get)


def _shaped(
    frame: DataFrame, names: Sequence[str], partition_by: Sequence[str], format: OutputFormat
) -> DataFrame:
    """The columns under their engine names, in types that the format has."""
    from pyspark.sql import functions

    columns = []
    is_text = format in ("jsonl", "csv")
    for name in names:
        if is_text and name == "body_encoding" and "body" in names:  # comes with body
            continue
        column = functions.col(spark_name(name))
        kind = BY_NAME[name].arrow_type if name in BY_NAME else "string"
        if kind == "binary" and is_text:
            # Spark puts a line end after every 76 characters.
            column = functions.regexp_replace(functions.base64(column), r"\s", "")
        elif format == "csv" and kind.startswith(("list<", "map<")):
            column = functions.to_json(column)
        columns.append(column.alias(name))
        if name == "body" and is_text:
            encoding = functions.when(functions.col("body").isNotNull(), functions.lit("base64"))
            columns.append(encoding.alias("body_encoding"))
    if "date" in partition_by:
        columns.append(functions.date_format("storeTimestamp", "yyyy-MM-dd").alias("date"))
    if "hour" in partition_by:
        columns.append(functions.date_format("storeTimestamp", "yyyy-MM-dd-HH").alias("hour"))
    return frame.select(*columns)
