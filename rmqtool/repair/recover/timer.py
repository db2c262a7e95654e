"""Repairs the timer of 5.x after a cut: its log ends at the first unit without a record, its wheel follows.

A broker reads the timer log forward, ends it at the first invalid unit, and takes later messages from the
queue rmq_sys_wheel_timer again. It does not compare units with the commit log, and does not repair slots
whose units are gone: in both cases it would deliver whatever is stored at their offsets later.

Source: TimerMessageStore#recover, #recoverAndRevise, TimerWheel, TimerCheckpoint; spec 02 section 10.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.check.verify.timer import is_zero_from
from rmqtool.formats import timer as timer_format
from rmqtool.read.store import Store
from rmqtool.repair.plan import Action
from rmqtool.repair.recover.after import After
from rmqtool.repair.recover.timer_wheel import TimedUnits, mended_slots, new_wheel
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import read_head

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TIMER_TOPIC = "rmq_sys_wheel_timer"
WHEEL_SIZE = timer_format.DEFAULT_SLOTS * timer_format.SLOT.size
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
    sizes = {file.size for file in layout.timer_log}
    if len(sizes) > 1:
        return [], ["the files of timerlog differ in size; they and the timer wheel are left as they are"]
    log, kept = _TimerLog(), []
    for file in layout.timer_log:
        kept.append(_units_of(file, after.log_end, log))
        if log.cut is not None:
            break
    actions = _log_actions(layout.timer_log, log)
    units = TimedUnits.joined(kept, _precision(store))
    actions += _wheel_actions(layout.timer_wheel, log, units)
    actions += _check_actions(layout.timer_check, log, after)
    return actions, []


def _precision(store: Store) -> int:
    conf = store.layout.broker_conf
    value = conf.integer("timerPrecisionMs") if conf is not None else None
    return value if value is not None and value > 0 else timer_format.DEFAULT_PRECISION_MS


def _units_of(file: StoreFile, log_end: int, log: _TimerLog) -> tuple[int, npt.NDArray[Any]]:
    """(offset of the file in the timer log, its sound units); updates `log` with their end."""
    import numpy as np

    from rmqtool.storage.source import open_source

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
        has_more = not any(rest) and not is_zero_from(source, end)
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
    if len(rest) >= timer_format.LOG_BLANK.size:
        blank = timer_format.LogBlank(*timer_format.LOG_BLANK.unpack(rest))
        if blank.magic == timer_format.LOG_BLANK_MAGIC:
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


def _wheel_actions(path: Path | None, log: _TimerLog, units: TimedUnits) -> list[Action]:
    if path is None:
        return []
    size = path.stat().st_size
    if size not in (0, WHEEL_SIZE):
        content, reason = new_wheel(units), "its size is wrong: rebuilt from the timer log"
        return [Action("replace", "timerwheel", 0, len(content), reason, "TM01", {}, content)]
    if log.cut is None or size == 0:
        return []
    wheel = read_head(path, WHEEL_SIZE) or b""
    reason = "slots whose units are cut off end at the previous unit"
    return [
        Action("write", "timerwheel", offset, len(content), reason, None, {"slots": slots}, content)
        for offset, content, slots in mended_slots(wheel, units, log.cut)
    ]


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
    reason = "of the right size again" if code == "TM01" else "not ahead of the timer log"
    return [Action("replace", "config/timercheck", 0, len(content), reason, code, {}, content)]
