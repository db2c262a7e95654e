"""The data source itself: what Spark asks of `format("rocketmq-store")`."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

from rmqtool.spark.errors import explain_errors
from rmqtool.spark.options import check_read, check_write, parse_options
from rmqtool.spark.schema import columns_by_options, ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceWriter
    from pyspark.sql.types import StructType

NAME: Final = "rocketmq-store"
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class RocketMQStoreSource(DataSource):
    """Message stores of RocketMQ: batch and streaming reads, and the writing of new stores.

    Raises:
        UsageError: options that make no sense; see `options.parse_options`.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        with explain_errors():
            self.settings = parse_options(options)

    @classmethod
    def name(cls) -> str:
        """The name that `format()` takes."""
        return NAME

    def __repr__(self) -> str:
        """Without the options, which may hold what opens a storage."""
        return f"{type(self).__name__}({NAME})"

    def schema(self) -> str:
        """The columns without a schema of the user's."""
        with explain_errors():
            return ddl(columns_by_options(self.settings))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader; one that takes filters where the option asks for it and Spark offers them."""
        from rmqtool.spark.reader import PushdownReader, StoreReader, TableReader

        with explain_errors():
            check_read(self.settings)
            if self.settings.table != "messages":
                return TableReader(self.settings, schema)
            takes_filters = self.settings.pushdown and filters_are_offered()
            return (PushdownReader if takes_filters else StoreReader)(self.settings, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a stream."""
        from rmqtool.spark.stream import StoreStreamReader

        with explain_errors():
            check_read(self.settings)
            return StoreStreamReader(self.settings, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a new store."""
        from rmqtool.spark.writer import NewStoreWriter

        with explain_errors():
            check_write(self.settings)
            return NewStoreWriter(self.settings, schema, overwrite)


def filters_are_offered() -> bool:
    """Whether the one who asks for a reader will push filters down to it.

    With push-down on, Spark asks in a worker made for that, and in the worker that plans a read where
    a query has no filters; with push-down off only in the latter, which fails if the reader takes
    filters. So the kind of worker decides.
    """
    return _PUSHDOWN_WORKER in sys.modules or _is_main(_PUSHDOWN_WORKER)


def _is_main(module: str) -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == module


def register(spark: SparkSession) -> None:
    """Make the source known to a session, where it is not found by itself (see `pyspark_rocketmq_store`)."""
    spark.dataSource.register(RocketMQStoreSource)
