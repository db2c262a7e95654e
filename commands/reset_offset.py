"""`rmqtool reset-offset`: set the committed offsets of consumer groups in a stopped store."""

from __future__ import annotations

import time
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Annotated

import typer

from rmqtool.commands import changes, options
from rmqtool.commands.finding_report import report_unknown, times_text
from rmqtool.commands.groups import Given, Only, with_groups
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, EXIT_REFUSED, UsageError, worst_exit_code
from rmqtool.output import Output
from rmqtool.terminal import counted
from rmqtool.times import format_duration, format_time

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.repair.reset_offset import Planned, Request

_GROUPS_SHOWN = 10
_START = "start the broker, then the consumers"
_IN_PLAN = ("group", "topic", "exclude_topic", "queue", "since", "from_", "tz")
COLUMNS = (
    "state", "group", "topic", "queue_id", "committed_offset", "new_offset", "again_messages",
    "skipped_messages", "lag_messages", "min_offset", "max_offset", "reason",
)  # fmt: skip
TABLE_COLUMNS = (
    "group", "topic", "queue_id", "committed_offset", "new_offset", "again_messages", "skipped_messages",
    "lag_messages", "reason",
)  # fmt: skip

Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GLOB", help="Reset the consumer groups matching GLOB (repeatable)."),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="earliest|latest|OFFSET|-N",
        help="Let the groups start in each queue at its first message, at its end, at this queue offset, or N"
        " messages before its end.",
    ),
]


@with_groups
def reset_offset(
    *,
    store: options.ProfiledStoreOptions,
    group: Groups = None,
    from_: From = None,
    selected: Annotated[options.SelectionOptions, Only("since topic exclude_topic queue")],
    change: Annotated[options.PlanOptions, Only("apply plan write_plan backup_dir force")],
    shown: Annotated[options.RowOutput, Only("tz format json fields quiet")],
    given: Given,
) -> int:
    r"""Set the committed offsets of consumer groups.

    Writes config/consumerOffset.json of a stopped broker, as mqadmin resetOffsetByTime does on a running one.
    The groups start at the first message that was stored at or after --since, or at the position of --from.
    Where a queue has no such message, they start at its end. An offset before the first or after the last
    message of a queue becomes the nearest one in it.
    rmqtool tail with the same --since or --from shows the messages that a group would receive.

    Without --apply the plan is only shown. For each group and queue it gives the
    committed and the new offset, how many consumed messages the group receives again (again_messages), how
    many messages it skips (skipped_messages), and how many it receives in all (lag_messages). What a group
    receives again or skips is unknown, and blank, where its committed offset is lost. The previous file is
    backed up (rmqtool recover --undo restores it), and also becomes consumerOffset.json.bak, as with a
    broker. If the old .bak has larger offsets than the file (CF11), a note says so.

    --group is required. A group is reset in all topics in which it has committed an offset, and in its
    retry topic, whose messages are copies of those that it failed to consume; --topic and --exclude-topic
    restrict the topics, the retry topic too: --topic orders --topic %RETRY%billing resets both. A group
    that has no offset in a topic yet gets one only if the group and the topic are both named without
    wildcards. Do that when the committed offsets are lost: name each group with its topics. --group '*'
    then prints a command for each group whose retry messages show what it consumes, and names the groups
    for which nothing shows it. It does so too for single groups that have no offset. The retry topic of a
    group without any offset is reset too; a queue offset (--from OFFSET) sets retry topics only if --topic
    names topics, because it means nothing in another one. If consumerOffset.json is lost, the command
    writes a new one, which records that the offsets of all other groups are lost. Until a broker starts,
    verify and doctor therefore report each group that has none
    (CF08).

    Stop the broker and the consumers of the groups before --apply. Start the broker before the consumers.
    A consumer that keeps running goes on where it was, and commits its own offsets again. Consumers that
    broadcast keep their offsets themselves. A slave takes its offsets from its master: reset them there.
    Offsets in RocksDB or in lmqConsumerOffset.json are not written. The broker's own groups are never
    reset. No entry is removed: to remove that of a group or topic which does not belong to the store, delete
    it from offsetTable in consumerOffset.json and its .bak, a line "TOPIC@GROUP" with what is in its braces.
    rmqtool verify --pass config then checks that the file can still be read. On a running broker, mqadmin
    deleteSubGroup --removeOffset removes a group with all its offsets.

    Exits with 0 when nothing is to be changed, or everything was set; 1 when something would change, and
    for a --topic or --queue that the store does not have; 2 for a usage error; 3 when something could not
    be read or written; 4 when an offset was left unchanged or the change was refused; 5 when the store is in
    use.
    """
    output = shown.writer(changes=change.apply)
    if change.plan is not None and (group or from_ or selected.words()):
        raise UsageError("--plan holds the groups, topics and the start: give no other")
    changes.check_options(change)
    output.check_fields(COLUMNS)  # before anything is changed
    now_ms = time.time_ns() // 1_000_000
    request = None if change.plan is not None else _request(group, from_, selected, shown.tz, now_ms)
    if change.apply:
        return _apply(store, request, change, output, shown.zone)
    return _show(store, request, change, output, shown.zone, given, now_ms)


def _request(
    groups: list[str] | None,
    from_: str | None,
    selected: options.SelectionOptions,
    tz: str | None,
    now_ms: int,
) -> Request:
    from rmqtool.repair.reset_offset import Request
    from rmqtool.report.tail.start import parse_position

    if not groups:
        raise UsageError("--group is missing", hint="--group '*' resets all groups that have offsets")
    since = selected.selection(tz, now_ms).since
    if (from_ is None) == (since is None):
        how = "--since TIME or --from POSITION is missing"
        raise UsageError(
            how if since is None else "--since and --from exclude each other",
            hint="each of them sets the start",
        )
    return Request(
        groups=tuple(groups),
        topics=tuple(selected.topic or ()),
        exclude_topics=tuple(selected.exclude_topic or ()),
        queues=tuple(sorted(selected.queue_ids())),
        position=None if from_ is None else parse_position(from_),
        since=since,
    )


def _show(
    store: options.ProfiledStoreOptions,
    request: Request | None,
    change: options.PlanOptions,
    output: Output,
    zone: tzinfo | None,
    given: Given,
    now_ms: int,
) -> int:
    """Show the plan for `request`, or that of a plan file; return the exit code."""
    from rmqtool.repair.reset_offset import COMMAND, Request, plan

    file, wanted = changes.wanted(change, COMMAND, request, Request.of_options)

    def make(opened: Store) -> Planned:
        return plan(opened, wanted)

    opened, planned = changes.show(store, change, output, make, file)
    _write(planned, "planned", output)
    is_in_plan = change.plan is not None or change.write_plan is not None
    if not is_in_plan:
        _note_late(planned, output, given, now_ms)
    _notes(planned, output, zone)
    if planned.refusals or planned.plan.actions:
        words = [] if wanted.since is None or is_in_plan else ["--since", _time(wanted.since)]
        changes.note_next(
            output, given, change, planned.refusals, *words, in_plan=_IN_PLAN, without=("since", "tz")
        )
    code = EXIT_FINDINGS if planned.is_needed else EXIT_OK
    return worst_exit_code(code, _left(planned), _unknown(opened, planned))


def _apply(
    store: options.ProfiledStoreOptions,
    request: Request | None,
    change: options.PlanOptions,
    output: Output,
    zone: tzinfo | None,
) -> int:
    from rmqtool.repair.reset_offset import reset_offsets

    with store.open() as opened:
        options.note_assumed_version(output, opened.written_by, "--profile")
    planned, applied = reset_offsets(
        store.open, request, plan_file=change.plan, backup_dir=change.backup_dir, force=change.force
    )
    _write(planned, "done", output)
    if planned.earlier.text is not None:
        output.note(f"rmqtool: {planned.earlier.text}")
    _notes(planned, output, zone)
    if applied is not None and applied.backup is not None:
        count = counted(sum(reset.is_change for reset in planned.resets), "offset")
        others = counted(len(planned.without), "other group")
        is_lost = planned.without and planned.are_lost
        then = f"set those of the {others} before the broker starts" if is_lost else _START
        output.note(f"rmqtool: {count} set; {then}")
        changes.note_undo_command(output, store, applied.backup)
    with store.open() as opened:
        return worst_exit_code(_left(planned), _unknown(opened, planned))


def _time(time_ms: int, zone: tzinfo | None = UTC) -> str:
    return format_time(time_ms, zone) or str(time_ms)


def _left(planned: Planned) -> int:
    return EXIT_REFUSED if planned.left else EXIT_OK


def _unknown(store: Store, planned: Planned) -> int:
    """Report requested topics and queues that the store does not have; return the exit code."""
    from rmqtool.findings import ScanCounters

    return report_unknown([store], planned.request.selection(), ScanCounters(), found=bool(planned.resets))


def _write(planned: Planned, state: str, output: Output) -> None:
    """Write a row for each offset; a table has the columns with values, and the lag if others have none."""
    rows = []
    for reset in planned.resets:
        how = "left" if reset.offset is None else state if reset.is_change else "unchanged"
        rows.append({"state": how, **reset.row()})
    shown = [name for name in TABLE_COLUMNS if any(row[name] is not None for row in rows)]
    if all(row["again_messages"] is not None for row in rows):
        shown = [name for name in shown if name != "lag_messages"]
    output.write_rows(rows, COLUMNS, shown)


def _notes(planned: Planned, output: Output, zone: tzinfo | None) -> None:
    """Say where the groups start, and what each receives again and skips."""
    for text in planned.warnings:
        output.note(f"rmqtool: {text}")
    since = planned.request.since
    if since is not None and planned.last_ms is not None and since > planned.last_ms:
        text = times_text({"--since": since}, zone, planned.last_ms, only_future=False)
        output.note(f"rmqtool: {text}: the groups start at the ends of their queues")
    elif since is not None:
        output.note(f"rmqtool: the groups start at the first message stored at {_time(since, zone)} or later")
    groups = list(dict.fromkeys(reset.group for reset in planned.resets))
    for group in groups[:_GROUPS_SHOWN]:
        output.note(f"rmqtool: {group} {_of_group(planned, group)}")
    if len(groups) > _GROUPS_SHOWN:
        output.note(f"rmqtool: {len(groups) - _GROUPS_SHOWN} more groups are in the table")
    if planned.without:
        output.note(f"rmqtool: {_without(planned)}")
        for line in planned.lines:
            output.note(f"  {line}")
    if planned.is_needed:
        output.note(
            "rmqtool: consumers of these groups that keep running go on where they were: stop them before the"
            " broker starts"
        )
    elif planned.resets and not planned.left:
        output.note("rmqtool: nothing was changed: the groups start there already")
    else:
        output.note("rmqtool: nothing was changed")


def _note_late(planned: Planned, output: Output, given: Given, now_ms: int) -> None:
    """If no message is as new as --since: note the line that begins as long before the newest message.

    `now_ms` is the time from which --since counts.
    """
    since, last_ms = planned.request.since, planned.last_ms
    if since is None or last_ms is None or since <= last_ms:
        return
    ago_ms = now_ms - since
    if ago_ms > 0:
        line = given.line("--since", _time(last_ms - ago_ms), without=("since", "tz"))
        to = f"to begin {format_duration(ago_ms)} before the newest message instead"
        output.note(f"rmqtool: no message is as new as --since; {to}: {line}")


def _without(planned: Planned) -> str:
    """What groups without offsets mean."""
    groups = planned.without
    if not planned.are_lost:
        have = "1 group has" if len(groups) == 1 else f"{len(groups)} groups have"
        return f"{have} no offset and {'is' if len(groups) == 1 else 'are'} left out"
    have = "1 more group has" if len(groups) == 1 else f"{len(groups)} more groups have"
    return f"{have} lost all offsets; set theirs too, or each begins at its consumeFromWhere after a start"


def _of_group(planned: Planned, group: str) -> str:
    mine = [reset for reset in planned.resets if reset.group == group]
    parts = []
    if any(reset.skipped is not None for reset in mine):
        again, skipped = sum(reset.again or 0 for reset in mine), sum(reset.skipped or 0 for reset in mine)
        parts.append(f"receives {counted(again, 'message')} again and skips {skipped}")
    first = [reset for reset in mine if reset.committed is None]
    if first:
        lag, queues = sum(reset.lag or 0 for reset in first), counted(len(first), "queue")
        there = sum(reset.max_offset - reset.min_offset for reset in first)
        parts.append(
            f"gets a first offset in {queues} and receives {lag} of {counted(there, 'message')} there"
        )
    left = sum(reset.offset is None for reset in mine)
    if left:
        parts.append(f"keeps its offset in {counted(left, 'queue')}")
    return "; ".join(parts)
