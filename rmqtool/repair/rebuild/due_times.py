"""The delivery times of delayed messages whose queue is rebuilt: those that are known stay.

    the old queue has a unit of the record, with a possible delivery time     it stays
    else                                                                       store time + the level's delay

The log contains only the level. `read/delay_levels.py` decides its delay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqtool.check.verify.spans import UnitFault
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.queue.extension import Extension
from rmqtool.queue.units import UnitReader, live
from rmqtool.read.delay_levels import Delays, is_delay
from rmqtool.storage.ranges import inside

if TYPE_CHECKING:
    from rmqtool.check.verify.queues import Columns
    from rmqtool.check.verify.spans import Key, Span
    from rmqtool.read.delay_levels import DelayLevels
    from rmqtool.storage.layout import StoreLayout

    Array = np.ndarray[Any, np.dtype[Any]]


class _Units(NamedTuple):
    """Units of queues by the record that they name, ascending: arrays of one shape."""

    physical_offset: Array
    size: Array
    tags_code: Array

    def of(self, physical_offset: Array, size: Array) -> tuple[Array, Array]:
        """The tags code of each record's unit, and whether it has one."""
        if not len(self.physical_offset):
            return np.zeros(len(physical_offset), np.int64), np.zeros(len(physical_offset), bool)
        at = np.minimum(np.searchsorted(self.physical_offset, physical_offset), len(self.size) - 1)
        return self.tags_code[at], (self.physical_offset[at] == physical_offset) & (self.size[at] == size)


def _units(layout: StoreLayout, key: Key, reader: UnitReader) -> _Units:
    """The units of a queue. What cannot be read is left out; the queue's own findings report it."""
    queue, extended = layout.consume_queues.get(key), layout.ext_queues.get(key)
    extension = Extension(() if extended is None else extended.files, reader.read_bytes)
    parts = [_Units(*[np.zeros(0, np.int64)] * 3)]
    for file in () if queue is None else queue.files:
        try:
            for _, block in reader.blocks(file, UNIT_SIZE):
                rows = block[live(block)]
                code, known = extension.tags_codes(rows["tags_code"])
                place, size = (rows[name].astype(np.int64)[known] for name in ("physical_offset", "size"))
                parts.append(_Units(place, size, code[known]))
        except OSError:
            continue
    return _joined(parts)


def _joined(parts: Sequence[_Units]) -> _Units:
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return _Units(*(column[order] for column in columns))


class SurveyedDues:
    """What the survey finds of delayed messages, from any thread.

    Attributes:
        delays: of units that are right, or name a record of their queue elsewhere.
        made: how many messages of each queue and level need a new delivery time.
    """

    def __init__(self, layout: StoreLayout) -> None:
        self.delays = Delays()
        self.made: Counter[tuple[Key, int]] = Counter()
        self._layout = layout
        self._elsewhere: dict[Key, _Units] = {}
        self._lock = Lock()

    def add(self, key: Key, rows: Columns, delays_ms: Array, kinds: Array, reader: UnitReader) -> None:
        """Add records of a queue; see `QueueCheck.delayed`."""
        right, wrong = (rows.level > 0) & (kinds < 0), (rows.level > 0) & (kinds >= 0)
        with self._lock:
            self._count(rows.level[right], delays_ms[right])
            if not wrong.any():
                return
            if key not in self._elsewhere:
                self._elsewhere[key] = _units(self._layout, key, reader)
            left = rows.pick(np.flatnonzero(wrong))
            code, known = self._elsewhere[key].of(left.physical_offset, left.size)
            known &= is_delay(code - left.store_timestamp) & (kinds[wrong] != UnitFault.DELIVERY)
            self._count(left.level[known], (code - left.store_timestamp)[known])
            for level, count in zip(*np.unique(left.level[~known], return_counts=True), strict=True):
                self.made[key, int(level)] += int(count)

    def _count(self, levels: Array, delays_ms: Array) -> None:
        right = is_delay(delays_ms)
        pairs, counts = np.unique(
            levels[right].astype(np.int64) << 32 | delays_ms[right] // 1000, return_counts=True
        )
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self.delays.add(pair >> 32, (pair & 0xFFFFFFFF) * 1000, count)

    def warnings(self, keys: Collection[Key], levels: DelayLevels) -> Iterator[str]:
        """Warnings about delivery times that are not certain, of queues that are rebuilt."""
        made: Counter[int] = Counter()
        for (key, level), count in self.made.items():
            made[level] += count if key in keys else 0
        for level, count in sorted(made.items()):
            doubt = levels.doubt(level, count)
            if doubt is not None:
                yield doubt


class KeptDues:
    """The delivery times of the old queues, for units that are made."""

    def __init__(self, layout: StoreLayout, keys: Iterable[Key], spans: Mapping[Key, Span]) -> None:
        """Read the old units of those of the queues `keys` that are queues of delayed messages.

        Args:
            layout: the store's.
            keys: queues that are rebuilt.
            spans: the result of the survey, which says which delivery times are wrong.
        """
        parts = [_Units(*[np.zeros(0, np.int64)] * 3)]
        with UnitReader() as reader:
            for key in keys:
                if key[0] == SCHEDULE_TOPIC:
                    wrong = sorted(
                        (item.start, item.end)
                        for item in (spans[key].mismatches if key in spans else ())
                        if item.kind is UnitFault.DELIVERY
                    )
                    found = _units(layout, key, reader)
                    right = ~inside(wrong, found.physical_offset)
                    parts.append(_Units(*(column[right] for column in found)))
        self._units = _joined(parts)

    def of(self, physical_offset: int, size: int, store_timestamp: int, tags_code: int) -> int:
        """The tags code of the new unit of a delayed message: that of its old unit, else `tags_code`."""
        one = (np.array([value], np.int64) for value in (physical_offset, size))
        (code,), (known,) = self._units.of(*one)
        return int(code) if known and is_delay(int(code) - store_timestamp) else tags_code

    def set_codes(self, entries: Array, topic: int) -> Array:
        """Return ENTRY rows with the kept delivery times; `topic` is the number of SCHEDULE_TOPIC_XXXX."""
        rows = np.flatnonzero(entries["topic"] == topic)
        if not len(rows) or not len(self._units.size):
            return entries
        entries = entries.copy()
        code, known = self._units.of(entries["physical_offset"][rows], entries["size"][rows])
        known &= is_delay(code - entries["store_timestamp"][rows])
        entries["tags_code"][rows[known]] = code[known]
        return entries
