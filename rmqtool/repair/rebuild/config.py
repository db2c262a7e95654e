"""Restores topics.json from the log if it is lost or lacks topics, and config files from their .bak.

A topic of the log gets the number of queues that its highest queue id implies, the least that it can have
had, and perm 6 (read and write). The broker creates its own topics itself; light queues are not topics. If
topics.json hides queues with unread messages, it names more to read, and as many to write as before. Topics
that are whole in a file that is cut, as by a full disk, keep their settings.
SELF_TEST_TOPIC, which every broker has, is written where the committed offsets are lost too: it shows that a
broker has used the store, and the loss (CF08) stays a finding after the repair.

Source: TopicConfigManager, ConfigManager#load; spec 01 section 9.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from rmqtool.check.verify.context import CONFIG_LIMIT
from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import config_change, config_json
from rmqtool.formats.config_json import BATCH_ATTRIBUTES, TopicConfig
from rmqtool.near_names import listed
from rmqtool.read.hidden_messages import HiddenQueues, hidden_queues, queues_to_read
from rmqtool.read.lost_config import (
    CONSUMER_OFFSETS,
    NAMED,
    database_of,
    has_config,
    lacks_topic,
    lost_config,
    needs_entry,
)
from rmqtool.repair.plan import Action, ActionKind
from rmqtool.sizes import cut_name
from rmqtool.storage.config_files import CONFIG_FILES, FOLDER, TOPICS
from rmqtool.storage.open_files import read_head
from rmqtool.write.topics import DEFAULT_PERM, QUEUES_MAX

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.repair.rebuild import Rebuild
    from rmqtool.storage.layout import StoreLayout

_OF_ALL_BROKERS = TopicConfig("SELF_TEST_TOPIC", 1, 1, DEFAULT_PERM)
_REASON = "topics and numbers of queues as log and queues show"
_CODES = {"none": "CF06", "failed": "CF02"}
_NOT_SHOWN = (
    "the new topics.json lacks {}topics without messages; order and permissions of"
    " {} are the defaults, because neither log nor queues show them. A copy of the old file, from a backup,"
    " the old host or a slave, is better; without one, compare the new file with your notes, and create"
    " missing topics before their producers start"
)


def config_actions(store: Store, found: Rebuild) -> tuple[list[Action], list[str]]:
    """The actions that repair config files, and texts on what these lack.

    Of a configuration in RocksDB only lost topics are made again, in three databases of v1: a broker takes
    those of topics.json into the new database. Source: RocksDBTopicConfigManager#merge.

    Args:
        store: the store.
        found: the rebuild, with the queues of its log.

    Raises:
        UnreadableError: a file exists but cannot be read.
    """
    if not can_write_topics(store.layout):
        return [], []
    topics = list(_topics(store, found))
    made = {each.path for each in topics}  # it includes the .bak
    in_database = store.layout.rocksdb_config is not None
    others = [] if in_database else [each for each in _from_bak(store) if each.path not in made]
    texts = [f"{each.problem} {_not_shown(each.detail['kept'])}" for each in topics if each.detail["topics"]]
    return [*others, *topics], texts


def _not_shown(kept: int) -> str:
    """What a new topics.json lacks, with `kept` topics of the old one."""
    if not kept:
        return _NOT_SHOWN.format("", "those that it gets")
    what = "1 topic is" if kept == 1 else f"{kept} topics are"
    lacks = _NOT_SHOWN.format("other ", "the others")
    return f"{what} as the part of the old file shows that can be read; {lacks}"


def can_write_topics(layout: StoreLayout) -> bool:
    """Whether topics can be put into topics.json: of a configuration in RocksDB only if they are lost."""
    if not has_config(layout) or layout.rocksdb_config is None:
        return has_config(layout)
    return database_of(layout, TOPICS) is not None and TOPICS not in layout.config


def _from_bak(store: Store) -> Iterator[Action]:
    for name in CONFIG_FILES:
        data, bak = _content(store, name), _content(store, f"{name}.bak")
        if bak is None or config_json.load_with_bak(name, data, bak).source != "bak":
            continue
        kind: ActionKind = "create" if data is None else "replace"
        reason = "the file is missing or cannot be read; a broker loads its .bak, which is copied"
        if name == CONSUMER_OFFSETS:  # else nothing would show any more that the offsets are old
            document = config_json.load_with_bak(name, None, bak).document
            with suppress(FormatError):
                document = config_change.with_old_offsets(document, is_known=store.written_by.is_known)
            bak = config_json.dump(document, store.profile.name)
        yield Action(kind, f"{FOLDER}/{name}", 0, len(bak), reason, "CF01", {}, bak)


def _content(store: Store, name: str) -> bytes | None:
    path = store.layout.config.get(name)
    if path is None:
        return None
    data = read_head(path, CONFIG_LIMIT + 1)
    if data is not None and len(data) > CONFIG_LIMIT:
        raise UnreadableError("is larger than any config file", path=path)
    return data


def _topics(store: Store, found: Rebuild) -> Iterator[Action]:
    data, bak = _content(store, TOPICS), _content(store, f"{TOPICS}.bak")
    loaded = config_json.load_with_bak(TOPICS, data, bak)
    is_lost = loaded.source not in ("file", "bak")
    topics, hidden = topics_of(found), list[HiddenQueues]()
    if not is_lost:
        topics, hidden = _wanting(store, found, loaded.document, topics)
    if not topics and not hidden:
        return
    kept: dict[str, TopicConfig] = {}
    if is_lost:
        kept = config_json.whole_topics(bak or b"") | config_json.whole_topics(data or b"")
        topics |= kept
        of_config = lost_config(store.layout, dict.fromkeys(topics, 1))
        if any(each.problem.code == "CF08" for each in of_config):
            topics.setdefault(_OF_ALL_BROKERS.name, _OF_ALL_BROKERS)
    dialect, time_ms = store.profile.name, max(found.last_store_timestamp, 0)
    document = config_change.new_topics(dialect, time_ms) if is_lost else loaded.document
    version = config_json.data_version(document)
    time_ms = max(time_ms, 0 if version is None else version.timestamp)
    if topics:
        document = config_change.with_topics(document, topics, dialect, time_ms)
    if raised := queues_to_read(hidden):
        document = config_change.with_read_queues(document, raised, dialect, time_ms)
    if not store.written_by.is_known:  # the file would show the assumed version as a fact from now on
        document = config_change.without_dialect(document)
    content = config_json.dump(document, dialect)
    made = store.layout.rocksdb_config
    is_there = data is not None or (made is not None and TOPICS in made.ignored)
    kind: ActionKind = "replace" if is_there else "create"
    whole = f"what is left of {len(kept)} topics in the old file; other " if kept else ""
    reason = f"{whole}{_REASON}" if is_lost else _changed(topics, hidden, found.messages)
    added = [
        {"topic": name, "queues": topic.write_queue_nums, "messages": found.messages.get(name, 0)}
        for name, topic in topics.items()
        if name not in kept
    ]
    code = _CODES.get(loaded.source, "CF03" if topics else "CF15")
    detail = {
        "topics": len(topics),
        "kept": len(kept),
        "added": added,
        "raised": [each.row() for each in hidden],
    }
    yield Action(kind, f"{FOLDER}/{TOPICS}", 0, len(content), reason, code, detail, content)


def _wanting(
    store: Store, found: Rebuild, document: config_change.Document, topics: Mapping[str, TopicConfig]
) -> tuple[dict[str, TopicConfig], list[HiddenQueues]]:
    """What topics.json needs, if it can be understood.

    Those of `topics` that have messages, but that it lacks, and those of which it has too few queues.
    """
    try:
        known = config_json.topics(document)
        config_json.data_version(document)
    except FormatError:
        return {}, []
    hidden = hidden_queues(store.layout, found.queue_ends, found.queue_ends.get)
    lacking = {
        name: topic
        for name, topic in topics.items()
        if found.messages.get(name) and lacks_topic(store.layout, known, name)
    }
    return lacking, [each for each in hidden if each.config.is_readable]


def _changed(topics: Collection[str], hidden: Sequence[HiddenQueues], messages: Mapping[str, int]) -> str:
    texts = [_added(topics, messages)] if topics else []
    if hidden:
        count = sum(each.messages for each in hidden)
        of = listed([cut_name(each.topic) for each in hidden], NAMED)
        texts.append(
            f"readQueueNums of {of} is raised, which hid {count} message{'s'[count == 1 :]};"
            " writeQueueNums and perm stay as they are"
        )
    return "; ".join(texts)


def _added(topics: Collection[str], messages: Mapping[str, int]) -> str:
    are, have = ("1 topic is", "has") if len(topics) == 1 else (f"{len(topics)} topics are", "have")
    count = sum(messages[topic] for topic in topics)
    having = f"{have} {count} message{'s'[count == 1 :]}"
    return f"{are} added that {having}, with the numbers of queues that log and queues show"


def topics_of(found: Rebuild) -> dict[str, TopicConfig]:
    """The topics of the queues by name, without those that a broker creates itself and light queues."""
    counts: dict[str, int] = {}
    for topic, queue_id in found.queue_ends:
        if needs_entry(topic) and (topic, queue_id) not in found.light and 0 <= queue_id < QUEUES_MAX:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    return {
        topic: TopicConfig(
            topic, count, count, DEFAULT_PERM,
            topic_filter_type="MULTI_TAG" if topic in found.multi_tags else "SINGLE_TAG",
            attributes=dict(BATCH_ATTRIBUTES) if topic in found.batch_topics else {},
        )
        for topic, count in sorted(counts.items())
    }  # fmt: skip
