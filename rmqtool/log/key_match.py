"""Whether records have keys: thousands of (record, key) pairs judged as columns, without decoding a record.

`Names` holds the keys and their hashes, `judge` reads the records at given offsets and says which of them
really have the key. `read.key_columns` judges with it what index entries name.

Source: MQAdminImpl#queryMessage; spec 01 section 6.3, spec 02 section 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.formats.index import KeyKind, key_text, tag_text
from rmqtool.formats.java import java_utf8_encode, string_hash
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.dispatch import marks, name_table
from rmqtool.log.frames import numbers
from rmqtool.storage.buffers import Array
from rmqtool.storage.source import ByteSource

if TYPE_CHECKING:
    from rmqtool.log.key_match_kernel import Verdict

KINDS: tuple[KeyKind, ...] = ("key", "uniq_key", "tag")  # their numbers in the kernel

OTHER, FOUND, PYTHON, LONGER, GONE = range(5)
"""Verdicts: another key; the key; to be judged in Python; the record goes on after the window; no record."""

_WINDOW = 32 << 20
_GAP_MAX = 1 << 20  # bytes between two records: reading them is cheaper than another window
_TAIL = 64 << 10  # bytes after a record's start that are read with it
_RECORD_MAX = 1 << 28


class Names:
    """Names of one kind, each in one topic: name k belongs to topic k modulo the number of topics.

    Args:
        names: keys, unique keys or tags.
        topics: one topic for all of them, or as many topics as names.
        kind: what the names are.
    """

    def __init__(self, names: Sequence[str], topics: Sequence[str], kind: KeyKind = "key") -> None:
        self.kind = kind
        self.texts, self.ends = packed(names)
        self.topics, self.topic_ends = packed(topics)
        self.seeds = seeds_of(topics, kind)

    @cached_property
    def hashes(self) -> Array:
        """The key hash of each name, i4."""
        return hashes_of_texts(self.texts, self.ends, self.seeds)


def hashes_of_texts(texts: Array, ends: Array, seeds: Array) -> Array:
    """The key hash of each of the texts, i4, with the seed of its number modulo the number of seeds."""
    from rmqtool.log import key_match_kernel as kernel

    hashes = np.empty(len(ends), np.int32)
    kernel.hash_keys(texts, ends, seeds, hashes)
    return hashes


def seeds_of(topics: Sequence[str], kind: KeyKind) -> Array:
    """What the hash of a name in each topic begins with, i4."""
    make = tag_text if kind == "tag" else key_text
    cached = {topic: string_hash(make(topic, "")) for topic in set(topics)}
    return np.fromiter((cached[topic] for topic in topics), np.int32, len(topics))


def packed(texts: Sequence[str]) -> tuple[Array, Array]:
    """The texts end to end as UTF-8, u1, and where each ends, i8."""
    joined = "".join(texts)
    if joined.isascii():
        data = joined.encode("ascii")
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    else:
        encoded = [java_utf8_encode(text) for text in texts]
        data = b"".join(encoded)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return np.frombuffer(data, np.uint8), np.cumsum(lengths)


@dataclass(frozen=True)
class Judged:
    """Judged records: verdicts, u1, and sizes in bytes, i4, in the order in which `judge` got the records."""

    verdicts: Array
    sizes: Array


def judge(source: ByteSource, file_from_offset: int, names: Names, keys: Array, offsets: Array) -> Judged:
    """Whether the records at `offsets` have the names that the index says.

    Args:
        source: the commit log file that holds them.
        file_from_offset: physical offset of its first byte.
        names: the names.
        keys: i4, per record the number of its name.
        offsets: i8, physical offsets, rising, in the file; where nothing sound starts the verdict is GONE.
    """
    sizes, verdicts = np.zeros(len(offsets), np.int32), np.empty(len(offsets), np.uint8)
    places = offsets - file_from_offset
    first = 0
    while first < len(offsets):
        stop = _together(places, first)
        begin = int(places[first])
        end = min(int(places[stop - 1]) + _TAIL, source.size)
        part = slice(first, stop)
        _judge_window(
            source,
            file_from_offset,
            begin,
            end,
            names,
            keys[part],
            offsets[part],
            sizes[part],
            verdicts[part],
        )
        for number in (first + np.flatnonzero(verdicts[part] == LONGER)).tolist():
            one = slice(number, number + 1)
            start = int(places[number])
            end = min(start + min(max(int(sizes[number]), _TAIL), _RECORD_MAX), source.size)
            _judge_window(
                source,
                file_from_offset,
                start,
                end,
                names,
                keys[one],
                offsets[one],
                sizes[one],
                verdicts[one],
            )
        first = stop
    return Judged(verdicts, sizes)


def _together(places: Array, first: int) -> int:
    """The place after the last record that is read in one window with the first one."""
    last = int(np.searchsorted(places, places[first] + _WINDOW, "right"))
    apart = np.flatnonzero(np.diff(places[first:last]) > _GAP_MAX)
    return first + int(apart[0]) + 1 if len(apart) else last


def _judge_window(
    source: ByteSource, file_from_offset: int, begin: int, end: int, names: Names, keys: Array,
    offsets: Array, sizes: Array, verdicts: Array,
) -> None:  # fmt: skip
    from rmqtool.log import key_match_kernel as kernel

    data = source.window(begin, end - begin)
    table, table_ends = name_table()
    found = np.empty((len(table_ends), 2), np.int64)
    kernel.judge_records(
        data, file_from_offset + begin, end >= source.size, offsets, keys, names.topics, names.topic_ends,
        names.texts, names.ends, KINDS.index(names.kind), table, table_ends, found, numbers(), marks(),
        _verdict(), sizes, verdicts,
    )  # fmt: skip


def _verdict() -> Verdict:
    from rmqtool.log.key_match_kernel import Verdict

    return Verdict(other=OTHER, found=FOUND, python=PYTHON, longer=LONGER, gone=GONE)
