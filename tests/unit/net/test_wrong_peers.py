"""Peers that are no broker, no master and no slave: one error that names HOST:PORT, and nothing is made."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqtool import StoreWriter
from rmqtool.errors import FormatError, InputError, RefusedError
from rmqtool.formats import epoch, replication
from rmqtool.formats.epoch import Entry
from rmqtool.formats.remoting_codes import Request
from rmqtool.net import broker_client, ha_connection
from rmqtool.net.ha_connection import Address
from rmqtool.read.store import Store
from tests.support.programs import PATIENCE_S
from tests.support.remoting import served
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
from tests.support.stores import Library
from tests.support.trees import copy_tree, tree_digest

SPOKEN = {
    "http": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "tls": b"\x15\x03\x03\x00\x02\x02\x16",
    "ssh": b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n",
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "nothing": b"",
}
BROKER = {"ha_only": False, "file_size": None, "config_seconds": 0}
WAYS: dict[str, dict[str, Any]] = {
    "broker": BROKER, "HA port": {}, "controller": {"controller": True}, "retrying": {"retries": True},
}  # fmt: skip


@contextmanager
def peer(said: bytes) -> Iterator[Address]:
    """Says this to whatever it is asked, and closes."""

    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(said)

    with listening(serve) as address:
        yield address


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three files of log."""
    return make_master(tmp_path_factory.mktemp("master") / "store")


def must_name(address: Address, root: Path, **request: Any) -> InputError:
    """`receive` ends in an error that names the peer, and nothing is made."""
    with pytest.raises(InputError) as caught:
        receive(address, root, **request)
    assert str(address) in caught.value.message
    assert not root.exists()
    return caught.value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("said", SPOKEN)
def test_another_service(tmp_path: Path, said: str, way: str) -> None:
    with peer(SPOKEN[said]) as address:
        must_name(address, tmp_path / "copy", **WAYS[way])


def test_the_ports_of_rmqtool_mixed_up(master: Path, cases: Library, tmp_path: Path) -> None:
    """The port of `serve` for an HA port, and the reverse."""
    with served(cases.path("ok_540_clean")) as server:
        address = Address("127.0.0.1", server.port)
        must_name(address, tmp_path / "copy")
        must_name(address, tmp_path / "copy", controller=True)
    with sending(master) as sender:
        must_name(sender.address, tmp_path / "copy", **BROKER)


def test_a_silent_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts, and says nothing."""
    monkeypatch.setattr(ha_connection, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(broker_client, "_SECONDS", 0.1)
    with listening(lambda connection: connection.recv(4096) and connection.recv(1)) as address:
        for request in WAYS.values():
            must_name(address, tmp_path / "copy", **request)


@pytest.mark.parametrize(
    "change",
    [
        {"mappedFileSizeCommitLog": "0"}, {"mappedFileSizeCommitLog": "-5"},
        {"mappedFileSizeCommitLog": str(1 << 62)}, {"haListenPort": "0"}, {"haListenPort": "-1"},
        {"haListenPort": "99999999999"}, {"haListenPort": "x"}, {"haListenPort": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_a_broker_with_an_absurd_configuration(master: Path, tmp_path: Path, change: dict[str, str]) -> None:
    with sending(master) as sender:
        fake = FakeBroker(sender)
        fake.properties |= change
        with fake as address, pytest.raises(InputError) as caught:
            receive(address, tmp_path / "copy", **BROKER)
    assert "127.0.0.1:" in caught.value.message
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"commitLogMinOffset": "-2"}, {"commitLogMaxOffset": "-1"}, {"commitLogMaxOffset": str(1 << 63)},
        {"commitLogMinOffset": "1e5"}, {"commitLogMaxOffset": None}, {"commitLogMaxOffset": "9" * 5000},
    ],
    ids=lambda change: str(change)[:40],
)  # fmt: skip
def test_a_broker_with_an_absurd_range(master: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    with sending(master) as sender:
        fake = FakeBroker(sender)
        fake.table |= change
        with fake as address, pytest.raises(FormatError) as caught:
            receive(address, tmp_path / "copy", **BROKER)
    assert str(address) in caught.value.message
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    "body", [b"", b"[", b"[1]", b"{", b"[" * 5000, b'{"table":5}', b"\xff\xfe", b'{"table":{"a":1}}']
)
def test_a_broker_whose_answer_cannot_be_read(master: Path, tmp_path: Path, body: bytes) -> None:
    with sending(master) as sender:
        fake = FakeBroker(sender)
        fake.documents[Request.GET_BROKER_RUNTIME_INFO] = body
        with fake as address:
            must_name(address, tmp_path / "copy", **BROKER)


def test_names_in_the_configuration_lead_nowhere(master: Path, tmp_path: Path) -> None:
    """A topic or group with the name of a path is text in a file, and no file of that name is made."""
    with sending(master) as sender:
        fake = FakeBroker(sender)
        for code in (Request.GET_ALL_CONSUMER_OFFSET, Request.GET_ALL_TOPIC_CONFIG):
            data = fake.documents[code]
            fake.documents[code] = data.replace(b'"Topic', b'"../../../outside/x')
        fake.properties["brokerName"] = fake.properties["brokerClusterName"] = "../../outside"
        with fake as address:
            receive(address, tmp_path / "below" / "copy", ha_only=False, file_size=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["below"]
    assert [path.name for path in (tmp_path / "below").iterdir()] == ["copy"]
    text = (tmp_path / "below" / "copy" / "config" / "topics.json").read_text()
    assert "../../../outside/x" in text


@pytest.mark.parametrize("offset", [1, FILE_SIZE - 1, (1 << 63) - 1 - ((1 << 63) - 1) % FILE_SIZE, 1 << 62])
def test_a_log_that_begins_at_an_absurd_offset(tmp_path: Path, offset: int) -> None:
    """Asked for its last file, a master names an offset that no file begins at."""
    with listening(said_after_report(replication.FRAME.pack(offset, 4) + b"\0\0\0\1")) as address:
        if offset == 1 << 62:  # as large as can be: a file, and no record in it
            with pytest.raises(InputError, match=str(address)):
                receive(address, tmp_path / "copy", begin="last")
        else:
            must_name(address, tmp_path / "copy", begin="last")


def said_after_report(*pieces: bytes) -> Callable[[socket.socket], None]:
    """A master's end of a connection in classic mode."""

    def serve(connection: socket.socket) -> None:
        read_exactly(connection, 8)
        connection.sendall(b"".join(pieces))

    return serve


def test_a_master_that_has_nothing(tmp_path: Path) -> None:
    """Heartbeats and no bytes, though all was asked for: with --once or a past --until an error."""

    def serve(connection: socket.socket) -> None:
        read_exactly(connection, 8)
        for _ in range(100):
            connection.sendall(replication.FRAME.pack(1, 0))

    ends: list[dict[str, Any]] = [{"once": True}, {"once": False, "until_ms": 1}]
    for end in ends:
        with listening(serve) as address, pytest.raises(RefusedError, match="sends nothing from 1") as caught:
            receive(address, tmp_path / "copy", **end)
        assert str(address) in caught.value.message
        assert not (tmp_path / "copy").exists()
    with listening(said_after_report(replication.FRAME.pack(7, 0))) as address:
        must_name(address, tmp_path / "copy")


def test_a_master_that_has_just_begun_a_new_file(master: Path, tmp_path: Path) -> None:
    """Its only file was asked for as its last one, which is another one now: it is asked again."""
    with sending(master) as sender:
        fake = FakeBroker(sender)
        true_end = fake.table["commitLogMaxOffset"]
        fake.table["commitLogMaxOffset"] = "5000"

        def serve(connection: socket.socket) -> None:
            assert read_exactly(connection, 8) == bytes(8)
            connection.sendall(replication.FRAME.pack(FILE_SIZE, 4) + b"\0\0\0\1")
            fake.table["commitLogMaxOffset"] = true_end
            fake.properties["haListenPort"] = str(sender.address.port)
            connection.recv(1)

        with listening(serve) as first, fake as address:
            fake.properties["haListenPort"] = str(first.port)
            progress = receive(address, tmp_path / "copy", **BROKER | {"retries": True})
    assert log_of(tmp_path / "copy") == log_of(master)
    assert progress.connections == 2


def test_epochs_without_end(tmp_path: Path) -> None:
    """A master that begins a new epoch with each frame is not followed for ever."""

    def serve(connection: socket.socket) -> None:
        read_exactly(connection, replication.HANDSHAKE.size)
        connection.sendall(replication.encode_answer([Entry(1, 0)], 9))
        read_exactly(connection, replication.TRANSFER_REPORT.size)
        for start in range(0, 200_000, 1000):
            connection.sendall(
                b"".join(
                    replication.TRANSFER_FRAME.pack(2, 1, number, number + 2, number + 1, 0) + b"\0"
                    for number in range(start, start + 1000)
                )
            )

    with listening(serve) as address, pytest.raises(FormatError) as caught:
        receive(address, tmp_path / "copy", controller=True)
    assert str(address) in caught.value.message


# a failover in controller mode


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A master of one epoch, and a copy that has all of it."""
    root, copy = make_master(tmp_path / "master"), tmp_path / "copy"
    (root / "epochFileCheckpoint").write_bytes(epoch.encode([Entry(1, 0)]))
    with sending(root, controller=True) as sender:
        receive(sender.address, copy, controller=True)
    return root, copy


@pytest.mark.parametrize("number", [1, 4, 21, 28, 51, 59])
def test_the_end_that_a_new_master_lacks_is_cut(tmp_path: Path, number: int) -> None:
    """As a slave cuts it: in the last file, in one before it; then the new master's messages follow."""
    root, other, copy = make_master(tmp_path / "master", number), tmp_path / "other", tmp_path / "copy"
    copy_tree(root, other)
    with Store.open(root) as store:
        point = store.end_offset()
    with StoreWriter.open(root) as writer:
        put(writer, 60 - number)
    with StoreWriter.open(other) as writer:
        put(writer, 30)
    (root / "epochFileCheckpoint").write_bytes(epoch.encode([Entry(1, 0)]))
    (other / "epochFileCheckpoint").write_bytes(epoch.encode([Entry(1, 0), Entry(2, point)]))
    with sending(root, controller=True) as sender:
        receive(sender.address, copy, controller=True)
    before = tree_digest(copy)
    with sending(other, controller=True) as sender:
        with pytest.raises(RefusedError, match="part at") as caught:
            receive(sender.address, copy, controller=True)
        assert str(sender.address) in caught.value.message
        assert caught.value.hint is not None and "--truncate" in caught.value.hint
        assert tree_digest(copy) == before
        progress = receive(sender.address, copy, controller=True, truncate=True)
    assert log_of(copy) == log_of(other)
    assert progress.truncated > 0
    assert progress.records == 30
    assert epoch.decode((copy / "epochFileCheckpoint").read_bytes()) == [Entry(1, 0), Entry(2, point)]


def test_a_shorter_log_is_refused_where_there_are_no_epochs(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing says up to where the logs are equal; --truncate does not help."""
    _, copy = pair
    (copy / "epochFileCheckpoint").unlink()
    before = tree_digest(copy)
    with sending(make_master(tmp_path / "other", 10), controller=True) as sender:
        fake = FakeBroker(sender)
        fake.properties["enableControllerMode"] = "true"
        with fake as broker:
            ways: list[tuple[Address, dict[str, Any]]] = [
                (sender.address, {"controller": True}), (broker, BROKER)
            ]  # fmt: skip
            for address, more in ways:
                with pytest.raises(RefusedError, match="has lost messages"):
                    receive(address, copy, truncate=True, **more)
    assert tree_digest(copy) == before


def test_a_log_is_not_cut_within_a_record(pair: tuple[Path, Path]) -> None:
    root, copy = pair
    (root / "epochFileCheckpoint").write_bytes(epoch.encode([Entry(1, 0), Entry(2, 5000)]))
    before = tree_digest(copy)
    with sending(root, controller=True) as sender:
        with pytest.raises(RefusedError, match="no record ends here"):
            receive(sender.address, copy, controller=True, truncate=True)
    assert tree_digest(copy) == before


# wrong slaves


@pytest.mark.parametrize("controller", [False, True])
@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" * 9, b"\x7f" * 64])
def test_no_slave(master: Path, tmp_path: Path, said: bytes, controller: bool) -> None:
    """Who is none gets nothing of the log; a slave that comes later is served."""
    with sending(master, controller=controller) as sender:
        with socket.create_connection(sender.address, PATIENCE_S) as connection:
            connection.sendall(said)
            name = Address(*connection.getsockname())
            got = b""
            try:
                while piece := connection.recv(65536):
                    got += piece
            except ConnectionResetError:
                pass
        assert got == b""
        assert [slave.address for slave in sender.slaves] == [name]
        receive(sender.address, tmp_path / "copy", controller=controller)
    assert sender.slaves[0].bytes == 0
    assert sender.slaves[0].reason
