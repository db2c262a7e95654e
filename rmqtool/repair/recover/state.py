"""The last steps of a repair: correct `checkpoint`, and delete `abort`.

A broker that finds no abort file recovers normally: it trusts the queues, and dispatches the records after
their end. So both steps are correct only after log, queues and index agree.

Source: StoreCheckpoint, DefaultMessageStore#shutdown; spec 02 sections 1.1, 2, 3 and 6.
"""

from __future__ import annotations

from dataclasses import replace

from rmqtool.formats import checkpoint as checkpoint_format
from rmqtool.formats.checkpoint import Checkpoint
from rmqtool.read.store import Store
from rmqtool.repair.plan import Action, ActionKind
from rmqtool.repair.recover.after import After
from rmqtool.storage.open_files import read_head

_REASON = "set to the newest record in the log, the queues and the index"


def closing_actions(store: Store, after: After) -> list[Action]:
    """The changes of checkpoint and abort, in this order; none if both are as after a clean stop.

    In a store that needs no other change, a checkpoint that is merely older than the last record stays:
    brokers leave it like this.

    Raises:
        UnreadableError: the checkpoint cannot be read.
    """
    actions = [*_checkpoint(store, after)]
    if store.layout.abort is not None:
        reason = "the log, the queues and the index agree: the next start recovers normally"
        actions.append(Action("delete", "abort", 0, _size(store), reason, "CP04"))
    return actions


def _size(store: Store) -> int:
    abort = store.layout.abort
    return abort.lstat().st_size if abort is not None else 0


def _checkpoint(store: Store, after: After) -> list[Action]:
    path = store.layout.checkpoint
    data = read_head(path, checkpoint_format.FILE_SIZE + 1) if path is not None else None
    if data is None and after.last_store_timestamp == 0:
        return []
    before = _decoded(data or b"")
    problem = _problem(data, before, after)
    if problem is None and not after.changes and store.layout.abort is None:
        return []
    truth = _truth(before, after)
    if not store.layout.has_queues_in_files:  # of queues in RocksDB a broker notes no time
        truth = replace(truth, logics_msg_timestamp=before.logics_msg_timestamp)
    content = checkpoint_format.encode(truth)
    if content == data:
        return []
    kind: ActionKind = "create" if data is None else "replace"
    return [Action(kind, "checkpoint", 0, len(content), _REASON, problem,
                   {"physic_msg_timestamp_ms": after.last_store_timestamp,
                    "logics_msg_timestamp_ms": truth.logics_msg_timestamp,
                    "index_msg_timestamp_ms": after.index_timestamp}, content)]  # fmt: skip


def _decoded(data: bytes) -> Checkpoint:
    size = checkpoint_format.FILE_SIZE
    return checkpoint_format.decode(data[:size].ljust(size, b"\0"))


def _truth(before: Checkpoint, after: After) -> Checkpoint:
    """The checkpoint of a clean stop; offsets of replication are kept, but limited to the log's end."""
    return replace(
        before,
        physic_msg_timestamp=after.last_store_timestamp,
        logics_msg_timestamp=after.last_store_timestamp,
        index_msg_timestamp=after.index_timestamp,
        master_flushed_offset=min(before.master_flushed_offset, after.log_end),
        confirm_phy_offset=min(before.confirm_phy_offset, after.log_end),
    )


def _problem(data: bytes | None, values: Checkpoint, after: After) -> str | None:
    """The code of the checkpoint's problem; None if it has none."""
    if data is None or not any(data):
        return "CP01"
    if len(data) != checkpoint_format.FILE_SIZE:
        return "CP02"
    times = (values.physic_msg_timestamp, values.logics_msg_timestamp, values.index_msg_timestamp)
    return "CP03" if max(times) > after.last_store_timestamp else None
