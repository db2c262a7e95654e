"""The messages of a real broker's store, put into a new one: what comes out must be the broker's bytes."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rmqtool.formats import message
from rmqtool.log.events import Blank, StoredMessage
from rmqtool.message.system_topics import parse_delay_levels
from rmqtool.read.store import Store
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.stores import Case

Group = list[StoredMessage]


def groups(store: Store) -> Iterator[Group]:
    """The records in the order in which a broker appended them: alone, or a batch where that shows.

    A batch shows where it decided how a file ends: a blank that the next record alone would have
    fitted into. The records that follow it up to the one that would not have are then one group.
    """
    left, group, size = 0, [], 0
    for event in store.events():
        if isinstance(event, Blank):
            left = event.size
        elif isinstance(event, StoredMessage):
            group.append(event)
            size += event.message.total_size
            if size + message.BLANK_SIZE > left:
                yield group
                left, group, size = 0, [], 0
    assert not group, "a blank that no batch explains"


def as_new(found: StoredMessage) -> NewMessage:
    """The message to put for a stored record: everything as stored but for the place."""
    record = found.message
    return NewMessage(
        record.topic,
        record.body,
        properties=record.properties_bytes,
        queue_id=record.queue_id,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_timestamp=record.store_timestamp,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


def options_of(case: Case) -> dict[str, Any]:
    """The writer's options for a broker's settings."""
    settings = case.settings
    options = {
        "commit_log_file_size": settings["mappedFileSizeCommitLog"],
        "consume_queue_file_size": settings["mappedFileSizeConsumeQueue"],
        "index_slots": settings["maxHashSlotNum"],
        "index_entries": settings["maxIndexNum"],
        "max_message_size": settings.get("maxMessageSize", 0),
    }
    if "mapperFileSizeBatchConsumeQueue" in settings:
        options["batch_queue_file_size"] = settings["mapperFileSizeBatchConsumeQueue"]
    if "enableConsumeQueueExt" in settings:
        options |= {"ext_queues": True, "ext_queue_file_size": settings["mappedFileSizeConsumeQueueExt"]}
    if "messageDelayLevel" in settings:
        options["delays_ms"] = parse_delay_levels(settings["messageDelayLevel"])
    return options


def new_store(case: Case, topics: Path, target: Path) -> StoreWriter:
    """A new store that knows the broker's topics, open for writing."""
    options = options_of(case)
    StoreWriter.create(target, case.profile, **options).close()
    shutil.copyfile(topics, target / "config" / "topics.json")
    return StoreWriter.open(target, profile=case.profile, **options)


def put_again(writer: StoreWriter, appended: Iterable[Group]) -> int:
    """Put every group; each record must come to its old place. Returns the number of records."""
    count = 0
    for group in appended:
        if len(group) == 1:
            result = writer.put(as_new(group[0]))
        else:
            result = writer.put_batch([as_new(found) for found in group])
        assert result.physical_offset == group[0].physical_offset, group[0]
        count += len(group)
    return count
