"""The options that only `rmqtool spark-scan` has."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Stores = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="STORE...",
        help="Store roots, patterns or URLs that all executors reach; default: RMQTOOL_STORE.",
        show_default=False,
    ),
]
ExcludeTopic = Annotated[
    list[str] | None,
    typer.Option("--exclude-topic", metavar="GLOB", help="No topics that match (repeatable)."),
]
Count = Annotated[bool, typer.Option("--count", help="Only how many messages there are.")]
GroupBy = Annotated[
    str | None,
    typer.Option(
        "--group-by",
        metavar="NAMES",
        help="Count by these: topic, queue, tag, hour, day or other columns, with commas between.",
    ),
]
Sql = Annotated[
    str | None,
    typer.Option(
        "--sql", metavar="QUERY", help="A query over the views messages, consume_queue and index_entries."
    ),
]
Verify = Annotated[bool, typer.Option("--verify", help="Check the stores as rmqtool verify does.")]
Stats = Annotated[bool, typer.Option("--stats", help="Counts, offsets and times per topic and queue.")]
RebuildReport = Annotated[
    bool,
    typer.Option("--rebuild-report", help="Which queues and index files rmqtool rebuild would write anew."),
]
OutputUrl = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="URL", help="Write the messages into this new folder, by the executors."
    ),
]
OutputFormats = Annotated[
    Literal["parquet", "orc", "jsonl", "csv"] | None,
    typer.Option(
        "--output-format",
        metavar="parquet|orc|jsonl|csv",
        help="With --output: the format; default: parquet.",
    ),
]
PartitionBy = Annotated[
    str | None,
    typer.Option(
        "--partition-by",
        metavar="NAMES",
        help="With --output: folders by these: date, hour (both UTC), topic or other columns.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Only what would be read, of all there is: files, bytes and, as an estimate, records.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077, yarn; default: local[*].",
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark (repeatable).")
]
DriverMemory = Annotated[
    str | None, typer.Option("--driver-memory", metavar="SIZE", help="Heap of Spark's driver, as 4g.")
]
