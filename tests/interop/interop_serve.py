"""Stock clients read what `rmqtool serve` serves, with no broker: every message once, as the store has it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage, StoreWriter
from rmqtool.formats import body, properties
from rmqtool.formats.remoting_codes import Request
from rmqtool.message.system_topics import is_system_topic
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.store import Store
from tests.interop.brokers import Broker, free_port
from tests.interop.processes import Program, wait_until
from tests.interop.serve_requests import broker_requests, essence, name_server_requests, requests_of
from tests.support.programs import PATIENCE_S, RMQTOOL, started
from tests.support.remoting import RemotingClient, make_certificate
from tests.support.stores import Library, real_case
from tests.support.trees import copy_tree, tree_digest

Key = tuple[str, int, int, str | None]
"""Topic, queue id, queue offset and the SHA-256 of the body as the application sees it."""

HEADERS = {
    "JSON": (), "ROCKETMQ": ("-Drocketmq.serialize.type=ROCKETMQ",), "TLS": ("-Dtls.enable=true",),
    "VIP": ("-Dcom.rocketmq.sendMessageWithVIPChannel=true",),
}  # fmt: skip
ALL_PAIRS = tuple(product(("4.9.7", "5.3.3", "5.4.0"), ("4.9.7", "5.4.0"), HEADERS))
"""Version of the client, version of the store, type of header; of JSON with TLS and by the VIP channel."""
SOME_PAIRS = (
    ("4.9.7", "4.9.7", "JSON"), ("5.4.0", "4.9.7", "ROCKETMQ"), ("4.9.7", "5.4.0", "ROCKETMQ"),
    ("5.4.0", "5.4.0", "JSON"), ("5.3.3", "5.4.0", "TLS"), ("5.3.3", "4.9.7", "VIP"),
)  # fmt: skip
PAIRS = ALL_PAIRS if os.environ.get("LAB_SERVE") == "all" else SOME_PAIRS


@contextmanager
def serve(store: Path, *options: object, port: int | None = None) -> Iterator[str]:
    """`rmqtool serve` as a user starts it; the address of the name server. It leaves the store as it was."""
    port = free_port(-2) if port is None else port
    command = [*RMQTOOL, "serve", store, "--port", port, *options]
    with started(command, text=True) as program:
        assert program.stderr is not None
        assert any("is served on" in line for line in iter(program.stderr.readline, "")), "it did not start"
        yield f"127.0.0.1:{port}"
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE_S) == 0, program.stderr.read()


def plain_topics(store: Store) -> dict[str, list[Key]]:
    """Ordinary topics with ordinary queues, and their messages; without those that have an empty body.

    A push consumer of 4.9.7 fails on an empty body (ProcessQueue#putMessage), with a real broker too.
    """
    found: dict[str, list[Key]] = {}
    unfit = set()
    for (topic, queue_id), queue in store.queues.items():
        if is_system_topic(topic) or topic.startswith("%"):
            continue
        if not isinstance(queue, ConsumeQueue):
            unfit.add(topic)
            continue
        for number, unit in queue.units(queue.min_offset(store.commit_log.min_offset, store.profile)):
            stored = store.get(unit.physical_offset)
            assert stored is not None and not stored.status
            text = body.decompress(stored.message.body, stored.message.sys_flag)
            if not text:
                unfit.add(topic)
            found.setdefault(topic, []).append((topic, queue_id, number, hashlib.sha256(text).hexdigest()))
    return {topic: rows for topic, rows in found.items() if topic not in unfit}


def store_time(store: Store, row: Key) -> int:
    """When a message of `plain_topics` was stored, ms."""
    found = store.get_by_queue_offset(*row[:3])
    assert found is not None
    return found.message.store_timestamp


def consumed(events: list[Any], group: str) -> Counter[Key]:
    """What a group has got."""
    rows = (each["message"] for each in events if each["kind"] == "consumed" and each["group"] == group)
    return Counter((row["topic"], row["queueId"], row["queueOffset"], row["bodySha256"]) for row in rows)


def wait_consumed(client: Program, group: str, rows: list[Key]) -> None:
    """Until a group has got these messages, each once and nothing else."""
    wanted = Counter(rows)
    events = client.wait_events(
        lambda found: sum(consumed(found, group).values()) >= len(rows),
        lambda found: (
            f"{group}: {sum((wanted - consumed(found, group)).values())} of {len(rows)} are missing"
        ),
    )
    assert consumed(events, group) == wanted


@contextmanager
def connected(version: str, name_server: str, home: Path, headers: str = "JSON") -> Iterator[Program]:
    """A client of a version."""
    with Program(version, "Client", home=home, properties=HEADERS[headers]) as client:
        client.call("connect", name_server=name_server)
        yield client


@pytest.mark.parametrize(("version", "store_version", "headers"), PAIRS)
def test_every_kind_of_consumer_reads_a_dead_store(
    version: str, store_version: str, headers: str, cases: Library, tmp_path: Path
) -> None:
    """Orderly, concurrent, lite and pull consumers; tags; offsets, times, keys and ids of single messages."""
    path = cases.path(real_case(store_version, "clean").name)
    before = tree_digest(path)
    with Store.open(path) as store:
        topics = plain_topics(store)
        rows = [row for each in topics.values() for row in each]
        largest = max(topics, key=lambda topic: len(topics[topic]))
        tag, tagged = most_used_tag(store, topics)
    options: list[object] = []
    if headers == "TLS":
        certificate, key = make_certificate(tmp_path)
        options = ["--tls-cert", certificate, "--tls-key", key]
    with (
        serve(path, *options) as name_server,
        connected(version, name_server, tmp_path / "client", headers) as client,
    ):
        subscriptions = dict.fromkeys(topics, "*")
        client.call("consume", group="serve_orderly", topics=subscriptions)
        client.call("consume_concurrently", group="serve_concurrent", topics=subscriptions)
        client.call("consume_lite", group="serve_lite", topic=largest, tags="*")
        client.call("consume_concurrently", group="serve_tags", topics={tagged[0][0]: f"nothing || {tag}"})
        wait_consumed(client, "serve_lite", topics[largest])
        wait_consumed(client, "serve_tags", tagged)
        wait_consumed(client, "serve_concurrent", rows)
        wait_consumed(client, "serve_orderly", rows)
        check_single_messages(client, path, largest)
        client.call("close")
    assert tree_digest(path) == before


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", "5.4.0"])
def test_consumers_that_broadcast_or_begin_at_a_time(version: str, cases: Library, tmp_path: Path) -> None:
    """Each member of a broadcasting group gets every message; a group begins at the time that it names.

    A broker gives a new group of a store whose first message is in memory the offset 0, whatever it has asked
    for; with `--start latest` it begins where it chooses.
    """
    path = cases.path(real_case("5.4.0", "clean").name)
    with Store.open(path) as store:
        topics = plain_topics(store)
        topic = max(topics, key=lambda each: len(topics[each]))
        times = {row: store_time(store, row) for row in topics[topic]}
    second = sorted(times.values())[len(times) // 2] // 1000
    later = [row for row, time_ms in times.items() if time_ms >= second * 1000]
    assert 0 < len(later) < len(times)
    text = datetime.fromtimestamp(second, UTC).strftime("%Y%m%d%H%M%S")
    with (
        serve(path, "--start", "latest") as name_server,
        connected(version, name_server, tmp_path / "client") as client,
        connected(version, name_server, tmp_path / "other") as other,
    ):
        for member in (client, other):
            member.call("consume_broadcast", group="serve_all", topic=topic)
        client.call("consume_since", group="serve_since", topic=topic, time=text)
        for member in (client, other):
            wait_consumed(member, "serve_all", topics[topic])
        wait_consumed(client, "serve_since", later)
        client.call("close")
        other.call("close")


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", "5.4.0"])
def test_a_consumer_that_returns_reconsume_later(version: str, tmp_path: Path) -> None:
    """What it sends back is refused; it gets these messages once more from its own client, and goes on."""
    root = tmp_path / "store"
    with StoreWriter.create(root, auto_create_queues=2) as writer:
        for number in range(60):
            writer.put(NewMessage("Later", b"%d" % number))
    with Store.open(root) as store:
        rows = [row for each in plain_topics(store).values() for row in each]
    wanted = Counter(rows) + Counter(row for row in rows if row[2] % 10 == 0)
    port = free_port()
    with (
        serve(root, "--metrics", port) as name_server,
        connected(version, name_server, tmp_path / "client") as client,
    ):
        client.call("consume_later", group="later", topic="Later", one_in=10)
        events = client.wait_events(
            lambda found: not wanted - consumed(found, "later"),
            lambda found: f"{sum((wanted - consumed(found, 'later')).values())} are missing",
        )
        assert consumed(events, "later") == wanted
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
            metrics = answer.read().decode()
        client.call("close")
    asked = re.search(r'requests_total{code="CONSUMER_SEND_MSG_BACK"} (\d+)', metrics)
    refused = re.search(r'answers_total{code="16"} (\d+)', metrics)
    assert asked is not None and refused is not None
    assert int(refused[1]) >= int(asked[1]) >= 6


def most_used_tag(store: Store, topics: dict[str, list[Key]]) -> tuple[str, list[Key]]:
    """A tag that some but not all messages of a topic have, and these messages."""
    by_tag: dict[tuple[str, str], list[Key]] = {}
    for topic, rows in topics.items():
        for row in rows:
            stored = store.get_by_queue_offset(*row[:3])
            assert stored is not None
            tag = properties.decode(stored.message.properties_bytes).get("TAGS")
            if tag and tag == tag.strip() and "|" not in tag:
                by_tag.setdefault((topic, tag), []).append(row)
    partial = {key: rows for key, rows in by_tag.items() if len(rows) < len(topics[key[0]])}
    (_, tag), rows = max(partial.items(), key=lambda item: len(item[1]))
    return tag, rows


def check_single_messages(client: Program, path: Path, topic: str) -> None:
    """Bounds, times and look-ups of a topic, beside what the store says."""
    queues = client.call("queues", topic=topic)
    with Store.open(path) as store:
        for queue_id, bounds in queues.items():
            number = int(queue_id)
            assert bounds == {
                "min": store.min_offset(topic, number), "max": store.max_offset(topic, number)
            }  # fmt: skip
        stored = store.get_by_queue_offset(topic, 0, store.min_offset(topic, 0))
        assert stored is not None
        message = stored.message
        found = properties.decode(message.properties_bytes)
    pulled = client.call("pull", topic=topic, queue_id=0, tags="*", offset=message.queue_offset, max=5)
    assert pulled["status"] == "FOUND" and pulled["messages"][0]["queueOffset"] == message.queue_offset
    by_time = client.call("search_offset", topic=topic, queue_id=0, time=message.store_timestamp)
    assert by_time == message.queue_offset
    if "KEYS" in found:
        key = found["KEYS"].split()[0]
        rows = client.call(
            "query", topic=topic, key=key, max=64, begin=0, end=message.store_timestamp + 86_400_000
        )
        assert message.queue_offset in [row["queueOffset"] for row in rows]
    by_id = client.call("view", topic=topic, id=found["UNIQ_KEY"])
    assert (by_id["queueOffset"], by_id["queueId"]) == (message.queue_offset, 0)


MQADMIN = (
    ("topicList", (), "{topic}"),
    ("topicRoute", ("-t", "{topic}"), "readQueueNums"),
    ("topicStatus", ("-t", "{topic}"), "broker-a"),
    ("topicClusterList", ("-t", "{topic}"), "DefaultCluster"),
    ("clusterList", (), "broker-a"),
    ("brokerStatus", ("-b", "{server}"), "commitLogMaxOffset"),
    ("consumerProgress", (), "{group}"),
    ("consumerProgress", ("-g", "{group}"), "broker-a"),
    ("queryMsgById", ("-i", "{id}", "-t", "{topic}"), "OffsetID:"),
    ("queryMsgByOffset", ("-t", "{topic}", "-b", "broker-a", "-i", "0", "-o", "{offset}"), "OffsetID:"),
    ("printMsg", ("-t", "{topic}"), "MSGID"),
    ("queryCq", ("-t", "{topic}", "-q", "0", "-i", "{offset}", "-b", "{server}"), "physicOffset"),
    ("getBrokerConfig", ("-b", "{server}"), "brokerName"),
    ("brokerConsumeStats", ("-b", "{server}"), "Diff"),
    ("statsAll", (), "{topic}"),
    ("topicList", ("-c",), "{topic}"),
    ("clusterList", ("-m",), "broker-a"),
    ("brokerStatus", ("-c", "DefaultCluster"), "commitLogMaxOffset"),
    ("queryMsgByKey", ("-t", "{topic}", "-k", "{key}"), "{id}"),
    ("queryMsgByUniqueKey", ("-t", "{topic}", "-i", "{id}"), "{id}"),
    ("printMsgByQueue", ("-t", "{topic}", "-a", "broker-a", "-i", "0", "-p", "true"), "MSGID"),
    ("consumeMessage", ("-t", "{topic}", "-b", "broker-a", "-i", "0", "-o", "{offset}", "-c", "2"), "MSGID"),
    ("getNamesrvConfig", (), "listenPort"),
    ("allocateMQ", ("-t", "{topic}", "-i", "127.0.0.1"), "127.0.0.1"),
)  # fmt: skip


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", "5.4.0"])
def test_mqadmin_reads_a_dead_store(version: str, cases: Library, tmp_path: Path) -> None:
    """Its reading commands find what they look for; those that change something are refused.

    queryMsgByUniqueKey of 5.x asks for the last 36 hours only, and these messages are older.
    """
    path = cases.path(real_case("5.4.0", "clean").name)
    with Store.open(path) as store:
        topics = plain_topics(store)
        firsts = {topic: store.get_by_queue_offset(topic, 0, store.min_offset(topic, 0)) for topic in topics}
        keyed = {
            topic: (first.message.queue_offset, found)
            for topic, first in firsts.items()
            if first is not None and "KEYS" in (found := properties.decode(first.message.properties_bytes))
        }
        topic = max(keyed, key=lambda each: len(topics[each]))
        offset, found = keyed[topic]
        unique, key = found["UNIQ_KEY"], found["KEYS"].split()[0]
    with serve(path, "--offsets", tmp_path / "offsets.json") as server:
        with connected(version, server, tmp_path / "client") as client:
            client.call("consume_lite", group="serve_admin", topic=topic, tags="*")
            wait_consumed(client, "serve_admin", topics[topic])
            client.call("close")
        offsets = tmp_path / "offsets.json"
        wait_until(lambda: offsets.exists() and "serve_admin" in offsets.read_text("utf-8"), "commits")
        known = {"topic": topic, "server": server, "group": "serve_admin", "id": unique, "offset": offset,
                 "key": key}  # fmt: skip
        (tmp_path / "admin" / "conf").mkdir(parents=True)  # 4.9 does nothing without this file
        (tmp_path / "admin" / "conf" / "logback_tools.xml").write_text("<configuration/>\n")
        with Program(version, "Admin", home=tmp_path / "admin") as admin:
            missing = {}
            for command, words, expected in MQADMIN:
                if command == "queryMsgById" and version.startswith("4."):
                    continue  # it has no -t, and looks for offset ids only
                line = [command, "-n", server, *(word.format(**known) for word in words)]
                printed = admin.call("run", words=line)
                if expected.format(**known) not in printed:
                    missing[" ".join(line)] = printed
            change = ["updateTopic", "-n", server, "-b", server, "-t", "New", "-r", "1", "-w", "1"]
            assert "success" not in admin.call("run", words=change)
    assert not missing, "\n".join(f"{line}\n{printed}" for line, printed in missing.items())


def test_two_orderly_members_share_a_group(tmp_path: Path) -> None:
    """Each queue is locked for one of them: every message comes once, and in the order of its queue."""
    root, sent = tmp_path / "store", 8
    with StoreWriter.create(root, auto_create_queues=8) as writer:
        for number in range(8):
            writer.put(NewMessage("Shared", b"x", queue_id=number))
    with (
        serve(root, "--live") as server,
        connected("5.4.0", server, tmp_path / "a") as first,
        connected("5.4.0", server, tmp_path / "b") as second,
        StoreWriter.open(root) as writer,
    ):
        members = (first, second)

        def put_more() -> bool:
            nonlocal sent
            for _ in range(40):
                writer.put(NewMessage("Shared", b"x", queue_id=sent % 8))
                sent += 1
            return all(consumed(client.events_so_far(), "serve_shared") for client in members)

        for client in members:
            client.call("consume", group="serve_shared", topics={"Shared": "*"})
        wait_until(put_more, "both have got messages", step=0.5)
        wait_until(lambda: sum(map(got, members)) >= sent, "all messages came")
        rows = [(client, key) for client in members for key in in_order(client.events_so_far())]
        for client in members:
            client.call("close")
    assert Counter(key for _, key in rows) == Counter((number % 8, number // 8) for number in range(sent))
    for client in members:
        for queue_id in range(8):
            offsets = [offset for each, (queue, offset) in rows if each is client and queue == queue_id]
            assert offsets == sorted(offsets)


def got(client: Program) -> int:
    """How many messages a client has got."""
    return len(in_order(client.events_so_far()))


def in_order(events: list[Any]) -> list[tuple[int, int]]:
    """Queue id and queue offset of what was consumed, as it came."""
    rows = (each["message"] for each in events if each["kind"] == "consumed")
    return [(row["queueId"], row["queueOffset"]) for row in rows]


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One for the brokers of all tests, which come one after the other."""
    folder = tmp_path_factory.mktemp("names")
    with Broker("5.4.0", folder, folder / "store") as broker:
        broker.start_name_server()
        yield broker.name_server


def test_a_live_store_of_4_9_is_served_beside_its_broker(name_server: str, tmp_path: Path) -> None:
    """A new store."""
    with Broker("4.9.7", tmp_path, tmp_path / "store", name_server=name_server) as broker:
        broker.start()
        check_live(broker, tmp_path / "reader")


def check_live(broker: Broker, home: Path) -> None:
    """Messages of a topic that was not there at the start come while the broker writes them."""
    count = 300
    with broker.client() as producer, serve(broker.store, "--live") as server:
        sent = [producer.call("send", topic="Fresh", body="eHg=", tags="a") for _ in range(count // 3)]
        with connected(broker.version, server, home) as client:
            client.call("consume_concurrently", group="serve_live", topics={"Fresh": "a || b"})
            wait_until(lambda: client.events_so_far(), "the first message")
            for tag in ("b", "c"):
                sent += [
                    producer.call("send", topic="Fresh", body="eHg=", tags=tag) for _ in range(count // 3)
                ]
            places = {(each["queueId"], each["queueOffset"]) for each in sent[: 2 * count // 3]}
            client.wait_events(lambda found: len(found) >= len(places), lambda found: f"{len(found)} came")
            found = consumed(client.events_so_far(), "serve_live")
            client.call("close")
    assert {(queue_id, offset) for _, queue_id, offset, _ in found} == places
    assert set(found.values()) == {1}


def test_the_same_requests_have_the_same_answers_as_at_a_broker(
    cases: Library, name_server: str, tmp_path: Path
) -> None:
    """A real 5.4.0 broker on a copy of the store; what differs is listed in `serve_requests`.

    Then the broker writes more, and its store is served beside it.
    """
    case = real_case("5.4.0", "clean")
    path = copy_tree(cases.path(case.name), tmp_path / "store")
    settings = {name: str(each) for name, each in case.settings.items()}
    with Broker("5.4.0", tmp_path, path, settings, name_server=name_server) as broker:
        broker.start()
        with (
            Store.open(path) as store,
            serve(cases.path(case.name)) as server,
            RemotingClient(broker.port) as theirs,
            RemotingClient(int(server.rpartition(":")[2])) as ours,
            RemotingClient(int(name_server.rpartition(":")[2])) as names,
        ):
            requests = [(theirs, *each) for each in (*requests_of(store), *broker_requests())]
            requests += [(names, *each) for each in name_server_requests(store)]
            last = requests[-1][2]["topic"]
            wait_until(
                lambda: names.call(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": last}).code == 0,
                "the broker is registered",
            )
            different = {}
            for asked, code, fields in requests:
                expected, found = (
                    essence(code, asked.call(code, fields)),
                    essence(code, ours.call(code, fields)),
                )
                if expected != found:
                    different[code, json.dumps(fields)] = expected, found
        check_live(broker, tmp_path / "reader")
    assert len(requests) > 500
    text = "\n".join(
        f"{key}\n  broker {str(e)[:300]}\n  ours   {str(f)[:300]}" for key, (e, f) in different.items()
    )
    assert not different, f"{len(different)} of {len(requests)}\n{text}"
