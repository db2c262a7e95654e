"""Which queue logs a folder holds: those of a tiered copy, or those of compacted topics."""

from __future__ import annotations

from pathlib import Path

from rmqtool.errors import NotAStoreError
from rmqtool.formats.tiered import METADATA, cluster_of
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.listing import Listing
from rmqtool.storage.queue_logs.compacted import is_compaction
from rmqtool.storage.queue_logs.tiered import brokers_below, find_copy
from rmqtool.storage.queue_logs.view import CompactedLogs, QueueLogs, TieredLogs

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


def copies_in(root: Path, listing: Listing) -> list[QueueLogs]:
    """The queue logs in the folders of a store: its tiered copy, and its compacted topics."""
    found: list[QueueLogs] = []
    for name in sorted(listing.folders(root)):
        inner = Listing()
        if any(cluster_of(each) is not None for each in inner.folders(root / name)):
            brokers = brokers_below(root / name, inner)
            if len(brokers) == 1:
                metadata = root / "config" / METADATA
                found.append(TieredLogs(root / name, brokers[0], metadata))
    if is_compaction(root / "compaction", listing):
        found.append(CompactedLogs(root / "compaction"))
    return found


def copy_sizes(root: Path | None) -> dict[str, int]:
    """The bytes of the copies in a store, by the pass of `verify` that checks them: tiered, compaction."""
    sizes: dict[str, int] = {}
    for logs in () if root is None else copies_in(root, Listing()):
        parts = (part for queue in logs.found.queues for part in (queue.log, queue.units))
        name = "tiered" if isinstance(logs, TieredLogs) else "compaction"
        sizes[name] = sizes.get(name, 0) + sum(segment.size for part in parts for segment in part)
        logs.close()
    return sizes
