"""Compacted topics: damage of the compaction log that `verify` finds, in the store and in its folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.broker.predict import predict
from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.errors import EXIT_OK
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE
from rmqtool.formats.message import BLANK, BLANK_MAGIC
from rmqtool.problems import LOAD_FAILS
from rmqtool.read.store import Store
from tests.support.build_store import patch
from tests.support.stores import Library
from tests.support.whole_store import codes_of, findings_of

CASE, TOPIC = "kind_compaction_540", "TopicCompact"
LOG, UNITS = (f"compaction/{kind}/{TOPIC}/0" for kind in ("compactionLog", "compactionCq"))
OLDEST, NEWEST = f"{0:020}", f"{1315600:020}"
Damage = Callable[[Path], object]


@pytest.fixture
def root(cases: Library, tmp_path: Path) -> Path:
    """A store with a compacted topic, to be changed."""
    return cases.copy(CASE, tmp_path / "store")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def lost(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


@pytest.mark.parametrize("damage", [zeroed, emptied, lost, cut])
def test_the_newest_file_of_the_log(damage: Damage, root: Path) -> None:
    """Its units point past the end of the log, and no start dispatches its messages again."""
    damage(root / LOG / NEWEST)
    inside = {each.problem.code: each.problem.repair or "" for each in findings_of(root / "compaction")}
    assert "CQ03" in inside
    assert all("delete compaction/ and checkpoint" in repair for repair in inside.values()), inside
    found = findings_of(root)
    assert "CQ03" in [each.detail.get("problem") for each in found if each.problem.code == "CC02"]
    (missing,) = [each for each in found if each.problem.code == "CC03"]
    first = 1288 if damage is cut else 1287
    assert missing.detail["messages"] == 1300 - first and missing.detail["queue_offsets"][0] == first
    assert missing.message.endswith(f"that it must keep: {1300 - first}, the first at queue offset {first}")


def without_newest(root: Path) -> None:
    for folder in (LOG, UNITS):
        (root / folder / NEWEST).unlink()


def without_topic(root: Path) -> None:
    for folder in (LOG, UNITS):
        shutil.rmtree(root / folder)


def without_all(root: Path) -> None:
    shutil.rmtree(root / "compaction")


LACKING = {without_newest: 13, without_topic: 18, without_all: 5}  # without position-checkpoint one for a key


@pytest.mark.parametrize("damage", LACKING)
def test_what_is_lost_is_not_dispatched_again(damage: Damage, root: Path) -> None:
    """After a clean stop a start dispatches nothing of it; with abort, and without checkpoint, all of it."""
    damage(root)
    (found,) = findings_of(root)
    assert (found.problem.code, found.path) == ("CC03", LOG)
    assert found.detail["messages"] == LACKING[damage]
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    assert "CC03" not in codes_of(root)


def test_a_broker_that_does_not_compact(root: Path, tmp_path: Path) -> None:
    """With enableCompaction=false it dispatches nothing to the compaction log."""
    without_all(root)
    conf = tmp_path / "broker.conf"
    for setting, codes in (("true", ["CC03"]), ("false", [])):
        conf.write_text(f"enableCompaction={setting}\n")
        with Store.open(root, broker_conf=conf) as store:
            assert [each.problem.code for each in verify(store)] == codes


def test_a_full_file_that_is_not_compacted_ends_with_a_blank(root: Path) -> None:
    """It is neither damage nor a part of a record; one with another length is damage."""
    data = (root / LOG / OLDEST).read_bytes()
    end = len(data.rstrip(b"\0"))
    patch(root / LOG / OLDEST, end, BLANK.pack(len(data) - end, BLANK_MAGIC))
    assert codes_of(root) == [] == codes_of(root / "compaction")
    with Store.open(root / "compaction") as store:
        assert len(list(store.messages())) == 18
    patch(root / LOG / OLDEST, end, BLANK.pack(len(data) - end - 1, BLANK_MAGIC))
    assert "CC02" in codes_of(root)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"garbage!garbage!")


def shorter(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3 // BATCH_UNIT_SIZE * BATCH_UNIT_SIZE)


@pytest.mark.parametrize("damage", [longer, shorter])
@pytest.mark.parametrize("folder", [LOG, UNITS])
@pytest.mark.parametrize("name", [OLDEST, NEWEST])
def test_a_file_of_a_wrong_size(name: str, folder: str, damage: Damage, root: Path) -> None:
    """A broker starts without the compaction log of the topic, and serves nothing of it."""
    size = (root / folder / name).stat().st_size
    damage(root / folder / name)
    found = [each for each in findings_of(root) if "size" in each.message]
    assert [(each.problem.code, each.path) for each in found] == [("CC02", f"{folder}/{name}")]
    assert found[0].detail["expected_bytes"] == size
    assert "CC02" in codes_of(root / "compaction")


@pytest.mark.parametrize("count", [0, 9, -1])
def test_a_unit_that_counts_other_messages(count: int, root: Path) -> None:
    """A broker cuts the queue at a unit of no message, and ends it after the last unit's messages."""
    patch(root / UNITS / NEWEST, 3 * BATCH_UNIT_SIZE + 36, count.to_bytes(2, "big", signed=True))
    (found,) = findings_of(root)
    assert (found.problem.code, found.detail["units"]) == ("CC02", 1)


@pytest.mark.parametrize("damage", [emptied, lost])
@pytest.mark.parametrize("folder", [LOG, UNITS])
def test_log_and_queue_have_the_same_files(folder: str, damage: Damage, root: Path) -> None:
    """A start of a broker fails otherwise; it deletes an empty newest file before it compares them."""
    damage(root / folder / NEWEST)
    (found,) = [each for each in findings_of(root) if each.problem.code == "CC04"]
    assert found.path == f"{UNITS if folder == LOG else LOG}/{NEWEST}"
    assert found.problem.broker == LOAD_FAILS
    with Store.open(root) as store:
        start = predict(store, "5.4")
    assert not start.loads and "have not the same files" in (start.load_error or "")


@pytest.mark.parametrize(
    "words",
    [
        ("tail", "--topic", TOPIC, "--limit", "1"),
        ("lookup", "--topic", TOPIC, "--queue", "0", "--queue-offset", "3"),
    ],
    ids=["tail", "lookup"],
)
def test_what_a_consumer_gets(words: tuple[str, ...], root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Messages of the commit log are shown, with a note where a consumer begins, and the line for that."""
    command, *options = words
    assert main([command, str(root), *options]) == EXIT_OK
    error = " ".join(capfd.readouterr().err.split())
    line = f"rmqtool dump {root}/compaction --topic {TOPIC}"
    assert f"of queue 0 from queue offset 1282 on: {line}" in error
    assert main(line.split()[1:]) == EXIT_OK
    for damaged in (root / UNITS).iterdir():
        zeroed(damaged)
    assert main([command, str(root), *options]) == EXIT_OK
    assert "of queue 0 none:" in " ".join(capfd.readouterr().err.split())
    options[1] = "TopicA"
    assert main([command, str(root), *options]) == EXIT_OK
    assert "compacted" not in capfd.readouterr().err


def test_the_sound_store(root: Path) -> None:
    assert codes_of(root) == [] == codes_of(root / "compaction")
