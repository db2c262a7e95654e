"""Before anything is appended: the log's last file is sound, and the queues know their last record in it.

A broker reads that file at every start. Behind damage in it nothing would stay: the start ends the log there.
A queue that has lost its last units would give queue offsets out a second time.

Source: CommitLog#recoverNormally, ConsumeQueueStore#recoverOffsetTable; spec 02 sections 1.5, 2, 15.2 Q3, Q5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rmqtool.errors import RefusedError, UnreadableError
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.message import INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqtool.scan.events import Bad, Blank, Record, ZeroRest
from rmqtool.scan.reference import walk_reference
from rmqtool.scan.source import ByteSource, open_source
from rmqtool.store import Store
from rmqtool.store.layout import StoreFile

_PLAIN_BYTES = 1 << 20  # less is read faster than the compiled code is loaded


class _Place(NamedTuple):
    """Where a record is, and where its unit belongs."""

    physical_offset: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    status: int


def check_last_file(store: Store, end: int, dispatched: int) -> None:
    """Look at the file that holds the log's end.

    Args:
        store: opened for reading.
        end: physical offset behind the log's last record.
        dispatched: physical offset up to which the log's records have units.

    Raises:
        RefusedError: damage before `end`, or one of the last records is not in its queue.
        UnreadableError: the file cannot be read.
    """
    file = next((file for file in store.layout.commit_log if file.file_from_offset < end <= file.end), None)
    if file is None:
        return
    try:
        source = open_source(file.path)
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
    last: dict[tuple[bytes, int], _Place] = {}
    try:
        for place in _sound_places(store, file, source, end - file.file_from_offset, dispatched):
            last[place.topic, place.queue_id] = place
    finally:
        source.close()
    for place in last.values():
        _check_unit(store, place)


def _sound_places(
    store: Store, file: StoreFile, source: ByteSource, stop: int, dispatched: int
) -> Iterator[_Place]:
    """Records before `stop` that have units, of each queue at least the last; raises at damage."""
    for event in _events(source, file, stop, dispatched):
        if isinstance(event, Bad | ZeroRest):
            raise _damaged(store, file, file.file_from_offset + event.position)
        if source.unreadable:
            offset = file.file_from_offset + source.unreadable[0][0]
            raise UnreadableError("cannot read the commit log", path=file.path, physical_offset=offset)
        if not isinstance(event, Blank):
            for place in event:
                if place.status:
                    raise _damaged(store, file, place.physical_offset)
                if place.physical_offset < dispatched and _has_unit(place.sys_flag):
                    yield place


def _has_unit(sys_flag: int) -> bool:
    return sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT) and not sys_flag & INNER_BATCH


def _events(
    source: ByteSource, file: StoreFile, stop: int, dispatched: int
) -> Iterator[list[_Place] | Blank | Bad | ZeroRest]:
    first = file.file_from_offset
    if stop < _PLAIN_BYTES:
        for event in walk_reference(source, file_from_offset=first, stop=stop):
            if not isinstance(event, Record):
                yield event
                continue
            message = event.message
            yield [_Place(first + event.position, message.topic_bytes, message.queue_id,
                          message.queue_offset, message.sys_flag, event.status)]  # fmt: skip
        return
    import numpy as np

    from rmqtool.scan.frames import Frames, walk
    from rmqtool.scan.queue_build import dispatched as dispatched_rows

    for found in walk(source, file_from_offset=first, stop=stop):
        if not isinstance(found, Frames):
            yield found
            continue
        rows = found.rows
        wanted = np.flatnonzero(rows["status"])[:1]
        if not len(wanted):
            plain = dispatched_rows(rows["sys_flag"]) & (rows["sys_flag"] & INNER_BATCH == 0)
            wanted = np.flatnonzero(plain & (rows["physical_offset"] < dispatched))[::-1]
            codes = rows["topic_id"][wanted].astype(np.int64) << 32 | (
                rows["queue_id"][wanted].astype(np.int64) & 0xFFFFFFFF
            )
            wanted = wanted[np.unique(codes, return_index=True)[1]]
        yield [
            _Place(int(row["physical_offset"]), found.topics[int(row["topic_id"])], int(row["queue_id"]),
                   int(row["queue_offset"]), int(row["sys_flag"]), int(row["status"]))
            for row in rows[wanted]
        ]  # fmt: skip


def _damaged(store: Store, file: StoreFile, physical_offset: int) -> RefusedError:
    return RefusedError(
        "damage in the file that the log ends in: a broker's start would end the log there",
        path=file.path, physical_offset=physical_offset, hint=f"rmqtool recover {store.layout.root}",
    )  # fmt: skip


def _check_unit(store: Store, place: _Place) -> None:
    topic = java_utf8_decode(place.topic)
    if (topic, place.queue_id) in store.layout.batch_queues:
        return
    queue = store.queue(topic, place.queue_id)
    unit = None if queue is None else queue.unit(place.queue_offset)
    if unit is None or unit.physical_offset != place.physical_offset:
        raise RefusedError(
            f"queue {place.queue_id} of {topic} lacks its unit {place.queue_offset}: the next message would"
            " get a queue offset that is taken",
            path=store.layout.root, physical_offset=place.physical_offset,
            hint=f"rmqtool rebuild {store.layout.root}",
        )  # fmt: skip
