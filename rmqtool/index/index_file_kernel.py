"""The compiled half of `index_file`: the chains of many keys, and the check of all links.

Chains are followed step by step for all keys rather than key by key, and the memory of a later key is
requested while this one is handled: an index file is read at random, and nearly every access would wait for
the memory.

Imports llvmlite: only `index_file` imports this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rmqtool.log.compiled import compiled
from rmqtool.log.intrinsics import i32, i64, prefetch

_AHEAD = 16  # keys whose memory is requested before they are handled


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


@compiled
def newest_entries(data: Any, hashes: Any, layout: FileLayout, active: Any, numbers: Any) -> Any:
    """Fill `active` with the keys whose slot holds an entry, `numbers` with that entry; how many they are."""
    count = 0
    for k in range(len(hashes)):
        if k + _AHEAD < len(hashes):
            prefetch(data, layout.slots_at + layout.slot_size * (hashes[k + _AHEAD] % layout.slots))
        number = i32(data, layout.slots_at + layout.slot_size * (hashes[k] % layout.slots))
        if number != 0:
            active[count] = k
            numbers[count] = number
            count += 1
    return count


@compiled
def follow_chains(
    data: Any, hashes: Any, layout: FileLayout, active: Any, numbers: Any, limits: Any, state: Any,
    keys: Any, offsets: Any, broken: Any,
) -> None:  # fmt: skip
    """Go one entry further in every active chain; chains that end are dropped.

    `state` holds how many chains are active, how many hits were written to `keys` and `offsets`, and
    how many chains are broken, whose keys go to `broken`. `limits` holds, per chain, the entry before.
    """
    active_count, found, broken_count = state[0], state[1], state[2]
    left = 0
    for place in range(active_count):
        if place + _AHEAD < active_count:
            prefetch(data, layout.entries_at + layout.entry_size * numbers[place + _AHEAD])
        number = numbers[place]
        k = active[place]
        if number <= 0 or number >= limits[place]:
            broken[broken_count] = k
            broken_count += 1
            continue
        at = layout.entries_at + layout.entry_size * number
        held = i32(data, at + layout.hash_at)
        if held == hashes[k]:
            keys[found] = k
            offsets[found] = i64(data, at + layout.physical_at)
            found += 1
        elif held < 0 or held % layout.slots != hashes[k] % layout.slots:  # an entry of another slot's chain
            broken[broken_count] = k
            broken_count += 1
            continue
        previous = i32(data, at + layout.previous_at)
        if previous != 0:
            active[left] = k
            numbers[left] = previous
            limits[left] = number
            left += 1
    state[0], state[1], state[2] = left, found, broken_count


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
