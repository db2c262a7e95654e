"""The compiled half of `index`: one pass over the entries of an index file.

Imports numba: `index.py` loads it when a file is checked.
"""

from __future__ import annotations

from typing import Any

from rmqtool.scan.compiled import compiled
from rmqtool.scan.loads import i32, i64


@compiled
def check_entries(
    raw: Any, entry_size: int, hash_at: int, physical_at: int, previous_at: int, start: int, stop: int,
    slot_count: int, last: Any, wrong: Any, state: Any,
) -> int:  # fmt: skip
    """Check entries [start, stop) of `raw`, the bytes of all entries, entry 0 included.

    `last` (i4, one per slot) holds the newest entry of each slot so far. `wrong` (i8) takes the
    numbers of entries whose previous entry is not that one; the result is how many there are, which
    may be more than fit. `state` (i8): smallest and largest physical offset, the one of the entry
    before, and whether offsets never fell (1) or did (0).
    """
    count = 0
    for number in range(start, stop):
        at = number * entry_size
        slot = i32(raw, at + hash_at) % slot_count
        if i32(raw, at + previous_at) != last[slot]:
            if count < len(wrong):
                wrong[count] = number
            count += 1
        last[slot] = number
        physical = i64(raw, at + physical_at)
        if physical < state[0]:
            state[0] = physical
        if physical > state[1]:
            state[1] = physical
        if physical < state[2]:
            state[3] = 0
        state[2] = physical
    return count
