"""The properties of many records as ranges of bytes: names, values, TAGS, KEYS, UNIQ_KEY.

Compiled code parses the strings by the rules of `formats.properties.decode`. Strings that are not UTF-8, or
have very many properties, are decoded by that function one by one.

Source: MessageDecoder#string2messageProperties; spec 01 3.4.
"""

from __future__ import annotations

import numpy as np

from rmqtool.formats import properties
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.dispatch import NAMES, marks, name_table
from rmqtool.log.events import PROPERTIES_UNSOUND, PROPERTY_CRC_BAD
from rmqtool.log.frames import Frames
from rmqtool.log.string_ranges import Ranges
from rmqtool.storage.buffers import Array

_PAIR = np.dtype([("name", "i8"), ("value", "i8"), ("name_length", "i4"), ("value_length", "i4")], align=True)


@dataclass(frozen=True)
class Pairs:
    """The properties of a batch of records, in stored order.

    Attributes:
        names: all names, record by record.
        values: their values, of the same shape.
        stops: i4, shape (rows + 1,): record k has the pairs [stops[k], stops[k + 1]).
        sound: bool, shape (rows,): `formats.properties.sound` of the stored bytes.
        exact: bool, shape (rows,): `formats.properties.round_trips` of the stored bytes.
    """

    names: Ranges
    values: Ranges
    stops: Array
    sound: Array
    exact: Array
    _found: Array

    @property
    def tags(self) -> Ranges:
        """The value of TAGS of each record."""
        return self._named(0)

    @property
    def keys(self) -> Ranges:
        """The value of KEYS of each record, not split."""
        return self._named(1)

    @property
    def uniq_key(self) -> Ranges:
        """The value of UNIQ_KEY of each record."""
        return self._named(2)

    def _named(self, number: int) -> Ranges:
        places = self._found[:, number]
        missing = places < 0
        if not len(self.values):
            return Ranges(
                self.values.data, np.zeros(len(places), np.int64), np.full(len(places), -1, np.int32)
            )
        lengths = self.values.lengths[places]
        lengths[missing] = -1
        return Ranges(self.values.data, self.values.starts[places], lengths)


def stored_properties(frames: Frames) -> Ranges:
    """The property strings as stored; a negative length counts as 0."""
    lengths = np.maximum(frames.rows["properties_length"], 0).astype(np.int32)
    return Ranges(frames.data, frames.properties_starts(), lengths)


def value_ranges(frames: Frames, name: str) -> Ranges:
    """The value of a single property of every record; faster than `read_pairs`.

    Args:
        frames: the records; their data must still be valid.
        name: the property, one of `dispatch.NAMES`.
    """
    from rmqtool.log import dispatch_kernel as kernel

    stored = stored_properties(frames)
    names, name_ends = name_table()
    found = np.empty((kernel.NAME_COUNT, 2), np.int64)
    places, sizes = np.empty(len(stored), np.int64), np.empty(len(stored), np.int32)
    kernel.value_ranges(
        stored.data, stored.starts, stored.lengths, NAMES.index(name), names, name_ends, found, marks(),
        places, sizes,
    )  # fmt: skip
    values = Ranges(stored.data, places, sizes)
    not_utf8 = np.flatnonzero(sizes == kernel.NOT_UTF8).tolist()
    if not not_utf8:
        return values
    texts = [properties.decode(stored.bytes_of(row)).get(name) for row in not_utf8]
    return values.replaced(not_utf8, [None if text is None else text.encode() for text in texts])


def read_pairs(frames: Frames) -> Pairs:
    """The properties of every record of `frames`, whose data must still be valid."""
    from rmqtool.log import properties_kernel as kernel

    stored = stored_properties(frames)
    plain = np.zeros(len(stored), np.uint8)
    pairs, stops, found, flags = _split(stored, plain)
    left = np.flatnonzero(flags & kernel.LEFT_TO_PYTHON)
    if len(left):
        rows = left.tolist()
        given = [stored.bytes_of(row) for row in rows]
        stored = stored.replaced(rows, [_rewritten(data) for data in given])
        plain[left] = 1
        before = flags
        pairs, stops, found, flags = _split(stored, plain)
        flags[:] = before
        for row, data in zip(rows, given, strict=True):
            flags[row] = (0 if properties.sound(data) else kernel.UNSOUND) | (
                0 if properties.round_trips(data) else kernel.REWRITTEN
            )
    return Pairs(
        names=_ranges(stored.data, pairs, "name"),
        values=_ranges(stored.data, pairs, "value"),
        stops=stops,
        sound=(flags & kernel.UNSOUND) == 0,
        exact=(flags & kernel.REWRITTEN) == 0,
        _found=found,
    )


def _rewritten(data: bytes) -> bytes:
    """A sound property string that decodes to the same properties as `data`."""
    return "".join(
        f"{name}{properties.NAME_END}{value}{properties.VALUE_END}"
        for name, value in properties.decode(data).items()
    ).encode()


def _ranges(data: Array, pairs: Array, field: str) -> Ranges:
    starts, lengths = pairs[field], pairs[f"{field}_length"]
    return Ranges(data, np.ascontiguousarray(starts), np.ascontiguousarray(lengths))


def _split(stored: Ranges, plain: Array) -> tuple[Array, Array, Array, Array]:
    """(pairs, stops, found, flags) of `split_properties`."""
    from rmqtool.log import properties_kernel as kernel

    count = len(stored)
    places = int(((stored.lengths.astype(np.int64) + 1) // 4).sum())
    pairs = np.empty(places, _PAIR)
    stops = np.empty(count + 1, np.int32)
    found = np.empty((count, kernel.FOUND_COUNT), np.int32)
    flags = np.empty(count, np.uint8)
    names, name_ends = name_table()
    used = kernel.split_properties(
        stored.data, stored.starts, stored.lengths, plain, names, name_ends, marks(),
        pairs, stops, found, flags,
    )  # fmt: skip
    return pairs[:used], stops, found, flags


def split_keys(values: Ranges) -> tuple[Array, Ranges]:
    """(stops, keys) of values of KEYS: row k has the keys [stops[k], stops[k + 1]).

    Source: IndexService#buildIndex.
    """
    from rmqtool.log import properties_kernel as kernel

    places = int(((np.maximum(values.lengths, 0).astype(np.int64) + 1) // 2).sum())
    stops = np.empty(len(values) + 1, np.int32)
    starts, lengths = np.empty(places, np.int64), np.empty(places, np.int32)
    used = kernel.split_keys(
        values.data, values.starts, values.lengths, ord(properties.KEY_SEPARATOR), stops, starts, lengths
    )
    return stops, Ranges(values.data, starts[:used], lengths[:used])


def status_of_ends(frames: Frames) -> Array:
    """The status bits that the ends of records show: u1, shape (rows,).

    PROPERTY_CRC_BAD where the property CRC does not match, PROPERTIES_UNSOUND where the record ends in zeros.
    That a property string cannot be parsed is `Pairs.sound`.
    """
    from rmqtool.log import string_ranges_kernel as text_kernel
    from rmqtool.log.crc import crc_address, crc_tables

    flags = np.empty(len(frames.rows), np.uint8)
    text_kernel.record_end_states(
        frames.data, frames.starts(), frames.rows, *name_table(), crc_address(), crc_tables(), marks(), flags
    )
    status: Array = flags & (PROPERTY_CRC_BAD | PROPERTIES_UNSOUND)
    return status
