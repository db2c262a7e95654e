"""Computes slots of a timer wheel from the units of its log: all of them, or those that a cut affects.

Source: TimerWheel#putSlot, TimerMessageStore#doEnqueue; spec 02 section 10.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmqtool.formats import timer as timer_format

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_NEAR = 4096  # bytes between two changed slots that are written as one piece
_PIECE = 4 << 20


@dataclass(frozen=True)
class TimedUnits:
    """Units of the timer log in order: the byte offset of each, and its slot's time in precision steps."""

    positions: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]

    @classmethod
    def joined(cls, files: Sequence[tuple[int, npt.NDArray[Any]]], precision_ms: int) -> TimedUnits:
        """The units of several files, each given as (offset in the timer log, units)."""
        import numpy as np

        size = timer_format.LOG_UNIT.size
        positions = [np.arange(len(units), dtype=np.int64) * size + start for start, units in files]
        times = [
            (units["write_time"].astype(np.int64) + units["delay"].astype(np.int64)) // precision_ms
            for _, units in files
        ]
        empty = [np.empty(0, np.int64)]
        return cls(np.concatenate(positions or empty), np.concatenate(times or empty))

    def by_slot(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Time, first position, last position and count of every slot that has units, by ring index.

        If several times share a slot, the latest wins.
        """
        import numpy as np

        index = self.times % timer_format.DEFAULT_SLOTS
        order = np.lexsort((self.positions, self.times, index))
        times, index, positions = self.times[order], index[order], self.positions[order]
        starts = np.flatnonzero(np.diff(times, prepend=times[:1] - 1) != 0)
        starts = starts if len(times) else np.empty(0, np.int64)
        stops = np.append(starts[1:], len(times)) if len(starts) else starts
        last_of_index = (
            np.append(index[starts][1:] != index[starts][:-1], True) if len(starts) else starts == 0
        )
        starts, stops = starts[last_of_index], stops[last_of_index]
        return times[starts], positions[starts], positions[stops - 1], stops - starts


def new_wheel(units: TimedUnits) -> bytes:
    """The bytes of a whole wheel with these units."""
    import numpy as np

    slots = np.zeros(timer_format.DEFAULT_SLOTS, timer_format.SLOT.dtype)
    _fill(slots, units)
    return slots.tobytes()


def mended_slots(wheel: bytes, units: TimedUnits, cut: int) -> Iterator[tuple[int, bytes, int]]:
    """The changes of a wheel when its log ends at byte offset `cut`: (byte offset, bytes, number of slots).

    Args:
        wheel: all bytes of the wheel.
        units: the units that stay.
        cut: offset in the timer log; slots that point there or beyond get the rest of their chain.
    """
    import numpy as np

    slots = np.frombuffer(wheel, timer_format.SLOT.dtype).copy()
    wrong = np.flatnonzero((slots["last_position"] >= cut) | (slots["first_position"] >= cut))
    if not len(wrong):
        return
    times = slots["time"][wrong].astype(np.int64)
    slots[wrong] = np.zeros(1, timer_format.SLOT.dtype)
    chosen = np.isin(units.times, times)
    _fill(slots, TimedUnits(units.positions[chosen], units.times[chosen]), only=wrong)
    size = timer_format.SLOT.size
    breaks = np.flatnonzero(np.diff(wrong) * size > _NEAR) + 1
    for run in np.split(wrong, breaks):
        for start in range(int(run[0]), int(run[-1]) + 1, _PIECE // size):
            stop = min(start + _PIECE // size, int(run[-1]) + 1)
            count = int(((run >= start) & (run < stop)).sum())
            yield start * size, slots[start:stop].tobytes(), count


def _fill(slots: npt.NDArray[Any], units: TimedUnits, only: npt.NDArray[np.int64] | None = None) -> None:
    import numpy as np

    times, first, last, count = units.by_slot()
    index = times % timer_format.DEFAULT_SLOTS
    if only is not None:
        inside = np.isin(index, only)
        times, first, last, count, index = (values[inside] for values in (times, first, last, count, index))
    slots["time"][index] = times
    slots["first_position"][index] = first
    slots["last_position"][index] = last
    slots["num"][index] = count
