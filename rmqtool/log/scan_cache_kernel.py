"""The compiled half of `scan_cache`: columns of records to small differences, and back, in one pass.

A column is either the same in all records, or in one of four arrays of differences from its least value, by
the width that these need. Imports llvmlite: only functions of `scan_cache` import this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rmqtool.log.compiled import compiled, inlined

OF_RECORDS, OF_KEYS = 13, 3
COLUMNS = OF_RECORDS + OF_KEYS
"""In the order in which the kernels take them: fields of rows, of dispatch, of keys."""


class Pools(NamedTuple):
    """Arrays of the differences, by their width: u1, u2, u4, and i8 for whole values."""

    of_1: Any
    of_2: Any
    of_4: Any
    of_8: Any


class Columns(NamedTuple):
    """The fields of `Dispatch` that are kept: contiguous arrays of shape (records,)."""

    tags_code: Any
    delay_level: Any
    inner_base: Any
    inner_count: Any
    flags: Any


@inlined
def _note(value: int, column: int, ends: Any) -> None:
    """Widen the range ends[column] so that it holds a value."""
    ends[column, 0] = min(ends[column, 0], value)
    ends[column, 1] = max(ends[column, 1], value)


@compiled
def extremes(rows: Any, columns: Columns, keys: Any, ends: Any) -> None:
    """Widen `ends` (i8, shape (COLUMNS, 2)) to the least and the largest value of each column."""
    for i in range(len(rows)):
        row = rows[i]
        _note(row.physical_offset, 0, ends)
        _note(row.store_timestamp, 1, ends)
        _note(row.queue_offset, 2, ends)
        _note(row.size, 3, ends)
        _note(row.queue_id, 4, ends)
        _note(row.sys_flag, 5, ends)
        _note(row.topic_id, 6, ends)
        _note(row.version, 7, ends)
        _note(columns.tags_code[i], 8, ends)
        _note(columns.delay_level[i], 9, ends)
        _note(columns.inner_base[i], 10, ends)
        _note(columns.inner_count[i], 11, ends)
        _note(columns.flags[i], 12, ends)
    for i in range(len(keys)):
        key = keys[i]
        _note(key.row, 13, ends)
        _note(key.key_hash, 14, ends)
        _note(key.kind, 15, ends)


@inlined
def _put(value: int, i: int, places: Any, column: int, pools: Pools) -> None:
    width = places[column, 0]
    at = places[column, 1] + i
    if width == 1:
        pools.of_1[at] = value - places[column, 2]
    elif width == 2:
        pools.of_2[at] = value - places[column, 2]
    elif width == 4:
        pools.of_4[at] = value - places[column, 2]
    elif width == 8:
        pools.of_8[at] = value


@inlined
def _get(i: int, places: Any, column: int, pools: Pools) -> Any:
    width = places[column, 0]
    at = places[column, 1] + i
    if width == 0:
        return places[column, 2]
    if width == 1:
        return places[column, 2] + np.int64(pools.of_1[at])
    if width == 2:
        return places[column, 2] + np.int64(pools.of_2[at])
    if width == 4:
        return places[column, 2] + np.int64(pools.of_4[at])
    return pools.of_8[at]


@compiled
def pack(rows: Any, columns: Columns, keys: Any, places: Any, pools: Pools) -> None:
    """Fill `pools`. `places` (i8, shape (COLUMNS, 3)) are width, first place in its pool, least value.

    A width of 0 means that all values are the least one, of 8 that they are kept as they are.
    """
    for i in range(len(rows)):
        row = rows[i]
        _put(row.physical_offset, i, places, 0, pools)
        _put(row.store_timestamp, i, places, 1, pools)
        _put(row.queue_offset, i, places, 2, pools)
        _put(row.size, i, places, 3, pools)
        _put(row.queue_id, i, places, 4, pools)
        _put(row.sys_flag, i, places, 5, pools)
        _put(row.topic_id, i, places, 6, pools)
        _put(row.version, i, places, 7, pools)
        _put(columns.tags_code[i], i, places, 8, pools)
        _put(columns.delay_level[i], i, places, 9, pools)
        _put(columns.inner_base[i], i, places, 10, pools)
        _put(columns.inner_count[i], i, places, 11, pools)
        _put(columns.flags[i], i, places, 12, pools)
    for i in range(len(keys)):
        key = keys[i]
        _put(key.row, i, places, 13, pools)
        _put(key.key_hash, i, places, 14, pools)
        _put(key.kind, i, places, 15, pools)


@compiled
def unpack(rows: Any, columns: Columns, keys: Any, places: Any, pools: Pools) -> None:
    """The inverse of `pack`; fields of rows that are not kept become 0."""
    for i in range(len(rows)):
        row = rows[i]
        row.physical_offset = _get(i, places, 0, pools)
        row.store_timestamp = _get(i, places, 1, pools)
        row.queue_offset = _get(i, places, 2, pools)
        row.size = _get(i, places, 3, pools)
        row.queue_id = _get(i, places, 4, pools)
        row.sys_flag = _get(i, places, 5, pools)
        row.topic_id = _get(i, places, 6, pools)
        row.version = _get(i, places, 7, pools)
        row.born_timestamp = 0
        row.prepared_transaction_offset = 0
        row.flag = 0
        row.body_crc = 0
        row.body_length = 0
        row.reconsume_times = 0
        row.topic_length = 0
        row.properties_length = 0
        row.status = 0
        columns.tags_code[i] = _get(i, places, 8, pools)
        columns.delay_level[i] = _get(i, places, 9, pools)
        columns.inner_base[i] = _get(i, places, 10, pools)
        columns.inner_count[i] = _get(i, places, 11, pools)
        columns.flags[i] = _get(i, places, 12, pools)
    for i in range(len(keys)):
        key = keys[i]
        key.row = _get(i, places, 13, pools)
        key.key_hash = _get(i, places, 14, pools)
        key.kind = _get(i, places, 15, pools)
