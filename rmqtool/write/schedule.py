"""Delayed messages that are due: which ones, and their delivery, as ScheduleMessageService does both.

    with StoreWriter.open(path) as writer, writer.read() as store:
        for delivery in deliver(writer, plan(store, now_ms)):
            print(delivery.topic, delivery.stored.physical_offset)

A delayed message waits in queue `level - 1` of SCHEDULE_TOPIC_XXXX, whose units hold the time of
delivery instead of the tags code; delayOffset.json says how far each level has been delivered.
A due message is stored once more, under its real topic. First that is on the device, then
delayOffset.json follows: a crash in between delivers again, and loses nothing.

Source: ScheduleMessageService (DeliverDelayedMessageTimerTask, #messageTimeUp); spec 02 10.3 to 10.5.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from rmqtool.errors import FormatError, IllegalMessageError, UnsupportedStoreError
from rmqtool.formats import config_change, properties
from rmqtool.formats.message import PROPERTY_CRC_NAME, Message
from rmqtool.formats.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
)
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import BODY_CRC
from rmqtool.message.system_topics import HALF_TOPICS, SCHEDULE_TOPIC, deliver_timestamp, is_topic_name
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.delay_levels import delay_levels
from rmqtool.read.delivered import Waited, delivered
from rmqtool.read.lost_config import lost_config
from rmqtool.read.store import Store
from rmqtool.storage import config_files
from rmqtool.storage.next_command import command_on
from rmqtool.write.options import WriteOptions
from rmqtool.write.records.deferred_offsets import deferred_offsets
from rmqtool.write.records.message import NewMessage
from rmqtool.write.topics import DEFAULT_QUEUES

if TYPE_CHECKING:
    from rmqtool.storage.layout import StoreLayout
    from rmqtool.write.put_result import PutResult
    from rmqtool.write.store_writer import StoreWriter

State = Literal[
    "due", "delivered", "missing", "half", "unreadable", "illegal", "damaged", "unknown_topic", "refused"
]

SKIPPED: Final = frozenset({"missing", "half", "unreadable", "illegal"})
"""States that are passed over: there is nothing to deliver, or nothing that any broker could store."""
HELD: Final = frozenset({"damaged", "unknown_topic", "refused"})
"""States at which a level stops: delivering would hide damage, or store where no consumer looks."""
_FOR_NOW: Final = frozenset({"TOPIC_NOT_EXIST", "NO_PERMISSION"})
"""Why a message is not stored though its record is right: a change of the topic lets it in."""

_SHOWN = 80  # characters of a name that somebody made up
SAVED_EVERY = 10_000
"""Deliveries after which delayOffset.json is written; a crash repeats at most this many."""


class Level(NamedTuple):
    """One delay level: its queue offsets from the next to deliver to the end, half-open.

    `delay_ms` is None where the broker's messageDelayLevel is not known; `noted_offset` is what
    delayOffset.json says, in the queue's range or not.
    """

    level: int
    delay_ms: int | None
    next_offset: int
    end_offset: int
    noted_offset: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that is due.

    Attributes:
        level: from 1.
        queue_offset: in queue `level - 1` of SCHEDULE_TOPIC_XXXX.
        physical_offset: of the delayed record.
        due_timestamp: when it is due, ms since 1970; now where the broker would not wait so long.
        state: `due`, or why it is not delivered; `delivered` after delivery.
        topic: the real one; None where the record does not say.
        queue_id: of the real topic.
        uniq_key: identifies the message.
        message: the delayed record; None after `deliver`.
        stored: where it was delivered to.
        reason: why it is `illegal` or `refused`.
    """

    level: int
    queue_offset: int
    physical_offset: int
    due_timestamp: int
    state: State
    topic: str | None = None
    queue_id: int | None = None
    uniq_key: str | None = None
    message: Message | None = None
    stored: PutResult | None = None
    reason: str | None = None


def delivered_offsets(store: Store) -> dict[int, int]:
    """The next offset to deliver by delay level, of delayOffset.json or its .bak; none where neither is.

    Raises:
        UnreadableError: it cannot be read.
        FormatError: it cannot be understood. Without a .bak a broker continues with no offsets at
            all, and delivers again everything that is still stored.
    """
    root = store.layout.root
    if root is None:
        return {}
    folder = root / config_files.FOLDER
    path = folder / config_files.DELAY_OFFSETS
    loaded = config_files.read_config(folder, config_files.DELAY_OFFSETS)
    if loaded.source == "none" and path.exists():
        raise FormatError(
            "the delivery offsets of delay levels cannot be parsed, and there is no .bak:"
            f" {loaded.file_error or 'the file is empty'}",
            path=path, hint="put a good copy there, or remove it to deliver everything again",
        )  # fmt: skip
    return config_files.delay_offsets(folder)


def offsets_are_lost(store: Store) -> bool:
    """Whether delayOffset.json and its .bak are missing although delayed messages are stored (CF07)."""
    counts = {
        SCHEDULE_TOPIC: max(
            (queue.max_offset() - store.first_live(*key) for key, queue in store.queues.items()
             if key[0] == SCHEDULE_TOPIC),
            default=0,
        )
    }  # fmt: skip
    return any(found.problem.code == "CF07" for found in lost_config(store.layout, counts))


def count_again(store: Store, deliveries: Iterable[Delivery]) -> int:
    """How many of the messages that are due were delivered before, as far as the log shows.

    Raises UnreadableError if the log cannot be read.
    """
    waited = (
        Waited(
            each.level, each.queue_offset, each.physical_offset, each.topic, each.queue_id, each.uniq_key,
            each.message.born_timestamp, each.message.reconsume_times,
        )
        for each in deliveries
        if each.state == "due" and each.topic and each.queue_id is not None and each.message is not None
    )  # fmt: skip
    return len(delivered(store, waited))


def check_form(layout: StoreLayout) -> None:
    """Check that the queues of delay levels are in files, as those are in which messages are delivered.

    Raises:
        UnsupportedStoreError: they are in RocksDB, where rmqtool writes no queue of its own.
    """
    try:
        layout.check_forms(log=True, queues=True, files=True)
    except UnsupportedStoreError as error:
        if layout.has_queues_in_rocksdb:
            waiting = command_on(layout, "stats", "--delayed")
            error.hint = f"their broker delivers what is due once it runs; {waiting} shows what waits"
        raise


def levels(
    store: Store, delays_ms: Sequence[int] | None, offsets: Mapping[int, int] | None = None
) -> list[Level]:
    """The levels whose queue is there, with what delayOffset.json says, brought into the queue's range.

    Args:
        store: opened for reading.
        delays_ms: of level n at n - 1; queues of further levels are left out, as the broker does it.
            None: not known, all queues count.
        offsets: the result of `delivered_offsets`, where it was called already.

    Raises:
        UnreadableError, FormatError: as `delivered_offsets`.
        UnsupportedStoreError: the queues are in RocksDB.
    """
    check_form(store.layout)
    if delays_ms is None:
        ids = sorted(queue_id for topic, queue_id in store.queues if topic == SCHEDULE_TOPIC)
        delays: dict[int, int | None] = {queue_id + 1: None for queue_id in ids}
    else:
        delays = dict(enumerate(delays_ms, 1))
    found = []
    offsets = delivered_offsets(store) if offsets is None else offsets
    for level, delay_ms in delays.items():
        queue = store.queue(SCHEDULE_TOPIC, level - 1)
        if not isinstance(queue, ConsumeQueue):
            continue
        first, end = store.min_offset(SCHEDULE_TOPIC, level - 1), queue.max_offset()
        noted = offsets.get(level, 0)
        found.append(Level(level, delay_ms, min(max(noted, first), end), end, noted))
    return found


def plan(
    store: Store,
    now_ms: int,
    delays_ms: Sequence[int] | None = None,
    *,
    knows: Callable[[str], bool] | None = None,
    offsets: Mapping[int, int] | None = None,
) -> Iterator[Delivery]:
    """The messages due at `now_ms`, the earliest first, each level in its own order.

    Args:
        store: opened for reading.
        now_ms: ms since 1970.
        delays_ms: the broker's messageDelayLevel, of level n at n - 1. A message that would wait longer
            than that is due at once, as in a broker. None: not known, each waits as long as its unit says.
        knows: whether the store has a topic: a level stops at a message for another one. None: no matter.
        offsets: as for `levels`.

    Raises: as `levels`; UnreadableError, FormatError for queues that cannot be read.
    """
    queues = [_due(store, level, now_ms, knows) for level in levels(store, delays_ms, offsets)]
    return heapq.merge(*queues, key=lambda delivery: delivery.due_timestamp)


def count_waiting(
    store: Store, now_ms: int, delays_ms: Sequence[int] | None, held: Iterable[Delivery]
) -> int:
    """How many messages are due after those at which their levels stop.

    Args:
        store: opened for reading.
        now_ms: as for `plan`.
        delays_ms: as for `plan`.
        held: of `plan`, one of each level that stops, with a state of `HELD`.

    Raises: as `plan`.
    """
    stops = {each.level: each.queue_offset + 1 for each in held}
    found = (each for each in levels(store, delays_ms, stops) if each.level in stops)
    return sum(1 for level in found for _ in _due(store, level, now_ms, None, stop=False))


def _due(
    store: Store, level: Level, now_ms: int, knows: Callable[[str], bool] | None, *, stop: bool = True
) -> Iterator[Delivery]:
    """The messages due of one level, up to the first that is not due or, with `stop`, is held."""
    queue = store.queue(SCHEDULE_TOPIC, level.level - 1)
    assert isinstance(queue, ConsumeQueue), "only levels with such a queue are listed"
    known: tuple[int, ...] = ()
    for queue_offset, unit in queue.units(level.next_offset, level.end_offset):
        found = store.find(unit.physical_offset)
        code = queue.tags_code(unit)
        due = code or 0
        if code is None and found is not None:
            known = known or _known(store, level)
            due = deliver_timestamp(found.message.store_timestamp, level.level, known)
        if level.delay_ms is not None and due > now_ms + level.delay_ms:
            due = now_ms  # the clock went back, or the level is shorter now
        if due > now_ms:
            return
        delivery = Delivery(level.level, queue_offset, unit.physical_offset, due, "missing")
        if found is not None:
            delivery = _with_message(delivery, found.message, bool(found.status & BODY_CRC), knows)
        yield delivery
        if stop and delivery.state in HELD:
            return


def _known(store: Store, level: Level) -> tuple[int, ...]:
    """The delays, for a message whose unit has lost its delivery time; at least up to this level."""
    if level.delay_ms is not None:
        return (level.delay_ms,) * level.level
    return delay_levels(store).delays_ms


def _with_message(
    delivery: Delivery, message: Message, damaged: bool, knows: Callable[[str], bool] | None
) -> Delivery:
    found = properties.decode(message.properties_bytes)
    topic, number = found.get(REAL_TOPIC), found.get(REAL_QID, "")
    is_number = number.isascii() and number.isdecimal() and int(number[:11]) < 1 << 31
    state: State = "due"
    reason = None
    if topic is None or not is_number:
        state = "unreadable"
    elif not is_topic_name(topic):
        state, reason = "illegal", f"no topic can be called {topic[:_SHOWN]!r}"
    elif topic in HALF_TOPICS:
        state = "half"
    elif damaged:
        state = "damaged"
    elif knows is not None and not knows(topic):
        state = "unknown_topic"
    return replace(
        delivery,
        state=state,
        topic=topic,
        queue_id=int(number) if is_number else None,
        uniq_key=found.get(UNIQ_KEY),
        message=message,
        reason=reason,
    )


def deliver(
    writer: StoreWriter,
    deliveries: Iterable[Delivery],
    *,
    create_topics: bool = False,
    save_every: int = SAVED_EVERY,
) -> Iterator[Delivery]:
    """Deliver what is due, and bring delayOffset.json on; yields what became of each delivery.

    A message is yielded as `delivered` when it and delayOffset.json are on the device.

    Args:
        writer: of the store that `deliveries` were planned for.
        deliveries: from `plan`.
        create_topics: topics that the store does not know are made; plan without `knows` then.
        save_every: deliveries after which what was done is brought to the device.

    A record that the store's profile cannot hold is `illegal`, and passed over: a level must not wait for
    ever for what can never be stored. Where its topic does not let it in, it is `refused`, and the level
    stops.

    Raises:
        UnwritableError: they could not be written; delayOffset.json is as it was.
    """
    done: list[Delivery] = []
    stopped: set[int] = set()
    try:
        for delivery in deliveries:
            if delivery.level in stopped:
                continue
            result = _put(writer, delivery, create_topics) if delivery.state == "due" else delivery
            if result.state in HELD:
                stopped.add(result.level)
            done.append(replace(result, message=None))
            if len(done) >= save_every:
                _save(writer, done)
                ready, done = done, []
                yield from ready
    finally:  # also after a failure: what was put before it would be delivered again
        _save(writer, done)
    yield from done


def _put(writer: StoreWriter, delivery: Delivery, create_topics: bool) -> Delivery:
    topic, queue_id, message = delivery.topic, delivery.queue_id, delivery.message
    assert topic is not None and queue_id is not None and message is not None, "it is due"
    try:
        if create_topics and writer.topics.config_of(topic) is None:
            writer.topics.add(topic, max(DEFAULT_QUEUES, queue_id + 1))
        stored = writer.put(redelivered(message, topic, queue_id, writer.options))
    except IllegalMessageError as error:
        state: State = "refused" if error.status in _FOR_NOW else "illegal"
        return replace(delivery, state=state, reason=error.message)
    return replace(delivery, state="delivered", stored=stored)


def redelivered(message: Message, topic: str, queue_id: int, options: WriteOptions) -> NewMessage:
    """A delayed record as it is stored again under its real topic.

    The property string is made again from the map: the same names, DELAY, REAL_TOPIC and REAL_QID
    among them. Where light queues take part a broker makes it once more, from the map as it is then:
    without DELAY, with WAIT=false. Source: ScheduleMessageService#messageTimeUp; spec 02 10.5.
    """
    profile = options.profile
    found = properties.decode(message.properties_bytes)
    found.pop(PROPERTY_CRC_NAME, None)
    late = deferred_offsets(found, topic, queue_id, message.sys_flag, options)
    if late is not None and late.places:
        for name in (DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC) if profile.has_timer else (DELAY,):
            found.pop(name, None)
        found[WAIT] = "false"
    ordered = properties.java_order(found, profile.property_buckets)
    return NewMessage(
        topic,
        message.body,
        properties=properties.closed(properties.encode(ordered, dialect=profile.dialect)),
        queue_id=queue_id,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        wait=False,
    )


def _save(writer: StoreWriter, done: Iterable[Delivery]) -> None:
    """Bring to the device what was put, then how far each level is with it."""
    progress = {each.level: each.queue_offset + 1 for each in done if each.state not in HELD}
    if not progress:
        return
    writer.flush()
    folder, profile = writer.root / config_files.FOLDER, writer.options.profile
    time_ms = config_files.now_ms()
    document = config_files.read_config(folder, config_files.DELAY_OFFSETS).document
    if not document:
        document = config_change.new_delay_offsets(profile.name, time_ms)
    changed = config_change.with_delay_offsets(document, progress, profile.name, time_ms)
    config_files.write_config(folder, config_files.DELAY_OFFSETS, changed, profile)
