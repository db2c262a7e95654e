"""Which function answers which request, where it runs, and what is refused.

Source: BrokerController#registerProcessor, NamesrvController#registerProcessor, ResponseCode.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from rmqtool.errors import InputError, RmqtoolError
from rmqtool.formats.remoting import Command
from rmqtool.formats.remoting_codes import Request, Response
from rmqtool.net import administration, broker, name_server
from rmqtool.net.clients import Peer
from rmqtool.net.context import READ_ONLY, Context, Handler, Refusal
from rmqtool.net.view import View


class Needs(Enum):
    """What a request needs, so where it runs."""

    MEMORY = 0
    """What is known already: at once."""
    STORE = 1
    """Small reads of queues and records: at once, where the store is on a disk of this machine."""
    LOOKUP = 2
    """Reads that may take long: outside of the loop."""


class Entry(NamedTuple):
    """How a request is answered."""

    handler: Handler
    needs: Needs


_MEMORY = {
    Request.GET_ROUTEINFO_BY_TOPIC: name_server.route,
    Request.GET_BROKER_CLUSTER_INFO: name_server.cluster,
    Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: name_server.topics,
    Request.GET_TOPICS_BY_CLUSTER: name_server.topics_of_cluster,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_NS: name_server.system_topics,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: name_server.system_topics,
    Request.GET_UNIT_TOPIC_LIST: name_server.no_topics,
    Request.GET_HAS_UNIT_SUB_TOPIC_LIST: name_server.no_topics,
    Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: name_server.no_topics,
    Request.GET_KV_CONFIG: name_server.no_value,
    Request.GET_KVLIST_BY_NAMESPACE: name_server.no_value,
    Request.GET_NAMESRV_CONFIG: name_server.config,
    Request.HEART_BEAT: broker.heartbeat,
    Request.UNREGISTER_CLIENT: broker.unregister,
    Request.GET_CONSUMER_LIST_BY_GROUP: broker.members,
    Request.CHECK_CLIENT_CONFIG: broker.check_client,
    Request.LOCK_BATCH_MQ: broker.lock,
    Request.UNLOCK_BATCH_MQ: broker.unlock,
    Request.UPDATE_CONSUMER_OFFSET: broker.commit_offset,
    Request.GET_ALL_TOPIC_CONFIG: administration.all_topics,
    Request.GET_TOPIC_CONFIG: administration.topic_config,
    Request.QUERY_TOPIC_CONSUME_BY_WHO: administration.groups_of_topic,
    Request.QUERY_TOPICS_BY_CONSUMER: administration.topics_of_group,
    Request.QUERY_SUBSCRIPTION_BY_CONSUMER: administration.subscription,
    Request.GET_CONSUMER_CONNECTION_LIST: administration.connections,
    Request.GET_PRODUCER_CONNECTION_LIST: administration.no_producers,
    Request.GET_ALL_PRODUCER_INFO: administration.all_producers,
    Request.GET_BROKER_CONFIG: administration.broker_config,
    Request.GET_ALL_CONSUMER_OFFSET: administration.all_consumer_offsets,
    Request.VIEW_BROKER_STATS_DATA: administration.no_statistics,
}
_STORE = {
    Request.QUERY_CONSUMER_OFFSET: broker.consumer_offset,
    Request.GET_MAX_OFFSET: broker.max_offset,
    Request.GET_MIN_OFFSET: broker.min_offset,
    Request.GET_EARLIEST_MSG_STORETIME: broker.earliest_time,
}
_LOOKUP = {
    Request.SEARCH_OFFSET_BY_TIMESTAMP: broker.offset_of_time,
    Request.VIEW_MESSAGE_BY_ID: broker.message_by_offset,
    Request.QUERY_MESSAGE: broker.messages_by_key,
    Request.GET_TOPIC_STATS_INFO: administration.topic_stats,
    Request.GET_CONSUME_STATS: administration.consume_stats,
    Request.GET_BROKER_CONSUME_STATS: administration.broker_consume_stats,
    Request.QUERY_CONSUME_TIME_SPAN: administration.time_span,
    Request.QUERY_CONSUME_QUEUE: administration.queue_units,
    Request.GET_BROKER_RUNTIME_INFO: administration.runtime_info,
    Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: administration.all_groups,
    Request.GET_SUBSCRIPTIONGROUP_CONFIG: administration.group_config,
    Request.GET_ALL_DELAY_OFFSET: administration.all_delay_offsets,
}
HANDLERS: dict[int, Entry] = {
    int(code): Entry(handler, needs)
    for needs, table in ((Needs.MEMORY, _MEMORY), (Needs.STORE, _STORE), (Needs.LOOKUP, _LOOKUP))
    for code, handler in table.items()
}
PULLS = frozenset({int(Request.PULL_MESSAGE), int(Request.LITE_PULL_MESSAGE)})

_OTHER_WRITES = (27, 209, 210, 211, 212, 213, 301, 302, 902, 903, 2001, 2002, 2004, 5001, *range(3001, 3004),
                 *range(3006, 3009))  # fmt: skip
WRITES = frozenset({
    *map(int, (
        Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE, Request.SEND_REPLY_MESSAGE,
        Request.SEND_REPLY_MESSAGE_V2, Request.CONSUMER_SEND_MSG_BACK, Request.END_TRANSACTION,
        Request.RECALL_MESSAGE, Request.UPDATE_AND_CREATE_TOPIC, Request.UPDATE_AND_CREATE_TOPIC_LIST,
        Request.UPDATE_BROKER_CONFIG, Request.PUT_KV_CONFIG, Request.DELETE_KV_CONFIG,
        Request.REGISTER_BROKER, Request.UNREGISTER_BROKER, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Request.WIPE_WRITE_PERM_OF_BROKER,
        Request.ADD_WRITE_PERM_OF_BROKER, Request.DELETE_SUBSCRIPTIONGROUP, Request.DELETE_TOPIC_IN_BROKER,
        Request.DELETE_TOPIC_IN_NAMESRV, Request.REGISTER_TOPIC_IN_NAMESRV,
        Request.INVOKE_BROKER_TO_RESET_OFFSET, Request.CLEAN_EXPIRED_CONSUMEQUEUE, Request.CLONE_GROUP_OFFSET,
        Request.CLEAN_UNUSED_TOPIC, Request.UPDATE_NAMESRV_CONFIG, Request.RESUME_CHECK_HALF_MESSAGE,
        Request.DELETE_EXPIRED_COMMITLOG, Request.UPDATE_AND_GET_GROUP_FORBIDDEN,
        Request.SET_MESSAGE_REQUEST_MODE, Request.UPDATE_AND_CREATE_STATIC_TOPIC,
        Request.RESET_MASTER_FLUSH_OFFSET,
    )),
    *_OTHER_WRITES,
})  # fmt: skip
"""Requests that would change a store or a cluster."""


def refused(request: Command) -> Command:
    """The answer to a request that no function answers."""
    if request.code in WRITES:
        return request.answer(Response.NO_PERMISSION, READ_ONLY)
    remark = f"request type {request.code} not supported: {READ_ONLY}"
    return request.answer(Response.REQUEST_CODE_NOT_SUPPORTED, remark)


def answer(context: Context, view: View, request: Command, peer: Peer, handler: Handler) -> Command:
    """The answer of a function, or the code of its error."""
    try:
        return handler(context, view, request, peer)
    except (Refusal, RmqtoolError) as error:
        return error_answer(request, error)


def error_answer(request: Command, error: Refusal | RmqtoolError) -> Command:
    """The answer that says what went wrong."""
    if isinstance(error, Refusal):
        return request.answer(error.code, error.remark)
    # Without its path: a client has no need to know where the store is.
    code = Response.SYSTEM_ERROR if isinstance(error, InputError) else Response.INVALID_PARAMETER
    return request.answer(code, error.message)
