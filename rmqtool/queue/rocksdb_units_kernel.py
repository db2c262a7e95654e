"""The compiled half of `rocksdb_units`: the units in a block of a RocksDB table, and CRC-32C.

Imports llvmlite: only `rocksdb_units` imports this module.
"""

from __future__ import annotations

from typing import Any

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.intrinsics import i8, i64

DAMAGED, LONG_KEY, UNKNOWN_KIND = -1, -2, -3


@inlined
def _byte(data: Any, at: int) -> Any:
    """A byte as a signed integer: numba turns sums of signed and unsigned ones into floats."""
    return i8(data, at) & 0xFF


@inlined
def _number(block: Any, at: int, end: int) -> Any:
    """(the varint of at most 32 bits at `at`, the position after it, or -1 if it is not whole)."""
    value = 0
    shift = 0
    while at < end and shift < 35:
        byte = _byte(block, at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at if value < (1 << 32) else -1
        shift += 7
    return 0, -1


@inlined
def _lengths(block: Any, at: int, end: int) -> Any:
    """(bytes shared with the key before, own bytes of the key, bytes of the value, the position after)."""
    shared, at = _number(block, at, end)
    own = value = 0
    if at >= 0:
        own, at = _number(block, at, end)
    if at >= 0:
        value, at = _number(block, at, end)
    return shared, own, value, at


@compiled
def units_of_block(
    block: Any, end: int, prefix: Any, start: int, key: Any, value_size: int, put: int, deletes: Any,
    sequences: Any, units: Any,
) -> int:  # fmt: skip
    """Take the entries of block[:end] whose keys are `prefix` and a queue offset from `start` on.

    For each queue offset q the entry with the highest sequence number counts: `sequences`[q - start] is its
    number, -1 before, and `units`[q - start] its value, zeros for a delete. `key` is memory for one key.
    Returns how many entries were taken, or why the block cannot be read.
    """
    count = len(sequences)
    prefix_size = len(prefix)
    key_size = prefix_size + 16
    at = 0
    length = 0
    taken = 0
    same = 0  # how many bytes at the start of `key` are those of the prefix
    while at < end:
        shared = own = value = 0x80
        if at + 3 <= end:
            shared, own, value = _byte(block, at), _byte(block, at + 1), _byte(block, at + 2)
        if shared | own | value < 0x80:
            at += 3
        else:
            shared, own, value, at = _lengths(block, at, end)
            if at < 0:
                return DAMAGED
        if shared > length or own + value > end - at:
            return DAMAGED
        length = shared + own
        if length > len(key):
            return LONG_KEY
        for i in range(own):
            key[shared + i] = block[at + i]
        at += own + value
        if length < 8:
            return DAMAGED
        same = min(same, shared)
        while same < prefix_size and same < length and key[same] == prefix[same]:
            same += 1
        if length != key_size or same < prefix_size:
            continue
        place = i64(key, prefix_size) - start
        if place < 0 or place >= count:
            continue
        kind = _byte(key, prefix_size + 8)
        sequence = 0
        for i in range(7):
            sequence |= _byte(key, prefix_size + 9 + i) << (8 * i)
        if sequence <= sequences[place]:
            continue
        is_delete = False
        for i in range(len(deletes)):
            if kind == deletes[i]:
                is_delete = True
        if kind != put and not is_delete:
            return UNKNOWN_KIND
        sequences[place] = sequence
        taken += 1
        whole = kind == put and value == value_size
        for i in range(value_size):
            units[place, i] = block[at - value + i] if whole else 0
    return taken


@compiled
def crc32c_of(data: Any, tables: Any) -> int:
    """The CRC-32C of `data`; `tables`[k] is for a byte with k more bytes of eight after it."""
    crc = 0xFFFFFFFF
    size = len(data)
    whole = size - size % 8
    at = 0
    while at < whole:
        crc = (
            tables[7, (crc ^ _byte(data, at)) & 0xFF]
            ^ tables[6, (crc >> 8 ^ _byte(data, at + 1)) & 0xFF]
            ^ tables[5, (crc >> 16 ^ _byte(data, at + 2)) & 0xFF]
            ^ tables[4, (crc >> 24 ^ _byte(data, at + 3)) & 0xFF]
            ^ tables[3, _byte(data, at + 4)]
            ^ tables[2, _byte(data, at + 5)]
            ^ tables[1, _byte(data, at + 6)]
            ^ tables[0, _byte(data, at + 7)]
        )
        at += 8
    while at < size:
        crc = crc >> 8 ^ tables[0, (crc ^ _byte(data, at)) & 0xFF]
        at += 1
    return crc ^ 0xFFFFFFFF
