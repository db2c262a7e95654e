"""The timer messages that were not delivered yet, in the timer log and not in it yet.

In a sound timer its log and the rest of its queue show them. If units or files of it are lost, they are those
that have no later copy in the commit log.

Source: TimerMessageStore#doEnqueue, #dequeue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rmqtool.errors import InputError, UnreadableError
from rmqtool.formats import properties
from rmqtool.formats import timer as form
from rmqtool.message.system_topics import REVIVE_PREFIX, TIMER_TOPIC
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.timer_loss import due_ms_of, find_loss
from rmqtool.read.timer_units import waiting_units
from rmqtool.storage.config_files import read_file

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.storage.buffers import Array

READ_MAX = 100_000
"""Most timer messages whose properties are read. Of others an unknown delivery time stays unknown, and
records of POP count as messages."""
UNKNOWN = 0
"""The value of an unknown delivery time."""


class PendingTimers(NamedTuple):
    """Arrays of one shape: `due` (ms since 1970), `sizes` (bytes) and `places` (physical offsets) are i8.

    `is_pop` tells the records of POP: a broker looks at their messages again then.
    """

    due: Array
    sizes: Array
    places: Array
    is_pop: Array


def pending_timers(store: Store) -> PendingTimers:
    """Timer messages that have not been delivered.

    Raises:
        UnreadableError: the timer log, its check file or the log cannot be read.
        FormatError: timer messages in RocksDB cannot be read.
    """
    import numpy as np

    loss = find_loss(store)
    if loss is not None:  # neither the timer log nor timercheck shows alone what waits
        waiting = [each for each in loss.pending if not each.is_delete]
        return PendingTimers(
            np.array([each.due_ms or UNKNOWN for each in waiting], np.int64),
            np.array([each.size for each in waiting], np.int64),
            np.array([each.physical_offset for each in waiting], np.int64),
            np.array([each.topic.startswith(REVIVE_PREFIX) for each in waiting], np.bool_),
        )
    due, sizes, places = _waiting(store)
    deletes, is_pop = np.zeros((2, len(due)), np.bool_)
    first = np.argsort(due, kind="stable")[:READ_MAX]  # those without a delivery time
    for number in first.tolist():
        values = _properties(store, int(places[number]))
        if due[number] == UNKNOWN:
            deletes[number] = properties.TIMER_DEL_UNIQKEY in values
            due[number] = due_ms_of(values) or UNKNOWN
        is_pop[number] = values.get(properties.REAL_TOPIC, "").startswith(REVIVE_PREFIX)
    return PendingTimers(due[~deletes], sizes[~deletes], places[~deletes], is_pop[~deletes])


def _waiting(store: Store) -> tuple[Array, Array, Array]:
    """(due, size, physical offset) of a timer that has lost nothing; of some due is UNKNOWN."""
    import numpy as np

    from rmqtool.queue.units import UnitReader

    in_rocksdb = _in_rocksdb(store)
    if in_rocksdb is not None:
        due, sizes, places, next_offset = in_rocksdb
    else:  # without any of its files a broker takes all messages of the queue
        check = _check(store)
        due, sizes, places = _logged(store, check.last_read_time if check is not None else 0)
        next_offset = check.last_timer_queue_offset if check is not None else 0
    queue = store.queues.get((TIMER_TOPIC, 0))
    if isinstance(queue, ConsumeQueue):
        live = store.first_live(TIMER_TOPIC, 0)
        with UnitReader() as reader:
            for _, units in reader.live_between(queue, max(next_offset, live), queue.max_offset()):
                sizes = np.concatenate([sizes, units["size"].astype(np.int64)])
                places = np.concatenate([places, units["physical_offset"].astype(np.int64)])
                due = np.concatenate([due, np.full(len(units), UNKNOWN)])
    return due, sizes, places


def _in_rocksdb(store: Store) -> tuple[Array, Array, Array, int] | None:
    """(due, size, physical offset, next queue offset) as the database has them; None without one."""
    import numpy as np

    database = store.layout.rocksdb_messages
    if database is None:
        return None
    from rmqtool.storage.rocksdb.messages import read_timers

    found = read_timers(database)
    if found is None:
        return None
    start = store.commit_log.min_offset
    waiting = [each for each in found.entries if each.due_ms > found.delivered_ms]
    waiting = [each for each in waiting if each.physical_offset >= start]
    columns = zip(*((each.due_ms, each.size, each.physical_offset) for each in waiting), strict=True)
    due, sizes, places = (
        (np.array(each, np.int64) for each in columns) if waiting else np.zeros((3, 0), np.int64)
    )
    return due, sizes, places, found.next_offset


def _logged(store: Store, read_ms: int) -> tuple[Array, Array, Array]:
    """(due, size, physical offset) of the waiting units of the timer log; due is UNKNOWN if rolled."""
    import numpy as np

    _, units = waiting_units(store, read_ms)
    wanted = units["magic"] & form.MAGIC_DELETE == 0
    units = units[wanted & (units["physical_offset"] >= store.commit_log.min_offset)]
    due = units["write_time"].astype(np.int64) + units["delay"]
    due = np.where(units["magic"] & form.MAGIC_ROLL != 0, UNKNOWN, due)
    sizes, places = (units[name].astype(np.int64) for name in ("message_size", "physical_offset"))
    _, last = np.unique(places[::-1], return_index=True)  # a unit that was written twice counts once
    chosen = np.sort(len(places) - 1 - last)
    return due[chosen], sizes[chosen], places[chosen]


def _properties(store: Store, physical_offset: int) -> dict[str, str]:
    """The properties of a record; none if it cannot be read."""
    found = store.find(physical_offset)
    return properties.decode(found.message.properties_bytes) if found is not None else {}


def _check(store: Store) -> form.Check | None:
    path = store.layout.timer_check
    if path is None:
        return None
    data = read_file(path, form.CHECK_FILE_SIZE)
    try:
        return form.decode_check(data)
    except InputError as error:
        raise UnreadableError(f"the timer's check file: {error.message}", path=path) from error
