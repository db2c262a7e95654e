"""The broker's own store library, asked how fast it writes: StoreBench.java in a JVM that stays warm."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.benchmarks.machine import BUILD, finish
from tests.benchmarks.messages import BODY_BYTES, QUEUES
from tests.interop.processes import BUILD as LAB
from tests.interop.processes import FLAGS, write_logback

VERSION = "5.4.0"
_JAVA = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if os.environ.get("JAVA_HOME") else "java"
_HEAP = "1g"
_OPENS = [flag for flag in FLAGS if flag.startswith("--add")]
_OTHER_FILES = 500  # descriptors that the JVM, its jars and the rest of a store have open


class JavaRun(NamedTuple):
    """What one store took.

    put_seconds: in puts, by each thread; complete_seconds: from the first put until queues and index were
    level with the log.
    """

    messages: int
    put_seconds: float
    complete_seconds: float


def most_topics() -> int:
    """How many topics a JVM here can write: it keeps every queue file open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return (files - _OTHER_FILES) // QUEUES if files != resource.RLIM_INFINITY else 1 << 30


class JavaStore:
    """A JVM that writes one store after the other; `with` ends it. It also ends when this process does.

    Args:
        folder: on the disk that is measured; the stores come and go in it.
        warm_messages: put before the first run that counts, until the JIT has compiled what matters.
    """

    def __init__(self, folder: Path, *, warm_messages: int) -> None:
        self._folder = folder
        self._numbers = count()
        home = BUILD / "java-home"
        quiet = write_logback(home)
        line = [
            _JAVA, *_OPENS, f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-XX:+AlwaysPreTouch",
            f"-Duser.home={home}", *quiet,
            "-cp", f"{BUILD / 'classes'}:{LAB / VERSION / 'lib'}/*", "StoreBench",
        ]  # fmt: skip
        with (home / "stderr.log").open("wb") as log:
            self._process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.run(1, warm_messages)
        self.run(1, warm_messages // 16, threads=16, flush="SYNC_FLUSH")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(BrokenPipeError):
            self._process.communicate(timeout=120)
        self._process.kill()
        self._process.wait()

    def run(self, topics: int, messages: int, *, threads: int = 1, flush: str = "ASYNC_FLUSH") -> JavaRun:
        """Write a new store of default sizes; see `finish` for what is left of it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        root = self._folder / f"java-{next(self._numbers)}"
        line = f"{root} {flush} {threads} {topics} {QUEUES} {messages} {BODY_BYTES}\n"
        self._process.stdin.write(line)
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"StoreBench ended, see {BUILD / 'java-home'}"
        result = json.loads(answer)
        assert (result["dispatched"], result["refused"]) == (messages, 0)
        finish(root.with_suffix(".written"), topics * QUEUES)
        shutil.rmtree(root, ignore_errors=True)  # what closing the store has made again
        return JavaRun(messages, result["put_seconds"], result["complete_seconds"])
