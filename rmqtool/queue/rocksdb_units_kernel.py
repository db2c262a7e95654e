"""The compiled half of `rocksdb_units`: the units in a block of a RocksDB table, and CRC-32C.

Imports llvmlite: only `rocksdb_units` imports this module.
"""

from __future__ import annotations

from typing import Any

from rmqtool.log.compiled import compiled
from rmqtool.log.intrinsics import i64
from rmqtool.log.rocksdb_block_kernel import (
    DAMAGED,
    UNKNOWN_KIND,
    byte_at,
    entry_lengths,
    is_one_of,
    sequence_at,
)

LONG_KEY = -3


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
            shared, own, value = byte_at(block, at), byte_at(block, at + 1), byte_at(block, at + 2)
        if shared | own | value < 0x80:
            at += 3
        else:
            shared, own, value, at = entry_lengths(block, at, end)
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
        kind = byte_at(key, prefix_size + 8)
        sequence = sequence_at(key, prefix_size + 9)
        if sequence <= sequences[place]:
            continue
        if kind != put and not is_one_of(kind, deletes):
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
            tables[7, (crc ^ byte_at(data, at)) & 0xFF]
            ^ tables[6, (crc >> 8 ^ byte_at(data, at + 1)) & 0xFF]
            ^ tables[5, (crc >> 16 ^ byte_at(data, at + 2)) & 0xFF]
            ^ tables[4, (crc >> 24 ^ byte_at(data, at + 3)) & 0xFF]
            ^ tables[3, byte_at(data, at + 4)]
            ^ tables[2, byte_at(data, at + 5)]
            ^ tables[1, byte_at(data, at + 6)]
            ^ tables[0, byte_at(data, at + 7)]
        )
        at += 8
    while at < size:
        crc = crc >> 8 ^ tables[0, (crc ^ byte_at(data, at)) & 0xFF]
        at += 1
    return crc ^ 0xFFFFFFFF
