"""Rows of files that only 5.x writes: the timer log, the epoch file, the compaction checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, tzinfo
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool import times
from rmqtool.errors import FormatError, InputError
from rmqtool.findings import Report
from rmqtool.formats import compaction, config_json, epoch, timer
from rmqtool.formats.timer import LogUnit
from rmqtool.message.rows import Row
from rmqtool.message.system_topics import describe
from rmqtool.problems import finding
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.read.timer_loss import check_of, is_ahead
from rmqtool.read.timer_units import precision_ms
from rmqtool.storage.config_files import read_file
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.open_files import reading

if TYPE_CHECKING:
    from rmqtool.storage.rocksdb.database import Database

TIMER_FIELDS = (
    "position", "deliver_timestamp_ms", "deliver_time", "write_timestamp_ms", "write_time", "physical_offset",
    "size", "real_topic", "real_queue_id", "topic_hash", "roll", "delete", "previous_position", "delivered",
    "file",
)  # fmt: skip
TIMER_TABLE = ("position", "deliver_time", "real_topic", "real_queue_id", "delivered", "physical_offset",
               "size", "roll", "delete")  # fmt: skip
EPOCH_FIELDS = ("epoch", "start_offset", "end_offset", "file")
COMPACTION_FIELDS = ("topic", "queue_id", "queue_offset", "file")
_BLOCK_UNITS = 4096


def timer_rows(
    store: Store, selection: Selection, report: Report, *, tz: tzinfo | None = UTC
) -> Iterator[Row]:
    """One row per unit of the timer log, in its order; then one per timer message in RocksDB, by due time.

    `delivered` is whether the broker has delivered what was due then; None if timercheck does not say it.

    Args:
        store: the store. A unit holds the hash of its message's topic; the topic itself, and the
            queue, are those of the record, and null where no record can be read there.
        selection: `since` and `until` are times of delivery, the offsets those of the messages'
            records; `limit` counts units.
        report: called for bytes that are not a unit: a broker cuts its timer log there, and so does this.
        tz: zone of the times; None is the local zone.
    """
    layout, left, read_ms = store.layout, selection.limit, _read_ms(store)
    for file in layout.timer_log:
        for position, unit in _units(layout, file, report):
            due = unit.deliver_time
            early = selection.since is not None and due < selection.since
            late = selection.until is not None and due >= selection.until
            if early or late or not selection.matches_offset(unit.physical_offset):
                continue
            if left == 0:
                return
            left = None if left is None else left - 1
            yield {
                "position": file.file_from_offset + position,
                "deliver_timestamp_ms": due,
                "deliver_time": times.format_time(due, tz),
                "write_timestamp_ms": unit.write_time,
                "write_time": times.format_time(unit.write_time, tz),
                "physical_offset": unit.physical_offset,
                "size": unit.message_size,
                **_real(store, unit.physical_offset),
                "topic_hash": unit.topic_hash,
                "roll": bool(unit.magic & timer.MAGIC_ROLL),
                "delete": bool(unit.magic & timer.MAGIC_DELETE),
                "previous_position": unit.previous_position,
                "delivered": None if read_ms is None else due < read_ms,
                "file": layout.relative(file.path),
            }
    if layout.rocksdb_messages is not None:
        rows = _rocksdb_rows(store, layout.rocksdb_messages, selection, report, tz)
        yield from rows if left is None else islice(rows, left)


def _read_ms(store: Store) -> int | None:
    """The delivery time from which on messages wait; None if it is lost or wrong."""
    try:
        check = check_of(store.layout)
        if check is None or is_ahead(store.layout, check):
            return None
    except InputError:
        return None
    return check.last_read_time - check.last_read_time % precision_ms(store)


def _rocksdb_rows(
    store: Store, database: Database, selection: Selection, report: Report, tz: tzinfo | None
) -> Iterator[Row]:
    """`delivered`: the broker has delivered what was due up to this time; it deletes these entries later."""
    from rmqtool.storage.rocksdb.messages import read_timers

    try:
        timers = read_timers(database)
    except FormatError as error:
        name = store.layout.relative(Path(error.path or database.folder))
        report(finding("RD10", name, error.physical_offset, reason=error.message))
        return
    for entry in timers.entries if timers is not None else ():
        early = selection.since is not None and entry.due_ms < selection.since
        late = selection.until is not None and entry.due_ms >= selection.until
        if early or late or not selection.matches_offset(entry.physical_offset):
            continue
        assert timers is not None
        yield dict.fromkeys(TIMER_FIELDS) | {
            "deliver_timestamp_ms": entry.due_ms,
            "deliver_time": times.format_time(entry.due_ms, tz),
            "physical_offset": entry.physical_offset,
            "size": entry.size,
            **_real(store, entry.physical_offset),
            "delivered": entry.due_ms <= timers.delivered_ms,
            "file": store.layout.relative(database.folder),
        }


def _real(store: Store, physical_offset: int) -> Row:
    """The topic and queue that a message will be delivered to, as far as its record can be read."""
    stored = store.find(physical_offset)
    found = describe(stored.message) if stored is not None else None
    if found is None or found["kind"] != "timer":
        return {"real_topic": None, "real_queue_id": None}
    return {name: found[name] for name in ("real_topic", "real_queue_id")}


def _units(layout: StoreLayout, file: StoreFile, report: Report) -> Iterator[tuple[int, LogUnit]]:
    """(byte offset in the file, unit) up to the file's blank, to zeros or to its end."""
    name, step = layout.relative(file.path), _BLOCK_UNITS * timer.LOG_UNIT.size
    try:
        with reading(file.path) as opened:
            for start in range(0, file.size, step):
                data, read = opened.read(start, step), 0
                for position, unit in timer.decode_log(data):
                    if not isinstance(unit, LogUnit):
                        return
                    read = position + timer.LOG_UNIT.size
                    yield start + position, unit
                if read < step:
                    return
    except FormatError as error:
        report(finding("TM02", name, start + read, timer.LOG_UNIT.size, reason=error.message))
    except OSError as error:
        report(finding("CP06", name, reason=error.strerror))


def epoch_rows(layout: StoreLayout, report: Report) -> Iterator[Row]:
    """One row per epoch: its records are those of [start_offset, end_offset); null for the last's end."""
    if layout.epoch is None:
        return
    name = layout.relative(layout.epoch)
    try:
        entries = epoch.decode(read_file(layout.epoch))
    except FormatError as error:
        report(finding("EP01", name, reason=error.message))
        return
    if not epoch.is_ordered(entries):
        report(finding("EP01", name, reason="epochs or start offsets do not rise"))
    ends = [entry.start_offset for entry in entries[1:]]
    for entry, end in zip(entries, [*ends, None], strict=True):
        values = (entry.epoch, entry.start_offset, end, name)
        yield dict(zip(EPOCH_FIELDS, values, strict=True))


def compaction_rows(layout: StoreLayout, report: Report) -> Iterator[Row]:
    """One row per queue of a compacted topic: the last queue offset that is compacted."""
    path = layout.compaction_checkpoint
    if path is None:
        return
    name, bak = layout.relative(path), path.with_name(f"{path.name}.bak")
    texts = read_file(path), read_file(bak) if bak.is_file() else None
    loaded = config_json.load_with_bak(path.name, *texts)
    if loaded.source != "file":
        report(finding("CC01", name, reason=loaded.file_error))
    try:
        positions = compaction.positions(loaded.document)
    except FormatError as error:
        report(finding("CC01", name, reason=error.message))
        return
    for (topic, queue_id), queue_offset in sorted(positions.items()):
        yield {"topic": topic, "queue_id": queue_id, "queue_offset": queue_offset, "file": name}
