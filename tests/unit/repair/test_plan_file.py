"""Plan files and manifests: what is written is read again, and what anybody may have written is refused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqtool.errors import InputError, NotAStoreError, RefusedError, RmqtoolError, UsageError
from rmqtool.read.store import Store
from rmqtool.repair.plan import (
    Action,
    Plan,
    agree,
    check_unchanged,
    fingerprint,
    read_plan,
    undo,
    write_plan,
)
from rmqtool.repair.plan.action import CONTENT_LIMIT
from rmqtool.repair.plan.backup import Backup
from rmqtool.repair.plan.guard import JOURNAL_NAME, unfinished_hint
from rmqtool.repair.plan.paths import Places
from rmqtool.repair.rebuild import run as rebuild_run
from rmqtool.storage.layout import detect
from tests.support.plans import apply, make_store, plan_towards, set_manifest, wanted_of
from tests.support.sweep import IS_WHOLE
from tests.support.trees import copy_tree, tree_rows, unchanged

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


HOSTILE_FOLDERS = ("/tmp/a\0b", "/tmp/\ud8ff", "", "relative")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("plan") / "store")


@pytest.fixture
def root(base: Path, tmp_path: Path) -> Path:
    return copy_tree(base, tmp_path / "store")


def all_json(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in a JSON document, few of a long list."""
    places = [at] if at else []
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())[:8]
    else:
        items = list(enumerate(value))[:2] if isinstance(value, list) else []
    for key, inner in items:
        places += all_json(inner, (*at, key))
    return places


def changed(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    """A copy of a document with another value at a place; nothing there for `...`."""
    copy = json.loads(json.dumps(document))
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return copy


@cache
def written(root: Path) -> tuple[Plan, Any]:
    """A plan for the store, and the document of its file."""
    plan = plan_towards(root, {})
    write_plan(plan, detect(root), root.parent / "written.json")
    return plan, json.loads((root.parent / "written.json").read_text())


class TestPlanFile:
    def test_what_is_written_is_read(self, root: Path, tmp_path: Path) -> None:
        plan = plan_towards(root, wanted_of(root), summary={"lost": [1, 2]})
        write_plan(plan, detect(root), tmp_path / "plan.json")
        write_plan(plan, detect(root), tmp_path / "plan.json")  # in place of the one before
        file = read_plan(tmp_path / "plan.json", "recover")
        assert (file.command, file.options, file.fingerprint) == (
            plan.command,
            plan.options,
            plan.fingerprint,
        )
        assert json.loads((tmp_path / "plan.json").read_text())["summary"] == {"lost": [1, 2]}
        assert [(row["kind"], row["path"]) for row in file.actions] == [
            (a.kind, a.path) for a in plan.actions
        ]
        with unchanged(tmp_path):
            check_unchanged(file, detect(root))
            agree(plan, file)
            agree(plan_towards(root, wanted_of(root)), file)

    def test_long_content_is_told_by_its_crc(self, tmp_path: Path, root: Path) -> None:
        for length in (CONTENT_LIMIT, CONTENT_LIMIT + 1):
            action = Action("replace", "checkpoint", 0, length, "", content=b"x" * length)
            row = action.row()
            assert ("content_base64" in row) == (length <= CONTENT_LIMIT)
            other = replace(action, content=b"x" * (length - 1) + b"y")
            plan = Plan("recover", {}, (action,), fingerprint(detect(root)))
            write_plan(plan, detect(root), tmp_path / "plan.json")
            agree(plan, read_plan(tmp_path / "plan.json", "recover"))
            with pytest.raises(RefusedError, match="action 1 of the plan, for checkpoint"):
                agree(replace(plan, actions=(other,)), read_plan(tmp_path / "plan.json", "recover"))

    def test_a_plan_that_is_not_the_same(self, root: Path, tmp_path: Path) -> None:
        plan = plan_towards(root, wanted_of(root))
        write_plan(plan, detect(root), tmp_path / "plan.json")
        document = json.loads((tmp_path / "plan.json").read_text())
        for name, value in (("path", "checkpoint"), ("offset", 7), ("length", 1), ("content_base64", "AA=="),
                            ("kind", "cut"), ("new", 1), ("reason", ...)):  # fmt: skip
            (tmp_path / "plan.json").write_text(json.dumps(changed(document, ("actions", 0, name), value)))
            with pytest.raises(RefusedError, match="action 1 of the plan"):
                agree(plan, read_plan(tmp_path / "plan.json", "recover"))
        for actions in (document["actions"][:-1], [*document["actions"], document["actions"][0]], []):
            (tmp_path / "plan.json").write_text(json.dumps({**document, "actions": actions}))
            with pytest.raises(RefusedError, match=f"has {len(actions)} actions"):
                agree(plan, read_plan(tmp_path / "plan.json", "recover"))

    def test_another_store_another_command_a_later_state(self, root: Path, tmp_path: Path) -> None:
        write_plan(plan_towards(root, wanted_of(root)), detect(root), tmp_path / "plan.json")
        file = read_plan(tmp_path / "plan.json", "recover")
        with pytest.raises(UsageError, match="is a plan of rmqtool recover, not of expire"):
            read_plan(tmp_path / "plan.json", "expire")
        other = make_store(tmp_path / "other")
        with pytest.raises(RefusedError, match="the store has changed since"):
            check_unchanged(file, detect(other))
        os.utime(root / "checkpoint")
        with pytest.raises(RefusedError, match="checkpoint has changed") as caught:
            check_unchanged(file, detect(root))
        assert caught.value.exit_code == 4
        assert caught.value.path == root / "checkpoint"

    @pytest.mark.parametrize("content", [
        b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"rmqtool_plan": 2}', b'{"rmqtool_plan": 1}',
        b"[" * 100_000, b'{"rmqtool_plan": ' + b"9" * 5000 + b"}", b'{"rmqtool_plan": NaN}', bytes(1000),
    ])  # fmt: skip
    def test_what_is_no_plan(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "plan.json").write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_plan(tmp_path / "plan.json", "recover")
        assert caught.value.path == tmp_path / "plan.json"

    def test_one_that_is_nested_too_deeply(self, tmp_path: Path) -> None:
        path = tmp_path / "plan.json"
        path.write_bytes(b"[" * 200_000)
        with pytest.raises(InputError, match="nested too deeply"):
            read_plan(path, "recover")

    def test_no_file_and_a_huge_one(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such file"):
            read_plan(tmp_path / "gone", "recover")
        with pytest.raises(InputError):
            read_plan(tmp_path, "recover")
        (tmp_path / "huge").touch()
        os.truncate(tmp_path / "huge", 1 << 40)
        with pytest.raises(InputError, match="are too many"):
            read_plan(tmp_path / "huge", "recover")

    @pytest.mark.sweep
    @settings(max_examples=100 if IS_WHOLE else 20)
    @given(data=st.data())
    def test_any_value_at_any_place(self, base: Path, data: st.DataObject) -> None:
        """The plan is refused, or what it would do is what would be done without it."""
        plan, document = written(base)
        path = base.parent / "any.json"
        place = data.draw(st.sampled_from(all_json(document)))
        path.write_text(json.dumps(changed(document, place, data.draw(JSON | st.just(...)))))
        try:
            file = read_plan(path, "recover")
            check_unchanged(file, detect(base))
            agree(plan, file)
        except RmqtoolError:
            return
        assert json.loads(json.dumps(plan.rows())) == list(file.actions)


class TestManifest:
    """A backup that somebody has changed: refused, and neither the store nor anything else is touched."""

    @pytest.fixture
    def done(self, root: Path) -> Path:
        backup = apply(plan_towards(root, wanted_of(root)), detect(root)).backup
        assert backup is not None
        return backup

    def test_what_is_written_is_read(self, root: Path, done: Path) -> None:
        manifest = Backup(done).manifest()
        assert (manifest.command, manifest.store, manifest.open) == ("recover", str(root), ())
        assert json.loads(json.dumps(asdict(manifest))) == json.loads((done / "manifest.json").read_text())

    @pytest.mark.parametrize(
        "path", ["../outside", "/etc/passwd", "commitlog/../../outside", "lock", "config/..", ""]
    )
    def test_a_path_that_leads_out(self, root: Path, done: Path, tmp_path: Path, path: str) -> None:
        (tmp_path / "outside").write_bytes(b"mine")
        document = json.loads((done / "manifest.json").read_text())
        for number in range(len(document["entries"])):
            set_manifest(done, changed(document, ("entries", number, "path"), path))
            with unchanged(tmp_path), pytest.raises(RmqtoolError):
                undo(done, detect(root), moved=True)

    def test_a_folder_that_leads_out(self, root: Path, done: Path, tmp_path: Path) -> None:
        """Its time is not set and it is not removed."""
        (tmp_path / "empty").mkdir()
        document = json.loads((done / "manifest.json").read_text())
        for name, value in (("../empty", None), ("../empty", 1), ("config", 1 << 70)):
            set_manifest(done, {**document, "folders": {name: value}})
            with unchanged(tmp_path), pytest.raises(RmqtoolError):
                undo(done, detect(root), moved=True)

    def test_ranges_that_are_none(self, root: Path, done: Path, tmp_path: Path) -> None:
        document = json.loads((done / "manifest.json").read_text())
        at = next(number for number, entry in enumerate(document["entries"]) if entry["ranges"])
        for place, value in ((("ranges", 0), [5, 5]), (("ranges", 0), [9, 3]), (("ranges", 0), [-1, 5]),
                             (("ranges", 0), [0, 1 << 70]), (("ranges", 0), [1]), (("size",), 1 << 62),
                             (("size",), -1), (("mtime_ns",), 1 << 70), (("moved",), True),
                             (("what",), "folder"), (("what",), "missing"), (("what",), "pipe"),
                             (("after_ns",), -(1 << 64)), (("ranges",), [[0, 1 << 40]])):  # fmt: skip
            set_manifest(done, changed(document, ("entries", at, *place), value))
            with unchanged(tmp_path), pytest.raises(RmqtoolError):
                undo(done, detect(root), moved=True)
        entries = [*document["entries"], document["entries"][at]]
        set_manifest(done, {**document, "entries": entries})
        with unchanged(tmp_path), pytest.raises(InputError, match="is not possible"):
            undo(done, detect(root), moved=True)

    def test_its_crc_is_told(self, root: Path, done: Path, tmp_path: Path) -> None:
        """By what is written later: a byte that has changed is seen, whatever it means."""
        document = json.loads((done / "manifest.json").read_text())
        for other in ({**document, "made_ms": 5}, {**document, "entries": document["entries"][1:]}):
            (done / "manifest.json").write_text(json.dumps(other))
            with unchanged(tmp_path), pytest.raises(InputError, match=r"copied\.json has another CRC"):
                undo(done, detect(root), moved=True)
        set_manifest(done, document)
        applied = json.loads((done / "applied.json").read_text())
        for told in (applied["manifest_crc32"] + 1, None, "x"):
            (done / "applied.json").write_text(json.dumps({**applied, "manifest_crc32": told}))
            with unchanged(tmp_path), pytest.raises(InputError, match=r"applied\.json has another CRC"):
                undo(done, detect(root), moved=True)

    def test_no_entries(self, root: Path, done: Path, tmp_path: Path) -> None:
        document = json.loads((done / "manifest.json").read_text())
        set_manifest(done, {**document, "entries": []})
        with unchanged(tmp_path), pytest.raises(InputError, match="has no entries"):
            undo(done, detect(root), moved=True)

    def test_an_entry_for_a_sound_file(self, root: Path, done: Path, tmp_path: Path) -> None:
        """It is neither deleted nor cut."""
        document = json.loads((done / "manifest.json").read_text())
        changed_paths = {entry["path"] for entry in document["entries"]}
        sound = next(path for path in sorted(root.glob("commitlog/0*")) if f"commitlog/{path.name}" not in
                     changed_paths)  # fmt: skip
        entry = {"path": f"commitlog/{sound.name}", "mtime_ns": sound.stat().st_mtime_ns}
        for more, error in (({"what": "missing", "moved": True}, RefusedError),
                            ({"what": "missing", "moved": True, "made": 8191}, RefusedError),
                            ({"what": "missing", "moved": True, "made": 8193}, RefusedError),
                            ({"what": "file", "size": 10}, InputError),
                            ({"what": "file", "size": 10, "ranges": [[10, 8191]]}, InputError),
                            ({"what": "file", "size": 8191, "moved": True}, InputError)):  # fmt: skip
            set_manifest(done, {**document, "entries": [*document["entries"], {**entry, **more}]})
            with unchanged(tmp_path), pytest.raises(error):
                undo(done, detect(root), moved=True)
        set_manifest(done, document)
        undo(done, detect(root), moved=True)

    def test_a_folder_of_an_earlier_run_that_is_none(self, root: Path, done: Path) -> None:
        document = json.loads((done / "manifest.json").read_text())
        for folder in HOSTILE_FOLDERS:
            set_manifest(done, {**document, "open": [["id", folder]]})
            with unchanged(root.parent), pytest.raises(InputError, match="is not a folder of a backup"):
                undo(done, detect(root), moved=True)

    def test_a_link_in_the_backup(self, root: Path, done: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (done / "files" / "config").rename(tmp_path / "elsewhere" / "config")
        (done / "files" / "config").symlink_to(tmp_path / "elsewhere" / "config")
        with unchanged(tmp_path), pytest.raises(InputError, match="symbolic link in the backup"):
            undo(done, detect(root), moved=True)

    def test_a_manifest_of_another_version(self, root: Path, done: Path) -> None:
        document = json.loads((done / "manifest.json").read_text())
        set_manifest(done, {**document, "rmqtool_backup": 2})
        with pytest.raises(InputError, match="a newer rmqtool"):
            undo(done, detect(root), moved=True)

    @pytest.mark.sweep
    @pytest.mark.parametrize("name", ["manifest.json", "copied.json", "applied.json"])
    @settings(max_examples=40 if IS_WHOLE else 6)
    @given(data=st.data())
    def test_any_value_at_any_place(
        self, base: Path, tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
    ) -> None:
        """An error of ours, or it is undone; nothing but store and backup is touched."""
        above = tmp_path_factory.mktemp("any")
        root = copy_tree(base, above / "in" / "store") if (above / "in").mkdir() is None else base
        done = apply(plan_towards(root, wanted_of(root)), detect(root)).backup
        assert done is not None
        document = json.loads((done / name).read_text())
        place = data.draw(st.sampled_from(all_json(document)))
        document = changed(document, place, data.draw(JSON | st.just(...)))
        if name == "manifest.json" and data.draw(st.booleans()):
            set_manifest(done, document)
        else:
            (done / name).write_text(json.dumps(document))
        try:
            undo(done, detect(root), moved=True)
        except RmqtoolError:
            pass
        assert [path.name for path in above.iterdir()] == ["in"]
        assert {path.name for path in (above / "in").iterdir()} == {"store", done.name}
        shutil.rmtree(above)


class TestJournal:
    @pytest.mark.parametrize("content", [
        b"", b"{", b"[]", b'{"rmqtool_journal": 2}', b'{"rmqtool_journal": 1}', b"[" * 100_000,
        b'{"rmqtool_journal": 1, "open": 5}', b'{"rmqtool_journal": 1, "open": [{}]}',
        b'{"rmqtool_journal": 1, "open": [{"id": 1, "backup": "x"}]}',
    ])  # fmt: skip
    def test_one_that_is_none(self, root: Path, content: bytes) -> None:
        plan = plan_towards(root, wanted_of(root))
        (root / JOURNAL_NAME).write_bytes(content)
        with unchanged(root.parent), pytest.raises(InputError):
            apply(plan, detect(root))

    @pytest.mark.parametrize("folder", HOSTILE_FOLDERS)
    def test_a_backup_that_cannot_be(self, root: Path, folder: str) -> None:
        plan = plan_towards(root, wanted_of(root))
        document = {"rmqtool_journal": 1, "open": [{"id": "x", "backup": folder}]}
        (root / JOURNAL_NAME).write_text(json.dumps(document))
        (root / "commitlog" / "rmqtool-repair").write_bytes(b"R")
        with unchanged(root.parent), pytest.raises(InputError, match="is not a folder of a backup"):
            apply(plan, detect(root))
        with unchanged(root.parent), Store.open(root) as store, pytest.raises(InputError):
            rebuild_run.plan(store, rebuild_run.Request())

    def test_rebuild_looks_although_the_backup_was_deleted(self, root: Path) -> None:
        """Nobody knows whose run was killed: it says that recover goes on."""
        document = {"rmqtool_journal": 1, "open": [{"id": "gone", "backup": str(root.parent / "gone")}]}
        (root / JOURNAL_NAME).write_text(json.dumps(document))
        (root / "commitlog" / "rmqtool-repair").write_bytes(b"R")
        with unchanged(root.parent):
            with Store.open(root) as store:
                planned = rebuild_run.plan(store, rebuild_run.Request())
            assert planned.is_needed
            assert "another repair of this store was interrupted" in planned.refusals[0].reason
            with pytest.raises(RefusedError) as caught:
                rebuild_run.rebuild_store(lambda: Store.open(root), rebuild_run.Request(), force=True)
        assert caught.value.hint == f"rmqtool recover {root}"
        assert "--undo" not in unfinished_hint(Places(detect(root)))
        (root.parent / "gone").mkdir()
        assert f"--undo {root.parent / 'gone'}" in unfinished_hint(Places(detect(root)))

    def test_one_that_is_a_link(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "target").write_bytes(b"{}")
        (root / JOURNAL_NAME).symlink_to(tmp_path / "target")
        with unchanged(tmp_path), pytest.raises(RefusedError, match="symbolic link"):
            apply(plan_towards(root, wanted_of(root)), detect(root))

    def test_a_backup_that_was_deleted(self, root: Path) -> None:
        """A run goes on without it only where it is told to."""
        plan = plan_towards(root, {})
        wanted = wanted_of(root)
        apply(plan_towards(root, wanted), detect(root))
        rows = tree_rows(root)
        document = {"rmqtool_journal": 1, "open": [{"id": "gone", "backup": str(root.parent / "gone")}]}
        (root / JOURNAL_NAME).write_text(json.dumps(document))
        (root / "commitlog" / "rmqtool-repair").write_bytes(b"R")
        with pytest.raises(RefusedError, match="was interrupted"):
            apply(plan_towards(root, wanted), detect(root))
        apply(plan_towards(root, wanted), detect(root), abandon=True)
        assert [row for row in tree_rows(root) if row[1] == "file"] == [
            row for row in rows if row[1] == "file"
        ]
        assert plan.actions

    def test_no_backup_at_all(self, tmp_path: Path, root: Path) -> None:
        (tmp_path / "some").mkdir()
        with pytest.raises(NotAStoreError):
            undo(tmp_path / "some", detect(root), moved=True)
