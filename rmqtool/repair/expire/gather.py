"""Reads the facts that the rules need: a few bytes of every file, and the disks.

Source: MappedFileQueue#deleteExpiredFileByOffset (the last unit of a queue file),
#deleteExpiredFileByOffsetForTimerLog, IndexFile#getEndPhyOffset; spec 02 7.3.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rmqtool.broker.expiry_rules import Chain, Disk, Disks, FollowFile, LogFile
from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import index as index_format
from rmqtool.formats import timer as timer_format
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE
from rmqtool.read.store import Store
from rmqtool.storage.layout import Queues, StoreFile
from rmqtool.storage.open_files import OpenFiles

_SECTOR = 512  # st_blocks counts these
_ABSENT = -1  # the id of a disk that no path is on


class Facts(NamedTuple):
    """The input of the rules. `unread` names files whose last record is unknown, with the reason."""

    log: tuple[LogFile, ...]
    chains: tuple[Chain, ...]
    disks: Disks
    unread: tuple[tuple[str, str], ...]


class _Reader:
    def __init__(self, store: Store) -> None:
        self.layout = store.layout
        self.unread: list[tuple[str, str]] = []

    def status(self, path: Path) -> os.stat_result | None:
        try:
            return os.lstat(path)
        except OSError as error:
            self.miss(path, error.strerror or str(error))
            return None

    def miss(self, path: Path, reason: str) -> None:
        self.unread.append((self.layout.relative(path), reason))

    def follow(self, path: Path, size: int, last_offset: int | None) -> FollowFile:
        status = self.status(path)
        name = self.layout.relative(path)
        if status is None:  # a live broker has deleted it, or its status cannot be read
            return FollowFile(name, size, 0, None, _ABSENT)
        mtime = status.st_mtime_ns // 1_000_000
        return FollowFile(name, size, status.st_blocks * _SECTOR, last_offset, status.st_dev, mtime)


def gather(store: Store, read_only_folders: Sequence[Path] = ()) -> Facts:
    """The input of the rules, for a store root; nothing is changed.

    Args:
        store: opened for reading.
        read_only_folders: folders of the commit log to which the broker does not write: their disks do not
            count.
    """
    reader = _Reader(store)
    with OpenFiles() as files:
        chains = tuple(_chains(store, reader, files))
        log = tuple(_log_files(store, reader))
    return Facts(log, chains, _disks(store, read_only_folders), tuple(reader.unread))


def _log_files(store: Store, reader: _Reader) -> Iterator[LogFile]:
    for file in store.layout.commit_log:
        status = reader.status(file.path)
        if status is None:
            continue
        head = store.head(file.file_from_offset)
        first = head.store_timestamp if head is not None and head.store_timestamp > 0 else None
        mtime = status.st_mtime_ns // 1_000_000
        allocated = status.st_blocks * _SECTOR
        name = store.layout.relative(file.path)
        yield LogFile(name, file.file_from_offset, file.size, allocated, mtime, status.st_dev, first)


def _chains(store: Store, reader: _Reader, files: OpenFiles) -> Iterator[Chain]:
    layout = store.layout
    yield from _queue_chains(layout.consume_queues, "consumequeue", UNIT_SIZE, reader, files)
    yield from _queue_chains(layout.batch_queues, "batchconsumequeue", BATCH_UNIT_SIZE, reader, files)
    if layout.index_files:
        ends = (_end_of_index(file.path, reader, files) for file in layout.index_files)
        made = (reader.follow(f.path, f.size, end) for f, end in zip(layout.index_files, ends, strict=True))
        yield Chain("index", tuple(made))
    if layout.timer_log:
        yield Chain("timerlog", tuple(
            reader.follow(file.path, file.size, _end_of_timer_log(file, reader, files))
            for file in layout.timer_log
        ))  # fmt: skip


def _queue_chains(
    queues: Queues, kind: str, unit_size: int, reader: _Reader, files: OpenFiles
) -> Iterator[Chain]:
    for (topic, queue_id), queue in queues.items():
        follow = []
        for place, file in enumerate(queue.files):
            # The last file always stays, whatever it refers to.
            is_last = place == len(queue.files) - 1
            end = None if is_last else _last_unit(file, unit_size, reader, files)
            follow.append(reader.follow(file.path, file.size, end))
        yield Chain(kind, tuple(follow), topic, queue_id)


def _last_unit(file: StoreFile, unit_size: int, reader: _Reader, files: OpenFiles) -> int | None:
    """The physical offset in the unit at the very end of the file, unchecked as in the broker."""
    return _number_at(file.path, file.size - unit_size, reader, files)


def _number_at(path: Path, offset: int, reader: _Reader, files: OpenFiles) -> int | None:
    if offset < 0:
        return None
    try:
        data = files.read(path, offset, 8)
    except UnreadableError as error:
        reader.miss(path, error.message)
        return None
    return int.from_bytes(data, signed=True) if len(data) == 8 else None


def _end_of_index(path: Path, reader: _Reader, files: OpenFiles) -> int | None:
    return _number_at(path, index_format.HEADER.offsets["end_physical_offset"], reader, files)


def _end_of_timer_log(file: StoreFile, reader: _Reader, files: OpenFiles) -> int | None:
    """The physical offset in the last unit of a timer log file; None if there is no unit."""
    offset = timer_format.last_unit_offset(file.size)
    if offset < 0:
        return None
    try:
        data = files.read(file.path, offset, timer_format.LOG_UNIT.size)
        return timer_format.decode_log_unit(data).physical_offset
    except UnreadableError as error:
        reader.miss(file.path, error.message)
    except FormatError:  # the broker does not delete such a file either
        return None
    return None


def _disks(store: Store, read_only_folders: Sequence[Path]) -> Disks:
    layout = store.layout
    by_id: dict[int, Disk] = {}

    def disk_of(folder: Path) -> int:
        try:
            device = folder.stat().st_dev
            found = os.statvfs(folder)
        except OSError:
            return _ABSENT
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        by_id[device] = Disk(used, found.f_bavail * found.f_frsize)
        return device

    conf = layout.broker_conf
    named = conf.paths("readOnlyCommitLogStorePaths") if conf is not None else ()
    read_only = {folder.absolute() for folder in (*read_only_folders, *named)}
    written = [folder for folder in layout.commit_log_folders if folder.absolute() not in read_only]
    root = layout.root
    queue = disk_of(root / "consumequeue") if root is not None else _ABSENT
    return Disks(by_id, tuple(disk_of(folder) for folder in written), queue)
