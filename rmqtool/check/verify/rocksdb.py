"""Pass `queues`, RocksDB: what queues in files do not have. Their units are checked like any others.

    a block that cannot be read                        RD01, in a database without queues RD10
    `max` without its unit, or with another one        RD02
    a unit whose store time is not its record's        RD03, found by `queues`
    the noted end of dispatch against log and units    RD04
    queues that are written twice                      RD05 where the two differ, RD12 where one lacks units;
                                                       of batch queues, which only 5.3 writes twice, only RD05

A database that cannot be opened is found by the pass `files`. Not wrong: a `min` that is missing or stale,
units above `max` after a cut of the log, units below the minimum of the log, a `max` whose unit has expired
or whose queue a broker has initialized, and an end that was noted before the end of the log, as a running or
killed broker leaves it. Source: spec 06 2.3, 2.5, 2.8; RemoveConsumeQueueCompactionFilter,
RocksDBConsumeQueue#initializeWithOffset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.check.verify.context import Context
from rmqtool.errors import FormatError, RmqtoolError, UnreadableError
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.formats.rocksdb_queue import UNIT_VALUE, UNITS, EndKey, unit_key
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.problems import Finding, finding
from rmqtool.queue.units import BATCH_UNIT_DTYPE, UnitReader, present
from rmqtool.storage.layout import QueueFiles, rocksdb_queue_files
from rmqtool.storage.out_of_reach import database_code
from rmqtool.storage.ranges import runs
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.rocksdb.queues import OFFSET_LIMIT, RocksdbQueue, RocksdbQueues

if TYPE_CHECKING:
    from rmqtool.check.verify.spans import Key, Span
    from rmqtool.storage.buffers import Array
    from rmqtool.storage.rocksdb.table import Table

_BLOCK = 1 << 15  # units compared at once
_RUNS_MAX = 1000  # findings on the differences of one queue


def check_rocksdb(context: Context, spans: Mapping[Key, Span]) -> Iterator[Finding]:
    """The findings on the store's databases, and on queues in RocksDB, the only ones or second ones.

    `spans` are what the log holds of each queue.
    """
    queues = context.layout.rocksdb
    if context.layout.queue_logs is not None:
        return
    yield from _other_databases(context)
    if queues is None:
        return
    yield from _files(context, queues.database)
    try:
        yield from _ends(context, queues)
        if context.layout.has_queues_in_rocksdb:
            yield from _checkpoint(context, queues)
        else:
            yield from _twice(context, queues, spans)
    except (FormatError, UnreadableError):
        return  # RD01, or gone


# files


def _other_databases(context: Context) -> Iterator[Finding]:
    """All blocks of the databases that hold no queues."""
    queues = context.layout.rocksdb
    for folder in dict.fromkeys(part.path for part in context.layout.read_only):
        if queues is not None and folder == queues.folder:
            continue
        database = Database(folder)
        try:
            yield from _files(context, database)
        finally:
            database.close()


def _files(context: Context, database: Database) -> Iterator[Finding]:
    """Read every block; the reader of the units has decoded those that hold units."""
    try:
        families = database.families
    except (FormatError, UnreadableError) as error:
        yield from _damaged(context, error, database.folder)
        return
    for family in families.values():
        for file in family.files:
            try:
                table = database.table(file)
            except (FormatError, UnreadableError) as error:
                yield from _damaged(context, error, database.folder)
            else:
                yield from _blocks(context, table)


def _blocks(context: Context, table: Table) -> Iterator[Finding]:
    for number in range(table.block_count):
        try:
            table.check(number)
        except (FormatError, UnreadableError) as error:
            yield from _damaged(context, error, table.path)


def _damaged(context: Context, error: RmqtoolError, folder: Path) -> Iterator[Finding]:
    path = folder if error.path is None else Path(error.path)
    if isinstance(error, UnreadableError) and context.live and error.is_gone:
        context.report.vanished.add(context.name(path))
        return
    code = database_code(context.layout, path)
    yield finding(code, context.name(path), error.physical_offset, None, reason=error.message)


# ends


def _ends(context: Context, queues: RocksdbQueues) -> Iterator[Finding]:
    for (topic, is_max, queue_id), end in sorted(queues.ends.items()):
        if not is_max:
            continue
        place = {"topic": topic, "queue_id": queue_id, "queue_offset": end.queue_offset}
        name = context.name(queues.folder)
        if not 0 <= end.queue_offset < OFFSET_LIMIT:
            yield finding("RD02", name, None, None, **place)
            continue
        if queues.is_initialized(topic, queue_id):
            continue
        try:
            value = queues.database.get(UNITS, unit_key(topic, queue_id, end.queue_offset))
        except FormatError:  # RD01
            continue
        if value is None and end.physical_offset < context.log_start:
            continue
        if value is None or len(value) != UNIT_VALUE.size:
            yield finding("RD02", name, None, None, **place, unit="missing")
            continue
        found = UNIT_VALUE.unpack(value)[0]
        if found != end.physical_offset:
            yield finding(
                "RD02", name, None, None, **place, end_physical_offset=end.physical_offset,
                unit_physical_offset=found,
            )  # fmt: skip


def _checkpoint(context: Context, queues: RocksdbQueues) -> Iterator[Finding]:
    noted = queues.checkpoint
    newest = max((end.physical_offset for key, end in queues.ends.items() if key.is_max), default=-1)
    if context.live or (noted is None and newest < 0):
        return
    detail: dict[str, object] = {"noted": noted, "newest_physical_offset": newest}
    if noted is None or noted <= newest or (context.log_end >= 0 and noted > context.log_end):
        if context.log_end >= 0:
            detail["log_end"] = context.log_end
        yield finding("RD04", context.name(queues.folder), None, None, **detail)


# both kinds


def _twice(context: Context, queues: RocksdbQueues, spans: Mapping[Key, Span]) -> Iterator[Finding]:
    """Compare where both have units, and the ends unless broker.conf says that they part."""
    conf = context.layout.broker_conf
    is_off = conf is not None and not conf.flag("rocksdbCQDoubleWriteEnable", default=True)
    compares_ends = not (is_off or context.live or context.bounds.sample)
    with UnitReader(context.open, context.files_per_reader) as reader:
        for key, queue in context.layout.consume_queues.items():
            other = queues.queues.get(key)
            if not queue.files:
                continue
            try:
                if other is not None:
                    yield from _differences(context, reader, queue, queues, other)
                if compares_ends:
                    yield from _lacking(context, reader, queue, queues, other, spans.get(key))
            except (FileNotFoundError, FormatError, UnreadableError):
                continue  # it has gone since the folder was listed, or a block of it is damaged
        for key, queue in context.layout.batch_queues.items():
            other = queues.queues.get(key)
            try:
                if other is not None:
                    yield from _batch_differences(context, reader, queue, queues, other)
            except (FileNotFoundError, FormatError, UnreadableError):
                continue


def _lacking(
    context: Context, reader: UnitReader, queue: QueueFiles, queues: RocksdbQueues,
    other: RocksdbQueue | None, span: Span | None,
) -> Iterator[Finding]:  # fmt: skip
    """A second queue that does not end where the log and the first one do, or lacks units that are served.

    Where double writing began later, it has no older units: that is wrong only if clients are served from it.
    Not wrong either is the rest that the next start dispatches.
    """
    conf = context.layout.broker_conf
    end = context.queue_ends.get(queue.key, 0) if span is None else span.next
    first, found = (0, 0) if other is None else (other.first, other.end)
    is_served = conf is not None and conf.is_rocksdb("combineCQPreferCQType")
    newest = queues.ends.get(EndKey(queue.topic, True, queue.queue_id))
    is_ahead = newest is not None and newest.physical_offset >= context.log_end >= 0
    lacks_first = is_served and span is not None and first > span.first
    if found == end and not lacks_first and not is_ahead:
        return
    if found < end and not lacks_first and not is_ahead:
        start = max(found, queue.files[0].file_from_offset // UNIT_SIZE)
        missing = reader.read(queue, start, 1)
        begin = min(context.dispatch_from, context.dispatch_from_of(queues))
        is_known = len(missing) and bool(present(missing)[0])
        if int(missing["physical_offset"][0]) >= begin if is_known else begin <= context.log_end:
            return
    yield finding(
        "RD12", context.name(queues.folder), topic=queue.topic, queue_id=queue.queue_id, end=end,
        rocksdb_first=first, rocksdb_end=found,
    )  # fmt: skip


def _differ(topic: str, mine: Array, others: Array) -> Array:
    """Which units name another record, or give another tags code.

    The delivery time of a delayed message depends on delay levels, which may have changed.
    """
    if topic != SCHEDULE_TOPIC:
        return np.asarray(mine != others)
    differ = (mine["physical_offset"] != others["physical_offset"]) | (mine["size"] != others["size"])
    return np.asarray(differ)


def _differences(
    context: Context, reader: UnitReader, queue: QueueFiles, queues: RocksdbQueues, other: RocksdbQueue
) -> Iterator[Finding]:
    second = rocksdb_queue_files(queues, other)
    start = max(other.first, queue.files[0].file_from_offset // UNIT_SIZE)
    stop = min(other.end, queue.files[-1].end // UNIT_SIZE)
    found = 0
    for first in range(start, stop, _BLOCK):
        count = min(_BLOCK, stop - first)
        mine, others = reader.read(queue, first, count), reader.read(second, first, count)
        numbers = np.flatnonzero(present(mine) & _differ(queue.topic, mine, others))
        for low, high in runs(numbers):
            place = {"topic": queue.topic, "queue_id": queue.queue_id}
            at, last = int(numbers[low]), int(numbers[high - 1])
            yield finding(
                "RD05", context.name(second.folder), None, (last - at + 1) * UNIT_SIZE, **place,
                queue_offset=first + at, last_queue_offset=first + last,
                file_physical_offset=int(mine[at]["physical_offset"]),
                rocksdb_physical_offset=int(others[at]["physical_offset"]),
            )  # fmt: skip
            found += 1
            if found == _RUNS_MAX:
                return


def _batch_differences(
    context: Context, reader: UnitReader, queue: QueueFiles, queues: RocksdbQueues, other: RocksdbQueue
) -> Iterator[Finding]:
    """Units of batch records that differ: 5.3 writes one at the queue offset of each, with the same fields.

    Source: CommitLogDispatcherBuildRocksdbConsumeQueue of 5.3.3, DispatchEntry#from.
    """
    parts = [np.zeros(0, BATCH_UNIT_DTYPE)]
    for file in queue.files:
        parts += (units[present(units)] for _, units in reader.blocks(file, queue.unit_size))
    units = np.concatenate(parts)
    units = units[np.argsort(units["base_offset"], kind="stable")]
    second = rocksdb_queue_files(queues, other)
    for first in range(other.first, other.end if len(units) else 0, _BLOCK):
        others = reader.read(second, first, min(_BLOCK, other.end - first))
        numbers = np.flatnonzero(present(others))
        place = np.searchsorted(units["base_offset"], numbers + first)
        mine, others = units[np.minimum(place, len(units) - 1)], others[numbers]
        differ = np.zeros(len(numbers), bool)
        for name in ("physical_offset", "size", "tags_code"):
            differ |= mine[name] != others[name]
        differ &= mine["base_offset"] == numbers + first
        for at in np.flatnonzero(differ)[:_RUNS_MAX].tolist():
            yield finding(
                "RD05", context.name(second.folder), None, UNIT_SIZE, topic=queue.topic,
                queue_id=queue.queue_id, queue_offset=first + int(numbers[at]),
                last_queue_offset=first + int(numbers[at]),
                file_physical_offset=int(mine[at]["physical_offset"]),
                rocksdb_physical_offset=int(others[at]["physical_offset"]),
            )  # fmt: skip
