"""The start of a broker on one queue: recover it, truncate it, find its smallest offset.

A start is predicted on files that change: some are cut or deleted, others are made, and units are dispatched
that are not written anywhere. So units are read here file by file, by the broker's own positions, and
not as `queue.consume_queue` finds them in the files that are there.

Source: ConsumeQueue#recover, #truncateDirtyLogicFiles, #correctMinOffset, BatchConsumeQueue; spec 02 3.5,
3.6, 7.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmqtool.broker.queues import QueueFile, QueueState
from rmqtool.formats.consume_queue import PRE_BLANK, UNIT_SIZE
from rmqtool.queue.consume_queue import searched_min
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import OpenFiles

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    Units = np.ndarray[Any, np.dtype[np.void]]

_RECOVERED_FILES = 3  # how many files a starting broker looks at, counted from the end
_FIRST_BLOCK = 1 << 10  # units read at once, doubled up to
_BLOCK = 1 << 15
_LONG_MAX = (1 << 63) - 1
_HEAD_BYTES = (1 + _FIRST_BLOCK) * UNIT_SIZE  # of a file: read at once, kept without most zeros at its end
_ZEROS = bytes(_HEAD_BYTES)
_HEADS_BYTES = 32 << 20  # kept at most


class StartError(Exception):
    """An exception in the broker that ends load(): the text is for a person."""


def _as_long(value: int) -> int:
    """A sum as Java has it: a unit may hold any number."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


class QueueReader:
    """Reads units of queues on disk, and does with a queue what a starting broker does."""

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._heads: dict[Path, bytes] = {}
        self._room = _HEADS_BYTES

    # reading

    def units(self, state: QueueState, file: QueueFile, first: int, count: int) -> Units:
        """Units [first, first + count) of one file as they will be, without what dispatch writes."""
        from rmqtool.queue.units import unit_array

        length = max(min(count, self.total(state) - first), 0) * state.unit_size
        data = b"" if file.path is None else self._bytes(file.path, first * state.unit_size, length)
        units = unit_array(bytearray(data.ljust(length, b"\0")), state.unit_size)
        low, high = (number - file.file_from_offset // state.unit_size - first for number in state.fillers)
        if file.path is None and high > max(low, 0):
            units["size"][max(low, 0) : high] = PRE_BLANK.size
        return units

    def _bytes(self, path: Path, offset: int, length: int) -> bytes:
        """Bytes of a file, without some of the zeros at their end.

        The heads are kept: every start asks for the same few units of each queue, and there may be more
        queues than files that can be open.
        """
        if offset + length > _HEAD_BYTES:
            return self._files.read(path, offset, length)
        head = self._heads.get(path)
        if head is None:
            head = self._files.read(path, 0, _HEAD_BYTES)
            while head and head.endswith(_ZEROS[: (len(head) + 1) // 2]):  # rstrip takes far longer
                head = head[: len(head) // 2]
            if len(head) <= self._room:
                self._room -= len(head)
                self._heads[path] = head
        return head[offset : offset + length]

    def total(self, state: QueueState) -> int:
        """Units that a file of this queue has place for."""
        return state.file_size // state.unit_size

    def _run(
        self, state: QueueState, file: QueueFile, first: int, limit: int | None
    ) -> tuple[int, tuple[int, int] | None]:
        """Where the units from `first` on stop being present (and below `limit`), and the last one's place.

        What dispatch has written counts. The place is (physical offset, size).
        """
        import numpy as np

        from rmqtool.queue.units import present

        base = file.file_from_offset // state.unit_size
        low, high = state.written or (0, 0)
        number, last, block = first, None, _FIRST_BLOCK
        limit = None if limit is None else min(limit, _LONG_MAX)
        while number < self.total(state):
            units = self.units(state, file, number, block)
            good = present(units)
            if limit is not None:
                good &= units["physical_offset"] < limit
            numbers = np.arange(base + number, base + number + len(units))
            good |= (numbers >= low) & (numbers < high)
            for place, (physical, _) in state.foreign.items():
                if limit is not None and physical >= limit and number <= place - base < number + len(units):
                    good[place - base - number] = False
            bad = np.flatnonzero(~good)
            count = int(bad[0]) if len(bad) else len(units)
            if count:
                last = self._place(state, base + number + count - 1, units[count - 1])
            number += count
            if len(bad):
                break
            block = min(2 * block, _BLOCK)
        return number, last

    def _place(self, state: QueueState, number: int, unit: Any) -> tuple[int, int]:
        if number in state.foreign:
            return state.foreign[number]
        low, high = state.written or (0, 0)
        if low <= number < high:
            # of the newest one: what lies before it is never asked for
            size = 0 if state.is_batch else 1
            return state.newest_written - size, size
        return int(unit["physical_offset"]), int(unit["size"])

    # what a broker does

    def recovered(
        self, key: tuple[str, int], files: Sequence[StoreFile], *, is_batch: bool, file_size: int
    ) -> QueueState:
        """The queue as recovery leaves it. Source: ConsumeQueue#recover, BatchConsumeQueue#recover."""
        state = QueueState(*key, is_batch, file_size)
        state.files = [QueueFile(file.path, file.file_from_offset, file_size) for file in files]
        if not files:
            return state
        whole = self.total(state)
        for file in state.files[-_RECOVERED_FILES:]:
            count, last = self._run(state, file, 0, None)
            if last is not None:
                state.max_physical = last[0] if is_batch else _as_long(last[0] + last[1])
            end = file.file_from_offset + count * state.unit_size
            if count < whole:
                break
        self._cut_files(state, end)
        if is_batch:
            self._revise(state)
        return state

    @staticmethod
    def _cut_files(state: QueueState, end: int) -> None:
        """Cut the queue at a byte position. Source: MappedFileQueue#truncateDirtyFiles."""
        for file in list(state.files):
            if file.file_from_offset + state.file_size > end:
                if end >= file.file_from_offset:
                    file.position = end % state.file_size
                else:
                    state.delete(file)

    def end_of(self, state: QueueState, file: StoreFile) -> int:
        """The queue offset after the first units of a file that recovery has deleted; 0 in a batch queue."""
        if state.is_batch:
            return 0
        count, _ = self._run(state, QueueFile(file.path, file.file_from_offset, 0), 0, None)
        return file.file_from_offset // UNIT_SIZE + count

    def truncate(self, state: QueueState, end_offset: int) -> None:
        """Drop the units from the physical offset `end_offset` on. Source: #truncateDirtyLogicFiles.

        The first unit of a file is taken as it is, also when it is all zero: such a file keeps one.
        """
        state.max_physical = end_offset - 1 if state.is_batch else end_offset
        newest = state.max_physical
        while state.files:
            file = state.files[-1]
            number = file.file_from_offset // state.unit_size
            physical, size = self._place_of(state, file, number)
            if physical >= end_offset:
                state.delete(file)
                continue
            stop, last = self._run(state, file, 1, end_offset)
            physical, size = last or (physical, size)
            file.position = stop * state.unit_size
            newest = physical if state.is_batch else _as_long(physical + size)
            break
        state.max_physical = newest
        if state.is_batch:
            self._revise(state)

    def _place_of(self, state: QueueState, file: QueueFile, number: int) -> tuple[int, int]:
        base = file.file_from_offset // state.unit_size
        return self._place(state, number, self.units(state, file, number - base, 1)[0])

    def physical_offset(self, state: QueueState, file: QueueFile, number: int, minimum: int) -> int:
        """The physical offset in a unit of one file; after `minimum` in one that dispatch wrote."""
        base = file.file_from_offset // state.unit_size
        low, high = state.written or (0, 0)
        if low <= base + number < high:
            return state.foreign.get(base + number, (minimum + 1, 0))[0]
        return int(self.units(state, file, number, 1)["physical_offset"][0])

    # the smallest offset

    def correct_min(self, state: QueueState, minimum: int, *, searches: bool) -> None:
        """Find the smallest queue offset of a log that begins at `minimum`. Source: #correctMinOffset.

        Args:
            state: the queue; `min_logic` is where it was before.
            minimum: physical offset; -1 for a log without files.
            searches: by bisection, as 5.x does.

        Raises:
            StartError: load() fails with an exception.
        """
        if state.is_batch:
            self._correct_batch(state, minimum)
        elif searches:
            self._search_min(state, minimum)
        elif state.files:
            file = state.files[0]
            found = self._first_at_least(state, file, minimum, file.position // state.unit_size)
            if found is not None:
                state.min_logic = file.file_from_offset + found * state.unit_size

    def _first_at_least(self, state: QueueState, file: QueueFile, minimum: int, stop: int) -> int | None:
        """The first of the units [0, stop) of a file whose physical offset is `minimum` or more."""
        import numpy as np

        base = file.file_from_offset // state.unit_size
        low, high = state.written or (0, 0)
        number, block = 0, _FIRST_BLOCK
        while number < stop:
            units = self.units(state, file, number, min(block, stop - number))
            numbers = np.arange(base + number, base + number + len(units))
            good = (units["physical_offset"] >= minimum) | ((numbers >= low) & (numbers < high))
            if not len(units):
                break  # its name is not one that a queue file has: the file holds fewer than it should
            if good.any():
                return number + int(np.flatnonzero(good)[0])
            number, block = number + len(units), min(2 * block, _BLOCK)
        return None

    def _search_min(self, state: QueueState, minimum: int) -> None:
        if state.min_logic >= state.end or not state.files:
            return
        unit = state.unit_size
        last = state.files[-1]
        if last.position < unit:
            raise StartError(
                f"the last file of queue {state.queue_id} of {state.topic} is empty, and correctMinOffset"
                " reads before it"
            )
        if self.physical_offset(state, last, last.position // unit - 1, minimum) < minimum:
            state.min_logic = state.end
            return
        file = state.files[0]
        start = state.min_logic - file.file_from_offset
        is_intact = start >= 0
        start = max(start, 0)
        if start >= file.position:
            return
        base = start // unit
        if is_intact and self.physical_offset(state, file, base, minimum) >= minimum:
            return
        found = searched_min(
            file.position // unit - base,
            lambda place: self.physical_offset(state, file, base + place, minimum),
            minimum,
        )
        if found is not None:
            state.min_logic = file.file_from_offset + (base + found) * unit

    # batch queues

    def _batch_unit(self, state: QueueState, file: QueueFile, number: int) -> tuple[int, int]:
        """(base offset, batch size) of a unit; of those that dispatch wrote, the first or the last."""
        low, high = state.written or (0, 0)
        base = file.file_from_offset // state.unit_size
        if low <= base + number < high:
            return state.last_batch if base + number == high - 1 else (state.first_batch, 0)
        unit = self.units(state, file, number, 1)[0]
        return int(unit["base_offset"]), int(unit["batch_size"])

    def _revise(self, state: QueueState) -> None:
        """Source: BatchConsumeQueue#reviseMaxAndMinOffsetInQueue."""
        if not state.files:
            state.min_offset, state.max_offset = -1, 0
            return
        state.min_offset, _ = self._first_batch(state)
        state.max_offset = 0
        for file in reversed(state.files[-2:]):
            if file.position >= state.unit_size:
                first, count = self._batch_unit(state, file, file.position // state.unit_size - 1)
                state.max_offset = first + count
                return

    def _first_batch(self, state: QueueState) -> tuple[int, int]:
        file = state.files[0]
        return self._batch_unit(state, file, 0) if file.position >= state.unit_size else (-1, 0)

    def _correct_batch(self, state: QueueState, minimum: int) -> None:
        """Source: BatchConsumeQueue#correctMinOffset."""
        if not state.files:
            state.min_offset, state.max_offset = -1, 0
            return
        state.min_offset, _ = self._first_batch(state)
        file = state.files[0]
        count = file.position // state.unit_size
        first = self._first_at_least(state, file, minimum, count)
        before = (count if first is None else first) - 1
        if before >= 0:
            base, size = self._batch_unit(state, file, before)
            state.min_offset = base + size
