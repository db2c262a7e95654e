"""The delivery time of delayed messages; only a message's unit shows it for certain.

The broker computes the time once, when it dispatches the record, and stores it as the unit's tags code.
The table that it computed it by is in its configuration, which is not in the store.

Source: ConsumeQueue#putMessagePositionInfoWrapper, ScheduleMessageService; spec 01 5.2.
"""

from __future__ import annotations

from threading import Lock

from rmqtool.errors import InputError, UnreadableError
from rmqtool.formats.message import Message
from rmqtool.message.system_topics import SCHEDULE_TOPIC, DueOf, due_by_table
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.delay_levels import configured
from rmqtool.read.store import Store


def due_of(store: Store) -> DueOf:
    """When delayed messages of a store are due: by their units, else by the store's messageDelayLevel.

    None for a message without a unit where broker.conf is not there or does not name the levels. Threads
    may ask at once.

    Raises:
        UsageError: messageDelayLevel cannot be read.
    """
    levels = configured(store.layout.broker_conf)
    by_table = due_by_table(levels) if levels else None
    lock = Lock()

    def due(record: Message, level: int) -> int | None:
        with lock:
            due_ms = _by_unit(store, record)
        return by_table(record, level) if due_ms is None and by_table is not None else due_ms

    return due


def _by_unit(store: Store, record: Message) -> int | None:
    try:
        queue = store.queue(record.topic, record.queue_id)
        if not isinstance(queue, ConsumeQueue):
            return None
        unit = queue.unit(record.queue_offset)
    except InputError:  # it cannot be read, or is in RocksDB
        return None
    if unit is None or unit.is_pre_blank or unit.physical_offset != record.physical_offset:
        return None
    code = queue.tags_code(unit)
    return code if code is not None and code >= record.store_timestamp else None  # else the hash of a tag


def expired_before_due(store: Store) -> dict[int, int]:
    """By level, how many delayed messages were deleted, with their files of the log, before they were due.

    A delivery stores a message again. So what is due later than the newest record was stored has never been
    delivered; of other messages whose records are gone this is not known, and they are not counted. A queue
    that cannot be read is among `store.failures`.
    """
    from rmqtool.queue.units import UnitReader

    found: dict[int, int] = {}
    newest = (
        store.last_stored_ms() if store.commit_log.min_offset > 0 and store.layout.kind == "store" else None
    )
    if newest is None:
        return found
    with UnitReader() as reader:
        for (topic, queue_id), queue in store.queues.items():
            if topic != SCHEDULE_TOPIC or not isinstance(queue, ConsumeQueue) or not queue.files:
                continue
            count, start = 0, queue.files[0].file_from_offset // queue.unit_size
            try:
                for _, units in reader.live_between(queue, start, store.first_live(topic, queue_id)):
                    due, is_known = queue.extension.tags_codes(units["tags_code"])
                    count += int((is_known & (due > newest)).sum())
            except UnreadableError as error:
                store.note_failure(error)
            if count:
                found[queue_id + 1] = count
    return found
