"""Batches of messages as lines of JSON and CSV: the text that `rmqtool dump` prints, made column by column.

The lines of a batch are one buffer, ready to be written; it may be reused once nothing refers to it.
`rmqtool.message.rows` and `rmqtool.message.cells` are the reference for every value; tests compare the two.
`message.json_text` writes JSON. Cells of CSV are quoted a whole column at a time; `cells.csv_text` quotes
the few values that need more than that.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool import times
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.string_ranges import Ranges, contain
from rmqtool.message.cells import csv_text, json_text
from rmqtool.message.column_arrays import BINARY, ranges_of
from rmqtool.message.columns import BY_NAME
from rmqtool.message.json_text import JsonLines, Texts, read_only

# Letters, digits and printable ASCII are not spaces; Python decides for all other characters.
_FIRST_PRINTABLE, _LAST_PRINTABLE = b"!~"
_NO_SPACE = r"!-~\pL\pN"
_ODD_IN_CSV = rf"^[^{_NO_SPACE}]|[^{_NO_SPACE}]$"
_QUOTED_IN_CSV = (b",", b'"', b"\r", b"\n")
_FORMULA = r"^[=+\-@\t\r\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}]"
_DATE = r"[0-9]{1,4}[-/.][0-9]{1,4}(?:[-/.][0-9]{1,4})?"
_TIME = r"[0-9]{1,4}:[0-9]{1,2}(?::[0-9]{1,2}(?:[.,][0-9]+)?)?(?: ?[ap]m?)?"
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_NUMBER = r"[0-9]+(?:[.,][0-9]*)*(?:e[+-]?[0-9]+)?%?"
_CONVERTED = (
    rf"(?i)^\s*(?:{_NUMBER}|{_DATE}(?: {_TIME})?|{_TIME}|[0-9]{{1,2}}[-/. ]?{_MONTH}(?:[-/. ]?[0-9]{{1,4}})?"
    rf"|{_MONTH}[-/. ]?[0-9]{{1,4}}(?:,? ?[0-9]{{4}})?)\s*$"
)
"""Texts that a spreadsheet takes for a number, a date or a time."""
_SHORT_INTEGER = r"^(?:0|[1-9][0-9]{0,14})$"
"""Those of them that it shows and saves as they are: with 15 digits at most."""


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


def csv_cells(texts: pa.Array) -> pa.Array:
    """CSV cells of texts; null is an empty cell and the empty text a quoted one."""
    cells, held = texts, ranges_of(texts)
    is_quoted = np.logical_or.reduce([contain(held, sign) for sign in _QUOTED_IN_CSV])
    if is_quoted.any():
        quoted = joined('"', pc.replace_substring(texts, '"', '""'), '"')
        cells = pc.if_else(pa.array(is_quoted), quoted, texts)
    cells = pc.if_else(pc.equal(texts, ""), '""', cells)
    odd = _odd_rows(texts, held)
    if len(odd):
        values = pa.array([csv_text(text) for text in texts.take(pa.array(odd)).to_pylist()], pa.string())
        is_odd = np.zeros(len(texts), np.bool_)
        is_odd[odd] = True
        cells = pc.replace_with_mask(cells, pa.array(is_odd), values)
    return cells.fill_null("")


def _odd_rows(texts: pa.Array, held: Ranges) -> Any:
    """The rows of texts that begin or end with what may be a space, or is otherwise unusual."""
    rows = np.flatnonzero(held.lengths)
    ends = [held.data[held.starts[rows]], held.data[held.starts[rows] + held.lengths[rows] - 1]]
    unusual = [(end < _FIRST_PRINTABLE) | (end > _LAST_PRINTABLE) for end in ends]
    rows = rows[np.logical_or(*unusual)]
    found = _matches(texts.take(pa.array(rows)), _ODD_IN_CSV)
    return rows[found.to_numpy(zero_copy_only=False)]


def guarded(texts: pa.Array) -> pa.Array:
    """Adds an apostrophe before texts that a spreadsheet would evaluate or change. This is lossy."""
    changed = pc.and_not(_matches(texts, _CONVERTED), _matches(texts, _SHORT_INTEGER))
    return pc.if_else(pc.or_(_matches(texts, _FORMULA), changed), joined("'", texts), texts)


def _matches(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.match_substring_regex(texts, pattern).fill_null(False)


CELL_MAX = 32_767
"""Characters that a cell of Excel can hold."""
BYTE_ORDER_MARK = "\ufeff"
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
        spreadsheet: write CSV for Excel: with a byte order mark, guarded cells that it would evaluate or
            change, and times that it takes for times, without an offset.
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
    lines = JsonLines(len(batch))
    for number, name in enumerate(form.names):
        column = BY_NAME.get(name)
        # Never the first of a row: a column with a value is always before it.
        omits = column is not None and column.optional and not form.shows_nulls
        _add_json(lines, f"{',' if number else '{'}{json_text(name)}:", batch, name, form, omits=omits)
    data, _ = lines.written("}\n" if form.names else "{}\n")
    return pa.py_buffer(data)


def csv_lines(batch: pa.RecordBatch, form: TextForm) -> pa.Buffer:
    """One CSV line per row; the columns are those of `form.reads`."""
    parts: list[Any] = []
    for name in form.names:
        parts += [",", _csv_cells(batch, name, form)]
    return _lines(batch, [*parts[1:], "\n"])


def csv_header(form: TextForm) -> bytes:
    """The first line of a CSV file; with a byte order mark for a spreadsheet.

    Excel takes a file without the mark for one in the code page of the system.
    """
    return (BYTE_ORDER_MARK * form.spreadsheet + ",".join(map(csv_text, form.names)) + "\n").encode()


def too_long_bodies(batch: pa.RecordBatch, form: TextForm) -> int:
    """How many bodies do not fit into a cell of a spreadsheet."""
    if BODY not in form.names:
        return 0
    too_long = pc.greater(pc.utf8_length(texts_of(batch, BODY, form)), CELL_MAX)
    return int(pc.sum(too_long).as_py() or 0)


def encoded_bodies(batch: pa.RecordBatch, form: TextForm) -> int:
    """How many bodies are not text, and stand in the file in base64."""
    if BODY not in form.names:
        return 0
    return int(pc.sum(pc.equal(as_texts(batch.column(ENCODING)), BINARY)).as_py() or 0)


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


def _add_json(
    lines: JsonLines, head: str, batch: pa.RecordBatch, name: str, form: TextForm, *, omits: bool = False
) -> None:
    """Add a column to lines of JSON."""
    array = batch.column(name)
    kind = array.type
    present = _present(array)
    if pa.types.is_map(kind):
        keys, items = _as_ranges(array.keys), _as_ranges(array.items)
        lines.lists(head, _numbers(array.offsets), items, present, keys=keys, omits=omits)
    elif pa.types.is_list(kind):
        lines.lists(head, _numbers(array.offsets), _as_ranges(array.values), present, omits=omits)
    elif pa.types.is_integer(kind):
        lines.integers(head, _numbers(array.cast(pa.int64())), present, omits=omits)
    elif pa.types.is_timestamp(kind):
        seconds = _Seconds(array, form.tz)
        table = _as_ranges(pa.array(map(json_text, seconds.texts), pa.string()))
        lines.spelled(head, table, seconds.numbers, present, omits=omits, milliseconds=seconds.thousandths)
    elif name == SYSTEM:
        lines.spelled(head, _as_ranges(as_texts(array)), np.arange(len(array)), present, omits=omits)
    else:
        lines.texts(head, _as_ranges(texts_of(batch, name, form)), omits=omits)


def _present(array: pa.Array) -> Any:
    """Which rows have a value, u1; empty if all have."""
    if not array.null_count:
        return read_only(np.zeros(0, np.uint8))
    return read_only(array.is_valid().to_numpy(zero_copy_only=False).view(np.uint8))


def _numbers(array: pa.Array) -> Any:
    """Integers as an array; nulls are 0."""
    return read_only((array.fill_null(0) if array.null_count else array).to_numpy())


def _as_ranges(array: Any) -> Texts:
    """A column of texts as `json_text` takes it."""
    texts = as_texts(array)
    _, offsets, data = texts.buffers()
    if offsets is None or not offsets.size:
        places = np.zeros(len(texts) + 1, np.int32)
    else:
        places = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    held = np.zeros(0, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    return Texts(read_only(held), read_only(places), _present(texts))


def json_texts(batch: pa.RecordBatch, name: str, form: TextForm) -> pa.Array:
    """The values of a column as texts of JSON; null stays null."""
    lines = JsonLines(len(batch))
    _add_json(lines, "", batch, name, form, omits=True)
    data, stops = lines.written()
    offsets = np.concatenate([[0], stops]).astype(np.int32)
    valid = np.packbits(batch.column(name).is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    buffers = [pa.py_buffer(each) for each in (valid, offsets, data)]
    return pa.Array.from_buffers(pa.string(), len(batch), buffers)


def _csv_cells(batch: pa.RecordBatch, name: str, form: TextForm) -> pa.Array:
    kind = batch.column(name).type
    if pa.types.is_integer(kind):
        return batch.column(name).cast(pa.string()).fill_null("")
    if pa.types.is_timestamp(kind):
        texts = time_texts(batch.column(name), form.tz).fill_null("")
        return _of_spreadsheet(texts) if form.spreadsheet else texts
    is_json = pa.types.is_map(kind) or pa.types.is_list(kind) or name == SYSTEM
    texts = json_texts(batch, name, form) if is_json else texts_of(batch, name, form)
    if form.spreadsheet:
        texts = guarded(texts)
    return spelled(texts, name, csv_cells).fill_null("")


def spelled(texts: pa.Array, name: str, spell: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """The result of `spell`, called once per distinct value of a column in _FEW; null stays null."""
    if name not in _FEW:
        return spell(texts)
    encoded = texts.dictionary_encode()
    return spell(encoded.dictionary).take(encoded.indices)


def texts_of(batch: pa.RecordBatch, name: str, form: TextForm) -> pa.Array:
    """A column of texts or bytes as texts."""
    array = batch.column(name)
    if name == BODY:
        return _bodies(array, as_texts(batch.column(ENCODING)))
    if name == ENCODING:
        texts = as_texts(array)
        return pc.if_else(pc.equal(texts, BINARY), pa.scalar("base64"), texts)
    if pa.types.is_binary(array.type):
        return _base64(array)
    return as_texts(array)


# bytes


def _bodies(bodies: pa.Array, encodings: pa.Array) -> pa.Array:
    """Bodies as text: plain, or in base64 if they are not UTF-8."""
    plain = pc.equal(encodings, "utf-8").fill_null(False)
    if pc.all(pc.or_(plain, bodies.is_null())).as_py():
        return _as_utf8(bodies)
    others = pc.if_else(plain, pa.scalar(None, pa.binary()), bodies)
    return pc.coalesce(texts_only(bodies, encodings), _base64(others))


def texts_only(bodies: pa.Array, encodings: pa.Array) -> pa.Array:
    """Bodies as text, null if they are not UTF-8: only UTF-8 may become a string."""
    plain = pc.equal(encodings, "utf-8").fill_null(False)
    return _as_utf8(pc.if_else(plain, bodies, pa.scalar(None, pa.binary())))


def _as_utf8(array: pa.Array) -> pa.Array:
    """Bytes that are known to be UTF-8 as strings, without checking them again."""
    return array.cast(pa.string(), safe=False) if array.type != pa.string() else array


def _base64(array: pa.Array) -> pa.Array:
    valid = array.is_valid()
    rows = np.flatnonzero(valid.to_numpy(zero_copy_only=False))
    encoded = [base64.b64encode(value) for value in array.take(pa.array(rows)).to_pylist()]
    empty = pa.nulls(len(array), pa.string())
    return pc.replace_with_mask(empty, valid, pa.array(encoded, pa.binary()).cast(pa.string()))


# times


@cache
def _thousandths() -> pa.Array:
    return pa.array([f"{number:03}" for number in range(1000)])


class _Seconds:
    """The times of a column: the text of each second is made once, for messages of one batch share most.

    Attributes:
        texts: times of whole seconds as RFC 3339, as in `times.format_time`.
        numbers: per row the index of its second in `texts`, i8.
        thousandths: per row the milliseconds of its second, i8.
    """

    def __init__(self, array: pa.Array, zone: tzinfo | None) -> None:
        ms = _numbers(array.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()))
        seconds = ms // 1000
        self.thousandths = ms - 1000 * seconds
        runs = np.flatnonzero(np.diff(seconds, prepend=seconds[:1] - 1))
        distinct, numbers = np.unique(seconds[runs], return_inverse=True)
        self.texts = [times.format_time(second * 1000, zone) for second in distinct.tolist()]
        self.numbers = np.repeat(numbers.reshape(-1), np.diff(runs, append=len(seconds)))


def time_texts(array: pa.Array, zone: tzinfo | None) -> pa.Array:
    """Times as RFC 3339, as in `times.format_time`; null stays null."""
    seconds = _Seconds(array, zone)
    rows = pa.array(seconds.numbers)

    def part(cut: Callable[[str], str]) -> pa.Array:
        cuts = [None if text is None else cut(text) for text in seconds.texts]
        return pa.array(cuts, pa.string()).take(rows)

    fractions = _thousandths().take(pa.array(seconds.thousandths))
    texts = joined(part(lambda text: text[:20]), fractions, part(lambda text: text[23:]))
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string())) if array.null_count else texts


def _of_spreadsheet(texts: pa.Array) -> pa.Array:
    """The times of `time_texts` as a spreadsheet reads them: 2026-11-21 08:50:33.180."""
    return pc.replace_substring(pc.utf8_slice_codeunits(texts, 0, 23), "T", " ")


# tables


def plain_texts(batch: pa.RecordBatch, name: str, form: TextForm) -> pa.Array:
    """The texts of a column as `cells.plain_text` makes them, lists of texts joined; empty for no value."""
    array = batch.column(name)
    kind = array.type
    if pa.types.is_integer(kind):
        return array.cast(pa.string()).fill_null("")
    if pa.types.is_timestamp(kind):
        return time_texts(array, form.tz).fill_null("")
    if pa.types.is_list(kind):
        texts = pc.binary_join(array, ", ")
    elif pa.types.is_map(kind):
        texts = json_texts(batch, name, form)
    else:
        texts = texts_of(batch, name, form)
    return texts.fill_null("")
