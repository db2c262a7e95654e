"""What tests of export and copy share: runs of the commands, messages compared field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from rmqtool.formats.message import Message
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter

SMALL = {"commit_log_file_size": 64 << 10, "consume_queue_file_size": 2000, "index_slots": 100,
         "index_entries": 400, "reserve": False}  # fmt: skip
KEPT = ("topic", "queue_id", "flag", "sys_flag", "born_timestamp", "born_host", "store_timestamp",
        "store_host", "reconsume_times", "prepared_transaction_offset", "body", "body_crc",
        "properties_bytes", "version")  # fmt: skip
"""What a message keeps wherever it is stored; offsets are of a store."""


class Ran(NamedTuple):
    """One run: exit code, the object on stdout, stderr."""

    code: int
    out: dict[str, Any]
    err: str


def ran(code: int, out: bytes, err: bytes) -> Ran:
    """A run of a command with --format json."""
    return Ran(code, json.loads(out) if out else {}, err.decode())


def messages(store: Path, selection: Selection | None = None) -> list[Message]:
    """The records of a store."""
    with Store.open(store) as opened:
        return [found.message for found in opened.messages(selection, damage="skip")]


def kept(found: list[Message], *, without: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
    """What messages keep, of each."""
    return [tuple(getattr(each, name) for name in KEPT if name not in without) for each in found]


def small_store(path: Path, count: int = 0, **options: Any) -> Path:
    """A new store with files of 64 KiB and `count` messages of topic T."""
    with StoreWriter.create(path, auto_create_queues=4, **{**SMALL, **options}) as writer:
        put_numbered(writer, 0, count)
    return path


def put_numbered(writer: StoreWriter, first: int, stop: int, topic: str = "T") -> None:
    """Messages [first, stop)."""
    for number in range(first, stop):
        text = f"message {number} {'x' * 300}"
        writer.put(NewMessage(topic, text.encode(), tags="A", keys=[f"k{number}"]))


def append_numbered(path: Path, first: int, stop: int, topic: str = "T") -> None:
    """More of them."""
    with StoreWriter.open(path, auto_create_queues=4, reserve=False) as writer:
        put_numbered(writer, first, stop, topic)
