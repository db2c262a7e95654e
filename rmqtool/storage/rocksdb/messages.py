"""What the database rocksdbstore holds (5.4): the index of a broker that keeps it there, and timer messages.

The index (indexRocksDBEnable) gives the offsets of messages by key. A key of the database begins with the
hour of the store time, so a name is searched for hour by hour. Records without a unique key are not in it.

Source: IndexRocksDBRecord, MessageRocksDBStorage#queryOffsetForIndex, TimerMessageRocksDBStore; spec 06
section 5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import NamedTuple

from rmqtool.errors import FormatError, InputError
from rmqtool.formats import rocksdb_timer
from rmqtool.storage.rocksdb.database import Database

FAMILY = "default"
LAST_OFFSET, LAST_STORE_TIME = b"lastOffsetPy", b"lastStoreTimeStamp"
_LETTERS = {"key": "KU", "uniq_key": "U", "tag": "T"}
_NUMBER_BYTES = 8
HOURS_STOP = b"\x01"  # after all keys that begin with an hour: before 2250
_SEARCHES_MAX = 4096  # of one look-up: more of them take longer than a scan of the log
_FIRST_MAX = 1 << 16  # entries of the first hour among which the lowest offset is searched for


class Timers(NamedTuple):
    """All timer messages by due time; those due up to `delivered_ms` were delivered.

    `next_offset` is the queue offset of the timer topic that is read next.
    """

    entries: list[rocksdb_timer.TimerEntry]
    delivered_ms: int
    next_offset: int

    @property
    def pending(self) -> int:
        """How many have not been delivered."""
        return sum(each.due_ms > self.delivered_ms for each in self.entries)


class Found(NamedTuple):
    """The offsets of the entries of some names; the first and the last offset that the index holds."""

    offsets: list[int]
    first: int
    last: int


def find(database: Database, topics: Collection[str], names: Collection[str], kind: str) -> Found | None:
    """Look up names; None if the index is empty, cannot be read, or takes longer than a scan of the log.

    Args:
        database: that of rocksdbstore.
        topics: the topics to search in.
        names: keys, unique keys or tags.
        kind: `key` finds keys and unique keys, `uniq_key` and `tag` only these.
    """
    try:
        hours = list(islice(_hours(database), _SEARCHES_MAX))
        last = database.get(FAMILY, LAST_OFFSET)
        first = _first_offset(database, hours[0]) if hours else None
        letters = _LETTERS[kind]
        searches = len(hours) * len(topics) * len(names) * len(letters)
        if first is None or last is None or len(last) != _NUMBER_BYTES or searches > _SEARCHES_MAX:
            return None
        texts = [f"@{topic}@{letter}@{name}@" for topic in topics for letter in letters for name in names]
        prefixes = [text.encode("utf-8", "surrogatepass") for text in texts]
        offsets = {
            offset for hour in hours for prefix in prefixes for offset in _offsets(database, hour + prefix)
        }
    except InputError:
        return None
    return Found(sorted(offsets), first, int.from_bytes(last, "big"))


def _hours(database: Database) -> Iterator[bytes]:
    """The hours that have entries, as keys begin with them."""
    start = b""
    while (entry := database.first(FAMILY, start, HOURS_STOP)) is not None:
        hour = entry[0][:_NUMBER_BYTES]
        yield hour
        start = (int.from_bytes(hour, "big") + 1).to_bytes(_NUMBER_BYTES, "big")


def _first_offset(database: Database, hour: bytes) -> int | None:
    """The lowest offset of the first hour; None if it has too many entries."""
    stop = (int.from_bytes(hour, "big") + 1).to_bytes(_NUMBER_BYTES, "big")
    keys = [key for key, _ in islice(database.scan(FAMILY, hour, stop), _FIRST_MAX)]
    return min(map(_offset, keys)) if len(keys) < _FIRST_MAX else None


def _offsets(database: Database, prefix: bytes) -> Iterator[int]:
    stop = prefix[:-1] + bytes((prefix[-1] + 1,))
    for key, _ in database.scan(FAMILY, prefix, stop):
        yield _offset(key)


def _offset(key: bytes) -> int:
    return int.from_bytes(key[-_NUMBER_BYTES:], "big")


def read_timers(database: Database) -> Timers | None:
    """The timer messages; None if the broker keeps none there.

    Raises:
        FormatError: an entry or a block is damaged.
        UnreadableError: a file cannot be read.
    """
    numbers = {rocksdb_timer.TIMELINE: 0, rocksdb_timer.NEXT_OFFSET: 0}
    entries, is_used = [], False
    try:
        for key, value in database.scan(rocksdb_timer.FAMILY):
            is_used = True
            if key in numbers:
                numbers[key] = rocksdb_timer.decode_number(value)
            else:
                entries.append(rocksdb_timer.decode(key, value))
    except FormatError as error:
        error.path = error.path or database.folder
        raise
    return Timers(entries, *numbers.values()) if is_used else None
