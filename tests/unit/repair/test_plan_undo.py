"""What a run keeps: owner, mode and everything that undoing it gives back."""

from __future__ import annotations

import json
import os
import stat
import time
import zlib
from itertools import product
from pathlib import Path

import pytest

from rmqtool.errors import InputError, NotAStoreError, RefusedError, UnreadableError, UnwritableError
from rmqtool.repair.plan import changes, default_backup, undo
from rmqtool.repair.plan.guard import JOURNAL_NAME
from rmqtool.storage import durable as disk
from rmqtool.storage.layout import detect
from tests.support.hard_limits import ROOT
from tests.support.plans import BuiltPlan, apply, contents, files_of, make_store, plan_towards, wanted_of
from tests.support.trees import copy_tree, tree_rows, unchanged

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
        undo(done.backup, detect(root), moved=True)
        assert owners() == before


def stopped(root: Path) -> Path:
    """Half of a run, up to the log's last change; the backup."""
    plan = plan_towards(root, wanted_of(root))

    def fails(_: Path) -> None:
        raise UnwritableError("no space")

    broken = BuiltPlan(plan.command, {}, plan.actions, plan.fingerprint, build=fails)
    with pytest.raises(UnwritableError) as caught:
        apply(broken, detect(root))
    assert "--undo" in str(caught.value.hint)
    backup = next(path for path in root.parent.iterdir() if "backup" in path.name)
    assert str(backup) in str(caught.value.hint)
    return backup


class TestUndo:
    @pytest.mark.parametrize("name", ["commitlog/00000000000000000000", "checkpoint", "config/new.json"])
    def test_not_once_anything_has_changed(self, root: Path, name: str) -> None:
        done = apply(plan_towards(root, wanted_of(root)), detect(root))
        with (root / name).open("ab") as file:
            file.write(b"x")
        with unchanged(root.parent), pytest.raises(RefusedError, match=name) as caught:
            undo(done.backup, detect(root), moved=True)
        command = plan_towards(root, wanted_of(root)).command
        assert f"the store has changed since rmqtool {command}: {name} " in caught.value.message
        said = f"did can no longer be undone; the files in {done.backup} stay as they are"
        assert caught.value.hint == f"what rmqtool {command} {said}"

    def test_runs_are_undone_from_the_newest_to_the_oldest(self, root: Path) -> None:
        states, backups = [tree_rows(root)], []
        for number in range(3):
            wanted = {**contents(root), "checkpoint": bytes([number]) * 4096, f"config/{number}.json": b"{}"}
            backups.append(apply(plan_towards(root, wanted), detect(root)).backup)
            states.append(tree_rows(root))
        for number in (0, 1):
            with unchanged(root.parent), pytest.raises(RefusedError, match="the store has changed since"):
                undo(backups[number], detect(root), moved=True)
        for number in (2, 1, 0):
            undo(backups[number], detect(root), moved=True)
            assert [row for row in tree_rows(root) if row[1] == "file"] == [
                row for row in states[number] if row[1] == "file"
            ]
        assert tree_rows(root) == states[0]

    def test_no_backup(self, root: Path, tmp_path: Path) -> None:
        with pytest.raises(NotAStoreError):
            undo(tmp_path, detect(root), moved=True)
        with pytest.raises(NotAStoreError):
            undo(tmp_path / "gone", detect(root), moved=True)

    @pytest.mark.parametrize("part", ["ranges", "files"])
    def test_a_damaged_backup_changes_nothing(self, root: Path, part: str) -> None:
        done = apply(plan_towards(root, wanted_of(root)), detect(root))
        victims = sorted(path for path in (done.backup / part).rglob("*") if path.is_file())
        damages = ("bytes", "gone", "link", *(("longer",) if part == "files" else ()))
        for victim, damage in product(victims, damages):
            data, mtime_ns = victim.read_bytes(), victim.stat().st_mtime_ns
            if damage == "bytes":
                victim.write_bytes(data[:-1] + b"\xee")
                os.utime(victim, ns=(mtime_ns, mtime_ns))
            elif damage == "longer":
                victim.write_bytes(data + b"x")
            elif damage == "gone":
                victim.unlink()
            else:
                victim.rename(victim.with_name("other"))
                victim.symlink_to("other")
            with unchanged(root.parent), pytest.raises(InputError):
                undo(done.backup, detect(root), moved=True)
            victim.unlink(missing_ok=True)
            victim.write_bytes(data)

    def test_a_backup_that_has_lost_its_crcs(self, root: Path) -> None:
        """It does not pass for that of a run which has changed nothing."""
        done = apply(plan_towards(root, wanted_of(root)), detect(root))
        (done.backup / "copied.json").rename(root.parent / "lost")
        with unchanged(root.parent), pytest.raises(InputError, match=r"copied\.json is lost"):
            undo(done.backup, detect(root), moved=True)
        (done.backup / "applied.json").unlink()
        with unchanged(root.parent), pytest.raises(InputError, match=r"the backup has no copied\.json"):
            undo(done.backup, detect(root), moved=True)

    def test_lost_crcs_of_a_store_in_between(self, root: Path) -> None:
        """The guard stays."""
        before, backup = files_of(root), stopped(root)
        (backup / "copied.json").rename(root.parent / "lost")
        with unchanged(root.parent), pytest.raises(InputError, match=r"the backup has no copied\.json"):
            undo(backup, detect(root), moved=True)
        assert (root / GUARD).exists()
        (root.parent / "lost").rename(backup / "copied.json")
        undo(backup, detect(root), moved=True)
        assert files_of(root) == before

    def test_what_has_the_time_of_a_lost_file(self, root: Path) -> None:
        """In a store in between a file that is not in the backup must be the old one, by its CRC."""
        before, backup = files_of(root), stopped(root)
        manifest = json.loads((backup / "manifest.json").read_text())
        entry = next(row for row in manifest["entries"] if row["path"].startswith("consumequeue/") and
                     row["what"] == "file")  # fmt: skip
        path = root / entry["path"]
        data = path.read_bytes()
        for content, is_right in ((b"x" * len(data), False), (data, True)):
            path.write_bytes(content)
            os.utime(path, ns=(entry["mtime_ns"], entry["mtime_ns"]))
            if not is_right:
                with unchanged(root.parent), pytest.raises(InputError, match="the backup lacks"):
                    undo(backup, detect(root), moved=True)
        undo(backup, detect(root), moved=True)
        assert files_of(root) == before

    def test_a_guard_that_was_taken_away_by_hand(self, root: Path) -> None:
        backup = stopped(root)
        (root / GUARD).unlink()
        with unchanged(root.parent), pytest.raises(RefusedError, match="removed by hand"):
            undo(backup, detect(root), moved=True)

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

        apply(BuiltPlan(plan.command, {}, plan.actions, plan.fingerprint, build=build), detect(root))
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
    """The first failure is told, and the store is as it was, its folders' times too."""
    before = tree_rows(root)
    plan = plan_towards(root, wanted_of(root))

    def full(*_: object) -> None:
        raise UnwritableError("cannot copy to: No space left on device")

    monkeypatch.setattr(disk, "copy_range", full)
    with pytest.raises(UnwritableError, match="No space left"):
        apply(plan, detect(root))
    assert tree_rows(root) == before
    assert sorted(path.name for path in root.parent.iterdir()) == ["store"]
    assert not (root / GUARD).exists()
    assert not (root / JOURNAL_NAME).exists()


def test_the_crc_of_a_file_with_holes(tmp_path: Path) -> None:
    """Large holes are not read, and count all the same."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        for offset in (5 << 20, (5 << 20) + 900_000, 9 << 20):
            file.seek(offset)
            file.write(b"data" * 1000)
        file.truncate(12 << 20)
    data = path.read_bytes()
    for start, stop in ((0, 12 << 20), (0, 5 << 20), (1, 3), (6 << 20, 10 << 20), ((5 << 20) + 7, 12 << 20)):
        assert changes.crc_of(path, [(start, stop)]) == zlib.crc32(data[start:stop])
    parts = [(100, 6 << 20), (7 << 20, 12 << 20)]
    assert changes.crc_of(path, parts) == zlib.crc32(b"".join(data[start:stop] for start, stop in parts))
    with pytest.raises(UnreadableError):
        changes.crc_of(path, [(0, 13 << 20)])


@pytest.mark.parametrize("name", [f"{JOURNAL_NAME}.new", f"{JOURNAL_NAME}.probe", "rmqtool-staging"])
def test_a_name_that_a_run_needs(root: Path, name: str) -> None:
    """Something else that has it is seen before the first change, and not deleted."""
    plan, path = plan_towards(root, wanted_of(root)), root / name
    if name == "rmqtool-staging":
        path.write_bytes(b"mine")
    else:
        path.mkdir()
    with unchanged(root.parent), pytest.raises(RefusedError, match="this name is needed"):
        apply(plan, detect(root))
    path.unlink() if path.is_file() else path.rmdir()
    path.symlink_to("config")
    with unchanged(root.parent), pytest.raises(RefusedError, match="this name is needed"):
        apply(plan, detect(root))


def test_a_backup_is_for_its_own_store(tmp_path: Path) -> None:
    """A copy of the store, taken before the damage was mended, looks as the mended one and is sound."""
    root, other = make_store(tmp_path / "store"), make_store(tmp_path / "other")
    done = apply(plan_towards(root, wanted_of(root)), detect(root), backup_dir=tmp_path / "backup")
    assert done.backup is not None
    with unchanged(other), pytest.raises(RefusedError, match=f"of the store {root}"):
        undo(done.backup, detect(other))
    assert not undo(done.backup, detect(root)).already


class TestUndoneBefore:
    """A backup that was restored already, of a store that was changed again since."""

    def test_names_the_later_backup(self, root: Path) -> None:
        states = [tree_rows(root)]
        backups = [apply(plan_towards(root, wanted_of(root)), detect(root)).backup]
        new = len(contents(root).keys() - {row[0] for row in states[0]})
        done = undo(backups[0], detect(root))
        assert 0 < new == done.removed < done.files
        assert undo(backups[0], detect(root)).already  # as it was: nothing to do
        manifest = json.loads((backups[0] / "manifest.json").read_bytes())
        while time.time_ns() // 1_000_000 <= manifest["made_ms"]:
            pass
        backups.append(apply(plan_towards(root, wanted_of(root)), detect(root)).backup)
        with unchanged(root.parent), pytest.raises(RefusedError, match="already restored") as caught:
            undo(backups[0], detect(root))
        assert f"rmqtool recover {root} --undo {backups[1]}" in str(caught.value.hint)
        undo(backups[1], detect(root))
        assert tree_rows(root) == states[0]
        assert undo(backups[0], detect(root)).already

    def test_changed_by_a_broker(self, root: Path) -> None:
        backup = apply(plan_towards(root, wanted_of(root)), detect(root)).backup
        undo(backup, detect(root))
        with (root / "checkpoint").open("ab") as file:
            file.write(b"x")
        with unchanged(root.parent), pytest.raises(RefusedError, match="checkpoint has changed since"):
            undo(backup, detect(root))
