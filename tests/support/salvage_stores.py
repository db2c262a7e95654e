"""Small stores for the tests of salvage: log and queues, no index, and what is done to them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rmqtool.formats.message import Message
from rmqtool.read.store import Store
from rmqtool.repair.salvage import LostRecord
from tests.support.build_store import LOG_FILE_SIZE, file_name, patch, write_log
from tests.support.whole_store import write_units


def made(root: Path, records: Iterable[Message]) -> list[Message]:
    """A store with log and queues; returns the records as stored."""
    stored = write_log(root / "commitlog", records)
    write_units(root, stored)
    return stored


def log_path(root: Path, offset: int) -> Path:
    """The log file that holds a physical offset."""
    return root / "commitlog" / file_name(offset - offset % LOG_FILE_SIZE)


def zero(root: Path, record: Message, *, length: int | None = None) -> None:
    """Make a stored record zero, or its first bytes."""
    size = record.total_size if length is None else length
    patch(log_path(root, record.physical_offset), record.physical_offset % LOG_FILE_SIZE, bytes(size))


def found(root: Path, offset: int) -> Message:
    """The record at an offset of the log."""
    with Store.open(root) as store:
        stored = store.find(offset)
    assert stored is not None
    return stored.message


def names(lost: Iterable[LostRecord]) -> list[tuple[str | None, int | None, int | None]]:
    """Topic, queue and queue offset of lost records."""
    return [(one.topic, one.queue_id, one.queue_offset) for one in lost]


def identity(records: Iterable[Message]) -> list[tuple[str, int, int]]:
    """The same of records."""
    return [(one.topic, one.queue_id, one.queue_offset) for one in records]
