"""`rmqtool stats`: counts, sizes, delays, rates, lag and what waits, as rows or charts."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rmqtool.commands import options
from rmqtool.commands.bad_places import BadPlaces, tell_batches, tell_unknown
from rmqtool.commands.option_values import expression, row_form
from rmqtool.errors import UsageError, worst_exit_code
from rmqtool.output import Output
from rmqtool.times import parse_time

if TYPE_CHECKING:
    from rmqtool.message.rows import RowFormat
    from rmqtool.read.selection import Selection
    from rmqtool.report.stats.overview import Request

_LARGEST_OF_ALL = 10

By = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="NAMES",
        help="Count by these, separated by commas: topic, queue, tag, hour, day, size (class). group, or"
        " group,topic,queue, shows the lag of consumer groups. Default: topic.",
    ),
]
Largest = Annotated[
    int, typer.Option("--largest", metavar="N", min=0, max=100_000, help="Show the N largest messages.")
]
Duplicates = Annotated[
    bool, typer.Option("--duplicates", help="Show unique keys that a user topic holds more than once.")
]
Delayed = Annotated[
    bool,
    typer.Option("--delayed", help="Show pending delayed and timer messages by the hour when they are due."),
]
Transactions = Annotated[
    bool, typer.Option("--transactions", help="Show how many half messages are open, committed, rolled back.")
]
All = Annotated[bool, typer.Option("--all", help="Show everything; with --format json as one object.")]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Show the state as of this time in the past: what was stored before it, as far as the store"
        " knows. Notes say what is unknown.",
    ),
]
Memory = Annotated[
    int | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        parser=options.parse_size,
        help="Memory of the broker's machine; default: that of this machine. It decides whether lag counts as"
        " read from disk.",
    ),
]
Sort = Annotated[
    str | None, typer.Option("--sort", metavar="FIELD", help="Sort rows by this field, largest first.")
]
Plot = Annotated[
    str | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="Draw sizes, rates and lag in this new .svg or .png file; needs the extra plot.",
    ),
]


def stats(
    store: options.StorePath,
    by: By = None,
    largest: Largest = 0,
    duplicates: Duplicates = False,
    delayed: Delayed = False,
    transactions: Transactions = False,
    all: All = False,
    at: At = None,
    memory: Memory = None,
    commitlog: options.CommitLogPaths = None,
    read_only_commitlog: options.ReadOnlyCommitLogPaths = None,
    broker_conf: options.BrokerConf = None,
    topic: options.Topic = None,
    queue: options.Queue = None,
    tag: options.Tag = None,
    filter: options.Filter = None,
    key: options.Key = None,
    since: options.Since = None,
    until: options.Until = None,
    time_field: options.TimeField = "store",
    from_offset: options.FromOffset = None,
    to_offset: options.ToOffset = None,
    sort: Sort = None,
    limit: options.Limit = None,
    plot: Plot = None,
    format: options.RowFormat = None,
    fields: options.Fields = None,
    body: options.Body = "text",
    body_limit: options.BodyLimit = None,
    tz: options.TimeZone = None,
    quiet: options.Quiet = False,
    progress: options.ShowProgress = None,
) -> int:
    """Count messages; show consumer lag and pending messages.

    Counts by topic, queue, tag, hour or size. Body sizes are those of the stored bodies, which may be
    compressed. Delay is the time from the producer's clock to the broker's. Percentiles have an error of
    at most 0.4 %. Each of the largest messages is a message row. A batch record (BatchCQ) counts as one
    message. With several sections, the table format shows one table per section, jsonl adds the field
    section to each row, and json is one object.

    Lag counts all messages after a group's committed offset, including those that a filter would skip.
    It also shows whether the broker would read the next one from memory or from disk: from memory if its
    distance from the end of the log is below 40 % of the memory (accessMessageInMemoryMaxRatio).

    Delayed messages and transactions are those of the whole store. Only --topic and --queue apply to lag.
    --at shows what the store held at an earlier time. Messages that were deleted since, and offsets that
    consumers committed since, are unknown; lag is then a range instead of a number.

    The log is read once (twice for --duplicates) with bounded memory. A store in use is counted up to
    the end that it had at the start. Properties and compressed bodies are not checked; use verify.

    Exits with 0 even if nothing matches; 1 for damage, and for a --topic or --queue that the store does
    not have; 2 for a usage error; 3 when something could not be read or matplotlib is missing; 4 when the
    file of --plot exists or would lie in the store; 70 for a bug in rmqtool; 130 when interrupted.
    """
    from rmqtool.commands.stats_text import write_sections
    from rmqtool.findings import ScanCounters
    from rmqtool.report.stats.overview import overview

    writer = Output(format=format, fields=fields, quiet=quiet, progress=progress)
    selection = options.selection(
        topic=topic, queue=queue, tag=tag, key=key, since=since, until=until, time_field=time_field,
        from_offset=from_offset, to_offset=to_offset, limit=limit, tz=tz,
    )  # fmt: skip
    selection = replace(selection, filter=expression(filter))
    names = _names(by, all=all, others=bool(largest or duplicates or delayed or transactions))
    _check_lag(selection, names, is_alone=not (largest or duplicates or all or plot))
    seen, looked = BadPlaces(writer), ScanCounters()
    with options.open_store(store, commitlog, read_only_commitlog, broker_conf, quiet=quiet) as opened:
        if plot is not None:
            from rmqtool.commands.stats_plot import check_plot, draw

            picture = check_plot(plot, opened)
            if by is not None:
                writer.note("rmqtool: the charts show the whole selection; --by does not apply to them")
        request = _request(
            selection, names, row_form(opened, None, body, body_limit, tz), all=all, largest=largest,
            duplicates=duplicates, delayed=delayed, transactions=transactions, at=at, memory=memory,
            sort=sort, charts=plot is not None,
        )  # fmt: skip
        with writer.progress("stats", sum(file.size for file in opened.layout.commit_log)) as bar:
            found = overview(opened, request, seen.report, bar.advance, looked)
        for note in found.notes:
            writer.note(f"rmqtool: {note}")
        if plot is not None and found.charts is not None:
            draw(found.charts, picture, request.form.tz, title=str(store))
        write_sections(writer, found)
        unknown = 0
        if request.scans or request.lag_by is not None:
            tell_batches([opened], selection, writer)
            unknown = tell_unknown([opened], selection, looked, found=found.selected > 0)
        return worst_exit_code(seen.exit_code(), found.exit_code, unknown)


def _names(by: str | None, *, all: bool, others: bool) -> tuple[str, ...] | None:
    """What messages are counted by; None where only other parts are asked for."""
    from rmqtool.report.stats.dimensions import parse_by

    if by is not None:
        return parse_by(by)
    return None if others and not all else ("topic",)


def _check_lag(selection: Selection, names: tuple[str, ...] | None, *, is_alone: bool) -> None:
    """Raises UsageError where lag is all that is asked for, and a choice of messages with it."""
    if names and "group" in names and is_alone and (selection.tags or selection.keys or selection.filter):
        raise UsageError(
            "--by group cannot be used with --tag, --key or --filter: lag counts all messages of a queue",
            hint="select with --topic and --queue",
        )


def _request(
    selection: Selection,
    names: tuple[str, ...] | None,
    form: RowFormat,
    *,
    all: bool,
    largest: int,
    duplicates: bool,
    delayed: bool,
    transactions: bool,
    at: str | None,
    memory: int | None,
    sort: str | None,
    charts: bool,
) -> Request:
    from rmqtool.report.stats.overview import Request

    now_ms = time.time_ns() // 1_000_000
    at_ms = None if at is None else parse_time(at, form.tz, now_ms)
    if at_ms is not None and at_ms > now_ms:
        raise UsageError("--at is in the future", hint="give a time in the past")
    is_lag = names is not None and "group" in names
    return Request(
        selection,
        by=("topic",) if all and is_lag else None if is_lag else names,
        lag_by=names if is_lag else ("group", "topic") if all else None,
        largest=largest or (_LARGEST_OF_ALL if all else 0),
        duplicates=duplicates or all,
        delayed=delayed or all,
        transactions=transactions or all,
        charts=charts,
        at_ms=at_ms,
        now_ms=now_ms,
        memory_bytes=memory,
        sort=sort,
        form=form,
    )
