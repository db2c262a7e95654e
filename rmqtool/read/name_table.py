"""The names of a look-up as columns: thousands of them are hashed, and recognized in records, together."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.formats.index import KeyKind
from rmqtool.log.key_match import hashes_of_texts, packed, seeds_of
from rmqtool.log.string_ranges import Ranges, TextSet
from rmqtool.storage.buffers import Array, distinct

if TYPE_CHECKING:
    import pyarrow as pa

_NEVER = b"\xff"  # in no record: what was read from disk is UTF-8


class NameTable:
    """Names, each once, by their numbers.

    Attributes:
        names: the names, in the order of their numbers.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = list(names)

    @cached_property
    def _packed(self) -> tuple[Array, Array]:
        return packed(self.names)

    @cached_property
    def _is_ascii(self) -> bool:
        return not (self._packed[0] > 0x7F).any()

    def hashes(self, topics: Iterable[str], kind: KeyKind) -> HashColumn:
        """The hashes of all names in all of the topics."""
        found = [hashes_of_texts(*self._packed, seeds_of([topic], kind)) for topic in topics]
        return HashColumn(np.concatenate(found) if found else np.zeros(0, np.int32))

    @cached_property
    def texts(self) -> TextSet:
        """The names as a record can hold them; lone surrogates are in no record."""
        if not self._is_ascii:
            return TextSet([_utf8(name) for name in self.names])
        data, ends = self._packed
        lengths = np.diff(ends, prepend=0).astype(np.int32)
        return TextSet(Ranges(data, ends - lengths, lengths))

    def flags(self) -> Array:
        """False for every name."""
        return np.zeros(len(self.names), np.bool_)

    def array(self, numbers: Array) -> pa.Array:
        """The names with these numbers, as an array of strings."""
        import pyarrow as pa

        if not self._is_ascii:
            return pa.array([self.names[number] for number in numbers.tolist()], pa.string())
        return self._array.take(pa.array(numbers))

    @cached_property
    def _array(self) -> pa.Array:
        import pyarrow as pa

        data, ends = self._packed
        offsets = np.concatenate([[0], ends])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.large_string(), len(self.names), buffers).cast(pa.string())


class HashColumn:
    """Distinct hashes, i4, rising."""

    def __init__(self, hashes: Array) -> None:
        self.values = distinct(hashes)

    @classmethod
    def of(cls, hashes: Collection[int]) -> HashColumn:
        """The same hashes as a column."""
        return cls(np.fromiter(hashes, np.int32, len(hashes)))

    def __len__(self) -> int:
        return len(self.values)

    def isdisjoint(self, hashes: Iterable[int]) -> bool:
        """As `set.isdisjoint`."""
        wanted = np.fromiter(hashes, np.int64)
        if not len(self.values):
            return True
        places = np.minimum(np.searchsorted(self.values, wanted), len(self.values) - 1)
        return not bool((self.values[places] == wanted).any())


def _utf8(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        return _NEVER
