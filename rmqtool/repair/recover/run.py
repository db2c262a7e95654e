"""Carries out a plan of `recover`, or undoes it.

`export_tail` writes the messages after the log's new end as rows of JSON, which `append` can read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from rmqtool.errors import RefusedError, UsageError
from rmqtool.findings import Progress
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.rows import RowFormat, message_row
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.repair import plan as plans
from rmqtool.repair.plan import OpenStore
from rmqtool.repair.recover.assemble import Recovery, plan_recover
from rmqtool.repair.recover.request import Request
from rmqtool.storage import durable as disk
from rmqtool.storage.lock import StoreLock

_PIECE = 1 << 20


def write_tail(store: Store, ranges: Sequence[tuple[int, int]], backup: Path) -> tuple[Path | None, int]:
    """Write the messages of `ranges` to a new file next to the folder `backup`; (its path, their number).

    Args:
        store: the present store.
        ranges: ranges of the log, half-open physical offsets.
        backup: the folder of the backup, which need not exist yet.

    Raises:
        UnwritableError: the file cannot be written.
        UnreadableError: the log cannot be read.
    """
    if not ranges:
        return None, 0
    path = next(path for path in _names(backup) if not path.exists())
    unfinished = path.with_name(f"{path.name}.unfinished")
    disk.make_folder(path.parent)
    disk.remove(unfinished)
    descriptor, position, messages = disk.create_file(unfinished, 0), 0, 0
    piece = bytearray()
    try:
        for line in _lines(store, ranges):
            piece += line
            messages += 1
            if len(piece) >= _PIECE:
                disk.write(descriptor, piece, position, unfinished)
                position += len(piece)
                piece = bytearray()
        disk.write(descriptor, piece, position, unfinished)
        disk.sync(descriptor, unfinished)
    except BaseException:
        disk.remove(unfinished)
        raise
    finally:
        os.close(descriptor)
    disk.rename(unfinished, path)
    disk.sync_folder(path.parent)
    return path, messages


def _names(backup: Path) -> Iterator[Path]:
    """Candidate names next to the backup: a killed run may have left the first."""
    yield backup.with_name(f"{backup.name}.tail.jsonl")
    for number in count(2):
        yield backup.with_name(f"{backup.name}.tail-{number}.jsonl")


def _lines(store: Store, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    form = RowFormat()
    for start, stop in ranges:
        for stored in store.messages(Selection(from_offset=start, to_offset=stop), damage="skip"):
            row = message_row(stored.message, stored.physical_offset, stored.file, form)
            yield json.dumps(row, ensure_ascii=True).encode("ascii") + b"\n"


@dataclass(frozen=True)
class Outcome:
    """The result of a run of `recover`.

    Attributes:
        recovery: the plan; without changes if nothing was to be done.
        earlier: what became of interrupted runs.
        backup: where the previous bytes are; None if nothing was changed.
        tail: the file with the messages after the log's new end; None if there are none.
        tail_messages: how many.
    """

    recovery: Recovery
    earlier: plans.Earlier
    backup: Path | None = None
    tail: Path | None = None
    tail_messages: int = 0

    def row(self) -> dict[str, Any]:
        """The outcome as JSON, in the form of the plan with `applied` set."""
        done = self.recovery.is_needed or self.earlier.guard
        applied = {
            "changes": len(self.recovery.plan.actions),
            "backup": None if self.backup is None else str(self.backup),
            "tail": None if self.tail is None else str(self.tail),
            "tail_messages": self.tail_messages,
        }
        return {
            **self.recovery.row(),
            "guard": self.earlier.guard,
            "refusals": [],  # they were set aside
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
    """Plan under the store's lock and do the plan; the changes of an interrupted run are undone first.

    Args:
        open_store: see `OpenStore`.
        request: how to recover; None if `plan_file` says it.
        plan_file: the plan has to agree with this one, and the store must not have changed since.
        backup_dir: a new folder, or see `plan.backup_folder`; None: next to the store.
        yes: give up sound messages.
        force: change the log of a slave; continue if the backup of an interrupted run is lost.
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

    def change(
        recovery: Recovery, store: Store, held: StoreLock, earlier: plans.Earlier
    ) -> tuple[Path | None, Path | None, int]:
        recovery.check_tools()
        layout = store.layout
        backup = plans.backup_folder(layout, backup_dir)
        plans.check_backup(layout, backup)
        tail, messages = write_tail(store, recovery.tail, backup)
        store.close()
        try:
            applied = plans.apply(
                recovery.plan, layout, build=recovery.build, backup_dir=backup, held=held,
                abandon=earlier.abandoned,
            )  # fmt: skip
        except RefusedError:
            if tail is not None:
                disk.remove(tail)
            raise
        return applied.backup, tail, messages

    recovery, earlier, done = plans.carry_out(
        open_store, partial(plan_recover, request=request, jobs=jobs, progress=progress), change,
        settle=partial(plans.roll_back, abandon=force), file=file, yes=yes, force=force,
    )  # fmt: skip
    if done is None:
        return Outcome(recovery, earlier, backup=earlier.finished)
    return Outcome(recovery, earlier, *done)


def undo_recover(open_store: OpenStore, backup: Path, *, moved: bool = False) -> dict[str, Any]:
    """Give the store back what `backup` holds; what was done, as JSON. `moved` as for `plan.undo`.

    Raises:
        RefusedError: the store was written to since.
        StoreInUseError: a broker holds the lock.
        InputError: this is not a backup, or it is damaged.
    """
    with plans.held_store(open_store) as (store, held):
        undone = plans.undo(backup, store.layout, held=held, moved=moved)
    following = None if undone.next is None else str(undone.next)
    return {"backup": str(backup), "command": undone.command, "files": undone.files,
            "removed": undone.removed, "already": undone.already, "next": following}  # fmt: skip
