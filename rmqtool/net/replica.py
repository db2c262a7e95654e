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
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.broker.expiry_rules import Disks, LogFile
from rmqtool.errors import FormatError, RefusedError, UnreadableError, UnwritableError, UsageError
from rmqtool.formats import epoch
from rmqtool.formats.epoch import Entry
from rmqtool.formats.versions import NEWEST
from rmqtool.log.arriving import PAD, Arriving, Stop
from rmqtool.log.frames import Frames, walk
from rmqtool.net.log_end import UNSYNCED_BYTES, LogEnd, find_log_end, first_difference
from rmqtool.net.marks import lower_marks
from rmqtool.repair.expire.own_rules import OwnRules, by_own_rules
from rmqtool.storage import config_files, lock, permission
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import StoreFile, StoreLayout, detect
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import opened
from rmqtool.storage.output_guard import real_path
from rmqtool.storage.profile import Profile, profile_named, written_by
from rmqtool.storage.roots import is_store
from rmqtool.storage.source import first_nonzero, open_source
from rmqtool.storage.storage import disk_bytes
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
_OFFSET_MAX = 1 << 62
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
        master: what errors call the master.
        start: physical offset where its log begins; -1 before the first byte.
        log: its end; None before the first byte.
        was_unclean: the run before this one was killed.
        profile: the version whose files it gets.
    """

    def __init__(
        self,
        root: Path,
        held: lock.StoreLock | None,
        layout: StoreLayout,
        options: WriteOptions,
        end: LogEnd | None,
    ) -> None:
        """Of a store whose lock is `held`; without one, of a folder that `make` makes a store."""
        self.root = root
        self.master = "the master"
        self.profile = options.profile
        self.file_size = options.commit_log_file_size
        self.start = -1 if end is None else end.start
        self.log: LogWriter | None = None
        self._held = held
        self._layout = layout
        self._options = options
        self._state = StateFiles(root, options.profile)
        self.was_unclean = self._is_unclean = layout.abort is not None
        self._is_open = False
        self._saved_epochs: list[Entry] = []
        self._written = -1 if end is None else end.written
        self._rest_from = self._rest_until = -1  # what lies between follows the last record of a file
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
    def dispatchable(self) -> int:
        """The physical offset up to which records are on the device: `flushed`, or where a blank begins."""
        flushed = self.flushed
        return self._rest_from if self._rest_from < flushed < self._rest_until else flushed

    @property
    def compared_from(self) -> int:
        """From where the master's bytes are compared before any is appended; -1 before the first byte."""
        if self.log is None:
            return -1
        return max(self.log.end - (UNSYNCED_BYTES if self._is_unclean else _COMPARED_BYTES), self.start)

    # receiving

    def make(self) -> None:
        """Make the store, unless it is there: until now nothing has been written.

        Raises:
            StoreInUseError, RefusedError: another process has begun to make it.
            UnwritableError: a file or folder.
        """
        if self._held is not None:
            return
        if self.root.is_dir() and any(self.root.iterdir()):
            raise RefusedError("is no longer empty", path=self.root)
        with ExitStack() as stack, hint_begun(self.root):
            disk.make_folder(self.root, own=True)
            for name in opening.FOLDERS:
                disk.make_folder(self.root / name)
            held = lock.acquire(self.root / "lock")
            stack.callback(held.release)
            disk.sync_folder(self.root)
            with suppress(UnwritableError):  # the folder above may belong to someone else
                disk.sync_folder(self.root.parent)
            stack.pop_all()
        self._held = held

    def begin(self, offset: int) -> None:
        """Decide that the log of an empty store begins at `offset`, the start of a file."""
        if offset % self.file_size or offset > _OFFSET_MAX:
            raise FormatError(
                f"the log of {self.master} begins at {offset}, which is not the start of a file of"
                f" {self.file_size} bytes"
            )
        self.make()
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
            self._compare_in_file(self.path_of(start), start, offset + place, part)
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
                f"the logs differ: this store was not received from {self.master}, or one of them was"
                " changed",
                path=path, physical_offset=offset + place, hint="receive into a new folder",
            )  # fmt: skip
        descriptor = disk.open_file(path)
        try:
            disk.write(descriptor, data, offset - start, path)
            disk.sync(descriptor, path)
        finally:
            os.close(descriptor)

    def path_of(self, start: int) -> Path:
        """The log file that begins at a physical offset. Raises UnreadableError."""
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
        self._clear(self.path_of(start), offset - start, end - start)

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
            self.log.store_timestamp = newest or self.log.store_timestamp
            taken += size
            if found.is_cut:
                return taken, Reached(records, newest, is_cut=True)
            arriving = self._judge()
            if arriving.stop is Stop.DAMAGED:
                raise FormatError(
                    f"{self.master} sends {arriving.reason}: nothing of it was stored",
                    physical_offset=start + arriving.position,
                    hint="rmqtool verify shows it in the master's store",
                )
            if arriving.stop is Stop.BLANK:
                self._rest_from, self._rest_until = self.log.end, start + self.file_size
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

    def expire(self, rules: Iterable[OwnRules], until: int, now_ms: int) -> int:
        """Delete the log files that `expired` finds; their bytes. Raises UnreadableError, UnwritableError."""
        gone = self.expired(rules, until, now_ms)
        for file in gone:
            path = Path(file.path)
            disk.remove(path)
            disk.sync_folder(path.parent)
            self._files.pop(file.start, None)
            self.start = file.end
        return sum(file.size for file in gone)

    def expired(self, rules: Iterable[OwnRules], until: int, now_ms: int) -> list[LogFile]:
        """The oldest log files that one of the rules lets go and that end by `until`.

        As in a broker, files go in their order, and the last one and the one with the newest message stay.
        Raises UnreadableError.
        """
        files = [_log_file(file) for _, file in sorted(self._held_files().items())]
        disks = Disks({}, (), 0)
        decided = [by_own_rules(files, (), disks, rule, now_ms, self.flushed) for rule in rules]
        going = max((sum(each.expires for each in one) for one in decided), default=0)
        return [file for file in files[:going] if file.end <= until]

    def _held_files(self) -> dict[int, StoreFile]:
        """The files up to the end, by their starts."""
        found: dict[int, StoreFile] = {}
        for start in range(self.start, self.end, self.file_size):
            found[start] = self._files.get(start) or StoreFile(self.path_of(start), start, self.file_size)
        return found

    def cut(self, offset: int) -> None:
        """Cut what follows `offset`, the end of a record. A kill leaves a log that ends with a record.

        Files after the one that holds `offset` are deleted, the newest first; what follows in that file is
        cleared from its end on, so that at any moment at most one record is not whole.

        Raises:
            RefusedError: `offset` is not the end of a record.
            UnreadableError, UnwritableError: a file.
        """
        assert self.log is not None and self._held is not None
        start = offset - offset % self.file_size
        if not (self.start <= offset <= self.end and self._is_boundary(start, offset)):
            raise RefusedError("no record ends here: the log cannot be cut", path=self.root,
                               physical_offset=offset)  # fmt: skip
        self._mark_open()
        lower_marks(self.root, offset, self.start, self.file_size)
        self.log.close()
        for file in sorted(self._listed(), key=lambda each: each.file_from_offset, reverse=True):
            if file.file_from_offset > start or file.file_from_offset == start == offset > self.start:
                disk.remove(file.path)
                disk.sync_folder(file.path.parent)
        if offset > start or offset == self.start:
            self._clear(self.path_of(start), offset - start, self.file_size)
        layout = detect(self.root, queues=False)
        self._layout, self._written, self._rest_from, self._rest_until = layout, -1, -1, -1
        self._files = {file.file_from_offset: file for file in layout.commit_log}
        self._begin(offset)

    def _listed(self) -> tuple[StoreFile, ...]:
        return detect(self.root, queues=False).commit_log

    def _is_boundary(self, start: int, offset: int) -> bool:
        """Whether a record, a blank, or the file begins or ends at `offset`."""
        if offset == start:
            return True
        with closing(open_source(self.path_of(start))) as source:
            for event in walk(source, file_from_offset=start):
                if event.end >= offset:
                    return event.end == offset or (
                        isinstance(event, Frames) and offset in event.rows["physical_offset"]
                    )
        return False

    def _clear(self, path: Path, begin: int, end: int) -> None:
        """Write zeros over the bytes of a file, the last ones first. Raises UnwritableError."""
        descriptor = disk.open_file(path)
        try:
            while end > begin:
                piece = max(end - len(_ZEROS), begin)
                disk.write(descriptor, _ZEROS[: end - piece], piece, path)
                disk.sync(descriptor, path)
                end = piece
        finally:
            os.close(descriptor)

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

    def save_checkpoint(self, logics: int, index: int) -> None:
        """Note store times for a broker's start, ms, 0 for none. Raises UnwritableError.

        Args:
            logics: of the newest record whose units are on the device.
            index: the end of the newest full index file on the device.
        """
        physic = 0 if self.log is None else self.log.flushed_timestamp
        self._state.save_checkpoint(physic, min(logics, physic or logics), index)

    def flush(self) -> None:
        """Wait until all that was appended is on the device. Raises UnwritableError."""
        if self.log is not None:
            self.log.flush()

    def close(self, *, is_sound: bool = True) -> None:
        """Flush and close; `abort` is deleted if it `is_sound` and no bytes may be lost.

        Raises UnwritableError.
        """
        try:
            if self.log is not None:
                self.log.close()
            if self._is_open and is_sound:
                self._state.mark_closed()
        finally:
            if self._held is not None:
                self._held.release()


def open_replica(
    path: Path, *, file_size: int | None, profile: str | None = None, reserve: bool = True
) -> Replica:
    """Open the store at `path` to receive; a missing or empty folder becomes a store once it is `make`d.

    Args:
        path: the folder.
        file_size: bytes of a file of the master's commit log; None if unknown.
        profile: the version of the master; None if unknown: that of the store.
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
    path = real_path(path)
    if not path.is_dir() or not any(path.iterdir()):
        return _new(path, file_size, profile_named(profile or NEWEST), reserve=reserve)
    if not is_store(path, Listing()):
        raise RefusedError("is neither empty nor a store", path=path)
    with ExitStack() as stack:
        held = lock.acquire(path / "lock")
        stack.callback(held.release)
        layout = _without_begun_file(detect(path, queues=False), file_size)
        opening.check_layout(layout, path, is_clean=False)
        if layout.commit_log:
            found = layout.commit_log_file_size
            if file_size is not None and file_size != found:
                raise RefusedError(
                    f"the files of this log have {found} bytes, those of the master {file_size}", path=path
                )
            file_size = found
        found_profile = written_by(layout).profile if profile is None else profile_named(profile)
        options = _options(_known(file_size), found_profile, reserve=reserve)
        end = find_log_end(layout, is_unclean=layout.abort is not None)
        replica = Replica(path, held, layout, options, end)
        stack.pop_all()
    return replica


def _new(path: Path, file_size: int | None, profile: Profile, *, reserve: bool) -> Replica:
    options = _options(_known(file_size), profile, reserve=reserve)
    permission.check_new(path)
    return Replica(path, None, StoreLayout(path, "store"), options, None)


def _without_begun_file(layout: StoreLayout, file_size: int | None) -> StoreLayout:
    """A layout without a newest log file that an interrupted run has made, but not to its full size.

    The writer makes it again.
    """
    files = layout.commit_log
    if layout.abort is None or not files:
        return layout
    size = files[0].size if len(files) > 1 else file_size
    if size is None or files[-1].size >= size:
        return layout
    with closing(open_source(files[-1].path)) as source:
        if first_nonzero(source, 0, files[-1].size) < files[-1].size:
            return layout
    return replace(layout, commit_log=files[:-1], commit_log_file_size=size)


def _log_file(file: StoreFile) -> LogFile:
    try:
        status = file.path.stat()
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
    changed = status.st_mtime_ns // 1_000_000
    return LogFile(str(file.path), file.file_from_offset, file.size, disk_bytes(status), changed)


def _known(file_size: int | None) -> int:
    if file_size is None:
        raise UsageError("a new store needs the size of the master's commit log files",
                         hint="give --commitlog-file-size")  # fmt: skip
    return file_size


def _options(file_size: int, profile: Profile, *, reserve: bool) -> WriteOptions:
    return WriteOptions(profile=profile, commit_log_file_size=file_size, reserve=reserve)
