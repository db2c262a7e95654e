"""Parts of a store that are recognised and reported, but not read: RocksDB, tiered storage.

The folder `rocksdbstore/` alone means nothing: every 5.4 broker creates its database, and leaves it empty.

Source: design section 2; RocksDBConsumeQueueStore, RocksDBConfigManager, MessageRocksDBStorage,
TieredMessageStore.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rmqtool.formats.tiered import METADATA, cluster_of
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.ledger import find_ledger, ledger_folders
from rmqtool.storage.listing import Listing
from rmqtool.storage.single_file import queue_id_of_name

_DATABASE_MARK = pattern(r"CURRENT|MANIFEST-\d{6,}|\d{6,}\.(sst|log)")
_ROCKSDB_FILE = pattern(
    r"CURRENT|IDENTITY|LOCK|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d{6,}|\d{6,}\.(sst|log|blob)|\d{6,}\.dbtmp"
)
_CONFIG_OF_TYPE = ("topics", "metadata")
"""Databases of the config that a broker of storeType defaultRocksDB makes, and no other (v1)."""
QUEUES_IN_ROCKSDB = ("consume queues", "second consume queues")
INDEX_IN_ROCKSDB = ("index entries", "second index entries")
# Settings of broker.conf that put a part into rocksdbstore/, and that part.
_ROCKSDB_SETTINGS = (
    ("indexRocksDBEnable", "index entries"),
    ("timerRocksDBEnable", "timer messages"),
    ("transRocksDBEnable", "half messages"),
)
SIDE_STORE = "index entries, timer or half messages"
"""The content of rocksdbstore/ if neither broker.conf nor its database says which of the three."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A part of the store that is kept in a form out of reach.

    `what` is the part (`consume queues`, `config`, `commit log`, ...), `form` how it is kept. A broker writes
    `second consume queues` in addition to the queues in files. `reason` says why a part that rmqtool reads
    otherwise cannot be read, and `place` at which path and offset.
    """

    what: str
    path: Path
    form: str = "RocksDB"
    reason: str = ""
    place: tuple[Path, int | None] | None = None


def is_rocksdb_file(name: str) -> bool:
    """Whether `name` is the name of a RocksDB file. Source: filename.cc of RocksDB."""
    return _ROCKSDB_FILE.fullmatch(name) is not None


def queues_part(parts: Iterable[Unsupported]) -> Unsupported | None:
    """The part that holds queues in RocksDB, the only ones or second ones; None without one."""
    found = (part for part in parts if part.what in QUEUES_IN_ROCKSDB and part.form == "RocksDB")
    return next(found, None)


def has_database(folder: Path, listing: Listing | None = None) -> bool:
    """Whether a folder holds a RocksDB database, or what a loss of files has left of one."""
    files = (Listing() if listing is None else listing).files(folder)
    return any(_DATABASE_MARK.fullmatch(path.name) is not None for path, _ in files)


def _lacks_database(
    root: Path, listing: Listing, conf: BrokerConf | None, config: Iterable[Unsupported]
) -> bool:
    """Whether a store without RocksDB queues must have them, so that they are lost.

    It is of storeType defaultRocksDB, or queues are written twice, and clients are served from RocksDB.
    """
    if conf is not None and conf.flag("rocksdbCQDoubleWriteEnable"):
        if conf.is_rocksdb("combineCQPreferCQType") and _has_queue_files(root / "consumequeue", listing):
            return True
    if conf is not None and conf.text("storeType") is not None:
        return conf.is_rocksdb("storeType")
    of_type = any(part.path.name in _CONFIG_OF_TYPE for part in config)
    return of_type and not _has_queue_files(root / "consumequeue", listing)


def _has_queue_files(folder: Path, listing: Listing) -> bool:
    """Whether there are queues in files too: a broker that writes both keeps them in one folder.

    A broker of storeType defaultRocksDB keeps its config in RocksDB as well and reads no queue files, so
    files of an earlier broker there are stale. Source: CombineConsumeQueueStore; spec 06 2.7.
    """
    return any(
        listing.mapped_files(folder / topic / queue_id)[0]
        for topic in sorted(listing.folders(folder))
        for queue_id in sorted(listing.folders(folder / topic))
        if queue_id_of_name(queue_id) is not None
    )


def _has_tiered_copy(root: Path, listing: Listing) -> bool:
    """Whether a folder of the store is a tiered copy, which is read as a store of its own (`queue_logs`)."""
    return any(
        cluster_of(name) is not None
        for folder in sorted(listing.folders(root))
        for name in listing.folders(root / folder)
    )


def find_unsupported(root: Path, listing: Listing, conf: BrokerConf | None) -> tuple[Unsupported, ...]:
    """The parts of the store at `root` that rmqtool recognises and does not read."""
    found: list[Unsupported] = []
    folders = listing.folders(root)
    if "config" in folders:
        for name in sorted(listing.folders(root / "config")):
            if has_database(root / "config" / name, listing):
                found.append(Unsupported("config", root / "config" / name))
    queues = root / "consumequeue"
    is_lost = "commitlog" in folders and _lacks_database(root, listing, conf, found)
    if is_lost or has_database(queues, listing):
        is_of_type = conf is not None and conf.is_rocksdb("storeType")
        twice = not found and not is_of_type and _has_queue_files(queues, listing)
        found.insert(0, Unsupported("second consume queues" if twice else "consume queues", queues))
    if has_database(root / "kvStore", listing):
        found.append(Unsupported("pop records", root / "kvStore"))
    if (ledgers := ledger_folders(root, listing)) and find_ledger(root, listing, conf, ()) is None:
        found += (Unsupported("commit log", folder, "one of several DLedger logs") for folder in ledgers)
    if listing.has_file(root / "config", METADATA) and not _has_tiered_copy(root, listing):
        found.append(Unsupported("tiered files", root / "config" / METADATA, "tiered storage"))
    side_store = root / "rocksdbstore"
    if conf is not None:
        found += (Unsupported(what, side_store) for setting, what in _ROCKSDB_SETTINGS if conf.flag(setting))
    elif has_database(side_store, listing):
        found.append(Unsupported(SIDE_STORE, side_store))
    return tuple(found)
