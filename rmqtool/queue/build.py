"""Records to consume queue units, grouped by queue: the fast half of a broker's dispatch.

`entries_of` turns a batch of the walk into ENTRY rows, `QueueNumbers` gives every queue a small
number, `Pending` checks each unit by the broker's rules, packs it, and hands all of them out queue
by queue. The loops are in `build_kernel.py`, compiled.

The rules of a plain queue, with q the record's queue offset and `next` the unit that comes next:
  1. A record that does not end after the newest one of the queue is a duplicate: no unit.
  2. A queue without a file starts at q. Else, when q is not 0 and below `next`: no unit.
  3. The unit is number `next`, also when q is above it: the broker leaves no gap.
Of a batch queue: a record that does not start after the newest one has no unit, others follow densely.

Source: ConsumeQueue#putMessagePositionInfo, BatchConsumeQueue#putBatchMessagePositionInfo; spec 01
sections 5.2, 5.3, 5.7.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, EXT_HEAD, UNIT_SIZE
from rmqtool.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK

if TYPE_CHECKING:
    from rmqtool.log.dispatch import Dispatch

    Array = np.ndarray[Any, np.dtype[Any]]

ENTRY = np.dtype(
    [
        ("physical_offset", "i8"),
        ("tags_code", "i8"),
        ("queue_offset", "i8"),  # of a batch queue: the first one that the record holds
        ("store_timestamp", "i8"),
        ("size", "i4"),
        ("batch_size", "i4"),  # queue offsets that the record holds in a batch queue
        ("topic", "i4"),  # number of the topic, of the caller's choice
        ("queue_id", "i4"),
        ("ext_size", "i4"),  # bytes of its extension unit, where the queue has such; 0: it gets none
    ],
    align=True,
)
"""One unit that is to be written."""

NO_FILE = -1
"""Stands for the next unit's number: the queue has no file yet."""
UNIT_WORD = 2  # bytes: the kernels write units as words of 16 bits, for 20 and 46 are multiples of it
assert UNIT_SIZE % UNIT_WORD == 0 and BATCH_UNIT_SIZE % UNIT_WORD == 0
_SLOTS_MIN = 1 << 12


class Delays(NamedTuple):
    """The delayed topic's number within a batch (-1: not in it), and the delay of level n at n - 1, ms."""

    topic_id: int
    delays_ms: Sequence[int]


def dispatched(sys_flags: Array) -> Array:
    """Which records get a unit, by their sys_flags, shape (n,): plain and committed ones.

    Source: CommitLogDispatcherBuildConsumeQueue#dispatch.
    """
    kind = sys_flags & TRANSACTION_MASK
    return np.asarray((kind == 0) | (kind == TRANSACTION_COMMIT))


def entries_of(
    rows: Array, dispatch: Dispatch, chosen: Array, topics: Array, batch: Array, delays: Delays
) -> Array:
    """ENTRY rows of the records `chosen`, shape (len(chosen),).

    Args:
        rows: rows of one batch of the walk.
        dispatch: what `dispatch.dispatch_columns` says about them.
        chosen: ascending numbers of rows.
        topics: per topic of the batch the number that its entries get, i4.
        batch: per topic of the batch whether its queues are batch queues, bool.
        delays: for delayed records, whose tags code is the time of delivery.
    """
    whole = len(chosen) == len(rows)
    entries = np.empty(len(chosen), ENTRY)
    for name in ("physical_offset", "queue_offset", "store_timestamp", "size", "queue_id"):
        entries[name] = rows[name] if whole else rows[name][chosen]
    topic_ids = rows["topic_id"] if whole else rows["topic_id"][chosen]
    entries["topic"] = topics[topic_ids]
    entries["tags_code"] = dispatch.tags_code if whole else dispatch.tags_code[chosen]
    entries["batch_size"] = 1
    entries["ext_size"] = EXT_HEAD.size
    if batch.any():
        inner = np.flatnonzero(batch[topic_ids] & (dispatch.inner_base[chosen] != -1))
        entries["queue_offset"][inner] = dispatch.inner_base[chosen[inner]]
        entries["batch_size"][inner] = dispatch.inner_count[chosen[inner]]
    if delays.topic_id >= 0 and delays.delays_ms:
        levels = np.minimum(dispatch.delay_level[chosen], len(delays.delays_ms))
        due = np.flatnonzero((topic_ids == delays.topic_id) & (levels > 0))
        table = np.array(delays.delays_ms, np.int64)
        entries["tags_code"][due] = entries["store_timestamp"][due] + table[levels[due] - 1]
    return entries


def queue_codes(entries: Array) -> Array:
    """One i8 per entry that stands for its queue: see `code_of`."""
    codes: Array = entries["topic"].astype(np.int64) << 32
    codes |= entries["queue_id"].astype(np.int64) & 0xFFFFFFFF
    return codes


def code_of(topic: int, queue_id: int) -> int:
    """The number that stands for a queue: topic number in the high, queue id in the low 32 bits."""
    return topic << 32 | queue_id & 0xFFFFFFFF


def queue_id_of(code: int) -> int:
    """The queue id of such a number; its topic is the number above the low 32 bits."""
    return (code & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)


class QueueNumbers:
    """Numbers queues in the order in which they are first seen, from 0 on: a hash table over codes."""

    def __init__(self) -> None:
        self._codes = np.empty(_SLOTS_MIN, np.int64)
        self._numbers = np.zeros(_SLOTS_MIN, np.int32)  # number + 1, 0 in a free slot
        self._count = 0

    def of(self, codes: Array, known: array[int]) -> Array:
        """The number of each code, shape (n,), i4. `known` lists all codes by number and grows."""
        from rmqtool.queue import build_kernel as kernel

        if 2 * (len(known) + len(codes)) > len(self._codes):
            size = 1 << (4 * (len(known) + len(codes)) - 1).bit_length()
            self._codes, self._numbers = np.empty(size, np.int64), np.zeros(size, np.int32)
            self._count = 0
        if self._count < len(known):
            late = np.array(known, np.int64)[self._count :]
            rest = np.empty(len(late), np.int32), np.empty(len(late), np.int64)
            self._count = kernel.number_codes(late, self._codes, self._numbers, self._count, *rest)
        numbers, fresh = np.empty(len(codes), np.int32), np.empty(len(codes), np.int64)
        count = kernel.number_codes(codes, self._codes, self._numbers, self._count, numbers, fresh)
        known.frombytes(fresh[: count - self._count].tobytes())
        self._count = count
        return numbers


def load_kernels() -> None:
    """Compile or load the kernels, by taking one unit of either kind."""
    entries = np.zeros(1, ENTRY)
    numbers = QueueNumbers().of(queue_codes(entries), array("q"))
    for unit_size in (UNIT_SIZE, BATCH_UNIT_SIZE):
        pending = Pending(unit_size, 1)
        pending.add(entries, numbers, 0, array("q", [NO_FILE]), array("q", [-1]))
        pending.take(1)


def after_newest(entries: Array, numbers: Array, newest: array[int], *, is_batch: bool) -> tuple[Array, int]:
    """(which entries are after the newest record of their queue: bool, shape (n,); how many are).

    Args:
        entries: ENTRY rows.
        numbers: per entry the number of its queue.
        newest: per queue where its newest record ends (of a batch queue: starts), -1 for none.
        is_batch: whether these are batch queues.
    """
    from rmqtool.queue import build_kernel as kernel

    found = np.empty(len(entries), np.bool_)
    ends = np.frombuffer(newest, np.int64)
    return found, kernel.after_newest(entries, numbers, ends, is_batch, found.view(np.uint8))


def note_last(entries: Array, numbers: Array, offsets: Array, sizes: Array) -> None:
    """Set `offsets` and `sizes`, by the number of a queue, to those of its last entry."""
    from rmqtool.queue import build_kernel as kernel

    kernel.note_last(entries, numbers, offsets, sizes)


def order_by_queue(codes: Array) -> Array:
    """The order that sorts `codes` of queues and leaves equal ones in their order: a stable np.argsort."""
    from rmqtool.queue import build_kernel as kernel

    known = array("q")
    numbers = QueueNumbers().of(codes, known)
    counts, by_code = np.bincount(numbers, minlength=len(known)), np.argsort(np.array(known, np.int64))
    places, order = np.empty(len(known), np.int64), np.empty(len(codes), np.int64)
    places[by_code] = np.cumsum(counts[by_code]) - counts[by_code]
    kernel.order_of(numbers, places, order)
    return order


class OffsetRuns:
    """The queue offsets of entries as (first, stop) runs without gaps, by queue; 16 bytes for each run."""

    def __init__(self) -> None:
        self._numbers, self._codes = QueueNumbers(), array("q")
        self._ended: dict[int, array[int]] = {}
        self._open = np.zeros((0, 2), np.int64)

    def add(self, entries: Array, size_max: int) -> None:
        """Add ENTRY rows in the order of the log; each has at least 1 and at most `size_max` offsets."""
        from rmqtool.queue import build_kernel as kernel

        numbers = self._numbers.of(queue_codes(entries), self._codes)
        if len(self._codes) > len(self._open):
            grown = np.zeros((2 * len(self._codes), 2), np.int64)
            grown[: len(self._open)] = self._open
            self._open = grown
        runs, queues = np.empty((len(entries), 2), np.int64), np.empty(len(entries), np.int32)
        count = kernel.offset_runs(entries, numbers, size_max, self._open, runs, queues)
        for queue, run in zip(queues[:count].tolist(), runs[:count].tolist(), strict=True):
            self._ended.setdefault(queue, array("q")).extend(run)

    def queues(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """(code of a queue, its runs in the order of the log)."""
        for queue, code in enumerate(self._codes):
            flat = [*self._ended.get(queue, ()), *self._open[queue].tolist()]
            yield code, list(zip(flat[::2], flat[1::2], strict=True))


class Grouped(NamedTuple):
    """Packed units, queue by queue: `counts[i]` units of queue `queues[i]` follow each other in `data`."""

    data: memoryview
    queues: list[int]
    counts: list[int]


class Pending:
    """Units that wait to be written, `limit` at most: packed, in the order of the log.

    Memory: unit size + 4 bytes for each of `limit`, taken when it is used, and the same again
    while they are grouped.
    """

    def __init__(self, unit_size: int, limit: int, ext_file_size: int = 0) -> None:
        """See the class; `ext_file_size` is that of extension files: each unit is followed by EXT_HEAD."""
        self.count = 0
        self.limit = limit
        self._is_batch = unit_size == BATCH_UNIT_SIZE
        self._ext_file_size = ext_file_size
        self._width = (unit_size + (EXT_HEAD.size if ext_file_size else 0)) // UNIT_WORD
        self._words = np.empty(limit * self._width, np.uint16)
        self._queues = np.empty(limit, np.int32)

    def add(
        self, entries: Array, numbers: Array, first: int, next_unit: array[int], newest: array[int],
        next_ext: array[int] | None = None,
    ) -> int:  # fmt: skip
        """Take entries[first:] as far as there is room; where it went on to, len(entries) when done.

        Args:
            entries: ENTRY rows in the order of the log.
            numbers: per entry the number of its queue.
            first: where to begin.
            next_unit: per queue the number of its next unit, or NO_FILE; kept up to date.
            newest: per queue where its newest record ends (of a batch queue: starts), -1 for none;
                kept up to date.
            next_ext: per queue the offset of its next extension unit; kept up to date.
        """
        from rmqtool.queue import build_kernel as kernel

        ext = np.frombuffer(next_ext, np.int64) if next_ext else np.zeros(0, np.int64)
        state = np.array([self.count], np.int64)
        done = kernel.admit(
            entries, numbers, first, np.frombuffer(next_unit, np.int64), np.frombuffer(newest, np.int64),
            self._words, self._queues, state, self._is_batch, self._width, ext, self._ext_file_size,
        )  # fmt: skip
        self.count = int(state[0])
        return int(done)

    def take(self, queue_count: int) -> Grouped:
        """All of them, in the order of the log within a queue; none are left."""
        from rmqtool.queue import build_kernel as kernel

        starts = np.zeros(queue_count + 1, np.int64)
        out = np.empty(self.count * self._width, np.uint16)
        kernel.group(self._words, self._queues, self.count, self._width, starts, out)
        counts = np.diff(starts, prepend=0)[:queue_count]
        used = np.flatnonzero(counts)
        self.count = 0
        return Grouped(out.data.cast("B"), used.tolist(), counts[used].tolist())
