"""The files of the 5.x timer, made again after its log or timercheck is lost (read/timer_loss.py).

All three files are made from the queue: with every message that was not delivered yet, and no other. A
message that is late gets the first slot that a broker reads.

Source: TimerMessageStore#recover, TimerWheel#putSlot; spec 06 section 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rmqtool.formats import timer as form
from rmqtool.formats.java import string_hash
from rmqtool.message.system_topics import TIMER_TOPIC
from rmqtool.read.timer_loss import Timed, find_loss, snapshots
from rmqtool.repair.plan import Action
from rmqtool.storage.unsupported import SIDE_FOLDER

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.repair.plan import ActionKind
    from rmqtool.repair.recover.after import After
    from rmqtool.storage.layout import StoreLayout

_LOST = "TM03"
DEFAULT_LOG_FILE_SIZE = 100 << 20
_ROLL_SLOTS = 2 * 24 * 3600
_SHOWN = 3
_UNIT, _BLANK = form.LOG_UNIT.size, form.LOG_BLANK.size


def loss_actions(store: Store, after: After, precision_ms: int) -> tuple[list[Action], list[str]] | None:
    """The files made again, and warnings; None if neither the timer log nor timercheck is lost.

    Of a timer in RocksDB nothing is made: the warning says what is lost.

    Raises:
        UnreadableError: a file of the timer, or the log, cannot be read.
    """
    found = find_loss(store, after.log_end)
    if found is None:
        return None
    if found.database:
        return [], [f"{SIDE_FOLDER} stays as it is (TM04): {found.text}; rmqtool problems TM04 says more"]
    layout, check, records = store.layout, found.check, found.records
    delivered, pending = found.delivered, found.pending
    read_ms = check.last_read_time if check is not None else _read_time(records, delivered, precision_ms)
    read_ms -= read_ms % precision_ms
    units = list(_units(pending, read_ms, precision_ms, _roll_ms(layout, precision_ms)))
    reason = f"{found.text}; rebuilt from {TIMER_TOPIC} with the pending messages"
    code = "TM02" if found.wrong or found.gone is not None else _LOST
    actions = _files(layout, units, precision_ms, reason, code)
    queue_end = max((each.queue_offset for each in records), default=-1) + 1
    new = form.Check(read_ms, _end_of(units, _file_size(layout)), queue_end, queue_end)
    if check is not None:
        new = check._replace(
            **new._asdict() | {name: getattr(check, name) for name in form.Check._fields[4:]}
        )
    content = form.encode_check(new)
    kind: ActionKind = "replace" if layout.timer_check is not None else "create"
    actions.append(Action(kind, "config/timercheck", 0, len(content), reason, code, {}, content))
    return actions, _warnings(layout, found.unclear)


def _read_time(records: Sequence[Timed], delivered: set[str], precision_ms: int) -> int:
    """The time from which a broker reads slots: after the last message that was delivered."""
    last = max((each.due_ms or 0 for each in records if each.key in delivered), default=0)
    if last:
        return last + precision_ms
    return min((each.due_ms for each in records if each.due_ms is not None), default=0)


def _roll_ms(layout: StoreLayout, precision_ms: int) -> int:
    conf = layout.broker_conf
    slots = conf.integer("timerRollWindowSlot") if conf is not None else None
    return (slots if slots is not None and slots > 1 else _ROLL_SLOTS) * precision_ms


def _units(pending: Sequence[Timed], read_ms: int, precision_ms: int, roll_ms: int) -> Iterator[form.LogUnit]:
    """The units of the timer log, as a broker writes them at `read_ms`; `previous_position` is -1."""
    for each in pending:
        due, magic = max(each.due_ms or 0, read_ms), form.MAGIC_DEFAULT
        if each.is_delete:
            magic |= form.MAGIC_DELETE
        if due - read_ms >= roll_ms:
            magic |= form.MAGIC_ROLL
            is_near = due - read_ms - roll_ms < roll_ms // 3
            due = read_ms + (roll_ms // 2 if is_near else roll_ms)
        due -= due % precision_ms
        yield form.LogUnit(
            _UNIT, -1, magic, read_ms, due - read_ms, each.physical_offset, each.size, string_hash(each.topic)
        )


def _per_file(file_size: int) -> int:
    return max((file_size - _BLANK) // _UNIT, 1)


def _position(number: int, file_size: int) -> int:
    """The position of a unit in the timer log."""
    file, place = divmod(number, _per_file(file_size))
    return file * file_size + place * _UNIT


def _end_of(units: Sequence[form.LogUnit], file_size: int) -> int:
    return _position(len(units) - 1, file_size) + _UNIT if units else 0


def _file_size(layout: StoreLayout) -> int:
    conf = layout.broker_conf
    size = conf.integer("mappedFileSizeTimerLog") if conf is not None else None
    if size is None:
        size = _size_of_files(layout)
    return size if size is not None and size >= _UNIT + _BLANK else DEFAULT_LOG_FILE_SIZE


def _size_of_files(layout: StoreLayout) -> int | None:
    """The size of the first file that can hold a unit; None without one."""
    return next((file.size for file in layout.timer_log if file.size >= _UNIT + _BLANK), None)


def _files(
    layout: StoreLayout, units: Sequence[form.LogUnit], precision_ms: int, reason: str, code: str = _LOST
) -> list[Action]:
    """The actions that put a timer log and a wheel with these units in the place of the old ones."""
    import numpy as np

    size = _file_size(layout)
    slots = np.zeros(form.DEFAULT_SLOTS, form.SLOT.dtype)
    placed = []
    for number, unit in enumerate(units):
        at, time = _position(number, size), unit.deliver_time // precision_ms
        slot = slots[time % form.DEFAULT_SLOTS]
        is_new = slot["time"] != time
        placed.append(unit._replace(previous_position=-1 if is_new else int(slot["last_position"])))
        count = (0 if is_new else int(slot["num"])) + (-1 if unit.magic & form.MAGIC_DELETE else 1)
        first = at if is_new else int(slot["first_position"])
        slots[time % form.DEFAULT_SLOTS] = (time, first, at, count, 0)
    actions = []
    new = range(-(-len(placed) // _per_file(size)))
    names = {f"timerlog/{number * size:020}" for number in new}
    there = {f"timerlog/{file.path.name}": file for file in layout.timer_log}
    for name, file in there.items():
        if name not in names:
            actions.append(Action("delete", name, 0, file.size, reason, code))
    for number in new:
        name = f"timerlog/{number * size:020}"
        part = placed[number * _per_file(size) : (number + 1) * _per_file(size)]
        content = b"".join(map(form.encode_log_unit, part))
        if number + 1 < len(new):
            content += form.encode_log_blank(size - len(content))
        if name in there and there[name].size > size:
            whole = content.ljust(size, b"\0")
            actions.append(Action("replace", name, 0, size, reason, code, {}, whole))
            continue
        if name in there:
            actions.append(Action("cut", name, len(content), size - len(content), reason, code))
        else:
            actions.append(Action("create", name, 0, size, reason, code, {"data_bytes": 0}, zeros=True))
        actions.append(Action("write", name, 0, len(content), reason, code, {}, content))
    wheel = slots.tobytes()
    kind: ActionKind = "replace" if layout.timer_wheel is not None else "create"
    actions.append(Action(kind, "timerwheel", 0, len(wheel), reason, code, {}, wheel))
    return [*actions, *without_snapshots(layout)]


def without_snapshots(layout: StoreLayout) -> Iterator[Action]:
    """Deletes the snapshots of the old wheel, which a broker would take in place of the new one."""
    assert layout.root is not None
    for name in snapshots(layout):
        size = (layout.root / name).stat().st_size
        yield Action("delete", name, 0, size, "a snapshot of the former timer wheel", _LOST)


def _warnings(layout: StoreLayout, unclear: Sequence[Timed]) -> list[str]:
    """What is not known: of messages whether they were delivered, and the size of the files."""
    texts = []
    if unclear:
        shown = ", ".join(
            f"{each.topic or 'no topic'} at {each.physical_offset}" for each in unclear[:_SHOWN]
        )
        more = f", and {len(unclear) - _SHOWN} more" if len(unclear) > _SHOWN else ""
        messages = f"{len(unclear)} timer message{'' if len(unclear) == 1 else 's'}"
        texts.append(
            f"whether {messages} were delivered is not known; the new timer log lacks them: {shown}{more}"
        )
    conf = layout.broker_conf
    if _size_of_files(layout) is None and (conf is None or conf.integer("mappedFileSizeTimerLog") is None):
        texts.append(
            "no file shows the size of timer log files: the new ones have the default, 100 MiB. If"
            " mappedFileSizeTimerLog is set, name the file with --broker-conf, or no broker loads them"
        )
    return texts
