"""`recover` against a start of broker 5.4.0's store library on the same store, in the same run.

    recover --apply, 4 GiB of messages of 1 KiB      >= 6 x Java
    recover, the plan alone                          >= 10 x Java
    600,000 messages                                 the same, with start-up, as rows of their own

After a crash that has left the log alone: queues, index and checkpoint are gone, abort is there. Java is
counted in the process, from before load() until log, queues and index are level, without the JVM's start;
ours is the whole process. Log and checkpoint are in the page cache for both. Figures are printed, not
asserted; what is asserted is that every message is in its queue afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rmqtool.read.store import Store
from rmqtool.write.store_writer import StoreWriter
from tests.benchmarks import messages as made
from tests.benchmarks.java_store import VERSION
from tests.benchmarks.machine import BUILD, SMALL, Clock, against, rate, report, touch_memory
from tests.interop.processes import BUILD as LAB
from tests.interop.processes import FLAGS, JAVA, write_logback


class Case(NamedTuple):
    """A store, and how many times Java ours shall be."""

    name: str
    messages: int
    log_file_size: int
    apply_target: float
    plan_target: float


FULL = (Case("600,000 messages", 600_000, 1 << 30, 1, 1), Case("4 GiB", 3_500_000, 1 << 30, 6, 10))
FEW = (Case("few", 20_000, 8 << 20, 1, 1), Case("more", 50_000, 16 << 20, 6, 10))
CASES = FEW if SMALL else FULL
RUNS = 1 if SMALL else 3
TOUCH_BYTES = (256 << 20) if SMALL else (10 << 30)
_HEAP = "1g"
_PEAK = """
import sys
from rmqtool.cli import main
from tests.benchmarks.machine import peak_of_anonymous_bytes
with peak_of_anonymous_bytes() as peak:
    code = main(sys.argv[1:])
sys.stderr.write(f"peak {peak[0]}\\n")
sys.exit(code)
"""


@pytest.fixture(scope="module", autouse=True)
def _memory() -> None:
    touch_memory(TOUCH_BYTES)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def crashed(request: pytest.FixtureRequest) -> Iterator[tuple[Case, Path]]:
    """A sound store of the case; `crash` makes of it what is recovered."""
    case, root = request.param, BUILD / "recover" / "store"
    shutil.rmtree(root.parent, ignore_errors=True)
    root.parent.mkdir(parents=True)
    with StoreWriter.create(
        root,
        auto_create_queues=made.QUEUES,
        cluster=None,
        region=None,
        commit_log_file_size=case.log_file_size,
    ) as writer:
        writer.put_table(made.batches(1, case.messages))
    yield case, root
    shutil.rmtree(root.parent)


def crash(root: Path) -> None:
    """Queues, index and checkpoint are gone, abort is there; so is nothing that the run before has made."""
    for name in ("consumequeue", "batchconsumequeue", "index", "compaction", "rocksdbstore", "timerlog"):
        shutil.rmtree(root / name, ignore_errors=True)
    for path in root.parent.glob("backup*"):
        shutil.rmtree(path)
    (root / "checkpoint").unlink(missing_ok=True)
    (root / "abort").write_text("1", "ascii")
    if not SMALL:
        os.sync()  # what the run before has left to be written is not to slow the next


def dispatched(root: Path) -> int:
    """Messages in all queues."""
    with Store.open(root) as store:
        return sum(store.max_offset(*queue) for queue in store.queues)


def java_seconds(case: Case, root: Path) -> float:
    """From before load() until queues and index are level, in a fresh process that has touched its heap."""
    crash(root)
    logs = {path.name for path in (root / "commitlog").iterdir()}
    home = BUILD / "java-home"
    line = [
        JAVA, *(flag for flag in FLAGS if flag.startswith("--add")), f"-Xms{_HEAP}", f"-Xmx{_HEAP}",
        "-XX:+AlwaysPreTouch", f"-Duser.home={home}", *write_logback(home),
        "-cp", f"{BUILD / 'classes'}:{LAB / VERSION / 'lib'}/*", "RecoverBench", str(root),
        str(case.log_file_size),
    ]  # fmt: skip
    done = subprocess.run(line, input="", capture_output=True, text=True, check=True, timeout=600)
    result = json.loads(done.stdout)
    assert (result["loaded"], result["dispatched"]) == (True, case.messages)
    for path in (root / "commitlog").iterdir():
        if path.name not in logs:
            path.unlink()  # made ahead
    return float(result["complete_seconds"])


def our_run(root: Path, *options: str) -> tuple[float, int, str]:
    """(seconds of the whole process, exit code, what it wrote to stderr) of `recover`."""
    crash(root)
    command = [sys.executable, "-m", "rmqtool", "recover", str(root), "--quiet", *options]
    clock = Clock()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return clock.seconds, done.returncode, done.stderr


def our_peak(root: Path, *options: str) -> int:
    """Peak of RssAnon of `recover`, bytes."""
    crash(root)
    command = [sys.executable, "-c", _PEAK, "recover", str(root), "--quiet", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stderr.rpartition("peak ")[2])


def test_recover(crashed: tuple[Case, Path]) -> None:
    """Plan and repair of one store, taking turns with Java."""
    case, root = crashed
    apply = ("--apply", "--yes", "--backup-dir", str(root.with_name("backup")))
    theirs, plans, repairs = [], [], []
    our_run(root)  # loads the compiled code
    for _ in range(RUNS):
        theirs.append(java_seconds(case, root))
        seconds, code, text = our_run(root)
        assert code == 1, text
        plans.append(seconds)
        seconds, code, text = our_run(root, *apply)
        assert code == 0, text
        assert dispatched(root) == case.messages
        repairs.append(seconds)
    peaks = [our_peak(root) >> 20, our_peak(root, *apply) >> 20]
    java = rate(case.messages, theirs)
    size = sum(path.stat().st_size for path in (root / "commitlog").iterdir()) / (1 << 30)
    report(
        f"recover of {case.messages:,} messages, {size:.2f} GiB of log files, Java {min(theirs):.2f} s",
        against("recover --apply, whole process", rate(case.messages, repairs), java, case.apply_target),
        against("recover, the plan alone", rate(case.messages, plans), java, case.plan_target),
        f"apply {min(repairs):.2f} s, peak RssAnon {peaks[1]} MiB; plan {min(plans):.2f} s, {peaks[0]} MiB",
    )
