"""The order of a Java ConcurrentHashMap, in which a broker writes the tables of its config files.

The hash of its key determines the bucket of an entry; a new entry goes to the end of its bucket. When
the entries reach three quarters of the buckets, the table doubles: each bucket is split in two, which
may reverse a part of it. The file does not say how often a table has doubled; `put_all` derives it from
the order.

Java turns a bucket of 8 or more keys into a tree, whose order may differ. Only keys made for that
purpose collide so often.

Source: java.util.concurrent.ConcurrentHashMap#putVal, #addCount, #transfer (Java 8 to 21); executed
on 17 for 5,000 names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rmqtool.formats.java import string_hash

Key = str | int
Value = TypeVar("Value")

BUCKETS_MAX = 1 << 24
"""`put_all` tries no larger table: no broker has that many topics."""


def put_all(table: dict[Key, Value], new: dict[Key, Value], buckets: int) -> dict[Key, Value]:
    """`table` with everything in `new` put into it, in Java's iteration order.

    Args:
        table: as read from a file. The value of a known key is replaced; the key keeps its place.
        new: the entries to put, in this order.
        buckets: buckets of the broker's empty map, a power of two.

    If no number of buckets explains the order of `table`, the new keys come last.
    """
    values = {**table, **new}
    added = [key for key in new if key not in table]
    found = _buckets_of(list(table), buckets)
    if not added or found is None:
        return values
    map_ = _Map(found, table)
    for key in added:
        map_.put(key)
    return {key: values[key] for key in map_.keys()}


def _buckets_of(keys: Sequence[Key], buckets: int) -> int | None:
    """The smallest table size from `buckets` on that gives `keys` in this order; None if none does."""
    hashes = [_spread(key) for key in keys]
    while buckets <= BUCKETS_MAX:
        places = [value & (buckets - 1) for value in hashes]
        if all(first <= second for first, second in zip(places, places[1:], strict=False)):
            return buckets
        buckets *= 2
    return None


class _Map:
    """The buckets of a ConcurrentHashMap with their keys in order, without values."""

    def __init__(self, buckets: int, keys: Iterable[Key]) -> None:
        self.buckets = buckets
        self.bins: dict[int, list[Key]] = {}
        self.count = 0
        for key in keys:  # they fit, else the table would have doubled
            self._append(key)

    def keys(self) -> Iterable[Key]:
        for place in sorted(self.bins):
            yield from self.bins[place]

    def put(self, key: Key) -> None:
        """Put a new key."""
        self._append(key)
        while self.count >= self.buckets - (self.buckets >> 2):
            self._double()

    def _append(self, key: Key) -> None:
        self.bins.setdefault(_spread(key) & (self.buckets - 1), []).append(key)
        self.count += 1

    def _double(self) -> None:
        """Split every bucket: its last run of one side keeps its order, the keys before are reversed."""
        bit, bins = self.buckets, self.bins
        self.buckets, self.bins = bit * 2, {}
        for place, keys in bins.items():
            sides = [_spread(key) & bit for key in keys]
            run = len(sides) - 1
            while run and sides[run - 1] == sides[-1]:
                run -= 1
            parts: dict[int, list[Key]] = {0: [], bit: []}
            for key, side in zip(reversed(keys[:run]), reversed(sides[:run]), strict=True):
                parts[side].append(key)
            parts[sides[-1]] += keys[run:]
            self.bins |= {place + side: part for side, part in parts.items() if part}


def _spread(key: Key) -> int:
    value = string_hash(key) & 0xFFFFFFFF if isinstance(key, str) else _number_hash(key)
    return (value ^ (value >> 16)) & 0x7FFFFFFF


def _number_hash(key: int) -> int:
    """`Integer#hashCode` of an i32, else `Long#hashCode`; as u32."""
    return key & 0xFFFFFFFF if -(1 << 31) <= key < 1 << 31 else (key ^ key >> 32) & 0xFFFFFFFF
