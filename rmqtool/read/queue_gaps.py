"""Where the log may hold the record of a queue offset that the queue itself has no unit for.

A queue is missing, ends before the log does after a crash, or has places without units: the record of one of
them lies between the records of its neighbours.
"""

from __future__ import annotations

from rmqtool.message.system_topics import is_system_topic
from rmqtool.read import coverage
from rmqtool.read.coverage import Gap
from rmqtool.read.known_topics import queue_ids, topic_names
from rmqtool.read.store import Store


def lacking(
    store: Store, topic: str, queue_id: int, queue_offset: int, *, is_wrong: bool = False
) -> list[Gap]:
    """The range of the log to look in, in one gap or none; none too where the queue has the unit.

    Args:
        store: the store.
        topic: of the queue.
        queue_id: its id.
        queue_offset: the one that is looked for.
        is_wrong: the unit is there, and names another record.

    Raises:
        UnsupportedStoreError: the queues are in RocksDB.
        UnreadableError: the queue or the log cannot be read.
    """
    name = f"queue {queue_id} of {topic}"
    queue = store.queue(topic, queue_id)
    if queue is None or not queue.files:
        ids = queue_ids(store.layout, topic.__eq__) or set()
        if topic_names(store.layout) and queue_id not in ids and not is_system_topic(topic):
            return []  # no such queue was ever made
        return coverage.whole_log(store, f"{name} is missing")
    unit = queue.unit(queue_offset)
    if not is_wrong and unit is not None and not unit.is_pre_blank:
        return []
    before = next((unit for _, unit in queue.units(0, queue_offset, reverse=True)), None)
    behind = next((unit for _, unit in queue.units(queue_offset + 1)), None)
    start = store.commit_log.min_offset if before is None else before.physical_offset + before.size
    stop = store.end_offset() if behind is None else behind.physical_offset
    is_idle = behind is None and not is_wrong and (store.live or store.layout.abort is None)
    if is_idle and queue.after_end() is None:
        # No crash has taken units away: it has all that was dispatched, and may have been idle for long.
        start = max(start, store.dispatched_end())
    what = "ends before it" if behind is None else "has no unit for it"
    if is_wrong:
        what = "names another record there"
    return coverage.within([Gap(start, stop, f"{name} {what}")], store.commit_log.min_offset, None)
