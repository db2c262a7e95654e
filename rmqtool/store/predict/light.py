"""Which units of light queues (`store.light_queues`) a broker's start makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.formats import properties
from rmqtool.scan.frames import Frames
from rmqtool.scan.keys import MULTI_DISPATCH, Dispatch
from rmqtool.store.light_queues import LightUnit, light_units
from rmqtool.store.profile import Profile
from rmqtool.store.write.options import WriteOptions

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]


class Named(NamedTuple):
    """One unit more of the record in row `row` of a batch, which is of `topic`."""

    row: int
    topic: bytes
    unit: LightUnit


def named_units(frames: Frames, dispatch: Dispatch) -> tuple[Named, ...]:
    """What the records of a batch say, in their order; mostly nothing."""
    named = np.flatnonzero((dispatch.flags & MULTI_DISPATCH) != 0).tolist()
    if not named:
        return ()
    rows, starts = frames.rows, frames.properties_starts()
    found = []
    for row in named:
        start, topic = int(starts[row]), frames.topics[int(rows["topic_id"][row])]
        data = bytes(frames.data[start : start + int(rows["properties_length"][row])])
        units = light_units(properties.decode(data), int(rows["queue_id"][row]))
        found += [Named(row, topic, unit) for unit in units]
    return tuple(found)


class LightRule:
    """Which of them one broker dispatches: 5.x none of some topics, and into no queue with a `/`."""

    def __init__(self, profile: Profile, *, enabled: bool) -> None:
        self._options = WriteOptions(profile=profile, multi_dispatch=enabled)

    def of(self, named: tuple[Named, ...]) -> tuple[Named, ...]:
        """Those that the broker makes."""
        return tuple(filter(self._takes, named)) if named else ()

    def _takes(self, named: Named) -> bool:
        is_new = self._options.profile.writes_version_2
        return self._options.may_be_light(named.topic) and not (is_new and "/" in named.unit.topic)


def with_light(
    entries: Array,
    chosen: Array,
    named: tuple[Named, ...],
    tags_code: Array,
    number: Callable[[bytes], int],
) -> Array:
    """The entries of the rows `chosen`, ascending, each followed by those of its light queues."""
    parts, done = [], 0
    for row, _, unit in named:
        place = int(np.searchsorted(chosen, row))
        if place == len(chosen) or chosen[place] != row:
            continue
        parts.append(entries[done : place + 1])
        done = place + 1
        light = entries[place : place + 1].copy()
        light["topic"], light["queue_id"] = number(unit.topic.encode()), unit.queue_id
        light["queue_offset"], light["tags_code"] = unit.queue_offset, tags_code[row]
        parts.append(light)
    return np.concatenate([*parts, entries[done:]]) if parts else entries
