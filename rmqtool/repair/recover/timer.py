"""Repairs the timer of 5.x after a truncation: its log ends at the first unit without a record.

A broker reads the timer log forward, ends it at the first invalid unit, and takes later messages from the
queue rmq_sys_wheel_timer again. It does not compare units with the commit log, and does not repair slots
whose units are gone: in both cases it would deliver whatever is stored at their offsets later.

The wheel follows its log: its slots are computed from the units, all of them or those that a truncation
affects.

Source: TimerMessageStore#recover, #recoverAndRevise, #doEnqueue, TimerWheel#putSlot, TimerCheckpoint; spec 02
section 10.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.formats import timer as timer_format
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.store import Store
from rmqtool.read.timer_loss import lacks_wheel, snapshots
from rmqtool.read.timer_units import gone_unit, precision_ms
from rmqtool.repair.plan import Action
from rmqtool.repair.recover.after import After
from rmqtool.repair.recover.timer_loss import loss_actions, without_snapshots
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.open_files import read_head

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rmqtool.repair.plan import ActionKind


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


TIMER_TOPIC = "rmq_sys_wheel_timer"
_UNIT = timer_format.LOG_UNIT.size
_BLOCK = (1 << 20) // _UNIT * _UNIT


@dataclass
class _TimerLog:
    """The state of the timer log: where it must be cut (None: nowhere) and why, its end, its units."""

    cut: int | None = None
    reason: str = ""
    end: int = 0
    units: int = 0


def timer_actions(store: Store, after: After) -> tuple[list[Action], list[str]]:
    """The changes of timerlog, timerwheel and config/timercheck, and warnings as texts.

    Raises:
        UnreadableError: one of the files cannot be read.
    """
    layout = store.layout
    lost = loss_actions(store, after, precision_ms(store))
    if lost is not None:
        return lost
    sizes = {file.size for file in layout.timer_log}
    if len(sizes) > 1:
        return [], ["the files of timerlog differ in size; they and the timer wheel are left as they are"]
    log, kept = _TimerLog(), []
    for file in layout.timer_log:
        kept.append(_units_of(file, after.log_end, log))
        if log.cut is not None:
            break
    gone = gone_unit(layout) if log.cut is None else None
    if gone is not None:  # of messages that the log does not have any more
        log.cut, log.reason = gone.file.file_from_offset + gone.position, gone.reason
        kept = [(start, units[: max(log.cut - start, 0) // _UNIT]) for start, units in kept]
    actions = _log_actions(layout.timer_log, log)
    units = TimedUnits.joined(kept, precision_ms(store))
    actions += _wheel_actions(layout, log, units)
    actions += _check_actions(layout.timer_check, log, after)
    return actions, []


def _units_of(file: StoreFile, log_end: int, log: _TimerLog) -> tuple[int, npt.NDArray[Any]]:
    """(offset of the file in the timer log, its sound units); updates `log` with their end."""
    import numpy as np

    from rmqtool.storage.source import first_nonzero, open_source

    found: list[npt.NDArray[np.void]] = []
    source = open_source(file.path)
    try:
        end, stopped = 0, False
        while not stopped:
            data = source.read(end, _BLOCK)
            units = np.frombuffer(data, timer_format.LOG_UNIT.dtype, len(data) // _UNIT)
            is_unit = (units["size"] == _UNIT) & (units["magic"] & ~np.int32(timer_format.MAGIC_BITS) == 0)
            wrong = np.flatnonzero(~(is_unit & (units["physical_offset"] < log_end)))
            stopped = len(wrong) > 0 or len(units) == 0
            count = int(wrong[0]) if len(wrong) else len(units)
            found.append(units[:count])
            end += count * _UNIT
        rest = source.read(end, _UNIT)
        has_more = not any(rest) and first_nonzero(source, end, source.size) < source.size
    finally:
        source.close()
    log.units += end // _UNIT
    log.end = file.file_from_offset + end
    log.reason = "bytes that are not units follow its end" if has_more else _why_cut(rest)
    if log.reason:
        log.cut = log.end
    return file.file_from_offset, np.concatenate(found) if found else np.empty(0, timer_format.LOG_UNIT.dtype)


def _why_cut(rest: bytes) -> str:
    """Why the timer log cannot continue with these bytes; empty if it ends there anyway."""
    if not any(rest):
        return ""
    if timer_format.is_log_blank(rest):
        return ""
    if len(rest) >= _UNIT:
        unit = timer_format.LogUnit(*timer_format.LOG_UNIT.unpack(rest))
        if unit.size == _UNIT and not unit.magic & ~timer_format.MAGIC_BITS:
            return "its next units point to records after the end of the log"
    return "its next unit is damaged; the broker reads the timer queue again from there"


def _log_actions(files: tuple[StoreFile, ...], log: _TimerLog) -> list[Action]:
    if log.cut is None:
        return []
    actions = []
    for file in files:
        name, start = f"timerlog/{file.path.name}", max(log.cut - file.file_from_offset, 0)
        if file.file_from_offset > log.cut:
            actions.append(Action("delete", name, 0, file.size, log.reason, "TM02"))
        elif start < file.size:
            actions.append(Action("cut", name, start, file.size - start, log.reason, "TM02"))
    return actions


def _wheel_actions(layout: StoreLayout, log: _TimerLog, units: TimedUnits) -> list[Action]:
    """The changes of the wheel; of snapshots of it none is kept that the new one replaces."""
    path = layout.timer_wheel
    if lacks_wheel(layout):
        if not len(units.positions):
            return []
        reason = "the timer wheel is lost: made from the timer log"
        return _new_wheel(layout, units, reason, "TM03")
    size = timer_format.WHEEL_SIZE if path is None else path.stat().st_size
    if size not in (0, timer_format.WHEEL_SIZE):
        return _new_wheel(layout, units, "its size is wrong: rebuilt from the timer log", "TM01")
    if log.cut is None:
        return []
    if path is None or snapshots(layout):  # timerwheel is older than the newest snapshot
        return _new_wheel(layout, units, "rebuilt from the timer log, whose end was cut", "TM02")
    wheel = read_head(path, timer_format.WHEEL_SIZE) or b""
    reason = "slots are set back to their last unit that is kept"
    return [
        Action("write", "timerwheel", offset, len(content), reason, None, {"slots": slots}, content)
        for offset, content, slots in mended_slots(wheel, units, log.cut)
    ]


def _new_wheel(layout: StoreLayout, units: TimedUnits, reason: str, code: str) -> list[Action]:
    """A whole wheel with these units, in the place of the old one and its snapshots."""
    content = new_wheel(units)
    kind: ActionKind = "create" if layout.timer_wheel is None else "replace"
    wheel = Action(kind, "timerwheel", 0, len(content), reason, code, {}, content)
    return [wheel, *without_snapshots(layout)]


def _check_actions(path: Path | None, log: _TimerLog, after: After) -> list[Action]:
    """The change of config/timercheck: correct its size, and limit it to the timer log."""
    data = read_head(path, timer_format.CHECK_FILE_SIZE + 1) if path is not None else None
    if not data:
        return []
    padded = data[: timer_format.CHECK_FILE_SIZE].ljust(timer_format.CHECK_FILE_SIZE, b"\0")
    check = timer_format.decode_check(padded)
    if log.cut is not None:
        flushed = min(check.last_timer_log_flush_position, log.cut)
        check = check._replace(last_timer_log_flush_position=flushed)
        if not log.units:  # no unit shows where to continue: read from the queue's start
            first = after.queues.get((TIMER_TOPIC, 0), (0, 0))[0]
            check = check._replace(last_timer_queue_offset=first)
    content = timer_format.encode_check(check)
    if content == data:
        return []
    code = "TM01" if len(data) != timer_format.CHECK_FILE_SIZE else "TM02"
    reason = "set to the right size" if code == "TM01" else "set back to the end of the timer log"
    return [Action("replace", "config/timercheck", 0, len(content), reason, code, {}, content)]
