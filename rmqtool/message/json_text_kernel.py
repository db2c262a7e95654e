"""The compiled half of `json_text`: measures and writes the values of a column as JSON.

Lines are written column by column: `ends[k]` is the length of line k so far when a column is measured, and
the place in `out` where line k continues when it is written. Each `write_` function writes exactly as many
bytes as its `measure_` function has counted. The caller guarantees that offsets rise and end inside of the
data, and that the data is UTF-8; other bytes are written as they are.

Imports llvmlite: only `json_text` imports this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.intrinsics import address_of, u8, u64
from rmqtool.log.store_intrinsics import copy_short, put_8, put_32, put_64

_LOW_BITS = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_DELETES = np.uint64(0x7F7F7F7F7F7F7F7F)
_NOT_CONTROL = np.uint64(0x6060606060606060)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
# First bytes of characters above U+007F of which some are escaped
_C1 = np.uint64(0xC2C2C2C2C2C2C2C2)
_ARABIC = np.uint64(0xD8D8D8D8D8D8D8D8)
_PUNCTUATION = np.uint64(0xE2E2E2E2E2E2E2E2)

_QUOTE, _BACKSLASH, _COMMA, _COLON, _ZERO, _MINUS, _U = 0x22, 0x5C, 0x2C, 0x3A, 0x30, 0x2D, 0x75
_NULL = 0x6E756C6C  # "null" as a big-endian integer
_NULL_BYTES = 4
_ESCAPE_BYTES = 6  # \uXXXX
_MILLISECONDS_AT = 21  # in the JSON text of a time, its first quote included
_MILLISECONDS_BYTES = 3


# texts


@inlined
def _zeros(word: Any) -> Any:
    """The high bit of each byte that is 0 in `word`."""
    return ~(((word & _DELETES) + _DELETES) | word) & _HIGH_BITS


@inlined
def _marked(word: Any) -> Any:
    """The high bit of each quote and backslash among eight bytes."""
    return _zeros(word ^ _QUOTES) | _zeros(word ^ _BACKSLASHES)


@inlined
def _is_odd(word: Any) -> Any:
    """Whether one of eight bytes may begin a character with an escape other than of `_marked`."""
    found = ~(((word & _DELETES) + _NOT_CONTROL) | word) & _HIGH_BITS
    found |= _zeros(word ^ _DELETES)
    if word & _HIGH_BITS != 0:
        found |= _zeros(word ^ _C1) | _zeros(word ^ _ARABIC) | _zeros(word ^ _PUNCTUATION)
    return found != 0


@inlined
def _short(byte: Any) -> Any:
    """The character after the backslash in the short escape of a byte; 0 if it has none."""
    if byte == _QUOTE or byte == _BACKSLASH:
        return byte
    if byte == 0x08:
        return 0x62
    if byte == 0x09:
        return 0x74
    if byte == 0x0A:
        return 0x6E
    if byte == 0x0C:
        return 0x66
    if byte == 0x0D:
        return 0x72
    return 0


@inlined
def _long(data: Any, i: Any, stop: Any) -> Any:
    """4 * code point + bytes of the character at `i` if JSON escapes it with a code point; else 0."""
    byte = np.int64(u8(data, i))
    if byte < 0x20 or byte == 0x7F:
        return byte << 2 | 1
    second = np.int64(u8(data, i + 1)) if i + 1 < stop else np.int64(0)
    if byte == 0xC2:
        return second << 2 | 2 if 0x80 <= second <= 0x9F else 0
    if byte == 0xD8:
        return 0x061C << 2 | 2 if second == 0x9C else 0
    if byte != 0xE2 or i + 2 >= stop:
        return 0
    third = np.int64(u8(data, i + 2))
    if second == 0x80 and (third == 0x8E or third == 0x8F or 0xA8 <= third <= 0xAE):
        return (0x2000 | third & 0x3F) << 2 | 3
    if second == 0x81 and 0xA6 <= third <= 0xA9:
        return (0x2040 | third & 0x3F) << 2 | 3
    return 0


@inlined
def _text_bytes(data: Any, i: Any, stop: Any) -> Any:
    """The length of data[i:stop] as a JSON string."""
    length = stop - i + 2
    while i < stop:
        if i + 8 <= stop:
            word = u64(data, i)
            if not _is_odd(word):
                length += np.int64(((_marked(word) >> np.uint64(7)) * _LOW_BITS) >> np.uint64(56))
                i += 8
                continue
        found = np.int64(_long(data, i, stop))
        if _short(np.int64(u8(data, i))) != 0:
            length += 1
            i += 1
        elif found != 0:
            length += _ESCAPE_BYTES - (found & 3)
            i += found & 3
        else:
            i += 1
    return length


@inlined
def _put_text(out: Any, at: Any, data: Any, i: Any, stop: Any) -> Any:
    """Write data[i:stop] as a JSON string; returns the index after it."""
    put_8(out, at, _QUOTE)
    at += 1
    while i < stop:
        if i + 8 <= stop:
            word = u64(data, i)
            if not _is_odd(word):
                if _marked(word) == 0:
                    put_64(out, at, np.int64(word))
                    at += 8
                else:
                    for k in range(8):  # without branches: quotes are many in JSON, and come anywhere
                        byte = np.int64(u8(data, i + k))
                        put_8(out, at, _BACKSLASH)
                        at += (1 if byte == _QUOTE else 0) | (1 if byte == _BACKSLASH else 0)
                        put_8(out, at, byte)
                        at += 1
                i += 8
                continue
        byte = np.int64(u8(data, i))
        short = np.int64(_short(byte))
        found = np.int64(_long(data, i, stop))
        if short != 0:
            put_8(out, at, _BACKSLASH)
            put_8(out, at + 1, short)
            at += 2
            i += 1
        elif found != 0:
            put_8(out, at, _BACKSLASH)
            put_8(out, at + 1, _U)
            for k in range(4):
                digit = found >> (14 - 4 * k) & 15
                put_8(out, at + 2 + k, digit + (_ZERO if digit < 10 else 0x57))
            at += _ESCAPE_BYTES
            i += found & 3
        else:
            put_8(out, at, byte)
            at += 1
            i += 1
    put_8(out, at, _QUOTE)
    return at + 1


@inlined
def _put_head(out: Any, at: Any, head: Any) -> Any:
    """Write what precedes the value; returns the index after it."""
    copy_short(out, at, address_of(head, 0), len(head))
    return at + len(head)


@inlined
def _is_null(present: Any, k: Any) -> Any:
    """Whether row `k` has no value; an empty `present` says that all rows have one."""
    return len(present) != 0 and not present[k]


@inlined
def _null_bytes(head: Any, omits: bool) -> Any:
    return np.int64(0) if omits else len(head) + _NULL_BYTES


@inlined
def _put_null(out: Any, at: Any, head: Any, omits: bool) -> Any:
    if omits:
        return at
    at = _put_head(out, at, head)
    put_32(out, at, _NULL)
    return at + _NULL_BYTES


# columns


@compiled
def measure_texts(head: Any, data: Any, offsets: Any, present: Any, omits: bool, ends: Any) -> None:
    """Add the lengths of `head` and the texts data[offsets[k] : offsets[k + 1]] as JSON strings."""
    for k in range(len(ends)):
        if _is_null(present, k):
            ends[k] += _null_bytes(head, omits)
        else:
            ends[k] += len(head) + _text_bytes(data, np.int64(offsets[k]), np.int64(offsets[k + 1]))


@compiled
def write_texts(head: Any, data: Any, offsets: Any, present: Any, omits: bool, out: Any, ends: Any) -> None:
    """Write what `measure_texts` has measured."""
    for k in range(len(ends)):
        at = ends[k]
        if _is_null(present, k):
            ends[k] = _put_null(out, at, head, omits)
        else:
            at = _put_head(out, at, head)
            ends[k] = _put_text(out, at, data, np.int64(offsets[k]), np.int64(offsets[k + 1]))


@compiled
def measure_spelled(head: Any, offsets: Any, numbers: Any, present: Any, omits: bool, ends: Any) -> None:
    """Add the lengths of `head` and the value numbers[k] of values that are JSON already."""
    for k in range(len(ends)):
        if _is_null(present, k):
            ends[k] += _null_bytes(head, omits)
        else:
            number = numbers[k]
            ends[k] += len(head) + np.int64(offsets[number + 1]) - np.int64(offsets[number])


@compiled
def write_spelled(
    head: Any, data: Any, offsets: Any, numbers: Any, present: Any, omits: bool, milliseconds: Any, out: Any,
    ends: Any,
) -> None:  # fmt: skip
    """Write what `measure_spelled` has measured; `milliseconds`, if any, are put into texts of times."""
    for k in range(len(ends)):
        at = ends[k]
        if _is_null(present, k):
            ends[k] = _put_null(out, at, head, omits)
            continue
        at = _put_head(out, at, head)
        number = numbers[k]
        start = np.int64(offsets[number])
        length = np.int64(offsets[number + 1]) - start
        copy_short(out, at, address_of(data, start), length)
        if len(milliseconds) != 0 and length >= _MILLISECONDS_AT + _MILLISECONDS_BYTES:
            value = np.int64(milliseconds[k])
            put_8(out, at + _MILLISECONDS_AT, _ZERO + value // 100)
            put_8(out, at + _MILLISECONDS_AT + 1, _ZERO + value // 10 % 10)
            put_8(out, at + _MILLISECONDS_AT + 2, _ZERO + value % 10)
        ends[k] = at + length


@inlined
def _digits(value: Any) -> Any:
    """The number of decimal digits of a u8."""
    count = 1
    limit = np.uint64(10)
    while count < 20 and value >= limit:
        count += 1
        limit *= np.uint64(10) if count < 20 else np.uint64(1)
    return count


@inlined
def _magnitude(value: Any) -> Any:
    return np.uint64(value) if value >= 0 else np.uint64(-(value + 1)) + np.uint64(1)


@compiled
def measure_integers(head: Any, values: Any, present: Any, omits: bool, ends: Any) -> None:
    """Add the lengths of `head` and the decimal digits of values, i8."""
    for k in range(len(ends)):
        if _is_null(present, k):
            ends[k] += _null_bytes(head, omits)
        else:
            value = np.int64(values[k])
            ends[k] += len(head) + _digits(_magnitude(value)) + (1 if value < 0 else 0)


@compiled
def write_integers(head: Any, values: Any, present: Any, omits: bool, out: Any, ends: Any) -> None:
    """Write what `measure_integers` has measured."""
    for k in range(len(ends)):
        at = ends[k]
        if _is_null(present, k):
            ends[k] = _put_null(out, at, head, omits)
            continue
        at = _put_head(out, at, head)
        value = np.int64(values[k])
        if value < 0:
            put_8(out, at, _MINUS)
            at += 1
        left = _magnitude(value)
        stop = at + _digits(left)
        place = stop
        while place > at:
            place -= 1
            rest = left // np.uint64(10)
            put_8(out, place, _ZERO + np.int64(left - rest * np.uint64(10)))
            left = rest
        ends[k] = stop


@compiled
def measure_nested(
    head: Any, stops: Any, key_offsets: Any, keys: Any, offsets: Any, data: Any, present: Any,
    item_present: Any, omits: bool, ends: Any,
) -> None:  # fmt: skip
    """Add the lengths of `head` and lists of texts, or with `key_offsets` objects of texts.

    The items of row k are those of [stops[k], stops[k + 1]).
    """
    for k in range(len(ends)):
        if _is_null(present, k):
            ends[k] += _null_bytes(head, omits)
            continue
        first = np.int64(stops[k])
        count: Any = np.int64(stops[k + 1]) - first
        length: Any = len(head) + 2 + max(count - 1, 0)
        for item in range(first, first + count):
            if len(key_offsets) != 0:
                key_start, key_stop = np.int64(key_offsets[item]), np.int64(key_offsets[item + 1])
                length += _text_bytes(keys, key_start, key_stop) + 1
            if _is_null(item_present, item):
                length += _NULL_BYTES
            else:
                length += _text_bytes(data, np.int64(offsets[item]), np.int64(offsets[item + 1]))
        ends[k] += length


@compiled
def write_nested(
    head: Any, stops: Any, key_offsets: Any, keys: Any, offsets: Any, data: Any, present: Any,
    item_present: Any, omits: bool, out: Any, ends: Any,
) -> None:  # fmt: skip
    """Write what `measure_nested` has measured."""
    is_object = len(key_offsets) != 0
    for k in range(len(ends)):
        at = ends[k]
        if _is_null(present, k):
            ends[k] = _put_null(out, at, head, omits)
            continue
        at = _put_head(out, at, head)
        put_8(out, at, 0x7B if is_object else 0x5B)
        at += 1
        first = np.int64(stops[k])
        for item in range(first, np.int64(stops[k + 1])):
            if item > first:
                put_8(out, at, _COMMA)
                at += 1
            if is_object:
                key_start, key_stop = np.int64(key_offsets[item]), np.int64(key_offsets[item + 1])
                at = _put_text(out, at, keys, key_start, key_stop)
                put_8(out, at, _COLON)
                at += 1
            if _is_null(item_present, item):
                put_32(out, at, _NULL)
                at += _NULL_BYTES
            else:
                at = _put_text(out, at, data, np.int64(offsets[item]), np.int64(offsets[item + 1]))
        put_8(out, at, 0x7D if is_object else 0x5D)
        ends[k] = at + 1
