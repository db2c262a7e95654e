"""`send-log`: what a slave is sent, what it is refused, and what its reports may say."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from rmqtool import NewMessage, StoreWriter
from rmqtool.errors import RefusedError, UnsupportedStoreError, UnwritableError
from rmqtool.formats import replication
from rmqtool.net import send_log
from rmqtool.net.ha_connection import Address
from rmqtool.net.send_log import LogSender, SentLog
from rmqtool.read.store import Store
from rmqtool.storage.layout import detect
from tests.support.programs import PATIENCE_S, RMQTOOL, started, until
from tests.support.replication import FILE_SIZE, log_of, make_master, read_exactly, receive, sending
from tests.support.stores import Library
from tests.support.trees import copy_tree, unchanged


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three files of log."""
    return make_master(tmp_path_factory.mktemp("master") / "store")


@contextmanager
def slave(sender: LogSender) -> Iterator[socket.socket]:
    """A connection to a sender."""
    with closing(socket.create_connection(sender.address, PATIENCE_S)) as connection:
        yield connection


def report(offset: int) -> bytes:
    """A slave's report."""
    return struct.pack(">q", offset)


def frames(connection: socket.socket, end: int) -> Iterator[tuple[int, bytes]]:
    """Frames up to one that ends at `end`."""
    offset = -1
    while offset < end:
        head = read_exactly(connection, replication.FRAME.size)
        offset, size = replication.FRAME.unpack(head)
        body = read_exactly(connection, size)
        yield offset, body
        offset += size


@pytest.mark.parametrize("asked", [0, 1, 777, FILE_SIZE, FILE_SIZE + 5])
def test_the_log_is_sent_from_where_it_is_asked_for(master: Path, asked: int) -> None:
    """Frames follow each other, and none crosses the end of a file; 0 is the start of a file."""
    with unchanged(master), sending(master, frame_bytes=1000) as sender, slave(sender) as connection:
        connection.sendall(report(asked))
        data, place = b"", asked
        for offset, body in frames(connection, sender.log.end):
            assert offset == place
            assert not body or offset // FILE_SIZE == (offset + len(body) - 1) // FILE_SIZE
            data, place = data + body, place + len(body)
        assert data == log_of(master).ljust(sender.log.end, b"\0")[asked:]
        head = read_exactly(connection, replication.FRAME.size)
        assert replication.FRAME.unpack(head) == (sender.log.end, 0)


@pytest.mark.parametrize("asked", [-2, 1 << 40, (1 << 63) - 1])
def test_what_the_log_does_not_have_is_refused(master: Path, asked: int) -> None:
    """The connection is closed, with a reason: nothing is sent, and no silence either."""
    with sending(master) as sender, slave(sender) as connection:
        connection.sendall(report(asked))
        assert connection.recv(1) == b""
        until(lambda: sender.slaves[0].reason.startswith("it asks for"))


def test_an_acknowledgement_of_what_was_not_sent_ends_the_connection(master: Path) -> None:
    """A slave cannot have it."""
    with sending(master) as sender, slave(sender) as connection:
        connection.sendall(report(-1))
        connection.sendall(report(sender.log.end))
        connection.sendall(report(sender.log.end + 1))
        while connection.recv(1 << 16):
            pass
        until(lambda: not sender.slaves[0].is_connected)
        assert "acknowledges" in sender.slaves[0].reason or "asks for" in sender.slaves[0].reason


def test_a_silent_slave_is_given_up(master: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that connects and says nothing, and one that sends half a report."""
    monkeypatch.setattr(send_log, "SILENCE_SECONDS", 0.0)
    with sending(master) as sender, slave(sender) as connection:
        connection.sendall(report(5)[:3])
        assert connection.recv(1) == b""


def test_a_slave_that_takes_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has asked for a log that no socket holds, and goes on to report."""
    monkeypatch.setattr(send_log, "_STALLED_SECONDS", 0.2)
    root = make_master(tmp_path / "master", 100, file_size=32 << 20, size=2)
    with StoreWriter.open(root) as writer:
        for _ in range(8):
            writer.put(NewMessage("Topic", bytes(3 << 20)))
    with sending(root) as sender, slave(sender) as connection:
        connection.sendall(report(0))
        until(lambda: sender.slaves and not sender.slaves[0].is_connected)
        assert sender.slaves[0].reason == "timed out"
        assert sender.slaves[0].sent < sender.log.end


def test_nothing_is_sent_from_damage_on(master: Path, tmp_path: Path) -> None:
    """In the file that the log ends in, it refuses to begin."""
    with sending(master) as sender:
        receive(sender.address, tmp_path / "copy")
    files = sorted((tmp_path / "copy" / "commitlog").iterdir())
    path = next(path for path in reversed(files) if any(path.read_bytes()))
    data = bytearray(path.read_bytes())
    data[100:164] = bytes(64)
    path.write_bytes(data)
    with pytest.raises(RefusedError):
        SentLog(detect(tmp_path / "copy"))


@pytest.mark.parametrize("asked", [0, FILE_SIZE + 200, FILE_SIZE + 7000])
def test_damage_in_an_earlier_file_ends_it(tmp_path: Path, asked: int) -> None:
    """What precedes it is sent; with --once the command ends, and names file and offset."""
    root = make_master(tmp_path / "store", 200)
    path = root / "commitlog" / f"{FILE_SIZE:020}"
    with Store.open(root) as store:
        units = (unit for queue in store.queues.values() for _, unit in queue.units(0))
        place = min(unit.physical_offset for unit in units if unit.physical_offset >= FILE_SIZE + 3000)
    data = bytearray(path.read_bytes())
    data[place - FILE_SIZE + 100] ^= 1  # in the body
    path.write_bytes(data)
    command = [*RMQTOOL, "send-log", root, "--listen", "127.0.0.1:0", "--once"]
    with started(command, text=True) as program:
        assert program.stderr is not None
        host, port = program.stderr.readline().split()[-1].split(":")
        with closing(socket.create_connection((host, int(port)), PATIENCE_S)) as connection:
            connection.sendall(report(asked))
            got = sum(len(body) for _, body in frames(connection, place)) if asked < place else 0
            assert connection.recv(1) == b""
        assert program.wait(PATIENCE_S) == 4
        text = program.stderr.read()
    assert got == max(place - asked, 0)
    assert f"damage in the commit log: nothing is sent from there on: {path}, offset {place}\n" in text


def test_a_port_that_is_taken(master: Path) -> None:
    """One clear error."""
    with sending(master) as sender, pytest.raises(UnwritableError, match="cannot listen"):
        LogSender(sender.log, sender.address, note=print)


def test_several_slaves_at_once(master: Path, tmp_path: Path) -> None:
    """Each has the whole log."""
    with sending(master) as sender, sending(master) as other:
        for number, each in enumerate((sender, other, sender)):
            receive(each.address, tmp_path / str(number))
            assert log_of(tmp_path / str(number)) == log_of(master)
        assert len(sender.slaves) == 2


def test_a_file_that_vanishes(master: Path, tmp_path: Path) -> None:
    """The slave is left with whole frames, and the reason is kept."""
    with sending(master) as sender:
        receive(sender.address, tmp_path / "copy")
    with sending(tmp_path / "copy") as sender:
        (tmp_path / "copy" / "commitlog" / f"{0:020}").unlink()
        with slave(sender) as connection:
            connection.sendall(report(1))
            while connection.recv(1 << 16):
                pass
        until(lambda: "cannot read" in sender.slaves[0].reason)


def test_a_slave_of_a_full_file_waits_for_the_next(tmp_path: Path) -> None:
    """One that has got the blank and the rest of the file from its former master is not ahead."""
    root = make_master(tmp_path / "master", 40, file_size=FILE_SIZE)
    second = root / "commitlog" / f"{FILE_SIZE:020}"
    data = second.read_bytes()
    for path in sorted((root / "commitlog").iterdir())[1:]:
        path.write_bytes(bytes(FILE_SIZE))
    with sending(root) as sender, slave(sender) as connection:
        assert sender.log.end < sender.log.reach == FILE_SIZE
        connection.sendall(report(FILE_SIZE))
        head = read_exactly(connection, replication.FRAME.size)
        assert replication.FRAME.unpack(head) == (FILE_SIZE, 0)
        with second.open("r+b") as file:  # a master's file is never shorter
            file.write(data)
        offset, body = next(frames(connection, sender.log.end))
        assert (offset, body[:100]) == (FILE_SIZE, data[:100])


def test_a_log_in_dledger_is_not_sent(cases: Library, tmp_path: Path) -> None:
    """Its files have a header before each record, which no slave takes; nor is it received into."""
    root = cases.path("kind_dledger_540")
    with pytest.raises(UnsupportedStoreError, match="DLedger"):
        SentLog(detect(root))
    copy = copy_tree(root, tmp_path / "copy")
    with pytest.raises(RefusedError, match="DLedger"):
        receive(Address("127.0.0.1", 1), copy)


@pytest.mark.parametrize("controller", [False, True])
def test_any_bytes_end_in_a_closed_connection(master: Path, tmp_path: Path, controller: bool) -> None:
    """Random reports, messages of other states, half ones; then a slave is served as before."""
    rng = random.Random(7)
    with sending(master, controller=controller) as sender:
        for _ in range(60):
            pieces = [
                rng.choice(
                    (
                        struct.pack(">q", rng.choice((0, 1, -1, 5000, 1 << 62, rng.getrandbits(63)))),
                        replication.HANDSHAKE.pack(
                            rng.choice((1, 1, 0, 3)), rng.randrange(3), 1, rng.getrandbits(62)
                        ),
                        replication.TRANSFER_REPORT.pack(
                            rng.choice((2, 2, 4, -1)), rng.choice((0, 1, 5000, 1 << 62))
                        ),
                        rng.randbytes(rng.randrange(20)),
                    )
                )
                for _ in range(rng.randrange(1, 5))
            ]
            with slave(sender) as connection:
                connection.sendall(b"".join(pieces)[: rng.randrange(1, 60)])
                connection.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    while connection.recv(65536):
                        pass
        until(lambda: not any(each.is_connected for each in sender.slaves))
        assert all(each.reason for each in sender.slaves)
        progress = receive(sender.address, tmp_path / "copy", controller=controller)
    assert progress.records == 60
    assert log_of(tmp_path / "copy") == log_of(master)


def test_slaves_that_have_gone_are_forgotten(master: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of connections takes no memory; who is connected stays."""
    monkeypatch.setattr(send_log, "_REMEMBERED", 5)
    with sending(master) as sender, slave(sender) as first:
        first.sendall(report(0))
        first.recv(1)
        for _ in range(12):
            with slave(sender) as connection:
                connection.sendall(b"\x7f" * 8)
                with suppress(ConnectionResetError):
                    connection.recv(1)
        until(lambda: sum(each.is_connected for each in sender.slaves) == 1)
        assert len(sender.slaves) == 5
        assert sender.slaves[0].is_connected
