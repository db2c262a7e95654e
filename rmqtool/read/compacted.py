"""What consumers get of compacted topics: messages of the compaction log, not those of the commit log.

Source: DefaultMessageStore#getMessage, CompactionStore#getMessage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from rmqtool.command_line import on_store
from rmqtool.errors import UnreadableError
from rmqtool.read.selection import Selection
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.queue_logs.find import compacted_in
from rmqtool.storage.queue_logs.model import QueueLog
from rmqtool.storage.queue_logs.view import CompactedLogs

_SHOWN = 3


def compacted_texts(layout: StoreLayout, selection: Selection) -> Iterator[str]:
    """In words where the selected queues of compacted topics begin for a consumer; a text for each topic."""
    logs = compacted_in(layout.root) if layout.kind == "store" and layout.root is not None else None
    if logs is None:
        return
    with closing(logs):
        topics: dict[str, list[QueueLog]] = {}
        for queue in logs.found.queues:
            is_wanted = not selection.queues or queue.queue_id in selection.queues
            if is_wanted and selection.matches_topic(queue.topic):
                topics.setdefault(queue.topic, []).append(queue)
        for topic, queues in islice(topics.items(), _SHOWN):
            begins = [_begin(logs, queue) for queue in queues[:_SHOWN]] + ["..."] * (len(queues) > _SHOWN)
            line = on_store(logs.folder, "dump", "--topic", topic)
            yield (
                f"{topic} is compacted: a consumer gets only the messages of its compaction log,"
                f" {', '.join(begins)}: {line}"
            )
        if len(topics) > _SHOWN:
            yield f"{len(topics) - _SHOWN} more topics are compacted"


def _begin(logs: CompactedLogs, queue: QueueLog) -> str:
    try:
        units = logs.sparse_units(queue)
    except UnreadableError:  # verify reports it
        return f"of queue {queue.queue_id} what can be read"
    if not len(units.offsets):
        return f"of queue {queue.queue_id} none"
    return f"of queue {queue.queue_id} from queue offset {units.first} on"
