"""Lines of JSON objects from columns in Arrow's layout, written by compiled code.

`cells.json_text` is the reference for every character. All lines are measured first, column by column, and
then written to one array of exactly that size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rmqtool.storage.buffers import Array, Buffers

_ROOM = 1 << 20
_KEPT_BUFFERS = 2
_of_thread = threading.local()


def read_only(array: Array) -> Array:
    """The array as kernels take it: contiguous, and read-only, for each kind is compiled by itself."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


_NONE = read_only(np.zeros(0, np.uint8))
_NO_OFFSETS = read_only(np.zeros(0, np.int32))
_NO_NUMBERS = read_only(np.zeros(0, np.int64))


class Texts(NamedTuple):
    """A column of texts: row k is data[offsets[k] : offsets[k + 1]].

    data: u1, UTF-8. offsets: i4, shape (rows + 1,). present: u1, shape (rows,), 0 for a null; empty if all
    rows have a value. All of them as `read_only` returns them.
    """

    data: Array
    offsets: Array
    present: Array = _NONE


class JsonLines:
    """Lines that get their members column by column; `written` makes the bytes.

    A head is what precedes a value in every line, as `,"size":`. A null is written as null, or with `omits`
    left out together with its head. `present` is as in `Texts`.
    """

    def __init__(self, rows: int) -> None:
        from rmqtool.message import json_text_kernel

        self._kernel = json_text_kernel
        self._ends = np.zeros(rows, np.int64)
        self._writes: list[Callable[[Array, Array], None]] = []

    def integers(self, head: str, values: Array, present: Array = _NONE, *, omits: bool = False) -> None:
        """Add a column of integers; `values` are i8."""
        given = (_bytes(head), read_only(values), present, omits)
        self._add(self._kernel.measure_integers, self._kernel.write_integers, given)

    def texts(self, head: str, texts: Texts, *, omits: bool = False) -> None:
        """Add a column of strings."""
        given = (_bytes(head), texts.data, texts.offsets, texts.present, omits)
        self._add(self._kernel.measure_texts, self._kernel.write_texts, given)

    def spelled(
        self, head: str, table: Texts, numbers: Array, present: Array = _NONE, *, omits: bool = False,
        milliseconds: Array | None = None,
    ) -> None:  # fmt: skip
        """Add a column of values that are JSON: row k is table[numbers[k]]; `numbers` are i8.

        The values are strings of times if `milliseconds` (i8) are given, which replace theirs.
        """
        kernel, name = self._kernel, _bytes(head)
        order, thousandths = read_only(numbers), _NO_NUMBERS if milliseconds is None else milliseconds
        kernel.measure_spelled(name, table.offsets, order, present, omits, self._ends)
        self._writes.append(
            lambda out, ends: kernel.write_spelled(
                name, table.data, table.offsets, order, present, omits, read_only(thousandths), out, ends
            )
        )

    def lists(
        self, head: str, stops: Array, items: Texts, present: Array = _NONE, *, keys: Texts | None = None,
        omits: bool = False,
    ) -> None:  # fmt: skip
        """Add a column of lists of strings, or with `keys` of objects of strings.

        The items of row k are those of [stops[k], stops[k + 1]); `stops` are i4, of shape (rows + 1,).
        """
        key_offsets, key_data = (_NO_OFFSETS, _NONE) if keys is None else (keys.offsets, keys.data)
        given = (_bytes(head), read_only(stops), key_offsets, key_data, items.offsets, items.data, present,
                 items.present, omits)  # fmt: skip
        self._add(self._kernel.measure_nested, self._kernel.write_nested, given)

    def _add(self, measure: Callable[..., None], write: Callable[..., None], given: tuple[Any, ...]) -> None:
        measure(*given, self._ends)
        self._writes.append(lambda out, ends: write(*given, out, ends))

    def written(self, tail: str = "") -> tuple[Array, Array]:
        """The bytes of all lines, u1, each with `tail` at its end, and where each ends, i8."""
        last = _bytes(tail)
        lengths = self._ends + len(last)
        stops = np.cumsum(lengths)
        out = _room(int(stops[-1]) if len(stops) else 0)
        ends = stops - lengths
        for write in self._writes:
            write(out, ends)
        for place, byte in enumerate(last.tolist()):
            out[ends + place] = byte
        return out, stops


def _room(size: int) -> Array:
    """An array of `size` bytes that is not in use; their content is undefined."""
    buffers: Buffers | None = getattr(_of_thread, "buffers", None)
    if buffers is None or buffers.length < size:
        buffers = _of_thread.buffers = Buffers(max(1 << size.bit_length(), _ROOM), np.uint8, _KEPT_BUFFERS)
    return buffers.take()[:size]


def _bytes(text: str) -> Array:
    return np.frombuffer(text.encode(), np.uint8)
