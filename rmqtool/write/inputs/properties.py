"""The properties of whole columns of rows: those with a column of their own, those stored as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.write import row_reader
from rmqtool.write.inputs.cells import TYPES, Cells, Mask, as_numpy
from rmqtool.write.row_reader import OWN_COLUMN, InputRow, RowError

_NUMBERS = ("size", "body_length", "sys_flag", "version")


class _Maps:
    """A map column taken apart: `rows` is the row of each pair, shape (pairs,)."""

    def __init__(self, array: pa.MapArray) -> None:
        self.array = array
        offsets = as_numpy(array.offsets).astype(np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        self.keys = array.keys.slice(first, last - first)
        self.items = array.items.slice(first, last - first)
        self.offsets = offsets - first
        self.rows = np.repeat(np.arange(len(array)), np.diff(offsets))

    def kept(self, keep: Mask) -> Any:
        """The column with the pairs of `keep` only; None when no pair is left."""
        if not keep.any():
            return None
        if keep.all():
            return self.array
        lengths = np.bincount(self.rows[keep], minlength=len(self.array))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        chosen = pa.array(keep)
        return pa.MapArray.from_arrays(offsets, self.keys.filter(chosen), self.items.filter(chosen))


def read_properties(cells: Cells, stored: Mask) -> None:
    """Fills properties, properties_bytes and the columns of single properties.

    Args:
        cells: the batch, its other columns done.
        stored: rows that are stored as they were, shape (rows,).
    """
    array = cells.with_default("properties", cells.maps("properties"), ~stored)
    maps = None if array is None else _Maps(array)
    if maps is not None:
        keep = ~stored[maps.rows]
        for name, column in OWN_COLUMN.items():
            _own_column(cells, maps, name, column, keep, stored)
        cells.done["properties"] = maps.kept(keep)
    for column in OWN_COLUMN.values():
        cells.done[column] = cells.with_default(column, cells.done.get(column), ~stored)
    if stored.any():
        cells.done["properties_bytes"] = _strings(cells, stored, maps)
        new = pa.array(~stored)
        for column in OWN_COLUMN.values():
            values = cells.done[column]
            if values is not None:
                cells.done[column] = pc.if_else(new, values, pa.scalar(None, values.type))


def _own_column(cells: Cells, maps: _Maps, name: str, column: str, keep: Mask, stored: Mask) -> None:
    """A property that has a column: its pairs leave the map, their values fill the column."""
    here = as_numpy(pc.equal(maps.keys, name))
    if not here.any():
        return
    keep &= ~here
    there = cells.done.get(column)
    places = np.flatnonzero(here)
    rows = maps.rows[places]
    wanted = ~stored[rows]
    if there is not None:
        wanted |= as_numpy(there.is_valid())[rows]
    place_of = np.full(cells.count, -1, np.int64)
    place_of[rows[wanted]] = places[wanted]
    found = maps.items.take(pa.array(place_of, mask=place_of < 0))
    if TYPES[column] != found.type:
        found = cells.each(found, TYPES[column], lambda text: row_reader.own_value(name, text))
    if there is None:
        cells.done[column] = found
        return
    for row in np.flatnonzero(as_numpy(pc.not_equal(there, found).fill_null(False))):
        value, text = there[int(row)].as_py(), found[int(row)].as_py()
        if column != "keys" or row_reader.split_keys(value) != row_reader.split_keys(text):
            cells.error(row, RowError(row_reader.disagree(name, value, str(text)), column=column))
    cells.done[column] = pc.coalesce(there, found)


def _strings(cells: Cells, stored: Mask, maps: _Maps | None) -> pa.Array:
    """The property strings of rows as stored; null for the others."""
    numbers = {name: _or_zero(cells, name) for name in _NUMBERS}
    odd = stored & ~cells.empty
    strings = pa.nulls(cells.count, pa.binary())
    if maps is not None:
        strings, sound = _joined(cells, maps, numbers)
        odd &= ~(sound & ~cells.valid("properties_base64") & as_numpy(maps.array.is_valid()))
        strings = pc.if_else(pa.array(stored & ~odd), strings, pa.scalar(None, pa.binary()))
    if not odd.any():
        return strings
    done = strings.to_pylist()
    texts, topics = cells.text("properties_base64"), cells.done["topic"]
    for row in map(int, np.flatnonzero(odd)):
        pairs = None if maps is None else maps.array[row].as_py()
        each = InputRow(
            topic=topics[row].as_py(),
            properties=None if pairs is None else dict(pairs),
            properties_base64=None if texts is None else texts[row].as_py(),
        )
        for name, values in numbers.items():
            setattr(each, name, int(values[row]) if cells.valid(name)[row] else None)
        try:
            done[row] = row_reader.stored_properties(each, cells.rules.dialect)
        except RowError as error:
            cells.error(row, error)
    return pa.array(done, pa.binary())


def _or_zero(cells: Cells, name: str) -> Any:
    array = cells.number(name, pa.int32())
    return np.zeros(cells.count, np.int32) if array is None else as_numpy(array.fill_null(0))


def _joined(cells: Cells, maps: _Maps, numbers: dict[str, Any]) -> tuple[pa.Array, Mask]:
    """The strings of all rows, and which of them are as `row_reader.stored_properties` makes them."""
    pairs = pc.binary_join_element_wise(maps.keys, maps.items, properties.NAME_END)
    lists = pa.ListArray.from_arrays(pa.array(maps.offsets, pa.int32()), pairs)
    strings = pc.binary_join(lists, properties.VALUE_END)
    ends = pc.match_substring(maps.items, properties.VALUE_END)
    for end in (properties.NAME_END, properties.VALUE_END):
        ends = pc.or_(ends, pc.match_substring(maps.keys, end))
    ends = pc.or_(ends, pc.equal(maps.keys, ""))
    sound = np.ones(cells.count, np.bool_)
    sound[maps.rows[as_numpy(ends.fill_null(True))]] = False
    lengths = as_numpy(pc.binary_length(strings).fill_null(0)).astype(np.int64)
    sound &= lengths < properties.MAX_SIZE
    topic = as_numpy(pc.binary_length(cells.done["topic"]).fill_null(0))
    heads = np.zeros(row_reader.HOST_BITS + 1, np.int64)
    for bits, head in form.HEADS.items():
        heads[bits] = head.size
    stored = (
        numbers["size"] - heads[numbers["sys_flag"] & row_reader.HOST_BITS]
        - numbers["body_length"] - topic - np.where(numbers["version"] == 2, 2, 1) - 2
    )  # fmt: skip
    short = np.full(cells.count, cells.rules.dialect == "4.x")
    known = cells.valid("size") & cells.valid("body_length")
    short = np.where(
        known & (stored == lengths), True, np.where(known & (stored == lengths + 1), False, short)
    )
    ending = pc.if_else(pa.array(short | (lengths == 0)), "", properties.VALUE_END)
    return pc.binary_join_element_wise(strings, ending, "").cast(pa.binary()), sound
