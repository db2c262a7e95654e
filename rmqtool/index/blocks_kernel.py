"""The compiled half of `blocks`: the entries of an index file, block by block.

Imports numba: `index.py` loads it when a file is checked.
"""

from __future__ import annotations

from typing import Any

from rmqtool.log.compiled import compiled
from rmqtool.log.intrinsics import i32, i64


@compiled
def check_entries(
    block: Any, first: int, entry_size: int, hash_at: int, physical_at: int, previous_at: int,
    last: Any, wrong: Any, count: int, state: Any,
) -> int:  # fmt: skip
    """Check the entries in `block`, bytes of whole entries of which the first has the number `first`.

    `last` (i4, one per slot) holds the newest entry of each slot so far. `wrong` (i8) takes the
    numbers of entries whose previous entry is not that one; the result is `count` and how many
    more they are, which may be more than fit. `state` (i8): smallest and largest physical offset,
    the one of the entry before, and whether offsets never fell (1) or did (0).
    """
    slot_count = len(last)
    for place in range(len(block) // entry_size):
        at = place * entry_size
        slot = i32(block, at + hash_at) % slot_count
        if i32(block, at + previous_at) != last[slot]:
            if count < len(wrong):
                wrong[count] = first + place
            count += 1
        last[slot] = first + place
        physical = i64(block, at + physical_at)
        if physical < state[0]:
            state[0] = physical
        if physical > state[1]:
            state[1] = physical
        if physical < state[2]:
            state[3] = 0
        state[2] = physical
    return count
