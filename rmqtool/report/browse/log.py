"""The commit log by its files, and the records of one file in order: it needs no queues.

A file is walked from its start as far as its rows are asked for, record by record.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from rmqtool.errors import UnreadableError
from rmqtool.log.events import Blank, CorruptRange, LogEvent, StoredMessage
from rmqtool.read.store import Store
from rmqtool.report.browse.messages import MessageRow, record_row
from rmqtool.storage.layout import StoreFile


class FileRow(NamedTuple):
    """One file of the log; `first_ms` is the store time of the record at its start, None without one."""

    file: StoreFile
    path: str
    first_ms: int | None = None
    problems: tuple[str, ...] = ()


def file_row(store: Store, file: StoreFile) -> FileRow:
    """The row of a file; reads the head of its first record."""
    row = FileRow(file, store.layout.relative(file.path))
    try:
        head = store.commit_log.head(file.file_from_offset)
    except UnreadableError as error:
        return row if error.is_gone else row._replace(problems=("CL12",))
    return row._replace(first_ms=None if head is None else head.store_timestamp)


class FileRecords:
    """The records, blanks and damaged ranges of one file, as far as they have been asked for."""

    def __init__(self, store: Store, file: StoreFile) -> None:
        self._events = store.commit_log.walk(file.file_from_offset, file.end)

    def more(self, count: int) -> list[MessageRow]:
        """The next rows; fewer than `count` at the end of the file."""
        return list(map(_row, islice(self._events, count)))


def _row(event: LogEvent) -> MessageRow:
    if isinstance(event, StoredMessage):
        return record_row(event)
    row = MessageRow(0, None, event.physical_offset)
    if isinstance(event, Blank):
        problems = () if event.ends_file else ("CL10",)
        return row._replace(size=event.size, note="the end mark of the file", problems=problems)
    if isinstance(event, CorruptRange):
        return row._replace(size=event.length, note="no sound record", problems=(event.code,))
    return row._replace(size=event.length, note="zeros to the end of the file")
