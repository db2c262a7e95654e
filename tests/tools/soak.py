"""The whole suite again and again on a machine with a high load: `make soak RUNS=20`.

    python -m tests.tools.soak 20                               LOAD=10 programs at work at any time
    python -m tests.tools.soak 4 tests/unit/cli/test_cli.py           only these tests

Several runs at once are each other's load; where they are too few for it, loops that compute nothing are
added. Every run has an order, Hypothesis examples and surroundings of its own, which its number gives: each
second one is started as `nohup` does it. One line says how each has ended; the log of one that
failed stays in build/soak.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.support.places import choose_temporary_folder
from tests.support.programs import ROOT, started

LOGS = ROOT / "build" / "soak"
WORKERS = 2  # of one run
ZONES = ("UTC", "Asia/Shanghai", "America/St_Johns", "Pacific/Apia")
LOCALES = ("C", "C.UTF-8", "de_DE.UTF-8", "tr_TR.UTF-8")
BUSY = "while True: pass"


@dataclass
class Run:
    """One run of the suite: how it is started follows from its number."""

    number: int
    tests: list[str]
    folder: Path
    process: subprocess.Popen[Any] | None = None

    @property
    def is_below_nohup(self) -> bool:
        """Whether it ignores SIGHUP."""
        return self.number % 2 == 0

    @property
    def log(self) -> Path:
        """What it says."""
        return LOGS / f"{self.number}.log"

    def command(self) -> list[str]:
        """The run that its number stands for."""
        return [
            sys.executable, "-m", "pytest", "-v", "-n", str(WORKERS), "--dist", "worksteal",
            "-p", "no:cacheprovider", "--basetemp", str(self.folder / "base"),
            f"--order-seed={self.number}", f"--hypothesis-seed={self.number}", *self.tests,
        ]  # fmt: skip

    def surroundings(self) -> dict[str, str]:
        """What a shell may have set."""
        random = Random(self.number)
        return {"TZ": random.choice(ZONES), "LC_ALL": random.choice(LOCALES),
                "COLUMNS": random.choice(("40", "200")),
                "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "hypothesis")}  # fmt: skip

    def start(self, stack: ExitStack) -> None:
        """Begin it; it ends with the block of `stack`."""
        random, umask = Random(self.number), (0o022, 0o077, 0o027)
        self.folder.mkdir()
        with self.log.open("wb") as log:
            log.write(f"{self}\n{self.surroundings()}\n{' '.join(self.command())}\n".encode())
            log.flush()
            self.process = stack.enter_context(started(
                self.command(), env={**os.environ, **self.surroundings()}, umask=random.choice(umask),
                ignored=[signal.SIGHUP] if self.is_below_nohup else [],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            ))  # fmt: skip

    def end(self) -> bool:
        """Say how it ended; whether well. What it made goes."""
        assert self.process is not None
        code, lines = self.process.returncode, self._lines()
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        say("ok    " if code == 0 else f"FAILED with {code}", self, lines[-1].strip("= "))
        for line in failed:
            say("       ", line)
        shutil.rmtree(self.folder, ignore_errors=True)
        if code == 0:
            self.log.unlink()
        return code == 0

    def stop(self) -> None:
        """Say what has failed so far in a run that is not over."""
        for line in self._lines():
            if " FAILED " in line or " ERROR " in line:
                say("stopped", self, line)

    def _lines(self) -> list[str]:
        return self.log.read_text("utf-8", "replace").splitlines()

    def __str__(self) -> str:
        return f"run {self.number}{', nohup' if self.is_below_nohup else ''}, load {os.getloadavg()[0]:.1f}"


def say(*what: object) -> None:
    """A line at once."""
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


def soak(runs: int, load: int, first: int, tests: list[str]) -> int:
    """How many of the runs failed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    failed, left = 0, list(range(first, first + runs))
    choose_temporary_folder()
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="rmqtool-soak-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        going: list[tuple[Run, ExitStack]] = []
        stack.callback(lambda: [run.stop() for run, _ in going])
        busy: list[ExitStack] = []
        while left or going:
            while left and len(going) < max(load // WORKERS, 1):
                run, ends = Run(left[0], tests, folder / str(left.pop(0))), ExitStack()
                stack.push(ends)
                run.start(ends)
                going.append((run, ends))
            while len(busy) < load - len(going) * WORKERS:
                busy.append(ExitStack())
                stack.push(busy[-1])
                busy[-1].enter_context(started([sys.executable, "-c", BUSY]))
            time.sleep(1)
            for run, ends in list(going):
                if run.process is not None and run.process.poll() is not None:
                    ends.close()
                    going.remove((run, ends))
                    failed += not run.end()
    say(f"{failed} of {runs} runs failed" + (f": logs in {LOGS}" if failed else ""))
    return failed


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=int)
    parser.add_argument("--load", type=int, default=10, help="programs at work at any time")
    parser.add_argument("--first", type=int, default=1, help="number, and so seed, of the first run")
    asked, tests = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the runs end with this process
    return int(soak(asked.runs, asked.load, asked.first, tests or ["tests", "--ignore=tests/spark"]) > 0)


if __name__ == "__main__":
    sys.exit(main())
