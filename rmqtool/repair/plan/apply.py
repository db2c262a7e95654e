"""Carries out a plan, in an order that lets a run be undone if it is killed at any moment.

    the store's lock, then the guard       no broker comes between
    manifest, journal, copies              bytes that change in place are copied to the backup first
    commit log                             then `build` makes queues and index from it, in staging
    queues, index, config; checkpoint; abort
                                           in each group, replaced files move into the backup; when they are
                                           on the device, the new files are moved in
    fingerprint, journal, guard            the new fingerprint is saved; journal and then guard are deleted

Each step is on the device before the next begins. A killed run is not resumed: the next command reverts
what it has changed (`undo.roll_back`), then makes its plan.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from rmqtool.errors import RefusedError, RmqtoolError, UnwritableError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.repair.plan import changes, guard, space
from rmqtool.repair.plan.action import IN_PLACE, Action, Build, Plan
from rmqtool.repair.plan.backup import Backup, Crcs, Entry, Manifest, survey
from rmqtool.repair.plan.fingerprint import again
from rmqtool.repair.plan.paths import LOG_RANK, Places
from rmqtool.storage import durable as disk
from rmqtool.storage import lock
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.lock import StoreLock
from rmqtool.storage.output_guard import keep_out


def default_backup(root: Path) -> Path:
    """A new folder next to the store: `<store>.rmqtool-backup-<yyyymmdd-HHMMSS>`, local time."""
    root = root.resolve()
    return _free_name(root.with_name(f"{root.name}.rmqtool-backup-{time.strftime('%Y%m%d-%H%M%S')}"))


def backup_folder(layout: StoreLayout, requested: Path | None) -> Path:
    """Return the folder for a run's backup: `requested`, or else `default_backup`.

    Where `requested` holds the backup of a run that was reverted, as a killed one is before the same command
    does all of it again, the next free `<requested>-<number>`: both are kept.
    """
    if requested is None:
        return default_backup(Places(layout).root)
    return _free_name(requested.absolute()) if Backup(requested).is_spent else requested


def _free_name(first: Path) -> Path:
    """A name not in use: this one, or with the smallest number appended."""
    path, number = first, 1
    while os.path.lexists(path):
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def check_backup(layout: StoreLayout, folder: Path) -> None:
    """Raise RefusedError unless a backup of the store of `layout` may be made in `folder`."""
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
        raise RefusedError("a backup needs a new or empty folder", path=folder)
    keep_out(layout, folder, "a backup")


STAGING_NAME = "rmqtool-staging"
"""In the store root, because it must be on the file system of queues and index."""
_GROUPS = (
    (LOG_RANK,),
    (1, 2, 3, 4),
    (5,),
    (6,),
)  # ranks of `Places`: log; queues to config; checkpoint; abort


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of `apply`.

    Attributes:
        backup: the folder to give to `undo`; None where nothing was kept or there was nothing to do.
        actions: how many were done.
        bytes_changed: their bytes, without holes where the plan gives that number.
    """

    backup: Path | None
    actions: int
    bytes_changed: int


@contextmanager
def locked(places: Places, held: StoreLock | None) -> Iterator[None]:
    """Hold the store's lock inside the block, unless the caller holds it. Raises as `lock.acquire`."""
    acquired = lock.acquire(places.root / "lock") if held is None else None
    try:
        yield
    finally:
        if acquired is not None:
            acquired.release()


def apply(
    plan: Plan,
    layout: StoreLayout,
    *,
    build: Build | None = None,
    backup_dir: Path | None = None,
    held: StoreLock | None = None,
    abandon: bool = False,
) -> Applied:
    """Carry out a plan.

    Args:
        plan: for the store as it is now.
        layout: of the store; its folders count, and no file of it.
        build: makes the files whose content the plan does not have; None if there are none.
        backup_dir: a folder that is missing or empty, or see `backup_folder`. Not used with `keep` off.
        held: the store's lock, if the caller has it.
        abandon: the plan is for a store in between, whose killed run cannot be reverted (`roll_back`).

    Raises:
        RefusedError: the store is not as it was when the plan was made, a killed run was not reverted, or
            something may not be done. Nothing has changed.
        UnwritableError: no space, no permission, or a device that fails. Where changes had begun, the
            error's hint says so; `roll_back` and `undo` restore the former state.
        StoreInUseError: the lock is held by another process, or that of a database which is replaced.
        InputError: the journal of a killed run cannot be understood.
    """
    places = Places(layout)
    with locked(places, held):
        for action in plan.actions:
            if action.database:
                lock.check_free((places.root / action.path).with_name("LOCK"))
        return _Run(plan, layout, places, build, backup_dir).run(abandon=abandon)


class _Run:
    def __init__(
        self, plan: Plan, layout: StoreLayout, places: Places, build: Build | None, backup_dir: Path | None
    ) -> None:
        self._plan, self._layout, self._places, self._make = plan, layout, places, build
        self._actions = sorted(plan.actions, key=lambda action: places.rank(action.path))
        self._staging = places.root / STAGING_NAME
        self._unsynced = changes.Unsynced()
        self._crcs = Crcs({}, {})
        self._ways: set[Path] = set()
        self._to_copy: set[str] = set()
        self._folder = None
        if plan.keep and plan.actions:
            self._folder = backup_folder(layout, backup_dir).absolute()
        self._backup = None if self._folder is None else Backup(self._folder)
        staged = [action.path for action in self._actions if action.from_staging]
        if staged and build is None:
            raise ValueError("a plan with files to be made does not say how")
        if any(places.rank(path) == LOG_RANK for path in staged):
            raise ValueError("a file of the commit log has content or is made of zeros")

    def run(self, *, abandon: bool) -> Applied:
        self._must_be_unchanged()
        journal = guard.read_journal(self._places)
        if journal and guard.is_up(self._places) and not abandon:
            raise RefusedError(guard.INTERRUPTED, path=self._places.root,
                               hint=guard.unfinished_hint(self._places))  # fmt: skip
        if not self._actions:
            if guard.is_up(self._places):  # of a run that is abandoned
                self._end()
            return Applied(None, 0, 0)
        manifest = survey(self._places, self._plan.command, self._actions, journal)
        self._look(manifest)
        has_log = self._places.log_folders[0].is_dir()
        self._prepare(manifest, journal)
        try:
            entries = {entry.path: entry for entry in manifest.entries}
            built = False
            for ranks in _GROUPS:
                group = [action for action in self._actions if self._places.rank(action.path) in ranks]
                if LOG_RANK not in ranks and not built:
                    self._build()
                    built = True
                if group:
                    self._do(group, entries)
            self._end()
            if not has_log:
                self._remove_log_folder()
        except RmqtoolError as error:
            error.hint = error.hint or f"the store is in between. {guard.unfinished_hint(self._places)}"
            raise
        except KeyboardInterrupt as stop:
            stop.add_note(f"the store is in between. {guard.unfinished_hint(self._places)}")
            raise
        return Applied(self._folder, len(self._actions), sum(a.data_bytes for a in self._actions))

    # before

    def _must_be_unchanged(self) -> None:
        self._plan.fingerprint.must_be(again(self._layout, self._plan.fingerprint), self._places.root)

    def _look(self, manifest: Manifest) -> None:
        """Check everything that can be refused, before the first change."""
        if self._folder is not None:
            check_backup(self._layout, self._folder)
        self._places.check_folder(self._places.log_folders[0])  # for the guard
        guard.check_names(self._places)
        staging = self._staging
        if os.path.lexists(staging) and (staging.is_symlink() or not staging.is_dir()):
            raise RefusedError("this name is needed for a folder", path=staging, hint="give it another name")
        space.check_permission(self._places, manifest)
        self._check_room(manifest)

    def _check_room(self, manifest: Manifest, *, renames: bool = True) -> None:
        self._to_copy = space.to_copy(self._places, manifest, self._folder, renames=renames)
        needs = space.needed(self._places, self._actions, manifest, self._folder, self._to_copy)
        space.check_room(needs, self._folder)

    def _prepare(self, manifest: Manifest, journal: guard.OpenRuns) -> None:
        """Make the guard, the copies, and the CRCs of bytes to keep; remove all of them on failure."""
        had_guard = guard.is_up(self._places)
        has_log = self._places.log_folders[0].is_dir()
        has_folder = self._folder is not None and self._folder.is_dir()
        try:
            guard.raise_guard(self._places)
            self._must_be_unchanged()
            changes.remove_tree(self._staging)
            if self._backup is not None:
                self._keep(self._backup, manifest, journal)
        except BaseException:
            with suppress(RmqtoolError, OSError):  # the first failure is the one to report
                if self._folder is not None and self._folder.is_dir():
                    for path in (self._folder.iterdir()) if has_folder else (self._folder,):
                        changes.remove_tree(path)
                guard.write_journal(self._places, journal)
                if not had_guard:
                    guard.drop_guard(self._places)
                if not has_log:
                    self._remove_log_folder()
                for name, mtime_ns in manifest.folders.items():
                    if mtime_ns is not None:
                        disk.set_mtime(self._places.root / name, mtime_ns)
            raise

    def _keep(self, backup: Backup, manifest: Manifest, journal: guard.OpenRuns) -> None:
        folder = backup.folder
        if not folder.is_dir():
            disk.make_folder(folder, own=True)  # the folder above may be somebody else's
            disk.take_owner(folder, self._places.root)
            disk.sync_folder(folder.parent)
        backup.set_manifest(manifest)
        backup.set_readme(self._places, manifest)
        guard.write_journal(self._places, (*journal, (manifest.run, str(folder))))
        if not self._really_renames(folder):
            self._check_room(manifest, renames=False)
        for entry in manifest.entries:
            place, kept = self._places.path(entry.path), backup.kept(self._places, entry)
            if entry.kept_ranges:
                self._make_way(kept)
                changes.keep_ranges(place, kept, entry.kept_ranges)
                self._crcs.copied[entry.path] = changes.crc_of(kept, entry.kept_ranges)
            elif entry.path in self._to_copy:
                self._make_way(kept)
                changes.copy_whole(place, kept)
                self._crcs.copied[entry.path] = changes.crc_of(kept, [(0, entry.size)])
            else:
                if entry.what == "file":  # it is moved later
                    self._crcs.moved[entry.path] = changes.crc_of(place, [(0, entry.size)])
                continue
            self._unsynced.file(kept)
        self._unsynced.flush()
        backup.set_copied(self._crcs)

    def _really_renames(self, folder: Path) -> bool:
        """Whether a file can be renamed from the store into the backup: two mounts may show one device."""
        probe = self._places.root / guard.PROBE_NAME
        disk.remove(probe)
        disk.write_new(probe, b"")
        try:
            disk.rename(probe, folder / probe.name)
        except UnwritableError as error:
            disk.remove(probe)
            if changes.is_other_device(error):
                return False
            raise
        disk.remove(folder / probe.name)
        return True

    def _kept(self, entry: Entry) -> Path:
        assert self._backup is not None
        return self._backup.kept(self._places, entry)

    def _make_way(self, path: Path) -> None:
        """Create the folders above a file, and note that they must be flushed."""
        folder = path.parent
        if folder in self._ways:
            return
        self._ways.add(folder)
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        disk.make_folder(path.parent)
        for made in (*missing, folder) if missing else ():
            self._unsynced.folder(made)

    # changing

    def _build(self) -> None:
        """Let the plan build its files, and check them."""
        wanted = [action for action in self._actions if action.from_staging]
        if not wanted or self._make is None:
            return
        disk.make_folder(self._staging)
        self._make(self._staging)
        for action in wanted:
            path = self._places.within(self._staging, action.path)
            found = path.stat().st_size if path.is_file() and not path.is_symlink() else None
            if found != action.length:
                raise RuntimeError(f"{action.path} was to be made with {action.length} bytes, has {found}")

    def _do(self, actions: Sequence[Action], entries: dict[str, Entry]) -> None:
        """Carry out one group: stage its files, move the old ones away, move the new ones in."""
        for action in actions:
            if action.kind in ("create", "replace"):
                self._make_way(self._places.path(action.path))
                if not action.zeros:
                    self._stage(action, entries[action.path])
            if self._moves_out(action):
                self._make_way(self._kept(entries[action.path]))
        self._unsynced.flush()
        for action in actions:
            if action.kind in ("replace", "delete"):
                self._take_out(action, entries[action.path])
        self._unsynced.flush()
        for path, group in groupby((one for one in actions if one.kind != "delete"), attrgetter("path")):
            self._put_in(path, list(group), entries[path])
        self._unsynced.flush()

    def _stage(self, action: Action, entry: Entry) -> None:
        path, place = self._places.within(self._staging, action.path), self._places.path(action.path)
        if action.content is not None:
            self._make_way(path)
            disk.write_new(path, action.content)
        like = place if entry.what == "file" else space.above(place.parent)
        disk.take_owner(path, like)
        for other in changes.database_files(path) if action.database else ():
            disk.take_owner(other, like)
            self._unsynced.file(other)
        if entry.after_ns is not None:
            disk.set_mtime(path, entry.after_ns)
        self._unsynced.file(path)

    def _moves_out(self, action: Action) -> bool:
        is_whole = action.kind in ("replace", "delete")
        return is_whole and self._backup is not None and action.path not in self._to_copy

    def _take_out(self, action: Action, entry: Entry) -> None:
        place = self._places.path(action.path)
        if self._moves_out(action):
            changes.move_out(place, self._kept(entry), self._unsynced)
        elif action.kind == "delete":  # it is copied, or nothing is to be kept
            changes.remove_tree(place, self._unsynced)

    def _put_in(self, path: str, actions: list[Action], entry: Entry) -> None:
        place = self._places.path(path)
        first = actions[0]
        is_log = self._places.rank(path) == LOG_RANK
        if first.kind not in IN_PLACE:
            if first.zeros:
                os.close(disk.create_file(place, first.length, reserve=is_log))
                self._unsynced.folder(place.parent)
                self._unsynced.file(place)
            else:
                staged = self._places.within(self._staging, path)
                if first.database:
                    for other in changes.database_files(staged):
                        changes.move(other, place.with_name(other.name), self._unsynced)
                    self._unsynced.flush()
                changes.move(staged, place, self._unsynced)
        in_place = [action for action in actions if action.kind in IN_PLACE]
        if in_place:
            descriptor = disk.open_file(place)
            try:
                for action in in_place:
                    changes.change_in_place(descriptor, place, action, reserve=is_log)
            finally:
                os.close(descriptor)
            self._unsynced.file(place)
        if entry.after_ns is not None and (in_place or first.zeros):
            disk.set_mtime(place, entry.after_ns)

    # after

    def _end(self) -> None:
        changes.remove_tree(self._staging)
        if self._backup is not None:
            self._backup.set_applied(again(self._layout, self._plan.fingerprint))
        guard.write_journal(self._places, ())
        guard.drop_guard(self._places)

    def _remove_log_folder(self) -> None:
        """Remove the folder of a log that has no files: it was created for the guard."""
        folder = self._places.log_folders[0]
        if folder.is_dir() and not any(folder.iterdir()):
            disk.remove_folder(folder)
