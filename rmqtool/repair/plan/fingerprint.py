"""The fingerprint of a store: it shows whether anything has changed since a plan was made.

Every file's name, size and mtime; and CRCs, because a broker writes through memory and the mtime may
follow late: of checkpoint, config and abort, of both sides of the log's end, of the last page of
every queue that is touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from rmqtool.errors import RefusedError, RmqtoolError, UnreadableError
from rmqtool.formats.timer import SNAPSHOT_NAME
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.layout import GUARD_NAME, StoreLayout
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import opened

FOLDERS = (
    "commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "config", "timerlog",
    "compaction", "rocksdbstore",
)  # fmt: skip
FILES = ("checkpoint", "abort", "abort.bak", "epochFileCheckpoint", "timerwheel")
_END_BYTES = 64 * 1024  # on either side of the log's end
_PAGE = 4096
_SMALL = 1 << 20  # of a config file or checkpoint the first bytes are compared


class FileState(NamedTuple):
    """A file as the folder lists it. An entry that is not a plain file, as a link or a pipe, has size -1."""

    size: int
    mtime_ns: int


class Check(NamedTuple):
    """The CRC-32 of [offset, offset + length) of a file; -1 if it cannot be read."""

    path: str
    offset: int
    length: int
    crc32: int


@dataclass(frozen=True)
class Fingerprint:
    """The state of a store's files, by path as `Action.path`; lock and guard are left out.

    `log_end` is the physical offset around which the log was compared (-1: there is no log), `touched`
    are the files whose last page was.
    """

    files: dict[str, FileState]
    log_end: int = -1
    touched: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    def difference(self, other: Fingerprint) -> tuple[str, str] | None:
        """The first path, by name, at which `other` differs, and how in words; None where both agree."""
        for path in sorted(self.files.keys() | other.files.keys()):
            before, after = self.files.get(path), other.files.get(path)
            if before == after:
                continue
            if before is None or after is None:
                return path, "is new" if before is None else "is gone"
            if before.size != after.size:
                return path, f"had {before.size} bytes, has {after.size}"
            return path, "has changed"
        for check in sorted({*self.checks} ^ {*other.checks}):
            return check.path, f"has other bytes in {check.offset}..{check.offset + check.length}"
        return None

    def must_be(
        self, now: Fingerprint, root: Path, *, since: str = "", hint: str = "make the plan again"
    ) -> None:
        """Raise RefusedError, naming the file, unless the store is still as it was; `now` is as it is.

        `since` is what has left it like that, as `rmqtool recover`.
        """
        found = self.difference(now)
        if found is not None:
            path, how = found
            what = f"the store has changed {f'since {since}' if since else 'since'}: {path} {how}"
            raise RefusedError(what, path=root / path, hint=hint)


def fingerprint(
    layout: StoreLayout, *, log_end: int | None = None, touched: Iterable[str] = ()
) -> Fingerprint:
    """The fingerprint of the store of `layout`, of which nothing but the folders' places is used.

    Args:
        layout: of a store root.
        log_end: the log's end, a physical offset; None: it is looked for.
        touched: paths, as in `Action.path`, of the queue files that a plan changes.

    Raises:
        UnreadableError: a folder cannot be listed.
    """
    files = listed(layout)
    root = layout.root
    assert root is not None
    if log_end is None:
        log_end = _log_end(layout)
    touched = tuple(sorted(set(touched)))
    places = [(path, 0, _SMALL) for path in files if path in FILES or path.startswith("config/")]
    places += _around(layout, files, log_end)
    places += ((path, max(files[path].size - _PAGE, 0), _PAGE) for path in touched if path in files)
    checks = {_check(root, *place) for place in places if files[place[0]].size >= 0}
    return Fingerprint(files, log_end, touched, tuple(sorted(checks)))


def listed(layout: StoreLayout) -> dict[str, FileState]:
    """All files of the store of `layout`, a store root, by path as `Action.path`. Raises UnreadableError."""
    if layout.root is None:
        raise ValueError("a fingerprint is that of a store root")
    return dict(_files(layout, layout.root))


def again(layout: StoreLayout, before: Fingerprint) -> Fingerprint:
    """The fingerprint of the store as it is now, of the same places as `before`. Raises UnreadableError."""
    return fingerprint(layout, log_end=before.log_end, touched=before.touched)


def _log_end(layout: StoreLayout) -> int:
    from rmqtool.read.store import Store

    if not layout.commit_log:
        return -1
    with Store(layout) as store:
        try:
            return store.end_offset()
        except RmqtoolError:  # a log that cannot be read has no end to compare
            return -1


def _around(layout: StoreLayout, files: dict[str, FileState], end: int) -> Iterator[tuple[str, int, int]]:
    """The ranges of the log files near a physical offset. The files' starts are in their names."""
    if end < 0:
        return
    for folder in layout.commit_log_folders:
        prefix = layout.relative(folder) + "/"
        for path, state in files.items():
            name = path[len(prefix) :]
            if not path.startswith(prefix) or not (name.isascii() and name.isdigit() and len(name) <= 20):
                continue
            start = max(end - _END_BYTES - int(name), 0)
            stop = min(end + _END_BYTES - int(name), state.size)
            if start < stop:
                yield path, start, stop - start


def _files(layout: StoreLayout, root: Path) -> Iterator[tuple[str, FileState]]:
    """Every entry of the store's own folders that is not a folder."""
    others = (path.name for path, _ in Listing().files(root))
    for name in (*FILES, *filter(SNAPSHOT_NAME.fullmatch, others)):
        try:
            yield name, _state(os.lstat(root / name))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=root / name) from error
    outside = [folder for folder in layout.commit_log_folders if not folder.is_relative_to(root)]
    inside = {root / name for name in FOLDERS} | (set(layout.commit_log_folders) - set(outside))
    nested = [folder for folder in inside if not any(above in inside for above in folder.parents)]
    for folder in (*nested, *outside):
        yield from _below(str(folder), layout.relative(folder))


def _below(folder: str, name: str) -> Iterator[tuple[str, FileState]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = f"{name}/{entry.name}"
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    yield from _below(entry.path, path)
                elif entry.name != GUARD_NAME:
                    yield path, _state(status)
    except (FileNotFoundError, NotADirectoryError):
        return
    except UnreadableError:  # of a folder below
        raise
    except OSError as error:
        raise UnreadableError(f"cannot list the folder: {error.strerror}", path=folder) from error


def is_file_of_root(name: str) -> bool:
    """Whether a file of the store in its root has this name."""
    return name in FILES or SNAPSHOT_NAME.fullmatch(name) is not None


def _state(status: os.stat_result) -> FileState:
    return FileState(status.st_size if stat.S_ISREG(status.st_mode) else -1, status.st_mtime_ns)


def _check(root: Path, path: str, offset: int, length: int) -> Check:
    try:
        with opened(root / path) as descriptor:
            return Check(path, offset, length, crc32(os.pread(descriptor, length, offset)))
    except OSError:
        return Check(path, offset, length, -1)
