"""Consume queues in files and in RocksDB: damage to one side of those that are written twice."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

from rmqtool.formats.rocksdb_queue import CHECKPOINT_TOPIC, EndKey, end_key, unit_key
from rmqtool.read.store import Store
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.rocksdb_databases import write_ahead_log

_UNIT_SIZE = 20


def lose_files(root: Path) -> None:
    """Delete the folders of the topics."""
    for path in (root / "consumequeue").iterdir():
        if path.is_dir():
            shutil.rmtree(path)


def lose_database(root: Path) -> None:
    """Delete the files of RocksDB."""
    for path in (root / "consumequeue").iterdir():
        if path.is_file():
            path.unlink()


def lose_log(root: Path) -> None:
    """Delete the files of the commit log."""
    for path in (root / "commitlog").iterdir():
        path.unlink()


def cut_files(root: Path, end: int) -> None:
    """Clear the units of records from the physical offset `end` on."""
    for path in (root / "consumequeue").rglob("0" * 20):
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), _UNIT_SIZE):
            if int.from_bytes(data[at : at + 8]) >= end:
                data[at : at + _UNIT_SIZE] = bytes(_UNIT_SIZE)
        path.write_bytes(data)


def cut_database(root: Path, end: int, *, only: str | None = None) -> None:
    """Delete the units of records from `end` on; with `only`, of one topic, and keep the end of dispatch."""
    entries: list[tuple[int, bytes, bytes | None]] = []
    with Store.open(root) as store:
        units: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for found in store.messages():
            message = found.message
            if only in (None, message.topic):
                place = message.queue_offset, found.physical_offset
                units.setdefault((message.topic, message.queue_id), []).append(place)
    for (topic, queue_id), places in units.items():
        kept = [place for place in places if place[1] < end]
        gone = [(0, unit_key(topic, queue_id, number), None) for number, at in places if at >= end]
        key = end_key(EndKey(topic, True, queue_id))
        value = struct.pack(">qq", kept[-1][1], kept[-1][0]) if kept else None
        entries += [*gone, (1, key, value)] if gone else []
    if only is None:
        entries.append((1, end_key(EndKey(CHECKPOINT_TOPIC, True, 0)), struct.pack(">q", end)))
    (root / "consumequeue/000900.log").write_bytes(write_ahead_log(entries))


def cut_log(root: Path, end: int) -> None:
    """Fill the log with zeros from `end` on."""
    path = min((root / "commitlog").iterdir())
    with path.open("r+b") as file:
        file.seek(end)
        file.write(bytes(path.stat().st_size - end))


def begin_of_record(root: Path, number: int) -> int:
    """The physical offset of a record of the log."""
    with Store.open(root) as store:
        return [found.physical_offset for found in store.messages()][number]


def with_batches(root: Path) -> list[int]:
    """A store with a topic of batch queues; the queue offsets of its batch records, of 3 messages each."""
    inner = [NewMessage(topic="Inner", body=b"x", queue_id=0) for _ in range(3)]
    with StoreWriter.create(root, "5.4", auto_create_queues=1, commit_log_file_size=65536) as writer:
        writer.topics.add("Inner", 1, attributes={"queue.type": "BatchCQ"})
        for _ in range(4):
            writer.put(NewMessage(topic="Plain", body=b"x", queue_id=0))
            writer.put_batch(inner)
    return [0, 3, 6, 9]
