"""The options that only `rmqtool spark-scan` has."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Stores = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="STORE...",
        help="Store roots, glob patterns or URLs that all executors can reach; default: RMQTOOL_STORE.",
        show_default=False,
    ),
]
ExcludeTopic = Annotated[
    list[str] | None,
    typer.Option("--exclude-topic", metavar="GLOB", help="Exclude topics matching GLOB (repeatable)."),
]
Count = Annotated[bool, typer.Option("--count", help="Show only the number of messages.")]
GroupBy = Annotated[
    str | None,
    typer.Option(
        "--group-by",
        metavar="NAMES",
        help="Count by these, separated by commas: topic, queue, tag, hour, day or other columns.",
    ),
]
Sql = Annotated[
    str | None,
    typer.Option(
        "--sql", metavar="QUERY", help="Run a query over the views messages, consume_queue and index_entries."
    ),
]
Verify = Annotated[bool, typer.Option("--verify", help="Check the stores as rmqtool verify does.")]
Stats = Annotated[bool, typer.Option("--stats", help="Show counts, offsets and times per topic and queue.")]
RebuildReport = Annotated[
    bool,
    typer.Option("--rebuild-report", help="Show which queues and index files rmqtool rebuild would replace."),
]
OutputUrl = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="URL", help="Let the executors write the messages to this new folder."
    ),
]
OutputFormats = Annotated[
    Literal["parquet", "orc", "jsonl", "csv"] | None,
    typer.Option(
        "--output-format",
        metavar="parquet|orc|jsonl|csv",
        help="With --output: write this format; default: parquet.",
    ),
]
PartitionBy = Annotated[
    str | None,
    typer.Option(
        "--partition-by",
        metavar="NAMES",
        help="With --output: partition into folders by these: date, hour (both UTC), topic or other columns.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Show what would be read, and how much there is: files, bytes and an estimate of records.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Run Spark here: local[4], spark://host:7077, yarn; default: local[*].",
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Set a Spark property (repeatable).")
]
DriverMemory = Annotated[
    str | None,
    typer.Option("--driver-memory", metavar="SIZE", help="Heap of the Spark driver, for example 4g."),
]
