"""The deletion of what expires, under the store's lock and in the broker's order.

Only whole files go, the log's first ones first, then queues, index and timer log, each group on the
device before the next. Wherever this is stopped the store is one that a broker leaves between two
passes, and running it again goes on: so no guard keeps brokers out, and nothing has to be written to a
disk that may be full.

Source: DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService; spec 02 section 7.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rmqtool.errors import RefusedError, UnreadableError
from rmqtool.findings import Progress
from rmqtool.read.store import Store
from rmqtool.repair.expire.archive import check_archive, write_archive
from rmqtool.repair.expire.expiry import Expiry, Request, check_root, plan_expiry
from rmqtool.repair.plan.changes import Unsynced
from rmqtool.repair.plan.guard import INTERRUPTED, is_up, unfinished_hint
from rmqtool.repair.plan.paths import Places
from rmqtool.storage import durable as disk
from rmqtool.storage import lock
from rmqtool.storage.layout import StoreLayout

_LOST_SHOWN = 3


@dataclass(frozen=True)
class Removed:
    """What was done: the plan that was followed, and the manifest of the copies, if any were made."""

    expiry: Expiry
    manifest: Path | None


def expire(
    root: Path,
    look: Callable[[], StoreLayout],
    request: Request,
    *,
    force: bool = False,
    archive: Path | None = None,
    check: Callable[[Store, Expiry], None] | None = None,
    progress: Progress | None = None,
) -> Removed:
    """Delete what expires of the store at `root`.

    Args:
        root: the store root.
        look: finds out what lies in it; called with the lock held.
        request: as for `plan_expiry`.
        force: also messages that somebody waits for.
        archive: the folder that takes copies first; None: nothing is kept.
        check: sees the plan before anything is done, and raises where it is not what was wanted.
        progress: called with the bytes of each copied file.

    Raises:
        StoreInUseError: the store's lock is held.
        RefusedError: somebody waits for messages that would go; or an unfinished repair, a link on the way.
        UsageError, FormatError, UnreadableError: as `plan_expiry`.
        UnwritableError: a file cannot be copied or deleted.
    """
    if not lock.holder(root / "lock").is_held:
        check_root(look())  # what is no store gets no lock file
    held = lock.acquire(root / "lock")
    try:
        with Store(look()) as store:
            places = Places(store.layout)
            if is_up(places):
                raise RefusedError(INTERRUPTED, path=root, hint=unfinished_hint(places))
            expiry = plan_expiry(store, request)
            if check is not None:
                check(store, expiry)
            reason = waited_for(expiry)
            if reason is not None and not force:
                raise RefusedError(
                    reason, path=root, hint="--force deletes them, --archive DIR --force keeps a copy"
                )
            paths = [_checked(places, fate.path, fate.size) for fate in expiry.going]
            manifest = None
            if archive is not None and paths:
                check_archive(store, expiry, places, archive)
                manifest = write_archive(store, expiry, places, archive, request.now_ms, progress)
            _remove(places, expiry, paths)
    finally:
        held.release()
    return Removed(expiry, manifest)


def refusals(layout: StoreLayout, expiry: Expiry) -> list[dict[str, str | None]]:
    """Why `expire` would delete nothing: `reason`, and `needs`, the option that lets it, if one does."""
    found: list[dict[str, str | None]] = []
    places = Places(layout)
    if is_up(places):
        found.append({"reason": f"{INTERRUPTED}: {unfinished_hint(places)}", "needs": None})
    reason = waited_for(expiry)
    if reason is not None:
        found.append({"reason": reason, "needs": "force"})
    return found


def waited_for(expiry: Expiry) -> str | None:
    """Why nothing is deleted without `force`; None where nobody waits for what goes."""
    return (
        f"messages that consumers still need would be deleted: {lost_text(expiry)}"
        if expiry.losses.any
        else None
    )


def _checked(places: Places, name: str, size: int) -> Path:
    """The path of a file that goes: a plain file, reached through no link."""
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


def _remove(places: Places, expiry: Expiry, paths: list[Path]) -> None:
    unsynced, rank = Unsynced(), 0
    for fate, path in zip(expiry.going, paths, strict=True):
        if places.rank(fate.path) != rank:
            unsynced.flush()
            rank = places.rank(fate.path)
        disk.remove(path)
        unsynced.folder(path.parent)
    unsynced.flush()


def lost_text(expiry: Expiry) -> str:
    """Who would miss what, in one line."""
    found = expiry.losses
    groups: dict[str, int] = {}
    for each in found.unconsumed:
        groups[each.group] = groups.get(each.group, 0) + each.messages
    largest = sorted(groups.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count} of group {group}" for group, count in largest[:_LOST_SHOWN]]
    if len(largest) > _LOST_SHOWN:
        rest = largest[_LOST_SHOWN:]
        more = "1 more group" if len(rest) == 1 else f"{len(rest)} more groups"
        parts.append(f"{sum(count for _, count in rest)} of {more}")
    for kind in ("delayed", "half", "timer"):
        count = sum(each.messages for each in found.pending if each.kind == kind)
        if count:
            parts.append(f"{count} {kind}")
    parts += [f"not known ({reason})" for reason in found.unknown]
    return ", ".join(parts)
