"""The task of a rebuild for an index in RocksDB (rocksdbstore/ of 5.4): one new database.

It gets an entry for every name of every record in the log, and the end up to which it reaches: after it, a
broker continues with the next record. The database holds timer messages and open transactions too, which
are copied; if they cannot be read, it stays as it is.

Whether the new database is as planned is checked by the sum of the fingerprints of its entries.

Source: IndexRocksDBStore#buildIndex, MessageRocksDBStorage; spec 06 section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rmqtool.errors import FormatError, InputError
from rmqtool.index.rocksdb_entries import of_database, rows_of_records
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.frames import Frames, walk
from rmqtool.queue.rocksdb_units import crc32c
from rmqtool.repair.rebuild.database_files import Files, database_actions, present_files
from rmqtool.repair.rebuild.queue_task import Unmended
from rmqtool.storage.rocksdb.database import Database
from rmqtool.storage.rocksdb.messages import FAMILY, LAST_OFFSET, LAST_STORE_TIME
from rmqtool.storage.rocksdb.writer import DatabaseWriter
from rmqtool.storage.source import open_source
from rmqtool.storage.unsupported import SIDE_FOLDER

if TYPE_CHECKING:
    from rmqtool.repair.plan import Action
    from rmqtool.repair.rebuild.survey import Survey
    from rmqtool.storage.layout import StoreLayout

_FAMILIES = ("timer", "trans")
_CODES = ("RD07", "RD08", "RD09", "RD10", "RD13", "IX10")
_ENTRY_BYTES = 200
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class IndexDatabaseTask:
    """A database that is built.

    Attributes:
        problems: codes of what is wrong with the present one.
        entries: how many entries it gets.
        fingerprint: the sum of their fingerprints.
        families: the other column families of the present one, which are copied; none if it is gone.
        end: physical offset where the log ends.
        old: names and sizes of the present one's files.
    """

    problems: tuple[str, ...]
    entries: int
    fingerprint: int
    families: tuple[str, ...]
    end: int
    old: Files

    def actions(self) -> Iterator[Action]:
        """The changes, in the order of their paths."""
        size = _ENTRY_BYTES * self.entries + sum(size for _, size in self.old) + (1 << 16)
        detail = {"entries": self.entries, "data_bytes": size}
        yield from database_actions(SIDE_FOLDER, "index", self.problems, self.old, detail)

    def build(self, folder: Path, layout: StoreLayout) -> None:
        """Make the database in a new folder, from the log as it is now.

        Raises:
            FormatError: it is not as planned.
            UnreadableError, UnwritableError: a file cannot be read, or written.
        """
        names = (FAMILY, *dict.fromkeys((*_FAMILIES, *self.families)))
        writer = DatabaseWriter(folder, names, has_log=True)
        try:
            newest = b""
            for frames in _frames(layout, self.end):
                rows = list(rows_of_records(frames))
                writer.put(FAMILY, rows)
                newest = max([newest, *(key[-8:] + value for key, value in rows)])
            if newest:
                writer.put(FAMILY, [(LAST_OFFSET, newest[:8]), (LAST_STORE_TIME, newest[8:])])
            self._copy(writer, layout)
            writer.finish()
        finally:
            writer.close()
        self._check(folder)

    def _copy(self, writer: DatabaseWriter, layout: StoreLayout) -> None:
        """The rows of the other column families."""
        if self.families:
            assert layout.root is not None
            database = Database(layout.root / SIDE_FOLDER)
            try:
                for family in self.families:
                    writer.put(family, database.scan(family))
            finally:
                database.close()

    def _check(self, folder: Path) -> None:
        database = Database(folder)
        database.crc32c = crc32c
        try:
            count = total = 0
            for entries in of_database(database):
                count += len(entries)
                total += int(entries["fingerprint"].sum())
        finally:
            database.close()
        if (count, total & _MASK) != (self.entries, self.fingerprint):
            raise FormatError("the rebuilt index differs from the plan", path=folder,
                              hint="make the plan again")  # fmt: skip


def _frames(layout: StoreLayout, end: int) -> Iterator[Frames]:
    """The records of the log, in windows."""
    for file in layout.commit_log:
        stop = min(file.end, end)
        if not file.size or file.file_from_offset >= stop:
            continue
        source = open_source(file.path)
        try:
            events = walk(
                source, file_from_offset=file.file_from_offset, start=0, stop=stop - file.file_from_offset,
                crc=False, entry_header=file.entry_header,
            )  # fmt: skip
            yield from (event for event in events if isinstance(event, Frames))
        finally:
            source.close()


def index_database_task(survey: Survey) -> IndexDatabaseTask | Unmended | None:
    """The task for the index in RocksDB; None if there is none, or nothing is wrong with it.

    Raises:
        RefusedError: it cannot be built where the present one is.
    """
    check = None if survey.index is None else survey.index.rocksdb
    if check is None:
        return None
    found = {
        item.problem.code for item in survey.findings if item.path.partition("/")[0] == SIDE_FOLDER
    }.intersection(_CODES)
    if not found:
        return None
    if "RD13" in found:
        found.discard("RD10")
    problems = tuple(sorted(found, reverse=True))
    families: tuple[str, ...] = ()
    if "RD13" not in found:
        database = Database(check.database.folder)
        try:
            families = tuple(name for name in database.families if name != FAMILY)
            for family in families:
                for _ in database.scan(family):
                    pass
        except InputError as error:
            reason = f"timer messages or open transactions next to the index cannot be read: {error.message}"
            return Unmended(SIDE_FOLDER, problems, reason)
        finally:
            database.close()
    entries, fingerprint = check.expected
    old = present_files(check.database.folder, "the index")
    return IndexDatabaseTask(problems, entries, fingerprint & _MASK, families, survey.end, old)
