"""Parts of a store that are recognised and reported, but not read: RocksDB, tiered storage.

The folder `rocksdbstore/` alone means nothing: every 5.4 broker creates its database, and leaves it empty.

A database that is gone is found by what shows that there was one:

    broker.conf                              its settings
    the folder, or LOCK, IDENTITY, OPTIONS   a broker creates them together with CURRENT
    databases of the configuration           only a broker of storeType defaultRocksDB has those of v1
    checkpoint                               such a broker never writes the time of the queues
    RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC         its messages are counted in rocksdbstore/
    rmq_sys_wheel_timer, timercheck          a timer that has taken no message, although there are some

Source: design section 2; RocksDBConsumeQueueStore, RocksDBConfigManager, MessageRocksDBStorage,
ConsumeQueue#putMessagePositionInfoWrapper, TransactionalMessageBridge, TieredMessageStore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rmqtool.formats.tiered import METADATA, cluster_of
from rmqtool.lazy_dataclass import dataclass
from rmqtool.lazy_pattern import pattern
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.ledger import find_ledger, ledger_folders
from rmqtool.storage.listing import Listing
from rmqtool.storage.open_files import head_of
from rmqtool.storage.single_file import queue_id_of_name

_DATABASE_MARK = pattern(r"CURRENT|MANIFEST-\d{6,}|\d{6,}\.(sst|log)")
_ROCKSDB_FILE = pattern(
    r"CURRENT|IDENTITY|LOCK|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d{6,}|\d{6,}\.(sst|log|blob)|\d{6,}\.dbtmp"
)
_LEFT_OF_DATABASE = pattern(r"IDENTITY|LOCK|OPTIONS-\d{6,}")
_HALF_TOPIC, _TIMER_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"
_CONFIG_OF_TYPE = ("topics", "metadata")
"""Databases of the config that a broker of storeType defaultRocksDB makes, and no other (v1)."""
POP_RECORDS = "pop records"
TIMER_MESSAGES = "timer messages"
QUEUES_IN_ROCKSDB = ("consume queues", "second consume queues")
SIDE_FOLDER = "rocksdbstore"
"""The database of index, timer messages and transactions (5.4)."""
INDEX_IN_ROCKSDB = ("index entries", "second index entries")
# Settings of broker.conf that put a part into rocksdbstore/, and that part.
_ROCKSDB_SETTINGS = (
    ("indexRocksDBEnable", "index entries"),
    ("timerRocksDBEnable", TIMER_MESSAGES),
    ("transRocksDBEnable", "half messages"),
)
_NO_COPY = "the copy lies outside of the store, or is lost; rmqtool verify COPY checks it"
SIDE_STORE = "index entries, timer or half messages"
"""The content of rocksdbstore/ if neither broker.conf nor its database says which of the three."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A part of the store that is kept in a form out of reach.

    `what` is the part (`consume queues`, `config`, `commit log`, ...), `form` how it is kept. A broker writes
    `second consume queues` in addition to the queues in files. `reason` says why a part that rmqtool reads
    otherwise cannot be read, and `place` at which path and offset. `is_lost`: there is no database at `path`,
    although there was one.
    """

    what: str
    path: Path
    form: str = "RocksDB"
    reason: str = ""
    place: tuple[Path, int | None] | None = None
    is_lost: bool = False


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

    Its broker loads only queues in RocksDB, or queues are written twice, and clients are served from RocksDB.
    """
    queues = root / "consumequeue"
    if conf is not None and conf.has_queues_only_in_rocksdb:
        return True
    if conf is not None and "defaultrocksdb" in (conf.combined_types or ()):
        is_served = conf.is_rocksdb("combineCQPreferCQType") and _has_queue_files(queues, listing)
        if is_served or _has_rest(queues, listing):
            return True
    if conf is not None and conf.text("storeType") is not None:
        return False
    if _has_rest(queues, listing):
        return True
    if listing.is_unreadable(queues) or _has_queue_files(queues, listing):
        return False
    return any(part.path.name in _CONFIG_OF_TYPE for part in config) or _has_no_time_of_queues(root, listing)


def _has_rest(folder: Path, listing: Listing) -> bool:
    """Whether a folder without a database has files that a broker creates together with one."""
    return any(_LEFT_OF_DATABASE.fullmatch(path.name) is not None for path, _ in listing.files(folder))


def _has_no_time_of_queues(root: Path, listing: Listing) -> bool:
    """Whether the checkpoint was written by a broker that keeps its queues in RocksDB only.

    A broker with queues in files notes the time of the newest unit with that of the newest record.
    """
    from rmqtool.formats import checkpoint as checkpoint_format

    if not listing.has_file(root, "checkpoint"):
        return False
    data = head_of(root / "checkpoint", checkpoint_format.FILE_SIZE)
    if len(data) != checkpoint_format.FILE_SIZE:
        return False
    times = checkpoint_format.decode(data)
    return times.physic_msg_timestamp > 0 and times.logics_msg_timestamp == 0


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
    queues, is_store = root / "consumequeue", "commitlog" in folders
    has_queues = has_database(queues, listing)
    if has_queues or (is_store and _lacks_database(root, listing, conf, found)):
        is_of_type = conf is not None and conf.has_queues_only_in_rocksdb
        twice = not found and not is_of_type and _has_queue_files(queues, listing)
        what = "second consume queues" if twice else "consume queues"
        is_lost = not (has_queues or listing.is_unreadable(queues))
        found.insert(0, Unsupported(what, queues, is_lost=is_lost))
    found += _pop_records(root, listing, conf)
    if (ledgers := ledger_folders(root, listing)) and find_ledger(root, listing, conf, ()) is None:
        form, reason = "one of several DLedger logs", "dLegerSelfId says which one (--broker-conf FILE)"
        found += (Unsupported("commit log", folder, form, reason) for folder in ledgers)
    if listing.has_file(root / "config", METADATA) and not _has_tiered_copy(root, listing):
        found.append(Unsupported("tiered files", root / "config" / METADATA, "tiered storage", _NO_COPY))
    found += _side_store(root, listing, conf)
    return tuple(found)


def _pop_records(root: Path, listing: Listing, conf: BrokerConf | None) -> Iterator[Unsupported]:
    """The database of POP records, if there is or was one."""
    folder = root / "kvStore"
    is_lost = not has_database(folder, listing)
    is_used = conf is not None and conf.flag("popConsumerKVServiceInit")
    is_there = "kvStore" in listing.folders(root) and not listing.is_unreadable(folder)
    if not is_lost or is_there or (is_used and "commitlog" in listing.folders(root)):
        yield Unsupported(POP_RECORDS, folder, is_lost=is_lost)


def _side_store(root: Path, listing: Listing, conf: BrokerConf | None) -> Iterator[Unsupported]:
    """The parts in rocksdbstore/, as far as settings, files and topics show."""
    folder = root / SIDE_FOLDER
    is_lost = not has_database(folder, listing)
    if conf is not None:
        for setting, what in _ROCKSDB_SETTINGS:
            if conf.flag(setting):
                yield Unsupported(what, folder, is_lost=is_lost)
    elif not is_lost or (SIDE_FOLDER in listing.folders(root) and not listing.is_unreadable(folder)):
        yield Unsupported(SIDE_STORE, folder, is_lost=is_lost)
    else:
        if _HALF_TOPIC in listing.folders(root / "consumequeue"):
            yield Unsupported("half messages", folder, is_lost=True)
        if _has_idle_timer(root, listing):
            yield Unsupported(TIMER_MESSAGES, folder, is_lost=True)


def _has_idle_timer(root: Path, listing: Listing) -> bool:
    """Whether a timer has run without taking a message of its queue: then RocksDB had them.

    A timer in files takes each within a second, and notes in timercheck how far it is.
    """
    from rmqtool.formats import timer as timer_format

    is_used = _TIMER_TOPIC in listing.folders(root / "consumequeue") and "timerlog" not in listing.names(root)
    if not is_used or "abort" in listing.names(root):
        return False
    data = head_of(root / "config/timercheck", timer_format.CHECK_FILE_SIZE)
    if len(data) != timer_format.CHECK_FILE_SIZE:
        return False
    check = timer_format.decode_check(data)
    return check.last_read_time > 0 and check.last_timer_queue_offset == 0
