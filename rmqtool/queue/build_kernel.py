"""The compiled half of `build`: numbers of queues, the rules of a unit, units by queue.

Units are written as words of 16 bits, for a unit of 20 or 46 bytes has a whole number of them.
Imports llvmlite: only functions of `queue.build` import this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rmqtool.formats.consume_queue import EXT_END_ROOM, EXT_HEAD, MAX_EXT_OFFSET, UNIT_SIZE
from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.store_intrinsics import put_i16, put_i32, put_i64

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_UNIT_WORDS, _EXT_WORDS = UNIT_SIZE // 2, EXT_HEAD.size // 2
_END_ROOM, _OFFSET_MAX = EXT_END_ROOM, MAX_EXT_OFFSET
_LONG_MIN = np.int64(-(1 << 63))


@compiled
def number_codes(codes: Any, slot_codes: Any, slot_numbers: Any, count: int, numbers: Any, fresh: Any) -> Any:
    """Fill `numbers` (i4) for `codes` (i8); new ones get the next from `count` on and go to `fresh` (i8).

    The table (a power of two, more than half of it free) holds number + 1, 0 in a free slot. The
    result is the new count.
    """
    mask = len(slot_codes) - 1
    before = count
    for i in range(len(codes)):
        code = codes[i]
        slot = np.int64((np.uint64(code) * _SPREAD) >> np.uint64(24)) & mask
        while slot_numbers[slot] != 0 and slot_codes[slot] != code:
            slot = (slot + 1) & mask
        if slot_numbers[slot] == 0:
            slot_codes[slot] = code
            slot_numbers[slot] = count + 1
            fresh[count - before] = code
            count += 1
        numbers[i] = slot_numbers[slot] - 1
    return count


@inlined
def _number(entry: Any, queue: int, next_unit: Any, newest: Any, is_batch: bool) -> Any:
    """The number of the entry's unit by the rules of `queue.build`; -1 when it gets none."""
    physical = entry.physical_offset
    offset = entry.queue_offset
    number = next_unit[queue]
    if is_batch:
        if physical <= newest[queue] or offset < 0 or entry.batch_size < 0:
            return -1
        newest[queue] = physical
        return max(number, 0)
    if physical + entry.size <= newest[queue] or offset < 0:
        return -1
    if number < 0:
        number = offset
    elif offset != 0 and offset < number:
        return -1
    newest[queue] = physical + entry.size
    return number


@inlined
def _put_extension(entry: Any, queue: int, next_ext: Any, file_size: int, words: Any, at: int) -> None:
    """Give the unit at words[at] an extension unit. Source: ConsumeQueueExt#put."""
    for k in range(_UNIT_WORDS, _UNIT_WORDS + _EXT_WORDS):
        words[at + k] = 0
    size = entry.ext_size
    start = next_ext[queue]
    room = file_size - start % file_size - _END_ROOM
    if size > room:
        start += room + _END_ROOM
    if size <= 0 or size > file_size - _END_ROOM or start > _OFFSET_MAX - size:
        return
    next_ext[queue] = start + size
    put_i64(words, at + 6, start + _LONG_MIN)
    put_i16(words, at + _UNIT_WORDS, size)
    put_i64(words, at + _UNIT_WORDS + 1, entry.tags_code)
    put_i64(words, at + _UNIT_WORDS + 5, entry.store_timestamp)
    put_i16(words, at + _UNIT_WORDS + 9, size - 2 * _EXT_WORDS)


@compiled
def admit(
    entries: Any, numbers: Any, first: int, next_unit: Any, newest: Any, words: Any, queues: Any, state: Any,
    is_batch: bool, width: int, next_ext: Any, ext_file_size: int,
) -> Any:  # fmt: skip
    """Pack the units of entries[first:] after the `state[0]` that `words` holds; where it went on to.

    `queues` (i4) takes the queue of each unit, `next_unit`, `newest` and `next_ext` (i8) are per queue.
    Where `ext_file_size` is not 0 the head of an extension unit follows each unit, zero for one without.
    It ends early when `queues` is full.
    """
    count = state[0]
    i = first
    while i < len(entries) and count < len(queues):
        entry = entries[i]
        queue = numbers[i]
        number = _number(entry, queue, next_unit, newest, is_batch)
        if number >= 0:
            next_unit[queue] = number + 1
            at = count * width
            put_i64(words, at, entry.physical_offset)
            put_i32(words, at + 4, entry.size)
            put_i64(words, at + 6, entry.tags_code)
            if is_batch:
                put_i64(words, at + 10, entry.store_timestamp)
                put_i64(words, at + 14, entry.queue_offset)
                put_i16(words, at + 18, entry.batch_size)
                put_i32(words, at + 19, -1)
                put_i32(words, at + 21, 0)
            if ext_file_size:
                _put_extension(entry, queue, next_ext, ext_file_size, words, at)
            queues[count] = queue
            count += 1
        i += 1
    state[0] = count
    return i


@compiled
def group(words: Any, queues: Any, count: int, width: int, starts: Any, out: Any) -> None:
    """Copy the first `count` units of `words` to `out`, queue by queue; starts[q] becomes the end of queue q.

    `starts` (i8, zero) has one place more than there are queues.
    """
    for i in range(count):
        starts[queues[i] + 1] += 1
    for queue in range(1, len(starts)):
        starts[queue] += starts[queue - 1]
    for i in range(count):
        queue = queues[i]
        to = starts[queue] * width
        starts[queue] += 1
        at = i * width
        for k in range(width):
            out[to + k] = words[at + k]


@compiled
def after_newest(entries: Any, numbers: Any, newest: Any, is_batch: bool, found: Any) -> Any:
    """Fill `found` (u1): whether each entry is after the newest record of its queue; how many are."""
    count = 0
    for i in range(len(entries)):
        entry = entries[i]
        end = entry.physical_offset
        if not is_batch:
            end += entry.size
        is_after = end > newest[numbers[i]]
        found[i] = is_after
        count += is_after
    return count


@compiled
def note_last(entries: Any, numbers: Any, offsets: Any, sizes: Any) -> None:
    """Set `offsets` (i8) and `sizes` (i4) of each queue to those of its last entry."""
    for i in range(len(entries)):
        offsets[numbers[i]] = entries[i].queue_offset
        sizes[numbers[i]] = entries[i].batch_size


@compiled
def offset_runs(entries: Any, numbers: Any, size_max: int, open_runs: Any, runs: Any, queues: Any) -> Any:
    """Lengthen the newest run of queue offsets of each queue in `open_runs`; the number of runs that ended.

    `open_runs` and `runs` (i8, shape (n, 2)) are first offset and stop, equal where there is none yet. An
    entry has at least 1 and at most `size_max` offsets. `runs` and `queues` take what ended, in order.
    """
    count = 0
    for i in range(len(entries)):
        queue = numbers[i]
        first = entries[i].queue_offset
        if open_runs[queue, 1] != first or open_runs[queue, 0] == first:
            if open_runs[queue, 0] != open_runs[queue, 1]:
                runs[count, 0] = open_runs[queue, 0]
                runs[count, 1] = open_runs[queue, 1]
                queues[count] = queue
                count += 1
            open_runs[queue, 0] = first
        open_runs[queue, 1] = first + min(max(entries[i].batch_size, 1), size_max)
    return count


@compiled
def order_of(numbers: Any, places: Any, order: Any) -> None:
    """Fill `order` (i8) with the indices of `numbers`, equal ones together and in their order.

    places[n] (i8) is where the first index of number n goes, on entry.
    """
    for i in range(len(numbers)):
        number = numbers[i]
        order[places[number]] = i
        places[number] += 1
