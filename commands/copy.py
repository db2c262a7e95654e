"""`rmqtool copy`: a subset of a store as a new store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqtool.command_line import on_store
from rmqtool.commands import options
from rmqtool.commands.finding_report import (
    FindingReport,
    fillers_text,
    note_selection,
    note_times,
    report_unknown,
)
from rmqtool.commands.groups import Given, with_groups
from rmqtool.commands.verdicts import by_name, listed
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, RmqtoolError, UsageError, worst_exit_code
from rmqtool.formats.versions import METAVAR, Broker
from rmqtool.output import Output
from rmqtool.terminal import counted

if TYPE_CHECKING:
    from rmqtool.read.selection import Selection
    from rmqtool.read.store import Store
    from rmqtool.report.copy import CopyResult

_LINES = 20  # messages left out that are reported one by one

NewStore = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Write the new store to this missing or empty folder."
    ),
]
RenameTopic = Annotated[
    list[str] | None,
    typer.Option(
        "--rename-topic",
        metavar="OLD=NEW",
        help="Rename a selected topic (repeatable, each OLD once). A new name is not renamed again.",
    ),
]
Profile = Annotated[
    Broker | None,
    typer.Option(
        "--profile",
        metavar=METAVAR,
        help="Broker version that will open the new store. Default: that of STORE.",
    ),
]
CommitLogFileSize = Annotated[
    int | None,
    typer.Option(
        "--commitlog-file-size",
        metavar="SIZE",
        parser=options.parse_size,
        help="Size of a commit log file of the new store. Default: as in STORE.",
    ),
]


@with_groups
def copy(
    *,
    output: NewStore = None,
    rename_topic: RenameTopic = None,
    profile: Profile = None,
    commitlog_file_size: CommitLogFileSize = None,
    reserve: Annotated[bool, options.RESERVE] = True,
    store: options.StoreOptions,
    selected: options.SelectionOptions,
    shown: options.ObjectOutput,
    again: Given,
) -> int:
    """Write the selected messages of a store as a new store.

    A message keeps its stored body, properties, times, hosts and flags. It gets a new physical offset
    and a new queue offset: every queue counts from 0 without gaps. The queues and the index are built
    from the new log, and topics.json lists the topics with their settings. Topics that get the same name
    are merged in log order. Properties that name a renamed topic (RETRY_TOPIC, REAL_TOPIC,
    DLQ_ORIGIN_TOPIC) are updated.

    The broker's system topics are copied only if --topic gives their full name. Delayed messages of
    SCHEDULE_TOPIC_XXXX and timer messages of rmq_sys_wheel_timer are due again in the copy, because the
    offsets of delivery (delayOffset.json) are not copied; recover --apply on the copy writes delayOffset.json
    again. If some of these messages still wait and are left out, a note counts them, and shows the line that
    takes them along. Half messages, op records and consumer offsets are never copied. Damaged records are
    skipped and reported. Records whose only damage is in their properties (CL13) are reported and copied
    unchanged.
    left_out counts the selected messages that are not copied: left_out_damaged (a damaged range that no
    queue refers to counts as one message), left_out_refused (a broker would reject them), left_out_fillers
    (fillers of recover, which stand for lost messages: they keep queue offsets, and the copy has new ones),
    and those of left_out_topics.

    STORE is only read and may be in use. The new store appears under its name when it is complete.

    Exits with 0 when everything was copied; 1 for damage, for skipped messages, and when no message matches
    (no store is created); 2 for a usage error; 3 when something could not be read or written; 4 when --output
    exists, and when --topic names a topic of half messages or op records; 70 for a bug in rmqtool; 130 when
    interrupted.
    """
    from rmqtool.findings import ScanCounters
    from rmqtool.report.copy import copy as run

    if output is None:
        raise UsageError("--output is missing", hint="--output NEW names the folder of the new store")
    place = _place(output)
    writer, selection = shown.writer(changes=True), selected.selection(shown.tz)
    given: dict[str, Any] = {"reserve": reserve}
    if commitlog_file_size is not None:
        given["commit_log_file_size"] = commitlog_file_size
    renames = _renames(rename_topic)
    seen, left_out = FindingReport(writer), _LeftOut(writer)
    with store.open(quiet=shown.quiet) as opened:
        _check_renames(opened, selection, renames)
        if profile is None:
            options.note_assumed_version(writer, opened.written_by, "--profile")
        with writer.progress("copy", sum(file.size for file in opened.layout.commit_log)) as bar:
            result = run(
                opened, place, selection, seen.report, bar.advance, renames=renames,
                profile=profile, options=given, refused=left_out.report,
            )  # fmt: skip
        _report_result(writer, place, result)
        _report_waiting(writer, place, opened, result, again)
        looked = ScanCounters(topics=set(selection.topics) if result.messages else set())
        note_selection([opened], selection, writer)
        note_times([opened], selection, writer, shown.zone, found=result.made)
        unknown = report_unknown([opened], selection, looked, found=result.messages > 0)
        unused = _report_unused_renames(opened, renames, result)
    lost = EXIT_OK if result.made and not result.damaged + result.refused else EXIT_FINDINGS
    return worst_exit_code(seen.exit_code(), unknown, unused, lost)


def _report_result(writer: Output, place: Path, result: CopyResult) -> None:
    """Write the result as an object; without a new store, print the reason."""
    if result.made:
        writer.write_object({
            "store": str(place), "profile": result.profile, "messages": result.messages,
            "bytes": result.bytes, "queues": result.queues, "left_out": result.left_out,
            "left_out_damaged": result.damaged, "left_out_refused": result.refused,
            "left_out_fillers": result.fillers, "left_out_topics": _by_topic(result.system_topics),
            "topics": _by_topic(result.topics),
        })  # fmt: skip
        writer.note("rmqtool: queue offsets count from 0; consumer offsets are not copied")
        for doubt in result.doubts:
            writer.note(f"rmqtool: {doubt}")
    else:
        why = "only fillers of recover match" if result.fillers else "no message matches"
        if result.refused:
            why = "a broker would reject all of them"
        writer.note(f"rmqtool: {why}: no store was created")
    if result.fillers and result.made:
        writer.note(f"rmqtool: not copied: {fillers_text(result.fillers)}")
    if result.system_topics:
        writer.note(f"rmqtool: not copied: {by_name(result.system_topics, 'message')}: a broker's own topics")
    named = {topic: count for topic, count in result.damaged_topics.items() if topic}
    if named:
        writer.note(f"rmqtool: not in the copy: {by_name(named, 'damaged message')}")
    if unnamed := result.damaged_topics.get(""):
        writer.note(f"rmqtool: not in the copy: {counted(unnamed, 'damaged range')} that no queue leads to")
    if result.refused:
        writer.note(f"rmqtool: {counted(result.refused, 'message')} not copied: a broker would reject them")


_WAITING = {"delayed": "delayed message", "timer": "timer message", "pop": "record", "half": "half message"}
_OF_WHAT = {"pop": " of POP", "half": " of open transactions"}


def _report_waiting(writer: Output, place: Path, opened: Store, result: CopyResult, again: Given) -> None:
    """Count what still waits in the store and is left out, and print the lines that take it along."""
    from rmqtool.message.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
    from rmqtool.report.copy import still_waiting
    from rmqtool.storage.profile import profile_named

    waiting = still_waiting(opened, result.system_topics)
    if not waiting:
        return
    counts = [
        f"{'' if each.exact else 'at most '}{counted(each.messages, _WAITING[each.kind])}"
        f"{_OF_WHAT.get(each.kind, '')}"
        for each in waiting
    ]
    writer.note(f"rmqtool: still waiting and not copied: {listed(counts)}")
    kinds = {each.kind for each in waiting}
    topics = [SCHEDULE_TOPIC] if "delayed" in kinds else []
    what = ["delayed"] if topics else []
    if kinds & {"timer", "pop"}:
        if profile_named(result.profile).has_timer:
            topics.append(TIMER_TOPIC)
            what.append("timer")
        else:
            writer.note(f"rmqtool: broker {result.profile} has no timer and cannot deliver timer messages")
    if not topics:
        return
    if not again.has("topic"):
        topics.insert(0, "*")
    new = _free_name(place)
    words = ("--output", new, *(word for topic in topics for word in ("--topic", topic)))
    writer.note(
        f"rmqtool: a copy with the {listed(what)} messages: {again.line(*words, without=('output',))}"
    )
    writer.note(
        "rmqtool: its broker would deliver again what was delivered, unless this is run first:"
        f" {on_store(new, 'recover', '--apply')}"
    )
    if "pop" in kinds:
        writer.note("rmqtool: records of POP name the queue offsets of this store, which the copy changes")


def _free_name(place: Path) -> str:
    """Return the folder of the new store, with a number if something exists there."""
    names = (str(place), *(f"{place}-{number}" for number in range(2, 1000)))
    return next((name for name in names if not os.path.lexists(name)), str(place))


def _by_topic(counts: dict[str, int]) -> list[dict[str, Any]]:
    return [{"topic": name, "messages": count} for name, count in sorted(counts.items())]


def _place(output: str) -> Path:
    """Return the folder of the new store. Raises UsageError for a URL: a store is written in place."""
    from rmqtool.storage.remote_url import is_url, local_path

    local = local_path(output)
    if output == "-":
        raise UsageError("--output: a store is a folder, and cannot be written to standard output")
    if not output or (local is None and is_url(output)):
        raise UsageError(
            "--output: a new store needs a local folder", hint="write it locally, then upload it"
        )
    return Path(local or output)


def _renames(texts: list[str] | None) -> dict[str, str]:
    """Return the new names by old name. Raises UsageError for a text that is not OLD=NEW."""
    renames: dict[str, str] = {}
    for text in texts or ():
        old, found, new = text.partition("=")
        if not (old and found and new) or old in renames:
            raise UsageError(f"--rename-topic {text!r}: it must be OLD=NEW, each OLD once")
        renames[old] = new
    return renames


def _check_renames(store: Store, selection: Selection, renames: dict[str, str]) -> None:
    """Raise UsageError for a topic to rename that is not selected, or not in the store."""
    from rmqtool.read.known_topics import topic_names

    known = topic_names(store.layout) if store.layout.kind == "store" else set()
    for old in renames:
        if not selection.matches_topic(old):
            raise UsageError(f"--rename-topic {old}: the selection excludes this topic")
        if known and old not in known:
            raise UsageError(f"--rename-topic {old}: the store has no topic with this name")


def _report_unused_renames(store: Store, renames: dict[str, str], result: CopyResult) -> int:
    """Report topics to rename that are not in the store; return the exit code."""
    from rmqtool.findings import ScanCounters
    from rmqtool.read.selection import Selection

    looked = ScanCounters(topics={old for old, new in renames.items() if result.topics.get(new)})
    return report_unknown([store], Selection(topics=set(renames)), looked, found=True)


class _LeftOut:
    """Reports messages that no broker would accept: the first ones one by one."""

    def __init__(self, writer: Output) -> None:
        self._writer = writer
        self._count = 0

    def report(self, error: RmqtoolError) -> None:
        """Report one message."""
        self._count += 1
        if self._count <= _LINES:
            self._writer.note(f"rmqtool: skipped: {error.message}")
        elif self._count == _LINES + 1:
            self._writer.note("rmqtool: more messages are skipped")
