"""The fillers with which `recover` has replaced lost messages: what a look-up without a hit may have sought.

A filler says which queue offset was lost, or only which bytes of the log. It has none of the message's
keys, so no search by key leads to it. `fillers` finds all of them by one walk over the log, by their hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.errors import FormatError
from rmqtool.findings import Progress
from rmqtool.formats import filler, properties
from rmqtool.formats.message import TRANSACTION_ROLLBACK
from rmqtool.formats.message_id import OffsetMessageId
from rmqtool.log.events import StoredMessage
from rmqtool.read.log_items import is_small, log_items
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store

if TYPE_CHECKING:
    from rmqtool.read.lookup_request import Request


class FillerRange(NamedTuple):
    """Fillers that follow each other, of one topic; None: of lost bytes whose messages are unknown.

    `messages` is how many messages they replace, 0 if that is unknown.
    """

    topic: str | None
    start: int
    stop: int
    fillers: int
    messages: int


def lost_by(stored: StoredMessage) -> int:
    """How many messages a filler replaces; 0 if that is unknown."""
    if stored.message.transaction_type == TRANSACTION_ROLLBACK:
        return 0
    number = properties.decode(stored.message.properties_bytes).get(properties.INNER_NUM, "")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 1


def ranges_of(found: Iterable[StoredMessage], *, by_topic: bool = True) -> list[FillerRange]:
    """The fillers, in the log's order, as ranges; without `by_topic` the topics do not divide them."""
    ranges: list[FillerRange] = []
    for stored in found:
        count, start = lost_by(stored), stored.physical_offset
        topic = stored.message.topic if count and by_topic else None
        stop = start + stored.message.total_size
        if ranges and (ranges[-1].stop, ranges[-1].topic) == (start, topic):
            last = ranges[-1]
            ranges[-1] = last._replace(stop=stop, fillers=last.fillers + 1, messages=last.messages + count)
        else:
            ranges.append(FillerRange(topic, start, stop, 1, count))
    return ranges


def candidates(
    store: Store, request: Request, missing: Iterable[str], progress: Progress | None = None
) -> Iterator[StoredMessage]:
    """The fillers of which one may replace what a look-up has not found.

    An offset, and the id of a record in the log, leads to the filler at this place. A queue offset leads
    to the filler that has it, a key to those of the selected topics. What does not name its place may also
    be among the lost bytes whose messages are unknown.

    Args:
        store: the store.
        request: the look-up.
        missing: the names and offsets, as text, that were not found.
        progress: called with the bytes of the log that were scanned.

    Raises:
        UnreadableError: the log cannot be read.
    """
    places = [_place(store, request, name) for name in missing]
    sure = sorted({place for place in places if place is not None})
    if None not in places:
        for place in sure:
            yield from _at(store, place)
        return
    for stored in fillers(store, progress):
        start, stop = stored.physical_offset, stored.physical_offset + stored.message.total_size
        if any(start <= place < stop for place in sure) or _fits(stored, request):
            yield stored


def has_place(store: Store, request: Request, name: str) -> bool:
    """Whether a name states its place in the log, so that `candidates` walks over nothing else."""
    return _place(store, request, name) is not None


def _place(store: Store, request: Request, name: str) -> int | None:
    """The place in the log that a name states; None if it states none."""
    if request.kind == "offset":
        return int(name)
    if request.kind not in ("any", "msg_id"):
        return None
    try:
        place = OffsetMessageId.decode(name).physical_offset
    except FormatError:
        return None
    return place if store.commit_log.file_of(place) is not None else None


def _at(store: Store, place: int) -> Iterator[StoredMessage]:
    file = store.commit_log.file_of(place)
    if file is None:
        return
    start = store.record_before(file, place)
    for stored in fillers(store, start=start, stop=place + 1):
        if place < stored.physical_offset + stored.message.total_size:
            yield stored


def _fits(stored: StoredMessage, request: Request) -> bool:
    if not lost_by(stored):
        return True
    record, chosen = stored.message, request.selection
    if not chosen.matches_topic(record.topic) or (chosen.queues and record.queue_id not in chosen.queues):
        return False
    if request.kind != "queue_offset":
        return True
    first = record.queue_offset
    return any(first <= offset < first + lost_by(stored) for offset in request.offsets)


def fillers(
    store: Store, progress: Progress | None = None, *, start: int | None = None, stop: int | None = None
) -> Iterator[StoredMessage]:
    """All fillers in a range of the log, in its order.

    Raises:
        UnreadableError: the log cannot be read.
    """
    chosen = replace(Selection(), from_offset=start, to_offset=stop)
    if is_small(store, start, stop):
        for item in log_items(store, chosen, progress=progress):
            if isinstance(item, StoredMessage) and filler.is_filler(item.message):
                yield item
        return
    from rmqtool.log.fillers import filler_places
    from rmqtool.read.access import plan_access
    from rmqtool.read.messages import frame_batches

    access = plan_access(store, chosen, via="log")
    for frames, mask, _ in frame_batches(store, chosen, access=access, crc=False, progress=progress):
        for offset in frames.rows["physical_offset"][filler_places(frames, mask)].tolist():
            stored = store.find(offset)
            if stored is not None:
                yield stored
