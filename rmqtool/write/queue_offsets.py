"""The queue offsets of the next messages, by queue.

Nothing of this is on disk: a queue continues after what it holds when it is first used.

Source: QueueOffsetOperator, DefaultMessageStore#recoverTopicQueueTable; spec 01 section 5.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from rmqtool.read.store import Store


class QueueOffset:
    """One queue: `next` is the queue offset of its next message. Changed under the put lock only.

    `newest` is the physical offset of the last message that it had when it was first used, -1 without.
    """

    __slots__ = ("newest", "next")

    def __init__(self, first: int, newest: int = -1) -> None:
        self.next = first
        self.newest = newest


class QueueOffsets:
    """The queues in use, by topic and queue id.

    Only a holder of the put lock changes them; reading does not take it.
    """

    def __init__(self, store: Store) -> None:
        """Start from what `store`, opened before the first write, holds."""
        self._store = store
        self._queues: dict[tuple[str, int], QueueOffset] = {}
        self._lock = Lock()

    def queue(self, topic: str, queue_id: int) -> QueueOffset:
        """The queue; the same object each time."""
        found = self._queues.get((topic, queue_id))
        if found is not None:
            return found
        with self._lock:
            found = self._queues.get((topic, queue_id))
            if found is None:
                queue = self._store.queue(topic, queue_id)
                found = QueueOffset(0) if queue is None else QueueOffset(*queue.newest())
                self._queues[topic, queue_id] = found
        return found

    def next(self, topic: str, queue_id: int) -> int:
        """The offset of the queue's next message."""
        return self.queue(topic, queue_id).next

    def advance(self, topic: str, queue_id: int, count: int) -> None:
        """Count `count` messages that were appended at `next`."""
        self.queue(topic, queue_id).next += count

    def first_of_turns(self, topic: str, count: int) -> int:
        """Where the round robin over queues 0 to `count` - 1 continues: after the one of the newest message.

        That is the newest of those that the store had when it was opened. Without any it is queue 0.
        """
        known = self._store.queues
        numbers: Iterable[int] = range(count)
        if count > len(known):  # topics.json may say any number
            numbers = (number for name, number in known if name == topic and 0 <= number < count)
        found = ((self.queue(topic, number).newest, number) for number in numbers)
        newest, queue_id = max(found, default=(-1, 0))
        return (queue_id + 1) % count if newest >= 0 else 0
