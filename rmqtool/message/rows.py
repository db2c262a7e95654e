"""A stored message as a row: a dict with the names and the order of `rmqtool.message.columns`.

Only requested fields are computed, and the properties and the body are decoded at most once for all of
them. Bytes from disk never raise: a field that cannot be read is null, and `status` gives the reason with
the codes of `rmqtool.problems`:

    CL03  the stored body does not match its CRC
    CL06  the stored physical offset is not the record's position
    CL09  the record does not match its property CRC
    CL13  the property string cannot be read in full, or ends in zeros
    CL14  the body cannot be unpacked, exceeds the limit, or its compression is unknown
    UN01  the library for the body's compression is not installed

The last two are not detected with the body form `none`, which avoids unpacking.

Rows for a blank, for unused zeros and for a range that holds no sound record have few fields:
`blank_row`, `zeros_row`, `damage_row`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from datetime import UTC, tzinfo
from functools import cached_property
from typing import Any, Literal, get_args

from rmqtool import times
from rmqtool.errors import FormatError, MissingCodecError, UsageError
from rmqtool.formats import body, message, message_id, properties
from rmqtool.formats.body import BODY_LIMIT
from rmqtool.formats.message import Message
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.commit_log import status_of
from rmqtool.log.damage import codes_of
from rmqtool.log.events import CODEC_MISSING, PROPERTIES_UNSOUND, PROPERTY_CRC_BAD, UNPACKABLE
from rmqtool.message import system_topics
from rmqtool.message.columns import BY_NAME, COLUMNS, FIXED_NAMES
from rmqtool.problems import BY_CODE

BodyForm = Literal["text", "hex", "base64", "none"]
BODY_FORMS: tuple[BodyForm, ...] = get_args(BodyForm)
OK = "ok"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How messages become rows.

    Attributes:
        body: `text` is UTF-8 if the bytes are UTF-8, else base64; `none` leaves the body out.
        tz: zone of the RFC 3339 times; None is the local zone.
        names: the requested columns; None is all, in the order of the table of columns.
        body_limit: most bytes of an unpacked body.
        due_of: gives the delivery time of delayed messages, for `system`; None if unknown.

    Raises:
        UsageError: an unknown column or body form.
    """

    body: BodyForm = "text"
    tz: tzinfo | None = UTC
    names: tuple[str, ...] | None = None
    body_limit: int = BODY_LIMIT
    due_of: system_topics.DueOf | None = None

    def __post_init__(self) -> None:
        """Check the names. Raises UsageError."""
        if self.body not in BODY_FORMS:
            raise UsageError(f"body form {self.body!r} is not one of {', '.join(BODY_FORMS)}")
        check_names(self.names or ())

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of fixed-column output (CSV, TSV, tables), in order."""
        return FIXED_NAMES if self.names is None else self.names


def check_names(names: Iterable[str]) -> None:
    """Raises UsageError, which lists the columns, for an unknown name."""
    for name in names:
        if name not in BY_NAME:
            raise UsageError(f"there is no field {name!r}", hint="the fields are " + ", ".join(BY_NAME))


def message_row(
    record: Message,
    physical_offset: int,
    file: str,
    form: RowFormat = RowFormat(),  # noqa: B008 - frozen
) -> Row:
    """The row of one record.

    Args:
        record: the decoded record.
        physical_offset: where it lies in the commit log, bytes; may differ from the stored field.
        file: the file that holds it, relative to the store root.
        form: which fields, and how times and bodies are written.

    Returns:
        The row. It has all fields that are requested by name. Without names it has all columns, but
        `stored_body`, `properties_base64` and `system` only if they have a value.
    """
    view = _View(record, physical_offset, file, form)
    if form.names is not None:
        return {name: _VALUES[name](view) for name in form.names}
    row = {column.name: _VALUES[column.name](view) for column in COLUMNS}
    for column in COLUMNS:
        if column.optional and row[column.name] is None:
            del row[column.name]
    return row


def blank_row(physical_offset: int, size: int, file: str) -> Row:
    """The row of a blank; `size` is the rest of the file in bytes, as the blank states it."""
    return {"blank": True, "physical_offset": physical_offset, "size": size, "file": file}


def zeros_row(physical_offset: int, size: int, file: str) -> Row:
    """The row of `size` zero bytes that are not written yet."""
    return {"physical_offset": physical_offset, "size": size, "file": file}


def damage_row(code: str, physical_offset: int, size: int, file: str) -> Row:
    """The row of `size` bytes without a sound record; `code` is a code of `rmqtool.problems`."""
    return {
        "physical_offset": physical_offset,
        "size": size,
        "status": [BY_CODE[code].code],
        "file": file,
    }


def unpacked(stored: bytes, sys_flag: int, limit: int = BODY_LIMIT) -> tuple[bytes | None, int]:
    """(body as the application sees it, 0), or (None, status bit: UNPACKABLE or CODEC_MISSING)."""
    try:
        return body.decompress(stored, sys_flag, limit=limit), 0
    except MissingCodecError:
        return None, CODEC_MISSING
    except FormatError:
        return None, UNPACKABLE


def spell_body(plain: bytes, form: BodyForm) -> tuple[str | None, str | None]:
    """(body, body_encoding) of a body as the application sees it."""
    if form == "none":
        return None, None
    if form == "hex":
        return plain.hex(), "hex"
    if form == "text":
        try:
            return plain.decode(), "utf-8"
        except UnicodeDecodeError:
            pass  # not text: base64 is exact
    return base64.b64encode(plain).decode(), "base64"


class _View:
    """One record with values that several columns need, decoded on first use."""

    def __init__(self, record: Message, physical_offset: int, file: str, form: RowFormat) -> None:
        self.record = record
        self.physical_offset = physical_offset
        self.file = file
        self.form = form

    @cached_property
    def properties(self) -> dict[str, str]:
        return properties.decode(self.record.properties_bytes)

    @cached_property
    def _unpacked(self) -> tuple[bytes | None, int]:
        return unpacked(self.record.body, self.record.sys_flag, self.form.body_limit)

    @cached_property
    def spelled_body(self) -> tuple[str | None, str | None]:
        """(body, body_encoding)."""
        if self.form.body == "none" or self._unpacked[0] is None:  # do not unpack needlessly
            return None, None
        return spell_body(self._unpacked[0], self.form.body)

    @property
    def stored_body(self) -> str | None:
        """The stored bytes in base64, if compressing the body would not reproduce them."""
        if self.form.body == "none" or self._unpacked[0] is None:
            return None
        record = self.record
        if body.is_reproduced(record.body, self._unpacked[0], record.sys_flag):
            return None
        return base64.b64encode(record.body).decode()

    @property
    def compression(self) -> str | None:
        try:
            return body.compression_of(self.record.sys_flag)
        except FormatError:
            return None

    @property
    def properties_base64(self) -> str | None:
        """The stored bytes in base64, if encoding the decoded properties would not reproduce them."""
        stored = self.record.properties_bytes
        return None if properties.round_trips(stored) else base64.b64encode(stored).decode()

    @property
    def offset_msg_id(self) -> str:
        """Derived from the stored physical offset, as brokers and clients do."""
        return message_id.offset_message_id(self.record.store_host, self.record.physical_offset)

    @property
    def status(self) -> list[str]:
        record = self.record
        status = status_of(record, self.physical_offset)
        if properties.property_crc(record.properties_bytes) is not None and not (
            properties.property_crc_ok(message.encode(record))
        ):
            status |= PROPERTY_CRC_BAD
        if record.ends_in_zeros or not properties.sound(record.properties_bytes):
            status |= PROPERTIES_UNSOUND
        if self.form.body != "none":
            status |= self._unpacked[1]
        return codes_of(status) or [OK]

    @property
    def system(self) -> system_topics.Description | None:
        return system_topics.describe(
            self.record,
            due_of=self.form.due_of,
            tz=self.form.tz,
            decoded=self.properties,
            bodies=self.form.body != "none",
            body_limit=self.form.body_limit,
        )


_VALUES: dict[str, Callable[[_View], Any]] = {
    "physical_offset": lambda view: view.physical_offset,
    "size": lambda view: view.record.total_size,
    "version": lambda view: view.record.version,
    "topic": lambda view: view.record.topic,
    "queue_id": lambda view: view.record.queue_id,
    "queue_offset": lambda view: view.record.queue_offset,
    "flag": lambda view: view.record.flag,
    "sys_flag": lambda view: view.record.sys_flag,
    "body_crc": lambda view: view.record.body_crc,
    "born_timestamp_ms": lambda view: view.record.born_timestamp,
    "born_time": lambda view: times.format_time(view.record.born_timestamp, view.form.tz),
    "born_host": lambda view: message_id.host_text(view.record.born_host),
    "store_timestamp_ms": lambda view: view.record.store_timestamp,
    "store_time": lambda view: times.format_time(view.record.store_timestamp, view.form.tz),
    "store_host": lambda view: message_id.host_text(view.record.store_host),
    "reconsume_times": lambda view: view.record.reconsume_times,
    "prepared_transaction_offset": lambda view: view.record.prepared_transaction_offset,
    "body_length": lambda view: view.record.body_length,
    "body": lambda view: view.spelled_body[0],
    "body_encoding": lambda view: view.spelled_body[1],
    "body_compression": lambda view: view.compression,
    "stored_body": lambda view: view.stored_body,
    "tags": lambda view: view.properties.get(properties.TAGS),
    "keys": lambda view: properties.keys_of(view.properties),
    "uniq_key": lambda view: view.properties.get(properties.UNIQ_KEY),
    "offset_msg_id": lambda view: view.offset_msg_id,
    "properties": lambda view: view.properties,
    "properties_base64": lambda view: view.properties_base64,
    "status": lambda view: view.status,
    "file": lambda view: view.file,
    "system": lambda view: view.system,
}

assert tuple(_VALUES) == tuple(BY_NAME)
