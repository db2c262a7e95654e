"""Requests to a name server: routes, the cluster, lists of topics.

Source: ClientRequestProcessor#getRouteInfoByTopic, DefaultRequestProcessor (namesrv), RouteInfoManager.
"""

from __future__ import annotations

from typing import Any

from rmqtool.formats.remoting import Command
from rmqtool.formats.remoting_codes import Response
from rmqtool.message.system_topics import REPLY_SUFFIX, is_system_topic
from rmqtool.net.clients import Peer
from rmqtool.net.context import PERM_READ, Context, Refusal, success, text_of
from rmqtool.net.view import View


def route(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_ROUTEINFO_BY_TOPIC."""
    topic = context.needed_topic(view, text_of(request, "topic"))
    queues = {
        "brokerName": context.names.broker,
        "perm": PERM_READ,
        "readQueueNums": topic.queues,
        "topicSysFlag": topic.sys_flag,
        "writeQueueNums": topic.queues,
    }
    return success(
        request,
        {"brokerDatas": [_broker(context, peer)], "filterServerTable": {}, "queueDatas": [queues]},
    )


def _broker(context: Context, peer: Peer) -> dict[str, Any]:
    return {
        "brokerAddrs": {"0": context.names.address(peer)},
        "brokerName": context.names.broker,
        "cluster": context.names.cluster,
        "enableActingMaster": False,
    }


def cluster(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_BROKER_CLUSTER_INFO."""
    names = context.names
    return success(
        request,
        {
            "brokerAddrTable": {names.broker: _broker(context, peer)},
            "clusterAddrTable": {names.cluster: [names.broker]},
        },
    )


def topics(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    return success(request, {"topicList": context.topic_names(view)})


def topics_of_cluster(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_TOPICS_BY_CLUSTER."""
    is_ours = text_of(request, "cluster", "") == context.names.cluster
    return success(request, {"topicList": context.topic_names(view) if is_ours else []})


def system_topics(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_SYSTEM_TOPIC_LIST_FROM_NS and GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    names = context.names
    reply = f"{names.cluster}{REPLY_SUFFIX}"
    found = {
        names.cluster,
        names.broker,
        *(name for name in view.topics if is_system_topic(name) or name == reply),
    }
    return success(request, {"brokerAddr": names.address(peer), "topicList": sorted(found)})


def no_topics(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_UNIT_TOPIC_LIST and its like."""
    return success(request, {"topicList": []})


def no_value(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_KV_CONFIG and GET_KVLIST_BY_NAMESPACE."""
    raise Refusal(Response.QUERY_NOT_FOUND, "no config item")


def config(context: Context, view: View, request: Command, peer: Peer) -> Command:
    """GET_NAMESRV_CONFIG, as properties. Not nothing: mqadmin fails on an answer without a body."""
    port = context.names.address(peer).rpartition(":")[2]
    return request.answer(Response.SUCCESS, body=f"listenPort={port}\n".encode())
