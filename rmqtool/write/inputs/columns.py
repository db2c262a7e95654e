"""Whole columns of input rows -> the columns that `put_table` takes; `row_reader` says what rows mean.

Columns arrive as a source has them: text, integers, times, bodies as bytes or as text with an
encoding; what goes on has the types of `TYPES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.write import row_reader
from rmqtool.write.inputs.cells import TYPES, Cells, Mask, as_numpy, is_bytes
from rmqtool.write.inputs.properties import read_properties
from rmqtool.write.records.message import NewMessage
from rmqtool.write.row_reader import RowError, RowRules

_SOUND = pa.array(["ok", '["ok"]'])


class Columns(NamedTuple):
    """What became of a batch of rows.

    Attributes:
        batch: the messages, columns of `TYPES` of which a row has a value; rows of `empty` and
            `errors` are in it and must go.
        empty: shape (rows,): the row holds no message (a blank).
        errors: what is wrong, by row index from 0.
    """

    batch: pa.RecordBatch
    empty: Mask
    errors: dict[int, RowError]


def columns_of(raw: Mapping[str, pa.Array], count: int, rules: RowRules, *, spelled: bool = False) -> Columns:
    """The messages of `count` rows.

    Args:
        raw: the columns, names of `row_reader.COLUMNS`.
        count: rows.
        rules: how rows are read.
        spelled: lists and objects are JSON text, and bodies text in their encoding, as in CSV.

    Raises:
        RowError: a column has a type that it cannot have; `row` is None.
    """
    cells = Cells(raw, count, rules, spelled=spelled)
    cells.empty = _empty_rows(cells)
    stored = cells.valid("physical_offset") & ~cells.empty
    _check_status(cells)
    _topics(cells)
    _bodies(cells, stored)
    for name in ("queue_id", "flag", "reconsume_times", "prepared_transaction_offset"):
        cells.done[name] = cells.with_default(name, cells.number(name, TYPES[name]))
    for which in ("born", "store"):
        _times(cells, which)
        host = cells.with_default(f"{which}_host", cells.text(f"{which}_host"))
        cells.check(host, partial(row_reader.host_of, column=f"{which}_host"))
        cells.done[f"{which}_host"] = host
    for name in ("tags", "uniq_key"):
        cells.done[name] = cells.text(name)
    cells.done["keys"] = cells.strings("keys")
    cells.done["delay_level"] = cells.number("delay_level", pa.int32())
    cells.done["wait"] = cells.boolean("wait")
    read_properties(cells, stored)
    done = {name: array for name in TYPES if (array := cells.done.get(name)) is not None}
    batch = pa.RecordBatch.from_arrays([array.cast(TYPES[name]) for name, array in done.items()], list(done))
    return Columns(batch, cells.empty, cells.errors)


def messages_of(batch: pa.RecordBatch) -> Iterator[NewMessage]:
    """The rows of a batch with the columns of `TYPES`, one by one."""
    for row in batch.to_pylist():
        values = {name: value for name, value in row.items() if value is not None}
        given = values.pop("properties_bytes", None)
        pairs = dict(values.pop("properties", ()))
        keys = row_reader.split_keys(values.pop("keys", None))
        compression = values.pop("body_compression", "none")
        for name in ("born_host", "store_host"):
            if name in values:
                values[name] = row_reader.host_of(values[name], name)
        yield NewMessage(
            properties=pairs if given is None else given,
            keys=keys,
            compression=compression,
            **{name.removesuffix("_ms"): value for name, value in values.items()},
        )


def _empty_rows(cells: Cells) -> Mask:
    empty = np.zeros(cells.count, np.bool_)
    kinds = cells.text("kind")
    if kinds is not None:
        empty |= as_numpy(pc.is_in(kinds, value_set=pa.array(row_reader.EMPTY_KINDS)))
    blank = cells.boolean("blank")
    if blank is not None:
        empty |= as_numpy(blank.fill_null(False))
    return empty


def _check_status(cells: Cells) -> None:
    texts = cells.strings("status")
    if texts is None:
        return
    sound = as_numpy(pc.is_in(texts, value_set=_SOUND))
    for row in np.flatnonzero(~sound & as_numpy(texts.is_valid())):
        try:
            row_reader.check_status(texts[int(row)].as_py().split())
        except RowError as error:
            cells.error(row, error)


def _topics(cells: Cells) -> None:
    array = cells.with_default("topic", cells.text("topic"))
    lacks = np.ones(cells.count, np.bool_)
    if array is not None:
        array = array.fill_null("")
        lacks = as_numpy(pc.equal(array, ""))
    for row in np.flatnonzero(lacks):
        cells.error(row, RowError(row_reader.NO_TOPIC, column="topic", status="MESSAGE_ILLEGAL"))
    cells.done["topic"] = pa.array([""] * cells.count, pa.string()) if array is None else array


def _times(cells: Cells, which: str) -> None:
    name, text_name = f"{which}_timestamp_ms", f"{which}_time"
    numbers = cells.number(name, pa.int64())
    array = cells.raw.get(text_name)
    if array is not None and (numbers is None or numbers.null_count):
        if pa.types.is_timestamp(array.type) and array.type.tz is not None:
            times = (
                pc.floor_temporal(array, unit="millisecond").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            )
        else:
            if pa.types.is_timestamp(array.type):
                texts = pc.strftime(array.cast(pa.timestamp("ms"), safe=False), "%Y-%m-%dT%H:%M:%S")
            else:
                texts = cells.text(text_name)
            if numbers is not None:
                texts = pc.if_else(numbers.is_valid(), pa.scalar(None, pa.string()), texts)
            times = cells.each(
                texts, pa.int64(), lambda text: row_reader.time_ms(text, text_name, cells.rules)
            )
        numbers = times if numbers is None else pc.coalesce(numbers, times)
    cells.done[name] = cells.with_default(name, numbers)


def _bodies(cells: Cells, stored: Mask) -> None:
    array = cells.raw.get("body")
    encodings = cells.text("body_encoding")
    if array is not None and encodings is not None and (cells.spelled or not is_bytes(array.type)):
        array = _decoded(cells, array, encodings)
    if array is None:
        array = pa.nulls(cells.count, pa.binary())
    kept = _kept_bodies(cells, stored)
    if kept is not None:
        _check_kept(cells, array.cast(pa.binary()), kept)
        array = pc.coalesce(kept, array.cast(pa.binary()))
    for row in np.flatnonzero(as_numpy(array.is_null())):
        cells.error(row, RowError(row_reader.NO_BODY, column="body", status="MESSAGE_ILLEGAL"))
    array = array.cast(pa.binary())
    cells.done["body"] = array.fill_null(b"") if array.null_count else array
    compression = cells.with_default("body_compression", cells.text("body_compression"), ~stored)
    cells.check(compression, _known_compression)
    cells.done["body_compression"] = compression
    cells.done["sys_flag"] = cells.with_default("sys_flag", cells.number("sys_flag", pa.int32()))
    _pack(cells, stored, None if kept is None else as_numpy(kept.is_valid()))


def _kept_bodies(cells: Cells, stored: Mask) -> Any:
    """Bodies that are given as they were stored; None where no row has one."""
    array = cells.raw.get("stored_body")
    if array is None:
        return None
    if cells.spelled or not is_bytes(array.type):
        array = _decoded(cells, array, pa.array(["base64"] * cells.count))
    for row in np.flatnonzero(as_numpy(array.is_valid()) & ~stored & ~cells.empty):
        try:
            row_reader.kept_body(b"", 0, stored=False)
        except RowError as error:
            cells.error(row, error)
    return array.cast(pa.binary())


def _check_kept(cells: Cells, plain: pa.Array, kept: pa.Array) -> None:
    flags = cells.number("sys_flag", pa.int32())
    for row in map(int, np.flatnonzero(as_numpy(pc.and_(plain.is_valid(), kept.is_valid())))):
        if row in cells.errors:
            continue
        sys_flag = 0 if flags is None else flags[row].as_py() or 0
        try:
            row_reader.check_kept(plain[row].as_py(), kept[row].as_py(), sys_flag)
        except RowError as error:
            cells.error(row, error)


def _known_compression(text: str) -> None:
    if text not in row_reader.COMPRESSIONS:
        known = ", ".join(row_reader.COMPRESSIONS)
        raise RowError(f"{text!r} is not one of {known}", column="body_compression")


def _decoded(cells: Cells, array: pa.Array, encodings: pa.Array) -> pa.Array:
    kinds = set(encodings.unique().to_pylist())
    if kinds <= {None, "utf-8"}:
        return array
    done: list[bytes | None] = []
    for row, (text, encoding) in enumerate(zip(array.to_pylist(), encodings.to_pylist(), strict=True)):
        value: bytes | None = b""
        try:
            value = None if text is None else row_reader.body_bytes(text, encoding)
        except RowError as error:
            cells.error(row, error)
        done.append(value)
    return pa.array(done, pa.binary())


def _pack(cells: Cells, stored: Mask, kept: Mask | None) -> None:
    """Bodies as stored are compressed; the compression of new ones comes out of their `sys_flag`.

    `kept` are bodies that are so already.
    """
    flags, named = cells.done["sys_flag"], cells.done["body_compression"]
    if flags is None and named is None:
        return
    bits = np.zeros(cells.count, np.int32) if flags is None else as_numpy(flags.fill_null(0)).copy()
    odd = (bits & row_reader.COMPRESSION_BITS).astype(np.bool_)
    if named is not None:
        as_they_are = stored & ~odd & as_numpy(pc.equal(named, "none").fill_null(False))
        if kept is not None:
            as_they_are |= kept
        named = pc.if_else(pa.array(as_they_are), pa.scalar(None, pa.string()), named)
        cells.done["body_compression"] = named
        odd |= stored & as_numpy(named.is_valid())
    if kept is not None:
        odd &= ~kept
    bits &= ~row_reader.HOST_BITS
    if odd.any():
        names = [None] * cells.count if named is None else named.to_pylist()
        bodies = cells.done["body"].to_pylist()
        for row in map(int, np.flatnonzero(odd)):
            if row in cells.errors:
                continue
            try:
                bodies[row], bits[row], names[row] = row_reader.stored_body(
                    bodies[row], int(bits[row]), names[row], stored=bool(stored[row])
                )
            except RowError as error:
                cells.error(row, error)
        cells.done["body"] = pa.array(bodies, pa.binary())
        cells.done["body_compression"] = pa.array(names, pa.string())
    cells.done["sys_flag"] = pa.array(bits, pa.int32())
