"""One structure as annotated bytes: each field of its declaration with offset, bytes and meaning.

The fields, their order and their text come from the construct declaration (`formats/`), as in the man
page. Reading stops at the first field that does not fit: a damaged record is shown as far as it can be
read, and the sentences in `Explanation.problems` say what is wrong with it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any

from rmqtool import times
from rmqtool.errors import FormatError, MissingCodecError
from rmqtool.formats import body, ledger, message, message_id, properties
from rmqtool.formats.declare import fields_of
from rmqtool.formats.parts import Part
from rmqtool.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rmqtool.log.remains import Remains

HEX_LIMIT = 16  # most bytes shown of one row; bodies and property strings have a row for every part
_HEX_CUT = 12  # bytes shown of a longer row
BODY_SHOWN = 256  # bytes shown of a body, HEX_LIMIT per row


@dataclass(frozen=True, slots=True)
class ExplainedField:
    """One field: `offset` is where it starts in the file or the log, bytes; `data` its bytes.

    `value` is what the bytes mean, `text` what the declaration says about the field. A field that
    is a part of the one before (one property of the property string, some bytes of the body) has a
    dotted name.
    """

    offset: int
    name: str
    data: bytes
    value: str
    text: str

    def row(self, *, whole: bool = False) -> dict[str, Any]:
        """The field as a row; `hex` has groups of 4 bytes.

        Without `whole` the hex of more than HEX_LIMIT bytes is shortened, and then ends with an ellipsis.
        """
        cut = len(self.data) > HEX_LIMIT and not whole
        return {
            "offset": self.offset,
            "size": len(self.data),
            "field": self.name,
            "hex": (self.data[:_HEX_CUT] if cut else self.data).hex(" ", -4) + (" ..." if cut else ""),
            "value": self.value,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """The fields that could be read, in order, and sentences on what is wrong (none if sound).

    `note` says what is shown if it is not what was requested. `body_length` is the size of the stored body
    of a record, if it is known.
    """

    fields: tuple[ExplainedField, ...]
    problems: tuple[str, ...]
    note: str | None = None
    body_length: int | None = None

    def number(self, name: str) -> int | None:
        """The value of a field that is a number; None if it could not be read."""
        return next((int.from_bytes(field.data) for field in self.fields if field.name == name), None)


@dataclass(frozen=True, slots=True)
class BodyLeft:
    """What is left of a body. `text` says how many bytes, in which form, and whether that is all of it."""

    data: bytes
    text: str


def body_left(found: Explanation, limit: int = body.BODY_LIMIT) -> BodyLeft | None:
    """What is left of the body of a record, its parts one after the other; None if the record has no body.

    A body that is whole is decompressed if it has at most `limit` bytes then; else the bytes are as stored.
    """
    parts = [field for field in found.fields if field.name == "body"]
    stored = b"".join(field.data for field in parts)
    if not parts or not (stored or found.body_length == 0):
        return None
    flags = None if found.body_length is None else found.number("sys_flag")  # else of a lost header
    if len(stored) != found.body_length or flags is None:
        return BodyLeft(stored, _part_text(parts, found.body_length, flags))
    crc = found.number("body_crc")
    what = "the whole body"
    if stored and crc is not None and message.masked_crc(stored) != crc:
        what = "as many as the body had, but its CRC does not match"
    try:
        plain = body.decompress(stored, flags, limit=limit)
    except (FormatError, MissingCodecError) as error:
        hint = f" ({error.hint})" if error.hint else ""
        return BodyLeft(stored, f"{len(stored)} bytes, {what}, compressed as stored: {error.message}{hint}")
    unpacked = f", decompressed from {len(stored)} bytes" if flags & message.COMPRESSED else ""
    return BodyLeft(plain, f"{len(plain)} bytes, {what}{unpacked}")


def _part_text(parts: Sequence[ExplainedField], length: int | None, flags: int | None) -> str:
    """What `BodyLeft.text` says of stored bytes that are not all, or not known to be what was sent."""
    count = sum(len(field.data) for field in parts)
    text = f"{count} of {length} bytes of the body"
    if length is None:
        text = f"{count} bytes of the body; how many it had is unknown"
    elif count == length:
        text = f"{count} bytes, the whole body"
    if len(parts) > 1:
        places = ", ".join(f"{field.offset} to {field.offset + len(field.data)}" for field in parts)
        text += f"; {len(parts)} parts, joined, from the physical offsets {places}"
    if flags is None:
        return f"{text}; as stored: whether they are compressed is unknown"
    return (
        f"{text}; compressed as stored: a part cannot be decompressed" if flags & message.COMPRESSED else text
    )


ROW_FIELDS = ("offset", "size", "field", "hex", "value", "text")
TABLE_FIELDS = (("field_offset", "offset"), "field", "hex", "value", "text")
"""Under this name a narrow table leaves out the offset first: `value` says what the bytes mean."""


def explain_record(
    data: bytes | memoryview,
    physical_offset: int,
    tz: tzinfo | None = UTC,
    *,
    left: int | None = None,
    body_shown: int | None = BODY_SHOWN,
    body_limit: int = body.BODY_LIMIT,
) -> Explanation:
    """Explains the commit log record, or the blank, at the start of `data`.

    Args:
        data: the bytes from the record's start, at least to its end if the file has them.
        physical_offset: where `data` starts in the commit log.
        tz: zone of the times shown; None is the local zone.
        left: bytes from the start of `data` to the end of its file; None if `data` reaches that end.
        body_shown: bytes of the body that get rows of their own; None: all.
        body_limit: most bytes of a decompressed body.
    """
    view = bytes(data)
    if len(view) >= 8 and int.from_bytes(view[4:8], signed=True) == message.BLANK_MAGIC:
        return _explain_blank(view, physical_offset, len(view) if left is None else left)
    spell = _Spelling(tz, physical_offset)
    fields, values, stopped = _read(message.RECORD, view, physical_offset, spell)
    fields += _cut_body(fields, values, view, physical_offset)
    problems = [] if stopped is None else [stopped]
    problems += _record_problems(fields, values, physical_offset, body_limit, complete=stopped is None)
    parts = _with_parts(_with_crc(fields, values), stopped is None, body_shown)
    return Explanation(tuple(parts), tuple(problems), body_length=values.get("body_length"))


def explain_remains(
    data: bytes | memoryview,
    physical_offset: int,
    found: Remains,
    *,
    body_shown: int | None = BODY_SHOWN,
) -> Iterator[ExplainedField]:
    """The end of a record whose header is lost: what is left of its body, topic and properties.

    Args:
        data: the bytes of the whole record.
        physical_offset: of the record.
        found: what is left of it.
        body_shown: bytes of each part of the body that get rows of their own; None: all.
    """
    view = bytes(data)
    texts = {field.name: field.text for field in fields_of(message.RECORD)}
    for start, stop in found.body:
        part = view[start:stop]
        field = ExplainedField(
            physical_offset + start, "body", part, f"{len(part)} bytes are left", texts["body"]
        )
        yield field
        yield from _body_lines(field, len(part) if body_shown is None else body_shown)
    if found.topic_at is None or found.properties is None:
        return
    at = view.index(found.topic, found.topic_at)
    yield ExplainedField(physical_offset + at, "topic", found.topic, _text(found.topic), texts["topic"])
    at += len(found.topic) + 2
    value = f"{len(found.properties)} bytes"
    field = ExplainedField(physical_offset + at, "properties", found.properties, value, texts["properties"])
    yield field
    yield from _pieces(field)


def explain_structure(
    declaration: Part, data: bytes | memoryview, offset: int, tz: tzinfo | None = UTC
) -> Explanation:
    """Explains one structure (a consume queue unit, an index header, ...) at the start of `data`.

    `offset` is where `data` starts in its file.
    """
    fields, _, stopped = _read(declaration, bytes(data), offset, _Spelling(tz, None))
    return Explanation(tuple(fields), () if stopped is None else (stopped,))


def _read(
    declaration: Part, data: bytes, offset: int, spell: _Spelling
) -> tuple[list[ExplainedField], dict[str, Any], str | None]:
    """(fields, values by name, why reading stopped or None)."""
    from construct import ConstructError

    stream = io.BytesIO(data)
    values: dict[str, Any] = {}
    fields: list[ExplainedField] = []
    texts = {field.name: field.text for field in fields_of(declaration)}
    for subcon in declaration.subcons:
        start = stream.tell()
        try:
            values[subcon.name] = subcon.parse_stream(stream, **values)
        except ConstructError:
            left = len(data) - start
            return fields, values, f"{subcon.name} cannot be read: {left} bytes are left at {offset + start}"
        part = data[start : stream.tell()]
        value = spell(subcon.name, values)
        fields.append(ExplainedField(offset + start, subcon.name, part, value, texts[subcon.name]))
    return fields, values, None


def _cut_body(
    fields: list[ExplainedField], values: dict[str, Any], data: bytes, physical_offset: int
) -> Iterator[ExplainedField]:
    """What is left of a body that the end of the file cuts off, if the header belongs to a record here."""
    if not fields or fields[-1].name != "body_length" or values["physical_offset"] != physical_offset:
        return
    start, length = fields[-1].offset + len(fields[-1].data), values["body_length"]
    left = data[start - physical_offset :]
    if values["magic"] in message.VERSION_BY_MAGIC and len(left) < length < values["total_size"]:
        text = next(field.text for field in fields_of(message.RECORD) if field.name == "body")
        yield ExplainedField(start, "body", left, f"{len(left)} of {length} bytes are left", text)


def _explain_blank(data: bytes, physical_offset: int, left: int) -> Explanation:
    spell = _Spelling(UTC, physical_offset)
    fields, values, _ = _read(message.BLANK.declaration, data, physical_offset, spell)
    problems: tuple[str, ...] = ()
    if values["total_size"] != left:
        problems = (
            f"the blank says {values['total_size']} bytes are left in its file, but there are {left}",
        )
    return Explanation(tuple(fields), problems)


def _record_problems(
    fields: list[ExplainedField],
    values: dict[str, Any],
    physical_offset: int,
    body_limit: int,
    *,
    complete: bool,
) -> Iterator[str]:
    magic = values.get("magic")
    if magic is not None and magic not in message.VERSION_BY_MAGIC:
        yield f"{magic & 0xFFFFFFFF:08X} is not a message magic"
    if values.get("physical_offset", physical_offset) != physical_offset:
        yield f"the record says it is at {values['physical_offset']}, but it is at {physical_offset}"
    stored = values.get("body")
    if stored and message.masked_crc(stored) != values["body_crc"]:
        yield f"the body's CRC is {message.masked_crc(stored)}, the record says {values['body_crc']}"
    if complete:
        size = sum(len(field.data) for field in fields)
        if size != values["total_size"]:
            where = f"the record at {physical_offset}"
            yield f"{where} says it has {values['total_size']} bytes, its parts have {size}"
        elif properties.property_crc_ok(b"".join(field.data for field in fields)) is False:
            yield "the record does not match its property CRC"
        if message.ends_in_zeros(values["properties"], values["topic"]):
            yield "the record ends in zeros: keys, tags or other properties may be lost"
        elif not properties.sound(values["properties"]):
            yield "the property string cannot be read in full"
        try:
            body.decompress(values["body"], values["sys_flag"], limit=body_limit)
        except MissingCodecError:
            pass
        except FormatError as error:
            yield f"the body cannot be decompressed: {error.message}"


def _with_crc(fields: list[ExplainedField], values: dict[str, Any]) -> list[ExplainedField]:
    """The fields; the value of body_crc says whether it matches the body."""
    stored = values.get("body")
    if stored is None:
        verdict = "not checked: the body cannot be read"
    elif message.masked_crc(stored) == values["body_crc"]:
        verdict = "matches"
    else:
        # Source: CommitLog#checkMessageAndReturnSize, which checks a body that has bytes.
        verdict = f"computed {message.masked_crc(stored)}" if stored else "not checked: the body is empty"
    return [
        replace(field, value=f"{field.value}  {verdict}") if field.name == "body_crc" else field
        for field in fields
    ]


def _with_parts(
    fields: list[ExplainedField], complete: bool, body_shown: int | None
) -> Iterator[ExplainedField]:
    """The fields, with one more for every line of the body and every piece of the property string."""
    for field in fields:
        yield field
        if field.name == "body":
            yield from _body_lines(field, len(field.data) if body_shown is None else body_shown)
        elif field.name == "properties":
            pieces = list(_pieces(field))
            if complete and pieces and properties.property_crc(field.data) is not None:
                pieces[-1] = _with_property_crc(pieces[-1], b"".join(each.data for each in fields))
            yield from pieces


def _body_lines(field: ExplainedField, shown: int) -> Iterator[ExplainedField]:
    data = field.data[:shown]
    for start in range(0, len(data), HEX_LIMIT):
        line = data[start : start + HEX_LIMIT]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
        yield ExplainedField(field.offset + start, f"body.{start}", line, f"|{text}|", "")
    rest = field.data[shown:]
    if rest and shown:
        value = f"{len(rest)} more bytes: --body hex shows all"
        yield ExplainedField(field.offset + shown, f"body.{shown}", rest, value, "")


def _pieces(field: ExplainedField) -> Iterator[ExplainedField]:
    """One field for every piece of the property string."""
    start = 0
    while start < len(field.data):
        end = field.data.find(b"\x02", start) + 1 or len(field.data)
        piece = field.data[start:end]
        name, _, value = piece.removesuffix(b"\x02").partition(b"\x01")
        yield ExplainedField(
            field.offset + start,
            f"properties.{name.decode('utf-8', 'replace')}",
            piece,
            value.decode("utf-8", "replace"),
            "",
        )
        start = end


def _with_property_crc(piece: ExplainedField, record: bytes) -> ExplainedField:
    """The piece with the property CRC; its value says whether it matches the record."""
    if properties.property_crc_ok(record):
        return replace(piece, value=f"{piece.value}  matches")
    covered = record[: -message.PROPERTY_CRC_SIZE]
    _, _, digits, _ = properties.CRC_PROPERTY.unpack(properties.property_crc_bytes(covered))
    return replace(piece, value=f"{piece.value}  computed {digits.decode()}")


class _Spelling:
    """Spells the value of a field for people, by the field's name."""

    def __init__(self, tz: tzinfo | None, physical_offset: int | None) -> None:
        self.tz = tz
        self.physical_offset = physical_offset

    def __call__(self, name: str, values: dict[str, Any]) -> str:
        value = values[name]
        if name.endswith("_timestamp") and value:
            time = times.format_time(value, self.tz)
            return str(value) if time is None else f"{value}  {time}"
        spell = _SPELLINGS.get(name)
        if spell is not None:
            return spell(value)
        if isinstance(value, bytes):
            return f"{len(value)} bytes"
        return str(value)


def _magic(value: int) -> str:
    version = message.VERSION_BY_MAGIC.get(value)
    if version is not None:
        return f"{value & 0xFFFFFFFF:08X}  version {version}"
    return f"{value & 0xFFFFFFFF:08X}  {_OTHER_MAGICS.get(value, 'unknown')}"


_OTHER_MAGICS = {
    message.BLANK_MAGIC: "blank",
    ledger.MAGIC: "DLedger",
    ledger.FILE_END_MAGIC: "end of a DLedger file",
}


_TRANSACTION = {
    message.TRANSACTION_PREPARED: "prepared",
    message.TRANSACTION_COMMIT: "commit",
    message.TRANSACTION_ROLLBACK: "rollback",
}
_SYS_FLAGS = {
    message.MULTI_TAGS: "multi tags",
    message.BORN_HOST_V6: "born host IPv6",
    message.STORE_HOST_V6: "store host IPv6",
    message.NEED_UNWRAP: "need unwrap",
    message.INNER_BATCH: "inner batch",
}


def _sys_flag(value: int) -> str:
    words = []
    if value & message.COMPRESSED:
        try:
            words.append(f"compressed {body.compression_of(value)}")
        except FormatError:
            words.append("compressed, unknown type")
    words += [word for bit, word in _SYS_FLAGS.items() if value & bit]
    if value & message.TRANSACTION_MASK:
        words.append("transaction " + _TRANSACTION[value & message.TRANSACTION_MASK])
    return f"0x{value & 0xFFFFFFFF:X}  {', '.join(words) or 'not compressed, no transaction, IPv4 hosts'}"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


_SPELLINGS: dict[str, Callable[[Any], str]] = {
    "magic": _magic,
    "sys_flag": _sys_flag,
    "born_host": message_id.host_text,
    "store_host": message_id.host_text,
    "topic": _text,
}
