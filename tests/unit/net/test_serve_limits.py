"""Hostile and slow clients: any bytes end in a refusal or a closed connection, and nobody else is harmed."""

from __future__ import annotations

import errno
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqtool import NewMessage, StoreWriter
from rmqtool.formats.remoting import JSON, ROCKETMQ, Command, encode
from rmqtool.formats.remoting_codes import Request, Response
from rmqtool.net.requests import HANDLERS
from rmqtool.net.serve import Limits, Options, Served
from rmqtool.read.store import Store
from tests.support.programs import PATIENCE_S, until
from tests.support.remoting import RemotingClient, make_certificate, served
from tests.support.stores import Library
from tests.support.trees import tree_digest

PAGE = 1 << 16


@pytest.fixture(scope="module")
def path(cases: Library) -> Path:
    """A store of a real broker."""
    return cases.path("ok_540_clean")


@pytest.fixture
def server(path: Path) -> Iterator[Served]:
    """It is served; no request may end in an error that nobody expected, and the store stays as it is."""
    before, notes = tree_digest(path), list[str]()
    with served(path, notes=notes) as found:
        yield found
    assert not notes
    assert tree_digest(path) == before


def is_well(port: int) -> None:
    """The server answers others."""
    with RemotingClient(port) as client:
        assert client.call(Request.GET_BROKER_CLUSTER_INFO).code == 0


def spoken(port: int, data: bytes) -> bytes:
    """What the server sends back, up to the end of the connection, to one that has said everything."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain:
        found = b""
        try:
            plain.sendall(data)
            plain.shutdown(socket.SHUT_WR)
            while piece := plain.recv(PAGE):
                found += piece
        except OSError as error:  # the server has closed it, maybe before everything was sent
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
        return found


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff" * 64,
        bytes(64),
        struct.pack(">ii", 17 << 20, 10),
        struct.pack(">ii", 20, 21),
        struct.pack(">iI", 100, 7 << 24 | 4) + bytes(96),
        struct.pack(">ii", 70_004, 70_000) + b"[" * 70_000,
        struct.pack(">ii", 60_004, 60_000) + b"[" * 60_000,
        struct.pack(">ii", 24, 20) + b'{"code":34,"opaque":' + bytes(20),
    ],
    ids=["http", "tls", "ones", "zeros", "long", "header", "type", "deep and long", "deep", "cut json"],
)
def test_bytes_that_are_no_frame_close_the_connection(server: Served, data: bytes) -> None:
    assert spoken(server.port, data) == b""
    is_well(server.port)
    until(lambda: not server.server.connections)
    assert server.server.context.counters.bad_frames == 1
    assert server.server.pending_bytes == 0


def test_random_bytes_and_changed_requests(server: Served) -> None:
    """Each ends in answers and a closed connection; the server goes on."""
    draw = random.Random(7)
    codes = [*HANDLERS, 10, 11, 361, 310, 999]
    fields = {
        "topic": "a",
        "queueId": "0",
        "consumerGroup": "g",
        "queueOffset": "0",
        "sysFlag": "4",
        "key": "k",
    }
    for _ in range(150):
        header_type = draw.choice((JSON, ROCKETMQ))
        data = bytearray(
            b"".join(
                encode(Command(draw.choice(codes), fields, draw.choice((b"", b"{}", b'{"mqSet":[1]}')),
                               opaque=number, header_type=header_type))
                for number in range(3)
            )
        )  # fmt: skip
        for _ in range(draw.randrange(6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        cut = draw.choice((len(data), draw.randrange(len(data))))
        spoken(server.port, bytes(data[:cut]))
    is_well(server.port)


NASTY = (
    "../../etc/passwd",
    "..",
    "/etc/passwd",
    "a/b",
    "a\0b",
    "%",
    "\ud800",
    "x" * 70_000,
    "",
    "*",
    "\u202e",
)


@pytest.mark.parametrize("header_type", [JSON, ROCKETMQ])
def test_names_in_requests_lead_nowhere(server: Served, header_type: int) -> None:
    """A topic or group of any text is one that the store does not have."""
    with RemotingClient(server.port, header_type=header_type) as client:
        for name in NASTY:
            if len(name) > 60_000:
                continue
            at = {"topic": name, "queueId": 0, "consumerGroup": name, "group": name, "key": name, "offset": 0}
            assert client.call(Request.GET_ROUTEINFO_BY_TOPIC, at).code == Response.TOPIC_NOT_EXIST
            assert client.pull(name, 0, 0).code == Response.TOPIC_NOT_EXIST
            assert client.call(Request.GET_MAX_OFFSET, at).fields["offset"] == "0"
            assert client.call(Request.QUERY_MESSAGE, at).code == Response.QUERY_NOT_FOUND
            for code in HANDLERS:
                client.call(code, at)
    with RemotingClient(server.port, header_type=header_type) as client:
        client.send(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": NASTY[7]})
        assert client.receive() is None  # its header is too long


def test_a_client_that_does_not_read_is_not_read_from(path: Path) -> None:
    """Its answers do not pile up, others are served, and it is closed when nothing moves."""
    with Store.open(path) as store:
        topic, queue_id = max(store.queues, key=lambda key: store.max_offset(*key))
    limits = Limits(unsent_bytes=1 << 16, stalled_s=0.2)
    fields = {
        "consumerGroup": "G", "topic": topic, "queueId": queue_id, "queueOffset": 0, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
    }  # fmt: skip
    request = encode(Command(Request.PULL_MESSAGE, {name: str(value) for name, value in fields.items()}))
    with served(path, Options(limits=limits)) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as slow:
            slow.setblocking(False)
            until(lambda: not fill(slow, request) or server.server.context.counters.answers[0] > 5)
            until(lambda: not server.server.connections)
            counters = server.server.context.counters
            assert counters.bytes_sent < 64 << 20
        is_well(server.port)


def fill(connection: socket.socket, data: bytes) -> bool:
    """Send as much as the system takes; whether the connection is open."""
    try:
        for _ in range(1000):
            connection.sendall(data)
    except BlockingIOError:
        return True
    except (ConnectionResetError, BrokenPipeError):
        return False
    return True


def test_connections_above_the_limit_are_refused(path: Path) -> None:
    with served(path, Options(limits=Limits(connections=3))) as server:
        kept = [RemotingClient(server.port) for _ in range(3)]
        for client in kept:
            assert client.call(Request.GET_BROKER_CLUSTER_INFO).code == 0
        with RemotingClient(server.port) as another:
            assert another.receive() is None
        assert server.server.context.counters.refused_connections == 1
        for client in kept:
            client.socket.close()
        until(lambda: not server.server.connections)
        is_well(server.port)


def test_silent_connections_and_incomplete_frames_are_closed(path: Path) -> None:
    with served(path, Options(limits=Limits(idle_s=0.1, stalled_s=0.1, pending_bytes=1 << 16))) as server:
        with RemotingClient(server.port) as silent:
            assert silent.receive() is None
        with RemotingClient(server.port) as half:
            half.socket.sendall(struct.pack(">ii", 1 << 20, 10))
            assert half.receive() is None
        until(lambda: not server.server.connections)
        assert server.server.pending_bytes == 0
    with served(path, Options(limits=Limits(pending_bytes=1 << 16))) as server:
        with RemotingClient(server.port) as large:
            assert not fill_frame(large.socket)
        until(lambda: not server.server.connections)
        assert server.server.pending_bytes == 0


def fill_frame(connection: socket.socket) -> bool:
    """Send most of a frame of 1 MiB; whether the connection is still open."""
    try:
        connection.sendall(struct.pack(">ii", 1 << 20, 10) + bytes(1 << 19))
        return bool(connection.recv(1))
    except (ConnectionResetError, BrokenPipeError):
        return False


def test_pulls_that_wait_are_limited_and_go_with_their_connection(path: Path) -> None:
    with Store.open(path) as store:
        topic, queue_id = max(store.queues, key=lambda key: store.max_offset(*key))
        high = store.max_offset(topic, queue_id)
    fields = {
        "consumerGroup": "G", "topic": topic, "queueId": queue_id, "queueOffset": high, "maxMsgNums": 1,
        "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subscription": "*",
    }  # fmt: skip
    limits = Limits(held_pulls=5, held_pulls_of_one=3)
    with served(path, Options(limits=limits)) as server:
        clients = [RemotingClient(server.port) for _ in range(3)]
        for client, answered in zip(clients, (1, 2, 4), strict=True):
            for _ in range(4):
                client.send(Request.PULL_MESSAGE, fields)
            for _ in range(answered):
                found = client.receive()
                assert found is not None and found.code == Response.SYSTEM_BUSY
        assert server.server.held.count == 5
        for client in clients:
            client.socket.close()
        until(lambda: server.server.held.count == 0)
        is_well(server.port)


def test_the_end_does_not_wait_for_look_ups(path: Path) -> None:
    """What is being made is finished, what is not begun is dropped; the connections are closed."""
    with served(path, Options(limits=Limits(lookups_of_one=100))) as server:
        client = RemotingClient(server.port)
        for _ in range(100):
            client.send(Request.GET_BROKER_CONSUME_STATS)
        until(lambda: server.server.context.counters.requests[Request.GET_BROKER_CONSUME_STATS] == 100)
    with client:
        while client.receive() is not None:
            pass


def test_each_cut_of_a_request_is_closed_without_an_answer(path: Path) -> None:
    """At every byte of a frame with either header; what came whole before it is answered."""
    with served(path) as server:
        for header_type in (JSON, ROCKETMQ):
            whole = encode(Command(Request.GET_BROKER_CLUSTER_INFO, {"a": "b"}, opaque=7,
                                   header_type=header_type))  # fmt: skip
            answer = spoken(server.port, whole)
            assert answer
            for cut in range(len(whole)):
                assert spoken(server.port, whole[:cut]) == b""
                if cut % 9 == 0:
                    assert spoken(server.port, whole + whole[:cut]) == answer
        is_well(server.port)
        until(lambda: server.server.pending_bytes == 0)


def test_codes_that_no_request_has_are_counted_together(path: Path) -> None:
    """Any number of them takes no memory."""
    with served(path) as server, RemotingClient(server.port) as client:
        for code in (-1, 77_777, 1 << 30, -(1 << 31), *range(100_000, 100_200)):
            assert client.call(code).code == Response.REQUEST_CODE_NOT_SUPPORTED
        assert len(server.server.context.counters.requests) == 1


def test_names_and_texts_have_limits(path: Path) -> None:
    """What a client may leave behind is bounded: groups, subscriptions, locks, offsets."""
    long, group = "x" * 5000, "y" * 300
    with served(path) as server, RemotingClient(server.port) as client:
        clients = server.server.context.clients

        def beat(client_id: str, name: str, text: str = "*", topic: str = "T") -> int:
            wanted = [{"topic": topic, "subString": text, "subVersion": 1, "x": long}]
            consumer = {"groupName": name, "subscriptionDataSet": wanted}
            return client.call(
                Request.HEART_BEAT, body={"clientID": client_id, "consumerDataSet": [consumer]}
            ).code

        assert beat("a", "g") == 0
        assert beat(long, "g") != 0 and beat("a", long) != 0 and beat("a", "g", topic=long) != 0
        assert "x" not in clients.groups["g"].subscriptions["T"].document
        assert client.call(Request.HEART_BEAT, body=b" " * (2 << 20)).code != 0
        for number in range(120):  # each of them 0.5 MB of text, four bytes a character
            assert beat("a", f"g{number}", "z" * 500_000) == 0
        assert clients.text_bytes <= 64 << 20
        assert sum(len(each.subscriptions) for each in clients.groups.values()) < 60
        offset = {"topic": next(iter(server.server.view.topics)), "queueId": 0, "commitOffset": 1}
        assert client.call(Request.UPDATE_CONSUMER_OFFSET, offset | {"consumerGroup": group}).code != 0
        assert client.call(Request.UPDATE_CONSUMER_OFFSET, offset | {"consumerGroup": "g"}).code == 0
        wanted = {"subscriptionData": {"subString": "z" * 70_000, "expressionType": "SQL92"}}
        found = client.call(Request.CHECK_CLIENT_CONFIG, body=wanted)
        assert found.code == Response.SUBSCRIPTION_PARSE_FAILED
    until(lambda: not clients.groups)
    assert clients.text_bytes == 0 and clients.member_count == 0


@pytest.mark.parametrize(
    "text",
    ["(" * 20_000 + "a = 1" + ")" * 20_000, "NOT " * 15_000 + "a", "a = 1 OR " * 6_000 + "a = 1",
     "a = " + "-" * 60_000 + "1", "'" * 60_001, "a IN (" + "'x'," * 15_000 + "'x')", "a" * 65_000],
    ids=["parentheses", "not", "or", "minus", "quotes", "in", "name"],
)  # fmt: skip
def test_expressions_of_any_depth_are_answered(server: Served, text: str) -> None:
    """Parsed or refused: the connection stays."""
    with RemotingClient(server.port) as client:
        wanted = {"subscriptionData": {"subString": text, "expressionType": "SQL92"}}
        found = client.call(Request.CHECK_CLIENT_CONFIG, body=wanted)
        assert found.code in (0, Response.SUBSCRIPTION_PARSE_FAILED)


def test_pulls_of_a_client_that_does_not_read_wait(tmp_path: Path) -> None:
    """A message for which many pulls of one client wait is not sent to all of them at once."""
    with StoreWriter.create(tmp_path / "store", auto_create_queues=1) as writer:
        writer.put(NewMessage("Topic", b"first"))
    fields = {
        "consumerGroup": "G", "topic": "Topic", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32,
        "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subscription": "*",
    }  # fmt: skip
    limits, count = Limits(unsent_bytes=1 << 16), 250
    with served(tmp_path / "store", Options(live=True, limits=limits)) as server:
        with RemotingClient(server.port) as slow, RemotingClient(server.port) as other:
            for _ in range(count):
                slow.send(Request.PULL_MESSAGE, fields)
            other.send(Request.PULL_MESSAGE, fields)
            until(lambda: server.server.held.count == count + 1)
            with StoreWriter.open(tmp_path / "store") as writer:
                for _ in range(3):
                    writer.put(NewMessage("Topic", bytes(200_000)))
            found = other.receive()
            assert found is not None and found.code == 0
            until(lambda: any(each.is_blocked for each in server.server.connections))
            sent = server.server.context.counters.bytes_sent
            is_well(server.port)
            assert server.server.unsent_bytes < 4 << 20
            assert sent < 40 << 20 < count * 200_000
            for _ in range(count):  # it reads after all, and gets every answer
                found = slow.receive()
                assert found is not None and found.code == 0
        until(lambda: not server.server.connections)
        assert server.server.unsent_bytes == 0


def test_answers_of_all_clients_together_are_bounded(path: Path) -> None:
    """Above the limit requests are refused, until some answers were taken."""
    with served(path) as server, RemotingClient(server.port) as client:
        server.server.unsent_bytes += 1 << 30
        found = client.call(Request.GET_BROKER_CLUSTER_INFO)
        assert found.code == Response.SYSTEM_BUSY
        server.server.unsent_bytes -= 1 << 30
        assert client.call(Request.GET_BROKER_CLUSTER_INFO).code == 0


def test_the_largest_incomplete_frame_is_given_up(path: Path) -> None:
    """Not that of the client who comes last."""
    with served(path, Options(limits=Limits(pending_bytes=1 << 20))) as server:
        with RemotingClient(server.port) as large, RemotingClient(server.port) as small:
            large.socket.sendall(struct.pack(">ii", 15 << 20, 10) + bytes(1_040_000))
            until(lambda: server.server.pending_bytes > 1_000_000)
            whole = encode(Command(Request.GET_BROKER_CLUSTER_INFO, {"a": "b" * 20_000}, opaque=7))
            small.socket.sendall(whole[:-1])
            assert large.receive() is None
            small.socket.sendall(whole[-1:])
            found = small.receive()
            assert found is not None and found.code == 0


def test_a_tls_handshake_that_does_not_end(path: Path, tmp_path: Path) -> None:
    """Who says nothing to a TLS port is closed, before it is a connection."""
    certificate = make_certificate(tmp_path)
    options = Options(tls=certificate, limits=Limits(handshake_s=0.1))
    with served(path, options) as server, socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.settimeout(PATIENCE_S)
        assert silent.recv(1) == b""
        assert not server.server.connections


def test_many_requests_at_once_are_all_answered(path: Path) -> None:
    """Look-ups of one connection are taken a few at a time; answers may come in any order."""
    with (
        served(path, Options(limits=Limits(lookups_of_one=2))) as server,
        RemotingClient(server.port) as client,
    ):
        numbers = {client.send(Request.VIEW_MESSAGE_BY_ID, {"offset": 0}) for _ in range(50)}
        numbers |= {client.send(Request.GET_MAX_OFFSET, {"topic": "a", "queueId": 0}) for _ in range(50)}
        while numbers:
            found = client.receive()
            assert found is not None and found.code == 0
            numbers.remove(found.opaque)
