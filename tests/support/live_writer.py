"""A process that uses a store as a broker does: `python -m tests.support.live_writer ROOT FIRST KEPT`.

It holds the POSIX lock on byte 0 of `lock`, and until its standard input ends it appends records to
the log and, a moment later, their units and index entries; makes new files of every kind and new
topics; keeps the newest KEPT log files and deletes older ones with their queue files; writes the
config files anew. Prints one line when FIRST records are there, and at the end how many it wrote.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmqtool.formats import checkpoint, index, message, properties
from rmqtool.formats.consume_queue import UNIT_SIZE, encode_unit
from rmqtool.formats.java import index_key_hash
from rmqtool.formats.message import Message
from tests.support.build_store import file_name
from tests.support.records import record
from tests.support.whole_store import unit_of

LOG_SIZE = 1 << 17
QUEUE_SIZE = 200 * UNIT_SIZE
SHAPE = index.Shape(100, 2000)
BATCH = 20  # records that are written in one go
PAUSE_S = 0.05
LAG = 15  # how many records dispatch is behind the log


@dataclass
class MappedFiles:
    """A row of files of one size that is written by offset; new files are all zero at first."""

    folder: Path
    size: int
    end: int = 0
    files: dict[int, int] = field(default_factory=dict)

    def write(self, offset: int, data: bytes) -> None:
        """Write within one file."""
        base = offset - offset % self.size
        if base not in self.files:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / file_name(base), os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(descriptor, self.size)
            self.files[base] = descriptor
        os.pwrite(self.files[base], data, offset - base)
        self.end = max(self.end, offset + len(data))

    def delete_before(self, offset: int) -> None:
        """Delete files that end at or before `offset`."""
        for base in [base for base in self.files if base + self.size <= offset]:
            os.close(self.files.pop(base))
            (self.folder / file_name(base)).unlink()


class IndexWriter:
    """Index files, entry by entry: slot and entry first, then the header."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0
        self._open()

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.number += 1
        path = self.folder / f"{20231114221320000 + self.number}"
        self.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self.file, SHAPE.size)
        self.header = index.Header(0, 0, 0, 0, 0, 1)
        self.slots: dict[int, int] = {}

    def put(self, text: str, physical_offset: int, timestamp: int) -> None:
        """Add one key."""
        if self.header.index_count >= SHAPE.entries:
            os.close(self.file)
            self._open()
        header, number = self.header, self.header.index_count
        if number == 1:
            header = header._replace(begin_timestamp=timestamp, begin_physical_offset=physical_offset)
        key_hash = index_key_hash(text)
        slot = key_hash % SHAPE.slots
        entry = index.Entry(key_hash, physical_offset, 0, self.slots.get(slot, 0))
        os.pwrite(self.file, index.encode_entry(entry), SHAPE.entry_offset(number))
        os.pwrite(self.file, index.encode_slot(number), SHAPE.slot_offset(slot))
        self.header = header._replace(
            end_timestamp=timestamp, end_physical_offset=physical_offset, index_count=number + 1,
            hash_slot_count=header.hash_slot_count + (slot not in self.slots),
        )  # fmt: skip
        self.slots[slot] = number
        os.pwrite(self.file, index.encode_header(self.header), 0)


class Broker:
    """What is known of the store that is being written."""

    def __init__(self, root: Path, kept: int) -> None:
        self.root = root
        self.kept = kept
        self.log = MappedFiles(root / "commitlog", LOG_SIZE)
        self.queues: dict[tuple[str, int], MappedFiles] = {}
        self.index = IndexWriter(root / "index")
        self.ends: dict[tuple[str, int], int] = {}
        self.waiting: deque[Message] = deque()
        self.topics: set[str] = set()
        self.starts: dict[int, dict[tuple[str, int], int]] = {}  # log file -> queue ends when it began
        self.written = 0
        self.newest = 0

    def append(self) -> None:
        """Write one record to the log; its unit waits."""
        number = self.written
        key = (f"Topic{number // 3000 * 2 + number % 2}", number % 3)
        self.newest = int(time.time() * 1000)
        if key[0] not in self.topics:
            self.topics.add(key[0])
            self.persist()
        made = record(
            key[0], bytes([number % 251]) * (50 + number % 400),
            {"UNIQ_KEY": f"U{number:012}", "KEYS": f"order{number}", "TAGS": f"Tag{number % 5}"},
            queue_id=key[1], queue_offset=self.ends.get(key, 0), store_timestamp=self.newest,
        )  # fmt: skip
        left = LOG_SIZE - self.log.end % LOG_SIZE
        if made.total_size + message.BLANK_SIZE > left:
            self.log.write(self.log.end, message.encode_blank(left))
            self.log.end += left - message.BLANK_SIZE
        if self.log.end % LOG_SIZE == 0:
            self.starts[self.log.end] = dict(self.ends)
        stored = replace(made, physical_offset=self.log.end)
        self.log.write(self.log.end, message.encode(stored))
        self.ends[key] = stored.queue_offset + 1
        self.waiting.append(stored)
        self.written += 1

    def dispatch(self, lag: int) -> None:
        """Write the units and index entries of all records but the last `lag`."""
        while len(self.waiting) > lag:
            stored = self.waiting.popleft()
            key = (stored.topic, stored.queue_id)
            folder = self.root / "consumequeue" / stored.topic / str(stored.queue_id)
            queue = self.queues.setdefault(key, MappedFiles(folder, QUEUE_SIZE))
            queue.write(stored.queue_offset * UNIT_SIZE, encode_unit(unit_of(stored)))
            found = properties.decode(stored.properties_bytes)
            for _, text in index.texts_of(stored.topic, found["UNIQ_KEY"], found["KEYS"], found["TAGS"]):
                self.index.put(text, stored.physical_offset, stored.store_timestamp)

    def expire(self) -> None:
        """Delete the oldest log files, then the queue files of which no unit names a record any more."""
        bases = sorted(self.log.files)
        if len(bases) <= self.kept:
            return
        oldest = bases[len(bases) - self.kept]
        self.log.delete_before(oldest)
        for key, first in self.starts[oldest].items():
            if key in self.queues:
                self.queues[key].delete_before(first * UNIT_SIZE)

    def persist(self) -> None:
        """Write checkpoint and config files, these as a broker does: .tmp, .bak, delete, rename."""
        values = checkpoint.Checkpoint(self.newest, self.newest, self.newest)
        with (self.root / "checkpoint").open("r+b") as file:
            file.write(checkpoint.encode(values))
        topics = {topic: {"topicName": topic} for topic in sorted(self.topics)}
        offsets: dict[str, dict[str, int]] = {}
        for (topic, queue_id), queue in self.queues.items():
            offsets.setdefault(f"{topic}@group", {})[str(queue_id)] = queue.end // UNIT_SIZE
        groups = {"group": {"groupName": "group"}}
        for name, document in (
            ("topics.json", {"topicConfigTable": topics}), ("consumerOffset.json", {"offsetTable": offsets}),
            ("subscriptionGroup.json", {"subscriptionGroupTable": groups}),
        ):  # fmt: skip
            path = self.root / "config" / name
            path.parent.mkdir(exist_ok=True)
            temporary = path.with_name(f"{name}.tmp")
            temporary.write_text(json.dumps(document))
            if path.exists():
                path.with_name(f"{name}.bak").write_bytes(path.read_bytes())
                path.unlink()
            temporary.rename(path)


def main(root: Path, first: int, kept: int) -> None:
    """Run until standard input ends; see the module for the arguments."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "checkpoint").write_bytes(bytes(checkpoint.FILE_SIZE))
    (root / "abort").write_text(str(os.getpid()))
    lock = (root / "lock").open("w+b")
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    lock.write(b"lock")
    lock.flush()
    broker = Broker(root, kept)
    told = False
    while not select.select([sys.stdin], [], [], PAUSE_S if told else 0)[0]:
        for _ in range(BATCH):
            broker.append()
        broker.dispatch(LAG)
        broker.expire()
        if broker.written % (BATCH * 25) == 0:
            broker.persist()
        if not told and broker.written >= first:
            broker.persist()
            told = True
            print("ready", flush=True)  # noqa: T201
    broker.dispatch(0)
    broker.persist()
    (root / "abort").unlink()
    print(broker.written, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
