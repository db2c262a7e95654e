"""`rmqtool recover`: predict what a broker's start would do to a store, and repair it without that loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqtool.command_line import argument, on_store
from rmqtool.commands import changes, options
from rmqtool.commands.groups import Given, with_groups
from rmqtool.commands.recover_text import (
    WHOLE_FILE,
    Row,
    recover_lines,
    undo_lines,
)
from rmqtool.commands.recover_verdicts import files_to_put_back, torn_rows
from rmqtool.commands.verdicts import cure
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, UsageError
from rmqtool.formats.filler import FIELDS, TAG
from rmqtool.formats.versions import METAVAR
from rmqtool.message.cells import with_times
from rmqtool.output import Output
from rmqtool.problems import BY_CODE

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqtool.read.store import Store
    from rmqtool.repair.recover import Recovery, Request


Mode = Annotated[
    Literal["best", "broker"] | None,
    typer.Option(
        "--mode",
        metavar="best|broker",
        help="best: keep every valid record. broker: end the log where a broker's start would. Default:"
        " best.",
    ),
]
Fill = Annotated[
    Literal["records", "none"] | None,
    typer.Option(
        "--fill",
        metavar="records|none",
        help="records: fill holes of the log with filler records. none: end the log at the first hole and"
        " write the later messages to a file for rmqtool append. Default: records.",
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="Show every lost message, queue and change, not only the first ones.")
]
BrokerHeap = Annotated[
    int | None,
    typer.Option(
        "--broker-heap",
        metavar="SIZE",
        parser=options.parse_size,
        help="Heap of the broker's JVM (-Xmx). 4.9 allocates as many bytes as the size field of a damaged"
        " record says, and does not start if they exceed the heap. Default: 2G.",
        show_default=False,
    ),
]


@with_groups
def recover(
    *,
    store: options.ProfiledStoreOptions,
    broker: options.Brokers = None,
    broker_heap: BrokerHeap = None,
    mode: Mode = None,
    fill: Fill = None,
    change: options.PlanOptions,
    jobs: options.Jobs = 0,
    all: All = False,
    shown: options.ObjectOutput,
    given: Given,
) -> int:
    r"""Show what a broker's start would do, and repair the store.

    Without --apply nothing is changed. For each broker version rmqtool predicts from the bytes of the store
    whether its start loads the store, where it ends the log, which files it deletes, which messages are lost,
    and which queues and index files it truncates. The text shows the versions that may have written the
    store, or those of --broker; JSON shows all. The last column shows what recover would do instead.

    --mode best keeps every valid record, even after damage. Each lost record is replaced by a filler
    with the same topic, queue and queue offset and the tag RMQTOOL_FILLER. Brokers of every version read past
    fillers, but a consumer that subscribes to * receives them. Queues and index are rebuilt where they
    disagree with the log.

    --mode broker ends the log where a start of --broker would, and zeroes what follows, so that it cannot
    reappear. A start examines only the end of the log. After it has cut the log, the next start examines an
    earlier part and may cut again, and so may a second run of --mode broker; the plan warns of it.

    Queues in RocksDB are predicted for 5.3 and 5.4, because 4.9 has none. If something is wrong with them,
    one new database is built for all (extra rocksdb). The same is true of an index in RocksDB. Of a store
    with DLedger everything but the log is repaired; where the log is damaged, rmqtool copy is the way out.

    File sizes are detected from existing files. If all queues or the index are missing, and
    mappedFileSizeConsumeQueue, maxHashSlotNum or maxIndexNum of the broker are not the defaults, give
    --broker-conf: a broker does not start with other sizes of queue files, and finds no key in other index
    files. Delayed messages: sound queues keep their delivery times. In a rebuilt queue the delay of a level
    comes from --broker-conf, or else from other messages of that level, or else from the default; the plan
    counts the messages that get the default.

    Everything that is cut, replaced or deleted is backed up first. --undo restores it byte for byte, until a
    broker has written to the store, and only into the store that the backup was made from. If that store was
    moved since, --undo needs --force.

    --plan reads a plan that --write-plan has written. rmqtool does not apply the file itself: it plans again
    with the options in the file, and refuses if the store has changed since or the new plan differs in any
    action. --apply --plan therefore does exactly what was shown, or nothing. Without --apply, --plan shows
    the plan that it would apply.

    If a run is interrupted, rerun the same command to complete it. The new run first undoes the changes of
    the interrupted run. Until then the file commitlog/rmqtool-repair prevents every broker from loading the
    store. If the backup of the interrupted run is lost, --force continues with the store as it is.

    Exits with 0 when there was nothing to do, or the plan was applied; 1 when the plan would change
    something, or a warning names what recover cannot repair; 2 for a usage error; 3 when something could not
    be read or is stored in a form rmqtool cannot read; 4 when refused: the plan would give up sound messages
    (needs --yes), needs --force, was made for another state of the store, or needs changes in a part that
    rmqtool cannot repair; 5 when the store is in use (without --apply only if it is written to while rmqtool
    reads it).
    """
    output = shown.writer(changes=change.apply or change.undo is not None)
    own = {"--mode": mode, "--fill": fill, "--broker-heap": broker_heap}
    if change.undo is not None:
        others = {"--apply": change.apply, "--plan": change.plan, "--write-plan": change.write_plan}
        _no_others({**others, **own, "--broker": broker, "--backup-dir": change.backup_dir}, "--undo")
        return _undo(store, change.undo, output, moved=change.force)
    if change.plan is not None:
        _no_others({**own, "--broker": broker if change.apply else None}, "--plan")
    changes.check_options(change)
    request = None if change.plan is not None else _request(mode, fill, broker, broker_heap)
    if change.apply:
        return _apply(store, request, change, output, shown.zone, jobs, everything=all)
    return _show(store, request, broker, change, output, shown.zone, jobs, given, everything=all)


def _no_others(others: dict[str, Any], option: str) -> None:
    for name, value in others.items():
        if value:
            raise UsageError(f"{name} cannot be used with {option}")


def _request(mode: str | None, fill: str | None, brokers: Sequence[str] | None, heap: int | None) -> Request:
    from rmqtool.repair.recover import DEFAULT_HEAP_BYTES, Request

    heap_bytes = DEFAULT_HEAP_BYTES if heap is None else heap
    if mode != "broker":
        return Request("best", None, "none" if fill == "none" else "records", heap_bytes)
    if fill is not None:
        raise UsageError("--fill needs --mode best: a broker fills nothing")
    if brokers is None or len(set(brokers)) != 1:
        raise UsageError("--mode broker needs one version", hint=f"--broker {METAVAR}")
    return Request.of_options(
        {"mode": "broker", "broker": brokers[0], "fill": "records", "broker_heap_bytes": heap_bytes}
    )


def _show(
    store: options.ProfiledStoreOptions,
    request: Request | None,
    brokers: Sequence[str] | None,
    change: options.PlanOptions,
    output: Output,
    zone: tzinfo | None,
    jobs: int,
    given: Given,
    *,
    everything: bool,
) -> int:
    """Show the plan for `request`, or that of a plan file; return the exit code."""
    from rmqtool.read.coverage import covered_ranges
    from rmqtool.repair.recover import BROKERS, Request, plan_and_predict

    file, wanted = changes.wanted(change, "recover", request, Request.of_options)
    versions = [broker for broker in BROKERS if not brokers or broker in brokers]

    covered: list[tuple[int, int]] = []

    def make(opened: Store) -> Recovery:
        covered.extend(covered_ranges(opened))
        total = sum(each.size for each in opened.layout.commit_log)
        with output.progress("recover", 3 * total) as bar:  # salvage, queues and index, the brokers' starts
            return plan_and_predict(opened, wanted, versions, jobs=jobs, progress=bar.advance)

    opened, recovery = changes.show(store, change, output, make, file)
    found = with_times(recovery.row(), zone)
    explains = None if recovery.plan.actions else _explains(store, found)
    own = found if brokers else _of_own_versions(found)
    lines = list(recover_lines(
        own, everything=everything, check=explains,
        whole=_whole_commands(store, found), keys=_keys_text(store, found, covered),
        slave=_diff_command(store, opened), command=store.command,
    ))  # fmt: skip
    if output.write_object(found, lines):  # whoever leaves the pager early has not seen what decides
        for line in lines:
            if line.startswith(_DECIDE):
                output.note(f"rmqtool: {line[:13].rstrip()}: {line[13:]}")
    if recovery.plan.actions:
        words = changes.conf_words(recovery.plan.summary["guessed_sizes"])
        first = _copy_first("config/" if found["config_lost"] else files_to_put_back(found))
        changes.note_next(output, given, change, recovery.refusals, *words, in_plan=_IN_PLAN, first=first)
    if recovery.is_partial:
        return EXIT_INPUT
    return EXIT_FINDINGS if recovery.is_needed or found["warnings"] else EXIT_OK


def _explains(store: options.ProfiledStoreOptions, found: Row) -> str | None:
    """Return the command line for what recover cannot repair."""
    codes = (text[:4] for text in found["warnings"] if text[:4] in BY_CODE)
    copy = store.command("copy", "--output", "NEW") if found["ledger"] is not None else None
    return cure(codes, None, copy)


def _of_own_versions(found: Row) -> Row:
    """Return the report with the starts of those versions that may have written the store."""
    own = [row for row in found["predictions"] if row["broker"] in found["written_by_candidates"]]
    others = [row["broker"] for row in found["predictions"] if row not in own]
    return found | {"predictions": own, "not_shown": others} if own and others else found


def _whole_commands(store: options.ProfiledStoreOptions, found: Row) -> tuple[str, str] | None:
    """Return the command lines that print the last messages as `append` takes them, and store them again."""
    words = [word for row in torn_rows(found) for word in ("--offset", str(row["physical_offset"]))]
    if not words:
        return None
    print_them = store.command("lookup", *words, "--fields", _APPENDED, "--json")
    return print_them, store.command("append", "--input", WHOLE_FILE)


def _keys_text(
    store: options.ProfiledStoreOptions, found: Row, covered: Sequence[tuple[int, int]],
    backup: Path | None = None,
) -> str | None:  # fmt: skip
    """Return how to see whether a key is that of a lost message: before the plan is done, or in its `backup`.

    The plan takes the entries of lost messages out of the index, which covers the records in these ranges.
    None if it does not, or if the index has none of them.
    """
    of_index = [each for each in found["actions"] if each["path"].startswith("index/")]
    paths = [each["path"] for each in of_index if each["kind"] in ("replace", "delete")]
    reached = [
        any(start <= row["physical_offset"] < stop for start, stop in covered) for row in found["lost"]
    ]
    if not any(reached) or not paths:
        return None
    most = "most" if all(reached) else "some"
    if backup is None:
        line = store.command("lookup", "KEY")
        return (
            "To see whether a key belonged to a lost message, look it up before --apply: the index has the"
            f" keys of {most} of them. After --apply, only the old index in the backup knows.\n{line}"
        )
    line = on_store(backup / "files", "dump", "--what", "index", "--topic", "TOPIC", "--key", "KEY")
    return f"To see whether a key belonged to a lost message, look it up in the old index:\n{line}"


def _diff_command(store: options.ProfiledStoreOptions, opened: Store) -> str:
    """Return the command line that compares the store with a slave."""
    folders = [each for each in opened.layout.commit_log_folders if each.parent != opened.layout.root]
    words = [word for each in folders for word in ("--commitlog-a", argument(each))]
    return on_store(store.store, "diff", "SLAVE", *words)


def _each_text(store: options.ProfiledStoreOptions, found: Row) -> str:
    """Return how each lost message can be seen once the plan is done."""
    fates = {each["fate"] for each in found["lost"]}
    fillers = store.command("dump", "--tag", TAG, "--fields", FIELDS)
    texts = [f"each filler stands where a message was: {fillers}"] if "filled" in fates else []
    if fates != {"filled"}:
        again = store.command("recover", "--all")
        texts.append(f"each {'other ' if texts else ''}lost message: {again}, after --undo")
    return "\n".join(texts)


def _apply(
    store: options.ProfiledStoreOptions,
    request: Request | None,
    change: options.PlanOptions,
    output: Output,
    zone: tzinfo | None,
    jobs: int,
    *,
    everything: bool,
) -> int:
    from rmqtool.read.coverage import covered_ranges
    from rmqtool.repair.recover import recover_store

    with store.open() as opened:
        total = sum(file.size for file in opened.layout.commit_log)
        covered = covered_ranges(opened)
        options.note_assumed_version(output, opened.written_by, "--profile")
    with output.progress("recover", 2 * total) as bar:
        result = recover_store(
            store.open, request, plan_file=change.plan, backup_dir=change.backup_dir, yes=change.yes,
            force=change.force, jobs=jobs, progress=bar.advance,
        )  # fmt: skip
    if result.earlier.text is not None:
        output.note(f"rmqtool: {result.earlier.text}")
    # Before the report, which may not reach anybody, but not above one that a person reads.
    if result.backup is not None and not (output.is_terminal and output.shows_text):
        output.note(f"rmqtool: applied; the previous files are in {result.backup}")
    found = with_times(result.row(), zone)
    undo = None if result.backup is None else changes.undo_command(store, result.backup)
    check = store.command("verify") if result.backup is not None else None
    output.write_object(found, recover_lines(
        found, everything=everything, undo=undo, check=check,
        keys=_keys_text(store, found, covered, result.backup),
        each=_each_text(store, found), command=store.command,
    ))  # fmt: skip
    return EXIT_FINDINGS if found["remaining"] and result.backup is None else EXIT_OK


def _undo(store: options.ProfiledStoreOptions, backup: Path, output: Output, *, moved: bool) -> int:
    from rmqtool.repair.recover import undo_recover

    row = undo_recover(store.open, backup, moved=moved)
    output.write_object(row, undo_lines(row, store.command("recover")))
    return EXIT_OK


def _copy_first(what: str) -> str:
    """Say that a copy of what is lost is better than the plan; empty if nothing is named."""
    them = "them" if " and " in what else "it"
    text = f"if there is a copy of {what}, copy {them} into the store and plan again; without one,"
    return text if what else ""


_APPENDED = "topic,queue_id,flag,born_timestamp_ms,born_host,reconsume_times,body,body_encoding,properties"
"""What of a row `append` stores; without the status, for which it refuses the row."""
_DECIDE = ("save first", "verdict", "slave")
_IN_PLAN = ("mode", "fill", "broker", "broker_heap")
