"""What `rmqtool append` shows: a row for each message, and what a store's transactions make of some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from rmqtool.times import format_time

if TYPE_CHECKING:
    from rmqtool.write.put_result import PutResult

COLUMNS = (
    "row", "physical_offset", "queue_offset", "size", "topic", "queue_id", "store_timestamp_ms", "store_time",
    "offset_msg_id", "flushed",
)  # fmt: skip
TABLE_COLUMNS = ("row", "topic", "queue_id", "queue_offset", "physical_offset", "offset_msg_id", "flushed")
SUMMARY = (
    "messages", "bytes", "left_out", "blanks", "topics", "queues", "first_physical_offset",
    "last_physical_offset", "flushed", "dry_run",
)  # fmt: skip


def row_of(number: int | None, result: PutResult, zone: tzinfo | None) -> dict[str, Any]:
    """The row of a message; `number` is that of its row in the input."""
    row = {} if number is None else {"row": number}
    return row | {
        "physical_offset": result.physical_offset,
        "queue_offset": result.queue_offset,
        "size": result.size,
        "topic": result.topic,
        "queue_id": result.queue_id,
        "store_timestamp_ms": result.store_timestamp,
        "store_time": format_time(result.store_timestamp, zone),
        "offset_msg_id": result.message_ids[0],
        "flushed": result.flushed,
    }


def transaction_notes(counts: Mapping[str, int]) -> Iterator[str]:
    """What a broker does with half messages and op records among those stored, `counts` by topic."""
    from rmqtool.message.system_topics import HALF_TOPICS, OP_TOPICS

    halves = sum(counts.get(topic, 0) for topic in HALF_TOPICS)
    ops = sum(counts.get(topic, 0) for topic in OP_TOPICS)
    if halves:
        yield (
            f"half messages: {halves}; a broker asks the producers whether to commit those that no op record"
            " names, and discards old ones"
        )
    if ops:
        yield (
            f"op records: {ops}; each finishes whatever half messages this store has at the queue offsets"
            " that the op record names"
        )
