"""The target of a message: its topic's queue, chosen or checked, and the topic's part of the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import index
from threading import Lock
from typing import NamedTuple

from rmqtool.errors import IllegalMessageError, RefusedError, UsageError
from rmqtool.formats.config_json import BATCH_ATTRIBUTES, TopicConfig
from rmqtool.formats.message import INNER_BATCH, MULTI_TAGS
from rmqtool.write.records.message import NewMessage
from rmqtool.write.topics import QUEUES_MAX, TopicTable

_MULTI_TAG = "MULTI_TAG"
_FEW = 100  # topics: while there are no more, topics.json is written each time that one is added
_SHORT_S = 0.02  # what that may take with more
_REST = 4  # times as long as it took, with more topics, until it is written for the next ones


class Target(NamedTuple):
    """A queue; `is_batch`: of a BatchCQ topic; `sys_flag`: bits that the topic adds to its records."""

    queue_id: int
    is_batch: bool
    sys_flag: int


class Turns:
    """The round robin over a topic's queues: `next` of `count`, -1 before the first turn.

    Two that take a turn at once may share it.
    """

    __slots__ = ("count", "next")

    def __init__(self, count: int) -> None:
        self.count = count
        self.next = -1


class _Topic:
    """A topic that was met: what it adds to its records, and the round robin over its queues."""

    __slots__ = ("is_batch", "name", "open", "sys_flag", "turns")

    def __init__(self, config: TopicConfig) -> None:
        self.name = config.name
        self.is_batch = config.is_batch
        self.sys_flag = MULTI_TAGS if config.topic_filter_type == _MULTI_TAG else 0
        self.open = 0  # queue ids below this one are known to be for producers
        self.turns = Turns(0)  # of no queues until one is needed

    def target(self, queue_id: int) -> Target:
        return Target(queue_id, self.is_batch, self.sys_flag)


class Targets:
    """The queues that messages go to. Thread-safe."""

    def __init__(
        self,
        topics: TopicTable,
        auto_create_queues: int,
        first_queue: Callable[[str, int], int] = lambda topic, count: 0,
    ) -> None:
        """Choose among `topics`; unknown ones are added with `auto_create_queues` queues unless that is 0.

        The round robin of a topic with `count` queues begins with `first_queue(topic, count)`.
        """
        self._topics = topics
        self._first_queue = first_queue
        self._auto_create_queues = auto_create_queues
        self._lock = Lock()
        self._made: set[str] = set()
        self._known: dict[str, _Topic] = {}
        self._rest_until = 0.0

    def of(self, message: NewMessage) -> Target:
        """The queue of `message`: the one it names, else the topic's next one.

        Raises:
            IllegalMessageError: the topic is unknown, not for producers or not to be written to, or has
                no such queue.
            RefusedError: an order topic is spread over its queues.
        """
        topic, queue_id = message.topic, message.queue_id
        with self._lock:
            known = self._known.get(topic) or self._learn(
                topic, is_batch=bool((message.sys_flag or 0) & INNER_BATCH)
            )
            if queue_id is None and known.turns.count and type(message.properties) is not bytes:
                return known.target(self._take(known, 1))
            return self._look(known, message, queue_id)

    def turns(self, topic: str) -> Turns | None:
        """The round robin of a topic whose queues take messages with no further look; None: ask `of`."""
        with self._lock:
            try:
                known = self._known.get(topic) or self._learn(topic)
                self._begin_turns(known)
            except (IllegalMessageError, RefusedError):
                return None
            return None if known.is_batch or known.sys_flag else known.turns

    def plain_queues(self, topic: str) -> int:
        """How many queues, ids from 0, take messages with no further look; 0: ask `of` each time."""
        turns = self.turns(topic)
        return turns.count if turns is not None else 0

    def choose_queues(self, topic: str, count: int) -> int:
        """Take `count` turns of the round robin: the i-th message goes to (result + i) % plain_queues."""
        with self._lock:
            return self._take(self._known[topic], count)

    def _take(self, known: _Topic, count: int) -> int:
        turns = known.turns
        first = turns.next if turns.next >= 0 else self._first_queue(known.name, turns.count)
        turns.next = (first + count) % turns.count
        return first

    def save_made(self) -> None:
        """As `save`, before the first record of a topic that was added, so that no crash leaves it unnamed.

        Where hundreds of topics are added one by one, which would write all of them for each, some wait
        for the next call, or for `save`.

        Raises:
            UnwritableError: topics.json cannot be written.
        """
        if self._topics.changed and (now := time.monotonic()) >= self._rest_until:
            self.save()
            duration = time.monotonic() - now
            may_rest = duration > _SHORT_S and len(self._topics.topics) > _FEW
            self._rest_until = now + (1 + _REST) * duration if may_rest else 0.0

    def save(self) -> None:
        """Write topics.json when topics were added. Raises UnwritableError."""
        if self._topics.changed:
            with self._lock:
                self._topics.save()

    def _look(self, known: _Topic, message: NewMessage, queue_id: int | None) -> Target:
        """The target of a message that names its queue, is as stored, or is the topic's first."""
        topic = known.name
        if isinstance(message.properties, bytes):  # as stored: a broker has let it in already
            if queue_id is None:
                raise UsageError("a record as it was stored needs its queue id", column="queue_id")
            queue_id = index(queue_id)
            if topic in self._made:
                if queue_id >= QUEUES_MAX:
                    raise IllegalMessageError(
                        f"queue {queue_id} of a new topic: it may have {QUEUES_MAX}",
                        status="INVALID_PARAMETER",
                        column="queue_id",
                    )
                self._topics.grow(topic, queue_id + 1)
        elif queue_id is None:
            self._begin_turns(known)
            return known.target(self._take(known, 1))
        elif not 0 <= queue_id < known.open:
            self._topics.check(topic, queue_id)
            known.open = max(known.open, queue_id + 1)
        return known.target(queue_id)

    def _begin_turns(self, known: _Topic) -> None:
        if not known.turns.count:
            known.turns.count = self._topics.spread(known.name)[1]  # refuses what must not be spread

    def _learn(self, topic: str, *, is_batch: bool = False) -> _Topic:
        """A topic met for the first time; a new one is for batches in one record where the first is one."""
        config = self._topics.config_of(topic)
        if config is None:
            if not self._auto_create_queues:
                self._topics.check(topic, 0)  # says what is wrong
            config = self._topics.add(
                topic, self._auto_create_queues, attributes=BATCH_ATTRIBUTES if is_batch else None
            )
            self._made.add(topic)
            if is_batch:
                self._rest_until = 0.0  # 5.x does not load batch queues of a topic that topics.json lacks
        elif config.is_compacted:
            self._topics.check(topic, 0)  # refuses messages as stored too
        self._topics.remember(topic)
        self._known[topic] = _Topic(config)
        return self._known[topic]
