"""Small stores for tests, written field by field: log with blanks, consume queues, index files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rmqtool.formats import index, message
from rmqtool.formats.consume_queue import BatchUnit, Unit, encode_batch_unit, encode_unit
from rmqtool.formats.java import index_key_hash
from rmqtool.formats.message import Message
from rmqtool.log.events import StoredMessage
from tests.support.records import STORE_TIMESTAMP
from tests.support.records import record as make_record

LOG_FILE_SIZE = 4096
QUEUE_FILE_SIZE = 400
KEYS = [(f"TopicTest#key{n}", 100 + 300 * n) for n in range(200)]
"""Entries for `write_index`."""


def write_sparse(path: Path, size: int, *pieces: tuple[int, bytes]) -> Path:
    """A file of `size` bytes that holds the (offset, bytes) pieces, holes elsewhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in pieces:
            os.pwrite(file.fileno(), data, offset)
    return path


def file_name(offset: int) -> str:
    """The name of a mapped file."""
    return f"{offset:020d}"


def placed(record: Message, physical_offset: int) -> Message:
    """The record as it is stored at an offset."""
    return replace(record, physical_offset=physical_offset)


def write_log(
    folder: Path, records: Iterable[Message], *, file_size: int = LOG_FILE_SIZE, start: int = 0
) -> list[Message]:
    """Write commit log files as a broker does; returns the records with their offsets filled in."""
    files: dict[int, bytearray] = {}
    stored = []
    position = start
    for record in records:
        base = position - position % file_size
        if position + record.total_size + message.BLANK_SIZE > base + file_size:
            blank = message.encode_blank(base + file_size - position)
            files[base][position - base : position - base + len(blank)] = blank
            base = position = base + file_size
        stored.append(placed(record, position))
        if base not in files:
            files[base] = bytearray(file_size)
        files[base][position - base : position - base + record.total_size] = message.encode(stored[-1])
        position += record.total_size
    folder.mkdir(parents=True, exist_ok=True)
    for base, data in files.items():
        (folder / file_name(base)).write_bytes(data)
    return stored


def write_queue(
    folder: Path,
    units: Sequence[Unit] | Sequence[BatchUnit],
    *,
    first: int = 0,
    file_size: int = QUEUE_FILE_SIZE,
) -> None:
    """Write the files of one queue; `first` is the number of the first unit."""
    data = b"".join(encode_unit(u) if isinstance(u, Unit) else encode_batch_unit(u) for u in units)
    start = first * (len(data) // len(units) if units else 20)
    files: dict[int, bytearray] = {}
    while data:
        base = start - start % file_size
        piece = data[: base + file_size - start]
        files.setdefault(base, bytearray(file_size))[start - base : start - base + len(piece)] = piece
        data, start = data[len(piece) :], start + len(piece)
    folder.mkdir(parents=True, exist_ok=True)
    for base, content in files.items():
        (folder / file_name(base)).write_bytes(content)


def write_queues(root: Path, stored: Iterable[Message], *, file_size: int = QUEUE_FILE_SIZE) -> None:
    """Write the consume queues of these records; a record's queue offset is its unit's place."""
    queues: dict[tuple[str, int], dict[int, Unit]] = {}
    for record in stored:
        unit = Unit(record.physical_offset, record.total_size, 0)
        queues.setdefault((record.topic, record.queue_id), {})[record.queue_offset] = unit
    for (topic, queue_id), units in queues.items():
        folder = root / "consumequeue" / topic / str(queue_id)
        write_queue(folder, [units[n] for n in sorted(units)], first=min(units), file_size=file_size)


def write_store(root: Path, records: Iterable[Message], *, file_size: int = LOG_FILE_SIZE) -> list[Message]:
    """A store with commit log and consume queues; returns the records as stored."""
    stored = write_log(root / "commitlog", records, file_size=file_size)
    write_queues(root, stored)
    return stored


def write_index(path: Path, shape: index.Shape, entries: Iterable[tuple[str, int]]) -> Path:
    """An index file that holds (key text, physical offset) entries, one second apart."""
    begin = 1_700_000_000_000
    pieces: dict[int, bytes] = {}
    slots: dict[int, int] = {}
    first = last = number = 0
    for number, (text, last) in enumerate(entries, 1):
        first = first or last
        key_hash = index_key_hash(text)
        slot = key_hash % shape.slots
        entry = index.Entry(key_hash, last, number - 1, slots.get(slot, 0))
        pieces[shape.entry_offset(number)] = index.ENTRY.pack(*entry)
        slots[slot] = number
    for slot, newest in slots.items():
        pieces[shape.slot_offset(slot)] = index.SLOT.pack(newest)
    header = index.Header(begin, begin + 1000 * number, first, last, len(slots), number + 1)
    pieces[0] = index.HEADER.pack(*header)
    return write_sparse(path, shape.size, *pieces.items())


def two_queues(count: int, size: int = 300) -> list[Message]:
    """Records that go to two queues in turn."""
    return [
        make_record(
            "TopicTest", bytes([n % 256]) * (size + n % 7), queue_id=n % 2, queue_offset=n // 2,
            store_timestamp=STORE_TIMESTAMP + n,
        )
        for n in range(count)
    ]  # fmt: skip


def one_queue(count: int) -> list[Message]:
    """Records of 400 bytes that all go to one queue."""
    return [make_record(body=b"x" * 300, queue_offset=n) for n in range(count)]


def patch(path: Path, offset: int, data: bytes) -> None:
    """Write `data` at byte `offset` of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def messages(events: Iterable[object]) -> list[Message]:
    """The records among what a walk yields."""
    return [event.message for event in events if isinstance(event, StoredMessage)]


def log_path(root: Path, physical_offset: int) -> tuple[Path, int]:
    """The file that holds a physical offset, and the position in it."""
    base = physical_offset - physical_offset % LOG_FILE_SIZE
    return root / "commitlog" / file_name(base), physical_offset - base
