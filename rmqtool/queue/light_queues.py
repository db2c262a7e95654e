"""Light queues: a record that names some in its properties has a unit in each of them too.

Source: ConsumeQueue#multiDispatchLmqQueue, MultiDispatchUtils#isNeedHandleMultiDispatch; spec 02 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rmqtool.formats import properties
from rmqtool.formats.java import parse_integer

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


LIGHT_PREFIX = "%LMQ%"
"""Of light queues (INNER_MULTI_DISPATCH): their units name records of other topics."""
