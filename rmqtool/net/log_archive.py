"""Ships full files of a log that is being received to an archive, before they may be deleted.

    URL/commitlog/00000000000000000000.zst     one file of the log, compressed

rmqtool reads the archive as a store. A copy counts once it was read again and is equal to its file. A thread
of its own ships the files in their order; what fails is tried again, and deletes nothing.

An archive may be emptied, or lie on a disk that was unmounted. So copies that `archiveCheckpoint`
counts are looked for at the start, and all copies once more before their files are deleted; a copy that is
gone is made again. Looking takes no full comparison: a file of a plausible size that begins as its log file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pyarrow as pa

from rmqtool.errors import RefusedError, RmqtoolError, UnreadableError, UnwritableError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.net.marks import ARCHIVED, archive_name
from rmqtool.report.export.outputs import Draft, OutputTarget
from rmqtool.storage.open_files import read_head, reading
from rmqtool.storage.output_guard import keep_out_of

if TYPE_CHECKING:
    from rmqtool.net.replica import Replica

_PIECE = 4 << 20
_HEAD = 4 << 10
_LOOK_SECONDS = 0.2
_RETRY_SECONDS = 10.0


class _StoppedError(Exception):
    """The run ends in the middle of a file."""


@dataclass(slots=True)
class _Question:
    """Are the copies of all log files that end by `until` there? Up to `found`; -1: not known yet."""

    until: int
    found: int = -1


class LogArchive:
    """The archive of one replica, with its thread between `start` and `stop`.

    Attributes:
        failure: what the last try failed with; None after one that did not fail.

    Raises:
        UsageError: a URL that names no place.
        MissingCodecError: a package for it is not installed.
        RefusedError: it is inside the store.
        UnwritableError: it cannot be reached, or is gone although it had files of this log.
        UnreadableError, FormatError: the mark of the store.
    """

    def __init__(self, url: str, replica: Replica, until: Callable[[], int]) -> None:
        """Of the place `url`; `until` gives the physical offset up to which files may be shipped."""
        self.failure: RmqtoolError | None = None
        self._name = archive_name(url)
        self._target = OutputTarget.of_folder(url)
        if self._target.local is not None:
            keep_out_of(replica.root, self._target.local, "an archive")
        self._replica = replica
        self._until = until
        self._archived = -1
        self._compared = -1  # up to there copies were compared by this run or one before it
        self._question: _Question | None = None
        mark = ARCHIVED.read(replica.root)
        self._has_files = mark is not None and mark.text == self._name
        self._check_place()
        self._bug: Exception | None = None
        self._stop = Event()
        self._thread: Thread | None = None

    @property
    def archived(self) -> int:
        """The physical offset up to which the log is in the archive; -1 before `start`."""
        return self._archived

    @property
    def is_complete(self) -> bool:
        """Whether all full files are in the archive."""
        return self._thread is None or self._archived + self._replica.file_size > self._until()

    def start(self) -> None:
        """Begin, unless it has begun. Raises UnreadableError, FormatError."""
        if self._thread is not None:
            return
        replica = self._replica
        mark = ARCHIVED.read(replica.root)
        is_known = mark is not None and mark.text == self._name and mark.offset <= replica.end
        self._compared = mark.offset if mark is not None and is_known else -1
        self._archived = replica.start
        self._stop.clear()
        self._thread = Thread(target=self._run, name="archive", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; a file that is being shipped is left to the next run."""
        self._question = None
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def is_looking(self) -> bool:
        """Whether what `look_for` was called with has not been answered."""
        return self._thread is not None and self._question is not None and self._question.found < 0

    @property
    def has_answer(self) -> bool:
        """Whether `take_answer` has an answer."""
        return self._question is not None and self._question.found >= 0

    def look_for(self, until: int) -> None:
        """Have the thread look for the copies of the log files that end by a physical offset."""
        self._question = _Question(until)

    def take_answer(self) -> int:
        """The physical offset up to which the copies were found just now; -1 if unknown. It holds once."""
        question = self._question
        if question is None or question.found < 0:
            return -1
        self._question = None
        return question.found

    def forget(self) -> None:
        """Give up the question: its answer would be too old when it is used."""
        self._question = None

    def raise_bug(self) -> None:
        """Raise what ended the thread, if it is not one of rmqtool's errors."""
        if self._bug is not None:
            raise self._bug

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            wait = _LOOK_SECONDS
            try:
                self._look()
                while not self._stop.is_set() and self._archived + self._replica.file_size <= self._until():
                    self._ship(self._archived)
                    self._archived += self._replica.file_size
                    self._look()
                self.failure = None
            except _StoppedError:
                return
            except RmqtoolError as error:
                self.failure, wait = error, _RETRY_SECONDS
            except Exception as error:  # raised again in the thread that receives
                self._bug = error
                return

    def _look(self) -> None:
        """Find the answer to `look_for`."""
        question, start = self._question, self._replica.start
        if question is None or question.found >= 0:
            return
        while start < question.until:
            if self._stop.is_set() or question is not self._question:
                return
            self._ship(start)
            start += self._replica.file_size
        question.found = start

    def _check_place(self) -> None:
        """Raise UnwritableError if the archive is gone: it must not begin again on the disk below it."""
        if self._has_files and self._target.is_missing():
            raise UnwritableError(
                "the archive is not there, but it has files of this log", path=self._target.shown,
                hint=f"mount it; or, if it is gone for ever, delete {self._replica.root / ARCHIVED.name}",
            )  # fmt: skip

    def _has_copy(self, path: Path, name: str) -> bool:
        """Whether there is what can be the copy of a file that was compared with it before."""
        size, whole = self._target.size_of(name), self._replica.file_size
        if size is None or not whole >> 15 <= size <= whole + (whole >> 4) + _HEAD:
            return False
        head = read_head(path, _HEAD) or b""
        with self._target.reading(name) as found:
            return bool(pa.CompressedInputStream(found, "zstd").read(len(head)) == head)

    def _ship(self, start: int) -> None:
        """Put the log file that begins at a physical offset into the archive, unless it is there."""
        self._check_place()
        path = self._replica.path_of(start)
        name = f"commitlog/{path.name}.zst"
        end = start + self._replica.file_size
        if end <= self._compared and self._has_copy(path, name):
            return
        if not self._target.exists(name):
            draft = self._target.begin(name)
            try:
                self._compress(path, draft)
                draft.commit()
            except BaseException:
                draft.abort()
                raise
        self._compare(path, name)
        if end > self._compared:
            ARCHIVED.save(self._replica.root, end, self._name)
            self._has_files, self._compared = True, end

    def _compress(self, path: Path, draft: Draft) -> None:
        """Write a frame of zstd for each piece of a file."""
        for piece in self._pieces(path):
            frame = pa.compress(piece, codec="zstd", asbytes=True)
            with draft.explained():
                draft.stream.write(frame)

    def _compare(self, path: Path, name: str) -> None:
        """Raise RefusedError unless the copy is that of the file."""
        with self._target.reading(name) as found:
            stream = pa.CompressedInputStream(found, "zstd")
            is_equal = all(stream.read(len(piece)) == piece for piece in self._pieces(path))
            is_equal = is_equal and not stream.read(1)
        if not is_equal:
            raise RefusedError(
                "the archive has another file of this name", path=self._target.name_of(name),
                hint="--archive must name a place of its own for each log",
            )  # fmt: skip

    def _pieces(self, path: Path) -> Iterator[bytes]:
        size = self._replica.file_size
        try:
            with reading(path) as file:
                for offset in range(0, size, _PIECE):
                    if self._stop.is_set():
                        raise _StoppedError
                    piece = file.read(offset, min(_PIECE, size - offset))
                    if len(piece) < min(_PIECE, size - offset):
                        raise UnreadableError("the file has become shorter", path=path)
                    yield piece
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
