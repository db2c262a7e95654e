"""Single rows of a table: as the message they stand for, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmqtool.errors import FormatError, IllegalMessageError, RmqtoolError
from rmqtool.formats.message_id import host_bytes
from rmqtool.formats.properties import KEY_SEPARATOR
from rmqtool.write.records.message import NewMessage
from rmqtool.write.table.columns import COMPRESSIONS

if TYPE_CHECKING:
    import pyarrow as pa

_ILLEGAL = "MESSAGE_ILLEGAL"
_BITS = {
    "queue_id": 31, "flag": 31, "sys_flag": 31, "reconsume_times": 31, "delay_level": 31,
    "born_timestamp_ms": 63, "store_timestamp_ms": 63, "prepared_transaction_offset": 63,
}  # fmt: skip


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
        self.status = getattr(reason, "status", _ILLEGAL)
        self.reason = reason


def wrong_row(number: int, column: str, error: RmqtoolError) -> WrongRowError:
    """The error of row `number` (from 0); `column` is the suspect where the error names none."""
    return WrongRowError(number, error.column or column, error)


def _illegal(column: str, message: str) -> IllegalMessageError:
    """The error for a value that no message can have."""
    return IllegalMessageError(message, status=_ILLEGAL, column=column)


def message_of(batch: pa.RecordBatch, row: int) -> NewMessage:
    """The message that a row of columns stands for.

    Raises:
        IllegalMessageError: a value that no message can have.
    """
    values: dict[str, Any] = batch.slice(row, 1).to_pylist()[0]
    given = {name: value for name, value in values.items() if value is not None}
    if "topic" not in given:
        raise _illegal("topic", "there is no topic")
    for name, bits in _BITS.items():
        value = given.get(name, 0)
        if not -(1 << bits) <= value < 1 << bits:
            raise _illegal(name, f"{value} does not fit {bits + 1} bits")
    compression = given.get("body_compression", "none")
    if compression not in COMPRESSIONS:
        raise _illegal("body_compression", f"{compression!r} is not one of {', '.join(COMPRESSIONS)}")
    keys = given.get("keys", [])
    if isinstance(keys, str):
        keys = keys.split(KEY_SEPARATOR) if keys else []
    elif None in keys:
        raise _illegal("keys", "a key is null")
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
        raise _illegal("properties", "the value of a property is null")
    if "properties_bytes" not in given:
        return dict(pairs)
    if pairs:
        raise _illegal("properties", "a row has properties and properties_bytes")
    stored = given["properties_bytes"]
    return stored.encode() if isinstance(stored, str) else bytes(stored)


def _host(given: dict[str, Any], column: str) -> bytes | None:
    host = given.get(column)
    try:
        return host_bytes(host) if isinstance(host, str) else host
    except FormatError as error:
        raise _illegal(column, error.message) from error
