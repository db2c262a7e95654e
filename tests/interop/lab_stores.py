"""Stores for the lab's damage: those of `fixtures/`, and one of many small log files made by us."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rmqtool.formats.versions import Broker
from rmqtool.message.system_topics import parse_delay_levels
from rmqtool.write.records import transactions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.interop.brokers import DELAY_LEVELS, INDEX_ENTRIES, INDEX_SLOTS, QUEUE_FILE_SIZE, store_settings
from tests.interop.ledger import messages, text_message
from tests.support.stores import Library, real_case
from tests.support.trees import copy_tree

PROFILES: dict[str, Broker] = {"4.9.7": "4.9", "5.3.3": "5.3", "5.4.0": "5.4"}
MANY = "many"
"""The store of many log files: more than the ten that 5.4 looks at."""
MANY_FILE_SIZE = 64 << 10
MANY_MESSAGES = 1100
PLAIN = ("Many0", "Many1", "Many2")
INNER = "ManyInner"


@dataclass(frozen=True)
class LabStore:
    """A sound store of a version, for reading only, and the settings of the broker that wrote it."""

    version: str
    state: str
    root: Path
    settings: dict[str, Any]

    @property
    def profile(self) -> Broker:
        """The version as rmqtool names it."""
        return PROFILES[self.version]

    def copy(self, target: Path) -> Path:
        """A private copy, free to be changed."""
        return copy_tree(self.root, target)


class Shelf:
    """The sound stores, each made or unpacked once."""

    def __init__(self, cases: Library, folder: Path) -> None:
        self._cases = cases
        self._folder = folder
        self._made: dict[str, Path] = {}

    def get(self, version: str, state: str) -> LabStore:
        """The store of a state; see `tests.support.stores` for the names, or MANY."""
        if state == MANY:
            if version not in self._made:
                self._made[version] = make_many(self._folder / f"many-{version}", PROFILES[version])
            settings = store_settings(version) | {"mappedFileSizeCommitLog": str(MANY_FILE_SIZE)}
            return LabStore(version, state, self._made[version], settings)
        case = real_case(version, state)
        return LabStore(version, state, self._cases.path(case.name), dict(case.settings))


def make_many(root: Path, profile: str) -> Path:
    """A store of many log files with plain, delayed, half and batch messages, closed cleanly."""
    random = Random(profile)
    sizes: dict[str, Any] = {
        "commit_log_file_size": MANY_FILE_SIZE, "consume_queue_file_size": QUEUE_FILE_SIZE,
        "index_slots": INDEX_SLOTS, "index_entries": INDEX_ENTRIES,
        "delays_ms": parse_delay_levels(DELAY_LEVELS),
    }  # fmt: skip
    if profile != "4.9":
        sizes["batch_queue_file_size"] = 46_000
    with StoreWriter.create(root, profile, auto_create_queues=4, **sizes) as writer:
        if profile != "4.9":
            writer.topics.add(INNER, 2, attributes={"queue.type": "BatchCQ"})
        for number, message in enumerate(messages(random, "many", PLAIN, MANY_MESSAGES)):
            writer.put(message)
            if number % 50 == 7:
                writer.put(text_message("ManyDelayed", f"delayed-{number}", delay_level=4))
                writer.put(transactions.half(text_message("ManyTx", f"half-{number}"), "lab_transactions"))
                writer.put_batch([text_message("ManyBatch", f"batch-{number}-{n}", n + 1) for n in range(5)])
                if profile != "4.9":
                    inner = [text_message(INNER, f"inner-{number}-{n}", n + 1) for n in range(4)]
                    writer.put_batch(inner)
        writer.put(NewMessage("ManyKeys", b"last", keys=["last"], queue_id=0))
    return root
