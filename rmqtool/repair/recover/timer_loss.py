"""The timer of 5.x after one of its files is lost: what a start would do, and the files made again.

    timerwheel is lost      a broker makes its slots again, but counts no message in them: made from the log
    timerlog is lost        slots lead into a log that is gone, and pending messages are never delivered
    timercheck is lost      a broker takes the whole queue rmq_sys_wheel_timer again: pending messages are
                            delivered twice, and delivered ones again
    all of them             it delivers again all that was delivered

Without the log or timercheck all three files are made from the queue: with every message that was not
delivered yet, and no other. A message was delivered if its topic has its unique key, stored after the record
of the timer: the log has both, for the latter is older. Of a message that was stored again (roll) the newest
record counts. A message that is late gets the first slot that a broker reads.

Source: TimerMessageStore#recover, #reviseQueueOffset, #doEnqueue, TimerWheel#putSlot; spec 06 section 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.formats import properties
from rmqtool.formats import timer as form
from rmqtool.formats.java import string_hash
from rmqtool.log.damage import codes_of
from rmqtool.log.events import BODY_CRC, OFFSET_MISMATCH
from rmqtool.message.system_topics import TIMER_TOPIC
from rmqtool.read.selection import Selection
from rmqtool.repair.plan import Action
from rmqtool.storage.open_files import read_head

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.repair.plan import ActionKind
    from rmqtool.repair.recover.after import After
    from rmqtool.storage.layout import StoreLayout

DEFAULT_LOG_FILE_SIZE = 100 << 20
_ROLL_SLOTS = 2 * 24 * 3600
_SHOWN = 3
_UNIT, _BLANK = form.LOG_UNIT.size, form.LOG_BLANK.size
_UNSOUND = frozenset(codes_of(BODY_CRC | OFFSET_MISMATCH))
_COLUMNS = (
    "physical_offset",
    "size",
    "queue_offset",
    "uniq_key",
    "store_timestamp_ms",
    "properties",
    "status",
)


class Timed(NamedTuple):
    """A record of the timer's queue. `due_ms` is None if it does not say when it is due."""

    physical_offset: int
    size: int
    queue_offset: int
    key: str | None
    stored_ms: int
    due_ms: int | None
    topic: str
    is_delete: bool


class Loss(NamedTuple):
    """What is lost: `wheel`, `log`, `check`."""

    wheel: bool
    log: bool
    check: bool


def loss_of(layout: StoreLayout, check: form.Check | None) -> Loss:
    """Which files of the timer are lost; all of them also in a store whose broker never used its timer.

    Raises:
        UnreadableError: a file of the timer log cannot be read.
    """
    has_units = any(any(read_head(file.path, _UNIT) or b"") for file in layout.timer_log)
    log = not has_units and (check is None or check.last_timer_log_flush_position > 0)
    return Loss(layout.timer_wheel is None, log, check is None)


def check_of(layout: StoreLayout) -> form.Check | None:
    """The content of timercheck; None if there is none. Raises UnreadableError."""
    data = read_head(layout.timer_check, form.CHECK_FILE_SIZE) if layout.timer_check is not None else None
    if not data or not any(data):
        return None
    return form.decode_check(data.ljust(form.CHECK_FILE_SIZE, b"\0"))


def loss_actions(store: Store, after: After, precision_ms: int) -> tuple[list[Action], list[str]] | None:
    """The files made again, and warnings; None if neither the timer log nor timercheck is lost.

    Raises:
        UnreadableError: a file of the timer, or the log, cannot be read.
    """
    layout = store.layout
    check = check_of(layout)
    loss = loss_of(layout, check)
    if layout.rocksdb_messages is not None or not (loss.log or loss.check):
        return None
    records = [each for each in _records(store) if each.physical_offset < after.log_end]
    if not records:
        return None
    delivered = _delivered(store, records)
    if loss == (True, True, True) and not delivered:
        return None  # a broker reads the queue from its start, and delivers each message once
    pending, unclear = _pending(records, delivered, check)
    read_ms = check.last_read_time if check is not None else _read_time(records, delivered, precision_ms)
    read_ms -= read_ms % precision_ms
    units = list(_units(pending, read_ms, precision_ms, _roll_ms(layout, precision_ms)))
    reason = _reason(loss, pending, delivered)
    actions = _files(layout, units, precision_ms, reason)
    queue_end = max(each.queue_offset for each in records) + 1
    new = form.Check(read_ms, _end_of(units, _file_size(layout)), queue_end, queue_end)
    if check is not None:
        new = check._replace(
            **new._asdict() | {name: getattr(check, name) for name in form.Check._fields[4:]}
        )
    content = form.encode_check(new)
    kind: ActionKind = "replace" if layout.timer_check is not None else "create"
    actions.append(Action(kind, "config/timercheck", 0, len(content), reason, None, {}, content))
    return actions, _warnings(layout, unclear)


def _records(store: Store) -> Iterator[Timed]:
    """The sound records of the timer's queue, in the order of the log."""
    from rmqtool.read.messages import message_batches

    for batch in message_batches(store, Selection(topics=(TIMER_TOPIC,)), columns=_COLUMNS):
        for row in batch.to_pylist():
            values = dict(row["properties"] or ())
            text = values.get(properties.TIMER_OUT_MS, "")
            if not _UNSOUND.isdisjoint(row["status"]):
                continue
            yield Timed(
                row["physical_offset"], row["size"], row["queue_offset"], row["uniq_key"],
                row["store_timestamp_ms"],
                int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None,
                values.get(properties.REAL_TOPIC, ""), properties.TIMER_DEL_UNIQKEY in values,
            )  # fmt: skip


def _delivered(store: Store, records: Sequence[Timed]) -> set[str]:
    """The unique keys of the messages that were delivered."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from rmqtool.read.messages import message_batches

    stored = {each.key: each.stored_ms for each in reversed(records) if each.key and not each.is_delete}
    topics = tuple(sorted({each.topic for each in records if each.topic}))
    if not stored or not topics:
        return set()
    wanted = pa.array(list(stored), pa.string())
    found: set[str] = set()
    columns = ("uniq_key", "store_timestamp_ms")
    for batch in message_batches(store, Selection(topics=topics), columns=columns):
        chosen = batch.filter(pc.is_in(batch.column(0), value_set=wanted))
        keys, times = (column.to_pylist() for column in chosen.columns)
        found.update(key for key, time in zip(keys, times, strict=True) if time >= stored[key])
    return found


def _pending(
    records: Sequence[Timed], delivered: set[str], check: form.Check | None
) -> tuple[list[Timed], list[Timed]]:
    """The records to deliver, in the order of the queue; and those of which it is not known."""
    read_ms = check.last_read_time if check is not None else None
    newest = {each.key: each for each in records if each.key and not each.is_delete}
    pending, unclear = [], []
    for each in sorted(records, key=lambda each: each.queue_offset):
        if each.due_ms is None:
            unclear.append(each)
        elif each.is_delete or not each.key:
            if read_ms is None or each.due_ms >= read_ms:
                pending.append(each)
            elif not each.is_delete:
                unclear.append(each)
        elif each.key not in delivered and newest[each.key] is each:
            pending.append(each)
    return pending, unclear


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
    if size is None and layout.timer_log:
        size = layout.timer_log[0].size
    return size if size is not None and size >= _UNIT + _BLANK else DEFAULT_LOG_FILE_SIZE


def _files(
    layout: StoreLayout, units: Sequence[form.LogUnit], precision_ms: int, reason: str
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
        if name not in names or file.size != size:
            actions.append(Action("delete", name, 0, file.size, reason))
    for number in new:
        name = f"timerlog/{number * size:020}"
        part = placed[number * _per_file(size) : (number + 1) * _per_file(size)]
        content = b"".join(map(form.encode_log_unit, part))
        if number + 1 < len(new):
            content += form.encode_log_blank(size - len(content))
        if name in there and there[name].size == size:
            actions.append(Action("cut", name, len(content), size - len(content), reason))
        else:
            actions.append(Action("create", name, 0, size, reason, None, {"data_bytes": 0}, zeros=True))
        actions.append(Action("write", name, 0, len(content), reason, None, {}, content))
    wheel = slots.tobytes()
    kind: ActionKind = "replace" if layout.timer_wheel is not None else "create"
    actions.append(Action(kind, "timerwheel", 0, len(wheel), reason, None, {}, wheel))
    return actions


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _reason(loss: Loss, pending: Sequence[Timed], delivered: set[str]) -> str:
    """What a broker does without the file, and what the new files hold."""
    waiting, done = _counted(len(pending), "pending message"), _counted(len(delivered), "delivered one")
    if loss.log and not loss.check:
        what = f"the timer log is lost: a broker never delivers {waiting}"
    elif loss.check and not loss.log:
        what = f"timercheck is lost: a broker delivers {waiting} twice, and {done} again"
    else:
        what = f"timer log and timercheck are lost: a broker delivers {done} again"
    return f"{what}; made from {TIMER_TOPIC} with the pending ones"


def _warnings(layout: StoreLayout, unclear: Sequence[Timed]) -> list[str]:
    """What is not known: of messages whether they were delivered, and the size of the files."""
    texts = []
    if unclear:
        shown = ", ".join(
            f"{each.topic or 'no topic'} at {each.physical_offset}" for each in unclear[:_SHOWN]
        )
        more = f", and {len(unclear) - _SHOWN} more" if len(unclear) > _SHOWN else ""
        messages = _counted(len(unclear), "timer message")
        texts.append(
            f"whether {messages} were delivered is not known; the new timer log lacks them: {shown}{more}"
        )
    conf = layout.broker_conf
    if not layout.timer_log and (conf is None or conf.integer("mappedFileSizeTimerLog") is None):
        texts.append(
            "no file shows the size of timer log files: the new ones have the default, 100 MiB. If"
            " mappedFileSizeTimerLog is set, name the file with --broker-conf, or no broker loads them"
        )
    return texts
