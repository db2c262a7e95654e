"""Pass `index`: header against entries, chains, and every key of the log found again.

An index file is sound when its links are what putKey writes; then a key is found if and only if an
entry with its hash and its record's offset exists. So no chain is followed: the keys of a window of
the log and the entries for the same range of offsets are compared as two sorted sets.

Tag entries (5.4) are expected between the first and the last one that is there, for a store may
have been written by older brokers before and after.

The newest file of a running broker, or after a crash, is checked up to what its header counts, for
entry and slot are written before it. What lies beyond is not damage: the next start indexes it again.

Source: IndexFile#putKey, IndexService#buildIndex, #load; spec 01 section 6, spec 02 sections 3.4, 15.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqtool.check.verify.context import Context, reason_of
from rmqtool.errors import UnreadableError
from rmqtool.formats.index import ENTRY, Header, Shape
from rmqtool.index.index_file import IndexFile, holds
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.dispatch import KIND_TAG, Dispatch
from rmqtool.problems import Finding, finding
from rmqtool.storage.buffers import distinct
from rmqtool.storage.layout import IndexFilePath

if TYPE_CHECKING:
    from rmqtool.check.verify.log_findings import ScannedFile
    from rmqtool.check.verify.rocksdb_index import RocksdbIndexCheck
    from rmqtool.log.frames import Frames
    from rmqtool.storage.rocksdb.database import Database
    from rmqtool.storage.source import ByteSource

_OPEN_FILES_MAX = 8
_EXAMPLES_MAX = 3
_SORTED_MAX = 1 << 22  # entries of a damaged file that are put in order in memory
_SORTED = np.dtype([("physical_offset", np.int64), ("key_hash", np.int32)])


class UsableIndex(NamedTuple):
    """One usable index file: its entries [1, stop) cover the records [start, last] of the log.

    One that `grows` is the newest of a store that was not closed: what its header says of its end may lag.
    """

    file: IndexFilePath
    stop: int
    start: int
    last: int
    begin_timestamp: int
    end_timestamp: int
    grows: bool


@dataclass(slots=True)
class Miss:
    """Keys of one kind of difference: how many, between which records, and the first few of them."""

    count: int = 0
    start: int = -1
    last: int = -1
    examples: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, offsets: np.ndarray) -> Miss:
        """Of keys whose records start at `offsets`, ascending, shape (n,)."""
        if not len(offsets):
            return cls()
        return cls(len(offsets), int(offsets[0]), int(offsets[-1]), offsets[:_EXAMPLES_MAX].tolist())

    def add(self, other: Miss) -> None:
        """Add what was found further on in the log."""
        if other.count:
            self.start = other.start if self.count == 0 else self.start
            self.last = other.last
            self.count += other.count
            self.examples += other.examples[: _EXAMPLES_MAX - len(self.examples)]


@dataclass(slots=True)
class IndexPart:
    """One window of the log against the index.

    `keys` counts without the tags that are missing: a broker before 5.4 indexes none. `lost` keys are
    within the index's range and not there; `behind` and `uncovered` lie outside of it, and the next start
    does or does not index them. Tag entries that are missing stand before, between and after those that
    are there. `extra` are the physical offsets of entries, ascending, by
    the number of their file; `doubled` are entries.
    """

    keys: int
    lost: Miss = field(default_factory=Miss)
    behind: Miss = field(default_factory=Miss)
    uncovered: Miss = field(default_factory=Miss)
    tags_found: bool = False
    tags_before: Miss = field(default_factory=Miss)
    tags_between: Miss = field(default_factory=Miss)
    tags_after: Miss = field(default_factory=Miss)
    extra: dict[int, np.ndarray] = field(default_factory=dict)
    doubled: Miss = field(default_factory=Miss)


def check_count(name: str, header: Header, entries: int) -> Iterator[Finding]:
    """A finding if the count in a header exceeds the `entries` that a file has, or is negative."""
    if header.index_count > max(entries, 1) or header.index_count < 0:
        yield finding("IX01", name, 36, 4, index_count=header.index_count, entries=entries)


def check_kept(context: Context, name: str, header: Header) -> Iterator[Finding]:
    """A finding if the next start deletes the file: its end is newer than the checkpoint, after a crash."""
    checkpoint = context.checkpoint
    newest_full = checkpoint.index_msg_timestamp if checkpoint is not None else 0
    if context.after_crash and header.end_timestamp > newest_full:
        yield finding("IX09", name, None, None, end_timestamp=header.end_timestamp,
                      checkpoint_index_timestamp=newest_full)  # fmt: skip


class IndexCheck:
    """`prepare` checks the files themselves, `part` a window of the log (in threads), `finish` the sum."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.files: list[UsableIndex] = []
        self._lock = Lock()
        self._open: dict[int, IndexFile] = {}
        self._sums: dict[str, Miss] = {code: Miss() for code in ("IX03", "IX08", "IX10", "IX05")}
        self._extra: dict[int, Miss] = {}  # by number of the file
        self._sorted: dict[int, np.ndarray] = {}
        self._following: dict[tuple[int, int], int] = {}  # first entry, by file and physical offset
        self._tags_after: Miss | None = None
        self.unusable = False
        self.failed: dict[str, OSError] = {}
        # A running broker indexes a record just after its unit: its index may lag behind its queues.
        # Where queues have logs of their own, the last records of each may not be indexed.
        lags = (context.live and context.layout.index_files) or context.layout.queue_logs is not None
        self._indexed_from = 0 if lags else context.dispatch_from
        self.rocksdb = self._in_rocksdb()

    @property
    def start(self) -> int:
        """Offset of the first record that has an entry; -1 without entries."""
        return min((file.start for file in self.files), default=-1)

    @property
    def last(self) -> int:
        """Offset of the last record that has an entry; -1 without entries."""
        return max((file.last for file in self.files), default=-1)

    def _in_rocksdb(self) -> RocksdbIndexCheck | None:
        """The check of an index in RocksDB, whether there are index files or not."""
        database = self._database()
        if database is None:
            return None
        from rmqtool.check.verify.rocksdb_index import RocksdbIndexCheck

        return RocksdbIndexCheck(self.context, database)

    def _database(self) -> Database | None:
        """The database with the index, if it can be read."""
        layout = self.context.layout
        return layout.rocksdb_messages if layout.has_index_in_rocksdb else None

    # The files themselves

    def prepare(self) -> Iterator[Finding]:
        """Findings on every index file as such; an index in RocksDB is read."""
        context = self.context
        if self.rocksdb is not None:
            self.rocksdb.prepare()
        for number, file in enumerate(context.layout.index_files, 1):
            name = context.name(file.path)
            newest = number == len(context.layout.index_files)
            grows = newest and (context.live or context.after_crash)
            try:
                source = context.open(file.path)
                try:
                    if file.size != context.layout.index_file_size:
                        self.unusable = True  # IX06 reports it
                        continue
                    yield from self._file(file, name, self._reader(source), grows=grows)
                    for start, stop in source.unreadable:
                        yield finding("IX11", name, start, stop - start)
                finally:
                    source.close()
            except OSError as error:
                self.unusable = True
                if isinstance(error, FileNotFoundError):
                    continue
                yield finding("IX11", name, 0, file.size, reason=reason_of(error))

    def _reader(self, source: ByteSource) -> IndexFile:
        layout = self.context.layout
        if source.size < layout.index_file_size:
            raise UnreadableError("the file became shorter while it was read")
        return IndexFile(source, Shape(layout.index_slots, layout.index_entries))

    def _file(self, file: IndexFilePath, name: str, reader: IndexFile, *, grows: bool) -> Iterator[Finding]:
        """Findings on one file. One that `grows` is checked up to what its header said at first.

        Its slots may name entries beyond that, and the fields for its end are written key by key.
        """
        header, count = reader.header, reader.content_count()
        if grows:
            count = min(reader.used, count)
        self.context.report.index_entries += count - 1
        wrong_count = list(check_count(name, header, reader.entry_count))
        yield from wrong_count
        if not wrong_count and max(header.index_count, 1) != count:
            yield finding("IX01", name, 36, 4, index_count=header.index_count, entries_used=count)
        yield from check_kept(self.context, name, header)
        if count <= 1:
            return
        check = reader.check(count, grows=grows)
        if not check.ascending:  # a broker writes in the order of the log
            if count > _SORTED_MAX:
                self.unusable = True
                yield finding("IX01", name, None, None, reason="physical offsets of entries fall")
                return
            self._sorted[len(self.files)] = np.sort(_plain(reader.entries(1, count)), order="physical_offset")
        times = (header.begin_timestamp, header.end_timestamp)
        self.files.append(UsableIndex(file, count, check.low, check.high, *times, grows))
        if header.index_count == count:
            fields = [("begin_physical_offset", 16, reader.physical_offset(1))]
            if not grows:
                fields += [
                    ("end_physical_offset", 24, reader.physical_offset(count - 1)),
                    ("hash_slot_count", 32, check.slots_in_use),
                ]
            for field_name, offset, value in fields:
                if getattr(header, field_name) != value:
                    yield finding("IX01", name, offset, 8 if offset < 32 else 4, field=field_name,
                                  header=getattr(header, field_name), content=value)  # fmt: skip
        if check.wrong_entries or check.wrong_slots:
            yield finding("IX02", name, None, None, entries=check.wrong_entries, slots=check.wrong_slots,
                          first_entries=check.first_wrong_entries,
                          first_slots=check.first_wrong_slots)  # fmt: skip

    # A window of the log

    def part(self, frames: Frames, dispatch: Dispatch) -> IndexPart:
        """Compare the keys of one window with the entries for its range of the log."""
        rows = frames.rows
        start = int(rows["physical_offset"][0])
        stop = int(rows["physical_offset"][-1]) + int(rows["size"][-1])
        keys = dispatch.keys
        is_tag = keys["kind"] == KIND_TAG
        try:
            found_in = {
                number: self._entries_of(number, start, stop, len(keys))
                for number, file in enumerate(self.files)
                if file.last >= start and file.start < stop
            }
        except OSError:
            return IndexPart(int(np.count_nonzero(~is_tag)))  # gone, or reported by `finish`
        usual = _usual(rows, keys, is_tag, found_in.values())
        if usual is not None:
            return usual
        offsets = rows["physical_offset"][keys["row"]] - start
        expected = (offsets.astype(np.uint64) << np.uint64(32)) | keys["key_hash"].astype(np.uint64)
        by_file = {number: _codes(entries, start) for number, entries in found_in.items()}
        entries = np.concatenate([np.zeros(0, np.uint64), *by_file.values()])
        # a broker writes entries in the order of the log, so there is mostly nothing to sort
        if np.array_equal(expected, entries) or np.array_equal(np.sort(expected), np.sort(entries)):
            return IndexPart(len(expected), tags_found=bool(is_tag.any()))
        unique, counts = np.unique(entries, return_counts=True)
        want, want_counts = np.unique(expected, return_counts=True)
        found = np.isin(expected, unique)
        known = np.isin(unique, want)
        wanted = want_counts[np.searchsorted(want, unique[known])]
        missing = _physical(np.sort(expected[~is_tag & ~found]), start)
        tags, tags_missing = (_physical(np.sort(expected[is_tag & mask]), start) for mask in (found, ~found))
        first, last = (int(tags[0]), int(tags[-1])) if len(tags) else (stop, stop)
        # The keys of one record may be in two files, so the records at both ends belong to neither side.
        low, high = self._indexed(start)
        inside = (missing > low) & (missing < high)
        behind = ~inside & (missing >= high) & (missing >= self._indexed_from)
        return IndexPart(
            len(expected) - len(tags_missing),
            lost=Miss.of(missing[inside]),
            behind=Miss.of(missing[behind]),
            uncovered=Miss.of(missing[~inside & ~behind]),
            tags_found=bool(len(tags)),
            tags_before=Miss.of(tags_missing[tags_missing < first]),
            tags_between=Miss.of(tags_missing[(tags_missing >= first) & (tags_missing <= last)]),
            tags_after=Miss.of(tags_missing[tags_missing > last]),
            extra={
                file: _physical(distinct(codes[~np.isin(codes, want)]), start)
                for file, codes in by_file.items()
            },
            doubled=Miss.of(_physical(unique[known][counts[known] > wanted], start)),
        )

    def _indexed(self, physical_offset: int) -> tuple[int, int]:
        """The first and the last record with an entry; if each queue has a log, in that of a record.

        (-1, -1) if no record has an entry.
        """
        logs = self.context.layout.queue_logs
        if logs is None:
            return self.start, self.last
        queue = logs.queue_at(physical_offset)
        own = (file for file in self.files if logs.queue_at(file.start) == queue)
        return next(((file.start, file.last) for file in own), (-1, -1))

    def _entries_of(self, number: int, start: int, stop: int, expected: int = 0) -> np.ndarray:
        """The entries of one file for records [start, stop), of which there are probably `expected`."""
        if number in self._sorted:
            entries = self._sorted[number]
            low, high = np.searchsorted(entries["physical_offset"], (start, stop))
            return entries[low:high]
        with self._lock:  # another thread may close the file
            reader, last = self._reader_of(number), self.files[number].stop
            # the window before mostly ends where this one starts
            first = self._following.pop((number, start), 0) or reader.first_from(start, last)
            entries = reader.entries(first, min(first + expected + 1, last))
            offsets = entries["physical_offset"]
            is_whole = first + len(entries) == last or (len(entries) > 0 and int(offsets[-1]) >= stop)
            if is_whole:
                entries = entries[: np.searchsorted(offsets, stop)]
            else:
                entries = reader.entries(first, reader.first_from(stop, last))
            self._following[number, stop] = first + len(entries)
            return entries

    def _reader_of(self, number: int) -> IndexFile:
        found = self._open.get(number)
        if found is None:
            if len(self._open) >= _OPEN_FILES_MAX:
                self._open.pop(next(iter(self._open))).source.close()
            path = self.files[number].file.path
            try:
                found = self._open[number] = self._reader(self.context.open(path))
            except FileNotFoundError:
                raise
            except OSError as error:
                self.failed[self.context.name(path)] = error
                raise
        return found

    def take(self, scan: ScannedFile) -> None:
        """Add the windows of one file; called in the order of the log."""
        sums, context = self._sums, self.context
        for part in scan.index_parts:
            context.report.keys += part.keys
            sums["IX03"].add(part.lost)
            sums["IX08"].add(part.behind)
            sums["IX10"].add(part.uncovered)
            sums["IX05"].add(part.doubled)
            for number, offsets in part.extra.items():
                extra = [offset for offset in offsets.tolist() if not context.in_bad(offset, offset + 1)]
                self._add_extra(number, extra)
            if part.tags_found:
                if self._tags_after is not None:
                    self._add_lost_tags(self._tags_after)
                    self._add_lost_tags(part.tags_before)
                self._add_lost_tags(part.tags_between)
                self._tags_after = part.tags_after
            elif self._tags_after is not None:
                self._tags_after.add(part.tags_before)
                self._tags_after.add(part.tags_after)
        scan.index_parts.clear()
        if self.rocksdb is not None:
            self.rocksdb.take(scan)

    def _add_lost_tags(self, miss: Miss) -> None:
        """Tags without an entry between tags with one: the broker indexed tags, so these are keys too."""
        self.context.report.keys += miss.count
        self._sums["IX03"].add(miss)

    def _add_extra(self, number: int, offsets: list[int]) -> None:
        self._extra.setdefault(number, Miss()).add(Miss.of(np.array(offsets, np.int64)))

    # The whole log

    def finish(self) -> Iterator[Finding]:
        """Findings on keys and entries, and on records that no index file covers."""
        context = self.context
        if 0 <= context.log_end <= self.last and not (context.bounds.bounded or context.live):
            self._take_after_log_end()
        yield from self._header_times()
        for name, error in sorted(self.failed.items()):
            yield finding("IX11", name, reason=reason_of(error))
        for code, miss in self._sums.items():
            if not self._is_explained(code, miss):
                yield from _findings(code, self._file_of(miss.start), miss)
        for number, miss in sorted(self._extra.items()):
            yield from _findings("IX04", context.name(self.files[number].file.path), miss)
        if self.rocksdb is not None:
            yield from self.rocksdb.finish()

    def _header_times(self) -> Iterator[Finding]:
        """The times in a header, by which a query chooses files, against the records at both ends."""
        for file in self.files if self.context.layout.queue_logs is None else ():
            ends = [("begin_timestamp", 0, file.begin_timestamp, file.start)]
            if not file.grows:
                ends.append(("end_timestamp", 8, file.end_timestamp, file.last))
            for field_name, offset, header, physical in ends:
                found = self.context.store.find(physical)
                if found is None or found.status or self.context.live:
                    continue
                stored = found.message.store_timestamp
                if header != stored:
                    yield finding("IX01", self.context.name(file.file.path), offset, 8, field=field_name,
                                  header=header, content=stored)  # fmt: skip

    def _is_explained(self, code: str, miss: Miss) -> bool:
        """Whether something else explains it.

        Keys may be in a file that cannot be used or in RocksDB, records of an older log need none, and an
        index that is off holds none.
        """
        if code in ("IX08", "IX10") and self._index_off():
            return True
        if code == "IX10" and self.context.layout.may_index_in_rocksdb:
            return True
        zombies = self.context.zombies_from
        if code in ("IX03", "IX08", "IX10") and zombies is not None and miss.start >= zombies:
            return True
        return code in ("IX03", "IX10") and (self.unusable or bool(self.failed))

    def _take_after_log_end(self) -> None:
        """Report entries for offsets after the log's end: no record is there."""
        for number, file in enumerate(self.files):
            if file.last >= self.context.log_end:
                entries = self._entries_of(number, self.context.log_end, file.last + 1)
                self._add_extra(number, entries["physical_offset"].tolist())

    def _index_off(self) -> bool:
        """Whether the broker is configured without an index, or single files were given."""
        layout = self.context.layout
        conf = layout.broker_conf
        off = conf is not None and not conf.flag("messageIndexEnable", default=True)
        is_unread = layout.queue_logs is not None and not layout.index_files
        return off or is_unread or not layout.is_whole

    def _file_of(self, offset: int) -> str:
        for file in self.files:
            if file.start <= offset <= file.last:
                return self.context.name(file.file.path)
        return "index"

    def close(self) -> None:
        """Close the index files."""
        while self._open:
            self._open.popitem()[1].source.close()


def _findings(code: str, name: str, miss: Miss) -> Iterator[Finding]:
    if miss.count:
        detail = {"keys": miss.count, "first_record": miss.start, "last_record": miss.last}
        yield finding(code, name, None, None, **detail, records=miss.examples)


def _usual(
    rows: np.ndarray, keys: np.ndarray, is_tag: np.ndarray, found: Iterable[np.ndarray]
) -> IndexPart | None:
    """The result for entries that are those of the keys one by one, with or without tags; None for others."""
    parts = list(found)
    if any(part.dtype != ENTRY.dtype for part in parts):  # entries that were put in order
        return None
    # np.concatenate would change the byte order
    data = b"".join(part.tobytes() for part in parts) if len(parts) != 1 else parts[0].data
    entries = np.frombuffer(data, ENTRY.dtype) if len(data) else np.zeros(0, ENTRY.dtype)
    if holds(entries, rows, keys):
        return IndexPart(len(keys), tags_found=bool(is_tag.any()))
    if not is_tag.any() or not holds(entries, rows, keys, KIND_TAG):
        return None
    tags = rows["physical_offset"][keys["row"][is_tag]]
    return IndexPart(len(keys) - len(tags), tags_before=Miss.of(tags))


def _codes(entries: np.ndarray, start: int) -> np.ndarray:
    """(physical offset - start) << 32 | key hash of each entry with a possible hash."""
    physical, hashes = entries["physical_offset"].astype(np.int64), entries["key_hash"].astype(np.int64)
    sound = hashes >= 0
    high = (physical[sound] - start).astype(np.uint64) << np.uint64(32)
    codes: np.ndarray = high | hashes[sound].astype(np.uint64)
    return codes


def _physical(codes: np.ndarray, start: int) -> np.ndarray:
    return (codes >> np.uint64(32)).astype(np.int64) + start


def _plain(entries: np.ndarray) -> np.ndarray:
    result = np.empty(len(entries), _SORTED)
    for name in _SORTED.names or ():
        result[name] = entries[name]
    return result
