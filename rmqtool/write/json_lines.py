"""Lines of JSON objects with known fields -> where the values of each field stand, in compiled code.

    fields = Fields({"topic": TEXT, "queue_id": I32})
    parsed = parse(data, line_count, fields)

What is plain is read, which is what programs write: texts, whole numbers, booleans, null, lists and
objects of texts, one object a line. `parse` says None for all else, be it wrong, as a field twice or
a name that is not known, or right, as an object over several lines: another reader has to tell.
Whether the bytes are UTF-8 is left to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rmqtool.log.string_ranges import Ranges
from rmqtool.storage.buffers import Array
from rmqtool.write import json_kernel, json_text_kernel
from rmqtool.write.json_kernel import BOOL as BOOL
from rmqtool.write.json_kernel import I32 as I32
from rmqtool.write.json_kernel import I64 as I64
from rmqtool.write.json_kernel import MAP as MAP
from rmqtool.write.json_kernel import SCALAR as SCALAR
from rmqtool.write.json_kernel import TEXT as TEXT
from rmqtool.write.json_kernel import TEXTS as TEXTS

_LEAST_CHILD = 2  # bytes of a text in a list: its quotes


class Fields:
    """The fields that objects may have, and what each holds.

    I32, I64: a whole number; TEXT; BOOL; TEXTS: a list of texts, or one; MAP: an object of texts;
    SCALAR: a text, a whole number or a boolean, whose value nobody asks for.
    """

    def __init__(self, kinds: Mapping[str, int]) -> None:
        self.numbers = {name: number for number, name in enumerate(kinds)}
        names = [name.encode() for name in kinds]
        self.names = np.frombuffer(b"".join(names), np.uint8)
        self.ends = np.cumsum([0, *map(len, names)], dtype=np.int32)
        self.kinds = np.array(list(kinds.values()), np.int64)


@dataclass(frozen=True)
class Parsed:
    """The objects of a block of lines; `fields` are theirs.

    Attributes:
        lines: the line of each row, from 0, shape (rows,).
    """

    lines: Array
    _fields: Fields
    _data: Array
    _starts: Array
    _lengths: Array
    _child_starts: Array
    _child_lengths: Array

    def has(self, name: str) -> Array:
        """Which rows have a value of the field, shape (rows,)."""
        present: Array = self._lengths[self._fields.numbers[name]] >= 0
        return present

    def values(self, name: str) -> Array:
        """The numbers of a field, i8, shape (rows,), or 0 and 1 of booleans; 0 where it has none."""
        values: Array = np.where(self.has(name), self._starts[self._fields.numbers[name]], 0)
        return values

    def texts(self, name: str) -> Ranges:
        """The texts of a field of TEXT."""
        number = self._fields.numbers[name]
        return Ranges(self._data, self._starts[number], self._lengths[number])

    def children(self, name: str) -> tuple[Array, Ranges]:
        """(offsets, texts) of a field of TEXTS or MAP: row k has texts[offsets[k] : offsets[k + 1]].

        Of a MAP that is name, value, name, value. offsets: i8, shape (rows + 1,).
        """
        number = self._fields.numbers[name]
        counts = np.maximum(self._lengths[number], 0).astype(np.int64)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        places = np.repeat(self._starts[number] - offsets[:-1], counts) + np.arange(offsets[-1])
        return offsets, Ranges(self._data, self._child_starts[places], self._child_lengths[places])


def parse(data: memoryview, line_count: int, fields: Fields) -> Parsed | None:
    """The objects of whole lines; None where anything is not plain.

    Args:
        data: the bytes; the last line may lack its end. What is returned is valid as long as they are.
        line_count: how many lines there are; empty ones hold no object.
        fields: those that objects may have.
    """
    block = np.frombuffer(data, np.uint8)
    block.flags.writeable = False
    starts = np.empty((len(fields.kinds), line_count), np.int64)
    lengths = np.full((len(fields.kinds), line_count), json_text_kernel.NO_VALUE, np.int32)
    lines = np.empty(line_count, np.int64)
    child_starts = np.empty(len(block) // _LEAST_CHILD + 1, np.int64)
    child_lengths = np.empty(len(child_starts), np.int32)
    result = np.zeros(json_kernel.RESULT_SIZE, np.int64)
    rows = json_kernel.parse_lines(
        block, fields.names, fields.ends, fields.kinds, starts, lengths,
        np.full(len(fields.kinds), -1, np.int64), np.zeros(len(fields.kinds) + 1, np.int64),
        lines, child_starts, child_lengths, result,
    )  # fmt: skip
    if rows == json_kernel.GAVE_UP:
        return None
    count = int(result[json_kernel.CHILDREN])
    child_starts, child_lengths = child_starts[:count], child_lengths[:count]
    if result[json_kernel.ESCAPES]:
        block = block.copy()
        json_text_kernel.unescape(block, starts.reshape(-1), lengths.reshape(-1))
        json_text_kernel.unescape(block, child_starts, child_lengths)
        block.flags.writeable = False
    return Parsed(
        lines[:rows], fields, block, starts[:, :rows], lengths[:, :rows], child_starts, child_lengths
    )
