"""Finds the logs of compacted topics: the folder compaction/ of a store.

    compaction/compactionLog/TOPIC/QUEUE/    records, in files named by offset
    compaction/compactionCq/TOPIC/QUEUE/     46-byte units, in files of the same names

Folders `compacting` and `replicating` hold the work of a run that is not complete, and are not read.

Source: CompactionStore, CompactionLog, SparseConsumeQueue; spec 06 section 9.
"""

from __future__ import annotations

from pathlib import Path

from rmqtool.storage.listing import Listing
from rmqtool.storage.queue_logs.model import Found, QueueLog, Segment, Stray, queue_folders

LOG, UNITS = "compactionLog", "compactionCq"
_WORK = ("compacting", "replicating")


def is_compaction(folder: Path, listing: Listing) -> bool:
    """Whether `folder` holds logs of compacted topics."""
    return not {LOG, UNITS}.isdisjoint(listing.folders(folder))


def find_logs(folder: Path) -> Found:
    """All that is in the folder compaction/."""
    listing = Listing()
    strays: list[Stray] = []
    files = {kind: _files(folder / kind, listing, strays) for kind in (LOG, UNITS)}
    queues = [
        QueueLog(
            *key, folder / LOG / key[0] / str(key[1]), files[LOG].get(key, ()), files[UNITS].get(key, ())
        )
        for key in sorted({*files[LOG], *files[UNITS]})
    ]
    return Found(tuple(queues), (), tuple(strays))


def _files(folder: Path, listing: Listing, strays: list[Stray]) -> dict[tuple[str, int], tuple[Segment, ...]]:
    found = {}
    for topic, queue_id, place, _ in queue_folders(folder, listing, strays):
        files, others = listing.mapped_files(place)
        strays += (Stray(path, "it is not a file of the log") for path in others if path.name not in _WORK)
        found[topic, queue_id] = tuple(Segment(*file) for file in files)
    return found
