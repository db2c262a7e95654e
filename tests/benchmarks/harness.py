"""Rows of a benchmark: contenders that do the same work in turn, what each round took, and the result.

A `Row` is one line of the table: a piece of work, done by rmqtool and by its peers. `measure` runs every
contender once to warm up, and in that run watches its memory and its open files. Then the contenders take
turns, in one order and in the other, for some rounds: what else the machine does falls on all of them alike.

A `Program` is a command line; its whole process is measured, from the start of the program to its end. A
`Call` is a function of this process, or something that measures itself. Nothing here asserts a time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from tests import ROOT
from tests.benchmarks.machine import BUILD

Kind = Literal["rmqtool", "java", "limit", "other"]
"""Whose figure it is. A limit does only what every tool has to do: it reads the bytes, or writes them."""

WORK_ALONE = ", work alone"
"""The end of the name of a program's figure that it gives itself, without its start and its end."""

_STEP_S = 0.005
_MOST_BUDGETS = 2
_ERROR_BYTES = 2_000
_PROC = Path("/proc/self/status")
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Sample(NamedTuple):
    """What one round took.

    Attributes:
        seconds: wall time.
        cpu_seconds: user and system time, of a program with its children; None if not known.
        inside_seconds: what a program says of its own work, without its start.
        peak_bytes: the most anonymous memory at any time, with children; 0 if the round was not watched.
        open_files: the most open files at any time, without children; 0 if the round was not watched.
    """

    seconds: float
    cpu_seconds: float | None = None
    inside_seconds: float | None = None
    peak_bytes: int = 0
    open_files: int = 0


@dataclass(frozen=True, kw_only=True)
class Contender(ABC):
    """One who does the work of a row.

    Attributes:
        name: as the table shows it.
        kind: whose figure it is.
        shown: what is typed or called, where that is not the name.
        amount: how much it does in a round, if that is not the row's amount; rates are compared then.
        before: prepares a round; not measured.
        after: checks and cleans up after a round; not measured.
    """

    name: str
    kind: Kind = "other"
    shown: str = ""
    amount: float | None = None
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def round(self, *, watched: bool = False) -> Sample:
        """Prepare, do the work, check it."""
        if self.before is not None:
            self.before()
        sample = self._work(watched)
        if self.after is not None:
            self.after()
        return sample

    @abstractmethod
    def _work(self, watched: bool) -> Sample:
        """Do the work once; with `watched` its memory and open files are recorded."""


@dataclass(frozen=True, kw_only=True)
class Program(Contender):
    """A command line, run as a process of its own.

    Attributes:
        line: the program and its arguments.
        codes: the exit codes that are expected.
        answer: whether what it has printed, on both streams, is right; asked in the watched round. Without
            it the output goes to /dev/null.
        output: a file for what it prints; the same in every round.
        stdin: what it reads.
        inside: from what it has printed, the seconds of its own work.
        only_inside: its start and its end do not count, for it repeats its work until it is warm.
        environment: variables to set.
    """

    line: Sequence[object]
    codes: tuple[int, ...] = (0,)
    answer: Callable[[str], object] | None = None
    output: Path | None = None
    stdin: bytes = b""
    inside: Callable[[str], float] | None = None
    only_inside: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def _work(self, watched: bool) -> Sample:
        reads = self.inside is not None or (watched and self.answer is not None)
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            given.write(self.stdin)
            given.seek(0)
            with self._output(reads) as output:
                sample = self._run(given, output, errors, watched)
                text = ""
                if reads:
                    output.seek(0)
                    errors.seek(0)
                    text = (output.read() + errors.read()).decode("utf-8", "replace")
        if watched and self.answer is not None and not self.answer(text):
            raise AssertionError(f"{self.name}: not the expected answer: {text[-_ERROR_BYTES:]}")
        if self.inside is None:
            return sample
        inside = self.inside(text)
        return Sample(inside) if self.only_inside else sample._replace(inside_seconds=inside)

    def _output(self, reads: bool) -> IO[bytes]:
        if self.output is not None:
            return self.output.open("w+b")
        return tempfile.TemporaryFile() if reads else open(os.devnull, "w+b")  # noqa: PTH123

    def _run(self, given: IO[bytes], output: IO[bytes], errors: IO[bytes], watched: bool) -> Sample:
        line = [str(word) for word in self.line]
        environment = surroundings() | self.environment
        begin = time.perf_counter()
        process = subprocess.Popen(line, stdin=given, stdout=output, stderr=errors, env=environment, cwd=ROOT)
        try:
            with watch(process.pid) if watched else _nobody() as seen:
                _, status, usage = os.wait4(process.pid, 0)
                seconds = time.perf_counter() - begin
                process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode not in self.codes:
            errors.seek(0)
            text = errors.read()[-_ERROR_BYTES:].decode("utf-8", "replace")
            raise AssertionError(f"exit code {process.returncode} of {' '.join(line)}: {text}")
        peak = seen.peak_bytes if _PROC.exists() or not watched else usage.ru_maxrss * _MAXRSS_UNIT
        return Sample(seconds, usage.ru_utime + usage.ru_stime, None, peak, seen.open_files)


@dataclass(frozen=True, kw_only=True)
class Call(Contender):
    """A function. If it measures itself, it returns the seconds that it took, or a sample; else None.

    A figure of another process is that of its work alone, without its start and its end.
    """

    work: Callable[[], float | Sample | None]

    def _work(self, watched: bool) -> Sample:
        with watch(os.getpid()) if watched else _nobody() as seen:
            cpu, begin = time.process_time(), time.perf_counter()
            told = self.work()
            seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        if told is not None:
            return told if isinstance(told, Sample) else Sample(told)
        return Sample(seconds, cpu, None, seen.peak_bytes, seen.open_files)


@dataclass(frozen=True)
class Row:
    """One line of the table. The first contender is rmqtool.

    Attributes:
        name: the work.
        unit: what `amount` counts: bytes, messages, keys, rows; empty if only the time counts.
        amount: of one round.
        contenders: who does it.
        in_process: the figure of rmqtool is that of a call, not of a command.
        goals: by the name of a peer, how many times as fast as it rmqtool should be.
        cpu_goals: by the name of a peer, how many times as much processor time it may take as rmqtool. With
            them the row shows the processor time of all.
        note: a sentence about it.
    """

    name: str
    contenders: Sequence[Contender]
    unit: str = ""
    amount: float = 0.0
    in_process: bool = False
    goals: Mapping[str, float] = field(default_factory=dict)
    cpu_goals: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass
class Seen:
    """The most that was seen of a process."""

    peak_bytes: int = 0
    open_files: int = 0


@contextmanager
def _nobody() -> Iterator[Seen]:
    yield Seen()


@contextmanager
def watch(pid: int) -> Iterator[Seen]:
    """Look at a process until the block ends: its memory with that of its children, and its open files.

    ru_maxrss would not do: a child starts with the peak of the process that forked it, and pages of mapped
    files count as memory. Without /proc, or of a process that has ended already, nothing is seen.
    """
    seen, done = Seen(), threading.Event()

    def look() -> None:
        while True:
            seen.peak_bytes = max(seen.peak_bytes, sum(map(_anonymous_bytes, _family(pid))))
            with suppress(OSError):
                seen.open_files = max(seen.open_files, sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))
            if done.wait(_STEP_S):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def _family(pid: int) -> Iterator[int]:
    """The process and all below it, but for this process: its children are other contenders."""
    yield pid
    if pid == os.getpid():
        return
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children = (task / "children").read_text("ascii").split()
            for child in map(int, children):
                yield from _family(child)


def _anonymous_bytes(pid: int) -> int:
    """RssAnon of a process; 0 if it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"RssAnon"):
                return int(line.split()[1]) << 10
    return 0


def surroundings() -> dict[str, str]:
    """The environment of a program: compiled bytecode is kept, as where a package is installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(BUILD / "pycache")}


def rmqtool(*arguments: object, name: str = "", **options: Any) -> Program:
    """The command as a user types it: `rmqtool verify STORE`."""
    script = Path(sys.executable).with_name("rmqtool")
    start = [script] if script.exists() else [sys.executable, "-m", "rmqtool"]
    return Program(
        name=name or f"rmqtool {arguments[0]}", kind="rmqtool", line=[*start, *arguments], **options
    )


def measure(row: Row, *, rounds: int, budget_s: float) -> dict[str, Any]:
    """The result of a row, as values of JSON.

    Args:
        row: what is measured.
        rounds: how many rounds count, at most, after one that warms up; with 0 that one counts.
        budget_s: no round begins after so many seconds, but for the first that counts. If even to warm up
            takes _MOST_BUDGETS times as long, that round counts.
    """
    begin = time.perf_counter()
    watched = {each.name: each.round(watched=True) for each in row.contenders}
    if time.perf_counter() - begin > _MOST_BUDGETS * budget_s:
        rounds = 0
    samples = {name: [] if rounds else [sample] for name, sample in watched.items()}
    for number in range(rounds):
        if number and time.perf_counter() - begin > budget_s:
            break
        for each in row.contenders if number % 2 == 0 else reversed(row.contenders):
            samples[each.name].append(each.round())
    ours = row.contenders[0]
    base = [sample.seconds / (ours.amount or row.amount or 1) for sample in samples[ours.name]]
    cpu_base = [sample.cpu_seconds for sample in samples[ours.name]]
    results = []
    for each in row.contenders:
        inside = [one.inside_seconds for one in samples[each.name] if one.inside_seconds is not None]
        results.append(_result(row, each, each.name, [one.seconds for one in samples[each.name]], base))
        results[-1] |= {
            "peak_bytes": watched[each.name].peak_bytes,
            "open_files": watched[each.name].open_files,
            "cpu_seconds": _median([one.cpu_seconds for one in samples[each.name]]),
            "cpu_ratio": _median(
                [
                    one.cpu_seconds / own
                    for one, own in zip(samples[each.name], cpu_base, strict=True)
                    if one.cpu_seconds is not None and own
                ]
            ),
        }
        if inside:
            results.append(_result(row, each, f"{each.name}{WORK_ALONE}", inside, base))
    results[0]["ratio"] = results[0]["cpu_ratio"] = None
    return {
        "name": row.name, "unit": row.unit, "amount": row.amount, "in_process": row.in_process,
        "note": row.note, "rounds": len(base), "load": os.getloadavg()[0], "goals": dict(row.goals),
        "cpu_goals": dict(row.cpu_goals), "contenders": results,
    }  # fmt: skip


def _result(
    row: Row, each: Contender, name: str, seconds: Sequence[float], base: Sequence[float]
) -> dict[str, Any]:
    """One contender: `seconds` for the row's amount; `ratio`: rmqtool's speed by that of the contender."""
    amount = each.amount or row.amount or 1
    whole = (row.amount or 1) / amount
    return {
        "name": name, "kind": each.kind, "shown": each.shown, "part": each.amount is not None,
        "seconds": statistics.median(seconds) * whole,
        "low": min(seconds) * whole, "high": max(seconds) * whole,
        "ratio": statistics.median(one / amount / own for one, own in zip(seconds, base, strict=True)),
    }  # fmt: skip


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
