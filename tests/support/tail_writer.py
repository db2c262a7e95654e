"""A process that writes a store while others read: `python -m tests.support.tail_writer ROOT COUNT PAUSE_MS`.

Prints `ready` when the store is there, then puts COUNT messages, eight at a time with a pause between,
into four queues of a topic, and closes the store when its standard input ends.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rmqtool import NewMessage
from rmqtool.write.store_writer import StoreWriter

SMALL = {
    "auto_create_queues": 4, "commit_log_file_size": 64 << 10, "consume_queue_file_size": 2000,
    "index_slots": 100, "index_entries": 400,
}  # fmt: skip


def message(number: int, topic: str = "TopicTest") -> NewMessage:
    """A message like no other."""
    return NewMessage(
        topic, f"{number:08d}".encode() * 20, tags=f"Tag{number % 3}", keys=[f"key-{number}"],
        properties={"size": str(number)},
    )  # fmt: skip


def main(root: Path, count: int, pause_ms: int) -> None:
    """Write; see the module."""
    with StoreWriter.create(root, "5.4", **SMALL) as writer:
        print("ready", flush=True)  # noqa: T201
        for number in range(count):
            writer.put(message(number))
            if number % 8 == 7:
                time.sleep(pause_ms / 1000)
        print("done", flush=True)  # noqa: T201
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
