"""Whether a folder is a store root, and which folders hold its commit log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rmqtool.errors import InputError, NotAStoreError, UnreadableError, UsageError
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.ledger import is_ledger, ledger_folders
from rmqtool.storage.listing import Listing
from rmqtool.storage.single_file import ROOT_HINT, is_index_name, root_hint

# Each of these makes a folder a store. `config` does not: many programs have one.
_STORE_FOLDERS = frozenset({"commitlog", "consumequeue", "batchconsumequeue"})
_STORE_FILES = frozenset({"checkpoint", "abort"})


def as_path(item: Path | str) -> Path:
    """A path; text is a local one (`locate.located` reads URLs)."""
    return item if isinstance(item, Path) else Path(item)


def is_store(root: Path, listing: Listing) -> bool:
    """Whether the folder `root` holds a store or the remains of one."""
    folders = listing.folders(root)
    if folders & _STORE_FOLDERS or ledger_folders(root, listing):
        return True
    if is_ledger(root, listing):
        return False
    if listing.names(root) & _STORE_FILES:
        return True
    if any(listing.is_unreadable(root / name) for name in _STORE_FOLDERS | _STORE_FILES):
        return True
    return "index" in folders and any(is_index_name(name) for name in listing.names(root / "index"))


def not_a_store(path: Path, listing: Listing) -> NotAStoreError:
    """The error for a folder without a store; its hint names a store nearby if there is one."""
    if "manifest.json" in listing.names(path) and listing.folders(path) & {"files", "ranges"}:
        how = "its README.txt shows how to read it, and how to undo the repair"
        return NotAStoreError("this is the backup of a repair, not a store", path=path, hint=how)
    if is_ledger(path, listing):
        records = f"give the store root; {path / 'data'} shows its records alone"
        return NotAStoreError("this is the DLedger log of a store", path=path, hint=records)
    hint = root_hint(path)
    if hint is not None:
        return NotAStoreError("this is a part of a store", path=path, hint=hint)
    above = path.absolute()
    for candidate in (above / "store", above.parent, above.parent.parent, above.parent.parent.parent):
        if "commitlog" in listing.folders(candidate):
            return NotAStoreError("this folder holds no store", path=path, hint=f"a store is at {candidate}")
    hint = _stores_in(path, listing) or ROOT_HINT
    return NotAStoreError("this folder holds no store", path=path, hint=hint)


def nothing_at(path: Path, listing: Listing) -> InputError:
    """The error where there is neither a file nor a folder; its hint names what is near."""
    if listing.unreadable:
        return UnreadableError(f"cannot read: {listing.unreadable[0][1]}", path=path)
    if listing.status(path) is not None:
        return NotAStoreError("neither a file nor a folder", path=path)
    from difflib import get_close_matches

    folder = path.parent
    near = get_close_matches(path.name, sorted(listing.names(folder)))
    hint = f"did you mean {' or '.join(str(folder / name) for name in near)}?" if near else None
    return NotAStoreError("no such file or folder", path=path, hint=hint or _stores_in(folder, listing))


_FOLDERS_LISTED, _STORES_NAMED = 200, 5


def _stores_in(folder: Path, listing: Listing) -> str | None:
    """A hint that names the stores in `folder`; None if there are none, or too many folders to look."""
    from rmqtool.near_names import listed  # every command loads this module, and few need a hint

    names = sorted(listing.folders(folder))
    if len(names) > _FOLDERS_LISTED:
        return None
    stores = [str(folder / name) for name in names if is_store(folder / name, listing)]
    return f"stores there: {listed(stores, _STORES_NAMED)}" if stores else None


def commit_log_folders(
    root: Path,
    listing: Listing,
    conf: BrokerConf | None,
    commitlog_paths: Sequence[Path | str],
    read_only_paths: Sequence[Path | str],
) -> tuple[Path, ...]:
    """All folders of the commit log, each once, writable ones first; empty if there are none.

    A folder inside the store is named through `root`, even if it was given as an absolute path or by a link.

    Raises:
        InputError: a given folder does not exist.
        UnreadableError: the status of a given folder cannot be read.
    """
    named = [as_path(item) for item in commitlog_paths] or folders_of_conf(root, conf, "storePathCommitLog")
    read_only = [as_path(item) for item in read_only_paths]
    read_only = read_only or folders_of_conf(root, conf, "readOnlyCommitLogStorePaths")
    if not named and "commitlog" in listing.folders(root):
        named = [root / "commitlog"]
    folders: dict[Path, Path] = {}
    optional = set() if commitlog_paths or not ledger_folders(root, listing) else {*named}
    for folder in (*named, *read_only):
        if not listing.is_folder(folder):
            if folder in optional and not listing.is_unreadable(folder):
                continue  # broker.conf names it, but only a store that was converted to DLedger has it
            if listing.is_unreadable(folder):
                raise UnreadableError("this folder of the commit log cannot be read", path=folder)
            raise InputError("this folder of the commit log does not exist", path=folder)
        real = folder.resolve()
        if not folder.is_relative_to(root) and real.is_relative_to(root.resolve()):
            folder = root / real.relative_to(root.resolve())
        folders.setdefault(real, folder)
    return tuple(folders.values())


def written_folders(
    root: Path, folders: Sequence[Path], conf: BrokerConf | None, read_only_paths: Sequence[Path | str]
) -> tuple[Path, ...]:
    """Those of the commit log's `folders` to which a broker writes: not those that it only reads."""
    named = (*map(as_path, read_only_paths), *folders_of_conf(root, conf, "readOnlyCommitLogStorePaths"))
    read_only = {folder.resolve() for folder in named}
    return tuple(folder for folder in folders if folder.resolve() not in read_only)


def check_new_log(root: Path, conf: BrokerConf | None) -> None:
    """Raise UsageError if broker.conf puts the commit log of a new store anywhere but `root`/commitlog."""
    elsewhere = [
        (name, folder)
        for name in ("storePathCommitLog", "readOnlyCommitLogStorePaths")
        for folder in folders_of_conf(root, conf, name)
        if os.path.realpath(folder) != os.path.realpath(root / "commitlog")
    ]
    for name, folder in elsewhere:
        raise UsageError(
            f"{name} is {folder}: a new store has its log in its own folder commitlog",
            hint="create it with a --broker-conf that does not",
        )


def folders_of_conf(root: Path, conf: BrokerConf | None, name: str) -> list[Path]:
    """The folders of a setting of broker.conf.

    Those inside its storePathRootDir are mapped into `root`, which may be a copy of that store.
    """
    if conf is None:
        return []
    conf_root = conf.text("storePathRootDir")
    folders = []
    for folder in conf.paths(name):
        if conf_root is not None and folder.is_relative_to(conf_root):
            folder = root / folder.relative_to(conf_root)
        folders.append(folder)
    return folders
