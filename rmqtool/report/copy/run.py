"""A whole copy: the new store is built under another name and renamed when it is complete.

Source: DefaultMessageStore's own append; see `write`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqtool.errors import IllegalMessageError, RefusedError, RmqtoolError
from rmqtool.findings import Progress, Report
from rmqtool.formats.message import BLANK_SIZE, MIN_RECORD_SIZE, RECORD_SIZE_MAX
from rmqtool.read.messages import frame_batches
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.copy.records import RecordRows
from rmqtool.report.copy.topics import TopicChoice
from rmqtool.storage import durable as disk
from rmqtool.storage.output_guard import keep_out
from rmqtool.storage.prefetch import ahead
from rmqtool.storage.profile import profile_named
from rmqtool.write.opening import examine_new
from rmqtool.write.records.deferred_offsets import LMQ_PREFIX
from rmqtool.write.store_writer import StoreWriter
from rmqtool.write.table.appender import TableAppender, WrongRowError

PART = ".rmqtool-part"
_BATCHES_AHEAD = 4


@dataclass
class CopyResult:
    """The result of a copy.

    Attributes:
        messages: records copied.
        bytes: their bytes in the new log, without blanks.
        topics: topics of the new store, with their numbers of records.
        queues: number of queues with messages.
        damaged: records left out because they are not sound.
        refused: records left out because every broker would reject them.
        profile: version of the new store.
        made: whether a store was created: not if a selection matched nothing, or all records were refused.
    """

    messages: int = 0
    bytes: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    queues: int = 0
    damaged: int = 0
    refused: int = 0
    profile: str = ""
    made: bool = True


def copy(
    store: Store,
    output: Path,
    selection: Selection,
    report: Report,
    progress: Progress | None = None,
    *,
    renames: Mapping[str, str] | None = None,
    profile: str | None = None,
    options: Mapping[str, Any] | None = None,
    refused: Callable[[WrongRowError], None] = lambda error: None,
) -> CopyResult:
    """Write the selected messages as a new store.

    Args:
        store: the old store, only read; it may be in use.
        output: the new store's root, a folder that is missing or empty.
        selection: which messages; system topics are copied only if named.
        report: called for each damaged place; records that are not sound are left out.
        progress: called with the bytes of the log just read.
        renames: new names by old ones; two topics may become one.
        profile: version of the new store; None: that of the old one.
        options: of the new store (`WriteOptions`); by default its file sizes are those of the old one.
        refused: called for each record that every broker would reject; these are left out.

    Raises:
        RefusedError: something exists at `output`, or the selection names messages that cannot be copied.
        UsageError: an invalid new name or size.
        UnwritableError: it cannot be written; nothing is left.
    """
    store.layout.check_forms(log=True)
    profile = profile or store.profile.name
    choice = TopicChoice.of(selection, renames or {}, profile_named(profile))
    given = {**_sizes(store), **(options or {})}
    limit = given["commit_log_file_size"] - MIN_RECORD_SIZE - BLANK_SIZE
    given["max_message_size"] = max(min(limit, RECORD_SIZE_MAX >> 1), 0)
    examine_new(output, profile_named(profile), given)
    part = _part_of(store, output)
    try:
        result = _fill(store, part, choice, profile, given, report, progress, refused)
        if not result.messages and (result.refused or selection != Selection()):
            shutil.rmtree(part)
            return replace(result, made=False)
        disk.rename(part, output.absolute())
    except BaseException as error:
        with suppress(OSError):
            shutil.rmtree(part)
        if isinstance(error, RmqtoolError):
            if os.path.lexists(part):
                error.hint = f"what was copied could not be removed: delete {part}"
            elif str(part) in (error.hint or ""):  # it names the writer's remains, which are gone
                error.hint = None
        raise
    disk.sync_folder(part.parent)
    return result


def _part_of(store: Store, output: Path) -> Path:
    """The folder in which the new store is built. Raises RefusedError."""
    output = output.absolute()
    keep_out(store.layout, output, "the copy", location=store.location.path)
    part = output.with_name(f"{output.name}{PART}")
    if part.exists():
        raise RefusedError("an unfinished copy exists", path=part, hint=f"delete {part}")
    return part


def _sizes(store: Store) -> dict[str, Any]:
    """The file sizes of the old store, and whether it has light queues."""
    layout = store.layout
    return {
        "commit_log_file_size": layout.commit_log_file_size,
        "consume_queue_file_size": layout.consume_queue_file_size,
        "batch_queue_file_size": layout.batch_queue_file_size,
        "ext_queues": layout.writes_extensions,
        "ext_queue_file_size": layout.ext_queue_file_size,
        "index_slots": layout.index_slots,
        "index_entries": layout.index_entries,
        "multi_dispatch": any(topic.startswith(LMQ_PREFIX) for topic, _ in layout.consume_queues),
    }


def _fill(
    store: Store,
    part: Path,
    choice: TopicChoice,
    profile: str,
    given: dict[str, Any],
    report: Report,
    progress: Progress | None,
    refused: Callable[[WrongRowError], None],
) -> CopyResult:
    rows = RecordRows(choice, report)

    def batches() -> Iterator[pa.RecordBatch]:
        for found in frame_batches(store, choice.selection, report=report, progress=progress):
            batch = rows.batch(found)
            if len(batch):
                yield batch

    with StoreWriter.create(part, profile, auto_create_queues=1, **given) as writer:
        for config in choice.configs(store, report).values():
            # topics.json may list dead letter topics whose names are too long for a message.
            with suppress(IllegalMessageError):
                writer.topics.adopt(config)
        appender = TableAppender(writer, on_error="skip", report=refused)
        done = appender.append(ahead(batches(), _BATCHES_AHEAD))
        topics: dict[str, int] = dict.fromkeys(writer.topics.topics, 0)
        for (topic, queue_id), (_, count) in done.queues.items():
            topics[topic] = topics.get(topic, 0) + count
            if topic in writer.topics.topics:
                writer.topics.grow(topic, queue_id + 1)
    return CopyResult(done.rows, done.bytes, topics, len(done.queues), rows.left_out, done.skipped, profile)
