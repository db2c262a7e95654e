"""Passes `checkpoint` and `config`: the small files next to the log.

checkpoint  its size, whether it is newer than the log, and the abort file
config      every JSON file and its .bak by the broker's rule; topics, committed and delay offsets
            against what the log and the queues hold; committed offsets against those of the .bak

Source: StoreCheckpoint, ConfigManager#load; spec 01 sections 7 to 9, spec 02 section 15.3.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmqtool.check.verify.context import CONFIG_LIMIT, Context
from rmqtool.errors import UnreadableError
from rmqtool.formats import checkpoint as checkpoint_format
from rmqtool.formats import config_json
from rmqtool.formats.config_json import TopicConfig
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.problems import Finding, finding
from rmqtool.read.delay_loss import old_bak
from rmqtool.read.hidden_messages import hidden_messages
from rmqtool.read.lost_config import has_config, lost_config, lost_topics, unknown_topics
from rmqtool.read.offsets_back import went_back_finding
from rmqtool.sizes import cut_name
from rmqtool.storage.config_files import CONFIG_FILES
from rmqtool.storage.open_files import reading

_LOST = frozenset({"CF06", "CF07", "CF08", "CF09"})  # a file without content: its CF02 says no more
_REWRITE_S = 0.5  # a broker renames: for a moment the file is not there


def read_checkpoint(context: Context) -> Iterator[Finding]:
    """Findings on the checkpoint file as such; leaves its values in the context."""
    path = context.layout.checkpoint
    if path is None:
        if context.layout.kind == "store" and "checkpoint" not in context.layout.unreadable_parts:
            yield finding("CP01", "checkpoint")
        return
    name = context.name(path)
    try:
        data = read_small(path, checkpoint_format.FILE_SIZE + 1)
    except OSError as error:
        yield finding("CP06", name, reason=error.strerror)
        return
    if data and len(data) != checkpoint_format.FILE_SIZE:
        yield finding("CP02", name, 0, len(data), expected_bytes=checkpoint_format.FILE_SIZE)
    # A broker extends a short file with zeros, so this is what it will read.
    padded = data[: checkpoint_format.FILE_SIZE].ljust(checkpoint_format.FILE_SIZE, b"\0")
    context.checkpoint = checkpoint_format.decode(padded)
    if not any(padded):
        yield finding("CP01", name, 0, len(data))


def check_checkpoint(context: Context) -> Iterator[Finding]:
    """The checkpoint against the log's newest record, and the abort file."""
    layout = context.layout
    if layout.abort is not None:
        said = "a broker is running, or was when this began" if context.live else "the last stop was unclean"
        yield replace(finding("CP04", context.name(layout.abort), live=context.live), message=said)
    values, newest = context.checkpoint, context.last_store_timestamp
    if values is None or layout.checkpoint is None or not newest or context.bounds.bounded:
        return
    for offset, name in (
        (0, "physic_msg_timestamp"),
        (8, "logics_msg_timestamp"),
        (16, "index_msg_timestamp"),
    ):
        value = getattr(values, name)
        if value > newest and not context.live:
            yield finding("CP03", context.name(layout.checkpoint), offset, 8, field=name,
                          timestamp_ms=value, newest_store_timestamp_ms=newest)  # fmt: skip
    if layout.abort is None and not context.live and _is_behind(context, values.logics_msg_timestamp, newest):
        yield finding("CP07", context.name(layout.checkpoint), 8, 8, field="logics_msg_timestamp",
                      timestamp_ms=values.logics_msg_timestamp, newest_store_timestamp_ms=newest)  # fmt: skip


def _is_behind(context: Context, queues_ms: int, newest_ms: int) -> bool:
    """Whether the queues' time in a checkpoint is older than the last record.

    A clean stop dispatches everything first, so this is then the last record's time, which is not always the
    newest: `copy` and `append` keep the times of messages.
    """
    if not 0 < queues_ms < newest_ms:
        return False
    last_ms = context.store.last_stored_ms()
    return last_ms is None or queues_ms < last_ms


class ConfigCheck:
    """Every config file with its .bak, and what they say against the log and the queues.

    The files are read when this is made: in a live store the queues' ends must be read after the
    offsets that consumers have committed.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.documents: dict[str, Any] = {}
        self._found: list[Finding] = []
        if context.layout.kind == "store":
            self._found += _unread_databases(context)
            for name in CONFIG_FILES:
                self._found += self._load(name)

    def run(self) -> Iterator[Finding]:
        """All findings; the log was walked, or its ends were read."""
        if self.context.live:  # topics that were made in the meantime
            self._load("topics.json")
        found: list[Finding] = []
        if self.context.layout.kind == "store":
            found += _topics(self.context, self.documents)
            found += _consumer_offsets(self.context, self.documents)
            found += _delay_offsets(self.context, self.documents)
            context = self.context
            last_ms = context.last_store_timestamp
            found += lost_config(context.layout, context.topics, live=context.live, last_ms=last_ms)
            found += hidden_messages(context.layout, context.queue_ends, lambda key: _range(context, key))
            if not self.context.live:
                found += went_back_finding(self.context.store)
                found += () if self.context.bounds.bounded else old_bak(self.context.store)
        lost = {each.path for each in found if each.problem.code in _LOST}
        yield from (each for each in self._found if each.problem.code != "CF02" or each.path not in lost)
        yield from found

    def _load(self, name: str) -> list[Finding]:
        """Read one file; a second time in a live store, whose broker may just be writing it."""
        config, bak = self.context.layout.config, f"{name}.bak"
        if name not in config and bak not in config:
            return []
        found = self._read(name, bak)
        if found and self.context.live:
            time.sleep(_REWRITE_S)
            found = self._read(name, bak)
        return found

    def _read(self, name: str, bak: str) -> list[Finding]:
        config = self.context.layout.config
        listed = config.get(name, config.get(bak, Path(name)))
        made, found = self.context.layout.rocksdb_config, []
        if made is not None and name in made.documents and not made.is_v2:
            found = self._read_file(name, made.folder / name)  # a broker compares the versions of both
        return [*found, *self._read_file(name, listed)]

    def _read_file(self, name: str, listed: Path) -> list[Finding]:
        path = self.context.name(listed)
        try:
            parts = [_read_config(listed.parent / part) for part in (name, f"{name}.bak")]
        except OSError as error:
            return [finding("CP06", path, reason=error.strerror)]
        loaded = config_json.load_with_bak(name, *parts)
        if loaded.source in ("file", "bak"):
            self.documents[name] = loaded.document
        if loaded.source == "bak":
            path = self.context.name(listed.parent / name)
            how = (
                "is missing" if parts[0] is None else "cannot be parsed" if loaded.file_error else "is empty"
            )
            return [
                replace(
                    finding("CF01", path, reason=loaded.file_error),
                    message=f"{name} {how}; its .bak can be read",
                )
            ]
        if loaded.source == "failed" or (loaded.source == "none" and parts[0] is not None):
            empty = "empty, and has no .bak" if parts[1] is None else "empty, and so is the .bak"
            reason = loaded.bak_error or loaded.file_error or empty
            return [finding("CF02", path, reason=reason)]
        return []


def _unread_databases(context: Context) -> Iterator[Finding]:
    """Databases of a configuration that cannot be read, which the pass `files` reports too."""
    for part in context.layout.unsupported if "files" not in context.report.passes else ():
        if part.what == "config" and part.reason:
            yield finding("CF02", context.name(part.path), reason=part.reason)


def _read_config(path: Path) -> bytes | None:
    """The bytes of a config file; None where there is none. Raises OSError."""
    try:
        return read_small(path, CONFIG_LIMIT)
    except FileNotFoundError:
        return None


def read_small(path: Path, limit: int) -> bytes:
    """The first `limit` bytes of a small file. Raises OSError."""
    with reading(path) as file:
        return file.read(0, limit)


def _topics(context: Context, documents: dict[str, Any]) -> Iterator[Finding]:
    document = documents.get("topics.json")
    if document is None:
        yield from lost_topics(context.layout, len(context.topics))
        return
    if not has_config(context.layout):  # its database may have more topics than this file
        return
    known = config_json.topics(document)
    yield from _wrong_types(context, known)
    yield from unknown_topics(context.layout, context.topics, known)


def _wrong_types(context: Context, known: Mapping[str, TopicConfig]) -> Iterator[Finding]:
    """Findings on topics whose queues in files are not of their type: those that are missing are plain.

    Source: ConsumeQueueStore#queueTypeShouldBe, QueueTypeUtils#getCQType.
    """
    layout = context.layout
    if not layout.has_queues_in_files or not context.store.profile.has_inner_batch:
        return
    for queues, is_batch in ((layout.consume_queues, False), (layout.batch_queues, True)):
        folders = {topic: queue.folder.parent for (topic, _), queue in queues.items()}
        for topic, folder in sorted(folders.items()):
            config = known.get(topic)
            if (config is not None and config.is_batch) != is_batch:
                has, expected = ("BatchCQ", "SimpleCQ") if is_batch else ("SimpleCQ", "BatchCQ")
                yield finding("CQ18", context.name(folder), topic=topic, found=has, expected=expected)


def _consumer_offsets(context: Context, documents: dict[str, Any]) -> Iterator[Finding]:
    offsets = config_json.consumer_offsets(documents.get("consumerOffset.json", {}))
    for (topic, group), queues in offsets.items():
        for queue_id, offset in queues.items():
            end = _queue_end(context, (topic, queue_id), offset)
            if end is not None and offset > end:
                found = finding("CF04", "config/consumerOffset.json", topic=topic, group=group,
                                queue_id=queue_id, offset=offset, queue_end=end,
                                messages=_messages(context, (topic, queue_id), end))  # fmt: skip
                place = f"queue {queue_id} of {cut_name(topic)} is {offset}, past its end, {end}"
                yield replace(found, message=f"the committed offset of {cut_name(group)} in {place}")


def _messages(context: Context, key: tuple[str, int], end: int) -> int | None:
    """How many messages a queue has; None if it cannot be read."""
    found = _range(context, key)
    return None if found is None else max(end - found[0], 0)


def _range(context: Context, key: tuple[str, int]) -> tuple[int, int] | None:
    """The half-open queue offsets of a queue's messages; None if it is not there or cannot be read."""
    try:
        return context.store.first_live(*key), context.queue_ends[key]
    except (UnreadableError, KeyError, FileNotFoundError):  # a finding of its own, or deleted since
        return None


def _queue_end(context: Context, key: tuple[str, int], offset: int) -> int | None:
    """Where a queue ends; None for one that is not there or could not be read.

    In a live store the offset may lie in a file that was made after the folders were listed.
    """
    end = context.queue_ends.get(key)
    if end is not None and offset > end and context.live:
        from rmqtool.check.verify.live import queue_end_now

        return queue_end_now(context, key)
    return end


def _delay_offsets(context: Context, documents: dict[str, Any]) -> Iterator[Finding]:
    offsets = config_json.delay_offsets(documents.get("delayOffset.json", {}))
    for level, offset in offsets.items():
        end = _queue_end(context, (SCHEDULE_TOPIC, level - 1), offset)
        if end is not None and not 0 <= offset <= end:
            yield finding("CF05", "config/delayOffset.json", level=level, offset=offset, queue_end=end)
