"""The guard, which keeps brokers out of a half-changed store, and the journal of unfinished runs.

A broker that will be refused the lock has already run load() and deleted files. With a file of a wrong
length in the commit log's folder load() of every version fails before it touches anything: measured
on 4.9.7, 5.3.3 and 5.4.0 (spec 03, claim B). So the guard is made before the first change and removed
after the last.

The journal `rmqtool-repair.json` in the store root names the backups of the runs that are not
finished, the oldest first. It is there only while the guard is.

Source: MappedFileQueue#doLoad; spec 03 claim B.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

from rmqtool.command_line import command_line
from rmqtool.errors import InputError, RefusedError, RmqtoolError
from rmqtool.repair.plan.documents import convert, put_json, read_json
from rmqtool.repair.plan.paths import Places
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import GUARD_NAME

JOURNAL_NAME = "rmqtool-repair.json"
PROBE_NAME = f"{JOURNAL_NAME}.probe"
"""An empty file with which a run tests whether it can rename files into its backup."""
_JOURNAL_NAMES = (JOURNAL_NAME, f"{JOURNAL_NAME}.new", PROBE_NAME)
INTERRUPTED = "a repair of this store was interrupted"
_CONTENT = b"R"
_VERSION = 1
OpenRuns = tuple[tuple[str, str], ...]
"""(id, folder) of the backups of unfinished runs, the oldest first."""


def is_up(places: Places) -> bool:
    """Whether a guard exists."""
    return any(os.path.lexists(folder / GUARD_NAME) for folder in places.log_folders)


def raise_guard(places: Places) -> None:
    """Create the guard on the device; complete one that a killed run has left.

    Raises:
        UnwritableError: it cannot be made, or something else has its name.
    """
    folder = places.log_folders[0]
    path = folder / GUARD_NAME
    disk.make_folder(folder)
    if os.path.lexists(path):
        descriptor = disk.open_file(path)
        try:
            disk.write(descriptor, _CONTENT, 0, path)  # an empty one would be deleted by load()
            disk.truncate(descriptor, len(_CONTENT), path)
            disk.sync(descriptor, path)
        finally:
            os.close(descriptor)
    else:
        disk.write_new(path, _CONTENT)
    disk.sync_folder(folder)


def drop_guard(places: Places) -> None:
    """Remove the guard on the device, after everything else. Raises UnwritableError."""
    for folder in places.log_folders:
        if os.path.lexists(folder / GUARD_NAME):
            disk.remove(folder / GUARD_NAME)
            disk.sync_folder(folder)


def check_names(places: Places) -> None:
    """Raise RefusedError if an entry with a name that the journal needs is not a plain file."""
    for name in _JOURNAL_NAMES:
        path = places.root / name
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
            raise RefusedError("this name is needed for a file", path=path, hint="give it another name")


def read_journal(places: Places) -> OpenRuns:
    """Return the unfinished runs; none without a journal.

    Raises:
        InputError: it cannot be understood.
        UnreadableError: it cannot be read.
    """
    path = places.root / JOURNAL_NAME
    if path.is_symlink():
        raise RefusedError("this is a symbolic link", path=path)
    document = read_json(path)
    if document is None:
        return ()
    if document.get("rmqtool_journal") != _VERSION:
        raise InputError("a repair by another version of rmqtool is unfinished", path=path)
    runs = tuple((run["id"], run["backup"]) for run in convert(document.get("open"), list[_Run], path))
    check_runs(runs, path)
    return runs


def check_runs(runs: OpenRuns, path: Path) -> None:
    """Raise InputError, naming the file `path`, unless each run has an absolute path for its backup."""
    for _, folder in runs:
        try:
            is_path = b"\0" not in os.fsencode(folder) and Path(folder).is_absolute()
        except UnicodeEncodeError:
            is_path = False
        if not is_path:
            raise InputError(f"{folder!r} is not a folder of a backup", path=path)


class _Run(TypedDict):
    id: str
    backup: str


def write_journal(places: Places, runs: OpenRuns) -> None:
    """Replace the journal on the device; remove it if there are no runs. Raises UnwritableError."""
    path = places.root / JOURNAL_NAME
    if runs:
        rows = [{"id": run, "backup": folder} for run, folder in runs]
        put_json(path, {"rmqtool_journal": _VERSION, "open": rows})
    else:
        for name in _JOURNAL_NAMES:
            if os.path.lexists(path.with_name(name)):
                disk.remove(path.with_name(name))
        disk.sync_folder(path.parent)


def unfinished_hint(places: Places) -> str:
    """Return the hint on an unfinished run, for the text of an error."""
    try:
        runs = read_journal(places)
    except RmqtoolError:
        runs = ()
    again = f"{places.command('recover', '--apply')} undoes its changes and repairs again"
    if not runs or not os.path.lexists(runs[-1][1]):  # somebody has deleted the backup
        return again
    return f"{again}; {command_line('--undo', runs[-1][1])} only undoes them"
