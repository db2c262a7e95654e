"""`rmqtool export` and `copy` among pipes, links, other runs and made-up cursors: nothing else is harmed."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.storage.claim import claim_file
from tests.support.exports import Ran, ran, small_store
from tests.support.programs import PATIENCE_S
from tests.support.remote import pack
from tests.support.trees import tree_digest

Run = Callable[..., Ran]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `export`, or another command."""

    def run(*arguments: object, command: str = "export") -> Ran:
        code = main([command, *map(str, arguments), "--format", "json"])
        captured = capfdbinary.readouterr()
        return ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return small_store(tmp_path / "s", 9)


def test_force_replaces_plain_files_only(tmp_path: Path, store: Path, run: Run) -> None:
    pipe, link = tmp_path / "pipe.csv", tmp_path / "link.csv"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    for path in (pipe, link):
        for force in ((), ("--force",)):
            assert run(store, "--output", path, *force).code == 4
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert not list(tmp_path.glob(".*"))


def test_a_link_without_a_target_is_there(tmp_path: Path, store: Path, run: Run) -> None:
    (tmp_path / "a.csv").symlink_to("nowhere")
    assert run(store, "--output", tmp_path / "a.csv").code == 4
    assert (tmp_path / "a.csv").is_symlink()


def test_what_lies_where_the_draft_would(tmp_path: Path, store: Path, run: Run) -> None:
    """Nothing is written through a link, no pipe is waited for; what a killed run left is taken over."""
    draft, victim = tmp_path / ".a.csv.rmqtool-part", tmp_path / "victim"
    victim.write_text("keep")
    draft.symlink_to(victim)
    found = run(store, "--output", tmp_path / "a.csv")
    assert (found.code, len(found.err.splitlines())) == (3, 2)
    assert victim.read_text() == "keep"
    draft.unlink()
    os.mkfifo(draft)
    assert run(store, "--output", tmp_path / "a.csv").code == 3
    draft.unlink()
    draft.write_text("by half" * 10_000)
    assert run(store, "--output", tmp_path / "a.csv").code == 0
    assert "by half" not in (tmp_path / "a.csv").read_text()
    assert not draft.exists()


def test_two_runs_with_one_output_or_cursor(tmp_path: Path, store: Path, run: Run) -> None:
    draft, lock = tmp_path / ".a.csv.rmqtool-part", tmp_path / ".cursor.rmqtool-lock"
    arguments = (store, "--output", tmp_path / "a.csv", "--cursor-file", tmp_path / "cursor")
    for path in (draft, lock):
        descriptor = claim_file(str(path), "it")
        found = run(*arguments)
        assert (found.code, "another run" in found.err) == (4, True)
        assert path.exists()
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
    assert not (tmp_path / "cursor").exists()
    assert run(*arguments).code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"s", "a.csv", "cursor"}


def test_the_cursor_is_no_output(tmp_path: Path, store: Path, run: Run) -> None:
    (tmp_path / "here").symlink_to(".")
    found = run(store, "--output", tmp_path / "a.csv", "--cursor-file", tmp_path / "here" / "a.csv")
    assert (found.code, (tmp_path / "a.csv").exists()) == (2, False)


@pytest.mark.parametrize("output", ["", "/", "a\0b", "s3://user:pass-word@bucket/x"])
def test_a_cursor_that_was_made_up(tmp_path: Path, store: Path, run: Run, output: str) -> None:
    cursor = {"version": 1, "next_offset": 0, "check": None, "selection": {},
              "unfinished": {"output": output, "next_offset": 0, "check": None}}  # fmt: skip
    (tmp_path / "cursor").write_text(json.dumps(cursor))
    found = run(store, "--output", tmp_path / "a.csv", "--cursor-file", tmp_path / "cursor")
    assert found.code == (4 if "://" in output else 3)
    assert "pass-word" not in found.err
    assert not (tmp_path / "a.csv").exists()


def test_a_part_of_a_store_stands_for_all_of_it(tmp_path: Path, store: Path, run: Run) -> None:
    """Where a file or the log alone is read, nothing is written into its store either."""
    before, log = tree_digest(store), store / "commitlog"
    for source in (log, log / f"{0:020}", store / "consumequeue" / "T" / "0" / f"{0:020}"):
        for place in (store / "new.csv", log / "new.csv", store / "consumequeue" / "T" / "new.csv"):
            assert run(source, "--output", place).code == 4
            assert run(source, "--output", place.with_suffix(""), command="copy").code == 4
    archive = pack(store, tmp_path / "s.tar")
    content = archive.read_bytes()
    assert run(archive, "--output", archive, "--output-format", "csv", "--force").code == 4
    assert archive.read_bytes() == content
    assert tree_digest(store) == before


def test_a_file_beside_a_file_of_a_log(tmp_path: Path, store: Path, run: Run) -> None:
    """A single file that lies anywhere keeps nobody out of its folder."""
    alone = (store / "commitlog" / f"{0:020}").rename(tmp_path / f"{0:020}")
    assert run(alone, "--output", tmp_path / "a.csv").code == 0
    assert run(alone, "--output", alone, "--output-format", "csv", "--force").code == 4


def test_every_form_of_a_local_url(
    tmp_path: Path, store: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`file:/`, as Hadoop writes it, is no folder called `file:`; none of them leads into the store."""
    monkeypatch.chdir(tmp_path)
    for number, form in enumerate(("file:", "file://", "file://localhost")):
        assert run(store, "--output", f"{form}{tmp_path}/{number}.csv").code == 0
        assert (tmp_path / f"{number}.csv").is_file()
        assert run(store, "--output", f"{form}{store}/{number}.csv").code == 4
    assert not (tmp_path / "file:").exists()


@pytest.mark.parametrize("name", ["\udcff.csv", "\udcff/a.csv"])
def test_a_name_that_is_not_utf_8(tmp_path: Path, store: Path, run: Run, name: str) -> None:
    """Arrow cannot open it: nothing is left of it."""
    found = run(store, "--output", tmp_path / name)
    assert (found.code, "the name is not UTF-8" in found.err) == (3, True)
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


def test_a_copy_has_no_url(tmp_path: Path, store: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(store, "--output", "s3://bucket/new", command="copy").code == 2
    assert run(store, "--output", "", command="copy").code == 2
    assert not (tmp_path / "s3:").exists()
    assert run(store, "--output", f"file://{tmp_path}/new", "--no-reserve", command="copy").code == 0
    assert (tmp_path / "new" / "commitlog").is_dir()


def test_a_topic_to_rename_that_is_not_there(tmp_path: Path, store: Path, run: Run) -> None:
    found = run(store, "--output", tmp_path / "new", "--no-reserve", "--rename-topic", "TT=U", command="copy")
    assert (found.code, "TT: the store has no topic with this name" in found.err) == (2, True)
    assert not (tmp_path / "new").exists()
    found = run(store, "--output", tmp_path / "n2", "--no-reserve", "--rename-topic", "T=U", command="copy")
    assert (found.code, found.out["topics"]) == (0, [{"topic": "U", "messages": 9}])


@pytest.mark.parametrize("format", ["orc", "parquet", "csv.gz"])
def test_a_device_without_space(tmp_path: Path, store: Path, format: str) -> None:
    """One error and exit 3, in a process of its own: libraries have ended it when they were let go of."""
    code = (
        "import resource, signal, sys; sys.dont_write_bytecode = True\n"
        "from rmqtool.cli import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    output = tmp_path / f"a.{format}"
    found = subprocess.run(
        [sys.executable, "-c", code, "export", store, "--output", output],
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert (found.returncode, len(found.stderr.splitlines())) == (3, 1), found.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


@pytest.mark.parametrize("option", ["--output", "--cursor-file"])
def test_links_in_a_circle(tmp_path: Path, store: Path, run: Run, option: str) -> None:
    """Told as what the system says of them."""
    (tmp_path / "loop").symlink_to("loop")
    given = {"--output": f"{tmp_path}/out.csv", option: f"{tmp_path}/loop/x.csv"}
    found = run(store, *(word for pair in given.items() for word in pair))
    assert found.code == 3 and "/loop/" in found.err


def test_a_topic_that_is_not_there_writes_no_file(tmp_path: Path, store: Path, run: Run) -> None:
    """The next run with the right name finds the place free; a known topic gives an empty file."""
    for output in ("a.csv", "a.parquet", "a.jsonl"):
        for name, text in (("TT", "no topic TT"), ("t*", "no topic that matches t*; upper and lower case")):
            found = run(store, "--output", tmp_path / output, "--topic", name)
            assert found.code == 1 and text in found.err and not (tmp_path / output).exists()
        late = ("--since", "2100-01-01")
        assert run(store, "--output", tmp_path / output, "--topic", "T*", *late).out["messages"] == 0
        assert (tmp_path / output).exists()
        both = run(store, "--output", tmp_path / f"b{output}", "--topic", "TT", "--topic", "T")
        assert both.out["messages"] > 0 and (tmp_path / f"b{output}").exists()
