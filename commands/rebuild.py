"""`rmqtool rebuild`: rebuild consume queues, index and topics.json from the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqtool.command_line import command_line
from rmqtool.commands import changes, options
from rmqtool.commands.finding_report import report_unknown
from rmqtool.commands.groups import Given, Only, with_groups
from rmqtool.commands.recover_verdicts import offsets_lost_sentence
from rmqtool.commands.verdicts import listed
from rmqtool.errors import (
    EXIT_FINDINGS,
    EXIT_INPUT,
    EXIT_OK,
    EXIT_REFUSED,
    UsageError,
    worst_exit_code,
)
from rmqtool.output import Output
from rmqtool.storage.layout import can_be_folder
from rmqtool.terminal import counted, format_size

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.repair.plan import Applied
    from rmqtool.repair.rebuild.run import Planned, Request

_TOPICS_SHOWN = 5
_IN_PLAN = ("only", "topic", "queue")
COLUMNS = ("state", "change", "path", "length", "problem", "reason", "detail")
TABLE_COLUMNS = ("state", "change", "path", "length", "reason")

Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="queues|index|config",
        help="Rebuild only this part (repeatable). Default: all parts, or only queues with --topic or"
        " --queue.",
    ),
]


@with_groups
def rebuild(
    *,
    store: options.ProfiledStoreOptions,
    only: Parts = None,
    selected: Annotated[options.SelectionOptions, Only("topic queue")],
    change: Annotated[options.PlanOptions, Only("apply plan write_plan backup_dir force")],
    jobs: options.Jobs = 0,
    shown: Annotated[options.RowOutput, Only("format json fields quiet progress")],
    given: Given,
) -> int:
    r"""Rebuild queues, index and topics.json from the commit log.

    Compares every record with its queue unit and its index entries. Rebuilds each incorrect queue,
    and the index from its first incorrect file on. New files are written next to the old ones,
    checked, and moved into place with the times of the files that they replace. Correct files are not
    touched. Queue offsets do not change: if the first records of a queue have expired, their units
    are kept or replaced by fillers. A lost topics.json is rebuilt from the log: the highest queue id
    of a topic gives its number of queues. Other config files are restored from their .bak.

    Without --apply the plan is only shown. Everything that is replaced or deleted is backed up; rmqtool
    recover --undo restores it. Sound units keep the delivery times of delayed messages.
    For lost units the delays are taken from --broker-conf, else from the other units of the level; the plan
    says for how many messages the default is assumed. File sizes are detected from existing files: give
    --broker-conf if all queues or the whole index are missing and the broker's sizes are not the defaults
    (mappedFileSizeConsumeQueue, maxHashSlotNum, maxIndexNum).

    Queues in RocksDB are in one database, which is rebuilt as a whole, with a unit for every message of
    the log. That needs rocksdict (pip install 'rmqtool[rocksdb]'). In a store that keeps its
    queues both in files and in RocksDB, --topic and --queue select queues in files, and leave the database as
    it is. If nothing in the store shows that its queues are in RocksDB, name a --broker-conf with
    storeType=defaultRocksDB. An index
    in RocksDB (indexRocksDBEnable) is rebuilt as a whole too; timer messages and open transactions in its
    database are copied. If it is gone, --broker-conf has to say that there was one.

    The column state says planned, done or left, and the column reason why. rmqtool recover repairs damage of
    the log and stores that were not closed cleanly. Units past the end of the log, which name lost messages,
    are dropped and counted. If a queue has no files and its topic is not in topics.json, it counts as
    deleted. It is rebuilt only if --topic names its topic, or if a broker's start after a crash would
    rebuild it.

    Exits with 0 when nothing is wrong, or everything was repaired; 1 when something would change, when the
    commit log is damaged or the committed offsets are lost, and for a --topic or --queue that the store does
    not have; 2 for a usage error; 3 when something could not be read or written; 4 when something was left
    unchanged or refused; 5 when the store is in use.
    """
    from rmqtool.read import kernels

    output = shown.writer(changes=change.apply)
    if change.plan is not None and (only or selected.topic or selected.queue):
        raise UsageError("--only, --topic and --queue cannot be used with --plan")
    changes.check_options(change)
    output.check_fields(COLUMNS)  # before anything is changed
    kernels.load_kernels()
    request = None if change.plan is not None else _request(only, selected)
    if change.apply:
        return _apply(store, request, change, output, jobs)
    return _show(store, request, change, output, jobs, given)


def _apply(
    store: options.ProfiledStoreOptions,
    request: Request | None,
    change: options.PlanOptions,
    output: Output,
    jobs: int,
) -> int:
    from rmqtool.repair.rebuild.run import rebuild_store

    with store.open() as opened:
        options.note_assumed_version(output, opened.written_by, "--profile")
    planned, applied = rebuild_store(
        store.open, request, plan_file=change.plan, backup_dir=change.backup_dir, force=change.force,
        jobs=jobs,
    )  # fmt: skip
    output.write_rows(_rows(planned, "done"), COLUMNS, TABLE_COLUMNS)
    if planned.earlier.text is not None:
        output.note(f"rmqtool: {planned.earlier.text}")
    output.note(f"rmqtool: {_done(planned, applied)}")
    if applied is not None and applied.backup is not None:
        changes.note_undo_command(output, store, applied.backup)
        then = "start the broker; keep the backup until its consumers have what they need"
        if planned.rebuild.beyond:
            then = "find out what is lost before the broker starts: it uses the queue offsets again"
        if planned.rebuild.unmended:
            output.note(f"rmqtool: next: {store.command('recover')} shows how to repair what is left")
        else:
            output.note(f"rmqtool: next: {store.command('verify')}, then {then}")
    with store.open() as opened:
        _notes(opened, planned, output, store.command("recover"), applied)
        unknown = _unknown(opened, planned)
        others = EXIT_FINDINGS if _is_wrong_elsewhere(opened, planned) else EXIT_OK
    unread = EXIT_INPUT if planned.rebuild.unreadable else EXIT_OK
    return worst_exit_code(EXIT_REFUSED if planned.rebuild.unmended else EXIT_OK, unread, others, unknown)


def _request(only: Sequence[Any] | None, selected: options.SelectionOptions) -> Request:
    from rmqtool.repair.rebuild.run import PARTS, Request

    unknown = sorted(set(only or ()) - set(PARTS))
    if unknown:
        raise UsageError(f"unknown part {unknown[0]!r}", hint=f"parts: {', '.join(PARTS)}")
    if only and "queues" not in only and (selected.topic or selected.queue):
        raise UsageError("--topic and --queue select queues, but --only excludes queues")
    queues = sorted(selected.queue_ids())
    parts = tuple(only) if only else ("queues",) if selected.topic or queues else PARTS
    return Request(tuple(p for p in PARTS if p in parts), tuple(selected.topic or ()), tuple(queues))


def _show(
    store: options.ProfiledStoreOptions,
    request: Request | None,
    change: options.PlanOptions,
    output: Output,
    jobs: int,
    given: Given,
) -> int:
    """Show the plan for `request`, or that of a plan file; return the exit code."""
    from rmqtool.repair.rebuild.run import Request, plan

    file, wanted = changes.wanted(change, "rebuild", request, Request.of_options)

    def make(opened: Store) -> Planned:
        total = sum(file.size for file in opened.layout.commit_log)
        with output.progress("rebuild", total) as bar:
            return plan(opened, wanted, jobs=jobs, progress=bar.advance)

    opened, planned = changes.show(store, change, output, make, file)
    output.write_rows(_rows(planned, "planned"), COLUMNS, TABLE_COLUMNS)
    output.note(f"rmqtool: {_summary(planned)}")
    _notes(opened, planned, output, store.command("recover"))
    if planned.refusals or planned.plan.actions:
        words = changes.conf_words(planned.rebuild.guessed_sizes)
        changes.note_next(output, given, change, planned.refusals, *words, in_plan=_IN_PLAN)
    is_wrong = planned.is_needed or planned.rebuild.unmended or _is_wrong_elsewhere(opened, planned)
    code = EXIT_FINDINGS if is_wrong else EXIT_OK
    unread = EXIT_INPUT if planned.rebuild.unreadable else EXIT_OK
    return worst_exit_code(code, unread, _unknown(opened, planned))


def _unknown(store: Store, planned: Planned) -> int:
    """Report requested topics and queues that the store does not have; return the exit code."""
    from rmqtool.findings import ScanCounters

    chosen, there = planned.selection, planned.rebuild.queue_ends
    found = any(chosen.matches_topic(topic) and queue_id in chosen.queues for topic, queue_id in there)
    return report_unknown([store], chosen, ScanCounters(topics={topic for topic, _ in there}), found=found)


def _rows(planned: Planned, state: str) -> Iterator[dict[str, Any]]:
    for action in planned.plan.actions:
        yield {"state": state, "change": action.kind, "path": action.path, "length": action.length,
               "problem": action.problem, "reason": action.reason, "detail": action.detail}  # fmt: skip
    for item in planned.rebuild.unmended:
        yield {"state": "left", "change": None, "path": item.path, "length": None,
               "problem": item.problems[0], "reason": item.reason,
               "detail": {"topic": item.topic, "queue_id": item.queue_id}}  # fmt: skip


def _summary(planned: Planned) -> str:
    if planned.is_needed and not planned.plan.actions:
        return "an interrupted repair has to be undone"
    found = planned.rebuild
    has_queues = "queues" in planned.request.parts
    parts = [f"{counted(planned.plan.summary['queues'], 'queue')} to rebuild"] if has_queues else []
    if found.index is not None or found.index_database is not None:
        entries = planned.plan.summary["index_entries"]
        parts.append("1 index entry" if entries == 1 else f"{entries} index entries")
    kinds = Counter(action.kind for action in planned.plan.actions)
    parts += [f"{counted(count, 'file')} to {kind}" for kind, count in sorted(kinds.items())]
    if found.unmended:
        parts.append(f"{len(found.unmended)} left")
    if not planned.is_needed and not found.unmended:
        return _agreement(planned)
    return ", ".join(parts) + _not_examined(planned)


def _done(planned: Planned, applied: Applied | None) -> str:
    if applied is None:
        changed = "" if planned.earlier.guard else "nothing was changed: "
        return f"{changed}{_agreement(planned)}"
    backup = "" if applied.backup is None else f"; the previous files are in {applied.backup}"
    size = format_size(applied.bytes_changed)
    return f"{counted(applied.actions, 'change')}, {size}{_not_examined(planned)}{backup}"


def _agreement(planned: Planned) -> str:
    """Say what agrees with the log: only parts and queues that were examined."""
    wanted = planned.request
    texts = []
    queues = "the selected queues" if wanted.topics or wanted.queues else "queues"
    of_log = [text for part, text in (("queues", queues), ("index", "index")) if part in wanted.parts]
    if of_log:
        verb = "agrees" if of_log == ["index"] else "agree"
        part = "what could be read of the log" if planned.rebuild.unreadable else "the log"
        texts.append(f"{' and '.join(of_log)} {verb} with {part}")
    if "config" in wanted.parts:
        texts.append("config has nothing to rebuild")
    return ", ".join(texts) + _not_examined(planned)


def _not_examined(planned: Planned) -> str:
    """Say which parts and queues were not examined, and because of which options; empty if all were."""
    from rmqtool.repair.rebuild.run import PARTS

    wanted = planned.request
    others = ["other queues"] if wanted.topics or wanted.queues else []
    others += [part for part in PARTS if part not in wanted.parts]
    if not others:
        return ""
    verb = "was" if others in (["index"], ["config"]) else "were"
    return f"; {listed(others)} {verb} not examined"


def _notes(
    store: Store, planned: Planned, output: Output, recover: str, applied: Applied | None = None
) -> None:
    """Print what a person has to know besides the changes; `recover` is the command line that plans more."""
    for text in planned.rebuild.warnings:
        output.note(f"rmqtool: {text}")
    if paths := planned.rebuild.unreadable:
        output.note(f"rmqtool: the commit log cannot be read in full, so a part was not compared: {paths}")
    if beyond := planned.rebuild.beyond:
        point, names = "points" if beyond == 1 else "point", f"{recover} names them"
        if applied is not None:
            point, names = "pointed", "once this is undone, rmqtool recover names them"
        output.note(
            f"rmqtool: {counted(beyond, 'unit')} of these queues {point} past the end of the log,"
            f" {planned.rebuild.log_end}: their messages are lost, or log files are missing. The rebuilt"
            f" queues show no sign of them; {names}, and a slave or a backup may have the files"
        )
    if errors := planned.rebuild.log_errors:
        places = "a damaged place" if errors == 1 else f"{errors} damaged places"
        output.note(
            f"rmqtool: the commit log has {places}: what names the messages there stays in queues and index."
            f" {recover} repairs all three"
        )
    in_files = store.layout.has_queues_in_files
    deleted = {topic for topic, _ in planned.rebuild.deleted}
    topics = sorted(topic for topic in deleted if can_be_folder(topic) or not in_files)
    if topics and "queues" in planned.request.parts:
        more = [f"{len(topics) - _TOPICS_SHOWN} more"] if len(topics) > _TOPICS_SHOWN else []
        names = listed([*topics[:_TOPICS_SHOWN], *more])
        text = f"{names} are not in topics.json and count as deleted; --topic NAME rebuilds the queues of one"
        if len(topics) == 1:
            option = command_line("--topic", topics[0])
            text = f"{names} is not in topics.json and counts as deleted; {option} rebuilds its queues"
        output.note(f"rmqtool: {text}")
    if text := _lost_offsets(store, planned):
        output.note(f"rmqtool: {text}")


def _is_wrong_elsewhere(store: Store, planned: Planned) -> bool:
    """Whether the log is damaged, or the committed offsets are lost, which rebuild does not repair."""
    lost = "config" in planned.request.parts and bool(_lost_offsets(store, planned))
    return planned.rebuild.log_errors > 0 or lost


def _lost_offsets(store: Store, planned: Planned) -> str:
    """Say that the committed offsets are lost, which no rebuild restores; empty if they are not."""
    from rmqtool.read.lost_config import lost_config

    messages = {topic: 1 for topic, _ in planned.rebuild.queue_ends}
    found = lost_config(store.layout, messages)
    return offsets_lost_sentence(f"{each.problem.code} {each.message}" for each in found)
