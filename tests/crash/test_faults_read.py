"""Reads that fail, below libc: every one of every command that reads, and whole ranges of every file.

No answer is wrong in silence: where the output is another than without the fault, the exit code says so and a
message names the file. What can be read is still shown.

RMQTOOL_SWEEP=1 takes every operation, else a few of each command.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from rmqtool.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_OK, EXIT_REFUSED
from tests.faults import READS, Fault, Ran, Runner
from tests.faults.readers import COMMANDS, DATA, Runs, is_named
from tests.support.crash_child import Scenario, work
from tests.support.sweep import IS_WHOLE
from tests.support.trees import tree_rows
from tests.support.whole_store import write_everything

pytestmark = pytest.mark.sweep

SAMPLE = 2  # operations of a command
PAGE = 4096


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sound store with every sort of file."""
    root = tmp_path_factory.mktemp("everything") / "store"
    write_everything(root)
    return root


Undisturbed = Callable[[str], tuple[Runs, Ran, bytes]]


@pytest.fixture(scope="module")
def undisturbed(runner: Runner, everything: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A function that gives the runs of a command, the first of them, without a fault, and its output."""
    folder = tmp_path_factory.mktemp("runs")
    found: dict[str, tuple[Runs, Ran, bytes]] = {}

    def of(line: str) -> tuple[Runs, Ran, bytes]:
        if line not in found:
            made = folder / f"{len(found):02}"
            made.mkdir()
            runs = Runs(runner, everything, line, made)
            whole = runs.run(Fault(everything, READS), logged=True)
            found[line] = runs, whole, runs.output(whole)
        return found[line]

    return of


@pytest.mark.parametrize("line", COMMANDS)
def test_a_failed_read(undisturbed: Undisturbed, everything: Path, line: str) -> None:
    before = tree_rows(everything)
    runs, whole, wanted = undisturbed(line)
    assert whole.code in (EXIT_OK, EXIT_FINDINGS), whole.told
    numbers = range(1, len(whole.operations) + 1)
    for number in numbers if IS_WHOLE else sorted(Random(line).sample(numbers, SAMPLE)):
        ran = runs.run(Fault(everything, READS, number))
        what = f"{number}: {ran.hit}, exit {whole.code} before, now {ran.told}"
        assert ran.code in (EXIT_OK, EXIT_FINDINGS, EXIT_INPUT, EXIT_REFUSED), what
        assert "Traceback" not in ran.text and "this is a bug" not in ran.text, what
        if ran.code != EXIT_INPUT and runs.output(ran) == wanted:
            continue  # nothing depended on it, or it could be had elsewhere
        assert ran.code != EXIT_OK and is_named(everything, ran), what
    assert tree_rows(everything) == before


def files_of(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_file_that_cannot_be_read(undisturbed: Undisturbed, everything: Path, line: str) -> None:
    """Opened it can be; each reading of it fails."""
    runs, whole, wanted = undisturbed(line)
    names = files_of(everything)
    for name in names if IS_WHOLE else Random(line).sample(names, 1):
        fault = Fault(everything / name, DATA, 1, sticky=True)
        ran = runs.run(fault)
        what = f"{name}: exit {whole.code} before, now {ran.told}"
        assert ran.code in (EXIT_OK, EXIT_FINDINGS, EXIT_INPUT, EXIT_REFUSED), what
        assert "Traceback" not in ran.text and "this is a bug" not in ran.text, what
        if ran.code == EXIT_INPUT or runs.output(ran) != wanted:
            assert ran.code != EXIT_OK and is_named(everything, ran), what


FILE = "commitlog/00000000000000016384"  # of a log of files of 8 KiB
BAD = (16384 + PAGE, 16384 + 2 * PAGE)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of log files of 8 KiB."""
    root = tmp_path_factory.mktemp("written") / "store"
    work(root, Scenario(seed=5, steps=60), lambda row: None)
    return root


@pytest.fixture(scope="module")
def elsewhere(runner: Runner, written: Path) -> set[int]:
    """The offsets of the records of which no byte lies in the page."""
    ran = runner.run(["dump", written, "--format", "jsonl"], Fault(written))
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    start, stop = BAD
    found = {
        row["physical_offset"] for row in rows
        if row["physical_offset"] + row["size"] <= start or row["physical_offset"] >= stop
    }  # fmt: skip
    assert 0 < len(found) < len(rows)
    return found


class TestABlockOfTheLog:
    """One page of a log file: all records elsewhere are still shown, and where the page is."""

    @pytest.mark.parametrize("line", ["dump {store} --format jsonl", "tail {store} --format jsonl",
                                      "export {store} -o {new}.jsonl"])  # fmt: skip
    def test_the_rest_is_shown(
        self, runner: Runner, written: Path, elsewhere: set[int], tmp_path: Path, line: str
    ) -> None:
        runs = Runs(runner, written, line, tmp_path)
        whole = {row["physical_offset"] for row in self.rows(runs, Fault(written))[0]}
        fault = Fault(written / FILE, DATA, 1, sticky=True, part=(PAGE, 2 * PAGE))
        rows, ran = self.rows(runs, fault)
        found = {row["physical_offset"] for row in rows}
        assert ran.code == EXIT_INPUT, ran.told
        assert "CL12" in ran.text and FILE in ran.text, ran.told
        assert f"offset {BAD[0]}" in ran.text or line.startswith("tail"), ran.told
        assert found >= elsewhere & whole
        assert found < whole

    @staticmethod
    def rows(runs: Runs, fault: Fault) -> tuple[list[dict[str, int]], Ran]:
        ran = runs.run(fault)
        text = runs.made.read_bytes() if runs.made.exists() else ran.stdout
        return [json.loads(line) for line in text.splitlines()], ran

    def test_verify_finds_it_and_nothing_that_follows_from_it(self, runner: Runner, written: Path) -> None:
        fault = Fault(written / FILE, DATA, 1, sticky=True, part=(PAGE, 2 * PAGE))
        ran = runner.run(["verify", written, "--format", "jsonl"], fault)
        rows = [json.loads(line) for line in ran.stdout.splitlines()]
        places = {(row["problem"], row["path"], row["physical_offset"], row["length"]) for row in rows}
        assert ran.code == EXIT_INPUT, ran.told
        assert ("CL12", FILE, BAD[0], PAGE) in places
