"""What a command loads: no library that it does not need, and no other command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmqtool.commands import COMMANDS
from rmqtool.read.store import Store
from tests import ROOT
from tests.support.lookups import held_keys
from tests.support.stores import Library

CLEAN = "ok_540_clean"
ARRAYS = {"numpy", "llvmlite"}
RARE = {"numba", "pyarrow", "rich", "construct", "tabulate", "wcwidth", "pyspark", "lz4.frame", "matplotlib"}
"""Needed for compiling, for other formats and places, on a terminal, and for texts that are not ASCII."""
STARTS: dict[str, tuple[list[str], set[str]]] = {
    "version": (["--version"], RARE | ARRAYS | {"decimal", "ctypes"}),
    "info": (["info", "STORE"], RARE | ARRAYS | {"decimal"}),
    "look-up of a key": (["lookup", "STORE", "--key", "KEY"], RARE | ARRAYS | {"decimal", "ctypes"}),
    "dump": (
        ["dump", "STORE", "--limit", "3", "--json"],
        RARE | ARRAYS | {"decimal", "rmqtool.report.dump.timer"},
    ),
    "tail": (
        ["tail", "STORE", "--topic", "TOPIC", "--last", "3"],
        RARE | ARRAYS | {"decimal", "rmqtool.read.filter"},
    ),
    "verify": (["verify", "STORE"], RARE),
}
"""Arguments, and modules that the command does not load."""
SCRIPT = """
import os, sys, time
from rmqtool import __main__
code = __main__.main()
for _ in range(1000):  # a thread that has ended stays listed for a moment
    if len(os.listdir("/proc/self/task")) > 1:
        time.sleep(0.01)
with open(os.environ["REPORT"], "w") as report:
    print(len(os.listdir("/proc/self/task")), *sys.modules, file=report)
sys.exit(code)
"""


def started(arguments: list[str], tmp_path: Path) -> tuple[int, set[str]]:
    """The threads at the end of a run of the program, and the modules that it loaded; the run succeeds."""
    report = tmp_path / "report"
    subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], check=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "REPORT": str(report)},
    )  # fmt: skip
    threads, *modules = report.read_text().split()
    return int(threads), set(modules)


@pytest.mark.parametrize("start", STARTS)
def test_a_start_loads_what_it_needs(cases: Library, tmp_path: Path, start: str) -> None:
    """Each command in a process of its own."""
    store = cases.path(CLEAN)
    with Store.open(store) as opened:
        key, topic = next(iter(held_keys(opened))), next(iter(opened.messages())).message.topic
    arguments, unneeded = STARTS[start]
    values = {"STORE": str(store), "KEY": key, "TOPIC": topic}
    line = [values.get(each, each) for each in arguments]
    if start == "verify":
        started(line, tmp_path)  # compiles the kernels if they changed
    _, modules = started(line, tmp_path)
    assert "rmqtool.cli" in modules
    assert not modules & unneeded
    commands = {name for name in COMMANDS if f"rmqtool.commands.{name}" in modules}
    assert commands <= {arguments[0]}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_numpy_starts_no_threads(cases: Library, tmp_path: Path) -> None:
    """OpenBLAS has a thread per core unless it is asked not to; a start pays for each."""
    threads, modules = started(["verify", str(cases.path(CLEAN)), "--pass", "index"], tmp_path)
    assert "numpy" in modules
    assert threads == 1
