"""A store that is written while it is read: no false findings, no error, exit code 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqtool.check.verify import PASSES, Bounds, Report, files, verify
from rmqtool.check.verify.files import check_files
from rmqtool.formats.consume_queue import UNIT, UNIT_SIZE
from rmqtool.problems import Finding
from rmqtool.read.store import Store
from rmqtool.report.info import store_info
from rmqtool.report.residency import residency_rows
from tests.support.build_store import file_name, patch
from tests.support.programs import PATIENCE_S, ROOT, started
from tests.support.whole_store import keyed, write_whole

# A broker's abort file, what its dispatch has not reached, and a log file made ahead.
EXPECTED = {"CP04", "CQ01", "IX08", "CL24"}


@contextmanager
def broker(root: Path, first: int = 4000, kept: int = 12) -> Iterator[int]:
    """The writer, running while the block does; gives its process id. It has ended well afterwards."""
    command = [sys.executable, "-m", "tests.support.live_writer", str(root), str(first), str(kept)]
    with started(command, stderr=None, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        try:
            yield process.pid
            assert process.poll() is None
        finally:
            written, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and int(written) >= first


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store in use whose oldest files vanish."""
    path = tmp_path_factory.mktemp("live") / "store"
    with broker(path):
        yield path


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store in use whose files all stay."""
    path = tmp_path_factory.mktemp("growing") / "store"
    with broker(path, 1500, kept=10_000):
        yield path


def rows_of(root: Path, report: Report, bounds: Bounds | None = None) -> list[dict[str, object]]:
    with Store.open(root) as store:
        return [item.row() for item in verify(store, passes=PASSES, bounds=bounds, report=report)]


@pytest.mark.parametrize("bounds", [None, None, Bounds(limit_bytes=300_000), Bounds(sample=(1, 2))])
def test_verify_finds_nothing_that_is_not_so(root: Path, bounds: Bounds | None) -> None:
    report = Report()
    rows = rows_of(root, report, bounds)
    assert {row["problem"] for row in rows} <= EXPECTED, rows
    assert report.live and report.records > 100  # files vanish before they are read: few, on a slow machine


def test_real_damage_is_still_found(tmp_path: Path) -> None:
    """Of units that dispatch has passed long ago."""
    root = tmp_path / "store"
    with broker(root, 1500, kept=10_000):
        path = root / "consumequeue/Topic0/0" / file_name(0)
        wrong, missing = 50 * UNIT_SIZE, 70 * UNIT_SIZE
        patch(path, wrong + UNIT.offsets["size"], (7).to_bytes(4))
        patch(path, missing, bytes(UNIT_SIZE))
        rows = rows_of(root, Report())
    found = [(row["problem"], row["physical_offset"]) for row in rows if row["problem"] not in EXPECTED]
    assert found == [("CQ08", missing), ("CQ05", wrong)], rows


def test_info(root: Path) -> None:
    for _ in range(5):
        with Store.open(root) as store:
            found = store_info(store)
            rows = list(residency_rows(store))
        assert found["state"]["lock"] == "held" and found["state"]["lock_holder_pid"] is not None
        assert found["commit_log"]["end_offset"] > found["commit_log"]["min_offset"] > 0
        assert found["behind"]["queues_bytes"] < 1 << 20
        assert sum(topic["messages"] for topic in found["topics"]) > 500
        assert rows


def test_reading_from_python(root: Path) -> None:
    """What is read is sound; where files are deleted in front of the reader it may end early."""
    for reverse in (False, True):
        with Store.open(root) as store:
            read = [item.status for item in store.messages(reverse=reverse, damage="skip")]
        assert len(read) > 300 and not any(read)


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--json"],
        ["verify", "--limit-bytes", "200K", "--jobs", "1", "--json"],
        ["info", "--residency", "--queues"],
        ["dump", "--from-offset", "0"],
        ["dump", "--what", "consumequeue"],
        ["dump", "--what", "index"],
        ["dump", "--stats-only"],
    ],
    ids=" ".join,
)
def test_commands_end_with_0(root: Path, growing: Path, arguments: list[str]) -> None:
    command, *options = arguments
    store = growing if command == "dump" else root
    done = subprocess.run(
        [sys.executable, "-m", "rmqtool", command, str(store), *options],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if command == "verify":
        assert "a broker is using the store" in done.stderr
        assert {json.loads(line)["severity"] for line in done.stdout.splitlines()} == {"note"}


def test_afterwards_everything_is_sound(tmp_path: Path) -> None:
    """The writer itself: once it has stopped nothing is left to say."""
    with broker(tmp_path / "store", 3000) as process:
        with Store.open(tmp_path / "store") as store:
            assert store.holder.pid == process
    report = Report()
    assert rows_of(tmp_path / "store", report) == []
    assert not report.live and not report.vanished


NEW_FILES = ("commitlog/{:020}", "consumequeue/TopicTest/0/{:020}", "index/20991231235959{:03}")
SIZE_CODES = {"CL21", "CL23", "CQ09", "IX06"}


@pytest.mark.parametrize("name", NEW_FILES)
@pytest.mark.parametrize("is_made", [True, False])
def test_a_file_without_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_made: bool
) -> None:
    """A broker gives a file its length after it has created it. Only in its store is there time for that."""
    monkeypatch.setattr(files, "WAIT_S", PATIENCE_S if is_made else 0.2)
    write_whole(tmp_path, keyed(40))
    sample = next(iter(sorted((tmp_path / name).parent.iterdir())))
    size = sample.stat().st_size
    number = size * len(list(sample.parent.iterdir())) if "index" not in name else 1
    path = tmp_path / name.format(number)
    path.touch()
    with Store.open(tmp_path) as store:
        assert codes(check_files(store.layout, store.profile)) & SIZE_CODES
        made = threading.Timer(0.3, lambda: os.truncate(path, size))
        if is_made:
            made.start()
        found = codes(check_files(store.layout, store.profile, live=True))
        assert bool(found & SIZE_CODES) is not is_made
        made.cancel()
    path.unlink()
    assert not codes(check_files(store.layout, store.profile, live=True)) & SIZE_CODES


def codes(findings: Iterable[Finding]) -> set[str]:
    return {each.problem.code for each in findings}
