"""The columns of a table of messages as arrays: types checked, nulls replaced, texts by address.

Rows that need a closer look (a wrong value, or one that changes more than its own field) are marked
as slow, with the column at fault; everything here works on whole columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqtool.errors import FormatError, IllegalMessageError, InputError, UsageError
from rmqtool.formats import message as form
from rmqtool.formats.message_id import host_bytes
from rmqtool.formats.properties import KEY_SEPARATOR, VALUE_END
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.buffers import Array
from rmqtool.write.records.record_parts import host_parts
from rmqtool.write.table.schema import COLUMNS, COMPRESSIONS, I32_COLUMNS, I64_COLUMNS


class SlowRows:
    """The rows that are processed one by one, and the column that is the reason."""

    def __init__(self, count: int) -> None:
        self.columns = np.zeros(count, np.uint8)  # 0, or 1 + the number of the first column at fault

    def mark(self, rows: Array, column: str) -> None:
        """Mark rows: a mask or row numbers."""
        chosen = np.flatnonzero(rows) if rows.dtype == bool else rows
        chosen = chosen[self.columns[chosen] == 0]
        self.columns[chosen] = 1 + COLUMNS.index(column)

    def first(self, row: int) -> int:
        """The number of rows from `row` to the next slow one."""
        rest = self.columns[row:] != 0
        return int(rest.argmax()) if rest.any() else len(rest)

    def column_of(self, row: int) -> str:
        """The column at fault; `topic` for a row that is not slow."""
        return COLUMNS[max(int(self.columns[row]) - 1, 0)]


@dataclass(frozen=True)
class Texts:
    """One text or run of bytes per row: addresses i8, lengths i8 (0 for null), present bool."""

    addresses: Array
    lengths: Array
    present: Array
    owner: Any

    def holding(self, piece: bytes) -> Array:
        """A mask of the rows that hold `piece`."""
        return _mask(pc.fill_null(pc.match_substring(self.owner, piece), False))


@dataclass(frozen=True)
class Maps:
    """A map per row: entries [stops[row - 1], stops[row]) of names (numbers in `known`) and values."""

    starts: Array
    counts: Array
    name_numbers: Array
    known: list[str]
    values: Texts


@dataclass(frozen=True)
class Columns:
    """The columns of a batch; None stands for an absent one.

    topics, born_hosts, store_hosts: numbers into the lists of the same name with `_values`; -1: null.
    numbers: i8 by column, 0 for null; columns that are all null are left out.
    absent: masks of the rows where a number is null, for columns that have such rows.
    stored: a mask of the rows with properties_bytes.
    """

    count: int
    slow: SlowRows
    stored: Array
    topics: Array
    topic_values: list[str]
    queue_ids: Array
    has_queue_id: Array
    body: Texts | None
    tags: Texts | None
    keys: Texts | None
    uniq_key: Texts | None
    properties: Maps | None
    properties_bytes: Texts | None
    numbers: dict[str, Array]
    absent: dict[str, Array]
    born_hosts: Array | None
    born_host_values: list[bytes]
    store_hosts: Array | None
    store_host_values: list[bytes]
    wait: Array | None


def read_columns(batch: pa.RecordBatch, compress_over: int) -> Columns:
    """The columns of one batch of rows.

    Args:
        batch: at least one row.
        compress_over: bodies of that many bytes and more are compressed where the row wants that.

    Raises:
        UsageError: a column that is not known, or no `topic`.
        InputError: a column of the wrong type, or a broken batch.
    """
    found = _checked(batch)
    count = len(batch)
    slow = SlowRows(count)

    def texts(name: str, check: Callable[[pa.DataType], bool] = _is_text) -> Texts | None:
        return _texts(found[name], name, check, slow) if name in found else None

    topics, topic_values = _topics(found.get("topic"), slow)
    numbers, absent = _all_numbers(found, slow)
    body, properties_bytes = texts("body", _is_bytes), texts("properties_bytes", _is_bytes)
    born_hosts, born_host_values = _hosts(found.get("born_host"), "born_host", slow)
    store_hosts, store_host_values = _hosts(found.get("store_host"), "store_host", slow)
    if "body_compression" in found:
        _check_compression(found["body_compression"], body, compress_over, slow)
    if "delay_level" in numbers:
        slow.mark(numbers["delay_level"] != 0, "delay_level")
    return Columns(
        count=count,
        slow=slow,
        stored=np.zeros(count, bool) if properties_bytes is None else properties_bytes.present,
        topics=topics,
        topic_values=topic_values,
        queue_ids=numbers.get("queue_id", np.zeros(count, np.int64)),
        has_queue_id=_present(found["queue_id"]) if "queue_id" in found else np.zeros(count, bool),
        body=body,
        tags=texts("tags"),
        keys=_keys(found["keys"], slow) if "keys" in found else None,
        uniq_key=_uniq_keys(texts("uniq_key"), slow),
        properties=_maps(found["properties"], slow) if "properties" in found else None,
        properties_bytes=properties_bytes,
        numbers=numbers,
        absent=absent,
        born_hosts=born_hosts,
        born_host_values=born_host_values,
        store_hosts=store_hosts,
        store_host_values=store_host_values,
        wait=_wait(found.get("wait")),
    )


def _checked(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns by name, dictionaries decoded; those without any value are left out."""
    names = batch.schema.names
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or len(set(names)) != len(names) or "topic" not in names:
        what = (
            f"unknown column {unknown[0]!r}"
            if unknown
            else "each column must be there once, and topic among them"
        )
        raise UsageError(f"the table: {what}", hint="the columns are " + ", ".join(COLUMNS))
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InputError(f"the table is damaged: {error}") from error
    columns = {name: batch.column(name) for name in names}
    return {
        name: column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for name, column in columns.items()
        if column.null_count < len(batch)
    }


def _all_numbers(found: dict[str, pa.Array], slow: SlowRows) -> tuple[dict[str, Array], dict[str, Array]]:
    """`numbers` and `absent` of `Columns`."""
    numbers: dict[str, Array] = {}
    absent: dict[str, Array] = {}
    for name in I32_COLUMNS + I64_COLUMNS:
        if name in found:
            numbers[name] = _numbers(found[name], name, slow)
            if found[name].null_count:
                absent[name] = ~_present(found[name])
    return numbers, absent


def _check_compression(wanted: pa.Array, body: Texts | None, compress_over: int, slow: SlowRows) -> None:
    """Mark rows whose body is to be compressed, or that name a compression that is none."""
    present = _texts(wanted, "body_compression", _is_text, slow).present
    lengths = np.zeros(len(wanted), np.int64) if body is None else body.lengths
    is_none = _mask(pc.fill_null(pc.equal(wanted, "none"), True))
    is_known = _mask(pc.is_in(wanted, pa.array(COMPRESSIONS, wanted.type)))
    slow.mark(present & ~is_none & ((lengths >= compress_over) | ~is_known), "body_compression")


def _mask(array: Any) -> Array:
    mask: Array = array.to_numpy(zero_copy_only=False).astype(bool, copy=False)
    return mask


def _present(array: pa.Array) -> Array:
    if array.null_count == 0:
        return np.ones(len(array), bool)
    return _mask(array.is_valid())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return _is_text(kind) or bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _need(fits: bool, column: str, kind: pa.DataType, wanted: str) -> None:
    if not fits:
        raise InputError(f"column {column} is of type {kind}, it must be {wanted}")


def _texts(
    array: pa.Array, column: str, check: Callable[[pa.DataType], bool], slow: SlowRows | None
) -> Texts:
    """Where the texts of a column are. With `slow`, texts that hold 0x01 or 0x02 are marked."""
    _need(check(array.type), column, array.type, "text" if check is _is_text else "text or binary")
    array = array.cast(pa.large_binary())
    present = _present(array)
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(array) + 1, array.offset * 8)
    address = 0 if data is None else data.address
    lengths = offsets[1:] - offsets[:-1]
    if array.null_count:
        lengths = np.where(present, lengths, 0)
    if slow is not None and check is _is_text and data is not None and offsets[0] < offsets[-1]:
        used = np.frombuffer(data, np.uint8, offsets[-1] - offsets[0], offsets[0])
        if used.min() <= ord(VALUE_END):
            places = np.flatnonzero(used <= ord(VALUE_END)) + offsets[0]
            slow.mark(np.unique(np.searchsorted(offsets, places, "right") - 1), column)
    return Texts(offsets[:-1] + address, lengths, present, array)


def _topics(array: pa.Array | None, slow: SlowRows) -> tuple[Array, list[str]]:
    if array is None:
        slow.mark(np.ones(len(slow.columns), bool), "topic")
        return np.full(len(slow.columns), -1), []
    _need(_is_text(array.type), "topic", array.type, "text")
    encoded = array.dictionary_encode()
    numbers = _indices(encoded)
    if array.null_count:
        slow.mark(numbers < 0, "topic")
    return numbers, encoded.dictionary.to_pylist()


def _indices(encoded: pa.DictionaryArray) -> Array:
    """Places in the dictionary, -1 for null."""
    indices: Array = pc.fill_null(encoded.indices, -1).to_numpy()
    return indices


def _numbers(array: pa.Array, column: str, slow: SlowRows) -> Array:
    """The values; null and what does not fit is 0, and the latter is marked."""
    _need(pa.types.is_integer(array.type), column, array.type, "whole numbers")
    if array.type == pa.uint64():
        fits = _mask(pc.fill_null(pc.less_equal(array, pa.scalar((1 << 63) - 1, pa.uint64())), True))
        slow.mark(~fits, column)
        array = pc.if_else(pa.array(fits), array, pa.scalar(0, pa.uint64()))
    values: Array = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    if column in I32_COLUMNS:
        fits = values == values.astype(np.int32)
        if not fits.all():
            slow.mark(~fits, column)
            values = np.where(fits, values, 0)
    return values


def _wait(array: pa.Array | None) -> Array | None:
    if array is None:
        return None
    _need(pa.types.is_boolean(array.type), "wait", array.type, "true or false")
    return _mask(pc.fill_null(array, True))


def _hosts(array: pa.Array | None, column: str, slow: SlowRows) -> tuple[Array | None, list[bytes]]:
    """Numbers into the list of hosts as stored; -1 for null."""
    if array is None:
        return None, []
    _need(_is_bytes(array.type), column, array.type, "text (ip:port) or binary (8 or 20 bytes)")
    encoded = array.dictionary_encode()
    numbers = _indices(encoded)
    hosts: list[bytes] = []
    for place, value in enumerate(encoded.dictionary.to_pylist()):
        host = stored_host(value)
        if host is None:
            slow.mark(numbers == place, column)
        hosts.append(host or bytes(form.HOST_V4_SIZE))
    return numbers, hosts


def stored_host(value: str | bytes) -> bytes | None:
    """The stored bytes; None for what is not a host, or an IPv6 address that is stored as IPv4."""
    try:
        host = host_bytes(value) if isinstance(value, str) else value
        return host if host_parts(host, host).born == host else None
    except (FormatError, IllegalMessageError):
        return None


def _uniq_keys(texts: Texts | None, slow: SlowRows) -> Texts | None:
    if texts is not None:
        slow.mark(texts.present & (texts.lengths == 0), "uniq_key")
    return texts


def _keys(array: pa.Array, slow: SlowRows) -> Texts:
    """KEYS as stored: a list is joined by spaces. Lists with empty, null or split keys are marked."""
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        return _texts(array, "keys", _is_text, slow)
    _need(_is_text(array.type.value_type), "keys", array.type, "text or lists of text")
    array = array.cast(pa.list_(pa.string()))  # the only lists that can be joined
    flat = array.flatten()
    strange = pc.fill_null(pc.equal(pc.utf8_length(flat), 0), True)
    strange = _mask(pc.or_(strange, pc.fill_null(pc.match_substring(flat, KEY_SEPARATOR), True)))
    if strange.any():
        slow.mark(np.unique(pc.list_parent_indices(array).to_numpy()[strange]), "keys")
    joined = pc.binary_join(array, KEY_SEPARATOR)
    return _texts(joined, "keys", _is_text, slow)


def _maps(array: pa.Array, slow: SlowRows) -> Maps:
    """Maps with null or empty values, or values with 0x01 or 0x02, are marked. Names are not checked."""
    kind = array.type
    is_map = pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)
    _need(is_map, "properties", kind, "map<string, string>")
    offsets = array.offsets.to_numpy().astype(np.int64)
    counts = offsets[1:] - offsets[:-1]
    entries = slice(int(offsets[0]), int(offsets[-1]))
    names = array.keys[entries].dictionary_encode()
    wrong = SlowRows(len(names))
    values = _texts(array.items[entries], "properties", _is_text, wrong)
    wrong.mark(values.lengths == 0, "properties")
    if wrong.columns.any():
        owners = np.repeat(np.arange(len(array)), counts)
        slow.mark(np.unique(owners[wrong.columns != 0]), "properties")
    if array.null_count:
        counts = np.where(_present(array), counts, 0)
    return Maps(
        offsets[:-1] - offsets[0], counts, names.indices.to_numpy(), names.dictionary.to_pylist(), values
    )
