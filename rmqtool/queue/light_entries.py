"""Units of light queues (`light_queues`) of many records: which they name, their dispatch entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from rmqtool.formats import properties
from rmqtool.log.dispatch import MULTI_DISPATCH, Dispatch
from rmqtool.log.frames import Frames
from rmqtool.queue.light_queues import LightUnit, light_units
from rmqtool.storage.buffers import Array


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


def with_light(
    entries: Array,
    chosen: Array,
    named: Iterable[Named],
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
        light["ext_size"] = 0  # ConsumeQueue#doDispatchLmqQueue
        parts.append(light)
    return np.concatenate([*parts, entries[done:]]) if parts else entries
