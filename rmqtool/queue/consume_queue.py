"""One consume queue, read: its units by queue offset, and its minimum and maximum by the broker's rules.

Only heads and tails are read until units are asked for. Where a queue ends is written nowhere: it
ends before the first unit that is not present, which is looked for from the third-last file on, as
a starting broker does. In the last file of a long queue the place is found by bisection: the same
one, unless an empty unit stands between others, which `verify` finds.

Source: ConsumeQueue#recover, #correctMinOffset, BatchConsumeQueue; spec 01 5.4, spec 02 7.4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from rmqtool.formats.consume_queue import (
    BATCH_UNIT_SIZE,
    UNIT_SIZE,
    BatchUnit,
    Unit,
    decode_batch_units,
    decode_units,
    is_ext_address,
)
from rmqtool.queue.extension import Extension
from rmqtool.storage.layout import QueueFiles, StoreFile
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.profile import Profile

UnitT = TypeVar("UnitT", Unit, BatchUnit)

_RECOVERED_FILES = 3  # how many files a starting broker looks at, counted from the end
_TAIL = 256  # units before the first hole of a file that are read at once
_WALK_LIMIT = 64 << 10  # bytes of units that are walked one by one; above, bisected
BLOCK = 4096  # units read at once


class Span(NamedTuple):
    """A queue at a glance: queue offsets that a broker would serve, half-open, and the newest unit."""

    min_offset: int
    max_offset: int
    last: Unit | BatchUnit | None


class _Units(ABC, Generic[UnitT]):
    """The units of a queue by their number, which is their byte offset divided by the unit's size."""

    def __init__(self, queue: QueueFiles, files: OpenFiles, unit_size: int) -> None:
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self.files: tuple[StoreFile, ...] = queue.files
        self._open_files = files
        self.unit_size = self._unit_size = unit_size
        self._starts = [file.file_from_offset // unit_size for file in queue.files]

    def min_offset(self, min_physical_offset: int, profile: Profile) -> int:
        """The smallest queue offset that a broker of `profile` would serve.

        Args:
            min_physical_offset: where the commit log begins, -1 when it has no files.
            profile: the broker's version.
        """
        end = self.end()
        return self._min_offset(min_physical_offset, profile, end, self.by_number(end - 1))

    def max_offset(self) -> int:
        """The queue offset that the next message would get."""
        end = self.end()
        return self._max_offset(end, self.by_number(end - 1))

    def newest(self) -> tuple[int, int]:
        """(`max_offset`, physical offset of the newest message, -1 without one)."""
        end = self.end()
        last = self.by_number(end - 1)
        is_message = last is not None and not (isinstance(last, Unit) and last.is_pre_blank)
        return self._max_offset(end, last), last.physical_offset if last is not None and is_message else -1

    def span(self, min_physical_offset: int, profile: Profile) -> Span:
        """Minimum, maximum and newest unit, with the end looked for once. Arguments as for `min_offset`."""
        end = self.end()
        last = self.by_number(end - 1)
        low = self._min_offset(min_physical_offset, profile, end, last)
        return Span(low, self._max_offset(end, last), last)

    @abstractmethod
    def _min_offset(self, min_physical_offset: int, profile: Profile, end: int, last: UnitT | None) -> int:
        """See `min_offset`; `end` is the number behind the unit `last`."""

    @abstractmethod
    def _max_offset(self, end: int, last: UnitT | None) -> int: ...

    @abstractmethod
    def _decode(self, data: bytes) -> Iterator[UnitT]: ...

    def end(self) -> int:
        """The number of the first unit that is not present; 0 without files."""
        end = 0
        for file in self.files[-_RECOVERED_FILES:]:
            count = self._present_in(file)
            end = file.file_from_offset // self._unit_size + count
            if count < file.size // self._unit_size:
                break
        return end

    def behind_end(self) -> tuple[int, int] | None:
        """(the number behind the last unit, the first present one behind it), where empty ones are between.

        A queue has such only where it is damaged: a broker serves it up to the former.
        """
        end = self.end()
        for file in self.files:
            base = file.file_from_offset // self._unit_size
            position = max(end - base, 0) * self._unit_size
            while position < file.size:
                position = self._open_files.next_data(file.path, position, file.size)
                first = position // self._unit_size
                for number, unit in enumerate(self._units_of(file, first, BLOCK), base + first):
                    if unit.is_present:
                        return (end, number) if number > end else None
                position = (first + BLOCK) * self._unit_size
        return None

    def _present_in(self, file: StoreFile) -> int:
        """How many units at the start of `file` are present."""
        total = file.size // self._unit_size
        if total * self._unit_size <= _WALK_LIMIT:
            for count, unit in enumerate(self._units_of(file, 0, total)):
                if not unit.is_present:
                    return count
            return total
        # A unit in a hole is zero. Mostly the units end in the last block before the first hole.
        hole = self._open_files.first_hole(file.path, file.size)
        stop = min(total, -(-hole // self._unit_size))
        start = max(stop - _TAIL, 0)
        if start > 0 and self._is_absent(file, start - 1):
            return self._first(start - 1, partial(self._is_absent, file))
        data = self._open_files.read(file.path, start * self._unit_size, (stop - start) * self._unit_size)
        # Zeros are no units: mostly they are all that the last block holds behind the units.
        count = min(-(-len(data.rstrip(b"\0")) // self._unit_size), len(data) // self._unit_size)
        return start + self._first(count, partial(self._is_absent_in, data))

    def _is_absent_in(self, data: bytes, number: int) -> bool:
        start = number * self._unit_size
        return not any(unit.is_present for unit in self._decode(data[start : start + self._unit_size]))

    def _is_absent(self, file: StoreFile, number: int) -> bool:
        return not any(unit.is_present for unit in self._units_of(file, number, 1))

    def _first(self, stop: int, test: Callable[[int], bool]) -> int:
        """The first number below `stop` that passes, or `stop`, where passing ones follow failing ones."""
        start = 0
        while start < stop:
            middle = (start + stop) // 2
            if test(middle):
                stop = middle
            else:
                start = middle + 1
        return start

    def _units_of(self, file: StoreFile, first: int, count: int) -> Iterator[UnitT]:
        """`count` units of one file from its unit `first`; fewer at its end."""
        count = min(count, file.size // self._unit_size - first)
        if count > 0:
            yield from self._decode(
                self._open_files.read(file.path, first * self._unit_size, count * self._unit_size)
            )

    def tags_code(self, unit: UnitT) -> int | None:
        """What a broker filters by, in SCHEDULE_TOPIC_XXXX when the message is due.

        None where that is in an extension unit that cannot be read.
        """
        return unit.tags_code

    def by_number(self, number: int) -> UnitT | None:
        """The unit with this number; None where no file holds it or it is not present."""
        file = self._file_of(number)
        if file is None:
            return None
        first = number - file.file_from_offset // self._unit_size
        return next((unit for unit in self._units_of(file, first, 1) if unit.is_present), None)

    def _file_of(self, number: int) -> StoreFile | None:
        place = bisect_right(self._starts, number) - 1
        if place < 0 or number - self._starts[place] >= self.files[place].size // self._unit_size:
            return None
        return self.files[place]

    def numbers_of_file(self, number: int) -> range:
        """The numbers that the file of this unit has room for; empty where no file holds it."""
        file = self._file_of(number)
        if file is None:
            return range(0)
        first = file.file_from_offset // self._unit_size
        return range(first, first + file.size // self._unit_size)

    def numbered(
        self, start: int, stop: int, *, reverse: bool = False, block: int = BLOCK
    ) -> Iterator[tuple[int, UnitT]]:
        """(number, unit) of the present units in [start, stop), in order or from the last to the first.

        `block` units are read at once.
        """
        for file in reversed(self.files) if reverse else self.files:
            first = file.file_from_offset // self._unit_size
            low, high = max(start, first), min(stop, first + file.size // self._unit_size)
            begins = range(low, high, block)
            for begin in reversed(begins) if reverse else begins:
                units = list(self._units_of(file, begin - first, min(block, high - begin)))
                places = range(len(units))
                for place in reversed(places) if reverse else places:
                    if units[place].is_present:
                        yield begin + place, units[place]

    def last_unit(self) -> UnitT | None:
        """The newest unit; None in an empty queue."""
        return self.by_number(self.end() - 1)

    def before(self, physical_offset: int) -> Iterator[UnitT]:
        """The last unit whose record starts at or before `physical_offset`, if there is one.

        Found by bisection, for physical offsets rise along a queue.
        """
        found = self._last_before(physical_offset)
        if found is not None:
            yield from self._units_of(*found, 1)

    def number_behind(self, physical_offset: int) -> int:
        """The number from which on records start behind `physical_offset`, found as in `before`."""
        found = self._last_before(physical_offset)
        if found is None:
            return self._starts[0] if self._starts else 0
        file, number = found
        return file.file_from_offset // self._unit_size + number + 1

    def _last_before(self, physical_offset: int) -> tuple[StoreFile, int] | None:
        """The file and the place in it of the unit that `before` gives."""
        for file in reversed(self.files):
            count = self._first(self._present_in(file), partial(self._starts_behind, file, physical_offset))
            if count > 0:
                return file, count - 1
        return None

    def _starts_behind(self, file: StoreFile, physical_offset: int, number: int) -> bool:
        return any(unit.physical_offset > physical_offset for unit in self._units_of(file, number, 1))


class ConsumeQueue(_Units[Unit]):
    """A queue of 20-byte units, one per message: a unit's number is its queue offset."""

    def __init__(self, queue: QueueFiles, files: OpenFiles, extension: QueueFiles | None = None) -> None:
        super().__init__(queue, files, UNIT_SIZE)
        self.extension = Extension(() if extension is None else extension.files, files.read)

    def _decode(self, data: bytes) -> Iterator[Unit]:
        return decode_units(data)

    def tags_code(self, unit: Unit) -> int | None:
        """See the base class."""
        return self.extension.tags_code(unit.tags_code)

    def _max_offset(self, end: int, last: Unit | None) -> int:
        return end

    def last_address(self, units: int | None = None) -> int | None:
        """The address of an extension unit that a starting broker finds last; None for none.

        It looks at the last three files. `units`: only as many at the end are looked at.
        """
        end, files = self.end(), self.files[-_RECOVERED_FILES:]
        start = files[0].file_from_offset // UNIT_SIZE if files else end
        start = start if units is None else max(start, end - units)
        found = (unit.tags_code for _, unit in self.numbered(start, end, reverse=True))
        return next((code for code in found if is_ext_address(code)), None)

    def unit(self, queue_offset: int) -> Unit | None:
        """The unit of a queue offset; None where there is none. A filler counts as a unit."""
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
        file = self.files[0]
        count = min(file.size // UNIT_SIZE, end - self._starts[0])
        if count * UNIT_SIZE <= _WALK_LIMIT:
            offsets = (unit.physical_offset for unit in self._units_of(file, 0, count))
            found = next((n for n, offset in enumerate(offsets) if offset >= min_physical_offset), count)
        else:
            found = self._first(count, partial(self._starts_behind, file, min_physical_offset - 1))
        # Where no unit of the first file qualifies, 4.x leaves the value at 0.
        return self._starts[0] + found if found < count else 0

    def _searched_min_offset(self, min_physical_offset: int, end: int, last: Unit | None) -> int:
        if last is None or not self.files:
            return 0
        if last.physical_offset < min_physical_offset:
            return end  # nothing in the queue is left in the log; the maximum stays
        file, start = self.files[0], self._starts[0]
        count = min(file.size // UNIT_SIZE, end - start)
        if count <= 0:
            return 0
        if start == 0 and self._offset_at(file, 0) >= min_physical_offset:
            return 0
        low, high = 0, count - 1
        while high - low > 1:
            middle = (low + high) // 2
            offset = self._offset_at(file, middle)
            if offset > min_physical_offset:
                high = middle
            elif offset == min_physical_offset:
                low = high = middle
            else:
                low = middle
        for number in range(low, high + 1):
            if self._offset_at(file, number) >= min_physical_offset:
                return start + number
        return 0

    def _offset_at(self, file: StoreFile, number: int) -> int:
        return next(self._units_of(file, number, 1)).physical_offset


class BatchConsumeQueue(_Units[BatchUnit]):
    """A queue of 46-byte units, one per record: each holds a run of queue offsets."""

    def __init__(self, queue: QueueFiles, files: OpenFiles) -> None:
        super().__init__(queue, files, BATCH_UNIT_SIZE)

    def _decode(self, data: bytes) -> Iterator[BatchUnit]:
        return decode_batch_units(data)

    def _max_offset(self, end: int, last: BatchUnit | None) -> int:
        return 0 if last is None else last.base_offset + last.batch_size

    def _min_offset(
        self, min_physical_offset: int, profile: Profile, end: int, last: BatchUnit | None
    ) -> int:
        """See the base class; -1 in a queue without units. Source: BatchConsumeQueue#correctMinOffset.

        The minimum moves behind each unit of the first file whose record is gone, the last one too.
        """
        low = -1
        if self.files:
            start = self._starts[0]
            for _, unit in self.numbered(start, min(end, start + self.files[0].size // BATCH_UNIT_SIZE)):
                low = unit.base_offset if low < 0 else low
                if unit.physical_offset >= min_physical_offset:
                    break
                low = unit.base_offset + unit.batch_size
        return low

    def unit(self, queue_offset: int) -> BatchUnit | None:
        """The unit that holds a queue offset; None where there is none."""
        number = self.number_of(queue_offset)
        unit = None if number is None else self.by_number(number)
        if unit is None or queue_offset >= unit.base_offset + unit.batch_size:
            return None
        return unit

    def number_of(self, queue_offset: int) -> int | None:
        """The number of the last unit that begins at or before a queue offset; None where none does.

        Found by bisection, for base offsets rise along a queue.
        """
        for file in reversed(self.files):
            count = self._first(self._present_in(file), partial(self._begins_behind, file, queue_offset))
            if count > 0:
                return file.file_from_offset // self._unit_size + count - 1
        return None

    def _begins_behind(self, file: StoreFile, queue_offset: int, number: int) -> bool:
        return any(unit.base_offset > queue_offset for unit in self._units_of(file, number, 1))

    def units(
        self, start: int | None = None, stop: int | None = None, *, reverse: bool = False, block: int = BLOCK
    ) -> Iterator[tuple[int, BatchUnit]]:
        """(base offset, unit) of the units that hold an offset in [start, stop)."""
        first = self._starts[0] if self.files else 0
        for _, unit in self.numbered(first, self.end(), reverse=reverse, block=block):
            if start is not None and unit.base_offset + unit.batch_size <= start:
                continue
            if stop is not None and unit.base_offset >= stop:
                continue
            yield unit.base_offset, unit


AnyQueue = ConsumeQueue | BatchConsumeQueue
