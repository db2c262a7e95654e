"""Which queue offset a queue's next message gets.

Nothing of this is on disk: what a queue holds when it is first asked for is where it goes on.

Source: QueueOffsetOperator, DefaultMessageStore#recoverTopicQueueTable; spec 01 section 5.5.
"""

from __future__ import annotations

from rmqtool.store import Store


class QueueOffset:
    """One queue: `next` is the queue offset of its next message. Changed under the put lock only."""

    __slots__ = ("next",)

    def __init__(self, first: int) -> None:
        self.next = first


class QueueOffsets:
    """The queues that were asked for, by topic and queue id; the caller holds the put lock."""

    def __init__(self, store: Store) -> None:
        """Start from what `store`, opened before the first write, holds."""
        self._store = store
        self._queues: dict[tuple[str, int], QueueOffset] = {}

    def queue(self, topic: str, queue_id: int) -> QueueOffset:
        """The queue; the same object each time."""
        found = self._queues.get((topic, queue_id))
        if found is None:
            found = QueueOffset(self._store.max_offset(topic, queue_id))
            self._queues[topic, queue_id] = found
        return found

    def next(self, topic: str, queue_id: int) -> int:
        """The offset of the queue's next message."""
        return self.queue(topic, queue_id).next

    def advance(self, topic: str, queue_id: int, count: int) -> None:
        """Count `count` messages that were appended behind `next`."""
        self.queue(topic, queue_id).next += count
