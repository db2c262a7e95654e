"""The compiled half of `build`: IndexFile#putKey for many keys.

Imports llvmlite: only `build.put_keys` imports this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rmqtool.log.compiled import compiled
from rmqtool.log.intrinsics import prefetch
from rmqtool.log.store_intrinsics import put_i32, put_i64

# Places in a state: those of index_build
_BEGIN_TIMESTAMP, _END_TIMESTAMP, _BEGIN_OFFSET, _END_OFFSET, _SLOT_COUNT, _COUNT, _NEWEST = range(7)
_ENTRY_WORDS = 10
_AHEAD = 16  # keys whose slot is fetched before they are put: slots are hit at random
_DIFF_MAX = (1 << 31) - 1


class Limits(NamedTuple):
    """Places for entries in the file and in the buffer, the kind of key that is left out, sizes in bytes."""

    entries: int
    buffer: int
    left_out: int
    header_size: int
    slot_size: int
    page: int


@compiled
def put_keys(
    rows: Any, keys: Any, first: int, skip: int, state: Any, slots: Any, dirty: Any, words: Any, filled: Any,
    n: Limits,
) -> Any:  # fmt: skip
    """Put keys[first:] until the file or the buffer is full; where it went on to.

    A record before the newest one of the file is left out, and of one that starts where the newest
    one does the first `skip` keys. `filled[0]` entries are in `words` before and after.
    """
    count = filled[0]
    known = state[_END_OFFSET] if skip > 0 else -1
    i = first
    while i < len(keys):
        if i + _AHEAD < len(keys):
            prefetch(slots, keys[i + _AHEAD].key_hash % len(slots))
        row = rows[keys[i].row]
        physical = row.physical_offset
        if keys[i].kind == n.left_out or physical < state[_END_OFFSET]:
            i += 1
            continue
        if physical == known and skip > 0:
            skip -= 1
            i += 1
            continue
        number = state[_COUNT]
        if number >= n.entries or count >= n.buffer:
            break
        key_hash = keys[i].key_hash
        slot = key_hash % len(slots)
        previous = slots[slot]
        if previous <= 0 or previous > number:
            previous = 0
            state[_SLOT_COUNT] += 1
        seconds = 0
        if state[_BEGIN_TIMESTAMP] > 0 and row.store_timestamp > state[_BEGIN_TIMESTAMP]:
            seconds = min((row.store_timestamp - state[_BEGIN_TIMESTAMP]) // 1000, _DIFF_MAX)
        at = count * _ENTRY_WORDS
        put_i32(words, at, key_hash)
        put_i64(words, at + 2, physical)
        put_i32(words, at + 6, seconds)
        put_i32(words, at + 8, previous)
        slots[slot] = number
        dirty[(n.header_size + n.slot_size * slot) // n.page] = 1
        if number <= 1:
            state[_BEGIN_OFFSET] = physical
            state[_BEGIN_TIMESTAMP] = row.store_timestamp
        state[_NEWEST] = state[_NEWEST] + 1 if physical == state[_END_OFFSET] else 1
        state[_COUNT] = number + 1
        state[_END_OFFSET] = physical
        state[_END_TIMESTAMP] = row.store_timestamp
        count += 1
        i += 1
    filled[0] = count
    return i
