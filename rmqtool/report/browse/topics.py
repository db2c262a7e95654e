"""The topics of a store, and the queues of a topic, each with a glance at the ends of its queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rmqtool.errors import UnreadableError
from rmqtool.message.system_topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from rmqtool.queue.consume_queue import AnyQueue, BatchConsumeQueue
from rmqtool.read.hits import topics_of
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store

UNREADABLE = "CQ15"
KINDS = ("", "dead letter", "retry", "no queue", "system")
"""What a topic is, in the order of the list; `no queue`: only topics.json names it."""


class QueueRow(NamedTuple):
    """One queue: the queue offsets that a broker would serve, half-open, and its newest message.

    Offsets are None if the queue cannot be read, `newest_ms` (store time) if its newest record cannot.
    """

    topic: str
    queue_id: int
    kind: str
    min_offset: int | None = None
    max_offset: int | None = None
    newest_ms: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def messages(self) -> int | None:
        """How many messages a broker would serve."""
        if self.min_offset is None or self.max_offset is None:
            return None
        return max(self.max_offset - max(self.min_offset, 0), 0)


class TopicRow(NamedTuple):
    """One topic: the sums over its queues. `messages` is None as long as no queue could be read."""

    topic: str
    queues: int
    kind: str
    messages: int | None = None
    newest_ms: int | None = None
    problems: tuple[str, ...] = ()


class Topics:
    """The topics of a store, those of applications first, then by the order of KINDS.

    Made from the names of folders and topics.json; queues are read when their topic is asked for.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._queues: dict[str, list[int]] = {}
        for topic, queue_id in store.queues:
            self._queues.setdefault(topic, []).append(queue_id)
        known = {*self._queues, *topics_of(store, Selection())}
        self.names = sorted(known, key=self._rank)

    def _rank(self, topic: str) -> tuple[int, str]:
        return KINDS.index(self._kind(topic)), topic

    def _kind(self, topic: str) -> str:
        if is_system_topic(topic):
            return "system"
        if topic not in self._queues:
            return "no queue"
        return {RETRY_PREFIX: "retry", DLQ_PREFIX: "dead letter"}.get(topic[: topic.find("%", 1) + 1], "")

    def queue_ids(self, topic: str) -> list[int]:
        """The ids of the queues of a topic, ascending."""
        return sorted(self._queues.get(topic, ()))

    def name_row(self, topic: str) -> TopicRow:
        """What is known of a topic without reading its queues."""
        return TopicRow(topic, len(self._queues.get(topic, ())), self._kind(topic))

    def rows(self, topics: Iterable[str]) -> list[TopicRow]:
        """The rows of these topics; reads the ends of their queues."""
        return [self._row(topic) for topic in topics]

    def _row(self, topic: str) -> TopicRow:
        queues = queue_rows(self.store, topic, self.queue_ids(topic))
        counts = [queue.messages for queue in queues if queue.messages is not None]
        times = [queue.newest_ms for queue in queues if queue.newest_ms is not None]
        problems = tuple(sorted({code for queue in queues for code in queue.problems}))
        return self.name_row(topic)._replace(
            messages=sum(counts) if counts or not queues else None,
            newest_ms=max(times, default=None),
            problems=problems,
        )


def queue_rows(store: Store, topic: str, queue_ids: Iterable[int]) -> list[QueueRow]:
    """The rows of queues of one topic."""
    return [_queue_row(store, topic, queue_id, store.queues) for queue_id in queue_ids]


def _queue_row(
    store: Store, topic: str, queue_id: int, queues: Mapping[tuple[str, int], AnyQueue]
) -> QueueRow:
    queue = queues.get((topic, queue_id))
    if queue is None:  # its folder vanished when the store was opened again
        return QueueRow(topic, queue_id, "gone", problems=("CQ13",))
    row = QueueRow(topic, queue_id, "batch" if isinstance(queue, BatchConsumeQueue) else "")
    try:
        span = queue.span(store.commit_log.min_offset, store.profile)
    except UnreadableError as error:
        return row._replace(kind="gone") if error.is_gone else row._replace(problems=(UNREADABLE,))
    newest = None
    if span.last is not None and not span.last.is_pre_blank:
        head = store.head(span.last.physical_offset)
        newest = None if head is None else head.store_timestamp
    return row._replace(
        min_offset=max(span.min_offset, 0), max_offset=max(span.max_offset, 0), newest_ms=newest
    )
