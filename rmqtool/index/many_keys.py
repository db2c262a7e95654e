"""Many keys looked up in index files at once, and the records that their entries name judged, as columns.

`Names` holds the keys and their hashes, `candidates` follows their chains through one index file,
`judge` reads the records and tells which of them really have the key. Nothing is decoded.

Source: IndexFile#selectPhyOffset, MQAdminImpl#queryMessage; spec 01 section 6.3, spec 02 section 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from rmqtool.formats import index
from rmqtool.formats.java import java_utf8_encode, string_hash
from rmqtool.log.dispatch import marks, name_table
from rmqtool.log.frames import numbers
from rmqtool.storage.buffers import Array
from rmqtool.storage.source import ByteSource

if TYPE_CHECKING:
    from rmqtool.index.many_keys_kernel import Shape, Verdict


NameKind = Literal["key", "uniq_key", "tag"]
KINDS: tuple[NameKind, ...] = ("key", "uniq_key", "tag")  # their numbers in the kernel

OTHER, FOUND, PYTHON, LONGER, GONE = range(5)
"""Verdicts: another key; the key; to be judged in Python; the record goes on behind the window; no record."""

_WINDOW = 32 << 20
_GAP_MAX = 1 << 20  # bytes between two records: reading them is cheaper than another window
_TAIL = 64 << 10  # bytes behind a record's start that are read with it
_RECORD_MAX = 1 << 28
_ROOM = 1 << 16


class Names:
    """Names of one kind, each in one topic: name k belongs to topic k modulo the number of topics.

    Args:
        names: keys, unique keys or tags.
        topics: one topic for all of them, or as many topics as names.
        kind: what the names are.
    """

    def __init__(self, names: Sequence[str], topics: Sequence[str], kind: NameKind = "key") -> None:
        self.kind = kind
        self.texts, self.ends = _packed(names)
        self.topics, self.topic_ends = _packed(topics)
        make = index.tag_text if kind == "tag" else index.key_text
        cached = {topic: string_hash(make(topic, "")) for topic in set(topics)}
        self.seeds = np.fromiter((cached[topic] for topic in topics), np.int32, len(topics))

    @cached_property
    def hashes(self) -> Array:
        """The key hash of each name, i4."""
        from rmqtool.index import many_keys_kernel as kernel

        hashes = np.empty(len(self.ends), np.int32)
        kernel.hash_keys(self.texts, self.ends, self.seeds, hashes)
        return hashes


def _packed(texts: Sequence[str]) -> tuple[Array, Array]:
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


class Candidates(NamedTuple):
    """Index entries with the hash of a name: number of the name, i4, and physical offset, i8.

    `broken` are the numbers of names whose chain cannot be followed to its end.
    """

    keys: Array
    offsets: Array
    broken: Array


def used_part(source: ByteSource, shape: index.Shape, used: int) -> Array:
    """The bytes of an index file up to the last of its entries [0, used), for the three functions below.

    Chains lead through all of it, so it is read once and as a whole.
    """
    return source.window(0, shape.entry_offset(min(max(used, 1), shape.entries)))


def candidates(data: Array, shape: index.Shape, used: int, hashes: Array) -> Candidates:
    """The entries of one index file that have one of `hashes`, in no order.

    Args:
        data: its `used_part`.
        shape: how it is divided.
        used: entries [1, used) are in use by its header; what a chain names behind them is broken.
        hashes: i4, key hashes; the same one may be there several times.
    """
    from rmqtool.index import many_keys_kernel as kernel

    used = min(used, shape.entries, max((len(data) - shape.entry_offset(0)) // index.ENTRY_SIZE, 0))
    count = len(hashes)
    if used <= 1:
        return Candidates(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32))
    active, number = np.empty(count, np.int32), np.empty(count, np.int64)
    limits = np.full(count, used, np.int64)
    broken = np.empty(count, np.int32)
    layout = _kernel_shape(shape)
    state = np.zeros(3, np.int64)
    state[0] = kernel.newest_entries(data, hashes, layout, active, number)
    keys, offsets = np.empty(count + _ROOM, np.int32), np.empty(count + _ROOM, np.int64)
    while state[0]:
        if state[1] + state[0] > len(keys):
            keys, offsets = (np.concatenate([each, np.empty_like(each)]) for each in (keys, offsets))
        kernel.follow_chains(data, hashes, layout, active, number, limits, state, keys, offsets, broken)
    return Candidates(keys[: state[1]], offsets[: state[1]], broken[: state[2]])


def count_entries(data: Array, shape: index.Shape, hashes: Array) -> int:
    """How many entries of a `used_part` have one of `hashes`; by sound chains `candidates` finds as many."""
    size = index.ENTRY_SIZE
    data = data[shape.entry_offset(1) :]
    words = data[: len(data) - len(data) % size].view(">i4").reshape(-1, size // 4)
    there, counts = np.unique(words[:, 0], return_counts=True)
    places = np.searchsorted(there, hashes)
    known = places < len(there)
    known[known] = there[places[known]] == hashes[known]
    return int(counts[places[known]].sum())


def has_lost_slots(data: Array, shape: index.Shape, in_use: int) -> bool:
    """Whether fewer slots name an entry than an index file's header counts, so that chains are gone."""
    data = data[shape.slot_offset(0) : shape.entry_offset(0)]
    slots = data[: len(data) - len(data) % index.SLOT_SIZE].view(np.int32)
    return int(np.count_nonzero(slots)) < in_use


def _kernel_shape(shape: index.Shape) -> Shape:
    from rmqtool.index.many_keys_kernel import Shape

    fields = index.ENTRY.offsets
    return Shape(
        slots_at=shape.slot_offset(0),
        slots=shape.slots,
        slot_size=index.SLOT_SIZE,
        entries_at=shape.entry_offset(0),
        entries=shape.entries,
        entry_size=index.ENTRY_SIZE,
        hash_at=fields["key_hash"],
        physical_at=fields["physical_offset"],
        previous_at=fields["previous"],
    )


@dataclass(frozen=True)
class Judged:
    """What the records are: verdicts, u1, and their sizes in bytes, i4, as `judge` was given them."""

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
    """Behind the last record that is read in one window with the first one."""
    last = int(np.searchsorted(places, places[first] + _WINDOW, "right"))
    apart = np.flatnonzero(np.diff(places[first:last]) > _GAP_MAX)
    return first + int(apart[0]) + 1 if len(apart) else last


def _judge_window(
    source: ByteSource, file_from_offset: int, begin: int, end: int, names: Names, keys: Array,
    offsets: Array, sizes: Array, verdicts: Array,
) -> None:  # fmt: skip
    from rmqtool.index import many_keys_kernel as kernel

    data = source.window(begin, end - begin)
    table, table_ends = name_table()
    found = np.empty((len(table_ends), 2), np.int64)
    kernel.judge_records(
        data, file_from_offset + begin, end >= source.size, offsets, keys, names.topics, names.topic_ends,
        names.texts, names.ends, KINDS.index(names.kind), table, table_ends, found, numbers(), marks(),
        _verdict(), sizes, verdicts,
    )  # fmt: skip


def _verdict() -> Verdict:
    from rmqtool.index.many_keys_kernel import Verdict

    return Verdict(other=OTHER, found=FOUND, python=PYTHON, longer=LONGER, gone=GONE)
