"""Log files that end in a long hole, or have the last name that is a long, are read to their end."""

from __future__ import annotations

import json
import subprocess
import sys
from os import truncate
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.formats import index
from tests import ROOT
from tests.support.whole_store import keyed, write_whole

LOG_FILE_SIZE = 1 << 20
COMMANDS = {
    "export": ["export", "STORE", "--output", "OUT/messages.parquet"],
    "stats": ["stats", "STORE"],
    "counts": ["dump", "STORE", "--stats-only"],
    "copy": ["copy", "STORE", "--output", "OUT/copy"],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    write_whole(path, keyed(160, body=20_000), log_file_size=LOG_FILE_SIZE, queue_file_size=4000,
                shape=index.Shape(500, 5000))  # fmt: skip
    return path


def command_of(name: str, root: Path, out: Path) -> list[str]:
    out.mkdir(exist_ok=True)
    return [word.replace("STORE", str(root)).replace("OUT", str(out)) for word in COMMANDS[name]]


def test_a_log_file_with_a_wrong_name_gets_its_own_back(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the line that verify and doctor print: nothing is lost, and no other file is missing."""
    file = sorted((root / "commitlog").iterdir())[1]
    wrong = file.rename(file.with_name(f"{int(file.name) + 1:020}"))
    line = f"mv -n {wrong} {file}"
    assert main(["verify", str(root), "--json"]) == 1
    found = capsys.readouterr()
    row = next(each for each in map(json.loads, found.out.splitlines()) if each["problem"] == "CL25")
    assert (row["repair"], row["detail"]) == (line, {"own_name": file.name})
    assert "CL20" not in found.out and "at stake" not in found.err
    assert f"before a broker starts, give the file its name back and run verify again: {line}" in found.err
    assert main(["doctor", str(root), "--no-host", "--json"]) == 1
    by_doctor = json.loads(capsys.readouterr().out)
    assert (by_doctor["next"], by_doctor["lost"]) == (line, [])
    assert "only has a wrong name" in by_doctor["verdict"] and "lost" not in by_doctor["verdict"]
    tar = root.with_suffix(".tar")  # nothing can be renamed in it
    subprocess.run(["tar", "-C", root.parent, "-cf", tar, root.name], check=True)
    assert main(["doctor", str(tar), "--no-host", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["next"] == "rmqtool problems CL25"
    assert main(["problems", "CL25", "--json"]) == 0
    assert "mv -n commitlog/NAME commitlog/OFFSET" in capsys.readouterr().out
    subprocess.run(line.split(), check=True)
    assert main(["verify", str(root)]) == 0


@pytest.mark.parametrize("name", ["counts", "stats", "export"])
def test_a_hole_behind_a_blank_is_not_read(root: Path, tmp_path: Path, name: str) -> None:
    """Its bytes are asked for by SEEK_DATA: to read 4 TiB of zeros would take half an hour."""
    first = min((root / "commitlog").iterdir())
    truncate(first, 4 << 40)
    if first.stat().st_blocks * 512 > 8 << 20:
        pytest.skip("this file system has no holes")
    command = [sys.executable, "-m", "rmqtool", *command_of(name, root, tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert run.returncode in (0, 1, 3, 4), (run.returncode, run.stderr)
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("name", ["stats", "export", "copy"])
def test_a_log_file_named_as_the_last_long(root: Path, tmp_path: Path, name: str) -> None:
    first = min((root / "commitlog").iterdir())
    (first.parent / f"{(1 << 63) - 1:020}").write_bytes(first.read_bytes())
    command = [sys.executable, "-m", "rmqtool", *command_of(name, root, tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert run.returncode in (0, 1, 3, 4), (run.returncode, run.stderr)
