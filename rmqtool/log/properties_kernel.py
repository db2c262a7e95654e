"""The compiled half of `properties`: finds the names and values in property strings.

Strings that are not UTF-8, or have very many properties, are left to Python, which rewrites them as sound
strings and calls the kernel again. Imports llvmlite: only `properties` imports this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.dispatch_kernel import Marks, is_ascii, is_utf8, name_of, next_mark
from rmqtool.log.intrinsics import u8

UNSOUND = 1  # formats.properties.sound is False
REWRITTEN = 2  # encoding the decoded properties would give other bytes
LEFT_TO_PYTHON = 4
FOUND_COUNT = 3  # names whose places are kept: dispatch_kernel.TAGS, KEYS and UNIQ_KEY
DISTINCT_MAX = 64  # most properties of a record whose names are compared here


@inlined
def _twin(data: Any, pairs: Any, first: int, count: int, start: int, length: int) -> Any:
    """The index in pairs[first:count] of the name data[start : start + length]; -1 if none."""
    for k in range(first, count):
        if pairs[k].name_length == length:
            other = pairs[k].name
            j = 0
            while j < length and u8(data, other + j) == u8(data, start + j):
                j += 1
            if j == length:
                return k
    return -1


@compiled
def split_properties(
    data: Any, starts: Any, lengths: Any, distinct: Any, names: Any, name_ends: Any, m: Marks,
    pairs: Any, stops: Any, found: Any, flags: Any,
) -> Any:  # fmt: skip
    """Fill `pairs` with the properties of every record, by Java's rules; returns their number.

    stops[k + 1] is the end of the pairs of record k, found[k] has the indices of its pairs named TAGS, KEYS
    and UNIQ_KEY, -1 if missing. Strings marked in `distinct` are known to be UTF-8 without repeated names.
    `pairs` must have room for (length + 1) // 4 pairs per string.
    """
    count = 0
    stops[0] = 0
    for row in range(len(starts)):
        for number in range(FOUND_COUNT):
            found[row, number] = -1
        start = starts[row]
        stop = start + max(np.int64(lengths[row]), 0)
        state = 0
        first = count
        known = distinct[row]
        if not known and not is_ascii(data, start, stop) and not is_utf8(data, start, stop):
            state = UNSOUND | REWRITTEN | LEFT_TO_PYTHON
            stop = start
        piece = start
        while piece < stop:
            name_stop = next_mark(data, piece, stop, m)
            end = name_stop
            while end < stop and u8(data, end) != m.value_end:
                end = next_mark(data, end + 1, stop, m)
            if name_stop == piece or name_stop == end:
                state |= UNSOUND | REWRITTEN  # no name, or no 0x01
            elif end == name_stop + 1:
                state |= REWRITTEN  # no value
            else:
                length = name_stop - piece
                place = count
                if not known:
                    if count - first == DISTINCT_MAX:
                        state |= LEFT_TO_PYTHON
                        count = first
                        for number in range(FOUND_COUNT):
                            found[row, number] = -1
                        break
                    twin = _twin(data, pairs, first, count, piece, length)
                    if twin >= 0:
                        place = twin
                        state |= REWRITTEN
                if place == count:
                    pairs[place].name = piece
                    pairs[place].name_length = length
                    count += 1
                pairs[place].value = name_stop + 1
                pairs[place].value_length = end - name_stop - 1
                number = name_of(data, piece, length, names, name_ends) if length <= 8 else -1
                if 0 <= number < FOUND_COUNT:
                    found[row, number] = place
            piece = end + 1
        flags[row] = state
        stops[row + 1] = count
    return count


@compiled
def split_keys(
    data: Any, starts: Any, lengths: Any, separator: int, stops: Any, key_starts: Any, key_lengths: Any
) -> Any:
    """Split each data[starts[k] : starts[k] + lengths[k]] at `separator`; returns the number of pieces.

    Empty pieces are left out; stops[k + 1] is the end of the pieces of k.
    """
    count = 0
    stops[0] = 0
    for row in range(len(starts)):
        begin = starts[row]
        stop = begin + max(np.int64(lengths[row]), 0)
        i = begin
        while i <= stop:
            if i == stop or u8(data, i) == separator:
                if i > begin:
                    key_starts[count] = begin
                    key_lengths[count] = i - begin
                    count += 1
                begin = i + 1
            i += 1
        stops[row + 1] = count
    return count
