"""Work in a child of its own, with bounds of processor time and memory: whatever happens there is an answer.

    ended = confined(lambda: main(["verify", str(root)]), cpu_seconds=60)
    ended.code, ended.stdout, ended.stderr, ended.peak_bytes

The time is that of the processor: a machine under load changes nothing. A child that waits for ever uses
none, so there is a second bound, of minutes. When either is reached, `stderr` has the stacks of all threads.
Only a process without threads at work may use it, for it forks.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import walk_packages

import rmqtool
from rmqtool.read.kernels import load_kernels

WAITING_SECONDS = 600
# The hard end. Allocators reserve address space by the GiB; what is really used is `peak_bytes`.
_RESERVED_BYTES = 6 << 30


@dataclass(frozen=True)
class Ended:
    """How a child ended: `code` is its exit code, or the number of its signal, negative."""

    code: int
    stdout: bytes
    stderr: bytes
    peak_bytes: int = 0
    """The most memory that it had beyond what its parent had when it was forked."""

    @property
    def text(self) -> str:
        """What it wrote to standard error."""
        return self.stderr.decode("utf-8", "replace")

    @property
    def told(self) -> str:
        """The end in words, for assertion messages."""
        what = f"signal {signal.Signals(-self.code).name}" if self.code < 0 else f"exit {self.code}"
        return f"{what}\n{self.text[-4000:]}"


def load_everything() -> None:
    """Load every module that a command may import, and every kernel: a child has them from its parent."""
    for module in walk_packages(rmqtool.__path__, "rmqtool."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in ("email.parser", "pyarrow.csv", "tabulate", "wcwidth"):
        import_module(name)
    load_kernels()


def confined(action: Callable[[], int], *, cpu_seconds: int = 120) -> Ended:
    """Run `action` in a child, whose exit code is what it returns; 70 for an exception.

    Args:
        action: what is done. It ends by itself; threads of it are not waited for.
        cpu_seconds: of all its threads together; then SIGXCPU ends it.
    """
    out, err = os.memfd_create("stdout"), os.memfd_create("stderr")
    before = _status_bytes("VmRSS")  # of a test run that has done much, this may be a GiB
    child = os.fork()
    if child == 0:
        _run(action, (out, err), cpu_seconds)
    try:
        _, status, usage = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return Ended(code, _content(out), _content(err), max((usage.ru_maxrss << 10) - before, 0))
    finally:
        os.close(out)
        os.close(err)


def _run(action: Callable[[], int], outputs: tuple[int, int], cpu_seconds: int) -> None:
    code = 70
    try:
        for number, output in zip((1, 2), outputs, strict=True):
            os.dup2(output, number)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115, PTH123
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115, PTH123
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 10))
        data = _status_bytes("VmData") + _RESERVED_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        faulthandler.enable(file=2)
        faulthandler.register(signal.SIGXCPU, file=2, chain=True)
        faulthandler.dump_traceback_later(WAITING_SECONDS, file=2, exit=True)
        code = action()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _status_bytes(name: str) -> int:
    """A size that the system tells of this process."""
    with open("/proc/self/status") as lines:  # noqa: PTH123
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def _content(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0) if size else b""
