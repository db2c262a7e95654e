"""Every file operation of `receive`, failed or killed below libc: what is acknowledged is on the device.

The master is lock-step: it sends the next record when the one before it was acknowledged. So it has at
most as many acknowledgements as the log was flushed. The same command run again has the whole log.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from rmqtool.errors import EXIT_INPUT, EXIT_OK
from rmqtool.formats import message, replication
from rmqtool.net.ha_connection import Address
from tests.faults import CHANGES, Fault, How, Ran, Runner
from tests.support.records import record
from tests.support.replication import listening, log_of, read_exactly
from tests.support.sweep import IS_WHOLE

pytestmark = pytest.mark.sweep

FILE_SIZE = 1024
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)
HOWS: tuple[How, ...] = ("fail", "kill-before", "kill-half", "kill-after")
SYNCS = ("fsync", "fdatasync")
SAMPLE = 3


def log_with_files() -> tuple[bytes, list[int]]:
    """A log of three files, and where its records and blanks end."""
    data, ends, place = b"", [], 0
    for number in range(15):
        one = message.encode(record(body=b"x" * 70, physical_offset=place, queue_offset=number))
        left = FILE_SIZE - place % FILE_SIZE
        if len(one) + message.BLANK_SIZE > left:
            data += message.encode_blank(left).ljust(left, b"\0")
            place += left
            one = message.encode(record(body=b"x" * 70, physical_offset=place, queue_offset=number))
        data += one
        place += len(one)
        ends.append(place)
    return data, ends


LOG, ENDS = log_with_files()


class Master:
    """Sends one record after the other; `acknowledged` are the reports after the first, in order."""

    def __init__(self, *, waits: bool) -> None:
        self.acknowledged: list[int] = []
        self._waits = waits

    def __call__(self, connection: socket.socket) -> None:
        (asked,) = struct.unpack(">q", read_exactly(connection, 8))
        place = asked
        for end in (each for each in ENDS if each > asked):
            while place < end:
                stop = min(end, place - place % FILE_SIZE + FILE_SIZE)
                connection.sendall(replication.FRAME.pack(place, stop - place) + LOG[place:stop])
                place = stop
            while self._waits and (not self.acknowledged or self.acknowledged[-1] < end):
                report = read_exactly(connection, 8)
                if len(report) < 8:
                    return
                self.acknowledged += struct.unpack(">q", report)
        connection.sendall(replication.FRAME.pack(place, 0))
        while connection.recv(64):
            pass


@contextmanager
def a_master(*, waits: bool) -> Iterator[tuple[Master, Address]]:
    """Listens; it sends all at once, unless it `waits` for acknowledgements."""
    master = Master(waits=waits)
    with listening(master) as address:
        yield master, address


def receive(
    runner: Runner, folder: Path, fault: Fault, *, logged: bool = False, waits: bool = True
) -> tuple[Ran, list[int]]:
    """Run `receive` once; how it ended, and what it acknowledged."""
    with a_master(waits=waits) as (master, address):
        line = ["receive", str(address), folder / "copy", "--ha-only", "--commitlog-file-size", FILE_SIZE,
                "--once", "--no-reconnect", "--json"]  # fmt: skip
        ran = runner.run(line, fault, logged=logged)
    return ran, master.acknowledged


def check_and_finish(runner: Runner, folder: Path, acknowledged: list[int]) -> None:
    """What was acknowledged is there; the same command receives the rest."""
    copy = folder / "copy"
    held = log_of(copy) if (copy / "commitlog").exists() else b""
    last = max(acknowledged, default=0)
    assert held.ljust(last, b"\0")[:last] == LOG[:last]
    if copy.exists() and any(copy.iterdir()) and not (copy / "commitlog").exists():
        shutil.rmtree(copy)  # begun, with nothing in it: the error says so
    ran, _ = receive(runner, folder, Fault(Path("/nowhere")), waits=False)
    assert ran.code == EXIT_OK, ran.told
    assert log_of(copy) == LOG.rstrip(b"\0")
    assert not (copy / "abort").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize("how", HOWS)
def test_each_operation(runner: Runner, folder: Path, how: How) -> None:
    folder.mkdir()
    whole, acknowledged = receive(runner, folder, Fault(folder, CHANGES), logged=True)
    assert whole.code == EXIT_OK, whole.told
    assert set(ENDS) <= set(acknowledged)
    made = [
        Fault(folder, CHANGES, number, sticky, how, ERRORS[number % len(ERRORS)])
        for number in range(1, len(whole.operations) + 1)
        for sticky in ((False, True) if how == "fail" else (False,))
    ]
    for fault in made if IS_WHOLE else Random(how).sample(made, SAMPLE):
        shutil.rmtree(folder)
        folder.mkdir()
        ran, acknowledged = receive(runner, folder, fault)
        try:
            if how == "fail":
                assert ran.code in (EXIT_OK, EXIT_INPUT), ran.told
                assert "Traceback" not in ran.text and "this is a bug" not in ran.text
                if ran.code == EXIT_INPUT:
                    assert os.strerror(fault.error) in ran.text
            check_and_finish(runner, folder, acknowledged)
        except BaseException as error:
            error.add_note(f"{fault} of {whole.operations[fault.first - 1]}\n{ran.told}\n{acknowledged}")
            raise


@pytest.mark.parametrize("number", [1, 2, 7])
def test_what_the_device_refuses_is_not_acknowledged(runner: Runner, folder: Path, number: int) -> None:
    """The log is flushed `number` - 1 times, and then no more."""
    folder.mkdir()
    ran, acknowledged = receive(
        runner, folder, Fault(folder / "copy/commitlog", SYNCS, number, sticky=True, error=errno.EIO)
    )
    assert ran.code == EXIT_INPUT, ran.told
    assert os.strerror(errno.EIO) in ran.text
    assert len(acknowledged) < number
    check_and_finish(runner, folder, acknowledged)
