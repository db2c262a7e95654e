"""The records of a log that belong to the same message, and the trace records about it.

They have the same unique key. A committed message names its half message by physical offset; a retried or
dead message names the first one by offset message id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from glob import escape

from rmqtool.errors import InputError
from rmqtool.formats import message as form
from rmqtool.formats import properties, trace
from rmqtool.formats.message_id import OffsetMessageId
from rmqtool.log.events import StoredMessage
from rmqtool.message.system_topics import (
    DISCARDED_TOPIC,
    DLQ_PREFIX,
    HALF_TOPICS,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store

TRACE_PREFIX = "rmq_sys_TRACE_DATA_"
"""Prefix of trace topics in the cloud; a plain broker has RMQ_SYS_TRACE_TOPIC."""

Find = Callable[[str, Iterable[str]], Iterable[StoredMessage]]
"""Finds the messages with a key or unique key in some topics, all given literally."""


def finder(store: Store) -> Find:
    """The default way to find messages by key: through the index, else by a scan."""
    return partial(_find, store)


def _find(store: Store, key: str, topics: Iterable[str]) -> Iterator[StoredMessage]:
    from rmqtool.read.messages import message_batches

    selection = Selection(topics=[escape(topic) for topic in topics], keys=[key])
    for batch in message_batches(store, selection, columns=["physical_offset"], crc=False):
        for physical_offset in batch.column(0).to_pylist():
            found = store.find(physical_offset)
            if found is not None:
                yield found


def topics_of(store: Store) -> set[str]:
    """Every topic that has a queue."""
    return {topic for topic, _ in store.queues}


def related(store: Store, stored: StoredMessage, find: Find) -> list[StoredMessage]:
    """All records of the message to which `stored` belongs, in the order of the log, `stored` included."""
    found = {stored.physical_offset: stored}
    told = properties.decode(stored.message.properties_bytes)
    for each in _named(store, stored, told):
        found.setdefault(each.physical_offset, each)
    key = told.get(properties.UNIQ_KEY)
    if key:
        names = [stored.message.topic, *(told.get(name) for name in _TOPIC_PROPERTIES)]
        topics = {name for name in names if name}
        topics |= {SCHEDULE_TOPIC, TIMER_TOPIC, DISCARDED_TOPIC, *HALF_TOPICS}
        existing = topics_of(store)
        # Without queues the topics of the store are unknown: then search all of these.
        topics = topics & existing if existing else topics
        topics |= {topic for topic in existing if topic.startswith((RETRY_PREFIX, DLQ_PREFIX))}
        for each in find(key, sorted(topics)):
            if properties.decode(each.message.properties_bytes).get(properties.UNIQ_KEY) == key:
                found.setdefault(each.physical_offset, each)
        for each in list(found.values()):
            for other in _named(store, each, properties.decode(each.message.properties_bytes)):
                found.setdefault(other.physical_offset, other)
    return [found[place] for place in sorted(found)]


_TOPIC_PROPERTIES = (properties.REAL_TOPIC, properties.RETRY_TOPIC, properties.DLQ_ORIGIN_TOPIC)
_ORIGIN_PROPERTIES = (properties.ORIGIN_MESSAGE_ID, properties.DLQ_ORIGIN_MESSAGE_ID)


def _named(store: Store, stored: StoredMessage, told: dict[str, str]) -> Iterator[StoredMessage]:
    """Records that `stored` names by physical offset: its half message, the first message of a retry."""
    key = told.get(properties.UNIQ_KEY)
    places = []
    if stored.message.transaction_type == form.TRANSACTION_COMMIT:
        places.append(stored.message.prepared_transaction_offset)
    for name in _ORIGIN_PROPERTIES:
        try:
            places.append(OffsetMessageId.decode(told.get(name, "")).physical_offset)
        except InputError:
            continue
    for place in places:
        found = store.find(place) if place >= 0 else None
        # Bytes from disk may name any offset: accept only a record with the same unique key.
        if found is not None and found.message.physical_offset == place:
            same = properties.decode(found.message.properties_bytes).get(properties.UNIQ_KEY)
            if same == key:
                yield found


def trace_records(store: Store, keys: Iterable[str], find: Find) -> list[StoredMessage]:
    """The trace records that name one of these message ids, in the order of the log."""
    topics = sorted(
        topic for topic in topics_of(store) if topic == trace.TRACE_TOPIC or topic.startswith(TRACE_PREFIX)
    )
    if not topics:
        return []
    found = {each.physical_offset: each for key in keys for each in find(key, topics)}
    return [found[place] for place in sorted(found)]
