"""The order of a Java ConcurrentHashMap, in which a broker writes the tables of its config files.

An entry stands in the bucket of its key's hash; a new one goes to the end of its bucket. From three
quarters of the buckets on the table doubles, and each bucket is parted in two, by which a part of
it may turn around. How often a table has doubled is not in the file: `put_all` sees it from the order.

A bucket of 8 and more keys becomes a tree in Java and may come out in another order there; keys
that were not made for it never get that far.

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
"""Larger tables are not looked for: no broker has that many topics."""


def put_all(table: dict[Key, Value], new: dict[Key, Value], buckets: int) -> dict[Key, Value]:
    """`table` after `put` of everything in `new`, in the order in which Java then gives it back.

    Args:
        table: as read from a file. The value of a known key is replaced, at its place.
        new: what is put, in this order.
        buckets: of the empty map as the broker makes it, a power of two.

    Where no number of buckets gives the order of `table`, new keys come last.
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
    """The smallest table, from `buckets` on, that gives `keys` in this order; None: no one does."""
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
        """Take a key that is not there."""
        self._append(key)
        while self.count >= self.buckets - (self.buckets >> 2):
            self._double()

    def _append(self, key: Key) -> None:
        self.bins.setdefault(_spread(key) & (self.buckets - 1), []).append(key)
        self.count += 1

    def _double(self) -> None:
        """Part every bucket: its last run of one side stays in order, what is before it turns around."""
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
    """`Integer#hashCode`, and `Long#hashCode` for what is no i32; as u32."""
    return key & 0xFFFFFFFF if -(1 << 31) <= key < 1 << 31 else (key ^ key >> 32) & 0xFFFFFFFF
