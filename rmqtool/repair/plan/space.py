"""Checks of free space and permissions for a run, before its first change."""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterable
from pathlib import Path

from rmqtool.errors import RefusedError, UnreadableError, UnwritableError
from rmqtool.repair.plan.action import Action, Plan
from rmqtool.repair.plan.backup import Manifest
from rmqtool.repair.plan.changes import data_bytes
from rmqtool.repair.plan.paths import Places
from rmqtool.storage.permission import check_mount
from rmqtool.storage.storage import disk_bytes

_SLACK = 1 << 20  # manifest, journal, folders
_ENTRY_BYTES = 8192  # a file's own block, its folder, its row in the manifest
_FREE = "free that much space, and run it again"


def above(folder: Path) -> Path:
    """The nearest existing folder at or above a path."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def to_copy(places: Places, manifest: Manifest, backup: Path | None, *, renames: bool = True) -> set[str]:
    """The paths that are moved away and lie on another file system than the backup, or all of them.

    Raises:
        RefusedError: one of them is not a file; such an entry can only be renamed.
    """
    found: set[str] = set()
    if backup is None:
        return found
    device = above(backup).stat().st_dev
    for entry in manifest.entries:
        place = places.path(entry.path)
        if not entry.moved or entry.what == "missing" or (renames and place.lstat().st_dev == device):
            continue
        if entry.what != "file":
            raise RefusedError(
                "this can only be moved within its file system", path=place,
                hint="name a place for the backup on the store's file system: --backup-dir DIR",
            )  # fmt: skip
        found.add(entry.path)
    return found


def needed(
    places: Places, actions: Iterable[Action], manifest: Manifest, backup: Path | None, copied: Container[str]
) -> dict[Path, int]:
    """Bytes that a run needs, permanently or temporarily, by a folder of the file system that needs them.

    `copied` are the paths of `to_copy`.

    Raises:
        UnreadableError: the holes of a file cannot be read.
    """
    needs = {places.root: _SLACK}
    for action in actions:
        if action.kind in ("create", "replace"):
            place = above(places.path(action.path).parent)
            needs[place] = needs.get(place, 0) + action.data_bytes + _ENTRY_BYTES
    if backup is not None:
        total = _SLACK
        for entry in manifest.entries:
            place = places.path(entry.path)
            total += _ENTRY_BYTES
            if entry.kept_ranges:
                total += data_bytes(place, entry.kept_ranges)
            elif entry.path in copied:
                total += disk_bytes(place.stat())
        needs[above(backup)] = needs.get(above(backup), 0) + total
    return needs


def most_needed(plan: Plan) -> int:
    """Most bytes that `needed` asks for: those of a run whose backup cannot rename any file."""
    made = [action.data_bytes for action in plan.actions if action.kind in ("create", "replace")]
    kept = len({action.path for action in plan.actions}) * _ENTRY_BYTES + _SLACK + plan.backup_bytes
    return _SLACK + sum(made) + len(made) * _ENTRY_BYTES + (kept if plan.keep else 0)


def check_room(needs: dict[Path, int], backup: Path | None) -> None:
    """Raise UnwritableError, with the numbers, if a file system has less free space than `needed` says."""
    devices: dict[int, tuple[Path, int]] = {}
    for folder, need in needs.items():
        device = folder.stat().st_dev
        first, total = devices.get(device, (folder, 0))
        devices[device] = (first, total + need)
    place = None if backup is None else above(backup)
    for folder, need in devices.values():
        try:
            status = os.statvfs(folder)
        except OSError as error:
            raise UnreadableError(f"cannot ask for free space: {error.strerror}", path=folder) from error
        free = status.f_bavail * status.f_frsize
        if status.f_blocks and free < need:
            kept = needs[place] if place is not None and place.stat().st_dev == folder.stat().st_dev else 0
            raise UnwritableError(
                f"not enough space: {need} bytes are needed here, {free} are free", path=folder,
                hint=_FREE if free < need - kept else "name another place for the backup: --backup-dir DIR",
            )  # fmt: skip


def check_permission(places: Places, manifest: Manifest) -> None:
    """Raise RefusedError, naming the file, where this process may not do the run, or not keep the owner.

    Source of the rule: only the owner may set times; only root may give files away.

    Raises:
        UnwritableError: a folder is on a read-only file system, which refuses root too.
    """
    for name, mtime_ns in manifest.folders.items():
        if mtime_ns is not None:
            check_mount(places.root / name)
    user = os.geteuid()
    if user == 0:
        return
    for name, mtime_ns in manifest.folders.items():
        if mtime_ns is not None:
            _check(places.root / name, user, os.W_OK | os.X_OK)
    for entry in manifest.entries:
        if entry.what == "file":
            _check(places.path(entry.path), user, os.R_OK | (0 if entry.moved else os.W_OK))


def _check(path: Path, user: int, wanted: int) -> None:
    try:
        status = path.lstat()
        allowed = status.st_uid == user and os.access(path, wanted)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
    if not allowed:
        what = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        raise RefusedError(
            f"this {what} belongs to user {status.st_uid}, with mode {stat.S_IMODE(status.st_mode):o}: "
            f"user {user} cannot change it and keep that", path=path,
            hint="run this as the store's owner, or as root",
        )  # fmt: skip
