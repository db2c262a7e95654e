"""The compiled half of `key_match`: many keys hashed, many records judged.

The memory of a later record is requested while this one is judged: the log is read at random, and nearly
every access would wait for the memory. Imports llvmlite: only `key_match` imports this module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rmqtool.log.compiled import compiled, inlined
from rmqtool.log.dispatch_kernel import (
    KEYS,
    TAGS,
    UNIQ_KEY,
    Marks,
    hash_text,
    is_ascii,
    is_utf8,
    key_hash,
    longest_name,
    split_properties,
)
from rmqtool.log.frame_kernel import Numbers
from rmqtool.log.intrinsics import i8, i16, i32, i64, prefetch, u8

_AHEAD = 16  # records whose memory is requested before they are judged
_NEAR = 8


class Verdict(NamedTuple):
    """The numbers of the verdicts on a record."""

    other: int
    found: int
    python: int
    longer: int
    gone: int


@compiled
def hash_keys(texts: Any, ends: Any, seeds: Any, hashes: Any) -> None:
    """The key hash of each text texts[ends[k - 1] : ends[k]], UTF-8, continued from seeds[k % len(seeds)]."""
    begin = 0
    count = len(seeds)
    for k in range(len(ends)):
        hashes[k] = key_hash(hash_text(texts, begin, ends[k], seeds[k % count]))
        begin = ends[k]


@inlined
def _equal(data: Any, start: int, stop: int, texts: Any, begin: int, end: int) -> Any:
    if stop - start != end - begin:
        return False
    for i in range(stop - start):
        if u8(data, start + i) != texts[begin + i]:
            return False
    return True


@inlined
def _has_name(data: Any, found: Any, texts: Any, begin: int, end: int, kind: int, separator: int) -> Any:
    """Whether the values in `found` hold the name: kind 0 key or unique key, 1 unique key, 2 tags."""
    if kind == 2:
        return found[TAGS, 1] > 0 and _equal(data, found[TAGS, 0], found[TAGS, 1], texts, begin, end)
    if found[UNIQ_KEY, 1] > 0 and _equal(data, found[UNIQ_KEY, 0], found[UNIQ_KEY, 1], texts, begin, end):
        return True
    if kind == 1:
        return False
    start = found[KEYS, 0]
    stop = found[KEYS, 1]
    i = start
    while i <= stop and stop > 0:
        if i == stop or data[i] == separator:
            if i > start and _equal(data, start, i, texts, begin, end):
                return True
            start = i + 1
        i += 1
    return False


@inlined
def _judge(
    data: Any, at: int, physical: int, is_end: Any, topics: Any, topic_begin: int, topic_end: int,
    texts: Any, begin: int, end: int, kind: int, names: Any, name_ends: Any, longest: int, found: Any,
    n: Numbers, m: Marks, v: Verdict,
) -> Any:  # fmt: skip
    """The verdict on the record at data[at:], which the index names for `physical`."""
    cut = v.gone if is_end else v.longer
    if at < 0:
        return v.gone
    if at + n.min_record > len(data):
        return cut
    size = i32(data, at)
    magic = i32(data, at + n.magic)
    if (magic != n.magic_v1 and magic != n.magic_v2) or size < n.min_record:
        return v.gone
    if i64(data, at + n.physical_offset) != physical:
        return v.gone
    if at + size > len(data):
        return cut
    flags = i32(data, at + n.sys_flag)
    head = n.head
    if flags & n.born_host_v6:
        head += n.host_growth
    if flags & n.store_host_v6:
        head += n.host_growth
    width = 1 if magic == n.magic_v1 else 2
    if head + width + 2 > size:
        return v.gone
    body = max(i32(data, at + head - 4), 0)
    if body > size - head - width - 2:
        return v.gone
    place = at + head + body
    length = i8(data, place) if width == 1 else i16(data, place)
    place += width
    if length < 0 or place + length + 2 > at + size:
        return v.gone
    topic = place
    place += length
    property_length = max(i16(data, place), 0)
    place += 2
    if place + property_length != at + size:
        return v.gone
    if not _equal(data, topic, topic + length, topics, topic_begin, topic_end):
        return v.other
    split_properties(data, place, place + property_length, names, name_ends, longest, found, m)
    if _has_name(data, found, texts, begin, end, kind, m.separator):
        return v.found
    plain = is_ascii(data, place, place + property_length) or is_utf8(data, place, place + property_length)
    return v.other if plain else v.python


@compiled
def judge_records(
    data: Any, base: int, is_end: Any, offsets: Any, rows: Any, topics: Any, topic_ends: Any, texts: Any,
    ends: Any, kind: int, names: Any, name_ends: Any, found: Any, n: Numbers, m: Marks, v: Verdict,
    sizes: Any, verdicts: Any,
) -> None:  # fmt: skip
    """Judge the records at `offsets`, rising, all of which start in `data`; `base` is where that starts.

    `rows` are the numbers of their keys among `ends`; that of the topic is the key's number modulo the
    number of topics. Fills `sizes` and `verdicts`. With `is_end` nothing follows `data` in its file.
    """
    longest = longest_name(name_ends)
    count = len(offsets)
    topic_count = len(topic_ends)
    for i in range(count):
        if i + _AHEAD < count:
            prefetch(data, offsets[i + _AHEAD] - base)
            prefetch(data, offsets[i + _AHEAD] - base + 64)
        if i + _NEAR < count:
            near = offsets[i + _NEAR] - base
            if near + 4 <= len(data):
                stop = near + i32(data, near)
                prefetch(data, stop - 64)
                prefetch(data, stop - 128)
                prefetch(data, stop - 192)
        k = rows[i]
        topic = k % topic_count
        at = offsets[i] - base
        verdicts[i] = _judge(
            data, at, offsets[i], is_end, topics, topic_ends[topic - 1] if topic else 0, topic_ends[topic],
            texts, ends[k - 1] if k else 0, ends[k], kind, names, name_ends, longest, found, n, m, v,
        )  # fmt: skip
        sizes[i] = i32(data, at) if 0 <= at and at + 4 <= len(data) else 0
