"""Programs that tests start, send signals to and wait for; none outlives its test.

    with started([*RMQTOOL, "tail", path, "--follow"]) as program:
        line = program.stdout.readline()
        program.send_signal(signal.SIGHUP)
        assert program.wait(PATIENCE_S) == 0

A signal that is ignored stays ignored in what a process starts: below `nohup` no child would see SIGHUP, in a
shell's background none SIGINT. `started` begins each program as a shell in the foreground does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests import ROOT

RMQTOOL = (sys.executable, "-m", "rmqtool")
PATIENCE_S = 300
"""How long a state may take to come on a machine with a high load."""
SIGNALS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGALRM, signal.SIGTERM,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD,
)  # fmt: skip


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a program that imports the package from any folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


@contextmanager
def dispositions(ignored: Collection[signal.Signals] = ()) -> Iterator[None]:
    """What is started inside the block has the default for every signal, but for those that it ignores.

    A signal with a handler has its default again in another program; so this process ignores what it ignored.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        if number in ignored:
            signal.signal(number, signal.SIG_IGN)
        elif before[number] == signal.SIG_IGN:
            signal.signal(number, _nothing)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing(*_: object) -> None:
    pass


@contextmanager
def started(
    command: Sequence[object],
    *,
    ignored: Collection[signal.Signals] = (),
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[subprocess.Popen[Any]]:
    """A running program with three pipes; killed at the block's end with all that it has started.

    Args:
        command: the program and its arguments.
        ignored: signals that it ignores from its start.
        env: its environment; else `surroundings()`.
        options: those of `Popen` that differ.
    """
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options = {**pipes, "cwd": ROOT, **options}
    with dispositions(ignored):
        program = subprocess.Popen(
            [*map(str, command)], env=surroundings() if env is None else env,
            start_new_session=True, restore_signals=signal.SIGPIPE not in ignored, **options,
        )  # fmt: skip
    try:
        yield program
    finally:
        end(program)


def end(program: subprocess.Popen[Any]) -> None:
    """Kill a program that `started` its own session, and what is left of that."""
    with suppress(ProcessLookupError, PermissionError):  # macOS: not permitted where only zombies are left
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    for pipe in (program.stdin, program.stdout, program.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def until(test: Callable[[], object], what: str = "the state did not come") -> None:
    """Wait for a state."""
    last = time.monotonic() + PATIENCE_S
    while not test():
        assert time.monotonic() < last, what
        time.sleep(0.01)


def is_asleep(program: subprocess.Popen[Any]) -> bool:
    """Whether the main thread of a program waits for something; True where the system does not tell."""
    try:
        state = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return not Path("/proc/self/stat").exists()
    return state == "S"
