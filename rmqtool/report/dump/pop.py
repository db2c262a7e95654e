"""Rows of POP records in RocksDB: messages that groups have popped and not acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, tzinfo
from pathlib import Path

from rmqtool import times
from rmqtool.errors import FormatError
from rmqtool.findings import Report
from rmqtool.formats import pop_record
from rmqtool.message.rows import Row
from rmqtool.problems import finding
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.out_of_reach import report_out_of_reach
from rmqtool.storage.unsupported import POP_RECORDS

FIELDS = (
    "group", "topic", "queue_id", "queue_offset", "pop_timestamp_ms", "pop_time", "due_timestamp_ms",
    "due_time", "retry", "attempts", "attempt_id", "file",
)  # fmt: skip
TABLE_FIELDS = ("group", "topic", "queue_id", "queue_offset", "pop_time", "due_time", "attempts")


def pop_rows(layout: StoreLayout, report: Report, *, tz: tzinfo | None = UTC) -> Iterator[Row]:
    """One row per record, in the order of the times at which the messages are received again.

    Args:
        layout: the store's files.
        report: called for what cannot be read.
        tz: zone of the times; None is the local zone.
    """
    report_out_of_reach(layout, POP_RECORDS, report)
    if layout.pop is None:
        return
    name = layout.relative(layout.pop.folder)
    try:
        for key, value in layout.pop.scan(pop_record.FAMILY):
            try:
                record = pop_record.decode(key, value)
            except FormatError as error:
                report(finding("RD10", name, reason=error.message))
                continue
            yield {
                "group": record.group,
                "topic": record.topic,
                "queue_id": record.queue_id,
                "queue_offset": record.queue_offset,
                "pop_timestamp_ms": record.pop_ms,
                "pop_time": times.format_time(record.pop_ms, tz),
                "due_timestamp_ms": record.due_ms,
                "due_time": times.format_time(record.due_ms, tz),
                "retry": record.retry,
                "attempts": record.attempts,
                "attempt_id": record.attempt_id,
                "file": name,
            }
    except FormatError as error:
        path = layout.relative(Path(error.path)) if error.path is not None else name
        report(finding("RD10", path, error.physical_offset, reason=error.message))
