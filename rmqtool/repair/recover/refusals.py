"""What stands against applying a plan: what is out of reach, and what needs a deliberate act.

Source: design sections 2 and 9; spec 02 sections 12.2 and 15 (C16).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rmqtool.errors import RefusedError, UsageError
from rmqtool.read.store import Store
from rmqtool.repair.plan import Action

# Their files do not depend on where queues and index are kept.
_HARMLESS = frozenset({"pop records", "timer messages", "half messages"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason not to apply. `needs` is the option that sets it aside; None where none does."""

    reason: str
    needs: Literal["yes", "force"] | None = None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {"reason": self.reason, "needs": self.needs}


def out_of_reach(store: Store) -> list[Refusal]:
    """Parts without which nothing can be mended: queues or config in RocksDB, DLedger, unreadable folders.

    Raises:
        UsageError: it is no store root.
    """
    layout = store.layout
    if layout.root is None or layout.kind != "store":
        raise UsageError("only a whole store can be recovered", hint="name the folder that holds commitlog")
    found = [
        Refusal(f"{part.what} are kept in {part.form}, which rmqtool cannot repair")
        for part in layout.unsupported
        if part.what not in _HARMLESS
    ]
    found += [
        Refusal(f"{layout.relative(path)} cannot be read: {reason}") for path, reason in layout.unreadable
    ]
    return found


def deliberate(store: Store, actions: Sequence[Action], given_up: int) -> list[Refusal]:
    """What the plan does that nobody should get by accident.

    Args:
        store: as it stands.
        actions: the plan's.
        given_up: messages that are sound and will not be in the log any more.
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
        found.append(Refusal(f"{given_up} sound messages would be removed from the log", "yes"))
    if not layout.commit_log and (layout.consume_queues or layout.batch_queues):
        found.append(
            Refusal(
                "the commit log has no files: every queue would be emptied; look for the log first", "force"
            )
        )
    return found


def is_log(store: Store, path: str) -> bool:
    """Whether a path of an action lies in a folder of the commit log."""
    return any(path.startswith(f"{store.layout.relative(f)}/") for f in store.layout.commit_log_folders)


def must_be_allowed(refusals: Iterable[Refusal], *, yes: bool, force: bool) -> None:
    """Raise RefusedError for the first reason that is not set aside."""
    allowed = {"yes": yes, "force": force, None: False}
    for refusal in refusals:
        if not allowed[refusal.needs]:
            hint = f"--{refusal.needs} does it all the same" if refusal.needs is not None else None
            raise RefusedError(refusal.reason, hint=hint)


def replica_notes(store: Store, actions: Iterable[Action]) -> list[str]:
    """What the plan means for a replica of this store, in words; nothing where the log stays.

    Source: spec 02 sections 12.1 to 12.3.
    """
    of_log = [action for action in actions if is_log(store, action.path)]
    notes = []
    if any(action.kind == "fill" for action in of_log):
        notes.append(
            "a slave keeps its own bytes where this log is filled: the two logs keep differing there; if the"
            " slave has the lost records, use its log instead of this one (rmqtool diff compares them)"
        )
    if any(action.kind in ("cut", "delete") for action in of_log):
        notes.append(
            "a slave that holds more than this log is then ahead of it: classic replication keeps the extra"
            " bytes forever and reports nothing, controller mode truncates them; compare with rmqtool diff"
            " first, and empty a slave that is ahead"
        )
    return notes
