"""`lookup --trace` of a lost message: which groups had passed it, by their committed offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage, Store
from rmqtool.cli import main
from rmqtool.write.store_writer import StoreWriter

SIZES: dict[str, Any] = {"commit_log_file_size": 1 << 20, "consume_queue_file_size": 20_000}
Capture = pytest.CaptureFixture[str]
WHAT = "rmqtool: lost message 1 of queue 0 of T: "


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Of three messages the second one is lost: its place in the log is filled with zeros."""
    root = tmp_path / "store"
    with StoreWriter.create(root, auto_create_queues=2, **SIZES) as writer:
        for number in range(3):
            writer.put(NewMessage("T", b"body" * 20, queue_id=0, uniq_key=f"U{number}"))
    with Store.open(root) as opened:
        lost = list(opened.messages())[1]
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(lost.physical_offset)
        file.write(bytes(lost.message.total_size))
    commit(root, {"late": {0: 1}, "done": {0: 2}, "other": {1: 0}})
    return root


def commit(root: Path, offsets: dict[str, dict[int, int]]) -> None:
    """Write consumerOffset.json for topic T."""
    table = {
        f"T@{group}": {str(key): value for key, value in each.items()} for group, each in offsets.items()
    }
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


def said(capsys: Capture, root: Path, *more: str) -> list[str]:
    """The lines on the lost message."""
    capsys.readouterr()
    assert main(["lookup", str(root), "--trace", "--format", "jsonl", *more]) in (1, 3)
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix(WHAT) for line in lines if line.startswith(WHAT)]


GROUPS = [
    "not passed yet by late, whose offset is 1",
    "never read from its queue by other",
    "passed by done, whose offset is 2",
]
PLACE = ("--topic", "T", "--queue", "0", "--queue-offset", "1")


def test_before_and_after_the_repair(store: Path, capsys: Capture) -> None:
    """By queue offset, and by the offset of its filler; those that had not passed it come first."""
    assert sorted(said(capsys, store, *PLACE)) == sorted(GROUPS)
    with Store.open(store) as opened:
        unit = opened.queues["T", 0].unit(1)
        assert unit is not None
    assert sorted(said(capsys, store, "--offset", str(unit.physical_offset))) == sorted(GROUPS)
    assert main(["recover", str(store), "--apply"]) == 0
    found = said(capsys, store, *PLACE)
    assert sorted(found) == sorted(GROUPS) and found[-1] == GROUPS[-1]
    with Store.open(store) as opened:
        place = list(opened.messages())[1].physical_offset
    assert said(capsys, store, "--offset", str(place)) == found
    assert main(["lookup", str(store), *PLACE]) == 1  # only --trace asks for groups
    assert WHAT not in capsys.readouterr().err


def test_a_sound_message_and_one_that_is_not_known(store: Path, capsys: Capture) -> None:
    """A sound one has rows of its own; a unique key does not say where the lost message was."""
    assert main(["lookup", str(store), "--trace", "--topic", "T", "--queue", "0", "--queue-offset", "2"]) == 0
    assert "lost message" not in capsys.readouterr().err
    assert main(["recover", str(store), "--apply"]) == 0
    capsys.readouterr()
    assert main(["lookup", str(store), "--trace", "--uniq-key", "U1"]) == 1
    assert "lost message 1" not in capsys.readouterr().err


def test_many_groups_and_none(store: Path, capsys: Capture) -> None:
    """Ten lines at most; without a group, and without offsets, a line says so."""
    commit(store, {f"g{number:02}": {0: 2 if number > 5 else 0} for number in range(16)})
    found = said(capsys, store, *PLACE)
    assert len(found) == 11 and found[-1] == "6 more groups, of which 6 had passed it"
    commit(store, {})
    assert said(capsys, store, *PLACE) == ["no group has an offset for topic T"]
    (store / "config/consumerOffset.json").unlink()
    (text,) = said(capsys, store, *PLACE)
    assert text.startswith("which groups had passed it is unknown: config/consumerOffset.json")
