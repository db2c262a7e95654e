"""Archives the files that expire: copies them, compares the copies on the device, lists their CRCs.

    DIR/commitlog/00000000000000000000      the copies, under their paths in the store
    DIR/manifest-<time in ms>.json          the files of one run; -<time>-2 for a second run of that time
    DIR/README.txt                          how to restore them, for a person

The manifest is on the device before the first file of the store is deleted.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rmqtool.command_line import argument, command_line
from rmqtool.errors import RefusedError, UnreadableError, UnwritableError
from rmqtool.findings import Progress
from rmqtool.index.index_file import header_of
from rmqtool.queue.consume_queue import AnyQueue
from rmqtool.read.store import Store
from rmqtool.repair.expire.expiry import Expiry, FileDecision
from rmqtool.repair.plan.backup import README, from_anywhere, write_readme
from rmqtool.repair.plan.changes import copy_whole, crc_of
from rmqtool.repair.plan.fingerprint import FOLDERS
from rmqtool.repair.plan.paths import Places
from rmqtool.repair.plan.space import above
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import opened, reading
from rmqtool.storage.output_guard import keep_out

VERSION = 1
_SLACK_BYTES = 1 << 20  # the manifest, folders
_PART = ".part"


def check_archive(store: Store, expiry: Expiry, places: Places, folder: Path) -> None:
    """Check the archive folder before the first copy.

    Raises:
        RefusedError: the folder is inside the store, or is not a folder.
        UnwritableError: it has too little free space.
        UnreadableError: the free space is unknown.
    """
    keep_out(store.layout, folder, "an archive")
    if folder.exists() and not folder.is_dir():
        raise RefusedError("the archive is not a folder", path=folder)
    need = _SLACK_BYTES + sum(
        decision.allocated for decision in expiry.expired if not _copy_of(places, folder, decision).exists()
    )
    try:
        found = os.statvfs(above(folder))
    except OSError as error:
        raise UnreadableError(f"cannot ask for free space: {error.strerror}", path=folder) from error
    free = found.f_bavail * found.f_frsize
    if found.f_blocks and free < need:
        raise UnwritableError(
            f"not enough space: {need} bytes are needed here, {free} are free", path=folder,
            hint="free that much space, or name another folder: --archive DIR",
        )  # fmt: skip


def write_archive(
    store: Store, expiry: Expiry, places: Places, folder: Path, made_ms: int, progress: Progress | None = None
) -> Path:
    """Copy every file that is deleted, verify the copies, and write the manifest; returns its path.

    A copy from an earlier run is verified and kept.

    Raises:
        RefusedError: another file has the name of a copy, or a copy is not equal to its file.
        UnwritableError, UnreadableError: a file cannot be copied.
    """
    rows = []
    folders: dict[Path, None] = {}
    for decision in expiry.expired:
        source, target = places.checked(decision.path), _copy_of(places, folder, decision)
        disk.make_folder(target.parent, own=True)
        folders |= dict.fromkeys((target.parent, *(up for up in target.parents if up.is_relative_to(folder))))
        rows.append(_row(store, decision, source, _copied(source, target)))
        if progress is not None:
            progress(decision.size)
    for made in (*folders, folder.parent):
        disk.sync_folder(made)
    manifest = _free_name(folder, f"manifest-{made_ms}")
    document = {
        "rmqtool_archive": VERSION,
        "store": str(places.root.resolve()),
        "made_timestamp_ms": made_ms,
        "log_start_before": expiry.start_before,
        "log_start_after": expiry.start_after,
        "files": rows,
    }
    disk.write_new(
        manifest, json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace")
    )
    disk.sync_folder(folder)
    _say_how_to_restore(places, folder)
    return manifest


_TITLE = "Files of a RocketMQ store that rmqtool expire has deleted from it, under their paths in:"


def _say_how_to_restore(places: Places, folder: Path) -> None:
    """Write the README of the archive, unless the folder has one that is not rmqtool's.

    It is whole when it appears: a part of one would be taken for that of another program for ever.
    """
    try:
        with reading(folder / README) as file:
            if file.read(0, len(_TITLE)) != _TITLE.encode():
                return
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=folder / README) from error
    part = folder / f"{README}{_PART}"
    disk.remove(part)
    write_readme(part, _readme(places, folder.absolute()))
    disk.rename(part, folder / README)


def _readme(places: Places, folder: Path) -> Iterator[str]:
    """The lines of the README, on the files of all runs; it may be read from any folder."""
    yield _TITLE
    yield f"    {command_line(places.root)}"
    yield ""
    yield "The manifest of each run names its files, with the times of their messages and their CRCs."
    yield ""
    yield "To restore all of them: stop the broker, and raise fileReservedTime in its configuration."
    yield "Otherwise it deletes them again."
    yield f"    {restore_line(folder, places.root)}"
    yield f"    {from_anywhere(places, 'verify')}"
    log = [path.name for path in folder.glob("commitlog/*") if path.name.isdecimal()]
    if log:
        newest = f"commitlog/{max(log)}"
        yield ""
        yield "To restore single log files: the commit log must not have a gap. So begin with the newest one,"
        yield "which ends where the log of the store begins, and go on with the one before it."
        yield f"    {command_line('cp', '-an', folder / newest, places.path(newest).parent)}/"
        if others := restore_line(folder, places.root, log=False):
            yield "Then copy the queue and index files, without which no consumer and no query by key finds"
            yield "the messages."
            yield f"    {others}"
        yield f"    {from_anywhere(places, 'verify')}"
    if (folder / "outside").is_dir():
        yield ""
        yield "outside/  files of commit log folders outside of the store, under their full paths"


def restore_line(folder: Path, root: Path, *, log: bool = True) -> str:
    """The line for a shell that copies the files of an archive back to the store at `root`, if it lacks them.

    Without `log`, only those of queues, index and timer log; empty if there are none.
    """
    parts = [folder / name for name in FOLDERS if name != "commitlog" or log]
    there = [argument(part) for part in parts if part.is_dir()]
    return command_line("cp", "-an", *there, argument(root)) if there else ""


def _free_name(folder: Path, stem: str) -> Path:
    """A name that no manifest has yet; several runs may be for the same time."""
    names = (f"{stem}{end}.json" for end in itertools.chain([""], (f"-{n}" for n in itertools.count(2))))
    return next(folder / name for name in names if not os.path.lexists(folder / name))


def _copy_of(places: Places, folder: Path, decision: FileDecision) -> Path:
    return places.within(folder, decision.path)


def _copied(source: Path, target: Path) -> int:
    """Copy a file and verify the copy; returns their CRC-32."""
    size = source.stat().st_size
    crc = crc_of(source, [(0, size)])
    if not os.path.lexists(target):
        part = target.with_name(target.name + _PART)
        disk.remove(part)  # left by a killed run
        copy_whole(source, part)
        _forget(part)
        _check(part, size, crc, "the copy is not equal to its file")
        disk.rename(part, target)
    else:
        _check(target, size, crc, "another file has the name of this copy")
    _drop(target)
    return crc


def _forget(path: Path) -> None:
    """Flush the copy and drop it from the page cache, so that the check reads it from the device."""
    descriptor = disk.open_file(path)
    try:
        disk.sync(descriptor, path, times=True)
    finally:
        os.close(descriptor)
    _drop(path)


def _drop(path: Path) -> None:
    """Drop a copy from the page cache, which is the broker's memory."""
    if hasattr(os, "posix_fadvise"):
        with opened(path) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _check(path: Path, size: int, crc: int, what: str) -> None:
    try:
        with opened(path) as descriptor:
            same = os.fstat(descriptor).st_size == size
    except OSError as error:
        raise RefusedError(f"{what}: {error.strerror}", path=path) from error
    if not same or crc_of(path, [(0, size)]) != crc:
        raise RefusedError(what, path=path)


def _row(store: Store, decision: FileDecision, source: Path, crc: int) -> dict[str, Any]:
    first, last = _times(store, decision, source)
    return {
        "path": decision.path,
        "kind": decision.kind,
        "size_bytes": decision.size,
        "crc32": crc,
        "modified_timestamp_ms": decision.mtime_ms,
        "first_store_timestamp_ms": first,
        "last_store_timestamp_ms": last,
        "reason": decision.reason,
    }


def _times(store: Store, decision: FileDecision, source: Path) -> tuple[int | None, int | None]:
    """Store times of the first and the last message in a log, queue or index file, ms; None if unknown."""
    if decision.kind == "index":
        header = header_of(source)
        return header.begin_timestamp or None, header.end_timestamp or None
    if decision.kind in ("consumequeue", "batchconsumequeue"):
        return _times_of_queue(store, decision)
    named = store.layout.relative
    file = next((file for file in store.layout.commit_log if named(file.path) == decision.path), None)
    if decision.kind != "commitlog" or file is None:
        return None, None
    first = store.head(file.file_from_offset)
    return (first.store_timestamp if first is not None else None), _last_time(store, file)


def _times_of_queue(store: Store, decision: FileDecision) -> tuple[int | None, int | None]:
    """The same for a queue file, by its first and its last unit: one that expires is full."""
    assert decision.topic is not None and decision.queue_id is not None
    queue, named = store.queues[decision.topic, decision.queue_id], store.layout.relative
    file = next((file for file in queue.files if named(file.path) == decision.path), None)
    if file is None:
        return None, None
    numbers = queue.numbers_of(file)
    return _time_of(store, queue, numbers.start), _time_of(store, queue, numbers.stop - 1)


def _time_of(store: Store, queue: AnyQueue, number: int) -> int | None:
    try:
        unit = queue.by_number(number)
    except UnreadableError:
        return None
    head = None if unit is None or unit.is_pre_blank else store.head(unit.physical_offset)
    return None if head is None else head.store_timestamp


def _last_time(store: Store, file: StoreFile) -> int | None:
    """The store time of the last record of a file; reads heads from the last record that a queue names."""
    found = None
    try:
        for head in store.commit_log.heads(store.record_before(file, file.end - 1)):
            if head.physical_offset >= file.end:
                break
            found = head.store_timestamp
    except UnreadableError:
        return None
    return found


def frees_nothing(archive: Path, folders: Iterable[Path]) -> bool:
    """Whether an archive lies on the disk of these folders of a store: files copied there free no space."""
    device = above(archive).stat().st_dev
    return all(above(folder).stat().st_dev == device for folder in folders)
