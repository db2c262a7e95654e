"""Pass `timer`: timer log, timer wheel and its checkpoint, epoch file, compaction checkpoint (5.x).

The timer log is judged as the broker's recovery judges it: units of 52 bytes one after another, up
to the file's end mark or to zeros. The wheel is a projection of the log and is only measured.

Source: TimerLog, TimerWheel, TimerCheckpoint, CheckpointFile; spec 01 9.9 to 9.11, spec 02 T1, E1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.check.verify.context import CONFIG_LIMIT, Context
from rmqtool.check.verify.state import read_small
from rmqtool.errors import FormatError, InputError
from rmqtool.formats import compaction, config_json, epoch
from rmqtool.formats import timer as timer_format
from rmqtool.problems import BY_CODE, Finding, finding
from rmqtool.read.timer_loss import Loss, TimerLoss, check_of, find_loss, has_units, is_ahead, loss_of
from rmqtool.read.timer_units import GoneUnit, WrongUnit, gone_unit, wrong_units
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.rocksdb.messages import read_timers
from rmqtool.storage.unsupported import SIDE_FOLDER

if TYPE_CHECKING:
    from rmqtool.storage.source import ByteSource

_BLOCK = 1 << 20
_UNITS_MAX = 1000


def check_timer(context: Context) -> Iterator[Finding]:
    """Findings on the files that only 5.x writes."""
    layout = context.layout
    for path, size in (
        (layout.timer_wheel, timer_format.WHEEL_SIZE),
        (layout.timer_check, timer_format.CHECK_FILE_SIZE),
    ):
        if path is not None:
            yield from _size(context, path, size)
    loss = gone = None
    with suppress(InputError):  # a finding of its own
        loss = loss_of(layout, check_of(layout))
        gone = None if loss.log else gone_unit(layout)
    lost = list(_lost(context, loss))
    named = {(each.path, each.physical_offset) for each in lost}
    sizes = Counter(file.size for file in layout.timer_log)
    usual = sizes.most_common(1)[0][0] if sizes else 0
    for number, file in enumerate(layout.timer_log):
        if file.size != usual:
            yield finding("TM01", context.name(file.path), 0, file.size, expected_bytes=usual)
        is_last = number == len(layout.timer_log) - 1
        for each in _timer_log(context, file, is_last=is_last, gone=gone):
            if (each.path, each.physical_offset) not in named:
                yield each
    if layout.rocksdb_messages is not None:
        with suppress(InputError):  # _lost says so
            found = read_timers(layout.rocksdb_messages)
            context.report.timer_entries += 0 if found is None else len(found.entries)
    yield from lost
    if layout.epoch is not None:
        yield from _epoch(context, layout.epoch)
    if layout.compaction_checkpoint is not None:
        yield from _compaction(context, layout.compaction_checkpoint)


def _lost(context: Context, loss: Loss | None) -> Iterator[Finding]:
    """Files, units or a database that are gone or wrong, by the rules of `recover`.

    Not of a broker that runs, which has them all, nor of a part of the log.
    """
    layout = context.layout
    if layout.kind != "store" or context.live or context.bounds.bounded or loss is None:
        return
    try:
        check = check_of(layout)
        is_known = check is not None and not is_ahead(layout, check)
        units = list(wrong_units(context.store, check.last_read_time)) if check and is_known else []
        found = find_loss(context.store, loss=loss, units=units)
        lost_wheel = loss.wheel and has_units(layout)
    except InputError:  # of a file, or of the log: a finding of its own
        return
    if found is not None and found.database:
        numbers = {"pending": found.waiting, "delivered": len(found.delivered)}
        yield replace(finding("TM04", SIDE_FOLDER, **numbers), message=found.text)
    elif found is not None and found.gone is not None:
        yield _gone(context, found, found.gone)
    elif found is not None and not found.wrong:
        path = "config/timercheck" if found.loss.check else "timerlog"
        numbers = {"pending": len(found.pending), "delivered": len(found.delivered)}
        yield replace(finding("TM03", path, **numbers), message=found.text)
    elif lost_wheel:
        does = "makes its slots again from the timer log, and delivers each message once"
        if len(layout.timer_log) > 1:
            does = (
                "makes its slots again from the newest files of the timer log, and never delivers messages of"
                " which only older files have units"
            )
        lost = finding("TM03", "timerwheel")
        message = f"the timer wheel is lost: a broker {does}"
        yield replace(lost, problem=replace(lost.problem, broker=does), message=message)
    yield from _wrong_units(context, units)


def _gone(context: Context, found: TimerLoss, gone: GoneUnit) -> Finding:
    """The units that timercheck counts, and that the timer log does not have."""
    start, stop = gone.position, gone.flushed - gone.file.file_from_offset
    numbers = {"pending": len(found.pending), "delivered": len(found.delivered)}
    made = finding(
        "TM02", context.name(gone.file.path), start, stop - start, reason=gone.reason,
        units_before=start // timer_format.LOG_UNIT.size, **numbers,
    )  # fmt: skip
    problem = replace(made.problem, message=found.text, repair=BY_CODE["TM03"].repair)
    return replace(made, problem=problem, message=found.text)


def _wrong_units(context: Context, found: Sequence[WrongUnit]) -> Iterator[Finding]:
    """Units that do not lead to their messages, of a timer that has lost no file."""
    for each in found[:_UNITS_MAX]:
        unit = finding(
            "TM02", context.name(each.file.path), each.position, timer_format.LOG_UNIT.size,
            reason=each.reason,
        )  # fmt: skip
        broker = "does not check it, and may never deliver its message and earlier ones of the same second"
        repair = unit.problem.repair if each.is_after_log else BY_CODE["TM03"].repair
        message = f"a unit of the timer log cannot be followed: {each.reason}"
        yield replace(unit, problem=replace(unit.problem, broker=broker, repair=repair), message=message)


def _size(context: Context, path: Path, expected: int) -> Iterator[Finding]:
    try:
        size = path.stat().st_size
    except OSError as error:
        yield finding("CP06", context.name(path), reason=error.strerror)
        return
    if size not in (0, expected):  # an empty file is created again
        yield finding("TM01", context.name(path), 0, size, expected_bytes=expected)


def _timer_log(
    context: Context, file: StoreFile, *, is_last: bool, gone: GoneUnit | None
) -> Iterator[Finding]:
    from rmqtool.storage.source import first_nonzero, open_source

    name, unit = context.name(file.path), timer_format.LOG_UNIT.size
    try:
        source = open_source(file.path, keep_cache=context.keep_cache, limiter=context.limiter)
    except OSError as error:
        yield finding("CP06", name, reason=error.strerror)
        return
    try:
        end = _units_end(source)
        context.report.timer_entries += end // unit
        is_zero = first_nonzero(source, end, source.size) >= source.size
        if not is_zero and not timer_format.is_log_blank(source.read(end, timer_format.LOG_BLANK.size)):
            yield finding("TM02", name, end, unit, units_before=end // unit)
        elif not is_last and is_zero and end < source.size:
            yield finding("TM02", name, end, source.size - end, reason="the file ends without its end mark")
        elif is_zero and gone is not None and (gone.file, gone.position) == (file, end):
            yield finding("TM02", name, end, unit, reason=gone.reason)
        for start, stop in source.unreadable:
            yield finding("CP06", name, start, stop - start)
    finally:
        source.close()


def _units_end(source: ByteSource) -> int:
    """The position after the last unit of a timer log file."""
    import numpy as np

    unit, end = timer_format.LOG_UNIT.size, 0
    while True:
        data = source.read(end, _BLOCK // unit * unit)
        units = np.frombuffer(data, timer_format.LOG_UNIT.dtype, len(data) // unit)
        wrong = np.flatnonzero(
            (units["size"] != unit) | (units["magic"] & ~np.int32(timer_format.MAGIC_BITS))
        )
        end += (int(wrong[0]) if len(wrong) else len(units)) * unit
        if len(wrong) or not len(units):
            return end


def _epoch(context: Context, path: Path) -> Iterator[Finding]:
    name = context.name(path)
    try:
        entries = epoch.decode(read_small(path, CONFIG_LIMIT))
    except OSError as error:
        # FormatError is not an OSError; what is left are real read errors
        yield finding("CP06", name, reason=error.strerror)
        return
    except FormatError as error:
        yield finding("EP01", name, reason=error.message)
        return
    if not epoch.is_ordered(entries):
        yield finding("EP01", name, reason="epochs or start offsets do not rise")
    elif entries and 0 <= context.log_end < entries[-1].start_offset:
        yield finding("EP01", name, start_offset=entries[-1].start_offset, log_end=context.log_end)


def _compaction(context: Context, path: Path) -> Iterator[Finding]:
    name = context.name(path)
    bak = path.with_name(f"{path.name}.bak")
    try:
        data = read_small(path, CONFIG_LIMIT)
        of_bak = read_small(bak, CONFIG_LIMIT) if bak.is_file() else None
        loaded = config_json.load_with_bak(path.name, data, of_bak)
        compaction.positions(loaded.document)
    except OSError as error:
        yield finding("CP06", name, reason=error.strerror)
        return
    except FormatError as error:
        yield finding("CC01", name, reason=error.message)
        return
    if loaded.source != "file":
        yield finding("CC01", name, reason=loaded.file_error or "empty")
