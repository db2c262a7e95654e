"""`rmqtool stats`: counts, sizes, delays, rates, lag and pending messages, as rows or charts.

One section is printed as rows, several as tables, lines or one object.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqtool.commands import options
from rmqtool.commands.finding_report import (
    FindingReport,
    note_fillers,
    note_selection,
    note_times,
    report_unknown,
)
from rmqtool.commands.groups import Before, Group, Only, with_groups
from rmqtool.commands.verdicts import of_lag, resets_of_lag, undelivered_sentence
from rmqtool.errors import UsageError, worst_exit_code
from rmqtool.output import Output
from rmqtool.terminal import bar, counted
from rmqtool.times import format_duration, format_time, parse_time

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqtool.findings import ScanCounters
    from rmqtool.message.rows import RowFormat
    from rmqtool.read.selection import Selection
    from rmqtool.read.store import Store
    from rmqtool.report.stats.overview import Overview, Request, Section
    from rmqtool.report.stats.pending import NextDue
    from rmqtool.report.stats.timeline import Bars


_LARGEST_OF_ALL = 10


class StatsOptions(Group):
    """Options of the sections: what to count and show."""

    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="NAMES",
            help="Count by these, separated by commas: topic, queue, tag, hour, day, size (classes of message"
            " sizes). group, or group,topic,queue, shows the lag of consumer groups. Default: topic.",
        ),
    ] = None
    largest: Annotated[
        int, typer.Option("--largest", metavar="N", min=0, max=100_000, help="Show the N largest messages.")
    ] = 0
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Show unique keys that a user topic holds more than once.")
    ] = False
    delayed: Annotated[
        bool,
        typer.Option(
            "--delayed", help="Show pending delayed and timer messages by the hour when they are due."
        ),
    ] = False
    transactions: Annotated[
        bool,
        typer.Option(
            "--transactions",
            help="Show how many half messages are open, committed, rolled back, or stored again for another"
            " check (put back).",
        ),
    ] = False
    all: Annotated[bool, typer.Option("--all", help="Show everything; with --format json as one object.")] = (
        False
    )
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Show the state as of this time in the past: what was stored before it, as far as the store"
            " knows. Notes say what is unknown.",
        ),
    ] = None
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            parser=options.parse_size,
            help="Memory of the broker's machine. Default: that of this machine. Lag that exceeds 40 %"
            " of it counts as read from disk.",
        ),
    ] = None
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="FIELD",
            help="Sort rows by this field, largest first. Default: topics by bytes, others by name.",
        ),
        Before("limit"),
    ] = None
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw charts in this new .svg or .png file: messages as --by groups them (by topic if it is"
            " only group), their rates, sizes and queues. The lag of groups is always drawn. Needs pip"
            " install 'rmqtool[plot]'.",
        ),
        Before("format"),
    ] = None

    def has_others(self) -> bool:
        """Whether a section other than counts and lag is requested by name."""
        return bool(self.largest or self.duplicates or self.delayed or self.transactions)

    def names(self) -> tuple[str, ...] | None:
        """Return the dimensions that messages are counted by; None if only other sections are requested."""
        from rmqtool.report.stats.dimensions import parse_by

        if self.by is not None:
            return parse_by(self.by)
        return None if self.has_others() and not self.all else ("topic",)

    def request(
        self, selection: Selection, names: tuple[str, ...] | None, form: RowFormat, *, timeline: bool
    ) -> Request:
        """Return the options as a request.

        Raises UsageError for a time that cannot be read or is in the future.
        """
        from rmqtool.report.stats.overview import Request

        now_ms = time.time_ns() // 1_000_000
        at_ms = None if self.at is None else parse_time(self.at, form.tz, now_ms)
        if at_ms is not None and at_ms > now_ms:
            raise UsageError("--at is in the future", hint="give a time in the past")
        is_lag = names is not None and "group" in names
        return Request(
            selection,
            by=("topic",) if self.all and is_lag else None if is_lag else names,
            lag_by=names if is_lag else ("group", "topic") if self.all else None,
            largest=self.largest or (_LARGEST_OF_ALL if self.all else 0),
            duplicates=self.duplicates or self.all,
            delayed=self.delayed or self.all,
            transactions=self.transactions or self.all,
            charts=self.plot is not None,
            timeline=timeline and names is not None and not is_lag,
            at_ms=at_ms,
            now_ms=now_ms,
            memory_bytes=self.memory,
            sort=self.sort,
            form=form,
        )


@with_groups
def stats(
    *,
    store: options.StoreOptions,
    selected: Annotated[
        options.SelectionOptions,
        Only("topic exclude_topic queue tag filter key since until time_field from_offset to_offset limit"),
    ],
    shown: Annotated[options.OutputOptions, Only("format json fields body body_limit tz quiet progress")],
    own: Annotated[StatsOptions, Before("commitlog")],
) -> int:
    """Count messages; show consumer lag and pending messages.

    Counts by topic, queue, tag, hour, day or size. bytes are those of the whole records, with header and
    properties; body sizes are those of the stored bodies, which may be compressed. Delay is the store time
    (the broker's clock) minus the born time (the producer's clock). Percentiles have an error of at most
    0.4 %. --largest shows each message as dump would. A batch record (BatchCQ) counts as one message, as does
    a filler of recover; a note counts fillers and shows how to leave them out. With several sections, the
    table format shows one table per section, jsonl adds the field section to each, and json is one object.

    Lag counts all messages after a group's committed offset, including those that a filter would skip. The
    lag rows also show whether the broker would read the next message from memory or from disk: from memory if
    its distance from the end of the log is below 40 % of the memory (accessMessageInMemoryMaxRatio). The
    status of a lag row is ok, or: never_committed, the group has no offset (in its retry topic all messages
    count); partial, it has none in some queues; queue_lost, a queue that the group consumed has no files;
    ahead, an offset is beyond the end of its queue (in both, the lag is unknown); lost, messages expired
    before the group read them; no_topic, the topic was deleted; no_group, no group has an offset;
    offsets_missing, offsets are lost.

    --delayed and --transactions cover the whole store. Of the options that select messages, only --topic and
    --queue apply to lag. --at shows what the store held at an earlier time. Messages that were deleted since,
    and offsets that consumers committed since, are unknown; lag is then a range instead of a number.

    The log is read once (twice for --duplicates) with bounded memory. In a store in use, messages are counted
    up to where the log ended at the start. Properties and compressed bodies are not checked; use verify.

    Exits with 0 even if nothing matches; 1 for damage, and for a --topic or --queue that the store does
    not have; 2 for a usage error; 3 when something could not be read or matplotlib is missing; 4 when the
    file of --plot exists or would lie in the store; 70 for a bug in rmqtool; 130 when interrupted.
    """
    from rmqtool.findings import ScanCounters
    from rmqtool.report.stats.overview import overview

    writer, selection = shown.writer(), selected.selection(shown.tz)
    names = own.names()
    _check_lag(selection, names, is_alone=not (own.largest or own.duplicates or own.all or own.plot))
    seen, looked = FindingReport(writer), ScanCounters()
    with store.open(quiet=shown.quiet) as opened:
        if own.plot is not None:
            from rmqtool.commands.stats_plot import check_plot, draw

            picture = check_plot(own.plot, opened)
        request = own.request(
            selection, names, shown.row_format(opened, None), timeline=writer.chosen_format == "table"
        )
        with writer.progress("stats", sum(file.size for file in opened.layout.commit_log)) as bar:
            found = overview(opened, request, seen.report, bar.advance, looked)
        for note in found.notes:
            writer.note(f"rmqtool: {note}")
        if own.plot is not None and found.charts is not None:
            draw(found.charts, picture, request.form.tz, title=str(store.store))
        write_sections(writer, found, recover=store.command("recover"), tz=request.form.tz)
        if own.at is None and not selected.queue:
            _note_resets(store, opened, found, writer)
        _note_timeline(request, found, writer)
        unknown = 0
        if request.scans or request.lag_by is not None:
            unknown = _note_selected(
                opened, selection, looked, request.form.tz, writer, found=found.selected > 0
            )
        return worst_exit_code(seen.exit_code(), found.exit_code, unknown)


def _note_selected(
    opened: Store, selection: Selection, looked: ScanCounters, zone: tzinfo | None, writer: Output,
    *, found: bool,
) -> int:  # fmt: skip
    """Note what the selected messages are, and what of the selection the store lacks; the exit code."""
    note_fillers(looked.batches, selection, writer)
    note_selection([opened], selection, writer, looked.batches)
    note_times([opened], selection, writer, zone, found=found)
    return report_unknown([opened], selection, looked, found=found)


def _note_resets(store: options.StoreOptions, opened: Store, found: Overview, writer: Output) -> None:
    """Name the line that lets a group begin after what expired, where it can be run."""
    if opened.layout.kind != "store" or opened.layout.rocksdb_config is not None:
        return
    for text, words in resets_of_lag(found.lags):
        line = store.command("reset-offset", *words)
        writer.note(f"rmqtool: {text} (shows the plan first): {line}")


def _note_timeline(request: Request, found: Overview, writer: Output) -> None:
    bars = None if found.timeline is None else found.timeline.bars(_SPARKS_MAX)
    if request.timeline and bars is not None and len(bars.counts) > 2:
        writer.note(f"rmqtool: messages over time {sparkline(bars, request.form.tz)}")


def _check_lag(selection: Selection, names: tuple[str, ...] | None, *, is_alone: bool) -> None:
    """Raise UsageError if only lag is requested and messages are selected too."""
    limits = (selection.since, selection.until, selection.from_offset, selection.to_offset)
    has_others = selection.tags or selection.keys or selection.filter or limits != (None,) * len(limits)
    if names and "group" in names and is_alone and has_others:
        raise UsageError(
            "--by group selects only by --topic, --exclude-topic and --queue: lag counts all messages of a"
            " queue",
            hint="--at shows the lag of an earlier time",
        )


BAR_WIDTH = 20
ROWS_SHOWN = 20
"""Rows of a section that are shown if several sections are."""
_MEASURED = {"messages": "bytes", "lag": "lag_messages", "delayed": "count", "transactions": "count"}
_TITLES = {
    "messages": "Messages",
    "lag": "Lag of consumer groups",
    "largest": "Largest messages",
    "duplicates": "Unique keys stored more than once",
    "delayed": "Pending delayed messages",
    "transactions": "Transactions",
}

Row = dict[str, Any]


def write_sections(writer: Output, found: Overview, *, recover: str, tz: tzinfo | None) -> None:
    """Write all sections; with a single section, its rows in any format. `recover` as in `of_lag`.

    `tz` is the zone of times in notes.

    Raises:
        UsageError: csv or tsv for several sections.
    """
    is_table = writer.chosen_format == "table"
    if len(found.sections) == 1:
        section = found.sections[0]
        rows = _with_bars(section) if is_table else section.rows
        if not writer.write_rows(rows, section.fields, _headings(section)):
            writer.note(f"rmqtool: {_none_text(section)}")
        elif is_table and section.name == "messages" and len(counts := list(section.rows)) > 1:
            writer.note(f"rmqtool: {_total_text(counts, found.selected)}")
        elif is_table and found.next_due:
            writer.note(f"rmqtool: next due: {'; '.join(_due_text(each, tz) for each in found.next_due)}")
        for sentence in undelivered_sentence(found.undelivered):
            writer.note(f"rmqtool: {sentence}")
        if section.name == "lag":
            for sentence in of_lag(section.rows, recover, lost=found.groups_lost):
                writer.note(f"rmqtool: {sentence}")
        return
    if writer.chosen_format in ("csv", "tsv"):
        raise UsageError("csv and tsv can show only one section", hint="request one section, or use jsonl")
    if writer.fields is not None:
        raise UsageError("--fields can be used with only one section", hint="request one section")
    if is_table:
        writer.write_object({}, _tables(writer, found))
    elif writer.chosen_format == "json":
        whole: Row = {"as_of": found.as_of} if found.as_of is not None else {}
        writer.write_object(whole | {section.name: list(section.rows) for section in found.sections})
    else:
        names = dict.fromkeys(name for section in found.sections for name in section.fields)
        lines = ({"section": section.name, **row} for section in found.sections for row in section.rows)
        writer.write_rows(lines, ("section", *names))


def _tables(writer: Output, found: Overview) -> Iterator[str]:
    for number, section in enumerate(found.sections):
        rows = list(_with_bars(section))
        if number:
            yield ""
        yield f"{_TITLES[section.name]}:" if rows else _none_text(section)
        yield from writer.table_lines(rows[:ROWS_SHOWN], _headings(section))
        if len(rows) > ROWS_SHOWN:
            yield f"and {len(rows) - ROWS_SHOWN} more"


def _total_text(rows: Sequence[Row], selected: int) -> str:
    """Say how many messages all rows count; their bytes if no row is left out by a limit."""
    text = f"total {counted(selected, 'message')}"
    if sum(row["count"] for row in rows) == selected:
        text += f", {sum(row['bytes'] for row in rows)} bytes, in {counted(len(rows), 'row')}"
    return text


def _due_text(due: NextDue, tz: tzinfo | None) -> str:
    """Return `TIME (of 5 messages, 2 overdue)`."""
    when = "unknown" if due.first_ms is None else format_time(due.first_ms, tz)
    what = f"{counted(due.waiting, 'record')} of POP" if due.of_pop else counted(due.waiting, "message")
    return f"{when} (of {what}, {due.overdue} overdue)"


def _none_text(section: Section) -> str:
    """Say that a section has no rows. A store without offsets does not show that there is no lag."""
    if section.name == "lag":
        return "no consumer group has offsets here"
    return "no message matches" if section.name == "messages" else f"{_TITLES[section.name]}: none"


def _headings(section: Section) -> Sequence[str]:
    """Return the columns of a table: the one with the bars is the first of the values."""
    name = _MEASURED.get(section.name)
    if name is None:
        return section.table_fields
    place = section.table_fields.index(name) + 1
    return (*section.table_fields[:place], "share", *section.table_fields[place:])


_NO_GROUP = "(unknown)"  # no group has an offset for the topic, or all offsets are lost


def _with_bars(section: Section) -> Iterable[Row]:
    """Return the rows for a table: with bars in proportion to the largest value, and rounded numbers."""
    name = _MEASURED.get(section.name)
    if name is None:
        yield from section.rows
        return
    rows = list(section.rows)
    if section.name == "lag":
        rows = [row | {"group": row["group"] or _NO_GROUP} if "group" in row else row for row in rows]
    most = max((row[name] or 0 for row in rows), default=0)
    for row in rows:
        yield _rounded(row) | {"share": bar(row[name] or 0, most, BAR_WIDTH)}


_SPARKS = "▁▂▃▄▅▆▇█"
_SPARKS_MAX = 40


def sparkline(bars: Bars, tz: tzinfo | None) -> str:
    """Return messages over time in one line: a character for each step, empty without messages."""
    most = max(bars.counts)
    line = "".join(" " if not count else _SPARKS[-(-count * 8 // most) - 1] for count in bars.counts)
    first, last = (
        format_time(time_ms, tz) or f"{time_ms} ms"
        for time_ms in (bars.start_ms, bars.start_ms + len(bars.counts) * bars.step_ms)
    )
    end = last[11:19] if last[:10] == first[:10] else f"{last[:10]} {last[11:19]}"
    rate = most / (bars.step_ms / 1000)
    highest = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
    step = format_duration(bars.step_ms)
    return f"{line}  {first[:10]} {first[11:19]} to {end}, {step} each, at most {highest}"


def _rounded(row: Row) -> Row:
    return {name: round(value, 1) if isinstance(value, float) else value for name, value in row.items()}
