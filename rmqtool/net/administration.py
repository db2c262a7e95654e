"""What mqadmin and the dashboard ask a broker for.

Source: AdminBrokerProcessor, QueryMessageProcessor; ClusterListSubCommand (keys of the runtime info).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import config_json
from rmqtool.formats.config_json import TopicConfig
from rmqtool.formats.remoting import Command
from rmqtool.formats.remoting_codes import Response
from rmqtool.net.broker import store_time, time_at
from rmqtool.net.clients import Group, Peer
from rmqtool.net.context import (
    PERM_READ,
    READ_ONLY,
    Context,
    Refusal,
    Table,
    int_of,
    long_of,
    success,
    text_of,
)
from rmqtool.net.view import Topic, View
from rmqtool.storage.config_files import delay_offsets, now_ms, read_config

_UNITS_MAX = 1000  # of one look into a queue
_QUEUES_SHOWN = 10_000
_ZERO_RATES = "0.0 0.0 0.0"


# topics


def topic_stats(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_TOPIC_STATS_INFO."""
    topic = context.needed_topic(view, text_of(request, "topic"))
    rows = []
    for queue_id in range(min(topic.queues, _QUEUES_SHOWN)):
        queue = view.queue(topic.name, queue_id)
        low, high, last = 0, 0, 0
        if queue is not None:
            low, high, _ = queue.look()
            last = max(store_time(view, queue, "high"), 0)
        offsets = {"lastUpdateTimestamp": last, "maxOffset": max(high, 0), "minOffset": max(low, 0)}
        rows.append((context.queue_name(topic.name, queue_id), offsets))
    return success(request, {"offsetTable": Table(rows), "topicPutTps": 0.0})


def all_topics(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_ALL_TOPIC_CONFIG."""
    table = {name: _config(topic) for name, topic in view.topics.items()}
    version = view.topic_document.get("dataVersion") or {"counter": 0, "stateVersion": 0, "timestamp": 0}
    return success(request, {"dataVersion": version, "topicConfigTable": table})


def topic_config(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_TOPIC_CONFIG."""
    found = view.topic(text_of(request, "topic"))
    if found is None:
        raise Refusal(
            Response.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {text_of(request, 'topic')}"
        )
    return success(request, {**_config(found), "mappingDetail": None})


def _config(topic: Topic) -> dict[str, Any]:
    """As topics.json has it, but to be read only."""
    config = topic.config or TopicConfig(topic.name)
    found: dict[str, Any] = {"attributes": config.attributes} if config.attributes else {}
    return found | {
        "order": config.order,
        "perm": PERM_READ,
        "readQueueNums": topic.queues,
        "topicFilterType": config.topic_filter_type,
        "topicName": topic.name,
        "topicSysFlag": config.topic_sys_flag,
        "writeQueueNums": topic.queues,
    }


# groups


def all_groups(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    document = _group_document(view)
    table = document.get("subscriptionGroupTable")
    return success(
        request,
        {
            "dataVersion": document.get("dataVersion") or {"counter": 0, "stateVersion": 0, "timestamp": 0},
            "forbiddenTable": document.get("forbiddenTable") or {},
            "subscriptionGroupTable": table if isinstance(table, dict) else {},
        },
    )


def group_config(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_SUBSCRIPTIONGROUP_CONFIG."""
    name = text_of(request, "group")
    table = _group_document(view).get("subscriptionGroupTable")
    found = table.get(name) if isinstance(table, dict) else None
    if not isinstance(found, dict):
        raise Refusal(Response.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
    return success(request, found)


def _group_document(view: View) -> dict[str | int, Any]:
    folder = view.store.layout.config_folder
    if folder is None:
        return {}
    try:
        document = config_json.resolve(read_config(folder, "subscriptionGroup.json").document)
    except (FormatError, UnreadableError):
        return {}
    return document if isinstance(document, dict) else {}


def consume_stats(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_CONSUME_STATS: how far a group has come in its topics."""
    group = text_of(request, "consumerGroup")
    topics = {text_of(request, "topic", ""), *text_of(request, "topicList", "").split(";")} - {""}
    return success(request, _consume_stats(context, view, group, topics or _topics_of(context, group)))


def _topics_of(context: Context, name: str) -> set[str]:
    group = context.clients.groups.get(name)
    return set(context.offsets.topics_of(name)) | (set() if group is None else set(group.subscriptions))


def _consume_stats(context: Context, view: View, group: str, topics: Iterable[str]) -> dict[str, Any]:
    rows = []
    for name in sorted(topics):
        topic = context.topic(view, name)
        for queue_id in range(min(topic.queues, _QUEUES_SHOWN) if topic is not None else 0):
            rows.append((context.queue_name(name, queue_id), _progress(context, view, group, name, queue_id)))
    return {"consumeTps": 0.0, "offsetTable": Table(rows)}


def _progress(context: Context, view: View, group: str, topic: str, queue_id: int) -> dict[str, int]:
    queue = view.queue(topic, queue_id)
    high = 0 if queue is None else max(queue.look().high, 0)
    consumed = context.offsets.get(group, topic, queue_id)
    last = 0
    if queue is not None and queue.queue is not None and consumed is not None and consumed > 0:
        unit = queue.queue.unit(consumed - 1)
        last = 0 if unit is None else max(time_at(view, unit.physical_offset), 0)
    offset = 0 if consumed is None else consumed
    return {"brokerOffset": high, "consumerOffset": offset, "lastTimestamp": last, "pullOffset": offset}


def broker_consume_stats(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_BROKER_CONSUME_STATS: of all groups."""
    groups, total = [], 0
    for name in sorted(context.offsets.groups() | context.clients.groups.keys()):
        stats = [_consume_stats(context, view, name, [topic]) for topic in sorted(_topics_of(context, name))]
        total += sum(
            each["brokerOffset"] - each["consumerOffset"]
            for one in stats
            for _, each in one["offsetTable"].rows
        )
        groups.append({name: stats})
    address = context.names.address(peer)
    return success(
        request,
        {"brokerAddr": address, "consumeStatsList": groups, "totalDiff": total, "totalInflightDiff": 0},
    )


def groups_of_topic(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """QUERY_TOPIC_CONSUME_BY_WHO."""
    topic = text_of(request, "topic")
    connected = {name for name, group in context.clients.groups.items() if topic in group.subscriptions}
    return success(request, {"groupList": sorted({*context.offsets.groups_of(topic), *connected})})


def topics_of_group(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """QUERY_TOPICS_BY_CONSUMER."""
    found = context.offsets.topics_of(text_of(request, "group"))
    return success(request, {"brokerAddr": context.names.address(peer), "topicList": found})


def subscription(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""
    name, topic = text_of(request, "group"), text_of(request, "topic")
    group = context.clients.groups.get(name)
    found = None if group is None else group.subscriptions.get(topic)
    document: dict[str, Any] = {"group": name, "topic": topic}
    if found is not None:
        document["subscriptionData"] = dict(found.document)
    return success(request, document)


def connections(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_CONSUMER_CONNECTION_LIST."""
    name = text_of(request, "consumerGroup")
    group = context.clients.groups.get(name)
    if group is None:
        raise Refusal(Response.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    return success(request, _connections(group))


def _connections(group: Group) -> dict[str, Any]:
    members = [
        {
            "clientAddr": member.peer.address,
            "clientId": member.client_id,
            "language": member.language,
            "version": member.version,
        }
        for member in group.members.values()
    ]
    return {
        "connectionSet": members,
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": {topic: dict(each.document) for topic, each in group.subscriptions.items()},
    }


def no_producers(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_PRODUCER_CONNECTION_LIST."""
    name = text_of(request, "producerGroup", "")
    raise Refusal(Response.SYSTEM_ERROR, f"the producer group[{name}] not exist: {READ_ONLY}")


def all_producers(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_ALL_PRODUCER_INFO."""
    return success(request, {"data": {}})


def time_span(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """QUERY_CONSUME_TIME_SPAN."""
    name, group = text_of(request, "topic"), text_of(request, "group")
    topic = context.needed_topic(view, name)
    spans, now = [], now_ms()
    for queue_id in range(min(topic.queues, _QUEUES_SHOWN)):
        queue = view.queue(name, queue_id)
        if queue is None:
            continue
        first, last = store_time(view, queue, "low"), store_time(view, queue, "high")
        consumed = _progress(context, view, group, name, queue_id)["lastTimestamp"] or first
        is_done = (context.offsets.get(group, name, queue_id) or 0) >= queue.window.high
        spans.append(
            {
                "consumeTimeStamp": consumed,
                "delayTime": 0 if is_done else max(now - consumed, 0),
                "maxTimeStamp": last,
                "messageQueue": context.queue_name(name, queue_id),
                "minTimeStamp": first,
            }
        )
    return success(request, {"consumeTimeSpanSet": spans})


# the broker


def runtime_info(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_BROKER_RUNTIME_INFO; statistics that a server of a store does not have are 0."""
    log = view.store.commit_log
    earliest = time_at(view, log.min_offset) if log.files else -1
    zeros = (
        "msgPutTotalTodayNow", "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning",
        "msgGetTotalTodayNow", "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning",
        "sendThreadPoolQueueSize",
        "pullThreadPoolQueueSize", "queryThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueHeadWaitTimeMills",
        "pageCacheLockTimeMills", "timerReadBehind", "timerOffsetBehind", "timerCongestNum",
        "dispatchBehindBytes",
    )  # fmt: skip
    rates = ("putTps", "getTransferredTps", "getTransferedTps", "getTotalTps", "getFoundTps", "getMissTps")
    table = {
        **dict.fromkeys(zeros, "0"),
        **dict.fromkeys(rates, _ZERO_RATES),
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
        "brokerVersion": str(context.names.version),
        "brokerVersionDesc": f"rmqtool serves a {view.store.profile.name} store",
        "brokerActive": "true",
        "bootTimestamp": str(context.started_ms),
        "commitLogMinOffset": str(log.min_offset),
        "commitLogMaxOffset": str(view.store.end_offset()),
        "commitLogDiskRatio": "0.0",
        "earliestMessageTimeStamp": str(earliest),
        "runtime": f"[ {int((now_ms() - context.started_ms) / 1000)} seconds ]",
    }
    return success(request, {"table": table})


def broker_config(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_BROKER_CONFIG: what is known of it, as properties."""
    names = context.names
    values = {
        "brokerName": names.broker,
        "brokerClusterName": names.cluster,
        "brokerId": "0",
        "brokerRole": "SLAVE",
        "brokerPermission": str(PERM_READ),
        "mappedFileSizeCommitLog": str(view.store.layout.commit_log_file_size),
        "mappedFileSizeConsumeQueue": str(view.store.layout.consume_queue_file_size),
    }
    text = "".join(f"{name}={value}\n" for name, value in sorted(values.items()))
    return request.answer(Response.SUCCESS, None, {"version": '{"counter":0,"timestamp":0}'}, text.encode())


def all_consumer_offsets(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_ALL_CONSUMER_OFFSET: as they are now, with the commits of those who read here."""
    return request.answer(Response.SUCCESS, body=context.offsets.text())


def all_delay_offsets(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_ALL_DELAY_OFFSET."""
    folder = view.store.layout.config_folder
    found = {} if folder is None else delay_offsets(folder)
    return request.answer(Response.SUCCESS, body=config_json.dump({"offsetTable": dict(found)}, "5.4"))


def no_statistics(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """VIEW_BROKER_STATS_DATA."""
    raise Refusal(Response.SYSTEM_ERROR, "the server of a store keeps no statistics")


def queue_units(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """QUERY_CONSUME_QUEUE: the units of a queue."""
    name, queue_id = text_of(request, "topic"), int_of(request, "queueId")
    index, count = long_of(request, "index"), int_of(request, "count")
    context.needed_topic(view, name)
    queue = view.queue(name, queue_id)
    if queue is None or queue.queue is None:
        raise Refusal(Response.SYSTEM_ERROR, f"{queue_id}@{name} is not exist!")
    low, high, _ = queue.look()
    rows = []
    for number in range(max(index, 0), min(index + min(max(count, 0), _UNITS_MAX), high)):
        unit = queue.queue.unit(number)
        if unit is None:
            continue
        rows.append(
            {
                "eval": True,
                "physicOffset": unit.physical_offset,
                "physicSize": unit.size,
                "tagsCode": unit.tags_code,
            }
        )
    return success(request, {"maxQueueIndex": high, "minQueueIndex": max(low, 0), "queueData": rows})
