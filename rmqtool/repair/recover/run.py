"""Carries out a plan of `recover`, or undoes it.

`export_tail` writes the messages after the log's new end as rows of JSON, which `append` can read.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from rmqtool.errors import RefusedError, UsageError
from rmqtool.findings import Progress
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.rows import OK, Row, RowFormat, message_row
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.repair import plan as plans
from rmqtool.repair.plan import OpenStore
from rmqtool.repair.recover.assemble import Recovery, plan_recover
from rmqtool.repair.recover.request import Request
from rmqtool.storage import durable as disk
from rmqtool.storage.lock import StoreLock

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Tail:
    """The file with the messages after the log's new end.

    Attributes:
        path: None if there are none.
        messages: their number.
        incomplete: how many of them have damaged properties (CL13). Their rows have no status, so that
            `append` stores what the record still shows.
        refused: how many rows `append` refuses, because of other damage.
    """

    path: Path | None = None
    messages: int = 0
    incomplete: int = 0
    refused: int = 0

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "tail": None if self.path is None else str(self.path),
            "tail_messages": self.messages,
            "tail_incomplete": self.incomplete,
            "tail_refused": self.refused,
        }


def write_tail(store: Store, ranges: Sequence[tuple[int, int]], backup: Path) -> Tail:
    """Write the messages of `ranges` to a new file next to the folder `backup`.

    Args:
        store: the present store.
        ranges: ranges of the log, half-open physical offsets.
        backup: the folder of the backup, which need not exist yet.

    Raises:
        UnwritableError: the file cannot be written.
        UnreadableError: the log cannot be read.
    """
    if not ranges:
        return Tail()
    path = next(path for path in _names(backup) if not path.exists())
    unfinished = path.with_name(f"{path.name}.unfinished")
    disk.make_folder(path.parent)
    disk.remove(unfinished)
    descriptor, position, counts = disk.create_file(unfinished, 0), 0, Counter[str]()
    piece = bytearray()
    try:
        for row in _rows(store, ranges):
            counts[_kind(row)] += 1
            piece += json.dumps(row, ensure_ascii=True).encode("ascii") + b"\n"
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
    return Tail(path, counts.total(), counts["incomplete"], counts["refused"])


def _names(backup: Path) -> Iterator[Path]:
    """Candidate names next to the backup: a killed run may have left the first."""
    yield backup.with_name(f"{backup.name}.tail.jsonl")
    for number in count(2):
        yield backup.with_name(f"{backup.name}.tail-{number}.jsonl")


def _rows(store: Store, ranges: Sequence[tuple[int, int]]) -> Iterator[Row]:
    """The rows; without the status where only the properties are damaged."""
    form = RowFormat()
    for start, stop in ranges:
        for stored in store.messages(Selection(from_offset=start, to_offset=stop), damage="skip"):
            row = message_row(stored.message, stored.physical_offset, stored.file, form)
            if row["status"] == ["CL13"]:
                del row["status"]
            yield row


def _kind(row: Row) -> str:
    if "status" not in row:
        return "incomplete"
    return "sound" if row["status"] == [OK] else "refused"


@dataclass(frozen=True)
class Outcome:
    """The result of a run of `recover`.

    Attributes:
        recovery: the plan; without changes if nothing was to be done.
        earlier: what became of interrupted runs.
        backup: where the previous bytes are; None if nothing was changed.
        tail: the file with the messages after the log's new end.
    """

    recovery: Recovery
    earlier: plans.Earlier
    backup: Path | None = None
    tail: Tail = Tail()

    def row(self) -> dict[str, Any]:
        """The outcome as JSON, in the form of the plan with `applied` set."""
        done = self.recovery.is_needed or self.earlier.guard
        applied = {
            "changes": len(self.recovery.plan.actions),
            "backup": None if self.backup is None else str(self.backup),
            **self.tail.row(),
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
    ) -> tuple[Path | None, Tail]:
        recovery.check_tools()
        layout = store.layout
        backup = plans.backup_folder(layout, backup_dir)
        plans.check_backup(layout, backup)
        tail = write_tail(store, recovery.tail, backup)
        store.close()
        try:
            applied = plans.apply(
                recovery.plan, layout, build=recovery.build, backup_dir=backup, held=held,
                abandon=earlier.abandoned,
            )  # fmt: skip
        except RefusedError:
            if tail.path is not None:
                disk.remove(tail.path)
            raise
        return applied.backup, tail

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
