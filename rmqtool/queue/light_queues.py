"""Light queues: a record that names some in its properties has a unit in each of them too.

Source: ConsumeQueue#multiDispatchLmqQueue, MultiDispatchUtils#isNeedHandleMultiDispatch; spec 02 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.formats import properties
from rmqtool.formats.java import parse_integer

if TYPE_CHECKING:
    from rmqtool.log.dispatch import Dispatch
    from rmqtool.log.frames import Frames
    from rmqtool.storage.buffers import Array

LIGHT_PREFIX = "%LMQ%"
"""Names of light queues (INNER_MULTI_DISPATCH) begin with it; their units name records of other topics."""
_LONG = 1 << 63


class LightUnit(NamedTuple):
    """Where the unit of a record stands in a light queue."""

    topic: str
    queue_id: int
    queue_offset: int


def light_units(found: Mapping[str, str], queue_id: int) -> Iterator[LightUnit]:
    """The units of a record in light queues.

    Args:
        found: its properties.
        queue_id: its own one.
    """
    names = found.get(properties.INNER_MULTI_DISPATCH, "").split(",")
    offsets = found.get(properties.INNER_MULTI_QUEUE_OFFSET, "").split(",")
    if len(names) != len(offsets):
        return
    for name, text in zip(names, offsets, strict=True):
        offset = parse_integer(text, _LONG)
        if name and offset is not None:
            yield LightUnit(name, 0 if name.startswith(LIGHT_PREFIX) else queue_id, offset)


class Named(NamedTuple):
    """One more unit of the record in row `row` of a batch, whose topic is `topic`."""

    row: int
    topic: bytes
    unit: LightUnit


def named_units(frames: Frames, dispatch: Dispatch) -> tuple[Named, ...]:
    """Return the units that the records of a batch name in light queues, in their order; usually none."""
    import numpy as np

    from rmqtool.log.dispatch import MULTI_DISPATCH

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
    import numpy as np

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
