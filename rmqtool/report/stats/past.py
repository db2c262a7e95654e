"""The content of a store at an earlier time, as far as its files still show it.

Known: records have store times, so the ends of the queues and of the log at that time are known, and op
records show which transactions were finished. Unknown: files that were deleted since, and offsets that
consumers committed in between; consumerOffset.json only has the offsets of its own last change.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqtool.errors import UnreadableError
from rmqtool.queue.consume_queue import AnyQueue
from rmqtool.read.by_time import first_stored
from rmqtool.read.store import Store
from rmqtool.storage import config_files


@dataclass(frozen=True, slots=True)
class Past:
    """A store at a time in the past.

    `time_ms` is exclusive: a record stored in that millisecond does not exist yet. `log_end` is the physical
    offset where the log ended then. `offsets_known` is whether no committed offset has changed since.
    `unknown` lists what cannot be known, as texts.
    """

    time_ms: int
    log_end: int
    offsets_known: bool
    unknown: tuple[str, ...]


def look_back(store: Store, time_ms: int) -> Past:
    """The store at a time, ms since 1970."""
    unknown = []
    start = store.commit_log.min_offset
    if start > 0:
        unknown.append(f"records below physical offset {start}: their files were deleted since, or before")
    offsets_known = False
    root = store.layout.root
    if root is not None and store.layout.kind == "store":
        try:
            changed = (root / config_files.FOLDER / "consumerOffset.json").stat().st_mtime_ns // 1_000_000
            offsets_known = changed < time_ms and not store.live
        except OSError:
            offsets_known = False
        if not offsets_known:
            unknown.append("offsets that consumers had committed: consumerOffset.json was written later")
    ends = [start, *(_end_at(store, queue, time_ms) for queue in store.queues.values())]
    return Past(time_ms, max(ends), offsets_known, tuple(unknown))


def _end_at(store: Store, queue: AnyQueue, time_ms: int) -> int:
    """The physical offset after the queue's last record that was stored before a time; -1 if none."""
    try:
        unit = queue.unit(offset_at(store, queue, time_ms) - 1)
    except UnreadableError:
        return -1
    return -1 if unit is None or unit.is_pre_blank else unit.physical_offset + unit.size


def offset_at(store: Store, queue: AnyQueue, time_ms: int) -> int:
    """The queue offset where a queue ended at a time: that of its first message stored then or later.

    See `first_stored`. Raises UnreadableError.
    """
    end = queue.end()
    return queue.offset_at(first_stored(store, queue, time_ms, end), end)
