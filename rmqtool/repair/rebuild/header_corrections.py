"""Finds records whose head names a wrong queue or queue offset, and plans the correction.

The CRC of the body covers neither topic nor queue id nor queue offset. (A property CRC covers all three, so
a record that has one is believed.) A record is misrouted if all other evidence names one place and only the
record itself names another: another queue, or another number in its own queue.

    its own place       the unit there refers to it, with its offset, size and tags code; the other records
                        of this queue lack exactly this number, at the place of the record in the log
    the place it names  if it is another queue: that queue has no unit for the record, and its other records
                        do not lack this number, or it has no files at all
                        if it is another number in its queue: there is no unit for the record, and the records
                        around it leave only its own number: one less before it, one more after it; if it is
                        the first or the last record, the log must be complete in between

A queue without any other record is not accepted as own place: a renamed folder would look the same. If the
unit is missing, there is no evidence, except where a rebuild creates it: between two records that lack one
number, the new unit is evidence too (`renumbered_records`). The correction writes the unit's place into the
record. Without it the queue would keep a gap, and while the log begins at 0, brokers skip messages after the
filler of a gap (spec 03).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqtool.check.verify.queue_order import may_have_lost
from rmqtool.check.verify.spans import RANGES_MAX, Key, Span
from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats.java import java_utf8_encode, tags_code
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.queue.light_queues import LIGHT_PREFIX
from rmqtool.queue.units import UnitReader
from rmqtool.repair.plan import Action

if TYPE_CHECKING:
    import numpy as np

    from rmqtool.check.verify.context import Context
    from rmqtool.check.verify.unit_check import Units
    from rmqtool.log.events import StoredMessage

MISROUTED = "a record of it names another queue or another position in it"
"""Why queues and index are not repaired while the log has such records."""
_LOOKED_AT_MAX = 10_000
"""Most units that are compared with their records: more are not caused by single damaged records."""


class QueuePosition(NamedTuple):
    """The place of one unit in the queues."""

    topic: str
    queue_id: int
    queue_offset: int

    @property
    def key(self) -> Key:
        """The queue."""
        return self.topic, self.queue_id


@dataclass(frozen=True, slots=True)
class MisroutedRecord:
    """One misrouted record: the place that it states, its own place, and the bytes that correct it."""

    path: Path
    physical_offset: int
    said: QueuePosition
    own: QueuePosition
    fields: tuple[tuple[int, bytes], ...]
    """(position in the file, the correct bytes) of its wrong fields."""
    has_unit: bool = True
    """Whether its unit exists; otherwise the rebuild creates it."""

    def row(self) -> dict[str, Any]:
        """The record as JSON."""
        return {
            "physical_offset": self.physical_offset,
            **self.own._asdict(),
            **{f"said_{name}": value for name, value in self.said._asdict().items()},
        }

    def reason(self) -> str:
        """The reason for the correction."""
        said, own = (f"queue {place.queue_id} of {place.topic}" for place in (self.said, self.own))
        if self.said.key != self.own.key:
            return (
                f"the record at {self.physical_offset} says {said}; its unit, its place and its queue offset"
                f" say {own}"
            )
        unit = "unit, its " if self.has_unit else ""
        return (
            f"the record at {self.physical_offset} says queue offset {self.said.queue_offset} in {own}; its"
            f" {unit}place and the queue offsets around it say {self.own.queue_offset}"
        )


class _Witness(NamedTuple):
    """A record that states another place than the unit that refers to it, and the unit's place."""

    stored: StoredMessage
    said: QueuePosition
    own: QueuePosition

    @property
    def start(self) -> int:
        return self.stored.physical_offset


def misrouted_records(
    context: Context, spans: dict[Key, Span], units: dict[Key, Units], reader: UnitReader
) -> list[MisroutedRecord]:
    """The misrouted records, queue by queue; files are read, not changed."""
    left = _LOOKED_AT_MAX
    found: list[_Witness] = []
    for key, queue in context.layout.consume_queues.items():
        if key not in units or not _has_plain_units(key):
            continue
        extension = context.extension(key, reader)
        named: Counter[int] = Counter()
        moved = []
        for run in units[key].unclaimed:
            slots = range(run.first, min(run.last + 1, run.first + left))
            left -= len(slots)
            for slot in slots:
                unit = reader.read(queue, slot, 1)[0]
                named[int(unit["physical_offset"])] += 1
                code = extension.tags_code(int(unit["tags_code"]))
                witness = _witness(context, QueuePosition(*key, slot), unit, code)
                if witness is None or _has_unit(context, witness, reader):
                    continue
                if witness.said.key == key:
                    moved.append(witness)
                elif _is_of_other_queue(context, spans, witness):
                    found.append(witness)
        found += _of_other_numbers(context, spans.get(key), [w for w in moved if named[w.start] == 1])
    counts = Counter(witness.start for witness in found)
    return [_misrouted(context, witness) for witness in found if counts[witness.start] == 1]


def _witness(context: Context, own: QueuePosition, unit: np.void, code: int | None) -> _Witness | None:
    """The sound, plain record of a unit, if it states another place and no CRC covers that; else None."""
    stored = context.store.find(int(unit["physical_offset"]))
    if stored is None or stored.status:
        return None
    found = _Witness(stored, _said(stored), own)
    tags = properties.decode(stored.message.properties_bytes).get(properties.TAGS)
    agrees = (stored.message.total_size, tags_code(tags)) == (int(unit["size"]), code)
    return found if found.said != own and agrees and _is_plain(stored) else None


def _said(stored: StoredMessage) -> QueuePosition:
    return QueuePosition(stored.message.topic, stored.message.queue_id, stored.message.queue_offset)


def _is_plain(stored: StoredMessage) -> bool:
    """Whether the record has exactly one unit, in one queue, and no CRC covers the place that it states."""
    message = stored.message
    return (
        message.transaction_type in (0, form.TRANSACTION_COMMIT)
        and not message.sys_flag & form.INNER_BATCH
        and properties.INNER_MULTI_DISPATCH not in properties.decode(message.properties_bytes)
        and properties.property_crc(message.properties_bytes) is None
    )


def _has_plain_units(key: Key) -> bool:
    """Whether a queue has ordinary units: with normal tags codes, for its own records."""
    return key[0] != SCHEDULE_TOPIC and not key[0].startswith(LIGHT_PREFIX)


def _has_unit(context: Context, witness: _Witness, reader: UnitReader) -> bool:
    """Whether there is a unit for the record at the place that it states."""
    queue = context.layout.consume_queues.get(witness.said.key)
    if queue is None:
        return False
    unit = reader.read(queue, witness.said.queue_offset, 1)[0]
    return int(unit["physical_offset"]) == witness.start and int(unit["size"]) > 0


# Another queue


def _is_of_other_queue(context: Context, spans: dict[Key, Span], witness: _Witness) -> bool:
    """Whether all evidence except its own head assigns the record to the queue whose unit refers to it."""
    stored, said, own = witness
    wants, has = spans.get(own.key), spans.get(said.key)
    if (
        said.queue_offset != own.queue_offset
        or len(java_utf8_encode(own.topic)) != len(stored.message.topic_bytes)
        or wants is None
        or has is None
        or wants.is_batch
        or has.is_batch
    ):
        return False
    if _is_between(wants, stored) and said.key not in context.layout.consume_queues:
        return True
    return _leaves_out(wants, stored) and _is_misfit(has, stored)


def _is_between(span: Span, stored: StoredMessage) -> bool:
    """Whether a queue lacks the record's number between two of its records, and the record is there."""
    number, start = stored.message.queue_offset, stored.physical_offset
    return any(
        item.after <= start < item.physical_offset and item.expected <= number < item.queue_offset
        for item in span.breaks
    )


def _leaves_out(span: Span, stored: StoredMessage) -> bool:
    """As `_is_between`, or the record and its number are before or after all records of the queue."""
    number, start = stored.message.queue_offset, stored.physical_offset
    if start >= span.end:
        return number >= span.next
    if start < span.first_physical:
        return number < span.first
    return _is_between(span, stored)


def _is_misfit(span: Span, stored: StoredMessage) -> bool:
    """Whether the numbers of the queue's records are not consecutive at this one, or it is the only one."""
    return span.count == 1 or any(
        stored.physical_offset == item.physical_offset or stored.end == item.after for item in span.breaks
    )


# Another number


class _Part(NamedTuple):
    """Records of a queue, in [start, end) of the log, with the consecutive numbers [first, stop)."""

    start: int
    end: int
    first: int
    stop: int


def _parts(span: Span) -> list[_Part]:
    """A queue's records, split where a number does not follow the previous one."""
    breaks = span.breaks
    heads = [
        (span.first_physical, span.first),
        *((item.physical_offset, item.queue_offset) for item in breaks),
    ]
    tails = [*((item.after, item.expected) for item in breaks), (span.end, span.next)]
    return [_Part(start, end, first, stop) for (start, first), (end, stop) in zip(heads, tails, strict=True)]


def _of_other_numbers(context: Context, span: Span | None, moved: Sequence[_Witness]) -> Iterator[_Witness]:
    """Those of a queue's records that state another number than the one left by the records around them.

    Adjacent ones are judged together, because no correct record is between them.
    """
    if span is None or span.is_batch or not moved or len(span.breaks) >= RANGES_MAX:
        return
    parts = _parts(span)
    starts = [part.start for part in parts]
    of_part: list[list[_Witness]] = [[] for _ in parts]
    for witness in sorted(moved, key=lambda item: item.start):
        number = bisect_right(starts, witness.start) - 1
        if number >= 0 and witness.start < parts[number].end:  # not after the future end of the log
            of_part[number].append(witness)

    def is_misrouted(number: int) -> bool:
        """Whether these are all records of the part; numbers wrap around after the largest."""
        return len(of_part[number]) == (parts[number].stop - parts[number].first) % (1 << 64)

    for misrouted, group in groupby(range(len(parts)), key=is_misrouted):
        if misrouted:
            numbers = list(group)
            low, high = numbers[0], numbers[-1] + 1
            row = [witness for number in numbers for witness in of_part[number]]
            before = parts[low - 1] if low else None
            after = parts[high] if high < len(parts) else None
            if _is_left_to(context, span, row, before, after):
                yield from row


def _is_left_to(
    context: Context, span: Span, row: Sequence[_Witness], before: _Part | None, after: _Part | None
) -> bool:
    """Whether the unit numbers of adjacent records are exactly those that the records around them lack.

    At an end of the queue there are records on one side only. There the log must be complete in between, and
    these must be at most half of the queue's records.
    """
    first, stop = row[0].own.queue_offset, row[-1].own.queue_offset + 1
    if [witness.own.queue_offset for witness in row] != list(range(first, first + len(row))):
        return False
    if (before is not None and before.stop != first) or (after is not None and after.first != stop):
        return False
    if before is not None and after is not None:
        return True
    start = row[0].stored.end if before is None else before.end
    end = row[-1].start if after is None else after.start
    return 2 * len(row) <= span.count and not may_have_lost(context, start, end)


def renumbered_records(context: Context, moved: dict[Key, dict[int, int]]) -> Iterator[MisroutedRecord]:
    """The records whose unit the rebuild writes under another number than they state.

    Args:
        context: of the survey.
        moved: by queue, the unit numbers by physical offset of the record. Each such record is between two
            that lack exactly this number. The unit, once written, is evidence for the correction.
    """
    for key, numbers in moved.items():
        for place, number in numbers.items() if _has_plain_units(key) else ():
            stored = context.store.find(place)
            if stored is not None and not stored.status and _is_plain(stored):
                found = _Witness(stored, _said(stored), QueuePosition(*key, number))
                yield replace(_misrouted(context, found), has_unit=False)
    context.store.close()


# What is written


def _misrouted(context: Context, witness: _Witness) -> MisroutedRecord:
    stored, said, own = witness
    return MisroutedRecord(
        stored.path, stored.physical_offset, said, own, tuple(_fields(context, stored, own))
    )


def _fields(context: Context, stored: StoredMessage, own: QueuePosition) -> Iterator[tuple[int, bytes]]:
    file = context.store.commit_log.file_of(stored.physical_offset)
    assert file is not None
    start, message = stored.physical_offset - file.file_from_offset, stored.message
    topic = java_utf8_encode(own.topic)
    if message.queue_id != own.queue_id:
        yield start + form.QUEUE_ID_OFFSET, own.queue_id.to_bytes(4, signed=True)
    if message.queue_offset != own.queue_offset:
        yield start + form.QUEUE_OFFSET_OFFSET, own.queue_offset.to_bytes(8, signed=True)
    if message.topic_bytes != topic:
        behind = message.total_size - 2 - len(message.properties_bytes) - len(topic)
        yield start + behind, topic


def corrections(records: Iterable[MisroutedRecord], names: dict[Path, str]) -> Iterator[Action]:
    """The changes of the log that correct the place in each record.

    Args:
        records: the records.
        names: the names of the log files in actions.
    """
    for found in records:
        for position, content in found.fields:
            yield Action(
                "write", names[found.path], position, len(content), found.reason(), "CL15",
                found.own._asdict(), content,
            )  # fmt: skip
