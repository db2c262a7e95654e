"""The effect on each queue when the log begins later: its offsets, and the messages that are lost.

Source: ConsumeQueue#correctMinOffset, BatchConsumeQueue#correctMinOffset; spec 02 7.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from rmqtool.broker.expiry_rules import Chain, going
from rmqtool.errors import UnreadableError
from rmqtool.queue.consume_queue import AnyQueue, BatchConsumeQueue, ConsumeQueue, Span
from rmqtool.read.store import Store

_KINDS = ("consumequeue", "batchconsumequeue")


@dataclass(frozen=True, slots=True)
class QueueEffect:
    """One queue before and after; queue offsets.

    `min_before` and `min_after` are the minimum that a broker serves after its next start; 4.x uses 0 if the
    first file has no live message. The messages [first_before, first_after) are deleted; `max_offset` stays.
    """

    topic: str
    queue_id: int
    min_before: int
    min_after: int
    max_offset: int
    first_before: int
    first_after: int
    files_going: int

    @property
    def messages_going(self) -> int:
        """Messages that can no longer be read."""
        return max(self.first_after - self.first_before, 0)

    @property
    def messages_staying(self) -> int:
        """Messages that can be read afterwards."""
        return max(self.max_offset - self.first_after, 0)

    @property
    def empty(self) -> bool:
        """Whether it held messages and holds none afterwards."""
        return self.messages_going > 0 and self.messages_staying == 0


class QueueState(NamedTuple):
    """One queue now: `span` are the offsets that are served, `end` the number after its last unit."""

    chain: Chain
    queue: AnyQueue
    span: Span
    end: int


class Queues(NamedTuple):
    """All queues that can be read, and the names of the others with the reason."""

    states: tuple[QueueState, ...]
    unread: tuple[tuple[str, str], ...]

    def newest(self) -> Iterator[tuple[int, int]]:
        """(physical offset, size) of each queue's newest unit, without fillers."""
        for state in self.states:
            unit = state.span.last
            if unit is not None and not unit.is_pre_blank:
                yield unit.physical_offset, unit.size


def read_queues(store: Store, chains: Iterable[Chain], start: int) -> Queues:
    """The queues of a store whose log begins at `start`, -1 if it has no files."""
    states, unread = [], []
    for chain in chains:
        if chain.kind not in _KINDS or chain.topic is None or chain.queue_id is None:
            continue
        queue = store.queues[chain.topic, chain.queue_id]
        if isinstance(queue, BatchConsumeQueue) != (chain.kind == "batchconsumequeue"):
            unread.append(
                (f"{chain.kind}/{chain.topic}/{chain.queue_id}", "it is also a queue of the other kind")
            )
            continue
        try:
            span = queue.span(start, store.profile)
            end = span.max_offset if isinstance(queue, ConsumeQueue) else queue.end()
        except UnreadableError as error:
            unread.append((f"{chain.kind}/{chain.topic}/{chain.queue_id}", error.message))
            continue
        states.append(QueueState(chain, queue, span, end))
    return Queues(tuple(states), tuple(unread))


class Effects(NamedTuple):
    """The effects on all queues, and the names of unreadable ones with the reason."""

    queues: tuple[QueueEffect, ...]
    unread: tuple[tuple[str, str], ...]


def queue_effects(store: Store, queues: Queues, start_before: int, start_after: int) -> Effects:
    """The effect on each queue if the log begins at `start_after` instead of `start_before`.

    Both are physical offsets, -1 for a log without files.
    """
    found, unread = [], list(queues.unread)
    for state in queues.states:
        try:
            found.append(_effect(store, state, start_before, start_after))
        except UnreadableError as error:
            unread.append((f"{state.chain.kind}/{state.queue.topic}/{state.queue.queue_id}", error.message))
    return Effects(tuple(found), tuple(unread))


def _effect(store: Store, state: QueueState, start_before: int, start_after: int) -> QueueEffect:
    queue, (low, high, last) = state.queue, state.span
    first = queue.first_live(start_before, state.end)
    count = going(state.chain, start_after) if start_after > 0 else 0
    effect = QueueEffect(queue.topic, queue.queue_id, low, low, high, first, first, count)
    if count == 0 and (start_after <= start_before or last is None):
        return effect
    rest = queue.without(count)
    low_after = rest.min_offset(start_after, store.profile)
    return replace(
        effect, min_after=low_after, first_after=max(rest.first_live(start_after, state.end), first)
    )
