"""The queue units that point into holes of the log: they tell which records were lost there.

All units of all queues are read, in blocks, and compared with the holes as arrays; Python sees only
those that hit one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.formats.java import java_utf8_encode
from rmqtool.scan.queues import BATCH_UNIT_DTYPE, UNIT_DTYPE, UnitReader, pre_blank, present
from rmqtool.store.layout import QueueFiles, StoreLayout
from rmqtool.store.salvage.model import Claim

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rmqtool.scan.source import ByteSource

TAIL_UNITS_MAX = 1 << 20
"""Units behind the log's end that are named; of more it is said how many."""


@dataclass(frozen=True, slots=True)
class TailUnits:
    """Units of one queue that point behind the log's end: consecutive ones as one."""

    topic: str
    queue_id: int
    queue_offset: int
    count: int
    physical_offset: int
    size: int


def units_in(
    layout: StoreLayout,
    holes: Sequence[tuple[int, int]],
    end: int,
    opener: Callable[[Path], ByteSource],
    jobs: int,
) -> tuple[list[Claim], list[TailUnits]]:
    """The records that units place in `holes`, in order, and those that units place behind `end`.

    Args:
        layout: the store.
        holes: half-open ranges of the log, ascending.
        end: the log's end; units of records that begin there or behind are tail units.
        opener: opens a queue file.
        jobs: threads.
    """
    edges = np.array(holes, np.int64).reshape(-1, 2)
    queues = [(queue, False) for queue in layout.consume_queues.values()]
    queues += [(queue, True) for queue in layout.batch_queues.values()]

    def read(item: tuple[QueueFiles, bool]) -> tuple[list[Claim], list[TailUnits]]:
        return _of_queue(*item, edges, end, opener)

    claims: list[Claim] = []
    tails: list[TailUnits] = []
    with ThreadPoolExecutor(jobs, "rmqtool-salvage") as pool:
        for found, tail in pool.map(read, queues):
            claims += found
            tails += tail
    claims.sort(key=lambda claim: (claim.start, claim.size))
    tails.sort(key=lambda tail: (tail.physical_offset, tail.topic, tail.queue_id))
    return claims, tails[:TAIL_UNITS_MAX]


def _of_queue(
    queue: QueueFiles, is_batch: bool, edges: np.ndarray, end: int, opener: Callable[[Path], ByteSource]
) -> tuple[list[Claim], list[TailUnits]]:
    claims: list[Claim] = []
    tails: list[TailUnits] = []
    topic = java_utf8_encode(queue.topic)
    for offsets, counts, units in _blocks(queue, is_batch, opener):
        start = units["physical_offset"].astype(np.int64)
        size = units["size"].astype(np.int64)
        behind = start >= end
        if behind.any():
            tails += _runs(queue, offsets[behind], counts[behind], start[behind], size[behind])
        if not len(edges):
            continue
        place = np.searchsorted(edges[:, 0], start, side="right") - 1
        hit = (place >= 0) & ~behind
        hit &= start + size <= edges[np.maximum(place, 0), 1]
        for row in np.flatnonzero(hit).tolist():
            claims.append(
                Claim(
                    int(start[row]), int(size[row]), topic, queue.queue_id, int(offsets[row]),
                    count=int(counts[row]) if is_batch else 0, known_from="unit",
                )
            )  # fmt: skip
    return claims, tails


def _blocks(
    queue: QueueFiles, is_batch: bool, opener: Callable[[Path], ByteSource]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(queue offsets, messages per unit, units) of the units that are there, block by block.

    A file that cannot be read, or has gone, tells nothing.
    """
    with UnitReader(opener, BATCH_UNIT_DTYPE if is_batch else UNIT_DTYPE) as reader:
        for file in queue.files:
            try:
                for first, block in reader.blocks(file):
                    chosen = present(block)
                    if not is_batch:
                        chosen &= ~pre_blank(block)
                    units = block[chosen]
                    if not len(units):
                        continue
                    if is_batch:
                        offsets = units["base_offset"].astype(np.int64)
                        counts = np.maximum(units["batch_size"].astype(np.int64), 1)
                    else:
                        offsets = np.flatnonzero(chosen) + first + file.file_from_offset // UNIT_SIZE
                        counts = np.ones(len(units), np.int64)
                    yield offsets, counts, units
            except OSError:
                continue


def _runs(
    queue: QueueFiles, offsets: np.ndarray, counts: np.ndarray, starts: np.ndarray, sizes: np.ndarray
) -> list[TailUnits]:
    """Units behind the end, consecutive queue offsets as one."""
    cuts = (np.flatnonzero(offsets[1:] != offsets[:-1] + counts[:-1]) + 1).tolist()
    return [
        TailUnits(
            queue.topic, queue.queue_id, int(offsets[low]), int(counts[low:high].sum()), int(starts[low]),
            int(sizes[low:high].sum()),
        )
        for low, high in zip([0, *cuts], [*cuts, len(offsets)], strict=True)
    ]  # fmt: skip
