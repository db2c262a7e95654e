"""Before anything is appended: the log's last file is sound, and the queues know their last record in it.

A broker reads that file at every start. Nothing after damage in it would stay: the start ends the log there.
A queue that has lost its last units would give queue offsets out a second time. A record that is not
dispatched yet, with a queue offset that is taken, would never get a unit: it is older than those before it.

Source: CommitLog#recoverNormally, ConsumeQueueStore#recoverOffsetTable, ConsumeQueue#putMessagePositionInfo;
spec 01 section 5.2, spec 02 sections 1.5, 2, 15 C14, 15.2 Q3, Q5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.command_line import command_line
from rmqtool.errors import RefusedError, UnreadableError
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.message import INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqtool.log.events import Blank, CorruptRange, LogGap, StoredMessage, TrailingZeros
from rmqtool.log.python_scan import walk_reference
from rmqtool.queue.consume_queue import AnyQueue
from rmqtool.read.store import NewestUnits, Store
from rmqtool.storage.layout import StoreFile, can_be_folder
from rmqtool.storage.next_command import command_on
from rmqtool.storage.source import ByteSource, open_source

if TYPE_CHECKING:
    from rmqtool.storage.buffers import Array

_PLAIN_BYTES = 1 << 20  # less is read faster than the compiled code is loaded


class _Place(NamedTuple):
    """A record, and the place of its unit. The next `records` queue offsets of its queue are consecutive."""

    physical_offset: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    status: int
    records: int = 1


def check_last_file(store: Store, end: int, newest: NewestUnits) -> None:
    """Look at the file that holds the log's end.

    Args:
        store: opened for reading.
        end: physical offset after the log's last record.
        newest: the newest unit of every queue; the log's records up to the last of them are dispatched.

    Raises:
        RefusedError: damage before `end`, one of the last records is not in its queue, or one that is not
            dispatched has no place in it.
        UnreadableError: the file cannot be read.
    """
    file = next((file for file in store.layout.commit_log if file.file_from_offset < end <= file.end), None)
    if file is None:
        return
    try:
        source = open_source(file.path)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
    dispatched = newest.end
    last: dict[tuple[bytes, int], _Place] = {}
    ends: dict[tuple[bytes, int], int] = {}
    try:
        for place in _sound_places(store, file, source, end - file.file_from_offset, dispatched):
            key = place.topic, place.queue_id
            if place.queue_offset < 0:  # damaged: no dispatch makes a unit of it
                continue
            if place.physical_offset < dispatched:
                last[key] = place
            else:
                ends[key] = _end_with(store, place, ends.get(key))
    finally:
        source.close()
    for place in last.values():
        _check_unit(store, place, newest)


def _sound_places(
    store: Store, file: StoreFile, source: ByteSource, stop: int, dispatched: int
) -> Iterator[_Place]:
    """Records before `stop` that get units; raises at damage.

    Of each queue at least the last that has its unit, and of those after it the first of each run.
    """
    for event in _events(source, file, stop, dispatched):
        if isinstance(event, CorruptRange | TrailingZeros):
            raise _damaged(store, file, event.physical_offset)
        if source.unreadable:
            offset = file.file_from_offset + source.unreadable[0][0]
            raise UnreadableError("cannot read the commit log", path=file.path, physical_offset=offset)
        if not isinstance(event, Blank):
            for place in event:
                if place.status:
                    raise _damaged(store, file, place.physical_offset)
                if _gets_unit(place.sys_flag):
                    yield place


def _gets_unit(sys_flag: int) -> bool:
    return sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT) and not sys_flag & INNER_BATCH


def _events(
    source: ByteSource, file: StoreFile, stop: int, dispatched: int
) -> Iterator[list[_Place] | LogGap]:
    first = file.file_from_offset
    if stop < _PLAIN_BYTES:
        for event in walk_reference(source, file_from_offset=first, stop=stop):
            if not isinstance(event, StoredMessage):
                yield event
                continue
            message = event.message
            yield [_Place(event.physical_offset, message.topic_bytes, message.queue_id,
                          message.queue_offset, message.sys_flag, event.status)]  # fmt: skip
        return
    yield from _compiled_events(source, first, stop, dispatched)


def _compiled_events(
    source: ByteSource, first: int, stop: int, dispatched: int
) -> Iterator[list[_Place] | LogGap]:
    import numpy as np

    from rmqtool.log.frames import Frames, walk
    from rmqtool.queue.build import dispatched as dispatched_rows

    for found in walk(source, file_from_offset=first, stop=stop):
        if not isinstance(found, Frames):
            yield found
            continue
        rows = found.rows
        wanted, counts = np.flatnonzero(rows["status"])[:1], np.ones(1, np.int64)
        if not len(wanted):
            plain = dispatched_rows(rows["sys_flag"]) & (rows["sys_flag"] & INNER_BATCH == 0)
            chosen = np.flatnonzero(plain)
            queues = rows["topic_id"][chosen].astype(np.int64) << 32 | (
                rows["queue_id"][chosen].astype(np.int64) & 0xFFFFFFFF
            )
            by_queue = np.argsort(queues, kind="stable")  # each in the order of the log
            chosen = chosen[by_queue]
            places, counts = _runs(rows[chosen], queues[by_queue], dispatched)
            wanted = chosen[places]
        yield [
            _Place(int(row["physical_offset"]), found.topics[int(row["topic_id"])], int(row["queue_id"]),
                   int(row["queue_offset"]), int(row["sys_flag"]), int(row["status"]), int(count))
            for row, count in zip(rows[wanted], counts, strict=False)
        ]  # fmt: skip


def _runs(rows: Array, queues: Array, dispatched: int) -> tuple[Array, Array]:
    """Numbers of the rows that are examined, and how many rows from each on go up by one.

    Args:
        rows: rows of the walk, queue by queue.
        queues: of each row the queue, as a number.
        dispatched: as `check_last_file`; before it the last row of a queue is enough.
    """
    import numpy as np

    behind = rows["physical_offset"] >= dispatched
    starts = np.ones(len(rows), bool)
    same = (queues[1:] == queues[:-1]) & (behind[1:] == behind[:-1])
    starts[1:] = ~same | (behind[1:] & (np.diff(rows["queue_offset"]) != 1))
    places = np.flatnonzero(starts)
    counts = np.diff(places, append=len(rows))
    return np.where(behind[places], places, places + counts - 1), counts


def _damaged(store: Store, file: StoreFile, physical_offset: int) -> RefusedError:
    return RefusedError(
        "damage in the file that the log ends in: a broker's start would end the log there",
        path=file.path, physical_offset=physical_offset, hint=command_on(store.layout, "recover"),
    )  # fmt: skip


def _end_with(store: Store, place: _Place, end: int | None) -> int:
    """The end of a queue, `end` before the place and None where nothing is known, with its records in it.

    By the rules of dispatch, see `queue.build`: what it would leave out is not a record of this log.
    """
    topic = java_utf8_decode(place.topic)
    if (topic, place.queue_id) in store.layout.batch_queues:
        return 0
    if end is None:
        queue = store.queue(topic, place.queue_id)
        end = place.queue_offset if queue is None else queue.max_offset()
    is_new = place.queue_offset == 0 and place.records == 1
    if place.queue_offset < end and not is_new:
        raise RefusedError(
            f"queue {place.queue_id} of {topic} has another unit {place.queue_offset}: the log ends in older"
            " records, as a truncation leaves them",
            path=store.layout.root, physical_offset=place.physical_offset,
            hint=command_on(store.layout, "recover"),
        )  # fmt: skip
    return end + place.records


def _check_unit(store: Store, place: _Place, newest: NewestUnits) -> None:
    topic = java_utf8_decode(place.topic)
    number, last = newest.units.get((topic, place.queue_id), (-1, None))
    if last is not None and (number, last.physical_offset) == (place.queue_offset, place.physical_offset):
        return
    if (topic, place.queue_id) in store.layout.batch_queues or not can_be_folder(topic):
        return
    queue = store.queue(topic, place.queue_id)
    if queue is not None:
        unit = queue.unit(place.queue_offset)
        if unit is not None and unit.physical_offset == place.physical_offset:
            return
        # Either the record's number is wrong, where a broker goes on, or those of the queue are.
        slot = queue.number_after(place.physical_offset) - 1
        if _has_unit_of(queue, place.physical_offset) and _is_numbered(store, queue, slot - 1):
            return
    is_misnamed = any(
        _has_unit_of(store.queue(topic, other), place.physical_offset)
        for name, other in store.layout.consume_queues if name == topic and other != place.queue_id
    )  # fmt: skip
    of_topic = command_line("--topic", topic)
    hint = f"{command_on(store.layout, 'rebuild')}; with {of_topic} where topics.json does not know it"
    if is_misnamed:  # only recover knows whose the record is
        hint = command_on(store.layout, "recover")
    raise RefusedError(
        f"queue {place.queue_id} of {topic} lacks its unit {place.queue_offset}: the next message would"
        " get a queue offset that is taken",
        path=store.layout.root, physical_offset=place.physical_offset,
        hint=hint,
    )  # fmt: skip


def _has_unit_of(queue: AnyQueue | None, physical_offset: int) -> bool:
    """Whether it holds the unit of the record at this offset."""
    unit = None if queue is None else queue.before(physical_offset)
    return unit is not None and unit.physical_offset == physical_offset


def _is_numbered(store: Store, queue: AnyQueue, slot: int) -> bool:
    """Whether a unit stands where its record says."""
    unit = queue.unit(slot)
    stored = None if unit is None else store.find(unit.physical_offset)
    return stored is not None and stored.message.queue_offset == slot
