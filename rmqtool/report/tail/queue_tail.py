"""One queue followed while others write to it: the next units, and what happened to the last ones.

Nothing is locked and nothing is mapped. A unit is taken when it is present; the newest one may be
half written while it is read, so it is only believed together with its record (see `follower`). The
last unit that was taken is read again with every block: where it has changed the queue was cut
while it was read, by a recovery or a restart, and is read again from the first unit that differs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmqtool.errors import UnreadableError
from rmqtool.formats.consume_queue import BatchUnit, Unit
from rmqtool.queue.consume_queue import AnyQueue
from rmqtool.report.tail.log_reader import RecordRef
from rmqtool.storage.layout import StoreFile

_REMEMBERED = 16  # units before the first one that are remembered
HISTORY = 256  # units that are remembered, to find the place where a queue was cut


class DeliveredUnit(NamedTuple):
    """A unit that was taken: its number in the queue, its place, and a mark of its record."""

    number: int
    place: RecordRef
    mark: int


class PendingUnit(NamedTuple):
    """A unit that was read. `is_newest`: none was present after it, so it may be half written."""

    number: int
    queue_offset: int
    place: RecordRef
    tags_code: int
    is_newest: bool


class Truncation(NamedTuple):
    """A queue that no longer holds what was read: units from `number` on are read again, up to `stop`."""

    number: int
    stop: int


class QueueTail:
    """A place in one queue, by the number of the next unit; for BatchCQ a number is not a queue offset.

    Units from `stop` on are not read.
    """

    def __init__(self, queue: AnyQueue, number: int, stop: int | None = None) -> None:
        self.queue = queue
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self.number = number
        self.stop = stop
        self.buffer: deque[PendingUnit] = deque()
        self.is_full = False
        self.is_suspect = False
        self.skipped = 0  # units that expired before they were read
        self.late_since: float | None = None  # since when the next unit waits for its record; monotonic, s
        self._history: deque[DeliveredUnit] = deque(maxlen=HISTORY)

    @property
    def next_number(self) -> int:
        """The number after the last unit in the buffer."""
        return self.buffer[-1].number + 1 if self.buffer else self.number

    @property
    def is_held_up(self) -> bool:
        """Whether a unit before `stop` is not present: nothing from there on was read."""
        return (
            self.stop is not None and self.number < self.stop and self.queue.file_of(self.number) is not None
        )

    def fill(self, limit: int) -> bool:
        """Read up to `limit` units after those in the buffer; whether there were any.

        Afterwards `is_full` says whether more may follow at once, `is_suspect` that the unit before
        them is no longer the one that was read: call `look_again` then. Raises UnreadableError for what
        the operating system cannot read; a file that is gone is looked for in its folder.
        """
        read = self.read(limit)
        if read is None:
            return False
        number, count, data = read
        found = self._decoded(data, number, count)
        self.buffer.extend(found)
        self.is_full = len(found) == count and number + count != self.stop
        return bool(found)

    def read(self, limit: int) -> tuple[int, int, bytes] | None:
        """(number, count, bytes) of up to `limit` units after those in the buffer, and of one more.

        None if there are none, or `is_suspect`. Only the units at the start that are present count.
        """
        self.is_full = self.is_suspect = False
        number = self.next_number
        count = limit if self.stop is None else min(limit, self.stop - number)
        if count <= 0 or self._file_or_new(number) is None:
            return None
        before = self._before(number) if self.queue.file_of(number - 1) is not None else None
        skipped = 0 if before is None else 1
        data = self._read(number - skipped, number + count + 1)
        if before is not None:
            was = self._decoded(data[: self.queue.unit_size], number - 1, 1)
            self.is_suspect = not was or was[0].place != before
        count = min(count, len(data) // self.queue.unit_size - skipped)
        if self.is_suspect or count <= 0:
            return None
        return number, count, data[skipped * self.queue.unit_size :]

    def _read(self, start: int, stop: int) -> bytes:
        """The units of a half-open range, of as many files as it takes, up to the first unit without one.

        Raises UnreadableError for the first of the files; where another cannot be read it ends.
        """
        parts: list[bytes] = []
        at = start
        while at < stop:
            # The unit after the last file is there only when that file is full.
            is_full = not parts or any(parts[-1][-self.queue.unit_size :])
            file = self._file_or_new(at) if is_full else self.queue.file_of(at)
            if file is None:
                break
            count = min(stop, self.queue.numbers_of(file).stop) - at
            try:
                part = self.queue.data(file, at, stop)
            except UnreadableError as error:
                # A file that is gone: the next refresh reports what has happened.
                if not parts and not error.is_gone:
                    raise
                break
            parts.append(part)
            if len(part) < count * self.queue.unit_size:
                break
            at += count
        return b"".join(parts)

    def _before(self, number: int) -> RecordRef | None:
        """Return the record of the unit before this one as it was read; None if it was not read."""
        if self.buffer:
            return self.buffer[-1].place
        last = self.last
        return last.place if last is not None and last.number == number - 1 else None

    def _file_or_new(self, number: int) -> StoreFile | None:
        """The file of a unit; a new one is looked for only after the last."""
        file, files = self.queue.file_of(number), self.queue.files
        if file is None and (not files or number >= self.queue.numbers_of(files[-1]).stop):
            self.queue.refresh()
            file = self.queue.file_of(number)
        return file

    def _decoded(self, data: bytes, number: int, count: int) -> list[PendingUnit]:
        units: list[Unit | BatchUnit] = []
        for unit in self.queue.decode(data):
            if not unit.is_present:
                break
            units.append(unit)
        found = []
        for at, unit in enumerate(units[:count], number):
            place = RecordRef(unit.physical_offset, unit.size)
            offset, is_newest = self.queue.queue_offset(at, unit), at == number + len(units) - 1
            found.append(PendingUnit(at, offset, place, unit.tags_code, is_newest))
        return found

    def take(self, mark: int) -> None:
        """The first unit of the buffer is done with; `mark` is its record's."""
        first = self.buffer.popleft()
        self.number, self.late_since = first.number + 1, None
        self._history.append(DeliveredUnit(first.number, first.place, mark))

    def take_many(self, units: Sequence[DeliveredUnit], number: int) -> None:
        """Units up to `number` are done with; `units` are the last of them."""
        self.number, self.late_since = number, None
        self._history.extend(units)

    def forget(self) -> None:
        """Drop the buffer: what it holds is read again."""
        self.buffer.clear()

    def remember(self) -> None:
        """Remember the units before the first one, so that a cut before it is seen too."""
        for number in range(max(self.number - _REMEMBERED, 0), self.number):
            place = self.place_at(number)
            if place is not None:
                self._history.append(DeliveredUnit(number, place, 0))

    @property
    def last(self) -> DeliveredUnit | None:
        """The unit that was taken last."""
        return self._history[-1] if self._history else None

    def place_at(self, number: int) -> RecordRef | None:
        """Return the record that this unit names now; None if the unit is missing or cannot be read."""
        try:
            unit = self.queue.by_number(number)
        except UnreadableError:
            return None
        return None if unit is None else RecordRef(unit.physical_offset, unit.size)

    def look_again(self) -> Truncation | None:
        """After a pause: lists the files, moves over expired ones, and says where the queue was cut."""
        self.queue.refresh()
        last = self.last
        if last is None or self.place_at(last.number) == last.place:
            self._skip_expired()
            return None
        if last.number < self.queue.start:
            self._skip_expired()  # the file of the last unit is gone, as it should be
            return None
        return self.go_back(lambda units: self.place_at(units.number) == units.place)

    def _skip_expired(self) -> None:
        if self.queue.start > self.number:
            self.skipped += self.queue.start - self.number
            self.number, self.late_since = self.queue.start, None
            self.forget()

    def go_back(self, still_there: Callable[[DeliveredUnit], bool]) -> Truncation:
        """Go back to the unit after the newest one for which that still holds, among those remembered."""
        stop, self.late_since = self.number, None
        while self._history and not still_there(self._history[-1]):
            self.number = self._history.pop().number
        if self._history:
            # Of a round in bulk only the last units are remembered: the others are rather read twice.
            self.number = min(self.number, self._history[-1].number + 1)
        first = self.queue.start
        if not self._history and self.number > first and self.place_at(self.number - 1) is None:
            self.number = first  # another queue of that name, shorter than this one was
        self.number = max(self.number, first)
        self.forget()
        return Truncation(self.number, stop)
