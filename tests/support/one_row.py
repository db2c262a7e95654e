"""One row of JSON to its message, step by step: the reference for `ingest.columns`, for whole columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rmqtool.formats import message as form
from rmqtool.formats.body import Compression
from rmqtool.write.ingest.rows import (
    EMPTY_KINDS,
    HOST_BITS,
    NO_BODY,
    NO_TOPIC,
    OWN_COLUMN,
    InputRow,
    RowError,
    RowRules,
    body_bytes,
    check_kept,
    check_status,
    disagree,
    host_of,
    kept_body,
    own_value,
    split_keys,
    stored_body,
    stored_properties,
    time_ms,
)
from rmqtool.write.records.message import NewMessage

FIRST_DEFAULTS = (
    "topic", "queue_id", "flag", "sys_flag", "born_host", "store_host", "reconsume_times",
    "prepared_transaction_offset",
)  # fmt: skip
"""Columns whose defaults hold for every row. Those of properties and compression are for new messages, and
a default that is a property's own column comes after the properties of the row itself."""
NEW_DEFAULTS = ("properties", "body_compression")


def message_of(row: InputRow, rules: RowRules) -> NewMessage | None:
    """The message of one row; None for a row that holds none.

    Raises:
        RowError: it is no message, with the column; `row` is not set.
    """
    if row.kind in EMPTY_KINDS or row.blank:
        return None
    check_status(row.status)
    stored = row.physical_offset is not None
    _fill(row, rules, FIRST_DEFAULTS if stored else FIRST_DEFAULTS + NEW_DEFAULTS)
    if not row.topic:
        raise RowError(NO_TOPIC, column="topic", status="MESSAGE_ILLEGAL")
    compression: Compression | None = None
    if row.stored_body is not None:
        body, sys_flag = kept_body(body_bytes(row.stored_body, "base64"), row.sys_flag or 0, stored=stored)
        if row.body is not None:
            check_kept(body_bytes(row.body, row.body_encoding), body, sys_flag)
    elif row.body is None:
        raise RowError(NO_BODY, column="body", status="MESSAGE_ILLEGAL")
    else:
        body, sys_flag, compression = stored_body(
            body_bytes(row.body, row.body_encoding), row.sys_flag or 0, row.body_compression, stored=stored
        )
    message = NewMessage(
        topic=row.topic,
        body=body,
        queue_id=row.queue_id,
        flag=row.flag or 0,
        sys_flag=sys_flag,
        born_timestamp=_time_of(row, "born", rules),
        born_host=_host_of(row, "born_host"),
        store_timestamp=_time_of(row, "store", rules),
        store_host=_host_of(row, "store_host"),
        reconsume_times=row.reconsume_times or 0,
        prepared_transaction_offset=row.prepared_transaction_offset or 0,
        compression=compression or "none",
    )
    _agree(row.properties or {}, row)
    if stored:
        message.properties = stored_properties(
            row.properties, row.properties_base64, rules.dialect, _room(row)
        )
        return message
    _fill(row, rules, OWN_COLUMN.values())
    message.properties = {
        name: value for name, value in (row.properties or {}).items() if name not in OWN_COLUMN
    }
    message.tags = row.tags
    message.uniq_key = row.uniq_key
    message.keys = split_keys(row.keys)
    message.delay_level = row.delay_level or 0
    message.wait = row.wait is not False
    return message


def _fill(row: InputRow, rules: RowRules, names: Iterable[str]) -> None:
    for name in names:
        if getattr(row, name) is None:
            setattr(row, name, rules.defaults.get(name))


def _agree(given: Mapping[str, str], row: InputRow) -> None:
    """Fills the columns whose properties were given as properties only; where both are, they agree."""
    stored = row.physical_offset is not None
    for name, column in OWN_COLUMN.items():
        there = getattr(row, column)
        if name not in given or (stored and there is None):
            continue
        value = own_value(name, given[name])
        if there is None:
            setattr(row, column, value)
        elif (split_keys(there) if column == "keys" else there) != value:
            value = " ".join(there) if isinstance(there, list) else there
            raise RowError(disagree(name, value, given[name]), column=column)


def _time_of(row: InputRow, which: str, rules: RowRules) -> int | None:
    number: int | None = getattr(row, f"{which}_timestamp_ms")
    if number is not None:
        return number
    text: str | None = getattr(row, f"{which}_time")
    if text is not None:
        return time_ms(text, f"{which}_time", rules)
    default: int | None = rules.defaults.get(f"{which}_timestamp_ms")
    return default


def _host_of(row: InputRow, column: str) -> bytes | None:
    text: str | None = getattr(row, column)
    return None if text is None else host_of(text, column)


def _room(row: InputRow) -> int | None:
    """Bytes that the record as stored has for its property string."""
    if row.size is None or row.body_length is None or row.topic is None:
        return None
    head = form.HEADS[(row.sys_flag or 0) & HOST_BITS].size
    topic = (2 if row.version == 2 else 1) + len(row.topic.encode())
    return row.size - head - row.body_length - topic - 2
