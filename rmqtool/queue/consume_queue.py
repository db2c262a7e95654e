"""One consume queue, read: which file holds unit k, the unit itself, and the three searches.

    by_number, numbered, units    units by their number, or by queue offset, as tuples; `data` as bytes
    first, before, number_of      bisections: by any rule that rises along the queue (the time of the
                                  record, its physical offset), by physical offset, by queue offset
    end, min_offset, span         where the queue begins and ends, by the broker's rules
    refresh                       the files as they are now, for a reader that follows the queue

`units.UnitReader` reads the same units in bulk, as arrays. Only heads and tails are read until units
are requested. A queue's end is not stored: it ends before the first unit that is not present, which
is looked for from the third-last file on, as a starting broker does. In the last file of a long queue the
place is found by bisection: the same one, unless an empty unit stands between others, which `verify` finds.

Source: ConsumeQueue#recover, #correctMinOffset, BatchConsumeQueue; spec 01 5.4, spec 02 7.4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import ClassVar, Generic, NamedTuple, TypeVar

from rmqtool.formats.consume_queue import (
    BATCH_UNIT_SIZE,
    UNIT_SIZE,
    BatchUnit,
    Unit,
    count_present,
    decode_batch_unit,
    decode_batch_units,
    decode_unit,
    decode_units,
    is_ext_address,
)
from rmqtool.queue.extension import Extension
from rmqtool.storage.layout import QueueFiles, StoreFile
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.profile import Profile

UnitT = TypeVar("UnitT", Unit, BatchUnit)

_RECOVERED_FILES = 3  # how many files a starting broker looks at, counted from the end
TAIL_UNITS = 256
"""Units before the first hole of a file that are read at once."""
WALK_LIMIT = 64 << 10
"""Bytes of units that are walked one by one; a longer file is bisected."""
BLOCK = 4096  # units read at once
_LAST_BLOCK = 256  # on the way back: who wants the last unit does not decode many


class Span(NamedTuple):
    """A queue at a glance: queue offsets that a broker would serve, half-open, and the newest unit."""

    min_offset: int
    max_offset: int
    last: Unit | BatchUnit | None

    @property
    def messages(self) -> int:
        """How many messages a broker would serve; a batch queue without a unit has -1 as its minimum."""
        return max(self.max_offset - max(self.min_offset, 0), 0)


class End(NamedTuple):
    """Where a queue of 20-byte units ends, as `newest` has seen it.

    Attributes:
        end: the number of the first unit that is not present.
        last: the unit before it.
        first_physical_offset: in the queue's first unit; None where that was not read.
    """

    end: int
    last: Unit
    first_physical_offset: int | None


class _Units(ABC, Generic[UnitT]):
    """The units of a queue by their number, which is their byte offset divided by the unit's size.

    Every method that reads raises UnreadableError.
    """

    unit_size: ClassVar[int]

    def __init__(self, queue: QueueFiles, files: OpenFiles) -> None:
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self._queue_files = queue
        self._open_files = files
        self._set(queue.files)

    def _set(self, files: tuple[StoreFile, ...]) -> None:
        self.files = files
        self._starts = [file.file_from_offset // self.unit_size for file in files]

    def refresh(self) -> None:
        """List the queue's files again; one that a broker is making, shorter than a unit, is left out."""
        files = self._queue_files.relisted().files
        self._set(tuple(file for file in files if file.size >= self.unit_size))

    def without(self, count: int) -> AnyQueue:
        """The queue as it is without its first `count` files."""
        return open_queue(self._queue_files.with_files(self.files[count:]), self._open_files)

    @abstractmethod
    def decode(self, data: bytes) -> Iterator[UnitT]:
        """The whole units at the start of `data`, present or not."""

    @abstractmethod
    def decode_one(self, data: bytes, position: int) -> UnitT:
        """The unit at a position of `data`, present or not. Raises FormatError where that is not whole."""

    def count_present(self, data: bytes) -> int:
        """How many units at the start of `data` are present: up to the first that is not, or is not whole."""
        number = -1
        for number, unit in enumerate(self.decode(data)):
            if not unit.is_present:
                return number
        return number + 1

    # which file holds a unit

    @property
    def start(self) -> int:
        """The number of the first unit that a file has room for; 0 without files."""
        return self._starts[0] if self._starts else 0

    def numbers_of(self, file: StoreFile) -> range:
        """The numbers of the units that a file has room for."""
        first = file.file_from_offset // self.unit_size
        return range(first, first + file.size // self.unit_size)

    def file_of(self, number: int) -> StoreFile | None:
        """The file that has room for a unit."""
        place = bisect_right(self._starts, number) - 1
        if place < 0 or number not in self.numbers_of(self.files[place]):
            return None
        return self.files[place]

    def data(self, file: StoreFile, start: int, stop: int) -> bytes:
        """The bytes of the units [start, stop) as far as one file, which has room for `start`, holds them."""
        numbers, size = self.numbers_of(file), self.unit_size
        count = min(stop, numbers.stop) - start
        if count <= 0:
            return b""
        return self._open_files.read(file.place, (start - numbers.start) * size, count * size)

    # units

    def by_number(self, number: int) -> UnitT | None:
        """The unit with this number; None where no file holds it or it is not present."""
        file = self.file_of(number)
        return None if file is None else self._present_at(self.data(file, number, number + 1), 0)

    def numbered(
        self, start: int, stop: int, *, reverse: bool = False, block: int = BLOCK
    ) -> Iterator[tuple[int, UnitT]]:
        """(number, unit) of the present units in [start, stop), in order or from the last to the first.

        `block` units are read at once.
        """
        for file in reversed(self.files) if reverse else self.files:
            yield from self.numbered_in(file, start, stop, reverse=reverse, block=block)

    def numbered_in(
        self, file: StoreFile, start: int, stop: int, *, reverse: bool = False, block: int = BLOCK
    ) -> Iterator[tuple[int, UnitT]]:
        """As `numbered`, of one file. After a block of zeros, holes are not read."""
        numbers = self.numbers_of(file)
        start, stop = max(start, numbers.start), min(stop, numbers.stop)
        if reverse and stop - start > _LAST_BLOCK:
            split = stop - _LAST_BLOCK
            yield from self._in_blocks(file, range(split, stop, block), reverse=True)
            stop = split
        yield from self._in_blocks(file, range(start, stop, block), reverse=reverse)

    def _in_blocks(self, file: StoreFile, begins: range, *, reverse: bool) -> Iterator[tuple[int, UnitT]]:
        at = len(begins) - 1 if reverse else 0
        while 0 <= at < len(begins):
            begin = begins[at]
            data = self.data(file, begin, min(begin + begins.step, begins.stop))
            if data.count(0) == len(data):
                at = self._before_hole(file, begins, at) if reverse else self._after_hole(file, begins, at)
                continue
            units = [pair for pair in enumerate(self.decode(data), begin) if pair[1].is_present]
            yield from reversed(units) if reverse else units
            at += -1 if reverse else 1

    def _next_data(self, file: StoreFile, number: int) -> int:
        """The number of the first unit, from this one on, outside of holes; the file's end without one."""
        first = self.numbers_of(file).start
        found = self._open_files.next_data(file.place, (number - first) * self.unit_size, file.size)
        return first + found // self.unit_size

    def _after_hole(self, file: StoreFile, begins: range, at: int) -> int:
        """The place in `begins` of the next block after that at `at` outside of holes."""
        found = self._next_data(file, begins[at] + begins.step)
        return max((found - begins.start) // begins.step, at + 1)

    def _before_hole(self, file: StoreFile, begins: range, at: int) -> int:
        """The place in `begins` of the last block before that at `at` outside of holes; -1 without one."""
        stop = begins[at]
        return bisect_left(range(at), True, key=lambda k: self._next_data(file, begins[k]) >= stop) - 1

    def last_unit(self) -> UnitT | None:
        """The newest unit; None in an empty queue."""
        return self.end_and_last()[1]

    @staticmethod
    def queue_offset(number: int, unit: Unit | BatchUnit) -> int:
        """The queue offset of the unit with this number; of a batch that of its first message."""
        return unit.base_offset if isinstance(unit, BatchUnit) else number

    def tags_code(self, unit: UnitT) -> int | None:
        """Return the number a broker filters by; in SCHEDULE_TOPIC_XXXX, the time when the message is due.

        None where that is in an extension unit that cannot be read.
        """
        return unit.tags_code

    # searches

    def first(self, test: Callable[[UnitT], bool], stop: int | None = None) -> int:
        """The number of the first unit that passes a test; `stop`, else the queue's end, where none does.

        Found by bisection: what passes follows what does not. Fillers and numbers without a unit do not pass.
        """

        def passes(number: int) -> bool:
            unit = self.by_number(number)
            return unit is not None and not unit.is_pre_blank and test(unit)

        stop = self.end() if stop is None else stop
        numbers = range(self.start, stop)
        return self.start + bisect_left(numbers, True, key=passes) if numbers else stop

    def first_live(self, min_physical_offset: int, end: int | None = None) -> int:
        """The queue offset of the first message at or after a physical offset; the maximum without one.

        `end` is `end()` where that is known.
        """
        end = self.end() if end is None else end
        number = self.first(lambda unit: unit.physical_offset >= min_physical_offset, end)
        return self.offset_at(number, end)

    def offset_at(self, number: int, end: int) -> int:
        """The queue offset of the unit with this number; the maximum for `end`, the queue's end."""
        unit = self.by_number(number) if number < end else None
        return max(self.max_offset(), 0) if unit is None else self.queue_offset(number, unit)

    def before(self, physical_offset: int) -> UnitT | None:
        """The last unit whose record starts at or before `physical_offset`, if there is one.

        Found by bisection, for physical offsets rise along a queue.
        """
        return self.by_number(self.number_after(physical_offset) - 1)

    def number_after(self, physical_offset: int) -> int:
        """The number from which on records start after `physical_offset`, found as in `before`."""
        found = self._last_until(lambda unit: unit.physical_offset > physical_offset)
        return self.start if found is None else found + 1

    def _last_until(self, is_beyond: Callable[[UnitT], bool]) -> int | None:
        """The number of the last unit before those that are beyond something, by bisection; None without.

        Each file is searched up to its first unit that is not present, the last file first: what is
        missing from one file does not hide the next.
        """

        def tests(file: StoreFile, number: int) -> bool:
            return any(map(is_beyond, self.decode(self.data(file, number, number + 1))))

        for file in reversed(self.files):
            first = self.numbers_of(file).start
            numbers = range(first, first + self._present_in(file)[0])
            count = bisect_left(numbers, True, key=partial(tests, file))
            if count > 0:
                return first + count - 1
        return None

    # the broker's rules

    def min_offset(self, min_physical_offset: int, profile: Profile) -> int:
        """The smallest queue offset that a broker of `profile` would serve.

        Args:
            min_physical_offset: where the commit log begins, -1 when it has no files.
            profile: the broker's version.
        """
        return self._min_offset(min_physical_offset, profile, *self.end_and_last())

    def max_offset(self) -> int:
        """The queue offset that the next message would get."""
        return self._max_offset(*self.end_and_last())

    def newest(self) -> tuple[int, int]:
        """(`max_offset`, physical offset of the newest message, -1 without one)."""
        end, last = self.end_and_last()
        is_message = last is not None and not last.is_pre_blank
        return self._max_offset(end, last), last.physical_offset if last is not None and is_message else -1

    def span(self, min_physical_offset: int, profile: Profile) -> Span:
        """Minimum, maximum and newest unit, with the end looked for once. Arguments as for `min_offset`."""
        end, last = self.end_and_last()
        low = self._min_offset(min_physical_offset, profile, end, last)
        return Span(low, self._max_offset(end, last), last)

    @abstractmethod
    def _min_offset(self, min_physical_offset: int, profile: Profile, end: int, last: UnitT | None) -> int:
        """See `min_offset`; `end` is the number after that of the unit `last`."""

    @abstractmethod
    def _max_offset(self, end: int, last: UnitT | None) -> int: ...

    def end(self) -> int:
        """The number of the first unit that is not present; 0 without files."""
        return self.end_and_last()[0]

    def end_and_last(self) -> tuple[int, UnitT | None]:
        """(`end`, the unit before it), mostly from one look at one file."""
        if self._queue_files.is_made and self.files:
            end = self.numbers_of(self.files[-1]).stop
            return end, self.by_number(end - 1)
        end, last, seen_in = 0, None, None
        for file in self.files[-_RECOVERED_FILES:]:
            numbers = self.numbers_of(file)
            count, last = self._present_in(file)
            end, seen_in = numbers.start + count, file
            if count < len(numbers):
                break
        if last is None or self.file_of(end - 1) is not seen_in:  # in damaged queues files overlap
            last = self.by_number(end - 1)
        return end, last

    def after_end(self) -> tuple[int, int] | None:
        """(`end()`, the first number from there on that has a unit), where empty ones stand between.

        Only a damaged queue has such units: a broker serves it up to the former.
        """
        end = self.end()
        stop = self.numbers_of(self.files[-1]).stop if self.files else end
        found = next((number for number, _ in self.numbered(end, stop)), end)
        return (end, found) if found > end else None

    def _present_in(self, file: StoreFile) -> tuple[int, UnitT | None]:
        """(how many units at the start of `file` are present, the last of them if it was seen)."""
        numbers, size = self.numbers_of(file), self.unit_size
        first, total = numbers.start, len(numbers)
        if total * size <= WALK_LIMIT:
            data = self.data(file, first, numbers.stop)
            count = self.count_present(data)
            last = self.decode_one(data, (count - 1) * size) if count else None
            return total if count == len(data) // size else count, last  # the file may be shorter by now
        # A unit in a hole is zero. Mostly the units end in the last block before the first hole.
        hole = self._open_files.first_hole(file.place, file.size)
        stop = min(total, -(-hole // size))
        start = max(stop - TAIL_UNITS, 0)
        before = min(start, 1)
        data = self.data(file, first + start - before, first + stop)
        if before and self._present_at(data, 0) is None:

            def is_absent(place: int) -> bool:
                return self._present_at(self.data(file, first + place, first + place + 1), 0) is None

            return bisect_left(range(start - 1), True, key=is_absent), None
        # Zeros are not units: mostly they are all that follows the units in the last block.
        places = range(before * size, min(_used(data), len(data) // size * size), size)
        count = before + bisect_left(places, True, key=lambda at: self._present_at(data, at) is None)
        return start - before + count, self._present_at(data, (count - 1) * size) if count else None

    def _present_at(self, data: bytes, position: int) -> UnitT | None:
        """The unit at a position of `data`; None if it is not present, or not whole."""
        if position + self.unit_size > len(data):
            return None
        unit = self.decode_one(data, position)
        return unit if unit.is_present else None


def _used(data: bytes) -> int:
    """How many bytes are left without the zeros at the end: of small `data` found faster than by rstrip."""
    return (int.from_bytes(data, "little").bit_length() + 7) // 8


def searched_min(count: int, offset_at: Callable[[int], int], minimum: int) -> int | None:
    """Which of `count` units 5.x takes for the first one whose record starts at or after `minimum`.

    None where it finds none. Not `bisect`: in a damaged queue, whose physical offsets do not rise, the
    answer is that of the broker.

    Source: ConsumeQueue#correctMinOffset.
    """
    low, high = 0, count - 1
    while high - low > 1:
        middle = (low + high) // 2
        offset = offset_at(middle)
        if offset > minimum:
            high = middle
        elif offset == minimum:
            low = high = middle
        else:
            low = middle
    return next((place for place in range(low, high + 1) if offset_at(place) >= minimum), None)


class ConsumeQueue(_Units[Unit]):
    """A queue of 20-byte units, one per message: a unit's number is its queue offset."""

    unit_size = UNIT_SIZE

    def __init__(self, queue: QueueFiles, files: OpenFiles, extension: QueueFiles | None = None) -> None:
        super().__init__(queue, files)
        self._extension_files = () if extension is None else extension.files

    @cached_property
    def extension(self) -> Extension:
        """Its extension files; it may have none."""
        return Extension(self._extension_files, self._open_files.read)

    def decode(self, data: bytes) -> Iterator[Unit]:
        """See the base class."""
        return decode_units(data)

    def decode_one(self, data: bytes, position: int) -> Unit:
        """See the base class."""
        return decode_unit(data, position)

    def count_present(self, data: bytes) -> int:
        """See the base class."""
        return count_present(data)

    def seen_span(self, seen: End, min_physical_offset: int, profile: Profile) -> Span:
        """As `span`, of a queue whose end was seen, with few reads or none."""
        end, last, first = seen
        if (
            profile.searches_min_offset and self.start == 0
            and first is not None and min(first, last.physical_offset) >= min_physical_offset
        ):  # fmt: skip
            return Span(0, end, last)  # as `_searched_min_offset` finds it
        return Span(self._min_offset(min_physical_offset, profile, end, last), end, last)

    def tags_code(self, unit: Unit) -> int | None:
        """See the base class."""
        return self.extension.tags_code(unit.tags_code)

    def _max_offset(self, end: int, last: Unit | None) -> int:
        return end

    def last_address(self, units: int | None = None) -> int | None:
        """The address of an extension unit that a starting broker finds last; None for none.

        It reads the last three files. `units`: only that many units at the end are examined.
        """
        end, files = self.end(), self.files[-_RECOVERED_FILES:]
        start = self.numbers_of(files[0]).start if files else end
        start = start if units is None else max(start, end - units)
        found = (unit.tags_code for _, unit in self.numbered(start, end, reverse=True))
        return next((code for code in found if is_ext_address(code)), None)

    def unit(self, queue_offset: int) -> Unit | None:
        """The unit of a queue offset; None if there is none. A filler counts as a unit."""
        return self.by_number(queue_offset) if queue_offset >= 0 else None

    def units(
        self, start: int | None = None, stop: int | None = None, *, reverse: bool = False, block: int = BLOCK
    ) -> Iterator[tuple[int, Unit]]:
        """(queue offset, unit) in [start, stop); all of the queue without bounds. Fillers are left out."""
        stop = self.end() if stop is None else min(stop, self.end())
        for number, unit in self.numbered(start or 0, stop, reverse=reverse, block=block):
            if not unit.is_pre_blank:
                yield number, unit

    def _min_offset(self, min_physical_offset: int, profile: Profile, end: int, last: Unit | None) -> int:
        """See the base class. Source: ConsumeQueue#correctMinOffset, which 5.x replaced."""
        if profile.searches_min_offset:
            return self._searched_min_offset(min_physical_offset, end, last)
        if not self.files:
            return 0
        count = self._count_in_first(end)
        if count * UNIT_SIZE <= WALK_LIMIT:
            units = self.decode(self.data(self.files[0], self.start, self.start + count))
            offsets = (unit.physical_offset for unit in units)
            found = next((n for n, offset in enumerate(offsets) if offset >= min_physical_offset), count)
        else:
            found = bisect_left(range(count), min_physical_offset, key=self._offset_at)
        # Where no unit of the first file qualifies, 4.x leaves the value at 0.
        return self.start + found if found < count else 0

    def _searched_min_offset(self, min_physical_offset: int, end: int, last: Unit | None) -> int:
        if last is None or not self.files:
            return 0
        if last.physical_offset < min_physical_offset:
            return end  # nothing in the queue is left in the log; the maximum stays
        count = self._count_in_first(end)
        if count <= 0 or (self.start == 0 and self._offset_at(0) >= min_physical_offset):
            return 0
        found = searched_min(count, self._offset_at, min_physical_offset)
        return 0 if found is None else self.start + found

    def _count_in_first(self, end: int) -> int:
        """How many units of the first file lie before the queue's end."""
        return min(len(self.numbers_of(self.files[0])), end - self.start)

    def _offset_at(self, place: int) -> int:
        """The physical offset in a unit of the first file, present or not; -1 where the file is shorter."""
        number = self.start + place
        data = self.data(self.files[0], number, number + 1)
        return self.decode_one(data, 0).physical_offset if len(data) == UNIT_SIZE else -1


class BatchConsumeQueue(_Units[BatchUnit]):
    """A queue of 46-byte units, one per record: each holds a run of queue offsets."""

    unit_size = BATCH_UNIT_SIZE

    def decode(self, data: bytes) -> Iterator[BatchUnit]:
        """See the base class."""
        return decode_batch_units(data)

    def decode_one(self, data: bytes, position: int) -> BatchUnit:
        """See the base class."""
        return decode_batch_unit(data, position)

    def _max_offset(self, end: int, last: BatchUnit | None) -> int:
        return 0 if last is None else last.base_offset + last.batch_size

    def _min_offset(
        self, min_physical_offset: int, profile: Profile, end: int, last: BatchUnit | None
    ) -> int:
        """See the base class; -1 in a queue without units. Source: BatchConsumeQueue#correctMinOffset.

        The minimum moves past each unit of the first file whose record is gone, also past the last one.
        """
        low = -1
        if self.files:
            numbers = self.numbers_of(self.files[0])
            for _, unit in self.numbered(numbers.start, min(end, numbers.stop)):
                low = unit.base_offset if low < 0 else low
                if unit.physical_offset >= min_physical_offset:
                    break
                low = unit.base_offset + unit.batch_size
        return low

    def unit(self, queue_offset: int) -> BatchUnit | None:
        """The unit that holds a queue offset; None if there is none."""
        number = self.number_of(queue_offset)
        unit = None if number is None else self.by_number(number)
        if unit is None or queue_offset >= unit.base_offset + unit.batch_size:
            return None
        return unit

    def number_of(self, queue_offset: int) -> int | None:
        """The number of the last unit that begins at or before a queue offset; None where none does.

        Found by bisection, for base offsets rise along a queue.
        """
        return self._last_until(lambda unit: unit.base_offset > queue_offset)

    def units(
        self, start: int | None = None, stop: int | None = None, *, reverse: bool = False, block: int = BLOCK
    ) -> Iterator[tuple[int, BatchUnit]]:
        """(base offset, unit) of the units that hold an offset in [start, stop)."""
        for _, unit in self.numbered(self.start, self.end(), reverse=reverse, block=block):
            if start is not None and unit.base_offset + unit.batch_size <= start:
                continue
            if stop is not None and unit.base_offset >= stop:
                continue
            yield unit.base_offset, unit


AnyQueue = ConsumeQueue | BatchConsumeQueue


def open_queue(queue: QueueFiles, files: OpenFiles, extension: QueueFiles | None = None) -> AnyQueue:
    """A queue of the kind that its units have; `extension` are its extension files, where it has any."""
    return BatchConsumeQueue(queue, files) if queue.is_batch else ConsumeQueue(queue, files, extension)
