"""What is found of logs that belong to one queue each: their segments, and the places of their records.

A physical offset in the record of such a log is its offset in the log of its queue, so records of different
queues have the same ones. To be read as one log, the segments are numbered, from 1, in the order of topics,
queues and offsets: the *place* of a byte is the segment's number times `SPAN`, plus its position in the
segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.storage.listing import Listing
from rmqtool.storage.single_file import queue_id_of_name
from rmqtool.storage.storage import Place

if TYPE_CHECKING:
    from rmqtool.storage.buffers import Array

SPAN = 2_000_000_000
"""Bytes from the place of a segment to that of the next. A segment has 1 GiB by default. A blank states the
bytes left in its file in 32 bits, so this cannot be much more."""
INDEX_LIMIT = 128 << 20
"""If the index files have more bytes than this, slots included, they are not read: items are put in order in
memory."""


class Segment(NamedTuple):
    """A file with the bytes [base, base + size) of a log or queue."""

    place: Place
    base: int
    size: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.base + self.size


class QueueLog(NamedTuple):
    """The log of one queue, and its queue of units; both in the order of their offsets."""

    topic: str
    queue_id: int
    folder: Path
    log: tuple[Segment, ...]
    units: tuple[Segment, ...]

    @property
    def key(self) -> tuple[str, int]:
        """Topic and queue id."""
        return self.topic, self.queue_id


class Stray(NamedTuple):
    """An entry that belongs to nothing, with the reason."""

    path: Path
    reason: str


class Found(NamedTuple):
    """All queue logs below a folder, index segments, and what is neither."""

    queues: tuple[QueueLog, ...]
    index_segments: tuple[Segment, ...] = ()
    strays: tuple[Stray, ...] = ()


class Places:
    """Maps offsets in the log of one queue to places.

    Args:
        log: its segments.
        number: of the first one.
        end: the place after all segments of all queues.
    """

    def __init__(self, log: Sequence[Segment], number: int, end: int) -> None:
        self.number = number
        self._bases = [segment.base for segment in log]
        self._end = end

    @property
    def start(self) -> int:
        """The place of the first byte."""
        return self.number * SPAN

    @property
    def stop(self) -> int:
        """The place after the last segment."""
        return (self.number + len(self._bases)) * SPAN

    def place(self, offset: int) -> int:
        """The place of an offset: 0 before the first segment, after all places where no segment can be."""
        number = bisect_right(self._bases, offset) - 1
        if number < 0:
            return min(offset, 0)
        position = offset - self._bases[number]
        if position >= SPAN:
            return self._end + position % SPAN
        return (self.number + number) * SPAN + position

    @cached_property
    def _array(self) -> Array:
        import numpy as np

        return np.array(self._bases, np.int64)

    def places(self, offsets: Array) -> Array:
        """`place` of many offsets."""
        import numpy as np

        if not self._bases:
            return np.minimum(offsets, 0)
        numbers = np.searchsorted(self._array, offsets, "right") - 1
        positions = offsets - self._array[np.maximum(numbers, 0)]
        found = (self.number + numbers) * SPAN + positions
        found = np.where(positions >= SPAN, self._end + positions % SPAN, found)
        return np.where(numbers < 0, np.minimum(offsets, 0), found)


def queue_folders(
    root: Path, listing: Listing, strays: list[Stray]
) -> Iterator[tuple[str, int, Path, Path | str]]:
    """(topic, queue id, folder, the folder as `listing` gives it) of each queue; others go to `strays`."""
    topics, others = listing.folders_and_others(root)
    strays += (Stray(path, "it is not the folder of a topic") for path in others)
    for topic, topic_place in topics:
        ids, others = listing.folders_and_others(topic_place)
        strays += (Stray(path, "it is not the folder of a queue") for path in others)
        for name, place in ids:
            folder = root / topic / name
            queue_id = queue_id_of_name(name)
            if queue_id is None or queue_id < 0:
                strays.append(Stray(folder, "it is not the folder of a queue"))
            else:
                yield topic, queue_id, folder, place
