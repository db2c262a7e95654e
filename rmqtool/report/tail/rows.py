"""The messages of a follower: rows, and what it reads in bulk; up to a limit and for a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any

from rmqtool.findings import Report
from rmqtool.log.events import StoredMessage
from rmqtool.message.cells import TextLines
from rmqtool.message.rows import OK, Row, RowFormat, message_row
from rmqtool.read.log_items import found_rows, record_findings
from rmqtool.report.tail.follower import BulkRound, Follower

if TYPE_CHECKING:
    from rmqtool.report.export.lines import LineFormat, LineMaker
    from rmqtool.report.tail.bulk import Bulk


def tail_rows(
    follower: Follower,
    form: RowFormat,
    report: Report,
    *,
    bulk: BulkRows | None = None,
    follow: bool = False,
    limit: int | None = None,
    duration_ms: int | None = None,
) -> Iterator[Row | TextLines | None]:
    """Rows of the messages, in the order of the log; None where the next one may be long in coming.

    Args:
        follower: the queues.
        form: which fields, and how they are written.
        report: called for records whose status is not ok.
        bulk: reads large rounds, and shows them; None: messages are read one by one.
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
            assert bulk is not None  # it has read the round
            for batch in item.rows:
                part = batch if left is None else batch.slice(0, left)
                if len(part):
                    yield from bulk.shown(part)
                    left = None if left is None else left - len(part)
        if left == 0 or (end is not None and time.monotonic() >= end):
            return


class BulkRows:
    """Has a follower read in bulk, and makes lines or rows of the messages that it wants.

    The libraries for it are loaded when there is first enough to read.

    Args:
        follower: the queues.
        form: how messages become rows; for lines see `can_be_lines`.
        names: the columns, in this order; None is all that hold a value.
        format: of the lines; None: a message that is wanted is read once more, as a row. That pays where the
            follower looks inside messages and wants few.
        in_background: load in a thread, and go on one by one meanwhile: the first time on a machine
            kernels are compiled, which takes many seconds.
    """

    def __init__(
        self,
        follower: Follower,
        form: RowFormat,
        names: Sequence[str] | None,
        format: LineFormat | None,
        *,
        in_background: bool = False,
    ) -> None:
        self._follower = follower
        self._form = form
        self._names = names
        self._format = format
        self._made: tuple[Bulk, LineMaker | None] | None = None
        self._error: Exception | None = None
        self._loading = Thread(target=self._warm, daemon=True) if in_background else None
        self._is_loading = False
        follower.bulk = self._round

    def _make(self) -> tuple[Bulk, LineMaker | None]:
        from rmqtool.report.tail.bulk import Bulk

        if self._format is None:
            return Bulk(self._follower, (), "stored"), None
        from rmqtool.report.export.lines import LineMaker

        maker = LineMaker(self._names, self._form, self._format)
        return Bulk(self._follower, maker.reads, maker.body), maker

    def _warm(self) -> None:
        try:
            made = self._make()
            for batch in made[0].warm():
                list(self._shown(batch, *made))
            self._made = made
        except Exception as error:  # raised again where somebody waits for it
            self._error = error

    def _round(self) -> BulkRound | None:
        if self._error is not None:
            raise self._error
        if self._made is None and self._loading is None:
            self._made = self._make()
        if self._made is not None:
            return self._made[0].round()
        if self._loading is not None and not self._is_loading:
            self._is_loading = True
            self._loading.start()
        return None

    def shown(self, batch: Any) -> Iterator[Row | TextLines]:
        """The lines of a batch, or its rows."""
        assert self._made is not None  # it has made the batch
        return self._shown(batch, *self._made)

    def _shown(self, batch: Any, bulk: Bulk, maker: LineMaker | None) -> Iterator[Row | TextLines]:
        try:
            if maker is None:
                yield from found_rows(bulk.store, batch.column("physical_offset").to_pylist(), self._form)
            else:
                yield maker.lines(bulk.store, batch)
        finally:
            bulk.store.close()
