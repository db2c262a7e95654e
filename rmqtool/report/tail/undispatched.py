"""What the queues of a stopped store do not have, so that no consumer sees it before a recovery."""

from __future__ import annotations

from collections.abc import Iterator

from rmqtool.errors import UnreadableError
from rmqtool.read.known_topics import queue_ids
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store

_MEND = "rmqtool recover rebuilds the queues"


def behind_texts(store: Store, selection: Selection) -> Iterator[str]:
    """In words: how much of the log no queue has, and which selected queues have no files.

    Nothing for a store that is in use, whose queues lag for a moment, or for a remote one, where
    the last unit of every queue takes too long to be read.
    """
    if store.live or not store.is_local:
        return
    try:
        start, end = max(store.dispatched_end(), store.commit_log.min_offset), store.end_offset()
    except UnreadableError:
        return  # it is reported as damage
    if start < end:
        behind = f"the queues end {end - start} bytes before the log, at offset {start}"
        yield f"{behind}: later messages are not shown; {_MEND}"
    there = set(store.queues)
    for topic in sorted(each for each in selection.topics if not set("*?[") & set(each)):
        known = queue_ids(store.layout, topic.__eq__) or set()
        asked = known & set(selection.queues) if selection.queues else known
        missing = sorted(queue_id for queue_id in asked if (topic, queue_id) not in there)
        if missing and len(missing) == len(asked):
            which = f"queue {', '.join(map(str, missing))} of {topic}" if selection.queues else topic
            yield f"{which} has no files of queues; if the log has messages of it, {_MEND}"
