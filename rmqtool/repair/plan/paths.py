"""Where the paths of a plan lie: inside the store, and never below a symbolic link.

Paths come from plan files and manifests too, which anybody may have written.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

from rmqtool.errors import RefusedError, UnreadableError
from rmqtool.repair.plan.fingerprint import FOLDERS, is_file_of_root
from rmqtool.storage.layout import GUARD_NAME, StoreLayout
from rmqtool.storage.next_command import command_on

OUTSIDE = "outside"
"""The folder, in a backup and in staging, for files outside of the store root."""
_NAME_BYTES = 255
_RANKS = {"consumequeue": 1, "batchconsumequeue": 1, "consumequeue_ext": 1, "index": 2, "rocksdbstore": 2,
          "config": 4, "checkpoint": 5, "abort": 6, "abort.bak": 6}  # fmt: skip
LOG_RANK = 0
_OTHER_RANK = 3


def _is_name(part: str) -> bool:
    """Whether a folder can hold an entry of this name."""
    try:
        encoded = os.fsencode(part)
    except UnicodeEncodeError:
        return False
    return part not in ("", ".", "..") and b"\0" not in encoded and len(encoded) <= _NAME_BYTES


class Places:
    """The folders of a store in which a plan may change something."""

    def __init__(self, layout: StoreLayout) -> None:
        if layout.root is None:
            raise RefusedError("this is not a store root; nothing is changed here",
                               hint="name the folder that holds commitlog")  # fmt: skip
        self.command, self.options = partial(command_on, layout), layout.options
        self.root = layout.root.resolve()  # the store itself may be named by a link
        self.log_folders = tuple(
            self.root / folder.relative_to(layout.root) if folder.is_relative_to(layout.root) else folder
            for folder in layout.commit_log_folders
        ) or (self.root / "commitlog",)
        self._tops = {*FOLDERS, *map(self.name, self.log_folders)}
        self._log_tops = tuple(
            f"{self.name(folder)}/" for folder in (*self.log_folders, self.root / "commitlog")
        )
        self._plain: set[Path] = set()
        self._known: dict[str, Path] = {}  # a plan may have 100,000 paths, each resolved many times

    def path(self, name: str) -> Path:
        """Return the file that a plan's path names, without access to the file system.

        Raises:
            RefusedError: it lies outside of the store's own folders, or is lock or guard.
        """
        known = self._known.get(name)
        if known is not None:
            return known
        top = next((top for top in self._tops if name.startswith(f"{top}/")), None)
        parts = [name] if top is None else name[len(top) + 1 :].split("/")
        if (top is None and not is_file_of_root(name)) or not all(map(_is_name, parts)):
            raise RefusedError(f"{name!r} is not a path of a file of this store", path=self.root)
        if parts[-1] == GUARD_NAME:
            raise RefusedError("a plan must not change the guard", path=self.root / name)
        self._known[name] = self.root / name
        return self._known[name]

    def checked(self, name: str) -> Path:
        """As `path`; raise an error unless every folder above the file is a folder, not a link.

        Raises:
            RefusedError: also for a link on the way.
            UnreadableError: the state of a folder cannot be read.
        """
        path = self.path(name)
        self.check_folder(path.parent)
        return path

    def folder(self, name: str) -> Path:
        """The folder that a manifest names: of files of the store, above one of the log, or `.`, the root.

        Raises as `checked`.
        """
        if name == ".":
            return self.root
        is_above = not name.startswith("/") and any(top.startswith(f"{name}/") for top in self._tops)
        if not (name and is_above):
            return self.checked(f"{name}/-").parent
        self.check_folder(self.root / name)
        return self.root / name

    def check_folder(self, folder: Path) -> None:
        """Raise as `checked` unless a folder, and every one above it in the store, is one or missing."""
        if folder in self._plain or folder == self.root:
            return
        if folder.is_relative_to(self.root):
            self.check_folder(folder.parent)
        try:
            mode = folder.lstat().st_mode if folder.is_relative_to(self.root) else folder.stat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=folder) from error
        if stat.S_ISLNK(mode):
            raise RefusedError(
                "this is a symbolic link; nothing is changed through links", path=folder,
                hint=f"for the commit log: --commitlog {folder.resolve()}",
            )  # fmt: skip
        if not stat.S_ISDIR(mode):
            raise RefusedError("this is not a folder", path=folder)
        self._plain.add(folder)

    def name(self, path: Path) -> str:
        """The path of a file as plans name it: the reverse of `path`."""
        return (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()

    def rank(self, name: str) -> int:
        """The rank of a path in the order of changes: log, queues, index, others, checkpoint, abort."""
        if name.startswith(self._log_tops):
            return LOG_RANK
        return _RANKS.get(name.split("/", 1)[0], _OTHER_RANK)

    def is_timed(self, name: str) -> bool:
        """Whether a broker uses the file's mtime: in commit log, queues and index."""
        return self.rank(name) <= _RANKS["index"]

    def within(self, folder: Path, name: str) -> Path:
        """The file for a plan's path in a folder that mirrors the store, as a backup or staging."""
        return folder / (OUTSIDE + name if name.startswith("/") else name)
