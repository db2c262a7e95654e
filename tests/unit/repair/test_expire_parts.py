"""Expiry in small stores: every place where the log may begin, odd queues, folders elsewhere, damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from rmqtool.errors import RefusedError, RmqtoolError
from rmqtool.formats.consume_queue import BatchUnit, Unit, ext_address
from rmqtool.formats.index import Shape
from rmqtool.formats.message import Message
from rmqtool.read.store import Store
from rmqtool.repair.expire import Expiry, OwnRules, Request, archive, plan_expiry, remove
from rmqtool.repair.expire.remove import expire
from rmqtool.repair.plan.changes import copy_whole
from rmqtool.storage.layout import detect
from tests.support.build_store import LOG_FILE_SIZE, QUEUE_FILE_SIZE, write_queue, write_sparse
from tests.support.damage import describe, random_edits
from tests.support.stores import damage
from tests.support.trees import copy_tree, tree_rows
from tests.support.whole_store import codes_of, keyed, units_of, write_whole

NOW = 4_000_000_000_000


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Message]]:
    """A store of eight log files and three files in each of two queues; for reading only."""
    root = tmp_path_factory.mktemp("expire") / "store"
    return root, write_whole(root, keyed(100), shape=Shape(50, 1000))


def planned(root: Path, start: int, **opening: Any) -> Expiry:
    """The plan that lets the log begin at `start`."""
    with Store.open(root, **opening) as store:
        return plan_expiry(store, Request(NOW, UTC, OwnRules(before_offset=start)))


def deleted(root: Path, start: int, **options: Any) -> Expiry:
    """The same, done."""
    request = Request(NOW, UTC, OwnRules(before_offset=start))
    return expire(lambda: Store.open(root), request, force=True, **options).expiry


def test_every_start_of_the_log(base: tuple[Path, list[Message]], tmp_path: Path) -> None:
    """Queue files go while their last unit lies before it; the first message left is at or behind it."""
    root, stored = base
    ends = [file.end for file in detect(root).commit_log]
    assert len(ends) == 8
    seen = set()
    for start in (0, *ends[:-1]):
        found = planned(root, start)
        assert found.start_after == start
        for each in found.effects.queues:
            units = units_of(stored)[each.topic, each.queue_id]
            live = [offset for offset, unit in units.items() if unit.physical_offset >= start]
            assert each.first_after == min(live, default=len(units))
            assert each.messages_staying == len(live)
            per_file = QUEUE_FILE_SIZE // 20
            lasts = [units[n].physical_offset for n in range(per_file - 1, len(units), per_file)]
            gone = sum(offset < start for offset in lasts[: (len(units) - 1) // per_file])
            assert each.files_going == gone
            seen.add(gone)
    assert seen == {0, 1, 2}
    for number, start in enumerate(ends[:-1]):
        copy = copy_tree(root, tmp_path / str(number))
        plan = deleted(copy, start)
        assert codes_of(copy) == []
        with Store.open(copy) as store:
            for each in plan.effects.queues:
                assert store.min_offset(each.topic, each.queue_id) == each.min_after == each.first_after


def test_start_at_the_offset_of_a_unit(base: tuple[Path, list[Message]]) -> None:
    """A message at the log's new start stays; one byte further it is gone."""
    root, stored = base
    with Store.open(root) as store:
        for (topic, queue_id), units in units_of(stored).items():
            queue = store.queue(topic, queue_id)
            assert queue is not None
            for offset, unit in units.items():
                assert queue.first_live(unit.physical_offset) == offset
                assert queue.first_live(unit.physical_offset + 1) == offset + 1
            assert queue.first_live(0) == 0


def test_batch_queue(tmp_path: Path) -> None:
    """Offsets are those of the first message in a record; behind the last record it is the maximum."""
    units = [BatchUnit(100 * n, 100, 0, NOW, 3 * n, 3, -1, 0) for n in range(1, 6)]
    write_queue(tmp_path / "batchconsumequeue" / "T" / "0", units, file_size=92)
    with Store(detect(tmp_path)) as store:
        queue = store.queue("T", 0)
        assert queue is not None and len(queue.files) == 3
        for start, wanted in (
            (0, 3),
            (100, 3),
            (101, 6),
            (300, 9),
            (301, 12),
            (500, 15),
            (501, 18),
            (9999, 18),
        ):
            assert queue.first_live(start) == wanted, start


def test_fillers_at_a_queues_head_are_no_messages(tmp_path: Path) -> None:
    """While the log begins at 0 as well: their place 0 is a real one then."""
    blank = Unit(0, 0x7FFFFFFF, 0)
    write_queue(tmp_path / "consumequeue" / "T" / "0", [blank] * 3 + [Unit(100, 50, 0), Unit(200, 50, 0)])
    with Store(detect(tmp_path)) as store:
        queue = store.queue("T", 0)
        assert queue is not None
        assert [queue.first_live(start) for start in (0, 1, 100, 101, 201)] == [3, 3, 3, 4, 5]


def test_extension_files_follow_the_first_live_unit(base: tuple[Path, list[Message]], tmp_path: Path) -> None:
    """Those that end before its address; none where it has no address."""
    root, stored = base
    copy = copy_tree(root, tmp_path / "store")
    for n in range(3):
        write_sparse(copy / "consumequeue_ext" / "TopicTest" / "0" / f"{1000 * n:020}", 1000)
    start = detect(root).commit_log[1].end
    first = planned(copy, start).effects.queues[0].first_after

    def expired(tags_code: int) -> list[int]:
        units = dict(units_of(stored)["TopicTest", 0])
        units[first] = units[first]._replace(tags_code=tags_code)
        write_queue(copy / "consumequeue" / "TopicTest" / "0", [units[n] for n in sorted(units)])
        files = planned(copy, start).files
        return [int(Path(f.path).name) for f in files if f.kind == "consumequeue_ext" and f.expires]

    assert expired(5) == []
    assert expired(ext_address(1000)) == []
    assert expired(ext_address(1001)) == [0]
    assert expired(ext_address(2100)) == [0, 1000]


def test_log_in_folders_outside_of_the_store(base: tuple[Path, list[Message]], tmp_path: Path) -> None:
    """Files go from both, in the order of their offsets."""
    root = copy_tree(base[0], tmp_path / "store")
    here, there = tmp_path / "one", tmp_path / "two"
    there.mkdir()
    (root / "commitlog").rename(here)
    for path in sorted(here.iterdir())[::2]:
        path.rename(there / path.name)
    request = Request(NOW, UTC, OwnRules(before_offset=3 * LOG_FILE_SIZE))
    done = expire(lambda: Store.open(root, commitlog_paths=(here, there)), request, force=True,
                  archive=tmp_path / "archive")  # fmt: skip
    names = [Path(decision.path).name for decision in done.expiry.expired if decision.kind == "commitlog"]
    assert names == [f"{n * LOG_FILE_SIZE:020}" for n in range(3)]
    assert not any((folder / name).exists() for folder in (here, there) for name in names)
    assert {path.name for path in (tmp_path / "archive").rglob("*") if path.is_file()} >= set(names)


@pytest.mark.parametrize(
    "link",
    ["commitlog", "consumequeue/TopicTest", f"commitlog/{0:020}", f"consumequeue/TopicTest/0/{0:020}"],
)
def test_nothing_is_deleted_through_a_link(
    base: tuple[Path, list[Message]], tmp_path: Path, link: str
) -> None:
    """A folder or file of what would go is one: then everything stays."""
    root = copy_tree(base[0], tmp_path / "store")
    (root / link).rename(tmp_path / "elsewhere")
    (root / link).symlink_to(tmp_path / "elsewhere")
    assert f"consumequeue/TopicTest/0/{0:020}" in {
        decision.path for decision in planned(root, 6 * LOG_FILE_SIZE).expired
    }
    before = tree_rows(tmp_path)
    with pytest.raises(RefusedError):
        deleted(root, 6 * LOG_FILE_SIZE)
    assert tree_rows(tmp_path) == before


def test_copy_that_is_not_equal(
    base: tuple[Path, list[Message]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read back before anything is deleted."""
    root = copy_tree(base[0], tmp_path / "store")
    before, honest = tree_rows(root), copy_whole

    def careless(source: Path, target: Path) -> None:
        honest(source, target)
        with target.open("r+b") as file:
            file.write(b"x")

    monkeypatch.setattr(archive, "copy_whole", careless)
    with pytest.raises(RefusedError, match="not equal"):
        deleted(root, LOG_FILE_SIZE, archive=tmp_path / "archive")
    assert tree_rows(root) == before


def test_second_run_adds_its_own_manifest(base: tuple[Path, list[Message]], tmp_path: Path) -> None:
    """One archive takes what goes day by day."""
    root, folder = copy_tree(base[0], tmp_path / "store"), tmp_path / "archive"
    listed: list[str] = []
    for day in (1, 2):
        request = Request(NOW + day, UTC, OwnRules(before_offset=day * LOG_FILE_SIZE))
        manifest = expire(lambda: Store.open(root), request, force=True, archive=folder).manifest
        assert manifest is not None
        listed += [row["path"] for row in json.loads(manifest.read_text())["files"]]
    assert sorted(listed) == sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.parent != folder
    )


def test_same_time_again_adds_another_manifest(
    base: tuple[Path, list[Message]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between manifest and first deletion it goes on when run again; no manifest is replaced."""
    root, folder = copy_tree(base[0], tmp_path / "store"), tmp_path / "archive"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(remove, "_remove", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        deleted(root, LOG_FILE_SIZE, archive=folder)
    (first,) = folder.glob("manifest-*.json")
    text = first.read_bytes()
    for end in (1, 2):
        assert deleted(root, end * LOG_FILE_SIZE, archive=folder).expired
    assert first.read_bytes() == text and not (root / "commitlog" / f"{0:020}").exists()
    others = sorted(folder.glob("manifest-*-*.json"))
    assert [path.name for path in others] == [f"{first.stem}-{n}.json" for n in (2, 3)]
    assert json.loads(others[0].read_text())["files"] == json.loads(text)["files"]


@pytest.mark.parametrize("seed", range(24))
def test_damaged_stores_are_planned_for(
    base: tuple[Path, list[Message]],
    tmp_path: Path,
    seed: int,
    unchanged: Callable[[Path], AbstractContextManager[None]],
) -> None:
    """Whatever is wrong: a plan or one clear error, the last file stays, and nothing is written."""
    edits = random_edits(base[0], seed)
    root = damage(base[0], tmp_path / "store", edits)
    with unchanged(root):
        for start in (0, 3 * LOG_FILE_SIZE, 1 << 62):
            try:
                found = planned(root, start)
            except RmqtoolError:
                continue
            log = [decision for decision in found.files if decision.kind == "commitlog"]
            assert not log or not log[-1].expires, describe(edits)
            expires = [decision.expires for decision in log]
            assert expires == sorted(expires, reverse=True), describe(edits)
