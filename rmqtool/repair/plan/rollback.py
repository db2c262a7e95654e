"""Gives back what a killed run has changed, before the next run looks at the store.

A plan for a store in between cannot know what only the moved files knew: committed offsets, the number at
which a queue without records goes on, the sizes of index and queues. So the next run plans for the store as
it was before: it undoes the killed run, whose backup has every byte, and does all of it again. A run that was
killed after its last change has nothing left to do and is closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rmqtool.errors import NotAStoreError, RefusedError, RmqtoolError, UnwritableError
from rmqtool.repair.plan import changes, guard
from rmqtool.repair.plan.apply import STAGING_NAME
from rmqtool.repair.plan.backup import Backup
from rmqtool.repair.plan.paths import Places
from rmqtool.repair.plan.undo import WrongStoreError, undo
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.lock import StoreLock


@dataclass(frozen=True, slots=True)
class Earlier:
    """What became of runs that were killed.

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
        """What to say of it to a person; None for nothing."""
        if self.abandoned:
            return "an interrupted repair could not be undone: the store was used as it is"
        if self.given_back:
            names = ", ".join(map(str, self.given_back))
            return f"the changes of an interrupted repair were undone first, from {names}"
        return None if self.finished is None else "an interrupted repair had done all its changes"


def roll_back(layout: StoreLayout, held: StoreLock, *, abandon: bool = False) -> Earlier:
    """Make a store in between what it was before the runs that were killed.

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
    """What to do where a backup cannot be given back."""
    command = f"rmqtool recover {places.root}"
    if isinstance(error, WrongStoreError):
        hint = f"if that store was moved to {places.root}: {command} --undo {folder} --force, then this again"
    else:
        hint = f"bring {folder} back, and run this again"
    return RefusedError(
        f"a repair was interrupted, and its backup cannot be restored: {error.message}",
        path=error.path or folder,
        hint=f"{hint}; {command} --apply --force continues without the data that only that backup holds",
    )
