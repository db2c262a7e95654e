"""The folders TOPIC/QUEUE below a folder, as tiered storage and compaction have them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rmqtool.storage.listing import Listing
from rmqtool.storage.queue_logs.model import Stray
from rmqtool.storage.single_file import queue_id_of_name


def queue_folders(
    root: Path, listing: Listing, strays: list[Stray]
) -> Iterator[tuple[str, int, Path, Path | str]]:
    """(topic, queue id, folder, the folder as `listing` gives it) of each queue; others go to `strays`."""
    topics, others = listing.folders_and_others(root)
    strays += (Stray(path, "it is not the folder of a topic") for path in others)
    for topic, topic_place in topics:
        ids, others = listing.folders_and_others(topic_place)
        strays += (Stray(path, "it is not the folder of a queue") for path in others)
        for name, place in ids:
            folder = root / topic / name
            queue_id = queue_id_of_name(name)
            if queue_id is None or queue_id < 0:
                strays.append(Stray(folder, "it is not the folder of a queue"))
            else:
                yield topic, queue_id, folder, place
