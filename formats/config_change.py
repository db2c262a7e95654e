"""A broker's changes of its config documents: add topics, set delay offsets, count the version.

Each change returns a new document. All other fields stay as they were read, unknown ones too, and table
entries are in the order of the broker's maps.

Source: TopicConfigManager, ScheduleMessageService, DataVersion#nextVersion; spec 01 section 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from rmqtool.errors import FormatError
from rmqtool.formats import config_json
from rmqtool.formats.concurrent_map import put_all
from rmqtool.formats.config_json import Dialect, TopicConfig
from rmqtool.formats.fastjson import resolve
from rmqtool.formats.properties import BUCKETS_4X, java_order

Document = dict[str | int, Any]

TOPIC_BUCKETS = 2048  # new ConcurrentHashMap<>(1024)
OFFSET_BUCKETS = 1024  # new ConcurrentHashMap<>(512)
OFFSETS_LOST = "rmqtoolOffsetsLost"
"""A field of consumerOffset.json: its offsets were set after those of all groups were lost.

A broker ignores it, and writes the file without it."""
OFFSETS_SET_BACK = "rmqtoolOffsetsSetBack"
"""A field of consumerOffset.json: rmqtool has set offsets back, so its .bak has larger ones on purpose.

A broker ignores it, and writes the file without it."""
OFFSETS_OLD = "rmqtoolOffsetsOld"
"""A field of consumerOffset.json: it was lost, and rmqtool has made it from its .bak, which is older.

It is true, or the list of the groups whose offsets reset-offset has set since.

A broker ignores it, and writes the file without it."""
DELAY_BUCKETS = 64  # new ConcurrentHashMap<>(32), as the offsets of one group in one topic


def new_topics(dialect: Dialect, now_ms: int) -> Document:
    """topics.json without topics, its version made at `now_ms` (ms since 1970)."""
    return {"dataVersion": _version_object(0, now_ms, dialect), "topicConfigTable": {}}


def new_delay_offsets(dialect: Dialect, now_ms: int) -> Document:
    """delayOffset.json of a broker that has delivered nothing; 4.9 keeps no version in it."""
    version: Document = {} if dialect == "4.9" else {"dataVersion": _version_object(0, now_ms, dialect)}
    return {**version, "offsetTable": {}}


def with_topics(
    document: Document, topics: Mapping[str, TopicConfig], dialect: Dialect, now_ms: int
) -> Document:
    """topics.json with `topics` (by name) put into its table; the version counts one change per topic.

    Raises:
        FormatError: the table is not a JSON object, or a value of the version has the wrong type.
    """
    objects: Document = {name: _topic_object(topic, dialect) for name, topic in topics.items()}
    table = put_all(_table(document, "topicConfigTable"), objects, TOPIC_BUCKETS)
    changed = _with(document, "topicConfigTable", table)
    return with_next_version(changed, dialect, now_ms, changes=len(topics))


def with_read_queues(
    document: Document, queues: Mapping[str, int], dialect: Dialect, now_ms: int
) -> Document:
    """topics.json with readQueueNums of some of its topics (by name); the version counts one change for each.

    Raises:
        FormatError: as `with_topics`.
    """
    table = _table(document, "topicConfigTable")
    changed: Document = {name: _with(table[name], "readQueueNums", count) for name, count in queues.items()}
    changed = _with(document, "topicConfigTable", table | changed)
    return with_next_version(changed, dialect, now_ms, changes=len(queues))


def without_dialect(document: Document) -> Document:
    """topics.json as brokers of every version read it, whose text does not show which of them wrote it.

    Only an empty map is written differently (`attributes` of most topics). A broker takes a missing one as
    empty.
    """
    topics: Document = {
        name: {key: value for key, value in topic.items() if value != {}}
        for name, topic in _table(document, "topicConfigTable").items()
    }
    return {**document, "topicConfigTable": topics}


def with_delay_offsets(
    document: Document, offsets: Mapping[int, int], dialect: Dialect, now_ms: int
) -> Document:
    """delayOffset.json with these next offsets to deliver, by delay level (from 1).

    The version counts one change. A broker counts only every 200th, but nothing depends on that.

    Raises:
        FormatError: the table is not a JSON object, or a value of the version has the wrong type.
    """
    table: Document = {}
    for key, value in _table(document, "offsetTable").items():  # a quoted level is accepted, and written bare
        table[int(key) if isinstance(key, str) and key.isdecimal() else key] = value
    new: Document = dict(offsets.items())
    changed = _with(document, "offsetTable", put_all(table, new, DELAY_BUCKETS))
    return with_next_version(changed, dialect, now_ms) if "dataVersion" in document else changed


def delay_offsets_without_dialect(offsets: Mapping[int, int]) -> Document:
    """delayOffset.json as brokers of every version read it, whose text does not show which of them wrote it.

    Levels are quoted, and dataVersion is left out.
    """
    return {"offsetTable": {str(level): offset for level, offset in sorted(offsets.items())}}


def with_consumer_offsets(
    document: Document,
    offsets: Mapping[tuple[str, str], Mapping[int, int]],
    dialect: Dialect,
    *,
    is_known: bool = True,
    are_lost: bool = False,
    decided: AbstractSet[str] = frozenset(),
) -> Document:
    """consumerOffset.json with these next offsets to consume, by (topic, group) and queue id.

    On 5.x the version counts one change, and keeps its time. `is_known`: whether the broker is known to be of
    `dialect`. Otherwise queue ids are quoted, which brokers of every version accept, and a new file has no
    version: so its text does not show a version that was only assumed. `are_lost`: note that the offsets of
    all other groups are lost (`OFFSETS_LOST`). `decided`: the groups whose offsets were asked for, which the
    note on old offsets names from now on (`OFFSETS_OLD`). If an offset becomes smaller, that is noted too
    (`OFFSETS_SET_BACK`).

    Raises:
        FormatError: the table is not a JSON object, or a value of the version has the wrong type.
    """
    table = _table(document, "offsetTable")
    new: Document = {}
    for (topic, group), of_queues in offsets.items():
        name = f"{topic}{config_json.TOPIC_GROUP_SEPARATOR}{group}"
        before = table.get(name, {})
        if not isinstance(before, dict):
            raise FormatError(f"the offsets of {name} are not a JSON object")
        plain: Document = {
            int(key) if isinstance(key, str) and key.isdecimal() else key: value
            for key, value in before.items()
        }
        new[name] = put_all(plain, dict(of_queues.items()), DELAY_BUCKETS)
    committed = config_json.consumer_offsets(document)
    is_back = any(
        offset < committed.get(key, {}).get(queue_id, offset)
        for key, of_queues in offsets.items()
        for queue_id, offset in of_queues.items()
    )
    table = put_all(table, new, OFFSET_BUCKETS)
    if not is_known:
        table = _quoted(table)
    changed = _with(document, "offsetTable", table)
    if are_lost:
        changed = _with(changed, OFFSETS_LOST, True)
    if OFFSETS_OLD in document:
        changed = _with(changed, OFFSETS_OLD, sorted(decided | decided_since(document)))
    if is_back:
        changed = with_offsets_set_back(changed)
    if dialect == "4.9" or not (is_known or "dataVersion" in document):
        return changed
    found = config_json.data_version(document)
    return with_next_version(changed, dialect, 0 if found is None else found.timestamp)


def with_offsets_set_back(document: Document) -> Document:
    """consumerOffset.json with the note that rmqtool has set offsets back (`OFFSETS_SET_BACK`)."""
    return _with(document, OFFSETS_SET_BACK, True)


def decided_since(document: Document) -> set[str]:
    """The groups whose offsets were set since old ones were taken for lost ones (`OFFSETS_OLD`)."""
    groups = document.get(OFFSETS_OLD)
    return {each for each in groups if isinstance(each, str)} if isinstance(groups, list) else set()


def with_old_offsets(document: Document, *, is_known: bool) -> Document:
    """consumerOffset.json with the note that its offsets are those of its older .bak (`OFFSETS_OLD`).

    `is_known`: see `with_consumer_offsets`.
    """
    changed = (
        document if is_known else _with(document, "offsetTable", _quoted(_table(document, "offsetTable")))
    )
    return _with(changed, OFFSETS_OLD, True)


def _quoted(table: Document) -> Document:
    """The offsets by topic and group, with queue ids as texts."""
    return {name: {str(key): value for key, value in each.items()} for name, each in table.items()}


def with_next_version(document: Document, dialect: Dialect, now_ms: int, *, changes: int = 1) -> Document:
    """The document with `changes` added to its data version at `now_ms` (ms since 1970).

    All other fields stay. A missing version counts from 0. Source: DataVersion#nextVersion.

    Raises:
        FormatError: a value of the version has the wrong type.
    """
    found = config_json.data_version(document)
    if found is None:
        return _with(document, "dataVersion", _version_object(changes, now_ms, dialect))
    version: Document = dict(resolve(document)["dataVersion"])
    version["counter"] = found.counter + changes
    version[found.timestamp_name] = now_ms
    return _with(document, "dataVersion", version)


def _version_object(counter: int, now_ms: int, dialect: Dialect) -> Document:
    state: Document = {} if dialect == "4.9" else {"stateVersion": 0}
    return {"counter": counter, **state, "timestamp": now_ms}


def _topic_object(topic: TopicConfig, dialect: Dialect) -> Document:
    fields: Document = {
        "order": topic.order,
        "perm": topic.perm,
        "readQueueNums": topic.read_queue_nums,
        "topicFilterType": topic.topic_filter_type,
        "topicName": topic.name,
        "topicSysFlag": topic.topic_sys_flag,
        "writeQueueNums": topic.write_queue_nums,
    }
    if dialect == "4.9":
        return fields
    return {"attributes": dict(java_order(topic.attributes, BUCKETS_4X)), **fields}


def _with(document: Document, name: str, value: Any) -> Document:
    """The document with one field set. A new field sorts all fields by name, as fastjson writes beans."""
    changed = {**document, name: value}
    return changed if name in document else dict(sorted(changed.items(), key=lambda item: str(item[0])))


def _table(document: Document, name: str) -> Document:
    table = resolve(document).get(name, {})
    if not isinstance(table, dict):
        raise FormatError(f"{name} is not a JSON object")
    return table
