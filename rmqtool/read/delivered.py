"""Which messages that had to wait were delivered, as far as the log shows: it has their copies.

A broker stores a delayed or a timer message once more when it is due: under its real topic, with its unique
key, after the record that waited. So while the log has the latter it has the former.

Source: ScheduleMessageService#messageTimeUp, TimerMessageStore#convert.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from rmqtool.formats.properties import REAL_TOPIC
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store

_COLUMNS = ("topic", "uniq_key", "store_timestamp_ms", "physical_offset")


class Copy(NamedTuple):
    """A record with one of the unique keys."""

    topic: str
    uniq_key: str
    store_timestamp_ms: int
    physical_offset: int


class Waited(NamedTuple):
    """A record of a message that had to wait."""

    topic: str
    uniq_key: str
    physical_offset: int


def copies(store: Store, topics: Iterable[str], keys: Collection[str]) -> Iterator[Copy]:
    """The records of some topics with one of these unique keys, in the order of the log.

    Raises UnreadableError if the log cannot be read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmqtool.read.messages import message_batches

    chosen = tuple(sorted(topics))
    if not chosen or not keys:
        return
    wanted = pa.array(sorted(keys), pa.string())
    for batch in message_batches(store, Selection(topics=chosen), columns=_COLUMNS):
        found = batch.filter(pc.is_in(batch.column("uniq_key"), value_set=wanted))
        yield from map(Copy, *(found.column(name).to_pylist() for name in _COLUMNS))


def count_delivered(store: Store, waited: Iterable[Waited]) -> int:
    """How many of these messages the log has a later copy of; a copy counts for one message.

    Raises: as `copies`.
    """
    places: dict[tuple[str, str], list[int]] = {}
    for each in waited:
        places.setdefault((each.topic, each.uniq_key), []).append(each.physical_offset)
    for of_key in places.values():
        of_key.sort(reverse=True)
    count = 0
    for copy in copies(store, {topic for topic, _ in places}, {key for _, key in places}):
        left = places.get((copy.topic, copy.uniq_key))
        if left and left[-1] < copy.physical_offset:
            left.pop()
            count += 1
    return count


def count_delayed_delivered(store: Store) -> int:
    """How many stored delayed messages were delivered, as far as the log shows. Raises: as `copies`."""
    from rmqtool.read.messages import message_batches

    columns = ("physical_offset", "uniq_key", "properties")
    waited = []
    for batch in message_batches(store, Selection(topics=(SCHEDULE_TOPIC,)), columns=columns):
        for row in batch.to_pylist():
            topic = dict(row["properties"] or ()).get(REAL_TOPIC)
            if topic and row["uniq_key"]:
                waited.append(Waited(topic, row["uniq_key"], row["physical_offset"]))
    return count_delivered(store, waited)
