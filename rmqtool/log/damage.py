"""What is wrong with the bytes between records, and with the set of commit log files.

The walk says where no sound record is and why; what that is called follows from the bytes. Zeros are
a hole, whole zeroed pages are lost writes, and a tail that was never written is a torn tail, which is
a note and not damage.

    region at the log's end      zero bytes reach from inside the record to the file's end: torn
    all bytes zero               zero hole
    whole 4096-byte pages zero   zeroed page
    message magic, wrong lengths wrong length
    anything else                unknown magic

Source: spec 02 section 15.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqtool.errors import InputError, UnreadableError
from rmqtool.formats import message
from rmqtool.log.commit_log import CommitLog, StoredBlank, StoredDamage, StoredZeros
from rmqtool.log.events import CorruptRange, Reason
from rmqtool.log.python_scan import first_nonzero, nonzero_end
from rmqtool.problems import Finding, finding
from rmqtool.storage.layout import StoreFile, StoreLayout
from rmqtool.storage.source import open_source

if TYPE_CHECKING:
    from rmqtool.storage.source import ByteSource


class DamageClassifier:
    """Names what is wrong with a blank, with zeros or with bytes that are no record.

    A blank of the wrong size and the zeros behind it are one bad place.
    """

    def __init__(self, commit_log: CommitLog, end_offset: Callable[[], int]) -> None:
        """Judge a log; `end_offset` gives the physical offset after its last whole record."""
        self._log = commit_log
        self._end_offset = end_offset
        self._end: int | None = None

    def __call__(self, event: StoredBlank | StoredZeros | StoredDamage) -> Iterator[Finding]:
        """What is wrong with one event of a walk; nothing for what is as it should be."""
        start = event.physical_offset
        file = self._log.file_of(start)
        base = start if file is None else file.file_from_offset
        if isinstance(event, StoredBlank):
            left = 0 if file is None else file.end - start
            if event.size != left:
                zeros = _are_zero(event.path, start - base + message.BLANK_SIZE, left - message.BLANK_SIZE)
                length = left if zeros else message.BLANK_SIZE
                yield finding("CL10", event.file, start, length, blank_size=event.size, left=left)
        elif isinstance(event, StoredDamage):
            code, detail = self._code(event, base, 0 if file is None else file.size)
            yield finding(code, event.file, start, event.length, **detail)
        elif file is not None and self._is_followed(file) and not self._follows_blank(start, base):
            yield finding("CL02" if start == base else "CL11", event.file, start, event.length)

    def is_covered(self, event: StoredBlank | StoredZeros) -> bool:
        """Whether these are zeros that the bad place of a blank of the wrong size takes in."""
        file = self._log.file_of(event.physical_offset)
        base = event.physical_offset if file is None else file.file_from_offset
        return isinstance(event, StoredZeros) and self._follows_blank(event.physical_offset, base)

    def _follows_blank(self, offset: int, base: int) -> bool:
        before = offset - message.BLANK_SIZE
        if before < base:
            return False
        try:
            return isinstance(self._log.read(before), StoredBlank)
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

    def _code(self, event: StoredDamage, base: int, size: int) -> tuple[str, dict[str, Any]]:
        """(problem code, details) of bytes that are no sound record; `verify` has the same rules."""
        if event.reason is None:
            return "CL12", {}
        try:
            with closing(open_source(event.path, listed_size=size)) as source:
                start = event.physical_offset - base
                last = nonzero_end(source, start, start + event.length)
                declared = int.from_bytes(source.read(start, min(4, event.length)), signed=True)
                bad = CorruptRange(start, event.length, event.reason, declared, last, event.to_end)
                torn = self._at_end(event.physical_offset + event.length) and is_torn(bad)
                detail: dict[str, Any] = {"declared_size": declared}
                if self._is_cut(bad, source.size):
                    detail["reason"] = "cut off by the end of a file that is too short"
                code = "CL01" if torn else kind_of(source, bad)
                return (code, detail) if not source.unreadable else ("CL12", {})
        except (OSError, UnreadableError):
            return "CL12", {}

    def _is_cut(self, bad: CorruptRange, size: int) -> bool:
        """Whether a file of the wrong size ends inside the record."""
        if size >= self._log.file_size or bad.end != size:
            return False
        return bad.reason is Reason.SIZE and bad.declared_size > bad.length or bad.length < message.BLANK_SIZE


def _are_zero(path: Path, start: int, length: int) -> bool:
    try:
        with closing(open_source(path)) as source:
            is_zero = first_nonzero(source, start, start + length) >= start + length
            return is_zero and not source.unreadable
    except (OSError, UnreadableError):
        return False


class FileFindings:
    """Files of a wrong size and ranges that no file holds, told when the walk has left them behind."""

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
                name = layout.relative(before.path.with_name(f"{low:020}"))
                gone = finding("CL20", name, low, high - low, next=after.path.name)
                found.append((low, high, gone))
        inside = [each for each in found if each[1] > start and (stop is None or each[0] < stop)]
        self._found = deque(sorted(inside, key=lambda each: each[:2], reverse=reverse))
        self._reverse = reverse

    def passed(self, offset: int | None) -> Iterator[Finding]:
        """What a walk that has come to `offset` has left behind, each once; None: the walk is over."""
        while self._found:
            low, high, each = self._found[0]
            if offset is not None and ((offset >= low) if self._reverse else (offset < high)):
                return
            self._found.popleft()
            yield each


def missing_range(layout: StoreLayout, each: Finding) -> tuple[int, int]:
    """The half-open range of the log that a finding of `FileFindings` is about: bytes that no file holds."""
    start = each.physical_offset or 0
    if each.problem.code == "CL20":
        return start, start + (each.length or 0)
    files, end = layout.commit_log, start + (each.length or 0)
    return end, max(end, start + each.detail["expected_bytes"] if files[-1].file_from_offset > start else end)


PAGE = 4096


_BLOCK = 1 << 20


def kind_of(source: ByteSource, bad: CorruptRange) -> str:
    """The problem code of a bad region that sound records follow, or that is no torn tail."""
    if bad.nonzero_end <= bad.position:
        return "CL02"
    if zero_page(source, bad.position, bad.end) is not None:
        return "CL08"
    return "CL05" if bad.reason is Reason.MAGIC else "CL04"


def is_torn(bad: CorruptRange) -> bool:
    """Whether a region at the log's end is a record whose writer died: its own tail is zero.

    The bytes behind a torn record are zero to the file's end, for nothing was written there yet;
    so the last byte that is not zero lies inside the record, as far as its size is known.
    """
    if not bad.to_end:
        return False
    written = bad.nonzero_end - bad.position
    if bad.reason is Reason.MAGIC:
        return written <= 8
    return 0 < written < bad.declared_size if bad.declared_size > 0 else 0 < written <= 4


def zero_page(source: ByteSource, start: int, stop: int) -> int | None:
    """Position of the first whole page of zeros that touches [start, stop) of the file; None for none.

    A lost page begins wherever the page does, often in the middle of a record whose last bytes
    happen to be zero anyway; so the pages at both ends count too.
    """
    position = start // PAGE * PAGE
    stop = min(-(-stop // PAGE) * PAGE, source.size)
    while position < stop:
        data = source.read(position, min(_BLOCK, stop - position))
        if not data:
            return None
        for page in range(0, len(data) - PAGE + 1, PAGE):
            if data.count(0, page, page + PAGE) == PAGE:
                return position + page
        position += len(data)
    return None
