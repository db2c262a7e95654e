"""A stream that counts by physical offsets: a batch is a range of each store's log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rmqtool.errors import UsageError
from rmqtool.read.selection import Selection
from rmqtool.spark.partitions import Piece, StorePlan, pieces_of, plan_store
from rmqtool.spark.request import Request, build_request
from rmqtool.spark.stores import StoreLocation
from rmqtool.spark.stream_offsets import log_offset, read_log_offset
from rmqtool.spark.stream_places import Limits, StreamPlaces

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.spark.options import SourceOptions


_HEADS_MAX = 4096  # of records that are in no queue, between one that is and an offset


class LogStream:
    """Every record of the logs once, in the order of each log."""

    def __init__(self, options: SourceOptions) -> None:
        if options.starting is not None and options.starting.names_queues:
            raise UsageError(
                "options startingOffsets and streamOffsets contradict each other: offsets by queue"
                " need streamOffsets=queue"
            )
        self._options = options
        self._places = StreamPlaces(options)

    def first(self) -> dict[str, Any]:
        """Where options say that the stream starts."""
        return log_offset({place.broker_name: self._first_of(place) for place in self._places.find()})

    def _first_of(self, place: StoreLocation) -> int:
        from rmqtool.read.access import plan_access

        options = self._options
        with self._places.opened(place) as store:
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
        for place in self._places.find():
            with self._places.opened(place) as store:
                found[place.broker_name] = store.end_offset()
        return log_offset(found)

    def cut(self, start: dict[str, Any], ends: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Where a batch that begins at `start` ends: at `ends`, or before that where limits say so."""
        begins, stops = read_log_offset(start), read_log_offset(ends)
        places = {place.broker_name: place for place in self._places.find()}
        found = dict(begins)  # the offset of a store that is not there now is kept
        for name in begins.keys() - places.keys():
            self._places.lost(name, "the store of this broker no longer exists")
        new = {name: stop - begins.get(name, 0) for name, stop in stops.items()}
        whole = sum(max(size, 0) for size in new.values())
        for name, stop in stops.items():
            if name not in places:
                continue
            begin = begins.get(name, 0)
            if new[name] < 0:
                what = f"the log ends at {stop}, before {begin}, up to where it was read"
                self._places.lost(places[name], what)
                found[name] = stop
            elif new[name] == 0:
                found[name] = stop
            else:
                with self._places.opened(places[name]) as store:
                    if name in begins and _is_inside_record(store, begin):
                        what = f"{begin}, up to where it was read, is inside a record: this is another log"
                        self._places.lost(places[name], what)
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
        """The last record at or before `wanted`; where none is behind `begin`, the next one after that."""
        file = store.commit_log.file_of(wanted)
        if file is not None:
            found = max(store.record_before(file, wanted), file.file_from_offset)
            if found > begin:
                return found
        return self._cut_rows(store, begin, stop, 1, Request())

    def _cut_rows(
        self, store: Store, begin: int, stop: int, rows: int, request: Request | None = None
    ) -> int:
        """Where the message behind the next `rows` ones starts; `stop` where there are no more."""
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
        """What the tasks of a batch read."""
        begins, stops = read_log_offset(start), read_log_offset(end)
        places = {place.broker_name: place for place in self._places.find()}
        found: list[tuple[Store, StorePlan]] = []
        for name, stop in sorted(stops.items()):
            begin = begins.get(name, 0)
            if stop <= begin:
                continue
            if name not in places:
                self._places.lost(name, "the store of this broker no longer exists")
                continue
            with self._places.opened(places[name]) as store:
                low = max(store.commit_log.min_offset, 0)
                if begin < low and name in begins:
                    self._places.lost(places[name], f"the log starts at {low}, but it was read up to {begin}")
                if store.end_offset() < stop:
                    self._places.lost(
                        places[name], f"the log ends at {store.end_offset()}, a batch continues to {stop}"
                    )
                begin = max(begin, low)
                if begin < stop:
                    options = replace(self._options, from_offset=begin, to_offset=stop)
                    found.append((store, plan_store(store, places[name], options)))
        yield from pieces_of(found, self._options)


def _is_inside_record(store: Store, offset: int) -> bool:
    """Whether a sound record begins before an offset and ends behind it."""
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
