"""The topics that the rows of a table name: numbered, and looked up once each."""

from __future__ import annotations

import numpy as np

from rmqtool.errors import IllegalMessageError
from rmqtool.formats.java import java_utf8_encode
from rmqtool.formats.message import VERSION_BY_MAGIC
from rmqtool.storage.buffers import Array
from rmqtool.storage.profile import Profile
from rmqtool.write.records.record_parts import topic_parts

_FIRST_CAPACITY = 64


def longer(array: Array, least: int) -> Array:
    """The array with zeros behind its last axis: twice as long, or `least`; itself when it is long enough."""
    size = array.shape[-1]
    if size >= least:
        return array
    more = np.zeros((*array.shape[:-1], max(least, 2 * size) - size), array.dtype)
    return np.concatenate([array, more], axis=-1)


class Topics:
    """Topics by number.

    Attributes:
        names: by number.
        data: their UTF-8 bytes, by number.
        versions: i8, shape (2, numbers or more): of records with plain messages, new ones and those as
            stored; 0: each row needs a look of its own.
        bases, widths: i8 by number, see `Queues`.
    """

    def __init__(self, profile: Profile) -> None:
        self.names: list[str] = []
        self.data: list[bytes] = []
        self.versions = np.zeros((2, _FIRST_CAPACITY), np.int64)
        self.bases = np.zeros(_FIRST_CAPACITY, np.int64)
        self.widths = np.zeros(_FIRST_CAPACITY, np.int64)
        self._profile = profile
        self._numbers: dict[str, int] = {}

    def numbers(self, names: list[str]) -> Array:
        """The numbers of topics, i8; new ones are looked up."""
        found = list(map(self._numbers.get, names))
        if None in found:
            found = [
                self._add(names[place]) if number is None else number for place, number in enumerate(found)
            ]
        return np.array(found, np.int64)

    def _add(self, name: str) -> int:
        number = self._numbers[name] = len(self.names)
        self.names.append(name)
        self.data.append(java_utf8_encode(name))
        self.versions = longer(self.versions, number + 1)
        self.bases, self.widths = longer(self.bases, number + 1), longer(self.widths, number + 1)
        try:
            parts = topic_parts(name, self._profile)
        except IllegalMessageError:
            return number
        version = VERSION_BY_MAGIC[parts.magic]
        self.versions[:, number] = 0 if parts.closed else version, version
        return number
