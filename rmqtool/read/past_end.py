"""Units of the selected queues that point past the end of the log: why a message is not found."""

from __future__ import annotations

from rmqtool.errors import UnreadableError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store


@dataclass(frozen=True, slots=True)
class UnitsPastEnd:
    """How many units, of how many queues, point past the end of the log."""

    units: int
    queues: int


def units_past_end(store: Store, selection: Selection) -> UnitsPastEnd | None:
    """Count the units of the queues that a selection names and that point past the end of the log.

    None without such units, if the selection ends before the log does, and for a log that a broker may be
    writing: its units are then newer than what was read of it. Of each queue the end is read, and where the
    newest unit has no record a few units more, as physical offsets rise along a queue. A queue that cannot
    be read is left out.
    """
    if not (selection.topics or selection.exclude_topics or selection.queues):
        return None
    if not store.commit_log.files or store.layout.queue_logs is not None:
        return None
    ends: dict[tuple[str, int], int] = {}
    for key in store.queues:
        if selection.matches_topic(key[0]) and (not selection.queues or key[1] in selection.queues):
            try:
                stop, unit = store.queues[key].end_and_last()
            except UnreadableError:
                continue
            if unit is not None and not unit.is_pre_blank and not _has_record(store, unit.physical_offset):
                ends[key] = stop
    if not ends or store.live:
        return None
    log_end = store.end_offset()
    if selection.to_offset is not None and selection.to_offset <= log_end:
        return None
    if selection.until is not None and selection.time_field == "store":
        last_ms = store.last_stored_ms()
        if last_ms is not None and selection.until <= last_ms:
            return None
    counts = []
    for key, stop in ends.items():
        number = store.queues[key].first(lambda unit: unit.physical_offset >= log_end, stop)
        counts += [stop - number] if number < stop else []
    return UnitsPastEnd(sum(counts), len(counts)) if counts else None


def _has_record(store: Store, physical_offset: int) -> bool:
    head = store.head(physical_offset)
    return head is not None and head.stored_offset == physical_offset
