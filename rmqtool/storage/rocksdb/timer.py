"""Timer messages in RocksDB: those of the column family `timer`, and how far the broker has come.

Source: TimerMessageRocksDBStore; spec 06 section 5.2.
"""

from __future__ import annotations

from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import rocksdb_timer as format_
from rmqtool.formats.rocksdb_timer import TimerEntry
from rmqtool.storage.rocksdb.database import Database


class Timers(NamedTuple):
    """All messages by due time; those due up to `delivered_ms` were delivered.

    `next_offset` is the queue offset of the timer topic that is read next.
    """

    entries: list[TimerEntry]
    delivered_ms: int
    next_offset: int


def read_timers(database: Database) -> Timers | None:
    """The timer messages of a database; None if its broker keeps none there.

    Raises:
        FormatError: an entry or a block is damaged.
        UnreadableError: a file cannot be read.
    """
    numbers = {format_.TIMELINE: 0, format_.NEXT_OFFSET: 0}
    entries, is_used = [], False
    try:
        for key, value in database.scan(format_.FAMILY):
            is_used = True
            if key in numbers:
                numbers[key] = format_.decode_number(value)
            else:
                entries.append(format_.decode(key, value))
    except FormatError as error:
        error.path = error.path or database.folder
        raise
    return Timers(entries, *numbers.values()) if is_used else None
