"""All the checks of an append, and nothing written."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from rmqtool.errors import RefusedError
from rmqtool.formats.message import BLANK_SIZE
from rmqtool.storage.profile import profile_named
from rmqtool.write import opening
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.prepare import prepare
from rmqtool.write.targets import Targets
from rmqtool.write.topics import TopicTable


class DryRun:
    """Stands in for a `StoreWriter`: takes messages, checks them and forgets them.

    Attributes:
        options: how the store would be written.
        topics, targets: its topics, with those that would be made.
        bytes: of the records that would be stored.
        counts: of these, by topic as stored.
    """

    def __init__(self, root: Path, options: WriteOptions, *, auto_create_queues: int = 0) -> None:
        self.options = options
        self.topics = TopicTable.load(root, options.profile)
        self.targets = Targets(self.topics, auto_create_queues)
        self.bytes = 0
        self.counts: Counter[str] = Counter()

    @classmethod
    def create(
        cls,
        path: Path,
        profile: str,
        *,
        broker_conf: Path | None = None,
        auto_create_queues: int = 0,
        **options: Any,
    ) -> DryRun:
        """As `StoreWriter.create`. Raises as that does."""
        found = opening.examine_new(path, profile_named(profile), options, broker_conf=broker_conf)
        return cls(path, found, auto_create_queues=auto_create_queues)

    @classmethod
    def open(
        cls, path: Path, *, auto_create_queues: int = 0, given: dict[str, Any], **arguments: Any
    ) -> DryRun:
        """As `StoreWriter.open`; `given` are the options by name. Raises as that does."""
        found = opening.examine(path, given, **arguments)
        return cls(path, found, auto_create_queues=auto_create_queues)

    def put(self, message: NewMessage) -> None:
        """Check one message.

        Raises:
            IllegalMessageError: a broker would not take it.
            RefusedError: its topic or queue may not be written, or no file can hold it.
        """
        target = self.targets.of(message)
        prepared = prepare(
            message, self.options, time.time_ns() // 1_000_000, target.queue_id,
            batch_topic=target.is_batch, topic_flags=target.sys_flag,
        )  # fmt: skip
        limit = self.options.commit_log_file_size
        if prepared.size + BLANK_SIZE > limit:
            raise RefusedError(
                f"{prepared.size} bytes do not fit into a commit log file of {limit}", column="body"
            )
        self.bytes += prepared.size
        self.counts[prepared.topic] += 1
