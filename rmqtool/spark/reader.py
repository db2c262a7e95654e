"""The readers of a batch query: the driver plans, each task reads its part as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from rmqtool.read.pushed import NOTHING_PUSHED, Pushed
from rmqtool.spark.errors import explain_errors
from rmqtool.spark.partitions import Piece, plan_scan
from rmqtool.spark.pushdown import pushed_of
from rmqtool.spark.schema import arrow_schema_of, requested_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rmqtool.spark.options import SourceOptions


class StoreReader(DataSourceReader):
    """Reads messages; takes no filters, so it works whatever Spark's settings are."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = requested_columns(schema, options)
        self._pushed: Pushed = NOTHING_PUSHED

    def partitions(self) -> list[InputPartition]:
        """The pieces, in the order of stores and of their logs; none where nothing can match."""
        with explain_errors():
            return [InputPartition(piece) for piece in plan_scan(self._options, self._pushed).pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece. An empty plan is one partition without a value: no rows."""
        piece = partition.value
        if not isinstance(piece, Piece):
            return iter(())
        from rmqtool.spark.task import read_piece

        return read_piece(piece, self._options, self._columns, self._schema)


class PushdownReader(StoreReader):
    """A reader that accepts filters; `pushdown` says when.

    Spark fails a query whose reader has `pushFilters` while its push-down is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember what helps to read less; every filter is left to Spark as well."""
        self._pushed = pushed_of(filters, self._options.corrupt_column)
        return filters


class TableReader(DataSourceReader):
    """Reads the files of a table other than messages."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = requested_columns(schema, options)

    def partitions(self) -> list[InputPartition]:
        """Files of some megabytes for each task; none where the stores have none."""
        from rmqtool.spark.tables import plan_files

        with explain_errors():
            return [InputPartition(files) for files in plan_files(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of the files of one task. An empty plan is one partition without a value: no rows."""
        from rmqtool.spark.tables import read_files

        return read_files(partition.value or (), self._columns, arrow_schema_of(self._schema))
