"""The meaning of the values of an input row: rows that `message.rows` writes, and rows that people write.

A row with `physical_offset` shows a stored record and is taken over as stored: topic, queue, times,
hosts and the property string stay, and nothing is added to it. Its properties must be there; its
queue offset is a new one. A row without `physical_offset` is a new message, and client and broker
add to it what they always add.

The body of a row is never compressed: `sys_flag` and `body_compression` say how it is stored. Only
`stored_body` is as it was stored; where a row has both, it must unpack to `body`. A property that has a
column of its own (TAGS, KEYS, UNIQ_KEY, DELAY, WAIT) may be given in either place, and where it is in
both, they must agree. Of two forms of a time the integer counts.

Rows of blanks and zeros hold no message. A row whose status is not ok is refused: what is damaged is
not stored as if it were sound.

`columns` applies this to whole columns.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import tzinfo
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, get_args

from msgspec import Meta, Struct
from msgspec.structs import fields as struct_fields

from rmqtool.errors import FormatError, InputError, UsageError
from rmqtool.formats import body as bodies
from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats.body import Compression
from rmqtool.formats.message_id import host_bytes
from rmqtool.lazy_dataclass import dataclass
from rmqtool.storage.profile import NEWEST, Profile
from rmqtool.times import parse_time

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
EMPTY_KINDS = ("blank", "zeros")

NO_TOPIC = "it has none, and --topic gives none"
NO_BODY = 'it has none; an empty one is written as ""'
NO_PROPERTIES = (
    "a row with physical_offset is stored as it was, and needs them (a new message has no physical_offset)"
)


class RowError(InputError):
    """A row of the input that is not a message.

    `row` counts from 1 (a line of JSONL; in CSV the header is row 1), `column` is its column, and
    `status` what a broker would call it, where it is a broker's rule.
    """

    def __init__(
        self,
        what: str,
        *,
        column: str | None = None,
        row: int | None = None,
        status: str | None = None,
        hint: str | None = None,
    ) -> None:
        place = ", ".join(part for part in (f"row {row}" if row is not None else "", column or "") if part)
        super().__init__(f"{place}: {what}" if place else what, hint=hint, column=column)
        self.what = what
        self.row = row
        self.status = status

    def at(self, row: int) -> RowError:
        """The same with its row."""
        return RowError(self.what, column=self.column, row=row, status=self.status, hint=self.hint)


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
    body_text: Any = None
    found_by: Any = None  # this and the next three: of rows that lookup wrote
    matched: Any = None
    inside: Any = None
    asked: Any = None
    broker_name: str | None = None  # of rows that Spark wrote
    delay_level: I32 | None = None
    wait: bool | None = None


FIELD_TYPES = {field.name: field.type for field in struct_fields(InputRow)}
"""The type of each field of a row: the columns that an input may have."""
NOT_NEEDED = (
    "queue_offset", "body_crc", "offset_msg_id", "file", "system", "record", "body_text",
    "found_by", "matched", "inside", "asked",
)  # fmt: skip
"""Columns that are accepted, because other commands write them, and ignored: the store computes them."""


class StrictRow(InputRow, gc=False, forbid_unknown_fields=True):
    """The same; a column that no row has is an error."""


COLUMNS: tuple[str, ...] = InputRow.__struct_fields__


def unknown_column(name: str, row: int | None) -> RowError:
    """The error for an unknown column."""
    near = get_close_matches(name, COLUMNS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return RowError(f"unknown column {name!r}{hint} (--ignore-unknown skips it)", row=row)


class Raw(NamedTuple):
    """Rows as a source has them.

    Attributes:
        columns: by name of `COLUMNS`.
        numbers: of each row in the source, shape (rows,).
        errors: rows that could not be read at all, by number.
    """

    columns: dict[str, Any]
    numbers: Any
    errors: dict[int, RowError]


@dataclass(frozen=True)
class RowRules:
    """The rules for reading rows.

    Attributes:
        profile: whose dialect property strings have if a row does not show its own.
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
        """The type that a JSON row is decoded to."""
        return InputRow if self.ignore_unknown else StrictRow

    @cached_property
    def now_ms(self) -> int:
        """The one `now` of all rows."""
        return time.time_ns() // 1_000_000

    @property
    def dialect(self) -> properties.Dialect:
        """Of property strings."""
        return self.profile.dialect


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
    """The error text where a column and its property differ."""
    return f"{column!r}, but property {name} is {text!r}"


def check_status(status: list[str] | str | None) -> None:
    """Raises RowError for a row that shows damage."""
    codes = [status] if isinstance(status, str) else status or []
    bad = [code for code in codes if code != "ok"]
    if bad:
        raise RowError(f"{', '.join(bad)}: not stored as if it were sound", column="status", hint=_DAMAGED)


_DAMAGED = (
    "--on-error skip leaves out such rows; to store a message as the row shows it, delete the column status"
    " from the row"
)


def stored_body(
    body: bytes, sys_flag: int, compression: Compression | None, *, stored: bool
) -> tuple[bytes, int, Compression | None]:
    """Return the body as it is stored, `sys_flag` and the compression, for a plain body of a row.

    A body as stored is compressed here, and the flag says how; for a new message the compression is
    left to the append, which leaves small bodies alone.

    Raises:
        RowError: `sys_flag` names an unknown compression.
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
    """Return a body that is given as it was stored, and its `sys_flag` without the host bits.

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


def time_ms(text: str, column: str, rules: RowRules) -> int:
    """The time that `text` means, ms since 1970. Raises RowError."""
    try:
        return parse_time(text, rules.zone, rules.now_ms)
    except UsageError as error:
        raise RowError(error.message, column=column) from None


def host_of(text: str, column: str) -> bytes:
    """The stored bytes of a host. Raises RowError."""
    try:
        return host_bytes(text)
    except FormatError as error:
        raise RowError(error.message, column=column) from None


def stored_properties(
    pairs: Mapping[str, str] | None, base64: str | None, dialect: properties.Dialect, room: int | None
) -> bytes:
    """The property string of a row as stored; a property CRC in it belongs to the old place.

    Args:
        pairs: the column properties.
        base64: the column properties_base64, which counts where a row has both.
        dialect: of the string, if `room` does not show it.
        room: bytes that the stored record has for the string; None where the row does not say.

    Raises:
        RowError: the properties are missing, or cannot be stored.
    """
    if base64 is not None:
        try:
            data = binascii.a2b_base64(base64, strict_mode=True)
        except (binascii.Error, ValueError) as error:
            raise RowError(f"not base64: {error}", column="properties_base64") from None
        data = properties.closed(data)
        if len(data) > properties.MAX_SIZE:
            raise RowError(
                f"{len(data)} bytes: at most {properties.MAX_SIZE} can be stored",
                column="properties_base64",
                status="PROPERTIES_SIZE_EXCEEDED",
            )
        return data
    if pairs is None:
        raise RowError(NO_PROPERTIES, column="properties")
    try:
        data = properties.encode(pairs, dialect="4.x")
    except FormatError as error:
        raise RowError(error.message, column="properties") from None
    is_4x = room == len(data) if room in (len(data), len(data) + 1) else dialect == "4.x"
    return properties.closed(data) if is_4x or not data else data + properties.VALUE_END.encode()
