"""Changes of files that apply and undo share: ranges with their holes, moves, and their flush."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from rmqtool.errors import UnreadableError, UnwritableError
from rmqtool.repair.plan.action import Action
from rmqtool.storage import durable as disk
from rmqtool.storage.open_files import Extents, opened
from rmqtool.storage.random_file import LocalFile
from rmqtool.storage.ranges import merged
from rmqtool.storage.unsupported import is_rocksdb_file

Ranges = Iterable[tuple[int, int]]
_ZEROS = memoryview(bytes(1 << 20))
_READ_BYTES = 1 << 20
_POLYNOMIAL = 0xEDB88320  # of CRC-32, as zlib computes it
_ALL_ONES = 0xFFFFFFFF
_SYNC_ONE_BY_ONE = 64  # files; of more the whole file system is flushed


class Unsynced:
    """Files and folders that were changed and are not yet on the device."""

    def __init__(self) -> None:
        self._files: dict[Path, None] = {}
        self._folders: dict[Path, None] = {}

    def file(self, path: Path) -> None:
        """Note that the bytes or times of a file have changed."""
        self._files[path] = None

    def folder(self, path: Path) -> None:
        """Note that the entries of a folder have changed."""
        self._folders[path] = None

    def flush(self) -> None:
        """Wait until all of them are on the device; missing ones are skipped.

        Raises:
            UnwritableError: the device has refused.
        """
        files = [path for path in self._files if path.is_file()]
        folders = [path for path in self._folders if path.is_dir()]
        if len(files) + len(folders) > _SYNC_ONE_BY_ONE:
            devices = {path.stat().st_dev: path for path in (*(file.parent for file in files), *folders)}
            if all(disk.sync_all(folder) for folder in devices.values()):
                files, folders = [], []
        for path in files:
            descriptor = disk.open_file(path)
            try:
                disk.sync(descriptor, path, times=True)
            finally:
                os.close(descriptor)
        for folder in folders:
            disk.sync_folder(folder)
        self._files.clear()
        self._folders.clear()


def data_within(descriptor: int, ranges: Ranges) -> Iterator[tuple[int, int]]:
    """The parts of `ranges` of an open file that are not holes, in order."""
    extents = Extents(LocalFile(descriptor))
    for start, stop in merged(ranges):
        yield from extents.within(start, stop)


def data_bytes(path: Path, ranges: Ranges) -> int:
    """How many bytes of the ranges of a file are not in holes. Raises UnreadableError."""
    try:
        with opened(path) as descriptor:
            return sum(stop - start for start, stop in data_within(descriptor, ranges))
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error


def crc_of(path: Path, ranges: Ranges) -> int:
    """The CRC-32 of the ranges of a file, one after the other; large holes are not read.

    Raises UnreadableError.
    """
    from rmqtool.write.records.record_parts import load_crc32

    crc32: Callable[..., int] = load_crc32()
    crc = 0
    with _reading(path) as descriptor:
        size, extents = os.fstat(descriptor).st_size, Extents(LocalFile(descriptor))
        for start, stop in merged(ranges):
            edge = start
            for first, last in (*extents.within(start, stop), (min(stop, size), stop)):
                if first - edge >= _READ_BYTES:
                    crc, edge = _crc_after_zeros(crc, first - edge), first
                while edge < last:
                    piece = _read(descriptor, edge, min(last - edge, _READ_BYTES), path)
                    crc = crc32(piece, crc)
                    edge += len(piece)
    return crc


def _crc_after_zeros(crc: int, count: int) -> int:
    """The CRC-32 of bytes with the CRC-32 `crc`, followed by `count` zero bytes."""
    return _times(_power(count), crc ^ _ALL_ONES) ^ _ALL_ONES


@lru_cache(maxsize=256)
def _power(count: int) -> int:
    """The polynomial x to the 8 * `count`, modulo that of CRC-32; the highest bit stands for 1."""
    power, base = 1 << 31, 1 << 23
    while count:
        if count & 1:
            power = _times(base, power)
        base = _times(base, base)
        count >>= 1
    return power


def _times(one: int, other: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            product ^= other
        other = (other >> 1) ^ (_POLYNOMIAL if other & 1 else 0)
    return product


def _read(descriptor: int, offset: int, length: int, path: Path) -> bytes:
    try:
        piece = os.pread(descriptor, length, offset)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
    if not piece:
        raise UnreadableError(f"cannot read: it ends at byte {offset}", path=path)
    return piece


def keep_ranges(source: Path, target: Path, ranges: Ranges) -> None:
    """Copy ranges of `source` to the same offsets of the new file `target`, which is a hole elsewhere."""
    ranges = merged(ranges)
    with _reading(source) as reading:
        writing = disk.create_file(target, max((stop for _, stop in ranges), default=0), like=source)
        try:
            for start, stop in data_within(reading, ranges):
                disk.copy_range(reading, writing, start, stop - start, target)
        finally:
            os.close(writing)


def give_back_ranges(kept: Path, descriptor: int, path: Path, ranges: Ranges) -> None:
    """Restore ranges of the open file `path` that `keep_ranges` has kept; holes become zeros."""
    with _reading(kept) as reading:
        at = 0
        ranges = merged(ranges)
        data = list(data_within(reading, ranges))
        for start, stop in ranges:
            edge = start
            while at < len(data) and data[at][0] < stop:
                write_zeros(descriptor, path, edge, data[at][0])
                disk.copy_range(reading, descriptor, data[at][0], data[at][1] - data[at][0], path)
                edge = data[at][1]
                at += 1
            write_zeros(descriptor, path, edge, stop)


def write_zeros(descriptor: int, path: Path, start: int, stop: int, *, holes: bool = True) -> None:
    """Fill [start, stop) of an open file with zeros; holes stay holes unless `holes` is off."""
    if start >= stop:
        return
    for first, last in list(data_within(descriptor, [(start, stop)])) if holes else [(start, stop)]:
        for offset in range(first, last, len(_ZEROS)):
            disk.write(descriptor, _ZEROS[: last - offset], offset, path)


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file to the new file `target`: bytes, holes, owner, mode and mtime."""
    status = source.stat()
    with _reading(source) as reading:
        writing = disk.create_file(target, status.st_size, like=source)
        try:
            for start, stop in data_within(reading, [(0, status.st_size)]):
                disk.copy_range(reading, writing, start, stop - start, target)
        finally:
            os.close(writing)
    disk.set_mtime(target, status.st_mtime_ns)


class _reading:
    """A descriptor for reading inside the block; UnreadableError where the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=self._path) from error
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def move(source: Path, target: Path, unsynced: Unsynced) -> bool:
    """Rename a file, replacing a file with that name; False if only a copy could be made.

    A copy, where the two lie on different file systems, is not whole at every moment.
    """
    try:
        disk.rename(source, target)
    except UnwritableError as error:
        if not is_other_device(error):
            raise
        disk.remove(target)
        copy_whole(source, target)
        unsynced.file(target)
        unsynced.folder(target.parent)
        return False
    unsynced.folder(target.parent)
    unsynced.folder(source.parent)
    return True


def is_other_device(error: UnwritableError) -> bool:
    """Whether a rename failed because the two places are on different file systems or mounts."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EXDEV


def move_out(source: Path, target: Path, unsynced: Unsynced) -> None:
    """As `move`, to an unused path; at every moment the file is complete at one of the two paths."""
    try:
        disk.rename(source, target)
    except UnwritableError as error:
        if not is_other_device(error):
            raise
        part = target.with_name(f"{target.name}.part")
        disk.remove(part)
        copy_whole(source, part)
        unsynced.file(part)
        unsynced.flush()
        disk.rename(part, target)
        disk.sync_folder(target.parent)
        disk.remove(source)
    unsynced.folder(source.parent)
    unsynced.folder(target.parent)


def remove_tree(path: Path, unsynced: Unsynced | None = None) -> None:
    """Delete a file, a link, or a folder with its content; do nothing if it is missing."""
    try:
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if is_folder:
        for entry in sorted(path.iterdir()):
            remove_tree(entry)
        disk.remove_folder(path)
    else:
        disk.remove(path)
    if unsynced is not None:
        unsynced.folder(path.parent)


def database_files(current: Path) -> list[Path]:
    """The files of the RocksDB database of this CURRENT, by name; CURRENT itself is left out."""
    names = (path.name for path in current.parent.iterdir() if path != current)
    found = sorted(current.with_name(name) for name in names if is_rocksdb_file(name))
    return [path for path in found if path.is_file() and not path.is_symlink()]


def change_in_place(descriptor: int, path: Path, action: Action, *, reserve: bool) -> None:
    """Carry out one fill, write or cut. `reserve`: added bytes are written, not left as a hole."""
    if action.content is not None:
        disk.write(descriptor, action.content, action.offset, path)
        return
    size = os.fstat(descriptor).st_size
    write_zeros(descriptor, path, action.offset, min(action.end, size))
    if action.end <= size:
        return
    if reserve:
        write_zeros(descriptor, path, max(action.offset, size), action.end, holes=False)
    else:
        disk.truncate(descriptor, action.end, path)
