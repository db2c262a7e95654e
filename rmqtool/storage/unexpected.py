"""Entries of a store whose type does not match their name, for example a pipe named like a file.

Such an entry contains nothing that can be read, and with most of them a broker does not start.

Source: DefaultMessageStore#load.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.listing import Listing

FOLDERS = (
    "commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "config", "timerlog",
    "compaction",
)  # fmt: skip
FILES = ("abort", "abort.bak", "lock", "epochFileCheckpoint", "timerwheel")
# A store's `checkpoint` is not among the files: its reader reports that it is not a plain file.

_TYPES: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISREG, "a plain file"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"), (stat.S_ISLNK, "a link that leads nowhere"),
    (lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode), "a device"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnexpectedEntry:
    """An entry of the wrong type: `what` it is and what is expected `instead_of`, as text."""

    path: Path
    what: str
    instead_of: str


def find_unexpected_entries(root: Path, listing: Listing) -> tuple[UnexpectedEntry, ...]:
    """The entries of the store at `root` that have the name of a part but the wrong type, each once.

    Folders of files that are numbered (log, queues, index, timer log) have their own lists of strays.
    """
    return tuple((*_of_root(root, listing), *_of_config(root, listing), *_of_compaction(root, listing)))


def _of_root(root: Path, listing: Listing) -> Iterator[UnexpectedEntry]:
    for name, status in listing.entries(root):
        if name in FOLDERS and not stat.S_ISDIR(status.st_mode):
            yield _unexpected(root / name, status, "a folder")
        elif name in FILES and not stat.S_ISREG(status.st_mode):
            yield _unexpected(root / name, status, "a plain file")


def _of_config(root: Path, listing: Listing) -> Iterator[UnexpectedEntry]:
    for name, status in listing.entries(root / "config"):
        if stat.S_ISREG(status.st_mode):
            continue
        # 5.x keeps RocksDB folders next to the files, under other names.
        is_file_name = name.removesuffix(".bak").endswith(".json") or name.startswith("timer")
        if is_file_name or not stat.S_ISDIR(status.st_mode):
            yield _unexpected(root / "config" / name, status, "a plain file")


def _of_compaction(root: Path, listing: Listing) -> Iterator[UnexpectedEntry]:
    for name, status in listing.entries(root / "compaction"):
        if name == "position-checkpoint" and not stat.S_ISREG(status.st_mode):
            yield _unexpected(root / "compaction" / name, status, "a plain file")


def _unexpected(path: Path, status: os.stat_result, instead_of: str) -> UnexpectedEntry:
    what = next((text for test, text in _TYPES if test(status.st_mode)), "of an unknown type")
    return UnexpectedEntry(path, what, instead_of)
