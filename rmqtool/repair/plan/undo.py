"""Reverts what a run of `apply` has changed, from its backup: the former bytes, owners and mtimes.

It can be killed at any moment and run again: files that are restored already are left as they are. Before
the first change, every file to restore is compared with its CRC-32. A file is deleted only if the run created
it and it has the size that the run gave it; its bytes are not compared.

`undo` is called by a user; `roll_back` undoes a killed run before the next run reads the store. A plan for a
half-changed store would lack what only the moved files hold: committed offsets, the next number of a queue
without records, the sizes of index and queues. So the next run undoes the killed one, whose backup has every
byte, and plans for the store as it was. A run that was killed after its last change has nothing left to do
and is closed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from rmqtool.errors import (
    InputError,
    NotAStoreError,
    RefusedError,
    RmqtoolError,
    UnreadableError,
    UnwritableError,
)
from rmqtool.lazy_dataclass import dataclass
from rmqtool.repair.plan import changes, guard
from rmqtool.repair.plan.apply import STAGING_NAME, locked
from rmqtool.repair.plan.backup import MANIFEST, Backup, Crcs, Entry, Manifest, what_is
from rmqtool.repair.plan.fingerprint import Fingerprint, again
from rmqtool.repair.plan.paths import Places
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.lock import StoreLock


class WrongStoreError(RefusedError):
    """The backup is that of a store in another place."""


@dataclass(frozen=True, slots=True)
class Undone:
    """The result of `undo`.

    Attributes:
        backup: its folder.
        command: which made the backup, such as `recover`.
        files: how many paths are as they were.
        removed: how many of them had nothing: what the run had made there was removed.
        already: it was undone before, nothing was changed now.
        next: the backup of an earlier run that is not finished either, and can be undone now; the
            guard stays for it.
    """

    backup: Path
    command: str
    files: int
    removed: int = 0
    already: bool = False
    next: Path | None = None


def undo(folder: Path, layout: StoreLayout, *, held: StoreLock | None = None, moved: bool = False) -> Undone:
    """Restore the store as it was before the run whose backup is in `folder`.

    Args:
        folder: as `Applied.backup` names it. It keeps what was copied, and says that it is undone.
        layout: of the store; its folders count, and no file of it.
        held: the store's lock, if the caller has it.
        moved: the store is the backup's, although it lay in another place then.

    Raises:
        RefusedError: this is another store, or it has changed since the run, as when a broker has written, or
            another run has to be undone first. Nothing has changed.
        NotAStoreError, InputError, UnreadableError: the backup is none, or is damaged. Nothing has changed.
        UnwritableError: it could not be done to the end; running it again resumes.
        StoreInUseError: the lock is held by another process.
    """
    places, backup = Places(layout), Backup(folder.absolute())
    manifest = backup.manifest()
    if not moved and manifest.store != str(places.root):  # a copy may look the same, and be sound
        raise WrongStoreError(f"this backup is of the store {manifest.store}", path=backup.folder,
                              hint=f"if that store is {places.root} now: --force")  # fmt: skip
    with locked(places, held):
        return _Undo(folder, layout, places, backup, manifest).run()


def undoable(root: Path) -> tuple[str, Path] | None:
    """The command and the backup, next to the store, of the newest run that can still be undone.

    Only the checkpoint and the files of the log tell whether the store was written to since.

    Args:
        root: the store root.

    Returns:
        None without a backup of this store, and if the newest one cannot be undone any more.
    """
    root = Path(os.path.realpath(root))
    found = max(_in_force(root.parent, str(root)), key=lambda each: each[0].made_ms, default=None)
    if found is None:
        return None
    manifest, backup, applied = found
    for path, state in applied.files.items():
        if path == "checkpoint" or path.startswith("commitlog/"):
            try:
                now = (root / path).lstat()
            except OSError:
                return None
            if (now.st_size, now.st_mtime_ns) != (state.size, state.mtime_ns):
                return None
    return manifest.command, backup.folder


def _in_force(parent: Path, store: str) -> Iterator[tuple[Manifest, Backup, Fingerprint]]:
    """The backups of a store in a folder whose runs were completed and are not undone."""
    for path in parent.glob(f"*/{MANIFEST}"):
        backup = Backup(path.parent)
        try:
            manifest, applied = backup.manifest(), backup.applied()
        except RmqtoolError:  # not a backup, or one that no undo accepts
            continue
        if manifest.store == store and applied is not None and not backup.is_undone:
            yield manifest, backup, applied


class _Undo:
    def __init__(
        self, folder: Path, layout: StoreLayout, places: Places, backup: Backup, manifest: Manifest
    ) -> None:
        self._named = folder
        self._layout, self._places, self._backup, self._manifest = layout, places, backup, manifest
        self._unsynced = changes.Unsynced()
        self._staging = places.root / STAGING_NAME
        self._crcs = backup.crcs()
        self._applied = backup.applied()
        self._in_between = backup.is_in_between

    def run(self) -> Undone:
        manifest, backup, places = self._manifest, self._backup, self._places
        journal = guard.read_journal(places)
        is_open = bool(journal) and journal[-1][0] == manifest.run
        if backup.is_undone and not is_open:
            if not journal and not manifest.open and guard.is_up(places):  # killed at its last step
                self._end()
            self._check_still_undone()
            return Undone(backup.folder, manifest.command, 0, already=True)
        self._check_turn(journal)
        entries = manifest.entries if self._crcs is not None else ()  # without: nothing had changed
        for name in manifest.folders:
            self._folder(name)
        if not backup.is_undone:
            for entry in manifest.entries:
                self._check_entry(entry)
            self._raise_guard(journal)
            if not is_open:
                guard.write_journal(places, (*manifest.open, (manifest.run, str(backup.folder))))
            backup.set_undoing()
            changes.remove_tree(self._staging)
            for entry in entries:
                if entry.database:
                    self._remove_database(entry)
            for entry in reversed(entries):
                self._give_back(entry)
            self._remove_folders()
            self._unsynced.flush()
            backup.set_undone()
        self._end()
        earlier = Path(manifest.open[-1][1]) if manifest.open else None
        removed = sum(entry.what == "missing" for entry in entries)
        return Undone(backup.folder, manifest.command, len(entries), removed, next=earlier)

    # before

    def _check_still_undone(self) -> None:
        """Raise RefusedError unless the store is as this backup was restored, before."""
        later = self._later()
        if later is not None:
            raise RefusedError(
                f"this backup was already restored, and rmqtool {later[0]} has changed the store again since",
                path=self._backup.folder, hint=f"to undo that: {later[1]}",
            )  # fmt: skip
        for entry in self._manifest.entries if self._crcs is not None else ():
            place = self._places.checked(entry.path)
            if not _is_as_before(entry, place):
                raise RefusedError(
                    f"this backup was already restored, and {entry.path} has changed since",
                    path=self._backup.folder,
                )  # fmt: skip

    def _later(self) -> tuple[str, str] | None:
        """The command of the newest run after this one that is not undone, and the line that undoes it.

        Backups next to this one and next to the store are known.
        """
        parents = dict.fromkeys((self._named.parent, self._places.root.parent))
        found = [each for parent in parents for each in _in_force(parent, self._manifest.store)]
        newest = max(found, key=lambda each: each[0].made_ms, default=None)
        if newest is None or newest[0].made_ms <= self._manifest.made_ms:
            return None
        manifest, backup, _ = newest
        return manifest.command, self._places.command("recover", "--undo", str(backup.folder))

    def _changed_since(self) -> str:
        """The hint on a store that is not as the run has left it."""
        later = self._later()
        if later is None:
            done = f"what rmqtool {self._manifest.command} did can no longer be undone"
            return f"{done}; the files in {self._backup.folder} stay as they are"
        return f"undo first what rmqtool {later[0]} did later: {later[1]}"

    def _check_turn(self, journal: guard.OpenRuns) -> None:
        """Check that the store is still as the run has left it, which is certain while the guard exists."""
        if journal:
            if journal[-1][0] != self._manifest.run:
                raise RefusedError("another run has to be undone first", path=self._backup.folder,
                                   hint=f"undo {journal[-1][1]}")  # fmt: skip
            if journal[:-1] != self._manifest.open:
                raise InputError("the backup and the store do not name the same earlier runs",
                                 path=self._backup.folder)  # fmt: skip
            if not guard.is_up(self._places):
                raise RefusedError("the guard was removed by hand: a broker may have written since",
                                   path=self._places.root)  # fmt: skip
            if self._backup.is_undoing:
                return
        applied = self._applied
        if applied is not None:
            now = again(self._layout, applied)
            if applied.difference(now) is not None:
                since = f"rmqtool {self._manifest.command}"
                applied.must_be(now, self._places.root, since=since, hint=self._changed_since())
        elif not journal and self._crcs is not None:
            raise RefusedError("a later run has continued the work of this one", path=self._backup.folder,
                               hint="undo that run first")  # fmt: skip

    def _raise_guard(self, journal: guard.OpenRuns) -> None:
        """Create the guard, and check the store again: a broker that was starting may have changed it."""
        had_guard = guard.is_up(self._places)
        guard.raise_guard(self._places)
        try:
            self._check_turn(journal)
        except RmqtoolError:
            if not had_guard:
                guard.drop_guard(self._places)
            raise

    def _check_entry(self, entry: Entry) -> None:
        """Check that an entry can be restored or, if it was not changed yet, is as it was."""
        place = self._places.checked(entry.path)
        kept = self._backup.kept(self._places, entry)
        if self._crcs is None:
            if not _is_as_before(entry, place):
                raise InputError(f"{entry.path} has changed, and the backup has no copied.json", path=place)
        elif entry.what == "missing":
            self._check_made(entry, place)
        elif not entry.moved:
            if not stat.S_ISREG(_mode(place) or 0):
                raise RefusedError("this is no longer a plain file", path=place)
            longest = max([entry.size, *(stop for _, stop in entry.ranges)])
            if not entry.size <= place.lstat().st_size <= longest:  # no run does that
                raise InputError(f"{entry.path} never had {entry.size} bytes", path=place)
            if entry.kept_ranges:
                self._check_kept(entry, kept, entry.kept_ranges)
        elif _mode(kept) is not None:
            self._check_kept(entry, kept, ((0, entry.size),))
        elif not (self._in_between and _is_as_before(entry, place)):  # not moved yet, or back already
            raise InputError(f"the backup lacks {entry.path}", path=kept)
        elif entry.what == "file" and changes.crc_of(place, [(0, entry.size)]) != self._crc(entry):
            raise InputError(f"the backup lacks {entry.path}", path=kept)

    def _check_made(self, entry: Entry, place: Path) -> None:
        """Check that a new file may be deleted: the run has created a file of that size."""
        if _mode(place) is None:
            return
        status = place.lstat()
        too_short = status.st_size < entry.made and not self._in_between
        if not stat.S_ISREG(status.st_mode) or status.st_size > entry.made or too_short:
            raise RefusedError("this file was not created by rmqtool", path=place)

    def _crc(self, entry: Entry) -> int | None:
        copied, moved = self._crcs or Crcs({}, {})
        return copied.get(entry.path, moved.get(entry.path))

    def _check_kept(self, entry: Entry, kept: Path, ranges: changes.Ranges) -> None:
        mode = _mode(kept)
        for folder in kept.relative_to(self._backup.folder).parents:
            if stat.S_ISLNK(_mode(self._backup.folder / folder) or 0):
                raise InputError("there is a symbolic link in the backup", path=self._backup.folder / folder)
        if mode is None or what_is(mode) != entry.what:
            raise InputError(f"the backup lacks {entry.path}", path=kept)
        if entry.what == "file" and entry.moved and kept.lstat().st_size != entry.size:
            raise InputError(f"{entry.path} had {entry.size} bytes, the backup's has others", path=kept)
        crc = self._crc(entry)
        if entry.what != "file":
            return
        if crc is None:
            raise InputError(f"the backup has no CRC of {entry.path}", path=kept)
        if changes.crc_of(kept, ranges) != crc:
            raise InputError(f"the backup's bytes of {entry.path} are damaged", path=kept)

    # giving back

    def _remove_database(self, entry: Entry) -> None:
        """Remove the files that the run has made next to a CURRENT: those that were not restored already.

        A file of the former database is in the backup, or restored if it was moved there; a copy stays there.
        """
        place = self._places.path(entry.path)
        if not place.parent.is_dir():
            return
        former = {each.path: each for each in self._manifest.entries}
        for path in changes.database_files(place):
            mine = former.get(self._places.name(path))
            if mine is None or _mode(self._backup.kept(self._places, mine)) is not None:
                disk.remove(path)
                self._unsynced.folder(path.parent)

    def _give_back(self, entry: Entry) -> None:
        place = self._places.path(entry.path)
        kept = self._backup.kept(self._places, entry)
        if entry.what == "missing":
            if _mode(place) is not None:
                disk.remove(place)
                self._unsynced.folder(place.parent)
        elif not entry.moved:
            self._give_back_ranges(entry, place, kept)
        elif _mode(kept) is not None:
            if not place.parent.is_dir():  # a rename into a folder that is lost would lose the file
                disk.make_folder(place.parent)
                for folder in place.parent.relative_to(self._places.root).parents:
                    disk.sync_folder(self._places.root / folder)
            if self._crcs is not None and entry.path in self._crcs.copied:  # a copy: the backup stays whole
                new = self._places.within(self._staging, entry.path)
                disk.make_folder(new.parent)
                changes.copy_whole(kept, new)
                disk.set_mtime(new, entry.mtime_ns)
                self._unsynced.file(new)
                self._unsynced.flush()
                changes.move(new, place, self._unsynced)
            else:
                changes.move(kept, place, self._unsynced)

    def _give_back_ranges(self, entry: Entry, place: Path, kept: Path) -> None:
        descriptor = disk.open_file(place)
        try:
            if os.fstat(descriptor).st_size != entry.size:
                disk.truncate(descriptor, entry.size, place)
            if entry.kept_ranges:
                changes.give_back_ranges(kept, descriptor, place, entry.kept_ranges)
        finally:
            os.close(descriptor)
        disk.set_mtime(place, entry.mtime_ns)
        self._unsynced.file(place)

    def _remove_folders(self) -> None:
        """Remove the folders that the run has created, if they are empty."""
        made = [self._folder(name) for name, mtime_ns in self._manifest.folders.items() if mtime_ns is None]
        for path in sorted(made, key=lambda path: len(path.parts), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                disk.remove_folder(path)
                self._unsynced.folder(path.parent)

    def _folder(self, name: str) -> Path:
        """A folder of the manifest. Raises RefusedError for one that does not belong to the store."""
        return self._places.folder(name)

    def _end(self) -> None:
        changes.remove_tree(self._staging)
        guard.write_journal(self._places, self._manifest.open)
        if not self._manifest.open:
            guard.drop_guard(self._places)
        log = self._places.log_folders[0]
        if (
            self._manifest.folders.get(self._places.name(log), 0) is None
            and log.is_dir()
            and not any(log.iterdir())
        ):
            disk.remove_folder(log)
        for name, mtime_ns in self._manifest.folders.items():
            path = self._folder(name)
            if mtime_ns is not None and path.is_dir():
                disk.set_mtime(path, mtime_ns)


def _is_as_before(entry: Entry, place: Path) -> bool:
    """Whether the entry at a path may be the former one, by kind, size and mtime."""
    mode = _mode(place)
    if mode is None or entry.what == "missing":
        return mode is None and entry.what == "missing"
    status = place.lstat()
    size = status.st_size if entry.what == "file" else 0
    return (what_is(mode), size, status.st_mtime_ns) == (entry.what, entry.size, entry.mtime_ns)


def _mode(path: Path) -> int | None:
    """The mode of the entry at a path; None without one. Raises UnreadableError."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error


@dataclass(frozen=True, slots=True)
class Earlier:
    """The state of runs that were killed.

    Attributes:
        guard: whether one was: its guard was there.
        given_back: the backups of the runs that are undone now, the newest first.
        finished: the backup of a run that had done all its changes; None where there was none.
        abandoned: a run's backup is lost or damaged, and the store stays as that run has left it.
    """

    guard: bool = False
    given_back: tuple[Path, ...] = ()
    finished: Path | None = None
    abandoned: bool = False

    @property
    def text(self) -> str | None:
        """The message to the user; None if there is nothing to report."""
        if self.abandoned:
            return "an interrupted repair could not be undone: the store was used as it is"
        if self.given_back:
            names = ", ".join(map(str, self.given_back))
            return f"the changes of an interrupted repair were undone first, from {names}"
        return None if self.finished is None else "an interrupted repair had done all its changes"


def roll_back(layout: StoreLayout, held: StoreLock, *, abandon: bool = False) -> Earlier:
    """Restore a half-changed store as it was before the killed runs.

    It can be killed at any moment and run again. Without a guard nothing is done: a broker may have written.

    Args:
        layout: of the store; its folders count, and no file of it.
        held: the store's lock.
        abandon: where a backup cannot be given back, leave the store and the guard as they are.

    Raises:
        RefusedError: a backup is lost or damaged, or the store lay in another place, and `abandon` is off.
        UnwritableError: it could not be done to the end; doing it again goes on.
        InputError, UnreadableError: the journal cannot be read or understood.
    """
    places = Places(layout)
    if not guard.is_up(places):
        return Earlier()
    given_back: list[Path] = []
    finished = None
    while runs := guard.read_journal(places):
        folder = Path(runs[-1][1])
        try:
            if _is_done(*runs[-1]):
                finished = folder
                guard.write_journal(places, ())
            else:
                undo(folder, layout, held=held)
                given_back.append(folder)
        except UnwritableError as error:
            error.hint = error.hint or f"the store is in between. {guard.unfinished_hint(places)}"
            raise
        except RmqtoolError as error:
            if abandon:
                return Earlier(guard=True, given_back=tuple(given_back), abandoned=True)
            raise _cannot(places, folder, error) from error
    changes.remove_tree(places.root / STAGING_NAME)
    guard.write_journal(places, ())
    guard.drop_guard(places)
    return Earlier(guard=True, given_back=tuple(given_back), finished=finished)


def _is_done(run: str, folder: str) -> bool:
    """Whether a run of the journal was killed after its last change. Raises as `Backup.manifest`."""
    backup = Backup(Path(folder))
    if backup.manifest().run != run:
        raise NotAStoreError("this is the backup of another run", path=backup.folder)
    return backup.applied() is not None and not backup.is_undoing and not backup.is_undone


def _cannot(places: Places, folder: Path, error: RmqtoolError) -> RefusedError:
    """Return the error for a backup that cannot be restored."""
    if isinstance(error, WrongStoreError):
        undo = places.command("recover", "--undo", str(folder), "--force")
        hint = f"if that store was moved to {places.root}: {undo}, then this again"
    else:
        hint = f"bring {folder} back, and run this again"
    go_on = places.command("recover", "--apply", "--force")
    return RefusedError(
        f"a repair was interrupted, and its backup cannot be restored: {error.message}",
        path=error.path or folder,
        hint=f"{hint}; {go_on} continues without the data that only that backup holds",
    )
