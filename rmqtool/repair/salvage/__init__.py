"""Salvage: plans a repair of the commit log in which every sound record stays where it is.

A broker treats the first damage as the end of its log and deletes everything after it. Here damage is a
hole. The records lost in it are identified from the queues' units and from gaps in queue offsets, and it is
filled with records that brokers and consumers of every version get past (spec 03). Nothing is changed: the
result is a list of actions and a list of lost records.

full_size.py  a file extended or cut to its full size
strays.py     which files the log must have; other files in its folder: do they hold records?
file_scan.py  the scan of one file: sound records and holes
order.py      the order of queue offsets: gaps, zombies
units.py      the queue units that point into holes
traces.py     the headers and ends that are left in holes
owners.py     which lost record each part of a hole belongs to
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
    """Plan the repair of the commit log.

    Args:
        store: opened for reading, and not in use by a broker.
        fill: `records` fills holes; with `none` the log ends at the first hole in which a record was
            lost, and `tail` has the ranges after it.
        jobs: number of threads; 0 for one per processor.
        keep_cache: leave the read pages in the page cache.
        limiter: limits the read rate.
        progress: called with the bytes of every scanned file, from any thread.

    Raises:
        UnreadableError: a folder of the log cannot be listed.
        RefusedError: so much is damaged that this is not a commit log, or a file that overlaps others holds
            sound records.
    """
    from rmqtool.repair.salvage.run import Run

    return Run(store, fill, jobs or os.cpu_count() or 1, keep_cache, limiter, progress).run()
