"""The broker's configuration and progress files under `config/`: what their documents mean.

    topics.json             dataVersion, topicConfigTable {topic: {...}}
    subscriptionGroup.json  dataVersion, subscriptionGroupTable {group: {...}}, forbiddenTable (5.x)
    consumerOffset.json     offsetTable {topic@group: {queue: offset}}; 5.x also dataVersion, groupTopicMap
    delayOffset.json        offsetTable {level: offset}; 5.x also dataVersion
    consumerFilter.json     filterDataByTopic {topic: {groupFilterData: {group: {...}}}}

`parse` and `dump` (from `fastjson`) keep a document as it was read; the functions here read it
without changing it. Each file has a `.bak` with its previous content; `load_with_bak` applies the
broker's rule for the two.

Source: ConfigManager and its subclasses; spec 01 section 9.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import field
from typing import Any, Literal, NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats.fastjson import Dialect, dump, parse, resolve, whole_entries
from rmqtool.formats.parts import GreedyString, Struct
from rmqtool.lazy_dataclass import dataclass

__all__ = ["Dialect", "dump", "parse", "resolve"]  # `fastjson` under the name that callers of this module use

DOCUMENT = Struct("document" / GreedyString("utf-8") * "JSON whose integer keys are bare: {0:250,1:251}")
TEXT = """
topics.json: dataVersion (counter; timestamp, ms since 1970; on 5.x stateVersion) and topicConfigTable, by
topic: topicName, readQueueNums, writeQueueNums, perm (4 read, 2 write, 1 inherit, 8 priority),
topicFilterType, topicSysFlag, order; on 5.x attributes.

subscriptionGroup.json: dataVersion and subscriptionGroupTable, by group: groupName, consumeEnable,
retryQueueNums, retryMaxTimes and more; on 5.x forbiddenTable.

consumerOffset.json: offsetTable, by topic@group and queue id: the next queue offset to consume. On 5.x
dataVersion and groupTopicMap, which is never read. rmqtool reset-offset adds rmqtoolOffsetsLost if offsets
were lost before, and rmqtoolOffsetsSetBack if it sets offsets back, as rmqtool recover does, which adds
rmqtoolOffsetsOld if it makes the file from its .bak; a broker ignores these fields, and writes the file
without them.

delayOffset.json: offsetTable, by delay level from 1: the next offset to deliver in queue level - 1 of
SCHEDULE_TOPIC_XXXX. On 5.x dataVersion.

consumerFilter.json: filterDataByTopic, by topic, and in it groupFilterData, by group: expression,
expressionType, bornTime and deadTime (ms since 1970), the positions in the Bloom filter.

Each file has a .bak with the previous content. A broker reads the .bak if the file is missing, empty or
unreadable, and does not start if the .bak is unreadable too. After a write all versions leave the same two
files; during the write 4.9 deletes and renames, 5.3 writes in place, and 5.4 renames the old file first.
rmqtool renames flushed files over both, so the file is complete at every moment. Topics are in the order of
a Java ConcurrentHashMap created for 1024 entries."""

TOPIC_GROUP_SEPARATOR = "@"
BATCH_ATTRIBUTES = {"queue.type": "BatchCQ"}
"""The attributes of a topic whose records may be batches (5.x; QueueTypeUtils#isBatchCq)."""
COMPACTED_ATTRIBUTES = {"cleanup.policy": "COMPACTION"}
"""The attributes of a compacted topic (5.x; CleanupPolicyUtils#isCompaction)."""
_TIME_NAMES = ("timestamp", "timestatmp")  # the second is how some old brokers spell it


class DataVersion(NamedTuple):
    """How often and when a table was changed; `state_version` is None in 4.x files.

    `timestamp` is ms since 1970, `timestamp_name` the name under which the file holds it.
    """

    counter: int
    timestamp: int
    state_version: int | None
    timestamp_name: str


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic of topics.json; the defaults are those of the Java class.

    `perm` bits: 4 read, 2 write, 1 inherit, 8 priority.
    """

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read it."""
        return bool(self.perm & 4)

    @property
    def is_writable(self) -> bool:
        """Whether producers may write to it."""
        return bool(self.perm & 2)

    @property
    def is_batch(self) -> bool:
        """Whether its queues are batch consume queues (5.x)."""
        return self.attributes.items() >= BATCH_ATTRIBUTES.items()

    @property
    def is_compacted(self) -> bool:
        """Whether its queues are compacted, and consumers get what the compaction log has (5.x)."""
        return self.attributes.items() >= COMPACTED_ATTRIBUTES.items()


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """One consumer group of subscriptionGroup.json; the defaults are those of the Java class."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """One group's filter on one topic; times are ms since 1970, `dead_time` 0 while it is in use."""

    topic: str
    group: str
    expression: str
    expression_type: str
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0
    bloom_bit_num: int = 0
    bloom_bit_pos: tuple[int, ...] = ()


class Loaded(NamedTuple):
    """The content that a broker reads from a config file and its .bak.

    `source` is `file` or `bak`; `none` if neither has content (the broker starts with an empty table);
    `failed` if the broker does not start. An error says why that text was rejected; it is None for a
    missing or empty text too. `is_empty`: the .bak gave nothing either, and the file exists with 0 bytes.
    """

    document: dict[str | int, Any]
    source: Literal["file", "bak", "none", "failed"]
    file_error: str | None = None
    bak_error: str | None = None
    is_empty: bool = False


def load_with_bak(file: bytes | None, bak: bytes | None) -> Loaded:
    """Return the content that a broker reads from a file and its .bak; None stands for a missing file.

    Source: ConfigManager#load.
    """
    document, file_error = _load_one(file)
    if document is not None:
        return Loaded(document, "file")
    document, bak_error = _load_one(bak)
    if document is not None:
        return Loaded(document, "bak", file_error)
    return Loaded({}, "failed" if bak_error else "none", file_error, bak_error, is_empty=file == b"")


def _load_one(data: bytes | None) -> tuple[dict[str | int, Any] | None, str | None]:
    if not data:
        return None, None
    try:
        document = parse(data)
    except FormatError as error:
        return None, error.message
    if document is None:
        return {}, None  # the text `null` is valid and changes nothing
    if not isinstance(document, dict):
        return None, "JSON: no object"
    return document, None


def data_version(document: Any) -> DataVersion | None:
    """The document's data version; None if it has none.

    Raises:
        FormatError: a value has the wrong type.
    """
    version = _object(_object(resolve(document), "the document").get("dataVersion", {}), "dataVersion")
    name = next((name for name in _TIME_NAMES if name in version), None)
    if name is None:
        return None
    state = _integer(version, "stateVersion", -1) if "stateVersion" in version else None
    return DataVersion(_integer(version, "counter", 0), _integer(version, name, 0), state, name)


def version_counter(document: Any) -> int:
    """The counter of the document's data version, 0 without one. Raises FormatError for a wrong type."""
    version = _object(_object(resolve(document), "the document").get("dataVersion", {}), "dataVersion")
    return _integer(version, "counter", 0)


def topics(document: Any) -> dict[str, TopicConfig]:
    """The topics of topics.json by name, in the document's order.

    Raises:
        FormatError: a value has the wrong type.
    """
    return {
        name: TopicConfig(
            name=name,
            read_queue_nums=_integer(value, "readQueueNums", 16),
            write_queue_nums=_integer(value, "writeQueueNums", 16),
            perm=_integer(value, "perm", 6),
            topic_filter_type=_text(value, "topicFilterType", "SINGLE_TAG"),
            topic_sys_flag=_integer(value, "topicSysFlag", 0),
            order=_boolean(value, "order", False),
            attributes=_attributes(value),
        )
        for name, value in _table(document, "topicConfigTable").items()
    }


def whole_topics(data: bytes) -> dict[str, TopicConfig]:
    """The topics that are whole in a topics.json that is cut, by name; without those with wrong values."""
    found: dict[str, TopicConfig] = {}
    for name, value in whole_entries(data, "topicConfigTable").items():
        with suppress(FormatError):
            found |= topics({"topicConfigTable": {name: value}})
    return found


def subscription_groups(document: Any) -> dict[str, SubscriptionGroup]:
    """The groups of subscriptionGroup.json by name, in the document's order.

    Raises:
        FormatError: a value has the wrong type.
    """
    return {
        name: SubscriptionGroup(
            name=name,
            consume_enable=_boolean(value, "consumeEnable", True),
            consume_from_min_enable=_boolean(value, "consumeFromMinEnable", True),
            consume_broadcast_enable=_boolean(value, "consumeBroadcastEnable", True),
            consume_message_orderly=_boolean(value, "consumeMessageOrderly", False),
            retry_queue_nums=_integer(value, "retryQueueNums", 1),
            retry_max_times=_integer(value, "retryMaxTimes", 16),
            broker_id=_integer(value, "brokerId", 0),
            which_broker_when_consume_slowly=_integer(value, "whichBrokerWhenConsumeSlowly", 1),
            notify_consumer_ids_changed_enable=_boolean(value, "notifyConsumerIdsChangedEnable", True),
            group_sys_flag=_integer(value, "groupSysFlag", 0),
            consume_timeout_minute=_integer(value, "consumeTimeoutMinute", 15),
            attributes=_attributes(value),
        )
        for name, value in _table(document, "subscriptionGroupTable").items()
    }


def consumer_offsets(document: Any) -> dict[tuple[str, str], dict[int, int]]:
    """The next queue offset to consume, by (topic, group) and queue id.

    Reads consumerOffset.json and lmqConsumerOffset.json, whose light queues only have queue 0. An
    entry whose name is not `topic@group` stands under (name, "").

    Raises:
        FormatError: a value has the wrong type.
    """
    offsets: dict[tuple[str, str], dict[int, int]] = {}
    for name, queues in _table(document, "offsetTable").items():
        offsets[_topic_and_group(name)] = _offsets(queues)
    light = _object(_object(document, "the document").get("lmqOffsetTable", {}), "lmqOffsetTable")
    for key in light:
        offsets.setdefault(_topic_and_group(str(key)), {})[0] = _offset(light, key)
    return offsets


def delay_offsets(document: Any) -> dict[int, int]:
    """The next offset to deliver in queue level - 1 of SCHEDULE_TOPIC_XXXX, by delay level (from 1).

    Raises:
        FormatError: a value has the wrong type.
    """
    return _offsets(_object(resolve(document), "the document").get("offsetTable", {}))


def filters(document: Any) -> dict[tuple[str, str], ConsumerFilter]:
    """The filters of consumerFilter.json by (topic, group).

    Raises:
        FormatError: a value has the wrong type.
    """
    found: dict[tuple[str, str], ConsumerFilter] = {}
    for topic, of_topic in _table(document, "filterDataByTopic").items():
        groups = _object(of_topic.get("groupFilterData", {}), "groupFilterData")
        for key, entry in groups.items():
            group = str(key)
            value = _object(entry, group)
            bloom = _object(value.get("bloomFilterData") or {}, "bloomFilterData")
            positions = bloom.get("bitPos") or []
            if not isinstance(positions, list):
                raise FormatError("bitPos is not an array")
            found[topic, group] = ConsumerFilter(
                topic=topic,
                group=group,
                expression=_text(value, "expression", ""),
                expression_type=_text(value, "expressionType", ""),
                born_time=_integer(value, "bornTime", 0),
                dead_time=_integer(value, "deadTime", 0),
                client_version=_integer(value, "clientVersion", 0),
                bloom_bit_num=_integer(bloom, "bitNum", 0),
                bloom_bit_pos=tuple(_number(position, "bitPos") for position in positions),
            )
    return found


def _topic_and_group(name: str) -> tuple[str, str]:
    topic, _, group = name.partition(TOPIC_GROUP_SEPARATOR)
    return topic, group


def _offsets(value: Any) -> dict[int, int]:
    table = _object(value, "an offset table")
    return {_number(key, "an offset table's key"): _offset(table, key) for key in table}


def _offset(table: dict[str | int, Any], key: str | int) -> int:
    """A Java long. `null` is an error, as in a broker: its ConcurrentMap does not accept it."""
    offset = _number(table[key], str(key))
    if not -(1 << 63) <= offset < 1 << 63:
        raise FormatError(f"{key} is not a Java long")
    return offset


def _table(document: Any, name: str) -> dict[str, dict[str | int, Any]]:
    table = _object(_object(resolve(document), "the document").get(name) or {}, name)
    return {str(key): _object(value, str(key)) for key, value in table.items()}


def _object(value: Any, what: str) -> dict[str | int, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"{what} is not a JSON object")
    return value


def _number(value: Any, what: str) -> int:
    """An integer, or the text of one as fastjson accepts it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) <= 20:
        return int(value)
    raise FormatError(f"{what} is not an integer")


def _integer(table: dict[str | int, Any], key: str | int, default: int) -> int:
    value = table.get(key)
    return default if value is None else _number(value, str(key))


def _boolean(table: dict[str | int, Any], key: str, default: bool) -> bool:
    value = table.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise FormatError(f"{key} is not a boolean")
    return value


def _text(table: dict[str | int, Any], key: str, default: str) -> str:
    value = table.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise FormatError(f"{key} is not a string")
    return value


def _attributes(table: dict[str | int, Any]) -> dict[str, str]:
    attributes = _object(table.get("attributes") or {}, "attributes")
    return {str(name): _text(attributes, str(name), "") for name in attributes}
