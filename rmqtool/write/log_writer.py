"""The commit log's end: records are appended there, files are made ahead, bytes are put on the device.

    flushed <= committed <= end

`end` is after the last record appended. `committed` is after the last byte in a file, which readers
may see: less than `end` only with the write buffer. `flushed` is after the last byte on the device.

The caller serialises `place`, `roll` and `append` (the broker's put lock); `commit` and `flush` may
come from other threads.

Source: CommitLog, MappedFileQueue, AllocateMappedFileService, TransientStorePool; spec 01 2, 3.5, 10.6, 11.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Generic, TypeVar

from rmqtool.errors import RefusedError, UnwritableError
from rmqtool.formats.message import BLANK_SIZE, encode_blank
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.page_cache import LockedMemory, anonymous, pages_of
from rmqtool.write.options import WriteOptions

_BUFFER_SIZE = 16 << 20
_AHEAD = 256 << 20  # bytes left in a file when the next one is made
_ZEROS = bytes(1 << 20)
File = TypeVar("File")
_NEARLY_FULL = 0.85  # DefaultMessageStore: a folder fuller than that gets no new file


@dataclass(slots=True)
class _LogFile:
    """An open file of the log; `memory` holds its pages when it is warm."""

    path: Path
    descriptor: int
    start: int
    stop: int
    memory: LockedMemory | None = None

    def close(self) -> None:
        if self.memory is not None:
            self.memory.close()
        os.close(self.descriptor)


class LogWriter:
    """The end of a commit log.

    Attributes:
        end: physical offset after the last record appended.
        committed: after the last byte that readers may see.
        flushed: after the last byte that is on the device.
        store_timestamp: of the newest record appended, ms; 0 before the first. Set by the caller, after
            the append.
        flushed_timestamp: of the newest record known to be on the device, ms; 0 before the first.
        limit: up to where records may go in the current file; `end` or less where there is none yet.
        folders: where its files are made.
        failed: what made the log unwritable; None while it is writable.
    """

    def __init__(
        self, folders: Sequence[Path], files: Sequence[StoreFile], end: int, options: WriteOptions
    ) -> None:
        self.end = self.committed = self.flushed = self.limit = end
        self.store_timestamp = 0
        self.flushed_timestamp = 0
        self.failed: UnwritableError | None = None
        self.folders = sorted(folders, key=str)
        self._existing = {file.file_from_offset: file.path for file in files}
        self._size = options.commit_log_file_size
        self._ahead_at = min(self._size // 2, _AHEAD)
        self._options = options
        self._current: _LogFile | None = None
        self._unflushed: deque[_LogFile] = deque()  # files with bytes that are not on the device
        self._flush_lock, self._commit_lock = Lock(), Lock()
        self._ahead = _AllocateAhead(self._make_or_open)
        self._buffer = anonymous(min(_BUFFER_SIZE, self._size)) if options.write_buffer else None

    def room(self) -> int:
        """Bytes of records that fit before the end of the current file: its blank's 8 bytes are taken off."""
        self._open_current()
        return self.limit - self.end

    def place(self, size: int) -> int:
        """Where a group of records of `size` bytes will start: here, or in the next file after a blank.

        Raises:
            RefusedError: no file can hold them.
            UnwritableError: the next file cannot be made; nothing has changed then.

        Source: CommitLog.DefaultAppendMessageCallback#doAppend.
        """
        if self._current is None:
            self._open_current()
        if size > self.limit - self.end:
            if size + BLANK_SIZE > self._size:
                raise RefusedError(
                    f"{size} bytes do not fit into a commit log file of {self._size}", column="body"
                )
            self.roll()
        return self.end

    def roll(self) -> None:
        """End the current file with a blank and go on in the next. Raises UnwritableError."""
        file = self._open_current()
        following = self._ahead.file(file.stop)
        self.append(encode_blank(file.stop - self.end), self.end)
        self.commit()
        with self._flush_lock, self._commit_lock:
            self._unflushed.append(following)
            self._current = following
            self._ahead.release()
            self.committed = file.stop
            self.end = file.stop
            self.limit = following.stop - BLANK_SIZE

    def copy(self, data: disk.Data) -> None:
        """Append bytes of another log, which may hold its blanks and what follows them.

        A file is on the device before anything is written into the next: after a loss of power, what is
        missing is at the end of one file. Raises UnwritableError.
        """
        view = memoryview(data)
        while view:
            file = self._current or self._open_current()
            part = view[: file.stop - self.end]
            self.append(part, self.end)
            view = view[len(part) :]
            if self.end == file.stop:
                self.flush()

    def append(self, data: disk.Data, offset: int) -> None:
        """Write whole records at `offset`, which is `end`, and move the end after them.

        After a failed write the bytes at the end are zeroed again, and the end stays.

        Raises:
            UnwritableError: they could not be written, or the log has failed before.
        """
        file = self._current or self._open_current()
        if self.failed is not None:
            raise self.failed
        if self._buffer is not None and len(data) <= len(self._buffer.mapping):
            with self._commit_lock:
                if self.end - self.committed + len(data) > len(self._buffer.mapping):
                    self._commit()
                used = self.end - self.committed
                self._buffer.mapping[used : used + len(data)] = data
                self.end = offset + len(data)
        else:
            if self._buffer is not None:
                self.commit()
            try:
                disk.write(file.descriptor, data, offset - file.start, file.path)
            except BaseException:  # also a signal in the middle: what follows the end must be zero
                self._clear(file, offset, len(data))
                raise
            self.end = self.committed = offset + len(data)
        if file.stop - self.end < self._ahead_at:
            self._ahead.request(file.stop)

    def commit(self) -> None:
        """Put what is in the write buffer into the file. Raises UnwritableError."""
        if self._buffer is not None:
            with self._commit_lock:
                self._commit()

    def _commit(self) -> None:
        """Write the buffer out. The caller holds the commit lock."""
        pending = self.end - self.committed
        if self._buffer is None or self._current is None or pending == 0:
            return
        file = self._current
        with memoryview(self._buffer.mapping)[:pending] as data:
            try:
                disk.write(file.descriptor, data, self.committed - file.start, file.path)
            except UnwritableError as error:
                self.failed = error  # what was acknowledged cannot be kept
                raise
        self.committed += pending

    def flush(self, offset: int | None = None) -> int:
        """Put everything appended so far on the device, or at least what lies before `offset`; where it ends.

        Calls from several threads share the work: who waits finds it done.

        Raises:
            UnwritableError: the device refused. The log takes nothing more then, for what it holds
                is not known.
        """
        wanted = self.end if offset is None else offset
        if offset is not None and self.flushed >= offset:
            return self.flushed
        with self._flush_lock:
            if self.failed is not None:
                raise self.failed  # a second try would succeed although bytes are lost
            if self.flushed < wanted:
                timestamp = self.store_timestamp
                self.commit()
                self._sync(self.committed)
                self.flushed_timestamp = timestamp
        return self.flushed

    def close(self) -> None:
        """Flush, delete the file made ahead, close. Raises UnwritableError, with all closed."""
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without a flush; the file made ahead is deleted.

        A signal may have interrupted `roll`, which takes the file made ahead, or this method.
        """
        made = self._ahead.close()
        if self._current is not None and self._current not in self._unflushed:
            self._unflushed.append(self._current)
        self._current = None
        if made is not None and made not in self._unflushed:
            made.close()
            if made.start not in self._existing:
                disk.remove(made.path)
        while self._unflushed:
            self._unflushed.popleft().close()
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    # files

    def _open_current(self) -> _LogFile:
        if self._current is None:
            start = self.end - self.end % self._size
            self._current = self._ahead.file(start)
            self._ahead.release()
            self._unflushed.append(self._current)
            self.limit = self._current.stop - BLANK_SIZE
        return self._current

    def _make_or_open(self, start: int) -> _LogFile:
        existing = self._existing.get(start)
        if existing is not None:
            return _LogFile(existing, disk.open_file(existing), start, start + self._size)
        path = self._folder_of(start) / f"{start:020d}"
        disk.remove(path)  # what an interrupted attempt has left
        descriptor = disk.create_file(path, self._size, reserve=self._options.reserve)
        file = _LogFile(path, descriptor, start, start + self._size)
        try:
            if self._options.warm:
                self._warm(file)
            disk.sync(descriptor, path)
            disk.sync_folder(path.parent)
        except BaseException:
            file.close()
            disk.remove(path)
            raise
        return file

    def _folder_of(self, start: int) -> Path:
        """The folder for a new file. Source: MultiPathMappedFileQueue#tryCreateMappedFile."""
        folders = self.folders
        if len(folders) > 1:
            folders = [folder for folder in folders if not _is_nearly_full(folder)] or folders
        return folders[start // self._size % len(folders)]

    def _warm(self, file: _LogFile) -> None:
        for offset in range(0, self._size, len(_ZEROS)):
            disk.write(file.descriptor, _ZEROS[: self._size - offset], offset, file.path)
        file.memory = pages_of(file.descriptor, self._size)

    # bytes

    def _clear(self, file: _LogFile, offset: int, size: int) -> None:
        """Zero what a failed write may have left; the log has failed when that fails too."""
        try:
            for position in range(offset, offset + size, len(_ZEROS)):
                zeros = _ZEROS[: offset + size - position]
                disk.write(file.descriptor, zeros, position - file.start, file.path)
        except UnwritableError as error:
            self.failed = error

    def _sync(self, target: int) -> None:
        """Flush every file with bytes below `target`. The caller holds the flush lock."""
        while self.flushed < target:
            file = self._unflushed[0]
            try:
                disk.sync(file.descriptor, file.path)
            except UnwritableError as error:
                self.failed = error
                raise
            self.flushed = min(target, file.stop)
            if self.flushed == file.stop:
                if file is self._current:  # full to its last byte, see `copy`
                    self._current = None
                self._unflushed.popleft().close()


def _is_nearly_full(folder: Path) -> bool:
    usage = shutil.disk_usage(folder)
    return usage.used > _NEARLY_FULL * usage.total


class _AllocateAhead(Generic[File]):
    """Makes the log's next file in a thread, while the current one is filled.

    The thread starts here, and gets its requests through queues, which stay whole whatever a signal
    interrupts: an executor that is interrupted while it starts a thread can keep the process from ending.
    """

    def __init__(self, make: Callable[[int], File]) -> None:
        """See the class; `make` takes the file's physical offset."""
        self._make = make
        self._requests: SimpleQueue[int | None] = SimpleQueue()
        self._answers: SimpleQueue[File | None] = SimpleQueue()
        self._is_requested = False
        self._file: File | None = None
        self._thread = Thread(target=self._run, name="allocate", daemon=True)
        self._thread.start()

    def request(self, start: int) -> None:
        """Begin to make the file at `start`, unless there is one that is not `release`."""
        if not self._is_requested and self._file is None:
            self._is_requested = True
            self._requests.put(start)

    def file(self, start: int) -> File:
        """The file at `start`, the one that was requested; it is returned again until it is `release`.

        If none was, or making it failed, it is made now: there may be space again.
        """
        if self._is_requested and self._file is None:
            self._file = self._answers.get()
        self._is_requested = False
        if self._file is None:
            self._file = self._make(start)
        return self._file

    def release(self) -> None:
        """The file that `file` gave is in use: the next is another one."""
        self._file = None

    def close(self) -> File | None:
        """End the thread; the file that was made and not taken."""
        self._requests.put(None)
        self._thread.join()
        with suppress(Empty):
            self._file = self._answers.get_nowait() or self._file
        file, self._file = self._file, None
        return file

    def _run(self) -> None:
        while (start := self._requests.get()) is not None:
            file = None
            try:
                with suppress(Exception):  # whoever needs the file makes it, and gets the error
                    file = self._make(start)
            finally:
                self._answers.put(file)
