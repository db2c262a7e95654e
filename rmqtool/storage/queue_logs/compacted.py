"""Finds the logs of compacted topics: the folder compaction/ of a store.

    compaction/compactionLog/TOPIC/QUEUE/    records, in files named by offset
    compaction/compactionCq/TOPIC/QUEUE/     46-byte units, in files of the same names

Folders `compacting` and `replicating` hold the work of a run that is not complete, and are not read.

Source: CompactionStore, CompactionLog, SparseConsumeQueue; spec 06 section 9.
"""

from __future__ import annotations

from pathlib import Path

from rmqtool.storage.listing import Listing
from rmqtool.storage.queue_logs.model import Found, QueueLog, Segment, Stray
from rmqtool.storage.single_file import queue_id_of_name

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
    topics, others = listing.folders_and_others(folder)
    strays += (Stray(path, "it is not the folder of a topic") for path in others)
    for topic, place in topics:
        ids, others = listing.folders_and_others(place)
        strays += (Stray(path, "it is not the folder of a queue") for path in others)
        for name, _ in ids:
            queue_id = queue_id_of_name(name)
            if queue_id is None or queue_id < 0:
                strays.append(Stray(folder / topic / name, "it is not the folder of a queue"))
                continue
            files, others = listing.mapped_files(folder / topic / name)
            strays += (
                Stray(path, "it is not a file of the log") for path in others if path.name not in _WORK
            )
            found[topic, queue_id] = tuple(Segment(*file) for file in files)
    return found
