"""The selected messages of a store, as rows, lines or bytes, by the access path of the selection.

What is small is read in plain Python (`log.message_rows`, the reference). The rest is read by the access
path of the selection, with the compiled walk. With a limit the first part of the log is read plainly, for
most limits are reached there; the walk continues where that part ended. Backwards, each piece of the access
is held in memory, the last one first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.findings import Progress, Report, ScanCounters
from rmqtool.formats import message
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import OF_FILES, WALK_CODES, FileFindings
from rmqtool.log.events import StoredMessage
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
from rmqtool.report.dump.log import (
    is_record,
    message_rows,
    record_columns,
    record_row,
    rows_between,
    table_fields,
)
from rmqtool.storage.out_of_reach import report_out_of_reach

if TYPE_CHECKING:
    from rmqtool.read.access import Access
    from rmqtool.read.messages import FrameItem
    from rmqtool.read.reading import FrameBatch
    from rmqtool.report.export.lines import CellMaker, LineMaker

_HOLD_S = 1.0
_HEAD_ROWS = 200  # the first rows, which decide the columns of a table
_PIECE_BYTES = 8 << 20  # of log, which are held in memory when read backwards


@dataclass(frozen=True)
class _Way:
    """A part of the reading: plainly up to `pause`, or by `access`."""

    selection: Selection
    access: Access | None = None
    pause: int | None = None


class MessageDump:
    """One reading of the selected messages, in the log's order or backwards.

    Args:
        store: the store.
        selection: which messages; `limit` counts messages.
        report: called for each damaged range, and for each record whose status is not ok.
        reverse: newest first.
        gaps: also a row for all that lies between records of the selected offsets, see `log.message_rows`.
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
        gaps: bool = False,
        progress: Progress | None = None,
        looked: ScanCounters | None = None,
    ) -> None:
        self._store = store
        self._selection = selection
        self._report = report
        self._reverse = reverse
        self._gaps = gaps
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
            access, chosen = way.access, way.selection
            if access is None:
                yield from self._plain_rows(way, form)
            elif self._gaps:
                yield from self._all_rows(access, chosen, form, None if lines is None else lines())
            elif cells is not None:
                yield from self._cells(access, chosen, form, cells())
            elif lines is None:
                yield from self._rows(access, chosen, form)
            else:
                yield from self._lines(access, chosen, lines())

    def raw(self) -> Iterator[bytes | memoryview]:
        """The bytes of the records, one after the other."""
        for way in self._ways():
            if way.access is None:
                yield from self._plain_raw(way)
            else:
                yield from self._raw(way.access, way.selection)

    def _ways(self) -> Iterator[_Way]:
        """The parts of the reading, in order; each is read before the next is requested."""
        store, chosen = self._store, self._selection
        stop = end_of_selection(store, chosen)
        if is_small(store, chosen.from_offset, stop):
            yield _Way(chosen)
            return
        is_first = chosen.limit is None or chosen.since is not None or bool(chosen.keys)
        if chosen.limit is not None and not is_first:
            yield _Way(chosen, pause=self._end_of_plain_part(stop))
            left = chosen.limit - self._given
            if self._looked.paused is None or left == 0:
                return
            if self._reverse:
                chosen = replace(chosen, to_offset=self._looked.paused, limit=left)
            else:
                chosen = replace(chosen, from_offset=self._looked.paused, limit=left)
        self.access = access = replace(self._access(chosen), is_first=is_first)
        if is_first and not self._gaps and access.kind == "log" and access.ranges:
            start, stop = access.ranges[0].start, access.ranges[-1].stop
            start = max(start, chosen.from_offset or 0)
            if is_small(store, start, stop):  # the end of a log, by its times
                yield _Way(replace(chosen, from_offset=start, to_offset=stop))
                return
        yield _Way(chosen, access)

    def _end_of_plain_part(self, stop: int | None) -> int:
        """The physical offset up to which a reading with a limit is plain."""
        log = self._store.commit_log
        if not self._reverse:
            return max(self._selection.from_offset or 0, log.min_offset) + PLAIN_BYTES
        end = self._store.end_offset()
        return (end if stop is None else min(end, stop)) - PLAIN_BYTES

    def _access(self, chosen: Selection) -> Access:
        from rmqtool.read.access import plan_access

        if self._gaps:  # what lies between records has no time, and only the log knows of it
            return plan_access(self._store, replace(chosen, since=None, until=None), via="log")
        return plan_access(self._store, chosen)

    # plainly

    def _plain_rows(self, way: _Way, form: RowFormat) -> Iterator[Row]:
        rows = message_rows(
            self._store, way.selection, form, self._report,
            reverse=self._reverse, gaps=self._gaps, progress=self._progress, looked=self._looked,
            pause=way.pause,
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

    def _lines(self, access: Access, chosen: Selection, maker: LineMaker) -> Iterator[TextLines]:
        for batch in self._batches(access, chosen, maker):
            yield maker.lines(self._store, batch)

    def _cells(
        self, access: Access, chosen: Selection, form: RowFormat, maker: CellMaker
    ) -> Iterator[Row | TextColumns]:
        """The rows that complete the first block of the table, then blocks of cells."""
        missing = -self._given % maker.block_rows or (0 if self._given else maker.block_rows)
        for batch in self._batches(access, chosen, maker):
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
        self._given += is_record(row)
        if len(self._head) < _HEAD_ROWS:
            self._head.append(row)

    def _batches(self, access: Access, chosen: Selection, maker: LineMaker) -> Iterator[Any]:
        """The columns that a maker reads, as Arrow batches."""
        from rmqtool.read.messages import message_batches

        if self._reverse:
            for batch in self._frames(access, chosen, self._report_place):
                yield from self._columns(batch, maker)
            return
        yield from message_batches(
            self._store, chosen, columns=maker.reads, access=access, body=maker.body,
            hold_s=_HOLD_S, report=self._report, progress=self._progress, looked=self._looked,
            batch_records=self._looked.batches,
        )  # fmt: skip

    def _columns(self, batch: FrameBatch, maker: LineMaker) -> Iterator[Any]:
        """The same of one batch of records."""
        from rmqtool.read.messages import batches_of_frames

        frames, reads = batch.frames.at(batch.mask.nonzero()[0]), maker.reads
        for each in batches_of_frames(self._store, frames, batch.file, columns=reads, body=maker.body):
            self._report_all(each.findings)
            yield each.batch

    def _all_rows(
        self, access: Access, chosen: Selection, form: RowFormat, maker: LineMaker | None
    ) -> Iterator[Row | TextLines]:
        """Records, as rows or lines, and in its place a row of everything that lies between them."""
        from rmqtool.read.reading import FrameBatch

        for item in self._items(access, chosen):
            if isinstance(item, FrameBatch):
                if maker is None:
                    yield from (record_row(row) for row in self._rows_of(item, form))
                    continue
                for batch in self._columns(item, maker):
                    yield maker.lines(self._store, batch, record_columns(len(batch)))
            elif not isinstance(item, Finding):
                yield from rows_between(self._store, item)
            elif not _is_seen_by_walk(item):
                self._report(item)
                yield from rows_between(self._store, item)

    def _rows(self, access: Access, chosen: Selection, form: RowFormat) -> Iterator[Row]:
        for batch in self._frames(access, chosen, self._report_place):
            yield from self._rows_of(batch, form)

    def _rows_of(self, batch: FrameBatch, form: RowFormat) -> Iterator[Row]:
        """The rows of the selected records of one batch; what is wrong with these is reported."""
        frames, mask, file = batch
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

    def _raw(self, access: Access, chosen: Selection) -> Iterator[memoryview]:
        import numpy as np

        for frames, mask, _ in self._frames(access, chosen, self._report):
            starts = frames.starts()[mask]
            ends = starts + frames.rows["size"][mask]
            # records that lie end to end go together
            firsts = np.flatnonzero(np.concatenate([[True], starts[1:] != ends[:-1]]))
            lasts = np.append(firsts[1:], len(starts)) - 1
            for start, end in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
                yield frames.data[start:end].data

    def _frames(self, access: Access, chosen: Selection, report: Report) -> Iterator[FrameBatch]:
        """The records, batch by batch in the order of the reading; findings are reported."""
        from rmqtool.read.reading import FrameBatch

        for item in self._items(access, chosen):
            if isinstance(item, FrameBatch):
                yield item
            elif isinstance(item, Finding):
                report(item)

    def _report_place(self, found: Finding) -> None:
        """Report a finding, unless a record's own row shows it."""
        if not _is_seen_by_walk(found):
            self._report(found)

    def _items(self, access: Access, chosen: Selection) -> Iterator[FrameItem]:
        """The items of `frame_items` in the order of the reading."""
        from rmqtool.read.messages import batch_records_of
        from rmqtool.read.reading import FrameBatch

        for item in self._backwards(access, chosen) if self._reverse else self._forwards(access, chosen):
            if isinstance(item, FrameBatch):
                self._looked.batches.add(batch_records_of(item.frames, item.mask))
            yield item

    def _forwards(self, access: Access, chosen: Selection) -> Iterator[FrameItem]:
        from rmqtool.read.messages import frame_items

        return frame_items(self._store, chosen, access=access, progress=self._progress, looked=self._looked)

    def _backwards(self, access: Access, chosen: Selection) -> Iterator[FrameItem]:
        """The items of all pieces, the last one first, and so the records of a batch."""
        from rmqtool.read.reading import FrameBatch
        from rmqtool.read.split import pieces_back

        if access.is_first:
            report_out_of_reach(self._store.layout, "commit log", self._report)
        # What is wrong with a file is passed before its records: not in the piece in which the file begins.
        stop = end_of_selection(self._store, chosen)
        files = FileFindings(self._store.layout, chosen.from_offset or 0, stop, reverse=True)
        if not access.is_first and chosen.to_offset is not None:
            list(files.passed(chosen.to_offset))  # the plain part of the reading has reported these
        left = chosen.limit
        for piece in pieces_back(self._store, access, target_bytes=_PIECE_BYTES):
            every = self._forwards(replace(piece, is_first=False), replace(chosen, limit=None))
            held = [_copied(item) if isinstance(item, FrameBatch) else item for item in every]
            while held:
                if left == 0:
                    return
                item = held.pop()
                if not isinstance(item, FrameBatch):
                    if not isinstance(item, Finding) or item.problem.code not in OF_FILES:
                        yield from (each for _, each in files.passed(item.physical_offset))
                        yield item
                    continue
                last = _last_first(item, left)
                left = None if left is None else left - len(last.mask)
                yield from (each for _, each in files.passed(int(last.frames.rows["physical_offset"][0])))
                while held and isinstance(wrong := held[-1], Finding) and _is_seen_by_walk(wrong):
                    held.pop()
                    if (wrong.physical_offset or 0) >= last.frames.rows["physical_offset"][-1]:
                        yield wrong
                yield last
        yield from (each for _, each in files.passed(None))


def _is_seen_by_walk(found: Finding) -> bool:
    """Whether it is about a record that was read, whose own row says the same."""
    return found.problem.code in WALK_CODES


def _last_first(batch: FrameBatch, limit: int | None) -> FrameBatch:
    """The last records of a batch of which all are selected, at most `limit`, the last one first."""
    import numpy as np

    rows = batch.frames.rows[::-1][:limit].copy()
    return batch._replace(frames=replace(batch.frames, rows=rows), mask=np.ones(len(rows), np.bool_))


def _copied(batch: FrameBatch) -> FrameBatch:
    """The selected records of a batch with memory of their own."""
    frames = batch.frames.at(batch.mask.nonzero()[0]).copied()
    return batch._replace(frames=frames, mask=batch.mask[batch.mask])
