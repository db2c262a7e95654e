"""Which messages that had to wait were delivered, as far as the log shows: it has their copies.

A broker stores a delayed or a timer message once more when it is due: under its real topic, with its unique
key, after the record that waited. So while the log has the latter it has the former. The copy of a delayed
message has its queue, the time at which it was born, and the number of its attempts too.

Source: ScheduleMessageService#messageTimeUp, TimerMessageStore#convert.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from sys import intern
from typing import NamedTuple

from rmqtool.formats.properties import REAL_QID, REAL_TOPIC
from rmqtool.log.damage import WALK_CODES, codes_of
from rmqtool.log.events import OFFSET_MISMATCH
from rmqtool.message.system_topics import HALF_TOPICS, SCHEDULE_TOPIC
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store

_FOREIGN = frozenset(codes_of(OFFSET_MISMATCH))
_COLUMNS = (
    "topic", "queue_id", "uniq_key", "born_timestamp_ms", "reconsume_times", "store_timestamp_ms",
    "physical_offset", "status",
)  # fmt: skip
_WAITING_COLUMNS = (
    "queue_id", "queue_offset", "uniq_key", "born_timestamp_ms", "reconsume_times", "physical_offset",
    "status", "properties",
)  # fmt: skip


class Copy(NamedTuple):
    """A sound record with one of the unique keys."""

    topic: str
    queue_id: int
    uniq_key: str
    born_timestamp_ms: int
    reconsume_times: int
    store_timestamp_ms: int
    physical_offset: int


class Waited(NamedTuple):
    """A record of a delayed message.

    Attributes:
        level: from 1.
        queue_offset: in queue `level - 1` of SCHEDULE_TOPIC_XXXX.
        physical_offset: of the record.
        topic, queue_id: the real ones.
        uniq_key: None or empty if it has none.
        born_timestamp_ms: ms since 1970.
        reconsume_times: how often it was sent back before.
    """

    level: int
    queue_offset: int
    physical_offset: int
    topic: str
    queue_id: int
    uniq_key: str | None
    born_timestamp_ms: int
    reconsume_times: int


_Identity = tuple[str, int, str, int, int]


def copies(store: Store, topics: Iterable[str], keys: Collection[str]) -> Iterator[Copy]:
    """The sound records of some topics with one of these unique keys, in the order of the log.

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
        for *values, status in zip(*(found.column(name).to_pylist() for name in _COLUMNS), strict=True):
            if WALK_CODES.isdisjoint(status):
                yield Copy(*values)


def delivered(store: Store, waited: Iterable[Waited], log_end: int | None = None) -> dict[int, int]:
    """Those of these delayed messages that the log has a later copy of.

    A copy counts for one message. Of messages of several levels that are alike, and of which the log has
    fewer copies, none counts: the copies do not say which of them were delivered.

    Args:
        store: opened for reading.
        waited: the messages.
        log_end: physical offset; later copies do not count. None: all do.

    Returns:
        The physical offset of the copy, by that of the record that waited.

    Raises: as `copies`.
    """
    left: dict[_Identity, list[tuple[int, int]]] = {}
    for each in waited:
        if each.uniq_key:
            identity = each.topic, each.queue_id, each.uniq_key, each.born_timestamp_ms, each.reconsume_times
            left.setdefault(identity, []).append((each.physical_offset, each.level))
    for places in left.values():
        places.sort(reverse=True)
    of_levels = {
        identity: tuple(places)
        for identity, places in left.items()
        if len(places) > 1 and len({level for _, level in places}) > 1
    }
    found: dict[int, int] = {}
    for copy in copies(store, {each[0] for each in left}, {each[2] for each in left}):
        if log_end is not None and copy.physical_offset >= log_end:
            break
        remaining = left.get(copy[:5])
        if remaining and remaining[-1][0] < copy.physical_offset:
            found[remaining.pop()[0]] = copy.physical_offset
    for identity, all_of_it in of_levels.items():
        if left[identity]:
            for place, _ in all_of_it:
                found.pop(place, None)
    return found


def delayed_messages(store: Store) -> Iterator[Waited]:
    """The stored delayed messages, in the order of the log, without those that a broker discards.

    A broker discards a record that names no real topic and queue, and a half message, which the fillers of
    `recover` pretend to be.

    Raises: as `copies`.
    """
    from rmqtool.read.messages import message_batches

    for batch in message_batches(store, Selection(topics=(SCHEDULE_TOPIC,)), columns=_WAITING_COLUMNS):
        for row in batch.to_pylist():
            values = dict(row["properties"] or ())
            topic, number = values.get(REAL_TOPIC), values.get(REAL_QID, "")
            is_number = number.isascii() and number.isdecimal() and len(number) < 11
            if topic and is_number and topic not in HALF_TOPICS and _FOREIGN.isdisjoint(row["status"]):
                yield Waited(
                    row["queue_id"] + 1, row["queue_offset"], row["physical_offset"], intern(topic),
                    int(number), row["uniq_key"], row["born_timestamp_ms"], row["reconsume_times"],
                )  # fmt: skip
