"""The newest unit of thousands of queues at once: one read of each, and all units examined as one array.

`ConsumeQueue.end_and_last` says where a queue ends. What it finds by bisection is found here by a look at all
units of the last block, where the two cannot differ: the first unit of the block is present, and none that is
present follows one that is not. Every other queue is left to `end_and_last`, and so is every file that
cannot be opened, which is then reported there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from rmqtool.formats.consume_queue import UNIT_SIZE, Unit
from rmqtool.queue.consume_queue import TAIL_UNITS, WALK_LIMIT, End
from rmqtool.queue.units import UNIT_DTYPE, present
from rmqtool.storage.layout import QueueFiles
from rmqtool.storage.open_files import descriptor_of
from rmqtool.storage.storage import StoragePath

Key = tuple[str, int]
_AT_ONCE = 1 << 10  # queues, so that their blocks take a few MiB


def ends_of(queues: Iterable[QueueFiles]) -> dict[Key, End]:
    """The ends of those of `queues`, of 20-byte units, whose end can be seen in one block."""
    found: dict[Key, End] = {}
    rest = iter(queues)
    while some := list(islice(rest, _AT_ONCE)):
        found.update(_ends(some))
    return found


def _ends(queues: list[QueueFiles]) -> Iterator[tuple[Key, End]]:
    blocks, seen = [], []
    for queue in queues:
        block = _last_block(queue)
        if block is not None:
            start, data = block
            blocks.append(data)
            seen.append((queue, start))
    if not blocks:
        return
    units = np.frombuffer(b"".join(blocks), UNIT_DTYPE)
    sizes = np.fromiter(map(len, blocks), np.int64, len(blocks)) // UNIT_SIZE
    stops = np.cumsum(sizes)
    starts = stops - sizes
    is_present = present(units)
    before = np.concatenate([[0], np.cumsum(is_present)])
    counts = before[stops] - before[starts]
    # Present units come first: then as many are present as the place of the last one says.
    places = np.where(is_present, np.arange(len(units)) + 1, 0)
    last = np.maximum.reduceat(places, starts)
    sound = (counts > 0) & (last == starts + counts)
    chosen = np.flatnonzero(sound)
    newest = units[last[chosen] - 1].tolist()
    first_offsets = units["physical_offset"][starts[chosen]].tolist()
    for place, count, unit, offset in zip(
        chosen.tolist(), counts[chosen].tolist(), newest, first_offsets, strict=True
    ):
        queue, start = seen[place]
        is_first = start * UNIT_SIZE == queue.files[0].file_from_offset
        yield queue.key, End(start + count, Unit(*unit), offset if is_first else None)


def _last_block(queue: QueueFiles) -> tuple[int, bytes] | None:
    """(the number of its first unit, bytes) of the units before the first hole of a queue with one file.

    None for another queue, and where there are no such units.
    """
    if len(queue.files) != 1 or queue.unit_size != UNIT_SIZE:
        return None
    (file,) = queue.files
    if isinstance(file.place, StoragePath) or file.size <= WALK_LIMIT or file.file_from_offset % UNIT_SIZE:
        return None
    try:
        descriptor = descriptor_of(file.place)
        try:
            hole = min(os.lseek(descriptor, 0, os.SEEK_HOLE), file.size)
            stop = min(file.size // UNIT_SIZE, -(-hole // UNIT_SIZE))
            start = max(stop - TAIL_UNITS - 1, 0)
            data = os.pread(descriptor, (stop - start) * UNIT_SIZE, start * UNIT_SIZE)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    if not data or len(data) != (stop - start) * UNIT_SIZE:
        return None
    return file.file_from_offset // UNIT_SIZE + start, data
