"""What compiled code needs to take the entries of a block of a RocksDB table apart.

Source: block_based table format of RocksDB; spec 06 section 2.
"""

from __future__ import annotations

from typing import Any

from rmqtool.log.compiled import inlined
from rmqtool.log.intrinsics import i8

DAMAGED, UNKNOWN_KIND = -1, -2
"""Why a block cannot be read."""


@inlined
def byte_at(data: Any, at: int) -> Any:
    """A byte as a signed integer: numba turns sums of signed and unsigned ones into floats."""
    return i8(data, at) & 0xFF


@inlined
def _number(block: Any, at: int, end: int) -> Any:
    """(the varint of at most 32 bits at `at`, the position after it, or -1 if it is not whole)."""
    value = 0
    shift = 0
    while at < end and shift < 35:
        byte = byte_at(block, at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at if value < (1 << 32) else -1
        shift += 7
    return 0, -1


@inlined
def entry_lengths(block: Any, at: int, end: int) -> Any:
    """(bytes shared with the key before, own bytes of the key, bytes of the value, the position after).

    The position is -1 if a length is not whole.
    """
    shared, at = _number(block, at, end)
    own = value = 0
    if at >= 0:
        own, at = _number(block, at, end)
    if at >= 0:
        value, at = _number(block, at, end)
    return shared, own, value, at


@inlined
def sequence_at(key: Any, at: int) -> Any:
    """The sequence number in a key, whose kind is the byte before it."""
    sequence = 0
    for i in range(7):
        sequence |= byte_at(key, at + i) << (8 * i)
    return sequence


@inlined
def is_one_of(kind: int, kinds: Any) -> Any:
    """Whether the kind of an entry is among `kinds`."""
    for i in range(len(kinds)):
        if kind == kinds[i]:
            return True
    return False
