"""What a dry run knows of a store that cannot be written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rmqtool import NewMessage
from rmqtool.errors import UnwritableError
from rmqtool.write.ingest.append import DryRun
from rmqtool.write.store_writer import StoreWriter
from tests.support.ordinary_user import as_nobody, open_to_all
from tests.support.trees import unchanged


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that belongs to an ordinary user."""
    root = tmp_path / "store"
    with StoreWriter.create(root, auto_create_queues=1, commit_log_file_size=64 << 10) as writer:
        writer.put(NewMessage("T", b"x"))
    open_to_all(tmp_path)
    for path in (root, *root.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    return root


def test_what_can_be_written_is_examined(store: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    def action() -> None:
        with unchanged(store):
            DryRun.open(store, given={})
        DryRun.create(tmp_path / "open" / "new", "5.4")

    as_nobody(action)


@pytest.mark.parametrize(
    "name",
    [".", "commitlog", "consumequeue", "index", "config", "commitlog/00000000000000000000", "checkpoint"],
)
def test_what_cannot_be_written_is_named(store: Path, name: str) -> None:
    """As by the real run, which would end with the same exit code."""
    closed = store / name
    closed.chmod(0o555 if closed.is_dir() else 0o444)

    def action() -> None:
        with unchanged(store), pytest.raises(UnwritableError, match="cannot write: Permission") as refused:
            DryRun.open(store, given={})
        assert refused.value.path == closed

    as_nobody(action)


def test_a_folder_in_which_no_store_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    (tmp_path / "closed").chmod(0o555)
    open_to_all(tmp_path)

    def action() -> None:
        with pytest.raises(UnwritableError, match="cannot write: Permission"):
            DryRun.create(tmp_path / "closed" / "new", "5.4")

    as_nobody(action)


@pytest.mark.parametrize("name", ["file/new", "file/deeper/new", "lost/new"])
def test_a_place_below_what_is_no_folder(tmp_path: Path, name: str) -> None:
    """As the real run, which meets it when it makes the folder."""
    (tmp_path / "file").touch()
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    for make in (DryRun.create, StoreWriter.create):
        with pytest.raises(UnwritableError, match="cannot make the folder: "):
            make(tmp_path / name, "5.4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "lost"]


@pytest.mark.skipif(sys.platform != "linux", reason="has no such file systems")
@pytest.mark.parametrize("path", ["/proc/new", "/proc/self/new/deep", "/sys/new"])
def test_a_file_system_of_the_kernel(path: str) -> None:
    """Its folders let root write, and take nothing."""
    for make in (DryRun.create, StoreWriter.create):
        with pytest.raises(UnwritableError, match="cannot "):
            make(Path(path), "5.4")
