"""Pass `index`, RocksDB: the entries of an index in rocksdbstore/ against the records of the log.

    a record whose entry is missing      RD07 within the index, IX08 and IX10 outside of it
    an entry that no record explains     RD08
    the noted end after that of the log  RD09

The database has the order of hours and texts, the log that of offsets, and neither fits into memory. So the
log is divided into ranges of offsets, and for each the fingerprints of all entries are counted and added up,
once for the records and once for the database. Only ranges that differ are read again, and compared entry by
entry.

Source: IndexRocksDBStore#buildIndex, #isMappedFileMatchedRecover (5.4.0); spec 06 section 5.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqtool.check.verify.context import Context
from rmqtool.errors import FormatError, UnreadableError
from rmqtool.index.rocksdb_entries import ENTRY, of_database, of_records
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.frames import Frames, walk
from rmqtool.problems import Finding, finding
from rmqtool.queue.rocksdb_units import crc32c
from rmqtool.storage.buffers import Array, distinct
from rmqtool.storage.ranges import inside, runs
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.rocksdb.messages import FAMILY, LAST_OFFSET

if TYPE_CHECKING:
    from rmqtool.check.verify.log_findings import ScannedFile

_RANGE_BITS = 20  # a range of the log has this many bits of offset, or more in a large log
_RANGES_MAX = 1 << 18
_READ_AGAIN_MAX = 1 << 22  # entries of ranges that differ
_WINDOW = 1 << 20
_EXAMPLES_MAX = 3
_MARK_SIZE = 8


class RangeSums(NamedTuple):
    """Entries of the ranges from `start` on: how many, the sum of fingerprints, the first and last record."""

    start: int
    counts: Array
    sums: Array
    firsts: Array
    lasts: Array


@dataclass
class _Sums:
    """Entries by range of the log; `firsts` and `lasts` are physical offsets, -1 without an entry."""

    counts: Array
    sums: Array
    firsts: Array
    lasts: Array

    @classmethod
    def of(cls, ranges: int) -> _Sums:
        """Of no entries."""
        return cls(
            np.zeros(ranges, np.int64), np.zeros(ranges, np.uint64), np.full(ranges, -1, np.int64),
            np.full(ranges, -1, np.int64),
        )  # fmt: skip

    def add(self, part: RangeSums) -> None:
        """Add records that follow."""
        place = slice(part.start, part.start + len(part.counts))
        self.counts[place] += part.counts
        self.sums[place] += part.sums
        is_new = self.firsts[place] < 0
        self.firsts[place] = np.where(is_new, part.firsts, self.firsts[place])
        self.lasts[place] = np.maximum(self.lasts[place], part.lasts)


@dataclass
class _Lack:
    """Entries of one kind that are missing, or too many, in the order of the log."""

    count: int = 0
    start: int = -1
    last: int = -1
    examples: list[int] = field(default_factory=list)

    def add(self, offsets: Array, count: int | None = None) -> None:
        """Add entries for these records; `count` of them if `offsets` are only the first and the last."""
        if not len(offsets):
            return
        low, high = int(offsets.min()), int(offsets.max())
        self.start = low if self.count == 0 else min(self.start, low)
        self.last = max(self.last, high)
        self.count += len(offsets) if count is None else count
        known = {*self.examples, *distinct(offsets)[:_EXAMPLES_MAX].tolist()}
        self.examples = sorted(known)[:_EXAMPLES_MAX]


class RocksdbIndexCheck:
    """The index in RocksDB of one verification."""

    def __init__(self, context: Context, database: Database) -> None:
        self.context = context
        self.database = database
        files = context.layout.commit_log
        self._base = files[0].file_from_offset if files else 0
        self._end = files[-1].end if files else 0
        self._bits = max(_RANGE_BITS, ((self._end - self._base) // _RANGES_MAX).bit_length())
        ranges = ((self._end - self._base) >> self._bits) + 1
        self._records, self._entries = _Sums.of(ranges), _Sums.of(ranges)
        self._first = -1
        self._noted: bytes | None = None
        self._after = _Lack()
        self._error: FormatError | UnreadableError | None = None
        self._is_used = True

    # the database

    def prepare(self) -> None:
        """Read the database: before the log, which a running broker writes first."""
        self.database.crc32c = crc32c
        conf = self.context.layout.broker_conf
        try:
            self._noted = self.database.get(FAMILY, LAST_OFFSET)
            for entries in of_database(self.database):
                self._take(entries)
        except (FormatError, UnreadableError) as error:
            self._error = error
        finally:
            self.database.close()
        is_set = conf is not None and conf.flag("indexRocksDBEnable")
        self._is_used = is_set or self._noted is not None or self._first >= 0 or self._after.count > 0

    def _take(self, entries: Array) -> None:
        self.context.report.index_entries += len(entries)
        self.context.report.rocksdb_index_entries += len(entries)
        offsets = entries["physical_offset"]
        self._after.add(offsets[(offsets < 0) | (offsets >= self._end)])
        inner = entries[(offsets >= self._base) & (offsets < self._end)]
        if not len(inner):
            return
        offsets = inner["physical_offset"]
        low = int(offsets.min())
        self._first = low if self._first < 0 else min(self._first, low)
        ranges = self._ranges(offsets)
        self._entries.counts += np.bincount(ranges, minlength=len(self._entries.counts))
        np.add.at(self._entries.sums, ranges, inner["fingerprint"])

    def _ranges(self, offsets: Array) -> Array:
        return (offsets - self._base) >> self._bits

    # the log, in threads

    def part(self, frames: Frames) -> RangeSums:
        """The entries that the records of one window should have."""
        entries = of_records(frames)
        if not len(entries):
            none = np.zeros(0, np.int64)
            return RangeSums(0, none, none.astype(np.uint64), none, none)
        offsets = entries["physical_offset"]
        ranges = self._ranges(offsets)
        start = int(ranges[0])
        counts = np.bincount(ranges - start)
        cuts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        used = counts > 0
        sums = np.zeros(len(counts), np.uint64)
        firsts, lasts = np.full(len(counts), -1, np.int64), np.full(len(counts), -1, np.int64)
        sums[used] = np.add.reduceat(entries["fingerprint"], cuts[used])
        firsts[used] = offsets[cuts[used]]
        lasts[used] = offsets[cuts[used] + counts[used] - 1]
        return RangeSums(start, counts, sums, firsts, lasts)

    @property
    def expected(self) -> tuple[int, int]:
        """Of the entries that the records should have: how many, and the sum of their fingerprints."""
        return int(self._records.counts.sum()), int(self._records.sums.sum())

    def take(self, scan: ScannedFile) -> None:
        """Add the windows of one file."""
        for part in scan.rocksdb_index:
            self._records.add(part)
        scan.rocksdb_index.clear()

    # both

    def finish(self) -> Iterator[Finding]:
        """The findings, when the log was walked."""
        if self._error is not None:
            yield from self._unread(self._error)
            return
        if not self._is_used:
            return
        yield from self._end_of_index()
        compared = _Compared(self)
        compared.run()
        if self._after.count and not (self.context.bounds.bounded or self.context.live):
            compared.extra.add(np.array([self._after.start, self._after.last]), self._after.count)
        yield from compared.findings()

    def _unread(self, error: FormatError | UnreadableError) -> Iterator[Finding]:
        if isinstance(error, UnreadableError) and error.is_gone and self.context.live:
            self.context.report.vanished.add(self.name)
        elif "queues" not in self.context.report.passes:  # it reads all databases
            path = self.database.folder if error.path is None else Path(error.path)
            yield finding("RD10", self.context.name(path), error.physical_offset, None, reason=error.message)

    @property
    def name(self) -> str:
        """The database as findings name it."""
        return self.context.name(self.database.folder)

    @property
    def noted(self) -> int:
        """The offset that the database notes as the last one; 0 without one, as a broker takes it."""
        is_whole = self._noted is not None and len(self._noted) == _MARK_SIZE
        return int.from_bytes(self._noted or b"", "big", signed=True) if is_whole else 0

    def _end_of_index(self) -> Iterator[Finding]:
        """A broker indexes no record before the noted end."""
        context = self.context
        is_wrong = self._noted is not None and len(self._noted) != _MARK_SIZE
        is_after = 0 <= context.log_end <= self.noted and self.noted > 0
        if is_wrong or (is_after and not context.live):
            noted = None if is_wrong else self.noted
            yield finding("RD09", self.name, None, None, noted=noted, log_end=context.log_end)


class _Compared:
    """The ranges that differ, entry by entry."""

    def __init__(self, check: RocksdbIndexCheck) -> None:
        self.check = check
        self.context = check.context
        self.lost, self.behind, self.uncovered, self.extra = _Lack(), _Lack(), _Lack(), _Lack()
        self.not_read = 0
        """Ranges that differ and were not read again."""

    def run(self) -> None:
        records, entries = self.check._records, self.check._entries
        differ = (records.counts != entries.counts) | (records.sums != entries.sums)
        if self.context.bounds.bounded:
            differ &= records.counts > 0
        outside = (records.lasts < self.check._first) | (records.firsts > self.check.noted)
        is_empty = differ & (entries.counts == 0) & ((self.check._first < 0) | outside)
        for number in np.flatnonzero(is_empty).tolist():  # whole ranges outside of the index
            ends = np.array([records.firsts[number], records.lasts[number]])
            for kind, mask in self._kinds(ends):
                if mask.all():
                    kind.add(ends, int(records.counts[number]))
                    break
            else:
                is_empty[number] = False
        wanted = np.flatnonzero(differ & ~is_empty)
        sizes = np.cumsum(np.maximum(records.counts[wanted], entries.counts[wanted]))
        chosen = wanted[: max(int(np.searchsorted(sizes, _READ_AGAIN_MAX, "right")), 1)]
        self.not_read = len(wanted) - len(chosen)
        if len(chosen):
            self._read_again(chosen)

    def _kinds(self, offsets: Array) -> list[tuple[_Lack, Array]]:
        """What entries are called that records at these offsets lack."""
        check, context = self.check, self.context
        if check._first < 0:
            inner = np.zeros(len(offsets), bool)
            after = np.ones(len(offsets), bool)
        else:
            inner = (offsets >= check._first) & (offsets <= check.noted)
            after = offsets > check.noted
        again = context.live or context.after_crash
        behind = after if again else after & (offsets >= context.dispatch_from)
        return [(self.lost, inner), (self.behind, behind), (self.uncovered, ~inner & ~behind)]

    def _read_again(self, chosen: Array) -> None:
        check = self.check
        wanted = np.zeros(len(check._records.counts), bool)
        wanted[chosen] = True
        try:
            entries = self._of_database(wanted)
        except (FormatError, UnreadableError) as error:
            check._error = error
            return
        finally:
            check.database.close()
        records = np.concatenate([np.zeros(0, ENTRY), *self._of_log(chosen)])
        missing = records[~np.isin(records["key"], entries["key"])]["physical_offset"]
        for kind, mask in self._kinds(missing):
            kind.add(missing[mask])
        extra = np.sort(entries[~np.isin(entries["fingerprint"], records["fingerprint"])]["physical_offset"])
        extra = extra[~inside(self.context.bad, extra)]
        if self.context.bounds.bounded:
            extra = extra[inside(self.context.covered, extra)]
        if self.context.live:
            extra = extra[extra < self.context.end_offset]
        self.extra.add(extra)

    def _of_database(self, wanted: Array) -> Array:
        found = [np.zeros(0, ENTRY)]
        for entries in of_database(self.check.database):
            offsets = entries["physical_offset"]
            inner = entries[(offsets >= self.check._base) & (offsets < self.check._end)]
            found.append(inner[wanted[self.check._ranges(inner["physical_offset"])]])
        return np.concatenate(found)

    def _of_log(self, chosen: Array) -> Iterator[Array]:
        """The entries of the records in some ranges of the log, which are ascending."""
        records, bits = self.check._records, self.check._bits
        used = chosen[records.counts[chosen] > 0]
        for low, high in runs(used):
            start = int(records.firsts[used[low]])
            stop = min(self.check._base + ((int(used[high - 1]) + 1) << bits), self.check._end)
            for frames in self._frames(start, stop):
                entries = of_records(frames)
                yield entries[(entries["physical_offset"] >= start) & (entries["physical_offset"] < stop)]

    def _frames(self, start: int, stop: int) -> Iterator[Frames]:
        """The records in [start, stop), physical offsets; one begins at `start`."""
        for file in self.context.layout.commit_log:
            if file.end <= start or file.file_from_offset >= stop:
                continue
            base = file.file_from_offset
            try:
                source = self.context.open(file.path)
            except OSError:
                continue  # the walk has reported it
            try:
                events = walk(
                    source, file_from_offset=base, start=max(start - base, 0),
                    stop=min(stop - base, source.size), crc=False, window=_WINDOW,
                    entry_header=file.entry_header,
                )  # fmt: skip
                yield from (event for event in events if isinstance(event, Frames))
            finally:
                source.close()

    def findings(self) -> Iterator[Finding]:
        """All of them."""
        zombies = self.context.zombies_from
        has_files = bool(self.context.layout.index_files)
        for code, lack in (
            ("RD07", self.lost), ("IX08", self.behind), ("IX10", self.uncovered), ("RD08", self.extra)
        ):  # fmt: skip
            is_explained = zombies is not None and lack.start >= zombies and lack is not self.extra
            if not lack.count or is_explained or (lack is self.uncovered and has_files):
                continue
            detail: dict[str, object] = {
                "keys": lack.count, "first_record": lack.start, "last_record": lack.last,
                "records": lack.examples,
            }  # fmt: skip
            if self.not_read and code in ("RD07", "RD08"):
                detail["ranges_not_compared"] = self.not_read
            yield finding(code, self.check.name, None, None, **detail)
