"""The committed offsets of consumer groups that a broker would load.

Source: ConsumerOffsetManager, LmqConsumerOffsetManager (topics and queues of MQTT and light topics).
"""

from __future__ import annotations

from collections.abc import Iterable

from rmqtool.errors import (
    FormatError,
    InputError,
    RmqtoolError,
    UnreadableError,
    UnsupportedStoreError,
    UsageError,
)
from rmqtool.formats import config_json
from rmqtool.message.system_topics import RETRY_PREFIX
from rmqtool.read.lost_config import (
    groups_without_offsets,
    is_group_of_brokers,
    lost_config,
    replaces_offsets,
    still_lost,
    where_offsets_were,
)
from rmqtool.read.store import Store
from rmqtool.storage.config_files import FOLDER, read_config

OFFSET_FILES = ("consumerOffset.json", "lmqConsumerOffset.json")

Offsets = dict[tuple[str, str], dict[int, int]]
"""By (topic, group) and queue id the next queue offset to consume."""


def consumer_offsets(store: Store) -> Offsets:
    """The committed offsets of all groups, from the files or their .bak.

    Raises:
        UsageError: no store root was opened.
        UnsupportedStoreError: they are in RocksDB.
        UnreadableError: a file is there and cannot be read.
        FormatError: a file cannot be understood, or is empty. A broker then takes the .bak, and where there
            is none it goes on with no offsets at all; where the groups stood is not known.
    """
    offsets: Offsets = {}
    _check(store)
    for name in OFFSET_FILES:
        offsets |= _of_file(store, name) or {}
    return offsets


def with_retry_groups(offsets: Offsets, topics: Iterable[str]) -> Offsets:
    """Return the offsets, with an empty entry for the group of each retry topic for which none has committed.

    The group in the name of a retry topic reads it, and has messages there that it has not consumed.

    Args:
        offsets: as committed.
        topics: of the store.
    """
    read = {topic for topic, _ in offsets}
    retry = (topic for topic in topics if topic.startswith(RETRY_PREFIX) and topic not in read)
    return offsets | {(topic, topic.removeprefix(RETRY_PREFIX)): {} for topic in retry}


def expired_unread(store: Store) -> dict[str, int]:
    """By group, how many messages were deleted before the group consumed them; unknown offsets count as none.

    Groups of the broker itself are left out. A queue that cannot be read is among `store.failures`.
    """
    missed: dict[str, int] = {}
    if store.commit_log.min_offset == 0:
        return missed
    for (topic, group), committed in known_offsets(store)[0].items():
        for queue_id, offset in committed.items():
            if is_group_of_brokers(group) or (topic, queue_id) not in store.queues:
                continue
            try:
                lost = store.first_live(topic, queue_id) - max(offset, 0)
            except UnreadableError as error:
                store.note_failure(error)
                continue
            except FileNotFoundError:
                continue  # a live broker has deleted the file
            if lost > 0:
                missed[group] = missed.get(group, 0) + lost
    return missed


def known_offsets(store: Store, *, needed: bool = False) -> tuple[Offsets, list[str]]:
    """Return the committed offsets that can be read, and texts on those that cannot.

    Args:
        store: of a root.
        needed: a missing consumerOffset.json is reported too. A broker writes the file within seconds, also
            without any group: where it is not there, that no group reads here is not known. A file
            that replaces the offsets in RocksDB is reported as well.
    """
    offsets: Offsets = {}
    unknown: list[str] = []
    try:
        _check(store)
    except RmqtoolError as error:
        return {}, [error.message]
    missing: list[str] = []
    for name in OFFSET_FILES:
        try:
            found = _of_file(store, name)
        except InputError as error:
            if isinstance(error, UnreadableError):
                store.note_failure(error)
            unknown.append(f"{FOLDER}/{name}: {error.message}")
            continue
        if found is None:
            missing.append(name)
        else:
            offsets |= found
    topics = {topic for topic, _ in store.queues}
    if needed and not unknown and OFFSET_FILES[0] in missing:
        in_files = store.layout.rocksdb_config is None
        unknown.append(f"{FOLDER}/" * in_files + where_offsets_were(store.layout, topics))
    elif needed and not unknown and (without := groups_without_offsets(store.layout, topics)):
        unknown.append(still_lost(without))
    if needed and not unknown and replaces_offsets(store.layout):
        unknown.append(
            f"{FOLDER}/{OFFSET_FILES[0]} has a larger version than the committed offsets in RocksDB:"
            " groups that only RocksDB has are left out (CF10)"
        )
    return offsets, unknown


def offsets_are_lost(store: Store) -> bool:
    """Whether the store must have had committed offsets, and all or those of some groups are gone (CF08)."""
    messages = dict.fromkeys((topic for topic, _ in store.queues), 1)
    return any(found.problem.code == "CF08" for found in lost_config(store.layout, messages))


def _check(store: Store) -> None:
    if store.layout.kind != "store" or store.layout.root is None:
        raise UsageError("no store root was given: only there are the offsets of consumers")
    made = store.layout.rocksdb_config
    if made is not None and OFFSET_FILES[0] in made.documents:
        return
    for part in store.layout.unsupported:
        if part.what == "config":
            reason = f", which cannot be read: {part.reason}" if part.reason else ""
            raise UnsupportedStoreError(f"the consumer offsets are in {part.form}{reason}", path=part.path)


def _of_file(store: Store, name: str) -> Offsets | None:
    """The offsets of one file; None where a broker loads nothing under its name: no file, no .bak."""
    folder = store.layout.config_folder
    assert folder is not None, "_check was called"
    loaded = read_config(folder, name)
    if loaded.source == "none" and loaded.file_error:
        raise FormatError(
            f"the consumer offsets cannot be parsed, and there is no .bak: {loaded.file_error}",
            path=folder / name,
        )
    if loaded.source == "none" and loaded.is_empty:
        raise FormatError(
            "the consumer offsets are lost: the file is empty, and no .bak has any",
            path=folder / name,
        )
    if loaded.source == "none":
        return None
    return config_json.consumer_offsets(loaded.document)
