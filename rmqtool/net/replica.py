"""A store that receives the log of a master: opened, compared, appended to, flushed, closed.

Only whole, sound records are written, and the log always ends with one, or in what follows the blank of a
full file. `abort` exists while the store receives. Order of every change: bytes of the log, flush, then
whoever waits for the flush.

    killed in a write      the next opening finds the last sound record, and clears what follows it
    power lost             the same: all that is not flushed lies within UNSYNCED_BYTES before the end, and is
                           compared with the master's bytes when the store receives again
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.errors import FormatError, RefusedError, UnreadableError, UnwritableError, UsageError
from rmqtool.formats import epoch
from rmqtool.formats.epoch import Entry
from rmqtool.formats.versions import NEWEST
from rmqtool.log.arriving import PAD, Arriving, Stop
from rmqtool.net.log_end import UNSYNCED_BYTES, LogEnd, find_log_end, first_difference
from rmqtool.storage import config_files, lock, permission
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import StoreFile, StoreLayout, detect
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import opened
from rmqtool.storage.profile import Profile, profile_named, written_by
from rmqtool.storage.roots import is_store
from rmqtool.write import opening
from rmqtool.write.log_writer import LogWriter
from rmqtool.write.options import WriteOptions
from rmqtool.write.state import StateFiles, hint_begun

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_COMPARED_BYTES = 64 << 10
"""Before the end of a log that was closed cleanly, or whose writer is this process."""
_ZEROS = bytes(1 << 20)
EPOCH_FILE = "epochFileCheckpoint"


class Reached(NamedTuple):
    """What `Replica.take` has appended: records, and the newest store timestamp (ms; 0 without records)."""

    records: int
    store_timestamp: int
    is_cut: bool = False


class Replica:
    """A store that receives. Made by `open_replica`.

    Attributes:
        root: the store.
        start: physical offset where its log begins; -1 before the first byte.
        log: its end; None before the first byte.
        profile: the version whose files it gets.
    """

    def __init__(
        self, root: Path, held: lock.StoreLock, layout: StoreLayout, options: WriteOptions, end: LogEnd | None
    ) -> None:
        self.root = root
        self.profile = options.profile
        self.file_size = options.commit_log_file_size
        self.start = -1 if end is None else end.start
        self.log: LogWriter | None = None
        self._held = held
        self._layout = layout
        self._options = options
        self._state = StateFiles(root, options.profile)
        self._is_unclean = layout.abort is not None
        self._is_open = False
        self._saved_epochs: list[Entry] = []
        self._written = -1 if end is None else end.written
        self._rest_until = -1  # the bytes before it follow a blank
        self._arriving: Arriving | None = None
        self._files: dict[int, StoreFile] = {file.file_from_offset: file for file in layout.commit_log}
        if end is not None:
            self._begin(end.end)
            if end.is_blank:
                self._written = end.end

    def _begin(self, offset: int) -> None:
        folders = self._layout.commit_log_folders or (self.root / "commitlog",)
        self.log = LogWriter(folders, self._layout.commit_log, offset, self._options)

    @property
    def end(self) -> int:
        """The physical offset after the last byte; -1 before the first."""
        return -1 if self.log is None else self.log.end

    @property
    def flushed(self) -> int:
        """The physical offset up to which the log is on the device; -1 before the first byte."""
        return -1 if self.log is None else self.log.flushed

    @property
    def compared_from(self) -> int:
        """From where the master's bytes are compared before any is appended; -1 before the first byte."""
        if self.log is None:
            return -1
        return max(self.log.end - (UNSYNCED_BYTES if self._is_unclean else _COMPARED_BYTES), self.start)

    # receiving

    def begin(self, offset: int) -> None:
        """Decide that the log of an empty store begins at `offset`, the start of a file."""
        if offset % self.file_size:
            raise FormatError(f"the master's log begins at {offset}, which is not the start of a file")
        self._mark_open()
        self._begin(offset)
        self.start = offset

    def _mark_open(self) -> None:
        """Make `abort`, unless a former run has left it. Raises UnwritableError."""
        if not self._is_open and not (self.root / "abort").exists():
            self._state.mark_open()
        self._is_open = True

    def compare(self, offset: int, data: memoryview) -> None:
        """Compare bytes of the master with those at `offset`, all of them before the end.

        After an unclean end, bytes that are zero here and not in the master were lost before they were
        flushed: they are written again.

        Raises:
            RefusedError: the logs differ.
            UnreadableError, UnwritableError: a file.
        """
        place = 0
        while place < len(data):
            start = (offset + place) - (offset + place) % self.file_size
            part = data[place : place + start + self.file_size - (offset + place)]
            self._compare_in_file(self._path(start), start, offset + place, part)
            place += len(part)

    def _compare_in_file(self, path: Path, start: int, offset: int, data: memoryview) -> None:
        try:
            with opened(path) as descriptor:
                ours = os.pread(descriptor, len(data), offset - start)
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
        if len(ours) < len(data):
            raise UnreadableError(
                "the file has become shorter", path=path, physical_offset=offset + len(ours)
            )
        found = first_difference(ours, data)
        if found is None:
            return
        place, was_lost = found
        if not (was_lost and self._is_unclean):
            raise RefusedError(
                "the logs differ: this store was not received from this master, or one of them was changed",
                path=path, physical_offset=offset + place, hint="receive into a new folder",
            )  # fmt: skip
        descriptor = disk.open_file(path)
        try:
            disk.write(descriptor, data, offset - start, path)
            disk.sync(descriptor, path)
        finally:
            os.close(descriptor)

    def _path(self, start: int) -> Path:
        if start in self._files:
            return self._files[start].path
        for folder in self._layout.commit_log_folders or (self.root / "commitlog",):
            path = folder / f"{start:020}"
            if path.exists():
                return path
        raise UnreadableError("no file of the commit log holds this offset", physical_offset=start)

    def compared(self) -> None:
        """The bytes before the end are those of the master: clear what an interrupted write has left."""
        assert self.log is not None
        self._mark_open()
        self._is_unclean = False
        offset, end = self.log.end, self._written
        self._written = -1
        if end <= offset:
            return
        start = offset - offset % self.file_size
        path = self._path(start)
        descriptor = disk.open_file(path)
        try:
            while offset < end:
                disk.write(descriptor, _ZEROS[: end - offset], offset - start, path)
                offset = min(end, offset + len(_ZEROS))
            disk.sync(descriptor, path)
        finally:
            os.close(descriptor)

    def take(self, data: Array, length: int, *, until_ms: int | None = None) -> tuple[int, Reached]:
        """Append what is whole of the `length` bytes in `data`, which follow the end of the log.

        Args:
            data: read-only uint8; PAD zeros follow the bytes.
            length: bytes.
            until_ms: append only records before the first one that was stored at or after this time.

        Returns:
            How many bytes were taken, and what was appended.

        Raises:
            FormatError: what follows is not a record; all before it was appended.
            UnwritableError: a file could not be written.
        """
        assert self.log is not None
        taken = records = newest = 0
        while taken < length:
            end = self.log.end
            start = end - end % self.file_size
            part = min(length - taken, start + self.file_size - end)
            if end < self._rest_until:
                self.log.copy(data[taken : taken + part].data)
                taken += part
                continue
            stop = taken + part + (0 if end + part == start + self.file_size else PAD)
            size, found = self._records(data[taken:stop], part, start, until_ms)
            records, newest = records + found.records, max(newest, found.store_timestamp)
            self.log.copy(data[taken : taken + size].data)
            taken += size
            if found.is_cut:
                return taken, Reached(records, newest, is_cut=True)
            arriving = self._judge()
            if arriving.stop is Stop.DAMAGED:
                raise FormatError(
                    f"the master sends {arriving.reason}: nothing of it was stored",
                    physical_offset=start + arriving.position,
                    hint="rmqtool verify shows it in the master's store",
                )
            if arriving.stop is Stop.BLANK:
                self._rest_until = start + self.file_size
            elif size < part:
                break
        return taken, Reached(records, newest)

    def _judge(self) -> Arriving:
        if self._arriving is None:
            self._arriving = Arriving()
        return self._arriving

    def _records(self, data: Array, length: int, start: int, until_ms: int | None) -> tuple[int, Reached]:
        """How many bytes at the start of `data` are sound records, and what these are."""
        import numpy as np

        assert self.log is not None
        arriving, position = self._judge(), self.log.end - start
        records = newest = 0
        for rows in arriving.rows(data, length, position, start, self.file_size):
            times = rows["store_timestamp"]
            if until_ms is not None:
                late = np.flatnonzero(times >= until_ms)
                if len(late):
                    cut = int(rows["physical_offset"][late[0]]) - start
                    newest = max(newest, int(times[: late[0]].max(initial=0)))
                    return cut - position, Reached(records + int(late[0]), newest, is_cut=True)
            records += len(rows)
            newest = max(newest, int(times.max()))
        return arriving.position - position, Reached(records, newest)

    @property
    def epochs(self) -> list[Entry]:
        """The epochs of its log, as its epoch file has them. Raises UnreadableError, FormatError."""
        path = self.root / EPOCH_FILE
        if not path.exists():
            return []
        try:
            return epoch.decode(config_files.read_file(path))
        except FormatError as error:
            raise FormatError(error.message, path=path) from error

    def save_epochs(self, entries: Sequence[Entry]) -> None:
        """Write the epochs of the master that begin in what is on the device; older ones stay.

        Raises: as `epochs`; UnwritableError.
        """
        found = [entry for entry in entries if entry.start_offset <= self.flushed]
        if not found or found == self._saved_epochs:
            return
        before = self.epochs
        kept = [entry for entry in before if entry.epoch < found[0].epoch]
        if kept + found != before:
            config_files.replace_file(self.root, EPOCH_FILE, epoch.encode(kept + found))
        self._saved_epochs = found

    def flush(self) -> None:
        """Wait until all that was appended is on the device. Raises UnwritableError."""
        if self.log is not None:
            self.log.flush()

    def close(self) -> None:
        """Flush and close; `abort` is deleted, unless bytes may be lost. Raises UnwritableError."""
        try:
            if self.log is not None:
                self.log.close()
            if self._is_open:
                self._state.mark_closed()
        finally:
            self._held.release()


def open_replica(
    path: Path, *, file_size: int | None, profile: str | None = None, reserve: bool = True
) -> Replica:
    """Open the store at `path` to receive; a missing or empty folder becomes a store.

    Args:
        path: the folder.
        file_size: bytes of a file of the master's commit log; None if unknown.
        profile: the version of the master; None if unknown.
        reserve: take the space of a log file when it is made.

    Raises:
        StoreInUseError: its lock is held.
        RefusedError: it is not a store, or one that must not be changed; damage at the end of its log.
        UsageError: a new store, and no file size.
        UnreadableError, UnwritableError: a file or folder.
    """
    path = path.absolute()
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RefusedError("is not a folder", path=path)
    if not path.is_dir() or not any(path.iterdir()):
        return _new(path, file_size, profile_named(profile or NEWEST), reserve=reserve)
    if not is_store(path, Listing()):
        raise RefusedError("is neither empty nor a store", path=path)
    with ExitStack() as stack:
        held = lock.acquire(path / "lock")
        stack.callback(held.release)
        layout = detect(path, queues=False)
        opening.check_layout(layout, path, is_clean=False)
        if layout.commit_log:
            found = layout.commit_log_file_size
            if file_size is not None and file_size != found:
                raise RefusedError(
                    f"the files of this log have {found} bytes, those of the master {file_size}", path=path
                )
            file_size = found
        options = _options(_known(file_size), written_by(layout).profile, reserve=reserve)
        end = find_log_end(layout, is_unclean=layout.abort is not None)
        replica = Replica(path, held, layout, options, end)
        stack.pop_all()
    return replica


def _new(path: Path, file_size: int | None, profile: Profile, *, reserve: bool) -> Replica:
    options = _options(_known(file_size), profile, reserve=reserve)
    permission.check_new(path)
    with ExitStack() as stack, hint_begun(path):
        disk.make_folder(path, own=True)
        for name in opening.FOLDERS:
            disk.make_folder(path / name)
        held = lock.acquire(path / "lock")
        stack.callback(held.release)
        disk.sync_folder(path)
        with suppress(UnwritableError):  # the folder above may belong to someone else
            disk.sync_folder(path.parent)
        replica = Replica(path, held, detect(path), options, None)
        stack.pop_all()
    return replica


def _known(file_size: int | None) -> int:
    if file_size is None:
        raise UsageError("a new store needs the size of the master's commit log files",
                         hint="give --commitlog-file-size")  # fmt: skip
    return file_size


def _options(file_size: int, profile: Profile, *, reserve: bool) -> WriteOptions:
    return WriteOptions(profile=profile, commit_log_file_size=file_size, reserve=reserve)
