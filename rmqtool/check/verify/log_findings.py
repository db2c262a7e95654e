"""One commit log file after its walk, and the findings that follow from its place in the log.

What the place in the log means for a code is stated in `log.damage`. Here the log ends with a file if nothing
but zeros follows in later files.

Source: spec 02 sections 2 and 15.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from rmqtool.check.verify.context import Context
from rmqtool.formats.java import java_utf8_decode
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import code_at_end, gap_code, zeros_code
from rmqtool.log.events import Blank, CorruptRange, Reason
from rmqtool.problems import Finding, finding
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.ranges import contains, merged, overlaps

if TYPE_CHECKING:
    from rmqtool.check.verify.index import IndexPart
    from rmqtool.check.verify.ledger import Entries
    from rmqtool.check.verify.rocksdb_index import RangeSums
    from rmqtool.check.verify.spans import Spans


REGIONS_MAX = 5_000
TOPICS_MAX = 100_000


@dataclass
class ScannedFile:
    """The result of the walk over one commit log file.

    However damaged the file is, at most REGIONS_MAX corrupt ranges and findings are kept; the last of
    them then reaches over all that follow.

    `end` is the physical offset after the last record (-1: no record); `zero_from` is where zeros reach
    to the file's end; `done` says that the file ended properly, with a blank. The positions [start, stop)
    of the file were walked, nothing at all of a file that is `gone`; everything else is physical offsets.
    `entries` is what a file of a DLedger log says of its entries, `failed_entries` index files of entries
    that could not be read, with the reason.
    """

    file: StoreFile
    start: int
    stop: int
    gone: bool = False
    findings: list[Finding] = field(default_factory=list)
    bad: list[CorruptRange] = field(default_factory=list)
    blanks: list[Blank] = field(default_factory=list)
    zero_from: int | None = None
    done: bool = False
    records: int = 0
    fillers: dict[str, int] = field(default_factory=dict)
    end: int = -1
    last_store_timestamp: int = 0
    unsound_last: Finding | None = None
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    error: str | None = None
    topics: dict[bytes, int] = field(default_factory=dict)
    queues: Spans | None = None
    index_parts: list[IndexPart] = field(default_factory=list)
    rocksdb_index: list[RangeSums] = field(default_factory=list)
    entries: Entries | None = None
    failed_entries: dict[str, str] = field(default_factory=dict)
    _last_of: dict[str, int] = field(default_factory=dict)
    _count_of: Counter[str] = field(default_factory=Counter)

    def add_records(
        self, code: str, where: str, start: int, stop: int, records: int, *, zeroed: bool = False
    ) -> None:
        """A finding on `records` records in [start, stop), physical offsets; joined to its neighbour.

        `zeroed`: whole pages of them are zero, which says how the damage came about.
        """
        place = self._last_of.get(code)
        if place is not None:
            last = self.findings[place]
            low, length = last.physical_offset or 0, last.length or 0
            joins = low + length + self.file.entry_header == start and last is not self.unsound_last
            if joins or self._count_of[code] >= REGIONS_MAX:
                count, zeroed = last.detail["records"] + records, zeroed or "zeroed" in last.detail
                self.findings[place] = _of_records(code, where, low, stop, count, zeroed=zeroed)
                return
        self._last_of[code] = len(self.findings)
        self._count_of[code] += 1
        self.findings.append(_of_records(code, where, start, stop, records, zeroed=zeroed))

    def add_bad(self, bad: CorruptRange) -> None:
        """Add a corrupt range; beyond REGIONS_MAX it is merged into the last one."""
        if len(self.bad) < REGIONS_MAX:
            self.bad.append(bad)
            return
        first = self.bad[-1]
        self.bad[-1] = replace(first, length=bad.end - first.physical_offset, nonzero_end=bad.nonzero_end,
                               to_end=bad.to_end)  # fmt: skip

    def count_topics(self, topics: Sequence[bytes], counts: Sequence[int]) -> None:
        """Count the records of topics; those beyond the first TOPICS_MAX topics are not counted."""
        known = self.topics
        for topic, count in zip(topics, counts, strict=True):
            if topic in known:
                known[topic] += count
            elif len(known) < TOPICS_MAX:
                known[topic] = count

    @property
    def is_partial(self) -> bool:
        """Whether the walk stopped before the file's end: then the end says nothing."""
        return self.stop < self.file.size

    @property
    def has_data(self) -> bool:
        """Whether the file holds anything but zeros."""
        return bool(self.records or self.blanks or self.unreadable or any(
            bad.nonzero_end > bad.physical_offset for bad in self.bad))  # fmt: skip


def _of_records(code: str, where: str, start: int, stop: int, records: int, *, zeroed: bool) -> Finding:
    if not zeroed:
        return finding(code, where, start, stop - start, records=records)
    found = finding(code, where, start, stop - start, records=records, zeroed=True)
    return replace(found, message=f"{found.problem.message}: whole pages of it are zero")


def judge(context: Context, scan: ScannedFile, *, ends_log: bool) -> Iterator[Finding]:
    """The findings of one file by offset; adds the file to what the context knows of the log.

    `ends_log`: nothing but zeros follows in later files.
    """
    if scan.gone:
        return
    base = scan.file.file_from_offset
    context.covered.append((base + scan.start, base + scan.stop))
    context.report.files += 1
    context.report.records += scan.records
    for topic, count in scan.fillers.items():
        context.report.fillers[topic] = context.report.fillers.get(topic, 0) + count
    context.report.bytes += scan.stop - scan.start
    context.log_end = max(context.log_end, scan.end)
    context.last_store_timestamp = max(context.last_store_timestamp, scan.last_store_timestamp)
    for name, count in scan.topics.items():
        topic = java_utf8_decode(name)
        context.topics[topic] = context.topics.get(topic, 0) + count
    found = [*_records(scan, ends_log), *_unreadable(context, scan), *_file_end(context, scan, ends_log)]
    found = [*_regions(context, scan, ends_log, found), *found]
    context.bad += merged(
        (item.physical_offset, item.physical_offset + item.length)
        for item in found
        if item.problem.code in _UNUSABLE and item.physical_offset is not None and item.length is not None
    )
    yield from sorted(found, key=lambda item: item.physical_offset or 0)


# Ranges of these kinds hold no record that could be compared with queues and index.
_UNUSABLE = frozenset({"CL01", "CL02", "CL04", "CL05", "CL08", "CL10", "CL11", "CL12", "CL13"})


def _regions(context: Context, scan: ScannedFile, ends_log: bool, found: list[Finding]) -> Iterator[Finding]:
    """Corrupt ranges and blanks of a wrong size.

    A record that was cut and the range right after it are one torn tail if the log ends there; elsewhere the
    record is kept, with a finding of its own. A blank's magic instead of a record's and the rest of that
    record are one.
    """
    where = context.name(scan.file.path)
    blanks = {blank.end: blank for blank in scan.blanks if not blank.ends_file}
    cut = {(item.physical_offset or 0) + (item.length or 0): item
           for item in found if item.problem.code in ("CL13", "CL01")}  # fmt: skip
    unread = merged(scan.unreadable)
    for bad in scan.bad:
        if bad.to_end and scan.is_partial:
            continue
        start = bad.physical_offset
        if overlaps(unread, start, bad.end):
            if not contains(unread, start, bad.end):
                yield finding("CL12", where, start, bad.length, reason="a part of it cannot be read")
            continue
        blank = blanks.pop(start, None)
        if blank is not None:
            code, start = gap_code(blank, ends_log=ends_log), blank.physical_offset
            yield finding(code, where, start, bad.end - start, blank_size=blank.size, left=blank.left)
            continue
        before = cut.get(start) if ends_log and bad.to_end else None
        if before is not None and before.physical_offset is not None:
            found.remove(before)
            start = before.physical_offset
        place = {}
        if scan.file.entry_header and bad.reason in (Reason.SIZE, Reason.LENGTHS):
            place["record_physical_offset"] = bad.physical_offset + scan.file.entry_header
        yield finding(gap_code(bad, ends_log=ends_log), where, start, bad.end - start,
                      declared_size=bad.declared_size, reason=bad.reason.name.lower(), **place)  # fmt: skip
    for blank in blanks.values():
        code, start = gap_code(blank, ends_log=ends_log), blank.physical_offset
        yield finding(code, where, start, blank.left, blank_size=blank.size, left=blank.left)


def _records(scan: ScannedFile, ends_log: bool) -> Iterator[Finding]:
    """Findings on records; the log's last record with cut properties is a torn tail."""
    for item in scan.findings:
        if item is scan.unsound_last and ends_log and not scan.done:
            code = code_at_end(item.problem.code)
            yield finding(code, item.path, item.physical_offset, item.length, reason="properties")
        else:
            yield item


def _unreadable(context: Context, scan: ScannedFile) -> Iterator[Finding]:
    where = context.name(scan.file.path)
    for start, stop in scan.unreadable:
        yield finding("CL12", where, start, stop - start, reason=scan.error)


def _file_end(context: Context, scan: ScannedFile, ends_log: bool) -> Iterator[Finding]:
    if scan.zero_from is None or scan.is_partial:
        return
    where, start = context.name(scan.file.path), scan.zero_from
    length = scan.file.end - start
    if overlaps(merged(scan.unreadable), start, scan.file.end):
        return
    code = zeros_code(ends_log=ends_log, is_whole_file=not scan.has_data)
    if code and all(blank.end != start for blank in scan.blanks):
        yield finding(code, where, start, length)
