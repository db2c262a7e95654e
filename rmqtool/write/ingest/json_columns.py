"""Blocks of JSON lines to columns in compiled code, where all of a block is plain.

Plain is what programs write: texts, whole numbers, booleans, null, lists and objects of texts, one object
a line. Anything else is left to `json_rows`, which reads the same block with msgspec: what is wrong, as a
field twice or an unknown name, and what is right but unusual, as a number with an exponent.

A second reader exists for its speed: `append` of JSON lines takes less than half of the time of msgspec's
rows made columns (and `pyarrow.json` reads no objects as maps). `test_json_columns` holds the two together.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.string_ranges import Ranges, gather
from rmqtool.message.column_arrays import binary_array
from rmqtool.storage.buffers import Array
from rmqtool.write.ingest import json_kernel
from rmqtool.write.ingest.json_kernel import BOOL, MAP, NO_VALUE, SCALAR, TEXT, TEXTS
from rmqtool.write.ingest.rows import FIELD_TYPES, I32, I64, NOT_NEEDED

_LEAST_CHILD = 2  # bytes of a text in a list: its quotes


class Plain(NamedTuple):
    """The objects of a block: their columns as `json_rows.raw_columns` has them, their lines from 0."""

    columns: dict[str, pa.Array]
    lines: Array


def plain_columns(data: memoryview, line_count: int) -> Plain | None:
    """The columns of whole lines; None where anything in them is not plain, or not as InputRow has it.

    Args:
        data: the bytes; the last line may lack its end.
        line_count: how many lines there are; empty ones hold no object.
    """
    parsed = _parse(data, line_count)
    if parsed is None or not _is_utf8(data):
        return None
    columns = {}
    for name in _KINDS:
        present = parsed.has(name)
        if not present.any():
            continue
        if name in _WORDS:
            texts = _strings(parsed.texts(name))
            if not _WORDS[name].issuperset(texts.unique().to_pylist()):
                return None
            columns[name] = texts
        elif name not in NOT_NEEDED:
            columns[name] = _column(parsed, name, present)
    return Plain(columns, parsed.lines)


@dataclass(frozen=True)
class _Parsed:
    """Where the values of a block stand; see `json_kernel.parse_lines`.

    Attributes:
        lines: the line of each row, from 0, shape (rows,).
        data: the block, with the texts that have escapes replaced by what they mean.
        starts, lengths: by field and row.
        child_starts, child_lengths: of the texts in lists and maps, end to end.
    """

    lines: Array
    data: Array
    starts: Array
    lengths: Array
    child_starts: Array
    child_lengths: Array

    def has(self, name: str) -> Array:
        """Which rows have a value of the field, shape (rows,)."""
        present: Array = self.lengths[_NUMBERS[name]] >= 0
        return present

    def texts(self, name: str) -> Ranges:
        """The texts of a field of TEXT."""
        return Ranges(self.data, self.starts[_NUMBERS[name]], self.lengths[_NUMBERS[name]])

    def children(self, name: str) -> tuple[Array, Ranges]:
        """(offsets, texts) of a field of TEXTS or MAP: row k has texts[offsets[k] : offsets[k + 1]].

        The texts of a MAP are name, value, name, value. offsets: i8, shape (rows + 1,).
        """
        number = _NUMBERS[name]
        counts = np.maximum(self.lengths[number], 0).astype(np.int64)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        places = np.repeat(self.starts[number] - offsets[:-1], counts) + np.arange(offsets[-1])
        return offsets, Ranges(self.data, self.child_starts[places], self.child_lengths[places])


def _parse(data: memoryview, line_count: int) -> _Parsed | None:
    """The objects of whole lines, valid as long as `data` is; None where anything is not plain."""
    block = np.frombuffer(data, np.uint8)
    block.flags.writeable = False
    fields = len(_KINDS)
    starts = np.empty((fields, line_count), np.int64)
    lengths = np.full((fields, line_count), NO_VALUE, np.int32)
    lines = np.empty(line_count, np.int64)
    child_starts = np.empty(len(block) // _LEAST_CHILD + 1, np.int64)
    child_lengths = np.empty(len(child_starts), np.int32)
    result = np.zeros(json_kernel.RESULT_SIZE, np.int64)
    rows = json_kernel.parse_lines(
        block, _NAMES, _NAME_ENDS, np.array(list(_KINDS.values())), starts, lengths,
        np.full(fields, -1, np.int64), np.zeros(fields + 1, np.int64),
        lines, child_starts, child_lengths, result,
    )  # fmt: skip
    if rows == json_kernel.GAVE_UP:
        return None
    count = int(result[json_kernel.CHILDREN])
    child_starts, child_lengths = child_starts[:count], child_lengths[:count]
    if result[json_kernel.ESCAPES]:
        block = block.copy()
        json_kernel.unescape(block, starts.reshape(-1), lengths.reshape(-1))
        json_kernel.unescape(block, child_starts, child_lengths)
        block.flags.writeable = False
    return _Parsed(lines[:rows], block, starts[:, :rows], lengths[:, :rows], child_starts, child_lengths)


def _is_utf8(data: memoryview) -> bool:
    if not len(data) or np.frombuffer(data, np.int8).min() >= 0:
        return True  # ASCII: half of the time of what follows
    offsets = pa.array([0, len(data)], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _column(parsed: _Parsed, name: str, present: Array) -> pa.Array:
    kind = _KINDS[name]
    if kind == TEXT:
        return _strings(parsed.texts(name))
    if kind in (TEXTS, MAP):
        offsets, texts = parsed.children(name)
        mask = None if present.all() else pa.array(~present)
        if kind == MAP:
            ends = pa.array(offsets // 2, pa.int32())
            return pa.MapArray.from_arrays(ends, _every(texts, 0), _every(texts, 1), mask=mask)
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), _strings(texts), mask=mask)
        return pc.binary_join(lists, " ")
    types = {BOOL: np.bool_, json_kernel.I32: np.int32, json_kernel.I64: np.int64}
    values = np.where(present, parsed.starts[_NUMBERS[name]], 0)  # without a value it is anything
    return pa.array(values.astype(types[kind]), mask=~present)


def _every(texts: Ranges, first: int) -> pa.Array:
    """Every second text."""
    starts, lengths = (np.ascontiguousarray(each[first::2]) for each in (texts.starts, texts.lengths))
    return _strings(Ranges(texts.data, starts, lengths))


def _strings(texts: Ranges) -> pa.Array:
    return binary_array(gather(texts), pa.string())


# the fields of InputRow


def _kind(type_: Any) -> int:
    """Return the kind, in compiled code, of the type of a column of InputRow."""
    if type_ is Any:
        return SCALAR
    return TEXT if _words(type_) is not None else _KIND_OF[type_]


def _words(type_: Any) -> frozenset[str | None] | None:
    """The texts that a column may have, None for all."""
    words = [get_args(each) for each in get_args(type_) if get_origin(each) is Literal]
    return frozenset((*words[0], None)) if words else None


_KIND_OF: dict[Any, int] = {
    I32 | None: json_kernel.I32,
    I64 | None: json_kernel.I64,
    bool | None: BOOL,
    str | None: TEXT,
    list[str] | str | None: TEXTS,
    dict[str, str] | None: MAP,
}
_KINDS = {name: _kind(type_) for name, type_ in FIELD_TYPES.items()}
_WORDS = {name: words for name, type_ in FIELD_TYPES.items() if (words := _words(type_)) is not None}
_NUMBERS = {name: number for number, name in enumerate(_KINDS)}
_NAMES = np.frombuffer("".join(_KINDS).encode(), np.uint8)
_NAME_ENDS = np.cumsum([0, *map(len, _KINDS)], dtype=np.int32)
