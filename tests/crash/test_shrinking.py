"""Readers whose files become shorter while they read, or give fewer bytes than were asked for.

Below libc: a file is cut when an operation on it begins. No reader ends by a signal or a traceback, the rest
of the store is shown, and of a log file it is said from where on it cannot be read.

RMQTOOL_SWEEP=1 takes every operation, else a few of each command.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from random import Random

import pytest

from rmqtool.errors import (
    EXIT_FINDINGS,
    EXIT_IN_USE,
    EXIT_INPUT,
    EXIT_OK,
    EXIT_REFUSED,
    UnreadableError,
)
from rmqtool.read.key_columns import ColumnLookup
from rmqtool.read.store import Store
from tests.faults import Fault, Ran, Runner
from tests.faults.readers import COMMANDS, DATA, Runs, is_named
from tests.support.sweep import IS_WHOLE
from tests.support.whole_store import keyed, write_everything, write_whole

pytestmark = pytest.mark.sweep

SAMPLE = 2  # operations of a command
ENDS = (EXIT_OK, EXIT_FINDINGS, EXIT_INPUT, EXIT_REFUSED, EXIT_IN_USE)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sound store with every sort of file; a test gives back what it cuts."""
    root = tmp_path_factory.mktemp("everything") / "store"
    write_everything(root)
    return root


class Kept:
    """A file of a store, that is the same afterwards."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.status = path, path.read_bytes(), path.stat()

    def restore(self) -> None:
        with self.path.open("wb") as file:
            file.write(self.data)
            file.flush()
            os.fsync(file.fileno())  # else the file system may not have given it its blocks yet
        os.utime(self.path, ns=(self.status.st_atime_ns, self.status.st_mtime_ns))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_file_is_cut(runner: Runner, everything: Path, tmp_path: Path, line: str) -> None:
    """Before it is opened, or before any reading of it."""
    runs = Runs(runner, everything, line, tmp_path)
    whole = runs.run(Fault(everything, ("open", *DATA)), logged=True)
    wanted = runs.output(whole)
    random = Random(line)
    operations = list(enumerate(whole.operations))
    for number, operation in operations if IS_WHOLE else sorted(random.sample(operations, SAMPLE)):
        path = Path(operation.partition(" ")[2])
        if not path.is_file() or not path.stat().st_size:
            continue
        kept = Kept(path)
        size = random.choice([0, len(kept.data) // 2])
        first = sum(each.partition(" ")[2] == str(path) for each in whole.operations[: number + 1])
        try:
            ran = runs.run(Fault(path, ("open", *DATA), first, how="cut", size=size))
            output = runs.output(ran)
            is_same = output == wanted
            if not is_same and line.startswith("rebuild"):
                # A plan is made again where the store has changed: then it is one for the store as it is now.
                is_same = output == runs.output(runs.run(Fault(everything)))
        finally:
            kept.restore()
        what = f"{operation} ({first}), cut to {size}: exit {whole.code} before, now {ran.told}"
        assert ran.code in ENDS, what
        assert "Traceback" not in ran.text and "this is a bug" not in ran.text, what
        if not is_same and path.parent.name == "commitlog":
            assert ran.code != EXIT_OK and is_named(everything, ran), what


@pytest.mark.parametrize("line", COMMANDS)
def test_reads_that_give_half(runner: Runner, everything: Path, tmp_path: Path, line: str) -> None:
    """A read may give fewer bytes than are there: the rest is read then, and nothing is another answer."""
    runs = Runs(runner, everything, line, tmp_path)
    whole = runs.run(Fault(everything))
    wanted = runs.output(whole)
    ran = runs.run(Fault(everything, DATA, 1, sticky=True, how="short"))
    assert (ran.code, runs.output(ran)) == (whole.code, wanted), ran.told


LOG_FILE_SIZE = 1 << 18
FILE = "commitlog/00000000000000262144"
CUT = 100_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four log files, records of 20 KB."""
    root = tmp_path_factory.mktemp("large") / "store"
    write_whole(root, keyed(40, body=20_000), log_file_size=LOG_FILE_SIZE, queue_file_size=4000)
    return root


class TestALogFile:
    """One log file is cut: every record of the other files is shown, and of this one those in front."""

    @pytest.mark.parametrize("when", ["open", "pread"])
    @pytest.mark.parametrize(
        "line",
        ["dump {store} --format jsonl", "dump {store} --reverse --format jsonl",
         "export {store} -o {new}.jsonl", "tail {store} --format jsonl"],
    )  # fmt: skip
    def test_the_rest_is_shown(
        self, runner: Runner, large: Path, tmp_path: Path, line: str, when: str
    ) -> None:
        runs = Runs(runner, large, line, tmp_path)
        whole = self.offsets(runs, runs.run(Fault(large)))
        kept = Kept(large / FILE)
        try:
            ran = runs.run(Fault(kept.path, (when,), 1, how="cut", size=CUT))
        finally:
            kept.restore()
        rows = self.offsets(runs, ran)
        edge = LOG_FILE_SIZE + CUT
        assert rows < whole and ran.code == EXIT_INPUT, ran.told
        assert rows >= {at for at in whole if at + 20_400 <= edge or at >= 2 * LOG_FILE_SIZE}, ran.told
        assert "CL12" in ran.text and FILE in ran.text, ran.told
        assert "CL05" not in ran.text and "CL11" not in ran.text, ran.told

    @staticmethod
    def offsets(runs: Runs, ran: Ran) -> set[int]:
        text = runs.made.read_bytes() if runs.made.exists() else ran.stdout
        return {json.loads(line)["physical_offset"] for line in text.splitlines()}

    @pytest.mark.parametrize(
        "line", ["verify {store} --format jsonl", "dump {store} --stats-only", "stats {store}"]
    )
    def test_the_place_is_told(self, runner: Runner, large: Path, tmp_path: Path, line: str) -> None:
        runs = Runs(runner, large, line, tmp_path)
        kept = Kept(large / FILE)
        try:
            ran = runs.run(Fault(kept.path, DATA, 1, how="cut", size=CUT))
        finally:
            kept.restore()
        text = ran.text + ran.stdout.decode()
        assert ran.code == EXIT_INPUT, ran.told
        assert "CL12" in text and FILE in text and str(LOG_FILE_SIZE + CUT) in text, text
        for code in ("CL02", "CL04", "CL05", "CL08", "CL11"):  # what follows from it is not damage
            assert code not in text, text


def test_many_keys_in_a_log_file_that_was_cut(tmp_path: Path) -> None:
    """Its files stay open between two look-ups: a record that is gone is not a key that is not there."""
    root = tmp_path / "store"
    write_whole(root, keyed(40, body=20_000), log_file_size=LOG_FILE_SIZE, queue_file_size=4000)
    with Store.open(root) as store, ColumnLookup(store) as lookup:
        places = lookup(["order20"], "TopicTest").physical_offset.tolist()
        assert len(places) == 1 and LOG_FILE_SIZE + CUT < places[0] < 2 * LOG_FILE_SIZE
        os.truncate(root / FILE, CUT)
        with pytest.raises(UnreadableError, match="cannot be read") as caught:
            lookup(["order20"], "TopicTest")
        assert caught.value.path == root / FILE


@pytest.mark.parametrize("line", ["verify {store}", "recover {store}", "stats {store}",
                                  "export {store} -o {new}.jsonl", "dump {store} --reverse"])  # fmt: skip
def test_a_file_shrinks_and_grows_all_the_time(
    runner: Runner, large: Path, tmp_path: Path, line: str
) -> None:
    """By another process, whenever it comes to it."""
    root = tmp_path / "store"
    shutil.copytree(large, root)
    second = root / FILE
    data = second.read_bytes()
    runs = Runs(runner, root, line, tmp_path)
    is_over = threading.Event()

    def cut() -> None:
        while not is_over.is_set():
            os.truncate(second, 70_000)
            second.write_bytes(data)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        ran = runs.run(Fault(root))
    finally:
        is_over.set()
        thread.join()
    assert ran.code in ENDS, ran.told
    assert "Traceback" not in ran.text, ran.told
