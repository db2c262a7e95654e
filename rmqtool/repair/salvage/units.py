"""The queue units that point into holes of the log: they show which records were lost there.

All units of all queues are read in blocks and compared with the holes as arrays. Python code handles only
units that point into a hole, and some units around them: the records of the latter show whether the file is
in the wrong queue's folder (two files exchanged, a folder renamed).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.properties import INNER_MULTI_DISPATCH, decode
from rmqtool.lazy_dataclass import dataclass
from rmqtool.queue.units import UnitReader, live, queue_offsets
from rmqtool.repair.salvage.model import Claim
from rmqtool.storage.layout import QueueFiles, StoreLayout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rmqtool.log.events import StoredMessage
    from rmqtool.storage.source import ByteSource

    Find = Callable[[int], StoredMessage | None]
    """The record at a physical offset, as `Store.find`."""

TAIL_UNITS_MAX = 1 << 20
"""Most ranges of units after the log's end that are listed."""


_AROUND = 4
"""Units on either side of a hit that are checked for the owner of the file."""
_ENOUGH = 2  # units that confirm the folder's queue, without any that contradicts


@dataclass(frozen=True, slots=True)
class _Hits:
    """Claims of one block of a queue, and units next to them that do not point into holes.

    `near` are (queue offset, physical offset, size).
    """

    queue: QueueFiles
    claims: list[Claim]
    near: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class TailUnits:
    """Consecutive units of one queue that point after the log's end."""

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
    heads: Collection[int],
    opener: Callable[[Path], ByteSource],
    find: Find,
    jobs: int,
) -> tuple[list[Claim], list[TailUnits]]:
    """The records that units place in `holes`, in order, and those that units place at or after `end`.

    Args:
        layout: the store.
        holes: half-open ranges of the log, ascending.
        end: the log's end; units of records that begin there or later are tail units.
        heads: offsets of records whose headers are left; after the end their units are not joined to others.
        opener: opens a queue file.
        find: reads a record of the log.
        jobs: number of threads.
    """
    edges = np.array(holes, np.int64).reshape(-1, 2)
    alone = np.array(sorted(heads), np.int64)

    def read(queue: QueueFiles) -> tuple[list[_Hits], list[TailUnits]]:
        return _of_queue(queue, edges, end, alone, opener)

    claims: list[Claim] = []
    tails: list[TailUnits] = []
    with ThreadPoolExecutor(jobs, "rmqtool-salvage") as pool:
        for found, tail in pool.map(read, layout.unit_queues):
            for hits in found:
                claims += _owned(hits, layout, find)
            tails += tail
    claims.sort(key=lambda claim: (claim.start, claim.size))
    tails.sort(key=lambda tail: (tail.physical_offset, tail.topic, tail.queue_id))
    return claims, tails[:TAIL_UNITS_MAX]


def _of_queue(
    queue: QueueFiles, edges: np.ndarray, end: int, alone: np.ndarray, opener: Callable[[Path], ByteSource]
) -> tuple[list[_Hits], list[TailUnits]]:
    found: list[_Hits] = []
    tails: list[TailUnits] = []
    topic = java_utf8_encode(queue.topic)
    for offsets, counts, units in _blocks(queue, opener):
        start = units["physical_offset"].astype(np.int64)
        size = units["size"].astype(np.int64)
        behind = start >= end
        if behind.any():
            tails += _runs(queue, offsets[behind], counts[behind], start[behind], size[behind], alone)
        if not len(edges):
            continue
        place = np.searchsorted(edges[:, 0], start, side="right") - 1
        hit = (place >= 0) & ~behind
        hit &= start + size <= edges[np.maximum(place, 0), 1]
        rows = np.flatnonzero(hit)
        if not len(rows):
            continue
        claims = [
            Claim(
                int(start[row]), int(size[row]), topic, queue.queue_id, int(offsets[row]),
                count=int(counts[row]) if queue.is_batch else 0, known_from="unit",
            )
            for row in rows.tolist()
        ]  # fmt: skip
        others = np.flatnonzero(~hit & ~behind)
        middle = int(np.searchsorted(others, rows[0]))
        near = others[max(middle - _AROUND, 0) : middle + _AROUND].tolist()
        near.sort(key=lambda row: abs(row - rows[0]))
        places = [(int(offsets[row]), int(start[row]), int(size[row])) for row in near]
        found.append(_Hits(queue, claims, places))
    return found, tails


def _owned(hits: _Hits, layout: StoreLayout, find: Find) -> list[Claim]:
    """The claims, assigned to the queue of the units next to them; none if these do not agree.

    If none of these units refers to a sound record, the folder's name decides.
    """
    own, others = 0, Counter[tuple[str, int, bool]]()
    for queue_offset, start, size in hits.near:
        stored = find(start)
        if stored is None or stored.status or stored.message.total_size != size:
            continue
        message = stored.message
        if (message.topic, message.queue_id) == (hits.queue.topic, hits.queue.queue_id) or _is_light(
            message.properties_bytes, hits.queue.topic
        ):
            own += 1
            if own == _ENOUGH and not others:
                break
        else:
            is_numbered = hits.queue.is_batch or message.queue_offset == queue_offset
            others[message.topic, message.queue_id, is_numbered] += 1
    if own >= others.total():
        return hits.claims
    ((topic, queue_id, is_numbered), count) = others.most_common(1)[0]
    known = layout.batch_queues if hits.queue.is_batch else layout.consume_queues
    if count == own + others.total() == 1 and (topic, queue_id) not in known:
        return hits.claims  # only one record contradicts, and it may be damaged
    if not is_numbered or 2 * count <= own + others.total():
        return []
    for claim in hits.claims:
        claim.topic, claim.queue_id = java_utf8_encode(topic), queue_id
    return hits.claims


def _is_light(properties: bytes, topic: str) -> bool:
    """Whether a record also has a unit in the light queue `topic`."""
    return topic in decode(properties).get(INNER_MULTI_DISPATCH, "").split(",")


def _blocks(
    queue: QueueFiles, opener: Callable[[Path], ByteSource]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(queue offsets, messages per unit, units) of the present units, block by block.

    Files that cannot be read, or are gone, are skipped.
    """
    with UnitReader(opener) as reader:
        for file in queue.files:
            try:
                for first, block in reader.blocks(file, queue.unit_size):
                    chosen = live(block)
                    units = block[chosen]
                    if not len(units):
                        continue
                    counts = np.ones(len(units), np.int64)
                    if queue.is_batch:
                        counts = np.maximum(units["batch_size"].astype(np.int64), 1)
                    yield queue_offsets(block, first)[chosen], counts, units
            except OSError:
                continue


def _runs(
    queue: QueueFiles,
    offsets: np.ndarray,
    counts: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    alone: np.ndarray,
) -> list[TailUnits]:
    """The units after the end; consecutive queue offsets are joined, but not those of records in `alone`."""
    is_alone = np.isin(starts, alone)
    parted = (offsets[1:] != offsets[:-1] + counts[:-1]) | is_alone[1:] | is_alone[:-1]
    cuts = (np.flatnonzero(parted) + 1).tolist()
    return [
        TailUnits(
            queue.topic, queue.queue_id, int(offsets[low]), int(counts[low:high].sum()), int(starts[low]),
            int(sizes[low:high].sum()),
        )
        for low, high in zip([0, *cuts], [*cuts, len(offsets)], strict=True)
    ]  # fmt: skip
