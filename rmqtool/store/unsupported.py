"""Parts of a store that are recognised and said, but not read: RocksDB, DLedger, tiered storage.

The folder `rocksdbstore/` alone is no sign: every 5.4 broker makes it.

Source: design section 2; RocksDBConsumeQueueStore, RocksDBConfigManager, MessageRocksDBStorage,
TieredMessageStore.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rmqtool.store.broker_conf import BrokerConf
from rmqtool.store.listing import Listing

_ROCKSDB_MARK = "CURRENT"  # every RocksDB has this file
_TIERED_FILE = "tieredStoreMetadata.json"
# Settings of broker.conf under which a part lives in rocksdbstore/, and what that part is.
_ROCKSDB_SETTINGS = (
    ("indexRocksDBEnable", "index entries"),
    ("timerRocksDBEnable", "timer messages"),
    ("transRocksDBEnable", "half messages"),
)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A part of the store that is kept in a form out of reach.

    `what` is the part (`consume queues`, `config`, `commit log`, ...), `form` how it is kept.
    """

    what: str
    path: Path
    form: str = "RocksDB"


def find_unsupported(root: Path, listing: Listing, conf: BrokerConf | None) -> tuple[Unsupported, ...]:
    """The parts of the store at `root` that rmqtool knows of and does not read."""
    found: list[Unsupported] = []
    if listing.has_file(root / "consumequeue", _ROCKSDB_MARK):
        found.append(Unsupported("consume queues", root / "consumequeue"))
    folders = listing.folders(root)
    if "config" in folders:
        for name in sorted(listing.folders(root / "config")):
            if listing.has_file(root / "config" / name, _ROCKSDB_MARK):
                found.append(Unsupported("config", root / "config" / name))
    if listing.has_file(root / "kvStore", _ROCKSDB_MARK):
        found.append(Unsupported("pop records", root / "kvStore"))
    for name in sorted(folders):
        if name.startswith("dledger-"):
            found.append(Unsupported("commit log", root / name, "DLedger"))
    if listing.has_file(root / "config", _TIERED_FILE):
        found.append(Unsupported("tiered files", root / "config" / _TIERED_FILE, "tiered storage"))
    if conf is not None:
        side_store = root / "rocksdbstore"
        found += (Unsupported(what, side_store) for setting, what in _ROCKSDB_SETTINGS if conf.flag(setting))
    return tuple(found)
