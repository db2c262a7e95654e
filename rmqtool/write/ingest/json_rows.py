"""Rows from JSON lines: one object a line, read in blocks of lines.

A block is decoded at once, with the types of `rows.InputRow`: to columns in compiled code where
all of it is plain, else row by row; line by line only where that fails, to find the wrong lines.
Memory holds a few blocks, or one line of up to LINE_LIMIT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import astuple

from rmqtool.errors import InputError
from rmqtool.lazy_pattern import pattern
from rmqtool.write.ingest.rows import (
    FIELD_TYPES,
    I32,
    I64,
    NOT_NEEDED,
    RowError,
    RowRules,
    unknown_column,
)

LINE_LIMIT = 64 << 20
"""Bytes that one line may have; one of up to twice as many may pass."""
BLOCK_SIZE = 8 << 20
COMPILED_FROM = 16 << 20
"""Bytes of an input after which loading the compiled reader, or compiling it once, is worth it."""
BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_NEWLINE = ord("\n")
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_PLACE = pattern(r" - at `\$\.?(\w*)[^`]*`$")
_UNKNOWN = pattern(r"Object contains unknown field `([^`]*)`")


class Readable(Protocol):
    """A binary file."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer; how many bytes there were."""


class Lines(NamedTuple):
    """Whole lines of the input.

    Attributes:
        first: the number of the first one, from 1.
        line_count: how many.
        data: their bytes, valid until the next block is taken; None for a line over the limit.
    """

    first: int
    line_count: int
    data: memoryview | None


def line_blocks(file: Readable, *, size: int = BLOCK_SIZE, limit: int = LINE_LIMIT) -> Iterator[Lines]:
    """The input in blocks of whole lines; the last line may lack its end.

    Args:
        file: the input; what it gives at once is a block, but for a last line without its end.
        size: bytes that are read at once.
        limit: a line of up to that many bytes is taken, one of twice as many is not.

    Raises:
        InputError: the input is UTF-16.
    """
    import numpy as np

    buffer = bytearray(size)
    first, begin, stop = 1, 0, 0  # bytes [begin, stop) of the buffer were not handed out yet
    started = too_long = False
    while True:
        rest = stop - begin
        # In a new buffer, not a longer one: the last block may still be in use.
        room = bytearray(max(size, 2 * rest)) if len(buffer) != max(size, 2 * rest) else buffer
        room[:rest] = buffer[begin:stop]
        buffer, begin, stop = room, 0, rest
        got = file.readinto(memoryview(buffer)[rest:])
        if not got:
            break
        stop += got
        if not started:
            if stop < len(BOM):
                continue
            started, begin = True, _mark_size(buffer[:4])
        if too_long:  # the rest of that line goes
            end = buffer.find(b"\n", 0, stop) + 1
            too_long, begin, first = not end, end or stop, first + (end > 0)
        cut = buffer.rfind(b"\n", max(begin, 0 if too_long else rest), stop) + 1
        if cut > begin:
            count = int(np.count_nonzero(np.frombuffer(buffer, np.uint8, cut - begin, begin) == _NEWLINE))
            yield Lines(first, count, memoryview(buffer)[begin:cut])
            first, begin = first + count, cut
        if stop - begin > limit:
            yield Lines(first, 1, None)
            begin, too_long = stop, True
    if stop > begin:
        yield Lines(first, 1, memoryview(buffer)[begin:stop])


def _mark_size(start: bytes | bytearray) -> int:
    if start.startswith(UTF_16):
        raise InputError("the input is UTF-16, not UTF-8", hint="iconv -f UTF-16 -t UTF-8 converts it")
    return len(BOM) if start.startswith(BOM) else 0


class Decoded(NamedTuple):
    """The rows of a block: `numbers` are their lines, `errors` what is wrong by line."""

    rows: Sequence[Any]
    numbers: Sequence[int]
    errors: dict[int, RowError]


class JsonRows:
    """Decodes blocks of lines."""

    def __init__(self, rules: RowRules) -> None:
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(rules.row_type)
        self._decoded_bytes = 0  # bytes

    def rows(self, lines: Lines) -> Decoded:
        """The `InputRow`s of a block; never raises."""
        if lines.data is None:
            what = f"the line has more than {LINE_LIMIT} bytes"
            return Decoded((), (), {lines.first: RowError(what, row=lines.first)})
        try:
            return self._decode(lines.data, lines)
        except _UNDECODABLE:
            return self._one_by_one(lines.data, lines.first)

    def columns(self, lines: Lines) -> tuple[dict[str, Any], Any, dict[int, RowError]]:
        """(columns of a block as Arrow arrays, lines of the rows, what is wrong by line); never raises."""
        self._decoded_bytes += len(lines.data or b"")
        if lines.data is not None and self._decoded_bytes > COMPILED_FROM:
            from rmqtool.write.ingest.json_columns import plain_columns

            plain = plain_columns(lines.data, lines.line_count)
            if plain is not None:
                return plain.columns, plain.lines + lines.first, {}
        decoded = self.rows(lines)
        return raw_columns(decoded.rows), decoded.numbers, decoded.errors

    def _decode(self, data: memoryview, lines: Lines) -> Decoded:
        rows = self._decoder.decode_lines(data)
        numbers: Sequence[int] = range(lines.first, lines.first + lines.line_count)
        if len(rows) == lines.line_count:
            return Decoded(rows, numbers, {})
        numbers = [
            number for number, line in enumerate(bytes(data).split(b"\n"), lines.first) if line.strip()
        ]
        if len(numbers) == len(rows):
            return Decoded(rows, numbers, {})
        return self._one_by_one(data, lines.first)  # several objects in one line, or one in several

    def _one_by_one(self, data: memoryview, first: int) -> Decoded:
        rows: list[Any] = []
        numbers: list[int] = []
        errors: dict[int, RowError] = {}
        for number, line in enumerate(bytes(data).split(b"\n"), first):
            if not line.strip():
                continue
            try:
                rows.append(self._decoder.decode(line))
                numbers.append(number)
            except _UNDECODABLE as error:
                errors[number] = _explain(error, line, number)
        return Decoded(rows, numbers, errors)


def _explain(error: Exception, line: bytes, number: int) -> RowError:
    if isinstance(error, UnicodeDecodeError):
        return RowError("the line is not UTF-8", row=number)
    if isinstance(error, RecursionError):
        return RowError("its lists and objects are nested too deeply", row=number)
    text = str(error)
    if line.lstrip().startswith(b"["):
        return RowError("a JSON array; one object per line is needed (jq -c '.[]' converts it)", row=number)
    unknown = _UNKNOWN.match(text)
    if unknown is not None:
        return unknown_column(unknown[1], number)
    if not isinstance(error, msgspec.ValidationError):
        return RowError(f"no JSON object: {text}", row=number)
    place = _PLACE.search(text)
    what = _PLACE.sub("", text).replace("`", "")
    column = place[1] if place is not None else None
    return RowError(f"{what[:1].lower()}{what[1:]}", row=number, column=column or None)


# rows -> columns


def raw_columns(rows: Sequence[Any]) -> dict[str, Any]:
    """The columns of rows of one type as Arrow arrays, those left out that have no value."""
    import pyarrow as pa

    if not rows:
        return {}
    result = {}
    columns = zip(*map(astuple, rows), strict=True)
    for name, values in zip(rows[0].__struct_fields__, columns, strict=True):
        if name in NOT_NEEDED or values.count(None) == len(rows):
            continue
        if name == "properties":
            result[name] = _maps(values)
        else:
            if name in ("keys", "status"):
                values = tuple([" ".join(each) if isinstance(each, list) else each for each in values])
            result[name] = pa.array(values, _type(name))
    return result


def _type(name: str) -> Any:
    import pyarrow as pa

    types = {I32 | None: pa.int32(), I64 | None: pa.int64(), bool | None: pa.bool_()}
    return types.get(FIELD_TYPES[name], pa.string())


def _maps(values: Sequence[dict[str, str] | None]) -> Any:
    import pyarrow as pa

    objects = [{} if each is None else each for each in values]
    offsets = [0, *accumulate(map(len, objects))]
    names = pa.array(list(chain.from_iterable(objects)), pa.string())
    items = pa.array(list(chain.from_iterable(map(dict.values, objects))), pa.string())
    mask = None
    if None in values:
        mask = pa.array([each is None for each in values])
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, items, mask=mask)
