"""The one schema of messages on their way into a store, and its rows as single messages.

Every input becomes Arrow batches of `TYPES` (`ingest`). `TableAppender` encodes the rows that are plain as
columns, and passes all others through `message_of` to `StoreWriter.put`, which knows every rule of a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args

import pyarrow as pa

from rmqtool.errors import FormatError, IllegalMessageError, RmqtoolError
from rmqtool.formats.body import Compression
from rmqtool.formats.message_id import host_bytes
from rmqtool.formats.properties import KEY_SEPARATOR
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.property_map import illegal

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
"""The columns of a message, with the types that inputs have; `TableAppender` says which others it takes."""
COLUMNS = tuple(TYPES)
I32_COLUMNS = tuple(name for name, kind in TYPES.items() if kind == pa.int32())
I64_COLUMNS = tuple(name for name, kind in TYPES.items() if kind == pa.int64())
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)


class WrongRowError(IllegalMessageError):
    """A row that cannot be appended.

    Attributes:
        row: its number in the whole input, from 0.
        column: the column at fault.
        status: the broker's name for the reason.
        reason: the error without row and column.
    """

    def __init__(self, row: int, column: str, reason: RmqtoolError) -> None:
        super(IllegalMessageError, self).__init__(
            f"row {row}, column {column}: {reason.message}", hint=reason.hint, column=column
        )
        self.row = row
        self.status = getattr(reason, "status", "MESSAGE_ILLEGAL")
        self.reason = reason


def wrong_row(number: int, column: str, error: RmqtoolError) -> WrongRowError:
    """The error of row `number` (from 0); `column` is the suspect where the error names none."""
    return WrongRowError(number, error.column or column, error)


def message_of(batch: pa.RecordBatch, row: int) -> NewMessage:
    """The message of one row of a batch.

    Raises:
        IllegalMessageError: a value that no message can have.
    """
    values = batch.slice(row, 1).to_pylist()[0]
    if values.get("topic") is None:
        raise illegal("there is no topic", column="topic")
    for names, bits in ((I32_COLUMNS, 31), (I64_COLUMNS, 63)):
        for name in names:
            value = values.get(name) or 0
            if not -(1 << bits) <= value < 1 << bits:
                raise illegal(f"{value} does not fit {bits + 1} bits", column=name)
    return _message(values)


def messages_of(batch: pa.RecordBatch) -> Iterator[NewMessage]:
    """The messages of a batch of `TYPES` whose rows all have a topic. Raises as `message_of`."""
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    return (_message(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))


def _values(array: pa.Array) -> list[Any]:
    """Return the result of `to_pylist`, in half of its time."""
    if array.null_count == len(array):
        return [None] * len(array)
    kind = array.type
    if kind == MAP and not array.null_count:
        offsets = array.offsets.to_pylist()
        names, items = (_values(each) for each in (array.keys, array.items))
        return [
            list(zip(names[start:stop], items[start:stop], strict=True)) for start, stop in pairwise(offsets)
        ]
    if kind in (pa.string(), pa.binary()) or (not array.null_count and kind in (pa.int32(), pa.int64())):
        values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return values
    pylist: list[Any] = array.to_pylist()
    return pylist


def _message(values: dict[str, Any]) -> NewMessage:
    given = {name: value for name, value in values.items() if value is not None}
    compression = given.get("body_compression", "none")
    if compression not in COMPRESSIONS:
        raise illegal(f"{compression!r} is not one of {', '.join(COMPRESSIONS)}", column="body_compression")
    keys = given.get("keys", ())
    if isinstance(keys, str):
        keys = tuple(keys.split(KEY_SEPARATOR)) if keys else ()
    elif None in keys:
        raise illegal("a key is null", column="keys")
    body = given.get("body", b"")
    return NewMessage(
        given["topic"],
        body.encode() if isinstance(body, str) else body,
        tags=given.get("tags"),
        keys=keys,
        properties=_properties(given),
        queue_id=given.get("queue_id"),
        flag=given.get("flag", 0),
        sys_flag=given.get("sys_flag", 0),
        born_timestamp=given.get("born_timestamp_ms"),
        born_host=_host(given, "born_host"),
        store_timestamp=given.get("store_timestamp_ms"),
        store_host=_host(given, "store_host"),
        reconsume_times=given.get("reconsume_times", 0),
        prepared_transaction_offset=given.get("prepared_transaction_offset", 0),
        delay_level=given.get("delay_level", 0),
        wait=given.get("wait", True),
        uniq_key=given.get("uniq_key"),
        compression=compression,
    )


def _properties(given: dict[str, Any]) -> dict[str, str] | bytes:
    pairs = given.get("properties", [])
    if any(value is None for _, value in pairs):
        raise illegal("the value of a property is null", column="properties")
    if "properties_bytes" not in given:
        return dict(pairs)
    if pairs:
        raise illegal("a row has properties and properties_bytes", column="properties")
    stored = given["properties_bytes"]
    return stored.encode() if isinstance(stored, str) else bytes(stored)


def _host(given: dict[str, Any], column: str) -> bytes | None:
    host = given.get(column)
    try:
        return host_bytes(host) if isinstance(host, str) else host
    except FormatError as error:
        raise illegal(error.message, column=column) from error
