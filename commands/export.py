"""`rmqtool export`: messages of a store as files for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqtool.commands import options
from rmqtool.commands.bad_places import BadPlaces, tell_batches, tell_unknown
from rmqtool.commands.export_text import summary
from rmqtool.commands.option_values import expression, local_file
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, UsageError, worst_exit_code
from rmqtool.output import Output
from rmqtool.times import parse_zone

if TYPE_CHECKING:
    from rmqtool.report.export.request import ExportRequest

OutputPath = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH|URL",
        help="File to write, or with / at its end a folder: s3://bucket/folder/, webhdfs://host:9870/folder/.",
    ),
]
OutputFormat = Annotated[
    Literal["parquet", "arrow", "orc", "jsonl", "csv", "records"] | None,
    typer.Option(
        "--output-format",
        metavar="parquet|arrow|orc|jsonl|csv|records",
        help="Format of the files; default: by the suffix of --output. records: byte for byte as stored.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="Only these columns, in this order, separated by commas. 'help' lists them. In JSON lines and"
        " CSV body_encoding goes along with body: what is not UTF-8 is base64.",
    ),
]
Body = Annotated[
    Literal["plain", "stored", "both", "none"],
    typer.Option(
        "--body",
        metavar="plain|stored|both|none",
        help="The body unpacked, as stored (column stored_body), both, or none.",
    ),
]
Raw = Annotated[
    bool,
    typer.Option("--raw", help="Also the whole record (column record); without a format: nothing else."),
]
Compression = Annotated[
    Literal["zstd", "lz4", "gzip", "none"] | None,
    typer.Option(
        "--compression",
        metavar="zstd|lz4|gzip|none",
        help="Default: zstd for parquet, arrow, orc; for lines by the suffix (.jsonl.gz, .csv.zst).",
    ),
]
PartitionBy = Annotated[
    str | None,
    typer.Option(
        "--partition-by",
        metavar="KEYS",
        help="Folders as Hive has them, for Parquet: topic, date or topic,date. Dates are of the store time,"
        " in UTC or in --tz.",
    ),
]
FileSize = Annotated[
    int | None,
    typer.Option(
        "--file-size",
        metavar="SIZE",
        parser=options.parse_size,
        help="In a folder: begin a new file at about this size; default 1G.",
    ),
]
RowGroup = Annotated[
    int | None,
    typer.Option(
        "--row-group",
        metavar="SIZE",
        parser=options.parse_size,
        help="Bytes of rows that are written together, held in memory; default 64M.",
    ),
]
CursorFile = Annotated[
    str | None,
    typer.Option(
        "--cursor-file",
        metavar="FILE",
        help="Go on where the run before ended, and note in this local file where this one did.",
    ),
]
Spreadsheet = Annotated[
    bool,
    typer.Option(
        "--spreadsheet", help="CSV: an apostrophe before what a spreadsheet takes for a formula; lossy."
    ),
]


def export(
    store: options.StorePath,
    output: OutputPath = None,
    output_format: OutputFormat = None,
    columns: Columns = None,
    body: Body = "plain",
    raw: Raw = False,
    compression: Compression = None,
    partition_by: PartitionBy = None,
    file_size: FileSize = None,
    row_group: RowGroup = None,
    cursor_file: CursorFile = None,
    spreadsheet: Spreadsheet = False,
    force: options.Force = False,
    commitlog: options.CommitLogPaths = None,
    read_only_commitlog: options.ReadOnlyCommitLogPaths = None,
    broker_conf: options.BrokerConf = None,
    topic: options.Topic = None,
    exclude_topic: options.ExcludeTopic = None,
    queue: options.Queue = None,
    tag: options.Tag = None,
    filter: options.Filter = None,
    key: options.Key = None,
    since: options.Since = None,
    until: options.Until = None,
    time_field: options.TimeField = "store",
    from_offset: options.FromOffset = None,
    to_offset: options.ToOffset = None,
    limit: options.Limit = None,
    tz: options.TimeZone = None,
    jobs: options.Jobs = 1,
    format: options.ObjectFormat = None,
    quiet: options.Quiet = False,
    progress: options.ShowProgress = None,
) -> int:
    """Write messages to Parquet, Arrow, ORC, JSON lines or CSV, here or in an object store.

    \b
    rmqtool export STORE --output messages.parquet --topic TopicTest --since yesterday
    rmqtool export STORE --output s3://lake/messages/ --output-format parquet --partition-by topic,date
    rmqtool export STORE --output /data/day/ --output-format jsonl --cursor-file /data/cursor.json

    Columns are those of a message row (dump --fields help), with types: times as timestamps in UTC,
    keys as a list, properties as a map, bodies as bytes. Lines of JSON and CSV are those that dump
    prints. append --input takes all of it back, but ORC, files of records, and text that was compressed as
    a whole. With --body stored or both the stored body goes along, so that append gives the same record,
    too, where it is compressed.

    A file appears when it is whole; a run that is killed leaves none by half. In a folder, files are
    named by the physical offset where they begin. With --cursor-file the cursor moves when a file has
    appeared, never before: runs one after the other export each message once, also when one of them is
    killed. Files of the log that expired in between are told.

    Damage is told on standard error and what is sound is exported; rows that are not have it in status.
    Damaged properties (CL09, CL13), and bodies that do not unpack (CL14), are looked for where status is
    among the columns.

    Exits with 0 also when nothing matches; 1 for damage, for a --topic or --queue that is not in the
    store, and when messages between the cursor and the log's start are lost; 2 for a usage error; 3 when
    something could not be read or written, or is kept in a form that is out of reach; 4 when a file exists
    or would lie in the store, and for a cursor of another log or selection; 70 for a bug in rmqtool; 130
    when interrupted.
    """  # noqa: D301  a backspace character keeps the lines as they are
    from dataclasses import replace

    from rmqtool.findings import ScanCounters
    from rmqtool.report.export.run import export as run

    wanted = _column_names(columns)
    if output is None:
        raise UsageError(
            "--output is missing", hint="--output messages.parquet, or a folder that ends with /"
        )
    writer = Output(format=format, quiet=quiet, progress=progress)
    selection = options.selection(
        topic=topic, queue=queue, tag=tag, key=key, since=since, until=until, time_field=time_field,
        from_offset=from_offset, to_offset=to_offset, limit=limit, tz=tz,
    )  # fmt: skip
    selection = replace(selection, exclude_topics=exclude_topic or (), filter=expression(filter))
    request = _request(
        output, output_format=output_format, compression=compression, columns=wanted, body=body, raw=raw,
        partition_by=partition_by, file_size=file_size, row_group=row_group, tz=tz, spreadsheet=spreadsheet,
        force=force, cursor_file=cursor_file,
    )  # fmt: skip
    if spreadsheet:
        writer.note("rmqtool: --spreadsheet changes texts that begin with = + - @: this file is not exact")
    seen = BadPlaces(writer)
    with options.open_store(store, commitlog, read_only_commitlog, broker_conf, quiet=quiet) as opened:
        with writer.progress("export", sum(file.size for file in opened.layout.commit_log)) as bar:
            result = run(opened, selection, request, seen.report, bar.advance, jobs=jobs)
        summary(result, writer)
        looked = ScanCounters(topics=set(selection.topics) if result.messages else set())
        tell_batches([opened], selection, writer)
        unknown = tell_unknown([opened], selection, looked, found=result.messages > 0)
        return worst_exit_code(seen.exit_code(), unknown, EXIT_FINDINGS if result.lost else EXIT_OK)


def _column_names(columns: str | None) -> list[str] | None:
    """The names of --columns; `help` shows all and ends."""
    from rmqtool.report.export.columns import COLUMNS

    wanted = _names(columns)
    if wanted and "help" in wanted:
        Output().show_names(COLUMNS)
    return wanted


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name for name in map(str.strip, text.split(",")) if name]


def _request(
    output: str,
    *,
    output_format: Literal["parquet", "arrow", "orc", "jsonl", "csv", "records"] | None,
    compression: Literal["zstd", "lz4", "gzip", "none"] | None,
    columns: list[str] | None,
    body: str,
    raw: bool,
    partition_by: str | None,
    file_size: int | None,
    row_group: int | None,
    tz: str | None,
    spreadsheet: bool,
    force: bool,
    cursor_file: str | None,
) -> ExportRequest:
    from rmqtool.report.export.request import GROUP_BYTES, export_request

    return export_request(
        output, format=output_format, compression=compression, columns=columns, body=body, raw=raw,
        partition_by=_names(partition_by), file_bytes=file_size, group_bytes=row_group or GROUP_BYTES,
        tz=parse_zone(tz), date_tz=parse_zone("UTC" if tz is None else tz), spreadsheet=spreadsheet,
        force=force, cursor_file=None if cursor_file is None else local_file(cursor_file, "--cursor-file"),
    )  # fmt: skip
