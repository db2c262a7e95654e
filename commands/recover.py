"""`rmqtool recover`: what a broker's start would do to a store, and a better way."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqtool.commands import options
from rmqtool.commands.recover_text import recover_lines, undo_lines
from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, UsageError
from rmqtool.message.cells import with_times
from rmqtool.output import Output
from rmqtool.times import parse_zone

if TYPE_CHECKING:
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


def recover(
    store: options.StoreRoot,
    commitlog: options.CommitLogPaths = None,
    read_only_commitlog: options.ReadOnlyCommitLogPaths = None,
    broker_conf: options.BrokerConf = None,
    profile: options.Profile = None,
    broker: options.Brokers = None,
    broker_heap: BrokerHeap = None,
    mode: Mode = None,
    fill: Fill = None,
    apply: options.Apply = False,
    plan: options.PlanFile = None,
    write_plan: options.WritePlan = None,
    backup_dir: options.BackupDir = None,
    undo: options.Undo = None,
    force: options.Force = False,
    yes: options.Yes = False,
    jobs: options.Jobs = 0,
    tz: options.TimeZone = None,
    format: options.ObjectFormat = None,
    quiet: options.Quiet = False,
    progress: options.ShowProgress = None,
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
    that store was moved since, --undo needs --force. --plan shows a plan that --write-plan has written;
    with --apply it applies that plan.

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
    output = Output(format=format, quiet=quiet, progress=progress, changes=apply or undo is not None)
    asked = _Asked(store, commitlog or (), read_only_commitlog or (), broker_conf, profile, jobs)
    if undo is not None:
        others = {"--apply": apply, "--plan": plan, "--write-plan": write_plan, "--mode": mode}
        _no_others({**others, "--fill": fill, "--broker": broker, "--broker-heap": broker_heap,
                    "--backup-dir": backup_dir}, "--undo")  # fmt: skip
        return _undo(asked, undo, output, moved=force)
    if plan is not None:
        of_plan: dict[str, Any] = {"--mode": mode, "--fill": fill, "--broker-heap": broker_heap,
                                   "--broker": broker if apply else None}  # fmt: skip
        _no_others({**of_plan, "--write-plan": write_plan}, "--plan")
    if apply:
        if write_plan is not None:
            raise UsageError("--write-plan and --apply exclude each other", hint="write the plan first")
        request = None if plan is not None else _request(mode, fill, broker, broker_heap)
        return _apply(asked, request, plan, backup_dir, output, tz, yes=yes, force=force)
    request = None if plan is not None else _request(mode, fill, broker, broker_heap)
    return _show(asked, request, broker, plan, write_plan, output, tz)


class _Asked:
    """The store that was named, to be opened when its lock is held or not."""

    def __init__(
        self,
        path: Path,
        commitlog: Sequence[Path],
        read_only: Sequence[Path],
        broker_conf: Path | None,
        profile: str | None,
        jobs: int,
    ) -> None:
        self.path = path
        self._commitlog = commitlog
        self._read_only = read_only
        self._broker_conf = broker_conf
        self._profile = profile
        self.jobs = jobs

    def open(self) -> Store:
        """The store, opened for reading; raises as `Store.open` does."""
        return options.open_store(
            self.path, self._commitlog, self._read_only, self._broker_conf, profile=self._profile
        )


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
    asked: _Asked,
    request: Request | None,
    brokers: Sequence[str] | None,
    plan_file: Path | None,
    write_plan: Path | None,
    output: Output,
    tz: str | None,
) -> int:
    """Shows the plan that `request`, or else a written plan, means; returns the exit code."""
    from rmqtool.repair import plan as plans
    from rmqtool.repair.recover import BROKERS, Request, plan_and_predict

    zone = parse_zone(tz)
    written = None if plan_file is None else plans.read_plan(plan_file, "recover")
    if written is not None:
        request = Request.of_options(written.options)
    assert request is not None
    wanted = request
    versions = [broker for broker in BROKERS if not brokers or broker in brokers]

    def look(opened: Store) -> tuple[Store, Recovery, dict[str, Any]]:
        if written is not None:
            plans.check_unchanged(written, opened.layout)
        total = sum(file.size for file in opened.layout.commit_log)
        with output.progress("recover", 3 * total) as bar:  # salvage, queues and index, the brokers' starts
            recovery, starts, why_none = plan_and_predict(
                opened, wanted, versions, jobs=asked.jobs, progress=bar.advance
            )
        if written is not None:
            plans.agree(recovery.plan, written)
        found = _report(opened, recovery)
        found["predictions"] = starts
        if why_none is not None:
            found["warnings"] = [*found["warnings"], why_none]
        return opened, recovery, found

    opened, recovery, found = plans.steady(asked.open, look)
    if recovery.is_needed:
        options.tell_assumed(output, opened.written_by, "--profile")
    if opened.live:
        output.note("rmqtool: a broker is using the store; the plan is valid once it has stopped")
    if write_plan is not None:
        plans.write_plan(recovery.plan, opened.layout, write_plan)
    found = with_times(found, zone)
    output.write_object(found, recover_lines(found))
    if recovery.plan.actions:
        command = _command(asked.path, recovery, wanted, plan_file or write_plan)
        output.note(f"rmqtool: nothing was changed; to apply the plan: {command}")
    if recovery.is_partial:
        return EXIT_INPUT
    return EXIT_FINDINGS if recovery.is_needed else EXIT_OK


def _command(store: Path, recovery: Recovery, request: Request, plan: Path | None) -> str:
    """The command line that does what was shown."""
    from rmqtool.repair.recover import DEFAULT_HEAP_BYTES

    needs = sorted({f"--{refusal.needs}" for refusal in recovery.refusals if refusal.needs})
    words = ["rmqtool", "recover", str(store)]
    if plan is not None:
        words += ["--plan", str(plan)]
    elif request.broker is not None:
        words += ["--mode", request.mode, "--broker", request.broker]
    elif request.fill != "records":
        words += ["--fill", request.fill]
    if plan is None and request.broker_heap_bytes != DEFAULT_HEAP_BYTES:
        words += ["--broker-heap", str(request.broker_heap_bytes)]
    return shlex.join([*words, "--apply", *needs])


def _apply(
    asked: _Asked,
    request: Request | None,
    plan_file: Path | None,
    backup_dir: Path | None,
    output: Output,
    tz: str | None,
    *,
    yes: bool,
    force: bool,
) -> int:
    from rmqtool.repair.recover import recover_store

    zone = parse_zone(tz)
    with asked.open() as opened:
        total = sum(file.size for file in opened.layout.commit_log)
        options.tell_assumed(output, opened.written_by, "--profile")
    with output.progress("recover", 2 * total) as bar:
        result = recover_store(
            asked.open, request, plan_file=plan_file, backup_dir=backup_dir, yes=yes, force=force,
            jobs=asked.jobs, progress=bar.advance,
        )  # fmt: skip
    if result.earlier.text is not None:
        output.note(f"rmqtool: {result.earlier.text}")
    if result.backup is not None:  # first: the report may not reach anybody
        output.note(f"rmqtool: applied; the previous files are in {result.backup}")
    found = with_times(result.row(), zone)
    output.write_object(found, recover_lines(found))
    return EXIT_OK


def _undo(asked: _Asked, backup: Path, output: Output, *, moved: bool) -> int:
    from rmqtool.repair.recover import undo_recover

    row = undo_recover(asked.open, backup, moved=moved)
    output.write_object(row, undo_lines(row))
    return EXIT_OK


def _report(opened: Store, recovery: Recovery) -> dict[str, Any]:
    state = {"abort": opened.layout.abort is not None, "guard": opened.layout.guard is not None}
    return {"store": str(opened.layout.root), **opened.written_by.row(), **state,
            "predictions": [], **recovery.row()}  # fmt: skip
