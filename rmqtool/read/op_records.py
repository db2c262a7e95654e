"""Finds the op record that finishes a half message.

It follows its half message, in the op topic's queue of the same number. Most stand near: these are
read one by one, and all others as arrays, for a broker that has been up for long leaves millions.

Source: TransactionalMessageServiceImpl#deletePrepareMessage, TransactionalOpBatchService; spec 02 section 11.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from rmqtool.errors import FormatError, RefusedError
from rmqtool.formats.message import Message
from rmqtool.log.events import Blank, StoredMessage
from rmqtool.message.system_topics import OP_TOPIC_OF, describe
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.store import Store
from rmqtool.storage.next_command import command_on

if TYPE_CHECKING:
    from rmqtool.read.queue_units import Units
    from rmqtool.storage.layout import StoreFile

NEAR = 512
"""Op records that are read one by one."""
_WINDOW = 4 << 20


def open_half(store: Store, physical_offset: int) -> Message:
    """The half message at an offset that no op record names.

    Raises:
        FormatError: no sound record is at the offset.
        RefusedError: it is another message, or is finished.
        UnreadableError, UnsupportedStoreError: as `op_of`.
    """
    found = store.commit_log.read(physical_offset)
    if isinstance(found, Blank) or found.status:
        raise FormatError("no sound record here", path=found.file, physical_offset=physical_offset)
    topic = found.message.topic
    if topic not in OP_TOPIC_OF:
        raise RefusedError(
            f"the record is of topic {topic}, not a half message", physical_offset=physical_offset
        )
    op = op_of(store, found.message)
    if op is not None:
        raise RefusedError(
            f"the half message is finished already: the op record at {op.physical_offset} names it",
            path=found.file, physical_offset=physical_offset,
            hint=command_on(store.layout, "lookup", "--offset", str(physical_offset), "--trace"),
        )  # fmt: skip
    return found.message


def op_of(store: Store, half: Message) -> StoredMessage | None:
    """The op record that names `half`, a half message as stored; None while it is not finished.

    A record that is not an op record, or cannot be read, names nothing.

    Raises:
        UnreadableError: the op queue cannot be read.
        UnsupportedStoreError: it is in RocksDB.
    """
    queue = store.queue(OP_TOPIC_OF[half.topic], half.queue_id)
    if not isinstance(queue, ConsumeQueue):
        return None
    first = queue.number_after(half.physical_offset)
    for _, unit in islice(queue.units(first), NEAR):
        found = store.find(unit.physical_offset)
        if found is not None and _names(found, half):
            return found
    for place in _places(store, queue, first + NEAR, half.queue_offset):
        found = store.find(place)
        if found is not None and _names(found, half):
            return found
    return None


def _names(op: StoredMessage, half: Message) -> bool:
    described = describe(op.message) or {}
    return described.get("kind") == "op" and (
        half.queue_offset in described["half_queue_offsets"]
        or half.physical_offset == described.get("half_physical_offset")
    )


def _places(store: Store, queue: ConsumeQueue, first: int, wanted: int) -> Iterator[int]:
    """Physical offsets of the op records from `first` on that may name the half queue offset `wanted`."""
    stop = queue.end()
    if first >= stop:
        return
    import numpy as np

    from rmqtool.queue.units import UnitReader
    from rmqtool.read.queue_units import Units

    with UnitReader() as reader:
        for _, units in reader.live_between(queue, first, stop):
            block = Units(units["physical_offset"].astype(np.int64), units["size"].astype(np.int64))
            for file in store.layout.commit_log:
                part = block.between(file.file_from_offset, file.end)
                if len(part.offsets):
                    yield from _places_in(file, part, wanted)


def _places_in(file: StoreFile, units: Units, wanted: int) -> Iterator[int]:
    """See `_places`: those of one file of the log; also any record that is not what its unit says."""
    import numpy as np

    from rmqtool.log.point_read import pick
    from rmqtool.message.string_table import decimals, gathered
    from rmqtool.storage.source import open_source

    offsets, sizes = units
    ends = offsets + sizes
    sound = (sizes > 0) & (ends <= file.end)
    sound[1:] &= offsets[1:] >= np.maximum.accumulate(ends)[:-1]
    yield from offsets[~sound].tolist()
    offsets, sizes = offsets[sound], sizes[sound]
    with closing(open_source(file.path)) as source:
        while len(offsets):
            done = 0
            for frames in pick(
                source, file_from_offset=file.file_from_offset, offsets=offsets, sizes=sizes, crc=False,
                window=_WINDOW,
            ):  # fmt: skip
                lengths = np.maximum(frames.rows["body_length"], 0).astype(np.int64)
                values, owners, bad = decimals(*gathered(frames.data, frames.body_starts(), lengths))
                bad[owners[values == wanted]] = True
                yield from frames.rows["physical_offset"][bad].tolist()
                done += len(frames.rows)
            if done < len(offsets):  # reading stopped at an unsound record
                yield int(offsets[done])
            offsets, sizes = offsets[done + 1 :], sizes[done + 1 :]
