"""Says which value of a message has a wrong type, once an operation on it has failed.

Types are not checked before a put: that would take a tenth of its time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, SupportsIndex, get_args

from rmqtool.errors import IllegalMessageError, RmqtoolError
from rmqtool.formats.body import Compression
from rmqtool.write.records.message import NewMessage
from rmqtool.write.records.property_map import illegal

FAILURES = (TypeError, AttributeError, KeyError, ValueError)
"""What Python raises for a value of a wrong type."""

_NONE = type(None)
_TEXT, _BYTES = "text", "bytes"
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "topic": ((str,), _TEXT),
    "tags": ((str, _NONE), _TEXT),
    "uniq_key": ((str, _NONE), _TEXT),
    "properties": ((Mapping, bytes), "a mapping, or bytes"),
    "born_host": ((bytes, _NONE), _BYTES),
    "store_host": ((bytes, _NONE), _BYTES),
}
_NUMBERS = {
    "queue_id": "queue_id", "flag": "flag", "sys_flag": "sys_flag", "reconsume_times": "reconsume_times",
    "prepared_transaction_offset": "prepared_transaction_offset", "delay_level": "delay_level",
    "born_timestamp": "born_timestamp_ms", "store_timestamp": "store_timestamp_ms",
}  # fmt: skip
"""The column of each attribute that is a number."""


@contextmanager
def explained(messages: Iterable[object]) -> Iterator[None]:
    """Turn an error of Python's into that of the first message that has a wrong value, if one has."""
    try:
        yield
    except FAILURES as error:
        raise_explained(error, messages)
        raise


def raise_explained(error: Exception, messages: Iterable[object]) -> None:
    """Raise the IllegalMessageError of the first message with a wrong value.

    It returns if there is none, or if `error` is one of rmqtool's, which says what is wrong itself.
    """
    if isinstance(error, RmqtoolError):
        return
    for message in messages:
        found = wrong_value(message)
        if found is not None:
            raise found from error


def wrong_value(message: object) -> IllegalMessageError | None:
    """The error for the first value of a wrong type; None without one."""
    if not isinstance(message, NewMessage):
        return illegal(f"a message must be a NewMessage, not {_kind(message)}")
    for name, (types, wanted) in _TYPES.items():
        value: object = getattr(message, name)
        if not isinstance(value, types):
            return _wrong(name, wanted, value)
    for name, column in _NUMBERS.items():
        value = getattr(message, name)
        if value is not None and not isinstance(value, SupportsIndex):
            return illegal(f"{name} {value!r} is not an integer", column=column)
    if isinstance(message.properties, Mapping):
        for name, value in message.properties.items():
            if not isinstance(name, str):
                return _wrong("a property name", _TEXT, name, column="properties")
            if not isinstance(value, str):
                return _wrong(f"property {name!r}", _TEXT, value, column="properties")
    if message.compression not in get_args(Compression):
        known = ", ".join(get_args(Compression))
        return illegal(
            f"compression {message.compression!r}: it must be one of {known}", column="body_compression"
        )
    keys: Any = message.keys
    if isinstance(keys, str) or keys is None:
        return None
    if not isinstance(keys, Collection) or isinstance(keys, bytes | bytearray | memoryview):
        return _wrong("keys", "a list of texts", keys)
    for key in keys:
        if not isinstance(key, str):
            return _wrong("a key", _TEXT, key, column="keys")
    return None


def _wrong(name: str, wanted: str, value: object, column: str | None = None) -> IllegalMessageError:
    return illegal(f"{name} must be {wanted}, not {_kind(value)}", column=column or name)


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
