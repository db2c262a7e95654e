"""What cannot be read is told and the rest is checked; what vanishes under the reader is no damage."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rmqtool.check.verify import PASSES, Bounds, Report, verify
from rmqtool.formats import index
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.problems import Finding
from rmqtool.read.store import Store
from rmqtool.report.info import store_info
from rmqtool.report.residency import residency_rows
from rmqtool.storage import source as source_module
from tests import ROOT
from tests.fixtures_run.test_fixtures import drop_privileges, rows_as_user
from tests.support.build_store import LOG_FILE_SIZE, QUEUE_FILE_SIZE, file_name, patch
from tests.support.programs import PATIENCE_S
from tests.support.whole_store import codes_of, findings_of, keyed, write_whole


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Many log files, several queue files."""
    write_whole(tmp_path / "store", keyed(100), shape=index.Shape(50, 600))
    return tmp_path / "store"


def queue_files(root: Path, queue_id: int = 0) -> list[Path]:
    return sorted((root / "consumequeue" / "TopicTest" / str(queue_id)).iterdir())


class TestUnreadable:
    """As an ordinary user: root may read everything."""

    def test_one_file_of_a_queue(self, root: Path) -> None:
        """One finding for the file; units in the queue's other files are still right."""
        path = queue_files(root)[1]
        path.chmod(0)
        (row,) = rows_as_user(root)[0]
        assert (row["problem"], row["path"]) == ("CQ15", str(path.relative_to(root)))
        assert row["detail"] == {"reason": "Permission denied"}

    def test_damage_in_the_other_queues_is_still_found(self, root: Path) -> None:
        queue_files(root)[1].chmod(0)
        patch(queue_files(root, 1)[0], 3 * UNIT_SIZE, bytes(UNIT_SIZE))
        assert [row["problem"] for row in rows_as_user(root)[0]] == ["CQ15", "CQ08"]

    def test_all_files_of_all_queues(self, root: Path) -> None:
        paths = [*queue_files(root), *queue_files(root, 1)]
        for path in paths:
            path.chmod(0)
        rows = rows_as_user(root)[0]
        assert [row["path"] for row in rows] == [str(path.relative_to(root)) for path in paths]
        assert {row["problem"] for row in rows} == {"CQ15"}

    def test_one_file_of_each_other_sort(self, root: Path) -> None:
        log, of_index = (sorted((root / name).iterdir())[0] for name in ("commitlog", "index"))
        names = [log, of_index, root / "checkpoint", root / "config/topics.json"]
        for path in names:
            path.chmod(0)
        found = {(row["problem"], row["path"]) for row in rows_as_user(root)[0]}
        codes = zip(("CL12", "IX11", "CP06", "CP06"), names, strict=True)
        assert found == {(code, str(path.relative_to(root))) for code, path in codes}

    def test_no_message_of_a_log_file_that_this_user_may_not_read_counts_as_lost(self, root: Path) -> None:
        """Each command names the file and what to do; its messages are not known, not lost."""
        log = min((root / "commitlog").iterdir())
        log.chmod(0)
        for name, code in (("verify", 3), ("doctor", 3), ("recover", 3), ("doctor --nagios", 3)):
            command = [sys.executable, "-m", "rmqtool", *name.split(), str(root)]
            drop = drop_privileges if os.geteuid() == 0 else None
            done = subprocess.run(  # noqa: PLW1509
                command, capture_output=True, text=True, cwd=ROOT, preexec_fn=drop, timeout=PATIENCE_S,
            )  # fmt: skip
            said = " ".join(f"{done.stdout} {done.stderr}".split())
            assert done.returncode == code, said
            assert log.name in said and "lost" not in said and "at stake" not in said
            assert "run rmqtool as the owner of the file, or as root" in said or "UNKNOWN" in said
            assert "Permission denied" in said or name == "verify" and "may not read the file" in said

    def test_pages_that_the_disk_cannot_read(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """EIO in a queue file is a finding for those bytes, and nothing else follows from it."""
        bad = queue_files(root)[0]
        real = source_module.open_source

        def open_source(path: Path, **options: object) -> source_module.ByteSource:
            source = real(path, **options)  # type: ignore[arg-type]
            if path == bad:
                source.unreadable.append((0, QUEUE_FILE_SIZE // 2))
                monkeypatch.setattr(source, "read", lambda offset, length: bytes(length))
            return source

        monkeypatch.setattr(source_module, "open_source", open_source)
        patch(bad, 0, bytes(QUEUE_FILE_SIZE // 2))
        found = findings_of(root, passes=["queues"])
        assert [item.problem.code for item in found][:1] == ["CQ15"]
        assert (found[0].physical_offset, found[0].length) == (0, QUEUE_FILE_SIZE // 2)


class TestFewFileHandles:
    """A limit on open files is an error of this process, never silence about the queues."""

    def test_more_queues_than_handles(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        write_whole(root, keyed(500, queues=250, body=20), log_file_size=1 << 14, shape=index.Shape(99, 2500))
        code = (
            "import resource, sys, json; from pathlib import Path; from rmqtool.read.store import Store;"
            "from rmqtool.check.verify import verify, PASSES;"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160));"
            "store = Store.open(Path(sys.argv[1]));"
            "print(json.dumps(sorted({f.problem.code for f in verify(store, passes=PASSES, jobs=4)})))"
        )
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 160
        command = [sys.executable, "-c", code, str(root)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        assert done.stdout == "[]\n"


def vanish_while(root: Path, paths: list[Path], **arguments: object) -> tuple[list[Finding], Report]:
    """Verify a store of which files are deleted after its folders were listed."""
    report = Report()
    with Store.open(root) as store:
        for path in paths:
            path.unlink()
        found = list(verify(store, passes=PASSES, report=report, **arguments))  # type: ignore[arg-type]
    return found, report


class TestVanishing:
    """What a broker deletes while it is read: the oldest log, queue and index files; config for a moment."""

    def test_files_that_have_expired(self, root: Path) -> None:
        log = sorted((root / "commitlog").iterdir())[:3]
        paths = [*log, queue_files(root)[0], queue_files(root, 1)[0]]
        found, report = vanish_while(root, paths)
        assert found == []
        assert report.vanished == {str(path.relative_to(root)) for path in paths}
        assert report.log_end is not None and report.files > 0

    def test_the_index(self, root: Path) -> None:
        (path,) = (root / "index").iterdir()
        found, report = vanish_while(root, [path])
        assert found == [] and report.vanished == {f"index/{path.name}"}

    @pytest.mark.parametrize("bounds", [Bounds(limit_bytes=9000), Bounds(sample=(1, 2)), Bounds(since_ms=1)])
    def test_with_bounds(self, root: Path, bounds: Bounds) -> None:
        paths = sorted((root / "commitlog").iterdir())[:2]
        found, _ = vanish_while(root, [*paths, queue_files(root)[0]], bounds=bounds)
        assert found == []

    def test_a_whole_topic(self, root: Path) -> None:
        found, report = vanish_while(root, [*queue_files(root), *queue_files(root, 1)])
        assert found == [] and len(report.vanished) == len({*report.vanished}) == 6

    def test_a_config_file_whose_bak_is_good(self, root: Path) -> None:
        """Not said to be vanished: the .bak stands for it, as for a file that was never there."""
        found, _ = vanish_while(root, [root / "config/topics.json"])
        assert [item.problem.code for item in found] == ["CF01"]

    def test_in_the_middle_of_the_walk(self, root: Path) -> None:
        """With one thread: as soon as the first file is read, the next ones and their units go."""
        log = sorted((root / "commitlog").iterdir())
        doomed = [*log[1:4], queue_files(root)[0], queue_files(root, 1)[0]]

        def delete(_: int) -> None:
            while doomed:
                doomed.pop().unlink()

        report = Report()
        with Store.open(root) as store:
            found = list(verify(store, passes=PASSES, jobs=1, report=report, progress=delete))
        assert [item.row() for item in found] == []
        assert {f"commitlog/{path.name}" for path in log[1:4]} >= report.vanished - {
            str(path.relative_to(root)) for path in (*queue_files(root), *queue_files(root, 1))
        } - {f"consumequeue/TopicTest/{n}/{file_name(0)}" for n in (0, 1)}

    def test_info_and_residency(self, root: Path) -> None:
        """They say what is left."""
        log = sorted((root / "commitlog").iterdir())
        with Store.open(root) as store:
            for path in (*log[:2], queue_files(root)[0], queue_files(root, 1)[-1], root / "checkpoint"):
                path.unlink()
            for path in (root / "index").iterdir():
                path.unlink()
            found = store_info(store)
            rows = list(residency_rows(store))
        assert found["checkpoint"] is None and found["commit_log"]["end_offset"] > 2 * LOG_FILE_SIZE
        assert len(rows) == len(log) - 2 + 2 * 3 - 2

    def test_every_file_of_a_queue_before_info(self, root: Path) -> None:
        with Store.open(root) as store:
            for path in (*queue_files(root), *queue_files(root, 1)):
                path.unlink()
            found = store_info(store)
        assert found["commit_log"]["last_store_timestamp"] is not None


def test_a_missing_queue_is_told_beside_other_damage(root: Path) -> None:
    """A bad record among a queue's records does not explain that the queue has no unit at all."""
    for path in queue_files(root):
        path.unlink()
    (root / "consumequeue/TopicTest/0").rmdir()
    patch(root / "commitlog" / file_name(LOG_FILE_SIZE), 0, b"\0\0\0\0")
    codes = codes_of(root)
    assert "CL04" in codes and "CQ13" in codes
