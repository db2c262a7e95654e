"""The compiled half of `point_read`: rows of records at known places.

Imports llvmlite: only `point_read` imports this module.
"""

from __future__ import annotations

from typing import Any

from rmqtool.log.compiled import compiled
from rmqtool.log.frame_kernel import (
    Checks,
    Numbers,
    body_matches,
    ends_in_zero,
    fill,
    lengths,
    topic_id,
    version_of,
)
from rmqtool.log.intrinsics import i32, i64

COUNT, UNSOUND, TOPICS = range(3)
RESULT_SIZE = 3


@compiled
def rows_at(
    data: Any, starts: Any, sizes: Any, offsets: Any, checks: Checks, tables: Any, n: Numbers,
    rows: Any, topics: Any, slots: Any, result: Any,
) -> None:  # fmt: skip
    """Fill `rows` with the records at data[starts[k] : starts[k] + sizes[k]].

    result[COUNT] is their number. Reading stops when the table of topics is full, or, with result[UNSOUND],
    at bytes that are not a sound record of this size and offset, or that end in a zero. The caller guarantees
    that the ranges are inside of `data`.
    """
    count = 0
    topic_count = 0
    unsound = 0
    for k in range(len(starts)):
        i = starts[k]
        total = sizes[k]
        unsound = 1
        if total < n.min_record or i32(data, i) != total:
            break
        version = version_of(i32(data, i + n.magic), n)
        if version == 0:
            break
        sound, born, growth, body, topic, properties = lengths(data, i, total, version, n)
        if not sound or i64(data, i + n.physical_offset) != offsets[k]:
            break
        if checks.crc and not body_matches(data, i, growth, body, checks, tables, n):
            break
        if ends_in_zero(data, i + total, topic, properties):
            break
        unsound = 0
        topic_start = i + n.head + growth + max(body, 0) + version
        number = topic_id(data, topic_start, topic, topics, slots, topic_count)
        if number < 0:
            break
        topic_count = max(topic_count, number + 1)
        row = rows[count]
        fill(row, data, i, offsets[k], born, growth, n)
        row.body_length = body
        row.topic_id = number
        row.topic_length = topic
        row.properties_length = properties
        row.version = version
        row.status = 0
        count += 1
    result[COUNT] = count
    result[UNSOUND] = unsound
    result[TOPICS] = topic_count
