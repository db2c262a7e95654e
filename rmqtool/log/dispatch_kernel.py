"""The compiled half of `dispatch`: parses the property strings of many records by Java's rules.

Every function takes `data`, a read-only uint8 array, and ranges in it; the scan guarantees that they are
inside. Strings that are not UTF-8 are left to Python, row by row: Java's handling of U+FFFD is not
implemented here. Imports llvmlite: only `dispatch.dispatch_columns` imports this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.crc import crc_of
from rmqtool.log.frame_kernel import ends_in_zero
from rmqtool.log.intrinsics import prefetch, trailing_zeros, u8, u64, u64_little

# The names to find, by their index in `names`
TAGS, KEYS, UNIQ_KEY, DELAY, INNER_BASE, INNER_NUM, MULTI_DISPATCH, PROPERTY_CRC = range(8)
NAME_COUNT = 8
_AHEAD = 8  # records

NOT_UTF8 = -2
NO_NUMBER = -(1 << 63)  # the text is not a number for the broker
_I64_MAX = (1 << 63) - 1
_LOW_BITS = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_POWERS = tuple(np.int32((31**k + (1 << 31)) % (1 << 32) - (1 << 31)) for k in range(9))  # with i32 overflow


class Marks(NamedTuple):
    """Format numbers and flag bits; created by `dispatch.marks`."""

    name_end: int
    value_end: int
    separator: int
    transaction_mask: int
    rollback: int
    crc_mask: int
    property_crc_size: int
    has_tags: int
    multi_dispatch: int
    crc_present: int
    crc_bad: int
    unsound: int
    bad_number: int
    ends_in_zeros: int
    left_to_python: int
    no_delay: int
    bad_delay: int
    uniq_kind: int
    key_kind: int
    tag_kind: int


@inlined
def is_ascii(data: Any, start: int, stop: int) -> Any:
    """Whether no byte of data[start:stop] is above 0x7F."""
    bits = np.uint64(0)
    i = start
    while i + 8 <= stop:
        bits |= u64(data, i)
        i += 8
    while i < stop:
        bits |= u8(data, i)
        i += 1
    return bits & _HIGH_BITS == 0


@inlined
def next_mark(data: Any, start: int, stop: int, m: Marks) -> Any:
    """The first index in [start, stop) of a name's or a value's end; `stop` if there is none."""
    i = start
    while i + 8 <= stop:
        word = u64_little(data, i)
        name = word ^ (np.uint64(m.name_end) * _LOW_BITS)
        value = word ^ (np.uint64(m.value_end) * _LOW_BITS)
        # this sets the high bit of the lowest zero byte; only bits above that one may be wrong
        found = (((name - _LOW_BITS) & ~name) | ((value - _LOW_BITS) & ~value)) & _HIGH_BITS
        if found != 0:
            return i + (trailing_zeros(found) >> 3)
        i += 8
    while i < stop and u8(data, i) != m.name_end and u8(data, i) != m.value_end:
        i += 1
    return i


@inlined
def is_utf8(data: Any, start: int, stop: int) -> Any:
    """Whether data[start:stop] is UTF-8: no overlong form, no surrogate, nothing above U+10FFFF."""
    i = start
    while i < stop:
        first = np.int64(data[i])
        i += 1
        if first < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            low = 0xA0 if first == 0xE0 else low
            high = 0x9F if first == 0xED else high
        elif 0xF0 <= first <= 0xF4:
            more = 3
            low = 0x90 if first == 0xF0 else low
            high = 0x8F if first == 0xF4 else high
        else:
            return False
        if i + more > stop or data[i] < low or data[i] > high:
            return False
        for k in range(1, more):
            if data[i + k] < 0x80 or data[i + k] > 0xBF:
                return False
        i += more
    return True


@inlined
def hash_text(data: Any, start: int, stop: int, seed: int) -> Any:
    """Java's hash of the UTF-16 units of the valid UTF-8 data[start:stop], continued from `seed`."""
    value = np.int32(seed)
    i = start
    while i < stop:
        if i + 8 <= stop:
            word = u64(data, i)
            if word & _HIGH_BITS == 0:
                # eight steps of 31 * value + unit at once
                value = np.int32(value * _POWERS[8])
                for k in range(8):
                    unit = np.int32((word >> np.uint64(56 - 8 * k)) & np.uint64(0xFF))
                    value = np.int32(value + unit * _POWERS[7 - k])
                i += 8
                continue
        point = np.int32(u8(data, i))
        i += 1
        if point >= 0x80:
            more = 1 if point < 0xE0 else (2 if point < 0xF0 else 3)
            point &= np.int32(0x3F >> more)
            for _ in range(more):
                point = np.int32((point << 6) | (np.int32(u8(data, i)) & 0x3F))
                i += 1
            if point >= 0x10000:
                value = np.int32(value * 31 + (0xD7C0 + (point >> 10)))
                point = np.int32(0xDC00 | (point & 0x3FF))
        value = np.int32(value * 31 + point)
    return value


@compiled
def hash_topics(texts: Any, ends: Any, key_suffix: Any, tag_suffix: Any, seeds: Any, not_utf8: Any) -> None:
    """Fill the two `seeds` (i4) of each topic texts[ends[k - 1] : ends[k]]: its hash with either suffix.

    Topics that are not UTF-8 are only marked in `not_utf8`.
    """
    begin = 0
    for number in range(len(ends)):
        stop = ends[number]
        if is_ascii(texts, begin, stop) or is_utf8(texts, begin, stop):
            value = hash_text(texts, begin, stop, 0)
            seeds[number, 0] = hash_text(key_suffix, 0, len(key_suffix), value)
            seeds[number, 1] = hash_text(tag_suffix, 0, len(tag_suffix), value)
        else:
            not_utf8[number] = True
        begin = stop


@inlined
def key_hash(value: int) -> Any:
    """IndexFile#indexKeyHashMethod: the absolute value, 0 for -2**31."""
    if value == -(1 << 31):
        return 0
    return -value if value < 0 else value


@inlined
def _number(data: Any, start: int, stop: int, limit: int) -> Any:
    """Java's parseInt of data[start:stop] within [-limit, limit]; NO_NUMBER for other texts."""
    i = start
    negative = False
    if i < stop and (data[i] == 0x2B or data[i] == 0x2D):
        negative = data[i] == 0x2D
        i += 1
    if i == stop:
        return NO_NUMBER
    value = np.int64(0)
    while i < stop:
        digit = np.int64(data[i]) - 0x30
        if digit < 0 or digit > 9:
            return NO_NUMBER
        if value > (limit - digit) // 10:
            return NO_NUMBER
        value = value * 10 + digit
        i += 1
    return -value if negative else value


@inlined
def name_of(data: Any, start: int, length: int, names: Any, name_ends: Any) -> Any:
    """The number of the name data[start : start + length]; -1 if it is not one of the names."""
    begin = 0
    for number in range(NAME_COUNT):
        end = name_ends[number]
        if end - begin == length:
            k = 0
            while k < length and u8(data, start + k) == names[begin + k]:
                k += 1
            if k == length:
                return number
        begin = end
    return -1


@inlined
def longest_name(name_ends: Any) -> Any:
    """The bytes of the longest name."""
    longest = 0
    for number in range(NAME_COUNT):
        begin = name_ends[number - 1] if number else 0
        longest = max(longest, name_ends[number] - begin)
    return longest


@inlined
def split_properties(
    data: Any, start: int, stop: int, names: Any, name_ends: Any, longest: int, found: Any, m: Marks
) -> Any:
    """Fill `found` with (start, stop) of the values of the names in data[start:stop]; whether it is sound.

    Java's rules: pieces end at 0x02, the first 0x01 ends the name, empty names and values are dropped, the
    last of repeated names wins.
    """
    for number in range(NAME_COUNT):
        found[number, 0] = 0
        found[number, 1] = 0
    sound = True
    piece = start
    while piece < stop:
        name_stop = next_mark(data, piece, stop, m)
        end = name_stop
        while end < stop and u8(data, end) != m.value_end:
            end = next_mark(data, end + 1, stop, m)
        if name_stop == piece or name_stop == end:
            sound = False  # no name, or no 0x01
        elif end > name_stop + 1 and name_stop - piece <= longest:
            number = name_of(data, piece, name_stop - piece, names, name_ends)
            if number >= 0:
                found[number, 0] = name_stop + 1
                found[number, 1] = end
        piece = end + 1
    return sound


@inlined
def property_crc_flags(data: Any, start: int, size: int, names: Any, name_ends: Any,
                        address: int, tables: Any, m: Marks) -> Any:  # fmt: skip
    """crc_present, with crc_bad if it does not match, for a record that ends with the CRC property."""
    at = start + size - m.property_crc_size
    begin = name_ends[PROPERTY_CRC - 1]
    length = name_ends[PROPERTY_CRC] - begin
    for k in range(length):
        if data[at + k] != names[begin + k]:
            return 0
    last = m.property_crc_size - 1
    if data[at + length] != m.name_end or data[at + last] != m.value_end:
        return 0
    value = np.int64(0)
    for k in range(last - 1, length, -1):
        digit = np.int64(data[at + k]) - 0x30
        if digit < 0 or digit > 9:
            return 0
        value = value * 10 + digit
    crc = np.int64(crc_of(data, start, size - m.property_crc_size, address, tables)) & m.crc_mask
    return m.crc_present if crc == value else m.crc_present | m.crc_bad


@inlined
def _put_keys(data: Any, row: int, found: Any, seeds: Any, keys: Any, count: int, m: Marks) -> Any:
    """Write the index keys of one record after `count` others; the new count, -1 if they do not fit."""
    if count + 2 + (found[KEYS, 1] - found[KEYS, 0] + 1) // 2 > len(keys):
        return -1
    if found[UNIQ_KEY, 1] > 0:
        keys[count].row = row
        keys[count].key_hash = key_hash(hash_text(data, found[UNIQ_KEY, 0], found[UNIQ_KEY, 1], seeds[0]))
        keys[count].kind = m.uniq_kind
        count += 1
    begin = found[KEYS, 0]
    stop = found[KEYS, 1]
    i = begin
    while i <= stop and stop > 0:
        if i == stop or data[i] == m.separator:
            if i > begin:
                keys[count].row = row
                keys[count].key_hash = key_hash(hash_text(data, begin, i, seeds[0]))
                keys[count].kind = m.key_kind
                count += 1
            begin = i + 1
        i += 1
    if found[TAGS, 1] > 0:
        keys[count].row = row
        keys[count].key_hash = key_hash(hash_text(data, found[TAGS, 0], found[TAGS, 1], seeds[1]))
        keys[count].kind = m.tag_kind
        count += 1
    return count


@inlined
def _numbers(data: Any, column: Any, found: Any, m: Marks) -> Any:
    """Set delay level and inner batch of one record; returns m.bad_number if one of them is not a number."""
    flags = 0
    if found[DELAY, 1] > 0:
        level = _number(data, found[DELAY, 0], found[DELAY, 1], (1 << 31) - 1)
        column.delay_level = m.bad_delay if level == NO_NUMBER else max(level, 0)
        if level == NO_NUMBER:
            flags = m.bad_number
    if found[INNER_BASE, 1] > 0 and found[INNER_NUM, 1] > 0:
        base = _number(data, found[INNER_BASE, 0], found[INNER_BASE, 1], _I64_MAX)
        number = _number(data, found[INNER_NUM, 0], found[INNER_NUM, 1], (1 << 15) - 1)
        if base == NO_NUMBER or number == NO_NUMBER:
            flags |= m.bad_number
        else:
            column.inner_base = base
            column.inner_count = number
    return flags


@compiled
def read_properties(
    data: Any, starts: Any, rows: Any, first: int, seeds: Any, names: Any, name_ends: Any, found: Any,
    address: int, tables: Any, m: Marks, columns: Any, keys: Any, result: Any,
) -> Any:  # fmt: skip
    """Fill `columns` and `keys` for rows[first:]; returns the row at which `keys` was full, or len(rows).

    `starts` are the indices of the records in `data`; `seeds` holds, per topic number, the hash of `topic#`
    and of `topic#T#`. `result[0]` is the number of keys, on entry and on return.
    """
    count = result[0]
    longest = longest_name(name_ends)
    for number in range(first, len(rows)):
        # the properties of the records after this one are not in the cache: the walk has passed them long ago
        later = number + _AHEAD
        if later < len(rows):
            end = starts[later] + rows[later].size
            prefetch(data, end - 1)
            prefetch(data, end - 65)
            prefetch(data, end - 129)
        row = rows[number]
        column = columns[number]
        column.tags_code = 0
        column.inner_base = -1
        column.delay_level = m.no_delay
        column.inner_count = 0
        start = starts[number]
        stop = start + row.size
        length = np.int64(row.properties_length)
        cut = m.ends_in_zeros | m.unsound if ends_in_zero(data, stop, row.topic_length, length) else 0
        if length <= 0:
            column.flags = cut
            continue
        sound = split_properties(data, stop - length, stop, names, name_ends, longest, found, m)
        flags = cut if sound else cut | m.unsound
        if length >= m.property_crc_size:
            flags |= property_crc_flags(data, start, row.size, names, name_ends, address, tables, m)
        if not is_ascii(data, stop - length, stop) and not is_utf8(data, stop - length, stop):
            column.flags = flags | m.unsound | m.left_to_python
            continue
        if row.sys_flag & m.transaction_mask != m.rollback:
            after = _put_keys(data, number, found, seeds[row.topic_id], keys, count, m)
            if after < 0:
                result[0] = count
                return number
            count = after
        if found[TAGS, 1] > 0:
            flags |= m.has_tags
            column.tags_code = hash_text(data, found[TAGS, 0], found[TAGS, 1], 0)
        if found[MULTI_DISPATCH, 1] > 0:
            flags |= m.multi_dispatch
        column.flags = flags | _numbers(data, column, found, m)
    result[0] = count
    return len(rows)


@compiled
def value_ranges(
    data: Any, starts: Any, lengths: Any, number: int, names: Any, name_ends: Any, found: Any, m: Marks,
    places: Any, sizes: Any,
) -> None:  # fmt: skip
    """Fill `places` and `sizes` with the value of name `number` of each property string.

    A size of -1 means no value; with NOT_UTF8 the string is left to Python.
    """
    longest = name_ends[number] - (name_ends[number - 1] if number else 0)
    for row in range(len(starts)):
        start = starts[row]
        stop = start + lengths[row]
        places[row] = 0
        sizes[row] = -1
        split_properties(data, start, stop, names, name_ends, longest, found, m)
        if not is_ascii(data, start, stop) and not is_utf8(data, start, stop):
            sizes[row] = NOT_UTF8
        elif found[number, 1] > 0:
            places[row] = found[number, 0]
            sizes[row] = found[number, 1] - found[number, 0]
