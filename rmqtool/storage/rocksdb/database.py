"""A RocksDB database in a folder: its tables and write-ahead logs, as the MANIFEST names them, merged.

`CURRENT` names the MANIFEST. That lists the tables of every column family, and the number of the first
write-ahead log whose changes are not in them. Of the entries of a key the one with the highest sequence
number counts; a range delete hides entries with lower numbers.

A running broker may delete tables that it has merged: then the MANIFEST is read again.

Source: VersionSet#Recover, DBImpl#RecoverLogFiles; spec 06 section 12.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from rmqtool.errors import FormatError, InputError, RmqtoolError, UnreadableError
from rmqtool.formats import rocksdb as format_
from rmqtool.formats.rocksdb import DELETE, PUT, RANGE_DELETE, SINGLE_DELETE, TableFile
from rmqtool.lazy_pattern import pattern
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import OpenFiles, reading
from rmqtool.storage.rocksdb.table import Entry, RangeDelete, Table

CURRENT = "CURRENT"
_COMPARATOR = "leveldb.BytewiseComparator"
_MANIFEST = pattern(r"MANIFEST-(\d{6,20})\n")
_LOG = pattern(r"(\d{6,20})\.log")
_TABLE = pattern(r"(\d{6,20})\.sst")
_CURRENT_LIMIT = 64
_TRIES = 3
_KEPT_BYTES = 8 << 20  # of decoded blocks
_ENTRY_BYTES = 200  # what an entry takes in memory besides key and value
_KINDS = (DELETE, PUT, SINGLE_DELETE)


class Damage(NamedTuple):
    """What cannot be read of a database."""

    path: Path
    offset: int | None
    reason: str


class _Family:
    """A column family while the MANIFEST is read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log_number = 0
        self.files: dict[int, tuple[int, TableFile]] = {}  # by number: (level, table)


class Family:
    """A column family: its tables, and what only write-ahead logs hold."""

    def __init__(self, name: str, tables: tuple[TableFile, ...], log_number: int) -> None:
        self.name = name
        self.files = tables
        self.log_number = log_number
        self.changes: list[Entry] = []
        """Of the write-ahead logs: by key, the newest first."""
        self.range_deletes: list[RangeDelete] = []


class Database:
    """A database. It is read when it is first used; `reload` reads it again.

    May be used by several threads. Every method that reads raises FormatError, with path and offset, for
    damage and for what is not known, and UnreadableError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damage: list[Damage] = []
        """Damage of write-ahead logs: the changes after it are not read."""
        self.lacks_log = False
        """Whether the newest write-ahead log is gone: RocksDB creates each before the MANIFEST names it."""
        self.unnamed: list[str] = []
        """Tables that no record of the MANIFEST names: RocksDB deletes them when it opens the database."""
        self.lacks_edits = False
        """Whether all write-ahead logs are newer than the MANIFEST: what older ones held is in tables."""
        self.crc32c: Callable[[bytes], int] = format_.crc32c
        """Computes checksums of blocks; a faster one may replace it."""
        self._lock = RLock()
        self._files = OpenFiles()
        self._tables: dict[int, Table] = {}
        self._sizes: dict[int, int] = {}
        self._kept: OrderedDict[tuple[int, int], list[Entry]] = OrderedDict()
        self._kept_bytes = 0
        self._covers: dict[str, _Cover] = {}

    def __reduce__(self) -> tuple[type[Database], tuple[Path]]:
        """Another process reads the database itself."""
        return type(self), (self.folder,)

    def close(self) -> None:
        """Close its files. They are opened again when they are needed."""
        with self._lock:
            self._files.close()

    def reload(self) -> None:
        """Forget what was read: the files may have changed."""
        with self._lock:
            self.__dict__.pop("families", None)
            self._files.close()
            self._tables, self._covers, self.damage = {}, {}, []
            self._kept, self._kept_bytes = OrderedDict(), 0

    def lost_edits(self, *, is_clean: bool) -> bool:
        """Whether RocksDB opens it without tables that it has held, and deletes them.

        A crash, too, may leave tables that the MANIFEST does not name yet; what they hold is still in a
        write-ahead log, or is dispatched again. A stop that `is_clean` deletes them (DBImpl::CloseHelper).
        """
        _ = self.families
        return bool(self.unnamed) and (is_clean or self.lacks_edits)

    def opening_error(self) -> InputError | None:
        """Why RocksDB cannot open the database, which reads the head of every table; None if it can."""
        try:
            for family in self.families.values():
                for file in family.files:
                    self.table(file)
        except InputError as error:
            return error
        return None

    # the MANIFEST

    @cached_property
    def families(self) -> dict[str, Family]:
        """The column families by name."""
        with self._lock:
            for attempt in range(_TRIES):
                found, edits = self._families()
                try:
                    self._read_logs(found, edits.next_file)
                    self._list_tables(found, edits.named)
                except UnreadableError as error:
                    if not error.is_gone or attempt == _TRIES - 1:
                        raise
                else:
                    return {family.name: family for family in found.values()}
        raise AssertionError("the last attempt returns or raises")

    def manifest(self) -> Path:
        """The file that CURRENT names."""
        path = self.folder / CURRENT
        try:
            with reading(path) as file:
                name = file.read(0, _CURRENT_LIMIT).decode("ascii", "replace")
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error
        if _MANIFEST.fullmatch(name) is None:
            is_cut = _MANIFEST.fullmatch(f"{name}\n") is not None
            reason = (
                "the line that names the MANIFEST has no end" if is_cut else "it does not name a MANIFEST"
            )
            raise FormatError(reason, path=path, physical_offset=0)
        return self.folder / name.strip()

    def _families(self) -> tuple[dict[int, Family], _Edits]:
        path = self.manifest()
        found = {0: _Family("default")}
        edits, offset = _Edits(found), 0
        for offset, record in self._records(path, None):
            try:
                edits.take(format_.version_edit(record))
            except FormatError as error:
                error.path, error.physical_offset = path, offset
                raise
        if edits.lacking:
            what = sorted(edits.lacking)[0]
            raise FormatError(f"the MANIFEST does not say the {what}", path=path, physical_offset=offset)
        return {
            number: Family(family.name, tuple(file for _, file in family.files.values()), family.log_number)
            for number, family in found.items()
        }, edits

    def _records(self, path: Path, number: int | None) -> Iterator[tuple[int, bytes]]:
        """The records of a log file. Raises FormatError, UnreadableError."""
        try:
            with reading(path) as file:
                yield from format_.log_records(file.read, file.size, number, file.data_from)
        except FormatError as error:
            error.path = path
            raise
        except OSError as error:
            if isinstance(error, RmqtoolError):
                raise
            raise UnreadableError(f"cannot read: {error.strerror}", path=path) from error

    def _list_tables(self, families: dict[int, Family], named: set[int]) -> None:
        """Those of the MANIFEST must exist. Raises UnreadableError."""
        sizes = {name: status.st_size for name, status in Listing().entries(self.folder)}
        tables = (match for match in map(_TABLE.fullmatch, sorted(sizes)) if match is not None)
        self.unnamed = [match[0] for match in tables if int(match[1]) not in named]
        for family in families.values():
            for file in family.files:
                path = self._path(file.number)
                self._sizes[file.number] = sizes.get(path.name, -1)
                if path.name not in sizes:
                    raise UnreadableError(
                        "cannot read: the MANIFEST names this table, which does not exist", path=path
                    ) from FileNotFoundError()

    # write-ahead logs

    def _read_logs(self, families: dict[int, Family], next_file: int) -> None:
        """Add the changes of the logs, up to the first damage, as a broker does (point-in-time recovery)."""
        self.damage = []
        first = min(family.log_number for family in families.values())
        names = (_LOG.fullmatch(name) for name, _ in Listing().entries(self.folder))
        numbers = sorted(int(match[1]) for match in names if match is not None)
        self.lacks_log = not numbers or numbers[-1] < max(each.log_number for each in families.values())
        self.lacks_edits = bool(numbers) and numbers[0] >= next_file
        for number in numbers:
            if number < first:
                continue
            path = self.folder / f"{number:06}.log"
            try:
                self._read_log(path, number, families)
            except FormatError as error:
                self.damage.append(Damage(path, error.physical_offset, error.message))
                break
        for family in families.values():
            family.changes.sort(key=lambda entry: (entry.key, -entry.sequence))

    def _read_log(self, path: Path, number: int, families: dict[int, Family]) -> None:
        for offset, record in self._records(path, number):
            try:
                changes = list(format_.changes(record))
            except FormatError as error:
                error.path, error.physical_offset = path, offset
                raise
            for change in changes:
                family = families.get(change.family)
                if family is None or number < family.log_number:
                    continue  # dropped, or in a table
                if change.kind == RANGE_DELETE:
                    family.range_deletes.append(RangeDelete(change.key, change.value, change.sequence))
                else:
                    family.changes.append(Entry(change.key, change.sequence, change.kind, change.value))

    # tables

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.sst"

    def _read(self, path: Path, offset: int, length: int) -> bytes:
        with self._lock:
            return self._files.read(path, offset, length)

    def _checksum(self, data: bytes) -> int:
        return self.crc32c(data)

    def table(self, file: TableFile) -> Table:
        """A table, opened when it is first asked for. Source: DBImpl::CheckConsistency."""
        with self._lock:
            table = self._tables.get(file.number)
            if table is None:
                path, size = self._path(file.number), self._sizes.get(file.number, file.size)
                if size != file.size:
                    reason = f"the table has {size} bytes, the MANIFEST says {file.size}"
                    raise FormatError(reason, path=path, physical_offset=min(size, file.size))
                table = self._tables[file.number] = Table(path, file, self._read, self._checksum)
            return table

    def tables(self, family: str, start: bytes = b"", stop: bytes | None = None) -> list[Table]:
        """The tables of a column family that may hold keys in [start, stop)."""
        found = self.families.get(family)
        return [
            self.table(file)
            for file in (found.files if found is not None else ())
            if file.largest[: -format_.KEY_TAIL_SIZE] >= start
            and (stop is None or file.smallest[: -format_.KEY_TAIL_SIZE] < stop)
        ]

    def changes(self, family: str, start: bytes, stop: bytes | None) -> list[Entry]:
        """The changes of keys in [start, stop) that only write-ahead logs hold."""
        found = self.families.get(family)
        if found is None:
            return []
        changes = found.changes
        first = bisect_left(changes, start, key=lambda entry: entry.key)
        last = len(changes) if stop is None else bisect_left(changes, stop, key=lambda entry: entry.key)
        return changes[first:last]

    def cover(self, family: str) -> _Cover:
        """The range deletes of a column family."""
        with self._lock:
            if family not in self._covers:
                found = self.families.get(family)
                deletes = list(found.range_deletes) if found is not None else []
                for table in self.tables(family):
                    deletes += table.range_deletes
                self._covers[family] = _Cover(deletes)
            return self._covers[family]

    def entries(self, table: Table, number: int) -> list[Entry]:
        """The entries of a data block; those of the last used ones are kept."""
        key = table.number, number
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            found = self._kept[key] = table.entries(number)
            self._kept_bytes += _bytes_of(found)
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= _bytes_of(self._kept.popitem(last=False)[1])
            return found

    # merged

    def scan(
        self, family: str, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) of what is there, keys in [start, stop), in order."""
        runs: list[Iterable[Entry]] = [self.changes(family, start, stop)]
        runs += (self._run(table, start, stop) for table in self.tables(family, start, stop))
        merged = heapq.merge(*runs, key=lambda entry: (entry.key, -entry.sequence))
        cover, last = self.cover(family), None
        for entry in merged:
            if entry.key == last:
                continue
            last = entry.key
            if entry.kind not in _KINDS:
                raise FormatError(
                    f"an entry of kind {entry.kind}, which is not read",
                    path=self.folder,
                    physical_offset=None,
                )
            if entry.kind == PUT and not cover.hides(entry.key, entry.sequence):
                yield entry.key, entry.value

    def _run(self, table: Table, start: bytes, stop: bytes | None) -> Iterator[Entry]:
        for number in table.blocks_of(start, stop):
            for entry in self.entries(table, number):
                if stop is not None and entry.key >= stop:
                    return
                if entry.key >= start:
                    yield entry

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key; None without one."""
        return next((value for _, value in self.scan(family, key, key + b"\0")), None)

    def first(self, family: str, start: bytes, stop: bytes | None = None) -> tuple[bytes, bytes] | None:
        """The first (key, value) in [start, stop); None without one."""
        return next(iter(islice(self.scan(family, start, stop), 1)), None)


def _bytes_of(entries: list[Entry]) -> int:
    return sum(len(entry.key) + len(entry.value) + _ENTRY_BYTES for entry in entries)


class _Cover:
    """Range deletes as ranges that do not overlap, each with the highest sequence number there."""

    def __init__(self, deletes: list[RangeDelete]) -> None:
        self.bounds = sorted({bound for each in deletes for bound in each[:2]})
        self.sequences = [-1] * len(self.bounds)
        starts = sorted(deletes)
        active: list[tuple[int, bytes]] = []
        at = 0
        for place, bound in enumerate(self.bounds):
            while at < len(starts) and starts[at].start <= bound:
                heapq.heappush(active, (-starts[at].sequence, starts[at].stop))
                at += 1
            while active and active[0][1] <= bound:
                heapq.heappop(active)
            if active:
                self.sequences[place] = -active[0][0]

    def highest(self, key: bytes) -> int:
        """The highest sequence number of the range deletes of a key; -1 without one."""
        place = bisect_right(self.bounds, key) - 1
        return self.sequences[place] if place >= 0 else -1

    def hides(self, key: bytes, sequence: int) -> bool:
        """Whether a range delete hides an entry."""
        return self.highest(key) > sequence


_NEEDED = {
    "log number": "log_number", "last sequence number": "last_sequence", "next file number": "next_file",
}  # fmt: skip
"""What a MANIFEST must say, and the field of a version edit that says it."""


class _Edits:
    """Applies version edits in order.

    Those of an atomic group count together, or not at all if the MANIFEST ends inside it. `lacking` is what
    no edit has said yet: RocksDB does not open a database without it. `named` are all tables that were added,
    those that were deleted later too; files that are made after the edits have numbers from `next_file` on.

    Source: VersionEditHandler::CheckIterationResult, AtomicGroupReadBuffer.
    """

    def __init__(self, families: dict[int, _Family]) -> None:
        self.lacking = set(_NEEDED)
        self.named: set[int] = set()
        self.next_file = 0
        self._families = families
        self._group: list[format_.VersionEdit] = []

    def take(self, edit: format_.VersionEdit) -> None:
        """Take the next edit. Raises FormatError."""
        if edit.group_left is None and self._group:
            raise FormatError("a version edit between those of an atomic group")
        self._group.append(edit)
        if edit.group_left:
            return
        for each in self._group:
            _apply(self._families, each)
            self.named |= {file.number for _, file in each.new_files}
            self.next_file = max(self.next_file, each.next_file or 0)
            self.lacking -= {what for what, field in _NEEDED.items() if getattr(each, field) is not None}
        self._group.clear()


def _apply(families: dict[int, _Family], edit: format_.VersionEdit) -> None:
    if edit.comparator is not None and edit.comparator != _COMPARATOR:
        raise FormatError(f"keys are in the order {edit.comparator!r}, which is not read")
    if edit.added is not None:
        families[edit.family] = _Family(edit.added)
    if edit.dropped:
        if edit.family == 0:
            raise FormatError("a version edit drops the default column family")
        families.pop(edit.family, None)
        return
    family = families.get(edit.family)
    if family is None:
        raise FormatError(f"a version edit of the column family {edit.family}, which does not exist")
    if edit.log_number is not None:
        family.log_number = max(family.log_number, edit.log_number)
    for level, number in edit.deleted_files:
        if family.files.get(number, (None,))[0] != level:
            raise FormatError(f"a version edit deletes table {number}, which is not on level {level}")
        del family.files[number]
    for level, file in edit.new_files:
        family.files[file.number] = level, file
