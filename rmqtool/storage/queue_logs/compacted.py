"""Finds the logs of compacted topics: the folder compaction/ of a store.

    compaction/compactionLog/TOPIC/QUEUE/    records, in files named by offset
    compaction/compactionCq/TOPIC/QUEUE/     46-byte units, in files of the same names

Folders `compacting` and `replicating` hold the work of a run that is not complete, and are not read. All
files of units have one size, a multiple of that of a unit, and all files of logs have one, a multiple of the
former.

Source: CompactionStore#getCompactionLogSize, CompactionLog, SparseConsumeQueue, MappedFileQueue#doLoad; spec
06 section 9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE
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


def wrong_sizes(queues: Sequence[QueueLog]) -> Iterator[tuple[QueueLog, Segment, int | None]]:
    """The files of a wrong size, with their queue and the right size: None if no file has a possible one."""
    unit = BATCH_UNIT_SIZE
    for rows in (
        [(queue, each) for queue in queues for each in loaded_files(queue.units)],
        [(queue, each) for queue in queues for each in loaded_files(queue.log)],
    ):
        right = _usual([segment.size for _, segment in rows], unit)
        yield from ((queue, segment, right) for queue, segment in rows if segment.size != right)
        unit = right or 1


def loaded_files(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The files without the newest if it is empty: a broker deletes it when it starts."""
    return segments[:-1] if segments and not segments[-1].size else segments


def without_counterpart(queue: QueueLog) -> Iterator[Segment]:
    """The files whose log or whose queue has no file of the same name when a broker has loaded them."""
    log, units = loaded_files(queue.log), loaded_files(queue.units)
    names = {each.base for each in log} & {each.base for each in units}
    yield from (each for each in (*queue.log, *queue.units) if each.base not in names and each.size)


def _usual(sizes: Sequence[int], unit: int) -> int | None:
    """The most frequent of the sizes that are multiples of `unit`, of several the largest."""
    counts = Counter(size for size in sizes if size and size % unit == 0)
    return max(counts, key=lambda size: (counts[size], size), default=None)


def _files(folder: Path, listing: Listing, strays: list[Stray]) -> dict[tuple[str, int], tuple[Segment, ...]]:
    found = {}
    for topic, queue_id, place, _ in queue_folders(folder, listing, strays):
        files, others = listing.mapped_files(place)
        strays += (Stray(path, "it is not a file of the log") for path in others if path.name not in _WORK)
        found[topic, queue_id] = tuple(Segment(*file) for file in files)
    return found
