"""Columns of an input, each brought to one type; which row has what wrong.

Work is done on whole columns; a column is looked at value by value only where that fails, to say
which row it was. The first error of each row is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsInt

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.write.row_reader import RowError, RowRules, split_keys

Mask = np.ndarray[Any, np.dtype[np.bool_]]
MAP = pa.map_(pa.string(), pa.string())
TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "body": pa.binary(),
    "queue_id": pa.int32(),
    "tags": pa.string(),
    "keys": pa.string(),
    "uniq_key": pa.string(),
    "properties": MAP,
    "properties_bytes": pa.binary(),
    "flag": pa.int32(),
    "sys_flag": pa.int32(),
    "born_timestamp_ms": pa.int64(),
    "born_host": pa.string(),
    "store_timestamp_ms": pa.int64(),
    "store_host": pa.string(),
    "reconsume_times": pa.int32(),
    "prepared_transaction_offset": pa.int64(),
    "delay_level": pa.int32(),
    "wait": pa.bool_(),
    "body_compression": pa.string(),
}
"""The columns of `put_table`, as the inputs give them."""


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

    def with_default(self, name: str, array: Any, rows: Mask | None = None) -> Any:
        """The column with the default value in its empty rows, of `rows` only."""
        value: Any = self.rules.defaults.get(name)
        if value is None:
            return array
        if name == "keys":
            value = " ".join(split_keys(value))
        elif name == "properties":
            value = list(value.items())
        constant = pa.scalar(value, TYPES[name])
        if array is None:
            array = pa.nulls(self.count, constant.type)
        fill = as_numpy(array.is_null())
        if rows is not None:
            fill = fill & rows
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
