"""The options of `rmqtool append`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rmqtool.commands import options
from rmqtool.errors import FormatError, UsageError
from rmqtool.sizes import QUEUE_ID_MAX

NEWEST = "5.4"
DEFAULT_QUEUES = 4

# The message

Topic = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="Topic of the message, and of input rows without one."),
]
Queue = Annotated[
    int | None,
    typer.Option(
        "--queue",
        metavar="N",
        min=0,
        max=QUEUE_ID_MAX,
        help="Queue of the message; default: chosen by --queue-by.",
    ),
]
Tag = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Tag of the message.")]
Key = Annotated[
    list[str] | None, typer.Option("--key", metavar="KEY", help="Key of the message (repeatable).")
]
UniqKey = Annotated[
    str | None,
    typer.Option("--uniq-key", metavar="ID", help="Unique key of the message; default: generated."),
]
Property = Annotated[
    list[str] | None,
    typer.Option(
        "--property", metavar="NAME=VALUE", help="Application property of the message (repeatable)."
    ),
]
Body = Annotated[
    str | None, typer.Option("--body", metavar="TEXT", help="Body of the message, stored as UTF-8.")
]
BodyFile = Annotated[
    Path | None,
    typer.Option(
        "--body-file",
        metavar="FILE|-",
        help="Read the body from this file, byte for byte; -: standard input.",
    ),
]
Flag = Annotated[int | None, typer.Option("--flag", metavar="N", help="Application flag of the message.")]
DelayLevel = Annotated[
    int | None,
    typer.Option(
        "--delay-level", metavar="N", min=0, help="Delay the message: level 1 is 1 s, level 18 is 2 h."
    ),
]
Compress = Annotated[
    Literal["none", "zlib", "lz4", "zstd"] | None,
    typer.Option(
        "--compress",
        metavar="none|zlib|lz4|zstd",
        help="Compress bodies of at least 4096 bytes, as a client does.",
    ),
]
StoreTime = Annotated[
    str | None,
    typer.Option("--store-time", metavar="TIME", help="Store time of the message; default: now."),
]
BornTime = Annotated[
    str | None,
    typer.Option("--born-time", metavar="TIME", help="Born time of the message; default: now."),
]
StoreHost = Annotated[
    str | None,
    typer.Option(
        "--store-host", metavar="IP:PORT", help="Address of the broker; default: that of the newest record."
    ),
]
BornHost = Annotated[
    str | None,
    typer.Option("--born-host", metavar="IP:PORT", help="Address of the producer; default: the broker's."),
]

# Transactions

Transaction = Annotated[
    Literal["half"] | None,
    typer.Option(
        "--transaction", metavar="half", help="Store half messages for --group to commit or roll back."
    ),
]
Group = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Producer group of the transaction.")
]
Commit = Annotated[
    int | None,
    typer.Option(
        "--commit", metavar="OFFSET", min=0, help="Commit the half message at this physical offset."
    ),
]
Rollback = Annotated[
    int | None,
    typer.Option(
        "--rollback", metavar="OFFSET", min=0, help="Roll back the half message at this physical offset."
    ),
]

# Many messages


def _input_path(text: str) -> Path:
    """Raises UsageError for a URL of another place."""
    from rmqtool.storage.remote_url import is_url, local_path

    local = local_path(text)
    if local is None and is_url(text):
        raise UsageError(f"--input: {text} is not on this machine", hint="--input - reads from a pipe")
    return Path(local or text)


InputFile = Annotated[
    Path | None,
    typer.Option(
        "--input",
        metavar="FILE|-",
        parser=_input_path,
        help="Append the rows of this file; -: standard input.",
    ),
]
InputFormat = Annotated[
    Literal["jsonl", "csv", "parquet", "arrow"] | None,
    typer.Option(
        "--input-format",
        metavar="jsonl|csv|parquet|arrow",
        help="Format of --input; default: detected from its name or its first bytes.",
    ),
]
OnError = Annotated[
    Literal["stop", "skip"],
    typer.Option("--on-error", metavar="stop|skip", help="On a bad row: stop, or skip it."),
]
IgnoreUnknown = Annotated[
    bool, typer.Option("--ignore-unknown", help="Ignore unknown columns; by default they are an error.")
]
QueueBy = Annotated[
    Literal["round-robin", "key-hash", "column"],
    typer.Option(
        "--queue-by",
        metavar="round-robin|key-hash|column",
        help="Choose the queue of a message that names none. round-robin: the next queue after that of the"
        " topic's newest message. key-hash: by the Java hash of the first key. column: refuse the message.",
    ),
]
Show = Annotated[
    Literal["messages", "summary"] | None,
    typer.Option(
        "--show",
        metavar="messages|summary",
        help="Show a row for each message, or totals; default: totals with --input.",
    ),
]

# The store

Create = Annotated[bool, typer.Option("--create", help="Create the store in a new or empty folder.")]
Profile = Annotated[
    Literal["4.9", "5.3", "5.4"] | None,
    typer.Option(
        "--profile",
        metavar="4.9|5.3|5.4",
        help="Broker version to write for; default: that of the store, or 5.4.",
    ),
]
CommitLogFileSize = Annotated[
    int | None,
    typer.Option(
        "--commitlog-file-size",
        metavar="SIZE",
        parser=options.parse_size,
        help="With --create: size of a commit log file; default: from --broker-conf, or 1G.",
    ),
]
QueueFileSize = Annotated[
    int | None,
    typer.Option(
        "--queue-file-size", metavar="SIZE", parser=options.parse_size,
        help="With --create: size of a consume queue file, a multiple of 20; default: from --broker-conf, or"
        " 6000000.",
    ),
]  # fmt: skip
IndexSlots = Annotated[
    int | None,
    typer.Option(
        "--index-slots",
        metavar="N",
        min=1,
        help="With --create: hash slots of an index file; default: from --broker-conf, or 5000000.",
    ),
]
IndexEntries = Annotated[
    int | None,
    typer.Option(
        "--index-entries",
        metavar="N",
        min=2,
        help="With --create: capacity of an index file in entries; default: from --broker-conf, or 20000000.",
    ),
]
Queues = Annotated[
    int | None,
    typer.Option(
        "--queues",
        metavar="N",
        min=1,
        max=QUEUE_ID_MAX,
        help="With --create-topic: queues of a new topic; default: 4.",
    ),
]
Flush = Annotated[
    Literal["async", "sync"] | None,
    typer.Option(
        "--flush",
        metavar="async|sync",
        help="sync: flush each message to the device before the next one. async: flush in the background. At"
        " the end all messages are flushed.",
    ),
]
Reserve = Annotated[
    bool,
    typer.Option(
        "--reserve/--no-reserve", help="Allocate the whole space of a commit log file when it is created."
    ),
]
PropertyCrc = Annotated[
    bool,
    typer.Option(
        "--property-crc",
        help="End each record with a CRC over the whole record, as 5.x can; default: as in the store.",
    ),
]
DryRunOnly = Annotated[bool, typer.Option("--dry-run", help="Check everything and write nothing.")]


@dataclass
class AppendOptions:
    """What was asked for, by option."""

    store: Path
    topic: str | None
    queue: int | None
    tag: str | None
    key: list[str] | None
    uniq_key: str | None
    property: list[str] | None
    body: str | None
    body_file: Path | None
    flag: int | None
    delay_level: int | None
    compress: Literal["none", "zlib", "lz4", "zstd"] | None
    store_time: str | None
    born_time: str | None
    store_host: str | None
    born_host: str | None
    transaction: Literal["half"] | None
    group: str | None
    commit: int | None
    rollback: int | None
    input: Path | None
    input_format: Literal["jsonl", "csv", "parquet", "arrow"] | None
    on_error: Literal["stop", "skip"]
    ignore_unknown: bool
    queue_by: Literal["round-robin", "key-hash", "column"]
    show: Literal["messages", "summary"] | None
    create: bool
    profile: Literal["4.9", "5.3", "5.4"] | None
    commitlog_file_size: int | None
    queue_file_size: int | None
    index_slots: int | None
    index_entries: int | None
    create_topic: bool
    queues: int | None
    flush: Literal["async", "sync"] | None
    reserve: bool
    property_crc: bool
    commitlog: list[Path] | None
    read_only_commitlog: list[Path] | None
    broker_conf: Path | None
    dry_run: bool
    format: Literal["table", "jsonl", "json", "csv", "tsv"] | None
    fields: str | None
    tz: str | None
    quiet: bool
    progress: bool | None

    def check(self) -> None:
        """Raises UsageError for options that do not go together."""
        given = [
            name
            for name in ("body", "body_file", "input", "commit", "rollback")
            if getattr(self, name) is not None
        ]
        if len(given) != 1:
            what = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(
                f"{what} exclude each other" if given else "there is nothing to append",
                hint="give one of --body, --body-file, --input, --commit, --rollback",
            )
        if given[0].startswith("body") and self.topic is None:
            raise UsageError("the message has no topic", hint="--topic names it")
        if given[0].startswith("body") and self.queue_by == "column" and self.queue is None:
            raise UsageError("--queue-by column: the message names no queue", hint="--queue names it")
        if given[0] in ("commit", "rollback") and self.dry_run:
            raise UsageError("--dry-run is for messages, not for --commit and --rollback")
        if (self.transaction is None) != (self.group is None):
            raise UsageError("--transaction and --group go together")
        if self.input is not None and self.uniq_key is not None:
            raise UsageError("--uniq-key is for one message", hint="rows have a column uniq_key")
        if self.queues is not None and not self.create_topic:
            raise UsageError("--queues needs --create-topic")
        sizes = (self.commitlog_file_size, self.queue_file_size, self.index_slots, self.index_entries)
        if not self.create and any(size is not None for size in sizes):
            raise UsageError("file sizes need --create; an existing store keeps its sizes")
        if self.create and (self.commitlog or self.read_only_commitlog):
            name = "--commitlog" if self.commitlog else "--read-only-commitlog"
            raise UsageError(f"{name} is for an existing store; a new store contains its log")

    def check_properties(self, given: dict[str, str]) -> None:
        """Raises UsageError where an option says something else than the property that it is."""
        from rmqtool.formats import properties
        from rmqtool.write.ingest.rows import disagree, own_value, split_keys

        for name, option, value in (
            (properties.TAGS, "--tag", self.tag),
            (properties.KEYS, "--key", self.key),
            (properties.UNIQ_KEY, "--uniq-key", self.uniq_key),
            (properties.DELAY, "--delay-level", self.delay_level),
        ):
            if value is None or name not in given:
                continue
            if (split_keys(value) if isinstance(value, list) else value) != own_value(name, given[name]):
                shown = " ".join(value) if isinstance(value, list) else value
                raise UsageError(f"{option} {disagree(name, shown, given[name])}")

    def new_queues(self) -> int:
        """How many queues a topic gets that the store lacks; 0: such a topic is an error."""
        return (self.queues or DEFAULT_QUEUES) if self.create_topic else 0

    def given(self) -> dict[str, Any]:
        """Options of the store by the names of `WriteOptions`."""
        given: dict[str, Any] = {
            "commit_log_file_size": self.commitlog_file_size, "consume_queue_file_size": self.queue_file_size,
            "index_slots": self.index_slots, "index_entries": self.index_entries, "flush": self.flush,
            "store_host": host("--store-host", self.store_host),
            "property_crc": self.property_crc or None,
        }  # fmt: skip
        return {
            "reserve": self.reserve,
            **{name: value for name, value in given.items() if value is not None},
        }

    def arguments(self) -> dict[str, Any]:
        """What opening an existing store takes beside."""
        return {
            "profile": self.profile, "commitlog_paths": self.commitlog or (),
            "read_only_paths": self.read_only_commitlog or (), "broker_conf": self.broker_conf,
        }  # fmt: skip


def host(option: str, text: str | None) -> bytes | None:
    """The stored bytes of the address that an option gives. Raises UsageError."""
    from rmqtool.formats.message_id import host_bytes

    try:
        return None if text is None else host_bytes(text)
    except FormatError as error:
        raise UsageError(f"{option}: {error.message}") from None
