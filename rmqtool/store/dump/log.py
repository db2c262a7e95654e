"""The commit log as rows or bytes: its records, and with `gaps` also what lies between them.

Everything is read in plain Python, record by record, for every record is shown or judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmqtool.errors import MissingCodecError
from rmqtool.formats import body, message
from rmqtool.problems import Finding, finding
from rmqtool.scan.columns import NAMES
from rmqtool.scan.events import BODY_CRC, FOREIGN
from rmqtool.store import Store, StoredBlank, StoredDamage, StoredMessage, StoredZeros
from rmqtool.store.dump import Looked, Progress, Report, tell_out_of_reach
from rmqtool.store.dump.judge import FileSet, Judge, lacking
from rmqtool.store.rows import OK, Row, RowFormat, blank_row, damage_row, message_row, zeros_row
from rmqtool.store.selection import Selection

Item = StoredMessage | StoredBlank | StoredZeros | Finding

FIELDS = NAMES
GAP_FIELDS = ("kind", "blank", *NAMES)
TABLE_FIELDS = ("physical_offset", "size", "topic", "queue_id", "queue_offset", "store_time", "tags", "keys",
                "body", "status")  # fmt: skip
_MEANING = (
    ("real_topic", "system.real_topic", "system.origin_topic"),
    ("real_queue", "system.real_queue_id", "system.half_queue_id"), ("due_time", "system.deliver_time"),
)  # fmt: skip
_GAP_KINDS = {"CL02": "zeros", "CL11": "zeros", "CL20": "missing", "CL21": "missing"}
CODE_BY_STATUS = ((BODY_CRC, "CL03"), (FOREIGN, "CL06"))
_PROGRESS_STEP = 1 << 20


def end_of_selection(store: Store, selection: Selection) -> int | None:
    """Where a walk stops: the selection's end; on a live store the log's end, if that comes first."""
    if not store.live:
        return selection.to_offset
    end = store.end_offset()
    return end if selection.to_offset is None else min(end, selection.to_offset)


def table_fields(rows: Sequence[Mapping[str, Any]], *, gaps: bool = False) -> Sequence[str | tuple[str, ...]]:
    """The columns of a table that begins with `rows`.

    Where all of them are system records, what they mean stands in place of tags and keys.
    """
    records = [row for row in rows if "topic" in row]
    fields: tuple[str | tuple[str, ...], ...] = TABLE_FIELDS
    if records and all(row.get("system") for row in records):
        # With gaps the kind of the row stands before that of the message.
        kind = ("system" if gaps else "kind", "system.kind")
        fields = ("physical_offset", "topic", kind, *_MEANING, *TABLE_FIELDS[3:6], *TABLE_FIELDS[8:])
    return ("kind", *fields, "file") if gaps else fields


def log_items(
    store: Store,
    selection: Selection,
    *,
    reverse: bool = False,
    progress: Progress | None = None,
    looked: Looked | None = None,
) -> Iterator[Item]:
    """The selected messages, and all blanks, zeros and bad places of the selected offsets, in order.

    Zeros are the unused rest of a file, or all of a file that was made ahead. A bad place is a `Finding`;
    damage in a record that was read is in its `status`. On a live store nothing from the log's end on is
    looked at, for a broker is writing there. `progress` is told about every megabyte that was passed,
    `looked` about every record.
    """
    looked = Looked() if looked is None else looked
    stop = end_of_selection(store, selection)
    if store.layout.lacks_log:
        yield finding("CL26", "commitlog")
    judge = Judge(store)
    files = FileSet(store, selection.from_offset or 0, stop, reverse=reverse)
    left = selection.limit
    told: int | None = None
    for event in store.events(selection.from_offset, stop, reverse=reverse):
        if left == 0:
            return
        if progress is not None:
            told = event.physical_offset if told is None else told
            if (passed := abs(event.physical_offset - told)) > _PROGRESS_STEP:
                progress(passed)
                told = event.physical_offset
        yield from files.passed(event.physical_offset)
        if isinstance(event, StoredMessage):
            looked.add(1, event.message.store_timestamp, event.message.store_timestamp)
            if selection.matches(event.message, event.physical_offset):
                left = None if left is None else left - 1
                if event.message.topic in selection.topics:
                    looked.topics.add(event.message.topic)
                yield event
            continue
        bad = list(judge(event))
        if not bad and not isinstance(event, StoredDamage) and not judge.is_covered(event):
            yield event
        yield from bad
    yield from files.passed(None)


def message_rows(
    store: Store,
    selection: Selection,
    form: RowFormat,
    report: Report,
    *,
    reverse: bool = False,
    gaps: bool = False,
    progress: Progress | None = None,
    looked: Looked | None = None,
) -> Iterator[Row]:
    """Rows of the selected messages.

    Args:
        store: the store.
        selection: which messages; `limit` counts messages.
        form: which fields, and how they are written.
        report: told about bad places, and about records whose status is not ok.
        reverse: newest first.
        gaps: also a row for every blank, all zeros and every bad place, so that rows cover all bytes of
            the log's files; each says in `kind` what it is: record, blank, zeros, bad, or missing for
            bytes that no file holds.
        progress: told about the bytes that were passed.
        looked: told about the records that were looked at.
    """
    tell_out_of_reach(store.layout, "commit log", report)
    for item in log_items(store, selection, reverse=reverse, progress=progress, looked=looked):
        if isinstance(item, StoredMessage):
            row = message_row(item.message, item.physical_offset, item.file, form)
            for each in record_findings(item, row.get("status", [OK])):
                report(each)
            yield {"kind": "record", **row} if gaps else row
        elif isinstance(item, Finding):
            report(item)
            if gaps:
                yield from _gap_rows(store, item)
        elif isinstance(item, StoredZeros):
            if gaps:
                yield {"kind": "zeros", **zeros_row(item.physical_offset, item.length, item.file)}
        elif gaps:
            yield {"kind": "blank", **blank_row(item.physical_offset, item.size, item.file)}


def _gap_rows(store: Store, item: Finding) -> Iterator[Row]:
    """The row of a bad place; none for a file whose size is wrong but which lacks nothing."""
    code, start, length = item.problem.code, item.physical_offset, item.length or 0
    if start is None:
        return
    if code in ("CL20", "CL21"):
        start, end = lacking(store, item)
        length = end - start
        if not length:
            return
    yield {"kind": _GAP_KINDS.get(code, "bad"), **damage_row(code, start, length, item.path)}


def record_findings(item: StoredMessage, status: list[str]) -> Iterator[Finding]:
    """What is wrong with a record: what the walk saw, and its row's `status`."""
    codes = [code for code in status if code != OK]
    seen = [code for bit, code in CODE_BY_STATUS if item.status & bit]
    for code in dict.fromkeys(seen + codes):
        detail = {"reason": _missing_codec(item)} if code == "UN01" else {}
        yield finding(code, item.file, item.physical_offset, item.message.total_size, **detail)


def _missing_codec(item: StoredMessage) -> str:
    try:
        body.decompress(item.message.body, item.message.sys_flag)
    except MissingCodecError as error:
        return f"{error.message}: {error.hint}" if error.hint else error.message
    return ""


def raw_records(
    store: Store,
    selection: Selection,
    report: Report,
    *,
    reverse: bool = False,
    progress: Progress | None = None,
    looked: Looked | None = None,
) -> Iterator[bytes]:
    """The selected records byte for byte as they are stored. See `message_rows`."""
    for item in log_items(store, selection, reverse=reverse, progress=progress, looked=looked):
        if isinstance(item, StoredMessage):
            for each in record_findings(item, []):
                report(each)
            yield message.encode(item.message)
        elif isinstance(item, Finding):
            report(item)
