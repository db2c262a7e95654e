"""Every option that several commands share, declared once, with one meaning each.

A command uses them as annotations, `topic: options.Topic = None`, and passes the values on. The
defaults stay with the command, for Typer wants them in the signature: None or False everywhere,
so that a program that calls the function can leave them out too. Every option names its own
metavar: the man pages must not change with Typer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from rmqtool import sizes as quantities
from rmqtool.errors import UsageError
from rmqtool.terminal import print_error
from rmqtool.times import format_time, parse_time, parse_zone

if TYPE_CHECKING:
    from rmqtool.output import Output
    from rmqtool.read.selection import Selection
    from rmqtool.read.store import Store
    from rmqtool.storage.profile import WrittenBy

COUNT_MAX = (1 << 63) - 1
"""The most rows that can be asked for: more cannot be counted by islice and arrow."""

_BROKERS = ("4.9", "5.3", "5.4")
Value = TypeVar("Value")


def _as_option(parse: Callable[[str], Value], text: str) -> Value:
    """What `parse` makes of the text; its UsageError as Typer's, which names the option."""
    try:
        return parse(text)
    except UsageError as error:
        raise typer.BadParameter(error.message) from None


def parse_size(text: str) -> int:
    """Bytes of a size, see `quantities.parse_size`. Raises typer.BadParameter."""
    return _as_option(quantities.parse_size, text)


def parse_queues(text: str) -> tuple[int, ...]:
    """Queue ids of `3`, `0-3` or `0-3,7`, each once and in order. Raises typer.BadParameter."""
    return _as_option(quantities.parse_queues, text)


def parse_broker(text: str) -> str:
    """A broker version whose behaviour is known. Raises typer.BadParameter for any other text."""
    if text not in _BROKERS:
        raise typer.BadParameter(f"{quantities.short(text)} is not supported; use {', '.join(_BROKERS)}")
    return text


def parse_store(text: str) -> Path:
    """The path that STORE means: of this machine, or behind a URL, to which nothing is connected yet.

    Raises UsageError for a URL that cannot be one of a store.
    """
    from rmqtool.storage.locate import located

    return located(text)


def _of_environment(context: typer.Context, parameter: typer.CallbackParam) -> bool:
    source = context.get_parameter_source(parameter.name or "")
    return source is not None and source.name == "ENVIRONMENT" and not context.resilient_parsing


def _check_store(context: typer.Context, parameter: typer.CallbackParam, value: Path) -> Path:
    """Names the store of the environment."""
    if _of_environment(context, parameter):
        print_error(f"rmqtool: using the store of RMQTOOL_STORE: {value}")
    return value


def _check_store_root(context: typer.Context, parameter: typer.CallbackParam, value: Path) -> Path:
    """A command that changes stores wants a folder of this machine, spelled out. Raises UsageError."""
    from rmqtool.storage.locate import is_elsewhere

    if is_elsewhere(value) and not context.resilient_parsing:
        raise UsageError("this command can change the store and needs a folder on this machine",
                         hint=f"copy {value} to a local disk")  # fmt: skip
    if _of_environment(context, parameter):
        raise UsageError(
            "RMQTOOL_STORE is ignored here: this command can change the store", hint="name the store"
        )
    return value


def _resolve_jobs(value: int) -> int:
    if value:
        return value
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


# The store

StorePath = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        envvar="RMQTOOL_STORE",
        parser=parse_store,
        callback=_check_store,
        help="Store root, or a single commitlog, consume queue or index file. Also accepts a URL (s3://,"
        " webhdfs://), a tar archive, and files compressed with gzip or zstd.",
    ),
]
StoreRoot = Annotated[
    Path,
    typer.Argument(  # its variable is looked at to tell that it does not count
        metavar="STORE", envvar="RMQTOOL_STORE", show_envvar=False, parser=parse_store,
        callback=_check_store_root,
        help="Store root: a folder on this machine. RMQTOOL_STORE is ignored, because the command can change"
        " the store.",
    ),
]  # fmt: skip
CommitLogPaths = Annotated[
    list[Path] | None,
    typer.Option(
        "--commitlog",
        metavar="DIR",
        parser=parse_store,
        help="Also use this commit log folder outside STORE (repeatable).",
    ),
]
ReadOnlyCommitLogPaths = Annotated[
    list[Path] | None,
    typer.Option(
        "--read-only-commitlog",
        metavar="DIR",
        parser=parse_store,
        help="Also use this commit log folder, which the broker only reads (repeatable).",
    ),
]
BrokerConf = Annotated[
    Path | None,
    typer.Option(
        "--broker-conf",
        metavar="FILE",
        parser=parse_store,
        envvar="RMQTOOL_BROKER_CONF",
        show_envvar=True,
        help="Take store paths and file and index sizes from the broker's configuration file.",
    ),
]

# What to read

Topic = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="GLOB", help="Include only topics matching GLOB (repeatable)."),
]
ExcludeTopic = Annotated[
    list[str] | None,
    typer.Option("--exclude-topic", metavar="GLOB", help="Exclude topics matching GLOB (repeatable)."),
]
Queue = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", metavar="IDS", help="Include only these queue ids: 3, 0-3 or 0-3,7 (repeatable)."
    ),
]
Tag = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="Include only messages with this tag (repeatable)."),
]
Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="SQL",
        help="Include only messages whose properties match this expression in the broker's filter language:"
        " \"color = 'red' AND size > 10\".",
    ),
]
Key = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="KEY", help="Include only messages with this key or unique key (repeatable)."
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Start at this time: ISO 8601, epoch milliseconds, now, today, yesterday, 14:30 or '2h ago'.",
    ),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Stop before this time.")]
TimeField = Annotated[
    Literal["store", "born"],
    typer.Option("--time-field", metavar="store|born", help="Apply --since and --until to this timestamp."),
]
FromOffset = Annotated[
    int | None,
    typer.Option("--from-offset", metavar="N", min=0, help="Start at this offset (inclusive)."),
]
ToOffset = Annotated[
    int | None, typer.Option("--to-offset", metavar="N", min=0, help="Stop at this offset (exclusive).")
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", metavar="N", min=0, max=COUNT_MAX, help="Stop after this many rows."),
]
Reverse = Annotated[bool, typer.Option("--reverse", help="Show the newest first.")]

# What to write

CreateTopic = Annotated[
    bool,
    typer.Option(
        "--create-topic",
        help="Create topics that the store lacks. A topic gets the type BatchCQ if its first message is an"
        " inner batch.",
    ),
]

# What to change

Apply = Annotated[bool, typer.Option("--apply", help="Apply the plan; by default it is only shown.")]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Use the plan in FILE. With --apply: apply it only if the store has not changed since it was"
        " written.",
    ),
]
WritePlan = Annotated[
    Path | None,
    typer.Option("--write-plan", metavar="FILE", help="Write the plan to FILE, replacing an existing file."),
]
BackupDir = Annotated[
    Path | None,
    typer.Option(
        "--backup-dir",
        metavar="DIR",
        help="Back up everything that is cut, replaced or deleted to this new folder; default: next to STORE,"
        " named by the time.",
    ),
]
Undo = Annotated[
    Path | None,
    typer.Option("--undo", metavar="BACKUP", help="Restore the store from this backup."),
]
Force = Annotated[bool, typer.Option("--force", help="Proceed despite the refusal.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Agree to give up sound messages.")]
Brokers = Annotated[
    list[str] | None,
    typer.Option(
        "--broker",
        metavar="4.9|5.3|5.4",
        parser=parse_broker,
        help="Broker version to emulate (repeatable); versions before 4.9 are not supported.",
    ),
]

# What to show

RowFormat = Annotated[
    Literal["table", "jsonl", "json", "csv", "tsv"] | None,
    typer.Option(
        "--format",
        metavar="table|jsonl|json|csv|tsv",
        help="Output format; default: table on a terminal, jsonl otherwise.",
    ),
]
ObjectFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option("--format", metavar="text|json", help="Output format; default: text."),
]
Fields = Annotated[
    str | None,
    typer.Option(
        "--fields",
        metavar="NAMES",
        help="Show only these fields, in this order, separated by commas. A dot selects part of a field:"
        " properties.TAGS. 'help' lists all fields.",
    ),
]
Body = Annotated[
    Literal["text", "hex", "base64", "none"],
    typer.Option(
        "--body",
        metavar="text|hex|base64|none",
        help="Show bodies in this form. With text, a body that is not UTF-8 is shown as base64.",
    ),
]
BodyLimit = Annotated[
    int | None,
    typer.Option(
        "--body-limit", metavar="SIZE", parser=parse_size, help="Stop decompressing a body at this size."
    ),
]
TimeZone = Annotated[
    str | None,
    typer.Option(
        "--tz",
        metavar="ZONE",
        help="Read and show times in this zone: UTC, local, +08:00 or Area/City; default: local.",
    ),
]

# How to work

Profile = Annotated[
    Literal["4.9", "5.3", "5.4"] | None,
    typer.Option(
        "--profile",
        metavar="4.9|5.3|5.4",
        help="Broker version that used STORE last; default: detected from its files.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        min=0,
        callback=_resolve_jobs,
        help="Number of threads; 0: one per processor core.",
    ),
]
IoLimit = Annotated[
    int | None,
    typer.Option(
        "--io-limit",
        metavar="SIZE",
        parser=parse_size,
        help="Read at most this many bytes per second, for example 100M.",
    ),
]
KeepCache = Annotated[
    bool,
    typer.Option("--keep-cache", help="Leave data read in the page cache; by default its state is restored."),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no notes, summaries or progress on standard error.")
]
ShowProgress = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show progress; default: if standard error is a terminal."),
]


def open_store(
    store: Path,
    commitlog: Sequence[Path] | None,
    read_only_commitlog: Sequence[Path] | None,
    broker_conf: Path | None,
    *,
    quiet: bool = False,
    profile: str | None = None,
) -> Store:
    """The store that these option values mean, opened for reading; raises as `Store.open` does.

    What takes long before the first answer, unpacking an archive, is told on stderr unless `quiet`.
    """
    from rmqtool.read.store import Store

    return Store.open(
        store,
        announce=None if quiet else lambda text: print_error(f"rmqtool: {text}"),
        commitlog_paths=commitlog or (),
        read_only_paths=read_only_commitlog or (),
        broker_conf=broker_conf,
        profile=profile,
    )


def tell_assumed(output: Output, written_by: WrittenBy | None, option: str) -> None:
    """Says on stderr which broker version is assumed where the store does not tell; `option` settles it."""
    if written_by is not None and not written_by.is_known:
        output.note(
            f"rmqtool: the broker version is {written_by}; {written_by.profile.name} is assumed:"
            f" use {option} to name the version"
        )


def selection(
    *,
    topic: Sequence[str] | None = None,
    queue: Sequence[str] | None = None,
    tag: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    time_field: Literal["store", "born"] = "store",
    from_offset: int | None = None,
    to_offset: int | None = None,
    limit: int | None = None,
    tz: str | None = None,
) -> Selection:
    """The `Selection` that these option values mean; both times count from the same `now`.

    Raises UsageError for a time or zone that cannot be read and for an empty range.
    """
    from rmqtool.read.selection import Selection

    zone, now_ms = parse_zone(tz), time.time_ns() // 1_000_000
    first, last = (None if text is None else parse_time(text, zone, now_ms) for text in (since, until))
    if first is not None and last is not None and last < first:
        begin, end = (format_time(time_ms, zone) or time_ms for time_ms in (first, last))
        raise UsageError(f"the time range ends ({end}) before it starts ({begin})")
    return Selection(
        topics=topic or (),
        queues={number for text in queue or () for number in parse_queues(text)},
        tags=tag or (),
        keys=key or (),
        since=first,
        until=last,
        time_field=time_field,
        from_offset=from_offset,
        to_offset=to_offset,
        limit=limit,
    )
