"""`receive` that deletes old log files, and its metrics."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage, Selection, StoreWriter
from rmqtool.check.verify import verify
from rmqtool.errors import UsageError
from rmqtool.net import dispatching
from rmqtool.net import receive as receive_module
from rmqtool.net.ha_connection import Address
from rmqtool.net.metrics import metrics_in_thread, receive_text
from rmqtool.net.receive import Progress
from rmqtool.read.store import Store
from rmqtool.repair.expire import OwnRules, Request, remove
from tests.support.programs import PATIENCE_S
from tests.support.replication import FILE_SIZE, FakeBroker, log_of, make_master, put, receive, sending

UNITS = 5  # of a queue file
SMALL = {"mappedFileSizeConsumeQueue": str(20 * UNITS), "maxHashSlotNum": "11", "maxIndexNum": "30"}
EXTENDED = {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": "300"}
FOLDERS = ("commitlog", "consumequeue", "consumequeue_ext", "index")


@pytest.fixture(autouse=True)
def at_each_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Old files are looked for at each step, not every ten seconds."""
    monkeypatch.setattr(receive_module, "_EXPIRE_SECONDS", 0.0)
    yield


def names(root: Path) -> list[str]:
    """The files of a log."""
    return sorted(path.name for path in (root / "commitlog").iterdir())


@pytest.mark.parametrize("kept", [1, FILE_SIZE, FILE_SIZE + 1, 3 * FILE_SIZE, 99 * FILE_SIZE])
def test_no_more_than_so_many_bytes_are_kept(tmp_path: Path, kept: int) -> None:
    """The oldest files go, whole; what is left is the end of the master's log, and the next run goes on."""
    root, copy = make_master(tmp_path / "master", 150), tmp_path / "copy"
    with sending(root) as sender:
        progress = receive(sender.address, copy, max_bytes=kept)
    end = sender.log.end
    starts = [start for start in range(0, end, FILE_SIZE) if start + FILE_SIZE > end - kept]
    found = [name for name in names(copy) if int(name) < end]
    assert found == [f"{start:020}" for start in starts]
    assert progress.expired == starts[0]
    assert log_of(copy) == log_of(root)[starts[0] :]
    with StoreWriter.open(root) as writer:
        put(writer, 50)
    with sending(root) as sender:
        assert receive(sender.address, copy).records == 50
    assert log_of(copy) == log_of(root)[starts[0] :]
    with Store.open(copy) as store:
        assert store.end_offset() == sender.log.end


def test_files_go_by_the_time_of_their_last_write(tmp_path: Path) -> None:
    """As in a broker: a file that stays keeps all after it, and the last one stays however old it is."""
    root, copy = make_master(tmp_path / "master", 150), tmp_path / "copy"
    with sending(root) as sender:
        receive(sender.address, copy)
        whole = names(copy)
        for name in (whole[0], whole[1], whole[3]):
            os.utime(copy / "commitlog" / name, (1000, 1000))
        assert receive(sender.address, copy, max_age_seconds=3600.0).expired == 2 * FILE_SIZE
        assert names(copy) == whole[2:]
        for name in names(copy):
            os.utime(copy / "commitlog" / name, (1000, 1000))
        receive(sender.address, copy, max_age_seconds=3600.0)
        assert log_of(copy) == log_of(root)[sender.log.end - sender.log.end % FILE_SIZE :]
        assert receive(sender.address, copy).records == 0


def receive_all(address: Address, copy: Path, **request: Any) -> Progress:
    """Receive as from a broker that says its settings."""
    return receive(address, copy, ha_only=False, file_size=None, **request)


def contents(root: Path) -> dict[str, bytes]:
    """The files of log, queues and index."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.is_file()
    }


def severe(root: Path) -> list[dict[str, Any]]:
    """The findings of `verify` that are more than a note, without those of the configuration."""
    with Store.open(root) as store:
        found = [item for item in verify(store, jobs=1) if item.problem.severity != "note"]
    return [item.row() for item in found if item.problem.code[:2] != "CF"]


@pytest.mark.parametrize("settings", [SMALL, SMALL | EXTENDED])
def test_queues_and_index_follow_the_log(tmp_path: Path, settings: dict[str, str]) -> None:
    """The files are those that `expire` leaves, also if the run that deleted log files was killed then.

    A run that deletes no log files deletes no others.
    """
    root, copy, other = make_master(tmp_path / "master", 150), tmp_path / "copy", tmp_path / "other"
    with sending(root) as sender:
        fake = FakeBroker(sender)
        fake.properties |= settings
        with fake as address:
            receive_all(address, copy, dispatch=True)
            whole = contents(copy)
            shutil.copytree(copy, other)
            assert receive_all(address, copy, dispatch=True, max_bytes=3 * FILE_SIZE).expired == 2 * FILE_SIZE
            rules = OwnRules(before_offset=2 * FILE_SIZE)
            remove.expire(lambda: Store.open(other), Request(0, rules=rules), force=True)
            expected = contents(other)
            for folder in sorted({name.split("/")[0] for name in whole}):
                assert sum(name.startswith(folder + "/") for name in whole.keys() - expected.keys()) > 1
            assert contents(copy) == expected
            assert severe(copy) == []
            for name, data in whole.items():
                if not name.startswith("commitlog/"):
                    (copy / name).write_bytes(data)
            receive_all(address, copy, dispatch=True)
            assert len(contents(copy)) > len(expected)
            receive_all(address, copy, dispatch=True, max_bytes=99 * FILE_SIZE)
            assert contents(copy) == expected
    with Store.open(copy) as store:
        queue = store.queues["Topic", 0]
        assert queue.min_offset(2 * FILE_SIZE, store.profile) > UNITS
        assert queue.end() == 75


class EndedError(Exception):
    """The run has come so far."""


def test_a_queue_goes_on_whose_first_files_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first message in a run comes after the run has deleted its old files."""
    monkeypatch.setattr(dispatching, "_SAVE_MS", 0)
    root, copy = make_master(tmp_path / "master", 1), tmp_path / "copy"
    late = [NewMessage("Late", b"late", keys=["late"], queue_id=0) for _ in range(3 * UNITS)]
    with StoreWriter.open(root) as writer:
        writer.topics.add("Late", queues=1)
        for message in late:
            writer.put(message)
        put(writer, 150)

    def tick(progress: Progress) -> None:
        if progress.dispatched > end:
            raise EndedError
        if late and not (copy / "consumequeue/Late/0" / f"{20 * UNITS:020}").exists():
            with StoreWriter.open(root) as writer:
                writer.put(late[0])
            late.clear()

    with sending(root) as sender:
        fake = FakeBroker(sender)
        fake.properties |= SMALL
        with fake as address:
            end = receive_all(address, copy, dispatch=True).end
            with pytest.raises(EndedError):
                receive_all(address, copy, dispatch=True, max_bytes=FILE_SIZE, once=False, tick=tick)
    assert severe(copy) == []
    with Store.open(copy) as store:
        assert store.queues["Late", 0].end() == 3 * UNITS + 1
        assert len(list(store.messages(Selection(keys=["late"])))) == 1


def scraped(port: int, path: str = "/metrics") -> str:
    """What is served at a path."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        data = b""
        while piece := connection.recv(65536):
            data += piece
    return data.decode()


def test_metrics(tmp_path: Path) -> None:
    """What is known has a sample; a port that is taken is a usage error."""
    progress = Progress()
    with metrics_in_thread("127.0.0.1", 0, lambda: receive_text(progress)) as port:
        found = scraped(port)
        assert "rmqtool_receive_received_bytes_total 0\n" in found
        assert "\nrmqtool_receive_end_offset " not in found
        root = make_master(tmp_path / "master")
        with sending(root) as sender:
            done = receive(sender.address, tmp_path / "copy")
        progress.end, progress.bytes, progress.master_end = done.end, done.bytes, done.end + 5
        found = scraped(port)
        assert f"\nrmqtool_receive_end_offset {done.end}\n" in found
        assert "\nrmqtool_receive_lag_bytes 5\n" in found
        assert scraped(port, "/etc/passwd").startswith("HTTP/1.1 404")
        with pytest.raises(UsageError, match=str(port)):
            with metrics_in_thread("127.0.0.1", port, str):
                pass
        with socket.create_connection(("127.0.0.1", port)):  # is closed at the end
            pass


def test_a_connection_comes_while_the_metrics_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is closed, in whatever state it is, also where an error ends the block."""
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    for number in range(40):
        with ExitStack() as stack, suppress(KeyError):
            with metrics_in_thread("127.0.0.1", 0, str) as port:
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                if number % 2:
                    raise KeyError
    gc.collect()
    assert not lost
    assert not caplog.messages
