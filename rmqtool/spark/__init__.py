"""The PySpark data source `rocketmq-store`: message stores as data frames.

    from rmqtool import spark as rocketmq_spark

    rocketmq_spark.register(spark)      # not needed where `pyspark_rocketmq_store` is installed
    spark.read.format("rocketmq-store").option("subscribe", "TopicTest").load("/data/store")

    options.py offsets.py stores.py     what the options mean; stores, globs and broker names
    schema.py convert.py                the columns of each table, and batches with exactly Spark's schema
    request.py                          which messages: a Selection, and what it cannot say
    pushdown.py                         the filters of a query
    bounds.py                           topics, queues and offsets that options name, as the stores have them
    partitions.py task.py               messages: what is read in which pieces; what a task does
    tables.py                           units and index entries: the same
    reader.py stream.py writer.py       what Spark calls; source.py has the source itself
    session.py scan_job.py              the session and the jobs of `rmqtool spark-scan`

Nothing here is loaded before it is used: pyspark is an extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "rocketmq-store"

__all__ = [
    "NAME",
    "errors",
    "options",
    "options_page",
    "partitions",
    "register",
    "scan_job",
    "scan_job_groups",
    "scan_job_output",
    "scan_job_rows",
    "scan_job_sql",
    "scan_job_verify",
    "session",
    "stores",
]


def register(spark: SparkSession) -> None:
    """Make the source known to a session."""
    from rmqtool.spark.source import register

    register(spark)
