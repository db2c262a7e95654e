"""What a broker says by remoting: its range, and its configuration in the order that loses nothing."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmqtool import StoreWriter
from rmqtool.errors import FormatError, InputError, RefusedError
from rmqtool.formats import epoch, replication
from rmqtool.formats.epoch import Entry
from rmqtool.formats.remoting_codes import Request
from rmqtool.net import broker_client, config_sync
from rmqtool.net.broker_client import RequestRefusedError
from rmqtool.net.config_sync import ConfigSync
from rmqtool.net.ha_connection import Address, ConnectionLostError
from rmqtool.net.receive import Progress
from rmqtool.read.store import Store
from rmqtool.storage.profile import PROFILES
from tests.support.programs import PATIENCE_S, until
from tests.support.replication import (
    FILE_SIZE,
    FakeBroker,
    listening,
    log_of,
    make_master,
    put,
    read_exactly,
    receive,
    sending,
)
from tests.support.trees import copy_tree, tree_digest


class EndedError(Exception):
    """The run has come so far."""


class Deadline:
    """Ends a run that would not end."""

    def __init__(self) -> None:
        self._end = time.monotonic() + PATIENCE_S

    def tick(self, progress: Progress) -> None:
        """See `Receiver`."""
        assert time.monotonic() < self._end, progress


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three files of log."""
    return make_master(tmp_path_factory.mktemp("master") / "store")


def receive_from(address: Address, root: Path, **request: Any) -> Progress:
    """Receive as from a broker."""
    return receive(address, root, ha_only=False, file_size=None, **request)


def test_log_and_configuration_are_received(master: Path, tmp_path: Path) -> None:
    """The files are a broker's, of the version that the master has; sizes and HA port come from it."""
    copy = tmp_path / "copy"
    with sending(master) as sender:
        fake = FakeBroker(sender)
        fake.samples_missing = 2
        with fake as address:
            progress = receive_from(address, copy)
    assert log_of(copy) == log_of(master)
    assert (progress.configs, progress.master_end, progress.lag_bytes) == (1, sender.log.end, 0)
    with Store.open(copy) as store:
        assert store.written_by.profile.name == "5.4"
        assert store.layout.commit_log_file_size == FILE_SIZE
    topics = json.loads((copy / "config" / "topics.json").read_text())
    assert topics["topicConfigTable"]["Topic"]["writeQueueNums"] == 2
    assert "topicQueueMappingDetailMap" not in topics
    assert "1:7" in (copy / "config" / "consumerOffset.json").read_text()
    assert {"delayOffset.json", "subscriptionGroup.json"} <= {
        path.name for path in (copy / "config").iterdir()
    }
    first, last = fake.asked.index(Request.GET_ALL_CONSUMER_OFFSET), len(fake.asked)
    assert Request.GET_BROKER_RUNTIME_INFO in fake.asked[first:last]


@pytest.mark.parametrize("seconds", [60.0, 0])
def test_a_master_without_messages(master: Path, tmp_path: Path, seconds: float) -> None:
    """`once` takes its configuration, and needs no HA connection; it receives what comes meanwhile."""
    copy = tmp_path / "copy"
    with sending(master) as sender:
        fake = FakeBroker(sender)
        whole = dict(fake.table)
        fake.table |= {"commitLogMinOffset": "-1", "commitLogMaxOffset": "0"}
        with fake as address:
            progress = receive_from(address, copy, config_seconds=seconds, dispatch=True)
            assert (progress.end, progress.connections, progress.configs) == (-1, 0, 1 if seconds else 0)
            assert (copy / "config" / "topics.json").exists() == bool(seconds)
            assert not (copy / "abort").exists() and not any((copy / "commitlog").iterdir())

            class Documents(dict[int, bytes]):
                def __getitem__(self, code: int) -> bytes:
                    fake.table |= whole
                    return super().__getitem__(code)

            fake.documents = Documents(fake.documents)
            if seconds:
                assert receive_from(address, tmp_path / "other").configs == 1
                assert log_of(tmp_path / "other") == log_of(master)


def test_offsets_are_never_ahead_of_the_log(master: Path, tmp_path: Path) -> None:
    """Nothing is written before the log has reached the end that was asked for after them."""
    flushed = 0
    with sending(master) as sender, FakeBroker(sender) as address:
        sync = ConfigSync(address, tmp_path, PROFILES["5.4"], lambda: flushed, 60.0)
        sync.start()
        until(lambda: sync.master_end == sender.log.end)
        flushed = sender.log.end - 1
        assert not sync.written
        assert not (tmp_path / "config").exists()
        flushed = sender.log.end
        until(lambda: sync.written)
        sync.stop()
        assert (tmp_path / "config" / "consumerOffset.json").exists()


def test_a_time_that_has_passed_ends_it_at_a_master_without_messages(master: Path, tmp_path: Path) -> None:
    """Of 5.x, which says so in heartbeats, and of 4.9, which closes each HA connection."""

    def serve(connection: socket.socket) -> None:
        read_exactly(connection, 8)
        with suppress(OSError):
            while True:
                connection.sendall(replication.FRAME.pack(0, 0))
                time.sleep(0.01)

    with sending(master) as sender, listening(serve) as ha, listening(lambda connection: None) as closing:
        fake = FakeBroker(sender)
        fake.table |= {"commitLogMinOffset": "-1", "commitLogMaxOffset": "0"}
        with fake as address:
            for each in (ha, closing):
                fake.properties["haListenPort"] = str(each.port)
                for wait_ms in (-1000, 300):
                    end = time.time_ns() // 1_000_000 + wait_ms
                    more = {"once": False, "until_ms": end, "retries": True, "tick": Deadline().tick}
                    assert receive_from(address, tmp_path / "copy", **more).end == -1


def test_what_was_fetched_before_a_cut_is_not_written(master: Path, tmp_path: Path) -> None:
    """It may be ahead of the log then; what the new master says takes its place at once."""
    flushed, file = 0, tmp_path / "config" / "consumerOffset.json"
    with sending(master) as sender:
        fake = FakeBroker(sender)
        with fake as address:
            sync = ConfigSync(address, tmp_path, PROFILES["5.4"], lambda: flushed, 3600.0)
            sync.start()
            until(lambda: sync.master_end == sender.log.end)
            for number in (3, 2):
                text = b'{"offsetTable":{"Topic@group":{0:%d}}}' % number
                fake.documents[Request.GET_ALL_CONSUMER_OFFSET] = text
                asked = fake.asked.count(Request.GET_ALL_CONSUMER_OFFSET)
                sync.fetch_again()
                until(lambda asked=asked: fake.asked.count(Request.GET_ALL_CONSUMER_OFFSET) > asked)
                flushed = sender.log.end
                until(lambda number=number: file.exists() and f":{number}" in file.read_text())
            sync.stop()
    assert sync.written == 2


def test_a_cut_is_not_forgotten_when_the_broker_does_not_answer(
    master: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover a first question often fails; the next regular look is an hour away."""
    monkeypatch.setattr(config_sync, "_ASK_SECONDS", 0.01)
    with sending(master) as sender:
        fake = FakeBroker(sender)
        with fake as address:
            sync = ConfigSync(address, tmp_path, PROFILES["5.4"], lambda: sender.log.end, 3600.0)
            sync.start()
            until(lambda: sync.written == 1)
            fake.documents_refused = 1
            sync.fetch_again()
            until(lambda: sync.written == 2)
            sync.stop()
    assert fake.documents_refused == 0


def test_a_cut_of_the_log_replaces_the_configuration(tmp_path: Path) -> None:
    """After a failover; though the next look at it is an hour away."""
    root, other, copy = make_master(tmp_path / "master", 21), tmp_path / "other", tmp_path / "copy"
    copy_tree(root, other)
    with Store.open(root) as store:
        point = store.end_offset()
    for each, count, number in ((root, 20, 1), (other, 9, 2)):
        with StoreWriter.open(each) as writer:
            put(writer, count)
        epochs = [Entry(1, 0), Entry(number, point)][:number]
        (each / "epochFileCheckpoint").write_bytes(epoch.encode(epochs))
    with sending(root, controller=True) as first, sending(other, controller=True) as second:
        fake = FakeBroker(first)
        fake.properties["enableControllerMode"] = "true"

        deadline = Deadline()

        def tick(progress: Progress) -> None:
            deadline.tick(progress)
            if progress.configs == 1 and not progress.truncated:
                fake.properties["haListenPort"] = str(second.address.port)
                fake.table["commitLogMaxOffset"] = str(second.log.end)
                fake.documents[Request.GET_ALL_CONSUMER_OFFSET] = b'{"offsetTable":{"Topic@group":{0:4}}}'
                first.close()
            if progress.configs == 2:
                raise EndedError

        with fake as address, pytest.raises(EndedError):
            receive_from(
                address, copy, once=False, retries=True, truncate=True, config_seconds=3600, tick=tick
            )
    assert ":4" in (copy / "config" / "consumerOffset.json").read_text()
    assert log_of(copy) == log_of(other)


def test_a_range_that_does_not_continue_is_refused(master: Path, tmp_path: Path) -> None:
    """Expired, lost, another file size, another protocol; nothing is changed."""
    copy = tmp_path / "copy"
    with sending(master) as sender:
        fake = FakeBroker(sender)
        with fake as address:
            receive_from(address, copy, config_seconds=0)
            before = tree_digest(copy)
            end = sender.log.end
            for change, why in (
                ({"commitLogMinOffset": str(end + 5), "commitLogMaxOffset": str(end + 50)}, "deleted"),
                ({"commitLogMinOffset": str(end), "commitLogMaxOffset": str(end + 50)}, "deleted"),
                ({"commitLogMinOffset": "0", "commitLogMaxOffset": str(end - 1)}, "lost"),
            ):
                fake.table |= change
                with pytest.raises(RefusedError, match=why):
                    receive_from(address, copy)
            fake.properties["mappedFileSizeCommitLog"] = "4096"
            with pytest.raises(RefusedError, match="files"):
                receive_from(address, copy)
            assert tree_digest(copy) == before
            fake.table = {}
            with pytest.raises(FormatError, match="does not say"):
                receive_from(address, copy)


def test_an_error_of_the_broker_has_its_words(master: Path) -> None:
    """And a request that it does not know is None."""
    with sending(master) as sender, FakeBroker(sender) as address:
        with pytest.raises(RequestRefusedError, match="not supported"):
            broker_client.ask(address, 999)
        assert broker_client.document(address, 999) is None


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"\xff" * 40, b"\0\0\0\x08\0\0\0\x04null", b"\x7f\xff\xff\xff\0\0\0\1"],
)
def test_what_is_not_a_broker_is_one_error(answer: bytes) -> None:
    """Closed at once, another protocol, sizes that no answer has."""

    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer)

    with listening(serve) as address, pytest.raises(InputError):
        broker_client.facts_of(address)


def test_a_configuration_that_cannot_be_read_ends_the_run(master: Path, tmp_path: Path) -> None:
    """It is not left out silently."""
    with sending(master) as sender:
        fake = FakeBroker(sender)
        fake.documents[Request.GET_ALL_DELAY_OFFSET] = b"[1]"
        with fake as address, pytest.raises(FormatError, match="GET_ALL_DELAY_OFFSET"):
            receive_from(address, tmp_path / "copy")


def test_a_broker_that_is_away() -> None:
    """One error that names it."""
    with pytest.raises(ConnectionLostError, match="127.0.0.1:1 does not answer"):
        config_sync.fetch(Address("127.0.0.1", 1))
