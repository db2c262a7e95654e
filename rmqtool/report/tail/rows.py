"""What a follower gives as rows, up to a limit and for a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rmqtool.findings import Report
from rmqtool.log.events import StoredMessage
from rmqtool.message.rows import OK, Row, RowFormat, message_row
from rmqtool.read.log_items import record_findings
from rmqtool.report.tail.follower import Follower


def tail_rows(
    follower: Follower,
    form: RowFormat,
    report: Report,
    *,
    follow: bool = False,
    limit: int | None = None,
    duration_ms: int | None = None,
) -> Iterator[Row | Any | None]:
    """Rows of the messages, in the order of the log; None where the next one may be long in coming.

    What the follower reads in bulk comes as record batches.

    Args:
        follower: the queues.
        form: which fields, and how they are written.
        report: told about records whose status is not ok.
        follow: go on when there is nothing more.
        limit: end after this many messages.
        duration_ms: end after this time.
    """
    end = None if duration_ms is None else time.monotonic() + duration_ms / 1000
    left = limit
    if limit == 0:
        return
    for item in follower.items(follow=follow):
        if item is None:
            yield None
        elif isinstance(item, StoredMessage):
            row = message_row(item.message, item.physical_offset, item.file, form)
            for each in record_findings(item, row.get("status", [OK])):
                report(each)
            yield row
            left = None if left is None else left - 1
        else:
            for batch in item.rows:
                part = batch if left is None else batch.slice(0, left)
                if len(part):
                    yield part
                    left = None if left is None else left - len(part)
        if left == 0 or (end is not None and time.monotonic() >= end):
            return
