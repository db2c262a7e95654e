"""What is served of damaged, growing, archived and remote stores."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import tarfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqtool.errors import FormatError, RefusedError, UsageError
from rmqtool.formats.fastjson import parse
from rmqtool.formats.remoting_codes import Request, Response
from rmqtool.net.offsets import CommittedOffsets
from rmqtool.net.serve import Options, serving
from rmqtool.read.store import Store
from rmqtool.write.records.message import NewMessage
from rmqtool.write.store_writer import StoreWriter
from tests.support.programs import PATIENCE_S, RMQTOOL, started, until
from tests.support.remote import KEY, SECRET, s3_server, upload
from tests.support.remoting import RemotingClient, client_of, make_certificate, records, served
from tests.support.stores import Library
from tests.support.trees import copy_tree, tree_digest

TOPIC = "Grows"


def put(writer: StoreWriter, first: int, count: int, tag: str = "a") -> None:
    """Add messages to queue 0."""
    for number in range(first, first + count):
        writer.put(NewMessage(TOPIC, b"%d" % number, tags=tag, queue_id=0))


@pytest.mark.parametrize(
    "name",
    ["bad_cl03_body_crc", "bad_cl04_wrong_length", "bad_cl05_unknown_magic", "bad_cl06_foreign_record"],
)
def test_a_damaged_record_is_left_out_and_the_rest_comes(name: str, cases: Library) -> None:
    """Each queue gives all its records that are sound; the others are counted and named."""
    path, notes = cases.path(name), list[str]()
    with Store.open(path) as store:
        sound: dict[tuple[str, int], list[int]] = {}
        unsound = Counter[str]()
        for (topic, queue_id), queue in store.queues.items():
            for _, unit in queue.units(max(store.min_offset(topic, queue_id), 0)):
                found = store.find(unit.physical_offset)
                is_right = (
                    found is not None and not found.status and found.message.total_size == unit.size
                    and (found.message.topic, found.message.queue_id) == (topic, queue_id)
                )  # fmt: skip
                if is_right:
                    sound.setdefault((topic, queue_id), []).append(unit.physical_offset)
                else:
                    unsound[topic] += 1
        keys = list(store.queues)
    assert unsound
    with served(path, notes=notes) as server, RemotingClient(server.port) as client:
        for topic, queue_id in keys:
            for _ in range(2):  # what is left out is counted once
                found = client.all_of(topic, queue_id)
                assert [each.physical_offset for each in found] == sound.get((topic, queue_id), [])
        assert server.server.context.counters.left_out == unsound
    assert len([note for note in notes if note.startswith("left out: ")]) == unsound.total()


def test_messages_come_as_they_are_written(tmp_path: Path) -> None:
    """Topics, queues and files that were not there at the start; pulls that wait are answered."""
    path = tmp_path / "store"
    with StoreWriter.create(path, "5.4", auto_create_queues=2, consume_queue_file_size=400,
                            commit_log_file_size=4096) as writer:  # fmt: skip
        writer.put(NewMessage("Other", b"x", queue_id=0))
        writer.flush()
        with served(path, Options(live=True)) as server, RemotingClient(server.port) as client:
            assert client.pull(TOPIC, 0, 0).code == Response.TOPIC_NOT_EXIST
            put(writer, 0, 30)
            writer.flush()
            until(lambda: client.call(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).code == 0)
            assert [each.body for each in client.all_of(TOPIC, 0)] == [b"%d" % number for number in range(30)]
            waits = {
                "consumerGroup": "G", "topic": TOPIC, "queueId": 0, "queueOffset": 30, "maxMsgNums": 32,
                "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subscription": "b",
            }  # fmt: skip
            number = client.send(Request.PULL_MESSAGE, waits)
            until(lambda: server.server.held.count == 1)
            put(writer, 30, 25)
            put(writer, 55, 2, tag="b")
            writer.flush()
            answer = client.answer(number)
            assert [each.body for each in records(answer.body)][:1] == [b"55"]
            offset = {"topic": TOPIC, "queueId": 0}
            until(lambda: client.call(Request.GET_MAX_OFFSET, offset).fields["offset"] == "57")
            assert len(client.all_of(TOPIC, 0)) == 57
            empty = {**waits, "queueId": 1, "queueOffset": 0, "subscription": "*"}
            number = client.send(Request.PULL_MESSAGE, empty)
            until(lambda: server.server.held.count == 1)
            writer.put(NewMessage(TOPIC, b"first", queue_id=1))
            writer.flush()
            assert [each.body for each in records(client.answer(number).body)] == [b"first"]


@pytest.mark.parametrize("name", ["kind_dledger_497", "kind_dledger_540", "kind_rocksdb_540"])
@pytest.mark.parametrize("live", [False, True])
def test_a_store_with_dledger_or_rocksdb_is_served(name: str, live: bool, cases: Library) -> None:
    path = cases.path(name)
    with Store.open(path) as store, client_of(path, Options(live=live)) as client:
        for key, queue in store.queues.items():
            expected = [unit.physical_offset for _, unit in queue.units()]
            assert [each.physical_offset for each in client.all_of(*key)] == expected
            for place in expected[:1]:
                found = client.call(Request.VIEW_MESSAGE_BY_ID, {"offset": place})
                assert [each.physical_offset for each in records(found.body)] == [place]


def test_an_archive_is_served(cases: Library, tmp_path: Path) -> None:
    path = cases.path("ok_540_clean")
    with tarfile.open(tmp_path / "store.tar.gz", "w:gz") as archive:
        archive.add(path, "store")
    with Store.open(path) as store:
        topic, queue_id = max(store.queues, key=lambda key: store.max_offset(*key))
        count = store.max_offset(topic, queue_id) - store.min_offset(topic, queue_id)
    with client_of(tmp_path / "store.tar.gz") as client:
        assert len(client.all_of(topic, queue_id)) == count
        assert client.call(Request.VIEW_MESSAGE_BY_ID, {"offset": 0}).code == 0
        assert client.call(Request.GET_TOPIC_STATS_INFO, {"topic": topic}).code == 0
        at = {"consumerGroup": "New", "topic": topic, "queueId": queue_id}
        assert client.call(Request.QUERY_CONSUMER_OFFSET, at).code == 0


def test_what_cannot_be_served_is_refused(cases: Library, tmp_path: Path) -> None:
    path = copy_tree(cases.path("ok_540_clean"), tmp_path / "store")
    before = tree_digest(path)
    for options, error in (
        (Options(offsets=path / "config" / "consumerOffset.json"), RefusedError),
        (Options(offsets=path / "commitlog" / "offsets.json"), RefusedError),
        (Options(max_messages=0), UsageError),
        (Options(advertise=":"), UsageError),
        (Options(advertise="store:0"), UsageError),
    ):
        with pytest.raises(error), served(path, options):
            pass
    (tmp_path / "link").symlink_to(path / "config")
    with pytest.raises(RefusedError), served(path, Options(offsets=tmp_path / "link" / "a.json")):
        pass
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RefusedError, match="not a plain file"):
        with served(path, Options(offsets=tmp_path / "pipe")):
            pass
    (tmp_path / "text").write_text("no offsets")
    with pytest.raises(FormatError), served(path, Options(offsets=tmp_path / "text")):
        pass
    with pytest.raises(UsageError), served(path / "commitlog"):
        pass
    assert tree_digest(path) == before
    with served(path) as server:
        port = server.port
        done = subprocess.run(
            [*RMQTOOL, "serve", path, "--port", str(port)], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 2 and "cannot listen" in done.stderr


def test_a_store_in_object_storage_is_served(cases: Library, tmp_path: Path) -> None:
    """Its reads are made outside of the loop."""
    path = cases.path("ok_540_small_propcrc")
    with Store.open(path) as store:
        topic, queue_id = max(store.queues, key=lambda key: store.max_offset(*key))
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    with s3_server(tmp_path) as endpoint:
        upload(endpoint, path, "backup", "broker-a")
        url = f"s3://{KEY}:{SECRET}@backup/broker-a?endpoint={endpoint}&region=eu-west-1"
        with (
            serving(lambda: Store.open(url), Options(port=0)) as server,
            RemotingClient(server.port) as client,
        ):
            assert [each.queue_offset for each in client.all_of(topic, queue_id)] == list(range(low, high))
            assert client.call(Request.VIEW_MESSAGE_BY_ID, {"offset": 0}).code == 0


def test_an_open_port_is_reported(cases: Library) -> None:
    notes = list[str]()
    with served(cases.path("ok_540_clean"), Options(host="0.0.0.0"), notes):
        pass
    assert any("0.0.0.0" in note for note in notes), notes


def test_queues_that_lag_are_reported(cases: Library, tmp_path: Path) -> None:
    path = copy_tree(cases.path("ok_540_clean"), tmp_path / "store")
    shutil.rmtree(path / "consumequeue")
    (path / "consumequeue").mkdir()
    notes = list[str]()
    with served(path, notes=notes):
        pass
    assert any("the queues end" in note for note in notes), notes


def lines_of(program: Any, count: int) -> list[str]:
    """The first lines on stderr."""
    return [program.stderr.readline() for _ in range(count)]


def test_the_command_serves_until_a_signal(cases: Library, tmp_path: Path) -> None:
    """It says where, keeps offsets and metrics, and ends with 0; other signals: test_signals.py."""
    path = cases.path("ok_540_clean")
    command = [*RMQTOOL, "serve", path, "--port", 0, "--metrics", 0, "--offsets", tmp_path / "offsets.json",
               "--advertise", "store.example", "--broker-name", "b1", "--cluster-name", "c1"]  # fmt: skip
    with started(command, text=True) as program:
        where, metrics = lines_of(program, 2)
        with pytest.raises(RefusedError, match="another run"), Store.open(path) as store:
            CommittedOffsets.of(store, tmp_path / "offsets.json", print)
        port = int(where.partition("127.0.0.1:")[2].partition(",")[0])
        with RemotingClient(port) as client:
            with Store.open(path) as store:
                topic, queue_id = max(store.queues, key=lambda key: store.max_offset(*key))
            assert client.pull(topic, queue_id, 0).code in (0, 21)
            at = {"consumerGroup": "Kept", "topic": topic, "queueId": queue_id, "commitOffset": 1}
            assert client.call(Request.UPDATE_CONSUMER_OFFSET, at).code == 0
            route = client.document(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})["brokerDatas"][0]
            assert route["brokerAddrs"] == {"0": f"store.example:{port}"}
            assert (route["cluster"], route["brokerName"]) == ("c1", "b1")
            url = metrics.partition("metrics: ")[2].strip()
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                text = answer.read().decode()
            assert 'rmqtool_serve_requests_total{code="PULL_MESSAGE"} 1\n' in text
            assert "rmqtool_serve_open_connections 1\n" in text
            assert "group_lag" in text
            program.send_signal(signal.SIGTERM)
            assert program.wait(PATIENCE_S) == 0
        assert "messages; left out 0" in program.stderr.read()
    table = parse((tmp_path / "offsets.json").read_bytes())["offsetTable"]
    assert table[f"{topic}@Kept"] == {queue_id: 1}


def test_commits_that_cannot_be_saved_show_in_the_exit_code(cases: Library, tmp_path: Path) -> None:
    """What consumers were told to be committed would be lost without a word."""
    file = tmp_path / "folder" / "offsets.json"
    file.parent.mkdir()
    command = [*RMQTOOL, "serve", cases.path("ok_540_clean"), "--port", 0, "--offsets", file]
    with started(command, text=True) as program:
        (where,) = lines_of(program, 1)
        shutil.rmtree(file.parent)
        at = {"consumerGroup": "Kept", "topic": "pubOrder", "queueId": 0, "commitOffset": 1}
        with RemotingClient(int(where.partition("127.0.0.1:")[2].partition(",")[0])) as client:
            assert client.call(Request.UPDATE_CONSUMER_OFFSET, at).code == 0
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE_S) == 3
        assert "the committed offsets cannot be written" in program.stderr.read()


def test_the_address_of_ipv6_is_in_brackets(cases: Library) -> None:
    """What is printed can be given to a client, and to a scraper."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    command = [*RMQTOOL, "serve", cases.path("ok_540_clean"), "--bind", "::1", "--port", 0, "--metrics", 0]
    with started(command, text=True) as program:
        where, metrics = lines_of(program, 2)
        assert "is served on [::1]:" in where
        with urllib.request.urlopen(metrics.partition("metrics: ")[2].strip(), timeout=PATIENCE_S) as answer:
            assert b"rmqtool_serve_open_connections" in answer.read()
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE_S) == 0


def test_left_out_records_show_in_the_exit_code(cases: Library) -> None:
    path = cases.path("bad_cl03_body_crc")
    with started([*RMQTOOL, "serve", path, "--port", 0], text=True) as program:
        (where,) = lines_of(program, 1)
        with RemotingClient(int(where.partition("127.0.0.1:")[2].partition(",")[0])) as client:
            with Store.open(path) as store:
                keys = list(store.queues)
            for key in keys:
                client.all_of(*key)
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE_S) == 1
        assert "left out: " in program.stderr.read()


@contextmanager
def two_ports() -> Iterator[tuple[int, socket.socket]]:
    """A port that is free, and a listener two ports below it."""
    for _ in range(1000):
        with socket.socket() as lower, suppress(OSError):
            lower.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            lower.bind(("127.0.0.1", Random().randrange(10_100, 32_000)))
            lower.listen()
            port = lower.getsockname()[1] + 2
            with socket.create_server(("127.0.0.1", port)):
                pass
            yield port, lower
            return
    raise AssertionError("no free ports")


def test_the_port_of_the_vip_channel(cases: Library) -> None:
    """Clients with vipChannelEnabled ask at the lower port; what they are told is the address of routes."""
    path, notes = cases.path("ok_540_clean"), list[str]()
    with two_ports() as (port, lower):
        lower.close()
        with serving(partial(Store.open, path), Options(port=port, vip_channel=True), notes.append) as server:
            assert server.port == port
            with RemotingClient(port) as client, RemotingClient(port - 2) as vip:
                cluster = client.document(Request.GET_BROKER_CLUSTER_INFO)
                assert vip.document(Request.GET_BROKER_CLUSTER_INFO) == cluster
                found = vip.document(Request.QUERY_TOPICS_BY_CONSUMER, {"group": "none"})
                assert found["brokerAddr"] == f"127.0.0.1:{port}"
                assert cluster["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": f"127.0.0.1:{port}"}
            until(lambda: not server.server.connections)
    assert not notes


def test_the_port_of_the_vip_channel_is_in_use(cases: Library) -> None:
    """It is a note; the main port is served. Without the option nothing listens there."""
    path = cases.path("ok_540_clean")
    for is_wanted in (True, False):
        notes = list[str]()
        options = Options(vip_channel=is_wanted)
        with two_ports() as (port, _):
            chosen = replace(options, port=port)
            with serving(partial(Store.open, path), chosen, notes.append), RemotingClient(port) as client:
                assert client.call(Request.GET_BROKER_CLUSTER_INFO).code == 0
        assert [f"cannot listen on 127.0.0.1:{port - 2} too" in note for note in notes] == [True] * is_wanted


@pytest.mark.parametrize("option", [[], ["--no-vip-channel"]])
def test_the_command_has_a_vip_channel(option: list[str], cases: Library) -> None:
    with two_ports() as (port, lower):
        lower.close()
        command = [*RMQTOOL, "serve", cases.path("ok_540_clean"), "--port", port, *option]
        with started(command, text=True) as program:
            lines_of(program, 1)
            with pytest.raises(ConnectionRefusedError) if option else nullcontext(), RemotingClient(port - 2):
                pass
            program.send_signal(signal.SIGTERM)
            assert program.wait(PATIENCE_S) == 0


def test_tls(cases: Library, tmp_path: Path) -> None:
    """A client that uses TLS is served; one that does not is closed."""
    certificate, key = make_certificate(tmp_path)
    path = cases.path("ok_540_clean")
    with served(path, Options(tls=(certificate, key))) as server:
        with RemotingClient(server.port) as client:
            context = ssl.create_default_context(cafile=str(certificate))
            client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
            assert client.call(Request.GET_BROKER_CLUSTER_INFO).code == 0
        with RemotingClient(server.port) as plain:
            plain.send(Request.GET_BROKER_CLUSTER_INFO)
            assert plain.receive() is None
    with pytest.raises(FormatError), served(path, Options(tls=(key, key))):
        pass
