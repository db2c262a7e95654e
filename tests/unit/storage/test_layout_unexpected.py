"""Entries of a store that are not what their names say, and what cannot be listed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rmqtool.errors import UnreadableError
from rmqtool.formats.index import Shape
from rmqtool.storage import lock
from rmqtool.storage.broker_conf import read_broker_conf
from rmqtool.storage.layout import detect
from rmqtool.storage.open_files import OpenFiles, head_of, read_head
from tests.support.build_store import KEYS, file_name, one_queue, write_index, write_store

LOOP = "Too many levels of symbolic links"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    write_store(root, one_queue(40))
    write_index(root / "index/20260101000000000", Shape(100, 400), KEYS)
    (root / "config").mkdir()
    (root / "config/topics.json").write_text("{}")
    (root / "checkpoint").write_bytes(bytes(4096))
    return root


@pytest.mark.parametrize(
    ("name", "instead_of"),
    [
        ("lock", "a plain file"), ("abort", "a plain file"), ("timerwheel", "a plain file"),
        ("epochFileCheckpoint", "a plain file"), ("config/timercheck", "a plain file"),
        ("config/topics.json.bak", "a plain file"), ("compaction/position-checkpoint", "a plain file"),
        ("timerlog", "a folder"), ("commitlog", "a folder"), ("consumequeue", "a folder"),
        ("index", "a folder"), ("config", "a folder"),
    ],
)  # fmt: skip
def test_a_pipe_in_place_of_a_part(store: Path, name: str, instead_of: str) -> None:
    path = store / name
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(store.parent / "moved")
    os.mkfifo(path)
    found = detect(store)
    (unexpected,) = found.unexpected_entries
    assert (unexpected.path, unexpected.what, unexpected.instead_of) == (path, "a pipe", instead_of)
    assert found.unreadable == ()


def test_other_types(store: Path) -> None:
    for folder in ("timerwheel", "config/timercheck", "config/topics.json.bak", "config/topics"):
        (store / folder).mkdir()
    (store / "timerlog").write_text("")
    (store / "lock").symlink_to("nothing")
    found = detect(store)
    assert {
        (entry.path.relative_to(store).as_posix(), entry.what) for entry in found.unexpected_entries
    } == {
        ("timerwheel", "a folder"), ("config/timercheck", "a folder"),
        ("config/topics.json.bak", "a folder"), ("timerlog", "a plain file"),
        ("lock", "a link that leads nowhere"),
    }  # fmt: skip
    assert found.timer_wheel is found.timer_check is found.lock is None
    assert set(found.config) == {"topics.json"}


def test_strays_of_any_type(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (store / "timerlog").mkdir()
    os.mkfifo(store / "timerlog" / file_name(0))
    (store / "timerlog/notes").write_text("")
    os.mkfifo(store / "index/20260101000000001")
    monkeypatch.chdir(store / "index")  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("20260101000000002")
        found = detect(store)
    assert [path.name for path in found.timer_log_strays] == [file_name(0), "notes"]
    assert [path.name for path in found.index_strays] == ["20260101000000001", "20260101000000002"]
    assert len(found.index_files) == 1 and not found.timer_log and not found.unexpected_entries


def test_a_guard_that_is_no_file_is_a_stray(store: Path) -> None:
    guard = store / "commitlog/rmqtool-repair"
    guard.mkdir()
    found = detect(store)
    assert found.guard is None and found.commit_log_strays == (guard,)


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "config", "checkpoint"])
def test_a_part_that_is_a_link_to_itself(store: Path, name: str) -> None:
    (store / name).rename(store.parent / "moved")
    (store / name).symlink_to(name)
    found = detect(store)
    assert found.unreadable == ((store / name, LOOP),)
    assert found.unreadable_parts == {name} and found.unexpected_entries == ()


def test_a_link_to_itself_beside_the_parts(store: Path) -> None:
    """A broker never looks at it."""
    (store / "other").symlink_to("other")
    (store / "dledger-n0").symlink_to("dledger-n0")
    assert detect(store).unreadable == ((store / "dledger-n0", LOOP),)


def test_a_folder_of_the_log_elsewhere(store: Path, tmp_path: Path) -> None:
    (store / "commitlog").rename(tmp_path / "log1")
    (tmp_path / "log1/loop").symlink_to("loop")
    found = detect(store, commitlog_paths=[tmp_path / "log1"])
    assert found.unreadable == ((tmp_path / "log1/loop", LOOP),)
    assert found.unreadable_parts == {"commitlog"}
    (tmp_path / "log2").symlink_to("log2")
    with pytest.raises(UnreadableError, match="cannot be read"):
        detect(store, commitlog_paths=[tmp_path / "log2"])


class TestPipes:
    """Nobody writes into these pipes: whoever reads one would wait for ever."""

    @pytest.fixture
    def pipe(self, tmp_path: Path) -> Path:
        os.mkfifo(tmp_path / "pipe")
        return tmp_path / "pipe"

    def test_as_broker_conf(self, pipe: Path) -> None:
        with pytest.raises(UnreadableError, match="not a plain file"):
            read_broker_conf(pipe)

    def test_as_a_small_file(self, pipe: Path) -> None:
        with pytest.raises(UnreadableError, match="not a plain file"):
            read_head(pipe, 8)
        assert head_of(pipe, 8) == b"" and read_head(pipe.with_name("none"), 8) is None

    def test_as_a_file_of_the_log(self, pipe: Path) -> None:
        with OpenFiles() as files, pytest.raises(UnreadableError, match="not a plain file"):
            files.read(pipe, 0, 8)

    def test_as_lock(self, pipe: Path) -> None:
        assert lock.holder(pipe).state == "unknown"
