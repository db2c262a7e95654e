"""The result of a put: the position of the message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from rmqtool.formats.message_id import offset_message_id
from rmqtool.times import format_time

if TYPE_CHECKING:
    from datetime import tzinfo


class PutResult(NamedTuple):
    """Where a message, or the first of a batch, was stored.

    Attributes:
        physical_offset: of the record in the commit log.
        queue_offset: in its queue.
        size: bytes of the record, of a batch all of them.
        topic: under which it is stored: of a delayed or half message not the one that it names.
        queue_id: of that topic.
        store_timestamp: ms since 1970.
        physical_offsets: of every record of a batch; of one message its own.
        store_host: as in the records.
        flushed: whether all of it is known to be on the device.
    """

    physical_offset: int
    queue_offset: int
    size: int
    topic: str
    queue_id: int
    store_timestamp: int
    physical_offsets: tuple[int, ...]
    store_host: bytes
    flushed: bool

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The offset message id of every record."""
        return tuple(offset_message_id(self.store_host, offset) for offset in self.physical_offsets)

    def row(self, zone: tzinfo | None) -> dict[str, Any]:
        """As JSON, with the store time in a zone."""
        return {
            "physical_offset": self.physical_offset,
            "queue_offset": self.queue_offset,
            "size": self.size,
            "topic": self.topic,
            "queue_id": self.queue_id,
            "store_timestamp_ms": self.store_timestamp,
            "store_time": format_time(self.store_timestamp, zone),
            "offset_msg_id": self.message_ids[0],
            "flushed": self.flushed,
        }


class PutResults(Sequence[PutResult]):
    """The results of many puts, in the order of the messages.

    Those of messages that were stored together are made when they are asked for.
    """

    def __init__(self) -> None:
        self._parts: list[Sequence[PutResult]] = []
        self._stops: list[int] = []

    def add(self, part: Sequence[PutResult]) -> None:
        """Append the results of further messages."""
        if part:
            self._stops.append(len(self) + len(part))
            self._parts.append(part)

    def __len__(self) -> int:
        return self._stops[-1] if self._stops else 0

    def __iter__(self) -> Iterator[PutResult]:
        return chain.from_iterable(self._parts)

    @overload
    def __getitem__(self, place: int) -> PutResult: ...

    @overload
    def __getitem__(self, place: slice) -> list[PutResult]: ...

    def __getitem__(self, place: int | slice) -> PutResult | list[PutResult]:
        numbers = range(len(self))[place]  # refuses what is outside
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        part = bisect_right(self._stops, numbers)
        return self._parts[part][numbers - self._stops[part]]

    def flushed(self, waits: Sequence[bool]) -> PutResults:
        """The same results; those of the messages that wait for the device are flushed."""
        results = PutResults()
        results.add([result._replace(flushed=waited) for result, waited in zip(self, waits, strict=False)])
        return results
