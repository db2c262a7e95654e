"""Columns of input rows -> the columns of `table.schema`; `rows` says what a value means.

Columns arrive as a reader has them: text, integers, times, bodies as bytes or as text with an
encoding. Whole columns are converted at once; a column is read value by value only where that fails,
to find out which row is wrong, and for the values that need it (base64, compressed bodies, times as
text). The first error of each row is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, SupportsInt

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.formats import filler, properties
from rmqtool.formats import message as form
from rmqtool.formats.message_id import host_text
from rmqtool.log.fillers import only_filling
from rmqtool.message.system_topics import HALF_TOPICS, OP_TOPICS
from rmqtool.write.ingest import rows
from rmqtool.write.ingest.rows import OWN_COLUMN, RowError, RowRules
from rmqtool.write.table.schema import MAP, TYPES

Mask = np.ndarray[Any, np.dtype[np.bool_]]
_SOUND = pa.array(["ok", '["ok"]'])
_FILLER_HOST = host_text(filler.HOST)
_OF_NO_QUEUE = pa.array([filler.TAG[:length] for length in range(len(filler.TAG) + 1)])
"""Topics of fillers without a queue: the beginning of the name for which there is room."""


class Parsed(NamedTuple):
    """The messages of a batch of rows.

    Attributes:
        batch: the columns of `TYPES` in which a row has a value; the caller removes the rows of `empty`,
            `fillers` and `errors`.
        empty: shape (rows,): the row holds no message (a blank).
        fillers: shape (rows,): the row is a filler that is not to be stored.
        errors: what is wrong, by row index from 0.
    """

    batch: pa.RecordBatch
    empty: Mask
    fillers: Mask
    errors: dict[int, RowError]


def columns_of(raw: Mapping[str, pa.Array], count: int, rules: RowRules, *, spelled: bool = False) -> Parsed:
    """The messages of `count` rows.

    Args:
        raw: the columns, by name of `rows.COLUMNS`.
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
        cells.check(host, partial(rows.host_of, column=f"{which}_host"))
        cells.done[f"{which}_host"] = host
    for name in ("tags", "uniq_key"):
        cells.done[name] = cells.text(name)
    cells.done["keys"] = cells.strings("keys")
    cells.done["delay_level"] = cells.number("delay_level", pa.int32())
    cells.done["wait"] = cells.boolean("wait")
    _read_properties(cells, stored)
    cells.done["keys"] = _plain_keys(cells.done["keys"])
    done = {name: array for name in TYPES if (array := cells.done.get(name)) is not None}
    batch = pa.RecordBatch.from_arrays([array.cast(TYPES[name]) for name, array in done.items()], list(done))
    return Parsed(batch, cells.empty, _fillers(batch), cells.errors)


class Cells:
    """The columns of one batch.

    Attributes:
        raw: the columns as the source has them, those left out that have no value.
        count: rows.
        rules: how rows are read.
        spelled: lists and objects are JSON text, and bodies text in their encoding, as in CSV.
        errors: what is wrong, by row index from 0.
        empty: rows that hold no message, shape (rows,); nothing is wrong with them.
        done: finished columns, by name of `TYPES`; None or missing: no row has a value.
    """

    def __init__(self, raw: Mapping[str, pa.Array], count: int, rules: RowRules, *, spelled: bool) -> None:
        self.raw = {name: _plain(array) for name, array in raw.items() if array.null_count < count}
        self.count = count
        self.rules = rules
        self.spelled = spelled
        self.errors: dict[int, RowError] = {}
        self.empty: Mask = np.zeros(count, np.bool_)
        self.done: dict[str, Any] = {}

    def error(self, row: SupportsInt, error: RowError) -> None:
        """Notes what is wrong with a row, unless something was wrong before."""
        number = int(row)
        if not self.empty[number]:
            self.errors.setdefault(number, error)

    def valid(self, name: str) -> Mask:
        """Which rows have a value, shape (rows,)."""
        array = self.raw.get(name)
        return np.zeros(self.count, np.bool_) if array is None else as_numpy(array.is_valid())

    def each(self, array: pa.Array, to: pa.DataType, convert: Callable[[Any], Any]) -> pa.Array:
        """The column's values through `convert`, distinct ones once; its RowErrors are noted."""
        values = array.to_pylist()
        done: dict[Any, Any] = {None: None}
        wrong: dict[Any, RowError] = {}
        for value in values:
            if value not in done:
                done[value] = None
                try:
                    done[value] = convert(value)
                except RowError as error:
                    wrong[value] = error
        if wrong:
            for row, value in enumerate(values):
                if value in wrong:
                    self.error(row, wrong[value])
        return pa.array([done[value] for value in values], to)

    def check(self, array: Any, convert: Callable[[Any], Any]) -> None:
        """Notes the RowErrors that `convert` has for values of the column; for few distinct ones."""
        for value in array.unique().to_pylist() if array is not None else ():
            if value is None:
                continue
            try:
                convert(value)
            except RowError as error:
                for row in np.flatnonzero(as_numpy(pc.equal(array, value).fill_null(False))):
                    self.error(row, error)

    def with_default(self, name: str, array: Any, where: Mask | None = None) -> Any:
        """The column with the default value in its empty rows, of `where` only."""
        value: Any = self.rules.defaults.get(name)
        if value is None:
            return array
        if name == "keys":
            value = " ".join(rows.split_keys(value))
        elif name == "properties":
            value = list(value.items())
        constant = pa.scalar(value, TYPES[name])
        if array is None:
            array = pa.nulls(self.count, constant.type)
        fill = as_numpy(array.is_null())
        if where is not None:
            fill = fill & where
        return pc.if_else(pa.array(fill), constant, array.cast(constant.type))

    def text(self, name: str) -> Any:
        """The column as strings. Raises RowError for a column of another kind."""
        array = self.raw.get(name)
        if array is None or pa.types.is_string(array.type):
            return array
        if pa.types.is_integer(array.type):
            return array.cast(pa.string())
        if not is_bytes(array.type):
            raise RowError(f"the column is {array.type}, not text", column=name)
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            return self.each(array, pa.string(), lambda value: _utf8(value, name))

    def number(self, name: str, to: pa.DataType) -> Any:
        """The column as integers of type `to`. Raises RowError for a column of another kind."""
        array = self.raw.get(name)
        if array is None or array.type == to:
            return array
        if is_bytes(array.type) or pa.types.is_string(array.type):
            array = self.text(name)
        elif not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            raise RowError(f"the column is {array.type}, not an integer", column=name)
        try:
            return array.cast(to)
        except pa.ArrowInvalid:
            return self.each(array, to, lambda value: _integer(value, name, to))

    def boolean(self, name: str) -> Any:
        """The column as booleans; text is true or false."""
        array = self.raw.get(name)
        if array is None or pa.types.is_boolean(array.type):
            return array
        return self.each(self.text(name), pa.bool_(), lambda value: _boolean(value, name))

    def strings(self, name: str) -> Any:
        """A column of lists of strings, joined by spaces."""
        array = self.raw.get(name)
        if array is None:
            return None
        if pa.types.is_list(array.type):
            return pc.binary_join(array.cast(pa.list_(pa.string())), " ")
        texts = self.text(name)
        if not self.spelled or not pc.any(pc.starts_with(texts, "[")).as_py():
            return texts
        return self.each(texts, pa.string(), lambda text: " ".join(_list(text, name)))

    def maps(self, name: str) -> Any:
        """A column of maps; text is a JSON object."""
        array = self.raw.get(name)
        if array is None or array.type == MAP:
            return array
        if pa.types.is_map(array.type):
            return array.cast(MAP)
        return self.each(self.text(name), MAP, lambda text: list(_object(text, name).items()))


def _empty_rows(cells: Cells) -> Mask:
    empty = np.zeros(cells.count, np.bool_)
    kinds = cells.text("kind")
    if kinds is not None:
        empty |= as_numpy(pc.is_in(kinds, value_set=pa.array(rows.EMPTY_KINDS)))
    blank = cells.boolean("blank")
    if blank is not None:
        empty |= as_numpy(blank.fill_null(False))
    return empty


def _fillers(batch: pa.RecordBatch) -> Mask:
    """Rows of fillers of `recover`, but for those of half messages and ops.

    An op names its half message by queue offset: the rows of both topics keep their numbers in a new store
    only if none is left out.
    """
    found = np.ones(len(batch), np.bool_)
    for name in ("born_host", "store_host"):
        if name not in batch.schema.names:
            return np.zeros(len(batch), np.bool_)
        found &= as_numpy(pc.equal(batch[name], _FILLER_HOST).fill_null(False))
    if found.any():
        found &= ~as_numpy(pc.is_in(batch["topic"], value_set=pa.array([*HALF_TOPICS, *OP_TOPICS])))
        if "sys_flag" in batch.schema.names:
            kinds = pc.bit_wise_and(batch["sys_flag"].fill_null(0), form.TRANSACTION_MASK)
            of_no_queue = pc.is_in(batch["topic"], value_set=_OF_NO_QUEUE)
            found &= as_numpy(pc.or_(pc.not_equal(kinds, form.TRANSACTION_ROLLBACK), of_no_queue))
    places = np.flatnonzero(found)
    if len(places):
        _, offsets, data = batch["body"].take(pa.array(places)).buffers()
        starts = np.frombuffer(offsets, np.int32)[: len(places) + 1]
        found[places] = only_filling(starts, np.frombuffer(data or b"", np.uint8)[: starts[-1]])
    return found


def _check_status(cells: Cells) -> None:
    texts = cells.strings("status")
    if texts is None:
        return
    sound = as_numpy(pc.is_in(texts, value_set=_SOUND))
    for row in np.flatnonzero(~sound & as_numpy(texts.is_valid())):
        try:
            rows.check_status(texts[int(row)].as_py().split())
        except RowError as error:
            cells.error(row, error)


def _topics(cells: Cells) -> None:
    array = cells.with_default("topic", cells.text("topic"))
    lacks = np.ones(cells.count, np.bool_)
    if array is not None:
        array = array.fill_null("")
        lacks = as_numpy(pc.equal(array, ""))
    for row in np.flatnonzero(lacks):
        cells.error(row, RowError(rows.NO_TOPIC, column="topic", status="MESSAGE_ILLEGAL"))
    cells.done["topic"] = pa.array([""] * cells.count, pa.string()) if array is None else array


def _plain_keys(array: Any) -> Any:
    """Keys with one separator between two of them and none around them."""
    if array is None:
        return None
    if not pc.any(pc.match_substring(array, " ")).as_py():
        return array
    # Together they take half of the time of a regular expression.
    irregular = (pc.match_substring(array, "  "), pc.starts_with(array, " "), pc.ends_with(array, " "))
    if not any(pc.any(each).as_py() for each in irregular):
        return array
    return pc.utf8_trim(pc.replace_substring_regex(array, " +", " "), " ")


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
            times = cells.each(texts, pa.int64(), lambda text: rows.time_ms(text, text_name, cells.rules))
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
        cells.error(row, RowError(rows.NO_BODY, column="body", status="MESSAGE_ILLEGAL"))
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
            rows.kept_body(b"", 0, stored=False)
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
            rows.check_kept(plain[row].as_py(), kept[row].as_py(), sys_flag)
        except RowError as error:
            cells.error(row, error)


def _known_compression(text: str) -> None:
    if text not in rows.COMPRESSIONS:
        known = ", ".join(rows.COMPRESSIONS)
        raise RowError(f"{text!r} is not one of {known}", column="body_compression")


def _decoded(cells: Cells, array: pa.Array, encodings: pa.Array) -> pa.Array:
    kinds = set(encodings.unique().to_pylist())
    if kinds <= {None, "utf-8"}:
        return array
    done: list[bytes | None] = []
    for row, (text, encoding) in enumerate(zip(array.to_pylist(), encodings.to_pylist(), strict=True)):
        value: bytes | None = b""
        try:
            value = None if text is None else rows.body_bytes(text, encoding)
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
    irregular = (bits & rows.COMPRESSION_BITS).astype(np.bool_)
    if named is not None:
        as_they_are = stored & ~irregular & as_numpy(pc.equal(named, "none").fill_null(False))
        if kept is not None:
            as_they_are |= kept
        named = pc.if_else(pa.array(as_they_are), pa.scalar(None, pa.string()), named)
        cells.done["body_compression"] = named
        irregular |= stored & as_numpy(named.is_valid())
    if kept is not None:
        irregular &= ~kept
    bits &= ~rows.HOST_BITS
    if irregular.any():
        names = [None] * cells.count if named is None else named.to_pylist()
        bodies = cells.done["body"].to_pylist()
        for row in map(int, np.flatnonzero(irregular)):
            if row in cells.errors:
                continue
            try:
                bodies[row], bits[row], names[row] = rows.stored_body(
                    bodies[row], int(bits[row]), names[row], stored=bool(stored[row])
                )
            except RowError as error:
                cells.error(row, error)
        cells.done["body"] = pa.array(bodies, pa.binary())
        cells.done["body_compression"] = pa.array(names, pa.string())
    cells.done["sys_flag"] = pa.array(bits, pa.int32())


# properties


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


def _read_properties(cells: Cells, stored: Mask) -> None:
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
    owners = maps.rows[places]
    wanted = ~stored[owners]
    if there is not None:
        wanted |= as_numpy(there.is_valid())[owners]
    place_of = np.full(cells.count, -1, np.int64)
    place_of[owners[wanted]] = places[wanted]
    found = maps.items.take(pa.array(place_of, mask=place_of < 0))
    if TYPES[column] != found.type:
        found = cells.each(found, TYPES[column], lambda text: rows.own_value(name, text))
    if there is None:
        cells.done[column] = found
        return
    for row in np.flatnonzero(as_numpy(pc.not_equal(there, found).fill_null(False))):
        value, text = there[int(row)].as_py(), found[int(row)].as_py()
        if column != "keys" or rows.split_keys(value) != rows.split_keys(text):
            cells.error(row, RowError(rows.disagree(name, value, str(text)), column=column))
    cells.done[column] = pc.coalesce(there, found)


def _strings(cells: Cells, stored: Mask, maps: _Maps | None) -> pa.Array:
    """The property strings of rows as stored; null for the others."""
    room = _room(cells)
    irregular = stored & ~cells.empty
    strings = pa.nulls(cells.count, pa.binary())
    if maps is not None:
        strings, sound = _joined(cells, maps, room)
        irregular &= ~(sound & ~cells.valid("properties_base64") & as_numpy(maps.array.is_valid()))
        strings = pc.if_else(pa.array(stored & ~irregular), strings, pa.scalar(None, pa.binary()))
    if not irregular.any():
        return strings
    done = strings.to_pylist()
    texts = cells.text("properties_base64")
    for row in map(int, np.flatnonzero(irregular)):
        pairs = None if maps is None else maps.array[row].as_py()
        try:
            done[row] = rows.stored_properties(
                None if pairs is None else dict(pairs),
                None if texts is None else texts[row].as_py(),
                cells.rules.dialect,
                int(room[row]),
            )
        except RowError as error:
            cells.error(row, error)
    return pa.array(done, pa.binary())


def _room(cells: Cells) -> Any:
    """Bytes that each record as stored has for its property string; -1 where its row does not say."""
    given = {name: cells.number(name, pa.int32()) for name in ("size", "body_length", "sys_flag", "version")}
    size, body_length, sys_flag, version = (
        np.zeros(cells.count, np.int64) if array is None else as_numpy(array.fill_null(0)).astype(np.int64)
        for array in given.values()
    )
    heads = np.zeros(rows.HOST_BITS + 1, np.int64)
    for bits, head in form.HEADS.items():
        heads[bits] = head.size
    topic = as_numpy(pc.binary_length(cells.done["topic"]).fill_null(0)) + np.where(version == 2, 2, 1)
    room = size - heads[sys_flag & rows.HOST_BITS] - body_length - topic - 2
    return np.where(cells.valid("size") & cells.valid("body_length"), room, -1)


def _joined(cells: Cells, maps: _Maps, room: Any) -> tuple[pa.Array, Mask]:
    """The strings of all rows, and which of them are as `rows.stored_properties` makes them."""
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
    is_4x = (room == lengths) | ((room != lengths + 1) & (cells.rules.dialect == "4.x"))
    is_4x &= ~as_numpy(pc.ends_with(strings, "\0").fill_null(False))  # see properties.closed
    ending = pc.if_else(pa.array(is_4x | (lengths == 0)), "", properties.VALUE_END)
    return pc.binary_join_element_wise(strings, ending, "").cast(pa.binary()), sound


# values


def as_numpy(array: pa.Array) -> Any:
    """The values of an array without nulls."""
    return array.to_numpy(zero_copy_only=False)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a column holds bytes."""
    return bool(pa.types.is_binary(kind))


def _plain(array: pa.Array) -> pa.Array:
    """Without dictionaries, views and 64-bit offsets."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return array.cast(pa.list_(kind.value_type))
    return array


def _utf8(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RowError(f"{value[:40]!r} is not UTF-8", column=name) from None


def _integer(value: str | float, name: str, to: pa.DataType) -> int:
    bits = to.bit_width - 1
    try:
        number = int(value)
    except (ValueError, OverflowError):
        raise RowError(f"{value!r} is not an integer", column=name) from None
    if number != value and not isinstance(value, str):
        raise RowError(f"{value!r} is not an integer", column=name)
    if not -(1 << bits) <= number < 1 << bits:
        raise RowError(f"{value!r} does not fit {bits + 1} bits", column=name)
    return number


def _boolean(text: str, name: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RowError(f"{text!r} is neither true nor false", column=name)
    return text.lower() == "true"


def _list(text: str, name: str) -> Sequence[str]:
    if not text.startswith("["):
        return [text]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError as error:
        raise RowError(f"no list of texts: {error}", column=name) from None


def _object(text: str, name: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise RowError(f"no JSON object of texts: {error}", column=name) from None
