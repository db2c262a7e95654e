"""The compiled half of `rocksdb_entries`: entries as fingerprints, of the records of a window and of a block.

Imports llvmlite: only `rocksdb_entries` imports this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.dispatch_kernel import (
    KEYS,
    TAGS,
    UNIQ_KEY,
    Marks,
    is_ascii,
    is_utf8,
    longest_name,
    split_properties,
)
from rmqtool.log.intrinsics import i64, u8
from rmqtool.log.rocksdb_block_kernel import (
    DAMAGED,
    UNKNOWN_KIND,
    byte_at,
    entry_lengths,
    is_one_of,
    sequence_at,
)

FULL = -3

_BASIS = np.uint64(0xCBF29CE484222325)  # FNV-1a
_PRIME = np.uint64(0x100000001B3)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)  # SplitMix64
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


class Letters(NamedTuple):
    """Bytes and numbers of the format; created by `rocksdb_entries`."""

    split: int
    key: int
    tag: int
    uniq: int
    hour_ms: int


@inlined
def _with_byte(value: Any, byte: Any) -> Any:
    return (value ^ np.uint64(byte & 0xFF)) * _PRIME


@inlined
def _with_number(value: Any, number: Any) -> Any:
    """The fingerprint continued with the eight bytes of a number, big-endian."""
    for k in range(8):
        value = _with_byte(value, (np.int64(number) >> (56 - 8 * k)) & 0xFF)
    return value


@inlined
def _with_text(value: Any, data: Any, start: int, stop: int) -> Any:
    for i in range(start, stop):
        value = (value ^ u8(data, i)) * _PRIME
    return value


@inlined
def _mixed(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(30))) * _FIRST_FACTOR
    value = (value ^ (value >> np.uint64(27))) * _SECOND_FACTOR
    return value ^ (value >> np.uint64(31))


@inlined
def _put(row: Any, value: Any, physical_offset: Any, time: Any) -> None:
    """Fill the row of an entry whose key is that of `value` so far and the offset."""
    value = _with_number(value, physical_offset)
    row.physical_offset = physical_offset
    row.key = _mixed(value)
    row.fingerprint = _mixed(_with_number(value, time))


@inlined
def _add(
    entries: Any, places: Any, count: Any, value: Any, physical_offset: Any, time: Any, number: Any,
    letter: Any, start: Any, stop: Any,
) -> None:  # fmt: skip
    """As `_put`, and note where the name lies, unless places are not asked for."""
    _put(entries[count], value, physical_offset, time)
    if len(places) > 0:
        place = places[count]
        place.row = number
        place.letter = letter
        place.start = start
        place.stop = stop


@compiled
def entries_of_records(
    data: Any, starts: Any, rows: Any, first: int, topics: Any, topic_ends: Any, names: Any, name_ends: Any,
    found: Any, rollback: int, m: Marks, letters: Letters, entries: Any, left: Any, result: Any, places: Any,
) -> int:  # fmt: skip
    """Fill `entries` for rows[first:]; returns the row at which they were full, or len(rows).

    `places`, as many or none, get where the names of entries lie; that of the unique key is a record's last.
    `topics` are the topics as a broker encodes them, each up to its `topic_ends`. Rows whose properties are
    not UTF-8 are only marked in `left`. `result[0]` is the number of entries, on entry and on return.
    """
    count = result[0]
    longest = longest_name(name_ends)
    for number in range(first, len(rows)):
        row = rows[number]
        length = np.int64(row.properties_length)
        time = np.int64(row.store_timestamp)
        is_rolled_back = row.sys_flag & m.transaction_mask == rollback
        topic = np.int64(row.topic_id)
        topic_start = topic_ends[topic - 1] if topic else 0
        topic_stop = topic_ends[topic]
        if length <= 0 or time < letters.hour_ms or is_rolled_back or topic_stop == topic_start:
            continue
        stop = starts[number] + row.size
        if not is_ascii(data, stop - length, stop) and not is_utf8(data, stop - length, stop):
            left[number] = True
            continue
        split_properties(data, stop - length, stop, names, name_ends, longest, found, m)
        uniq = found[UNIQ_KEY, 0]
        uniq_stop = found[UNIQ_KEY, 1]
        if uniq_stop == 0:
            continue
        if count + 2 + (found[KEYS, 1] - found[KEYS, 0] + 1) // 2 > len(entries):
            result[0] = count
            return number
        head = _with_byte(_with_number(_BASIS, time - time % letters.hour_ms), letters.split)
        head = _with_byte(_with_text(head, topics, topic_start, topic_stop), letters.split)
        offset = np.int64(row.physical_offset)
        begin = found[KEYS, 0]
        end = found[KEYS, 1]
        own = _with_byte(_with_byte(head, letters.key), letters.split)
        i = begin
        while i <= end and end > 0:
            if i == end or u8(data, i) == m.separator:
                if i > begin:
                    value = _with_byte(_with_text(own, data, begin, i), letters.split)
                    value = _with_byte(_with_text(value, data, uniq, uniq_stop), letters.split)
                    _add(entries, places, count, value, offset, time, number, letters.key, begin, i)
                    count += 1
                begin = i + 1
            i += 1
        begin = found[TAGS, 0]
        end = found[TAGS, 1]
        if end > 0:
            value = _with_byte(_with_byte(head, letters.tag), letters.split)
            value = _with_byte(_with_text(value, data, begin, end), letters.split)
            value = _with_byte(_with_text(value, data, uniq, uniq_stop), letters.split)
            _add(entries, places, count, value, offset, time, number, letters.tag, begin, end)
            count += 1
        value = _with_byte(_with_byte(head, letters.uniq), letters.split)
        value = _with_byte(_with_text(value, data, uniq, uniq_stop), letters.split)
        _add(entries, places, count, value, offset, time, number, letters.uniq, uniq, uniq_stop)
        count += 1
    result[0] = count
    return len(rows)


@compiled
def entry_of_text(text: Any, physical_offset: int, time: int, letters: Letters, entries: Any) -> None:
    """Fill entries[0] for a key whose text, after the hour and before the offset, is `text`."""
    value = _with_text(_with_number(_BASIS, time - time % letters.hour_ms), text, 0, len(text))
    _put(entries[0], value, physical_offset, time)


@inlined
def _below(key: Any, length: int, bound: Any) -> Any:
    """Whether key[:length] sorts before `bound`."""
    size = min(length, len(bound))
    for k in range(size):
        if key[k] != bound[k]:
            return key[k] < bound[k]
    return length < len(bound)


@compiled
def entries_of_block(
    block: Any, end: int, low: Any, high: Any, key: Any, put: int, deletes: Any, entries: Any
) -> int:
    """Fill `entries` with those of block[:end] with keys in [low, high); an empty `high` has no end.

    `key` is memory for one key, of the size of the block. Returns how many there are, or why the block cannot
    be read, or FULL. An entry of a key that no broker writes has the offset -1.
    """
    at = 0
    length = 0
    count = 0
    while at < end:
        shared, own, size, at = entry_lengths(block, at, end)
        if at < 0 or shared > length or own + size > end - at or shared + own > len(key):
            return DAMAGED
        length = shared + own
        for i in range(own):
            key[shared + i] = block[at + i]
        at += own + size
        if length < 8:
            return DAMAGED
        user = length - 8
        if _below(key, user, low) or (len(high) > 0 and not _below(key, user, high)):
            continue
        kind = byte_at(key, user)
        if kind != put and not is_one_of(kind, deletes):
            return UNKNOWN_KIND
        if count == len(entries):
            return FULL
        row = entries[count]
        value = _with_text(_BASIS, key, 0, user)
        row.physical_offset = i64(key, user - 8) if user >= 16 else -1
        row.key = _mixed(value)
        row.fingerprint = _mixed(_with_text(value, block, at - size, at))
        row.sequence = sequence_at(key, user + 1)
        row.is_put = kind == put
        count += 1
    return count
