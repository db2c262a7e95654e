"""The same requests to a real broker and to `rmqtool serve`, and what of the answers has to be equal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from rmqtool.formats import properties
from rmqtool.formats.fastjson import parse
from rmqtool.formats.remoting import Command
from rmqtool.formats.remoting_codes import Request
from rmqtool.message.system_topics import is_system_topic
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.consumer_offsets import known_offsets
from rmqtool.read.store import Store

Fields = dict[str, Any]

_OBJECT_KEY = re.compile(r'(?<=[{,])(\{"brokerName":"[^"]*","queueId":\d+,"topic":"[^"]*"\})(?=:)')
# Statistics of a process, which a store does not hold; what a start makes; texts that clients make of numbers
# beside them; counts that a 5.4 client pages by; the group that asks.
_VARYING = frozenset({
    "brokerAddr", "brokerAddrs", "consumeTps", "topicPutTps", "dataVersion", "delayTime", "perm",
    "lastUpdateTimestamp", "totalInflightDiff", "writeQueueNums", "topicSysFlag", "groupSysFlag",
    "mappingDetail", "attributes", "mappingDataVersion", "totalTopicNum", "totalGroupNum",
    "consumeTimeStampStr", "minTimeStampStr", "maxTimeStampStr", "topicQueueMappingInfoMap",
    "topicQueueMappingDetailMap", "lab_differential",
})  # fmt: skip
_NAMES = ("CHECKPOINT_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")  # a store has them once they are used


_DELAYED = "pubDelay"  # a broker that starts delivers what has become due


def _is_at_rest(topic: str) -> bool:
    return not is_system_topic(topic) and topic != _DELAYED


def requests_of(store: Store) -> Iterator[tuple[int, Fields]]:
    """Requests about every queue of a store, in and around its bounds."""
    topics = sorted({topic for topic, _ in store.queues if _is_at_rest(topic)})
    for topic, queue_id in sorted(store.queues):
        if not _is_at_rest(topic):
            continue
        at = {"topic": topic, "queueId": queue_id}
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        yield Request.GET_MAX_OFFSET, at
        yield Request.GET_MIN_OFFSET, at
        yield Request.GET_EARLIEST_MSG_STORETIME, at
        stored = store.get_by_queue_offset(topic, queue_id, max(low, 0))
        middle = 0 if stored is None else stored.message.store_timestamp
        for timestamp in (0, middle, middle + 1, middle + 700, 1 << 60):
            for bound in ("LOWER", "UPPER"):
                yield (
                    Request.SEARCH_OFFSET_BY_TIMESTAMP,
                    {**at, "timestamp": timestamp, "boundaryType": bound},
                )
        is_plain = isinstance(store.queues[topic, queue_id], ConsumeQueue)
        for offset in (
            sorted({low - 1, low, (low + high) // 2, high - 1, high, high + 5}) if is_plain else (0, 1)
        ):
            for most in (1, 32):
                yield Request.PULL_MESSAGE, pull(topic, queue_id, offset, maxMsgNums=most)
    for topic in topics:
        for code in (
            Request.QUERY_TOPIC_CONSUME_BY_WHO,
            Request.GET_TOPIC_STATS_INFO,
            Request.GET_TOPIC_CONFIG,
        ):
            yield code, {"topic": topic}
    yield from _messages(store)
    yield from _groups(store)
    topic, queue_id = max(
        (key for key, queue in store.queues.items() if isinstance(queue, ConsumeQueue) and key[0] in topics),
        key=lambda key: store.max_offset(*key),
    )
    for text in ("TagA", "TagA || TagB", "none", "", "||"):
        yield Request.PULL_MESSAGE, pull(topic, queue_id, 0, subscription=text)
        yield Request.LITE_PULL_MESSAGE, pull(topic, queue_id, 0, subscription=text, sysFlag=20)
    for number in (-1, 900):
        yield Request.PULL_MESSAGE, pull(topic, number, 0)
    yield Request.PULL_MESSAGE, pull(topic, queue_id, 0, sysFlag=0)
    for name in ("no such topic", "NoSuchTopic"):
        for code in (Request.GET_TOPIC_STATS_INFO, Request.GET_TOPIC_CONFIG, Request.PULL_MESSAGE):
            yield code, pull(name, 0, 0)
    for code, fields in (
        (Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "none"}),
        (Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "none"}),
        (Request.QUERY_TOPICS_BY_CONSUMER, {"group": "none"}),
        (Request.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "none", "topic": topic}),
        (Request.VIEW_MESSAGE_BY_ID, {"offset": 1 << 60}),
        (Request.QUERY_CONSUMER_OFFSET, {"consumerGroup": "none", "topic": topic, "queueId": queue_id,
                                         "setZeroIfNotFound": "false"}),
        (31_999, {}),
    ):  # fmt: skip
        yield code, fields


def pull(topic: str, queue_id: int, offset: int, **more: Any) -> Fields:
    """A pull with its subscription, that does not wait."""
    return {
        "consumerGroup": "lab_differential", "topic": topic, "queueId": queue_id, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
        "subVersion": 0, "expressionType": "TAG",
    } | more  # fmt: skip


def _groups(store: Store) -> Iterator[tuple[int, Fields]]:
    """What the dashboard and mqadmin ask about groups: how far they are, and who is connected."""
    table = known_offsets(store)[0]
    for group in sorted({group for _, group in table}):
        topics = sorted(topic for topic, each in table if each == group)
        if not all(map(_is_at_rest, topics)):
            continue
        yield Request.GET_CONSUME_STATS, {"consumerGroup": group}
        yield Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
        yield Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group}
        yield Request.QUERY_TOPICS_BY_CONSUMER, {"group": group}
        for topic in topics:
            at = {"consumerGroup": group, "topic": topic}
            yield Request.GET_CONSUME_STATS, at
            yield Request.QUERY_CONSUME_TIME_SPAN, {"group": group, "topic": topic}
            yield Request.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": group, "topic": topic}
            for queue_id in table[topic, group]:
                yield Request.QUERY_CONSUMER_OFFSET, {**at, "queueId": queue_id}


def broker_requests() -> Iterator[tuple[int, Fields]]:
    """What the dashboard asks a broker as a whole."""
    yield Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}
    yield Request.GET_ALL_TOPIC_CONFIG, {}
    yield Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}
    yield Request.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "none"}
    yield Request.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "none"}


def name_server_requests(store: Store) -> Iterator[tuple[int, Fields]]:
    """What clients and the dashboard ask a name server."""
    yield Request.GET_BROKER_CLUSTER_INFO, {}
    yield Request.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"}
    for topic in sorted({"NoSuchTopic", *(topic for topic, _ in store.queues)}):
        yield Request.GET_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}
        yield Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}


def _messages(store: Store) -> Iterator[tuple[int, Fields]]:
    """Single messages: some by their place, by a key, and by their unique key."""
    for number, stored in enumerate(store.messages()):
        if number % 97 or not _is_at_rest(stored.message.topic):
            continue
        yield Request.VIEW_MESSAGE_BY_ID, {"offset": stored.physical_offset, "topic": stored.message.topic}
        found = properties.decode(stored.message.properties_bytes)
        for key, unique in (
            (found.get("KEYS", "").split(" ")[0], "false"),
            (found.get("UNIQ_KEY", ""), "true"),
        ):
            if key:
                yield Request.QUERY_MESSAGE, {
                    "topic": stored.message.topic, "key": key, "maxNum": 64, "beginTimestamp": 0,
                    "endTimestamp": 1 << 60, "_UNIQUE_KEY_QUERY": unique,
                }  # fmt: skip


def essence(code: int, answer: Command) -> Any:
    """What of an answer has to be equal."""
    if answer.code:
        return answer.code
    fields = {name: value for name, value in answer.fields.items() if name not in _VARYING}
    fields.pop("offsetDelta", None)  # of static topics
    if code in _RECORDS:
        # The index fields of a query are of the index files, which a start may have changed.
        return {name: each for name, each in fields.items() if not name.startswith("index")}, answer.body
    return fields, _document(answer.body)


_RECORDS = frozenset(map(int, (
    Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE, Request.VIEW_MESSAGE_BY_ID, Request.QUERY_MESSAGE,
)))  # fmt: skip


def _document(body: bytes) -> Any:
    """The document of a body, without what varies, and its lists sorted: they are sets."""
    if not body:
        return None
    return _sorted(parse(_OBJECT_KEY.sub(lambda match: json.dumps(match[1]), body.decode())))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(key): _sorted(each) for key, each in value.items() if key not in _VARYING and each is not None
        }
    if isinstance(value, list):
        return sorted((_sorted(each) for each in value if each not in _NAMES), key=repr)
    return value
