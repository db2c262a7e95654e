"""SIGINT, SIGTERM and SIGHUP end `serve`, `receive` and `send-log` as their pages say."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK
from rmqtool.net.ha_connection import Address
from rmqtool.read.store import Store
from tests.support.programs import PATIENCE_S, RMQTOOL, started, surroundings, until
from tests.support.remoting import RemotingClient
from tests.support.replication import FILE_SIZE, FakeBroker, log_of, make_master, receive, sending
from tests.support.sweep import paired
from tests.support.trees import tree_digest

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three files of log."""
    return make_master(tmp_path_factory.mktemp("master") / "store")


def port_of(line: str) -> int:
    """The port that a command says that it listens on."""
    return int(line.rpartition("127.0.0.1:")[2].partition(",")[0])


def ended(program: Any, number: int) -> tuple[int, str]:
    """Send a signal; the exit code, and what stderr says after it."""
    program.send_signal(number)
    rest = program.stderr.read()
    return program.wait(PATIENCE_S), rest


def run_serve(root: Path, folder: Path, number: int) -> None:
    """With a client that is connected."""
    before = tree_digest(root)
    with started([*RMQTOOL, "serve", root, "--port", 0], text=True) as program:
        with RemotingClient(port_of(program.stderr.readline())) as client:
            assert client.pull("Topic", 0, 0).code == 0
            code, rest = ended(program, number)
    assert code == EXIT_OK, rest
    assert rest.startswith("rmqtool: sent ")
    assert rest.endswith("left out 0\n")
    assert tree_digest(root) == before


def run_receive(root: Path, folder: Path, number: int) -> None:
    """With a master that is connected; the store is closed, with queues and archive."""
    copy, archive = folder / "copy", folder / "archive"
    with sending(root) as sender:
        line = [*RMQTOOL, "receive", sender.address, copy, "--ha-only", "--commitlog-file-size", FILE_SIZE,
                "--dispatch", "--archive", archive, "--json"]  # fmt: skip
        with started(line, text=True, stdout=subprocess.PIPE) as program:
            until(lambda: sender.slaves and sender.slaves[0].acknowledged == sender.log.end)
            code, rest = ended(program, number)
            shown = program.stdout.read()
    assert (code, rest) == (EXIT_OK, ""), rest
    assert json.loads(shown)["dispatched_offset"] == sender.log.end
    assert log_of(copy) == log_of(root)
    assert not (copy / "abort").exists()
    with Store.open(copy) as store:
        found = [item.row() for item in verify(store) if item.problem.code[:2] in ("CL", "CQ", "IX", "CP")]
    assert [row for row in found if row["severity"] != "note"] == []
    assert [path for path in archive.rglob("*") if path.is_file() and path.suffix != ".zst"] == []


def run_send_log(root: Path, folder: Path, number: int) -> None:
    """With a slave that is connected; 1 where none has come."""
    before = tree_digest(root)
    line = [*RMQTOOL, "send-log", root, "--listen", "127.0.0.1:0", "--json"]
    for slaves in (1, 0):
        with started(line, text=True, stdout=subprocess.PIPE) as program:
            port = port_of(program.stderr.readline().strip())
            if slaves:
                receive(Address("127.0.0.1", port), folder / "copy")
            code, rest = ended(program, number)
            assert json.loads(program.stdout.read())["end_offset"] == len(log_of(root))
        assert code == (EXIT_OK if slaves else EXIT_FINDINGS), rest
        assert "Traceback" not in rest
    assert tree_digest(root) == before


@pytest.mark.sweep
@pytest.mark.parametrize(("run", "number"), paired([run_serve, run_receive, run_send_log], SIGNALS))
def test_a_signal_ends_it(
    run: Callable[[Path, Path, int], None], number: int, master: Path, tmp_path: Path
) -> None:
    """With the exit code of the page, no traceback, and everything closed."""
    run(master, tmp_path, number)


@contextmanager
def on_a_terminal(*words: object) -> Iterator[tuple[Any, bytearray]]:
    """A command, and what it has shown so far; it is ended by SIGTERM, and must end well."""
    screen, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    shown = bytearray()

    def read() -> None:
        with suppress(OSError):  # the program has ended
            while data := os.read(screen, 65536):
                shown.extend(data)

    reader = threading.Thread(target=read)
    environment = surroundings(TERM="xterm")
    with started([*RMQTOOL, *words], stdout=subprocess.DEVNULL, stderr=inner, env=environment) as program:
        os.close(inner)
        reader.start()
        yield program, shown
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE_S) == EXIT_OK
    reader.join()
    os.close(screen)


def test_the_status_line_of_serve(master: Path) -> None:
    """On a terminal: connections, groups and the rate of messages."""
    with on_a_terminal("serve", master, "--port", 0) as (_, shown):
        until(lambda: b"Ctrl-C" in shown)
        with RemotingClient(port_of(shown.decode())) as client:
            assert client.pull("Topic", 0, 0).code == 0
            until(lambda: b"1 connection, 0 groups, " in shown)
    assert b"messages/s" in shown


def test_the_status_line_of_receive(master: Path, tmp_path: Path) -> None:
    """On a terminal: how far the master is ahead; then that it is away."""
    with sending(master) as sender:
        fake = FakeBroker(sender)
        fake.table["commitLogMaxOffset"] = str(sender.log.end + (5 << 10))
        with fake as address, on_a_terminal("receive", address, tmp_path / "copy") as (_, shown):
            until(lambda: b"receiving, 5.0 KiB behind" in shown)
            sender.close()
            until(lambda: b"waiting for the master" in shown)
