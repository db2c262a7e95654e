"""`recover --apply` killed at any change, and on a full disk: the next run completes, undo gives all back.

By default a seeded sample of the moments; RMQTOOL_CRASH_SWEEP=N takes N of each kind, =all takes all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.errors import EXIT_INPUT, NotAStoreError
from rmqtool.read.kernels import load_kernels
from rmqtool.read.store import Store
from rmqtool.repair.recover import undo_recover
from rmqtool.report.info import store_info
from tests.support.crash_child import Tell, in_child
from tests.support.disk_calls import HOWS, Stop, watched
from tests.support.recover_checks import codes, log_bytes, must_have_kept, opener, records, recovered
from tests.support.stores import Library, apply_edit
from tests.support.sweep import in_sweeps, paired, sample
from tests.support.trees import tree_rows

pytestmark = pytest.mark.sweep

SWEEP = os.environ.get("RMQTOOL_CRASH_SWEEP", "")
SAMPLE = int(SWEEP) if SWEEP.isdigit() else 1  # moments of one kind and store
MANY = "much at once"
STORES = ("gap_cl02_zero_hole", "gap_cq13_queue_missing", MANY)
LARGE = "gap_cl20_missing_file"  # of thousands of messages


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """Compiled once, so that no child has to."""
    load_kernels()


def damaged(cases: Library, name: str, target: Path) -> Path:
    """A store as the new folder `target`."""
    if name != MANY:
        return cases.copy(name, target)
    root = cases.copy("gap_cl02_zero_hole", target)
    queue = next((root / "consumequeue").glob("pub*/0"))
    for edit in (
        {"op": "create", "path": "abort", "text": "123"},
        {"op": "create", "path": "commitlog/stray", "text": "x"},
        {"op": "create", "path": "consumequeue/stray", "text": "x"},
        {"op": "delete", "path": queue.relative_to(root).as_posix()},
        {"op": "delete", "path": "index"},
        {"op": "delete", "path": "checkpoint"},
        {"op": "truncate", "path": "config/topics.json", "size": 100},
    ):
        apply_edit(root, edit)
    return root


@pytest.fixture(scope="module")
def calls_of(cases: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A function: how many changes a whole run makes."""
    above = tmp_path_factory.mktemp("whole")

    @cache
    def count(name: str) -> int:
        folder = above / name
        folder.mkdir()
        root = damaged(cases, name, folder / "store")

        def action(tell: Tell) -> None:
            with watched(folder) as calls:
                recovered(root, backup=folder / "backup")
            tell([calls.number])

        status, told = in_child(action)
        assert status == 0
        shutil.rmtree(folder)
        return int(told[0][0])

    yield count


def moments(of: int, seed: str) -> list[int]:
    """Numbers of [1, of]: all of them, or a sample; the last two always, for there the guard goes."""
    numbers = range(1, of + 1)
    if SWEEP == "all":
        return list(numbers)
    return sorted({*Random(seed).sample(numbers, min(SAMPLE, of)), of - 1, of})


def without_lock(root: Path) -> list[Any]:
    """Everything below `root` but what taking the lock may have made; of folders not when they changed."""
    rows = [row if row[1] == "file" else (row[0], row[1]) for row in tree_rows(root)]
    return [row for row in rows if row[0] not in (".", "lock")]


@pytest.mark.parametrize(("name", "how"), [*paired(STORES, HOWS), *in_sweeps([(LARGE, how) for how in HOWS])])
def test_a_run_that_was_killed_is_finished_by_the_next(
    cases: Library, calls_of: Any, tmp_path: Path, name: str, how: Any
) -> None:
    """Sound, nothing lost; undone from the newest backup to the oldest, every byte is as it was."""
    for number in moments(calls_of(name), f"{name} {how}"):
        folder = tmp_path / str(number)
        folder.mkdir()
        root = damaged(cases, name, folder / "store")
        rows, before, log = without_lock(root), records(root), log_bytes(root)

        def action(tell: Tell, root: Path = root, folder: Path = folder, number: int = number) -> None:
            with watched(folder, stop=Stop(number, how)):
                recovered(root, backup=folder / "backup-1")

        assert in_child(action)[0] == -9, (number, how)
        outcome = recovered(root, backup=folder / "backup-2")
        assert codes(root) == set(), (number, how)
        assert not (root / "commitlog" / "rmqtool-repair").exists()
        if (folder / "backup-1").exists():
            kept = {place: record for place, record in records(root).items() if place in before}
            assert {place for place in before if place not in kept} <= {
                row["physical_offset"] for row in outcome.recovery.plan.summary["lost"]
            }
        else:
            must_have_kept(before, log, records(root), outcome)
        for backup in ("backup-2", "backup-1"):
            if (folder / backup).exists():
                with suppress(NotAStoreError):  # killed before the backup was whole: nothing had changed
                    undo_recover(opener(root), folder / backup)
        assert without_lock(root) == rows, (number, how)
        shutil.rmtree(folder)


def test_an_interrupted_run_is_explained(
    cases: Library, calls_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`info` says it, `recover` finishes it."""
    name = STORES[0]
    root = cases.copy(name, tmp_path / "store")

    def action(tell: Tell) -> None:
        with watched(tmp_path, stop=Stop(calls_of(name) - 1, "before")):
            recovered(root, backup=tmp_path / "backup")

    assert in_child(action)[0] == -9
    with Store.open(root) as store:
        assert store_info(store)["state"]["repair_unfinished"]
    assert main(["info", str(root)]) == 1  # CP05
    assert "a repair was interrupted" in capsys.readouterr().out
    assert main(["recover", str(root)]) == 1
    assert "a repair was interrupted" in capsys.readouterr().out
    assert main(["recover", str(root), "--apply"]) == 0
    assert main(["recover", str(root)]) == 0


def test_the_same_command_goes_on(cases: Library, calls_of: Any, tmp_path: Path) -> None:
    """With the same --backup-dir: its backup is kept, the second one has a number."""
    name, backup = STORES[0], tmp_path / "backup"
    root = damaged(cases, name, tmp_path / "store")
    rows = without_lock(root)

    def action(tell: Tell) -> None:
        with watched(tmp_path, stop=Stop(calls_of(name) * 2 // 3, "before")):
            recovered(root, backup=backup)

    assert in_child(action)[0] == -9
    assert any(backup.iterdir())
    assert main(["recover", str(root), "--apply", "--yes", "--backup-dir", str(backup)]) == 0
    assert codes(root) == set()
    for made in (tmp_path / "backup-2", backup):
        undo_recover(opener(root), made)
    assert without_lock(root) == rows


@pytest.mark.parametrize("number", sample(range(1, 40), 10))
def test_the_same_command_goes_on_from_its_beginning(cases: Library, tmp_path: Path, number: int) -> None:
    """Killed while its backup was made, whatever of that is there."""
    root = damaged(cases, STORES[0], tmp_path / "store")

    def action(tell: Tell) -> None:
        with watched(tmp_path, stop=Stop(number, "before")):
            recovered(root, backup=tmp_path / "backup")

    assert in_child(action)[0] == -9
    command = ["recover", str(root), "--apply", "--backup-dir", str(tmp_path / "backup")]
    assert main(command) == 0
    assert codes(root) == set()
    assert main(command) == 0  # there is nothing to do


def test_the_same_plan_goes_on(cases: Library, calls_of: Any, tmp_path: Path) -> None:
    """A plan is of the store of before, which the next run first gives back; none is written in between."""
    name, plan, backup = STORES[0], tmp_path / "plan", tmp_path / "backup"
    root = damaged(cases, name, tmp_path / "store")
    assert main(["recover", str(root), "--write-plan", str(plan)]) == 1

    def action(tell: Tell) -> None:
        with watched(tmp_path, stop=Stop(calls_of(name) * 2 // 3, "before")):
            main(["recover", str(root), "--apply", "--plan", str(plan), "--backup-dir", str(backup)])

    assert in_child(action)[0] == -9
    assert main(["recover", str(root), "--write-plan", str(tmp_path / "other")]) == 4
    assert not (tmp_path / "other").exists()
    assert main(["recover", str(root), "--apply", "--plan", str(plan), "--backup-dir", str(backup)]) == 0
    assert codes(root) == set()
    assert (tmp_path / "backup-2").exists()


def test_a_lost_backup(
    cases: Library, calls_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it alone holds is not given up by a run that is not told to."""
    name, backup = STORES[0], tmp_path / "backup"
    root = damaged(cases, name, tmp_path / "store")

    def action(tell: Tell) -> None:
        with watched(tmp_path, stop=Stop(calls_of(name) * 2 // 3, "before")):
            recovered(root, backup=backup)

    assert in_child(action)[0] == -9
    backup.rename(tmp_path / "lost")
    rows = without_lock(root)
    for command in ("recover", "rebuild"):
        assert main([command, str(root), "--apply"]) == 4
        assert without_lock(root) == rows
    assert main(["recover", str(root), "--apply"]) == 4
    said = capsys.readouterr().err
    assert f"bring {backup} back" in said and "--force" in said
    moved = root.rename(tmp_path / "moved")
    (tmp_path / "lost").rename(backup)
    assert main(["recover", str(moved), "--apply"]) == 4
    assert f"recover {moved} --undo {backup} --force" in capsys.readouterr().err
    assert without_lock(moved) == rows
    shutil.rmtree(backup)
    assert main(["recover", str(moved), "--apply", "--force"]) == 0
    assert "the store was used as it is" in capsys.readouterr().err
    assert codes(moved) == set()


@pytest.mark.parametrize("name", [*sample(STORES, 2), *in_sweeps([LARGE])])
def test_a_full_disk_loses_nothing(cases: Library, calls_of: Any, tmp_path: Path, name: str) -> None:
    """The run says so and ends; with space again the next one completes."""
    for number in moments(calls_of(name), f"{name} full")[:3]:
        folder = tmp_path / str(number)
        folder.mkdir()
        root = damaged(cases, name, folder / "store")
        before = records(root)

        def action(tell: Tell, root: Path = root, folder: Path = folder, number: int = number) -> None:
            with watched(folder, full=number):
                recovered(root, backup=folder / "backup-1")

        assert in_child(action)[0] in (0, EXIT_INPUT), number
        recovered(root, backup=folder / "backup-2")
        assert codes(root) == set(), number
        after = records(root)
        assert all(after[place] == record for place, record in before.items() if place in after)
        shutil.rmtree(folder)
