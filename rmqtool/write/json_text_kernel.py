"""The compiled half of `json_lines` as far as texts go: where they end, and what their escapes mean.

Every function takes `data`, a uint8 array. Texts are not checked to be UTF-8.
Imports numba: only `json_kernel` and `json_lines` import this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.intrinsics import trailing_zeros, u8, u64_little
from rmqtool.log.store_intrinsics import put_8

QUOTE, BACKSLASH = 0x22, 0x5C
NO_VALUE = -1  # a length; those of texts with escapes are -2 - length

_LOW_BITS = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_ESCAPED = (0x22, 0x5C, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74)  # behind a backslash, and what that means:
_MEANINGS = (0x22, 0x5C, 0x2F, 0x08, 0x0C, 0x0A, 0x0D, 0x09)


@inlined
def at(data: Any, i: Any, stop: Any) -> Any:
    """The byte there; 0, which has no place in JSON, behind the end."""
    return np.int64(u8(data, i)) if i < stop else 0


@inlined
def skip(data: Any, i: Any, stop: Any) -> Any:
    """The first index from `i` on that is no blank of the line."""
    while i < stop and (data[i] == 0x20 or data[i] == 0x09 or data[i] == 0x0D):
        i += 1
    return i


@inlined
def plain_end(data: Any, i: Any, stop: Any) -> Any:
    """The first index from `i` on of a quote, a backslash or a control character; `stop` without one."""
    while i + 8 <= stop:
        word = u64_little(data, i)
        quote = word ^ _QUOTES
        backslash = word ^ _BACKSLASHES
        # the lowest byte that is one gets its high bit set; only higher ones may be wrong
        found = ((quote - _LOW_BITS) & ~quote) | ((backslash - _LOW_BITS) & ~backslash)
        found = (found | ((word - _SPACES) & ~word)) & _HIGH_BITS
        if found != 0:
            return i + (trailing_zeros(found) >> 3)
        i += 8
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
    """The index behind the escape whose backslash is at `i`; below 0 for one that is none."""
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
    """The length of the text that begins at `i`, behind its quote; -1 for none.

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
    """The UTF-8 bytes of a code point; the index behind them."""
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
