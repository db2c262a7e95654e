"""The division of a read: the part of each store that is read, and the pieces for Spark's tasks.

    plan = plan_scan(parse_options({"path": "/data/store", "topics": "order-*"}))
    for each in plan.stores:
        print(each.place.path, each.access.reason)

Planning looks at file names, at the first records of files, and at queues; bodies are never read here.
A piece is a byte range of the log that begins and ends on a record, or what names records in one; it
is a few hundred bytes when it is pickled.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rmqtool.errors import UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.pushed import NOTHING_PUSHED, Pushed, intersect
from rmqtool.spark.bounds import StoreQueues, check_names, check_offsets, envelope
from rmqtool.spark.request import QueueRange, Request, build_request
from rmqtool.spark.stores import StoreLocation, find_places, open_place

if TYPE_CHECKING:
    from rmqtool.read.access import Access
    from rmqtool.read.store import Store
    from rmqtool.spark.options import SourceOptions

PIECE_BYTES: Final = (128 << 20, 512 << 20)
"""Smallest and largest part of the log for a task without an option: an eighth of all, within these.

A task costs a tenth of a second besides its reading, and reads more than a gigabyte of log a second.
"""
PIECE_BYTES_MIN: Final = 32 << 10
"""No option asks for smaller pieces: a task costs more than reading this much."""
_VIA: Final = {"auto": "auto", "commitlog": "log", "consumequeue": "queue", "index": "index"}
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """The input of one task: a part of one store. Pieces that were planned together have the same `plan`."""

    place: StoreLocation
    request: Request
    access: Access
    plan: str


@dataclass(frozen=True, slots=True)
class StorePlan:
    """The plan for one store. `request` and `access` are None if no message of it can be selected."""

    place: StoreLocation
    request: Request | None
    access: Access | None
    files_total: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The plan of a scan, and its pieces. Counts are of commit log files and their bytes."""

    stores: tuple[StorePlan, ...]
    pieces: tuple[Piece, ...]

    @property
    def files_read(self) -> int:
        """Files of which something is read."""
        return sum(each.access.files_read for each in self.stores if each.access is not None)

    @property
    def files_total(self) -> int:
        """Files that there are."""
        return sum(each.files_total for each in self.stores)

    @property
    def bytes_read(self) -> int:
        """Bytes of the log that are read, at most."""
        return sum(each.access.bytes_read for each in self.stores if each.access is not None)

    @property
    def bytes_total(self) -> int:
        """Bytes of the log that there are."""
        return sum(each.bytes_total for each in self.stores)


def plan_scan(options: SourceOptions, pushed: Pushed = NOTHING_PUSHED) -> ScanPlan:
    """Plan a batch read.

    Args:
        options: of the read.
        pushed: what filters of the query say, see `pushdown`.

    Raises:
        UsageError: options that do not fit the stores.
        DataLossError: topics, queues or offsets that are not there, unless `failOnDataLoss` is false.
        InputError: a store that cannot be read.
    """
    places = find_places(options)
    if options.from_offset is not None or options.to_offset is not None:
        if len(places) > 1:
            raise UsageError(
                "options startingPhysicalOffset and endingPhysicalOffset are for one store",
                hint=f"the path is that of {len(places)}",
            )
    plans: list[StorePlan] = []
    stores: list[tuple[Store, StorePlan]] = []
    for place in places:
        store = open_place(place, options)
        with store:
            if not store.layout.has_messages:
                raise UsageError(
                    f"{place.path} is a file of kind {store.layout.kind}, and Spark reads messages",
                    hint="name a store, a folder of commit log files or one of these files",
                )
            check_offsets(options, place, store)
            ranges = StoreQueues(store, place, options, len(places) == 1).ranges()
            plan = plan_store(store, place, options, pushed, ranges)
        plans.append(plan)
        stores.append((store, plan))
    _check_assigned(options, places)
    check_names(options, [(plan.place, store) for store, plan in stores])
    return ScanPlan(tuple(plans), tuple(pieces_of(stores, options)))


def plan_store(
    store: Store,
    place: StoreLocation,
    options: SourceOptions,
    pushed: Pushed = NOTHING_PUSHED,
    queues: Sequence[QueueRange] | None = None,
    *,
    narrow: bool = False,
) -> StorePlan:
    """Plan what to read of one store.

    Args:
        store: the store.
        place: where it is.
        options: of the read.
        pushed: what filters of the query say.
        queues: what is wanted of queues, see `build_request`.
        narrow: read only the part of the log that these point to, whatever the way to it: for ranges
            that come from units, as those of a stream do.
    """
    from rmqtool.read.access import plan_access

    files = [file for file in store.layout.commit_log if file.size]
    totals = (len(files), store.layout.log_bytes)
    request = build_request(options, pushed, queues) if pushed.lets_broker(place.broker_name) else None
    if request is None:
        return StorePlan(place, None, None, *totals)
    if pushed.physical_offsets[1] is not None and not request.looks_inside:
        request = _with_whole_damage(store, request)
    via: Any = _VIA[options.via]
    access = None if narrow else plan_access(store, request.selection, via=via)
    narrowed = _narrowed(store, request) if access is None or access.kind == "queue" else None
    if narrowed is not None:
        request, access = narrowed, plan_access(store, narrowed.selection, via=via)
    if access is None:
        access = plan_access(store, request.selection, via=via)
    return StorePlan(place, request, access, *totals)


def _with_whole_damage(store: Store, request: Request) -> Request:
    """The request extended by the next record after its end.

    A filter that ends in the middle of a damaged range must not change the report on it: its length, and that
    sound records follow.
    """
    from rmqtool.read.boundaries import longest_queues

    selection, files = request.selection, store.commit_log.files
    end = selection.to_offset
    if end is None or not files or end >= files[-1].end:
        return request
    later = [file.end for file in files if file.end > end]
    # where no unit helps: to the end of the next file
    found, stop = later[0], later[min(1, len(later) - 1)]
    for queue in longest_queues(store):
        low, high = max(queue.min_offset(store.commit_log.min_offset, store.profile), 0), queue.max_offset()
        while low < high:  # physical offsets rise along a queue
            middle = (low + high) // 2
            unit = queue.unit(middle)
            if unit is not None and unit.physical_offset < end:
                low = middle + 1
            else:
                high = middle
        unit = queue.unit(low)
        if (
            unit is not None
            and end <= unit.physical_offset < found
            and _is_record(store, unit.physical_offset)
        ):
            found, stop = unit.physical_offset, unit.physical_offset + unit.size
    return replace(request, selection=replace(selection, to_offset=stop))


def _is_record(store: Store, physical_offset: int) -> bool:
    found = store.find(physical_offset)
    return found is not None and not found.status


def _narrowed(store: Store, request: Request) -> Request | None:
    """The request within the part of the log that queue offsets point to; None where that is all of it."""
    rest, selection = request.rest, request.selection
    low, high = rest.start or 0, rest.stop
    ranges: Iterable[QueueRange]
    if rest.queues is not None:
        ranges = rest.queues
    elif rest.start is not None or rest.stop is not None:
        ranges = (
            QueueRange(topic, queue_id)
            for topic, queue_id in store.queues
            if selection.matches_topic(topic) and (not selection.queues or queue_id in selection.queues)
        )
    else:
        return None
    clipped = (
        replace(each, start=max(each.start, low), stop=each.stop if high is None else min(each.stop, high))
        for each in ranges
    )
    found = envelope(store, (each for each in clipped if each.start < each.stop))
    if found is None:
        return None
    start, stop = intersect((selection.from_offset, selection.to_offset), found)
    if start is None or stop is None or stop <= start:
        return None
    return replace(request, selection=replace(selection, from_offset=start, to_offset=stop))


def pieces_of(stores: Sequence[tuple[Store, StorePlan]], options: SourceOptions) -> Iterator[Piece]:
    """The pieces of all stores, of about equal size.

    Sizes follow `maxBytesPerPartition`, and are smaller where `minPartitions` wants more pieces, but
    neither makes pieces below PIECE_BYTES_MIN. No
    piece has more records than `maxRecordsPerPartition`, as far as queues know of the records.
    """
    from rmqtool.read.split import split

    total = sum(plan.access.bytes_read for _, plan in stores if plan.access is not None)
    target = options.max_bytes_per_partition or min(max(total // 8, PIECE_BYTES[0]), PIECE_BYTES[1])
    if options.min_partitions is not None:
        target = min(target, total // options.min_partitions)
    target = max(target, PIECE_BYTES_MIN)
    name = uuid.uuid4().hex
    for store, plan in stores:
        if plan.access is None or plan.request is None:
            continue
        access = plan.access
        with store:
            parts = split(store, access, target_bytes=target)
            wanted = (options.min_partitions or 0) * access.bytes_read // max(total, 1)
            for divisor in range(2, _TRIES):  # a boundary is a record's: the first sizes may be too coarse
                if len(parts) >= wanted or target // divisor < PIECE_BYTES_MIN:
                    break
                parts = split(store, access, target_bytes=target // divisor)
            if options.max_records_per_partition is not None:
                parts = _by_records(store, parts, options.max_records_per_partition)
        for part in parts:
            yield Piece(plan.place, plan.request, part, name)


def _by_records(store: Store, parts: Sequence[Access], records_max: int) -> list[Access]:
    """The parts, those with too many records divided further."""
    import numpy as np

    from rmqtool.read.split import split

    places = unit_places(store)

    def count(part: Access) -> int:
        edges = [edge for each in part.ranges for edge in (each.start, each.stop)]
        found = np.searchsorted(places, np.array(edges, np.int64))
        return int((found[1::2] - found[::2]).sum())

    def divided(part: Access) -> Iterator[Access]:
        records = count(part)
        if records <= records_max:
            yield part
            return
        target = max(part.bytes_read * records_max // records, 1)
        for divisor in (1, 2, 4, 8, 16):  # boundaries are records': a size may be too coarse to divide
            smaller = split(store, part, target_bytes=max(target // divisor, 1))
            if len(smaller) > 1:
                for each in smaller:
                    yield from divided(each)
                return
        yield part

    return [each for part in parts for each in divided(part)]


def unit_places(store: Store) -> Any:
    """The physical offsets that units of all queues name, rising; int64, shape (units,)."""
    import numpy as np

    from rmqtool.queue.units import UnitReader, live
    from rmqtool.storage.buffers import distinct

    found = [np.zeros(0, np.int64)]
    with UnitReader() as reader:
        for queue in store.layout.unit_queues:
            for file in queue.files:
                for _, units in reader.blocks(file, queue.unit_size):
                    found.append(units["physical_offset"][live(units)].astype(np.int64))
    return distinct(np.concatenate(found))


def _check_assigned(options: SourceOptions, places: Sequence[StoreLocation]) -> None:
    """Raises UsageError where options name a broker that no store is of."""
    brokers = {place.broker_name for place in places}
    named = [("assign", name) for name in options.assign]
    for which, bound in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        named += [(which, name) for name, _ in bound.values] if bound is not None else []
    for option, name in named:
        if name.broker is not None and name.broker not in brokers:
            raise UsageError(
                f"option {option}: no store is of broker {name.broker}",
                hint=f"the brokers are {', '.join(sorted(brokers))}; brokerName names them",
            )
