"""The broker's configuration and progress files under `config/`: what their documents mean.

    topics.json             dataVersion, topicConfigTable {topic: {...}}
    subscriptionGroup.json  dataVersion, subscriptionGroupTable {group: {...}}, forbiddenTable (5.x)
    consumerOffset.json     offsetTable {topic@group: {queue: offset}}; 5.x also dataVersion, groupTopicMap
    delayOffset.json        offsetTable {level: offset}; 5.x also dataVersion
    consumerFilter.json     filterDataByTopic {topic: {groupFilterData: {group: {...}}}}

`parse` and `dump` (from `fastjson`) keep a document as it was read; the functions here read it
without changing it. Each file has a `.bak` with its previous content; `load_with_bak` applies the
broker's rule for the two, to which the types of the values belong.

Source: ConfigManager and its subclasses; spec 01 section 9.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from functools import lru_cache
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
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_SHOWN = 40  # characters of a value in a message
_REMEMBERED_FILES = 4
_REMEMBERED_MIN, _REMEMBERED_MAX = 64 << 10, 8 << 20  # bytes: shorter ones take no time, longer ones memory
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
    A document was checked for the types that the broker's class of this file has.
    """

    document: dict[str | int, Any]
    source: Literal["file", "bak", "none", "failed"]
    file_error: str | None = None
    bak_error: str | None = None
    is_empty: bool = False


def load_with_bak(name: str, file: bytes | None, bak: bytes | None) -> Loaded:
    """Return the content that a broker reads from a file and its .bak; None stands for a missing file.

    The document is shared with other calls that have the same text: do not change it.

    JSON with a value of another type than the broker's class has is rejected as text that cannot be parsed
    is. One difference between brokers is left out: 5.4 takes an integer that is too long for a Java long.

    Args:
        name: of the file, without .bak. Of a name that brokers do not have only the JSON is read.
        file: its text.
        bak: that of its .bak.

    Source: ConfigManager#load; RemotingSerializable#fromJson of 4.9.7, 5.3.3 and 5.4.0 executed.
    """
    document, file_error = _load_one(file, name)
    if document is not None:
        return Loaded(document, "file")
    document, bak_error = _load_one(bak, name)
    if document is not None:
        return Loaded(document, "bak", file_error)
    return Loaded({}, "failed" if bak_error else "none", file_error, bak_error, is_empty=file == b"")


def _load_one(data: bytes | None, name: str) -> tuple[dict[str | int, Any] | None, str | None]:
    if not data:
        return None, None
    is_remembered = _REMEMBERED_MIN <= len(data) <= _REMEMBERED_MAX
    return _remembered(data, name) if is_remembered else _loaded(data, name)


def _loaded(data: bytes, name: str) -> tuple[dict[str | int, Any] | None, str | None]:
    try:
        document = parse(data)
        if document is None:
            return {}, None  # the text `null` is valid and changes nothing
        if not isinstance(document, dict):
            return None, "JSON: no object"
        if check := _CHECKS.get(name):
            data_version(document)
            check(document)
    except FormatError as error:
        return None, error.message
    return document, None


# A command asks for a file again wherever it needs it; with 25,000 topics each time takes 0.4 s.
_remembered = lru_cache(_REMEMBERED_FILES)(_loaded)


def data_version(document: Any) -> DataVersion | None:
    """The document's data version; None if it has none.

    Raises:
        FormatError: a value has the wrong type.
    """
    version = _member(_object(resolve(document), "the document"), "dataVersion")
    counter = _integer(version, "counter", 0, 64)
    state = _integer(version, "stateVersion", -1, 64) if "stateVersion" in version else None
    name = next((name for name in _TIME_NAMES if name in version), None)
    return None if name is None else DataVersion(counter, _integer(version, name, 0, 64), state, name)


def version_counter(document: Any) -> int:
    """The counter of the document's data version, 0 without one. Raises FormatError for a wrong type."""
    return _integer(_member(_object(resolve(document), "the document"), "dataVersion"), "counter", 0, 64)


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
            topic_filter_type=_filter_type(value),
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
            broker_id=_integer(value, "brokerId", 0, 64),
            which_broker_when_consume_slowly=_integer(value, "whichBrokerWhenConsumeSlowly", 1, 64),
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
    whole = _object(resolve(document), "the document")
    for name, queues in _member(whole, "offsetTable").items():
        offsets[_topic_and_group(str(name))] = _offsets(queues, f" of {name}")
    for key, offset in _member(whole, "lmqOffsetTable").items():
        offsets.setdefault(_topic_and_group(str(key)), {})[0] = _number(offset, f"the offset of {key}")
    return offsets


def delay_offsets(document: Any) -> dict[int, int]:
    """The next offset to deliver in queue level - 1 of SCHEDULE_TOPIC_XXXX, by delay level (from 1).

    Raises:
        FormatError: a value has the wrong type.
    """
    return _offsets(_object(resolve(document), "the document").get("offsetTable", {}), "")


def filters(document: Any) -> dict[tuple[str, str], ConsumerFilter]:
    """The filters of consumerFilter.json by (topic, group).

    Raises:
        FormatError: a value has the wrong type.
    """
    found: dict[tuple[str, str], ConsumerFilter] = {}
    for topic, of_topic in _table(document, "filterDataByTopic").items():
        groups = _member(of_topic, "groupFilterData")
        for key, entry in groups.items():
            group = str(key)
            value = _object(entry, group)
            bloom = _member(value, "bloomFilterData")
            positions = [] if bloom.get("bitPos") is None else bloom["bitPos"]
            if not isinstance(positions, list):
                raise FormatError("bitPos is not an array")
            found[topic, group] = ConsumerFilter(
                topic=topic,
                group=group,
                expression=_text(value, "expression", ""),
                expression_type=_text(value, "expressionType", ""),
                born_time=_integer(value, "bornTime", 0, 64),
                dead_time=_integer(value, "deadTime", 0, 64),
                client_version=_integer(value, "clientVersion", 0, 64),
                bloom_bit_num=_integer(bloom, "bitNum", 0),
                bloom_bit_pos=tuple(_number(position, "bitPos") for position in positions),
            )
    return found


def _topic_and_group(name: str) -> tuple[str, str]:
    topic, _, group = name.partition(TOPIC_GROUP_SEPARATOR)
    return topic, group


def _offsets(value: Any, of: str) -> dict[int, int]:
    """Java longs by Java int; `null` is an error, as in a broker: its ConcurrentMap does not accept it."""
    table = _object(value, f"the offset table{of}")
    return {
        _number(key, f"a key of the offset table{of}", 32): _number(offset, f"offset {key}{of}")
        for key, offset in table.items()
    }


def _table(document: Any, name: str) -> dict[str, dict[str | int, Any]]:
    table = _member(_object(resolve(document), "the document"), name)
    return {str(key): _object(value, str(key)) for key, value in table.items()}


def _member(value: Mapping[str | int, Any], name: str) -> dict[str | int, Any]:
    """The object that is a member of another; an empty one for a missing one, or null."""
    member = value.get(name)
    return {} if member is None else _object(member, name)


def _object(value: Any, what: str) -> dict[str | int, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"{what} is not a JSON object")
    return value


def _number(value: Any, what: str, bits: int = 64) -> int:
    """A Java long or int. As fastjson it takes the text of one, a boolean, and a fraction, which it cuts."""
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) <= 20:
        value = int(value)
    if not isinstance(value, int | float):
        raise FormatError(f"{what} is not an integer: {_shown(value)}")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise FormatError(f"{what} is not a Java {'long' if bits == 64 else 'int'}: {_shown(value)}")
    return int(value)


def _integer(table: Mapping[str | int, Any], key: str, default: int, bits: int = 32) -> int:
    value = table.get(key)
    if value.__class__ is int and -(1 << 31) <= value < 1 << 31:  # what brokers write, of all topics
        return value
    return default if value in (None, "") else _number(value, key, bits)


def _boolean(table: Mapping[str | int, Any], key: str, default: bool) -> bool:
    """A boolean. As fastjson it takes the text of one, and a number."""
    value = table.get(key)
    if value in (None, ""):
        return default
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, int | float):
        raise FormatError(f"{key} is not a boolean: {_shown(value)}")
    return bool(value)


def _text(table: Mapping[str | int, Any], key: str, default: str) -> str:
    """A text; fastjson takes any other value as the text of it."""
    value = table.get(key)
    return default if value is None else value if isinstance(value, str) else json.dumps(value)


def _filter_type(table: Mapping[str | int, Any]) -> str:
    """A TopicFilterType by name, or by its place in the enum; fastjson takes any other text as null."""
    value = table.get("topicFilterType")
    if value is None or isinstance(value, str):
        return value or _FILTER_TYPES[0]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(_FILTER_TYPES):
        return _FILTER_TYPES[value]
    raise FormatError(f"topicFilterType is not the name of one: {_shown(value)}")


def _attributes(table: Mapping[str | int, Any]) -> dict[str, str]:
    attributes = _member(table, "attributes")
    return {str(name): _text(attributes, str(name), "") for name in attributes}


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _topics(document: Any) -> None:
    """Of null a broker's decode() fails: the table is put into another, the version assigned to one."""
    topics(document)
    whole = _object(resolve(document), "the document")
    for name in ("topicConfigTable", "dataVersion"):
        _object(whole.get(name, {}), name)


def _groups(document: Any) -> None:
    subscription_groups(document)
    for group, forbidden in _table(document, "forbiddenTable").items():
        for topic, bits in forbidden.items():
            _number(bits, f"forbiddenTable of {group} and {topic}", 32)


def _committed(document: Any) -> None:
    consumer_offsets(document)
    whole = _object(resolve(document), "the document")
    _member(whole, "groupTopicMap")
    _object(whole.get("offsetTable", {}), "offsetTable")  # 4.9 takes null, but never writes it


def _of_objects(name: str) -> Callable[[Any], object]:
    return lambda document: _table(document, name)


_CHECKS: dict[str, Callable[[Any], object]] = {
    "topics.json": _topics,
    "subscriptionGroup.json": _groups,
    "consumerOffset.json": _committed,
    "lmqConsumerOffset.json": _committed,
    "delayOffset.json": delay_offsets,
    "consumerFilter.json": filters,
    "consumerOrderInfo.json": _of_objects("table"),
    "topicQueueMapping.json": _of_objects("topicQueueMappingInfoMap"),
    "messageRequestMode.json": _of_objects("messageRequestModeMap"),
    "timermetrics": _of_objects("timingCount"),
    "transactionMetrics": _of_objects("transactionCount"),
}
"""What raises FormatError for a document that the broker's class of a file does not take."""
