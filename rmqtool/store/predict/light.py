"""Light queues: a record that names some has a unit in each of them too.

Source: ConsumeQueue#multiDispatchLmqQueue, MultiDispatchUtils#isNeedHandleMultiDispatch; spec 02 5.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.scan.frames import Frames
from rmqtool.scan.keys import MULTI_DISPATCH, Dispatch
from rmqtool.store.profile import Profile
from rmqtool.store.verify.queues import light_dispatches
from rmqtool.store.write.options import WriteOptions

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]


class LightUnit(NamedTuple):
    """One unit more of the record in row `row` of a batch."""

    row: int
    topic: bytes
    name: str
    queue_id: int
    queue_offset: int


def light_units(frames: Frames, dispatch: Dispatch) -> tuple[LightUnit, ...]:
    """What the records of a batch say, in their order; mostly nothing."""
    named = np.flatnonzero((dispatch.flags & MULTI_DISPATCH) != 0).tolist()
    if not named:
        return ()
    rows, starts = frames.rows, frames.properties_starts()
    found = []
    for row in named:
        start, topic = int(starts[row]), frames.topics[int(rows["topic_id"][row])]
        data = bytes(frames.data[start : start + int(rows["properties_length"][row])])
        for (name, queue_id), offset in light_dispatches(data, int(rows["queue_id"][row])):
            if name:
                found.append(LightUnit(row, topic, name, queue_id, offset))
    return tuple(found)


class LightRule:
    """Which of them one broker dispatches: 5.x none of some topics, and into no queue with a `/`."""

    def __init__(self, profile: Profile, *, enabled: bool) -> None:
        self._options = WriteOptions(profile=profile, multi_dispatch=enabled)

    def of(self, units: tuple[LightUnit, ...]) -> tuple[LightUnit, ...]:
        """Those that the broker makes."""
        return tuple(filter(self._takes, units)) if units else ()

    def _takes(self, unit: LightUnit) -> bool:
        is_new = self._options.profile.writes_version_2
        return self._options.may_be_light(unit.topic) and not (is_new and "/" in unit.name)


def with_light(
    entries: Array,
    chosen: Array,
    units: tuple[LightUnit, ...],
    tags_code: Array,
    number: Callable[[bytes], int],
) -> Array:
    """The entries of the rows `chosen`, ascending, each followed by those of its light queues."""
    parts, done = [], 0
    for unit in units:
        place = int(np.searchsorted(chosen, unit.row))
        if place == len(chosen) or chosen[place] != unit.row:
            continue
        parts.append(entries[done : place + 1])
        done = place + 1
        light = entries[place : place + 1].copy()
        light["topic"], light["queue_id"] = number(unit.name.encode()), unit.queue_id
        light["queue_offset"], light["tags_code"] = unit.queue_offset, tags_code[unit.row]
        parts.append(light)
    return np.concatenate([*parts, entries[done:]]) if parts else entries
