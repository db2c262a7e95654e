"""Classification of damage: of records, of the bytes between them, and of the set of commit log files.

The only place where damage of the log gets its code, and where the torn-tail rule stands. Callers supply
facts: the status bits of records, and whether the log ends at a place.

A record has the codes of its status bits (`CODE_BY_STATUS`, `record_codes`), even if a page of its body was
lost. Both engines call `corrupt_range` where no sound record is; the code follows from the bytes:

    all bytes zero               zero hole (CL02)
    whole 4096-byte pages zero   zeroed page (CL08)
    message magic, wrong lengths wrong length (CL04)
    anything else                unknown magic (CL05)

`file_events` completes the walk over one file: a last record of which zeros have taken the end is torn, and
what could not be read is CL12. The place in the log decides the rest. A torn tail was never written in full,
which is a note and not damage.

                                     more of the log follows    the log ends here
    corrupt range, torn              by its bytes, see above    CL01 torn tail
    other corrupt range              by its bytes               by its bytes
    record with unsound properties   CL13                       CL01 torn tail
    blank of a wrong size            CL10 bad blank             CL10 bad blank
    zeros to the end of the file     CL11 no blank              no finding
    a whole file of zeros            CL02 zero hole             CL24 next file

Source: spec 02 sections 2 and 15.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.errors import InputError, UnreadableError
from rmqtool.formats import ledger, message
from rmqtool.log.events import (
    BAD_NUMBER,
    BODY_CRC,
    CODEC_MISSING,
    ENTRY_MISMATCH,
    OFFSET_MISMATCH,
    PROPERTIES_UNSOUND,
    PROPERTY_CRC_BAD,
    UNPACKABLE,
    Blank,
    CorruptRange,
    LogGap,
    Reason,
    StoredMessage,
    TrailingZeros,
)
from rmqtool.problems import Finding, finding
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.out_of_reach import why_missing
from rmqtool.storage.ranges import Unreadable
from rmqtool.storage.source import first_nonzero, nonzero_end, open_source

if TYPE_CHECKING:
    from rmqtool.log.commit_log import CommitLog
    from rmqtool.log.dispatch import Dispatch
    from rmqtool.log.frames import Frames
    from rmqtool.storage.buffers import Array
    from rmqtool.storage.source import ByteSource

PAGE = 4096
_BLOCK = 1 << 20
_ENTRY_SIZE_OFFSET = ledger.HEADER.offsets["size"]

CODE_BY_STATUS = {
    BODY_CRC: "CL03",
    OFFSET_MISMATCH: "CL06",
    ENTRY_MISMATCH: "DL01",
    PROPERTY_CRC_BAD: "CL09",
    PROPERTIES_UNSOUND: "CL13",
    BAD_NUMBER: "CL18",
    UNPACKABLE: "CL14",
    CODEC_MISSING: "UN01",
}
"""The code of each status bit of a record, in the order in which rows and findings have the codes."""


def codes_of(status: int) -> list[str]:
    """The codes of the status bits of a record, in the order of CODE_BY_STATUS."""
    return [code for bit, code in CODE_BY_STATUS.items() if status & bit]


WALK_CODES = frozenset(codes_of(BODY_CRC | OFFSET_MISMATCH))
"""Codes of what every walk sees in a record: it does not hold the message as it was sent."""


def full_status(frames: Frames, dispatch: Dispatch) -> Array:
    """Per record the status bits of the walk and those of the dispatch columns: u1, shape (rows,)."""
    found: Array = dispatch.flags & (PROPERTY_CRC_BAD | PROPERTIES_UNSOUND | BAD_NUMBER)
    found |= frames.rows["status"]
    return found


def record_codes(frames: Frames, dispatch: Dispatch) -> Iterator[tuple[str, Array]]:
    """(code, mask) for each code that a record of a batch can have, in the order of CODE_BY_STATUS.

    The mask has the shape (rows,), and is not 0 for the records with this code. CL17 comes last; it has no
    status bit, because readers and salvage do not count a store timestamp of 0 or less as damage.
    """
    status = full_status(frames, dispatch)
    for bit, code in CODE_BY_STATUS.items():
        yield code, status & bit
    yield "CL17", frames.rows["store_timestamp"] <= 0


def corrupt_range(
    source: ByteSource, file_from_offset: int, start: int, stop: int, reason: Reason, *, to_end: bool,
    entry_header: int = 0,
) -> CorruptRange:  # fmt: skip
    """The positions [start, stop) of a file, where no sound record is, with the code of their bytes.

    `entry_header`: bytes of the DLedger entry header that begins at `start`; 0: a record begins there.
    """
    declared = source.read(start + (_ENTRY_SIZE_OFFSET if entry_header else 0), 4)
    size = int.from_bytes(declared, signed=True) if len(declared) == 4 else 0
    last = nonzero_end(source, start, stop)
    if last <= start:
        code = "CL02"
    elif has_zero_page(source, start, stop):
        code = "CL08"
    else:
        code = "CL05" if reason is Reason.MAGIC else "CL04"
    base = file_from_offset
    return CorruptRange(
        base + start, stop - start, code, reason, size, base + last, to_end,
        head_size=entry_header + message.BLANK_SIZE,
    )  # fmt: skip


def unreadable_range(start: int, stop: int, path: Path, file: str, *, to_end: bool) -> CorruptRange:
    """The physical offsets [start, stop), which the operating system could not read."""
    return CorruptRange(start, stop - start, "CL12", Reason.UNREADABLE, 0, start, to_end, path, file)


def is_torn(bad: CorruptRange) -> bool:
    """Whether a corrupt range at the log's end is a record whose writer died: its own tail is zero.

    The bytes after a torn record are zero to the file's end, because nothing was written there yet.
    So the last byte that is not zero lies inside the record, as far as its size is known.
    """
    if not bad.to_end:
        return False
    written = bad.nonzero_end - bad.physical_offset
    if bad.reason is Reason.MAGIC:
        return written <= bad.head_size
    return 0 < written < bad.declared_size if bad.declared_size > 0 else 0 < written <= 4


def code_at_end(code: str, *, torn: bool = False) -> str:
    """The code of the log's last damage, after which nothing was written; `code` is its code elsewhere.

    CL01 for what a writer that died leaves: less than a record (`torn`, see `is_torn`), or a last record
    with unsound properties (CL13), because a record ends with them. Readers see each record only once, before
    they know whether another one follows. To them only a record that ends in zeros is torn (`file_events`).
    """
    return "CL01" if torn or code == "CL13" else code


def gap_code(gap: Blank | CorruptRange, *, ends_log: bool) -> str:
    """The code of a blank of a wrong size or a corrupt range.

    `ends_log`: no record follows in the log.
    """
    if isinstance(gap, Blank):
        return "CL10"
    return code_at_end(gap.code, torn=is_torn(gap)) if ends_log else gap.code


def zeros_code(*, ends_log: bool, is_whole_file: bool) -> str:
    """The code of zeros up to the end of a file that do not follow a blank; empty for the log's unused rest.

    `ends_log`: nothing but zeros follows in later files. `is_whole_file`: the file has nothing else.
    """
    if ends_log:
        return "CL24" if is_whole_file else ""
    return "CL02" if is_whole_file else "CL11"


def has_zero_page(source: ByteSource, start: int, stop: int) -> bool:
    """Whether a whole page of zeros touches the positions [start, stop) of the file.

    A lost page begins wherever the page does, often in the middle of a record whose last bytes
    happen to be zero anyway. So the pages at both ends count too.
    """
    position = start // PAGE * PAGE
    stop = min(-(-stop // PAGE) * PAGE, source.size)
    while position < stop:
        data = source.read(position, min(_BLOCK, stop - position))
        if not data:
            return False
        if any(data.count(0, page, page + PAGE) == PAGE for page in range(0, len(data) - PAGE + 1, PAGE)):
            return True
        position += len(data)
    return False


def file_events(
    walked: Iterable[StoredMessage | Frames | LogGap], source: ByteSource, file: StoreFile, name: str
) -> Iterator[Any]:
    """The events of a walk over one file, by either engine, as readers get them.

    Each event has the file's path and `name`. A record that ends in zeros, after which nothing but zeros
    follows in the file, is torn: its writer died, although CRC and lengths are right. Ranges that could not
    be read come before the event that has them, each byte once.
    """
    base, path = file.file_from_offset, file.path
    reported, unread = 0, Unreadable()
    last: Any = None  # a record that ends in zeros: what follows it decides
    for event in walked:
        if last is not None:
            yield _torn(source, last, file, name) if isinstance(event, TrailingZeros) else last
            last = None
        for low, high in source.unreadable[reported:]:
            reported += 1
            unread.note(low, high)
            yield unreadable_range(base + low, base + high, path, name, to_end=high == source.size)
        if isinstance(event, StoredMessage):
            found = StoredMessage(event.message, event.physical_offset, path, name, event.status)
            if event.message.ends_in_zeros:
                last = found
            else:
                yield found
        elif isinstance(event, TrailingZeros | CorruptRange) and unread.touches(
            event.physical_offset - base, event.end - base
        ):
            to_end = isinstance(event, TrailingZeros) or event.to_end
            yield unreadable_range(event.physical_offset, event.end, path, name, to_end=to_end)
        elif isinstance(event, Blank | TrailingZeros | CorruptRange):
            yield replace(event, path=path, file=name)
        elif event.last().ends_in_zeros()[0]:
            last = event.last().copied()
            if len(event.rows) > 1:
                yield replace(event, rows=event.rows[:-1])
        else:
            yield event
    if last is not None:
        end = last.end - base
        is_torn = end < source.size and first_nonzero(source, end, source.size) >= source.size
        yield _torn(source, last, file, name) if is_torn else last


def _torn(source: ByteSource, record: StoredMessage | Frames, file: StoreFile, name: str) -> CorruptRange:
    base = file.file_from_offset
    start, stop = record.physical_offset - base, record.end - base
    found = corrupt_range(source, base, start, stop, Reason.UNSOUND, to_end=True)
    return replace(found, path=file.path, file=name)


class DamageClassifier:
    """Turns what lies between records into findings, by its place within the log.

    A blank of the wrong size and the zeros after it are one damaged range.
    """

    def __init__(self, commit_log: CommitLog, end_offset: Callable[[], int]) -> None:
        """Judge a log; `end_offset` gives the physical offset after its last whole record."""
        self._log = commit_log
        self._end_offset = end_offset
        self._end: int | None = None

    def __call__(self, event: LogGap) -> Iterator[Finding]:
        """Yield the finding on one event of a walk; nothing for a sound event."""
        start = event.physical_offset
        if isinstance(event, Blank):
            if not event.ends_file:
                code = gap_code(event, ends_log=False)
                length = event.left if self._is_empty_after(event) else message.BLANK_SIZE
                yield finding(code, event.file, start, length, blank_size=event.size, left=event.left)
        elif isinstance(event, CorruptRange):
            ends_log = is_torn(event) and self._at_end(event.end)  # to find the end costs reads
            code = gap_code(event, ends_log=ends_log)
            yield finding(code, event.file, start, event.length, **self._detail(event))
        else:
            file = self._log.file_of(start)
            if file is not None and self._is_followed(file) and not self.is_covered(event):
                code = zeros_code(ends_log=False, is_whole_file=start == file.file_from_offset)
                yield finding(code, event.file, start, event.length)

    def between(self, event: LogGap) -> Iterator[Finding | Blank | TrailingZeros]:
        """The finding on an event; a sound blank, and zeros that no finding covers, as they are."""
        found = list(self(event))
        yield from found
        if not found and not isinstance(event, CorruptRange) and not self.is_covered(event):
            yield event

    def _is_empty_after(self, blank: Blank) -> bool:
        """Whether nothing but zeros follows a blank in its file."""
        try:
            with closing(open_source(blank.path)) as source:
                start = source.size - blank.left + message.BLANK_SIZE
                return first_nonzero(source, start, source.size) >= source.size and not source.unreadable
        except (OSError, UnreadableError):
            return False

    def is_covered(self, event: Blank | TrailingZeros) -> bool:
        """Whether these zeros belong to the damaged range of a blank of the wrong size."""
        before = event.physical_offset - message.BLANK_SIZE
        file = self._log.file_of(event.physical_offset)
        if isinstance(event, Blank) or file is None or before < file.file_from_offset:
            return False
        try:
            return isinstance(self._log.read(before), Blank)
        except InputError:
            return False

    def _is_followed(self, file: StoreFile) -> bool:
        """Whether a later file holds anything but zeros."""
        for later in self._log.files:
            if later.file_from_offset > file.file_from_offset:
                try:
                    with closing(open_source(later.path)) as source:
                        if first_nonzero(source, 0, later.size) < later.size:
                            return True
                except (OSError, UnreadableError):
                    return True  # unreadable is not empty
        return False

    def _at_end(self, offset: int) -> bool:
        """Whether the log ends at or before `offset`: nothing but a torn record can follow there."""
        if self._end is None:
            self._end = self._end_offset()
        return self._end <= offset

    def _detail(self, bad: CorruptRange) -> dict[str, Any]:
        """What a finding says of a corrupt range."""
        if bad.reason is Reason.UNREADABLE:
            return {}
        detail: dict[str, Any] = {"declared_size": bad.declared_size}
        if self._is_cut(bad):
            detail["reason"] = "cut off by the end of a file that is too short"
        return detail

    def _is_cut(self, bad: CorruptRange) -> bool:
        """Whether a file of the wrong size ends inside the record."""
        file = self._log.file_of(bad.physical_offset)
        if file is None or file.size >= self._log.file_size or bad.end != file.end:
            return False
        return bad.reason is Reason.SIZE and bad.declared_size > bad.length or bad.length < message.BLANK_SIZE


OF_FILES = frozenset({"CL20", "CL21", "TS01", "TS04"})
"""Codes of `FileFindings`, which nothing else in a walk reports."""


class FileFindings:
    """Files of a wrong size and ranges that no file holds, reported once the walk has passed them.

    Of tiered storage the segments that are missing.
    """

    def __init__(self, layout: StoreLayout, start: int, stop: int | None, *, reverse: bool) -> None:
        size = layout.commit_log_file_size
        files = [file for file in layout.commit_log if file.size]  # an empty one was never written
        found: list[tuple[int, int, Finding]] = []
        for file in files:
            if file.size != size and layout.kind != "commitlog":
                name, low = layout.relative(file.path), file.file_from_offset
                wrong = finding("CL21", name, low, file.size, expected_bytes=size)
                found.append((low, file.end, wrong))
        for before, after in pairwise(files):
            low, high = before.file_from_offset + size, after.file_from_offset
            if low < high:
                found.append((low, high, missing_between(layout, before, after)))
        if layout.queue_logs is not None:
            from rmqtool.log.segments import missing_of_log

            found += ((place, place + 1, each) for place, each in missing_of_log(layout))
        inside = [each for each in found if each[1] > start and (stop is None or each[0] < stop)]
        if reverse:  # what a short file lacks is passed before its records
            inside = [(high if high < low + size else low, high, each) for low, high, each in inside]
        self._found = deque(sorted(inside, key=lambda each: each[:2], reverse=reverse))
        self._reverse = reverse

    def passed(self, offset: int | None) -> Iterator[tuple[int, Finding]]:
        """Yield each finding once, when a walk at `offset` has passed it; None: the walk has ended.

        Each with the physical offset, or place, where what is missing begins, or what is wrong.
        """
        while self._found:
            low, high, each = self._found[0]
            if offset is not None and ((offset >= low) if self._reverse else (offset < high)):
                return
            self._found.popleft()
            yield low, each


def log_missing(layout: StoreLayout) -> Finding:
    """CL26: there is no log, although queues or an index show that there was one."""
    if layout.ledger is None:
        return finding("CL26", "commitlog")
    return replace(
        finding("CL26", layout.relative(layout.ledger.data_folder)),
        message="queues or an index exist, but the DLedger log has no files; if storePathDLedgerCommitLog is"
        " elsewhere, --broker-conf FILE names it",
    )


def missing_between(layout: StoreLayout, before: StoreFile, after: StoreFile) -> Finding:
    """CL20: no file holds what is between these two files; the message names several missing files."""
    size = layout.commit_log_file_size
    start, stop = before.file_from_offset + size, after.file_from_offset
    name = layout.relative(before.path.with_name(f"{start:020}"))
    count = (stop - start) // size
    detail = {"files": count, "before": before.path.name, "after": after.path.name}
    found = finding("CL20", name, start, stop - start, **detail, **why_missing(layout, start, stop))
    names = [f"{start + number * size:020}" for number in range(min(count, _FILES_NAMED))]
    shown = ", ".join([*names, *(["..."] if count > _FILES_NAMED else [])])
    if layout.ledger is not None and before.entry_header != after.entry_header:
        # A store that was converted to DLedger: each may be the last classic file or the first of the ledger.
        sides = " or ".join(layout.relative(path) for path in (before.path.parent, after.path.parent))
        what = f"{count} files are" if count > 1 else "a file is"
        return replace(found, message=f"{what} missing between two others, in {sides}: {shown}")
    if count < 2:
        return found
    return replace(found, message=f"{count} files are missing between two others: {shown}")


_FILES_NAMED = 3


def missing_range(layout: StoreLayout, each: Finding) -> tuple[int, int]:
    """The half-open range of the log that a finding of `FileFindings` is about: bytes that no file holds."""
    start = each.physical_offset or 0
    if each.problem.code == "CL20":
        return start, start + (each.length or 0)
    files, end = layout.commit_log, start + (each.length or 0)
    return end, max(end, start + each.detail["expected_bytes"] if files[-1].file_from_offset > start else end)
