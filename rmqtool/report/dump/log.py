"""The commit log as rows: its records, and with `gaps` also what lies between them; also backwards.

Everything is read in plain Python, record by record. What `messages.py` reads faster is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmqtool.findings import Progress, Report, ScanCounters
from rmqtool.log.damage import OF_FILES, missing_range
from rmqtool.log.events import Blank, StoredMessage, TrailingZeros
from rmqtool.message.columns import NAMES
from rmqtool.message.rows import OK, Row, RowFormat, blank_row, damage_row, message_row, zeros_row
from rmqtool.problems import Finding
from rmqtool.read.log_items import log_items, record_findings
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.out_of_reach import report_out_of_reach

FIELDS = NAMES
OF_GAPS = ("kind", "blank")
"""Fields that rows have besides those of messages where there are rows of gaps."""
GAP_FIELDS = (*OF_GAPS, *NAMES)
_RECORD = "record"
TABLE_FIELDS = ("physical_offset", "size", "topic", "queue_id", "queue_offset", "store_time", "tags", "keys",
                "status", "body")  # fmt: skip
"""The body is last: a table pads every other column to its longest cell."""
_MEANING = (
    ("real_topic", "system.real_topic", "system.origin_topic"),
    ("real_queue", "system.real_queue_id", "system.half_queue_id"), ("due_time", "system.deliver_time"),
)  # fmt: skip
_GAP_KINDS = {"CL02": "zeros", "CL11": "zeros", **dict.fromkeys(OF_FILES, "missing")}


def table_fields(rows: Sequence[Mapping[str, Any]], *, gaps: bool = False) -> Sequence[str | tuple[str, ...]]:
    """The columns of a table that begins with `rows`.

    Where all of them are system records, what they mean replaces tags and keys.
    """
    records = [row for row in rows if "topic" in row]
    fields: tuple[str | tuple[str, ...], ...] = TABLE_FIELDS
    if records and all(row.get("system") for row in records):
        # With gaps the kind of the row stands before that of the message.
        kind = ("system" if gaps else "kind", "system.kind")
        fields = ("physical_offset", "topic", kind, *_MEANING, *TABLE_FIELDS[3:6], *TABLE_FIELDS[8:])
    if not gaps:
        return fields
    # Offset and size are all that a row between two records says: under these names no table leaves them out.
    places = {"physical_offset": ("offset", "physical_offset"), "size": ("bytes", "size")}
    return ("kind", *(places.get(each, each) if isinstance(each, str) else each for each in fields))


def message_rows(
    store: Store,
    selection: Selection,
    form: RowFormat,
    report: Report,
    *,
    reverse: bool = False,
    gaps: bool = False,
    progress: Progress | None = None,
    looked: ScanCounters | None = None,
    pause: int | None = None,
) -> Iterator[Row]:
    """Rows of the selected messages.

    Args:
        store: the store.
        selection: which messages; `limit` counts messages.
        form: which fields, and how they are written.
        report: called for damaged ranges, and for records whose status is not ok.
        reverse: newest first.
        gaps: also a row for every blank, all zeros and every damaged range, so that rows cover all bytes of
            the log's files; each says in `kind` what it is: record, blank, zeros, bad, or missing for
            bytes that no file holds.
        progress: called with the bytes that were passed.
        looked: counts the records that were examined.
        pause: see `log_items`.
    """
    report_out_of_reach(store.layout, "commit log", report)
    items = log_items(store, selection, reverse=reverse, progress=progress, looked=looked, pause=pause)
    for item in items:
        if isinstance(item, StoredMessage):
            row = message_row(item.message, item.physical_offset, item.file, form)
            for each in record_findings(item, row.get("status", [OK])):
                report(each)
            yield record_row(row) if gaps else row
            continue
        if isinstance(item, Finding):
            report(item)
        if gaps:
            yield from rows_between(store, item)


def record_row(row: Row) -> Row:
    """The row of a record among rows of gaps."""
    return {"kind": _RECORD, **row}


def record_columns(count: int) -> dict[str, Any]:
    """What `record_row` adds and what only gaps have, as Arrow columns of `count` records."""
    import pyarrow as pa

    return {"kind": pa.repeat(_RECORD, count), "blank": pa.nulls(count, pa.string())}


def is_record(row: Row) -> bool:
    """Whether a row is that of a record, not of what lies between two."""
    return bool(row.get("kind", _RECORD) == _RECORD)


def rows_between(store: Store, item: Finding | Blank | TrailingZeros) -> Iterator[Row]:
    """The row of a range between records; none for a file whose size is wrong but which lacks nothing."""
    if isinstance(item, TrailingZeros):
        yield {"kind": "zeros", **zeros_row(item.physical_offset, item.length, item.file)}
        return
    if isinstance(item, Blank):
        yield {"kind": "blank", **blank_row(item.physical_offset, item.size, item.file)}
        return
    code, start, length = item.problem.code, item.physical_offset, item.length or 0
    if start is None:
        return
    if code in ("CL20", "CL21"):
        start, end = missing_range(store.layout, item)
        length = end - start
        if not length:
            return
    yield {"kind": _GAP_KINDS.get(code, "bad"), **damage_row(code, start, length, item.path)}
