"""Salvage: how the commit log is mended so that every record that is sound stays where it is.

A broker takes the first damage for the end of its log and deletes what follows. Here damage is a
hole: what was lost in it is found from the queues' units and from gaps in queue offsets, and it is
filled with records that brokers and consumers of every version step over (spec 03). Nothing is
changed: the result is a list of actions and a list of what is lost.

file_set.py   which files the log is to have
full_size.py  a file as it should be
strays.py     other files of its folder: do they hold records?
file_scan.py  one file walked: sound records and holes
order.py      the order of queue offsets: gaps, zombies
units.py      the queue units that point into holes
owners.py     whose place each part of a hole takes
fillers.py    the bytes for a hole
log.py        the log as a whole, the actions
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmqtool.repair.salvage.model import Fill, LostRecord, Salvaged

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.storage.source import RateLimiter

__all__ = ["Fill", "LostRecord", "Salvaged", "model", "salvage"]


def salvage(
    store: Store,
    *,
    fill: Fill = "records",
    jobs: int = 0,
    keep_cache: bool = False,
    limiter: RateLimiter | None = None,
    progress: Callable[[int], None] | None = None,
) -> Salvaged:
    """Plan how the commit log is mended.

    Args:
        store: opened for reading, with no broker running on it.
        fill: `records` fills holes; with `none` the log ends at the first hole in which a record was
            lost, and `tail` names what is behind it.
        jobs: threads; 0 for one per processor.
        keep_cache: leave what was read in the page cache.
        limiter: bounds the rate of reading.
        progress: called with the bytes of every file that was walked, from any thread.

    Raises:
        UnreadableError: a folder of the log cannot be listed.
        RefusedError: so much is damaged that this is no commit log, or a file that overlaps the others
            holds sound records.
    """
    from rmqtool.repair.salvage.run import Run

    return Run(store, fill, jobs or os.cpu_count() or 1, keep_cache, limiter, progress).run()
