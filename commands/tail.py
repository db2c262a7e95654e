"""`rmqtool tail`: the messages of queues as a consumer gets them, and with --follow new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rmqtool.commands import options
from rmqtool.commands.finding_report import FindingReport, note_times, report_unknown, report_unread
from rmqtool.commands.groups import Before, Only, with_groups
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, UsageError, worst_exit_code
from rmqtool.output import Output
from rmqtool.terminal import counted, print_error, shortened
from rmqtool.times import parse_duration

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqtool.read.selection import Selection
    from rmqtool.read.store import Store
    from rmqtool.report.tail.start import StartPosition
    from rmqtool.report.tail.subscription import Subscription

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="earliest|latest|OFFSET|-N",
        help="Start in each queue at this queue offset, or N messages before the end. Default: earliest, or"
        " latest with --follow.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="Start at the committed offsets of this consumer group; without --topic, in all its topics.",
    ),
]
Retry = Annotated[
    bool,
    typer.Option(
        "--retry", help="With --group: also show the messages that its consumers sent back for a retry."
    ),
]
Last = Annotated[
    int | None,
    typer.Option(
        "--last", metavar="N", min=0, help="Start with the last N matching messages over all queues."
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Show new messages as they arrive, until interrupted.")
]
MaxDuration = Annotated[
    str | None,
    typer.Option("--max-duration", metavar="TIME", help="Stop after this time: 30s, 5m or 1h."),
]


class _Output(options.OutputOptions):
    """Options of the output: -f is that of --follow."""

    format_string: Annotated[
        str | None,
        typer.Option("--format-string", metavar=options.FORMAT_STRING, help=options.FORMAT_STRING_HELP),
    ] = None


@with_groups
def tail(
    *,
    store: options.StoreOptions,
    selected: Annotated[
        options.SelectionOptions, Only("topic exclude_topic queue since tag filter grep limit")
    ],
    from_: Annotated[From, Before("since")] = None,
    group: Annotated[Group, Before("tag")] = None,
    retry: Annotated[Retry, Before("tag")] = False,
    last: Annotated[Last, Before("tag")] = None,
    follow: Annotated[Follow, Before("limit")] = False,
    max_duration: MaxDuration = None,
    shown: Annotated[_Output, Only("format json format_string fields body body_limit tz quiet")],
) -> int:
    """Show the messages of queues as a consumer gets them.

    Reads a stopped store, or one that a broker is using. Reads messages through the consume queues and
    shows them in log order. A tag may use consumer syntax,
    'TagA || TagB'. A batch record (BatchCQ) is one row, as a broker's pull returns it. Nothing is locked
    or written, and the broker is not contacted: no consumer offset changes. If a queue does not have the
    start offset, a note names the status that a broker would return. If the queues of a stopped store end
    before its log, as after a crash, a note says so, and the later messages are not shown. Damaged
    properties (CL09, CL13) and bodies that cannot be decompressed (CL14) are detected unless
    --fields leaves out status.

    With --follow, tail continues with new messages, files, queues and topics until it is interrupted.
    The messages of each queue are shown in order. Messages that expire unread, and a queue that a
    recovery has truncated, are reported on standard error.

    Exits with 0 even if nothing matches, and after an interrupt of --follow; 1 for damage, and for a
    --topic or --queue that the store does not have; 2 for a usage error; 3 when something could not be
    read or is stored in a form rmqtool cannot read; 70 for a bug in rmqtool;
    130 when interrupted without --follow.
    """
    from rmqtool.findings import ScanCounters
    from rmqtool.report.dump.log import FIELDS, table_fields
    from rmqtool.report.export.lines import can_be_lines
    from rmqtool.report.tail.rows import BulkRows, tail_rows
    from rmqtool.report.tail.topics import open_tail

    duration_ms = None if max_duration is None else parse_duration(max_duration)
    selection = selected.but(tag=None, filter=None, grep=None).selection(shown.tz)
    start = _start(from_, selection.since, group, last, follow=follow)
    wanted = _subscription(selected)  # which has the tag, the filter and the pattern
    writer = shown.writer(pages=not follow, grep=wanted.grep)
    writer.check_fields(FIELDS)
    seen = FindingReport(writer)
    with store.open(quiet=shown.quiet) as opened:
        selection = _with_topics_of(opened, selection, group, retry=retry)
        form = shown.row_format(opened, writer.fields)
        try:
            follower = open_tail(
                opened, selection, start, wanted, follow=follow, report=seen.report, note=_note_to(writer)
            )
            if follow and duration_ms is None:  # only an interrupt ends it
                note_times([opened], selection, writer, form.tz, found=True)
            code = report_unknown([opened], selection, ScanCounters(), found=False) if selected.topic else 0
            code = worst_exit_code(code, _report_unread(store, opened, selection, writer))
            bulk, lines = None, writer.line_format if can_be_lines(opened, writer.fields, form) else None
            if opened.is_local and (lines is not None or wanted.looks_inside):
                bulk = BulkRows(follower, form, writer.fields, lines, in_background=follow)
            rows = tail_rows(
                follower, form, seen.report, bulk=bulk, follow=follow, limit=selected.limit,
                duration_ms=duration_ms,
            )  # fmt: skip
            count = writer.write_rows(rows, FIELDS, table_fields)
        except KeyboardInterrupt:
            if not follow:
                raise
            return EXIT_OK
        whose = None if selected.topic or follow else group
        _note_unshown(opened, selection, whose, follower.removed, writer)
        _note_found(opened, selection, writer, form.tz, count, is_said=code != EXIT_OK)
        return worst_exit_code(seen.exit_code(), code)


def _note_found(
    store: Store, selection: Selection, writer: Output, zone: tzinfo | None, count: int, *, is_said: bool
) -> None:
    """Note that no message matches, unless the reason `is_said`, and the times if that helps."""
    if not count and selection.limit != 0 and not is_said:
        writer.note("rmqtool: no message matches")
    note_times([store], selection, writer, zone, found=count > 0)


def _report_unread(store: options.StoreOptions, opened: Store, selection: Selection, writer: Output) -> int:
    """Report what cannot be read: parts, and queues that have records but no units; return the exit code."""
    code = report_unread(opened, writer, queues=True)
    logs = opened.layout.queue_logs
    queues = () if logs is None else logs.found.queues
    lost = [each for each in queues if each.log and not each.units and selection.matches_topic(each.topic)]
    for topic in sorted({each.topic for each in lost}):
        line = store.command("dump", "--topic", topic)
        print_error(f"rmqtool: {shortened(topic)} has lost units, which tail reads; its records: {line}")
    return worst_exit_code(code, EXIT_FINDINGS if lost else EXIT_OK)


def _start(
    from_: str | None, since: int | None, group: str | None, last: int | None, *, follow: bool
) -> StartPosition:
    from rmqtool.report.tail.start import StartPosition, parse_position

    given = {"--from": from_, "--since": since, "--group": group, "--last": last}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} exclude each other", hint="each of them sets the start")
    position = ("latest" if follow else "earliest") if from_ is None else parse_position(from_)
    return StartPosition(last=last, group=group, since=since, position=position)


def _subscription(selected: options.SelectionOptions) -> Subscription:
    from rmqtool.report.tail.subscription import Subscription

    return Subscription.of(selected.tag or (), selected.expression(), selected.body_pattern())


def _with_topics_of(store: Store, selection: Selection, group: str | None, *, retry: bool) -> Selection:
    """Return the selection; if it names no topics, with those that the group consumes."""
    if group is None:
        if retry:
            raise UsageError("--retry needs --group")
        return selection
    from rmqtool.message.system_topics import RETRY_PREFIX
    from rmqtool.report.tail.start import offsets_of

    own = f"{RETRY_PREFIX}{group}"
    topics = set(selection.topics)
    if not topics:
        topics = {topic for topic, _ in offsets_of(store, group)} - {own}
    return replace(selection, topics=topics | {own} if retry else topics or {own})


def _note_unshown(
    store: Store, selection: Selection, group: str | None, removed: int, writer: Output
) -> None:
    """Note how many messages were `removed` unread, and how many the group gets of its retry topic."""
    from rmqtool.message.system_topics import RETRY_PREFIX
    from rmqtool.report.tail.start import sent_back

    if removed:
        writer.note(f"rmqtool: {removed} messages were skipped: their files were deleted")
    own = f"{RETRY_PREFIX}{group}"
    if group is None or own in selection.topics or not (count := sent_back(store, group)):
        return
    what = f"{counted(count, 'message')} of {shortened(own)}"
    are = "is" if count == 1 else "are"
    writer.note(f"rmqtool: the group also receives {what}, which {are} shown with --retry")


def _note_to(writer: Output) -> Callable[[str], None]:
    return lambda text: writer.note(f"rmqtool: {text}")
