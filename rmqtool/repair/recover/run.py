"""Do a plan, or undo it: the lock first, then look, then change.

Source: design section 9.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmqtool.errors import RefusedError, UsageError
from rmqtool.findings import Progress
from rmqtool.repair import plan as plans
from rmqtool.repair.plan.held import OpenStore, held_store
from rmqtool.repair.recover.assemble import Recovery, plan_recover
from rmqtool.repair.recover.refusals import must_be_allowed
from rmqtool.repair.recover.request import Request
from rmqtool.repair.recover.tail import write_tail
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.lock import StoreLock
from rmqtool.storage.profile import WrittenBy


@dataclass(frozen=True)
class Outcome:
    """What was done.

    Attributes:
        store: the store's root.
        written_by: the broker version that used it last.
        abort, guard: whether these files were there before.
        recovery: the plan; without changes where nothing was to be done.
        earlier: what became of runs that were killed.
        backup: where the bytes are that were there before; None where nothing was changed.
        tail: the file with the messages behind the log's new end; None where there are none.
        tail_messages: how many.
    """

    store: Path
    written_by: WrittenBy
    abort: bool
    guard: bool
    recovery: Recovery
    earlier: plans.Earlier
    backup: Path | None = None
    tail: Path | None = None
    tail_messages: int = 0

    def row(self) -> dict[str, Any]:
        """As JSON, in the form of the plan with `applied` set."""
        done = self.recovery.is_needed or self.earlier.guard
        applied = {
            "changes": len(self.recovery.plan.actions),
            "backup": None if self.backup is None else str(self.backup),
            "tail": None if self.tail is None else str(self.tail),
            "tail_messages": self.tail_messages,
        }
        return {
            "store": str(self.store),
            **self.written_by.row(),
            "abort": self.abort,
            "guard": self.guard,
            "predictions": [],
            **self.recovery.row(),
            "refusals": [],  # what stood against it was set aside
            "applied": applied if done else None,
        }


def recover_store(
    open_store: OpenStore,
    request: Request | None,
    *,
    plan_file: Path | None = None,
    backup_dir: Path | None = None,
    yes: bool = False,
    force: bool = False,
    jobs: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Make the plan under the store's lock and do it; what a killed run has changed is given back first.

    Args:
        open_store: see `OpenStore`.
        request: how to recover; None where `plan_file` says it.
        plan_file: a plan that has to come out again, for a store that has not changed since.
        backup_dir: a new folder, or see `plan.backup_folder`; None: beside the store.
        yes: give up messages that are sound.
        force: change the log of a slave, and go on without the backup of a killed run where it is lost.
        jobs: threads; 0 for one per processor.
        progress: as for `plan_recover`.

    Raises:
        StoreInUseError: a broker holds the lock.
        RefusedError: something stands against it, or the plan is for another state of the store.
        UnwritableError: the disk is full, or a permission is missing.
        UnreadableError, FormatError: the store or the plan file cannot be read or understood.
    """
    file = None if plan_file is None else plans.read_plan(plan_file, "recover")
    if file is not None:
        request = Request.of_options(file.options)
    if request is None:
        raise UsageError("neither a request nor a plan was given")
    earlier = plans.Earlier()

    def settle(layout: StoreLayout, held: StoreLock) -> None:
        nonlocal earlier
        earlier = plans.roll_back(layout, held, abandon=force)

    with held_store(open_store, settle=settle) as (store, held):
        if file is not None:
            plans.check_unchanged(file, store.layout)
        recovery = plan_recover(store, request, jobs=jobs, progress=progress)
        if file is not None:
            plans.agree(recovery.plan, file)
        must_be_allowed(recovery.refusals, yes=yes, force=force)
        layout = store.layout
        root = layout.root
        assert root is not None, "out_of_reach refuses all else"
        before = Outcome(root, store.written_by, layout.abort is not None, earlier.guard, recovery, earlier)
        if not recovery.is_needed:
            return replace(before, backup=earlier.finished)
        backup = plans.backup_folder(layout, backup_dir)
        plans.check_backup(layout, backup)
        tail, messages = write_tail(store, recovery.tail, backup)
        store.close()
        try:
            applied = plans.apply(
                recovery.plan, layout, backup_dir=backup, held=held, abandon=earlier.abandoned
            )
        except RefusedError:
            if tail is not None:
                disk.remove(tail)
            raise
    return replace(before, backup=applied.backup, tail=tail, tail_messages=messages)


def undo_recover(open_store: OpenStore, backup: Path, *, moved: bool = False) -> dict[str, Any]:
    """Give the store back what `backup` holds; what was done, as JSON. `moved` as for `plan.undo`.

    Raises:
        RefusedError: the store was written to since.
        StoreInUseError: a broker holds the lock.
        InputError: this is no backup, or it is damaged.
    """
    with held_store(open_store) as (store, held):
        undone = plans.undo(backup, store.layout, held=held, moved=moved)
    following = None if undone.next is None else str(undone.next)
    return {"backup": str(backup), "files": undone.files, "already": undone.already, "next": following}
