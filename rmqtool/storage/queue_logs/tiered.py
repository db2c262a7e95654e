"""Finds a tiered copy of the posix provider: its queue logs, index segments, metadata and strays.

The copy is the folder tieredStoreFilePath, or the folder of one broker in it: several brokers may share it.
Its metadata are in the configuration of the store, config/tieredStoreMetadata.json, which lies a few folders
above if the copy is in the store.

Source: PosixFileSegment, FlatFileStore, DefaultMetadataStore; spec 06 section 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import config_json
from rmqtool.formats.fastjson import READ_LIMIT
from rmqtool.formats.tiered import (
    COMMIT_LOG,
    CONSUME_QUEUE,
    INDEX,
    INDEX_TOPIC,
    METADATA,
    TYPES,
    Metadata,
    base_offset_of,
    cluster_of,
    metadata_of,
)
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import read_head
from rmqtool.storage.queue_logs.model import Found, QueueLog, Segment, Stray, queue_folders

_ABOVE = 4  # folders above the copy in which the store's config is looked for
_CONFIG = "config"


class MetadataFile(NamedTuple):
    """The metadata: where they are, what they say, or why they cannot be read. All None if there are none.

    With a content, `reason` says why it is that of the .bak.
    """

    path: Path | None = None
    content: Metadata | None = None
    reason: str | None = None


def brokers_below(root: Path, listing: Listing) -> list[Path]:
    """The folders of brokers in tieredStoreFilePath; none if `root` is not such a folder."""
    return [
        root / cluster / broker
        for cluster in sorted(listing.folders(root))
        if cluster_of(cluster) is not None
        for broker in sorted(listing.folders(root / cluster))
    ]


def is_broker(folder: Path, listing: Listing) -> bool:
    """Whether `folder` is that of a broker: one of its folders TOPIC/QUEUE has segments."""
    return cluster_of(folder.parent.name) is not None and any(
        kind in TYPES
        for topic in sorted(listing.folders(folder))
        for queue in sorted(listing.folders(folder / topic))
        for kind in listing.folders(folder / topic / queue)
    )


def find_copy(root: Path, listing: Listing) -> tuple[Path, ...]:
    """The broker folders that `root` stands for: itself, or those in it; without a tiered copy empty."""
    found = brokers_below(root, listing)
    if not found and is_broker(root, listing):
        found = [root]
    return tuple(found)


def find_segments(broker: Path) -> Found:
    """All that is in the folder of a broker."""
    listing = Listing()
    queues: list[QueueLog] = []
    index: tuple[Segment, ...] = ()
    strays: list[Stray] = []
    for topic, queue_id, folder, place in queue_folders(broker, listing, strays):
        kinds, others = listing.folders_and_others(place)
        strays += (Stray(path, "it is not a folder of segments") for path in others)
        segments = {}
        for kind, _ in kinds:
            if kind in TYPES:
                segments[kind] = tuple(_segments(folder / kind, listing, strays))
            else:
                strays.append(Stray(folder / kind, "it is not a folder of segments"))
        if topic == INDEX_TOPIC:
            index += segments.get(INDEX, ())
        else:
            log, units = segments.get(COMMIT_LOG, ()), segments.get(CONSUME_QUEUE, ())
            queues.append(QueueLog(topic, queue_id, folder, log, units))
    queues.sort(key=lambda queue: queue.key)
    return Found(tuple(queues), index, tuple(strays))


def _segments(folder: Path, listing: Listing, strays: list[Stray]) -> Iterator[Segment]:
    """The segments of a folder in the order of their offsets."""
    found = []
    plain = dict(listing.files(folder))
    for name, _ in listing.entries(folder):
        path = folder / name
        base = base_offset_of(name)
        if path not in plain:
            strays.append(Stray(path, "it is not a plain file"))
        elif base is None:
            strays.append(Stray(path, "its name is not that of a segment"))
        else:
            found.append(Segment(path, base, plain[path]))
    return iter(sorted(found, key=lambda segment: segment.base))


def find_metadata(copy: Path) -> MetadataFile:
    """The metadata of the copy at `copy`, read as a broker does."""
    listing = Listing()
    for folder in (copy, *list(copy.absolute().parents)[:_ABOVE]):
        if METADATA in listing.names(folder / _CONFIG) or f"{METADATA}.bak" in listing.names(
            folder / _CONFIG
        ):
            return read_metadata(folder / _CONFIG / METADATA)
    return MetadataFile()


def read_metadata(path: Path) -> MetadataFile:
    """The metadata in the file `path`, or in its .bak."""
    try:
        texts = (read_head(each, READ_LIMIT) for each in (path, path.with_name(f"{path.name}.bak")))
        loaded = config_json.load_with_bak(METADATA, *texts)
        if loaded.source == "failed":
            return MetadataFile(path, None, loaded.bak_error or loaded.file_error)
        reason = loaded.file_error or "it is missing or empty" if loaded.source == "bak" else None
        return MetadataFile(path, metadata_of(loaded.document), reason)
    except (FormatError, OSError) as error:
        reason = error.message if isinstance(error, FormatError) else str(error.strerror or error)
        return MetadataFile(path, None, reason)
