"""Requests of consumers to a broker, pulls excepted: offsets, times, single messages, members of groups.

Source: ConsumerManageProcessor, AdminBrokerProcessor, QueryMessageProcessor, ClientManageProcessor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from rmqtool.errors import FilterError, FormatError, InputError, UsageError
from rmqtool.formats.remoting import Command
from rmqtool.formats.remoting_codes import Response
from rmqtool.net.clients import Peer, QueueName, is_name
from rmqtool.net.context import Context, Refusal, document_of, int_of, long_of, success, text_of
from rmqtool.net.pulls import parsed_subscription
from rmqtool.net.view import ServedQueue, View
from rmqtool.read.by_time import offset_by_time
from rmqtool.read.query_message import FOREVER, MAX_BATCH, query_message

_BODY_LIMIT = 8 << 20  # bytes of records in the answer to a query
_IN_MEMORY_PERCENT = 40
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


# offsets


def max_offset(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_MAX_OFFSET."""
    queue = _queue(view, request)
    return _offset(request, 0 if queue is None else max(queue.look().high, 0))


def min_offset(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_MIN_OFFSET."""
    queue = _queue(view, request)
    return _offset(request, 0 if queue is None else max(queue.look().low, 0))


def offset_of_time(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """SEARCH_OFFSET_BY_TIMESTAMP."""
    queue = _queue(view, request)
    timestamp_ms = long_of(request, "timestamp")
    upper = text_of(request, "boundaryType", "LOWER").upper() == "UPPER"
    if queue is None or queue.queue is None:
        return _offset(request, 0)
    view.freshen()
    found = offset_by_time(
        view.store, queue.queue.topic, queue.queue.queue_id, timestamp_ms, "upper" if upper else "lower"
    )
    return _offset(request, found)


def earliest_time(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_EARLIEST_MSG_STORETIME; -1 for a queue without a message."""
    queue = _queue(view, request)
    return success(
        request, fields={"timestamp": str(-1 if queue is None else store_time(view, queue, "low"))}
    )


def store_time(view: View, queue: ServedQueue, which: str) -> int:
    """When the first (`low`) or the last message of a queue was stored, ms since 1970; -1 without one."""
    window = queue.look()
    if queue.queue is None or window.high <= max(window.low, 0):
        return -1
    unit = queue.queue.unit(max(window.low, 0) if which == "low" else window.high - 1)
    return -1 if unit is None else time_at(view, unit.physical_offset)


def time_at(view: View, physical_offset: int) -> int:
    """When the record at a place was stored, ms since 1970; -1 where none can be read."""
    head = view.store.head(physical_offset)
    return -1 if head is None else head.store_timestamp


def consumer_offset(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """QUERY_CONSUMER_OFFSET: where a group goes on, or begins."""
    group, topic, queue_id = (
        text_of(request, "consumerGroup"),
        text_of(request, "topic"),
        int_of(request, "queueId"),
    )
    known = context.offsets.get(group, topic, queue_id)
    if known is not None:
        return _offset(request, known)
    queue = view.queue(topic, queue_id)
    asks_only = request.fields.get("setZeroIfNotFound", "").lower() == "false"
    if queue is not None and not asks_only and context.start != "latest":
        low = max(queue.look().low, 0)
        if context.start == "earliest" or (low == 0 and _is_in_memory(view, queue)):
            return _offset(request, low)
    raise Refusal(Response.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")


def _is_in_memory(view: View, queue: ServedQueue) -> bool:
    """Whether a broker would take the first record of a queue for one that is in memory."""
    unit = None if queue.queue is None else queue.queue.unit(max(queue.window.low, 0))
    place = 0 if unit is None else unit.physical_offset
    end = max((file.end for file in view.store.commit_log.files), default=0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return end - place <= memory * _IN_MEMORY_PERCENT // 100


def commit_offset(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """UPDATE_CONSUMER_OFFSET: kept by the server, not in the store."""
    group, topic, queue_id = (
        text_of(request, "consumerGroup"),
        text_of(request, "topic"),
        int_of(request, "queueId"),
    )
    offset = long_of(request, "commitOffset")
    if not 0 <= queue_id < context.needed_topic(view, topic).queues:
        raise Refusal(Response.SYSTEM_ERROR, f"queueId[{queue_id}] is illegal, topic:[{topic}]")
    if not context.offsets.commit(group, topic, queue_id, offset):
        raise Refusal(Response.SYSTEM_BUSY, "too many groups have committed offsets")
    return success(request)


def _queue(view: View, request: Command) -> ServedQueue | None:
    topic = text_of(request, "topic")
    if view.topic(topic) is None:
        return None
    return view.queue(topic, int_of(request, "queueId"))


def _offset(request: Command, offset: int) -> Command:
    return success(request, fields={"offset": str(offset)})


# single messages


def message_by_offset(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """VIEW_MESSAGE_BY_ID; a broker sends whatever lies at the offset, this only a sound record."""
    offset = long_of(request, "offset")
    view.freshen()
    try:
        return request.answer(Response.SUCCESS, body=_record(view, offset))
    except InputError as error:
        reason = f"can not find message by the offset, {offset}: {error.message}"
        raise Refusal(Response.SYSTEM_ERROR, reason) from error


def _record(view: View, offset: int) -> bytes:
    """The bytes of the record at a place. Raises InputError where no sound one is."""
    found = view.store.get(offset)
    if found is None:
        raise FormatError("no record is there")
    if found.status:
        raise FormatError("the record there is damaged")
    return view.store.commit_log.bytes_of(found)


def messages_by_key(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """QUERY_MESSAGE: by a key, a unique key or a tag.

    For a unique key 5.x clients ask for the last 36 hours or three days only, so that they find nothing in an
    older store: the times of such a request are not looked at.
    """
    topic, key = text_of(request, "topic"), text_of(request, "key")
    most = int_of(request, "maxNum", MAX_BATCH)
    begin, end = long_of(request, "beginTimestamp", 0), long_of(request, "endTimestamp", FOREVER)
    if request.fields.get(_UNIQUE_KEY_QUERY, "").lower() == "true":
        most, begin, end = 32, 0, FOREVER
    is_tag = request.fields.get("indexType") == "T"
    view.freshen()
    found = query_message(
        view.store, topic, key, max(most, 1), begin, end, index_type="tag" if is_tag else "key"
    )
    body = b"".join(_sound_records(view, found.physical_offsets))
    if not body:
        raise Refusal(Response.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
    fields = {
        "indexLastUpdateTimestamp": str(found.last_update_timestamp),
        "indexLastUpdatePhyoffset": str(found.last_update_offset),
    }
    return request.answer(Response.SUCCESS, None, fields, body)


def _sound_records(view: View, offsets: Iterable[int]) -> Iterable[bytes]:
    left = _BODY_LIMIT
    for offset in offsets:
        try:
            data = _record(view, offset)
        except InputError:
            continue
        left -= len(data)
        if left < 0:
            return
        yield data


# members


def heartbeat(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """HEART_BEAT."""
    context.clients.heartbeat(request, document_of(request), peer, time.monotonic())
    return success(request)


def unregister(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """UNREGISTER_CLIENT."""
    group = request.fields.get("consumerGroup")
    if group is not None:
        context.clients.unregister(text_of(request, "clientID"), group)
    return success(request)


def members(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_CONSUMER_LIST_BY_GROUP."""
    group = context.clients.groups.get(text_of(request, "consumerGroup"))
    if group is None:
        raise Refusal(Response.SYSTEM_ERROR, "no consumer for this group")
    return success(request, {"consumerIdList": group.client_ids()})


def check_client(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """CHECK_CLIENT_CONFIG: whether a filter can be read."""
    document = document_of(request)
    wanted = document.get("subscriptionData") if isinstance(document, dict) else None
    if isinstance(wanted, dict):
        try:
            parsed_subscription(
                str(wanted.get("expressionType") or "TAG"), str(wanted.get("subString") or "*")
            )
        except (FilterError, UsageError) as error:
            raise Refusal(Response.SUBSCRIPTION_PARSE_FAILED, error.message) from error
    return success(request)


def lock(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """LOCK_BATCH_MQ."""
    group, client_id, queues = _lock_request(request)
    granted = context.clients.lock(group, client_id, queues, time.monotonic())
    found = [{"brokerName": name, "queueId": queue_id, "topic": topic} for name, topic, queue_id in granted]
    return success(request, {"lockOKMQSet": found})


def unlock(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """UNLOCK_BATCH_MQ."""
    context.clients.unlock(*_lock_request(request))
    return success(request)


def _lock_request(request: Command) -> tuple[str, str, list[QueueName]]:
    document = document_of(request)
    if not isinstance(document, dict) or not isinstance(document.get("mqSet"), list):
        raise FormatError("the request names no queues")
    group, client_id = document.get("consumerGroup"), document.get("clientId")
    if not is_name(group) or not is_name(client_id):
        raise FormatError("the request names no group and client")
    return group, client_id, list(map(_queue_name, document["mqSet"]))


def _queue_name(found: Any) -> QueueName:
    if not isinstance(found, dict):
        raise FormatError("not a queue")
    broker, topic, queue_id = found.get("brokerName"), found.get("topic"), found.get("queueId")
    if not is_name(broker) or not is_name(topic) or not isinstance(queue_id, int):
        raise FormatError("not a queue")
    return broker, topic, queue_id
