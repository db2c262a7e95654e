"""Log files that end in a long hole, or have the last name that is a long, are read to their end."""

from __future__ import annotations

import subprocess
import sys
from os import truncate
from pathlib import Path

import pytest

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
