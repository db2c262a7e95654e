"""Commands whose file operations fail below libc: `faults.c`, preloaded into a process that runs them.

    with Runner() as runner:
        ran = runner.run(["verify", root], Fault(root, READS, first=7))
        ran.code, ran.stdout, ran.stderr, ran.count, ran.hit

A compiler makes the library when it is asked for. Where there is none, tests of it skip; in CI they fail.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import pytest

from tests import ROOT
from tests.support.confined import Ended

SOURCE = Path(__file__).with_name("faults.c")
How = Literal["fail", "short", "kill-before", "kill-half", "kill-after", "cut"]
HOWS: tuple[How, ...] = ("fail", "short", "kill-before", "kill-half", "kill-after", "cut")
READS = ("open", "read", "pread", "mmap", "populate", "list", "stat")
CHANGES = (
    "create", "open-write", "write", "pwrite", "copy", "truncate", "allocate", "rename", "link", "unlink",
    "rmdir", "mkdir", "fsync", "fdatasync", "syncfs", "utime", "owner",
)  # fmt: skip
KINDS = (*READS, *CHANGES)
"""In the order of the bits in `faults.c`."""


@dataclass(frozen=True)
class Fault:
    """What happens to which operations.

    Args:
        below: the file or folder whose operations count.
        kinds: of `KINDS`.
        first: the number of the operation it happens to, from 1; 0: they are only counted.
        sticky: it happens to all later ones as well.
        how: `fail` with `error`; `short`: half of the bytes; a kill before, in the middle, or after;
            `cut`: the file has `size` bytes when the operation begins.
        error: the errno.
        part: only operations on these bytes of a file count.
        size: of the file after a cut; it has more before.
    """

    below: Path
    kinds: tuple[str, ...] = KINDS
    first: int = 0
    sticky: bool = False
    how: How = "fail"
    error: int = errno.EIO
    part: tuple[int, int] = (0, 0)
    size: int = 0

    def __str__(self) -> str:
        if not self.first:
            return "no fault"
        what = errno.errorcode[self.error] if self.how == "fail" else self.how
        return f"operation {self.first}{' and all later ones' if self.sticky else ''}: {what}"


@dataclass(frozen=True)
class Ran(Ended):
    """How a command ended, with `count` operations; `hit` is the first that something happened to."""

    count: int = 0
    hit: str = ""
    operations: tuple[str, ...] = ()


class Runner:
    """A process with the library and everything loaded, of which each command is a child."""

    def __init__(self) -> None:
        environment = {**os.environ, "LD_PRELOAD": str(library()), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.faults.child"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, arguments: Sequence[object], fault: Fault, *, logged: bool = False) -> Ran:
        """Run `rmqtool` with these arguments; with `logged` all operations are listed."""
        request = {
            "arguments": [str(each) for each in arguments],
            "logged": logged,
            "fault": {**asdict(fault), "below": str(fault.below)},
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process that runs commands has ended: {self._process.wait()}"
        row: dict[str, Any] = json.loads(line)
        return Ran(
            row["code"],
            b64decode(row["stdout"]),
            b64decode(row["stderr"]),
            count=row["count"],
            hit=row["hit"],
            operations=tuple(row["operations"]),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()


def library() -> Path:
    """The compiled library in build/faults; skips the test where it cannot be made, in CI it fails."""
    if sys.platform != "linux":
        pytest.skip("faults below libc are made on Linux only")
    source = SOURCE.read_bytes()
    made = ROOT / "build" / "faults" / f"faults-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if made.exists():
        return made
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        reason = "faults below libc need a C compiler: apt-get install gcc libc6-dev"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    made.parent.mkdir(parents=True, exist_ok=True)
    draft = made.with_suffix(f".{os.getpid()}")
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", draft, SOURCE]
    subprocess.run([*command, "-ldl", "-pthread"], check=True)
    return draft.rename(made)
