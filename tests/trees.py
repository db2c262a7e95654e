"""Folders as test data: copied with their holes, hashed, and guarded against change."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK = 64 * 1024


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
        if block.count(0) != len(block):
            yield offset, block
        offset += BLOCK


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file: content with its zero blocks as holes, mode and times."""
    size = source.stat().st_size
    with source.open("rb") as origin, target.open("wb") as copy:
        for offset, block in data_blocks(origin.fileno(), size):
            os.pwrite(copy.fileno(), block, offset)
        copy.truncate(size)
    shutil.copystat(source, target)


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
                copy_sparse(Path(entry.path), Path(copy))
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
    rows = [_tree_row(root, root)]
    for folder, folders, names in os.walk(root):
        rows += (_tree_row(root, Path(folder) / name) for name in (*folders, *names))
    return sorted(rows)


def _tree_row(root: Path, path: Path) -> tuple[str, str, int, int, str]:
    name, status = path.relative_to(root).as_posix(), path.lstat()
    if path.is_symlink():
        return name, "link", 0, status.st_mtime_ns, str(path.readlink())
    if path.is_dir():
        return name, "folder", 0, status.st_mtime_ns, ""
    if not path.is_file():
        return name, "special", 0, status.st_mtime_ns, ""
    return name, "file", status.st_size, status.st_mtime_ns, _content_hash(path, status.st_size)


def _content_hash(path: Path, size: int) -> str:
    digest = hashlib.sha256(b"%d" % size)
    try:
        with path.open("rb") as file:
            for offset, block in data_blocks(file.fileno(), size):
                digest.update(b"|%d|" % offset)
                digest.update(block)
    except PermissionError:
        return ""
    return digest.hexdigest()


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
