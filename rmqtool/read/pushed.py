"""Conditions of a query -> what need not be read: what Spark and SQL push down, as bounds and as a Selection.

A condition compares one column with values, and all conditions hold. None of them has to be used: whoever
pushes them down tests every row again, so what is read may be more than what passes, but never less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from glob import escape
from typing import Any, Final, Literal

from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.selection import Selection

Operator = Literal["=", "in", "starts with", ">", ">=", "<", "<="]
"""`in` has a collection of values, all others have one value."""

Range = tuple[int | None, int | None]
"""Half-open; None means unbounded."""

BROKER: Final = "broker_name"
"""The column that is not one of `message.columns`: the name of the store's broker."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SETS: Final = {
    "topic": ("topics", str),
    "queue_id": ("queues", int),
    "tags": ("tags", str),
    "uniq_key": ("keys", str),
    BROKER: ("brokers", str),
}
_RANGES: Final = {
    "queue_offset": "queue_offsets",
    "physical_offset": "physical_offsets",
    "store_timestamp_ms": "store_times",
    "store_time": "store_times",
}


@dataclass(frozen=True, slots=True)
class Pushed:
    """Conditions of the query's filters that reduce what is read. None means any value.

    Sets are alternatives, ranges half-open. It may let more through than the filters, which are tested again
    on every row.
    """

    topics: frozenset[str] | None = None
    topic_prefix: str | None = None
    queues: frozenset[int] | None = None
    queue_offsets: Range = (None, None)
    physical_offsets: Range = (None, None)
    store_times: Range = (None, None)
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    brokers: frozenset[str] | None = None

    def lets_broker(self, name: str) -> bool:
        """Whether rows of a broker can pass."""
        return self.brokers is None or name in self.brokers

    def and_where(self, column: str, operator: Operator, value: Any) -> Pushed:
        """The conditions and one more, on a column by its engine name; unchanged if that reduces nothing.

        A value of None equals nothing. Times are those of Python; without a zone they are local.
        """
        if operator == "starts with":
            if column != "topic" or not isinstance(value, str):
                return self
            return replace(self, topic_prefix=max(self.topic_prefix or "", value, key=len))
        if column in _SETS:
            return self._with_set(column, operator, value)
        name = _RANGES.get(column)
        found = (
            None if name is None else _range(operator, value, _floor_ms if column == "store_time" else _floor)
        )
        if name is None or found is None:
            return self
        changed: Any = {name: intersect(getattr(self, name), found)}
        return replace(self, **changed)

    def _with_set(self, column: str, operator: Operator, value: Any) -> Pushed:
        name, kind = _SETS[column]
        if operator == "=":
            values: frozenset[Any] = frozenset((value,))
        elif operator == "in":
            values = frozenset(one for one in value if one is not None)
        else:
            return self
        if not all(type(one) is kind for one in values):
            return self
        known: frozenset[Any] | None = getattr(self, name)
        if name == "keys" and known is not None:
            return self  # two conditions on keys: one is enough to find the messages
        changed: Any = {name: values if known is None else known & values}
        return replace(self, **changed)


NOTHING_PUSHED = Pushed()


def narrowed(selection: Selection, pushed: Pushed) -> Selection | None:
    """The part of a selection that conditions let through, or more of it; None if that is nothing.

    Conditions on queue offsets and on the broker are not used: a Selection has none.
    """
    topics = _topics(frozenset(selection.topics), pushed)
    queues = _both(frozenset(selection.queues) or None, pushed.queues)
    tags = _both(frozenset(selection.tags) or None, pushed.tags)
    times = pushed.store_times
    if selection.time_field == "store":
        times = intersect((selection.since, selection.until), times)
    offsets = intersect((selection.from_offset, selection.to_offset), pushed.physical_offsets)
    keys = selection.keys or pushed.keys
    if any(found is not None and not found for found in (topics, queues, tags, pushed.keys)):
        return None
    if any(map(is_empty, (times, offsets, pushed.queue_offsets))):
        return None
    if offsets[1] is not None and offsets[1] <= 0:
        return None
    if selection.time_field != "store":
        times = (selection.since, selection.until)
    return replace(
        selection,
        topics=topics or (),
        queues=queues or (),
        tags=tags or (),
        keys=keys or (),
        since=times[0],
        until=times[1],
        from_offset=None if offsets[0] is None else max(offsets[0], 0),
        to_offset=offsets[1],
    )


def intersect(first: Range, second: Range) -> Range:
    """The part that two ranges share."""
    low = max((each for each in (first[0], second[0]) if each is not None), default=None)
    high = min((each for each in (first[1], second[1]) if each is not None), default=None)
    return low, high


def is_empty(bounds: Range) -> bool:
    """Whether a range holds nothing."""
    return bounds[0] is not None and bounds[1] is not None and bounds[1] <= bounds[0]


def _topics(globs: frozenset[str], pushed: Pushed) -> frozenset[str] | None:
    """Globs that say what a selection and conditions agree on, or more; None is every topic."""
    prefix = pushed.topic_prefix or ""
    if pushed.topics is not None:
        known = Selection(topics=globs)
        return frozenset(
            escape(topic)
            for topic in pushed.topics
            if known.matches_topic(topic) and topic.startswith(prefix)
        )
    if prefix and not globs:
        return frozenset((escape(prefix) + "*",))
    return globs or None


def _both(first: frozenset[Any] | None, second: frozenset[Any] | None) -> frozenset[Any] | None:
    """Return the intersection of both sets; None allows everything."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _range(operator: Operator, value: Any, floor: Callable[[Any], tuple[int, bool] | None]) -> Range | None:
    """Whole numbers that a comparison lets through, half-open; None if the value is not such a number."""
    if operator == "in":
        values: Iterable[Any] = value
        found = [floor(one) for one in values if one is not None]
        known = [one for one in found if one is not None]
        if not known or len(known) != len(found):
            return None
        return min(known)[0], max(known)[0] + 1
    rounded = None if value is None else floor(value)
    if rounded is None:
        return None
    low, exact = rounded
    bounds: dict[str, Range] = {
        "=": (low, low + 1),
        ">": (low + 1, None),
        ">=": (low if exact else low + 1, None),
        "<": (None, low if exact else low + 1),
        "<=": (None, low + 1),
    }
    return bounds.get(operator)


def _floor(value: Any) -> tuple[int, bool] | None:
    """(value, True) of a whole number; None for anything else."""
    return (value, True) if type(value) is int else None


def _floor_ms(value: Any) -> tuple[int, bool] | None:
    """(milliseconds since 1970 rounded down, whether that is exact) of a time; None for anything else."""
    if not isinstance(value, datetime):
        return None
    if value.tzinfo is None:
        value = value.astimezone()  # PySpark makes a time without a zone one of the worker's zone
    since = value - _EPOCH
    return since // _MILLISECOND, since % _MILLISECOND == timedelta(0)
