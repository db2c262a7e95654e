"""Options that several commands share: each is declared once and has one meaning.

They form groups (see `groups`): the store, the selected messages, the plan of a change, the output. Every
option names its own metavar: the man pages must not change with Typer.
"""

# Without `from __future__ import annotations`: the annotations of the fields are compiled with the module.

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

import typer
from typer.models import ArgumentInfo

from rmqtool import compile_notice, sizes
from rmqtool.command_line import command_line
from rmqtool.commands.groups import Group, marks
from rmqtool.errors import FormatError, InputError, UnreadableError, UsageError
from rmqtool.formats.versions import BROKERS, METAVAR, Broker
from rmqtool.output import Output
from rmqtool.terminal import print_error
from rmqtool.times import format_time, parse_time, parse_zone

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqtool.message.format_string import FormatString
    from rmqtool.message.rows import RowFormat
    from rmqtool.read.body_pattern import BodyPattern
    from rmqtool.read.filter import Expression
    from rmqtool.read.selection import Selection
    from rmqtool.read.store import Store
    from rmqtool.storage.profile import WrittenBy

LOCAL_COPY = "LOCAL_COPY"  # in a command line for a store that has to be copied first
COUNT_MAX = (1 << 63) - 1
"""The largest --limit: islice and arrow cannot count further."""
_KEYS_MAX_BYTES = 1 << 30  # of --keys-from

Value = TypeVar("Value")


def _as_option(parse: Callable[[str], Value], text: str) -> Value:
    """Parse a text; a UsageError becomes Typer's error, which names the option."""
    try:
        return parse(text)
    except UsageError as error:
        raise typer.BadParameter(error.message) from None


def parse_size(text: str) -> int:
    """Return the bytes of a size, see `sizes.parse_size`. Raises typer.BadParameter."""
    return _as_option(sizes.parse_size, text)


def parse_queues(text: str) -> tuple[int, ...]:
    """Return the queue ids of `3`, `0-3` or `0-3,7`, each once and in order. Raises typer.BadParameter."""
    return _as_option(sizes.parse_queues, text)


def parse_broker(text: str) -> str:
    """Return a broker version whose behaviour is known. Raises typer.BadParameter for any other text."""
    if text not in BROKERS:
        raise typer.BadParameter(f"{sizes.short(text)} is not supported; use {', '.join(BROKERS)}")
    return text


def parse_store(text: str) -> Path:
    """Return the path for STORE, on this machine or at a URL. Nothing connects to the URL yet.

    Raises UsageError for a URL that cannot be that of a store, and for an empty name.
    """
    from rmqtool.storage.locate import located

    if not text:
        raise UsageError(
            "the name of the store is empty", hint="is a variable not set? The current folder is ."
        )
    return located(text)


def _of_environment(context: typer.Context, parameter: typer.CallbackParam) -> bool:
    source = context.get_parameter_source(parameter.name or "")
    return source is not None and source.name == "ENVIRONMENT" and not context.resilient_parsing


def _check_store(context: typer.Context, parameter: typer.CallbackParam, value: Path) -> Path:
    """Name the store on stderr if it comes from the environment."""
    if _of_environment(context, parameter):
        print_error(f"rmqtool: using the store of RMQTOOL_STORE: {value}")
    return value


def _check_store_root(context: typer.Context, parameter: typer.CallbackParam, value: Path) -> Path:
    """Raise UsageError unless STORE is a folder on this machine that the command line names."""
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


# Options that commands take one by one

Brokers = Annotated[
    list[str] | None,
    typer.Option(
        "--broker",
        metavar=METAVAR,
        parser=parse_broker,
        help="Predict the start of this broker version (repeatable). The repair itself is made for the"
        " version of --profile.",
    ),
]
CreateTopic = Annotated[
    bool,
    typer.Option(
        "--create-topic",
        help="Create topics that the store lacks. A topic gets the type BatchCQ if its first message is an"
        " inner batch.",
    ),
]
FORMAT_STRING = "FORMAT"
FORMAT_STRING_HELP = (
    r"Write each message as this text, as kcat does: '%t %q %o %k %s\n'. %t topic, %q or %p queue id, %o"
    r" queue offset, %O physical offset, %k keys, %K their length, %u unique key, %i message id, %g tags,"
    r" %T store timestamp in ms, %B born timestamp in ms, %s body, %S its length (-1: it cannot be"
    r" decompressed), %R its length as 4 bytes, %h properties, %% percent sign; \n \t \r \0 \xHH \\."
)
Redact = Annotated[
    bool,
    typer.Option(
        "--redact",
        help="Replace topics, groups, keys, tags, hosts and message ids with pseudonyms; leave out"
        " the values of properties.",
    ),
]


def reserve_option(default: str) -> Any:
    """Return the declaration of --reserve; `default` says which of both it is."""
    return typer.Option(
        "--reserve/--no-reserve",
        help=f"Allocate the whole space of a commit log file when it is created. Default: {default}.",
    )


RESERVE = reserve_option("--reserve")
Replace = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
Force = Annotated[
    bool, typer.Option("--force", help="Proceed in spite of a refusal whose message names --force.")
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


class LocationOptions(Group):
    """Locations of parts of a store that its folder does not show."""

    commitlog: Annotated[
        list[Path] | None,
        typer.Option(
            "--commitlog",
            metavar="DIR",
            parser=parse_store,
            help="Also use this commit log folder outside STORE (repeatable).",
        ),
    ] = None
    read_only_commitlog: Annotated[
        list[Path] | None,
        typer.Option(
            "--read-only-commitlog",
            metavar="DIR",
            parser=parse_store,
            help="Also use this commit log folder, which the broker only reads (repeatable).",
        ),
    ] = None
    broker_conf: Annotated[
        Path | None,
        typer.Option(
            "--broker-conf",
            metavar="FILE",
            parser=parse_store,
            envvar="RMQTOOL_BROKER_CONF",
            show_envvar=True,
            help="Take store paths and file and index sizes from the broker's configuration file.",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that open the store, besides its path."""
        return {
            "commitlog_paths": self.commitlog or (),
            "read_only_paths": self.read_only_commitlog or (),
            "broker_conf": self.broker_conf,
        }


def _read_only_store(help: str) -> Any:
    return typer.Argument(
        metavar="STORE", envvar="RMQTOOL_STORE", parser=parse_store, callback=_check_store, help=help
    )


class StoreOptions(LocationOptions):
    """The store, for a command that only reads it."""

    store: Annotated[
        Path,
        _read_only_store(
            "Store root, or a single commitlog, consume queue or index file. Also accepts a URL (s3://,"
            " webhdfs://), a tar archive, and files compressed with gzip or zstd."
        ),
    ]

    def absolute(self) -> Self:
        """Return the same options with absolute paths; URLs stay."""
        conf, logs, read_only = self.broker_conf, self.commitlog, self.read_only_commitlog
        return self.but(
            store=self.store.absolute(),
            broker_conf=None if conf is None else conf.absolute(),
            commitlog=None if logs is None else [each.absolute() for each in logs],
            read_only_commitlog=None if read_only is None else [each.absolute() for each in read_only],
        )

    def open(self, *, quiet: bool = False) -> "Store":
        """Open the store for reading; raises as `Store.open`.

        Unless `quiet`, slow preparations, such as unpacking an archive, are announced on stderr.
        """
        from rmqtool.read.store import Store

        announce = None if quiet else lambda text: print_error(f"rmqtool: {text}")
        return Store.open(self.store, announce=announce, **self.arguments())

    def command(self, name: str, *words: str) -> str:
        """Return a command line that runs a command on this store, for a shell.

        It has all given options of the store that the command takes. A command that can change the store
        gets LOCAL_COPY instead of a store that is not a folder on this machine.
        """
        from rmqtool.storage.locate import is_elsewhere

        given, elsewhere = self.words(), is_elsewhere(self.store)
        if len(given) > 1 or elsewhere:
            from importlib import import_module
            from inspect import signature

            module = name.replace("-", "_")
            function = getattr(import_module(f"rmqtool.commands.{module}"), module)
            taken = signature(function).parameters
            checks = [mark.callback for mark in marks(taken["store"], ArgumentInfo)]
            given = [LOCAL_COPY] if elsewhere and _check_store_root in checks else self.words(taken)
        return command_line("rmqtool", name, *given, *words)


class LocalStoreOptions(StoreOptions):
    """The store, for a command that reads it only in files of this machine."""

    store: Annotated[
        Path,
        _read_only_store("Store root, or a single commitlog, consume queue or index file, on this machine."),
    ]


class StoreRootOptions(StoreOptions):
    """The store, for a command that can change it: a folder on this machine, named on the command line."""

    store: Annotated[
        Path,
        typer.Argument(  # the variable is declared so that the callback can say that it does not count
            metavar="STORE",
            envvar="RMQTOOL_STORE",
            show_envvar=False,
            parser=parse_store,
            callback=_check_store_root,
            help="Store root: a folder on this machine. RMQTOOL_STORE is ignored, because the command can"
            " change the store.",
        ),
    ]


class ProfiledStoreOptions(StoreRootOptions):
    """The store, for a command whose plan depends on the broker version that used it last."""

    profile: Annotated[
        Broker | None,
        typer.Option(
            "--profile",
            metavar=METAVAR,
            help="Broker version that used STORE last. Default: detected from its files.",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that open the store, besides its path."""
        return {**super().arguments(), "profile": self.profile}


class SelectionOptions(Group):
    """Options that select messages."""

    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="GLOB", help="Include only topics matching GLOB (repeatable)."),
    ] = None
    exclude_topic: Annotated[
        list[str] | None,
        typer.Option("--exclude-topic", metavar="GLOB", help="Exclude topics matching GLOB (repeatable)."),
    ] = None
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", metavar="IDS", help="Include only these queue ids: 3, 0-3 or 0-3,7 (repeatable)."
        ),
    ] = None
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Include only messages with this tag (repeatable)."),
    ] = None
    filter: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="SQL",
            help="Include only messages whose properties match this expression in the broker's filter"
            " language: \"color = 'red' AND size > 10\".",
        ),
    ] = None
    grep: Annotated[
        str | None,
        typer.Option(
            "--grep",
            metavar="PATTERN",
            help="Include only messages whose body, once decompressed, matches this Python regular"
            " expression anywhere; (?i) at its start ignores case. A pattern with look-around, a"
            " reference to a group, or $ before its end is slow where many bodies match without it.",
        ),
    ] = None
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="KEY", help="Include only messages with this key or unique key (repeatable)."
        ),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Start at this time: ISO 8601, epoch milliseconds, now, today, yesterday, 14:30 or '2h"
            " ago'.",
        ),
    ] = None
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Stop before this time (exclusive)."),
    ] = None
    time_field: Annotated[
        Literal["store", "born"],
        typer.Option(
            "--time-field", metavar="store|born", help="Apply --since and --until to this timestamp."
        ),
    ] = "store"
    from_offset: Annotated[
        int | None,
        typer.Option("--from-offset", metavar="N", min=0, help="Start at this physical offset (inclusive)."),
    ] = None
    to_offset: Annotated[
        int | None,
        typer.Option("--to-offset", metavar="N", min=0, help="Stop at this physical offset (exclusive)."),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", metavar="N", min=0, max=COUNT_MAX, help="Stop after this many rows."),
    ] = None

    def queue_ids(self) -> set[int]:
        """Return the queue ids that --queue names. Raises typer.BadParameter."""
        return {number for text in self.queue or () for number in parse_queues(text)}

    def selection(self, tz: str | None, now_ms: int | None = None) -> "Selection":
        """Return the options as a `Selection`; both times count from `now_ms`, by default the clock's.

        Raises:
            UsageError: a time or zone cannot be read, or a range is empty.
            FilterError: a broker would reject the filter.
        """
        from rmqtool.read.selection import Selection

        zone, now_ms = parse_zone(tz), time.time_ns() // 1_000_000 if now_ms is None else now_ms
        first, last = (
            None if text is None else parse_time(text, zone, now_ms) for text in (self.since, self.until)
        )
        if first is not None and last is not None and last < first:
            begin, end = (format_time(time_ms, zone) or time_ms for time_ms in (first, last))
            raise UsageError(f"the time range ends ({end}) before it starts ({begin})")
        return Selection(
            topics=self.topic or (),
            queues=self.queue_ids(),
            tags=self.tag or (),
            keys=self.key or (),
            since=first,
            until=last,
            time_field=self.time_field,
            from_offset=self.from_offset,
            to_offset=self.to_offset,
            limit=self.limit,
            exclude_topics=self.exclude_topic or (),
            filter=self.expression(),
            grep=self.body_pattern(),
        )

    def expression(self) -> "Expression | None":
        """Parse --filter. Raises FilterError, with the position, if a broker would reject it."""
        if self.filter is None:
            return None
        from rmqtool.read.filter import parse

        return parse(self.filter)

    def body_pattern(self) -> "BodyPattern | None":
        """Parse --grep. Raises UsageError if it is not a regular expression."""
        if self.grep is None:
            return None
        from rmqtool.read.body_pattern import BodyPattern

        return BodyPattern(self.grep)


class PlanOptions(Group):
    """Options of a plan: show it, write it, or apply it."""

    apply: Annotated[bool, typer.Option("--apply", help="Apply the plan. By default it is only shown.")] = (
        False
    )
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Use the options in FILE. With --apply, apply exactly the plan in FILE. Refused if the store"
            " has changed since FILE was written, or if the new plan differs from it.",
        ),
    ] = None
    write_plan: Annotated[
        Path | None,
        typer.Option(
            "--write-plan", metavar="FILE", help="Write the plan to FILE, replacing an existing file."
        ),
    ] = None
    backup_dir: Annotated[
        Path | None,
        typer.Option(
            "--backup-dir",
            metavar="DIR",
            help="Put the backup of everything that is cut, replaced or deleted into this new folder."
            " Default: next to STORE, named by the time.",
        ),
    ] = None
    undo: Annotated[
        Path | None,
        typer.Option("--undo", metavar="BACKUP", help="Restore the store from this backup."),
    ] = None
    force: Force = False
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Agree to give up sound messages, if the plan does that.")
    ] = False


class ScanOptions(Group):
    """Options of reading the files of a store."""

    jobs: Jobs = 0
    io_limit: Annotated[
        int | None,
        typer.Option(
            "--io-limit",
            metavar="SIZE",
            parser=parse_size,
            help="Read at most this many bytes per second, for example 100M.",
        ),
    ] = None
    keep_cache: Annotated[
        bool,
        typer.Option(
            "--keep-cache",
            help="Leave the data that was read in the page cache. By default the cache is left as it was.",
        ),
    ] = False


class OutputOptions(Group):
    """Options of the output of message rows; JSON is the format that `--json` stands for."""

    JSON: ClassVar[str] = "jsonl"

    format: Annotated[
        Literal["table", "jsonl", "json", "csv", "tsv"] | None,
        typer.Option(
            "--format",
            metavar="table|jsonl|json|csv|tsv",
            help="Output format. Default: the value of RMQTOOL_FORMAT, otherwise table.",
        ),
    ] = None
    json: Annotated[
        bool, typer.Option("--json", help="Write JSON: one object, or for a table one object per line.")
    ] = False
    format_string: Annotated[
        str | None,
        typer.Option("--format-string", "-f", metavar=FORMAT_STRING, help=FORMAT_STRING_HELP),
    ] = None
    fields: Annotated[
        str | None,
        typer.Option(
            "--fields",
            metavar="NAMES",
            help="Show only these fields, in this order, separated by commas. A dot selects part of a field:"
            " properties.TAGS. 'help' lists all fields, also without STORE.",
        ),
    ] = None
    body: Annotated[
        Literal["text", "hex", "base64", "none"],
        typer.Option(
            "--body",
            metavar="text|hex|base64|none",
            help="Show bodies in this form. With text, a body that is not UTF-8 is shown as base64.",
        ),
    ] = "text"
    body_limit: Annotated[
        int | None,
        typer.Option(
            "--body-limit",
            metavar="SIZE",
            parser=parse_size,
            help="Stop decompressing a body at this size. Default: 64M.",
        ),
    ] = None
    tz: Annotated[
        str | None,
        typer.Option(
            "--tz",
            metavar="ZONE",
            help="Read and show times in this zone: UTC, local, +08:00 or Area/City. Default: local.",
        ),
    ] = None
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no notes, summaries or progress on standard error.")
    ] = False
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress", help="Show progress. Default: if standard error is a terminal."
        ),
    ] = None

    @property
    def zone(self) -> "tzinfo | None":
        """Return the zone of --tz. Raises UsageError."""
        return parse_zone(self.tz)

    @property
    def shapes_rows(self) -> bool:
        """Whether an option of the form of rows was given."""
        given = (self.format, self.json, self.format_string, self.fields, self.body, self.body_limit)
        return given != (None, False, None, None, "text", None)

    def template(self) -> "FormatString | None":
        """Return the parsed --format-string.

        Raises UsageError for an unknown letter, and next to an option that shapes rows otherwise.
        """
        if self.format_string is None:
            return None
        given = {
            "--format": self.format,
            "--json": self.json or None,
            "--fields": self.fields,
            "--body": self.body != "text" or None,
        }
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"--format-string and {name} exclude each other")
        from rmqtool.message.format_string import parse

        return parse(self.format_string)

    def only_rows(self, what: str) -> None:
        """Raise UsageError if --format-string is given, because the output of `what` has no messages."""
        if self.format_string is not None:
            raise UsageError(f"--format-string is for messages, not for {what}")

    def writer(
        self, *, changes: bool = False, pages: bool = True, grep: "BodyPattern | None" = None
    ) -> Output:
        """Return the writer of the command's output; `changes` and `pages` as for `Output`.

        A table shows of each body the part that matches `grep`.
        """
        if self.json and self.format is not None:
            raise UsageError("--json and --format exclude each other", hint="omit one of them")
        output = Output(
            format=self.JSON if self.json else self.format,
            default=_format_of_environment(),
            fields=self.fields,
            quiet=self.quiet,
            progress=self.progress,
            changes=changes,
            pages=pages,
            template=self.template(),
            sought=None if grep is None else grep.span_in,
        )
        compile_notice.show_by(output.note_of_progress)
        return output

    def row_format(self, store: "Store", fields: Sequence[str] | None) -> "RowFormat":
        """Return the form of message rows: `fields` are those of `Output`; unknown names are ignored."""
        from rmqtool.formats.body import BODY_LIMIT
        from rmqtool.message.columns import BY_NAME
        from rmqtool.message.rows import RowFormat
        from rmqtool.read.due_times import due_of

        roots = dict.fromkeys(name.partition(".")[0] for name in fields or ())
        return RowFormat(
            body=self.body,
            tz=self.zone,
            # Other names belong to another kind of row; the writer knows them all.
            names=None if fields is None else tuple(name for name in roots if name in BY_NAME),
            body_limit=BODY_LIMIT if self.body_limit is None else self.body_limit,
            due_of=due_of(store),
        )


class RowOutput(OutputOptions):
    """Options of the output of other rows."""

    OPTIONS = ("tz", "format", "json", "fields", "quiet", "progress")


class ObjectOutput(OutputOptions):
    """Options of the output of a single object."""

    OPTIONS = ("tz", "format", "json", "quiet", "progress")
    JSON = "json"

    format: Annotated[
        Literal["text", "json"] | None,
        typer.Option(
            "--format",
            metavar="text|json",
            help="Output format. Default: the value of RMQTOOL_FORMAT, otherwise text.",
        ),
    ] = None  # type: ignore[assignment]  # other formats, for the same writer


_FORMATS = ("text", "table", "jsonl", "json", "csv", "tsv")


def _format_of_environment() -> str | None:
    """Return the value of RMQTOOL_FORMAT; None if it is not set. Raises UsageError."""
    value = os.environ.get("RMQTOOL_FORMAT")
    if value and value not in _FORMATS:
        raise UsageError(
            f"RMQTOOL_FORMAT: unknown format {value!r}", hint=f"formats are: {', '.join(_FORMATS)}"
        )
    return value or None


def note_assumed_version(output: Output, written_by: "WrittenBy | None", option: str) -> None:
    """Print the assumed broker version if the store does not show it; `option` sets it."""
    if written_by is not None and not written_by.is_known:
        output.note(
            f"rmqtool: the broker version is {written_by}; {written_by.profile.name} is assumed:"
            f" use {option} to name the version"
        )


def host(option: str, text: str | None) -> bytes | None:
    """Return the stored bytes of the address that an option gives. Raises UsageError."""
    from rmqtool.formats.message_id import host_bytes

    try:
        return None if text is None else host_bytes(text)
    except FormatError as error:
        raise UsageError(f"{option}: {error.message}") from None


def local_file(text: str, option: str) -> Path:
    """Return the value of `option`, which names an output, as a path.

    Raises UsageError for a URL of another machine, for an empty name, and for - as standard output.
    """
    from rmqtool.storage.remote_url import is_url, local_path

    local = local_path(text)
    if local is None and is_url(text):
        hint = None if option == "--output" else "only --output may be a URL"
        raise UsageError(f"{option}: it must be a local file", hint=hint)
    path = Path(local or text)
    if not path.name:
        raise UsageError(f"{option} names no file")
    if text == "-":
        raise UsageError(f"{option} writes a file, not to standard output", hint="a file of this name: ./-")
    return path


def keys_from(source: str) -> list[str]:
    """Return the keys in a file, or on standard input for `-`: one on each line, without empty lines.

    Raises:
        UnreadableError: it cannot be read.
        InputError: standard input is closed.
        UsageError: it has no key, or too many bytes.
    """
    from rmqtool.formats.java import java_utf8_decode

    try:
        if source == "-":
            if sys.stdin is None:
                raise InputError("standard input is closed")
            data = sys.stdin.buffer.read(_KEYS_MAX_BYTES + 1)
        else:
            with open(source, "rb") as file:  # noqa: PTH123
                data = file.read(_KEYS_MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=source) from error
    if len(data) > _KEYS_MAX_BYTES:
        raise UsageError(f"--keys-from takes at most {_KEYS_MAX_BYTES} bytes")
    # Keys have no spaces: they are what separates them in a message.
    found = [key for line in java_utf8_decode(data).split("\n") if (key := line.strip(" \t\r"))]
    if not found:
        raise UsageError("--keys-from: the input has no key", hint="give one key per line")
    return found
