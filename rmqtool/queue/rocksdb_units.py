"""Units of consume queues in RocksDB, many at once: the blocks of tables decoded by compiled code.

`storage.rocksdb.queues` gives the units of a queue as a file, and reads them in plain Python, which is faster
for a few. `use` gives it the functions of this module; `units` calls that where it opens such a file. The
kernel merges while it decodes: for every queue offset it keeps the entry with the highest sequence number.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from rmqtool.errors import FormatError
from rmqtool.formats import rocksdb as format_
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.formats.rocksdb_queue import UNIT_VALUE, UNITS
from rmqtool.log.rocksdb_block_kernel import UNKNOWN_KIND
from rmqtool.queue.rocksdb_units_kernel import LONG_KEY, crc32c_of, units_of_block
from rmqtool.storage.buffers import Array
from rmqtool.storage.rocksdb.queues import RocksdbQueues, UnitRange, read_units
from rmqtool.storage.rocksdb.table import Table, as_unreadable

_RUN_GAP_MAX = 512  # units: reading this many for nothing is cheaper than another read
_FEW = 64  # units that plain Python reads
_DELETES = (format_.DELETE, format_.SINGLE_DELETE)
_REASONS = {LONG_KEY: "a key is too long", UNKNOWN_KIND: "an entry is of a kind that is not read"}


class Columns(NamedTuple):
    """Units by queue offset, zeros where there is none: `values` has the fields of UNIT_VALUE."""

    values: Array
    sequences: Array


def use(queues: RocksdbQueues) -> None:
    """Make the files of queues read many units at once by `read`."""
    queues.bulk = read
    queues.database.crc32c = crc32c


def read(units: UnitRange) -> bytes:
    """See `read_units`."""
    if units.stop - units.start <= _FEW:
        return read_units(units)
    values = columns(units).values
    return values.view(np.uint8).reshape(len(values), UNIT_VALUE.size)[:, :UNIT_SIZE].tobytes()


def columns(units: UnitRange, unread: list[FormatError] | None = None) -> Columns:
    """The units of a range. Raises OSError; FormatError, or adds it to `unread`, if a block is damaged.

    Without the blocks in `unread` their units count as missing.
    """
    count = units.stop - units.start
    sequences = np.full(count, -1, np.int64)
    raw = np.zeros((count, UNIT_VALUE.size), np.uint8)
    prefix = np.frombuffer(units.prefix, np.uint8)
    key = np.empty(format_.NAMES_MAX, np.uint8)
    deletes = np.array(_DELETES, np.int64)
    low, high = units.keys
    for table in units.database.tables(UNITS, low, high):
        for number in table.blocks_of(low, high):
            try:
                _add_block(units, table, number, (prefix, key, deletes), sequences, raw)
            except FormatError as error:
                if unread is None:
                    raise
                unread.append(error)
    _add_changes(units, sequences, raw)
    _hide_deleted(units, sequences, raw)
    return Columns(raw.reshape(-1).view(UNIT_VALUE.dtype), sequences)


def _add_block(
    units: UnitRange, table: Table, number: int, arrays: tuple[Array, Array, Array],
    sequences: Array, raw: Array,
) -> None:  # fmt: skip
    """The units of a data block. Raises FormatError if it is damaged."""
    prefix, key, deletes = arrays
    block = table.block(number)
    end = _end_of(table, number, block)
    taken = units_of_block(
        np.frombuffer(block, np.uint8), end, prefix, units.start, key, UNIT_VALUE.size, format_.PUT, deletes,
        sequences, raw,
    )  # fmt: skip
    if taken < 0:
        reason = _REASONS.get(taken, "an entry is longer than the block, or its key")
        raise FormatError(reason, path=table.path, physical_offset=table.handle(number).offset)


def store_times(queues: RocksdbQueues, key: tuple[str, int], numbers: Array) -> Array:
    """The store times in the units with these queue offsets (rising, >= 0), 0 without a unit.

    Raises:
        UnreadableError: a block is damaged, or cannot be read.
    """
    times = np.zeros(len(numbers), np.int64)
    queue = queues.queues.get(key)
    if queue is None or not len(numbers):
        return times
    breaks = np.flatnonzero(np.diff(numbers) > _RUN_GAP_MAX) + 1
    for run in np.split(np.arange(len(numbers)), breaks):
        first, last = int(numbers[run[0]]), int(numbers[run[-1]])
        try:
            found = columns(UnitRange(queues.database, queue.prefix, first, last + 1)).values
        except FormatError as error:
            raise as_unreadable(error) from error
        times[run] = found["store_timestamp"][numbers[run] - first]
    return times


def _end_of(table: Table, number: int, block: bytes) -> int:
    try:
        return format_.entries_end(block)
    except FormatError as error:
        error.path, error.physical_offset = table.path, table.handle(number).offset
        raise


def _add_changes(units: UnitRange, sequences: Array, raw: Array) -> None:
    """The changes of write-ahead logs; brokers write none there for queues."""
    length = len(units.prefix) + 8
    for entry in units.database.changes(UNITS, *units.keys):
        place = int.from_bytes(entry.key[-8:], "big") - units.start
        if len(entry.key) == length and entry.sequence > sequences[place]:
            sequences[place] = entry.sequence
            is_unit = entry.kind == format_.PUT and len(entry.value) == UNIT_VALUE.size
            raw[place] = np.frombuffer(entry.value, np.uint8) if is_unit else 0


def _hide_deleted(units: UnitRange, sequences: Array, raw: Array) -> None:
    """Remove what range deletes hide: of a deleted topic, or of units below the log's minimum."""
    cover = units.database.cover(UNITS)
    bounds = [_place(units, bound) for bound in cover.bounds]
    for start, stop, sequence in zip(bounds, bounds[1:], cover.sequences, strict=False):
        if start < stop and sequence >= 0:
            raw[start:stop][sequences[start:stop] < sequence] = 0


def _place(units: UnitRange, bound: bytes) -> int:
    """The place of the first unit of the range whose key is not below `bound`."""
    low, high = units.keys
    if bound <= low:
        return 0
    if bound >= high:
        return units.stop - units.start
    tail = bound[len(units.prefix) :]
    number = int.from_bytes(tail[:8].ljust(8, b"\0"), "big") + (len(tail) > 8)
    return number - units.start


@cache
def _tables() -> Array:
    table = np.array(format_.crc_table(), np.int64)
    tables = np.empty((8, 256), np.int64)
    tables[0] = table
    for number in range(1, 8):
        tables[number] = (tables[number - 1] >> 8) ^ table[tables[number - 1] & 0xFF]
    return tables


def crc32c(data: bytes) -> int:
    """The CRC-32C of `data`, as `formats.rocksdb.crc32c`."""
    return crc32c_of(np.frombuffer(data, np.uint8), _tables()) if data else 0
