"""A stream that counts by queue offsets: a batch is a range of each queue, as with Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rmqtool.errors import UsageError
from rmqtool.read.by_time import exact_offset_by_time
from rmqtool.spark.offsets import EARLIEST, LATEST
from rmqtool.spark.partitions import Piece, StorePlan, pieces_of, plan_store
from rmqtool.spark.queue_bounds import StoreQueues
from rmqtool.spark.request import QueueRange
from rmqtool.spark.stores import StoreLocation
from rmqtool.spark.stream_offsets import QueueKey, queue_offset, read_queue_offset
from rmqtool.spark.stream_places import Limits, StreamPlaces

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.spark.options import SourceOptions


class QueueStream:
    """Every message that has a unit once, in the order of each queue."""

    def __init__(self, options: SourceOptions) -> None:
        if options.from_offset is not None:
            raise UsageError(
                "options startingPhysicalOffset and streamOffsets contradict each other: a stream that"
                " counts by queue starts at offsets of queues"
            )
        self._options = options
        self._places = StreamPlaces(options)

    def first(self) -> dict[str, Any]:
        """Where options say that the stream starts."""
        found: dict[QueueKey, int] = {}
        for place, store, queues in self._stores():
            ranges = self._start_ranges(store, place)
            for topic, queue_id in queues:
                low, high = _span(store, topic, queue_id)
                value = ranges.get((topic, queue_id), low if self._is_earliest else high)
                found[topic, place.broker_name, queue_id] = min(max(value, low), high)
        return queue_offset(found)

    @property
    def _is_earliest(self) -> bool:
        starting = self._options.starting
        return self._options.since is not None or (starting is not None and starting.kind == "earliest")

    def _start_ranges(self, store: Store, place: StoreLocation) -> Mapping[tuple[str, int], int]:
        """The offsets that options name for queues of one store."""
        starting = self._options.starting
        if starting is None or not starting.names_queues:
            return {}
        ends = {
            (name.topic, name.queue_id): store.max_offset(name.topic, name.queue_id)
            for name, value in starting.values
            if starting.kind == "offsets" and value == LATEST
        }
        # -1 is a start of streams only: for the rest of the rules it stands for the beginning.
        values = tuple(
            (name, EARLIEST if starting.kind == "offsets" and value == LATEST else value)
            for name, value in starting.values
        )
        options = replace(self._options, starting=replace(starting, values=values), ending=None)
        ranges = StoreQueues(store, place, options, len(self._places.find()) == 1).ranges() or ()
        return {(each.topic, each.queue_id): _start(store, each) for each in ranges} | ends

    def _stores(self) -> Iterator[tuple[StoreLocation, Store, list[tuple[str, int]]]]:
        places = self._places.find()
        for place in places:
            with self._places.opened(place) as store:
                yield place, store, StoreQueues(store, place, self._options, len(places) == 1).keys()

    def ends(self) -> dict[str, Any]:
        """The ends of the queues."""
        return queue_offset(
            {
                (topic, place.broker_name, queue_id): max(store.max_offset(topic, queue_id), 0)
                for place, store, queues in self._stores()
                for topic, queue_id in queues
            }
        )

    def cut(self, start: dict[str, Any], ends: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Where a batch that begins at `start` ends. A limit is shared out by what is new in each queue."""
        begins, stops = read_queue_offset(start), read_queue_offset(ends)
        found = dict(begins)  # that of a queue that is not there now is kept
        for key in begins.keys() - stops.keys():
            if begins[key]:
                self._places.lost(key[1], f"queue {key[2]} of {key[0]} no longer exists")
        new = {key: stop - begins.get(key, 0) for key, stop in stops.items()}
        whole = sum(max(count, 0) for count in new.values())
        for key, stop in stops.items():
            begin = begins.get(key, 0)
            if new[key] < 0:
                what = f"queue {key[2]} of {key[0]} ends at {stop}, before {begin}, up to where it was read"
                self._places.lost(key[1], what)
                found[key] = stop
            elif limits.rows is not None and new[key]:
                share = limits.rows * new[key] / max(whole, 1)
                found[key] = min(begin + max(int(share), 1), stop)
            else:
                found[key] = stop
        if limits.size is not None:
            found = self._cut_bytes(begins, found, limits.size)
        return start if found == begins else queue_offset(found)

    def _cut_bytes(
        self, begins: Mapping[QueueKey, int], stops: Mapping[QueueKey, int], size: int
    ) -> dict[QueueKey, int]:
        """The stops moved back to where `size` bytes of the log end, counted from the first new record."""
        found = dict(stops)
        for place, store, queues in self._stores():
            keys = [(topic, place.broker_name, queue_id) for topic, queue_id in queues]
            new = {
                key: (begins.get(key, 0), stops[key])
                for key in keys
                if stops.get(key, 0) > begins.get(key, 0)
            }
            places = {key: _place(store, key, begin) for key, (begin, _) in new.items()}
            if not places:
                continue
            first = min(places.values())
            for key, (begin, stop) in new.items():
                low, high = begin, stop
                while low < high:  # physical offsets rise along a queue
                    middle = (low + high) // 2
                    if _place(store, key, middle) < first + size:
                        low = middle + 1
                    else:
                        high = middle
                found[key] = max(low, begin + 1) if places[key] == first else low
        return found

    def pieces(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Piece]:
        """What the tasks of a batch read."""
        begins, stops = read_queue_offset(start), read_queue_offset(end)
        found: list[tuple[Store, StorePlan]] = []
        for place in self._places.find():
            mine = {
                (topic, queue_id): (begins.get((topic, broker, queue_id), 0), stop)
                for (topic, broker, queue_id), stop in stops.items()
                if broker == place.broker_name
            }
            known = {(topic, queue_id) for topic, broker, queue_id in begins if broker == place.broker_name}
            with self._places.opened(place) as store:
                ranges = [
                    self._range(store, place, key, begin, stop, key in known)
                    for key, (begin, stop) in mine.items()
                    if stop > begin
                ]
                ranges = [each for each in ranges if each.start < each.stop]
                if ranges:
                    plan = plan_store(store, place, self._options, queues=ranges, narrow=True)
                    found.append((store, plan))
        yield from pieces_of(found, self._options)

    def _range(
        self, store: Store, place: StoreLocation, key: tuple[str, int], begin: int, stop: int, known: bool
    ) -> QueueRange:
        low, high = _span(store, *key)
        if begin < low and known:
            text = f"queue {key[1]} of {key[0]} starts at {low}, but it was read up to {begin}"
            self._places.lost(place, text)
        if high < stop:
            self._places.lost(
                place, f"queue {key[1]} of {key[0]} ends at {high}, a batch continues to {stop}"
            )
        return QueueRange(*key, max(begin, low), min(stop, high))


def _start(store: Store, wanted: QueueRange) -> int:
    """The queue offset at which a range of a queue starts: its own, or that of its time, as Kafka's."""
    if wanted.since is None:
        return wanted.start
    return exact_offset_by_time(store, wanted.topic, wanted.queue_id, wanted.since).queue_offset


def _span(store: Store, topic: str, queue_id: int) -> tuple[int, int]:
    """Queue offsets that the queue has, half-open; (0, 0) for one without units."""
    high = max(store.max_offset(topic, queue_id), 0)
    return min(max(store.min_offset(topic, queue_id), 0), high), high


def _place(store: Store, key: QueueKey, offset: int) -> int:
    """Physical offset of the record at a queue offset; the log's start where the queue has no unit for it."""
    queue = store.queue(key[0], key[2])
    unit = None if queue is None else queue.unit(offset)
    return 0 if unit is None else unit.physical_offset
