"""Queue offsets and times as the Kafka source and rocketmq-spark spell them in options.

A text is `earliest`, `latest`, or JSON of two levels, `{"topic": {"0": 23}}`, or of three, with the
broker between topic and queue, `{"topic": {"broker-a": {"0": 23}}}`; a broker's name may be left out
where one store is read. In JSON -2 is the earliest and -1 the latest offset.

Source: Kafka's structured streaming guide; RocketMqUtils of rocketmq-spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

from rmqtool.errors import UsageError
from rmqtool.lazy_dataclass import dataclass

EARLIEST = -2
LATEST = -1

Kind = Literal["earliest", "latest", "offsets", "times"]


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue of a topic; `broker` is None where the text leaves it out."""

    topic: str
    broker: str | None
    queue_id: int

    def __str__(self) -> str:
        return "/".join(map(str, (self.topic, *((self.broker,) if self.broker else ()), self.queue_id)))


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or end of a read: one word for all queues, or a value for each of some queues.

    `values` are queue offsets (kind `offsets`) or store times in ms since 1970 (kind `times`).
    """

    kind: Kind
    values: tuple[tuple[QueueName, int], ...] = ()

    @property
    def names_queues(self) -> bool:
        """Whether each queue has a value of its own."""
        return self.kind in ("offsets", "times")


def parse_offsets(option: str, text: str) -> Bound:
    """`startingOffsets` or `endingOffsets`. Raises UsageError, naming the option."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Bound("earliest" if word == "earliest" else "latest")
    return Bound("offsets", tuple(_values(option, text, _offset)))


def parse_times(option: str, text: str) -> Bound:
    """`startingOffsetsByTimestamp` or `endingOffsetsByTimestamp`. Raises UsageError, naming the option."""
    return Bound("times", tuple(_values(option, text, _time)))


def parse_assign(option: str, text: str) -> tuple[QueueName, ...]:
    """`assign`: `{"topic": [0, 1]}`, or with the broker between. Raises UsageError, naming the option."""
    names: list[QueueName] = []
    for topic, inner in _object(option, text).items():
        for broker, ids in inner.items() if isinstance(inner, dict) else [(None, inner)]:
            if not isinstance(ids, list) or not ids:
                raise _wrong(option, f"the queues of {topic!r} are not a list of  numbers")
            names += (QueueName(topic, broker, _queue_id(option, topic, each)) for each in ids)
    if len(set(names)) != len(names):
        raise _wrong(option, "a queue is named twice")
    return tuple(sorted(names, key=str))


def _values(option: str, text: str, check: Callable[[str, str, Any], int]) -> Iterator[tuple[QueueName, int]]:
    for topic, inner in _object(option, text).items():
        if not isinstance(inner, dict) or not inner:
            raise _wrong(option, f"{topic!r} needs an object of queues")
        brokers = [isinstance(value, dict) for value in inner.values()]
        if any(brokers) and not all(brokers):
            raise _wrong(option, f"{topic!r} has queues and brokers side by side")
        for broker, queues in inner.items() if all(brokers) else [(None, inner)]:
            for queue, value in queues.items():
                yield QueueName(topic, broker, _queue_id(option, topic, queue)), check(option, topic, value)


def _object(option: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found:
        raise _wrong(option, "it is not a JSON object of topics")
    return found


def _queue_id(option: str, topic: str, value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(option, f"{value!r} is not a queue of {topic!r}")
    return value


def _offset(option: str, topic: str, value: Any) -> int:
    return _number(option, topic, value, EARLIEST)


def _time(option: str, topic: str, value: Any) -> int:
    return _number(option, topic, value, 0)


def _number(option: str, topic: str, value: Any, smallest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value < 1 << 63:
        raise _wrong(option, f"{value!r} is not a valid value for a queue of {topic!r}")
    return value


def _wrong(option: str, what: str) -> UsageError:
    return UsageError(
        f"option {option}: {what}",
        hint='use JSON: {"topic": {"0": 23}} or {"topic": {"broker": {"0": 23}}}; for assign {"topic": [0]}',
    )
