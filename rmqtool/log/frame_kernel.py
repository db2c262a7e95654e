"""The compiled half of the scan: turns the records of one window into rows, and searches for a sound one.

Every function takes `data`, a read-only uint8 array, and `base`, the file position of data[0]. A kernel reads
data only after it has checked that the index is inside, whatever the bytes say. If a record does not fit
into the window, the kernel returns the bytes that it needs, and the caller retries with a longer window.
In a DLedger log positions are those of entries: a record begins `place.entry_header` bytes later.
Format numbers are passed as `Numbers`: numba would freeze constants of other modules into its cache.
Imports llvmlite: only `frames.walk` imports this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.crc import crc_of
from rmqtool.log.intrinsics import i8, i16, i32, i64, prefetch, u8, u64

# Why walk_window stopped
END = 0  # the end of the range to scan
FULL = 1  # no room for more rows or topics
WINDOW = 2  # `need` bytes from `position` on are not all in the window
SHORT = 3  # fewer bytes left in the file than a blank has
BLANK = 4
ZERO = 5
MAGIC = 6
SIZE = 7
LENGTHS = 8
SUSPECT = 9  # wrong CRC or stored offset, and no record, blank, zeros or end follows

# What search_window found
NONE = 0
FOUND = 1
# and WINDOW

# places in the result array
STOPPED, POSITION, NEED, TOPICS, BUDGET = range(5)
RESULT_SIZE = 5

TOPIC_SLOTS = 1 << 15
TOPICS_LIMIT = TOPIC_SLOTS // 2
_SLOT_SHIFT = np.uint64(64 - 15)  # leaves the bits of a slot
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_PROBES = 32


class Numbers(NamedTuple):
    """The format numbers for the kernels; `frames.numbers` creates them from formats.message."""

    magic_v1: int
    magic_v2: int
    blank_magic: int
    blank_size: int
    min_record: int
    head: int
    born_host_v6: int
    store_host_v6: int
    host_growth: int
    crc_mask: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    store_timestamp: int
    reconsume_times: int
    prepared_transaction_offset: int
    body_length: int
    body_crc_bit: int
    foreign_bit: int
    candidate_cost: int
    entry_magic: int
    entry_size: int
    entry_position: int
    entry_body_length: int
    entry_bit: int
    file_end_magic: int


class WindowBounds(NamedTuple):
    """The bounds of the scan, in bytes from the start of the file."""

    base: int
    end: int
    size: int
    file_from_offset: int
    accept: int  # a suspect record at this position is accepted
    entry_header: int  # bytes before each record


class Checks(NamedTuple):
    """Which checks are made, and the address of isal's CRC function. `entries`: of DLedger headers."""

    crc: bool
    stored_offset: bool
    entries: bool
    crc_address: int


@inlined
def version_of(magic: int, n: Numbers) -> Any:
    """1 or 2 for a message magic, else 0."""
    if magic == n.magic_v1:
        return 1
    if magic == n.magic_v2:
        return 2
    return 0


@inlined
def lengths(data: Any, i: int, total: int, version: int, n: Numbers) -> Any:
    """(sound, born growth, growth, body, topic, properties) of a record of `total` bytes at data[i].

    The caller guarantees that data[i : i + total] is inside and that `total` is at least n.min_record.
    body and properties are as stored, so they may be negative.
    """
    sys_flag = i32(data, i + n.sys_flag)
    born = n.host_growth if sys_flag & n.born_host_v6 else 0
    growth = born + (n.host_growth if sys_flag & n.store_host_v6 else 0)
    used = n.head + growth + version + 2
    if used > total:
        return False, 0, 0, 0, 0, 0
    body = i32(data, i + n.body_length + growth)
    used += max(body, 0)
    if used > total:
        return False, 0, 0, 0, 0, 0
    at = i + used - version - 2
    topic = i8(data, at) if version == 1 else i16(data, at)
    used += topic
    if topic < 0 or used > total:
        return False, 0, 0, 0, 0, 0
    properties = i16(data, at + version + topic)
    return used + max(properties, 0) == total, born, growth, body, topic, properties


@inlined
def ends_in_zero(data: Any, stop: Any, topic: Any, properties: Any) -> Any:
    """Whether a record that ends at data[stop] may have lost its last bytes; the lengths are as stored.

    Without properties their length, two bytes, follows the topic.
    """
    if properties > 0:
        return u8(data, stop - 1) == 0
    return topic > 0 and u8(data, stop - 3) == 0


@inlined
def body_matches(data: Any, i: int, growth: int, body: int, checks: Checks, tables: Any, n: Numbers) -> Any:
    """Whether the body of the record at data[i] matches its CRC; an empty one always does."""
    if body <= 0:
        return True
    crc = np.int64(crc_of(data, i + n.head + growth, body, checks.crc_address, tables))
    return (crc & n.crc_mask) == i32(data, i + n.body_crc)


@inlined
def same(data: Any, a: int, others: Any, b: int, length: int) -> Any:
    """Whether data[a:] and others[b:] begin with the same `length` bytes."""
    if length < 8:
        for k in range(length):
            if u8(data, a + k) != u8(others, b + k):
                return False
        return True
    if u64(data, a) != u64(others, b) or u64(data, a + length - 8) != u64(others, b + length - 8):
        return False
    k = 8
    while k < length - 8:
        if u64(data, a + k) != u64(others, b + k):
            return False
        k += 8
    return True


@inlined
def spread(data: Any, start: int, length: int) -> Any:
    """A hash of these bytes, u64; its highest bits are the most random."""
    value = np.uint64(length)
    if length < 8:
        for k in range(length):
            value = (value ^ u8(data, start + k)) * _SPREAD
    else:
        value = (value ^ u64(data, start)) * _SPREAD
        k = 8
        while k < length - 8:
            value = ((value >> np.uint64(32)) ^ value ^ u64(data, start + k)) * _SPREAD
            k += 8
        value = ((value >> np.uint64(32)) ^ value ^ u64(data, start + length - 8)) * _SPREAD
    return value


@inlined
def topic_id(data: Any, start: int, length: int, topics: Any, slots: Any, count: int) -> Any:
    """The number of the topic data[start : start + length] within this batch; -1 if the table is full.

    `topics` holds (start, length) of the first occurrence of each, `slots` is a hash table of numbers + 1.
    A result equal to `count` is a new topic.
    """
    slot = np.int64(spread(data, start, length) >> _SLOT_SHIFT)
    for _ in range(_PROBES):
        number = np.int64(slots[slot]) - 1
        if number < 0:
            if count == len(topics):
                return -1
            slots[slot] = count + 1
            topics[count, 0] = start
            topics[count, 1] = length
            return count
        if topics[number, 1] == length and same(data, topics[number, 0], data, start, length):
            return number
        slot = (slot + 1) & (TOPIC_SLOTS - 1)
    return -1


@inlined
def leads_on(data: Any, place: WindowBounds, position: int, n: Numbers) -> Any:
    """Whether a record ending at `position` is followed by the end, a record's or blank's head, or zeros."""
    left = place.size - position
    if left < n.blank_size:
        return left == 0
    i = position - place.base
    total = i32(data, i)
    magic = i32(data, i + n.magic)
    if total == 0 and magic == 0:
        return True
    if place.entry_header:
        if total == n.file_end_magic and magic == left:
            return True
        left -= place.entry_header
        if left < n.blank_size:
            return False
        total = i32(data, i + place.entry_header)
        magic = i32(data, i + place.entry_header + n.magic)
    elif magic == n.blank_magic:
        return total == left
    return version_of(magic, n) != 0 and n.min_record <= total <= left


@inlined
def fill(row: Any, data: Any, i: int, physical_offset: int, born: int, growth: int, n: Numbers) -> None:
    """Copy the head at data[i] into `row`, except lengths, version and status."""
    row.physical_offset = physical_offset
    row.store_timestamp = i64(data, i + n.store_timestamp + born)
    row.born_timestamp = i64(data, i + n.born_timestamp)
    row.queue_offset = i64(data, i + n.queue_offset)
    row.prepared_transaction_offset = i64(data, i + n.prepared_transaction_offset + growth)
    row.size = i32(data, i)
    row.queue_id = i32(data, i + n.queue_id)
    row.flag = i32(data, i + n.flag)
    row.sys_flag = i32(data, i + n.sys_flag)
    row.body_crc = i32(data, i + n.body_crc)
    row.reconsume_times = i32(data, i + n.reconsume_times + growth)


@inlined
def head_stop(data: Any, place: WindowBounds, position: int, n: Numbers) -> Any:
    """(why the walk stops at `position` or END, size, version) from the first bytes there."""
    left = place.size - position
    if left < n.blank_size:
        return SHORT, 0, 0
    i = position - place.base
    head = min(place.entry_header + n.blank_size, left)
    if i + head > len(data):
        return WINDOW, head, 0
    if place.entry_header:
        first = i32(data, i)
        second = i32(data, i + n.magic)
        if first == n.file_end_magic and second == left:
            return BLANK, second, 0
        version = 0
        if left >= place.entry_header + n.blank_size:
            version = version_of(i32(data, i + place.entry_header + n.magic), n)
        if version == 0:
            if first == n.file_end_magic:
                return BLANK, second, 0
            return (ZERO if first == 0 and second == 0 else MAGIC), second, 0
        total = i32(data, i + place.entry_header)
    else:
        total = i32(data, i)
        magic = i32(data, i + n.magic)
        version = version_of(magic, n)
        if version == 0:
            if magic == n.blank_magic:
                return BLANK, total, 0
            return (ZERO if magic == 0 and total == 0 else MAGIC), total, 0
    if total < n.min_record or total > left - place.entry_header:
        return SIZE, total, version
    # the head of what follows too, to check it
    need = min(place.entry_header + total + place.entry_header + n.blank_size, left)
    if i + need > len(data):
        return WINDOW, need, version
    return END, total, version


@inlined
def entry_matches(data: Any, i: int, total: int, place: WindowBounds, checks: Checks, n: Numbers) -> Any:
    """Whether the entry header at data[i] is that of a record of `total` bytes in this place."""
    here = place.file_from_offset + place.base + i
    return (
        i32(data, i) == n.entry_magic
        and i32(data, i + n.entry_size) == place.entry_header + total
        and i32(data, i + n.entry_body_length) == total
        and (not checks.stored_offset or i64(data, i + n.entry_position) == here)
    )


@compiled
def walk_window(
    data: Any, position: int, place: WindowBounds, checks: Checks, tables: Any, n: Numbers,
    rows: Any, topics: Any, slots: Any, result: Any,
) -> Any:  # fmt: skip
    """Fill `rows` with the records from `position` on; returns their number. `result` says why it stopped."""
    count = 0
    topic_count = 0
    stopped = END
    need = 0
    while position < place.end:
        if count == len(rows):
            stopped = FULL
            break
        stopped, need, version = head_stop(data, place, position, n)
        if stopped != END:
            break
        total = need
        i = position - place.base + place.entry_header
        # prefetch the head of the next record, and its tail if it is as long as this one
        prefetch(data, i + total)
        prefetch(data, i + total + 64)
        prefetch(data, i + 2 * total - 128)
        sound, born, growth, body, topic, properties = lengths(data, i, total, version, n)
        if not sound:
            stopped = LENGTHS
            break
        physical_offset = place.file_from_offset + position + place.entry_header
        status = 0
        if checks.stored_offset and i64(data, i + n.physical_offset) != physical_offset:
            status = n.foreign_bit
        if checks.crc and not body_matches(data, i, growth, body, checks, tables, n):
            status |= n.body_crc_bit
        following = position + place.entry_header + total
        if status != 0 and position != place.accept and not leads_on(data, place, following, n):
            stopped = SUSPECT
            break
        if checks.entries and not entry_matches(data, i - place.entry_header, total, place, checks, n):
            status |= n.entry_bit
        number = topic_id(
            data, i + n.head + growth + max(body, 0) + version, topic, topics, slots, topic_count
        )
        if number < 0:
            stopped = FULL
            break
        topic_count = max(topic_count, number + 1)
        row = rows[count]
        fill(row, data, i, physical_offset, born, growth, n)
        row.body_length = body
        row.topic_id = number
        row.topic_length = topic
        row.properties_length = properties
        row.version = version
        row.status = status
        count += 1
        position = following
    result[STOPPED] = stopped
    result[POSITION] = position
    result[NEED] = need
    result[TOPICS] = topic_count
    return count


@compiled
def first_nonzero(data: Any, start: int) -> Any:
    """The first index >= start where data is not zero; len(data) if none."""
    i = start
    size = len(data)
    # by words: a loop over bytes is not vectorised and would reach a tenth of the speed of memory
    while i + 256 <= size:
        bits = u64(data, i)
        for k in range(8, 256, 8):
            bits |= u64(data, i + k)
        if bits != 0:
            break
        i += 256
    while i < size and data[i] == 0:
        i += 1
    return i


@inlined
def _candidate(
    data: Any, position: int, place: WindowBounds, checks: Checks, tables: Any, n: Numbers, result: Any
) -> Any:
    """FOUND, NONE or WINDOW (`result[NEED]` bytes) for the record whose magic is in the window.

    Each failed candidate reduces result[BUDGET], so that a file full of plausible heads costs no more than
    reading it a few times. When the budget is used up, candidates are skipped.
    """
    start = position + place.entry_header
    i = start - place.base
    left = place.size - start
    total = i32(data, i)
    magic = i32(data, i + n.magic)
    if magic == n.blank_magic:
        return FOUND if total == left else NONE
    version = version_of(magic, n)
    if version == 0 or total < n.min_record or total > left:
        return NONE
    if i + n.min_record > len(data):
        result[NEED] = place.entry_header + n.min_record
        return WINDOW
    if checks.stored_offset and i64(data, i + n.physical_offset) != place.file_from_offset + start:
        return NONE
    if result[BUDGET] < n.candidate_cost:
        return NONE
    if i + total > len(data):
        result[NEED] = place.entry_header + total
        return WINDOW
    sound, _, growth, body, _, _ = lengths(data, i, total, version, n)
    if sound and (not checks.crc or body <= 0):
        return FOUND
    result[BUDGET] -= n.candidate_cost
    if not sound or body > result[BUDGET]:
        return NONE
    if body_matches(data, i, growth, body, checks, tables, n):
        result[BUDGET] += n.candidate_cost
        return FOUND
    result[BUDGET] -= body
    return NONE


@inlined
def _ends_file(data: Any, i: int, left: int, n: Numbers) -> Any:
    """Whether a DLedger end mark at data[i] says that `left` bytes are left."""
    return i32(data, i) == n.file_end_magic and i32(data, i + n.magic) == left


@compiled
def search_window(
    data: Any,
    start: int,
    stop: int,
    place: WindowBounds,
    checks: Checks,
    tables: Any,
    n: Numbers,
    result: Any,
) -> Any:
    """Look for a sound record, or a blank of the right size, that starts in [start, stop).

    FOUND: it is at result[POSITION]. WINDOW: the candidate at result[POSITION] needs result[NEED] bytes.
    NONE: there is none before result[POSITION], where the window ends or `stop` is reached.
    """
    last = min(stop, place.base + len(data) - place.entry_header - n.blank_size + 1)
    position = start
    while position < last:
        i = position - place.base
        magic = i32(data, i + place.entry_header + n.magic)
        if place.entry_header and _ends_file(data, i, place.size - position, n):
            result[POSITION] = position
            return FOUND
        if magic == n.magic_v1 or magic == n.magic_v2 or (magic == n.blank_magic and not place.entry_header):
            found = _candidate(data, position, place, checks, tables, n, result)
            if found != NONE:
                result[POSITION] = position
                return found
        elif magic == 0:
            skipped = place.base + first_nonzero(data, i) - place.entry_header - n.blank_size
            position = max(position, skipped)
        position += 1
    if place.entry_header and place.base + len(data) == place.size:
        # where no entry can begin any more, the end mark of a file still can
        while position < min(stop, place.size - n.blank_size + 1):
            if _ends_file(data, position - place.base, place.size - position, n):
                result[POSITION] = position
                return FOUND
            position += 1
    result[POSITION] = position
    return NONE
