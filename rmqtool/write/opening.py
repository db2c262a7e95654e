"""From a path to a store that may be written: the lock, the checks, the settings found in it.

Lock first, then look. A store is refused, and nothing of it changed, when it was not closed cleanly, when
rmqtool does not write what it is kept in, or when its log, its queues and its index do not fit together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from rmqtool.errors import InputError, RefusedError, UnreadableError, UsageError
from rmqtool.formats import properties
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import Blank
from rmqtool.log.log_heads import Head
from rmqtool.read.delay_levels import configured, delay_levels
from rmqtool.read.store import NewestUnits, Store
from rmqtool.storage import config_files, lock, permission
from rmqtool.storage import durable as disk
from rmqtool.storage.broker_conf import BrokerConf
from rmqtool.storage.layout import SIZES, StoreLayout, detect, new_layout
from rmqtool.storage.listing import Listing
from rmqtool.storage.lock import StoreLock
from rmqtool.storage.next_command import command_on
from rmqtool.storage.open_files import opened
from rmqtool.storage.profile import Profile, named, written_by
from rmqtool.storage.roots import is_store, written_folders
from rmqtool.write.last_file import check_last_file
from rmqtool.write.options import WriteOptions

_ROCKSDB = "defaultrocksdb"  # StoreType.DEFAULT_ROCKSDB, in any case
_REST_CHECKED = 64 << 10  # bytes after the log's end that must be zero
FOLDERS = ("commitlog", "consumequeue", "index", "config")


@dataclass(frozen=True)
class Opened:
    """A store whose lock is held.

    Attributes:
        root: the store root.
        lock: its lock.
        store: the store as it was found, for reading.
        options: how it is to be written.
        end: physical offset after its last record.
        dispatched: physical offset up to which its records have queue units.
        folders: the writable folders of its commit log.
    """

    root: Path
    lock: StoreLock
    store: Store
    options: WriteOptions
    end: int
    dispatched: int
    folders: tuple[Path, ...]


def examine_new(
    path: Path,
    profile: Profile,
    given: dict[str, Any],
    *,
    broker_conf: Path | str | BrokerConf | None = None,
) -> WriteOptions:
    """The checks of `create`, and how the store would be written; nothing is changed."""
    layout = new_layout(path, broker_conf=broker_conf)
    options = _settled(layout, profile, {}, given)
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RefusedError("is not a folder; a store cannot be created here", path=path)
    if path.is_dir() and any(path.iterdir()):
        what = "is already a store" if is_store(path, Listing()) else "is not empty"
        raise RefusedError(f"{what}: a new store needs a new or empty folder", path=path)
    check_layout(layout, path)
    permission.check_new(path)
    return options


def create(
    path: Path,
    profile: Profile,
    given: dict[str, Any],
    *,
    broker_conf: Path | str | BrokerConf | None = None,
) -> Opened:
    """Make an empty store at `path`, a folder that is missing or empty.

    `given` are options by name that win over broker.conf.

    Raises:
        RefusedError: something is there, or broker.conf is not one of a store that rmqtool writes.
        UnreadableError, InputError: broker.conf cannot be read.
        UsageError: a size that a broker could not use, or a log that broker.conf has elsewhere.
        UnwritableError: it cannot be made.
    """
    options = examine_new(path, profile, given, broker_conf=broker_conf)
    path = path.absolute()
    disk.make_folder(path, own=True)
    for name in FOLDERS:  # before the lock: from here on it is an empty store, also when this is killed
        disk.make_folder(path / name)
    with ExitStack() as stack:
        held = lock.acquire(path / "lock")
        stack.callback(held.release)
        disk.sync_folder(path)
        config_files.create_config(path, profile)
        disk.sync_folder(path.parent)
        store = Store.open(path)
        stack.pop_all()
    return Opened(path, held, store, options, 0, 0, (path / "commitlog",))


def open_existing(
    path: Path,
    given: dict[str, Any],
    *,
    profile: str | None = None,
    commitlog_paths: Sequence[Path | str] = (),
    read_only_paths: Sequence[Path | str] = (),
    broker_conf: Path | str | BrokerConf | None = None,
    check: Callable[[WriteOptions], None] | None = None,
) -> Opened:
    """Open the store at `path` for writing; `given` are options by name that win over what is found.

    `check` is called with the settings before anything of the store changes. What it raises is raised, and
    so is, where there is a `check`, what the first message would meet.

    Raises:
        NotAStoreError, UnreadableError: as `detect`.
        StoreInUseError: its lock is held.
        RefusedError: it must not be written, with the reason.
        UsageError: an option that a broker could not use, or that the store's files contradict.
        UnwritableError: the lock cannot be taken.
    """

    def look(*, queues: bool) -> StoreLayout:
        layout = detect(
            path, commitlog_paths=commitlog_paths, read_only_paths=read_only_paths, broker_conf=broker_conf,
            queues=queues,
        )  # fmt: skip
        check_layout(layout, path)
        return layout

    path = Path(os.path.realpath(path))  # resolve() raises RuntimeError for links in a circle
    if lock.holder(path / "lock").is_held:
        lock.acquire(path / "lock").release()  # raises, naming the holder
    layout = look(queues=False)
    folders = written_folders(path, layout.commit_log_folders, layout.broker_conf, read_only_paths)
    if check is not None:
        permission.check_store(layout, path, folders, FOLDERS)
    with ExitStack() as stack:
        held = lock.acquire(path / "lock")
        stack.callback(held.release)
        layout = look(queues=True)
        check_entries(layout, path)
        store = Store(layout)
        stack.callback(store.close)
        found = _look_at_ends(store)
        options = _options(store, layout, found, profile, given)
        check_sizes(layout, options)
        dispatched = _check_ends(store, found)
        if check is not None:
            check(options)
        stack.pop_all()
    return Opened(path, held, store, options, found.end, dispatched, folders)


def examine(
    path: Path,
    given: dict[str, Any],
    *,
    profile: str | None = None,
    commitlog_paths: Sequence[Path | str] = (),
    read_only_paths: Sequence[Path | str] = (),
    broker_conf: Path | str | BrokerConf | None = None,
) -> WriteOptions:
    """The checks of `open_existing`, and how the store would be written; nothing is changed.

    Raises: as that; UnwritableError also for what the first message would meet.
    """
    path = Path(os.path.realpath(path))  # resolve() raises RuntimeError for links in a circle
    if lock.holder(path / "lock").is_held:
        lock.acquire(path / "lock").release()  # raises, naming the holder
    layout = detect(
        path, commitlog_paths=commitlog_paths, read_only_paths=read_only_paths, broker_conf=broker_conf
    )
    check_layout(layout, path)
    with Store(layout) as store:
        found = _look_at_ends(store)
        options = _options(store, layout, found, profile, given)
        check_sizes(layout, options)
        _check_ends(store, found)
    folders = written_folders(path, layout.commit_log_folders, layout.broker_conf, read_only_paths)
    permission.check_store(layout, path, folders, FOLDERS)
    return options


def check_layout(layout: StoreLayout, path: Path, *, is_clean: bool = True) -> None:
    """Raise for a store that must not be written; `is_clean`: also for one that was not closed cleanly.

    Raises: as `open_existing`.
    """
    if layout.kind != "store":
        raise UsageError(f"{path} is not a store root", hint="name the folder that holds commitlog")
    if layout.guard is not None:
        raise RefusedError("a repair of this store was interrupted", path=layout.guard,
                           hint=command_on(layout, "recover"))  # fmt: skip
    layout.check_log_changes()
    if layout.abort is not None and is_clean:
        raise RefusedError("the store was not closed cleanly", path=layout.abort,
                           hint=command_on(layout, "recover"))  # fmt: skip
    for part in layout.not_written:
        raise RefusedError(
            f"{part.what} in {part.form}, which rmqtool does not write", path=part.path,
            hint="send messages to its broker once it runs, which also delivers delayed ones; a copy has"
            f" files only: {command_on(layout, 'copy', '--output', 'NEW')}",
        )  # fmt: skip
    conf = layout.broker_conf
    if conf is not None and conf.text("brokerRole") == "SLAVE":
        raise RefusedError("brokerRole is SLAVE: the log of a slave is its master's", path=path)
    if conf is not None and (conf.text("storeType") or "").lower() == _ROCKSDB:
        raise RefusedError(
            "storeType is defaultRocksDB: that broker keeps its queues in RocksDB, rmqtool writes files",
            path=conf.path,
        )
    for entry, reason in layout.unreadable:
        raise UnreadableError(f"cannot read: {reason}", path=entry)
    for entry in layout.commit_log_strays:
        raise RefusedError("does not belong into a commit log, a broker would not start", path=entry,
                           hint=command_on(layout, "verify"))  # fmt: skip
    for folder in (*layout.commit_log_folders, *(path / name for name in FOLDERS)):
        if folder.is_symlink():
            raise _link(folder)
    root = path.resolve()
    for folder in layout.commit_log_folders:
        parent = folder.resolve().parent
        if parent != root and any((parent / name).exists() for name in ("lock", "checkpoint", "abort")):
            raise RefusedError(f"belongs to another store, {parent}", path=folder)


def _link(path: Path) -> RefusedError:
    return RefusedError("is a symbolic link: nothing is written through one", path=path)


def check_entries(layout: StoreLayout, path: Path) -> None:
    """Check that everything a writer may open is a plain file, and its folders are folders of the store.

    Raises RefusedError.
    """
    for name in ("checkpoint", "lock", "abort.bak"):
        file = path / name
        if file.is_symlink():
            raise _link(file)
        if file.exists() and not file.is_file():
            raise RefusedError("is not a plain file", path=file)
    _check_queues(layout, path)
    _check_files(_entries(path / "index"))
    # 5.x keeps folders of RocksDB in config/, and passes over a folder in the commit log.
    for folder in (path / "config", *layout.commit_log_folders):
        _check_files(entry for entry in _entries(folder) if not entry.is_dir())


def _check_queues(layout: StoreLayout, path: Path) -> None:
    """The same for the folders of queues, as they were listed: there may be 100,000 of them."""
    parts = [path / part for part in ("consumequeue", "batchconsumequeue", "consumequeue_ext")]
    for link in layout.links:
        if any(link.is_relative_to(part) for part in parts):
            raise _link(link)
    strays = (*layout.consume_queue_strays, *layout.batch_queue_strays, *layout.ext_queue_strays)
    for stray in strays:  # of a topic or queue; a folder is one that does not have a queue's name
        _check_files(_entries(stray))
    for queues in (layout.consume_queues, layout.batch_queues, layout.ext_queues):
        for queue in queues.values():
            for stray in queue.strays:
                if not stray.is_file():
                    raise RefusedError("is not a plain file", path=stray)


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none if it is missing.

    Raises RefusedError for a symbolic link in it.
    """
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise RefusedError("is not a folder", path=Path(folder)) from error
    for entry in entries:
        if entry.is_symlink():
            raise _link(Path(entry.path))
    return entries


def _check_files(entries: Iterable[os.DirEntry[str]]) -> None:
    for entry in entries:
        if not entry.is_file():
            raise RefusedError("is not a plain file", path=Path(entry.path))


def check_sizes(layout: StoreLayout, options: WriteOptions) -> None:
    """Raise RefusedError for a file whose size or place a broker with these options would not take."""
    files = [(layout.commit_log, options.commit_log_file_size, "commit log")]
    for queue in layout.consume_queues.values():
        files.append((queue.files, options.consume_queue_file_size, "consume queue"))
    for queue in layout.batch_queues.values():
        files.append((queue.files, options.batch_queue_file_size, "batch queue"))
    for queue in layout.ext_queues.values() if options.ext_queues else ():
        files.append((queue.files, options.ext_queue_file_size, "extension"))
    for group, size, what in files:
        for file in group:
            if file.size != size or file.file_from_offset % size:
                raise RefusedError(
                    f"does not have the {size} bytes of the other {what} files; a broker would not start",
                    path=file.path, hint=command_on(layout, "verify"),
                )  # fmt: skip
    for index_file in layout.index_files:
        if index_file.size != options.index_shape.size:
            raise RefusedError(
                f"is not an index file of {options.index_slots} slots and {options.index_entries} entries",
                path=index_file.path, hint=command_on(layout, "verify"),
            )  # fmt: skip


class _Ends(NamedTuple):
    """The log's end, its last record if it has one, and the newest unit of every queue."""

    end: int
    last: Head | None
    queues: NewestUnits


def _look_at_ends(store: Store) -> _Ends:
    """Look at the end of the log and of every queue, once.

    The next record goes after the last one, or after the blank that fills the rest of its file.

    The record that made a crashed writer roll may not be on the device. A broker goes on in the next file
    too, but writes over the blank when there is none.

    Source: CommitLog#recoverNormally.
    """
    queues = store.newest_units()
    end, last = store.commit_log.tail(queues.places())
    file = store.commit_log.file_of(end)
    if file is not None:
        try:
            found = store.commit_log.read(end)
        except InputError:
            pass  # no whole record, and no blank
        else:
            end = file.end if isinstance(found, Blank) and found.ends_file else end
    return _Ends(end, last, queues)


def _check_ends(store: Store, found: _Ends) -> int:
    """Where dispatch continues; raises RefusedError where log and queues do not fit together."""
    layout = store.layout
    end, dispatched = found.end, found.queues.end
    hint = command_on(layout, "verify")
    if dispatched > end:
        raise RefusedError(f"its queues reach to {dispatched}, the log ends at {end}", path=layout.root,
                           hint=hint)  # fmt: skip
    for file in layout.commit_log:
        start = max(end - file.file_from_offset, 0)
        if start >= file.size:
            continue
        try:
            with opened(file.path) as descriptor:
                rest = os.pread(descriptor, min(_REST_CHECKED, file.size - start), start)
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
        if any(rest):
            raise RefusedError("the log continues after its last sound record", path=file.path,
                               physical_offset=file.file_from_offset + start, hint=hint)  # fmt: skip
    check_last_file(store, end, found.queues)
    return dispatched if dispatched >= 0 else max(store.commit_log.min_offset, 0)


def _options(
    store: Store, layout: StoreLayout, ends: _Ends, profile: str | None, given: dict[str, Any]
) -> WriteOptions:
    """The settings of an existing store, see `_settled`."""
    by = written_by(layout) if profile is None else named(profile)
    found: dict[str, Any] = {"written_by": by, "delays_ms": delay_levels(store).delays_ms}
    last = store.find(ends.last.physical_offset) if ends.last is not None else None
    if last is not None:
        found["store_host"] = last.message.store_host
        found["property_crc"] = (
            by.profile.writes_version_2 and properties.property_crc(last.message.properties_bytes) is not None
        )
    return _settled(layout, by.profile, found, given)


def _settled(
    layout: StoreLayout, profile: Profile, found: dict[str, Any], given: dict[str, Any]
) -> WriteOptions:
    """The settings: given > broker.conf > found in the store > default."""
    sizes: dict[str, Any] = {name: getattr(layout, name) for name in SIZES}
    sizes["ext_queues"] = layout.writes_extensions
    conf = layout.broker_conf
    if conf is not None:
        found = found | _of_conf(conf, profile, property_crc=found.get("property_crc", False))
    return WriteOptions(profile=profile, **(sizes | found | given))


def dispatch_options(
    layout: StoreLayout, profile: Profile, settings: Mapping[str, str] | None
) -> WriteOptions:
    """How the log of a store is dispatched whose broker is another one's slave.

    The sizes of files that exist count; for others, and for all else, the configuration of the master.

    Args:
        layout: of the store.
        profile: the version of the master.
        settings: the master's configuration, by name; None if it is not known: then light queues are written
            where records name them.

    Raises:
        UsageError: a size that a broker could not use, or a delay level that cannot be read.
    """
    assert layout.root is not None
    conf = BrokerConf(layout.root, settings or {})
    wanted = new_layout(layout.root, broker_conf=conf)
    options: dict[str, Any] = {
        name: getattr(wanted if layout.origins[name] == "default" else layout, name) for name in SIZES
    }
    options["commit_log_file_size"] = layout.commit_log_file_size
    options["ext_queues"] = layout.writes_extensions or wanted.writes_extensions
    found = _of_dispatch(conf)
    if settings is None:
        found["multi_dispatch"] = True
    if "delays_ms" not in found:
        with Store(layout) as store:
            found["delays_ms"] = delay_levels(store).delays_ms
    return WriteOptions(profile=profile, **options, **found)


def _of_dispatch(conf: BrokerConf) -> dict[str, Any]:
    """What a broker.conf says of the dispatch."""
    levels = configured(conf)
    return {
        "index": conf.flag("messageIndexEnable", default=True),
        "multi_dispatch": conf.flag("enableMultiDispatch") or conf.flag("enableLmq"),
        **({} if levels is None else {"delays_ms": levels}),
    }


def _of_conf(conf: BrokerConf, profile: Profile, *, property_crc: bool) -> dict[str, Any]:
    found = _of_dispatch(conf)
    cluster, region = conf.text("brokerClusterName"), conf.text("regionId")
    if cluster is not None:
        found["cluster"] = cluster
    if region is not None:
        found["region"] = region
    if conf.text("flushDiskType") is not None:
        found["flush"] = "sync" if conf.text("flushDiskType") == "SYNC_FLUSH" else "async"
    for name, setting in (
        ("max_message_size", "maxMessageSize"),
        ("flush_interval_ms", "flushIntervalCommitLog"),
        ("flush_least_pages", "flushCommitLogLeastPages"),
        ("flush_thorough_interval_ms", "flushCommitLogThoroughInterval"),
        ("sync_flush_timeout_ms", "syncFlushTimeout"),
        ("checkpoint_interval_ms", "flushConsumeQueueThoroughInterval"),
        ("commit_interval_ms", "commitIntervalCommitLog"),
    ):
        value = conf.integer(setting)
        if value is not None:
            found[name] = value
    found["property_crc"] = property_crc or (profile.writes_version_2 and conf.flag("enabledAppendPropCRC"))
    return found
