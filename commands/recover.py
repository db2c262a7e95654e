"""`rmqtool recover`: what a broker's start would do to a store, and a better way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqtool.commands import changes, options
from rmqtool.commands.groups import with_groups
from rmqtool.commands.recover_text import recover_lines, undo_lines
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, UsageError
from rmqtool.message.cells import with_times
from rmqtool.output import Output

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
BrokerHeap = Annotated[
    int | None,
    typer.Option(
        "--broker-heap",
        metavar="SIZE",
        parser=options.parse_size,
        help="Heap of the broker's JVM (-Xmx). 4.9 allocates as much as the size field of a damaged record"
        " says, and does not start if that exceeds the heap. Default: 2G.",
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
    shown: options.ObjectOutput,
) -> int:
    r"""Show what a broker's start would do, and repair the store.

    Without --apply nothing is changed. For each broker version rmqtool predicts from the bytes of the
    store whether its start loads the store, where it ends the log, which files it deletes, which
    messages are lost, and which queues and index files it truncates. Next to the predictions it shows
    what recover would do instead.

    --mode best keeps every valid record, even after damage. Each lost record is replaced by a filler
    with the same topic, queue and queue offset and the tag RMQTOOL_FILLER. Brokers of every version read past
    fillers, but a consumer that subscribes to * receives them. Queues and index are rebuilt where they
    disagree with the log.

    --mode broker ends the log where a start of --broker would, and zeroes what follows, so that it cannot
    reappear. A start examines only part of the log, and after it has truncated the log it examines
    another part. A second run may therefore truncate the log again, as the broker's next start would. The
    plan warns of this.

    File sizes are detected from existing files. If all queues or the whole index are missing and their
    sizes are not the defaults, give --broker-conf; otherwise a broker does not load them.

    Everything that is cut, replaced or deleted is backed up first. --undo restores it byte for byte,
    until a broker has written to the store, and only into the store that the backup was made from. If
    that store was moved since, --undo needs --force.

    --plan reads a plan that --write-plan has written. What is applied is not the file: rmqtool plans again
    with its options, and refuses if the store has changed since or the new plan differs in any action. So
    --apply --plan does exactly what was shown, or nothing.

    If a run is interrupted, rerun the same command to complete it. The new run first undoes the changes
    of the interrupted run. Until then the file commitlog/rmqtool-repair prevents every broker from
    loading the store. If the backup of the interrupted run is lost, --force continues with the store as
    it is.

    Exits with 0 when there was nothing to do, or the plan was applied; 1 when the plan would change
    something; 2 for a usage error; 3 when something could not be read or is stored in a form rmqtool
    cannot read (RocksDB, DLedger, tiered); 4 when refused: the plan would give up sound messages (--yes),
    needs --force, was made for another state of the store, or needs changes in a part that rmqtool
    cannot repair; 5 when the store is in use (without --apply only if it is written to while rmqtool
    reads it).
    """
    output = shown.writer(changes=change.apply or change.undo is not None)
    own = {"--mode": mode, "--fill": fill, "--broker-heap": broker_heap}
    if change.undo is not None:
        others = {"--apply": change.apply, "--plan": change.plan, "--write-plan": change.write_plan}
        _no_others({**others, **own, "--broker": broker, "--backup-dir": change.backup_dir}, "--undo")
        return _undo(store, change.undo, output, moved=change.force)
    if change.plan is not None:
        of_plan = {**own, "--broker": broker if change.apply else None}
        _no_others({**of_plan, "--write-plan": change.write_plan}, "--plan")
    changes.check_options(change)
    request = None if change.plan is not None else _request(mode, fill, broker, broker_heap)
    if change.apply:
        return _apply(store, request, change, output, shown.zone, jobs)
    return _show(store, request, broker, change, output, shown.zone, jobs)


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
        raise UsageError("--mode broker needs one version", hint="--broker 4.9, 5.3 or 5.4")
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
) -> int:
    """Show the plan that `request`, or else a plan file, means; returns the exit code."""
    from rmqtool.repair.plan import read_plan
    from rmqtool.repair.recover import BROKERS, Request, plan_and_predict

    file = None if change.plan is None else read_plan(change.plan, "recover")
    wanted = request or Request.of_options(file.options if file is not None else {})
    versions = [broker for broker in BROKERS if not brokers or broker in brokers]

    def make(opened: Store) -> Recovery:
        total = sum(each.size for each in opened.layout.commit_log)
        with output.progress("recover", 3 * total) as bar:  # salvage, queues and index, the brokers' starts
            return plan_and_predict(opened, wanted, versions, jobs=jobs, progress=bar.advance)

    _, recovery = changes.show(store, change, output, make, file)
    found = with_times(recovery.row(), zone)
    output.write_object(found, recover_lines(found))
    if recovery.plan.actions:
        changes.tell_next(output, _command(store, recovery, wanted, change.plan or change.write_plan))
    if recovery.is_partial:
        return EXIT_INPUT
    return EXIT_FINDINGS if recovery.is_needed else EXIT_OK


def _command(
    store: options.ProfiledStoreOptions, recovery: Recovery, request: Request, plan: Path | None
) -> str:
    """The command line that does what was shown."""
    from rmqtool.repair.recover import DEFAULT_HEAP_BYTES

    words: list[str] = []
    if plan is not None:
        words += ["--plan", str(plan)]
    elif request.broker is not None:
        words += ["--mode", request.mode, "--broker", request.broker]
    elif request.fill != "records":
        words += ["--fill", request.fill]
    if plan is None and request.broker_heap_bytes != DEFAULT_HEAP_BYTES:
        words += ["--broker-heap", str(request.broker_heap_bytes)]
    return store.command("recover", *words, "--apply", *changes.needs(recovery.refusals))


def _apply(
    store: options.ProfiledStoreOptions,
    request: Request | None,
    change: options.PlanOptions,
    output: Output,
    zone: tzinfo | None,
    jobs: int,
) -> int:
    from rmqtool.repair.recover import recover_store

    with store.open() as opened:
        total = sum(file.size for file in opened.layout.commit_log)
        options.tell_assumed(output, opened.written_by, "--profile")
    with output.progress("recover", 2 * total) as bar:
        result = recover_store(
            store.open, request, plan_file=change.plan, backup_dir=change.backup_dir, yes=change.yes,
            force=change.force, jobs=jobs, progress=bar.advance,
        )  # fmt: skip
    if result.earlier.text is not None:
        output.note(f"rmqtool: {result.earlier.text}")
    if result.backup is not None:  # first: the report may not reach anybody
        output.note(f"rmqtool: applied; the previous files are in {result.backup}")
    found = with_times(result.row(), zone)
    undo = None if result.backup is None else store.command("recover", "--undo", str(result.backup))
    output.write_object(found, recover_lines(found, undo=undo))
    return EXIT_OK


def _undo(store: options.ProfiledStoreOptions, backup: Path, output: Output, *, moved: bool) -> int:
    from rmqtool.repair.recover import undo_recover

    row = undo_recover(store.open, backup, moved=moved)
    output.write_object(row, undo_lines(row))
    return EXIT_OK
