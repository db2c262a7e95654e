"""The commit log as rows or bytes: its records, and with `gaps` also what lies between them.

Everything is read in plain Python, record by record, for every record is shown or judged. What a
bad range is called follows `verify`: a torn last record is a note, all else is damage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from rmqtool.errors import FormatError, InputError, MissingCodecError, UnreadableError
from rmqtool.formats import body, message
from rmqtool.problems import Finding, finding
from rmqtool.scan.events import BODY_CRC, FOREIGN, Bad
from rmqtool.scan.source import open_source
from rmqtool.store import Store, StoredBlank, StoredDamage, StoredMessage, StoredZeros
from rmqtool.store.dump import Progress, Report, tell_out_of_reach
from rmqtool.store.explain import Explanation, explain_record
from rmqtool.store.rows import OK, Row, RowFormat, blank_row, damage_row, message_row
from rmqtool.store.selection import Selection
from rmqtool.store.verify.damage import is_torn, kind_of

Item = StoredMessage | StoredBlank | Finding

_BLOCK = 1 << 20
CODE_BY_STATUS = ((BODY_CRC, "CL03"), (FOREIGN, "CL06"))
_PROGRESS_STEP = 1 << 20
_EXPLAIN_LIMIT = 16 << 20  # more than any broker takes for one message


def end_of_selection(store: Store, selection: Selection) -> int | None:
    """Where a walk stops: the selection's end; on a live store the log's end, if that comes first."""
    if not store.live:
        return selection.to_offset
    end = store.end_offset()
    return end if selection.to_offset is None else min(end, selection.to_offset)


def log_items(
    store: Store, selection: Selection, *, reverse: bool = False, progress: Progress | None = None
) -> Iterator[Item]:
    """The selected messages, and every blank and bad place of the selected offsets, in order.

    A bad place is a `Finding`; damage in a record that was read is in its `status`. On a live store
    nothing from the log's end on is looked at, for a broker is writing there. `progress` is told
    about every megabyte that was passed.
    """
    stop = end_of_selection(store, selection)
    if not store.layout.commit_log and (store.layout.consume_queues or store.layout.index_files):
        yield finding("CL26", "commitlog")
    judge = Judge(store)
    missing = MissingFiles(store, selection.from_offset or 0, stop, reverse=reverse)
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
        yield from missing.passed(event.physical_offset)
        if isinstance(event, StoredMessage):
            if selection.matches(event.message, event.physical_offset):
                left = None if left is None else left - 1
                yield event
            continue
        bad = list(judge(event))
        if isinstance(event, StoredBlank) and not bad:
            yield event
        yield from bad


class Judge:
    """Names what is wrong with a blank, with zeros or with bytes that are no record.

    A blank of the wrong size and the zeros behind it are one bad place.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._end: int | None = None

    def __call__(self, event: StoredBlank | StoredZeros | StoredDamage) -> Iterator[Finding]:
        """What is wrong with one event of a walk; nothing for what is as it should be."""
        start = event.physical_offset
        file = self.store.commit_log.file_of(start)
        base = start if file is None else file.file_from_offset
        if isinstance(event, StoredBlank):
            left = 0 if file is None else file.end - start
            if event.size != left:
                zeros = _are_zero(event.path, start - base + message.BLANK_SIZE, left - message.BLANK_SIZE)
                length = left if zeros else message.BLANK_SIZE
                yield finding("CL10", event.file, start, length, blank_size=event.size, left=left)
        elif isinstance(event, StoredDamage):
            yield finding(self._code(event, base), event.file, start, event.length)
        elif not self._at_end(start) and not self._follows_blank(start, base):
            yield finding("CL02" if start == base else "CL11", event.file, start, event.length)

    def _follows_blank(self, offset: int, base: int) -> bool:
        before = offset - message.BLANK_SIZE
        if before < base:
            return False
        try:
            return isinstance(self.store.commit_log.read(before), StoredBlank)
        except InputError:
            return False

    def _at_end(self, offset: int) -> bool:
        """Whether the log ends at or before `offset`: nothing but a torn record can follow there."""
        if self._end is None:
            self._end = self.store.end_offset()
        return self._end <= offset

    def _code(self, event: StoredDamage, base: int) -> str:
        if event.reason is None:
            return "CL12"
        try:
            with closing(open_source(event.path)) as source:
                start = event.physical_offset - base
                nonzero_end = start + event.length
                while nonzero_end > start:
                    size = min(_BLOCK, nonzero_end - start)
                    data = source.read(nonzero_end - size, size).rstrip(b"\0")
                    nonzero_end += len(data) - size
                    if data:
                        break
                declared = int.from_bytes(source.read(start, min(4, event.length)), signed=True)
                bad = Bad(start, event.length, event.reason, declared, nonzero_end, event.to_end)
                torn = self._at_end(event.physical_offset) and is_torn(bad)
                return "CL01" if torn else kind_of(source, bad)
        except (OSError, UnreadableError):
            return "CL12"


def _are_zero(path: Path, start: int, length: int) -> bool:
    try:
        with closing(open_source(path)) as source:
            for position in range(start, start + length, _BLOCK):
                data = source.read(position, min(_BLOCK, start + length - position))
                if data.count(0) != len(data):
                    return False
    except (OSError, UnreadableError):
        return False
    return True


class MissingFiles:
    """Ranges of the log that no file holds, told when the walk passes them."""

    def __init__(self, store: Store, start: int, stop: int | None, *, reverse: bool) -> None:
        files = (file for file in store.layout.commit_log if file.size)  # an empty one was never written
        holes = [
            (before.end, after.file_from_offset)
            for before, after in pairwise(files)
            if before.end < after.file_from_offset and after.file_from_offset > start
            and (stop is None or before.end < stop)
        ]  # fmt: skip
        self._holes = deque(reversed(holes) if reverse else holes)
        self._reverse = reverse

    def passed(self, offset: int) -> Iterator[Finding]:
        """The ranges that a walk which has come to `offset` has left behind, each once."""
        while self._holes:
            low, high = self._holes[0]
            if (offset >= low) if self._reverse else (offset < high):
                return
            self._holes.popleft()
            yield finding("CL20", "commitlog", low, high - low)


def message_rows(
    store: Store,
    selection: Selection,
    form: RowFormat,
    report: Report,
    *,
    reverse: bool = False,
    gaps: bool = False,
    progress: Progress | None = None,
) -> Iterator[Row]:
    """Rows of the selected messages.

    Args:
        store: the store.
        selection: which messages; `limit` counts messages.
        form: which fields, and how they are written.
        report: told about bad places, and about records whose status is not ok.
        reverse: newest first.
        gaps: also a row for every blank and every bad place, so that rows cover the log.
        progress: told about the bytes that were passed.
    """
    tell_out_of_reach(store.layout, "commit log", report)
    for item in log_items(store, selection, reverse=reverse, progress=progress):
        if isinstance(item, StoredMessage):
            row = message_row(item.message, item.physical_offset, item.file, form)
            for each in record_findings(item, row.get("status", [OK])):
                report(each)
            yield row
        elif isinstance(item, Finding):
            report(item)
            if gaps and item.physical_offset is not None:
                yield damage_row(item.problem.code, item.physical_offset, item.length or 0, item.path)
        elif gaps:
            yield blank_row(item.physical_offset, item.size, item.file)


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
) -> Iterator[bytes]:
    """The selected records byte for byte as they are stored. See `message_rows`."""
    for item in log_items(store, selection, reverse=reverse, progress=progress):
        if isinstance(item, StoredMessage):
            for each in record_findings(item, []):
                report(each)
            yield message.encode(item.message)
        elif isinstance(item, Finding):
            report(item)


def explain_log(store: Store, physical_offset: int, form: RowFormat) -> Explanation:
    """The record or blank at `physical_offset`, field by field, sound or not.

    Raises:
        FormatError: no file holds the offset.
        UnreadableError: the file cannot be read.
    """
    file = store.commit_log.file_of(physical_offset)
    if file is None:
        raise FormatError("no file of the commit log holds this offset", physical_offset=physical_offset)
    with closing(open_source(file.path)) as source:
        position = physical_offset - file.file_from_offset
        data = source.read(position, min(file.size - position, _EXPLAIN_LIMIT))
    return explain_record(data, physical_offset, form.tz, left=file.size - position)
