"""What lies in a store, as rows: the engine of `rmqtool dump`.

    log.py      records, blanks and bad ranges of the commit log; records as bytes
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

from rmqtool.problems import Finding, finding
from rmqtool.store.layout import StoreLayout

Report = Callable[[Finding], None]
"""Told about every bad place, in the order in which it is met."""
Progress = Callable[[int], None]
"""Called with the number of bytes that were just passed."""


def tell_out_of_reach(layout: StoreLayout, part: str, report: Report) -> None:
    """Reports `part` of the store where it is kept in a form that rmqtool does not read."""
    for each in layout.unsupported:
        if each.what == part:
            report(finding("UN01", layout.relative(each.path), reason=f"{each.what} in {each.form}"))
