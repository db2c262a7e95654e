"""The consequences of an expiry: the offsets that queues begin at, and needed messages that are lost.

`queue_effects` computes for each queue the offsets before and after, and the messages that it loses. `losses`
finds those of them that are still needed; a broker deletes them without checking:

    unconsumed   by a group: at or after the offset that it has committed
    delayed      in SCHEDULE_TOPIC_XXXX, not yet delivered by its level
    half         of a transaction that is neither committed nor rolled back
    timer        in the timer wheel of 5.x, not yet delivered

Source: ConsumerOffsetManager, ScheduleMessageService#correctDelayOffset, TransactionalMessageServiceImpl
#check, TimerMessageStore; spec 02 sections 10 and 11. ConsumeQueue#correctMinOffset,
BatchConsumeQueue#correctMinOffset; spec 02 7.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from typing import NamedTuple

from rmqtool.broker.expiry_rules import Chain, expired_count
from rmqtool.errors import RmqtoolError, UnreadableError
from rmqtool.formats import properties
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import (
    HALF_TOPICS,
    OP_TOPICS,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    describe,
    is_system_topic,
)
from rmqtool.queue.consume_queue import AnyQueue, BatchConsumeQueue, ConsumeQueue, Span
from rmqtool.read.consumer_offsets import Offsets, known_offsets, with_retry_groups
from rmqtool.read.half_checks import checked_until
from rmqtool.read.lost_config import is_group_of_brokers
from rmqtool.read.pending_timers import pending_timers
from rmqtool.read.store import Store
from rmqtool.storage import config_files

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
    count = expired_count(state.chain, start_after) if start_after > 0 else 0
    effect = QueueEffect(queue.topic, queue.queue_id, low, low, high, first, first, count)
    if count == 0 and (start_after <= start_before or last is None):
        return effect
    rest = queue.without(count)
    low_after = rest.min_offset(start_after, store.profile)
    return replace(
        effect, min_after=low_after, first_after=max(rest.first_live(start_after, state.end), first)
    )


OPS_READ_MAX = 100_000
"""Most op messages read to find finished half messages; with more, the count is an upper bound."""
HALF_READ_MAX = 100_000
"""Most half messages for which ops are read at all."""
_WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, *HALF_TOPICS, *OP_TOPICS})


@dataclass(frozen=True, slots=True)
class Unconsumed:
    """Messages of a queue that a group has not consumed; `committed` is None if it never committed.

    `next_offset` is the queue offset after the last of them, the first that stays.
    """

    group: str
    topic: str
    queue_id: int
    committed: int | None
    messages: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Pending:
    """Messages that wait inside the broker: `delayed` (with their level), `half` or `timer`.

    If `exact` is False, `messages` is an upper bound. `last_due_timestamp_ms` is when the last of delayed
    messages is due, ms since 1970; None if that is unknown.
    """

    kind: str
    messages: int
    level: int | None = None
    exact: bool = True
    last_due_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class UnknownGroups:
    """Why committed offsets are unknown, and the deleted messages that groups may therefore still need."""

    messages_max: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Losses:
    """The messages that would be lost.

    `without_group` (topic -> messages) counts messages of topics for which no group has an offset; it is
    empty if the offsets are unknown. That alone is not a reason to refuse: broadcast consumers commit no
    offsets to a broker, and many topics have no consumers. `unknown` lists what could not be determined,
    with the reason. `groups_unknown` is not None if committed offsets are among that; `unconsumed` then holds
    only what the known offsets show.
    """

    unconsumed: tuple[Unconsumed, ...] = ()
    pending: tuple[Pending, ...] = ()
    without_group: dict[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    groups_unknown: UnknownGroups | None = None

    @property
    def any(self) -> bool:
        """Whether needed messages would be lost, or that is unknown."""
        return bool(self.unconsumed or self.pending or self.unknown)


def losses(store: Store, effects: Sequence[QueueEffect], start_after: int) -> Losses:
    """Find the deleted messages that are still needed.

    Args:
        store: a store root, opened for reading.
        effects: the effects on all queues that can be read.
        start_after: the physical offset where the log begins afterwards.
    """
    affected = [effect for effect in effects if effect.messages_going > 0]
    committed, reasons = known_offsets(store, needed=bool(affected))
    offsets = with_retry_groups(committed, (effect.topic for effect in affected))
    groups_unknown, is_known = None, not reasons
    if not is_known:
        groups_unknown = UnknownGroups(sum(map(_for_groups, affected)), tuple(reasons))
    unknown: list[str] = []
    without_group = _without_group(affected, offsets) if is_known else {}
    unconsumed = tuple(_unconsumed(affected, offsets, only_committed=not is_known))
    pending: list[Pending] = []
    searches: tuple[tuple[str, Callable[[], Iterator[Pending]]], ...] = (
        ("delayed messages", partial(_delayed, store, affected)),
        ("half messages", partial(_half, store, affected, offsets, exact=is_known)),
        ("timer messages", partial(_timer, store, start_after)),
    )
    for name, search in searches:
        try:
            pending += search()
        except RmqtoolError as error:
            unknown.append(f"{name}: {error.message}")
    if not store.layout.has_files_of_queues or store.layout.has_queues_in_rocksdb:
        unknown.append("the consume queues are in RocksDB")
    return Losses(unconsumed, tuple(pending), without_group, (*reasons, *unknown), groups_unknown)


def _for_groups(effect: QueueEffect) -> int:
    """How many messages of a queue that are deleted may be needed by groups of clients."""
    return 0 if effect.topic in _WAITING_TOPICS else effect.messages_going


def _groups_of(topic: str, offsets: Offsets) -> list[str]:
    """The groups that read a topic."""
    return sorted(group for name, group in offsets if name == topic and not is_group_of_brokers(group))


def _unconsumed(
    affected: Iterable[QueueEffect], offsets: Offsets, *, only_committed: bool
) -> Iterator[Unconsumed]:
    """What groups have not consumed. `only_committed`: of queues for which they have committed an offset."""
    groups: dict[str, list[str]] = {}
    for effect in affected:
        if effect.topic in _WAITING_TOPICS:
            continue
        if effect.topic not in groups:
            groups[effect.topic] = _groups_of(effect.topic, offsets)
        for group in groups[effect.topic]:
            committed = offsets.get((effect.topic, group), {}).get(effect.queue_id)
            if committed is None and only_committed:
                continue
            first, stop = max(committed or 0, effect.first_before), effect.first_after
            if first < stop:
                yield Unconsumed(group, effect.topic, effect.queue_id, committed, stop - first, stop)


def _without_group(affected: Iterable[QueueEffect], offsets: Offsets) -> dict[str, int]:
    consumed = {topic for topic, group in offsets if not is_group_of_brokers(group)}
    counts: dict[str, int] = {}
    for effect in affected:
        if effect.topic in consumed or is_system_topic(effect.topic) or effect.topic in _WAITING_TOPICS:
            continue
        if not effect.topic.startswith(RETRY_PREFIX):
            counts[effect.topic] = counts.get(effect.topic, 0) + effect.messages_going
    return counts


def _delayed(store: Store, affected: Iterable[QueueEffect]) -> Iterator[Pending]:
    """Per level, messages at or after its offset in delayOffset.json; without the file all of them."""
    levels = [effect for effect in affected if effect.topic == SCHEDULE_TOPIC]
    folder = store.layout.config_folder
    if not levels or folder is None:
        return
    offsets = config_files.delay_offsets(folder)
    for effect in levels:
        level = effect.queue_id + 1
        first = max(offsets.get(level, 0), effect.first_before)
        if first < effect.first_after:
            last_due = _due(store, effect.queue_id, effect.first_after - 1)
            yield Pending("delayed", effect.first_after - first, level, last_due_timestamp_ms=last_due)


def _due(store: Store, queue_id: int, queue_offset: int) -> int | None:
    """When a delayed message is due, ms since 1970; None if its unit does not say."""
    queue = store.queue(SCHEDULE_TOPIC, queue_id)
    unit = queue.unit(queue_offset) if isinstance(queue, ConsumeQueue) else None
    return queue.tags_code(unit) if isinstance(queue, ConsumeQueue) and unit is not None else None


def _half(
    store: Store, affected: Iterable[QueueEffect], offsets: Offsets, *, exact: bool
) -> Iterator[Pending]:
    """Half messages that the broker's check has not passed and no op message has finished.

    `exact`: its progress is known.
    """
    op_of = dict(zip(HALF_TOPICS, OP_TOPICS, strict=True))
    for effect in affected:
        if effect.topic not in op_of:
            continue
        op_topic = op_of[effect.topic]
        progress = checked_until(offsets, effect.topic, effect.queue_id, effect.max_offset)
        first = max(progress, effect.first_before)
        if first >= effect.first_after:
            continue
        if effect.max_offset - first > HALF_READ_MAX:
            yield Pending("half", effect.first_after - first, exact=False)
            continue
        waiting = set(range(first, effect.first_after))
        op_end = store.max_offset(op_topic, effect.queue_id)
        start = checked_until(offsets, op_topic, effect.queue_id, op_end) if progress else 0
        all_read = _finish(store, op_topic, effect.queue_id, start, waiting)
        keys = _unique_keys(store, effect, sorted(waiting))
        # A half message that was checked is stored again: its copy stays.
        keys -= _unique_keys(store, effect, range(effect.first_after, effect.max_offset)) if keys else keys
        if keys:
            yield Pending("half", len(keys), exact=exact and all_read)


def _finish(store: Store, op_topic: str, queue_id: int, start: int, waiting: set[int]) -> bool:
    """Remove finished half messages from `waiting`; returns False if the op queue was not read to its end."""
    queue = store.queue(op_topic, queue_id)
    if queue is None:
        return True
    count = 0
    for _, unit in queue.units(start):
        count += 1
        if count > OPS_READ_MAX:
            return False
        found = store.find(unit.physical_offset)
        described = describe(found.message) if found is not None else None
        waiting.difference_update((described or {}).get("half_queue_offsets", ()))
        half = (described or {}).get("half_physical_offset")
        stored = store.find(half) if half is not None else None
        if stored is not None:
            waiting.discard(stored.message.queue_offset)
        if not waiting:
            return True
    return True


def _unique_keys(store: Store, effect: QueueEffect, queue_offsets: Iterable[int]) -> set[str | int]:
    """The unique keys of a queue's messages; the queue offset if a message has none or is missing."""
    keys: set[str | int] = set()
    queue = store.queue(effect.topic, effect.queue_id)
    for queue_offset in queue_offsets:
        unit = queue.unit(queue_offset) if queue is not None else None
        found = store.find(unit.physical_offset) if unit is not None else None
        values = properties.decode(found.message.properties_bytes) if found is not None else {}
        keys.add(values.get(properties.UNIQ_KEY) or queue_offset)
    return keys


def _timer(store: Store, start_after: int) -> Iterator[Pending]:
    """Timer messages that wait, and whose records are deleted."""
    if start_after <= store.commit_log.min_offset:
        return
    count = int((pending_timers(store).places < start_after).sum())
    if count:
        yield Pending("timer", count)
