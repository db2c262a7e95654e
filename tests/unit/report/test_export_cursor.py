"""`rmqtool export --cursor-file`: runs one after the other export every message once, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.report.export import run as engine
from rmqtool.report.export.outputs import Draft
from rmqtool.write.store_writer import StoreWriter
from tests import ROOT
from tests.support.exports import Ran, append_numbered, put_numbered, ran, small_store

Run = Callable[..., Ran]
FOLDER = ("--output-format", "jsonl", "--file-size", "32K")
CHILD = """
import os, signal, sys
from rmqtool.cli import main
from rmqtool.report.export import cursor, outputs
place, at, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
calls = 0
def killing(original, before):
    def call(*given, **named):
        global calls
        calls += 1
        if calls == at and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*given, **named)
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
owner, name = {"begin": (outputs.OutputTarget, "begin"), "finish": (outputs.OutputTarget, "finish"),
               "save": (cursor.Cursor, "save")}[place.partition("-")[0]]
setattr(owner, name, killing(getattr(owner, name), place.endswith("-before")))
sys.exit(main(arguments))
"""


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `export`."""

    def run(store: Path, *arguments: object) -> Ran:
        code = main(["export", str(store), *map(str, arguments), "--format", "json"])
        captured = capfdbinary.readouterr()
        return ran(code, captured.out, captured.err)

    return run


def exported(folder: Path) -> list[str]:
    """The keys of all messages in the files of a folder, in the order of their names."""
    lines = [
        line for path in sorted(folder.rglob("messages-*.jsonl")) for line in path.read_text().splitlines()
    ]
    return [json.loads(line)["keys"][0] for line in lines]


def numbered(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


def test_a_cursor_is_a_local_file(tmp_path: Path, run: Run) -> None:
    """A URL was taken for a path below a folder `s3:`."""
    store = small_store(tmp_path / "s", 3)
    for cursor in ("s3://bucket/cursor", "hdfs://host/cursor"):
        found = run(store, "--output", tmp_path / "a.jsonl", "--cursor-file", cursor)
        assert found.code == 2 and "must be a local file" in found.err
    found = run(store, "--output", tmp_path / "a.jsonl", "--cursor-file", f"file://{tmp_path}/c")
    assert found.code == 0 and (tmp_path / "c").exists()


def test_a_cursor_is_the_users_file(tmp_path: Path, run: Run) -> None:
    """Not open to all who may write into its folder; its mode stays."""
    store, folder = small_store(tmp_path / "s", 3), tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    cursor = folder / "cursor"
    before = os.umask(0o027)
    try:
        assert run(store, "--output", tmp_path / "a.jsonl", "--limit", 1, "--cursor-file", cursor).code == 0
    finally:
        os.umask(before)
    assert cursor.stat().st_mode & 0o777 == 0o640
    cursor.chmod(0o600)
    assert run(store, "--output", tmp_path / "b.jsonl", "--cursor-file", cursor).code == 0
    assert cursor.stat().st_mode & 0o777 == 0o600


def test_runs_go_on_where_the_one_before_ended(tmp_path: Path, run: Run) -> None:
    store, cursor = small_store(tmp_path / "s", 40), tmp_path / "cursor"
    for count in (40, 40, 100, 101):
        append_numbered(store, len(exported(tmp_path / "out")) if count > 40 else 40, count)
        found = run(store, "--output", f"{tmp_path}/out/", *FOLDER, "--cursor-file", cursor)
        assert found.code == 0, found.err
        assert exported(tmp_path / "out") == numbered(count)
        assert json.loads(cursor.read_text())["next_offset"] == found.out["next_offset"]
    assert found.out["messages"] == 1


def test_while_it_is_written(tmp_path: Path, run: Run) -> None:
    """What is there when a run begins is exported by it."""
    store, cursor = small_store(tmp_path / "s", 1), tmp_path / "cursor"
    with StoreWriter.open(store, reserve=False) as writer:
        for count in (20, 20, 60):
            put_numbered(writer, len(exported(tmp_path / "out")) or 1, count)
            found = run(store, "--output", f"{tmp_path}/out/", *FOLDER, "--cursor-file", cursor)
            assert found.code == 0, found.err
            assert exported(tmp_path / "out") == numbered(count)


def test_single_files(tmp_path: Path, run: Run) -> None:
    """A name of its own for each run; one without a message is a file too."""
    store, cursor = small_store(tmp_path / "s", 3), tmp_path / "cursor"
    counts = []
    for number in range(3):
        found = run(store, "--output", tmp_path / f"{number}.csv", "--cursor-file", cursor)
        counts.append(found.out["messages"])
        append_numbered(store, 3, 5) if number == 0 else None
    assert counts == [3, 2, 0]
    for force in ((), ("--force",)):  # what it holds is exported by no later run
        before = (tmp_path / "0.csv").read_bytes()
        assert run(store, "--output", tmp_path / "0.csv", "--cursor-file", cursor, *force).code == 4
        assert (tmp_path / "0.csv").read_bytes() == before


def test_a_limit_ends_behind_the_last_message(tmp_path: Path, run: Run) -> None:
    store, cursor = small_store(tmp_path / "s", 25), tmp_path / "cursor"
    sizes = [
        run(store, "--output", tmp_path / f"{number}.csv", "--cursor-file", cursor, "--limit", 10).out[
            "messages"
        ]
        for number in range(4)
    ]
    assert sizes == [10, 10, 5, 0]
    other = tmp_path / "other"
    for limit, count in ((0, 0), (99, 25)):
        found = run(
            store, "--output", tmp_path / f"other{limit}.csv", "--cursor-file", other, "--limit", limit
        )
        assert found.out["messages"] == count


def test_files_that_expired_in_between_are_told(tmp_path: Path, run: Run) -> None:
    store, cursor = small_store(tmp_path / "s", 20), tmp_path / "cursor"
    arguments = ("--output", f"{tmp_path}/out/", *FOLDER, "--cursor-file", cursor)
    first = run(store, *arguments).out["next_offset"]
    append_numbered(store, 20, 500)
    logs = sorted((store / "commitlog").iterdir())
    for path in logs[:2]:
        path.unlink()
    found = run(store, *arguments)
    assert found.code == 1
    assert f"bytes {first} to {2 * (64 << 10)}" in found.err
    keys = exported(tmp_path / "out")
    assert len(set(keys)) == len(keys) > 40
    assert run(store, *arguments).code == 0


def test_expiry_of_what_was_exported_is_no_loss(tmp_path: Path, run: Run) -> None:
    store, cursor = small_store(tmp_path / "s", 300), tmp_path / "cursor"
    arguments = ("--output", f"{tmp_path}/out/", *FOLDER, "--cursor-file", cursor)
    run(store, *arguments)
    for path in sorted((store / "commitlog").iterdir())[:2]:
        path.unlink()
    append_numbered(store, 300, 320)
    found = run(store, *arguments)
    assert (found.code, exported(tmp_path / "out")) == (0, numbered(320))


def test_another_log_or_selection_is_refused(tmp_path: Path, run: Run) -> None:
    store, other = small_store(tmp_path / "s", 20), small_store(tmp_path / "o", 30)
    cursor = tmp_path / "cursor"
    arguments = ("--output", f"{tmp_path}/out/", *FOLDER, "--cursor-file", cursor)
    run(store, *arguments)
    before = cursor.read_bytes()
    assert run(other, *arguments).code == 4
    assert run(small_store(tmp_path / "short", 2), *arguments).code == 4
    assert run(store, *arguments, "--topic", "T").code == 4
    assert run(store, *arguments, "--filter", "TAGS = 'A'").code == 4
    assert cursor.read_bytes() == before


def test_a_filter_is_part_of_the_selection(tmp_path: Path, run: Run) -> None:
    """Runs with it go on; one with another, or without, is refused."""
    store, cursor = small_store(tmp_path / "s", 20), tmp_path / "cursor"
    arguments = ("--output", f"{tmp_path}/out/", *FOLDER, "--cursor-file", cursor)
    wanted = ("--filter", "KEYS IN ('k3', 'k7', 'k11', 'k22')")
    assert run(store, *arguments, *wanted, "--limit", 2).out["messages"] == 2
    append_numbered(store, 20, 25)
    before = cursor.read_bytes()
    assert run(store, *arguments).code == 4
    assert run(store, *arguments, "--filter", "KEYS = 'k3'").code == 4
    assert cursor.read_bytes() == before
    assert run(store, *arguments, *wanted).out["messages"] == 2
    assert exported(tmp_path / "out") == ["k3", "k7", "k11", "k22"]


def test_a_lost_cursor_does_not_export_twice(tmp_path: Path, run: Run) -> None:
    store, cursor = small_store(tmp_path / "s", 20), tmp_path / "cursor"
    arguments = ("--output", f"{tmp_path}/out/", *FOLDER, "--cursor-file", cursor)
    run(store, *arguments)
    cursor.unlink()
    assert run(store, *arguments).code == 4
    assert exported(tmp_path / "out") == numbered(20)


UNFINISHED = {"output": "/etc/passwd", "next_offset": 5, "check": None}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"version": 1}', "\x00" * 99, "[" * 100_000] + [
        json.dumps({"version": 1, "next_offset": 0, "check": None, "selection": {}} | change)
        for change in (
            {"version": 2}, {"next_offset": -1}, {"next_offset": 1 << 64}, {"next_offset": "x"}, {"more": 1},
            {"check": {"length": 1 << 40, "crc32": 0}}, {"selection": []}, {"selection": {"topics": ["a"]}},
            {"unfinished": {**UNFINISHED, "next_offset": -3}}, {"next_offset": 1 << 50},
            {"unfinished": {**UNFINISHED, "output": "s3://elsewhere/x"}},
            {"unfinished": {**UNFINISHED, "output": "s3://"}},
        )
    ],
)  # fmt: skip
def test_a_cursor_is_untrusted(tmp_path: Path, run: Run, text: str) -> None:
    """One clear error; nothing is written."""
    store, cursor = small_store(tmp_path / "s", 2), tmp_path / "cursor"
    cursor.write_text(text)
    found = run(store, "--output", f"{tmp_path}/out/", *FOLDER, "--cursor-file", cursor)
    assert found.code in (2, 3, 4), found.err
    assert cursor.read_text() == text
    assert not (tmp_path / "out").exists()


# killed


def killed(place: str, at: int, store: Path, *arguments: object) -> int:
    """A run that kills itself; its exit code."""
    command = [sys.executable, "-c", CHILD, place, str(at), "export", str(store), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


@pytest.mark.parametrize(("place", "at"), [("begin", 2), ("finish-before", 1), ("finish", 2), ("save", 2)])
def test_a_killed_run_is_made_up_for(tmp_path: Path, run: Run, place: str, at: int) -> None:
    """Every message once, although the log has grown and files end elsewhere the second time."""
    store, cursor = small_store(tmp_path / "s", 200), tmp_path / "cursor"
    arguments = ("--output", f"{tmp_path}/out/", *FOLDER, "--cursor-file", cursor)
    assert killed(place, at, store, *arguments) == -signal.SIGKILL
    seen = exported(tmp_path / "out")
    assert seen == numbered(len(seen))
    append_numbered(store, 200, 220)
    found = run(store, *arguments, "--file-size", "64K")
    assert found.code == 0, found.err
    assert exported(tmp_path / "out") == numbered(220)
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("place", ["finish-before", "finish"])
def test_a_killed_run_of_one_file(tmp_path: Path, run: Run, place: str) -> None:
    """It has appeared or it has not: the next run knows."""
    store, cursor = small_store(tmp_path / "s", 20), tmp_path / "cursor"
    assert killed(place, 1, store, "--output", tmp_path / "one.jsonl", "--cursor-file", cursor) < 0
    append_numbered(store, 20, 30)
    found = run(store, "--output", tmp_path / "two.jsonl", "--cursor-file", cursor)
    appeared = place == "finish"
    assert (found.code, found.out["messages"]) == (0, 10 if appeared else 30)
    assert (tmp_path / "one.jsonl").exists() == appeared
    assert ("had finished" in found.err) == appeared


def test_a_killed_run_of_partitions(tmp_path: Path, run: Run) -> None:
    from pyarrow import parquet

    store, cursor = small_store(tmp_path / "s", 20), tmp_path / "cursor"
    append_numbered(store, 20, 40, "U")
    arguments = ("--output", f"{tmp_path}/out/", "--output-format", "parquet", "--partition-by", "topic",
                 "--cursor-file", cursor)  # fmt: skip
    assert killed("finish", 1, store, *arguments) < 0
    assert len(list((tmp_path / "out").rglob("messages-*.parquet"))) == 1
    assert run(store, *arguments).code == 0
    assert len(parquet.read_table(tmp_path / "out")) == 40
    assert not list((tmp_path / "out").rglob(".*"))


# errors on the way


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The second file cannot be finished."""
    finish, calls = Draft.commit, []

    def commit(draft: Draft) -> None:
        calls.append(draft)
        if len(calls) == 2:
            with draft.explained():
                raise OSError(28, "No space left on device")
        finish(draft)

    monkeypatch.setattr(Draft, "commit", commit)
    yield


def test_an_error_leaves_nothing_by_half(tmp_path: Path, run: Run, full: Any) -> None:
    store, cursor = small_store(tmp_path / "s", 200), tmp_path / "cursor"
    arguments = ("--output", f"{tmp_path}/out/", *FOLDER, "--cursor-file", cursor)
    found = run(store, *arguments)
    assert found.code == 3
    assert "No space left on device" in found.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["messages-00000000000000000000.jsonl"]
    assert run(store, *arguments).code == 0
    assert exported(tmp_path / "out") == numbered(200)


def test_an_interrupt_leaves_nothing_by_half(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(batch: object) -> int:
        raise KeyboardInterrupt

    store = small_store(tmp_path / "s", 20)
    monkeypatch.setattr(engine, "_end_of", interrupt)
    assert main(["export", str(store), "--output", str(tmp_path / "a.csv")]) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]
