"""`rmqtool dump`: what lies in a store, as rows or as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqtool.commands import options
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, RefusedError, UsageError, worst_exit_code
from rmqtool.output import Output
from rmqtool.problems import Finding
from rmqtool.terminal import print_error
from rmqtool.times import parse_zone

if TYPE_CHECKING:
    from rmqtool.store import Store
    from rmqtool.store.rows import BodyForm, RowFormat
    from rmqtool.store.selection import Selection

Rows = tuple[Iterable[dict[str, Any]], Sequence[str], Sequence[str] | None]

MESSAGE_TABLE = ("physical_offset", "size", "topic", "queue_id", "queue_offset", "store_time", "tags", "keys",
                 "body", "status")  # fmt: skip
_UNSELECTED = ("checkpoint", "config", "epoch", "compaction")
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
    typer.Option("--gaps", help="Also rows for blanks, fillers and bad places, so that nothing is left out."),
]
Explain = Annotated[
    int | None,
    typer.Option(
        "--explain",
        metavar="OFFSET",
        min=0,
        help="Show one record as annotated bytes; with --what consumequeue one unit, by queue offset.",
    ),
]
Raw = Annotated[bool, typer.Option("--raw", help="Write the records byte for byte, one behind the other.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="With --raw: write into this new file.")
]
StatsOnly = Annotated[bool, typer.Option("--stats-only", help="Only counts per topic and queue.")]


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

    Damage is told on standard error; what is sound is shown. Exits with 1 when there was damage, 3
    when something could not be read. A torn last record, as a crash leaves it, is no damage.
    """
    from dataclasses import replace

    from rmqtool.store import Store

    _check(explain=explain is not None, raw=raw, stats_only=stats_only, output=output)
    writer = Output(format=format, fields=fields, quiet=quiet, progress=progress)
    selection = options.selection(
        topic=topic, queue=queue, tag=tag, key=key, since=since, until=until, time_field=time_field,
        from_offset=from_offset, to_offset=to_offset, limit=limit, tz=tz,
    )  # fmt: skip
    selection = replace(selection, exclude_topics=exclude_topic or ())
    seen = _Seen(writer)
    with Store.open(
        store,
        commitlog_paths=commitlog or (),
        read_only_paths=read_only_commitlog or (),
        broker_conf=broker_conf,
    ) as opened:
        task = _Task(opened, selection, _form(opened, writer, body, body_limit, tz), seen, reverse, gaps)
        kind = what or task.what(writer)
        if (raw or stats_only) and kind != "commitlog":
            raise UsageError("--raw and --stats-only are for the records of a commit log")
        if explain is not None:
            return task.explain(kind, explain, writer)
        with writer.progress("dump", sum(file.size for file in opened.layout.commit_log)) as bar:
            task.progress = bar.advance
            if raw:
                _write_raw(task.raw(), output, opened, writer)
                return seen.exit_code()
            count = writer.write_rows(*(task.counts() if stats_only else task.rows(kind, part)))
    return worst_exit_code(seen.exit_code(), EXIT_OK if count else _tell_unknown_topics(opened, selection))


def _tell_unknown_topics(store: Store, selection: Selection) -> int:
    """Nothing was found: says which topics the store does not know, with the nearest that it does."""
    from difflib import get_close_matches

    from rmqtool.store.dump.small import topic_names

    if store.layout.kind != "store":
        return EXIT_OK
    known = topic_names(store.layout)
    unknown = [name for name in sorted(selection.topics) if not set("*?[") & set(name) and name not in known]
    for name in unknown:
        near = ", ".join(get_close_matches(name, known)) or "none is like it"
        print_error(f"rmqtool: the store has no topic {name}; nearest: {near}")
    return EXIT_FINDINGS if unknown else EXIT_OK


def _check(*, explain: bool, raw: bool, stats_only: bool, output: Path | None) -> None:
    if explain + raw + stats_only > 1:
        raise UsageError("--explain, --raw and --stats-only exclude each other")
    if output is not None and not raw:
        raise UsageError("--output goes with --raw", hint="rows go to standard output: dump ... > FILE")


def _form(
    store: Store, writer: Output, body: BodyForm, body_limit: int | None, tz: str | None
) -> RowFormat:
    from rmqtool.formats.body import BODY_LIMIT
    from rmqtool.scan.columns import BY_NAME
    from rmqtool.store.rows import RowFormat
    from rmqtool.store.system_topics import DEFAULT_DELAY_LEVELS, parse_delay_levels

    conf = store.layout.broker_conf
    levels = (conf.text("messageDelayLevel") if conf is not None else None) or DEFAULT_DELAY_LEVELS
    return RowFormat(
        body=body,
        tz=parse_zone(tz),
        # Names that no message has belong to another kind of row; the writer knows them all.
        names=None if writer.fields is None else tuple(name for name in writer.fields if name in BY_NAME),
        body_limit=BODY_LIMIT if body_limit is None else body_limit,
        delays_ms=parse_delay_levels(levels),
    )


@dataclass
class _Task:
    """What was asked for, and the engine's call for each kind of it."""

    store: Store
    selection: Selection
    form: RowFormat
    seen: _Seen
    reverse: bool
    gaps: bool
    progress: Callable[[int], None] | None = None

    def what(self, writer: Output) -> str:
        """What STORE is taken for; says so when it is no store root."""
        layout = self.store.layout
        if layout.kind == "store":
            return "commitlog"
        kinds = {"commitlog": "commit log", "consumequeue": "consume queue", "index": "index"}
        writer.note(f"rmqtool: taken for a {kinds[layout.kind]}")
        return layout.kind

    def rows(self, what: str, part: Part) -> Rows:
        """(rows, all columns, columns of a table) of one kind."""
        from rmqtool.scan.columns import NAMES
        from rmqtool.store.dump import index, log, queues, small, timer

        layout, selection, tz, report = self.store.layout, self.selection, self.form.tz, self.seen.report
        named = (selection.topics, selection.exclude_topics, selection.queues, selection.tags, selection.keys)
        if (what == "timer" and any(named)) or (what in _UNSELECTED and not selection.selects_all):
            raise UsageError(f"nothing can be selected so with --what {what}")
        match what:
            case "commitlog":
                rows = log.message_rows(
                    self.store, selection, self.form, report,
                    reverse=self.reverse, gaps=self.gaps, progress=self.progress,
                )  # fmt: skip
                return rows, (("blank", *NAMES) if self.gaps else NAMES), MESSAGE_TABLE
            case "consumequeue":
                units = queues.queue_rows(
                    layout, selection, report, tz=tz, reverse=self.reverse, gaps=self.gaps
                )
                return units, queues.FIELDS, queues.TABLE_FIELDS
            case "index":
                entries = index.index_rows(layout, selection, part, report, tz=tz, reverse=self.reverse)
                return entries, index.FIELDS, index.TABLE_FIELDS[part]
            case "checkpoint":
                return small.checkpoint_rows(layout, report, tz=tz), small.CHECKPOINT_FIELDS, None
            case "timer":
                waiting = timer.timer_rows(layout, selection, report, tz=tz)
                return waiting, timer.TIMER_FIELDS, timer.TIMER_TABLE
            case "epoch":
                return timer.epoch_rows(layout, report), timer.EPOCH_FIELDS, None
            case "compaction":
                return timer.compaction_rows(layout, report), timer.COMPACTION_FIELDS, None
            case _:
                return small.config_rows(layout, report), small.CONFIG_FIELDS, None

    def counts(self) -> Rows:
        """Counts per topic and queue."""
        from rmqtool.store.dump import counts

        rows = counts.count_rows(self.store, self.selection, self.seen.report, self.progress)
        return rows, counts.FIELDS, counts.TABLE_FIELDS

    def raw(self) -> Iterator[bytes]:
        """The records as bytes."""
        from rmqtool.store.dump import log

        return log.raw_records(
            self.store, self.selection, self.seen.report, reverse=self.reverse, progress=self.progress
        )

    def explain(self, what: str, offset: int, writer: Output) -> int:
        """Writes one structure as annotated bytes; returns the exit code."""
        from rmqtool.store.dump import log, queues, small
        from rmqtool.store.explain import ROW_FIELDS, TABLE_FIELDS

        layout, tz = self.store.layout, self.form.tz
        match what:
            case "commitlog":
                found = log.explain_log(self.store, offset, self.form)
            case "consumequeue":
                found = queues.explain_unit(layout, self.selection, offset, tz)
            case "checkpoint":
                found = small.explain_checkpoint(layout, tz)
            case _:
                raise UsageError("--explain shows a record, a consume queue unit or the checkpoint")
        writer.write_rows((field.row() for field in found.fields), ROW_FIELDS, TABLE_FIELDS)
        for problem in found.problems:
            print_error(f"rmqtool: {problem}")
        return EXIT_FINDINGS if found.problems else EXIT_OK


def _write_raw(records: Iterator[bytes], output: Path | None, store: Store, writer: Output) -> None:
    if output is None:
        writer.write_bytes(records)
        return
    root = store.layout.root
    if root is not None and output.resolve().is_relative_to(root.resolve()):
        raise RefusedError("the file would lie in the store", path=output, hint="reading never writes there")
    try:
        with output.open("xb") as file:
            file.writelines(records)
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
        reason = finding.detail.get("reason")
        text = f"{problem.code} {problem.message}" + (f" ({reason})" if reason else "")
        print_error(f"rmqtool: {problem.severity}: {text}: {', '.join(place)}")

    def exit_code(self) -> int:
        """The exit code for all of them; says how many were not told."""
        if self._told > _LINES:
            print_error(f"rmqtool: and {self._told - _LINES} more; rmqtool verify tells them all")
        return self._code
