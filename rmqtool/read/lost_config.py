"""Config files of a broker that are gone: committed offsets, offsets of delay levels, groups; lost topics.

A store that rmqtool has made never had a consumerOffset.json, and neither has an archive of log files. So
its absence is damage only where a broker ran: its topics.json holds topics that every broker puts there,
or a file lies in config that only brokers write. Where topics.json is gone too, a checkpoint, queues, or
messages of a consumer group's own topics show that this is a store in use, and its config was lost.

A broker takes a file that is empty or cannot be parsed for one without content if it has no .bak with some.
So these are lost like files that are gone; if the .bak cannot be parsed, a broker does not start (CF02).

Once `reset-offset` has set the offsets of some groups, those of the others are lost all the same: a field of
the file says so until a broker writes it.

A broker whose queues are in RocksDB only has its configuration there too. It takes topics.json and
consumerOffset.json over if their version is larger than that of its databases, as it is if these are new;
with configManagerVersion=v2 it reads neither.

Source: BrokerController#initializeMetadata, RocksDBConfigManager; spec 06 3.1, 3.3.
ConsumerOffsetManager (persisted 10 s after the start, every 5 s, and at the stop),
ScheduleMessageService, SubscriptionGroupManager, TopicConfigManager#init; spec 01 9.3 to 9.6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

from rmqtool.errors import FormatError, InputError, UnreadableError
from rmqtool.formats import config_json
from rmqtool.formats.config_change import OFFSETS_LOST, OFFSETS_OLD, decided_since
from rmqtool.message.system_topics import (
    BUILT_IN_GROUPS,
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    is_system_topic,
    is_topic_name,
)
from rmqtool.near_names import listed
from rmqtool.problems import COPY_CONFIG, Finding, finding
from rmqtool.queue.light_queues import LIGHT_PREFIX
from rmqtool.sizes import cut_name
from rmqtool.storage.config_files import CONFIG_FILES, DELAY_OFFSETS, GROUPS_FILE, TOPICS, read_config
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.listing import Listing
from rmqtool.times import format_time

CONSUMER_OFFSETS = "consumerOffset.json"
_SINCE = "since it was written"  # of CF13; a broker writes what the file had five seconds before as the .bak
NAMED = 3  # groups or topics that a finding names
_FOLDERS = {TOPICS: "topics", GROUPS_FILE: "subscriptionGroups", CONSUMER_OFFSETS: "consumerOffsets"}
"""The databases of a configuration in RocksDB (v1), in config/."""
_OF_OTHER_FORMS = (
    "config/metadata with useSingleRocksDBForAllConfigs, config/rdb with configManagerVersion=v2"
)
_TOPICS_OF_BROKERS = frozenset({"SELF_TEST_TOPIC", "TBW102"})
_WRITTEN_WITH_OFFSETS = (
    DELAY_OFFSETS, "consumerFilter.json", "consumerOrderInfo.json", "timermetrics", "transactionMetrics",
)  # fmt: skip
"""A broker writes these, as the committed offsets, ten seconds after its start for the first time."""
_FILES_OF_BROKERS = (
    CONSUMER_OFFSETS, GROUPS_FILE, "consumerFilter.json", "consumerOrderInfo.json", "messageRequestMode.json",
    "topicQueueMapping.json", "timermetrics", "transactionMetrics",
)  # fmt: skip


def is_group_of_brokers(group: str) -> bool:
    """Whether every broker has this group of itself (SubscriptionGroupManager#init)."""
    return group in BUILT_IN_GROUPS or group.startswith(("CID_RMQ_SYS_", "CID_ONSAPI_"))


def lost_config(
    layout: StoreLayout, messages: Mapping[str, int], *, live: bool = False, last_ms: int = 0
) -> Iterator[Finding]:
    """CF07 to CF10, CF13, CF14: what is lost though the store must have had it, or is replaced.

    Args:
        layout: of a store.
        messages: how many there are, by topic.
        live: whether a broker runs, which may just be writing a file that has a .bak.
        last_ms: the store time of the last message, with which CF13 compares the .bak; 0 if it is unknown.
    """
    if not has_config(layout):
        return
    yield from _replaced_offsets(layout)
    if not live:
        yield from _old_offsets(layout, messages, last_ms)
    yield from _unknown_groups(layout)
    if without := groups_without_offsets(layout, messages):
        found = finding("CF08", f"config/{CONSUMER_OFFSETS}", groups=len(without), names=without)
        repair = f"{COPY_CONFIG} (this replaces the offsets that were set since)"
        problem = replace(found.problem, repair=(found.problem.repair or "").replace(COPY_CONFIG, repair))
        yield replace(found, problem=problem, message=f"{still_lost(without)}: {listed(without, NAMED)}")
    delayed = messages.get(SCHEDULE_TOPIC, 0)
    if delayed and has_no_content(layout, DELAY_OFFSETS):
        found = finding("CF07", f"config/{DELAY_OFFSETS}", records=delayed)
        stored = "1 delayed message is" if delayed == 1 else f"{delayed} delayed messages are"
        yield replace(found, message=f"{how_lost(layout, DELAY_OFFSETS)}, but {stored} stored")
    lost = [name for name in (CONSUMER_OFFSETS, GROUPS_FILE) if has_no_content(layout, name)]
    if not lost or not any(messages.values()) or not _is_of_a_broker(layout, messages):
        return
    groups = known_groups(layout, messages)
    if CONSUMER_OFFSETS in lost:
        yield _lost("CF08", layout, CONSUMER_OFFSETS, len(groups))
    if GROUPS_FILE in lost and groups:
        names = sorted(groups, key=by_length)
        found = _lost("CF09", layout, GROUPS_FILE, len(groups))
        detail = found.detail | {"names": names}
        yield replace(found, message=f"{found.message}: {listed(names, NAMED)}", detail=detail)


def _unknown_groups(layout: StoreLayout) -> Iterator[Finding]:
    """CF14: groups with committed offsets that subscriptionGroup.json, which can be read, lacks."""
    if has_no_content(layout, GROUPS_FILE):
        return
    try:
        known = config_json.subscription_groups(_document(layout, GROUPS_FILE, None))
        committed = config_json.consumer_offsets(_document(layout, CONSUMER_OFFSETS, {}))
    except InputError:  # a finding of its own
        return
    groups = {group for _, group in committed if not is_group_of_brokers(group)}
    if names := sorted(groups - known.keys(), key=by_length):
        found = finding("CF14", f"config/{GROUPS_FILE}", groups=len(names), names=names)
        have, are = ("has", "is") if len(names) == 1 else ("have", "are")
        count = f"{len(names)} group{'s'[len(names) == 1 :]}"
        text = f"{count} {have} committed offsets, but {are} not in {GROUPS_FILE}"
        yield replace(found, message=f"{text}: {listed([*map(cut_name, names)], NAMED)}")


def lost_topics(layout: StoreLayout, topics: int) -> Iterator[Finding]:
    """CF06: topics.json is lost with its .bak, or its database is, though `topics` topics have messages."""
    if not topics or not has_config(layout) or not has_no_content(layout, TOPICS):
        return
    place = database_of(layout, TOPICS)
    found = finding("CF06", place or f"config/{TOPICS}", topics=topics)
    how = how_lost(layout, TOPICS)
    if place is not None:
        how = f"{database_is_missing(layout, TOPICS)}: all topics are lost"
    yield with_cure(replace(found, message=how), layout, TOPICS)


def unknown_topics(
    layout: StoreLayout, messages: Mapping[str, int], known: Collection[str] | None = None
) -> Iterator[Finding]:
    """CF03, CF12: topics.json lacks topics that have messages; those without queues were deleted.

    A broker that deletes a topic removes its queues too. Source: AdminBrokerProcessor#deleteTopic.

    Args:
        layout: of a store.
        messages: how many there are, by topic.
        known: the topics of topics.json; None: it is read. Without one CF06 says more.
    """
    if not has_config(layout) or (known is None and has_no_content(layout, TOPICS)):
        return
    try:
        known = config_json.topics(_document(layout, TOPICS, {})) if known is None else known
    except InputError:  # a finding of its own
        return
    with_queues = topics_with_queues(layout)
    found = {
        topic: count
        for topic, count in messages.items()
        if needs_entry(topic) and lacks_topic(layout, known, topic)
    }
    for code, lacking in (
        ("CF03", {topic: count for topic, count in found.items() if topic in with_queues}),
        ("CF12", {topic: count for topic, count in found.items() if topic not in with_queues}),
    ):
        if not lacking:
            continue
        records, names = sum(lacking.values()), sorted(lacking, key=lambda topic: (-lacking[topic], topic))
        made = finding(code, f"config/{TOPICS}", topics=len(names), records=records, names=names)
        topics, of = f"{len(names)} topic{'s'[len(names) == 1 :]}", f"{records} message{'s'[records == 1 :]}"
        are, have = ("is", "has") if len(names) == 1 else ("are", "have")
        what = "" if code == "CF03" else f" and {have} no queues, as after a deletion"
        text = f"{topics} with {of} {are} not in {TOPICS}{what}: {listed([*map(cut_name, names)], NAMED)}"
        yield with_cure(replace(made, message=text), layout, TOPICS)


def lacks_topic(layout: StoreLayout, known: Collection[str], topic: str) -> bool:
    """Whether topics.json, which has the topics `known`, should have a topic but has not.

    A configuration in RocksDB of v2 holds nothing that a broker makes by itself.
    """
    made = layout.rocksdb_config
    by_broker = (RETRY_PREFIX, DLQ_PREFIX) if made is not None and made.is_v2 else ()
    return topic not in known and not topic.startswith(by_broker)


def needs_entry(topic: str) -> bool:
    """Whether a broker serves a topic of this name only if topics.json has it.

    A broker creates its own topics itself; light queues are not topics.
    """
    return is_topic_name(topic) and not is_system_topic(topic) and not topic.startswith(LIGHT_PREFIX)


def topics_with_queues(layout: StoreLayout) -> set[str]:
    """The topics that have a queue with files, or in RocksDB."""
    queues = (*layout.consume_queues.items(), *layout.batch_queues.items())
    return {topic for (topic, _), queue in queues if queue.files}


def unreadable_config(layout: StoreLayout) -> Iterator[Finding]:
    """CF02, CP06: config files that cannot be parsed, nor their .bak, or that cannot be read at all."""
    folder = layout.config_folder
    for name in CONFIG_FILES if has_config(layout) else ():
        listed = layout.config.get(name, layout.config.get(f"{name}.bak"))
        if folder is None or listed is None:
            continue
        try:
            read_config(folder, name)
        except FormatError as error:
            yield finding("CF02", layout.relative(listed), reason=error.message)
        except UnreadableError as error:
            yield finding("CP06", layout.relative(listed), reason=error.message)


def is_folder_lost(layout: StoreLayout) -> bool:
    """Whether no file is left in config/ of a store that a broker has used: the whole folder was lost."""
    return has_config(layout) and not layout.config and _is_of_a_broker(layout, {})


def has_config(layout: StoreLayout) -> bool:
    """Whether config/ belongs to this store, as to that of every broker, and can be read."""
    outside = any(part.what == "config" for part in layout.unsupported)
    return layout.kind == "store" and not outside and "config" not in layout.unreadable_parts


def groups_without_offsets(layout: StoreLayout, topics: Iterable[str]) -> list[str]:
    """The known groups without an offset, if all offsets were lost and some were set since.

    Args:
        layout: of a store.
        topics: that it has, besides those of topics.json.

    Returns:
        Their names, the shortest first.
    """
    if _is_missing(layout, CONSUMER_OFFSETS):
        return []
    try:
        document = _document(layout, CONSUMER_OFFSETS, {})
        if not isinstance(document, dict) or document.get(OFFSETS_LOST) is not True:
            return []
        have = {group for _, group in config_json.consumer_offsets(document)}
    except InputError:  # a finding of its own
        return []
    return sorted(known_groups(layout, topics) - have, key=by_length)


def _old_offsets(layout: StoreLayout, topics: Iterable[str], last_ms: int) -> Iterator[Finding]:
    """CF13: the offsets are those of the .bak, which a broker reads, or recover has put in their place."""
    folder, bak = layout.config_folder, layout.config.get(f"{CONSUMER_OFFSETS}.bak")
    if folder is None or layout.rocksdb_config is not None:
        return
    try:
        loaded = read_config(folder, CONSUMER_OFFSETS)
        have = {group for _, group in config_json.consumer_offsets(loaded.document)}
    except InputError:  # a finding of its own
        return
    if loaded.source != "bak" and OFFSETS_OLD not in loaded.document:
        return
    decided = decided_since(loaded.document)
    known = known_groups(layout, topics)
    of_clients = {group for group in have if not is_group_of_brokers(group)}
    left = sorted((known | of_clients) - decided, key=by_length)
    if decided and not left:
        return
    names = sorted(known - have - decided, key=by_length)
    is_original = bak is not None and not decided  # reset-offset replaces the .bak
    older_ms = _older_ms(bak, last_ms) if bak is not None and is_original else 0
    found = finding("CF13", f"config/{CONSUMER_OFFSETS}", groups=len(names), names=names, older_ms=older_ms)
    text = found.problem.message
    if older_ms:
        written, last = (format_time(each, UTC) or each for each in (last_ms - older_ms, last_ms))
        text += f"; the .bak was written {written}, the last message {last}"
        since = f"since {written} or up to 5 s before (the last message was stored {last})"
        broker = found.problem.broker.replace(_SINCE, since)
        found = replace(found, problem=replace(found.problem, broker=broker))
    if decided:
        text += f"; reset-offset has not set those of {listed([*map(cut_name, left)], NAMED)}"
    elif names:
        groups = f"{len(names)} known group{'s have' if len(names) > 1 else ' has'}"
        text += f"; {groups} no offset in it: {listed([*map(cut_name, names)], NAMED)}"
    yield replace(found, message=text)


def _older_ms(path: Path, last_ms: int) -> int:
    """How long before the last message a file was written; 0 if that is not known, as of a copy."""
    status = Listing().status(path)
    return 0 if status is None or not status.st_mtime else max(last_ms - round(status.st_mtime * 1000), 0)


def still_lost(groups: Sequence[str]) -> str:
    """Say of `groups_without_offsets` that there are such groups."""
    return f"the committed offsets of {len(groups)} group{'s'[len(groups) == 1 :]} are still lost"


def where_offsets_were(layout: StoreLayout, topics: Iterable[str]) -> str:
    """What is missing where committed offsets are lost (CF08); for `topics` see `groups_without_offsets`."""
    if without := groups_without_offsets(layout, topics):
        return still_lost(without)
    place = database_of(layout, CONSUMER_OFFSETS)
    if place is None:
        return how_lost(layout, CONSUMER_OFFSETS)
    return f"{place}, the database with the committed offsets, is missing"


def database_of(layout: StoreLayout, name: str) -> str | None:
    """The database that stands for a file of config, relative to the root; None if it is a file."""
    made = layout.rocksdb_config
    place = None if made is None else made.place_of(name)
    return None if place is None else layout.relative(place)


def by_length(name: str) -> tuple[int, str]:
    """The key that sorts the names of groups: the shortest first."""
    return len(name), name


def _lost(code: str, layout: StoreLayout, name: str, groups: int) -> Finding:
    place = database_of(layout, name)
    what = "the committed offsets of all groups are lost" if code == "CF08" else "there were consumer groups"
    found = finding(code, place or f"config/{name}", groups=groups)
    if place is None:
        how, between = how_lost(layout, name), ": " if code == "CF08" else ", but "
        message = f"{how}{between}{what}"
    else:
        message = f"{database_is_missing(layout, name)}: {what}"
    return with_cure(replace(found, message=message), layout, name)


def with_cure(found: Finding, layout: StoreLayout, name: str) -> Finding:
    """A finding about a lost file of config/ with what to do if the configuration is, or was, in RocksDB."""
    is_one = database_of(layout, name) is not None
    if not is_one and not _is_lost_in_rocksdb(layout, name):
        return found
    folder = f"the folder config/{_FOLDERS[name]}" + ("" if is_one else f" ({_OF_OTHER_FORMS})")
    copied = f"copy {folder} from a backup, from the host that the store came from, or from a slave"
    reads = "" if is_one else ", except with configManagerVersion=v2"
    if found.problem.code == "CF06":
        repair = (
            "rmqtool recover STORE: makes topics.json again from the log, which a broker takes over into"
            f" RocksDB when it starts{reads}; it is better to {copied}, while the broker is stopped"
        )
    else:
        without = (
            "set each group's offsets with rmqtool reset-offset before a broker starts, which takes them over"
            f" into RocksDB{reads}"
        )
        if is_one:
            without = (
                "start the broker without consumers, and set each group's offsets with mqadmin"
                " resetOffsetByTime: rmqtool reset-offset does not write RocksDB"
            )
        if found.problem.code == "CF09":
            without = (
                "create the named groups with mqadmin updateSubGroup (rmqtool doctor STORE --all names all)"
            )
        repair = f"while the broker is stopped, {copied}; without one, {without}"
    return replace(found, problem=replace(found.problem, repair=repair))


def _is_lost_in_rocksdb(layout: StoreLayout, name: str) -> bool:
    """Whether a lost file of config/ stands for a database: none is left, but the queues are in one."""
    gone = layout.rocksdb_config is None and not layout.has_queues_in_files
    return gone and name in _FOLDERS and _is_missing(layout, name)


def database_is_missing(layout: StoreLayout, name: str) -> str:
    """What a finding says of a lost database that stands for a file of config."""
    text = f"the RocksDB database {database_of(layout, name)} is missing"
    if layout.rocksdb_config is None or name not in layout.rocksdb_config.ignored:
        return text
    return f"{text}, and a broker does not read {name} instead, because the counter of its dataVersion is 0"


def replaces_offsets(layout: StoreLayout) -> bool:
    """Whether a file takes the place of committed offsets in RocksDB at the next start (CF10)."""
    return any(True for _ in _replaced_offsets(layout))


def _replaced_offsets(layout: StoreLayout) -> Iterator[Finding]:
    """CF10: a file that takes the place of committed offsets in RocksDB at the next start."""
    made = layout.rocksdb_config
    kept = None if made is None else made.in_database.get(CONSUMER_OFFSETS)
    if made is None or kept is None:
        return
    try:
        before, after = map(config_json.consumer_offsets, (kept, made.documents[CONSUMER_OFFSETS]))
    except FormatError:  # a finding of its own
        return
    lost = {group for key in before.keys() - after.keys() if not is_group_of_brokers(group := key[1])}
    changed = sum(
        after[key].get(queue_id) != offset
        for key in before.keys() & after.keys()
        for queue_id, offset in before[key].items()
    )
    if lost or changed:
        yield finding("CF10", f"config/{CONSUMER_OFFSETS}", groups=len(lost), offsets=changed)


def _is_missing(layout: StoreLayout, name: str) -> bool:
    return not {name, f"{name}.bak"} & layout.config.keys()


def has_no_content(layout: StoreLayout, name: str) -> bool:
    """Whether a broker that starts finds nothing in a config file and its .bak, and starts without both."""
    if _is_missing(layout, name):
        return True
    folder = layout.config_folder
    try:
        return folder is not None and read_config(folder, name).source == "none"
    except InputError:  # a finding of its own
        return False


def how_lost(layout: StoreLayout, name: str) -> str:
    """How a config file without content was lost, as a clause."""
    if _is_lost_in_rocksdb(layout, name):
        return f"{_FOLDERS[name]} (RocksDB) and {name} are missing"
    if _is_missing(layout, name):
        return f"{name} and its .bak are missing"
    its_bak = "its .bak is empty" if f"{name}.bak" in layout.config else "has no .bak"
    return f"{what_happened_to(layout, name)}, and {its_bak}"


def what_happened_to(layout: StoreLayout, name: str) -> str:
    """Why a broker takes the .bak of a config file, or nothing, as a clause."""
    folder = layout.config_folder
    if folder is None or name not in layout.config:
        return f"{name} is missing"
    try:
        is_empty = read_config(folder, name).file_error is None
    except InputError:  # a finding of its own
        is_empty = False
    return f"{name} {'is empty' if is_empty else 'cannot be parsed'}"


def _is_of_a_broker(layout: StoreLayout, messages: Mapping[str, int]) -> bool:
    """Whether a broker has used the store for long enough to write all of its config files.

    Without topics.json a message that a consumer group sent back shows it, as a checkpoint or queues do.
    """
    if has_no_content(layout, TOPICS):
        has_groups = any(
            count and topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) for topic, count in messages.items()
        )
        return (
            has_groups or layout.checkpoint is not None or bool(layout.consume_queues or layout.batch_queues)
        )
    if layout.abort is not None and all(_is_missing(layout, name) for name in _WRITTEN_WITH_OFFSETS):
        return False  # a broker was killed, or runs, in its first seconds
    if not all(_is_missing(layout, name) for name in _FILES_OF_BROKERS):
        return True
    return bool(_TOPICS_OF_BROKERS & _topics(layout))


def configured_groups(layout: StoreLayout) -> set[str]:
    """The groups of subscriptionGroup.json without those that every broker has.

    There are none if the file cannot be read, which is a finding of its own.
    """
    try:
        names = config_json.subscription_groups(_document(layout, GROUPS_FILE, None))
    except InputError:
        return set()
    return {name for name in names if not is_group_of_brokers(name)}


def known_groups(layout: StoreLayout, topics: Iterable[str]) -> set[str]:
    """The groups that have a topic of their own, committed offsets, or an entry in subscriptionGroup.json.

    Args:
        layout: of a store.
        topics: that it has, besides those of topics.json.
    """
    names = _topics(layout).union(topics)
    prefixes = (RETRY_PREFIX, DLQ_PREFIX)
    groups = {name.removeprefix(each) for name in names for each in prefixes if name.startswith(each)}
    try:
        committed = config_json.consumer_offsets(_document(layout, CONSUMER_OFFSETS, {}))
    except InputError:  # a finding of its own
        committed = {}
    groups |= configured_groups(layout) | {group for _, group in committed}
    return {group for group in groups if not is_group_of_brokers(group)}


def _topics(layout: StoreLayout) -> set[str]:
    try:
        return set(config_json.topics(_document(layout, TOPICS, {})))
    except InputError:  # a finding of its own
        return set()


def _document(layout: StoreLayout, name: str, without: Any) -> Any:
    """The content of a config file; `without` if there is none, or no store. Raises InputError."""
    folder = layout.config_folder
    document = None if folder is None else read_config(folder, name).document
    return without if document is None else document
