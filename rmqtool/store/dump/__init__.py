"""What lies in a store, as rows: the engine of `rmqtool dump`.

    log.py      records, blanks and bad ranges of the commit log; records as bytes
    judge.py    what a bad range is called; files that are missing or have the wrong size
    place.py    what lies at one physical offset, field by field
    counts.py   how many records of which topic and queue
    queues.py   units of consume queues and batch consume queues
    index.py    headers, slots, entries and chains of index files
    small.py    the checkpoint and the configuration files
    timer.py    timer log, epoch file, compaction checkpoint

Every part yields rows (dicts with the names of its FIELDS) as they are read, and goes on past
damage: a `report` function gets a `Finding` for each bad place. An exception means "cannot go on".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rmqtool.problems import Finding, finding
from rmqtool.store.layout import StoreLayout

Report = Callable[[Finding], None]
"""Told about every bad place, in the order in which it is met."""
Progress = Callable[[int], None]
"""Called with the number of bytes that were just passed."""


class _Part(NamedTuple):
    """What a part is called in the root of a store, and the problem of what of it cannot be read."""

    names: frozenset[str]
    unreadable: str


_PARTS = {
    "commit log": _Part(frozenset({"commitlog"}), "CL12"),
    "consume queues": _Part(frozenset({"consumequeue", "batchconsumequeue", "consumequeue_ext"}), "CQ15"),
    "index entries": _Part(frozenset({"index"}), "IX11"),
    "config": _Part(frozenset({"config"}), "CP06"),
}


@dataclass
class Looked:
    """What was looked at on the way, selected or not.

    `first_ms` and `last_ms` are the smallest and largest store timestamp, ms since 1970; `topics`
    are those of selected records that the selection names as they are.
    """

    records: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    topics: set[str] = field(default_factory=set)

    def add(self, records: int, first_ms: int, last_ms: int) -> None:
        """Counts `records` more, stored between the two times."""
        self.records += records
        self.first_ms = first_ms if self.first_ms is None else min(self.first_ms, first_ms)
        self.last_ms = last_ms if self.last_ms is None else max(self.last_ms, last_ms)


def tell_out_of_reach(layout: StoreLayout, part: str, report: Report) -> None:
    """Reports `part` of the store where it is kept in a form that rmqtool does not read, or was not listed.

    What a folder or file lacks that could not be listed is not known to be missing.
    """
    for each in layout.unsupported:
        if each.what == part:
            report(finding("UN01", layout.relative(each.path), reason=f"{each.what} in {each.form}"))
    for path, reason in layout.unreadable:
        if layout.part_of(path) in _PARTS[part].names:
            report(finding(_PARTS[part].unreadable, layout.relative(path), reason=reason))


def unreadable_code(layout: StoreLayout, path: Path) -> str:
    """The problem of a file or folder that cannot be read."""
    name = layout.part_of(path)
    return next((part.unreadable for part in _PARTS.values() if name in part.names), "CP06")
