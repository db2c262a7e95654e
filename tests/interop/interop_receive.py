"""Real masters and `receive`, real slaves and `send-log`: the logs are equal byte for byte, whatever ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqtool import NewMessage, StoreWriter
from rmqtool.formats import epoch, properties, remoting
from rmqtool.formats.message_id import OffsetMessageId
from rmqtool.formats.remoting_codes import Request
from rmqtool.net.broker_client import ask, facts_of
from rmqtool.net.ha_connection import Address
from rmqtool.read.store import Store
from tests.interop.brokers import (
    BROKER_VERSIONS,
    LOG_FILE_SIZE,
    QUEUE_FILE_SIZE,
    Broker,
    free_port,
    store_settings,
    write_settings,
)
from tests.interop.interop_kill import lost
from tests.interop.processes import LabError, wait_until
from tests.support.programs import PATIENCE_S, RMQTOOL, started
from tests.support.remoting import RemotingClient
from tests.support.trees import copy_tree

THREADS = 4
EPOCHS = "epochFileCheckpoint"
TOPIC = "Received"
VERSIONS = ("4.9.7", "5.3.3", "5.4.0")


@contextmanager
def receiving(broker: Broker, copy: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """`receive` from a broker, with its lines in a file next to the copy."""
    with (
        copy.with_suffix(".log").open("ab") as log,
        started(
            [*RMQTOOL, "receive", f"127.0.0.1:{broker.port}", copy, "--config-every", "1s", *more],
            stdout=log,
            stderr=log,
        ) as program,
    ):
        yield program


def received(copy: Path) -> int:
    """The end of the log of a store that another process may be writing; 0 without one."""
    try:
        with Store.open(copy) as store:
            return store.end_offset()
    except Exception:  # noqa: BLE001  # it is just being made
        return 0


def wait_received(copy: Path, offset: int) -> None:
    """Until the copy has the log up to an offset."""
    wait_until(lambda: received(copy) >= offset, f"the copy has {offset} bytes", step=0.3)


def log_bytes(root: Path, end: int) -> bytes:
    """The commit log up to a physical offset."""
    files = sorted((root / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files if path.name.isdigit())[:end]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """A command that must end well."""
    done = subprocess.run([*RMQTOOL, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode in (0, 1), done.stderr
    return done


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One for the brokers of all tests, which come one after the other."""
    folder = tmp_path_factory.mktemp("names")
    with Broker(BROKER_VERSIONS[-1], folder, folder / "store") as broker:
        broker.start_name_server()
        yield broker.name_server


@pytest.mark.parametrize("version", VERSIONS)
def test_a_synchronous_master_and_its_copy(version: str, name_server: str, tmp_path: Path) -> None:
    """`receive --dispatch` is its only slave. It is killed, then both are: no acknowledged message is lost.

    After it has resumed, the log is equal, its queues and index are sound, and a broker that starts on the
    copy has all messages. So are queues and index that `rebuild` makes of a log that was only received.
    """
    master, copy, other = tmp_path / "master", tmp_path / "copy", tmp_path / "other"
    settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "haSendHeartbeatInterval": "500"}
    with Broker(version, tmp_path / "a", master, settings, name_server=name_server) as broker:
        broker.start()
        with broker.client() as client:
            with receiving(broker, copy, "--dispatch") as program:
                client.call("produce", topic=TOPIC, threads=THREADS)
                wait_received(copy, LOG_FILE_SIZE + 5000)
                program.kill()
                program.wait()
            assert (copy / "abort").exists()
            with receiving(broker, copy, "--dispatch") as program:
                wait_received(copy, received(copy) + LOG_FILE_SIZE)
                client.wait_events(
                    lambda events: len(acknowledged(events)) >= 1000 or lost(events),
                    lambda events: f"{len(acknowledged(events))} of {len(events)}",
                )
                program.kill()
                broker.kill()
                program.wait()
            events = client.wait_events(
                lambda events: len(lost(events)) == THREADS, lambda events: "still sending"
            )
            check_messages(copy, acknowledged(events))
            broker.start()
            with receiving(broker, copy, "--dispatch") as program:
                with broker.client() as second:
                    for number in range(20):
                        second.call("send", topic=f"{TOPIC}0", body="aGk=", tags="", keys=f"after{number}",
                                    properties={})  # fmt: skip
                done = run("receive", f"127.0.0.1:{broker.port}", other, "--once", "--json")
                wait_received(copy, json.loads(done.stdout)["end_offset"])
                program.terminate()
                assert program.wait(PATIENCE_S) == 0, copy.with_suffix(".log").read_text()
        broker.kill()
    end = received(copy)
    assert not (copy / "abort").exists()
    assert log_bytes(copy, end) == log_bytes(master, end)
    assert {"topics.json", "consumerOffset.json"} <= {path.name for path in (copy / "config").iterdir()}
    write_settings(tmp_path / "broker.conf", store_settings(version))  # sizes that are not the default ones
    run("rebuild", other, "--apply", "--broker-conf", tmp_path / "broker.conf")
    for store in (copy, other):
        assert run("verify", store, "--severity", "warning").returncode == 0
    with Store.open(copy) as opened:
        assert opened.newest_units().end == end
    expected = maxima(copy)
    assert {topic for topic, _ in expected} >= {f"{TOPIC}{number}" for number in range(3)}
    as_slave = {"brokerRole": "SLAVE", "brokerId": "1"}  # a master would deliver delayed messages
    with Broker(version, tmp_path / "b", copy, as_slave, name_server=name_server) as broker:
        broker.start()
        with RemotingClient(broker.port) as asked:
            assert {key: max_offset(asked, *key) for key in expected} == expected


def test_a_master_without_messages(name_server: str, tmp_path: Path) -> None:
    """A 4.9 master closes each HA connection. `--once` takes its configuration and ends; later its log."""
    master, copy = tmp_path / "master", tmp_path / "copy"
    with Broker(BROKER_VERSIONS[0], tmp_path / "a", master, name_server=name_server) as broker:
        broker.start()
        command = ("receive", f"127.0.0.1:{broker.port}", copy, "--once", "--dispatch", "--json")
        row = json.loads(run(*command).stdout)
        assert (row["records"], row["end_offset"], row["configurations"]) == (0, -1, 1)
        assert "TBW102" in (copy / "config" / "topics.json").read_text()
        with broker.client() as client:
            client.call("send", topic=TOPIC, body="aGk=", tags="", keys="k", properties={})
        row = json.loads(run(*command).stdout)
    assert row["records"] >= 1
    assert log_bytes(copy, row["end_offset"]) == log_bytes(master, row["end_offset"])


def check_messages(copy: Path, sent: list[Any]) -> None:
    """All that was sent is in the copy, where its id says."""
    assert len(sent) >= 1000
    with Store.open(copy) as store:
        for event in sent:
            for number, text in enumerate(event["result"]["offsetMsgId"].split(",")):
                found = store.get(OffsetMessageId.decode(text).physical_offset)
                assert found is not None and not found.status, event
                keys = properties.decode(found.message.properties_bytes)[properties.KEYS]
                assert keys == f"{event['number']}-{number}"


def acknowledged(events: list[Any]) -> list[Any]:
    """Sends of which the broker says that they are at a slave too."""
    return [event for event in events if event["kind"] == "sent" and event["result"]["status"] == "SEND_OK"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_slave_takes_the_log_from_a_folder(version: str, name_server: str, tmp_path: Path) -> None:
    """A stock slave, empty at first; its log is equal, and its queues have all messages."""
    source, slave = tmp_path / "source", tmp_path / "slave"
    with StoreWriter.create(
        source, version[:3], auto_create_queues=4, commit_log_file_size=LOG_FILE_SIZE,
        consume_queue_file_size=QUEUE_FILE_SIZE, index_slots=1000, index_entries=4000,
    ) as writer:  # fmt: skip
        for number in range(3000):
            writer.put(NewMessage("Sent", b"x" * (number % 1500), keys=[f"key{number}"]))
    with Store.open(source) as store:
        end, queues = store.end_offset(), {key: store.max_offset(*key) for key in store.queues}
    command = [*RMQTOOL, "send-log", source, "--listen", "127.0.0.1:0", "--once"]
    settings = {"brokerRole": "SLAVE", "brokerId": "1"}
    if version.startswith("4."):
        with started([*command, "--json"], text=True) as sender:
            settings["haMasterAddress"] = sender.stderr.readline().split()[-1]
            with Broker(version, tmp_path / "a", slave, settings, name_server=name_server) as broker:
                broker.start()
                done(sender)
                wait_until(lambda: maxima(slave) == queues, "the slave has dispatched all")
    else:
        with Broker(version, tmp_path / "a", slave, settings, name_server=name_server) as broker:
            broker.start()
            with started([*command, "--slave", f"127.0.0.1:{broker.port}"], text=True) as sender:
                done(sender)
            wait_until(lambda: maxima(slave) == queues, "the slave has dispatched all")
    assert log_bytes(slave, end) == log_bytes(source, end)
    assert received(slave) == end


def maxima(root: Path) -> dict[tuple[str, int], int]:
    """The ends of the queues of a store."""
    with Store.open(root) as store:
        return {key: store.max_offset(*key) for key in store.queues}


def done(sender: subprocess.Popen[str]) -> None:
    """The slave has acknowledged all."""
    output, errors = sender.communicate(timeout=PATIENCE_S)
    assert sender.returncode == 0, output + errors


def test_a_learner_of_a_master_in_controller_mode(tmp_path: Path) -> None:
    """Bytes and epochs are the master's, also after its restart, which begins a new epoch."""
    version, master, copy = BROKER_VERSIONS[-1], tmp_path / "master", tmp_path / "copy"
    with Broker(version, tmp_path / "a", master, has_controller=True) as broker:
        broker.start()
        newest = 0
        for number in range(2):
            with broker.client() as client:
                for _ in range(30):
                    client.call("send", topic=TOPIC, body="aGVsbG8h" * 99, tags="", keys="k", properties={})
                program = run("receive", f"127.0.0.1:{broker.port}", copy, "--once", "--json")
            row = json.loads(program.stdout)
            assert row["acknowledged_offset"] == row["confirmed_offset"] == row["end_offset"]
            assert row["epoch"] > newest
            newest = row["epoch"]
            end = row["end_offset"]
            assert log_bytes(copy, end) == log_bytes(master, end)
            assert (copy / EPOCHS).read_text().split() == (master / EPOCHS).read_text().split()
            if not number:
                broker.stop()
                broker.start()


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_learner_after_a_failover(is_ahead: bool, tmp_path: Path) -> None:
    """The master is killed, its slave is elected; the same copy goes on from there, with the new epoch.

    A copy that is ahead of the new master is refused, and cut with --truncate.
    """
    version, copy = BROKER_VERSIONS[-1], tmp_path / "copy"
    stays = {"haMaxTimeSlaveNotCatchup": "600000", "haHousekeepingInterval": "600000"}
    with Broker(version, tmp_path / "a", tmp_path / "first", stays, has_controller=True) as first:
        first.start()
        settings = first.settings | {"haSendHeartbeatInterval": "500"}
        with Broker(
            version, tmp_path / "b", tmp_path / "second", settings, name_server=first.name_server
        ) as second:
            second.start()
            send_bodies(first, 60)
            wait_until(lambda: received(second.store) >= received(first.store), "the slave has all")
            wait_until(lambda: len(in_sync(first)) == 2, "the slave is a candidate")
            assert second.process is not None
            slave = second.process.process
            if is_ahead:
                slave.send_signal(signal.SIGSTOP)
                send_bodies(first, 40)
            row = json.loads(run("receive", f"127.0.0.1:{first.port}", copy, "--once", "--json").stdout)
            before = row["epoch"]
            first.kill()
            slave.send_signal(signal.SIGCONT)
            try:
                wait_until(lambda: role_of(second) == "SYNC_MASTER", "the slave is elected", step=0.5)
            except LabError as error:
                raise second.process.error(str(error)) from None
            with RemotingClient(second.port) as client:
                for _ in range(30):
                    wait_until(partial(is_sent, client), "the new master takes a message")
            line = ["receive", f"127.0.0.1:{second.port}", copy, "--once", "--json"]
            if is_ahead:
                refused = subprocess.run([*RMQTOOL, *map(str, line)], capture_output=True, text=True)
                assert refused.returncode == 4, refused.stderr
                assert "by their epochs" in refused.stderr and "--truncate" in refused.stderr
                line.append("--truncate")
            row = json.loads(run(*line).stdout)
        assert row["epoch"] > before
        assert (row["truncated_bytes"] > 0) == is_ahead
        end = row["end_offset"]
        assert end == received(tmp_path / "second")
        assert log_bytes(copy, end) == log_bytes(tmp_path / "second", end)
        assert (copy / EPOCHS).read_text().split() == (tmp_path / "second" / EPOCHS).read_text().split()


def in_sync(broker: Broker) -> list[int]:
    """The ids of the replicas that the controller takes for level with the master, and the master's."""
    host, _, port = broker.settings["controllerAddr"].partition(":")
    controller, fields = Address(host, int(port)), {"brokerName": "broker-a"}
    answer = ask(controller, Request.CONTROLLER_GET_REPLICA_INFO, fields)
    return list(json.loads(answer.body)["syncStateSet"])


def is_sent(client: RemotingClient) -> bool:
    """Send a message to a broker, whatever the name server says."""
    fields = {
        "producerGroup": "lab", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": "", "reconsumeTimes": 0,
        "unitMode": "false", "batch": "false",
    }  # fmt: skip
    return client.call(Request.SEND_MESSAGE, fields, b"after the failover" * 99).code == 0


def role_of(broker: Broker) -> str:
    """The role that the controller has given to a broker."""
    return facts_of(Address("127.0.0.1", broker.port)).role


def set_config(broker: Broker, text: bytes) -> None:
    """Change settings of a running broker."""
    request = remoting.Command(Request.UPDATE_BROKER_CONFIG, body=text, opaque=1, language="OTHER")
    frames = remoting.Frames()
    with socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S) as connection:
        connection.sendall(remoting.encode(request))
        answers: list[remoting.Command] = []
        while not answers:
            answers += frames.feed(connection.recv(65536))
    assert answers[0].code == 0, answers[0].remark


@contextmanager
def sending_in_controller_mode(
    master: Broker, slave: Path, folder: Path
) -> Iterator[tuple[Broker, subprocess.Popen[str]]]:
    """`send-log` of a master's store, and a broker on `slave` that the controller sends there.

    The controller names the real master, which publishes the port of `send-log` as its HA port.
    """
    port = free_port()
    set_config(master, f"haListenPort={port}\nbrokerPermission=6\n".encode())
    listen = ["--controller", "--listen", f"127.0.0.1:{port}", "--once"]
    settings = master.settings | {"registerNameServerPeriod": "10000"}
    with (
        started([*RMQTOOL, "send-log", master.store, *listen], text=True) as sender,
        Broker(master.version, folder, slave, settings, name_server=master.name_server) as broker,
    ):
        broker.start()
        yield broker, sender


def send_bodies(master: Broker, count: int) -> None:
    """Send messages of 6 KB that clients do not compress."""
    with master.client() as client:
        for number in range(count):
            body = b64encode(Random(number).randbytes(6000)).decode()
            client.call("send", topic=TOPIC, body=body, tags="", keys="k", properties={})


def test_a_slave_in_controller_mode_takes_the_log_from_a_folder(tmp_path: Path) -> None:
    """An empty one: log, epochs and queues are the master's."""
    version, source, slave = BROKER_VERSIONS[-1], tmp_path / "source", tmp_path / "slave"
    with Broker(version, tmp_path / "a", source, has_controller=True) as master:
        master.start()
        send_bodies(master, 200)
        end = received(source)
        with sending_in_controller_mode(master, slave, tmp_path / "b") as (_, sender):
            done(sender)
            wait_until(lambda: maxima(slave) == maxima(source), "the slave has dispatched all")
    assert end > LOG_FILE_SIZE
    assert log_bytes(slave, end) == log_bytes(source, end)
    assert (slave / EPOCHS).read_text().split() == (source / EPOCHS).read_text().split()


@pytest.mark.parametrize("own_epochs", [[], [(2, 0)]], ids=["a longer last epoch", "an epoch of its own"])
def test_a_slave_in_controller_mode_cuts_what_send_log_does_not_have(
    own_epochs: list[tuple[int, int]], tmp_path: Path
) -> None:
    """Its log goes on beyond the end of the last epoch that both have: it cuts there, and takes the rest.

    Of an epoch of its own that it cuts, 5.4.0 keeps the entry: EpochFileCache#truncateSuffixByOffset is not
    called then, and the next epoch cannot be appended (spec 04 10). Its log is equal all the same.
    """
    version, source, slave = BROKER_VERSIONS[-1], tmp_path / "source", tmp_path / "slave"
    with Broker(version, tmp_path / "a", source, has_controller=True) as master:
        master.start()
        send_bodies(master, 100)
        master.stop()
        point = received(source)
        copy_tree(source, slave)
        (slave / "brokerIdentity").unlink()
        shared = epoch.decode((source / EPOCHS).read_bytes())
        (slave / EPOCHS).write_bytes(
            epoch.encode([*shared, *(epoch.Entry(number, point + start) for number, start in own_epochs)])
        )
        with StoreWriter.open(slave) as writer:
            for number in range(300):
                writer.put(NewMessage(TOPIC, b"not in the master" * 300, keys=[f"lost{number}"]))
        assert received(slave) > point + LOG_FILE_SIZE
        master.start()
        send_bodies(master, 250)
        end = received(source)
        expected = maxima(source)
        with sending_in_controller_mode(master, slave, tmp_path / "b") as (broker, sender):
            done(sender)
            with RemotingClient(broker.port) as client:
                wait_until(
                    lambda: {key: max_offset(client, *key) for key in expected} == expected,
                    "the slave has dispatched all",
                )
    assert log_bytes(slave, end) == log_bytes(source, end)
    assert received(slave) == end
    epochs = epoch.decode((source / EPOCHS).read_bytes())
    assert len(epochs) == len(shared) + 1
    kept = epoch.decode((slave / EPOCHS).read_bytes())
    assert kept == ([*shared, epoch.Entry(2, point)] if own_epochs else epochs)


def max_offset(client: RemotingClient, topic: str, queue_id: int) -> int:
    """The end of a queue, as a broker says: after a cut, what its files hold beyond it does not count."""
    answer = client.call(Request.GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id})
    return int(answer.fields.get("offset", -1))
