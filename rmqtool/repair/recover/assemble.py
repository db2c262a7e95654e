"""Assembles one plan: the log, the queues and index that follow from it, and all dependent files.

It also collects the refusals of a plan: unsupported parts, and changes that need explicit consent.

Source: spec 02 sections 12.2 and 15, spec 03, design sections 2 and 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from rmqtool.broker.rules import DEFAULT_HEAP_BYTES
from rmqtool.errors import UnsupportedStoreError, UsageError
from rmqtool.findings import Progress
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.versions import Broker
from rmqtool.lazy_dataclass import dataclass
from rmqtool.problems import BY_CODE, Finding, leaves_ledger
from rmqtool.read.lost_config import is_folder_lost
from rmqtool.read.store import Store
from rmqtool.repair.plan import Action, Build, Plan, Refusal, fingerprint, space
from rmqtool.repair.recover.after import After
from rmqtool.repair.recover.lost import delayed_originals, lost_rows
from rmqtool.repair.recover.offsets import delay_loss, offset_actions
from rmqtool.repair.recover.request import Request
from rmqtool.repair.recover.side_files import compaction_actions, epoch_actions
from rmqtool.repair.recover.state import closing_actions
from rmqtool.repair.recover.timer import timer_actions
from rmqtool.storage.next_command import out_of_ledger
from rmqtool.storage.out_of_reach import lost_code
from rmqtool.storage.profile import WrittenBy
from rmqtool.storage.unsupported import (
    POP_RECORDS,
    QUEUES_IN_ROCKSDB,
    SIDE_FOLDER,
    SIDE_STORE,
    TIMER_MESSAGES,
)

if TYPE_CHECKING:
    from rmqtool.broker.rules import StartSettings
    from rmqtool.log.scan_cache import ScanCache
    from rmqtool.read.delay_loss import DelayLoss
    from rmqtool.repair.rebuild import Rebuild
    from rmqtool.repair.rebuild.header_corrections import MisroutedRecord
    from rmqtool.repair.salvage import LostRecord
    from rmqtool.repair.salvage.model import Claim, Misplaced


# Parts that do not prevent a repair: what is independent of queues and index; an index and queues in
# RocksDB, which are rebuilt.
_HARMLESS = frozenset(
    {POP_RECORDS, TIMER_MESSAGES, "half messages", "index entries", "second index entries",
     SIDE_STORE, *QUEUES_IN_ROCKSDB}
)  # fmt: skip


def out_of_reach(store: Store) -> list[Refusal]:
    """Refusals for parts that prevent a repair: config in RocksDB, unreadable folders.

    A config in RocksDB that can be read does not: `offset_actions` says what is wrong with it.

    Raises:
        UsageError: not a store root.
    """
    layout = store.layout
    if layout.root is None or layout.kind != "store":
        raise UsageError("only a whole store can be recovered", hint="name the folder that holds commitlog")
    found = [
        Refusal(f"{part.what} are kept in {part.form}, which rmqtool cannot repair")
        for part in layout.not_written
        if part.what not in _HARMLESS and not (part.what == "config" and not part.reason)
    ]
    found += [
        Refusal(f"{layout.relative(path)} cannot be read: {reason}") for path, reason in layout.unreadable
    ]
    return found


def deliberate(
    store: Store, actions: Sequence[Action], given_up: int, *, in_tail: bool = True
) -> list[Refusal]:
    """Refusals for changes that need explicit consent.

    Args:
        store: the present store.
        actions: the plan's.
        given_up: number of sound messages that the plan removes from the log.
        in_tail: whether they are written to a file for `append`.
    """
    found = []
    layout = store.layout
    conf = layout.broker_conf
    role = (conf.text("brokerRole") or "").upper() if conf is not None else ""
    in_log = [action for action in actions if is_log(store, action.path)]
    if role == "SLAVE" and in_log:
        found.append(
            Refusal(
                "brokerRole is SLAVE: its log must equal its master's, and would no longer do so", "force"
            )
        )
    if given_up:
        kept = "next to the backup, in BACKUP.tail.jsonl, which rmqtool append reads"
        found.append(
            Refusal(
                f"{given_up} sound messages would be removed from the log; --apply keeps"
                f" {f'them {kept}' if in_tail else 'their bytes in the backup'}",
                "yes",
            )
        )
    if not layout.commit_log and (layout.consume_queues or layout.batch_queues):
        found.append(
            Refusal(
                "the commit log was not found, so this plan treats every message as lost: find the log first",
                "force",
            )
        )
    return found


def is_log(store: Store, path: str) -> bool:
    """Whether the path of an action is in a folder of the commit log."""
    return any(path.startswith(f"{store.layout.relative(f)}/") for f in store.layout.commit_log_folders)


def replica_notes(store: Store, actions: Iterable[Action]) -> list[str]:
    """The consequences of the plan for a replica of this store, as texts; none if the log stays unchanged.

    Source: spec 02 sections 12.1 to 12.3.
    """
    of_log = [action for action in actions if is_log(store, action.path)]
    notes = []
    if any(action.kind == "fill" for action in of_log):
        notes.append(
            "A slave keeps its own bytes where this log is filled, so the two logs differ there. If the slave"
            " has the lost records, use its log instead of this one; rmqtool diff compares them."
        )
    # A cut of CL21 only makes a file longer.
    if any(each.kind == "delete" or each.kind == "cut" and each.problem != "CL21" for each in of_log):
        notes.append(
            "A slave that holds more than this log is then ahead of it. Classic replication keeps the extra"
            " bytes forever and reports nothing; controller mode truncates them. Compare with rmqtool diff"
            " before you start the slave, and empty a slave that is ahead."
        )
    return notes


_MISROUTED_ROUNDS = 8


@dataclass(frozen=True)
class Recovery:
    """A plan and the reasons not to apply it.

    Attributes:
        store: the store's root.
        written_by: the broker version that used it last.
        abort: whether this file is there.
        guard: likewise.
        plan: the changes.
        build: makes queues and index of the plan.
        check_tools: raises InputError if a library that `build` needs is not installed.
        refusals: reasons not to apply it, each with the option that overrides it.
        tail: ranges of the log, half-open physical offsets, whose valid records the plan removes; they are
            written to a file for `append`. Only without fillers.
        is_needed: whether applying it changes anything, including the guard of a killed run.
        is_partial: whether something could not be read, or is in an unsupported form.
        predictions: what a start of each broker would do, as JSON; of DLedger only starts that fail.
        unpredicted: the reason if there are none although they were requested, else None.
        delays: what the log shows of the delay levels if delayOffset.json is lost.
    """

    store: Path
    written_by: WrittenBy
    abort: bool
    guard: bool
    plan: Plan
    build: Build | None
    check_tools: Callable[[], None]
    refusals: tuple[Refusal, ...]
    tail: tuple[tuple[int, int], ...]
    is_needed: bool
    is_partial: bool
    predictions: Sequence[dict[str, Any]] = ()
    unpredicted: str | None = None
    delays: DelayLoss | None = None

    def row(self) -> dict[str, Any]:
        """The plan as JSON, without the bytes of its changes."""
        rows = self.plan.rows()
        for row in rows:
            row.pop("content_base64", None)
        return {
            "store": str(self.store),
            **self.written_by.row(),
            "abort": self.abort,
            "guard": self.guard,
            "predictions": list(self.predictions),
            **self.plan.summary,
            "warnings": [*self.plan.summary["warnings"], *filter(None, (self.unpredicted,))],
            "backup_bytes": self.plan.backup_bytes,
            "needed_bytes": space.most_needed(self.plan),
            "refusals": [refusal.row() for refusal in self.refusals],
            "actions": rows,
            "applied": None,
        }


@dataclass
class _Log:
    """The changes of the log, by salvage or by a broker's rule.

    `is_fixed` is whether it is a DLedger log, which stays as it is, with its damage.
    """

    actions: tuple[Action, ...]
    end: int
    lost: Sequence[LostRecord]
    given_up: int
    given_up_bytes: int
    tail: tuple[tuple[int, int], ...]
    notes: list[str]
    refusals: list[Refusal]
    sound: ScanCache | None = None
    corrected: tuple[MisroutedRecord, ...] = ()
    incomplete: Sequence[Claim] = ()
    is_fixed: bool = False


def predictions(
    store: Store,
    brokers: Iterable[Broker],
    *,
    heap_bytes: int = DEFAULT_HEAP_BYTES,
    sound: ScanCache | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """The predicted effect of a start of each broker on the present store, as JSON; raises as `predict_all`.

    Args:
        store: opened for reading.
        brokers: versions.
        heap_bytes: the heap of these brokers' JVMs.
        sound: cached scans of log files.
        progress: called with the bytes of the log just scanned.
    """
    from rmqtool.broker.predict import predict_all

    starts = predict_all(
        store, tuple(brokers), settings=_settings(store, heap_bytes), sound=sound, progress=progress
    )
    rows = [found.row() for found in starts]
    return [
        {f"{name}_ms" if name.endswith("_timestamp") else name: value for name, value in row.items()}
        for row in rows
    ]


def plan_and_predict(
    store: Store,
    request: Request,
    brokers: Iterable[Broker],
    *,
    jobs: int = 0,
    progress: Progress | None = None,
) -> Recovery:
    """The plan with predictions for a start of each broker, which a second thread makes at the same time.

    Raises as `plan_recover` and `predictions` do. A store without possible predictions is not an error.
    """
    stopped = Event()

    def advance(count: int) -> None:
        if stopped.is_set():
            raise CancelledError
        if progress is not None:
            progress(count)

    log = _log(store, request, jobs, progress)
    _ = store.profile  # computed here, before there are two threads
    with ThreadPoolExecutor(1, "rmqtool-predict") as pool:
        future = pool.submit(
            predictions, store, tuple(brokers), heap_bytes=request.broker_heap_bytes, sound=log.sound,
            progress=advance,
        )  # fmt: skip
        try:
            recovery = _plan(store, request, log, jobs, progress)
        except BaseException:
            stopped.set()
            raise
        try:
            return replace(recovery, predictions=_with_delays(future.result(), recovery.delays))
        except UnsupportedStoreError as error:
            return replace(recovery, unpredicted=f"the effect of a start is unknown: {error.message}")
        finally:
            stopped.set()


def _with_delays(starts: Iterable[dict[str, Any]], delays: DelayLoss | None) -> list[dict[str, Any]]:
    """The predictions, each with the number of delayed messages that the broker delivers once more."""
    return [
        row | {"delivered_again": delays.again_without(row["end_offset"]) if delays is not None else 0}
        for row in starts
    ]


def plan_recover(
    store: Store, request: Request, *, jobs: int = 0, progress: Progress | None = None
) -> Recovery:
    """Plan the recovery of a store as `request` says; nothing is changed.

    Args:
        store: opened for reading; if the plan will be applied, under the store's lock.
        request: how to recover.
        jobs: number of threads; 0 for one per processor.
        progress: called with the bytes of the log just read, from any thread; most bytes are read twice.

    Raises:
        UsageError: not a store root.
        RefusedError: the requested broker would not start, or the request ends a log that is in DLedger.
        UnreadableError: a required file cannot be read.
    """
    return _plan(store, request, _log(store, request, jobs, progress), jobs, progress)


def _log(store: Store, request: Request, jobs: int, progress: Progress | None) -> _Log:
    out_of_reach(store)  # raises if it is not a store
    store.layout.check_forms(log=True)
    if store.layout.ledger is not None:
        return _ledger_log(store, request)
    if request.broker is None:
        return _best_log(store, request, jobs, progress)
    return _broker_log(store, request.broker, request.broker_heap_bytes, progress)


def _plan(store: Store, request: Request, log: _Log, jobs: int, progress: Progress | None) -> Recovery:
    """The plan, given the changes of the log."""
    from rmqtool.repair.rebuild.config import config_actions

    unreachable = out_of_reach(store)
    rebuild = _rebuild(store, log, jobs, progress, reachable=not unreachable)
    rounds = _MISROUTED_ROUNDS if request.broker is None and not log.is_fixed else 0
    while rounds and (misrouted := (*rebuild.misrouted, *rebuild.renumbered)):
        rounds -= 1  # a corrected record may show that its neighbour is misrouted too
        log = _with_places(store, log, misrouted)
        rebuild = _rebuild(store, log, jobs, progress, reachable=not unreachable)
    after = _after(store, log, rebuild)
    delays = delay_loss(store, after)
    elsewhere, warnings = _elsewhere(store, log, rebuild, after, delays)
    of_config, lacking = config_actions(store, rebuild)
    actions = _in_order([*log.actions, *rebuild.actions, *of_config, *elsewhere])
    actions, in_the_way = _without_conflicts(actions)
    agreed = 0 if request.mode == "best" and request.fill == "records" else log.given_up
    refusals = [
        *unreachable,
        *in_the_way,
        *log.refusals,
        *deliberate(store, actions, agreed, in_tail=bool(log.tail)),
    ]
    touched = {action.path for action in actions if "consumequeue" in action.path.partition("/")[0]}
    plan = Plan(
        "recover",
        request.options(),
        tuple(actions),
        fingerprint(store.layout, log_end=log.end, touched=touched),
        _summary(store, request, log, rebuild, actions, [*lacking, *warnings], delays),
    )
    layout = store.layout
    assert layout.root is not None, "out_of_reach refuses everything else"
    unread = any(refusal.needs is None for refusal in log.refusals)
    unread = unread or any(each.problem.input_unread for each in rebuild.damage)
    return Recovery(
        store=layout.root,
        written_by=store.written_by,
        abort=layout.abort is not None,
        guard=layout.guard is not None,
        plan=plan,
        build=rebuild.build,
        check_tools=rebuild.check_tools,
        refusals=tuple(refusals),
        tail=log.tail,
        is_needed=bool(actions) or layout.guard is not None,
        is_partial=bool(any(not part.is_lost for part in layout.unsupported) or layout.unreadable or unread),
        delays=delays,
    )


def _ledger_log(store: Store, request: Request) -> _Log:
    """A DLedger log, of which nothing changes: all else is repaired as this log, with its damage, says."""
    if request.broker is not None or request.fill != "records":
        store.layout.check_log_changes()
    return _Log((), store.end_offset(), (), 0, 0, (), [], [], is_fixed=True)


def _best_log(store: Store, request: Request, jobs: int, progress: Progress | None) -> _Log:
    from rmqtool.repair.salvage import salvage

    found = salvage(store, fill=request.fill, jobs=jobs, progress=progress)
    return _Log(
        found.actions,
        found.end,
        found.lost,
        found.given_up,
        found.tail[-1][1] - found.end if found.tail else 0,
        found.tail,
        list(found.notes),
        [
            Refusal(f"{path} cannot be read from byte {start} on: copy it to a sound disk first")
            for path, start, _ in found.unreadable
        ]
        + [Refusal(_misplaced_text(each), "yes") for each in found.misplaced],
        found.sound,
        incomplete=found.incomplete,
    )


def _misplaced_text(found: Misplaced) -> str:
    if not found.is_readable:
        return f"{found.path} cannot be read: if it was a file of the log, its messages are lost"
    records = f"{found.records} records of {found.path}"
    if found.is_taken:
        return (
            f"{records} are sound, and the log has a file {found.name} where they belong: keep the right one,"
            " or messages may be lost"
        )
    name = "the name that it had" if found.name is None else f"the name that it had, {found.name},"
    return f"{records} are sound but belong to another place: give the file {name} or their messages are lost"


def _settings(store: Store, heap_bytes: int) -> StartSettings:
    """The settings of broker.conf, with the heap, which it does not contain."""
    from rmqtool.broker.rules import StartSettings

    return replace(StartSettings.of(store.layout.broker_conf), heap_bytes=heap_bytes)


def _broker_log(store: Store, broker: Broker, heap_bytes: int, progress: Progress | None) -> _Log:
    from rmqtool.broker.predict import predict_all
    from rmqtool.repair.recover.broker_log import broker_actions, without_files

    settings = _settings(store, heap_bytes)
    (found,) = predict_all(store, (broker,), settings=settings, unreachable=False, progress=progress)
    actions = tuple(broker_actions(store, found))
    notes = []
    if store.layout.abort is not None or found.log_files_deleted or found.messages_abandoned:
        # The next start is a normal one, and looks back from another last file.
        then = without_files(store, found.log_files_deleted)
        (after,) = predict_all(
            then, (broker,), abort=False, settings=settings, unreachable=False, progress=progress
        )
        if after.loads and after.end_offset < found.end_offset:
            notes.append(
                f"the start of {broker} after this one examines other files and ends the log at"
                f" {after.end_offset}: damage outside the files of this start stays, and a second run"
                " truncates the log there; --mode best repairs it"
            )
    gone = found.messages_abandoned, found.bytes_abandoned
    return _Log(actions, found.end_offset, (), *gone, (), notes, [])


def _with_places(store: Store, log: _Log, misrouted: Sequence[MisroutedRecord]) -> _Log:
    """The log with the heads of misrouted records corrected."""
    from rmqtool.repair.rebuild.header_corrections import corrections

    names = {file.path: store.layout.relative(file.path) for file in store.layout.commit_log}
    return replace(
        log, actions=(*log.actions, *corrections(misrouted, names)), corrected=(*log.corrected, *misrouted)
    )


def _rebuild(store: Store, log: _Log, jobs: int, progress: Progress | None, *, reachable: bool) -> Rebuild:
    """The rebuild of queues and index for the changed log; they stay if their form is unsupported."""
    from rmqtool.repair.rebuild import plan_rebuild

    return plan_rebuild(
        store, log_actions=None if log.is_fixed else log.actions, queues=reachable, index=reachable,
        strays=True, sound=log.sound, jobs=jobs, progress=progress,
    )  # fmt: skip


def _after(store: Store, log: _Log, rebuild: Rebuild) -> After:
    """The store after the changes of log, queues and index."""
    return After(
        log_end=log.end,
        last_store_timestamp=rebuild.last_store_timestamp,
        index_timestamp=rebuild.index_timestamp,
        queues=rebuild.queue_ends,
        # A killed run may have changed them already: complete it in the same way.
        changes=bool(log.actions or rebuild.actions) or store.layout.guard is not None,
    )


def _elsewhere(
    store: Store, log: _Log, rebuild: Rebuild, after: After, delays: DelayLoss | None
) -> tuple[list[Action], list[str]]:
    """The changes of all other files, and warnings as texts."""
    actions: list[Action] = []
    warnings = list(log.notes)
    broken = {
        part.path: (lost_code(part), "it is missing") if part.is_lost else ("RD10", part.reason)
        for part in store.layout.unsupported
        if part.reason
        and part.form == "RocksDB"
        and part.what in _HARMLESS
        and part.what not in QUEUES_IN_ROCKSDB
        and not (part.path.name == SIDE_FOLDER and rebuild.index_database is not None)
    }
    warnings += [
        f"{store.layout.relative(path)} stays as it is ({code}): {reason}; rmqtool problems {code} says more"
        for path, (code, reason) in broken.items()
    ]
    warnings += [
        f"{item.path} stays as it is ({', '.join(item.problems)}): {item.reason}" for item in rebuild.unmended
    ]
    warnings += [*_ledger_texts(store, rebuild.damage), *rebuild.warnings]
    for found, texts in (
        offset_actions(store, after, delays),
        timer_actions(store, after),
        epoch_actions(store, after),
    ):
        actions += found
        warnings += texts
    actions += compaction_actions(store)
    of_log = (each.problem.code.startswith("CL") or leaves_ledger(each.problem) for each in rebuild.damage)
    if not any(of_log):  # else the log does not agree with queues and index
        actions += closing_actions(store, after)
    return actions, warnings


def _ledger_texts(store: Store, damage: Sequence[Finding]) -> Iterator[str]:
    """Warnings about the damage of a DLedger log, one for each code, and what to do about it."""
    by_code: dict[str, list[Finding]] = {}
    for each in damage:
        by_code.setdefault(each.problem.code, []).append(each)
    for code, found in by_code.items():
        first, problem = found[0], found[0].problem
        at = "" if first.physical_offset is None else f" at {first.physical_offset}"
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        text = f"{code} {first.message or problem.message}: {first.path}{at}{more}"
        by_hand = problem.repair is not None and not leaves_ledger(problem)
        yield f"{text}. To repair it, {problem.repair}" if by_hand else text
    if any(leaves_ledger(each.problem) for each in damage):
        yield (
            "the DLedger log stays as it is, or its replicas would differ: take its folder from a sound"
            f" replica while the brokers are stopped. Without one, {out_of_ledger(store.layout)}"
        )


def _in_order(actions: Iterable[Action]) -> list[Action]:
    """The changes; of two that replace the same config file, the later one, which includes the first."""
    kept: dict[object, Action] = {}
    for number, action in enumerate(actions):
        whole = action.kind in ("create", "replace", "delete")
        kept[action.path if whole and action.path.startswith("config/") else number] = action
    return list(kept.values())


def _without_conflicts(actions: Sequence[Action]) -> tuple[list[Action], list[Refusal]]:
    """The changes without files whose name is taken by another type of entry, and refusals for these."""
    deleted = {action.path for action in actions if action.kind == "delete"}
    conflicting = deleted & {action.path for action in actions if action.kind in ("create", "replace")}
    refusals = [Refusal(f"{path} is not a plain file: move it away first") for path in sorted(conflicting)]
    return [action for action in actions if action.path not in conflicting], refusals


def _summary(
    store: Store,
    request: Request,
    log: _Log,
    rebuild: Rebuild,
    actions: Sequence[Action],
    warnings: Sequence[str],
    delays: DelayLoss | None,
) -> dict[str, Any]:
    deleted = [a.path for a in log.actions if a.kind == "delete"]
    return {
        **request.options(),
        "ledger": store.layout.relative(store.layout.ledger.folder)
        if store.layout.ledger is not None
        else None,
        "log_end": log.end,
        "log_files_deleted": deleted,
        "lost": lost_rows(store, log.lost),
        "lost_messages": sum(record.count for record in log.lost),
        "delayed_originals": delayed_originals(store, log.lost),
        "incomplete": [_incomplete_row(claim) for claim in log.incomplete],
        "given_up_messages": log.given_up,
        "given_up_bytes": log.given_up_bytes,
        "delivered_again": delays.again if delays is not None else 0,
        "corrected": [record.row() for record in log.corrected],
        "queues": [
            {"topic": topic, "queue_id": queue_id, "min_offset": low, "max_offset": high}
            for (topic, queue_id), (low, high) in sorted(rebuild.queue_ends.items())
        ],
        "warnings": list(warnings),
        "remaining": list(_remaining(store, rebuild, warnings)),
        "config_lost": is_folder_lost(store.layout),
        "guessed_sizes": list(rebuild.guessed_sizes),
        "replica": replica_notes(store, actions),
    }


def _remaining(store: Store, rebuild: Rebuild, warnings: Sequence[str]) -> Iterator[str]:
    """The codes of the errors that are known to stay when the plan is applied, each once."""
    found = ["CL26"] if store.layout.lacks_log else []
    found += [code for item in rebuild.unmended for code in item.problems]
    found += [text[:4] for text in warnings]
    for code in dict.fromkeys(found):
        if code in BY_CODE and BY_CODE[code].severity == "error":
            yield code


def _incomplete_row(claim: Claim) -> dict[str, Any]:
    return {
        "topic": java_utf8_decode(claim.topic),
        "queue_id": claim.queue_id,
        "queue_offset": claim.queue_offset,
        "physical_offset": claim.start,
        "size": claim.size,
    }
