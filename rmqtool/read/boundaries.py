"""Places in the log where a record begins, found through consume queues; a pattern of bytes is never trusted.

    QueueBoundaries(store).before(start, wanted)    the last such place at or before `wanted`
    time_bounds(store, start, stop, selection)      the part of a range in which a time range lies

Store times rise along a log: two records in a row that were stored before a time, and so were all before
them. A clock that was set back by less than CLOCK_SLACK_MS does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rmqtool.errors import UnreadableError
from rmqtool.queue.consume_queue import AnyQueue
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.buffers import Array

CLOCK_SLACK_MS = 600_000
"""How far the clock of a broker may have been set back without a record being missed."""
_QUEUES_MAX = 16
"""The longest queues show where records begin: records of at least one of them are close together."""
_HINTS = 4
WORTH_BYTES = 64 << 20
"""Reading a smaller range takes less time than dividing it."""
_STEP_BYTES = 1 << 20


def longest_queues(store: Store) -> list[AnyQueue]:
    """The longest queues, by the size of their files, the longest last."""
    return [store.queues[key] for key in longest_keys(store)]


def longest_keys(store: Store) -> list[tuple[str, int]]:
    """Topic and queue id of the longest queues, the longest last."""
    queues = store.queues
    return sorted(queues, key=lambda key: sum(file.size for file in queues[key].files))[-_QUEUES_MAX:]


class QueueBoundaries:
    """Finds starts of records through the longest queues of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queues = longest_queues(store)

    def before(self, start: int, wanted: int) -> int | None:
        """Return the last offset in (start, wanted] of a sound record that a unit names; None without one."""
        places = []
        for queue in self._queues:
            try:
                unit = queue.before(wanted)
            except UnreadableError:
                continue
            if unit is not None:
                places.append(unit.physical_offset)
        return self._sound(start, sorted(set(places), reverse=True)[:_HINTS])

    def before_among(self, places: Array, start: int, wanted: int) -> int | None:
        """The same, where rising places of units were read already: for many questions about one range."""
        last = int(np.searchsorted(places, wanted, "right"))
        return self._sound(start, [int(place) for place in places[max(last - _HINTS, 0) : last][::-1]])

    def _sound(self, start: int, places: Sequence[int]) -> int | None:
        for place in places:
            if place <= start:
                return None
            if self._store.commit_log.is_sound_at(place):
                return place
        return None


def time_bounds(store: Store, start: int, stop: int, selection: Selection) -> tuple[int, int]:
    """The part [start, stop) of a range that may hold records of the selection's time range.

    It begins at `start` or at a record, and ends at `stop` or at a record. All of a range that is small,
    or of a store elsewhere, where every question costs a request.
    """
    since, until = selection.since, selection.until
    if selection.time_field != "store" or (since is None and until is None):
        return start, stop
    if not store.is_local or stop - start < WORTH_BYTES:
        return start, stop
    boundaries = QueueBoundaries(store)
    if since is not None:
        start = _last_before(boundaries, start, stop, lambda place: is_before(store, place, since))
    if until is not None:
        stop = _first_behind(boundaries, start, stop, lambda place: is_behind(store, place, until))
    return start, stop


def is_before(store: Store, place: int, since: int) -> bool:
    """Whether the record at a place, and all before it, were stored before `since`, ms since 1970."""
    times = _stored_at(store, place)
    return times is not None and max(times) + CLOCK_SLACK_MS < since


def is_behind(store: Store, place: int, until: int) -> bool:
    """Whether the record at a place, and all after it, were stored at `until` or later, ms since 1970."""
    times = _stored_at(store, place)
    return times is not None and min(times) >= until + CLOCK_SLACK_MS


def _stored_at(store: Store, physical_offset: int) -> tuple[int, int] | None:
    """The store times of a record and of the next, for one alone may be damaged; None without."""
    first = store.head(physical_offset)
    second = store.commit_log.following(first) if first is not None else None
    if first is None or second is None:
        return None
    if first.stored_offset != first.physical_offset or second.stored_offset != second.physical_offset:
        return None
    return first.store_timestamp, second.store_timestamp


def _last_before(boundaries: QueueBoundaries, start: int, stop: int, before: Callable[[int], bool]) -> int:
    """The last known place in [start, stop) that is before the time range, about; `start` where none is."""
    low, left, right = start, start, stop
    while right - left > _STEP_BYTES:
        middle = (left + right) // 2
        place = boundaries.before(low, middle)
        if place is None or before(place):
            low, left = low if place is None else place, middle
        else:
            right = middle
    return low


def _first_behind(boundaries: QueueBoundaries, start: int, stop: int, behind: Callable[[int], bool]) -> int:
    """The first known place in (start, stop] that is after the time range, about; `stop` without one."""
    high, left, right = stop, start, stop
    while right - left > _STEP_BYTES:
        middle = (left + right) // 2
        place = boundaries.before(left, middle)
        if place is not None and behind(place):
            high = right = place
        else:
            left = middle
    return high
