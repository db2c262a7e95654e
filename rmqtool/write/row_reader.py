"""A message row back to a message: what `rows.message_row` writes, and rows that people write.

A row with `physical_offset` shows a stored record and is taken over as stored: topic, queue, times,
hosts and the property string stay, and nothing is added to it. Its properties must be there; its
queue offset is given anew. A row without `physical_offset` is a new message, and client and broker
add to it what they always add.

The body of a row is never compressed: `sys_flag` and `body_compression` say how it is stored. Only
`stored_body` is as it was stored; where a row has both, it must unpack to `body`. A
property that has a column of its own (TAGS, KEYS, UNIQ_KEY, DELAY, WAIT) may be given in either
place, and where it is in both, they must agree. Of two forms of a time the integer counts.

Rows of blanks and zeros hold no message. A row whose status is not ok is refused: what is damaged is
not stored as if it were sound.

`inputs_columns` does the same for whole columns; tests hold the two together.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from rmqtool.errors import FormatError, UsageError
from rmqtool.formats import body as bodies
from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats.body import Compression
from rmqtool.formats.message_id import host_bytes
from rmqtool.storage.profile import NEWEST, Profile
from rmqtool.times import parse_time
from rmqtool.write.records.message import NewMessage
from rmqtool.write.row_error import RowError as RowError

I32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
I64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
BodyEncoding = Literal["utf-8", "base64", "hex"]
Kind = Literal["record", "blank", "zeros", "missing", "bad"]

BODY_ENCODINGS: tuple[BodyEncoding, ...] = get_args(BodyEncoding)
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
COMPRESSION_BITS = form.COMPRESSED | form.COMPRESSION_TYPE_MASK
HOST_BITS = form.BORN_HOST_V6 | form.STORE_HOST_V6  # follow from the hosts
OWN_COLUMN = {
    properties.TAGS: "tags",
    properties.KEYS: "keys",
    properties.UNIQ_KEY: "uniq_key",
    properties.DELAY: "delay_level",
    properties.WAIT: "wait",
}
"""Properties that have a column: name to column."""
FIRST_DEFAULTS = (
    "topic", "queue_id", "flag", "sys_flag", "born_host", "store_host", "reconsume_times",
    "prepared_transaction_offset",
)  # fmt: skip
"""Columns whose defaults hold for every row. Those of properties and compression are for new messages, and
a default that is a property's own column comes after the properties of the row itself."""
NEW_DEFAULTS = ("properties", "body_compression")
EMPTY_KINDS = ("blank", "zeros")

NO_TOPIC = "it has none, and --topic gives none"
NO_BODY = 'it has none; an empty one is written as ""'
NO_PROPERTIES = (
    "a row with physical_offset is stored as it was, and needs them (a new message has no physical_offset)"
)


class InputRow(Struct, gc=False):
    """One row; every column may be missing. The columns of `message.columns`, and those of a new message."""

    kind: Kind | None = None
    blank: bool | None = None
    physical_offset: I64 | None = None
    size: I32 | None = None
    version: I32 | None = None
    topic: str | None = None
    queue_id: I32 | None = None
    queue_offset: I64 | None = None
    flag: I32 | None = None
    sys_flag: I32 | None = None
    body_crc: I32 | None = None
    born_timestamp_ms: I64 | None = None
    born_time: str | None = None
    born_host: str | None = None
    store_timestamp_ms: I64 | None = None
    store_time: str | None = None
    store_host: str | None = None
    reconsume_times: I32 | None = None
    prepared_transaction_offset: I64 | None = None
    body_length: I32 | None = None
    body: str | None = None
    body_encoding: BodyEncoding | None = None
    body_compression: Compression | None = None
    stored_body: str | None = None
    tags: str | None = None
    keys: list[str] | str | None = None
    uniq_key: str | None = None
    offset_msg_id: str | None = None
    properties: dict[str, str] | None = None
    properties_base64: str | None = None
    status: list[str] | str | None = None
    file: str | None = None
    system: Any = None
    record: Any = None
    broker_name: str | None = None  # of rows that Spark wrote
    delay_level: I32 | None = None
    wait: bool | None = None


class StrictRow(InputRow, gc=False, forbid_unknown_fields=True):
    """The same; a column that no row has is an error."""


COLUMNS: tuple[str, ...] = InputRow.__struct_fields__


@dataclass(frozen=True)
class RowRules:
    """How rows are read.

    Attributes:
        profile: whose dialect property strings are in, where a row does not tell.
        zone: of times without an offset; None is the local zone.
        defaults: values of columns that a row leaves empty, by column; times as integers.
        ignore_unknown: columns that no row has are passed over.
    """

    profile: Profile = NEWEST
    zone: tzinfo | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignore_unknown: bool = False

    @cached_property
    def row_type(self) -> type[InputRow]:
        """What a JSON row is read as."""
        return InputRow if self.ignore_unknown else StrictRow

    @cached_property
    def now_ms(self) -> int:
        """The one `now` of all rows."""
        return time.time_ns() // 1_000_000

    @property
    def dialect(self) -> properties.Dialect:
        """Of property strings."""
        return "4.x" if self.profile.name == "4.9" else "5.x"


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
        message.properties = stored_properties(row, rules.dialect)
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


def own_value(name: str, text: str) -> Any:
    """The value of a property's own column. Raises RowError."""
    if name == properties.KEYS:
        return split_keys(text)
    if name == properties.WAIT:
        return text.lower() == "true"  # Boolean.parseBoolean, as the broker reads it
    if name != properties.DELAY:
        return text
    try:
        return int(text)
    except ValueError:
        raise RowError(f"property {name} is {text!r}, no number", column="properties") from None


def split_keys(keys: Sequence[str] | str | None) -> tuple[str, ...]:
    """The index keys of a list of them or of one text, split at spaces."""
    texts = [keys or ""] if keys is None or isinstance(keys, str) else keys
    return tuple(key for text in texts for key in text.split(properties.KEY_SEPARATOR) if key)


def disagree(name: str, column: object, text: str) -> str:
    """What is wrong where a column and its property differ."""
    return f"{column!r}, but property {name} is {text!r}"


def check_status(status: list[str] | str | None) -> None:
    """Raises RowError for a row that shows damage."""
    codes = [status] if isinstance(status, str) else status or []
    bad = [code for code in codes if code != "ok"]
    if bad:
        raise RowError(f"{', '.join(bad)}: not stored as if it were sound", column="status")


def stored_body(
    body: bytes, sys_flag: int, compression: Compression | None, *, stored: bool
) -> tuple[bytes, int, Compression | None]:
    """What becomes of a plain body, `sys_flag` and `body_compression` of a row.

    A body as stored is compressed here, and the flag says how; for a new message the compression is
    left to the append, which leaves small bodies alone.

    Raises:
        RowError: `sys_flag` names a compression that there is not.
    """
    bits = sys_flag & COMPRESSION_BITS
    sys_flag &= ~(HOST_BITS | COMPRESSION_BITS)
    try:
        named = bodies.compression_of(bits)
    except FormatError as error:
        raise RowError(error.message, column="sys_flag") from None
    if not stored:
        return body, sys_flag, compression or named
    if named == "none":
        named = compression or named
        bits = bodies.compression_bits(named)
    return bodies.compress(body, named), sys_flag | bits, None


def kept_body(body: bytes, sys_flag: int, *, stored: bool) -> tuple[bytes, int]:
    """What becomes of a body that is given as it was stored, and of `sys_flag`: both stay.

    Raises:
        RowError: the row is a new message.
    """
    if not stored:
        raise RowError(
            "it is for rows with physical_offset, which are stored as they were", column="stored_body"
        )
    return body, sys_flag & ~HOST_BITS


def check_kept(plain: bytes, kept: bytes, sys_flag: int) -> None:
    """Refuse a row whose `stored_body` is not its `body`: one of them was changed.

    Raises:
        RowError: it unpacks to other bytes, or not at all.
        MissingCodecError: the library for the compression is not installed.
    """
    try:
        agrees = bodies.decompress(kept, sys_flag, limit=len(plain)) == plain
    except FormatError:
        agrees = False
    if not agrees:
        raise RowError("it does not decompress to body; omit one of the two", column="stored_body")


def body_bytes(text: str | bytes, encoding: str | None) -> bytes:
    """The bytes of a body; those of bytes that no encoding is named for are they. Raises RowError."""
    try:
        if encoding == "base64":
            return binascii.a2b_base64(text, strict_mode=True)
        if encoding == "hex":
            return binascii.a2b_hex(text)
        if encoding not in (None, "utf-8"):
            raise RowError(f"{encoding!r} is not one of {', '.join(BODY_ENCODINGS)}", column="body_encoding")
        return text if isinstance(text, bytes) else text.encode()
    except (binascii.Error, ValueError) as error:
        reason = "a lone surrogate" if isinstance(error, UnicodeError) else str(error)
        raise RowError(f"not {encoding or 'utf-8'}: {reason}", column="body") from None


def _time_of(row: InputRow, which: str, rules: RowRules) -> int | None:
    number: int | None = getattr(row, f"{which}_timestamp_ms")
    if number is not None:
        return number
    text: str | None = getattr(row, f"{which}_time")
    if text is not None:
        return time_ms(text, f"{which}_time", rules)
    default: int | None = rules.defaults.get(f"{which}_timestamp_ms")
    return default


def time_ms(text: str, column: str, rules: RowRules) -> int:
    """The time that `text` means, ms since 1970. Raises RowError."""
    try:
        return parse_time(text, rules.zone, rules.now_ms)
    except UsageError as error:
        raise RowError(error.message, column=column) from None


def _host_of(row: InputRow, column: str) -> bytes | None:
    text: str | None = getattr(row, column)
    return None if text is None else host_of(text, column)


def host_of(text: str, column: str) -> bytes:
    """The stored bytes of a host. Raises RowError."""
    try:
        return host_bytes(text)
    except FormatError as error:
        raise RowError(error.message, column=column) from None


def stored_properties(row: InputRow, dialect: properties.Dialect) -> bytes:
    """The property string of a row as stored; a property CRC in it is of the old place.

    Of the two dialects the one that gives the row's size; where that is not known or neither does,
    `dialect`.

    Raises:
        RowError: there are no properties, or they cannot be stored.
    """
    if row.properties_base64 is not None:
        try:
            data = binascii.a2b_base64(row.properties_base64, strict_mode=True)
        except (binascii.Error, ValueError) as error:
            raise RowError(f"not base64: {error}", column="properties_base64") from None
        if len(data) > properties.MAX_SIZE:
            raise RowError(too_long(len(data)), column="properties_base64", status="PROPERTIES_SIZE_EXCEEDED")
    elif row.properties is None:
        raise RowError(NO_PROPERTIES, column="properties")
    else:
        try:
            data = properties.encode(row.properties, dialect="4.x")
        except FormatError as error:
            raise RowError(error.message, column="properties") from None
        if data and not shorter(row, len(data) + 1, dialect):
            data += b"\x02"
    return data


def too_long(size: int) -> str:
    """What is wrong with a property string of that many bytes."""
    return f"{size} bytes: at most {properties.MAX_SIZE} can be stored"


def shorter(row: InputRow, length: int, dialect: properties.Dialect) -> bool:
    """Whether the string of `length` bytes, which ends with 0x02, is stored without that byte."""
    if row.size is None or row.body_length is None or row.topic is None:
        return dialect == "4.x"
    head = form.HEADS[(row.sys_flag or 0) & HOST_BITS].size
    topic = (2 if row.version == 2 else 1) + len(row.topic.encode())
    stored = row.size - head - row.body_length - topic - 2
    return dialect == "4.x" if stored not in (length, length - 1) else stored == length - 1
