"""A pipe, a socket or a folder with the name of a log file: every reading command says so."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.errors import EXIT_INPUT, RefusedError, UnreadableError
from rmqtool.message.rows import RowFormat
from rmqtool.problems import Finding
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.repair.expire.expiry import Request, plan_expiry
from rmqtool.repair.rebuild import run as rebuild
from rmqtool.report.bundle.parts import records
from rmqtool.report.dump.log import message_rows
from tests.support.build_store import LOG_FILE_SIZE, file_name, one_queue, write_store


def bind(path: Path) -> None:
    """Make a socket, whose path must be short."""
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)
        listener.bind(path.name)


MAKERS = [os.mkfifo, os.mkdir, bind]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with several files of the log."""
    monkeypatch.chdir(tmp_path)  # the folder to come back to
    root = tmp_path / "store"
    write_store(root, one_queue(40))
    return root


def replaced(root: Path, place: int, make: Callable[[Path], None]) -> str:
    """Put something else in the place of a log file; its name."""
    path = sorted((root / "commitlog").iterdir())[place]
    path.unlink()
    make(path)
    return path.name


@pytest.mark.parametrize(
    "command",
    [["dump", "STORE"], ["dump", "STORE", "--gaps", "--reverse"], ["stats", "STORE"],
     ["export", "STORE", "--output", "OUT"], ["sql", "STORE", "SELECT count(*) FROM messages"]],
    ids=lambda command: " ".join(command[::2]),
)  # fmt: skip
def test_the_last_file_is_a_pipe(
    store: Path, tmp_path: Path, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    name = replaced(store, -1, os.mkfifo)
    places = {"STORE": str(store), "OUT": str(tmp_path / "out.jsonl")}
    assert main([places.get(word, word) for word in command]) == EXIT_INPUT
    assert f"(it is not a plain file): commitlog/{name}" in capfd.readouterr().err


@pytest.mark.parametrize("make", [os.mkdir, bind], ids=["folder", "socket"])
def test_the_only_file_is_something_else(
    store: Path, make: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    for path in sorted((store / "commitlog").iterdir())[1:]:
        path.unlink()
    name = replaced(store, 0, make)
    assert main(["dump", str(store)]) == EXIT_INPUT
    assert f"(it is not a plain file): commitlog/{name}" in capfd.readouterr().err


def test_a_file_between_others_is_named(store: Path) -> None:
    """Of the gap it is said that an entry of this name is there; what else is missing is not."""
    name = replaced(store, 1, os.mkfifo)
    with Store.open(store) as opened:
        (gap,) = [found for found in verify(opened) if found.problem.code == "CL20"]
        assert (gap.physical_offset, gap.detail["reason"]) == (LOG_FILE_SIZE, f"not a plain file: {name}")
        reported: list[Finding] = []
        list(message_rows(opened, Selection(), RowFormat(), reported.append))
    assert [found.path for found in reported if found.problem.code == "CL12"] == [f"commitlog/{name}"]
    (gap,) = [found for found in reported if found.problem.code == "CL20"]
    assert gap.detail["reason"] == f"not a plain file: {name}"


def test_a_missing_file_has_no_entry(store: Path) -> None:
    (store / "commitlog" / file_name(LOG_FILE_SIZE)).unlink()
    with Store.open(store) as opened:
        (gap,) = [found for found in verify(opened) if found.problem.code == "CL20"]
    assert "reason" not in gap.detail


def test_expire_refuses(store: Path) -> None:
    """The rules of a broker need every file of the log."""
    name = replaced(store, -1, os.mkfifo)
    with Store.open(store) as opened, pytest.raises(UnreadableError, match="not a plain file") as caught:
        plan_expiry(opened, Request(0))
    assert caught.value.path == store / "commitlog" / name


def test_rebuild_refuses(store: Path) -> None:
    """The queues would lose the units of its messages."""
    replaced(store, -1, os.mkfifo)
    with Store.open(store) as opened, pytest.raises(RefusedError, match="not a plain file"):
        rebuild.plan(opened, rebuild.Request())


def test_expire_ignores_what_is_not_part_of_the_store(store: Path) -> None:
    (store / "loop").symlink_to("loop")
    with Store.open(store) as opened:
        assert plan_expiry(opened, Request(0)).files


def test_a_bundle_names_it(store: Path) -> None:
    name = replaced(store, -1, os.mkfifo)
    with Store.open(store) as opened:
        rows = records(opened, None).content
    (row,) = [row for row in rows if row.get("left_out") == "it is not a plain file"]
    assert row["file"] == f"commitlog/{name}" and row["part"] == "first of file"
