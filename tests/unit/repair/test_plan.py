"""Plans: done, undone, refused; every byte, mtime, owner and mode."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rmqtool.errors import RefusedError, StoreInUseError, UnwritableError
from rmqtool.repair.plan import Action, Plan, fingerprint, undo
from rmqtool.repair.plan import space as space_module
from rmqtool.repair.plan.apply import _Run
from rmqtool.repair.plan.guard import JOURNAL_NAME
from rmqtool.storage import durable as disk
from rmqtool.storage import lock
from rmqtool.storage.layout import detect
from tests.support.hard_limits import ROOT, mounted, reachable
from tests.support.ordinary_user import as_nobody
from tests.support.plans import (
    LOG_BYTES,
    OLD_NS,
    apply,
    contents,
    files_of,
    make_store,
    plan_towards,
    wanted_of,
)
from tests.support.trees import copy_tree, tree_rows, unchanged

__all__ = ["reachable"]

GUARD = "commitlog/rmqtool-repair"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("plan") / "store")


@pytest.fixture
def root(base: Path, tmp_path: Path) -> Path:
    return copy_tree(base, tmp_path / "store")


def plan_of(root: Path, *actions: Action, **named: object) -> Plan:
    return Plan("recover", {}, actions, fingerprint(detect(root)), **named)


class TestApply:
    def test_the_store_is_what_was_planned(self, root: Path) -> None:
        wanted = wanted_of(root)
        plan = plan_towards(root, wanted)
        assert {action.kind for action in plan.actions} == {
            "fill",
            "write",
            "cut",
            "create",
            "replace",
            "delete",
        }
        done = apply(plan, detect(root))
        assert contents(root) == {name: data for name, data in wanted.items() if data is not None}
        assert done.actions == len(plan.actions)
        assert not (root / GUARD).exists()
        assert not (root / JOURNAL_NAME).exists()
        assert not (root / "rmqtool-staging").exists()
        assert done.backup is not None
        assert done.backup.parent == root.parent
        assert done.backup.name.startswith("store.rmqtool-backup-")

    def test_undo_gives_back_every_byte_and_time(self, root: Path) -> None:
        before = tree_rows(root)
        done = apply(plan_towards(root, wanted_of(root)), detect(root))
        assert tree_rows(root) != before
        undone = undo(done.backup, detect(root))
        assert tree_rows(root) == before
        assert (undone.already, undone.next) == (False, None)
        assert undo(done.backup, detect(root)).already
        assert tree_rows(root) == before

    def test_a_second_plan_is_empty_and_changes_nothing(self, root: Path) -> None:
        wanted = wanted_of(root)
        apply(plan_towards(root, wanted), detect(root))
        with unchanged(root.parent):
            plan = plan_towards(root, wanted)
            assert plan.actions == ()
            assert apply(plan, detect(root)).backup is None

    def test_times_that_a_broker_goes_by_stay(self, root: Path) -> None:
        before, wanted = files_of(root), wanted_of(root)
        apply(plan_towards(root, wanted), detect(root))
        after = files_of(root)
        for name in before.keys() & after.keys():
            changed = before[name][1] != after[name][1]
            timed = name.startswith(("commitlog/", "consumequeue/", "index/"))
            assert (before[name][0] == after[name][0]) == (timed or not changed), name
        assert after["commitlog/00000000000000999424"][0] > OLD_NS * 1.05

    def test_a_time_that_is_asked_for(self, root: Path) -> None:
        layout = detect(root)
        queue = next(iter(layout.consume_queues.values()))
        log, queue = (layout.relative(file.path) for file in (layout.commit_log[0], queue.files[0]))
        new = "commitlog/00000000000000999424"
        times = [OLD_NS + 1, OLD_NS + 2, OLD_NS + 3, OLD_NS + 4]
        apply(plan_of(root, Action("fill", log, 5, 1, "", content=b"x", mtime_ns=times[0]),
                      Action("replace", queue, 0, 1, "", content=b"x", mtime_ns=times[1]),
                      Action("create", new, 0, 9, "", zeros=True, mtime_ns=times[2]),
                      Action("create", "index/20200101000000000", 0, 1, "", content=b"x", mtime_ns=times[3])),
              layout)  # fmt: skip
        after = files_of(root)
        names = (log, queue, new, "index/20200101000000000")
        assert [after[name][0] for name in names] == times

    def test_holes_stay_holes_and_the_log_is_reserved(self, root: Path) -> None:
        size = 64 << 20
        path = root / "commitlog" / "00000000000000999424"
        os.close(disk.create_file(path, size))
        with path.open("r+b") as file:
            file.seek(size // 2)
            file.write(b"x" * 10_000)
        before = tree_rows(root)
        name = "commitlog/00000000000000999424"
        done = apply(plan_of(root, Action("cut", name, 100, size - 100, "")), detect(root))
        assert path.read_bytes() == bytes(size)
        assert path.stat().st_blocks * 512 < 1 << 20
        kept = done.backup / "ranges" / name
        assert kept.stat().st_size == size
        assert kept.stat().st_blocks * 512 < 1 << 20
        undo(done.backup, detect(root))
        assert tree_rows(root) == before
        apply(plan_of(root, Action("create", f"{name[:-1]}9", 0, 1 << 20, "", zeros=True)), detect(root))
        assert (root / f"{name[:-1]}9").stat().st_blocks * 512 >= 1 << 20

    def test_a_short_file_is_padded_and_cut_again(self, root: Path) -> None:
        """In the log with real zeros: its space has to be there."""
        layout = detect(root)
        log, queue = layout.commit_log[-1].path, next(iter(layout.consume_queues.values())).files[0].path
        for path in (log, queue):
            os.truncate(path, 100)
            os.utime(path, ns=(OLD_NS, OLD_NS))
        before = tree_rows(root)
        names = [layout.relative(path) for path in (log, queue)]
        done = apply(
            plan_of(root, *(Action("cut", name, 100, LOG_BYTES - 100, "") for name in names)), layout
        )
        assert log.stat().st_size == queue.stat().st_size == LOG_BYTES
        assert log.stat().st_blocks * 512 >= LOG_BYTES
        assert log.stat().st_mtime_ns == OLD_NS
        undo(done.backup, detect(root))
        assert tree_rows(root) == before

    def test_strays_of_all_kinds_are_taken_away_whole(self, root: Path) -> None:
        folder = root / "commitlog" / "folder"
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "file").write_bytes(b"1")
        (root / "commitlog" / "link").symlink_to("/etc/passwd")
        os.mkfifo(root / "commitlog" / "pipe")
        before = tree_rows(root)
        names = [f"commitlog/{name}" for name in ("folder", "link", "pipe")]
        done = apply(plan_of(root, *(Action("delete", name, 0, 0, "") for name in names)), detect(root))
        assert not any(os.path.lexists(root / name) for name in names)
        assert (done.backup / "files" / "commitlog" / "folder" / "below" / "file").read_bytes() == b"1"
        undo(done.backup, detect(root))
        assert tree_rows(root) == before

    def test_a_store_without_a_log(self, root: Path) -> None:
        """The guard's folder goes with it."""
        shutil.rmtree(root / "commitlog")
        before = tree_rows(root)
        done = apply(plan_of(root, Action("delete", "checkpoint", 0, 4096, "")), detect(root))
        assert not (root / "checkpoint").exists()
        assert not (root / "commitlog").exists()
        undo(done.backup, detect(root))
        assert tree_rows(root) == before

    def test_without_keep_there_is_no_backup(self, root: Path) -> None:
        wanted = wanted_of(root)
        done = apply(plan_towards(root, wanted, keep=False), detect(root))
        assert done.backup is None
        assert contents(root) == {name: data for name, data in wanted.items() if data is not None}
        assert [path.name for path in root.parent.iterdir()] == ["store"]

    def test_a_log_in_a_folder_elsewhere(self, root: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere" / "log"
        elsewhere.parent.mkdir()
        (root / "commitlog").rename(elsewhere)
        layout = detect(root, commitlog_paths=[elsewhere])
        name = layout.relative(layout.commit_log[0].path)
        assert name.startswith("/")
        before = tree_rows(tmp_path)
        plan = Plan("recover", {}, (Action("fill", name, 10, 3, "", content=b"abc"),), fingerprint(layout))
        assert name in plan.fingerprint.files
        done = apply(plan, layout, backup_dir=tmp_path / "kept" / "here")
        assert (elsewhere / layout.commit_log[0].path.name).read_bytes()[10:13] == b"abc"
        with pytest.raises(RefusedError):
            undo(done.backup, detect(root))
        undo(done.backup, layout)
        assert [row for row in tree_rows(tmp_path) if "kept" not in row[0] and row[0] != "."] == before[1:]

    def test_a_log_on_another_file_system(self, root: Path, tmp_path: Path) -> None:
        with mounted(tmp_path / "other", "size=4m"):
            copy_tree(root / "commitlog", tmp_path / "other" / "log")
            shutil.rmtree(root / "commitlog")
            layout = detect(root, commitlog_paths=[tmp_path / "other" / "log"])
            victim = layout.commit_log[2].path
            before = tree_rows(tmp_path)
            actions = (
                Action("delete", str(victim), 0, LOG_BYTES, ""),
                Action("delete", "checkpoint", 0, 4096, ""),
            )
            done = apply(Plan("recover", {}, actions, fingerprint(layout)), layout)
            assert (done.backup / "files" / "outside" / str(victim)[1:]).stat().st_size == LOG_BYTES
            assert not victim.exists()
            undo(done.backup, layout)
            shutil.rmtree(done.backup)
            assert tree_rows(tmp_path)[1:] == before[1:]

    def test_the_backup_on_another_file_system(self, root: Path, tmp_path: Path) -> None:
        with mounted(tmp_path / "other", "size=4m"):
            before = tree_rows(root)
            wanted = wanted_of(root)
            done = apply(plan_towards(root, wanted), detect(root), backup_dir=tmp_path / "other" / "kept")
            assert contents(root) == {name: data for name, data in wanted.items() if data is not None}
            undo(done.backup, detect(root))
            assert tree_rows(root) == before
            (root / "commitlog" / "link").symlink_to("/etc/passwd")
            with unchanged(root), pytest.raises(RefusedError, match="within its file system"):
                apply(plan_of(root, Action("delete", "commitlog/link", 0, 0, "")), detect(root),
                      backup_dir=tmp_path / "other" / "kept2")  # fmt: skip


class TestRefused:
    """Nothing changes."""

    @pytest.mark.parametrize("name", ["commitlog/00000000000000000000", "config/topics.json", "checkpoint"])
    def test_a_store_that_has_changed(self, root: Path, name: str) -> None:
        plan = plan_towards(root, wanted_of(root))
        (root / name).write_bytes((root / name).read_bytes())
        with unchanged(root.parent), pytest.raises(RefusedError, match=f"{name} has changed"):
            apply(plan, detect(root))

    def test_other_bytes_under_the_same_time(self, root: Path) -> None:
        """A broker writes through memory: the time may not tell."""
        layout = detect(root)
        queue = layout.relative(next(iter(layout.consume_queues.values())).files[0].path)
        log = next(file for file in layout.commit_log if fingerprint(layout).log_end <= file.end)
        at = fingerprint(layout).log_end - log.file_from_offset - 10
        for name, offset in (
            (layout.relative(log.path), at),
            (queue, 0),
            ("checkpoint", 8),
            ("config/topics.json", 1),
        ):
            plan = Plan("recover", {}, (), fingerprint(layout, touched=[queue]))
            status = (root / name).stat()
            with (root / name).open("r+b") as file:
                file.seek(offset)
                file.write(b"\xee")
            os.utime(root / name, ns=(status.st_atime_ns, status.st_mtime_ns))
            with pytest.raises(RefusedError, match=f"{name} has other bytes in"):
                apply(plan, layout)

    def test_files_that_came_or_went(self, root: Path) -> None:
        plan = plan_towards(root, wanted_of(root))
        (root / "index" / "new").write_bytes(b"")
        with pytest.raises(RefusedError, match="index/new is new"):
            apply(plan, detect(root))
        (root / "index" / "new").unlink()
        (root / "checkpoint").unlink()
        with pytest.raises(RefusedError, match="checkpoint is gone"):
            apply(plan, detect(root))

    def test_a_lock_that_is_held(self, root: Path) -> None:
        plan = plan_towards(root, wanted_of(root))
        held = lock.acquire(root / "lock")
        try:
            with unchanged(root.parent), pytest.raises(StoreInUseError):
                apply(plan, detect(root))
            done = apply(plan, detect(root), held=held)
            with pytest.raises(StoreInUseError):
                undo(done.backup, detect(root))
            undo(done.backup, detect(root), held=held)
            with pytest.raises(StoreInUseError):
                lock.acquire(root / "lock")  # it is the caller's still
        finally:
            held.release()

    @pytest.mark.parametrize("folder", ["commitlog", "consumequeue", "config"])
    def test_a_link_on_the_way(self, root: Path, tmp_path: Path, folder: str) -> None:
        (root / folder).rename(tmp_path / "real")
        (root / folder).symlink_to(tmp_path / "real")
        name = next(f"{folder}/{path.relative_to(tmp_path / 'real')}" for path in
                    sorted((tmp_path / "real").rglob("*")) if path.is_file())  # fmt: skip
        plan = plan_of(root, Action("fill", name, 0, 1, "", content=b"x"))
        with unchanged(tmp_path), pytest.raises(RefusedError, match="this is a symbolic link"):
            apply(plan, detect(root))

    def test_a_log_that_is_a_link(self, root: Path, tmp_path: Path) -> None:
        """Where nothing of the log changes too: the guard is made in its folder."""
        (root / "commitlog").rename(tmp_path / "real")
        (root / "commitlog").symlink_to(tmp_path / "real")
        plan = plan_of(root, Action("delete", "checkpoint", 0, 4096, ""))
        with unchanged(tmp_path), pytest.raises(RefusedError, match="this is a symbolic link") as refused:
            apply(plan, detect(root))
        assert refused.value.hint == f"for the commit log: --commitlog {tmp_path / 'real'}"

    def test_a_file_that_is_a_link(self, root: Path, tmp_path: Path) -> None:
        (root / "abort").symlink_to(tmp_path / "target")
        (tmp_path / "target").write_bytes(b"")
        for kind in ("write", "replace"):
            plan = plan_of(root, Action(kind, "abort", 0, 1, "", content=b"x"))
            with unchanged(tmp_path), pytest.raises(RefusedError, match="abort is not a plain file"):
                apply(plan, detect(root))

    @pytest.mark.parametrize("path", [
        "../other", "/etc/passwd", "commitlog/../../x", "commitlog", "commitlog/", "", "lock", "store", ".",
        "config//x", "config/./x", "config/\0", "config/" + "x" * 256, GUARD, "rmqtool-repair.json",
        "config/\ud8ff",
    ])  # fmt: skip
    def test_paths_that_are_none_of_the_stores(self, root: Path, path: str) -> None:
        plan = plan_of(root, Action("create", path, 0, 1, "", content=b"x"))
        with unchanged(root.parent), pytest.raises(RefusedError):
            apply(plan, detect(root))

    def test_what_is_not_there_or_there_already(self, root: Path) -> None:
        for action, says in ((Action("create", "checkpoint", 0, 1, "", content=b"x"), "already exists"),
                             (Action("delete", "abort", 0, 1, ""), "is gone"),
                             (Action("cut", "index/none", 0, 1, ""), "is gone")):  # fmt: skip
            with unchanged(root.parent), pytest.raises(RefusedError, match=says):
                apply(plan_of(root, action), detect(root))

    def test_a_folder_for_the_backup_that_will_not_do(self, root: Path, tmp_path: Path) -> None:
        plan = plan_towards(root, wanted_of(root))
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").write_bytes(b"")
        (tmp_path / "link").symlink_to("elsewhere")
        for folder in ("full", "full/file", "link", "store/commitlog/kept", "store/index"):
            with unchanged(tmp_path), pytest.raises(RefusedError):
                apply(plan, detect(root), backup_dir=tmp_path / folder)
        (tmp_path / "empty").mkdir()
        assert apply(plan, detect(root), backup_dir=tmp_path / "empty").backup == tmp_path / "empty"

    def test_no_room(self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with mounted(tmp_path / "small", "size=1m"):
            with (
                unchanged(root),
                pytest.raises(UnwritableError, match=r"not enough space: \d+ bytes are needed") as caught,
            ):
                apply(
                    plan_towards(root, wanted_of(root)), detect(root), backup_dir=tmp_path / "small" / "kept"
                )
            assert caught.value.hint == "name another place for the backup: --backup-dir DIR"
            assert not list((tmp_path / "small").iterdir())
            store = copy_tree(root, tmp_path / "small/store")
            with pytest.raises(UnwritableError, match="not enough space") as caught:
                apply(plan_towards(store, wanted_of(root)), detect(store), backup_dir=tmp_path / "kept")
            assert caught.value.hint == "free that much space, and run it again"

    @pytest.mark.parametrize("count", ["at first", "to the end"])
    def test_two_mounts_of_one_device(
        self, count: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They look as if files could be renamed from one to the other."""
        before, wanted = tree_rows(root), wanted_of(root)
        with mounted(tmp_path / "other", "size=4m"):
            if count == "at first":
                real = space_module.to_copy
                monkeypatch.setattr(space_module, "to_copy", lambda *args, renames=True: (
                    set() if renames else real(*args, renames=False)))  # fmt: skip
            else:  # also for the probe: only the queues are a mount of their own
                monkeypatch.setattr(space_module, "to_copy", lambda *_, **__: set())
                monkeypatch.setattr(_Run, "_really_renames", lambda *_: True)
            done = apply(plan_towards(root, wanted), detect(root), backup_dir=tmp_path / "other" / "kept")
            assert contents(root) == {name: data for name, data in wanted.items() if data is not None}
            undo(done.backup, detect(root))
            assert tree_rows(root) == before

    @pytest.mark.skipif(not ROOT, reason="needs files of another user")
    def test_files_of_another_user(self, root: Path, tmp_path: Path) -> None:
        plan = plan_towards(root, wanted_of(root))
        layout = detect(root)
        tmp_path.chmod(0o777)
        for path in (root, *root.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        plan = plan_towards(root, wanted_of(root))

        def action() -> None:
            with pytest.raises(RefusedError, match="belongs to user 0"):
                apply(plan, layout)

        with unchanged(tmp_path):
            as_nobody(action)

    def test_contradictions_are_bugs(self, root: Path) -> None:
        name = "checkpoint"
        for actions in ([Action("delete", name, 0, 1, ""), Action("write", name, 0, 1, "", content=b"x")],
                        [Action("delete", name, 0, 1, "")] * 2,
                        [Action("write", name, 0, 1, "", content=b"x"), Action("delete", name, 0, 1, "")],
                        [Action("replace", name, 0, 1, "")],
                        [Action("create", "commitlog/00000000000000999424", 0, 1, "")]):  # fmt: skip
            with unchanged(root.parent), pytest.raises(ValueError):  # noqa: PT011
                apply(plan_of(root, *actions), detect(root))
        for wrong in ({"kind": "move"}, {"offset": -1}, {"offset": 1}, {"length": -1}, {"content": b"xy"},
                      {"kind": "fill", "content": None}, {"kind": "cut"}, {"zeros": True}):  # fmt: skip
            with pytest.raises(ValueError):  # noqa: PT011
                Action(
                    **{"kind": "create", "path": "x", "offset": 0, "length": 1, "reason": "", "content": b"x"}
                    | wrong
                )
