"""The selected messages of a store, as rows, lines or bytes, by the access path of the selection.

What is small is read in plain Python (`log.message_rows`, the reference). The rest is read by the access
path of the selection, with the compiled walk. With a limit the first part of the log is read plainly, for
most limits are reached there; the walk continues where that part ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.findings import Progress, Report, ScanCounters
from rmqtool.formats import message
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import codes_of
from rmqtool.log.events import BODY_CRC, OFFSET_MISMATCH, StoredMessage
from rmqtool.message.cells import TextColumns, TextLines
from rmqtool.message.rows import OK, Row, RowFormat, message_row
from rmqtool.problems import Finding
from rmqtool.read.log_items import (
    PLAIN_BYTES,
    end_of_selection,
    found_rows,
    is_small,
    log_items,
    record_findings,
)
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.dump.log import message_rows, table_fields
from rmqtool.storage.out_of_reach import report_out_of_reach

if TYPE_CHECKING:
    from rmqtool.read.access import Access
    from rmqtool.read.reading import FrameBatch
    from rmqtool.report.export.lines import CellMaker, LineMaker

_HOLD_S = 1.0
_HEAD_ROWS = 200  # the first rows, which decide the columns of a table
_SEEN_BY_WALK = frozenset(codes_of(BODY_CRC | OFFSET_MISMATCH))


@dataclass(frozen=True)
class _Way:
    """A part of the reading: plainly up to `pause`, or by `access`."""

    selection: Selection
    access: Access | None = None
    pause: int | None = None


class MessageDump:
    """One reading of the selected messages, in the log's order or, plainly, backwards.

    Args:
        store: the store.
        selection: which messages; `limit` counts messages.
        report: called for each damaged range, and for each record whose status is not ok.
        reverse: newest first.
        progress: gets the number of bytes that were passed.
        looked: counts the records that were examined.

    Attributes:
        access: how the messages were reached; None: the log was walked plainly.
    """

    def __init__(
        self,
        store: Store,
        selection: Selection,
        report: Report,
        *,
        reverse: bool = False,
        progress: Progress | None = None,
        looked: ScanCounters | None = None,
    ) -> None:
        self._store = store
        self._selection = selection
        self._report = report
        self._reverse = reverse
        self._progress = progress
        self._looked = ScanCounters() if looked is None else looked
        self._given = 0
        self._head: list[Row] = []
        self.access: Access | None = None

    def rows(
        self,
        form: RowFormat,
        lines: Callable[[], LineMaker] | None = None,
        cells: Callable[[], CellMaker] | None = None,
    ) -> Iterator[Row | TextLines | TextColumns]:
        """A row of each message.

        Args:
            form: how messages become rows.
            lines: makes what turns large parts into lines.
            cells: makes what turns large parts into cells of a table, after the first block of its rows,
                unless these show that the table has other columns.
        """
        for way in self._ways():
            if way.access is None:
                yield from self._plain_rows(way, form)
            elif cells is not None:
                yield from self._cells(way, form, cells())
            elif lines is None:
                yield from self._rows(way, form)
            else:
                yield from self._lines(way, lines())

    def raw(self) -> Iterator[bytes | memoryview]:
        """The bytes of the records, one after the other."""
        for way in self._ways():
            yield from self._plain_raw(way) if way.access is None else self._raw(way)

    def _ways(self) -> Iterator[_Way]:
        """The parts of the reading, in order; each is read before the next is requested."""
        store, chosen = self._store, self._selection
        if self._reverse or is_small(store, chosen.from_offset, end_of_selection(store, chosen)):
            yield _Way(chosen)
            return
        is_first = chosen.limit is None or chosen.since is not None or bool(chosen.keys)
        if chosen.limit is not None and not is_first:
            yield _Way(chosen, pause=max(chosen.from_offset or 0, store.commit_log.min_offset) + PLAIN_BYTES)
            left = chosen.limit - self._given
            if self._looked.paused is None or left == 0:
                return
            chosen = replace(chosen, from_offset=self._looked.paused, limit=left)
        from rmqtool.read.access import plan_access

        self.access = access = replace(plan_access(store, chosen), is_first=is_first)
        if is_first and access.kind == "log" and access.ranges:
            start, stop = access.ranges[0].start, access.ranges[-1].stop
            start = max(start, chosen.from_offset or 0)
            if is_small(store, start, stop):  # the end of a log, by its times
                yield _Way(replace(chosen, from_offset=start, to_offset=stop))
                return
        yield _Way(chosen, access)

    # plainly

    def _plain_rows(self, way: _Way, form: RowFormat) -> Iterator[Row]:
        rows = message_rows(
            self._store, way.selection, form, self._report,
            reverse=self._reverse, progress=self._progress, looked=self._looked, pause=way.pause,
        )  # fmt: skip
        for row in rows:
            self._keep(row)
            yield row

    def _plain_raw(self, way: _Way) -> Iterator[bytes]:
        report_out_of_reach(self._store.layout, "commit log", self._report)
        items = log_items(
            self._store, way.selection,
            reverse=self._reverse, progress=self._progress, looked=self._looked, pause=way.pause,
        )  # fmt: skip
        for item in items:
            if isinstance(item, StoredMessage):
                self._report_all(record_findings(item, []))
                self._given += 1
                yield self._store.commit_log.bytes_of(item)
            elif isinstance(item, Finding):
                self._report(item)

    def _report_all(self, findings: Iterable[Finding]) -> None:
        for each in findings:
            self._report(each)

    # by an access path

    def _lines(self, way: _Way, maker: LineMaker) -> Iterator[TextLines]:
        from rmqtool.read.messages import message_batches

        batches = message_batches(
            self._store, way.selection, columns=maker.reads, access=way.access, body=maker.body,
            hold_s=_HOLD_S, report=self._report, progress=self._progress, looked=self._looked,
            batch_records=self._looked.batches,
        )  # fmt: skip
        for batch in batches:
            yield maker.lines(self._store, batch)

    def _cells(self, way: _Way, form: RowFormat, maker: CellMaker) -> Iterator[Row | TextColumns]:
        """The rows that complete the first block of the table, then blocks of cells."""
        from rmqtool.read.messages import message_batches

        batches = message_batches(
            self._store, way.selection, columns=maker.reads, access=way.access, body=maker.body,
            hold_s=_HOLD_S, report=self._report, progress=self._progress, looked=self._looked,
            batch_records=self._looked.batches,
        )  # fmt: skip
        missing = -self._given % maker.block_rows or (0 if self._given else maker.block_rows)
        for batch in batches:
            first = batch.slice(0, missing)
            missing -= len(first)
            yield from self._found_rows(first, form)
            rest = batch.slice(len(first))
            if not len(rest):
                continue
            if self._head_fits(form, maker):
                yield from maker.blocks(self._store, rest)
            else:
                yield from self._found_rows(rest, form)
        yield from maker.last()

    def _head_fits(self, form: RowFormat, maker: CellMaker) -> bool:
        """Whether a table that begins with these rows has the columns of the cells."""
        return form.names is not None or tuple(table_fields(self._head[: maker.block_rows])) == maker.names

    def _found_rows(self, batch: Any, form: RowFormat) -> Iterator[Row]:
        """The rows of a batch, each read by its place."""
        for row in found_rows(self._store, batch.column("physical_offset").to_pylist(), form):
            self._keep(row)
            yield row

    def _keep(self, row: Row) -> None:
        self._given += 1
        if len(self._head) < _HEAD_ROWS:
            self._head.append(row)

    def _rows(self, way: _Way, form: RowFormat) -> Iterator[Row]:
        for frames, mask, file in self._frames(way, self._report_place):
            rows = frames.rows[mask]
            places = zip(
                frames.starts()[mask].tolist(), rows["physical_offset"].tolist(), rows["status"].tolist(),
                strict=True,
            )  # fmt: skip
            for start, physical_offset, status in places:
                record = message.decode(frames.data.data, start)
                row = message_row(record, physical_offset, file, form)
                item = StoredMessage(record, physical_offset, Path(file), file, status)
                self._report_all(record_findings(item, row.get("status", [OK])))
                yield row

    def _raw(self, way: _Way) -> Iterator[memoryview]:
        import numpy as np

        for frames, mask, _ in self._frames(way, self._report):
            starts = frames.starts()[mask]
            ends = starts + frames.rows["size"][mask]
            # records that lie end to end go together
            firsts = np.flatnonzero(np.concatenate([[True], starts[1:] != ends[:-1]]))
            lasts = np.append(firsts[1:], len(starts)) - 1
            for start, end in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
                yield frames.data[start:end].data

    def _frames(self, way: _Way, report: Report) -> Iterator[FrameBatch]:
        from rmqtool.read.messages import frame_batches

        return frame_batches(
            self._store, way.selection, access=way.access,
            report=report, progress=self._progress, looked=self._looked,
        )  # fmt: skip

    def _report_place(self, found: Finding) -> None:
        """Report a finding, unless its code is one that a record's own row shows."""
        if found.problem.code not in _SEEN_BY_WALK:
            self._report(found)
