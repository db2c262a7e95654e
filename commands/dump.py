"""`rmqtool dump`: what lies in a store, as rows or as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqtool.commands import options
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, RefusedError, UsageError, worst_exit_code
from rmqtool.output import Output
from rmqtool.problems import Finding
from rmqtool.terminal import counted, print_error
from rmqtool.times import format_time, parse_zone

if TYPE_CHECKING:
    from rmqtool.store import Store
    from rmqtool.store.dump.kinds import Dump
    from rmqtool.store.dump.kinds import What as Kind
    from rmqtool.store.rows import BodyForm, RowFormat

_LINES = 20  # bad places that are told one by one

What = Annotated[
    Literal["commitlog", "consumequeue", "index", "checkpoint", "config", "timer", "epoch", "compaction"]
    | None,
    typer.Option(
        "--what",
        metavar="commitlog|consumequeue|index|checkpoint|config|timer|epoch|compaction",
        help="What to show; default: what STORE is, commitlog for a store.",
    ),
]
Part = Annotated[
    Literal["header", "entries", "slots", "chains"],
    typer.Option(
        "--part", metavar="header|entries|slots|chains", help="With --what index: which part of the files."
    ),
]
ExcludeTopic = Annotated[
    list[str] | None,
    typer.Option("--exclude-topic", metavar="GLOB", help="No topics that match (repeatable)."),
]
Gaps = Annotated[
    bool,
    typer.Option(
        "--gaps",
        help="Also rows for blanks, zeros, bad places and missing files (kind says which), and for fillers of"
        " queues, so that nothing is left out.",
    ),
]
Explain = Annotated[
    int | None,
    typer.Option(
        "--explain",
        metavar="OFFSET",
        min=0,
        help="Show one record as annotated bytes, also by an offset inside it; with --what consumequeue one"
        " unit, by queue offset. --body hex shows a long body whole.",
    ),
]
Raw = Annotated[bool, typer.Option("--raw", help="Write the records byte for byte, one behind the other.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="With --raw: write into this new file.")
]
StatsOnly = Annotated[bool, typer.Option("--stats-only", help="Only counts and times per topic and queue.")]


def dump(
    store: options.StorePath,
    what: What = None,
    part: Part = "entries",
    commitlog: options.CommitLogPaths = None,
    read_only_commitlog: options.ReadOnlyCommitLogPaths = None,
    broker_conf: options.BrokerConf = None,
    topic: options.Topic = None,
    exclude_topic: ExcludeTopic = None,
    queue: options.Queue = None,
    tag: options.Tag = None,
    key: options.Key = None,
    since: options.Since = None,
    until: options.Until = None,
    time_field: options.TimeField = "store",
    from_offset: options.FromOffset = None,
    to_offset: options.ToOffset = None,
    limit: options.Limit = None,
    reverse: options.Reverse = False,
    gaps: Gaps = False,
    explain: Explain = None,
    raw: Raw = False,
    output: OutputFile = None,
    stats_only: StatsOnly = False,
    format: options.RowFormat = None,
    fields: options.Fields = None,
    body: options.Body = "text",
    body_limit: options.BodyLimit = None,
    tz: options.TimeZone = None,
    quiet: options.Quiet = False,
    progress: options.ShowProgress = None,
) -> int:
    """Show the records of a store, or its queues, index, checkpoint or configuration.

    Records of the system topics are decoded: of which topic and queue a half, delayed or timer
    message is and when it is due, which half messages an op finishes, where a retry comes from.
    Offsets are physical offsets, for consume queues queue offsets. A key of the index is found by
    its hash, with the whole topic name: --what index --topic TopicTest --key ID.

    Damage is told on standard error; what is sound is shown. A torn last record, as a crash leaves
    it, is no damage. Where nothing matches, a note says what was looked at.

    Exits with 0 also when nothing matches; 1 for damage, for --explain of what is no sound record,
    and for a --topic or --queue that is not in the store; 2 for a usage error; 3 when something
    could not be read or is kept in a form that is out of reach, and for --explain of an offset that
    no file holds; 4 when the file of --output exists or would lie in the store; 70 for a bug in
    rmqtool; 130 when interrupted.
    """
    from dataclasses import replace

    from rmqtool.store.dump.kinds import Dump

    _check(explain=explain is not None, raw=raw, stats_only=stats_only, output=output)
    writer = Output(format=format, fields=fields, quiet=quiet, progress=progress)
    selection = options.selection(
        topic=topic, queue=queue, tag=tag, key=key, since=since, until=until, time_field=time_field,
        from_offset=from_offset, to_offset=to_offset, limit=limit, tz=tz,
    )  # fmt: skip
    selection = replace(selection, exclude_topics=exclude_topic or ())
    seen = _Seen(writer)
    with options.open_store(store, commitlog, read_only_commitlog, broker_conf) as opened:
        form = _form(opened, writer, body, body_limit, tz)
        task = Dump(opened, selection, form, seen.report, reverse, gaps)
        kind = what or _taken_for(opened, writer)
        if (raw or stats_only) and kind != "commitlog":
            raise UsageError("--raw and --stats-only are for the records of a commit log")
        if explain is not None:
            return _explain(task, kind, explain, writer)
        with writer.progress("dump", sum(file.size for file in opened.layout.commit_log)) as bar:
            task.progress = bar.advance
            if raw:
                count = _write_raw(task.raw(), output, opened, writer)
            else:
                listing = task.counts() if stats_only else task.listing(kind, part)
                count = writer.write_rows(listing.rows, listing.columns, listing.table)
        if not count and limit != 0:
            _tell_nothing(task, kind, writer)
        return worst_exit_code(seen.exit_code(), _tell_unknown(task, found=count > 0))


def _taken_for(store: Store, writer: Output) -> Kind:
    """What STORE is taken for; says so when it is no store root."""
    kind = store.layout.kind
    if kind == "store":
        return "commitlog"
    names = {"commitlog": "a commit log", "consumequeue": "a consume queue", "index": "an index"}
    writer.note(f"rmqtool: taken for {names[kind]}")
    return kind


def _tell_nothing(task: Dump, kind: Kind, writer: Output) -> None:
    """Not a single row: says so, and among how many records of which time."""
    if kind != "commitlog":
        things = {"consumequeue": "queue unit", "index": "index entry", "timer": "unit of the timer log"}
        thing = things.get(kind)
        writer.note(f"rmqtool: no {thing} matches" if thing else f"rmqtool: the store has no {kind} to show")
        return
    looked = task.looked
    text = f"rmqtool: no record matches; looked at {counted(looked.records, 'record')}"
    if looked.first_ms is not None and looked.last_ms is not None:
        first, last = (format_time(time, task.form.tz) or time for time in (looked.first_ms, looked.last_ms))
        text += f" from {first} to {last}"
    writer.note(text)


def _tell_unknown(task: Dump, *, found: bool) -> int:
    """Says which topics and queues asked for are not in the store, with those that are nearest."""
    from difflib import get_close_matches

    from rmqtool.store.dump.small import queue_ids, topic_names

    layout, selection = task.store.layout, task.selection
    known = topic_names(layout)
    if layout.kind != "store" or not known:
        return EXIT_OK
    known |= task.looked.topics
    unknown = [name for name in sorted(selection.topics) if not set("*?[") & set(name) and name not in known]
    for name in unknown:
        near = ", ".join(get_close_matches(name, known)) or "none is like it"
        print_error(f"rmqtool: the store has no topic {name}; nearest: {near}")
    if unknown or found or not selection.queues:
        return EXIT_FINDINGS if unknown else EXIT_OK
    ids = queue_ids(layout, selection.matches_topic)
    if ids is None or ids & set(selection.queues):
        return EXIT_OK
    whose = "the selected topics have" if selection.topics or selection.exclude_topics else "the store has"
    wanted = ", ".join(map(str, sorted(selection.queues)[:8]))
    there = f"0 to {max(ids)}" if ids == set(range(max(ids) + 1)) else ", ".join(map(str, sorted(ids)[:8]))
    print_error(f"rmqtool: {whose} no queue {wanted}; there are {there}")
    return EXIT_FINDINGS


def _explain(task: Dump, kind: Kind, offset: int, writer: Output) -> int:
    """Writes one structure as annotated bytes; returns the exit code."""
    from rmqtool.store.explain import ROW_FIELDS, TABLE_FIELDS

    found = task.explain(kind, offset)
    if found.note is not None:
        writer.note(f"rmqtool: {found.note}")
    writer.write_rows((field.row() for field in found.fields), ROW_FIELDS, TABLE_FIELDS)
    for problem in found.problems:
        print_error(f"rmqtool: {problem}")
    return EXIT_FINDINGS if found.problems else EXIT_OK


def _check(*, explain: bool, raw: bool, stats_only: bool, output: Path | None) -> None:
    if explain + raw + stats_only > 1:
        raise UsageError("--explain, --raw and --stats-only exclude each other")
    if output is not None and not raw:
        raise UsageError("--output goes with --raw", hint="rows go to standard output: dump ... > FILE")


def _form(store: Store, writer: Output, body: BodyForm, body_limit: int | None, tz: str | None) -> RowFormat:
    from rmqtool.formats.body import BODY_LIMIT
    from rmqtool.scan.columns import BY_NAME
    from rmqtool.store.rows import RowFormat
    from rmqtool.store.system_topics import DEFAULT_DELAY_LEVELS, parse_delay_levels

    conf = store.layout.broker_conf
    roots = dict.fromkeys(name.partition(".")[0] for name in writer.fields or ())
    levels = (conf.text("messageDelayLevel") if conf is not None else None) or DEFAULT_DELAY_LEVELS
    return RowFormat(
        body=body,
        tz=parse_zone(tz),
        # Names that no message has belong to another kind of row; the writer knows them all.
        names=None if writer.fields is None else tuple(name for name in roots if name in BY_NAME),
        body_limit=BODY_LIMIT if body_limit is None else body_limit,
        delays_ms=parse_delay_levels(levels),
    )


def _write_raw(records: Iterator[bytes], output: Path | None, store: Store, writer: Output) -> int:
    """Returns how many bytes were written."""
    if output is None:
        return writer.write_bytes(records)
    root = store.layout.root
    if root is not None and output.resolve().is_relative_to(root.resolve()):
        raise RefusedError("the file would lie in the store", path=output, hint="reading never writes there")
    try:
        with output.open("xb") as file:
            return sum(map(file.write, records))
    except FileExistsError:
        raise RefusedError("the file exists", path=output, hint="remove it or name another") from None


class _Seen:
    """The bad places that were met: told on stderr, the first ones one by one."""

    def __init__(self, writer: Output) -> None:
        self._writer = writer
        self._code = EXIT_OK
        self._told = 0

    def report(self, finding: Finding) -> None:
        """Takes one bad place."""
        problem = finding.problem
        self._code = worst_exit_code(self._code, problem.exit_code)
        if problem.severity == "note" and self._writer.quiet:
            return
        self._told += 1
        if self._told > _LINES:
            return
        place = [finding.path]
        if finding.physical_offset is not None:
            place.append(f"offset {finding.physical_offset}")
        if finding.length is not None:
            place.append(f"{finding.length} bytes")
        reason, expected = finding.detail.get("reason"), finding.detail.get("expected_bytes")
        if expected is not None:
            reason = f"{expected} bytes expected"
        text = f"{problem.code} {problem.message}" + (f" ({reason})" if reason else "")
        print_error(f"rmqtool: {problem.severity}: {text}: {', '.join(place)}")

    def exit_code(self) -> int:
        """The exit code for all of them; says how many were not told."""
        if self._told > _LINES:
            print_error(f"rmqtool: and {self._told - _LINES} more; rmqtool verify tells them all")
        return self._code
