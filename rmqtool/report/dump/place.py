"""The record or blank at a physical offset: one that starts there, or that the offset is inside.

A record that holds the offset is found by a walk: from the nearest queue unit before it, else from
the file's start, over WALK_LIMIT bytes at most.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from rmqtool.errors import FormatError, InputError, UnreadableError
from rmqtool.formats import ledger, message
from rmqtool.log.commit_log import REMAINS_MAX
from rmqtool.log.events import Blank, CorruptRange, LogEvent, StoredMessage, TrailingZeros
from rmqtool.log.remains import Remains, end_of, remains_of
from rmqtool.message.explain import (
    BODY_SHOWN,
    Explanation,
    explain_record,
    explain_remains,
    explain_structure,
)
from rmqtool.message.rows import RowFormat
from rmqtool.read.store import Store
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.source import ByteSource, first_nonzero, open_source

WALK_LIMIT = 256 << 20  # bytes; some seconds in plain Python
_EXPLAIN_LIMIT = 16 << 20  # more than any broker takes for one message


def explain_log(store: Store, physical_offset: int, form: RowFormat) -> Explanation:
    """The record or blank at `physical_offset`, or the one that it is inside, field by field.

    Raises:
        FormatError: no file holds the offset.
        UnreadableError: the file cannot be read.
    """
    file = store.commit_log.file_of(physical_offset)
    if file is None:
        raise FormatError(
            f"no file of the commit log holds offset {physical_offset}",
            hint=_where_the_log_is(store, physical_offset),
        )
    event = event_at(store, file, physical_offset)
    try:
        with closing(open_source(file.path)) as source:
            if isinstance(event, CorruptRange) and _is_in_header(source, file, event, physical_offset):
                return _damaged_entry(store, source, file, event.physical_offset, form)
            found = _explain(source, file, event, physical_offset, form)
            at_end = _left_at_end(store, source, file, event, physical_offset)
            return _with_remains(store, source, file, found, physical_offset, form, at_end)
    except UnreadableError:
        raise
    except OSError as error:
        raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error


def _explain(
    source: ByteSource, file: StoreFile, event: LogEvent | None, physical_offset: int, form: RowFormat
) -> Explanation:
    start = physical_offset if event is None else event.physical_offset
    is_bad = isinstance(event, CorruptRange)
    position = physical_offset - file.file_from_offset
    if isinstance(event, TrailingZeros):
        return _zeros(source, file, start, form)
    if isinstance(event, StoredMessage) and physical_offset < event.physical_offset:
        return _entry_header(source, file, start - file.entry_header, physical_offset, form)
    if file.entry_header and isinstance(event, Blank):
        data = source.read(start - file.file_from_offset, ledger.FILE_END.size)
        return explain_structure(ledger.FILE_END.declaration, data, start, form.tz)
    if is_bad and _has_magic(source, position):
        start = physical_offset
    position = start - file.file_from_offset
    data = source.read(position, min(file.size - position, _EXPLAIN_LIMIT))
    found = explain_record(
        data, start, form.tz, left=file.size - position, body_shown=_body_shown(form),
        body_limit=form.body_limit,
    )  # fmt: skip
    if start == physical_offset:
        return found
    what = "record" if isinstance(event, StoredMessage) else "blank"
    note = f"offset {physical_offset} is inside the {what} at {start}"
    if is_bad:
        note = f"offset {physical_offset} is inside bytes without a sound record, from {start} on"
    return replace(found, note=note)


def _body_shown(form: RowFormat) -> int | None:
    return {"none": 0, "hex": None}.get(form.body, BODY_SHOWN)


def _with_remains(
    store: Store,
    source: ByteSource,
    file: StoreFile,
    found: Explanation,
    physical_offset: int,
    form: RowFormat,
    at_end: tuple[int, Remains] | None = None,
) -> Explanation:
    """The explanation of damage, within the record that a queue has at this offset, and with its end.

    Bytes before this record, where the damage begins, belong to another one: only the end is shown then. If
    no queue has a record here, `at_end` says what is left of the record that ends the damage, and its place.
    """
    place, left = physical_offset, store.remains(physical_offset) if found.problems else None
    how = "its queue unit says that it"
    if left is None and found.problems and at_end is not None and _may_end(found, physical_offset, *at_end):
        (place, left), how = at_end, "its topic and properties, which are left, show that it"
    if left is None:
        return found
    data = source.read(place - file.file_from_offset, left.size)
    asked, is_whole = found.note, bool(found.fields) and found.fields[0].offset == place
    if is_whole:  # a wrong length inside of it does not reach into the next record
        found = explain_record(data, place, form.tz, body_shown=_body_shown(form), body_limit=form.body_limit)
        found = replace(found, note=asked)
    if left.head is not None:  # the fields of the header are shown already
        return found
    more = list(explain_remains(data, place, left, body_shown=_body_shown(form)))
    certain = {field.name.partition(".")[0] for field in more}  # a damaged header leads to the others
    of_header = [field for field in found.fields if field.name.partition(".")[0] not in certain]
    is_known = place == physical_offset or left.body_length is not None
    what = f"the record at {place}" if is_known else f"a record after {place}"
    note = f"the header of {what} is lost or damaged; {how} ends at {place + left.size}"
    if not is_whole:
        return Explanation(tuple(more), (note,), body_length=left.body_length)
    fields = sorted((*of_header, *more), key=lambda field: field.offset)
    notes = "; ".join(filter(None, (asked, note)))
    return replace(found, fields=tuple(fields), note=notes, body_length=left.body_length)


def _may_end(found: Explanation, physical_offset: int, place: int, left: Remains) -> bool:
    """Whether the end at `place` may be that of the record that is explained: its own size can deny it."""
    values = {field.name: int.from_bytes(field.data) for field in found.fields if "." not in field.name}
    is_own = values.get("physical_offset") == physical_offset
    return not is_own or physical_offset + values["total_size"] == place + left.size


def _left_at_end(
    store: Store, source: ByteSource, file: StoreFile, event: LogEvent | None, physical_offset: int
) -> tuple[int, Remains] | None:
    """What is left of the record that ends the damage at an offset, and its place; None if it begins later.

    If nothing shows where that record begins, the place is that of the damage.
    """
    if not isinstance(event, CorruptRange | TrailingZeros) or file.entry_header:
        return None
    start = event.physical_offset
    # the walk that found the event ended at the offset
    whole = next(store.events(start, min(start + WALK_LIMIT, file.end)), event)
    if not isinstance(whole, CorruptRange):
        return None
    start = max(start, whole.end - REMAINS_MAX)
    data = source.read(start - file.file_from_offset, whole.end - start)
    end = end_of(data) if not data.endswith(b"\0") else None
    if end is None or (end.start is not None and physical_offset < start + end.start):
        return None
    place = start + (end.start or 0)
    data = data[place - start :]
    left = remains_of(data, place, place - file.file_from_offset, len(data), None)
    return None if left is None else (place, left)


def _entry_header(
    source: ByteSource, file: StoreFile, start: int, physical_offset: int, form: RowFormat
) -> Explanation:
    """The header of a DLedger entry, which lies between two records or at the start of a file."""
    data = source.read(start - file.file_from_offset, ledger.HEADER_SIZE)
    found = explain_structure(ledger.HEADER.declaration, data, start, form.tz)
    note = f"offset {physical_offset} is in the header of the entry whose record is at {start + len(data)}"
    return replace(found, note=note)


def _is_in_header(source: ByteSource, file: StoreFile, event: CorruptRange, physical_offset: int) -> bool:
    """Whether an offset is in the header of a DLedger entry whose record is damaged."""
    start = event.physical_offset
    if not start <= physical_offset < start + file.entry_header:
        return False
    head = source.read(start - file.file_from_offset, ledger.HEADER_SIZE)
    if len(head) < ledger.HEADER_SIZE:
        return False
    values = dict(zip(ledger.HEADER.offsets, ledger.HEADER.unpack(head), strict=True))
    return bool(values["magic"] == ledger.MAGIC and values["position"] == start)


def _damaged_entry(
    store: Store, source: ByteSource, file: StoreFile, start: int, form: RowFormat
) -> Explanation:
    """The header of a DLedger entry, and after it what can be read of its damaged record."""
    place = start + file.entry_header
    header = _entry_header(source, file, start, start, form)
    record = _explain(source, file, None, place, form)
    record = _with_remains(store, source, file, record, place, form)
    note = f"the header of an entry is at {start}, its damaged record at {place}"
    notes = "; ".join(filter(None, (note, record.note)))
    return replace(record, fields=(*header.fields, *record.fields), note=notes)


def _has_magic(source: ByteSource, position: int) -> bool:
    data = source.read(position, min(message.BLANK_SIZE, source.size - position))
    return int.from_bytes(data[4:8], signed=True) in message.VERSION_BY_MAGIC


def _zeros(source: ByteSource, file: StoreFile, start: int, form: RowFormat) -> Explanation:
    position = start - file.file_from_offset
    end = file.file_from_offset + first_nonzero(source, position, file.size)
    head = source.read(position, min(message.BLANK_SIZE, file.size - position))
    found = explain_structure(message.BLANK.declaration, head, start, form.tz)
    rest = " to the file's end" if end == file.end else ""
    return replace(found, problems=(f"no record here: zeros from {start} to {end}{rest}",))


def event_at(store: Store, file: StoreFile, offset: int) -> LogEvent | None:
    """The event of a walk that holds the byte at `offset` of `file`; None if no walk can reach it.

    In a DLedger log the header of its entry belongs to a record.
    """
    try:
        found = store.commit_log.read(offset)
        if isinstance(found, StoredMessage) and not found.status:
            return found
        if isinstance(found, Blank) and found.ends_file:
            return found
    except InputError:
        pass  # nothing starts here: what holds it?
    begin = store.record_before(file, offset)
    if offset - begin > WALK_LIMIT:
        return None
    last = None
    for event in store.events(begin, min(offset + file.entry_header + message.BLANK_SIZE, file.end)):
        header = file.entry_header if isinstance(event, StoredMessage) else 0
        if event.physical_offset - header > offset:
            break
        last = event
    return last


def _where_the_log_is(store: Store, offset: int) -> str:
    files, size = store.commit_log.files, store.commit_log.file_size
    if not files:
        return "the commit log has no files"
    text = f"its files hold {files[0].file_from_offset} to {files[-1].end}"
    if not files[0].file_from_offset <= offset < files[-1].end:
        return text
    before = max((file for file in files if file.end <= offset), key=lambda file: file.end)
    if offset < before.file_from_offset + size:
        return f"{text}; the file {before.path.name} is too short: {before.size} bytes, not {size}"
    return f"{text}; the file {offset // size * size:020} is missing"
