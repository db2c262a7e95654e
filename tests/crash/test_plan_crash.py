"""A run that ends at any moment: running again completes it, undoing gives back every byte and time.

By default a seeded sample of the moments; RMQTOOL_CRASH_SWEEP=N takes N of each kind, =all takes all.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqtool.errors import EXIT_INPUT, RefusedError
from rmqtool.repair.plan import Undone, roll_back, undo
from rmqtool.repair.plan.guard import JOURNAL_NAME
from rmqtool.storage import durable as disk
from rmqtool.storage import lock
from rmqtool.storage.layout import detect
from tests.crash.test_crash import says
from tests.support.crash_child import ENDED, Tell, in_child
from tests.support.disk_calls import HOWS, Call, How, Stop, watched
from tests.support.hard_limits import mounted
from tests.support.plans import OLD_NS, Wanted, apply, contents, files_of, make_store, plan_towards, wanted_of
from tests.support.power_loss import MODES, Mode, rebuild
from tests.support.sweep import paired
from tests.support.trees import copy_tree

SWEEP = os.environ.get("RMQTOOL_CRASH_SWEEP", "")
SAMPLE = int(SWEEP) if SWEEP.isdigit() else 1  # moments of one kind
GUARD = "commitlog/rmqtool-repair"
Work = Callable[[Path], object]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store, `store`."""
    folder = tmp_path_factory.mktemp("base")
    make_store(folder / "store")
    return folder


@pytest.fixture(scope="module")
def wanted(base: Path) -> Wanted:
    return wanted_of(base / "store")


def chosen(of: int, seed: str) -> list[int]:
    """Numbers of [1, of]: all of them, or a sample."""
    numbers = range(1, of + 1)
    return list(numbers) if SWEEP == "all" else sorted(Random(seed).sample(numbers, min(SAMPLE, of)))


def do(root: Path, wanted: Wanted, backup_dir: Path | None = None) -> Path | None:
    """Give back what a killed run has changed, plan and apply, as the commands do; the backup."""
    held = lock.acquire(root / "lock")
    try:
        finished = roll_back(detect(root), held).finished
        done = apply(plan_towards(root, wanted), detect(root), backup_dir=backup_dir, held=held)
    finally:
        held.release()
    return done.backup or finished


def backups(folder: Path) -> dict[str, Path]:
    """The backups in a folder by the name of their run, the oldest first."""
    found = {}
    for path in sorted(
        folder.glob("*/manifest.json"), key=lambda path: json.loads(path.read_text())["made_ms"]
    ):
        found[json.loads(path.read_text())["run"]] = path.parent
    return found


def undo_all(root: Path, folder: Path) -> None:
    """What an operator does: undo the run that the journal names last, else the newest; and so on."""
    for _ in range(10):
        known = backups(folder)
        journal = root / JOURNAL_NAME
        if journal.exists():
            run = json.loads(journal.read_text())["open"][-1]["id"]
        else:
            run = next((run for run in reversed(known) if not (known[run] / "undone").exists()), None)
        if run is None:
            break
        done = undo(known[run], detect(root), moved=True)
        assert isinstance(done, Undone)
        assert (done.next is not None) == journal.exists() == (root / GUARD).exists()
    if (root / GUARD).exists():  # killed before there was anything to undo, or at the very end
        assert not (root / JOURNAL_NAME).exists()
        do(root, dict(contents(root)))


def check_before(root: Path, wanted: Wanted, before: dict[str, Any]) -> None:
    assert files_of(root) == before
    check_closed(root)


def check_after(root: Path, wanted: Wanted, before: dict[str, Any]) -> None:
    assert contents(root) == {name: data for name, data in wanted.items() if data is not None}
    after = files_of(root)
    for name in before.keys() & after.keys():
        if name.startswith(("commitlog/", "consumequeue/", "index/")) or before[name][1] == after[name][1]:
            assert before[name][0] == after[name][0], name
    check_closed(root)


def check_closed(root: Path) -> None:
    assert not (root / GUARD).exists()
    assert not (root / JOURNAL_NAME).exists()
    assert not (root / "rmqtool-staging").exists()
    assert not list(root.glob(f"{JOURNAL_NAME}*"))


def is_guarded(root: Path, wanted: Wanted, before: dict[str, Any]) -> None:
    """A broker that starts now is kept out, or finds one of the two whole states."""
    if (root / GUARD).exists() and (root / GUARD).stat().st_size == 1:
        return
    assert files_of(root) == before or contents(root) == {
        name: d for name, d in wanted.items() if d is not None
    }


def check_killed(folder: Path, wanted: Wanted, before: dict[str, Any], kept: Path) -> None:
    """Both ways out of what a killed run has left in `folder`; `kept` holds the backups."""
    root = folder / "store"
    is_guarded(root, wanted, before)
    undo_all(copy_of(folder, kept) / "store", kept_copy(folder, kept))
    check_before(folder / "copy" / "store", wanted, before)
    if (root / JOURNAL_NAME).exists() or (root / GUARD).exists() or files_of(root) == before:
        do(root, wanted, None if kept == folder else kept / "second")
    check_after(root, wanted, before)
    undo_all(root, kept)
    check_before(root, wanted, before)


def copy_of(folder: Path, kept: Path) -> Path:
    """A copy of the folder, and of the backups where they are elsewhere."""
    copy = folder / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        if path != copy:
            copy_tree(path, copy / path.name)
    if kept != folder:
        copy_tree(kept, kept.with_name("kept copy"))
    return copy


def kept_copy(folder: Path, kept: Path) -> Path:
    return folder / "copy" if kept == folder else kept.with_name("kept copy")


def calls_of(folder: Path, work: Work) -> int:
    """How many changes the work does; it is done in a child."""

    def action(tell: Tell) -> None:
        with watched(folder) as calls:
            work(folder / "store")
        tell([calls.number])

    status, rows = in_child(action)
    assert status == 0
    return int(rows[0][0])


def killed_at(folder: Path, stop: Stop, work: Work) -> None:
    def action(tell: Tell) -> None:
        with watched(folder, stop=stop):
            work(folder / "store")

    assert in_child(action)[0] == ENDED


def sweep(base: Path, above: Path, how: How, work: Work, seed: str) -> Iterator[tuple[Stop, Path]]:
    """Copies of the folder `base` in each of which the work was killed at another moment."""
    folder = above / "run"  # always: the journal names it
    count = calls_of(copy_tree(base, folder), work)
    shutil.rmtree(folder)
    assert count > 50
    for number in chosen(count, f"{seed} {how}"):
        stop, folder = Stop(number, how), copy_tree(base, folder)
        killed_at(folder, stop, work)
        yield stop, folder
        shutil.rmtree(folder)


@pytest.mark.parametrize("how", HOWS)
def test_killed_while_applying(base: Path, wanted: Wanted, how: How, tmp_path: Path) -> None:
    before = files_of(base / "store")
    for stop, folder in sweep(base, tmp_path, how, lambda root: do(root, wanted), "apply"):
        with says(stop):
            check_killed(folder, wanted, before, folder)


@pytest.mark.parametrize("how", HOWS)
def test_killed_while_undoing(base: Path, wanted: Wanted, how: How, tmp_path: Path) -> None:
    before = files_of(base / "store")
    run = copy_tree(base, tmp_path / "run")
    do(run / "store", wanted)

    def work(root: Path) -> None:
        undo(next(iter(backups(root.parent).values())), detect(root), moved=True)

    for stop, folder in sweep(run.rename(tmp_path / "done"), tmp_path, how, work, "undo"):
        with says(stop):
            check_killed(folder, wanted, before, folder)


@pytest.mark.parametrize("how", HOWS)
def test_killed_while_going_on(base: Path, wanted: Wanted, how: How, tmp_path: Path) -> None:
    """A second run, in what a first one that was killed in the middle has left."""
    before = files_of(base / "store")
    middle = copy_tree(base, tmp_path / "run")
    whole = calls_of(copy_tree(base, tmp_path / "first"), lambda root: do(root, wanted))
    killed_at(middle, Stop(whole * 2 // 3, "half"), lambda root: do(root, wanted))
    assert (middle / "store" / JOURNAL_NAME).exists()
    for stop, folder in sweep(
        middle.rename(tmp_path / "middle"), tmp_path, how, lambda root: do(root, wanted), "again"
    ):
        with says(stop):
            check_killed(folder, wanted, before, folder)


@pytest.mark.parametrize("how", HOWS)
def test_killed_with_the_backup_elsewhere(base: Path, wanted: Wanted, how: How, tmp_path: Path) -> None:
    """On another file system everything is copied."""
    before = files_of(base / "store")
    with mounted(tmp_path / "other", "size=16m"):
        kept = tmp_path / "other" / "kept"
        for undoing in (False, True):
            first, folder = tmp_path / f"base {undoing}", tmp_path / "run"

            def work(root: Path, undoing: bool = undoing) -> None:
                if undoing:
                    undo(kept / "first", detect(root), moved=True)
                else:
                    do(root, wanted, kept / "first")

            kept.mkdir()
            copy_tree(base, folder)
            if undoing:
                do(folder / "store", wanted, kept / "first")
                copy_tree(kept, tmp_path / "other" / "made")
            copy_tree(folder, first)
            count = calls_of(folder, work)
            shutil.rmtree(folder)
            for number in chosen(count, f"elsewhere {undoing} {how}"):
                shutil.rmtree(kept)
                if undoing:
                    copy_tree(tmp_path / "other" / "made", kept)
                else:
                    kept.mkdir()
                copy_tree(first, folder)
                killed_at(folder, Stop(number, how), work)
                with says((undoing, number)):
                    check_killed(folder, wanted, before, kept)
                shutil.rmtree(folder)
                shutil.rmtree(tmp_path / "other" / "kept copy")
            shutil.rmtree(kept)


def recorded(folder: Path, work: Work) -> list[Call]:
    """The changes of a whole run, in the folder in which it took place."""
    calls_file = folder.with_name(f"{folder.name}.calls")

    def action(tell: Tell) -> None:
        with watched(folder) as calls:
            work(folder / "store")
        calls_file.write_bytes(pickle.dumps(calls.done))

    assert in_child(action)[0] == 0
    found: list[Call] = pickle.loads(calls_file.read_bytes())
    return found


@pytest.mark.sweep
@pytest.mark.parametrize(("mode", "undoing"), paired([*MODES, "everything"], [False, True]))
def test_power_lost(base: Path, wanted: Wanted, mode: Mode, undoing: bool, tmp_path: Path) -> None:
    """Whatever of the changes that were not flushed the device has kept."""
    before = files_of(base / "store")
    start, folder = copy_tree(base, tmp_path / "start"), tmp_path / "run"
    if undoing:
        shutil.rmtree(start)
        copy_tree(base, folder)
        do(folder / "store", wanted)
        folder.rename(start)

    def work(root: Path) -> None:
        if undoing:
            undo(next(iter(backups(root.parent).values())), detect(root), moved=True)
        else:
            do(root, wanted)

    copy_tree(start, folder)
    calls = recorded(folder, work)
    for cut in [*chosen(len(calls) - 1, f"{mode} {undoing}"), len(calls)]:
        shutil.rmtree(folder)  # in the same place: the journal names it
        rebuild(calls, cut, folder, folder, mode, cut, start)
        with says((cut, calls[cut - 1])):
            check_killed(folder, wanted, before, folder)


def test_disk_full(base: Path, wanted: Wanted, tmp_path: Path) -> None:
    """From the n-th change on there is no space: an error that says what to do, and both ways out."""
    before = files_of(base / "store")
    count = calls_of(copy_tree(base, tmp_path / "whole"), lambda root: do(root, wanted))
    for number in chosen(count, "full"):
        folder = copy_tree(base, tmp_path / str(number))

        def action(tell: Tell, folder: Path = folder, number: int = number) -> None:
            with watched(folder, full=number) as calls:
                try:
                    do(folder / "store", wanted)
                except Exception as error:
                    tell([calls.refused, getattr(error, "hint", None)])
                    raise

        status, rows = in_child(action)
        with says(number):
            root = folder / "store"
            if rows:
                assert status == EXIT_INPUT
                assert rows[0][0] >= 1
                assert rows[1][2].endswith("No space left on device")
                if (root / JOURNAL_NAME).exists():
                    assert "--undo" in rows[0][1]
                    assert str(next(iter(backups(folder).values()))) in rows[0][1]
            check_killed(folder, wanted, before, folder)
        shutil.rmtree(folder)


def test_interrupted(base: Path, wanted: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while files change: what the store is in, and both ways out, are said."""
    root = copy_tree(base, tmp_path / "run") / "store"

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, "set_mtime", interrupted)
    with pytest.raises(KeyboardInterrupt) as stop:
        do(root, wanted)
    (note,) = stop.value.__notes__
    (backup,) = backups(root.parent).values()
    assert "in between" in note and f"--undo {backup}" in note


def test_times_are_not_lost(base: Path, wanted: Wanted, tmp_path: Path) -> None:
    """Killed between a file's last byte and its time: a second run has nothing to write there."""
    before = files_of(base / "store")
    folder = tmp_path / "run"
    calls = recorded(copy_tree(base, folder), lambda root: do(root, wanted))
    # The lock is there already: making it is a call that fails, and is not in the record.
    numbers = [number + 1 for number, call in enumerate(calls, 1) if call.name == "set_mtime"]
    assert len(numbers) > 5
    for number in numbers:
        shutil.rmtree(folder)
        killed_at(copy_tree(base, folder), Stop(number, "before"), lambda root: do(root, wanted))
        with says(number):
            lost = set(files_of(folder / "store").items()) - set(before.items())
            assert number > numbers[2] or any(mtime_ns > OLD_NS * 1.05 for _, (mtime_ns, _) in lost)
            check_killed(folder, wanted, before, folder)


def test_a_run_that_is_abandoned(base: Path, wanted: Wanted, tmp_path: Path) -> None:
    """Its backup is lost: the next run is refused unless it abandons that one; undone, it is open again."""
    before = files_of(base / "store")
    whole = calls_of(copy_tree(base, tmp_path / "whole"), lambda root: do(root, wanted))
    for number in range(whole // 3, whole * 9 // 10, whole // 8):
        folder = copy_tree(base, tmp_path / "run")
        root = folder / "store"
        killed_at(folder, Stop(number, "after"), lambda root: do(root, wanted))
        [first] = backups(folder).values()
        middle = files_of(root)
        lost = first.rename(folder / "lost")
        with says(number):
            with pytest.raises(RefusedError, match="cannot be restored"):
                do(root, wanted)
            with pytest.raises(RefusedError, match="was interrupted"):
                apply(plan_towards(root, wanted), detect(root))
            assert files_of(root) == middle
            second = folder / "second"
            apply(plan_towards(root, wanted), detect(root), backup_dir=second, abandon=True)
            assert contents(root) == {name: data for name, data in wanted.items() if data is not None}
            check_closed(root)
            assert undo(second, detect(root), moved=True).next == first
            assert files_of(root) == middle
            assert (root / GUARD).exists()
            with pytest.raises(RefusedError, match="cannot be restored"):
                do(root, wanted)
            lost.rename(first)  # it is found after all
            do(root, wanted)
            check_after(root, wanted, before)
        shutil.rmtree(folder)


def test_abandoned_without_a_change(base: Path, wanted: Wanted, tmp_path: Path) -> None:
    """A plan that wants nothing more: the guard goes."""
    folder = copy_tree(base, tmp_path / "run")
    root = folder / "store"
    whole = calls_of(copy_tree(base, tmp_path / "whole"), lambda root: do(root, wanted))
    killed_at(folder, Stop(whole // 2, "after"), lambda root: do(root, wanted))
    middle = contents(root)
    done = apply(plan_towards(root, dict(middle)), detect(root), abandon=True)
    assert (done.backup, done.actions) == (None, 0)
    assert contents(root) == middle
    check_closed(root)


def test_an_older_run_cannot_be_undone_first(base: Path, wanted: Wanted, tmp_path: Path) -> None:
    folder = copy_tree(base, tmp_path / "folder")
    root = folder / "store"
    whole = calls_of(copy_tree(base, tmp_path / "first"), lambda root: do(root, wanted))
    killed_at(folder, Stop(whole * 2 // 3, "before"), lambda root: do(root, wanted))
    [first] = backups(folder).values()
    middle = files_of(root)

    def goes_on(root: Path) -> None:
        apply(plan_towards(root, wanted), detect(root), abandon=True)

    killed_at(folder, Stop(60, "before"), goes_on)
    assert len(backups(folder)) == 2
    with pytest.raises(RefusedError, match="another run has to be undone first"):
        undo(first, detect(root), moved=True)
    undo_all(copy_tree(folder, tmp_path / "copy") / "store", tmp_path / "copy")
    check_before(tmp_path / "copy" / "store", wanted, files_of(base / "store"))
    goes_on(root)
    with pytest.raises(RefusedError, match="a later run has continued"):
        undo(first, detect(root), moved=True)
    third = list(backups(folder).values())[-1]
    assert undo(third, detect(root), moved=True).next is not None
    undo_all(root, folder)
    assert files_of(root) != middle
    check_before(root, wanted, files_of(base / "store"))
