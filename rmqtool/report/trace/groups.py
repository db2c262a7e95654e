"""Whether the offset of each consumer group has passed a message.

A committed offset is the next one to consume: the group has consumed all messages below it, or skipped them
with a filter. consumerOffset.json is written every five seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rmqtool.message.system_topics import is_system_topic
from rmqtool.report.trace.steps import Offsets, Step

_CONSUMED_KINDS = frozenset({
    "stored", "committed", "delayed_delivered", "timer_delivered", "retry", "dead_letter", "inner_batch",
})  # fmt: skip
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group and one record of the message; `passed` is None if the group never committed for its queue.

    `group` is None if no group has an offset for the topic of that record.
    """

    group: str | None
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    committed_offset: int | None
    passed: bool | None


def group_states(steps: Iterable[Step], offsets: Offsets, *, is_known: bool) -> Iterator[GroupState]:
    """Every group that has committed an offset for the topic of a step from which consumers read.

    Args:
        steps: the steps of the message.
        offsets: the committed offsets.
        is_known: `offsets` is complete, so a topic without an offset was never read.
    """
    by_topic: dict[str, list[str]] = {}
    for topic, group in offsets:
        if not group.startswith(_SYSTEM_GROUP_PREFIX):
            by_topic.setdefault(topic, []).append(group)
    for step in steps:
        if step.kind not in _CONSUMED_KINDS:
            continue
        message = step.stored.message
        place = message.topic, message.queue_id, message.queue_offset, step.stored.physical_offset
        is_for_groups = step.kind != "dead_letter" and not is_system_topic(message.topic)
        if is_known and is_for_groups and message.topic not in by_topic:
            yield GroupState(None, *place, None, None)
        for group in sorted(by_topic.get(message.topic, ())):
            committed = offsets[message.topic, group].get(message.queue_id)
            yield GroupState(
                group, *place, committed, None if committed is None else committed > message.queue_offset,
            )  # fmt: skip
