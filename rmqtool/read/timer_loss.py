"""Which files of the 5.x timer are lost, what a broker does then, and which messages still wait.

    timerwheel is lost      a broker makes its slots again, but counts no message in them
    timerlog is lost        slots lead into a log that is gone, and pending messages are never delivered
    timercheck is lost      a broker takes the whole queue rmq_sys_wheel_timer again: pending messages are
                            delivered twice, and delivered ones again
    timercheck is wrong     a read time in the future: pending messages count as delivered
    units are gone          a broker ends the timer log before them, and takes their messages from the queue
                            again. The wheel leads to where the units were and are written again, so they link
                            to themselves: at the first pending one the broker reads until its memory is full
    all of them             it delivers again all that was delivered

The timer of 5.4 can be in RocksDB instead (timerRocksDBEnable). Without its database a broker continues where
timercheck says, mostly at the start of the queue, and delivers again what was delivered since. That it was in
RocksDB is known by broker.conf, by what is left of the database, or by messages that a timer in files would
have taken: it has run later, but has never written a unit.

A message was delivered if its topic has its unique key, stored after the record of the timer. Of a message
that was stored again (roll) the newest record counts.

Source: TimerMessageStore#recover, #reviseQueueOffset, #doEnqueue, TimerMessageRocksDBStore#start,
#scanSysTimerTopic; spec 06 sections 5.2 and 8.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from rmqtool.errors import InputError, UnreadableError
from rmqtool.formats import properties
from rmqtool.formats import timer as form
from rmqtool.log.damage import WALK_CODES
from rmqtool.message.system_topics import TIMER_TOPIC
from rmqtool.read.delivered import copies
from rmqtool.read.known_topics import all_topic_names
from rmqtool.read.selection import Selection
from rmqtool.read.timer_units import GoneUnit, WrongUnit, gone_unit, waiting_units, wrong_units
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import read_head, reading
from rmqtool.storage.source import nonzero_end
from rmqtool.storage.unsupported import SIDE_FOLDER, SIDE_STORE, TIMER_MESSAGES, has_database

if TYPE_CHECKING:
    from pathlib import Path

    from rmqtool.read.store import Store
    from rmqtool.storage.layout import StoreLayout

_UNIT = form.LOG_UNIT.size
_NEVER = (1 << 63) - 1
_AHEAD_MS = 24 * 3600 * 1000  # clocks differ
_TAKEN_MS = 10_000  # a timer in files takes a message within a second
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
    log = not has_units(layout) and (check is None or check.last_timer_log_flush_position > 0)
    return Loss(lacks_wheel(layout), log, check is None or is_ahead(layout, check))


def is_ahead(layout: StoreLayout, check: form.Check) -> bool:
    """Whether the read time is far in the future: no broker has written it.

    A timercheck of another size is damaged (TM01).

    Raises:
        UnreadableError: its size cannot be read.
    """
    if layout.timer_check is None:
        return False
    try:
        status = layout.timer_check.stat()
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=layout.timer_check) from error
    latest_ms = max(status.st_mtime, time.time()) * 1000 + _AHEAD_MS
    return status.st_size == form.CHECK_FILE_SIZE and check.last_read_time > latest_ms


def lacks_wheel(layout: StoreLayout) -> bool:
    """Whether there is no wheel, or none with a slot: a broker makes an empty file again, filled with zeros.

    One of another size is damaged (TM01), not lost.

    Raises:
        UnreadableError: the wheel cannot be read.
    """
    if snapshots(layout):
        return False
    return layout.timer_wheel is None or not _has_slots(layout.timer_wheel)


def _has_slots(path: Path) -> bool:
    try:
        with reading(path) as file:
            return file.size not in (0, form.WHEEL_SIZE) or nonzero_end(file, 0, file.size) > 0
    except UnreadableError:
        raise
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error


def snapshots(layout: StoreLayout) -> list[str]:
    """The names of the wheels that a broker with timerWheelSnapshotFlush (5.4) reads in place of timerwheel.

    The one with the largest number counts. Source: TimerWheel#getMaxSnapshotFlag of 5.4.0.
    """
    if layout.root is None:
        return []
    names = (path.name for path, _ in Listing().files(layout.root))
    return sorted(filter(form.SNAPSHOT_NAME.fullmatch, names))


def may_have_lost(layout: StoreLayout) -> bool:
    """Whether the timer log, timercheck or the timer in RocksDB is lost, as far as files and topics show.

    A store that has no file of a timer, and does not know its topic, never had one. Raises UnreadableError.
    """
    check, in_rocksdb = check_of(layout), _in_rocksdb(layout)
    if in_rocksdb != "unknown":
        return in_rocksdb != "sound"
    if _may_lack_database(layout, check) or _has_lost(layout, loss_of(layout, check)):
        return True
    return gone_unit(layout) is not None


def _in_rocksdb(layout: StoreLayout) -> Literal["sound", "unreadable", "lost", "unknown"]:
    """The state of a timer in RocksDB; unknown: nothing but the log can show that there was one."""
    if layout.rocksdb_messages is not None:
        from rmqtool.storage.rocksdb.messages import read_timers

        try:
            found = read_timers(layout.rocksdb_messages)
        except InputError:
            return "unreadable"
        return "unknown" if found is None else "sound"
    named = (part for part in layout.unsupported if part.what == TIMER_MESSAGES)
    part = next(named, None)
    return "unknown" if part is None else "lost" if part.is_lost else "unreadable"


def _may_lack_database(layout: StoreLayout, check: form.Check | None) -> bool:
    """Whether the timer can have been in a database that is gone, which only the log can show."""
    conf = layout.broker_conf
    is_elsewhere = conf is not None and layout.root is not None and has_database(layout.root / SIDE_FOLDER)
    if layout.rocksdb_messages is not None or is_elsewhere or check is None:
        return False
    has_queue = (TIMER_TOPIC, 0) in layout.consume_queues or not layout.consume_queues
    is_idle = check.last_read_time > 0 == check.last_timer_log_flush_position
    return has_queue and is_idle and not has_units(layout) and lacks_wheel(layout)


def _has_lost(layout: StoreLayout, loss: Loss) -> bool:
    """Whether a timer that the store had has lost its log or timercheck."""
    if not all(loss):
        return loss.log or loss.check
    known = all_topic_names([layout])
    return known is None or TIMER_TOPIC in known


def has_units(layout: StoreLayout) -> bool:
    """Whether the timer log has units. Raises UnreadableError."""
    return any(any(read_head(file.path, _UNIT) or b"") for file in layout.timer_log)


def check_of(layout: StoreLayout) -> form.Check | None:
    """The content of timercheck; None if there is none. Raises UnreadableError."""
    data = read_head(layout.timer_check, form.CHECK_FILE_SIZE) if layout.timer_check is not None else None
    if not data or not any(data):
        return None
    return form.decode_check(data.ljust(form.CHECK_FILE_SIZE, b"\0"))


class TimerLoss(NamedTuple):
    """A timer that has lost its log, timercheck, or its database.

    Attributes:
        loss: which files are lost.
        check: the content of timercheck; None if it is wrong.
        records: of the timer's queue, in the order of the log.
        delivered: unique keys of the messages that were delivered.
        pending: the records to deliver, in the order of the queue.
        unclear: the records of which it is not known whether they were delivered.
        database: what happened to the database, of a timer in RocksDB.
        is_ahead: timercheck is wrong: its read time is in the future.
        wrong: units of the timer log that do not lead to their messages; nothing else is wrong then.
        gone: the first place of the timer log that has no unit any more; no file is lost then.
        without_unit: how many of the messages to deliver have lost their unit with it.
    """

    loss: Loss
    check: form.Check | None
    records: Sequence[Timed]
    delivered: set[str]
    pending: Sequence[Timed]
    unclear: Sequence[Timed]
    database: Literal["", "lost", "unreadable"] = ""
    is_ahead: bool = False
    wrong: Sequence[WrongUnit] = ()
    gone: GoneUnit | None = None
    without_unit: int = 0

    @property
    def waiting(self) -> int:
        """The number of messages to deliver."""
        return sum(not each.is_delete for each in self.pending)

    @property
    def text(self) -> str:
        """Which files are lost, and what a broker does without them."""
        if self.database:
            return self._text_of_database()
        waiting = _counted(len(self.pending), "pending message")
        done = _counted(len(self.delivered), "delivered one")
        if self.wrong:
            units = "a unit" if len(self.wrong) == 1 else f"{len(self.wrong)} units"
            return f"{units} of the timer log cannot be followed: a broker may never deliver {waiting}"
        if self.gone is not None:
            units = "units of the timer log are gone"
            if not self.without_unit:
                return f"{units}; no pending message needs them"
            first = _counted(self.without_unit, "pending message")
            return f"{units}: a broker runs out of memory at the first of {first}"
        if self.is_ahead:
            return f"timercheck has a read time in the future: a broker never delivers {waiting}"
        if self.loss.log and not self.loss.check:
            return f"the timer log is lost: a broker never delivers {waiting}"
        if self.loss.check and not self.loss.log:
            return f"timercheck is lost: a broker delivers {waiting} twice, and {done} again"
        return f"timer log and timercheck are lost: a broker delivers {done} again"

    def _text_of_database(self) -> str:
        waiting = _counted(self.waiting, "pending message")
        if self.database == "unreadable":
            return f"the timer is in {SIDE_FOLDER}, which cannot be read, with {waiting}"
        start = _queue_offset(self.check)
        never = sum(each.queue_offset < start and not each.is_delete for each in self.pending)
        after = {each.key for each in self.records if each.queue_offset >= start}
        parts = [f"never delivers {never} of them" if never else "reads them from the log again"]
        if again := len(self.delivered & after):
            parts.append(f"delivers {_counted(again, 'delivered one')} again")
        return f"the timer in RocksDB is lost, with {waiting}: a broker {' and '.join(parts)}"


def find_loss(
    store: Store,
    log_end: int = _NEVER,
    *,
    loss: Loss | None = None,
    units: Sequence[WrongUnit] | None = None,
) -> TimerLoss | None:
    """What is lost of the timer; None if neither its log, nor timercheck, nor its database is.

    Args:
        store: opened for reading.
        log_end: physical offset; later records do not count.
        loss: of `loss_of`, if it is known.
        units: the wrong units, if they are known.

    Raises:
        UnreadableError: a file of the timer, or the log, cannot be read.
    """
    layout = store.layout
    check = check_of(layout)
    in_rocksdb = _in_rocksdb(layout)
    if in_rocksdb == "sound":
        return None
    loss, may_lack = loss or loss_of(layout, check), _may_lack_database(layout, check)
    wrong: Sequence[WrongUnit] = ()
    gone = None
    if in_rocksdb == "unknown" and not may_lack and not _has_lost(layout, loss):
        if check is not None:
            gone = gone_unit(layout)
            found_units = wrong_units(store, check.last_read_time) if units is None else units
            wrong = [each for each in found_units if not each.is_after_log and each.physical_offset < log_end]
        if not wrong and gone is None:
            return None
    records = [each for each in _records(store) if each.physical_offset < log_end]
    ahead = check is not None and is_ahead(layout, check)
    if not records and not ahead:
        return None
    known = None if ahead else check
    delivered = _delivered(store, records)
    pending, unclear = _pending(records, delivered, known)
    without_unit = _without_unit(store, check, pending) if check is not None and gone is not None else 0
    found = TimerLoss(
        loss, known, records, delivered, pending, unclear, is_ahead=ahead, wrong=wrong, gone=gone,
        without_unit=without_unit,
    )  # fmt: skip
    if in_rocksdb == "unknown" and may_lack and _was_in_rocksdb(found):
        is_there = any(part.what == SIDE_STORE and not part.is_lost for part in layout.unsupported)
        in_rocksdb = "unreadable" if is_there else "lost"
    if in_rocksdb != "unknown":
        start = _queue_offset(check)
        is_kept = not delivered and not any(each.queue_offset < start for each in found.pending)
        return None if in_rocksdb == "lost" and is_kept else found._replace(database=in_rocksdb)
    if not wrong and gone is None and not _has_lost(layout, loss):
        return None
    if loss == (True, True, True) and not (delivered or ahead):
        return None  # a broker reads the queue from its start, and delivers each message once
    return found


def _queue_offset(check: form.Check | None) -> int:
    """Where a broker continues to read the queue of the timer if its database is lost."""
    return 0 if check is None else min(check.last_timer_queue_offset, check.master_timer_queue_offset)


def _was_in_rocksdb(found: TimerLoss) -> bool:
    """Whether a timer in files, which has never written a unit, would have written one for a record."""
    check = found.check
    if check is None:
        return False
    start = check.last_timer_queue_offset
    if any(each.queue_offset < start and not each.is_delete for each in found.pending):
        return True
    newest = check.last_read_time - _TAKEN_MS
    is_master = start == check.master_timer_queue_offset  # a slave takes what its master has taken
    return is_master and any(
        each.queue_offset >= start and each.stored_ms <= newest for each in found.records
    )


def _records(store: Store) -> Iterator[Timed]:
    """The sound records of the timer's queue, in the order of the log."""
    from rmqtool.read.messages import message_batches

    for batch in message_batches(store, Selection(topics=(TIMER_TOPIC,)), columns=_COLUMNS):
        for row in batch.to_pylist():
            values = dict(row["properties"] or ())
            if not WALK_CODES.isdisjoint(row["status"]):
                continue
            yield Timed(
                row["physical_offset"], row["size"], row["queue_offset"], row["uniq_key"],
                row["store_timestamp_ms"],
                due_ms_of(values),
                values.get(properties.REAL_TOPIC, ""), properties.TIMER_DEL_UNIQKEY in values,
            )  # fmt: skip


def due_ms_of(values: Mapping[str, str]) -> int | None:
    """The delivery time in the properties of a timer record, ms since 1970; None if it is unknown."""
    text = values.get(properties.TIMER_OUT_MS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _delivered(store: Store, records: Sequence[Timed]) -> set[str]:
    """The unique keys of the messages that were delivered."""
    stored = {each.key: each.stored_ms for each in reversed(records) if each.key and not each.is_delete}
    found = copies(store, {each.topic for each in records if each.topic}, stored.keys())
    return {each.uniq_key for each in found if each.store_timestamp_ms >= stored[each.uniq_key]}


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


def _without_unit(store: Store, check: form.Check, pending: Sequence[Timed]) -> int:
    """How many of the messages to deliver that were in the timer log have no unit in it."""
    _, units = waiting_units(store, check.last_read_time)
    known = set(units["physical_offset"].tolist())
    taken = (each for each in pending if each.queue_offset < check.last_timer_queue_offset)
    return sum(not each.is_delete and each.physical_offset not in known for each in taken)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
