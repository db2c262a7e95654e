"""Compares the consume queues of two stores by content, over the offsets that both have.

Each broker makes queues from its own log, so files may begin elsewhere and have other sizes; but where the
log is the same, the unit of a queue offset is the same. Units of records outside of the common range of
the logs are not compared, nor are fillers below a queue's first unit. The address of an extension unit is
each broker's own, so the tags code that it leads to is compared, if it can be read.

The common range ends where the logs have diverged. From there on a physical offset names a different
record on each side, so the units of each side are compared with the records of its own log.

`own_records` finds the queue offsets of the records that only one log holds, `messages_from` counts them.

Source: spec 02 12.1; ConsumeQueue, BatchConsumeQueue. CommitLogDispatcherBuildConsumeQueue: prepared and
rolled back messages get no unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rmqtool.check.diff.ends import SideName
from rmqtool.check.diff.operands import Key, Operand, ReadOptions
from rmqtool.check.diff.windows import Common, Range, Unread, common, differing
from rmqtool.errors import UnreadableError
from rmqtool.formats.consume_queue import UNIT_SIZE, BatchUnit, Unit
from rmqtool.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import is_system_topic
from rmqtool.queue.consume_queue import AnyQueue, BatchConsumeQueue, ConsumeQueue
from rmqtool.queue.units import BATCH_UNIT_DTYPE, UnitReader, pre_blank, present, unit_array
from rmqtool.read.selection import Selection
from rmqtool.storage.open_files import path_of

if TYPE_CHECKING:
    from rmqtool.check.diff.operands import Key, Operand
    from rmqtool.storage.source import ByteSource


_COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "sys_flag")


class OwnRecords(NamedTuple):
    """The records of one queue in a range of the log: their smallest and largest queue offset.

    `oldest` and `newest` are the physical offsets of the first and the last record.
    """

    first: int
    last: int
    oldest: int
    newest: int


def own_records(side: Operand, start: int) -> dict[Key, OwnRecords]:
    """The dispatched records of a log from the physical offset `start` on, by queue.

    Damage is skipped: `verify` reports it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmqtool.read.messages import message_batches

    found: dict[Key, OwnRecords] = {}
    selection = Selection(from_offset=start, to_offset=side.end)
    for batch in message_batches(side.store, selection, columns=_COLUMNS, crc=False):
        table = pa.Table.from_batches([batch])
        kinds = pc.bit_wise_and(table["sys_flag"], pa.scalar(TRANSACTION_MASK, table["sys_flag"].type))
        table = table.filter(pc.is_in(kinds, pa.array([0, TRANSACTION_COMMIT], kinds.type)))
        wanted = [(column, end) for column in ("queue_offset", "physical_offset") for end in ("min", "max")]
        for row in table.group_by(["topic", "queue_id"]).aggregate(wanted).to_pylist():
            key = row["topic"], row["queue_id"]
            first, last = row["queue_offset_min"], row["queue_offset_max"]
            old = found.get(key)
            if old is not None:  # batches come in the log's order
                first, last = min(old.first, first), max(old.last, last)
            oldest = row["physical_offset_min"] if old is None else old.oldest
            found[key] = OwnRecords(first, last, oldest, row["physical_offset_max"])
    return found


def messages_from(side: Operand, start: int) -> int:
    """How many messages the queues have of the records at the physical offset `start` and after it.

    Raises UnreadableError.
    """
    counts = (
        span.max_offset - max(side.store.queues[key].first_live(start), 0) for key, span in side.spans.items()
    )
    return sum(max(count, 0) for count in counts)


_WINDOW_UNITS = 1 << 15

State = Literal["same", "differs", "lacks", "behind", "more"]


@dataclass(slots=True)
class QueueDifference:
    """One queue on both sides; spans are (min, max) queue offsets, None if a side lacks the queue.

    `state` is the most important of: `differs` (units differ); `lacks` (the side `lacking` has no unit for a
    record that both logs hold, or that its own log holds since the logs diverged); `behind` (the same, but
    only the newest units are missing, which a running or starting broker will write); `more` (one side has
    units of records that only its log holds); `same`.
    `only_a` and `only_b` count messages that only one side's queue holds.
    """

    topic: str
    queue_id: int
    a: Range | None
    b: Range | None
    state: State = "same"
    compared: int = 0
    differing: int = 0
    first: tuple[int, Unit | BatchUnit | None, Unit | BatchUnit | None] | None = None
    lacking: SideName | None = None
    only_a: int = 0
    only_b: int = 0

    def row(self) -> dict[str, Any]:
        """As JSON."""
        row: dict[str, Any] = {"topic": self.topic, "queue_id": self.queue_id, "state": self.state}
        for name, span in (("a", self.a), ("b", self.b)):
            row[f"min_offset_{name}"], row[f"max_offset_{name}"] = span if span is not None else (None, None)
        row |= {
            "compared_units": self.compared,
            "differing_units": self.differing,
            "lacking": self.lacking,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "first_difference": None,
        }
        if self.first is not None:
            offset, *units = self.first
            parts = ((name, unit._asdict() if unit else None) for name, unit in zip("ab", units, strict=True))
            row["first_difference"] = {"queue_offset": offset, **dict(parts)}
        return row


@dataclass(slots=True)
class QueuesDifference:
    """All queues: the number of compared ones, and those that are not the same, up to a limit.

    `by_topic` counts messages that only one side's queues hold: topic to (a, b). `given_twice` are the queue
    offsets, half-open, that both logs have given to records of their own since they diverged.
    """

    compared: int = 0
    units: int = 0
    same: int = 0
    queues: list[QueueDifference] = field(default_factory=list)
    different: int = 0
    behind: int = 0
    more: int = 0
    by_topic: dict[str, tuple[int, int]] = field(default_factory=dict)
    given_twice: dict[Key, Range] = field(default_factory=dict)
    unread: Unread = field(default_factory=Unread)

    @property
    def differs(self) -> bool:
        """Whether a queue differs in units that both sides should have."""
        return self.different > 0

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "compared": self.compared,
            "compared_units": self.units,
            "identical": self.same,
            "different": self.different,
            "behind": self.behind,
            "more": self.more,
            "queues": [each.row() for each in self.queues],
            "only_by_topic": [
                {"topic": topic, "only_a": a, "only_b": b} for topic, (a, b) in sorted(self.by_topic.items())
            ],
            "given_twice": [
                {"topic": topic, "queue_id": queue_id, "from_offset": low, "to_offset": high}
                for (topic, queue_id), (low, high) in self.given_twice.items()
            ],
        }


_ORDER: tuple[State, ...] = ("differs", "lacks", "behind", "more")


def diff_queues(
    a: Operand,
    b: Operand,
    span: Range | None,
    reading: ReadOptions,
    *,
    limit: int,
    own: tuple[dict[Key, OwnRecords], dict[Key, OwnRecords]] | None = None,
) -> QueuesDifference:
    """Compare the queues of two stores.

    Args:
        a: one side.
        b: the other.
        span: the physical offsets that both logs hold, half-open; None without logs: all units count.
        reading: how files are read.
        limit: most queues that are listed, the worst first.
        own: the records of each log from the physical offset on at which the logs have diverged, the end of
            `span`; None if they have not.
    """
    result = QueuesDifference(given_twice=dict(_given_twice(*own)) if own is not None else {})
    pair = _Pair(a, b, span, reading, result.unread, own)
    kept: dict[State, list[QueueDifference]] = {state: [] for state in _ORDER}
    for key in sorted({**a.store.queues, **b.store.queues, **(own[0] | own[1] if own else {})}):
        if pair.is_unread(key):
            continue
        try:
            found = pair.compare(key)
        except OSError as error:
            pair.note(error)
            continue
        result.compared += 1
        result.units += found.compared
        result.same += found.state == "same"
        result.different += found.state in ("differs", "lacks")
        result.behind += found.state == "behind"
        result.more += found.state == "more"
        if found.only_a or found.only_b:
            more_a, more_b = result.by_topic.get(key[0], (0, 0))
            result.by_topic[key[0]] = more_a + found.only_a, more_b + found.only_b
        if found.state != "same" and len(kept[found.state]) < limit:
            kept[found.state].append(found)
    result.queues = [each for state in _ORDER for each in kept[state]][:limit]
    return result


def _given_twice(a: dict[Key, OwnRecords], b: dict[Key, OwnRecords]) -> Iterator[tuple[Key, tuple[int, int]]]:
    """The queue offsets, half-open, that records of both logs have; a broker's own topics are left out."""
    for key in sorted(a.keys() & b.keys()):
        low, high = max(a[key].first, b[key].first), min(a[key].last, b[key].last) + 1
        if low < high and not is_system_topic(key[0]):
            yield key, (low, high)


class _Pair:
    """Compares the queues of two stores."""

    def __init__(
        self,
        a: Operand,
        b: Operand,
        span: Range | None,
        reading: ReadOptions,
        unread: Unread,
        own: tuple[dict[Key, OwnRecords], dict[Key, OwnRecords]] | None,
    ) -> None:
        self.a = a
        self.b = b
        self.span = span
        self.reading = reading
        self.unread = unread
        self.own = own

    def is_unread(self, key: Key) -> bool:
        """Whether a side has the queue but could not read its ends; the side reports that."""
        return any(key in side.store.queues and key not in side.spans for side in (self.a, self.b))

    def note(self, error: OSError) -> None:
        """Add a file that could not be read while queues were compared."""
        path = path_of(error)
        cause = error.__cause__ if isinstance(error, UnreadableError) else error
        if isinstance(cause, FileNotFoundError):
            self.unread.gone.append(path)
            return
        reason = error.message if isinstance(error, UnreadableError) else error.strerror or str(error)
        of_a = any(file.path == path for queue in self.a.store.queues.values() for file in queue.files)
        (self.unread.a if of_a else self.unread.b).append((0, 0, path, reason))

    def compare(self, key: Key) -> QueueDifference:
        """Compare one queue. Raises OSError."""
        span_a, span_b = self.a.spans.get(key), self.b.spans.get(key)
        found = QueueDifference(
            *key,
            a=None if span_a is None else (span_a.min_offset, span_a.max_offset),
            b=None if span_b is None else (span_b.min_offset, span_b.max_offset),
        )
        queues = self.a.store.queues.get(key), self.b.store.queues.get(key)
        a, b = (self._shared(queue, span) for queue, span in zip(queues, (found.a, found.b), strict=True))
        self._one_sided(found, queues, a, b)
        if self.own is not None:
            self._own_log(found, queues)
        if queues[0] is None or queues[1] is None or found.a is None or found.b is None:
            return found
        low, high = max(a[0], b[0], 0), min(a[1], b[1])
        if type(queues[0]) is not type(queues[1]):
            found.state, found.lacking = "differs", None
        elif low < high:
            self._units(found, queues[0], queues[1], low, high)
        if found.differing:
            found.state = "differs"
        return found

    def _shared(self, queue: AnyQueue | None, span: Range | None) -> Range:
        """The queue offsets that are compared: those of records before the offset where the logs diverged."""
        if queue is None or span is None:
            return 0, 0
        if self.own is None or self.span is None:
            return span
        number = queue.number_after(self.span[1] - 1)
        if isinstance(queue, BatchConsumeQueue):
            unit = queue.by_number(number)
            number = span[1] if unit is None else unit.base_offset
        return span[0], min(max(number, span[0]), span[1])

    # what one side alone has

    def _own_log(self, found: QueueDifference, queues: tuple[AnyQueue | None, AnyQueue | None]) -> None:
        """Check that each side has units for the first and last of its own records since the divergence."""
        assert self.own is not None
        key = found.topic, found.queue_id
        cases: tuple[tuple[SideName, Operand, AnyQueue | None, OwnRecords | None], ...] = (
            ("a", self.a, queues[0], self.own[0].get(key)), ("b", self.b, queues[1], self.own[1].get(key))
        )  # fmt: skip
        for name, side, queue, records in cases:
            if records is None or not side.store.layout.has_files_of_queues:
                continue
            begins = queue is not None and queue.unit(records.first) is not None
            if begins and queue is not None and queue.unit(records.last) is not None:
                continue
            # A broker, running or at its next start, dispatches everything after the last dispatched record.
            dispatched = side.dispatched if side.live else side.store.dispatched_end()
            waits = (records.newest if begins else records.oldest) >= dispatched
            found.lacking, found.state = name, "behind" if waits else "lacks"

    def _one_sided(
        self, found: QueueDifference, queues: tuple[AnyQueue | None, AnyQueue | None], a: Range, b: Range
    ) -> None:
        """Compare the extents of the queues; `a` and `b` are the compared queue offsets."""
        found.only_a, found.only_b = (
            _beyond(one, other) + (whole[1] - one[1] if whole is not None else 0)
            for one, other, whole in ((a, b, found.a), (b, a, found.b))
        )
        if found.only_a or found.only_b:
            found.state = "more"
        cases: tuple[tuple[SideName, Operand, AnyQueue | None, Range, Range], ...] = (
            ("b", self.b, queues[0], a, b), ("a", self.a, queues[1], b, a)
        )  # fmt: skip
        for name, side, queue, long, short in cases:
            if queue is None or long[0] >= long[1]:
                continue
            is_empty = short[0] >= short[1]
            first_newer = queue.unit(max(short[1], long[0])) if long[1] > short[1] else None
            newer = self._is_common(first_newer)
            older = (is_empty or long[0] < short[0]) and self._is_common(
                queue.unit(long[1] - 1 if is_empty else min(short[0], long[1]) - 1)
            )
            if not newer and not older:
                continue
            # A running broker dispatches in the order of the log, so it will still write these units.
            waits = side.live and first_newer is not None and first_newer.physical_offset >= side.dispatched
            found.lacking, found.state = name, "behind" if waits and (is_empty or not older) else "lacks"

    def _is_common(self, unit: Unit | BatchUnit | None) -> bool:
        """Whether a unit names a record that both logs hold."""
        if unit is None or unit.is_pre_blank:
            return False
        return self.span is None or self.span[0] <= unit.physical_offset < self.span[1]

    # units that both have

    def _units(self, found: QueueDifference, a: AnyQueue, b: AnyQueue, low: int, high: int) -> None:
        if isinstance(a, ConsumeQueue):
            self._unit_files(found, a, b, low, high)
        elif isinstance(b, BatchConsumeQueue):
            self._batches(found, a, b, low, high)

    def _unit_files(self, found: QueueDifference, a: AnyQueue, b: AnyQueue, low: int, high: int) -> None:
        both = common(a.files, b.files, low * UNIT_SIZE, high * UNIT_SIZE)
        self._missing_files(found, both, a, b)
        openers = (self.reading.open, self.reading.open)
        for piece in both.pieces:
            found.compared += (piece.stop - piece.start) // UNIT_SIZE
            window = _WINDOW_UNITS * UNIT_SIZE
            for offset, *data in differing(piece, openers, self.unread, window):
                left, right = (unit_array(each, UNIT_SIZE) for each in data)
                differs = np.flatnonzero(self._differ(left, right, self._same_tags(left, right, a, b)))
                if found.first is None and len(differs):
                    place = int(differs[0])
                    units = [Unit(*each[place].item()) for each in (left, right)]
                    found.first = (offset // UNIT_SIZE + place, units[0], units[1])
                found.differing += len(differs)

    @staticmethod
    def _same_tags(left: np.ndarray, right: np.ndarray, a: AnyQueue, b: AnyQueue) -> np.ndarray:
        """Which units of two arrays have the same tags code, or an unknown one: bool, shape (n,)."""
        assert isinstance(a, ConsumeQueue)
        assert isinstance(b, ConsumeQueue)
        codes_a, known_a = a.extension.tags_codes(left["tags_code"])
        codes_b, known_b = b.extension.tags_codes(right["tags_code"])
        return np.asarray((codes_a == codes_b) | ~known_a | ~known_b)

    def _differ(self, a: np.ndarray, b: np.ndarray, same_tags: np.ndarray) -> np.ndarray:
        """Which units of two arrays differ, although both sides should have them: bool, shape (n,)."""
        same = (a["physical_offset"] == b["physical_offset"]) & (a["size"] == b["size"]) & same_tags
        return np.asarray(~same & ~(self._is_outside(a) & self._is_outside(b)))

    def _is_outside(self, units: np.ndarray) -> np.ndarray:
        """Which units are fillers, or name records outside of the common range: bool, shape (n,)."""
        outside = pre_blank(units)
        if self.span is not None:
            offsets = units["physical_offset"]
            outside = outside | (present(units) & ((offsets < self.span[0]) | (offsets >= self.span[1])))
        return np.asarray(outside)

    def _missing_files(self, found: QueueDifference, both: Common, a: AnyQueue, b: AnyQueue) -> None:
        """Handle files inside the range that only one side has: they count if they name a common record."""
        parts: tuple[tuple[SideName, AnyQueue, Sequence[Range]], ...] = (
            ("b", a, both.only_a), ("a", b, both.only_b)
        )  # fmt: skip
        for name, queue, ranges in parts:
            for low, high in ranges:
                ends = (queue.unit(low // UNIT_SIZE), queue.unit((high - 1) // UNIT_SIZE))
                if any(self._is_common(unit) for unit in ends):
                    found.state, found.lacking = "lacks", name

    def _batches(
        self, found: QueueDifference, a: BatchConsumeQueue, b: BatchConsumeQueue, low: int, high: int
    ) -> None:
        """Compare batch units in order: they are dense, and the names of their files say nothing."""
        sources: list[ByteSource] = []
        left = self._batch_units(a, low, high, sources)
        right = self._batch_units(b, low, high, sources)
        one = other = np.zeros(0, BATCH_UNIT_DTYPE)
        while True:
            one = one if len(one) else next(left, one)
            other = other if len(other) else next(right, other)
            count = min(len(one), len(other)) or max(len(one), len(other))
            if not count:
                break
            differs = (
                np.flatnonzero(one[:count] != other[:count]) if len(one) and len(other) else np.arange(count)
            )
            if len(differs) and found.first is None:
                place = int(differs[0])
                units = [BatchUnit(*each[place].item()) if len(each) else None for each in (one, other)]
                found.first = (next(unit for unit in units if unit).base_offset, units[0], units[1])
            found.compared += count
            found.differing += len(differs)
            one, other = one[count:], other[count:]
        for source in sources:
            if source.unreadable:  # those units read as missing
                raise UnreadableError("cannot read all of it", path=Path(source.name))

    def _batch_units(
        self, queue: BatchConsumeQueue, low: int, high: int, sources: list[ByteSource]
    ) -> Iterator[np.ndarray]:
        """The units with an offset in [low, high) whose record both logs hold, in blocks."""

        def opener(path: Path) -> ByteSource:
            sources.append(self.reading.open(path))
            return sources[-1]

        with UnitReader(opener) as reader:
            for file in queue.files:
                for _, units in reader.blocks(file, queue.unit_size):
                    wanted = present(units) & (units["base_offset"] < high)
                    wanted &= units["base_offset"] + units["batch_size"] > low
                    if self.span is not None:
                        offsets = units["physical_offset"]
                        wanted &= (offsets >= self.span[0]) & (offsets < self.span[1])
                    if wanted.any():
                        yield units[wanted]


def _beyond(one: Range, other: Range) -> int:
    """The number of offsets of `one` that are not in `other`, both half-open."""
    shared = max(min(one[1], other[1]) - max(one[0], other[0]), 0)
    return max(one[1] - one[0], 0) - shared
