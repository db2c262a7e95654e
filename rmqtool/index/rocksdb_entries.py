"""The entries of an index in RocksDB as fingerprints: of the records of a window, and of a database.

A fingerprint is a number of 64 bits for key and value of an entry, so that entries of records and of a
database can be compared in any order, without their texts. A key holds the hour of the
store time, the topic, a name and the physical offset, the value the store time.

Source: IndexRocksDBRecord, IndexRocksDBStore#buildIndex (5.4.0); spec 06 section 5.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.errors import FormatError
from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats import rocksdb as format_
from rmqtool.formats.java import java_utf8_decode
from rmqtool.index.rocksdb_entries_kernel import (
    FULL,
    Letters,
    entries_of_block,
    entries_of_records,
    entry_of_text,
)
from rmqtool.log.dispatch import marks, name_table
from rmqtool.log.frames import Frames
from rmqtool.log.rocksdb_block_kernel import UNKNOWN_KIND
from rmqtool.storage.buffers import Array
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.rocksdb.messages import FAMILY, HOURS_STOP
from rmqtool.storage.rocksdb.table import Table
from rmqtool.times import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rmqtool.storage.rocksdb.table import Entry

ENTRY = np.dtype(
    [
        ("physical_offset", "i8"),
        ("fingerprint", "u8"),
        ("key", "u8"),
        ("sequence", "i8"),
        ("is_put", "u1"),
    ],
    align=True,
)
"""One entry: the record that it leads to, key and value as a number, and the key alone; -1 for a key that no
broker writes. Entries of records have no sequence number."""

_PLACE = np.dtype([("row", "i8"), ("letter", "u1"), ("start", "i8"), ("stop", "i8")], align=True)
_NO_PLACES = np.zeros(0, _PLACE)
_BLOCKS = 64  # of all tables, read at once
_PER_RECORD = 4
_MARKS = {ord(letter): f"@{letter}@".encode() for letter in "KTU"}
_DELETES = (format_.DELETE, format_.SINGLE_DELETE)
_SHORTEST_ENTRY = 3  # bytes: three lengths


@cache
def _letters() -> Letters:
    return Letters(split=ord("@"), key=ord("K"), tag=ord("T"), uniq=ord("U"), hour_ms=HOUR_MS)


# records


def of_records(frames: Frames) -> Array:
    """The entries that a broker makes for the records of a window; `frames.data` must still be valid.

    In the order of the log. A record that was written only in part has no entries.
    """
    frames = _whole(frames)
    texts = _topics(frames)
    entries, left, _ = _entries(frames, texts, places=False)
    made = [entries, *(_plain(frames, row, texts) for row in left)]
    # a name that KEYS holds twice has one entry
    found = _first_of_each(np.concatenate(made))
    return found[np.argsort(found["physical_offset"], kind="stable")]


def rows_of_records(frames: Frames) -> Iterator[tuple[bytes, bytes]]:
    """The same as keys and values of the database; one of a name that KEYS holds twice comes twice."""
    frames = _whole(frames)
    texts, rows, data = _topics(frames), frames.rows, frames.data.data
    _, left, places = _entries(frames, texts, places=True)
    topic_ids, offsets, times = (
        rows[name].tolist() for name in ("topic_id", "physical_offset", "store_timestamp")
    )
    waiting: list[tuple[bytes, memoryview]] = []
    for row, letter, start, stop in zip(*(places[name].tolist() for name in _PLACE.names or ()), strict=True):
        waiting.append((_MARKS[letter], data[start:stop]))
        if letter != ord("U"):
            continue
        head = _number(times[row] - times[row] % HOUR_MS) + b"@" + texts[topic_ids[row]]
        tail, value = b"@" + _number(offsets[row]), _number(times[row])
        uniq = waiting.pop()[1]
        for mark, name in waiting:
            yield b"".join((head, mark, name, b"@", uniq, tail)), value
        yield b"".join((head, _MARKS[letter], uniq, tail)), value
        waiting.clear()
    for row in left:
        head, tail = _number(times[row] - times[row] % HOUR_MS), _number(offsets[row])
        for text in _plain_texts(frames, row, texts):
            yield head + text + tail, _number(times[row])


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _whole(frames: Frames) -> Frames:
    """Without records that were written only in part."""
    return frames.at(np.flatnonzero(~frames.ends_in_zeros()))


def _topics(frames: Frames) -> list[bytes]:
    """The topics as a broker encodes them."""
    return [java_utf8_decode(topic).encode("utf-8", "replace") for topic in frames.topics]


def _entries(frames: Frames, texts: Sequence[bytes], *, places: bool) -> tuple[Array, list[int], Array]:
    """(entries, rows whose properties are not UTF-8, which have none, places of the names if asked for)."""
    rows = frames.rows
    names, name_ends = name_table()
    topics = np.frombuffer(b"".join(texts) + b"\0", np.uint8)
    topic_ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    entries = np.zeros(_PER_RECORD * len(rows) + 64, ENTRY)
    where = np.zeros(len(entries), _PLACE) if places else _NO_PLACES
    left = np.zeros(len(rows), np.bool_)
    found = np.empty((len(name_ends), 2), np.int64)
    result = np.zeros(1, np.int64)
    starts, done = frames.starts(), 0
    while done < len(rows):
        done = entries_of_records(
            frames.data, starts, rows, done, topics, topic_ends, names, name_ends, found,
            form.TRANSACTION_ROLLBACK, marks(), _letters(), entries, left, result, where,
        )  # fmt: skip
        if done < len(rows):
            more = max(len(entries), 2 + int(rows[done]["properties_length"]))
            entries = np.concatenate([entries[: result[0]], np.zeros(more, ENTRY)])
            where = np.concatenate([where[: result[0]], np.zeros(more, _PLACE)]) if places else where
    return entries[: result[0]], np.flatnonzero(left).tolist(), where[: result[0]]


def _first_of_each(entries: Array) -> Array:
    _, places = np.unique(entries["fingerprint"], return_index=True)
    return entries if len(places) == len(entries) else entries[np.sort(places)]


def _plain_texts(frames: Frames, row: int, topics: Sequence[bytes]) -> list[bytes]:
    """The keys, without hour and offset, of a record whose properties are not UTF-8.

    They are decoded and encoded again, as Java does.
    """
    record = frames.rows[row]
    stop = int(frames.starts()[row]) + int(record["size"])
    found = properties.decode(frames.data[stop - int(record["properties_length"]) : stop].tobytes())
    uniq, tags = found.get(properties.UNIQ_KEY), found.get(properties.TAGS)
    texts = []
    if uniq:
        texts = [f"K@{key}@{uniq}" for key in properties.keys_of(found)]
        texts += [f"T@{tags}@{uniq}"] if tags else []
        texts.append(f"U@{uniq}")
    topic = topics[int(record["topic_id"])]
    return [b"@" + topic + b"@" + text.encode("utf-8", "replace") + b"@" for text in texts]


def _plain(frames: Frames, row: int, topics: Sequence[bytes]) -> Array:
    """The entries of a record whose properties are not UTF-8."""
    record, texts = frames.rows[row], _plain_texts(frames, row, topics)
    entries = np.zeros(len(texts), ENTRY)
    for number, whole in enumerate(texts):
        entry_of_text(
            np.frombuffer(whole, np.uint8), int(record["physical_offset"]), int(record["store_timestamp"]),
            _letters(), entries[number:],
        )  # fmt: skip
    return entries


# databases


def of_database(database: Database) -> Iterator[Array]:
    """The entries of a database, in the order of their keys, some at a time.

    Raises:
        FormatError: a block is damaged.
        UnreadableError: a file cannot be read.
    """
    cover = database.cover(FAMILY)
    bounds = [bound for bound in _bounds(database, cover.bounds) if b"" < bound < HOURS_STOP]
    for low, high in zip([b"", *bounds], [*bounds, HOURS_STOP], strict=True):
        found = [part for part in _parts(database, low, high) if len(part)]
        entries = np.concatenate([np.zeros(0, ENTRY), *found])
        yield _visible(entries, cover.highest(low), merge=len(found) > 1)


def _bounds(database: Database, deletes: Sequence[bytes]) -> list[bytes]:
    """Keys between which there are few blocks, and that are all deleted by the same ranges."""
    lasts = sorted(key for table in database.tables(FAMILY) for key in table.last_keys)
    return sorted({key + b"\0" for key in lasts[_BLOCKS - 1 :: _BLOCKS]}.union(deletes))


def _parts(database: Database, low: bytes, high: bytes) -> Iterator[Array]:
    """The entries with keys in [low, high), of each block and of the write-ahead logs."""
    for table in database.tables(FAMILY, low, high):
        for number in table.blocks_of(low, high):
            yield _of_block(table, number, low, high)
    changes = database.changes(FAMILY, low, high)
    if changes:
        block = b"".join(map(_encoded, changes))
        found = _decoded(block, len(block), low, high)
        if isinstance(found, str):
            raise FormatError(found, path=database.folder)
        yield found


def _of_block(table: Table, number: int, low: bytes, high: bytes) -> Array:
    block = table.block(number)
    try:
        end = format_.entries_end(block)
    except FormatError as error:
        error.path, error.physical_offset = table.path, table.handle(number).offset
        raise
    found = _decoded(block, end, low, high)
    if isinstance(found, str):
        raise FormatError(found, path=table.path, physical_offset=table.handle(number).offset)
    return found


def _decoded(block: bytes, end: int, low: bytes, high: bytes) -> Array | str:
    """The entries of a block with keys in [low, high), or why it cannot be read."""
    entries = np.zeros(64, ENTRY)
    key = np.empty(max(len(block), 1), np.uint8)
    data = np.frombuffer(block or b"\0", np.uint8)
    bounds = (np.frombuffer(low + b"\0", np.uint8)[: len(low)], np.frombuffer(high, np.uint8))
    while True:
        count = entries_of_block(data, end, *bounds, key, format_.PUT, np.array(_DELETES, np.int64), entries)
        if count >= 0:
            return entries[:count]
        if count != FULL:
            break
        entries = np.zeros(min(len(entries) * 8, end // _SHORTEST_ENTRY + 1), ENTRY)
    return (
        "an entry is of a kind that is not read"
        if count == UNKNOWN_KIND
        else "an entry is longer than the block, or its key"
    )


def _encoded(change: Entry) -> bytes:
    """A change of a write-ahead log as an entry of a block."""
    key = change.key + format_.KEY_TAIL.pack(change.sequence << 8 | change.kind)
    lengths = (0, len(key), len(change.value))
    return b"".join(map(_varint, lengths)) + key + change.value


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _visible(entries: Array, deleted: int, *, merge: bool) -> Array:
    """The newest entry of each key, without deletes and what a range delete with this number hides."""
    if merge or bool((entries["key"][1:] == entries["key"][:-1]).any()):
        order = np.lexsort((-entries["sequence"], entries["key"]))
        entries = entries[order]
        is_newest = np.ones(len(entries), bool)
        is_newest[1:] = entries["key"][1:] != entries["key"][:-1]
        entries = entries[is_newest]
    visible: Array = entries[(entries["is_put"] != 0) & (entries["sequence"] >= deleted)]
    return visible
