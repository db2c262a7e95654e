"""The plan of `rebuild`, and its execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from rmqtool.errors import FormatError, RefusedError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.problems import LOG_ELSEWHERE
from rmqtool.read.delay_loss import old_bak
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.repair import plan as plans
from rmqtool.repair.plan import Action, Applied, OpenStore, Plan, Refusal
from rmqtool.repair.rebuild import Rebuild, plan_rebuild
from rmqtool.repair.rebuild.config import config_actions
from rmqtool.repair.recover.after import After
from rmqtool.repair.recover.state import closing_actions
from rmqtool.storage.lock import StoreLock
from rmqtool.storage.out_of_reach import NOT_A_FILE
from rmqtool.storage.unsupported import SIDE_FOLDER

Part = Literal["queues", "index", "config"]
PARTS: tuple[Part, ...] = get_args(Part)
_NO_EARLIER = plans.Earlier()
_QUEUE_FOLDERS = ("consumequeue/", "batchconsumequeue/", "consumequeue_ext/")


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of the store to rebuild; of the queues, those of some topics and ids, or all."""

    parts: tuple[Part, ...] = PARTS
    topics: tuple[str, ...] = ()
    queues: tuple[int, ...] = ()

    def options(self) -> dict[str, Any]:
        """As JSON, for `Plan.options`."""
        return {"parts": list(self.parts), "topics": list(self.topics), "queues": list(self.queues)}

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Request:
        """The inverse of `options`; the input is untrusted. Raises FormatError for other options."""
        parts, topics, queues = (options.get(name) for name in ("parts", "topics", "queues"))
        if not (isinstance(parts, list) and parts and all(part in PARTS for part in parts)):
            raise FormatError("the plan's parts are none that rebuild has")
        if not (isinstance(topics, list) and all(isinstance(topic, str) for topic in topics)):
            raise FormatError("the plan's topics are not a list of texts")
        numbers = isinstance(queues, list) and all(type(number) is int for number in queues)
        if not numbers or not isinstance(queues, list):
            raise FormatError("the plan's queues are not a list of numbers")
        return cls(tuple(parts), tuple(topics), tuple(queues))


@dataclass(frozen=True)
class Planned:
    """A plan, and what there is to say of it.

    Attributes:
        plan: the changes.
        request: what was examined, and is rebuilt where it is wrong.
        selection: which queues it is for.
        rebuild: what it is made of.
        refusals: why it would not be applied; none for a plan that is not needed.
        is_needed: whether applying it changes anything, including the guard of an interrupted run.
        earlier: what became of interrupted runs, when it was applied.
    """

    plan: Plan
    request: Request
    selection: Selection
    rebuild: Rebuild
    refusals: tuple[Refusal, ...]
    is_needed: bool
    earlier: plans.Earlier = _NO_EARLIER


def plan(
    store: Store, request: Request, *, jobs: int = 0, progress: Callable[[int], None] | None = None
) -> Planned:
    """The plan that `request` means for a store; nothing is changed.

    Raises:
        UsageError: it is not a store root.
        RefusedError: it has no commit log, or keeps queues or index where rmqtool writes none.
        UnreadableError: a part of it cannot be read.
    """
    layout = store.layout
    if layout.root is None or layout.kind != "store":
        raise UsageError("only a whole store can be rebuilt", hint="name the folder that holds commitlog")
    layout.check_forms(log=True)
    if not layout.commit_log:
        raise RefusedError(
            "the commit log has no files: there is nothing to rebuild from",
            path=layout.root,
            hint=LOG_ELSEWHERE,
        )
    for path, reason in layout.unreadable:
        raise RefusedError(f"cannot be read: {reason}", path=path)
    for path in layout.commit_log_not_files:
        raise RefusedError(f"cannot be read: {NOT_A_FILE}", path=path)
    selection = Selection(topics=request.topics, queues=request.queues)
    found = plan_rebuild(
        store,
        selection=selection,
        queues="queues" in request.parts,
        index="index" in request.parts,
        strays=not request.topics and not request.queues,
        jobs=jobs,
        progress=progress,
    )
    actions = _chosen(found.actions, request)
    if "config" in request.parts:
        of_config, texts = config_actions(store, found)
        for old in old_bak(store):  # copied, nothing would show any more that it is old
            of_config = [each for each in of_config if each.path != old.path]
            texts.append(f"{old.problem.code} {old.message}; rmqtool recover makes the file again")
        actions += of_config
        found = replace(found, warnings=(*texts, *found.warnings))
    made = any(action.path.startswith("index/") and action.kind != "delete" for action in actions)
    if made:
        actions += _checkpoint(store, found)
    touched = [action.path for action in actions if action.path.startswith(_QUEUE_FOLDERS)]
    mark = plans.fingerprint(layout, log_end=found.log_end, touched=touched)
    result = Plan("rebuild", request.options(), tuple(actions), mark, _summary(found))
    is_needed = bool(actions) or layout.guard is not None
    refusals = tuple(plans.unready(layout, "rebuild", "truncate and delete what was repaired"))
    return Planned(result, request, selection, found, refusals if is_needed else (), is_needed)


def _chosen(actions: tuple[Action, ...], request: Request) -> list[Action]:
    """Without strays in parts that were not asked for."""
    left_out = [] if "queues" in request.parts else [*_QUEUE_FOLDERS]
    left_out += [] if "index" in request.parts else ["index/", f"{SIDE_FOLDER}/"]
    return [action for action in actions if not action.path.startswith(tuple(left_out))]


def _checkpoint(store: Store, found: Rebuild) -> list[Action]:
    """The checkpoint says up to when the index is full and on disk: after a crash the rest is dropped."""
    after = After(
        log_end=found.log_end,
        last_store_timestamp=found.last_store_timestamp,
        index_timestamp=found.index_timestamp,
        queues=found.queue_ends,
        changes=True,
    )
    return [action for action in closing_actions(store, after) if action.path == "checkpoint"]


def _summary(found: Rebuild) -> dict[str, Any]:
    return {
        "queues": len(found.tasks) + (0 if found.database is None else len(found.database.shapes)),
        "units": sum(task.shape.count for task in found.tasks)
        + (0 if found.database is None else found.database.units),
        "index_entries": (0 if found.index is None else found.index.keys)
        + (0 if found.index_database is None else found.index_database.entries),
        "unmended": [
            {"path": item.path, "problems": list(item.problems), "reason": item.reason}
            for item in found.unmended
        ],
        "deleted_topics": sorted({topic for topic, _ in found.deleted}),
    }


def rebuild_store(
    open_store: OpenStore,
    request: Request | None,
    *,
    plan_file: Path | None = None,
    backup_dir: Path | None = None,
    force: bool = False,
    jobs: int = 0,
) -> tuple[Planned, Applied | None]:
    """Plan under the store's lock and do the plan; the changes of an interrupted run are undone first.

    Returns the plan, and what was done, None for nothing.

    Args:
        open_store: see `OpenStore`.
        request: what is rebuilt; None if `plan_file` says it.
        plan_file: the plan has to agree with this one, and the store must not have changed since.
        backup_dir: a new folder; None: next to the store.
        force: do it although the store was not closed cleanly.
        jobs: threads; 0 for one per processor.

    Raises:
        StoreInUseError: a broker holds the lock.
        RefusedError: something stands against it, or the plan is for another state of the store.
        UnwritableError: the disk is full, or a permission is missing.
        UnreadableError, FormatError: the store or the plan file cannot be read or understood.
    """
    file = None if plan_file is None else plans.read_plan(plan_file, "rebuild")
    if file is not None:
        request = Request.of_options(file.options)
    if request is None:
        raise UsageError("neither a request nor a plan was given")

    def change(planned: Planned, store: Store, held: StoreLock, earlier: plans.Earlier) -> Applied:
        planned.rebuild.check_tools()
        store.close()
        return plans.apply(
            planned.plan, store.layout, build=planned.rebuild.build, backup_dir=backup_dir, held=held
        )

    planned, earlier, applied = plans.carry_out(
        open_store,
        lambda store: plan(store, request, jobs=jobs),
        change,
        settle=partial(plans.settle_own, command="rebuild"),
        file=file,
        force=force,
    )
    if applied is None and earlier.finished is not None:
        applied = Applied(earlier.finished, 0, 0)
    return replace(planned, earlier=earlier), applied
