"""A whole export: batches from the log into files that appear when they are complete.

A *unit* is a part of the log [start, end) and its files: one, or one per partition. The cursor moves to
the end of a unit after all of its files have appeared. A run that starts where a killed one had started a
unit replaces the files of that unit, which have the same names. So every message is exported once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from datetime import UTC
from os import PathLike
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from rmqtool.errors import InputError, RefusedError, UsageError
from rmqtool.findings import BatchRecords, Progress, Report
from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.known_topics import names_only_unknown_topics
from rmqtool.read.log_items import end_of_selection
from rmqtool.read.messages import message_batches
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.export.cursor import Cursor, Unfinished
from rmqtool.report.export.outputs import OutputTarget
from rmqtool.report.export.records import LogBytes
from rmqtool.report.export.request import ExportRequest, export_request, file_name, partitions
from rmqtool.report.export.system import SystemColumn
from rmqtool.report.export.text import encoded_bodies, too_long_bodies
from rmqtool.report.export.writers import Compression, Format, Writer, new_writer
from rmqtool.storage.claim import claimed
from rmqtool.storage.output_guard import keep_out, real_path
from rmqtool.storage.prefetch import ahead
from rmqtool.storage.remote_url import mask

_BATCH_BYTES = 16 << 20
_BATCHES_AHEAD = 2
_PARTITIONS_MAX = 200  # files open at once
_WAITING_BYTES = 256 << 20  # most bytes of rows that wait in all of them


@dataclass
class ExportResult:
    """The result of an export.

    Attributes:
        messages: number of exported messages.
        files: (name without secrets, messages, bytes) of every file, in the order of completion.
        lost: physical offsets [from, to) that the log no longer has and no run has exported; None if none.
        next_offset: physical offset at which the next run continues.
        resumed: the output of the previous run, if it was found to be complete and counts.
        other_files: files of this format that a first run into a folder found there and left: a query over
            the folder reads them too.
        batch_records: the batch records among the messages: each is one row.
        too_long_bodies: bodies in a file for a spreadsheet that do not fit into a cell.
        encoded_bodies: bodies in such a file that are not text.
    """

    messages: int = 0
    files: list[tuple[str, int, int]] = field(default_factory=list)
    lost: tuple[int, int] | None = None
    next_offset: int | None = None
    resumed: str | None = None
    other_files: int = 0
    batch_records: BatchRecords = field(default_factory=BatchRecords)
    too_long_bodies: int = 0
    encoded_bodies: int = 0


def run_export(
    store: Store,
    selection: Selection,
    request: ExportRequest,
    report: Report,
    progress: Progress | None = None,
    *,
    jobs: int = 1,
) -> ExportResult:
    """Export the selected messages.

    Args:
        store: the store.
        selection: which messages.
        request: where and how.
        report: called for each damaged place, possibly from another thread.
        progress: called with the bytes of the log just read, possibly from another thread.
        jobs: number of reading threads.

    Raises:
        UsageError: an option that cannot be combined with a cursor.
        RefusedError: a file exists, or would be inside the store; the cursor is of another log, or in use.
        InputError: the cursor file is invalid.
        UnwritableError: something could not be written; completed files stay.
    """
    store.layout.check_forms(log=True)
    with ExitStack() as held:
        return _Run(store, selection, request, held).run(report, progress, jobs)


def export(
    store: Store,
    output: str | PathLike[str],
    selection: Selection | None = None,
    *,
    format: Format | None = None,
    columns: Sequence[str] | None = None,
    body: str = "plain",
    compression: Compression | None = None,
    partition_by: Sequence[str] | None = None,
    force: bool = False,
    report: Report | None = None,
    jobs: int = 1,
) -> ExportResult:
    """Write the selected messages to a file, or to files in a folder.

    Args:
        store: the store.
        output: path or URL of the file; of the folder if it ends with `/` or is one.
        selection: which messages; None is everything.
        format: parquet, arrow, orc, jsonl, csv or records; None: by the suffix of `output`, else parquet
            with `partition_by`.
        columns: names of columns (`rmqtool.message.columns`); None: all except those that repeat others.
        body: `plain`, `stored`, `both` or `none`.
        compression: zstd, lz4, gzip or none; None: zstd for columns, by the suffix for lines.
        partition_by: `topic`, `date` or both: one folder for each value, Parquet only.
        force: replace existing files.
        report: called for each damaged place, possibly from another thread.
        jobs: number of reading threads.

    Raises:
        UsageError: values that do not go together.
        RefusedError: a file exists, or would be inside the store.
        UnwritableError: something could not be written; completed files stay.
    """
    request = export_request(
        str(output), format=format, columns=columns, body=body, compression=compression,
        partition_by=partition_by, force=force,
    )  # fmt: skip
    return run_export(store, selection or Selection(), request, report or (lambda finding: None), jobs=jobs)


class _Run:
    def __init__(self, store: Store, selection: Selection, request: ExportRequest, held: ExitStack) -> None:
        self._held = held
        self.store = store
        self.request = request
        self.result = ExportResult()
        self.form = request.writer_form
        if request.is_folder:
            self.place, self.name = OutputTarget.of_folder(request.output), ""
        else:
            self.place, self.name = OutputTarget.of_file(request.output)
            if self.place.is_folder(self.name):
                raise UsageError(f"{self.place.name_of(self.name)} is a folder", hint="end --output with /")
        self._keep_out_of_store()
        self.cursor = self._cursor(selection)
        self.resumes = self.cursor is not None and self.cursor.next_offset is not None
        self.selection, self.start = self._bounds(selection)

    # before anything is written

    def _keep_out_of_store(self) -> None:
        local, cursor = self.place.local, self.request.cursor_file
        output = local / self.name if local is not None else None
        for path in (output if output is not None else self.place.name_of(self.name).rstrip("/"), cursor):
            if path is not None:
                keep_out(self.store.layout, path, "the file", location=self.store.location.path)
        if output is not None and cursor is not None and real_path(output) == real_path(cursor):
            raise UsageError("--output and --cursor-file name the same file")

    def _cursor(self, selection: Selection) -> Cursor | None:
        path = self.request.cursor_file
        if path is None:
            return None
        if selection.until is not None or selection.from_offset is not None:
            raise UsageError(
                "a cursor sets the start, and a time cannot set the end",
                hint="leave out --from-offset and --until",
            )
        self._held.enter_context(claimed(path))
        cursor = Cursor.read(path, selection)
        if cursor.unfinished is not None:
            cursor = self._settled(cursor, cursor.unfinished)
        cursor.verify(self.store)
        return cursor

    def _settled(self, cursor: Cursor, unfinished: Unfinished) -> Cursor:
        """The cursor after a run that was killed while its only file appeared: moved if the file exists."""
        if not PurePosixPath(unfinished.output).name or "\0" in unfinished.output:
            raise InputError("this is not a cursor: its output is not a file name", path=cursor.path)
        place, name = (
            OutputTarget.of_file(unfinished.output) if "://" not in unfinished.output else (None, "")
        )
        if place is None:
            if self.place.local is not None or not unfinished.output.startswith(f"{self.place.shown}/"):
                raise RefusedError(
                    f"a run before this one may have finished {mask(unfinished.output)}, or not",
                    path=cursor.path,
                    hint="name the same --output again, or see for yourself and delete the cursor",
                )  # fmt: skip
            place, name = self.place, unfinished.output.removeprefix(f"{self.place.shown}/")
        if "/" in name:
            raise InputError("this is not a cursor: its output is not a file name", path=cursor.path)
        if not place.exists(name):
            return replace(cursor, unfinished=None)
        self.result.resumed = place.name_of(name)
        moved = replace(cursor, next_offset=unfinished.next_offset, check=unfinished.check, unfinished=None)
        moved.save()
        return moved

    def _bounds(self, selection: Selection) -> tuple[Selection, int]:
        """The selection to read, and the physical offset where it begins."""
        log, start = self.store.commit_log, selection.from_offset
        stop = end_of_selection(self.store, selection)
        if self.cursor is not None and self.cursor.next_offset is not None:
            start = self.cursor.next_offset
            if log.files and start < log.min_offset:
                self.result.lost = (start, log.min_offset)
        if start is not None and stop is not None:
            stop = max(stop, start)
        bounded = replace(selection, from_offset=start, to_offset=stop)
        return bounded, max(log.min_offset, 0) if start is None else start

    # the run

    def run(self, report: Report, progress: Progress | None, jobs: int) -> ExportResult:
        request = self.request
        end = self.store.end_offset()
        if self.selection.to_offset is not None:
            end = min(end, self.selection.to_offset)
        reached, is_first = self.start, not self.resumes
        unit: _Unit | None = None
        limited = self.selection.limit == 0
        size = min(_BATCH_BYTES, max(request.file_bytes, 1)) if request.is_folder else _BATCH_BYTES
        batches = message_batches(
            self.store, self.selection, columns=request.columns.reads,
            body="plain" if request.columns.body in ("plain", "both") else "stored",
            max_bytes=size, jobs=jobs, report=report, progress=progress,
            batch_records=self.result.batch_records,
        )  # fmt: skip
        log = LogBytes(self.store)
        times = request.tz if self.form.text is not None else UTC
        meaning = SystemColumn(self.store, times, bodies=request.columns.body != "none")
        try:
            for batch in ahead(batches, _BATCHES_AHEAD):
                unit = unit or self._begin(reached)
                unit.add(batch, request.columns.complete(batch, log, meaning))
                reached = _end_of(batch)
                limited = self.result.messages == self.selection.limit
                if unit.is_full:
                    self._finish(unit, reached)
                    unit = None
            if not limited:
                reached = max(reached, end)
            if (
                unit is None
                and not request.is_folder
                and not names_only_unknown_topics(self.store.layout, self.selection)
            ):
                unit = self._begin(reached)  # a file without a message
            self._finish(unit, reached)
        except BaseException:
            if unit is not None:
                unit.abort()
            raise
        finally:
            log.close()
        self.result.next_offset = reached
        if request.is_folder and is_first:
            self.result.other_files = self._other_files()
        return self.result

    def _other_files(self) -> int:
        """Number of files of this format in the folder that this run has not written."""
        _, suffix = file_name(0, self.request.format, self.request.compression).split(".", 1)
        written = {name for name, _, _ in self.result.files}
        return sum(
            name.endswith(f".{suffix}") and self.place.name_of(name) not in written
            for name in self.place.files()
        )

    def _begin(self, start: int) -> _Unit:
        request = self.request
        name = self.name or file_name(start, request.format, request.compression)
        if self.resumes and request.is_folder:
            if request.partition_by:
                self.place.remove_all(name)  # left by a killed run
        elif self.resumes and not request.partition_by and self.place.exists(name):
            raise RefusedError(
                "the file holds what was exported before the cursor", path=self.place.name_of(name),
                hint="name another file, or a folder, which can hold the files of all runs",
            )  # fmt: skip
        elif not request.force and not request.partition_by:
            self.check_absent(name)
        if self.cursor is not None and request.is_folder and self.cursor.next_offset is None:
            # From now on, existing files of this name come from a killed run.
            self.cursor = self.cursor.at(self.store, start)
            self.cursor.save()
        return _Unit(self, name)

    def check_absent(self, name: str) -> None:
        """Raises RefusedError if a file of this name exists."""
        if self.place.exists(name):
            raise RefusedError("the file exists", path=self.place.name_of(name), hint="--force replaces it")

    def _finish(self, unit: _Unit | None, reached: int) -> None:
        """Make the unit's files appear, then move the cursor."""
        cursor = self.cursor
        moved = cursor.at(self.store, reached) if cursor is not None else None
        if unit is not None:
            unit.close()
            if cursor is not None and moved is not None and not self.request.is_folder:
                cursor.save(Unfinished(self._absolute_name(), reached, moved.check))
            unit.commit()
            self.result.files += unit.files
        if moved is not None:
            moved.save()
            self.cursor = moved
            self.resumes = True

    def _absolute_name(self) -> str:
        local = self.place.local
        return self.place.name_of(self.name) if local is None else str((local / self.name).absolute())


class _Unit:
    """The files of one part of the log."""

    def __init__(self, run: _Run, name: str) -> None:
        self._run = run
        self._name = name
        self._writers: dict[str, Writer] = {}
        self.files: list[tuple[str, int, int]] = []
        if not run.request.is_folder:
            self._writer("")

    @property
    def is_full(self) -> bool:
        """Whether the next rows must go into new files."""
        request = self._run.request
        if not request.is_folder:
            return False
        most = max(writer.size for writer in self._writers.values())
        return most >= request.file_bytes or len(self._writers) > _PARTITIONS_MAX

    def add(self, batch: pa.RecordBatch, rows: pa.RecordBatch) -> None:
        """Add `rows`; `batch` has the columns that decide their partition."""
        request = self._run.request
        self._run.result.messages += len(rows)
        text = self._run.form.text
        if text is not None and text.spreadsheet:
            self._run.result.too_long_bodies += too_long_bodies(rows, text)
            self._run.result.encoded_bodies += encoded_bodies(rows, text)
        if not request.partition_by:
            self._writer("").write(rows)
            return
        for folder, numbers in partitions(batch, request.partition_by, request.date_tz):
            piece = rows if len(numbers) == len(rows) else rows.take(pa.array(np.sort(numbers)))
            self._writer(folder, batch.column("topic")[int(numbers[0])]).write(piece)
        waiting = sum(writer.waiting_bytes for writer in self._writers.values())
        while waiting > _WAITING_BYTES:
            largest = max(self._writers.values(), key=lambda writer: writer.waiting_bytes)
            waiting -= largest.waiting_bytes
            largest.flush()

    def _writer(self, folder: str, topic: Any = None) -> Writer:
        writer = self._writers.get(folder)
        if writer is None:
            run = self._run
            name = f"{folder}/{self._name}" if folder else self._name
            if folder and not run.resumes and not run.request.force:
                run.check_absent(name)
            draft = run.place.begin(name)
            try:
                form = run.form
                if topic is not None and "topic" in run.request.partition_by:
                    # The folder's name may be cut, so the file holds the topic.
                    form = replace(form, schema=form.schema.with_metadata({"rmqtool.topic": topic.as_py()}))
                writer = self._writers[folder] = new_writer(draft, form)
            except BaseException:
                draft.abort()
                raise
        return writer

    def close(self) -> None:
        """Write the remaining rows."""
        for writer in self._writers.values():
            writer.close()

    def commit(self) -> None:
        """Make the files appear."""
        for writer in self._writers.values():
            writer.draft.commit()
            name = self._run.place.name_of(writer.draft.name)
            self.files.append((name, writer.rows, writer.draft.size))

    def abort(self) -> None:
        """Remove files that have not appeared."""
        for writer in self._writers.values():
            writer.draft.abort()


def _end_of(batch: pa.RecordBatch) -> int:
    """The physical offset after the last row."""
    last = len(batch) - 1
    return int(batch.column("physical_offset")[last].as_py() + batch.column("size")[last].as_py())
