"""Micro-batches of a stream: ranges of each store's log, or of each queue.

`LogStream` counts by physical offsets, `QueueStream` by queue offsets; `stream.py` picks one of them. Both
answer the same four questions: where the stream starts (`first`), what there is (`ends`), where the next
batch ends (`cut`), and what its tasks read (`pieces`). Each answer opens the stores again, because a store
that is open does not see new files.

An offset of a stream is JSON as Spark keeps it, the same text for the same offset (keys are sorted, because
Spark compares the texts). Each names what comes next: the end of one batch is the start of the following.

    {"commitlog": {"broker-a": 1048576}}                        physical offsets, by broker
    {"queues": {"TopicTest": {"broker-a": {"0": 12, "1": 9}}}}  queue offsets, as rocketmq-spark has them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rmqtool.errors import InputError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.by_time import exact_offset_by_time
from rmqtool.read.selection import Selection
from rmqtool.spark.bounds import StoreQueues, report_data_loss
from rmqtool.spark.offsets import EARLIEST, LATEST
from rmqtool.spark.partitions import Piece, StorePlan, pieces_of, plan_store
from rmqtool.spark.request import QueueRange, Request, build_request
from rmqtool.spark.stores import StoreLocation, find_places, open_place

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.spark.options import SourceOptions

QueueKey = tuple[str, str, int]
"""Topic, broker, queue id."""

_HEADS_MAX = 4096  # of records that are in no queue, between one that is and an offset


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a batch: messages, and bytes of the log. None means unlimited."""

    rows: int | None = None
    size: int | None = None

    def share(self, part: int, whole: int) -> Limits:
        """The limits of one store that has `part` of the `whole` that is new."""

        def of(limit: int | None) -> int | None:
            return None if limit is None else max(limit * part // max(whole, 1), 1)

        return Limits(of(self.rows), of(self.size))


def _open_log(place: StoreLocation, options: SourceOptions) -> Store:
    """The store at `place`. Raises UsageError where a record does not keep its offset in the log."""
    store = open_place(place, options)
    if store.layout.queue_logs is not None:
        raise UsageError(
            f"{place.path} has a log for each queue: physical offsets in it change with its segments",
            hint="streamOffsets=queue counts by queue offsets",
        )
    return store


class LogStream:
    """Every record of the logs once, in the order of each log."""

    def __init__(self, options: SourceOptions) -> None:
        if options.starting is not None and options.starting.names_queues:
            raise UsageError(
                "options startingOffsets and streamOffsets contradict each other: offsets by queue"
                " need streamOffsets=queue"
            )
        self._options = options

    def first(self) -> dict[str, Any]:
        """Return the start of the stream by the options."""
        return log_offset({place.broker_name: self._first_of(place) for place in find_places(self._options)})

    def _first_of(self, place: StoreLocation) -> int:
        from rmqtool.read.access import plan_access

        options = self._options
        with _open_log(place, options) as store:
            low, end = max(store.commit_log.min_offset, 0), store.end_offset()
            if options.from_offset is not None:
                return min(max(options.from_offset, low), end)
            if options.since is not None:
                ranges = plan_access(store, Selection(since=options.since), via="log").ranges
                return min(ranges[0].start, end) if ranges else end
            return low if options.starting is not None and options.starting.kind == "earliest" else end

    def ends(self) -> dict[str, Any]:
        """The ends of the logs."""
        found = {}
        for place in find_places(self._options):
            with _open_log(place, self._options) as store:
                found[place.broker_name] = store.end_offset()
        return log_offset(found)

    def cut(self, start: dict[str, Any], ends: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Return the end of a batch that begins at `start`: `ends`, or less if there are limits."""
        begins, stops = read_log_offset(start), read_log_offset(ends)
        places = {place.broker_name: place for place in find_places(self._options)}
        found = dict(begins)  # the offset of a store that does not exist now is kept
        for name in begins.keys() - places.keys():
            report_data_loss(self._options, "the store of this broker no longer exists", name)
        new = {name: stop - begins.get(name, 0) for name, stop in stops.items()}
        whole = sum(max(size, 0) for size in new.values())
        for name, stop in stops.items():
            if name not in places:
                continue
            begin = begins.get(name, 0)
            if new[name] < 0:
                what = f"the log ends at {stop}, before {begin}, up to where it was read"
                report_data_loss(self._options, what, places[name].path)
                found[name] = stop
            elif new[name] == 0:
                found[name] = stop
            else:
                with _open_log(places[name], self._options) as store:
                    if name in begins and _is_inside_record(store, begin):
                        what = f"{begin}, up to where it was read, is inside a record: this is another log"
                        report_data_loss(self._options, what, places[name].path)
                    found[name] = self._cut_store(store, begin, stop, limits.share(new[name], whole))
        return start if found == begins else log_offset(found)

    def _cut_store(self, store: Store, begin: int, stop: int, limits: Limits) -> int:
        """The offset of a record in (begin, stop], or `stop`, before which the limits are kept."""
        begin = max(begin, store.commit_log.min_offset, 0)
        if limits.size is not None and begin + limits.size < stop:
            stop = self._cut_bytes(store, begin, begin + limits.size, stop)
        if limits.rows is not None:
            stop = self._cut_rows(store, begin, stop, limits.rows)
        return stop

    def _cut_bytes(self, store: Store, begin: int, wanted: int, stop: int) -> int:
        """The last record at or before `wanted`; where none is after `begin`, the next one."""
        file = store.commit_log.file_of(wanted)
        if file is not None:
            found = max(store.record_before(file, wanted), file.file_from_offset)
            if found > begin:
                return found
        return self._cut_rows(store, begin, stop, 1, Request())

    def _cut_rows(
        self, store: Store, begin: int, stop: int, rows: int, request: Request | None = None
    ) -> int:
        """Where the message after the next `rows` ones starts; `stop` without one."""
        from rmqtool.read.messages import frame_batches

        request = request or build_request(self._options)
        if request is None:
            return stop
        selection = replace(request.selection, from_offset=begin, to_offset=stop, limit=rows + 1)
        seen = 0
        for frames, mask, _ in frame_batches(store, selection, crc=False):
            places = frames.rows["physical_offset"][mask]
            if seen + len(places) > rows:
                return int(places[rows - seen])
            seen += len(places)
        return stop

    def pieces(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Piece]:
        """Yield the input of each task of a batch."""
        begins, stops = read_log_offset(start), read_log_offset(end)
        places = {place.broker_name: place for place in find_places(self._options)}
        found: list[tuple[Store, StorePlan]] = []
        for name, stop in sorted(stops.items()):
            begin = begins.get(name, 0)
            if stop <= begin:
                continue
            if name not in places:
                report_data_loss(self._options, "the store of this broker no longer exists", name)
                continue
            with _open_log(places[name], self._options) as store:
                low = max(store.commit_log.min_offset, 0)
                if begin < low and name in begins:
                    what = f"the log starts at {low}, but it was read up to {begin}"
                    report_data_loss(self._options, what, places[name].path)
                if store.end_offset() < stop:
                    what = f"the log ends at {store.end_offset()}, a batch continues to {stop}"
                    report_data_loss(self._options, what, places[name].path)
                begin = max(begin, low)
                if begin < stop:
                    options = replace(self._options, from_offset=begin, to_offset=stop)
                    found.append((store, plan_store(store, places[name], options)))
        yield from pieces_of(found, self._options)


def _is_inside_record(store: Store, offset: int) -> bool:
    """Whether a sound record begins before an offset and ends after it."""
    file = store.commit_log.file_of(offset)
    place = offset if file is None else store.record_before(file, offset)
    for _ in range(_HEADS_MAX):
        head = store.head(place) if place < offset else None
        if head is None:
            break
        if head.end > offset:
            return store.commit_log.is_sound_at(place)
        place = head.end
    return False


class QueueStream:
    """Every message that has a unit once, in the order of each queue."""

    def __init__(self, options: SourceOptions) -> None:
        if options.from_offset is not None:
            raise UsageError(
                "options startingPhysicalOffset and streamOffsets contradict each other: a stream that"
                " counts by queue starts at offsets of queues"
            )
        self._options = options

    def first(self) -> dict[str, Any]:
        """Return the start of the stream by the options."""
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
        ranges = StoreQueues(store, place, options, len(find_places(self._options)) == 1).ranges() or ()
        return {(each.topic, each.queue_id): _start(store, each) for each in ranges} | ends

    def _stores(self) -> Iterator[tuple[StoreLocation, Store, list[tuple[str, int]]]]:
        places = find_places(self._options)
        for place in places:
            with open_place(place, self._options) as store:
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
        """Return the end of a batch that begins at `start`. Queues share a limit by their new messages."""
        begins, stops = read_queue_offset(start), read_queue_offset(ends)
        found = dict(begins)  # the offset of a queue that does not exist now is kept
        for key in begins.keys() - stops.keys():
            if begins[key]:
                report_data_loss(self._options, f"queue {key[2]} of {key[0]} no longer exists", key[1])
        new = {key: stop - begins.get(key, 0) for key, stop in stops.items()}
        whole = sum(max(count, 0) for count in new.values())
        for key, stop in stops.items():
            begin = begins.get(key, 0)
            if new[key] < 0:
                what = f"queue {key[2]} of {key[0]} ends at {stop}, before {begin}, up to where it was read"
                report_data_loss(self._options, what, key[1])
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
        """Yield the input of each task of a batch."""
        begins, stops = read_queue_offset(start), read_queue_offset(end)
        found: list[tuple[Store, StorePlan]] = []
        for place in find_places(self._options):
            mine = {
                (topic, queue_id): (begins.get((topic, broker, queue_id), 0), stop)
                for (topic, broker, queue_id), stop in stops.items()
                if broker == place.broker_name
            }
            known = {(topic, queue_id) for topic, broker, queue_id in begins if broker == place.broker_name}
            with open_place(place, self._options) as store:
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
            report_data_loss(self._options, text, place.path)
        if high < stop:
            text = f"queue {key[1]} of {key[0]} ends at {high}, a batch continues to {stop}"
            report_data_loss(self._options, text, place.path)
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


# offsets as Spark keeps them


def log_offset(by_broker: Mapping[str, int]) -> dict[str, Any]:
    """The offset of physical offsets."""
    return {"commitlog": dict(sorted(by_broker.items()))}


def queue_offset(by_queue: Mapping[QueueKey, int]) -> dict[str, Any]:
    """The offset of queue offsets."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), value in sorted(by_queue.items()):
        topics.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = value
    return {"queues": topics}


def read_log_offset(offset: Mapping[str, Any]) -> dict[str, int]:
    """The physical offsets of an offset. Raises InputError for one of another kind."""
    values = offset.get("commitlog")
    if not isinstance(values, dict) or not all(map(_is_offset, values.values())):
        raise _foreign(offset, "commitlog")
    return dict(values)


def read_queue_offset(offset: Mapping[str, Any]) -> dict[QueueKey, int]:
    """The queue offsets of an offset. Raises InputError for one of another kind."""
    found: dict[QueueKey, int] = {}
    topics = offset.get("queues")
    if not isinstance(topics, dict):
        raise _foreign(offset, "queue")
    for topic, brokers in topics.items():
        for broker, queues in brokers.items() if isinstance(brokers, dict) else ():
            for queue_id, value in queues.items() if isinstance(queues, dict) else ():
                if not _is_offset(value) or not str(queue_id).isdigit():
                    raise _foreign(offset, "queue")
                found[topic, broker, int(queue_id)] = value
    return found


def _is_offset(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _foreign(offset: Mapping[str, Any], kind: str) -> InputError:
    return InputError(
        f"the checkpoint holds no offset of streamOffsets={kind}: {str(dict(offset))[:120]}",
        hint="a stream continues with the options that it was started with, or from a new checkpoint",
    )
