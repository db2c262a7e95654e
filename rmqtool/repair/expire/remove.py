"""The deletion of expired files, under the store's lock and in the broker's order.

Only whole files go: the log's first ones first, then queues, index and timer log, each group on the device
before the next. Wherever a run stops, the store is one that a broker leaves between two passes, and the next
run continues. So no guard has to keep brokers out, and nothing is written to a disk that may be full.

Source: DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService; spec 02 section 7.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from rmqtool.errors import RefusedError, RmqtoolError, UnreadableError
from rmqtool.findings import Progress
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.store import Store
from rmqtool.repair.expire.archive import check_archive, restore_line, write_archive
from rmqtool.repair.expire.expiry import (
    Expiry,
    FileDecision,
    Options,
    Request,
    as_plan,
    expired_followers,
    plan_expiry,
)
from rmqtool.repair.expire.report import report
from rmqtool.repair.plan import Earlier, OpenStore, Plan, PlanFile, Refusal, carry_out, fingerprint
from rmqtool.repair.plan.changes import Unsynced
from rmqtool.repair.plan.guard import INTERRUPTED, is_up, unfinished_hint
from rmqtool.repair.plan.paths import Places
from rmqtool.sizes import largest_counts
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.lock import StoreLock


@dataclass(frozen=True)
class Planned:
    """The files of a store that expire.

    Attributes:
        expiry: the decisions.
        layout: the store.
        options: what a plan file says that they were made with; None if there is to be no plan file.
    """

    expiry: Expiry
    layout: StoreLayout
    options: Options | None = None

    @property
    def plan(self) -> Plan:
        """The deletions in the form of a plan file."""
        assert self.options is not None, "only a request with options is written to a file"
        totals = report(self.expiry, self.options.now_ms)["totals"]
        return as_plan(self.expiry, self.options, fingerprint(self.layout), {"totals": totals})

    @property
    def refusals(self) -> list[Refusal]:
        """Why nothing would be deleted."""
        found = []
        places = Places(self.layout)
        if is_up(places):
            found.append(Refusal(f"{INTERRUPTED}: {unfinished_hint(places)}"))
        if self.expiry.losses.any:
            found.append(
                Refusal(
                    lost_text(self.expiry),
                    "force",
                    hint="--archive DIR --force first copies them to DIR; --force alone deletes for good",
                )
            )
        return found

    @property
    def is_needed(self) -> bool:
        """Whether anything expires."""
        return bool(self.expiry.expired)


@dataclass(frozen=True)
class Removed:
    """The decisions that were carried out.

    If copies were made: their manifest, and the line for a shell that copies them back.
    """

    expiry: Expiry
    manifest: Path | None = None
    restore: str | None = None


def archive_refusals(store: Store, expiry: Expiry, archive: Path) -> list[Refusal]:
    """Why the archive folder would be refused."""
    try:
        check_archive(store, expiry, Places(store.layout), archive)
    except RmqtoolError as error:
        return [Refusal(error.in_one_line, hint=error.hint)]
    return []


def plan(store: Store, request: Request, options: Options | None = None) -> Planned:
    """Plan the expiry of an open store; raises as `plan_expiry`."""
    return Planned(plan_expiry(store, request), store.layout, options)


def expire(
    open_store: OpenStore,
    request: Request,
    *,
    options: Options | None = None,
    file: PlanFile | None = None,
    force: bool = False,
    archive: Path | None = None,
    progress: Progress | None = None,
) -> Removed:
    """Delete the expired files of a store.

    Args:
        open_store: see `OpenStore`.
        request: as for `plan_expiry`.
        options: what `request` was made of; necessary with `file`.
        file: the plan has to agree with this one, and the store must not have changed since.
        force: also delete messages that consumers still need.
        archive: the folder that takes copies first; None: nothing is kept.
        progress: called with the bytes of each copied file.

    Raises:
        StoreInUseError: the store's lock is held.
        RefusedError: consumers still need messages that would be deleted; or an unfinished repair, a link on
            the way; or the plan file is for another state of the store.
        UsageError, FormatError, UnreadableError: as `plan_expiry`.
        UnwritableError: a file cannot be copied or deleted.
    """

    def settle(layout: StoreLayout, held: StoreLock) -> Earlier:
        places = Places(layout)
        if is_up(places):
            raise RefusedError(INTERRUPTED, path=layout.root, hint=unfinished_hint(places))
        return Earlier()

    def change(planned: Planned, store: Store, held: StoreLock, earlier: Earlier) -> Path | None:
        places, expiry = Places(store.layout), planned.expiry
        paths = _checked(places, expiry.expired)
        manifest = None
        if archive is not None:
            check_archive(store, expiry, places, archive)
            manifest = write_archive(store, expiry, places, archive, request.now_ms, progress)
        _remove(places, expiry.expired, paths)
        return manifest

    planned, _, manifest = carry_out(
        open_store, lambda store: plan(store, request, options), change, settle=settle, file=file, force=force
    )
    if archive is None or manifest is None:
        return Removed(planned.expiry)
    root = planned.layout.root
    assert root is not None, "only a store root has an expiry"
    return Removed(planned.expiry, manifest, restore_line(archive, root))


def remove_followers(layout: StoreLayout, start: int) -> bool:
    """Delete the files of queues and index that expire when the log begins at a physical offset.

    For a caller that holds the store's lock, and has deleted the log before `start`. The files go in the
    broker's order, so that the next call continues where this one was killed.

    Returns:
        Whether there was any.

    Raises:
        RefusedError: a link on the way, or a file that has changed since it was listed.
        UnreadableError, UnwritableError: a file.
    """
    with Store(layout) as store:
        expired = expired_followers(store, start)
    places = Places(layout)
    _remove(places, expired, _checked(places, expired))
    return bool(expired)


def _checked(places: Places, expired: Sequence[FileDecision]) -> list[Path]:
    """The paths of files to delete. They must be plain files, not below a link."""
    return [_checked_path(places, decision.path, decision.size) for decision in expired]


def _checked_path(places: Places, name: str, size: int) -> Path:
    path = places.checked(name)
    try:
        status = path.lstat()
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        raise RefusedError("this is not a plain file of the size that it had", path=path)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise RefusedError("this user may not delete files here", path=path.parent,
                           hint="run this as the store's owner, or as root")  # fmt: skip
    return path


def _remove(places: Places, expired: Sequence[FileDecision], paths: list[Path]) -> None:
    unsynced, rank = Unsynced(), 0
    for decision, path in zip(expired, paths, strict=True):
        if places.rank(decision.path) != rank:
            unsynced.flush()
            rank = places.rank(decision.path)
        disk.remove(path)
        unsynced.folder(path.parent)
    unsynced.flush()


def lost_text(expiry: Expiry) -> str:
    """Why an expiry is refused: which messages are lost and who needs them, and what is unknown."""
    found = expiry.losses
    groups: dict[str, int] = {}
    for each in found.unconsumed:
        groups[each.group] = groups.get(each.group, 0) + each.messages
    parts = largest_counts(groups, "group")
    if parts:
        parts[0] = parts[0].replace(" of ", " of group ", 1)
    for kind in ("delayed", "half", "timer"):
        pending = [each for each in found.pending if each.kind == kind]
        if pending:
            most = "" if all(each.exact for each in pending) else "at most "
            parts.append(f"{most}{sum(each.messages for each in pending)} {kind}")
    sentences = [f"messages that consumers still need would be deleted: {', '.join(parts)}"] if parts else []
    unknown, groups_unknown = list(found.unknown), found.groups_unknown
    if groups_unknown is not None:
        unknown = [reason for reason in unknown if reason not in groups_unknown.reasons]
        sentences.append(
            f"how many of the {groups_unknown.messages_max} deleted messages groups still need is unknown,"
            f" up to all of them: {', '.join(groups_unknown.reasons)}"
        )
    if unknown:
        sentences.append(f"what else would be lost is unknown: {', '.join(unknown)}")
    return "; ".join(sentences)
