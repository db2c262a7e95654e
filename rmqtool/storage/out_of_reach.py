"""Reports the parts of a store that are kept in a form rmqtool does not read, or that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rmqtool.findings import Report
from rmqtool.problems import Finding, finding
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.single_file import offset_of_name
from rmqtool.storage.unsupported import POP_RECORDS, QUEUES_IN_ROCKSDB, Unsupported

if TYPE_CHECKING:
    from rmqtool.storage.rocksdb.database import Database


class _Part(NamedTuple):
    """A part's names in the root of a store, and the code of the problem if it cannot be read."""

    names: frozenset[str]
    unreadable: str


_PARTS = {
    "commit log": _Part(frozenset({"commitlog", "ledger"}), "CL12"),
    "consume queues": _Part(frozenset({"consumequeue", "batchconsumequeue", "consumequeue_ext"}), "CQ15"),
    "index entries": _Part(frozenset({"index"}), "IX11"),
    "config": _Part(frozenset({"config"}), "CP06"),
    POP_RECORDS: _Part(frozenset({"kvStore"}), "CP06"),
}

_NAMED_MAX = 3
NOT_A_FILE = "it is not a plain file"


def report_out_of_reach(layout: StoreLayout, part: str, report: Report) -> None:
    """Reports `part` of the store if its form is unsupported, or it could not be listed or read.

    Files of a folder that could not be listed may exist, so they are not reported as missing.
    """
    for each in layout.unsupported:
        if each.what == part:
            unread = finding("UN01", layout.relative(each.path), reason=f"{each.what} in {each.form}")
            report(of_database(layout, each) or unread)
    for path, reason in layout.unreadable:
        if layout.part_of(path) in _PARTS[part].names:
            report(finding(_PARTS[part].unreadable, layout.relative(path), reason=reason))
    if part == "commit log":
        for found in not_files_of_log(layout):
            report(found)


def not_files_of_log(layout: StoreLayout) -> Iterator[Finding]:
    """Entries among the files of the log that have their names, but are not plain files."""
    for path in layout.commit_log_not_files:
        start = offset_of_name(path.name)
        yield finding("CL12", layout.relative(path), start, reason=NOT_A_FILE)


def why_missing(layout: StoreLayout, start: int, stop: int) -> dict[str, str]:
    """What a finding of files that are missing in [start, stop) says of entries that have their names."""
    names = [path.name for path in layout.commit_log_not_files if start <= int(path.name) < stop]
    return {"reason": f"not a plain file: {', '.join(sorted(names)[:_NAMED_MAX])}"} if names else {}


def of_database(layout: StoreLayout, part: Unsupported) -> Finding | None:
    """Why a RocksDB database with a part of the store cannot be read; None if it is not known."""
    if part.is_lost:
        code, name = lost_code(part), layout.relative(part.path)
        return finding(code, name, what=part.what) if code == "RD13" else finding(code, name)
    if part.place is None:
        return None
    path, offset = part.place
    return finding(database_code(layout, path), layout.relative(path), offset, None, reason=part.reason)


def side_databases(layout: StoreLayout) -> tuple[Database, ...]:
    """The databases without queues that are read and have, or may have had, entries."""
    config = () if layout.rocksdb_config is None else layout.rocksdb_config.databases
    return tuple(each for each in (layout.pop, layout.rocksdb_messages, *config) if each is not None)


def lost_code(part: Unsupported) -> str:
    """The code of the problem that a RocksDB database is gone."""
    if part.what in QUEUES_IN_ROCKSDB:
        return "RD06"
    return "RD14" if part.what == POP_RECORDS else "RD13"


def database_code(layout: StoreLayout, path: Path) -> str:
    """The code of the problem that a file of a RocksDB database is damaged: it says whether rebuild helps."""
    return "RD01" if layout.part_of(path) == "consumequeue" else "RD10"


def unreadable_code(layout: StoreLayout, path: Path) -> str:
    """The code of the problem that this file or folder cannot be read."""
    name = layout.part_of(path)
    return next((part.unreadable for part in _PARTS.values() if name in part.names), "CP06")
