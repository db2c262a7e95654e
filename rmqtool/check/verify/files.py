"""Pass `files`: the set of files. Names, sizes, gaps, strays; what is out of reach.

No content is read but the first record of a misnamed log file, so `info` shows these findings too.

Source: MappedFileQueue#doLoad, spec 02 sections 1.3 and 15.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rmqtool.command_line import argument, command_line
from rmqtool.log.damage import log_missing, missing_between
from rmqtool.log.log_files import misnamed_files
from rmqtool.problems import Finding, finding
from rmqtool.storage.layout import QueueFiles, StoreFile, StoreLayout
from rmqtool.storage.ledger import INDEX_FILE_SIZE
from rmqtool.storage.out_of_reach import database_code, of_database, side_databases
from rmqtool.storage.profile import Profile
from rmqtool.storage.storage import StoragePath, path_at

WAIT_S = 2.0
"""How long a broker may take to give a new file its length."""
_POLL_S = 0.05
_TABLES_MAX = 100


class _Sizes:
    """Judges the sizes of files. In a live store, a file whose size is wrong may be one that is being made.

    A broker creates a file first and gives it its length then (DefaultMappedFile#init). All files together
    have WAIT_S for it.
    """

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._until: float | None = None

    def is_wrong(self, path: Path, size: int, expected: int) -> bool:
        """Whether a file that had `size` bytes when it was listed has another size than `expected`."""
        if size == expected or not self._live:
            return size != expected
        if self._until is None:
            self._until = time.monotonic() + WAIT_S
        try:
            while path.stat().st_size != expected:
                if time.monotonic() >= self._until:
                    return True
                time.sleep(_POLL_S)
        except OSError:
            pass  # deleted since: nothing is known of its size
        return False


def check_files(layout: StoreLayout, profile: Profile, *, live: bool = False) -> Iterator[Finding]:
    """Findings on the store's files and folders as such.

    `profile` is the broker that used the store last; `live` is whether one is using it now.
    """
    sizes = _Sizes(live=live)
    yield from _unsupported(layout)
    yield from _databases(layout, live=live)
    for path, reason in layout.unreadable:
        yield finding("CP06", layout.relative(path), reason=reason)
    for entry in layout.unexpected_entries:
        yield finding("CP08", layout.relative(entry.path), found=entry.what, expected=entry.instead_of)
    for stray in (*layout.timer_log_strays, *layout.ext_queue_strays):
        yield finding("CP08", layout.relative(stray), expected="a file of the queue of files around it")
    if layout.guard is not None:
        yield finding("CP05", layout.relative(layout.guard))
    yield from _commit_log(layout, profile, sizes)
    for queues, size in (
        (layout.consume_queues, layout.consume_queue_file_size),
        (layout.batch_queues, layout.batch_queue_file_size),
        (layout.ext_queues, layout.ext_queue_file_size),
    ):
        if queues is layout.consume_queues and layout.has_queues_in_rocksdb:
            continue  # its files are made when they are read
        for queue in queues.values():
            yield from _queue(layout, queue, size, sizes)
    for stray in (*layout.consume_queue_strays, *layout.batch_queue_strays):
        yield finding("CQ11", layout.relative(stray))
    for stray in layout.index_strays:
        yield finding("IX07", layout.relative(stray))
    yield from _ledger(layout)
    expected = layout.index_file_size
    for file in layout.index_files:
        # The size that is right is found from the content: of what cannot be read it is not known.
        if _may_read(file.path) and sizes.is_wrong(file.path, file.size, expected):
            yield finding("IX06", layout.relative(file.path), 0, file.size, expected_bytes=expected)


def _unsupported(layout: StoreLayout) -> Iterator[Finding]:
    """Parts in a form that is not read, and databases that are lost or cannot be opened, each once."""
    known: set[Path] = set()
    for part in layout.unsupported:
        found = of_database(layout, part)
        if found is None:
            detail = {"what": part.what, "form": part.form}
            detail |= {"reason": part.reason} if part.reason else {}
            unread = finding("UN01", layout.relative(part.path), None, None, **detail)
            if part.reason:
                unread = replace(unread, message=f"{part.what} in {part.form} not checked: {part.reason}")
            yield unread
        elif part.path not in known:
            known.add(part.path)
            yield found


def _databases(layout: StoreLayout, *, live: bool) -> Iterator[Finding]:
    """What the databases that are read have lost of their newest changes."""
    queues = () if layout.rocksdb is None else (layout.rocksdb.database,)
    for database in (*queues, *side_databases(layout)):
        name = layout.relative(database.folder)
        for damage in database.damage:
            code = database_code(layout, damage.path)
            yield finding(code, layout.relative(damage.path), damage.offset, None, reason=damage.reason)
        if database.lacks_log and database not in queues:  # brokers write queues without one
            yield finding("RD11", name)
        if not live and database.lost_edits(is_clean=layout.abort is None):
            yield finding("RD15", name, tables=database.unnamed[:_TABLES_MAX])


def _may_read(path: Path) -> bool:
    return isinstance(path, StoragePath) or os.access(path, os.R_OK)


def _commit_log(layout: StoreLayout, profile: Profile, sizes: _Sizes) -> Iterator[Finding]:
    files, size = layout.commit_log, layout.commit_log_file_size
    misnamed = misnamed_files(layout)
    for stray in layout.commit_log_strays:
        skipped = stray.is_dir() and profile.skips_stray_folders
        yield finding("CL27" if skipped else "CL22", layout.relative(stray))
    known = "commitlog" not in layout.unreadable_parts
    unexpected = any(entry.path.name == "commitlog" for entry in layout.unexpected_entries)
    if layout.lacks_log and known and not unexpected:
        yield log_missing(layout)
    for file in files:
        where = layout.relative(file.path)
        if file.size == 0:
            if sizes.is_wrong(file.path, 0, size):
                yield finding("CL23", where, file.file_from_offset, 0)
        elif layout.kind != "commitlog" and sizes.is_wrong(file.path, file.size, size):
            yield finding("CL21", where, file.file_from_offset, file.size, expected_bytes=size)
        if file in misnamed:
            yield _misnamed(layout, file, misnamed[file])
    aligned, own_names = [file for file in files if file not in misnamed], {*misnamed.values()}
    for before, after in _pairs(aligned):
        start, stop = before.file_from_offset + size, after.file_from_offset
        if start < stop and known:
            if not own_names.issuperset(f"{offset:020}" for offset in range(start, stop, size)):
                yield missing_between(layout, before, after)
        elif start > stop:
            yield finding("CL25", layout.relative(after.path), stop, start - stop, overlaps=before.path.name)


def _misnamed(layout: StoreLayout, file: StoreFile, name: str | None) -> Finding:
    """A log file with a wrong name, and the line that gives it the right one if its first record shows it."""
    if name is None:
        return finding(
            "CL25", layout.relative(file.path), file.file_from_offset, file.size,
            file_size=layout.commit_log_file_size,
        )  # fmt: skip
    found = finding("CL25", layout.relative(file.path), own_name=name)
    message = f"the file has a wrong name: by its first record it is the file {name} of the log"
    if isinstance(file.path, StoragePath):
        return replace(found, message=message)
    line = command_line("mv", "-n", *(argument(each) for each in (file.path, file.path.with_name(name))))
    return replace(found, message=message, problem=replace(found.problem, repair=line))


def _ledger(layout: StoreLayout) -> Iterator[Finding]:
    """The files of the index of a DLedger log, and log files that a broker does not read."""
    for file in layout.commit_log_ignored:
        yield finding("DL10", layout.relative(file.path), file.file_from_offset, file.size)
    if layout.ledger is None:
        return
    for stray in layout.ledger.index_strays:
        yield finding("DL06", layout.relative(stray), reason="it is not a file of the index")
    end = None
    for place, offset, size in layout.ledger.index:
        name = layout.relative(path_at(place))
        if size != INDEX_FILE_SIZE:
            yield finding("DL06", name, 0, size, expected_bytes=INDEX_FILE_SIZE)
        elif offset % INDEX_FILE_SIZE or offset != (offset if end is None else end):
            yield finding("DL06", name, 0, size, reason="a file before it is missing")
        end = offset + INDEX_FILE_SIZE


def _queue(layout: StoreLayout, queue: QueueFiles, size: int, sizes: _Sizes) -> Iterator[Finding]:
    for stray in queue.strays:
        yield finding("CQ11", layout.relative(stray))
    for file in queue.files:
        if file.size != size and layout.kind == "store" and sizes.is_wrong(file.path, file.size, size):
            yield finding("CQ09", layout.relative(file.path), 0, file.size, expected_bytes=size)
    for before, after in _pairs(queue.files):
        start, stop = before.file_from_offset + size, after.file_from_offset
        if start < stop:
            missing = layout.relative(before.path.with_name(f"{start:020}"))
            yield finding("CQ10", missing, 0, stop - start, before=before.path.name, after=after.path.name)


def _pairs(files: Sequence[StoreFile]) -> Iterator[tuple[StoreFile, StoreFile]]:
    return zip(files, files[1:], strict=False)
