"""Reasons not to apply a plan: unsupported parts, and changes that need explicit consent.

Source: design sections 2 and 9; spec 02 sections 12.2 and 15 (C16).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmqtool.errors import UsageError
from rmqtool.read.store import Store
from rmqtool.repair.plan import Action, Refusal

# Parts whose files are independent of the form of queues and index.
_HARMLESS = frozenset({"pop records", "timer messages", "half messages"})


def out_of_reach(store: Store) -> list[Refusal]:
    """Refusals for parts that prevent a repair: queues or config in RocksDB, DLedger, unreadable folders.

    Raises:
        UsageError: not a store root.
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
    """Refusals for changes that need explicit consent.

    Args:
        store: the present store.
        actions: the plan's.
        given_up: number of sound messages that the plan removes from the log.
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
