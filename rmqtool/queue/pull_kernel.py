"""The compiled answer to the usual pull: units of a queue, and the records that they name, checked at once.

Imports llvmlite: only `net.whole_answer` imports this module, once it may take the time.
"""

from __future__ import annotations

from typing import Any

from rmqtool.log.compiled import compiled
from rmqtool.log.frame_kernel import (
    Checks,
    Numbers,
    body_matches,
    ends_in_zero,
    lengths,
    same,
    version_of,
)
from rmqtool.log.intrinsics import address_of, i32, i64
from rmqtool.log.store_intrinsics import copy_in


@compiled
def sound_records(
    units: Any, data: Any, base: int, topic: Any, queue_id: int, queue_offset: int, version_max: int,
    most_bytes: int, unit_size: int, counts: Any, out: Any, checks: Checks, tables: Any, n: Numbers,
) -> int:  # fmt: skip
    """Copy the records of the first units, of at most `most_bytes`, to `out`; return their bytes.

    At least one is copied, whatever its size. 0 if a record that belongs to the answer does not lie in `data`
    after the record before it, is not a sound record of this topic, queue and version, or has no room.

    Args:
        units: whole units, uint8; the first has the queue offset `queue_offset`.
        data: bytes of the log, uint8.
        base: the physical offset of data[0].
        topic: the name of the topic in UTF-8, uint8.
        queue_id: of every record.
        queue_offset: of the first record; each following one has the next.
        version_max: the highest record version that is accepted.
        most_bytes: of all records together.
        unit_size: bytes of a unit.
        counts: int64 of shape (1,): gets the number of records.
        out: uint8: gets the records, one after the other.
        checks: which checks are made.
        tables: for the CRC.
        n: the numbers of the format.
    """
    count = 0
    end = 0
    taken = 0
    for k in range(len(units) // unit_size):
        total = i32(units, k * unit_size + 8)
        i = i64(units, k * unit_size) - base
        if total < n.min_record or i < end or i > len(data) - total:
            return 0
        if count > 0 and taken + total > most_bytes:
            break
        version = version_of(i32(data, i + n.magic), n)
        if version == 0 or version > version_max or i32(data, i) != total:
            return 0
        sound, _, growth, body, topic_bytes, properties = lengths(data, i, total, version, n)
        if not sound or i64(data, i + n.physical_offset) != base + i:
            return 0
        if i32(data, i + n.queue_id) != queue_id or i64(data, i + n.queue_offset) != queue_offset + k:
            return 0
        if topic_bytes != len(topic):
            return 0
        if not same(data, i + n.head + growth + max(body, 0) + version, topic, 0, topic_bytes):
            return 0
        if not body_matches(data, i, growth, body, checks, tables, n):
            return 0
        # As in other scans, a record that may have lost its last bytes is looked at more closely.
        if ends_in_zero(data, i + total, topic_bytes, properties):
            return 0
        if total > len(out) - taken:
            return 0
        copy_in(out, taken, address_of(data, i), total)
        end = i + total
        taken += total
        count += 1
    counts[0] = count
    return taken
