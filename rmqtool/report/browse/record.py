"""One record for a screen: its fields as names and values, its body as lines, its bytes field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import tzinfo
from typing import Any, NamedTuple

from rmqtool import times
from rmqtool.errors import FormatError, InputError, UnreadableError
from rmqtool.formats import message
from rmqtool.formats.batch import decode_items
from rmqtool.formats.body import compression_of
from rmqtool.formats.properties import decode as decode_properties
from rmqtool.log.events import Blank, StoredMessage, TrailingZeros
from rmqtool.message.explain import HEX_LIMIT, ExplainedField, explain_record
from rmqtool.message.rows import OK, RowFormat, message_row, unpacked
from rmqtool.problems import BY_CODE
from rmqtool.read.store import Store
from rmqtool.report.browse.messages import MessageRow, Wrong, as_text, read_record, record_row
from rmqtool.report.dump.place import event_at
from rmqtool.sizes import format_size
from rmqtool.storage.source import open_source

BODY_BYTES = 64 << 10
"""Most bytes of a body that are shown."""
_JSON_MAX = 64 << 10  # bytes of a body that is laid out as JSON
_HEX_BODY = 4096  # bytes of a body that have rows of their own
_RAW = 512  # bytes shown where no record is
_EXPLAINED_MAX = 16 << 20


class Record(NamedTuple):
    """What lies at a physical offset.

    Attributes:
        physical_offset: where it is.
        size: bytes of the record; None if there is none.
        file: the file's name.
        fields: (name, value): what the record says, in words.
        properties: (name, value) as stored, in order.
        body: the body in lines; JSON is laid out.
        rows: its bytes, field by field; without a record the bytes as they are.
        problems: what is wrong, in sentences that begin with the code.
    """

    physical_offset: int
    size: int | None
    file: str
    fields: tuple[tuple[str, str], ...]
    properties: tuple[tuple[str, str], ...]
    body: tuple[str, ...]
    rows: tuple[ExplainedField, ...]
    problems: tuple[str, ...]


def record_at(store: Store, row: MessageRow, tz: tzinfo | None) -> Record:
    """The record of a row of messages, sound or not; `row` has its offset and its size.

    Raises:
        FormatError: no file of the log holds the offset.
        UnreadableError: the file cannot be read.
    """
    offset = row.physical_offset
    assert offset is not None, "the row has a record"
    file = store.commit_log.file_of(offset)
    if file is None:
        raise FormatError("no file of the commit log holds this offset", physical_offset=offset)
    found = read_record(store, offset, row.size or 0)
    start = offset - file.file_from_offset
    size = found.message.total_size if isinstance(found, StoredMessage) else _EXPLAINED_MAX
    try:
        with closing(open_source(file.path)) as source:
            data = bytes(source.read(start, min(size, source.size - start, _EXPLAINED_MAX)))
    except UnreadableError:
        raise
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
    explained = explain_record(data, offset, tz, left=file.size - start, body_shown=_HEX_BODY)
    rows = tuple(map(_without_hint, explained.fields))
    if isinstance(found, Wrong):
        known = sum(len(each.data) for each in rows if "." not in each.name)
        rows += tuple(_raw_rows(data[known:_RAW], offset + known))
        # Without a unit that led here, what the walk found counts.
        codes = row.problems if row.queue_offset is None else dict.fromkeys((*row.problems, *found.codes))
        words = () if codes else (row.note or found.text,)
        problems = (*map(spelled, codes), *words, *explained.problems)
        return Record(offset, None, file.path.name, (), (), (), rows, problems)
    codes = tuple(dict.fromkeys((*row.problems, *record_row(found).problems)))
    fields, properties = _fields(found, row, tz)
    return Record(
        offset, size, file.path.name, fields, properties, tuple(_body(found)), rows,
        (*map(spelled, codes), *explained.problems),
    )  # fmt: skip


def row_at(store: Store, physical_offset: int) -> MessageRow:
    """The row of the record that holds a byte of the log; of the byte itself if no record holds it.

    Without a queue unit the walk to the record may take some seconds.

    Raises:
        FormatError: no file of the log holds the offset.
    """
    file = store.commit_log.file_of(physical_offset)
    if file is None:
        raise FormatError("no file of the commit log holds this offset", physical_offset=physical_offset)
    event = event_at(store, file, physical_offset)
    if isinstance(event, StoredMessage):
        return record_row(event)
    if isinstance(event, Blank):
        return MessageRow(0, None, event.physical_offset, note="the end mark of a file")
    if isinstance(event, TrailingZeros):
        return MessageRow(0, None, physical_offset, note="zeros to the end of the file")
    codes = () if event is None else (event.code,)
    return MessageRow(0, None, physical_offset, note="no sound record", problems=codes)


def spelled(code: str) -> str:
    """A code with what it means."""
    return f"{code} {BY_CODE[code].name}: {BY_CODE[code].message}"


def _without_hint(field: ExplainedField) -> ExplainedField:
    """The field; the rest of a long body without the option of `dump` that shows it."""
    if field.name.startswith("body.") and len(field.data) > HEX_LIMIT:
        return replace(field, value=f"{len(field.data)} more bytes")
    return field


def _raw_rows(data: bytes, offset: int) -> Iterator[ExplainedField]:
    for start in range(0, len(data), HEX_LIMIT):
        line = data[start : start + HEX_LIMIT]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
        yield ExplainedField(offset + start, "", line, f"|{text}|", "")


def _fields(
    found: StoredMessage, row: MessageRow, tz: tzinfo | None
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    record = found.message
    names = ("born_host", "store_host", "offset_msg_id", "tags", "keys", "uniq_key", "status", "system")
    cells = message_row(record, found.physical_offset, found.file, RowFormat(names=names, tz=tz))
    properties = decode_properties(record.properties_bytes)
    born = _time(record.born_timestamp, tz)
    fields = [
        ("topic", record.topic),
        ("queue", f"{record.queue_id}, offset {record.queue_offset}"),
        ("stored", f"{_time(record.store_timestamp, tz)} at {cells['store_host']}"),
        ("born", f"{born} at {cells['born_host']}"),
        ("tags", cells["tags"] or ""),
        ("keys", ", ".join(cells["keys"])),
        ("unique key", cells["uniq_key"] or ""),
        ("message id", cells["offset_msg_id"]),
        ("place", f"{found.physical_offset}, {record.total_size} bytes, in {found.path.name}"),
        ("body", _body_text(found)),
    ]
    if record.reconsume_times:
        fields.append(("retries", str(record.reconsume_times)))
    if record.flag:
        fields.append(("flag", str(record.flag)))
    if row.found_by:
        fields.append(("found by", row.found_by))
    status = [code for code in cells["status"] if code != OK]
    fields.append(("status", ", ".join(status) or "sound"))
    fields += _system(cells["system"])
    return tuple((name, value) for name, value in fields if value), tuple(properties.items())


def _time(time_ms: int, tz: tzinfo | None) -> str:
    return times.format_time(time_ms, tz) or str(time_ms)


def _body_text(found: StoredMessage) -> str:
    record = found.message
    try:
        kind = compression_of(record.sys_flag)
    except FormatError as error:
        return error.message
    stored = format_size(len(record.body))
    return stored if kind == "none" else f"{stored}, compressed by {kind}"


def _system(value: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """What a record of a system topic means."""
    for name, each in (value or {}).items():
        if each is None or name == "messages":
            continue
        text = each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)
        yield name.replace("_", " "), text


def _body(found: StoredMessage) -> Iterator[str]:
    record = found.message
    plain, status = unpacked(record.body, record.sys_flag)
    if plain is None:
        yield f"{len(record.body)} bytes that cannot be decompressed (status {status})"
        return
    if record.sys_flag & message.INNER_BATCH:
        try:
            for number, item in enumerate(decode_items(plain)):
                yield f"message {number} of the batch"
                yield from _lines(item.body)
        except InputError as error:
            yield error.message
        return
    yield from _lines(plain)


def _lines(data: bytes) -> Iterator[str]:
    r"""A body as lines: JSON laid out, other text as it is, bytes that are not text as \xHH."""
    if data[:1] in (b"{", b"[") and len(data) <= _JSON_MAX:
        try:
            yield from json.dumps(json.loads(data), indent=2, ensure_ascii=False).split("\n")
        except (ValueError, RecursionError):
            pass  # it only looks like JSON
        else:
            return
    yield from as_text(data[:BODY_BYTES]).split("\n")
    if len(data) > BODY_BYTES:
        yield f"... {format_size(len(data) - BODY_BYTES)} more"
