"""The compiled half of `index_file`: the chains of many keys, and the check of all links.

Chains lead to smaller and smaller entry numbers. So those of all keys are followed in one pass over the file,
window by window from its end: each key is in the list of the window that it needs next. Every byte is read
once, in order, and what is read at random is in the processor's cache.

Imports llvmlite: only `index_file` imports this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rmqtool.log.compiled import compiled
from rmqtool.log.intrinsics import i32, i64


class FileLayout(NamedTuple):
    """Where slots and entries lie in an index file, and fields in an entry, bytes; made by `index_file`."""

    slots_at: int
    slots: int
    slot_size: int
    entries_at: int
    entry_size: int
    hash_at: int
    physical_at: int
    previous_at: int


NONE = -1
"""Ends a list of keys."""
KEYS_LEFT, FOUND, BROKEN = range(3)
"""Indices of the state: keys whose chains are still followed, hits, broken chains."""


@compiled
def list_by_slot(hashes: Any, layout: FileLayout, window: int, heads: Any, nexts: Any) -> None:
    """Put every key into the list of its window of `window` slots.

    `heads` (i4, NONE at first) has the first key of the list of each window, `nexts` (i4) the key after each.
    """
    for k in range(len(hashes)):
        place = hashes[k] % layout.slots // window
        nexts[k] = heads[place]
        heads[place] = k


@compiled
def newest_entries(
    data: Any, first: int, k: int, hashes: Any, layout: FileLayout, window: int, limit: int, heads: Any,
    nexts: Any, numbers: Any, limits: Any, state: Any, broken: Any,
) -> None:  # fmt: skip
    """Move key `k` and those listed after it to the lists of the windows of `window` entries that they need.

    `data` are the bytes of the slots from number `first` on. Entries below `limit` are in use. For every
    listed key `numbers` has the entry to look at, and `limits` the number that it must be below.
    """
    while k != NONE:
        following = nexts[k]
        number = i32(data, layout.slot_size * (hashes[k] % layout.slots - first))
        if number < 0 or number >= limit:
            broken[state[BROKEN]] = k
            state[BROKEN] += 1
        elif number != 0:
            numbers[k] = number
            limits[k] = limit
            nexts[k] = heads[number // window]
            heads[number // window] = k
            state[KEYS_LEFT] += 1
        k = following


@compiled
def follow_chains(
    data: Any, place: int, hashes: Any, layout: FileLayout, window: int, heads: Any, nexts: Any,
    numbers: Any, limits: Any, state: Any, keys: Any, offsets: Any, broken: Any,
) -> None:  # fmt: skip
    """Follow the chains of the keys in the list of window `place` until they leave it; `data` are its bytes.

    Hits go to `keys` and `offsets`. If these are full, the rest of the keys stays in the list.
    """
    first = place * window
    k = np.int64(heads[place])
    while k != NONE:
        following = np.int64(nexts[k])
        number = np.int64(numbers[k])
        limit = np.int64(limits[k])
        slot = hashes[k] % layout.slots
        while number != 0:
            if number < 0 or number >= limit:
                broken[state[BROKEN]] = k
                state[BROKEN] += 1
                number = np.int64(0)
                break
            if number < first:
                numbers[k] = number
                limits[k] = limit
                nexts[k] = heads[number // window]
                heads[number // window] = k
                break
            at = layout.entry_size * (number - first)
            held = i32(data, at + layout.hash_at)
            if held == hashes[k]:
                if state[FOUND] == len(keys):
                    numbers[k] = number
                    limits[k] = limit
                    heads[place] = k
                    return
                keys[state[FOUND]] = k
                offsets[state[FOUND]] = i64(data, at + layout.physical_at)
                state[FOUND] += 1
            elif held < 0 or held % layout.slots != slot:  # an entry of another slot's chain
                broken[state[BROKEN]] = k
                state[BROKEN] += 1
                number = np.int64(0)
                break
            limit = number
            number = i32(data, at + layout.previous_at)
        if number == 0:
            state[KEYS_LEFT] -= 1
        k = following
    heads[place] = NONE


@compiled
def check_entries(
    block: Any, first: int, layout: FileLayout, last: Any, wrong: Any, count: int, state: Any
) -> int:  # fmt: skip
    """Check the entries in `block`, bytes of whole entries of which the first has the number `first`.

    `last` (i4, one per slot) holds the newest entry of each slot so far. `wrong` (i8) takes the
    numbers of entries whose previous entry is not that one; the result is `count` and how many
    more they are, which may be more than fit. `state` (i8): smallest and largest physical offset,
    the one of the entry before, and whether offsets never fell (1) or did (0).
    """
    slot_count = len(last)
    for place in range(len(block) // layout.entry_size):
        at = place * layout.entry_size
        slot = i32(block, at + layout.hash_at) % slot_count
        if i32(block, at + layout.previous_at) != last[slot]:
            if count < len(wrong):
                wrong[count] = first + place
            count += 1
        last[slot] = first + place
        physical = i64(block, at + layout.physical_at)
        if physical < state[0]:
            state[0] = physical
        if physical > state[1]:
            state[1] = physical
        if physical < state[2]:
            state[3] = 0
        state[2] = physical
    return count


@compiled
def match_keys(data: Any, layout: FileLayout, rows: Any, keys: Any, left_out: int) -> Any:
    """1 if the entries `data` are those of `keys` one by one, without keys of the kind `left_out`; else 0.

    `keys` are those of the records `rows`. A key that is left out must not have the hash of another one of
    its record before it, for whose entry it could be taken.
    """
    at = 0
    for i in range(len(keys)):
        key = keys[i]
        if key.kind == left_out:
            k = i - 1
            while k >= 0 and keys[k].row == key.row:
                if keys[k].key_hash == key.key_hash:
                    return 0
                k -= 1
            continue
        if (
            at == len(data)
            or i32(data, at + layout.hash_at) != key.key_hash
            or i64(data, at + layout.physical_at) != rows[key.row].physical_offset
        ):
            return 0
        at += layout.entry_size
    return 1 if at == len(data) else 0
