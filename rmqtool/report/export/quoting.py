"""Columns of text as JSON strings and CSV cells, whole columns at a time.

`rmqtool.message.cells` defines the text of a cell: `json_text` and `csv_text` are the reference, and are
called for the few values that need more than quotes and backslashes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.message.cells import csv_text, json_text

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
