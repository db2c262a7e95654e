"""`rmqtool dump`: the content of a store, as rows or as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqtool.command_line import on_store
from rmqtool.commands import options
from rmqtool.commands.finding_report import FindingReport, note_selection, note_times, report_unknown
from rmqtool.commands.groups import with_groups
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, UsageError, worst_exit_code
from rmqtool.output import Output
from rmqtool.terminal import counted, print_error
from rmqtool.times import format_time

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.report.dump.kinds import Dump
    from rmqtool.report.dump.kinds import What as Kind

What = Annotated[
    Literal[
        "commitlog", "consumequeue", "index", "checkpoint", "config", "timer", "pop", "epoch", "compaction"
    ]
    | None,
    typer.Option(
        "--what",
        metavar="commitlog|consumequeue|index|checkpoint|config|timer|pop|epoch|compaction",
        help="Show this structure. Default: commitlog for a store root, otherwise detected from"
        " the file. pop: messages that groups have popped and not acknowledged, which some"
        " brokers keep in RocksDB.",
    ),
]
Part = Annotated[
    Literal["header", "entries", "slots", "chains"] | None,
    typer.Option(
        "--part",
        metavar="header|entries|slots|chains",
        help="With --what index: show this part of the files. Default: entries.",
    ),
]
Reverse = Annotated[bool, typer.Option("--reverse", help="Show the newest first.")]
Gaps = Annotated[
    bool,
    typer.Option(
        "--gaps",
        help="Also show blanks, zeros (the unused end of a file, preallocated files), damage and missing"
        " files. Then every byte of the log is in some row; its field kind says what it is. For queues, also"
        " show fillers.",
    ),
]
Explain = Annotated[
    int | None,
    typer.Option(
        "--explain",
        metavar="OFFSET",
        min=0,
        help="Show the record that contains this offset as annotated bytes. With --what consumequeue: show"
        " the unit at this queue offset. --body hex shows a long body in full; JSON and CSV always do.",
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Write the stored bytes of the records, without separators.")
]
OutputFile = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="With --raw: write to this new file. With --explain: also write what is left of the body to this"
        " new file, decompressed if it is whole and at most --body-limit bytes then. A note says what was"
        " written.",
    ),
]
StatsOnly = Annotated[
    bool, typer.Option("--stats-only", help="Show only counts and times per topic and queue.")
]


@with_groups
def dump(
    *,
    what: What = None,
    part: Part = None,
    store: options.StoreOptions,
    selected: options.SelectionOptions,
    reverse: Reverse = False,
    gaps: Gaps = False,
    explain: Explain = None,
    raw: Raw = False,
    output: OutputFile = None,
    stats_only: StatsOnly = False,
    shown: options.OutputOptions,
) -> int:
    """Show log records, queues, index, checkpoint or configuration.

    Decodes records of the system topics: the target topic and queue of a half, delayed or timer message,
    the time when it is due, the half messages that an op record finishes, and the origin of a retry. For
    consume queues, --from-offset and --to-offset are queue offsets. The index finds a key by its hash and
    needs the full topic name: --what index --topic TopicTest --key ID.

    A batch record (BatchCQ) is one row, with the keys, tags and properties of the record, and a body that
    holds its messages packed. With --json, system.messages of its row has each of these messages. A note on
    standard error says how many batch records and messages there were.

    Damage is reported on standard error, and sound records are shown. Damaged properties (CL09, CL13)
    and bodies that cannot be decompressed (CL14) are detected unless --fields leaves out status. A torn
    last record, as a crash leaves it, is not damage. If the log is larger than a few megabytes, dump
    reads only the ranges to which queues, index or times lead, and reports only the damage in these
    ranges; verify reports all damage. If nothing matches, a note says what was searched.

    Exits with 0 even if nothing matches; 1 for damage, for --explain of something that is not a sound
    record, and for a --topic or --queue that the store does not have; 2 for a usage error; 3 when
    something could not be read or is stored in a form rmqtool cannot read,
    and for --explain of an offset that no file contains; 4 when the file of --output exists or would lie
    in the store; 70 for a bug in rmqtool; 130 when interrupted.
    """
    from rmqtool.report.dump.kinds import Dump

    file = None if output is None else options.local_file(output, "--output")
    _check(explain=explain is not None, raw=raw, stats_only=stats_only, gaps=gaps, output=file)
    if raw and shown.shapes_rows:
        raise UsageError("--raw writes stored bytes; --format, --fields and --body are for rows")
    for what_else in ("--explain", "--stats-only", "--gaps"):
        if {"--explain": explain is not None, "--stats-only": stats_only, "--gaps": gaps}[what_else]:
            shown.only_rows(what_else)
    selection = selected.selection(shown.tz)
    writer = shown.writer(grep=selection.grep)
    seen = FindingReport(writer)
    with store.open(quiet=shown.quiet) as opened:
        form = shown.row_format(opened, writer.fields)
        task = Dump(opened, selection, form, seen.report, reverse, gaps)
        kind = what or _taken_for(opened, writer)
        if kind != "commitlog":
            shown.only_rows(f"--what {kind}")
        _check_kind(kind, has_part=part is not None, of_log=raw or stats_only, gaps=gaps)
        if explain is not None:
            return _explain(task, kind, explain, writer, file)
        with writer.progress("dump", sum(file.size for file in opened.layout.commit_log)) as bar:
            task.progress = bar.advance
            _read_columns(task, writer)
            if raw:
                count = _write_raw(task.raw(), file, opened, writer)
            else:
                listing = task.counts() if stats_only else task.listing(kind, part or "entries")
                count = writer.write_rows(listing.rows, listing.columns, listing.table)
        _note_searched(task, kind, count, writer, seen)
        if kind != "commitlog":
            _note_kind(opened, kind, part, writer, found=count > 0)
        if kind == "commitlog":
            shows_them = raw or any(name.split(".")[0] == "system" for name in writer.fields or ())
            note_selection([opened], selection, writer, None if shows_them else task.looked.batches)
        unknown = report_unknown([opened], selection, task.looked, found=count > 0)
        return worst_exit_code(seen.exit_code(), unknown)


_OF_ENTRIES = "rmqtool: an index entry holds whole seconds: its message was stored up to 1 s after store_time"


def _read_columns(task: Dump, writer: Output) -> None:
    """Let large parts of the log be read as columns, where the output allows it."""
    from functools import partial

    from rmqtool.report.dump.log import GAP_FIELDS, OF_GAPS, TABLE_FIELDS
    from rmqtool.report.export.lines import CellMaker, LineMaker, can_be_lines
    from rmqtool.table import TABLE_BLOCK_ROWS

    names, form = writer.fields, task.form
    if not can_be_lines(task.store, names, form):
        return
    if writer.line_format is not None and task.gaps:
        names = GAP_FIELDS if names is None and writer.line_format == "csv" else names
        more = {"first": OF_GAPS[:1]} if names is None else {"more": OF_GAPS}
        task.lines = partial(LineMaker, names, form, writer.line_format, **more)
    elif writer.line_format is not None:
        task.lines = partial(LineMaker, names, form, writer.line_format)
    elif writer.takes_cells:
        task.cells = partial(CellMaker, names or TABLE_FIELDS, form, TABLE_BLOCK_ROWS)


def _taken_for(store: Store, writer: Output) -> Kind:
    """Return the kind that STORE is read as; print a note if it is not a store root."""
    kind = store.layout.kind
    if kind == "store" or kind == "tiered" or kind == "compacted":  # noqa: PLR1714 - narrows the type
        return "commitlog"
    names = {"commitlog": "a commit log", "consumequeue": "a consume queue", "index": "an index"}
    writer.note(f"rmqtool: reading it as {names[kind]}")
    return kind


def _note_kind(opened: Store, kind: Kind, part: str | None, writer: Output, *, found: bool) -> None:
    """Note what the rows do not say."""
    if kind == "compaction":
        _note_compacted(opened, writer)
    if kind == "index" and found and part not in ("header", "slots") and writer.shows_text:
        writer.note(_OF_ENTRIES)


def _note_compacted(opened: Store, writer: Output) -> None:
    """Name the line that shows the records of compacted topics: these rows only say how far they are."""
    from rmqtool.storage.queue_logs.view import CompactedLogs

    for logs in opened.layout.copies:
        if isinstance(logs, CompactedLogs):
            writer.note(f"rmqtool: the records of compacted topics: {on_store(logs.folder, 'dump')}")
        logs.close()


def _note_searched(task: Dump, kind: Kind, count: int, writer: Output, seen: FindingReport) -> None:
    """Note what was searched if there are no rows, and the times of the selection if that helps."""
    if not count and task.selection.limit != 0:
        _note_no_match(task, kind, writer)
    note_times([task.store], task.selection, writer, task.form.tz, found=count > 0)
    if kind == "commitlog":
        seen.note_past_end(task.store, task.selection, None if task.reverse else count)


def _note_no_match(task: Dump, kind: Kind, writer: Output) -> None:
    """Note that no row was found, and how many records of which times were searched."""
    if kind != "commitlog":
        things = {
            "consumequeue": "queue unit",
            "index": "entry of an index file",
            "timer": "unit of the timer log",
        }
        thing = things.get(kind)
        writer.note(f"rmqtool: no {thing} matches" if thing else f"rmqtool: the store has no {kind} to show")
        return
    looked = task.looked
    text = f"rmqtool: no record matches; searched {counted(looked.records, 'record')}"
    if looked.first_ms is not None and looked.last_ms is not None:
        first, last = (format_time(time, task.form.tz) or time for time in (looked.first_ms, looked.last_ms))
        text += f" from {first} to {last}"
    access = task.messages.access
    if access is not None and access.bytes_read < access.bytes_total:
        text += f"; {access.reason}"
    grep = task.selection.grep
    if grep is not None and not grep.text.startswith("(?i)"):
        text += "; upper and lower case differ: (?i) before the pattern ignores that"
    writer.note(text)


def _explain(task: Dump, kind: Kind, offset: int, writer: Output, output: Path | None) -> int:
    """Write one structure as annotated bytes, and its body to `output`; return the exit code."""
    from rmqtool.message.explain import ROW_FIELDS, TABLE_FIELDS, body_left

    found = task.explain(kind, offset)
    if output is not None:
        body = body_left(found, task.form.body_limit)
        if body is not None:
            _write_new(iter([body.data]), output, task.store)
        said = "not written, because no byte of a body is here" if body is None else body.text
        writer.note(f"rmqtool: {output}: {said}")
    if found.note is not None:
        writer.note(f"rmqtool: {found.note}")
    if writer.chosen_format == "table":
        rows = (field.row() for field in found.fields)
    else:  # for a program: the field body has all bytes, so that lines of some of them only repeat it
        whole = task.form.body != "none"
        fields = (field for field in found.fields if not field.name.startswith("body."))
        rows = (field.row(whole=whole or field.name != "body") for field in fields)
    writer.write_rows(rows, ROW_FIELDS, TABLE_FIELDS)
    for problem in found.problems:
        print_error(f"rmqtool: {problem}")
    return EXIT_FINDINGS if found.problems else EXIT_OK


def _check(*, explain: bool, raw: bool, stats_only: bool, gaps: bool, output: Path | None) -> None:
    if explain + raw + stats_only + gaps > 1:
        raise UsageError("--explain, --raw, --stats-only and --gaps exclude each other")
    if output is not None and not (raw or explain):
        raise UsageError(
            "--output needs --raw or --explain", hint="rows are written to standard output: dump ... > FILE"
        )


def _check_kind(kind: Kind, *, has_part: bool, of_log: bool, gaps: bool) -> None:
    """Raise UsageError for an option of another kind; `of_log`: --raw or --stats-only."""
    if has_part and kind != "index":
        raise UsageError("--part is for index files", hint="--what index")
    if of_log and kind != "commitlog":
        raise UsageError("--raw and --stats-only are for the records of a commit log")
    if gaps and kind not in ("commitlog", "consumequeue"):
        raise UsageError("--gaps is for a commit log and for consume queues")


def _write_raw(
    records: Iterator[bytes | memoryview], output: Path | None, store: Store, writer: Output
) -> int:
    """Write the records as bytes; return how many bytes were written."""
    if output is None:
        return writer.write_bytes(records)
    return _write_new(records, output, store)


def _write_new(records: Iterator[bytes | memoryview], output: Path, store: Store) -> int:
    from rmqtool.report.export.new_file import write_new
    from rmqtool.storage.output_guard import keep_out

    keep_out(store.layout, output, "the file", location=store.location.path)
    return write_new(output, records)
