"""What a run keeps: owner, mode and everything that undoing it gives back."""

from __future__ import annotations

import os
import stat
from itertools import product
from pathlib import Path

import pytest

from rmqtool.errors import InputError, NotAStoreError, RefusedError, UnwritableError
from rmqtool.store import disk
from rmqtool.store.layout import detect
from rmqtool.store.plan import Plan, apply, default_backup, undo
from rmqtool.store.plan.guard import JOURNAL_NAME
from tests.hard_limits import ROOT
from tests.plans import contents, files_of, make_store, plan_towards, wanted_of
from tests.trees import copy_tree, tree_rows, unchanged

GUARD = "commitlog/rmqtool-repair"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("plan") / "store")


@pytest.fixture
def root(base: Path, tmp_path: Path) -> Path:
    return copy_tree(base, tmp_path / "store")


class TestOwner:
    @pytest.mark.skipif(not ROOT, reason="only root may give files away")
    def test_owner_and_mode_stay(self, root: Path) -> None:
        for number, path in enumerate(sorted(root.rglob("*"))):
            if path.is_file():
                path.chmod((0o600, 0o640, 0o664)[number % 3])
                os.chown(path, 1000 + number % 5, 2000 + number % 7)
        for folder in ("consumequeue", "commitlog"):
            os.chown(root / folder, 4711, 4712)
            (root / folder).chmod(0o750)
        root.chmod(0o700)

        def owners() -> dict[str, tuple[int, int, int]]:
            return {path.relative_to(root).as_posix(): (path.stat().st_uid, path.stat().st_gid,
                                                        stat.S_IMODE(path.stat().st_mode))
                    for path in root.rglob("*") if path.name != "lock"}  # fmt: skip

        before = owners()
        done = apply(plan_towards(root, wanted_of(root)), detect(root))
        after = owners()
        assert {name: after[name] for name in before if name in after} == {
            name: before[name] for name in before if name in after
        }
        assert after["consumequeue/New/0/00000000000000000000"] == (4711, 4712, 0o640)
        assert after["consumequeue/New"] == (4711, 4712, 0o750)
        assert after["commitlog/00000000000000999424"] == (4711, 4712, 0o640)
        assert stat.S_IMODE(done.backup.stat().st_mode) == 0o700
        undo(done.backup, detect(root))
        assert owners() == before


class TestUndo:
    @pytest.mark.parametrize("name", ["commitlog/00000000000000000000", "checkpoint", "config/new.json"])
    def test_not_once_anything_has_changed(self, root: Path, name: str) -> None:
        done = apply(plan_towards(root, wanted_of(root)), detect(root))
        with (root / name).open("ab") as file:
            file.write(b"x")
        with unchanged(root.parent), pytest.raises(RefusedError, match=name):
            undo(done.backup, detect(root))

    def test_runs_are_undone_from_the_newest_to_the_oldest(self, root: Path) -> None:
        states, backups = [tree_rows(root)], []
        for number in range(3):
            wanted = {**contents(root), "checkpoint": bytes([number]) * 4096, f"config/{number}.json": b"{}"}
            backups.append(apply(plan_towards(root, wanted), detect(root)).backup)
            states.append(tree_rows(root))
        for number in (0, 1):
            with unchanged(root.parent), pytest.raises(RefusedError, match="the store has changed since"):
                undo(backups[number], detect(root))
        for number in (2, 1, 0):
            undo(backups[number], detect(root))
            assert [row for row in tree_rows(root) if row[1] == "file"] == [
                row for row in states[number] if row[1] == "file"
            ]
        assert tree_rows(root) == states[0]

    def test_no_backup(self, root: Path, tmp_path: Path) -> None:
        with pytest.raises(NotAStoreError):
            undo(tmp_path, detect(root))
        with pytest.raises(NotAStoreError):
            undo(tmp_path / "gone", detect(root))

    @pytest.mark.parametrize("part", ["ranges", "files"])
    def test_a_damaged_backup_changes_nothing(self, root: Path, part: str) -> None:
        done = apply(plan_towards(root, wanted_of(root)), detect(root))
        victims = sorted(path for path in (done.backup / part).rglob("*") if path.is_file())
        for victim, damage in product(victims, ("bytes", "gone", "link")):
            data = victim.read_bytes()
            if damage == "bytes":
                victim.write_bytes(data[:-1] + b"\xee" + (b"x" if part == "files" else b""))
            elif damage == "gone":
                victim.unlink()
            else:
                victim.rename(victim.with_name("other"))
                victim.symlink_to("other")
            with unchanged(root.parent), pytest.raises(InputError):
                undo(done.backup, detect(root))
            victim.unlink(missing_ok=True)
            victim.write_bytes(data)

    def test_a_guard_that_was_taken_away_by_hand(self, root: Path) -> None:
        plan = plan_towards(root, wanted_of(root))

        def fails(_: Path) -> None:
            raise UnwritableError("no space")

        broken = Plan(plan.command, {}, plan.actions, plan.fingerprint, build=fails)
        with pytest.raises(UnwritableError) as caught:
            apply(broken, detect(root))
        assert "--undo" in str(caught.value.hint)
        backup = next(path for path in root.parent.iterdir() if "backup" in path.name)
        assert str(backup) in str(caught.value.hint)
        (root / GUARD).unlink()
        with unchanged(root.parent), pytest.raises(RefusedError, match="removed by hand"):
            undo(backup, detect(root))

    @pytest.mark.parametrize("content", [b"", b"x" * 9])
    def test_a_guard_that_a_broker_would_delete_or_take_for_a_file(self, root: Path, content: bytes) -> None:
        """A run that was killed while it made the guard has left an empty one, which load() deletes."""
        wanted = wanted_of(root)
        (root / GUARD).write_bytes(content)
        plan = plan_towards(root, wanted)
        seen = []

        def build(staging: Path) -> None:
            seen.append((root / GUARD).stat().st_size)
            assert plan.build is not None
            plan.build(staging)

        apply(Plan(plan.command, {}, plan.actions, plan.fingerprint, build=build), detect(root))
        assert seen == [1]
        assert not (root / GUARD).exists()


def test_default_backup_is_a_new_folder(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        folder = default_backup(tmp_path / "store")
        folder.mkdir()
        names.add(folder)
    assert len(names) == 3


def test_nothing_is_left_when_the_backup_cannot_be_made(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure is told, and the store is as it was."""
    before = files_of(root)
    plan = plan_towards(root, wanted_of(root))

    def full(*_: object) -> None:
        raise UnwritableError("cannot copy to: No space left on device")

    monkeypatch.setattr(disk, "copy_range", full)
    with pytest.raises(UnwritableError, match="No space left"):
        apply(plan, detect(root))
    assert files_of(root) == before
    assert sorted(path.name for path in root.parent.iterdir()) == ["store"]
    assert not (root / GUARD).exists()
    assert not (root / JOURNAL_NAME).exists()
