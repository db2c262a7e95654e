"""The dispatch in start() of 4.x, from the end of the queues to the end of the log; start() waits for it.

Source: DefaultMessageStore#start, ReputMessageService#doReput of 4.9.7; spec 02 1.4, 5.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqtool.broker.log_scan import Batch, file_events, unparsed
from rmqtool.broker.rules import StartRules
from rmqtool.errors import UnreadableError
from rmqtool.formats import message as form
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import open_source

if TYPE_CHECKING:
    from rmqtool.storage.source import Bytes, ByteSource


_PASSES_PER_FILE = 4


class LogFile(NamedTuple):
    """A log file after recovery, and its write position."""

    file: StoreFile
    position: int


class _Part:
    """A source that ends at the write position of the broker's file."""

    def __init__(self, source: ByteSource, size: int) -> None:
        self.name = source.name
        self.size = size
        self.unreadable = source.unreadable
        self._source = source

    def window(self, offset: int, length: int) -> Bytes:
        return self._source.window(offset, max(0, min(length, self.size - offset)))

    def read(self, offset: int, length: int) -> bytes:
        return self._source.read(offset, max(0, min(length, self.size - offset)))

    def data_from(self, offset: int) -> int:
        return min(self._source.data_from(offset), self.size)

    def close(self) -> None:
        self._source.close()


class Reput:
    """The dispatch of one start: calls `dispatch` with a batch and how many of its first rows count."""

    def __init__(
        self,
        log: Sequence[LogFile],
        file_size: int,
        rules: StartRules,
        dispatch: Callable[[Batch, int], None],
        *,
        is_master: bool,
    ) -> None:
        self._log = log
        self._file_size = file_size
        self._rules = rules
        self._dispatch = dispatch
        self._is_master = is_master
        self.position = 0

    def run(self, queue_end: int) -> bool:
        """Dispatch from `queue_end` on; returns False if start() would wait for ever, at `position`.

        The next position depends only on the present one. So if a position occurs twice, the loop is
        endless; files whose names overlap cause that. With valid names each file takes one pass. Half
        messages can lead into the middle of a file, so a few more passes are allowed; with more, the files
        are not a log.

        Raises:
            OSError: a file cannot be opened.
            UnreadableError: a file has become shorter than the recovery found it.
        """
        if not self._log:
            return True
        first, last = self._log[0].file.file_from_offset, self._log[-1]
        end = last.file.file_from_offset + last.position
        self.position = max(queue_end, first, 0)
        seen: set[int] = set()
        while self.position < end:
            if self.position in seen or len(seen) > _PASSES_PER_FILE * len(self._log):
                return False
            seen.add(self.position)
            found = self._file_at(self.position)
            if found is None:
                return False
            at = self.position % self._file_size
            if at >= found.position or not self._file(found, at):
                return False
        return True

    def _file_at(self, offset: int) -> LogFile | None:
        """Source: MappedFileQueue#findMappedFileByOffset, which returns the first file for offset 0.

        It tries the file at the place computed from the offset, then all files in order.
        """
        number = offset // self._file_size - self._log[0].file.file_from_offset // self._file_size
        likely = self._log[number : number + 1] if number >= 0 else ()
        for log_file in (*likely, *self._log):
            start = log_file.file.file_from_offset
            if start <= offset < start + self._file_size:
                return log_file
        return self._log[0] if offset == 0 else None

    def _file(self, log_file: LogFile, at: int) -> bool:
        """Dispatch one file from the position `at` on; returns False if the broker never gets past it."""
        self.position = log_file.file.file_from_offset + at
        left = log_file.position - at
        source = open_source(log_file.file.path)
        part = _Part(source, log_file.position)
        try:
            if source.size < log_file.position:
                raise UnreadableError("the file has become shorter", path=log_file.file.path)
            while left > 0:
                half = half_message(part.read, at, part.size)
                if half is not None:
                    self.position += half[0]  # by its size field, but reading goes on after its parts
                    at += half[1]
                    continue
                is_blank, read = self._records(part, log_file.file, at)
                at, left = at + read, left - read
                self.position += read
                if is_blank:
                    self.position += self._file_size - self.position % self._file_size
                    return True
                if left > 0 and half_message(part.read, at, part.size) is None:
                    if not self._is_master:
                        return False
                    self.position += left
                    return True
        finally:
            source.close()
        return True

    def _records(self, part: ByteSource, file: StoreFile, at: int) -> tuple[bool, int]:
        """Dispatch the records from `at` on: (whether a blank follows, bytes of them)."""
        for event in file_events(part, file, crc=False, start=at):
            if not isinstance(event, Batch):
                return event.is_blank, event.at - file.file_from_offset - at
            bad = unparsed(event, self._rules)
            if not self._rules.profile.writes_version_2:
                bad = bad | (event.rows["version"] != 1)
            count = int(np.argmax(bad)) if bad.any() else len(bad)
            if count:
                self._dispatch(event, count)
            if count < len(bad):
                return False, int(event.positions[count]) - file.file_from_offset - at
        return False, part.size - at


def half_message(read: Callable[[int, int], bytes], at: int, size: int) -> tuple[int, int] | None:
    """(size field, bytes of its parts) of a record at `at` if the two differ.

    None for anything else. Source: CommitLog#checkMessageAndReturnSize without the body.
    """
    if size - at < form.MIN_RECORD_SIZE:
        return None
    first = read(at, form.MIN_RECORD_SIZE)
    if len(first) < form.MIN_RECORD_SIZE:  # the file has become shorter
        return None
    total, magic = form.BLANK.unpack(first)
    if magic != form.MAGIC_V1 or total <= 0:
        return None
    flags = first[form.SYS_FLAG_OFFSET : form.SYS_FLAG_OFFSET + 4]
    layout = form.head_layout(int.from_bytes(flags, signed=True))
    head = read(at, layout.size)
    if len(head) < layout.size:
        return None
    position = at + layout.size + max(int(layout.unpack(head)[-1]), 0)
    topic = read(position, 1)
    if position >= size or not topic or topic[0] > 127:
        return None
    position += 1 + topic[0]
    length = read(position, 2)
    if position + 2 > size or len(length) < 2:
        return None
    position += 2 + max(int.from_bytes(length, signed=True), 0)
    return (int(total), position - at) if position <= size and position - at != total else None
