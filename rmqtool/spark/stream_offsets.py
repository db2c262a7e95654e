"""Offsets of a stream as Spark keeps them: JSON that is the same text for the same offset.

    {"commitlog": {"broker-a": 1048576}}                        physical offsets, by broker
    {"queues": {"TopicTest": {"broker-a": {"0": 12, "1": 9}}}}  queue offsets, as rocketmq-spark has them

Each is what comes next: the end of one batch is the start of the following. Keys are sorted, for
Spark compares the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqtool.errors import InputError

QueueKey = tuple[str, str, int]
"""Topic, broker, queue id."""


def log_offset(by_broker: Mapping[str, int]) -> dict[str, Any]:
    """The offset of physical offsets."""
    return {"commitlog": dict(sorted(by_broker.items()))}


def queue_offset(by_queue: Mapping[QueueKey, int]) -> dict[str, Any]:
    """The offset of queue offsets."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), value in sorted(by_queue.items()):
        topics.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = value
    return {"queues": topics}


def read_log_offset(offset: Mapping[str, Any]) -> dict[str, int]:
    """The physical offsets of an offset. Raises InputError for one of another kind."""
    values = offset.get("commitlog")
    if not isinstance(values, dict) or not all(map(_is_offset, values.values())):
        raise _foreign(offset, "commitlog")
    return dict(values)


def read_queue_offset(offset: Mapping[str, Any]) -> dict[QueueKey, int]:
    """The queue offsets of an offset. Raises InputError for one of another kind."""
    found: dict[QueueKey, int] = {}
    topics = offset.get("queues")
    if not isinstance(topics, dict):
        raise _foreign(offset, "queue")
    for topic, brokers in topics.items():
        for broker, queues in brokers.items() if isinstance(brokers, dict) else ():
            for queue_id, value in queues.items() if isinstance(queues, dict) else ():
                if not _is_offset(value) or not str(queue_id).isdigit():
                    raise _foreign(offset, "queue")
                found[topic, broker, int(queue_id)] = value
    return found


def _is_offset(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _foreign(offset: Mapping[str, Any], kind: str) -> InputError:
    return InputError(
        f"the checkpoint holds no offset of streamOffsets={kind}: {str(dict(offset))[:120]}",
        hint="a stream continues with the options that it was started with, or from a new checkpoint",
    )
