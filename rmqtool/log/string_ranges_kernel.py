"""The compiled half of `string_ranges`: concatenates ranges of bytes, numbers them, writes them in hex.

Every function takes `data`, a read-only uint8 array, and ranges in it; the caller guarantees that they are
inside. Imports llvmlite: only `string_ranges` and `properties` import this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.dispatch_kernel import Marks, is_ascii, is_utf8, property_crc_flags
from rmqtool.log.frame_kernel import ends_in_zero, same, spread, topic_id
from rmqtool.log.intrinsics import address_of, u8
from rmqtool.log.store_intrinsics import copy_short, put_8


@compiled
def gather(data: Any, starts: Any, offsets: Any, out: Any) -> None:
    """Copy data[starts[k]:] to out[offsets[k] : offsets[k + 1]] for every k."""
    for k in range(len(starts)):
        length = np.int64(offsets[k + 1]) - np.int64(offsets[k])
        if length > 0:
            copy_short(out, np.int64(offsets[k]), address_of(data, starts[k]), length)


@compiled
def number_ranges(
    data: Any, starts: Any, lengths: Any, first: int, table: Any, slots: Any, numbers: Any, result: Any
) -> Any:
    """Number the distinct ranges of bytes from row `first` on; returns the row at which the table was full.

    `table` gets (start, length) of each, result[0] their number.
    """
    count = 0
    k = first
    while k < len(starts):
        number = topic_id(data, starts[k], lengths[k], table, slots, count)
        if number < 0:
            break
        count = max(count, number + 1)
        numbers[k] = number
        k += 1
    result[0] = count
    return k


@inlined
def _slot(data: Any, start: int, length: Any, texts: Any, starts: Any, lengths: Any, slots: Any) -> Any:
    """The slot with the number of the equal text, else an empty slot."""
    mask = len(slots) - 1
    slot = np.int64(spread(data, start, length) >> np.uint64(32)) & mask
    while slots[slot] != 0:
        k = slots[slot] - 1
        if lengths[k] == length and same(texts, starts[k], data, start, length):
            break
        slot = (slot + 1) & mask
    return slot


@compiled
def fill_slots(texts: Any, starts: Any, lengths: Any, slots: Any) -> None:
    """Put the number + 1 of every text into `slots`: zeros, more than the texts, and a power of two."""
    for k in range(len(starts)):
        slots[_slot(texts, starts[k], np.int64(lengths[k]), texts, starts, lengths, slots)] = k + 1


@compiled
def numbers_in_slots(
    data: Any, starts: Any, lengths: Any, texts: Any, text_starts: Any, text_lengths: Any, slots: Any,
    numbers: Any,
) -> None:  # fmt: skip
    """numbers[k] = which text of `fill_slots` the lengths[k] bytes at starts[k] are; -1 for none."""
    for k in range(len(starts)):
        length = np.int64(lengths[k])
        numbers[k] = -1
        if length >= 0:
            slot = _slot(data, starts[k], length, texts, text_starts, text_lengths, slots)
            numbers[k] = slots[slot] - 1


@compiled
def utf8_flags(data: Any, starts: Any, lengths: Any, flags: Any) -> None:
    """flags[k] = whether data[starts[k] : starts[k] + lengths[k]] is UTF-8; negative lengths count as 0."""
    for k in range(len(starts)):
        start = starts[k]
        stop = start + max(np.int64(lengths[k]), 0)
        flags[k] = is_ascii(data, start, stop) or is_utf8(data, start, stop)


_BLOCK = 64  # places that are compared at once


@inlined
def _is_at(data: Any, at: Any, text: Any, masks: Any) -> Any:
    for k in range(len(text)):
        if u8(data, at + k) | u8(masks, k) != u8(text, k):
            return False
    return True


@inlined
def _contains(data: Any, start: Any, stop: Any, text: Any, masks: Any, first: Any, second: Any) -> Any:
    """Whether data[start:stop] contains `text`, which is not empty.

    Places where the bytes text[first] and text[second] fit are looked for in blocks, without a branch in
    between: the compiler makes vector instructions of that.
    """
    first_byte, first_mask = u8(text, first), u8(masks, first)
    second_byte, second_mask = u8(text, second), u8(masks, second)
    end = stop - len(text) + 1  # after the last place where the text can begin
    at = start
    while at + _BLOCK <= end:
        hits = np.uint8(0)
        for k in range(_BLOCK):
            at_first = u8(data, at + k + first) | first_mask == first_byte
            hits |= np.uint8(at_first & (u8(data, at + k + second) | second_mask == second_byte))
        if hits:
            for k in range(_BLOCK):
                if _is_at(data, at + k, text, masks):
                    return True
        at += _BLOCK
    while at < end:
        if _is_at(data, at, text, masks):
            return True
        at += 1
    return False


@compiled
def contain(
    data: Any, starts: Any, lengths: Any, text: Any, masks: Any, first: int, second: int, found: Any
) -> None:
    """found[k] = whether data[starts[k] : starts[k] + lengths[k]] contains `text`, which is not empty.

    A byte of the data fits if it equals that of the text once the bits of its mask are set: a letter in lower
    case with mask 0x20 stands for both cases. `first` and `second` are places in the text, best of bytes that
    are rare in the data.
    """
    for k in range(len(starts)):
        start = starts[k]
        found[k] = _contains(data, start, start + np.int64(lengths[k]), text, masks, first, second)


@inlined
def _put_hex(out: Any, at: Any, data: Any, start: Any, count: Any) -> Any:
    """Write the upper-case hex digits of `count` bytes; returns the index after them."""
    for k in range(count):
        value = np.int64(u8(data, start + k))
        high = value >> 4
        low = value & 15
        put_8(out, at, high + (0x30 if high < 10 else 0x37))
        put_8(out, at + 1, low + (0x30 if low < 10 else 0x37))
        at += 2
    return at


@compiled
def offset_ids(data: Any, starts: Any, offset_at: int, host_starts: Any, offsets: Any, out: Any) -> None:
    """Write the offset message ids: the host's bytes and the 8 of the stored offset, in hex.

    `starts` are the indices of the records, `offset_at` is the place of the offset in a record.
    """
    for k in range(len(starts)):
        at = np.int64(offsets[k])
        host = (np.int64(offsets[k + 1]) - at) // 2 - 8
        at = _put_hex(out, at, data, host_starts[k], host)
        _put_hex(out, at, data, starts[k] + offset_at, 8)


@compiled
def record_end_states(
    data: Any, starts: Any, rows: Any, names: Any, name_ends: Any, address: int, tables: Any, m: Marks,
    flags: Any,
) -> None:  # fmt: skip
    """flags[k] of the records at `starts`: flags of the property CRC, and m.unsound if one ends in zeros."""
    for k in range(len(starts)):
        row = rows[k]
        length = np.int64(row.properties_length)
        found = 0
        if length >= m.property_crc_size:
            found = property_crc_flags(data, starts[k], row.size, names, name_ends, address, tables, m)
        if ends_in_zero(data, starts[k] + row.size, row.topic_length, length):
            found |= m.unsound
        flags[k] = found
