"""Which queue logs a folder holds, those of a tiered copy or of compacted topics; their layout as a store."""

from __future__ import annotations

from pathlib import Path

from rmqtool.errors import NotAStoreError
from rmqtool.formats.tiered import METADATA, cluster_of
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.layout import IndexFilePath, QueueFiles, StoreFile, StoreLayout
from rmqtool.storage.listing import Listing
from rmqtool.storage.queue_logs.compacted import is_compaction
from rmqtool.storage.queue_logs.model import SPAN
from rmqtool.storage.queue_logs.tiered import brokers_below, find_copy
from rmqtool.storage.queue_logs.view import CompactedLogs, QueueLogs, TieredLogs

COMPACTION = "compaction"
"""The folder of the logs of compacted topics in a store."""
_SHOWN = 3


def find_queue_logs(folder: Path, listing: Listing, conf: BrokerConf | None = None) -> QueueLogs | None:
    """The queue logs at `folder`; None if it holds none. `conf` names the store whose metadata belong to it.

    Raises:
        NotAStoreError: several brokers share the folder.
    """
    if is_compaction(folder, listing):
        return CompactedLogs(folder)
    brokers = find_copy(folder, listing)
    if not brokers:
        return None
    if len(brokers) > 1:
        names = ", ".join(str(each) for each in brokers[:_SHOWN]) + (", ..." if len(brokers) > _SHOWN else "")
        raise NotAStoreError(
            f"this folder holds the tiered copies of {len(brokers)} brokers", path=folder,
            hint=f"name one of them: {names}",
        )  # fmt: skip
    return TieredLogs(folder, brokers[0], _metadata_of(conf))


def _metadata_of(conf: BrokerConf | None) -> Path | None:
    """The metadata in the store of a broker.conf; None without them."""
    root = conf.text("storePathRootDir") if conf is not None else None
    path = None if root is None else Path(root) / "config" / METADATA
    return path if path is not None and path.is_file() else None


def copies_in(root: Path) -> tuple[QueueLogs, ...]:
    """The queue logs in the folders of a store: its tiered copy, and its compacted topics."""
    listing, found = Listing(), list[QueueLogs]()
    for name in sorted(listing.folders(root)):
        inner = Listing()
        if any(cluster_of(each) is not None for each in inner.folders(root / name)):
            brokers = brokers_below(root / name, inner)
            if len(brokers) == 1:
                metadata = root / "config" / METADATA
                found.append(TieredLogs(root / name, brokers[0], metadata))
    compacted = compacted_in(root)
    return (*found, compacted) if compacted is not None else tuple(found)


def compacted_in(root: Path) -> CompactedLogs | None:
    """The logs of compacted topics in a store; None if it has none."""
    return CompactedLogs(root / COMPACTION) if is_compaction(root / COMPACTION, Listing()) else None


def as_store(logs: QueueLogs, conf: BrokerConf | None = None) -> StoreLayout:
    """The layout of a tiered copy, or of the logs of compacted topics; broker.conf sets nothing."""
    layout = StoreLayout(logs.root, logs.kind, commit_log_folders=(logs.root / "commitlog",))
    layout.queue_logs, layout.broker_conf = logs, conf
    layout.commit_log = tuple(
        StoreFile(logs.root / file.inner, file.offset, file.size) for file in logs.log_files
    )
    layout.commit_log_file_size = SPAN
    for key, file in logs.queue_files.items():
        units = StoreFile(logs.root / file.inner, file.offset, file.size)
        layout.consume_queues[key] = QueueFiles(*key, logs.queue_folder(key), (units,), is_made=True)
    shape = logs.index_shape
    if shape is not None:
        layout.index_slots, layout.index_entries = shape.slots, shape.entries
        names = (logs.root / name for name in logs.index_files)
        layout.index_files = tuple(IndexFilePath(name, shape.size, name.name) for name in names)
    layout.unsupported = logs.unread
    return layout
