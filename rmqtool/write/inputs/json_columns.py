"""Blocks of JSON lines to columns in compiled code, where all of a block is plain."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.log.string_ranges import Ranges, gather
from rmqtool.message.arrow_arrays import binary_array
from rmqtool.storage.buffers import Array
from rmqtool.write import json_lines
from rmqtool.write.inputs.jsonl import NOT_NEEDED
from rmqtool.write.json_lines import Fields, Parsed, parse
from rmqtool.write.row_reader import I32, I64, InputRow


class Plain(NamedTuple):
    """The objects of a block: their columns as `jsonl.raw_columns` has them, their lines from 0."""

    columns: dict[str, pa.Array]
    lines: Array


def plain_columns(data: memoryview, line_count: int) -> Plain | None:
    """The columns of whole lines; None where anything in them is not plain, or not as InputRow has it.

    Args:
        data: the bytes; the last line may lack its end.
        line_count: how many lines there are.
    """
    parsed = parse(data, line_count, _FIELDS)
    if parsed is None or not _is_utf8(data):
        return None
    columns = {}
    for name, kind in _KINDS.items():
        present = parsed.has(name)
        if not present.any():
            continue
        if name in _WORDS:
            texts = _strings(parsed.texts(name))
            if not _WORDS[name].issuperset(texts.unique().to_pylist()):
                return None
            columns[name] = texts
        elif name not in NOT_NEEDED:
            columns[name] = _column(parsed, name, kind, present)
    return Plain(columns, parsed.lines)


def _is_utf8(data: memoryview) -> bool:
    offsets = pa.array([0, len(data)], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _column(parsed: Parsed, name: str, kind: int, present: Array) -> pa.Array:
    if kind == json_lines.TEXT:
        return _strings(parsed.texts(name))
    if kind in (json_lines.TEXTS, json_lines.MAP):
        offsets, texts = parsed.children(name)
        mask = None if present.all() else pa.array(~present)
        if kind == json_lines.MAP:
            ends = pa.array(offsets // 2, pa.int32())
            return pa.MapArray.from_arrays(ends, _every(texts, 0), _every(texts, 1), mask=mask)
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), _strings(texts), mask=mask)
        return pc.binary_join(lists, " ")
    types = {json_lines.BOOL: np.bool_, json_lines.I32: np.int32, json_lines.I64: np.int64}
    return pa.array(parsed.values(name).astype(types[kind]), mask=~present)


def _every(texts: Ranges, first: int) -> pa.Array:
    """Every second text."""
    starts, lengths = (np.ascontiguousarray(each[first::2]) for each in (texts.starts, texts.lengths))
    return _strings(Ranges(texts.data, starts, lengths))


def _strings(texts: Ranges) -> pa.Array:
    return binary_array(gather(texts), pa.string())


def _kind(type_: Any) -> int:
    """What the type of a column of InputRow is in compiled code."""
    if type_ is Any:
        return json_lines.SCALAR
    if _words(type_) is not None:
        return json_lines.TEXT
    return _KIND_OF[type_]


def _words(type_: Any) -> frozenset[str | None] | None:
    """The texts that a column may have, None for all."""
    words = [get_args(each) for each in get_args(type_) if get_origin(each) is Literal]
    return frozenset((*words[0], None)) if words else None


_KIND_OF: dict[Any, int] = {
    I32 | None: json_lines.I32,
    I64 | None: json_lines.I64,
    bool | None: json_lines.BOOL,
    str | None: json_lines.TEXT,
    list[str] | str | None: json_lines.TEXTS,
    dict[str, str] | None: json_lines.MAP,
}
_TYPES = {field.name: field.type for field in msgspec.structs.fields(InputRow)}
_KINDS = {name: _kind(type_) for name, type_ in _TYPES.items()}
_WORDS = {name: words for name, type_ in _TYPES.items() if (words := _words(type_)) is not None}
_FIELDS = Fields(_KINDS)
