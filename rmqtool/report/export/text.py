"""Batches of messages as lines of JSON and CSV: the text that `rmqtool dump` prints, made column by column.

The lines of a batch are one buffer, ready to be written. `rmqtool.message.rows` and `rmqtool.message.cells`
are the reference for every value; tests compare the two. Texts are quoted a whole column at a time;
`cells.json_text` and `cells.csv_text` quote the few values that need more than quotes and backslashes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool import times
from rmqtool.message.cells import csv_text, json_text
from rmqtool.message.columns import BY_NAME

# Characters that JSON and `cells` escape besides those of _SHORT: C0 and C1 controls, line separators and
# the marks that change the direction of writing.
_ODD_IN_JSON = (
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x{80}-\x{9f}\x{61c}\x{200e}\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}]"
)
_ANY_IN_JSON = _ODD_IN_JSON.replace(r"\x{80}", r'"\\\n\r\t\x{80}')
_SHORT = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
# Letters, digits and printable ASCII are not spaces; Python decides for all other characters.
_NO_SPACE = r"!-~\pL\pN"
_ODD_IN_CSV = rf"^[^{_NO_SPACE}]|[^{_NO_SPACE}]$"
_QUOTED_IN_CSV = r'[,"\r\n]'
_FORMULA = r"^[=+\-@\t\r\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}]"


def as_texts(array: Any) -> pa.Array:
    """A column as plain strings, without dictionaries."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if array.type == pa.string() else array.cast(pa.string())


def joined(*parts: Any) -> pa.Array:
    """The texts of each row, concatenated; a row with a null is null."""
    return pc.binary_join_element_wise(*parts, "")


def json_strings(texts: pa.Array) -> pa.Array:
    """JSON strings, quotes included; null stays null."""
    if not _any(texts, _ANY_IN_JSON):
        return joined('"', texts, '"')
    escaped = texts
    for character, escape in _SHORT:
        escaped = pc.replace_substring(escaped, character, escape)
    return _each(joined('"', escaped, '"'), texts, _ODD_IN_JSON, json_text)


def csv_cells(texts: pa.Array) -> pa.Array:
    """CSV cells of texts; null is an empty cell and the empty text a quoted one."""
    cells = texts
    if _any(texts, _QUOTED_IN_CSV):
        quoted = joined('"', pc.replace_substring(texts, '"', '""'), '"')
        cells = pc.if_else(_matches(texts, _QUOTED_IN_CSV), quoted, texts)
    cells = pc.if_else(pc.equal(texts, ""), '""', cells)
    return _each(cells, texts, _ODD_IN_CSV, csv_text).fill_null("")


def guarded(texts: pa.Array) -> pa.Array:
    """Adds an apostrophe before texts that a spreadsheet would evaluate as formulas. This is lossy."""
    return pc.if_else(_matches(texts, _FORMULA), joined("'", texts), texts)


def _matches(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.match_substring_regex(texts, pattern).fill_null(False)


def _any(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _each(done: pa.Array, texts: pa.Array, pattern: str, convert: Callable[[object], str]) -> pa.Array:
    """`done`, with every text that matches replaced by the result of `convert`."""
    chosen = _matches(texts, pattern)
    rows = np.flatnonzero(chosen.to_numpy(zero_copy_only=False))
    if not len(rows):
        return done
    values = pa.array([convert(text) for text in texts.take(pa.array(rows)).to_pylist()], pa.string())
    return pc.replace_with_mask(done, chosen, values)


BODY, ENCODING, SYSTEM = "body", "body_encoding", "system"
_FEW = frozenset({
    "topic", "tags", "born_host", "store_host", ENCODING, "body_compression", "file", "status",
})  # fmt: skip
"""Columns with few distinct values: the text of each is made once."""


@dataclass(frozen=True)
class TextForm:
    """How batches become lines.

    Attributes:
        names: the columns, in order.
        tz: zone of the times; None is the local zone.
        shows_nulls: optional columns without a value are shown as null, as if requested by name.
        spreadsheet: guard CSV cells that a spreadsheet would evaluate as formulas.
    """

    names: tuple[str, ...]
    tz: tzinfo | None = UTC
    shows_nulls: bool = False
    spreadsheet: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that a batch must have: the body's text needs its encoding."""
        missing = (ENCODING,) if BODY in self.names and ENCODING not in self.names else ()
        return (*self.names, *missing)


def json_lines(batch: pa.RecordBatch, form: TextForm) -> pa.Buffer:
    """One JSON object per row, each with its line end; the columns are those of `form.reads`."""
    parts: list[Any] = ["{"]
    for name in form.names:
        texts = _json_values(batch, name, form)
        head = f"{json_text(name)}:"
        comma = "," if len(parts) > 1 else ""
        column = BY_NAME.get(name)
        if column is not None and column.optional and not form.shows_nulls:
            # Never the first of a row: a column with a value is always before it.
            parts.append(joined(comma + head, texts).fill_null(""))
        else:
            parts += [comma + head, texts.fill_null("null")]
    return _lines(batch, [*parts, "}\n"])


def csv_lines(batch: pa.RecordBatch, form: TextForm) -> pa.Buffer:
    """One CSV line per row; the columns are those of `form.reads`."""
    parts: list[Any] = []
    for name in form.names:
        parts += [",", _csv_cells(batch, name, form)]
    return _lines(batch, [*parts[1:], "\n"])


def csv_header(names: Sequence[str]) -> bytes:
    """The first line of a CSV file."""
    return (",".join(map(csv_text, names)) + "\n").encode()


def _lines(batch: pa.RecordBatch, parts: Sequence[Any]) -> pa.Buffer:
    """The texts of the rows, concatenated; `parts` are columns and constants."""
    if not len(batch):
        return pa.py_buffer(b"")
    if not any(isinstance(part, pa.Array) for part in parts):
        return pa.py_buffer("".join(parts).encode() * len(batch))
    lines = joined(*parts)
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int32)[[lines.offset, lines.offset + len(lines)]]
    return data.slice(int(ends[0]), int(ends[1] - ends[0]))


def _json_values(batch: pa.RecordBatch, name: str, form: TextForm) -> pa.Array:
    """The values of a column as JSON; null stays null."""
    array = batch.column(name)
    kind = array.type
    if pa.types.is_map(kind):
        return _json_objects(array)
    if pa.types.is_list(kind):
        return _json_lists(array)
    if pa.types.is_integer(kind):
        return array.cast(pa.string())
    if name == SYSTEM:
        return as_texts(array)
    if pa.types.is_timestamp(kind):
        return joined('"', time_texts(array, form.tz), '"')
    return _spelled(_texts(batch, name, form), name, json_strings)


def _csv_cells(batch: pa.RecordBatch, name: str, form: TextForm) -> pa.Array:
    kind = batch.column(name).type
    if pa.types.is_integer(kind):
        return batch.column(name).cast(pa.string()).fill_null("")
    if pa.types.is_timestamp(kind):
        return time_texts(batch.column(name), form.tz).fill_null("")
    is_json = pa.types.is_map(kind) or pa.types.is_list(kind) or name == SYSTEM
    texts = _json_values(batch, name, form) if is_json else _texts(batch, name, form)
    if form.spreadsheet:
        texts = guarded(texts)
    return _spelled(texts, name, csv_cells).fill_null("")


def _spelled(texts: pa.Array, name: str, spell: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """The result of `spell`, called once per distinct value of a column in _FEW; null stays null."""
    if name not in _FEW:
        return spell(texts)
    encoded = texts.dictionary_encode()
    return spell(encoded.dictionary).take(encoded.indices)


def _texts(batch: pa.RecordBatch, name: str, form: TextForm) -> pa.Array:
    """A column of texts or bytes as texts."""
    array = batch.column(name)
    if name == BODY:
        return _bodies(array, as_texts(batch.column(ENCODING)))
    if pa.types.is_binary(array.type):
        return _base64(array)
    return as_texts(array)


# bytes


def _bodies(bodies: pa.Array, encodings: pa.Array) -> pa.Array:
    """Bodies as text, plain or in base64 as `body_encoding` says."""
    plain = pc.equal(encodings, "utf-8").fill_null(False)
    if pc.all(pc.or_(plain, bodies.is_null())).as_py():
        return _as_utf8(bodies)
    # Only UTF-8 may become a string.
    texts = _as_utf8(pc.if_else(plain, bodies, pa.scalar(None, pa.binary())))
    others = pc.if_else(plain, pa.scalar(None, pa.binary()), bodies)
    return pc.coalesce(texts, _base64(others))


def _as_utf8(array: pa.Array) -> pa.Array:
    """Bytes that are known to be UTF-8 as strings, without checking them again."""
    return array.cast(pa.string(), safe=False) if array.type != pa.string() else array


def _base64(array: pa.Array) -> pa.Array:
    valid = array.is_valid()
    rows = np.flatnonzero(valid.to_numpy(zero_copy_only=False))
    encoded = [base64.b64encode(value) for value in array.take(pa.array(rows)).to_pylist()]
    empty = pa.nulls(len(array), pa.string())
    return pc.replace_with_mask(empty, valid, pa.array(encoded, pa.binary()).cast(pa.string()))


# lists and maps


def _pieces(offsets: pa.Array, children: Sequence[pa.Array]) -> tuple[pa.Array, list[pa.Array]]:
    """Offsets from 0, and the part of each child that the rows use."""
    places = offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = int(places[0]), int(places[-1])
    return pa.array(places - first, pa.int32()), [child.slice(first, last - first) for child in children]


def _wrapped(array: pa.Array, offsets: pa.Array, items: pa.Array, opening: str, closing: str) -> pa.Array:
    texts = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    done = joined(opening, texts, closing)
    return pc.if_else(array.is_valid(), done, pa.scalar(None, pa.string())) if array.null_count else done


def _json_lists(array: pa.Array) -> pa.Array:
    offsets, (items,) = _pieces(array.offsets, [array.values])
    return _wrapped(array, offsets, json_strings(as_texts(items)).fill_null("null"), "[", "]")


def _json_objects(array: pa.Array) -> pa.Array:
    offsets, (keys, items) = _pieces(array.offsets, [array.keys, array.items])
    pairs = joined(_names(keys), ":", json_strings(as_texts(items)).fill_null("null"))
    return _wrapped(array, offsets, pairs, "{", "}")


def _names(keys: pa.Array) -> pa.Array:
    """Names of properties as JSON strings; few are distinct."""
    encoded = keys if pa.types.is_dictionary(keys.type) else keys.dictionary_encode()
    names = json_strings(as_texts(encoded.dictionary))
    return names.take(encoded.indices)


# times


@cache
def _thousandths() -> pa.Array:
    return pa.array([f"{number:03}" for number in range(1000)])


def time_texts(array: pa.Array, zone: tzinfo | None) -> pa.Array:
    """Times as RFC 3339, as in `times.format_time`; null stays null.

    The text of each second is made once: messages of one batch share most seconds.
    """
    ms = array.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    numbers = ms.fill_null(0).to_numpy(zero_copy_only=False)
    seconds, places = np.unique(numbers // 1000, return_inverse=True)
    spelled = [times.format_time(second * 1000, zone) for second in seconds.tolist()]
    rows = pa.array(places.reshape(-1))

    def part(cut: Callable[[str], str]) -> pa.Array:
        return pa.array([None if text is None else cut(text) for text in spelled], pa.string()).take(rows)

    fractions = _thousandths().take(pa.array(numbers % 1000))
    texts = joined(part(lambda text: text[:20]), fractions, part(lambda text: text[23:]))
    return pc.if_else(ms.is_valid(), texts, pa.scalar(None, pa.string())) if ms.null_count else texts
