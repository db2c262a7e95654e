"""The two uses of a plan that all commands share: show it, or carry it out.

    show_plan    takes no lock, and looks again if a writer passes by
    carry_out    takes the lock, settles what an interrupted run has left, looks, plans, checks everything
                 that stands against the plan, and only then changes the store (design section 9)

A command brings a function that plans for an open store, and one that does the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from rmqtool.errors import RefusedError, RmqtoolError, StoreInUseError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.store import Store
from rmqtool.repair.plan.action import Plan
from rmqtool.repair.plan.backup import Backup
from rmqtool.repair.plan.fingerprint import FileState, listed
from rmqtool.repair.plan.guard import read_journal
from rmqtool.repair.plan.paths import Places
from rmqtool.repair.plan.plan_file import PlanFile, agree, check_unchanged
from rmqtool.repair.plan.undo import Earlier, roll_back
from rmqtool.storage import lock
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.lock import StoreLock
from rmqtool.storage.next_command import command_on

OpenStore = Callable[[], Store]
"""Opens the store for reading. Each call opens it again: a plan is made of what lies there under the lock."""

_LOOKS = 3
_OTHERS = "another repair of this store was interrupted, which has to be finished first"
T = TypeVar("T")
P = TypeVar("P", bound="Planned")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason not to carry out a plan.

    Attributes:
        reason: for a person.
        needs: the option that sets it aside; None if none does.
        path, hint: for the error; without a hint it names the option.
    """

    reason: str
    needs: Literal["yes", "force"] | None = None
    path: Path | None = None
    hint: str | None = None

    def row(self) -> dict[str, Any]:
        """The refusal as JSON."""
        return {"reason": self.reason, "needs": self.needs}


class Planned(Protocol):
    """The plan of a command for a store."""

    @property
    def plan(self) -> Plan:
        """The changes, in the form of a plan file."""

    @property
    def refusals(self) -> Sequence[Refusal]:
        """The reasons against carrying it out."""

    @property
    def is_needed(self) -> bool:
        """Whether carrying it out changes anything."""


def show_plan(
    open_store: OpenStore, make: Callable[[Store], P], *, file: PlanFile | None = None, rests: bool = True
) -> tuple[Store, P]:
    """Plan for a store, without its lock.

    Args:
        open_store: opens the store.
        make: plans for it.
        file: a plan file that has to agree with the plan.
        rests: wait until no writer passes by, see `steady`.

    Returns:
        The store, closed; the plan.

    Raises:
        RefusedError: the plan file is for another state of the store, or for another plan.
        StoreInUseError: as `steady`.
    """

    def look(store: Store) -> tuple[Store, P]:
        return store, _planned(store, make, file)

    if rests:
        return steady(open_store, look)
    with open_store() as store:
        return look(store)


def carry_out(
    open_store: OpenStore,
    make: Callable[[Store], P],
    change: Callable[[P, Store, StoreLock, Earlier], T],
    *,
    settle: Callable[[StoreLayout, StoreLock], Earlier],
    file: PlanFile | None = None,
    yes: bool = False,
    force: bool = False,
) -> tuple[P, Earlier, T | None]:
    """Plan for a store under its lock, and carry out the plan.

    Args:
        open_store: opens the store.
        make: plans for it.
        change: does the plan, with the lock held. It is called only for a plan that is needed.
        settle: called with the lock held before the store is examined: undoes interrupted runs, or refuses.
        file: a plan file. It is not what is done: the new plan has to agree with it.
        yes: set aside refusals that need it.
        force: likewise.

    Returns:
        The plan; what became of interrupted runs; the result of `change`, None if nothing was to be done.

    Raises:
        UsageError: this is not a store root.
        StoreInUseError: a broker holds the lock.
        RefusedError: something stands against the plan, or the plan file is for another state of the store.
    """
    earlier = Earlier()

    def settled(layout: StoreLayout, held: StoreLock) -> None:
        nonlocal earlier
        earlier = settle(layout, held)

    with held_store(open_store, settle=settled) as (store, held):
        planned = _planned(store, make, file)
        _must_be_allowed(planned.refusals, yes=yes, force=force)
        result = change(planned, store, held, earlier) if planned.is_needed else None
    return planned, earlier, result


def _planned(store: Store, make: Callable[[Store], P], file: PlanFile | None) -> P:
    """A plan that agrees with a plan file, if there is one."""
    if file is not None:
        check_unchanged(file, store.layout)
    planned = make(store)
    if file is not None:
        agree(planned.plan, file)
    return planned


def _must_be_allowed(refusals: Iterable[Refusal], *, yes: bool, force: bool) -> None:
    """Raise RefusedError for the first reason that is not overridden."""
    refusal = not_overridden(refusals, yes=yes, force=force)
    if refusal is not None:
        default = f"--{refusal.needs} does it anyway" if refusal.needs is not None else None
        error = RefusedError(refusal.reason, path=refusal.path, hint=refusal.hint or default)
        error.needs = refusal.needs
        raise error


def not_overridden(refusals: Iterable[Refusal], *, yes: bool, force: bool) -> Refusal | None:
    """The first reason that is not overridden; None if --apply is allowed."""
    allowed = {"yes": yes, "force": force, None: False}
    return next((refusal for refusal in refusals if not allowed[refusal.needs]), None)


def unready(layout: StoreLayout, command: str, cost: str) -> Iterator[Refusal]:
    """Why a command that repairs one part of a store should not do so now.

    Args:
        layout: of the store.
        command: its name.
        cost: what the next start does to its work if the store was not closed cleanly, for a person.
    """
    hint = command_on(layout, "recover")
    if _others_repair(layout, command):
        yield Refusal(_OTHERS, None, layout.root, hint)
    elif layout.abort is not None:
        yield Refusal(
            f"the store was not closed cleanly: its next start would {cost}",
            "force",
            layout.root,
            hint,
        )


def settle_own(layout: StoreLayout, held: StoreLock, command: str) -> Earlier:
    """Undo the changes of an interrupted run of a command. Raises RefusedError if it is another's run."""
    if _others_repair(layout, command):
        raise RefusedError(_OTHERS, path=layout.root, hint=command_on(layout, "recover"))
    return roll_back(layout, held)


def _others_repair(layout: StoreLayout, command: str) -> bool:
    """Whether a run that was killed may be one of another command, which has more to repair."""
    if layout.guard is None:
        return False
    runs = read_journal(Places(layout))
    try:
        return any(Backup(Path(folder)).manifest().command != command for _, folder in runs)
    except RmqtoolError:  # its backup was deleted, say
        return True


@contextmanager
def held_store(
    open_store: OpenStore, *, settle: Callable[[StoreLayout, StoreLock], object] | None = None
) -> Iterator[tuple[Store, StoreLock]]:
    """Open the store once its lock is held; yield it and the lock, which is released at the end.

    Args:
        open_store: opens it.
        settle: called with the lock held, before the store is examined.

    Raises:
        UsageError: this is not a store root.
        StoreInUseError: a broker holds the lock.
    """
    with open_store() as store:
        root = store.layout.root
        if root is None or store.layout.kind != "store":
            raise UsageError("only a whole store can be changed", hint="name the folder that holds commitlog")
    held = lock.acquire(root / "lock")
    try:
        if settle is not None:
            settle(store.layout, held)
        with open_store() as store:
            yield store, held
    finally:
        held.release()


def steady(open_store: OpenStore, look: Callable[[Store], T]) -> T:
    """Return the result of `look` on a store whose files do not change meanwhile; no lock is taken.

    If a writer came by and its lock is free again, `look` is called again. Config files, which an idle
    broker writes every few seconds, count only if `look` failed.

    Raises:
        StoreInUseError: the files keep changing.
    """
    for _ in range(_LOOKS):
        with open_store() as store:
            before = _listed(store)
        with open_store() as store:  # again: what a layout lists is not older than what is compared
            try:
                found = look(store)
            except Exception:
                if _listed(store) == before:
                    raise
            else:
                if _without_config(_listed(store)) == _without_config(before):
                    return found
            holder = store.holder
        if holder.is_held:
            break
    who = f"process {holder.pid} holds its lock, and" if holder.pid else "something"
    raise StoreInUseError(
        f"the store is in use: {who} writes to it while it is read", path=store.layout.root,
        hint="stop it first",
    )  # fmt: skip


def _listed(store: Store) -> dict[str, FileState]:
    return listed(store.layout) if store.is_local and store.layout.root is not None else {}


def _without_config(files: dict[str, FileState]) -> dict[str, FileState]:
    return {path: state for path, state in files.items() if not path.startswith("config/")}
