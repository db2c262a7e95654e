"""The compiled reader of JSON lines: objects of known fields, one a line, to where their values stand.

It reads what is plain: texts, whole numbers, true, false and null, lists of texts, objects of texts. For
everything else, wrong or only unusual, a kernel gives up, and the caller reads the lines in another way.

Every function takes `data`, a uint8 array. Texts are not checked to be UTF-8.
Imports llvmlite: only `json_columns` imports this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.intrinsics import TEXT_MARKS_BYTES, text_marks, trailing_zeros, u8
from rmqtool.log.store_intrinsics import put_8

# What a field may hold
I32, I64, TEXT, BOOL, TEXTS, MAP, SCALAR = range(7)

# places in the result array
ESCAPES, CHILDREN = range(2)
RESULT_SIZE = 2

GAVE_UP = -1

_COMMA, _COLON, _NEWLINE, _MINUS = 0x2C, 0x3A, 0x0A, 0x2D
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST = 0x7B, 0x7D, 0x5B, 0x5D
_MAX_DIGITS = 18  # more may not fit into 64 bits
MAX_PAIRS = 64  # of an object: each name is compared with all before it

QUOTE, BACKSLASH = 0x22, 0x5C
NO_VALUE = -1  # a length; those of texts with escapes are -2 - length

_ESCAPED = (0x22, 0x5C, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74)  # after a backslash, and what that means:
_MEANINGS = (0x22, 0x5C, 0x2F, 0x08, 0x0C, 0x0A, 0x0D, 0x09)
_NULL = (0x6E, 0x75, 0x6C, 0x6C)
_TRUE = (0x74, 0x72, 0x75, 0x65)
_FALSE = (0x66, 0x61, 0x6C, 0x73, 0x65)


# texts


@inlined
def at(data: Any, i: Any, stop: Any) -> Any:
    """The byte there; 0, which JSON never contains, after the end."""
    return np.int64(u8(data, i)) if i < stop else 0


@inlined
def skip(data: Any, i: Any, stop: Any) -> Any:
    """The first index from `i` on that is not a space, a tab or a carriage return."""
    while i < stop and (data[i] == 0x20 or data[i] == 0x09 or data[i] == 0x0D):
        i += 1
    return i


@inlined
def plain_end(data: Any, i: Any, stop: Any) -> Any:
    """The first index from `i` on of a quote, a backslash or a control character; `stop` without one."""
    while i + TEXT_MARKS_BYTES <= stop:
        found = text_marks(data, i)
        if found != 0:
            return i + trailing_zeros(found)
        i += TEXT_MARKS_BYTES
    while i < stop and data[i] != QUOTE and data[i] != BACKSLASH and data[i] >= 0x20:
        i += 1
    return i


@inlined
def _hex(data: Any, i: Any) -> Any:
    """The number of four hex digits; below 0 for others."""
    value = 0
    for k in range(4):
        digit: Any = np.int64(u8(data, i + k))
        if 0x30 <= digit <= 0x39:
            digit -= 0x30
        elif 0x41 <= digit & 0xDF <= 0x46:
            digit = (digit & 0xDF) - 0x37
        else:
            return -1
        value = value << 4 | digit
    return value


@inlined
def _escape_end(data: Any, i: Any, stop: Any) -> Any:
    """The index after the escape whose backslash is at `i`; below 0 if it is not an escape."""
    mark = at(data, i + 1, stop)
    if mark != 0x75:
        for known in _ESCAPED:
            if mark == known:
                return i + 2
        return -1
    if i + 6 > stop:
        return -1
    code = _hex(data, i + 2)
    if code < 0 or 0xDC00 <= code <= 0xDFFF:
        return -1
    if code < 0xD800 or code > 0xDBFF:
        return i + 6
    if i + 12 > stop or data[i + 6] != BACKSLASH or data[i + 7] != 0x75:
        return -1
    low = _hex(data, i + 8)
    return i + 12 if 0xDC00 <= low <= 0xDFFF else -1


@compiled
def text_length(data: Any, i: Any, stop: Any) -> Any:
    """The length of the text that begins at `i`, after its quote; -1 for none.

    Where it has escapes: -2 - length.
    """
    end = plain_end(data, i, stop)
    escaped = False
    while end < stop and data[end] == BACKSLASH:
        escaped = True
        end = _escape_end(data, end, stop)
        if end < 0:
            return -1
        end = plain_end(data, end, stop)
    if end >= stop or data[end] != QUOTE:
        return -1
    return -2 - (end - i) if escaped else end - i


@inlined
def raw_length(length: Any) -> Any:
    """Bytes that a text takes in the line."""
    return length if length >= 0 else -2 - length


@inlined
def _put_utf8(data: Any, at: Any, code: Any) -> Any:
    """Write the UTF-8 bytes of a code point; return the index after them."""
    if code < 0x80:
        put_8(data, at, code)
        return at + 1
    if code < 0x800:
        put_8(data, at, 0xC0 | code >> 6)
        put_8(data, at + 1, 0x80 | code & 0x3F)
        return at + 2
    if code < 0x10000:
        put_8(data, at, 0xE0 | code >> 12)
        put_8(data, at + 1, 0x80 | code >> 6 & 0x3F)
        put_8(data, at + 2, 0x80 | code & 0x3F)
        return at + 3
    put_8(data, at, 0xF0 | code >> 18)
    put_8(data, at + 1, 0x80 | code >> 12 & 0x3F)
    put_8(data, at + 2, 0x80 | code >> 6 & 0x3F)
    put_8(data, at + 3, 0x80 | code & 0x3F)
    return at + 4


@compiled
def unescape(data: Any, starts: Any, lengths: Any) -> None:
    """Writes the texts with escapes, of lengths -2 - n, as what they mean; `data` may be written, and is.

    That is never longer than what is there, and `parse_lines` has seen that all of it is right.
    """
    for row in range(len(starts)):
        if lengths[row] >= NO_VALUE:
            continue
        i = at = np.int64(starts[row])
        stop = i - 2 - lengths[row]
        while i < stop:
            byte = np.int64(u8(data, i))
            if byte != BACKSLASH:
                put_8(data, at, byte)
                i += 1
                at += 1
                continue
            mark = np.int64(u8(data, i + 1))
            if mark == 0x75:
                code = _hex(data, i + 2)
                i += 6
                if 0xD800 <= code <= 0xDBFF:
                    code = 0x10000 + ((code - 0xD800) << 10) + _hex(data, i + 2) - 0xDC00
                    i += 6
                at = _put_utf8(data, at, code)
                continue
            for k in range(len(_ESCAPED)):
                if mark == _ESCAPED[k]:
                    put_8(data, at, _MEANINGS[k])
            i += 2
            at += 1
        lengths[row] = at - starts[row]


# objects


@inlined
def _equal(data: Any, i: Any, other: Any, j: Any, length: Any) -> Any:
    for k in range(length):
        if data[i + k] != other[j + k]:
            return False
    return True


@inlined
def _field(data: Any, i: Any, length: Any, names: Any, ends: Any, guess: Any) -> Any:
    """The number of the field of that name, most likely `guess`; -1 for none."""
    count = len(ends) - 1
    for k in range(count):
        field = guess + k
        if field >= count:
            field -= count
        start = np.int64(ends[field])
        if np.int64(ends[field + 1]) - start == length and _equal(data, i, names, start, length):
            return field
    return -1


@inlined
def _is_word(data: Any, i: Any, stop: Any, word: Any) -> Any:
    if i + len(word) > stop:
        return False
    for k in range(len(word)):
        if data[i + k] != word[k]:
            return False
    return True


@compiled
def number_at(data: Any, i: int, stop: int, kind: int, values: Any, place: int) -> Any:
    """Reads a whole number that `kind` can hold to values[place]; returns the index after it, or -1."""
    is_negative = at(data, i, stop) == _MINUS
    if is_negative:
        i += 1
    first = i
    value: Any = 0
    while i < stop and 0x30 <= data[i] <= 0x39 and i - first <= _MAX_DIGITS:
        value = 10 * value + np.int64(data[i]) - 0x30
        i += 1
    digits = i - first
    if digits == 0 or digits > _MAX_DIGITS or (digits > 1 and data[first] == 0x30):
        return -1
    after = at(data, i, stop)
    if after == 0x2E or after == 0x65 or after == 0x45:  # a fraction, an exponent
        return -1
    if is_negative:
        value = -value
    if kind == I32 and not -(1 << 31) <= value < 1 << 31:
        return -1
    values[place] = value
    return i


@compiled
def texts_at(data: Any, i: int, stop: int, result: Any, starts: Any, lengths: Any) -> Any:
    """Reads a list of texts, whose bracket is at `i`, or one text, to the children.

    Returns the index after it, or -1.
    """
    child = result[CHILDREN]
    is_list = data[i] == _OPEN_LIST
    if is_list:
        i = skip(data, i + 1, stop)
        if at(data, i, stop) == _CLOSE_LIST:
            return i + 1
    while True:
        if at(data, i, stop) != QUOTE:
            return -1
        length = text_length(data, i + 1, stop)
        if length == -1:
            return -1
        starts[child], lengths[child] = i + 1, length
        child += 1
        result[ESCAPES] += length < 0
        i += raw_length(length) + 2
        if not is_list:
            break
        i = skip(data, i, stop)
        mark = at(data, i, stop)
        i += 1
        if mark == _CLOSE_LIST:
            break
        if mark != _COMMA:
            return -1
        i = skip(data, i, stop)
    result[CHILDREN] = child
    return i


@compiled
def map_at(data: Any, i: int, stop: int, result: Any, starts: Any, lengths: Any) -> Any:
    """Reads an object of texts, whose brace is at `i`, to the children: name, value, name, value.

    Returns the index after it, or -1.
    """
    first = child = result[CHILDREN]
    i = skip(data, i + 1, stop)
    if at(data, i, stop) == _CLOSE_OBJECT:
        return i + 1
    while True:
        if at(data, i, stop) != QUOTE or child - first >= 2 * MAX_PAIRS:
            return -1
        length = text_length(data, i + 1, stop)
        if length < 0:  # of two names one of which has escapes it is not known whether they are the same
            return -1
        for k in range(first, child, 2):
            if lengths[k] == length and _equal(data, starts[k], data, i + 1, length):
                return -1
        starts[child], lengths[child] = i + 1, length
        i = skip(data, i + length + 2, stop)
        if at(data, i, stop) != _COLON:
            return -1
        i = skip(data, i + 1, stop)
        if at(data, i, stop) != QUOTE:
            return -1
        length = text_length(data, i + 1, stop)
        if length == -1:
            return -1
        starts[child + 1], lengths[child + 1] = i + 1, length
        child += 2
        result[ESCAPES] += length < 0
        i = skip(data, i + raw_length(length) + 2, stop)
        mark = at(data, i, stop)
        i = skip(data, i + 1, stop)
        if mark == _CLOSE_OBJECT:
            break
        if mark != _COMMA:
            return -1
    result[CHILDREN] = child
    return i


@compiled
def value_at(
    data: Any, i: int, stop: int, kind: int, row: int, starts: Any, lengths: Any,
    result: Any, child_starts: Any, child_lengths: Any,
) -> Any:  # fmt: skip
    """Reads a value of a field to starts[row], lengths[row]; returns the index after it, or -1."""
    mark = at(data, i, stop)
    if mark == 0x6E:
        return i + 4 if _is_word(data, i, stop, _NULL) else -1
    if mark == QUOTE and (kind == TEXT or kind == SCALAR):
        length = text_length(data, i + 1, stop)
        if length == -1:
            return -1
        starts[row], lengths[row] = i + 1, length
        result[ESCAPES] += length < 0
        return i + raw_length(length) + 2
    if kind == TEXTS or kind == MAP:
        first = result[CHILDREN]
        if kind == TEXTS and (mark == QUOTE or mark == _OPEN_LIST):
            i = texts_at(data, i, stop, result, child_starts, child_lengths)
        elif kind == MAP and mark == _OPEN_OBJECT:
            i = map_at(data, i, stop, result, child_starts, child_lengths)
        else:
            return -1
        starts[row], lengths[row] = first, result[CHILDREN] - first
        return i
    if kind == BOOL or kind == SCALAR:
        if _is_word(data, i, stop, _TRUE):
            starts[row], lengths[row] = 1, 0
            return i + 4
        if _is_word(data, i, stop, _FALSE):
            starts[row], lengths[row] = 0, 0
            return i + 5
    if kind == I32 or kind == I64 or kind == SCALAR:
        lengths[row] = 0
        return number_at(data, i, stop, kind, starts, row)
    return -1


@compiled
def parse_lines(
    data: Any, names: Any, ends: Any, kinds: Any, starts: Any, lengths: Any, seen: Any, follows: Any,
    lines: Any, child_starts: Any, child_lengths: Any, result: Any,
) -> Any:  # fmt: skip
    """Reads all lines; how many objects there were, or GAVE_UP.

    `data` is whole lines; the last one may lack its end. The name of field k is
    names[ends[k] : ends[k + 1]], and `kinds` says what it may hold. starts[k, row] and lengths[k, row],
    which are NO_VALUE before, get its value: of a text where it stands, of numbers and booleans the
    value as the start, of lists and objects the first child and how many. `child_starts` and
    `child_lengths` get the texts of those, in their order; `lines` the line of each row, from 0;
    `result` how many children there are, and how many texts with escapes. `seen` is of one number
    for each field, below 0; `follows` of one more, 0: the field that last followed each, the first
    one at the start of a line.
    """
    stop = len(data)
    i = row = line = 0
    result[ESCAPES] = result[CHILDREN] = 0
    while True:
        i = skip(data, i, stop)
        if i >= stop:
            return row
        if data[i] == _NEWLINE:
            i += 1
            line += 1
            continue
        if data[i] != _OPEN_OBJECT or row >= len(lines):
            return GAVE_UP
        i = skip(data, i + 1, stop)
        before = 0
        is_open = at(data, i, stop) != _CLOSE_OBJECT
        if not is_open:
            i += 1
        while is_open:
            if at(data, i, stop) != QUOTE:
                return GAVE_UP
            end = plain_end(data, i + 1, stop)
            if at(data, end, stop) != QUOTE:
                return GAVE_UP
            field = _field(data, i + 1, end - i - 1, names, ends, follows[before])
            i = skip(data, end + 1, stop)
            if field < 0 or seen[field] == row or at(data, i, stop) != _COLON:
                return GAVE_UP
            seen[field] = row
            follows[before] = field
            before = field + 1
            i = skip(data, i + 1, stop)
            i = value_at(
                data, i, stop, kinds[field], row, starts[field], lengths[field],
                result, child_starts, child_lengths,
            )  # fmt: skip
            if i < 0:
                return GAVE_UP
            i = skip(data, i, stop)
            mark = at(data, i, stop)
            if mark != _COMMA and mark != _CLOSE_OBJECT:
                return GAVE_UP
            is_open = mark == _COMMA
            i = skip(data, i + 1, stop) if is_open else i + 1
        i = skip(data, i, stop)
        if i < stop and data[i] != _NEWLINE:
            return GAVE_UP
        lines[row] = line
        row += 1
