"""One queue during a start: its files, how far they are written, and what dispatch has added.

A `QueueState` holds positions only: the units that dispatch would write are a range of numbers. All of them
are present, and their records are in the scanned part of the log.

`queue_reader` implements a broker's operations on it.

Source: ConsumeQueue#putMessagePositionInfo, BatchConsumeQueue, MappedFileQueue; spec 02 5.3.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.layout import StoreFile


@dataclass(slots=True)
class QueueFile:
    """A file of a queue, written up to `position`; `path` is None for a file that the start creates."""

    path: Path | None
    file_from_offset: int
    position: int


@dataclass
class QueueState:
    """A queue during a start.

    Attributes:
        files: the files, in order.
        max_physical: the broker's field of this name: the end of the last unit's record (its start in a batch
            queue); -1 without units.
        min_logic: byte position of the first unit that is served.
        min_offset: the smallest queue offset, of a batch queue.
        max_offset: the queue offset of the next message, of a batch queue.
        written: numbers of the units that the start writes, half-open; None if none.
        foreign: (physical offset, size) of records not at their stored offset, by the number of their unit.
        deleted: files that were deleted.
        made: offsets of files that are created.
        fillers: numbers of the fillers before the first unit of a queue that the start creates, half-open.
        newest_written: `max_physical` after the last unit that dispatch wrote.
        first_batch: base offset of the first batch unit that dispatch wrote.
        last_batch: base offset and batch size of the last one.
        first_code: tags code of the first unit that dispatch wrote into a plain queue.
    """

    topic: str
    queue_id: int
    is_batch: bool
    file_size: int
    files: list[QueueFile] = field(default_factory=list)
    max_physical: int = -1
    min_logic: int = 0
    min_offset: int = -1
    max_offset: int = 0
    written: tuple[int, int] | None = None
    foreign: dict[int, tuple[int, int]] = field(default_factory=dict)
    deleted: list[StoreFile] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    fillers: tuple[int, int] = (0, 0)
    newest_written: int = -1
    first_batch: int = -1
    last_batch: tuple[int, int] = (0, 0)
    first_code: int = 0

    @property
    def unit_size(self) -> int:
        """Bytes of a unit."""
        return BATCH_UNIT_SIZE if self.is_batch else UNIT_SIZE

    @property
    def end(self) -> int:
        """Byte position after the last unit. Source: MappedFileQueue#getMaxOffset."""
        return self.files[-1].file_from_offset + self.files[-1].position if self.files else 0

    def copy(self) -> QueueState:
        """An independent copy."""
        files = [QueueFile(file.path, file.file_from_offset, file.position) for file in self.files]
        return QueueState(
            self.topic, self.queue_id, self.is_batch, self.file_size, files, self.max_physical,
            self.min_logic, self.min_offset, self.max_offset, self.written, dict(self.foreign),
            list(self.deleted), set(self.made), self.fillers, self.newest_written, self.first_batch,
            self.last_batch, self.first_code,
        )  # fmt: skip

    def span(self) -> tuple[int, int]:
        """(min, max) queue offset, as the broker reports them."""
        if self.is_batch:
            return self.min_offset, self.max_offset
        return self.min_logic // UNIT_SIZE, self.end // UNIT_SIZE

    @property
    def served(self) -> list[tuple[int, int]]:
        """The queue offsets that have a unit, as half-open ranges."""
        return [self.span()]

    def delete(self, file: QueueFile) -> None:
        """Delete a file."""
        self.files.remove(file)
        if file.path is None:
            self.made.discard(file.file_from_offset)
        else:
            self.deleted.append(StoreFile(file.path, file.file_from_offset, self.file_size))

    def wrote(self, first: int, stop: int, max_physical: int) -> None:
        """Record that dispatch wrote the units [first, stop), numbers within the queue."""
        unit = self.unit_size
        if not self.files:
            start = first * unit
            self._make(start - start % self.file_size)
            if first and not self.is_batch:
                self.min_logic = start
                self.fillers = ((start - start % self.file_size) // unit, first)
        while stop * unit > self.files[-1].file_from_offset + self.file_size:
            self.files[-1].position = self.file_size
            self._make(self.files[-1].file_from_offset + self.file_size)
        self.files[-1].position = stop * unit - self.files[-1].file_from_offset
        low, high = self.written or (first, stop)
        self.written = (min(low, first), max(high, stop))
        self.max_physical = self.newest_written = max_physical

    def _make(self, file_from_offset: int) -> None:
        self.files.append(QueueFile(None, file_from_offset, 0))
        self.made.add(file_from_offset)

    def destroy(self) -> None:
        """Delete all files, because the log has none."""
        for file in list(self.files):
            self.delete(file)
        self.max_physical, self.min_logic, self.min_offset, self.max_offset = -1, 0, -1, 0
