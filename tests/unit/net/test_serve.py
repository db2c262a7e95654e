"""`serve` through real sockets: every request that it answers, beside what the store holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqtool.formats import properties
from rmqtool.formats.fastjson import parse
from rmqtool.formats.remoting import JSON, ROCKETMQ, Command
from rmqtool.formats.remoting_codes import Request, Response
from rmqtool.net.requests import HANDLERS, PULLS, WRITES
from rmqtool.net.serve import Options
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.by_time import offset_by_time
from rmqtool.read.query_message import query_message
from rmqtool.read.store import Store, StoredMessage
from tests.support.remoting import JAVA_4_9, RemotingClient, client_of, records, served
from tests.support.stores import Library
from tests.support.trees import tree_digest

CASES = ("ok_497_clean", "ok_540_clean")


@pytest.fixture(scope="module", params=CASES)
def store(request: pytest.FixtureRequest, cases: Library) -> Iterator[Store]:
    """A store of a real broker; nothing may change it."""
    path = cases.path(request.param)
    before = tree_digest(path)
    with Store.open(path) as opened:
        yield opened
    assert tree_digest(path) == before


@pytest.fixture(scope="module")
def port(store: Store) -> Iterator[int]:
    """The port that serves it."""
    with served(store.layout.place) as found:
        yield found.port


@pytest.fixture(params=[JSON, ROCKETMQ])
def client(request: pytest.FixtureRequest, port: int) -> Iterator[RemotingClient]:
    """A client of each header type."""
    with RemotingClient(port, header_type=request.param) as connected:
        yield connected


def largest(store: Store) -> tuple[str, int]:
    """The ordinary queue with most messages, and of its topic."""
    return max(
        (key for key, queue in store.queues.items() if isinstance(queue, ConsumeQueue) and key[0][0] != "%"),
        key=lambda key: store.max_offset(*key),
    )


def test_every_message_of_every_queue_comes_as_the_log_has_it(store: Store, client: RemotingClient) -> None:
    for (topic, queue_id), queue in store.queues.items():
        low = store.min_offset(topic, queue_id)
        expected = [unit.physical_offset for _, unit in queue.units(max(low, 0))]
        found = client.all_of(topic, queue_id)
        assert [message.physical_offset for message in found] == expected, (topic, queue_id)
        for message in found[::7]:
            stored = store.get(message.physical_offset)
            assert stored is not None and stored.message == message


def test_bounds_times_and_single_messages(store: Store, client: RemotingClient) -> None:
    for topic, queue_id in store.queues:
        at = {"topic": topic, "queueId": queue_id}
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        assert client.call(Request.GET_MAX_OFFSET, at).fields["offset"] == str(high)
        assert client.call(Request.GET_MIN_OFFSET, at).fields["offset"] == str(max(low, 0))
        stored = store.get_by_queue_offset(topic, queue_id, max(low, 0))
        earliest = client.call(Request.GET_EARLIEST_MSG_STORETIME, at).fields["timestamp"]
        assert earliest == str(stored.message.store_timestamp if stored is not None else -1)
        for timestamp_ms in (0, int(earliest) + 5, 1 << 60):
            for bound, word in (("lower", "LOWER"), ("upper", "UPPER")):
                asked = {**at, "timestamp": timestamp_ms, "boundaryType": word}
                found = client.call(Request.SEARCH_OFFSET_BY_TIMESTAMP, asked).fields["offset"]
                assert found == str(offset_by_time(store, topic, queue_id, timestamp_ms, bound))  # type: ignore[arg-type]
    assert client.call(Request.GET_MAX_OFFSET, {"topic": "none", "queueId": 0}).fields["offset"] == "0"


def test_messages_by_place_key_and_unique_key(store: Store, client: RemotingClient) -> None:
    def keyed(each: StoredMessage) -> bool:
        found = properties.decode(each.message.properties_bytes)
        return {"KEYS", "UNIQ_KEY"} <= found.keys() and each.message.topic[0] != "%"

    stored = next(filter(keyed, store.messages()))
    topic = stored.message.topic
    view = client.call(Request.VIEW_MESSAGE_BY_ID, {"offset": stored.physical_offset})
    assert records(view.body) == [stored.message]
    for offset in (stored.physical_offset + 1, -1, 1 << 62):
        refused = client.call(Request.VIEW_MESSAGE_BY_ID, {"offset": offset})
        assert (refused.code, refused.body) == (Response.SYSTEM_ERROR, b"")
    found = properties.decode(stored.message.properties_bytes)
    for key, unique, window in (
        (found["KEYS"].split()[0], "false", (0, 1 << 60)),
        (found["UNIQ_KEY"], "true", (1, 2)),  # the window of a unique key is not looked at
    ):
        asked = {"topic": topic, "key": key, "maxNum": 64, "beginTimestamp": window[0],
                 "endTimestamp": window[1], "_UNIQUE_KEY_QUERY": unique}  # fmt: skip
        answer = client.call(Request.QUERY_MESSAGE, asked)
        places = [message.physical_offset for message in records(answer.body)]
        assert places == list(query_message(store, topic, key).physical_offsets)
        assert stored.physical_offset in places
    asked["key"] = "no such key"
    assert client.call(Request.QUERY_MESSAGE, asked).code == Response.QUERY_NOT_FOUND


def test_tags_and_filters(store: Store, client: RemotingClient) -> None:
    """A tag selects by its hash, as a broker does; an expression by the properties."""
    topic, queue_id = largest(store)
    messages = [stored for stored in store.messages() if (stored.message.topic, stored.message.queue_id) ==
                (topic, queue_id)]  # fmt: skip
    tags = [properties.decode(stored.message.properties_bytes).get("TAGS") for stored in messages]
    tag = max(filter(None, tags), key=tags.count)
    expected = [stored.physical_offset for stored, each in zip(messages, tags, strict=True) if each == tag]
    assert 0 < len(expected) < len(messages)
    for text, expression_type in ((f"nothing || {tag}", "TAG"), (f"TAGS = '{tag}'", "SQL92")):
        found = client.all_of(topic, queue_id, subscription=text, expressionType=expression_type)
        assert [message.physical_offset for message in found] == expected
    for text, expression_type in (("TAGS = ", "SQL92"), (" || ", "TAG"), ("a", "XPATH")):
        answer = client.pull(topic, queue_id, 0, subscription=text, expressionType=expression_type)
        assert answer.code == Response.SUBSCRIPTION_PARSE_FAILED


def test_where_a_pull_is_outside_of_a_queue(store: Store, client: RemotingClient) -> None:
    topic, queue_id = largest(store)
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    assert client.pull(topic, queue_id, high).code == Response.PULL_NOT_FOUND
    for offset, following in ((high + 7, high), (low - 1, low)):
        answer = client.pull(topic, queue_id, offset)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (Response.PULL_OFFSET_MOVED, str(following))
        assert (answer.fields["minOffset"], answer.fields["maxOffset"]) == (str(low), str(high))
    assert client.pull("none", 0, 0).code == Response.TOPIC_NOT_EXIST
    invalid = Response.INVALID_PARAMETER if store.profile.name != "4.9" else Response.SYSTEM_ERROR
    for number in (-1, 5000):
        assert client.pull(topic, number, 0).code == invalid
    assert client.pull(topic, queue_id, 0, sysFlag=0).code == Response.SUBSCRIPTION_NOT_EXIST
    answer = client.pull(topic, queue_id, low, maxMsgNums=3)
    assert len(records(answer.body)) == 3 and answer.fields["suggestWhichBrokerId"] == "0"
    assert len(records(client.pull(topic, queue_id, low, maxMsgNums=1 << 30).body)) == 32


def heartbeat(client_id: str, group: str, topic: str, text: str = "*", version: int = 1) -> dict[str, Any]:
    """What a push consumer sends."""
    wanted = {"topic": topic, "subString": text, "subVersion": version, "expressionType": "TAG"}
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [wanted],
    }  # fmt: skip
    return {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]}


def test_members_of_a_group(store: Store, port: int) -> None:
    """All members see the same list; each change is told; who is gone with its connection is no member."""
    topic, queue_id = largest(store)
    group = {"consumerGroup": "Members"}
    with RemotingClient(port) as first:
        assert first.call(Request.GET_CONSUMER_LIST_BY_GROUP, group).code == Response.SYSTEM_ERROR
        assert first.call(Request.HEART_BEAT, body=heartbeat("b", "Members", topic)).code == 0
        with RemotingClient(port, header_type=ROCKETMQ) as second:
            first.notices.clear()
            assert second.call(Request.HEART_BEAT, body=heartbeat("a", "Members", topic)).code == 0
            for each in (first, second):
                assert each.document(Request.GET_CONSUMER_LIST_BY_GROUP, group) == {
                    "consumerIdList": ["a", "b"]
                }
            told = first.notices[0] if first.notices else first.receive()
            assert told is not None and told.code == Request.NOTIFY_CONSUMER_IDS_CHANGED
            assert told.fields == group and told.is_one_way
        told = first.receive()
        assert told is not None and told.code == Request.NOTIFY_CONSUMER_IDS_CHANGED
        assert first.document(Request.GET_CONSUMER_LIST_BY_GROUP, group) == {"consumerIdList": ["b"]}
        shown = first.document(Request.GET_CONSUMER_CONNECTION_LIST, group)
        assert [each["clientId"] for each in shown["connectionSet"]] == ["b"]
        assert shown["subscriptionTable"][topic]["subString"] == "*"
        # The heartbeat's subscription counts for a pull without one; the highest version of it.
        first.call(Request.HEART_BEAT, body=heartbeat("b", "Members", topic, "no such tag", version=5))
        first.call(Request.HEART_BEAT, body=heartbeat("b", "Members", topic, "*", version=4))
        known = {"consumerGroup": "Members", "sysFlag": 0}
        assert first.pull(topic, queue_id, 0, **known, subVersion=5).code == Response.PULL_RETRY_IMMEDIATELY
        assert first.pull(topic, queue_id, 0, **known, subVersion=6).code == Response.SUBSCRIPTION_NOT_LATEST
        # A broker makes the retry topic of a group at its first heartbeat.
        route = first.document(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%Members"})
        assert route["queueDatas"][0]["readQueueNums"] == 1
        assert first.pull("%RETRY%Members", 0, 0).code == Response.PULL_NOT_FOUND
        gone = {"clientID": "b", "consumerGroup": "Members"}
        assert first.call(Request.UNREGISTER_CLIENT, gone).code == 0
        assert first.call(Request.GET_CONSUMER_LIST_BY_GROUP, group).code == Response.SYSTEM_ERROR
        assert first.call(Request.GET_CONSUMER_CONNECTION_LIST, group).code == Response.CONSUMER_NOT_ONLINE


def test_locks(store: Store, client: RemotingClient) -> None:
    """A queue is locked for one client of a group; another group does not see it."""
    queue = {"brokerName": "broker-a", "topic": largest(store)[0], "queueId": 0}

    def lock(code: int, client_id: str, group: str) -> Command:
        return client.call(code, body={"consumerGroup": group, "clientId": client_id, "mqSet": [queue]})

    group = f"Locks{client.header_type}"
    assert parse(lock(Request.LOCK_BATCH_MQ, "a", group).body)["lockOKMQSet"] == [queue]
    assert parse(lock(Request.LOCK_BATCH_MQ, "b", group).body)["lockOKMQSet"] == []
    assert parse(lock(Request.LOCK_BATCH_MQ, "b", f"{group}2").body)["lockOKMQSet"] == [queue]
    assert lock(Request.UNLOCK_BATCH_MQ, "b", group).code == 0
    assert parse(lock(Request.LOCK_BATCH_MQ, "b", group).body)["lockOKMQSet"] == []
    assert lock(Request.UNLOCK_BATCH_MQ, "a", group).code == 0
    assert parse(lock(Request.LOCK_BATCH_MQ, "b", group).body)["lockOKMQSet"] == [queue]


def test_routes_and_lists(store: Store, client: RemotingClient, port: int) -> None:
    topic = largest(store)[0]
    route = client.document(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    broker, queues = route["brokerDatas"][0], route["queueDatas"][0]
    assert broker["brokerAddrs"] == {"0": f"127.0.0.1:{port}"}
    assert (broker["cluster"], broker["brokerName"]) == ("DefaultCluster", "broker-a")
    ids = [queue_id for each, queue_id in store.queues if each == topic]
    assert queues["perm"] == 4 and queues["readQueueNums"] >= max(ids) + 1
    assert client.call(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "none"}).code == Response.TOPIC_NOT_EXIST
    names = client.document(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)["topicList"]
    shown = client.document(Request.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
    assert {each for each, _ in store.queues} <= set(shown) <= set(names)
    assert {each["perm"] for each in shown.values()} == {4}
    system = client.document(Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"]
    assert {"DefaultCluster", "broker-a", "TBW102", "DefaultCluster_REPLY_TOPIC"} <= set(system)
    assert topic not in system
    assert client.call(Request.GET_NAMESRV_CONFIG).body == b"listenPort=%d\n" % port


ANSWERED: dict[int, dict[str, Any]] = {
    Request.GET_BROKER_CLUSTER_INFO: {},
    Request.GET_TOPICS_BY_CLUSTER: {"cluster": "DefaultCluster"},
    Request.GET_SYSTEM_TOPIC_LIST_FROM_NS: {},
    Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: {},
    Request.GET_UNIT_TOPIC_LIST: {},
    Request.GET_HAS_UNIT_SUB_TOPIC_LIST: {},
    Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: {},
    Request.GET_NAMESRV_CONFIG: {},
    Request.CHECK_CLIENT_CONFIG: {},
    Request.GET_TOPIC_CONFIG: {"topic": "TOPIC"},
    Request.QUERY_TOPIC_CONSUME_BY_WHO: {"topic": "TOPIC"},
    Request.QUERY_TOPICS_BY_CONSUMER: {"group": "G"},
    Request.QUERY_SUBSCRIPTION_BY_CONSUMER: {"group": "G", "topic": "TOPIC"},
    Request.GET_ALL_PRODUCER_INFO: {},
    Request.GET_BROKER_CONFIG: {},
    Request.GET_ALL_CONSUMER_OFFSET: {},
    Request.GET_TOPIC_STATS_INFO: {"topic": "TOPIC"},
    Request.GET_CONSUME_STATS: {"consumerGroup": "G", "topic": "TOPIC"},
    Request.GET_BROKER_CONSUME_STATS: {},
    Request.QUERY_CONSUME_TIME_SPAN: {"topic": "TOPIC", "group": "G"},
    Request.QUERY_CONSUME_QUEUE: {"topic": "TOPIC", "queueId": 0, "index": 0, "count": 5},
    Request.GET_BROKER_RUNTIME_INFO: {},
    Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {},
    Request.GET_ALL_DELAY_OFFSET: {},
}
REFUSED: dict[int, tuple[dict[str, Any], Response]] = {
    Request.GET_KV_CONFIG: ({"namespace": "ORDER_TOPIC_CONFIG", "key": "a"}, Response.QUERY_NOT_FOUND),
    Request.GET_KVLIST_BY_NAMESPACE: ({"namespace": "a"}, Response.QUERY_NOT_FOUND),
    Request.GET_PRODUCER_CONNECTION_LIST: ({"producerGroup": "a"}, Response.SYSTEM_ERROR),
    Request.VIEW_BROKER_STATS_DATA: ({}, Response.SYSTEM_ERROR),
    Request.GET_SUBSCRIPTIONGROUP_CONFIG: ({"group": "none"}, Response.SUBSCRIPTION_GROUP_NOT_EXIST),
    Request.GET_TOPIC_STATS_INFO: ({"topic": "none"}, Response.TOPIC_NOT_EXIST),
    Request.GET_TOPIC_CONFIG: ({"topic": "none"}, Response.TOPIC_NOT_EXIST),
}


def test_what_tools_ask_for_is_answered(store: Store, client: RemotingClient) -> None:
    topic = largest(store)[0]
    for code, fields in ANSWERED.items():
        asked = {name: topic if value == "TOPIC" else value for name, value in fields.items()}
        answer = client.call(code, asked, b"{}")
        assert answer.code == 0, (code, answer.remark)
    for code, (fields, response) in REFUSED.items():
        assert client.call(code, fields).code == response, code
    elsewhere = {
        Request.GET_ROUTEINFO_BY_TOPIC, Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Request.HEART_BEAT,
        Request.UNREGISTER_CLIENT, Request.GET_CONSUMER_LIST_BY_GROUP, Request.LOCK_BATCH_MQ,
        Request.UNLOCK_BATCH_MQ, Request.UPDATE_CONSUMER_OFFSET, Request.QUERY_CONSUMER_OFFSET,
        Request.GET_ALL_TOPIC_CONFIG, Request.GET_CONSUMER_CONNECTION_LIST, Request.GET_MAX_OFFSET,
        Request.GET_MIN_OFFSET, Request.GET_EARLIEST_MSG_STORETIME, Request.SEARCH_OFFSET_BY_TIMESTAMP,
        Request.VIEW_MESSAGE_BY_ID, Request.QUERY_MESSAGE,
    }  # fmt: skip
    assert HANDLERS.keys() == ANSWERED.keys() | REFUSED.keys() | set(map(int, elsewhere))


def test_what_would_change_something_is_refused(client: RemotingClient) -> None:
    for code in sorted(WRITES):
        assert client.call(code, {"topic": "New"}, b"body").code == Response.NO_PERMISSION
    for code in (400, 307, 901, 1005, 31_000):
        assert client.call(code).code == Response.REQUEST_CODE_NOT_SUPPORTED
    assert not WRITES & (HANDLERS.keys() | PULLS)


def test_a_request_with_a_wrong_field_is_refused(store: Store, client: RemotingClient) -> None:
    topic = largest(store)[0]
    for fields in ({"topic": topic}, {"topic": topic, "queueId": "x"}, {"topic": topic, "queueId": 1 << 31}):
        for code in (Request.GET_MAX_OFFSET, Request.PULL_MESSAGE, Request.QUERY_CONSUMER_OFFSET):
            assert client.call(code, {"consumerGroup": "G", **fields}).code == Response.SYSTEM_ERROR
    for body in (b"", b"[]", b'{"clientID":1}', b'{"clientID":"a","consumerDataSet":[{}]}', b"\xff{"):
        assert client.call(Request.HEART_BEAT, body=body).code == Response.SYSTEM_ERROR
        assert client.call(Request.LOCK_BATCH_MQ, body=body).code == Response.SYSTEM_ERROR


def test_one_way_requests_are_not_answered(store: Store, client: RemotingClient) -> None:
    topic, queue_id = largest(store)
    at = {"consumerGroup": f"Quiet{client.header_type}", "topic": topic, "queueId": queue_id}
    client.send(Request.UPDATE_CONSUMER_OFFSET, {**at, "commitOffset": 3}, flag=2)
    found = client.receive_next(Request.QUERY_CONSUMER_OFFSET, at)
    assert found.fields["offset"] == "3"


def test_where_groups_begin(cases: Library) -> None:
    """By the store's offsets; without them at the oldest message, or as the client chooses."""
    path = cases.path("ok_540_clean")
    with Store.open(path) as store:
        topic, queue_id = largest(store)
        low = store.min_offset(topic, queue_id)
    at = {"consumerGroup": "New", "topic": topic, "queueId": queue_id}
    with client_of(path) as client:
        assert client.call(Request.QUERY_CONSUMER_OFFSET, at).fields["offset"] == str(low)
        asks = {**at, "setZeroIfNotFound": "false"}
        assert client.call(Request.QUERY_CONSUMER_OFFSET, asks).code == Response.QUERY_NOT_FOUND
        known = parse(client.call(Request.GET_ALL_CONSUMER_OFFSET).body)["offsetTable"]
        name, queues = next(iter(known.items()))
        number, offset = next(iter(queues.items()))
        where = dict(zip(("topic", "consumerGroup"), name.split("@"), strict=True)) | {"queueId": number}
        assert client.call(Request.QUERY_CONSUMER_OFFSET, where).fields["offset"] == str(offset)
    with client_of(path, Options(start="latest")) as client:
        assert client.call(Request.QUERY_CONSUMER_OFFSET, at).code == Response.QUERY_NOT_FOUND
    with client_of(path, Options(start="broker")) as client:
        answer = client.call(Request.QUERY_CONSUMER_OFFSET, at)
        assert (answer.code, answer.fields.get("offset")) == ((0, "0") if low == 0 else (22, None))


def test_commits_last_in_their_file(cases: Library, tmp_path: Path) -> None:
    """Commits of requests and of pulls; the file counts more than the store, which is not changed."""
    path, file = cases.path("ok_540_clean"), tmp_path / "offsets.json"
    with Store.open(path) as store:
        topic, queue_id = largest(store)
    before = tree_digest(path)
    at = {"consumerGroup": "Keeps", "topic": topic, "queueId": queue_id}
    with client_of(path, Options(offsets=file)) as client:
        assert client.call(Request.UPDATE_CONSUMER_OFFSET, {**at, "commitOffset": 4}).code == 0
        assert client.call(Request.UPDATE_CONSUMER_OFFSET, {**at, "commitOffset": 4, "queueId": 99}).code == 1
        client.pull(topic, queue_id, 5, consumerGroup="Pulls", sysFlag=5, commitOffset=5)
    assert tree_digest(path) == before
    assert [each.name for each in tmp_path.iterdir()] == ["offsets.json"]
    with client_of(path, Options(offsets=file)) as client:
        assert client.call(Request.QUERY_CONSUMER_OFFSET, at).fields["offset"] == "4"
        at["consumerGroup"] = "Pulls"
        assert client.call(Request.QUERY_CONSUMER_OFFSET, at).fields["offset"] == "5"


def test_a_pull_waits_as_long_as_it_may(cases: Library) -> None:
    """Nothing comes into a store at rest: other requests are answered meanwhile, then the pull itself."""
    path = cases.path("ok_540_clean")
    with Store.open(path) as store:
        topic, queue_id = largest(store)
        high = store.max_offset(topic, queue_id)
    with client_of(path) as client:
        fields = {
            "consumerGroup": "G", "topic": topic, "queueId": queue_id, "queueOffset": high,
            "maxMsgNums": 32, "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 300,
            "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        started = time.monotonic()
        number = client.send(Request.PULL_MESSAGE, fields)
        assert client.call(Request.GET_MAX_OFFSET, fields).fields["offset"] == str(high)
        answer = client.answer(number)
        assert time.monotonic() - started >= 0.3
        assert (answer.code, answer.fields["nextBeginOffset"]) == (Response.PULL_NOT_FOUND, str(high))


def test_old_clients_get_records_of_version_2_alone(cases: Library) -> None:
    """They cannot read them, and drop what follows in the answer."""
    path = cases.path("ok_540_clean")
    with Store.open(path) as store:
        keys = {(stored.message.topic, stored.message.queue_id) for stored in store.messages()
                if stored.message.version == 2}  # fmt: skip
    assert keys
    with client_of(path) as new, client_of(path, version=JAVA_4_9) as old:
        for topic, queue_id in keys:
            assert old.all_of(topic, queue_id) == new.all_of(topic, queue_id)
            answer = old.pull(topic, queue_id, 0)
            assert len([each for each in records(answer.body) if each.version == 2]) == 1
