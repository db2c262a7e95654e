"""What `append` shows: the row of a stored message, and notes on transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rmqtool.times import format_time

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqtool.write.put_result import PutResult


def message_result(number: int | None, result: PutResult, zone: tzinfo | None) -> dict[str, Any]:
    """Return the row of a message; `number` is that of its row in the input."""
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
    """Yield notes on what a broker does with stored half messages and op records, `counts` by topic."""
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
