"""Folders as test data: copied with their holes, hashed, and guarded against change."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK = 64 * 1024
ZEROS = bytes(BLOCK)


def data_blocks(descriptor: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of every block of an open file that is not all zero, in order.

    Blocks start at multiples of `BLOCK`, so the result does not depend on where the file system
    keeps holes; it only makes skipping them fast.
    """
    offset = 0
    while offset < size:
        try:
            offset = os.lseek(descriptor, offset, os.SEEK_DATA) // BLOCK * BLOCK
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
        block = os.pread(descriptor, BLOCK, offset)
        if not block:
            return
        if block != ZEROS[: len(block)]:
            yield offset, block
        offset += BLOCK


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file: content with its zero blocks as holes, mode and times."""
    _copy_file(str(source), str(target))


def _copy_file(source: str, target: str) -> None:
    origin = os.open(source, os.O_RDONLY)
    try:
        status = os.fstat(origin)
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for offset, block in data_blocks(origin, status.st_size):
                os.pwrite(copy, block, offset)
            os.ftruncate(copy, status.st_size)
            os.fchmod(copy, status.st_mode & 0o7777)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(copy)
    finally:
        os.close(origin)


def copy_tree(source: Path, target: Path, *, linked: bool = False) -> Path:
    """Copy the folder `source` to the new folder `target`, times included; returns `target`.

    With `linked` files are hard links: fast, and for readers only, because whoever writes through
    a link changes `source`. `make_private` turns one into a copy.
    """
    _copy_folder(str(source), str(target), linked)
    return target


def _copy_folder(source: str, target: str, linked: bool) -> None:
    """`copy_tree` in plain strings, because it runs hundreds of times in a test run."""
    os.mkdir(target)  # noqa: PTH102
    with os.scandir(source) as entries:
        for entry in entries:
            copy = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), copy)  # noqa: PTH115, PTH211
            elif entry.is_dir():
                _copy_folder(entry.path, copy, linked)
            elif linked:
                os.link(entry.path, copy)
            else:
                _copy_file(entry.path, copy)
    status = os.stat(source)  # noqa: PTH116
    os.chmod(target, status.st_mode & 0o7777)  # noqa: PTH101
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def make_private(path: Path) -> None:
    """Replace a hard link by a copy, so that the other name no longer sees what is written."""
    copy = path.with_name(f"{path.name}.private")
    copy_sparse(path, copy)
    copy.replace(path)


def tree_rows(root: Path) -> list[tuple[str, str, int, int, str]]:
    """(path, kind, size, mtime in ns, content hash) of everything below `root`, sorted by path.

    The root itself is the row ".". Folders have size 0; a symbolic link's hash is its target;
    other special files and unreadable ones have no hash.
    """
    above = str(root)
    rows = [_tree_row(above, ".")]
    for folder, folders, names in os.walk(above):
        below = folder[len(above) + 1 :]
        prefix = f"{below}/" if below else ""
        rows += (_tree_row(f"{folder}/{name}", prefix + name) for name in (*folders, *names))
    return sorted(rows)


def _tree_row(path: str, name: str) -> tuple[str, str, int, int, str]:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return name, "link", 0, status.st_mtime_ns, os.readlink(path)  # noqa: PTH115
    if stat.S_ISDIR(status.st_mode):
        return name, "folder", 0, status.st_mtime_ns, ""
    if not stat.S_ISREG(status.st_mode):
        return name, "special", 0, status.st_mtime_ns, ""
    return name, "file", status.st_size, status.st_mtime_ns, _content_hash(path, status)


_known: dict[tuple[int, ...], str] = {}
_RACY_NS = 2 * 10**9


def _content_hash(path: str, status: os.stat_result) -> str:
    """The hash of a file's bytes and holes; read only where its ctime, which nobody can set, is not known.

    A change that comes right after the ctime that was read may leave it as it is, so young ones are not kept.
    """
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if identity in _known:
        return _known[identity]
    digest = hashlib.sha256(b"%d" % status.st_size)
    now = time.time_ns()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except PermissionError:
        return ""
    try:
        for offset, block in data_blocks(descriptor, status.st_size):
            digest.update(b"|%d|" % offset)
            digest.update(block)
    finally:
        os.close(descriptor)
    found = digest.hexdigest()
    if 0 < status.st_ctime_ns < now - _RACY_NS:
        _known[identity] = found
    return found


def tree_digest(root: Path) -> str:
    """One hash over `tree_rows`: equal when names, kinds, sizes, times and contents are."""
    return hashlib.sha256(repr(tree_rows(root)).encode()).hexdigest()


@contextmanager
def unchanged(root: Path) -> Iterator[None]:
    """Nothing below `root` may change inside the block, whether it ends well or by an exception."""
    before = tree_rows(root)
    try:
        yield
    finally:
        after = tree_rows(root)
        changed = sorted({row[0] for row in set(before) ^ set(after)})
        assert before == after, f"changed below {root}: {changed}"
