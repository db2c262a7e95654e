"""Java programs as child processes of a test: started, spoken to, waited for, and always ended.

Three things see to it that none is left behind: `with` kills what it started, `atexit` kills what is
still there, and every program ends by itself when its stdin does, so also when the test is killed.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests import ROOT

BUILD = ROOT / "build" / "interop"
"""What `make interop` has put there: <version>/lib/*.jar and <version>/classes."""
JAVA = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if os.environ.get("JAVA_HOME") else "java"
PATIENCE_SECONDS = 180.0
"""How long anything may take on a busy machine before the test gives up."""

_OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util", "java.net", "jdk.internal.ref")
FLAGS = (
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # programs of a minute: the second compiler would not earn its keep
    "-Duser.timezone=UTC",
    "-Dfile.encoding=UTF-8",
)
_LOG_TAIL_BYTES = 6000
_BROKER_LOGS = ("broker.log", "store.log")

_running: set[subprocess.Popen[bytes]] = set()


class LabError(AssertionError):
    """A program ended, failed or was silent for too long; the text holds the end of its log."""


def _kill_all() -> None:
    for process in list(_running):
        _kill(process)


atexit.register(_kill_all)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it may have started; it has a session of its own."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    _running.discard(process)


def wait_until(
    done: Callable[[], Any], what: str, *, seconds: float = PATIENCE_SECONDS, step: float = 0.05
) -> Any:
    """The first true answer of `done`. Raises LabError when none came in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = done()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise LabError(f"after {seconds:.0f} s still not: {what}")
        time.sleep(step)


def command_line(
    version: str, main: Sequence[str], *, home: Path, heap_mb: int, properties: Sequence[str]
) -> list[str]:
    """`java` with the flags, the classes of the lab and the jars of a version."""
    jars, classes = BUILD / version / "lib", BUILD / version / "classes"
    if not classes.is_dir():
        raise LabError(f"no classes for {version}: run `make interop`")
    options = (
        f"-Xms{min(heap_mb, 64)}m",
        f"-Xmx{heap_mb}m",
        f"-Duser.home={home}",
        f"-Drocketmq.home.dir={home}",
    )
    return [JAVA, *FLAGS, *options, *properties, "-cp", f"{classes}:{jars}/*", *main]


class JavaProcess:
    """One Java program. Its stdin stays open: it ends with this process.

    Args:
        version: whose jars it runs with.
        main: class and arguments.
        home: its home and log folder, made here.
        log: what it writes to stderr (and stdout, where that is not read).
    """

    def __init__(
        self,
        version: str,
        main: Sequence[str],
        *,
        home: Path,
        heap_mb: int = 256,
        properties: Sequence[str] = (),
        log: str = "stderr.log",
        reads: bool = False,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / log
        self.line = command_line(version, main, home=home, heap_mb=heap_mb, properties=properties)
        environment = {**os.environ, "ROCKETMQ_HOME": str(home), "TZ": "UTC"}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self.line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if reads else output,
                stderr=output,
                cwd=home,
                env=environment,
                start_new_session=True,
            )
        _running.add(self.process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself or by a signal."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kill it with -9, and wait until it is gone."""
        _kill(self.process)

    def terminate(self) -> int:
        """SIGTERM, as an operator does; returns the exit code."""
        self.process.terminate()
        code = wait_until(lambda: (self.process.poll(),) if self.ended else None, f"{self.line[-1]} stopped")[
            0
        ]
        self.kill()
        return int(code)

    def log_text(self) -> str:
        """The end of its log; of a broker also of the logs that it keeps below its home."""
        kept = [self.log.parent / "logs" / "rocketmqlogs" / name for name in _BROKER_LOGS]
        ends = [
            path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
            for path in [self.log, *kept]
            if path.is_file()
        ]
        return "\n\n".join(ends)

    def error(self, what: str) -> LabError:
        """An error that says what failed and how the program's log ends."""
        state = f"exit code {self.process.poll()}" if self.ended else "still running"
        return LabError(f"{what} ({state})\n{self.log_text()}")


class Program(JavaProcess):
    """A program that takes commands and answers them; see java/Commands.java."""

    def __init__(
        self, version: str, main: str, *, home: Path, heap_mb: int = 256, properties: Sequence[str] = ()
    ) -> None:
        told = [*write_logback(home), *properties]
        super().__init__(version, [main], home=home, heap_mb=heap_mb, properties=told, reads=True)
        self._events: list[Any] = []
        self._changed = threading.Lock()
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin: IO[bytes] = self.process.stdin
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            value = json.loads(line)
            if "event" in value:
                with self._changed:
                    self._events.append(value["event"])
            else:
                self._answers.put(value)
        self._answers.put(None)

    def kill(self) -> None:
        """See JavaProcess; the reader ends first, for it holds the pipe."""
        if not self.ended:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join()
        super().kill()

    def call(self, do: str, *, seconds: float = PATIENCE_SECONDS, **arguments: Any) -> Any:
        """The answer to one command.

        Raises:
            LabError: the program failed at it, has ended, or did not answer in time.
        """
        try:
            self._stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._stdin.flush()
            answer = self._answers.get(timeout=seconds)
        except (BrokenPipeError, queue.Empty) as error:
            raise self.error(f"no answer to {do}") from error
        if answer is None:
            raise self.error(f"ended at {do}")
        if "error" in answer:
            raise self.error(f"{do} failed: {answer['error']}")
        return answer["answer"]

    def wait_events(self, done: Callable[[list[Any]], Any], what: Callable[[list[Any]], str]) -> list[Any]:
        """All events so far, once `done` says so of them; `what` tells of them what is still missing.

        Raises:
            LabError: it did not come to that in time.
        """
        try:
            wait_until(lambda: done(self.events_so_far()), "events", step=0.2)
        except LabError as error:
            raise self.error(what(self.events_so_far())) from error
        return self.events_so_far()

    def events_so_far(self) -> list[Any]:
        """A copy of the events."""
        with self._changed:
            return list(self._events)


def write_logback(home: Path) -> list[str]:
    """Silence the library's logs; returns the properties that name the file."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / "logback.xml"
    path.write_text('<configuration><root level="OFF"/></configuration>\n', "utf-8")
    return [
        f"-Dlogback.configurationFile={path}",  # 4.x
        f"-Drmq.logback.configurationFile={path}",  # 5.x
        "-Drocketmq.client.logUseSlf4j=true",
    ]


@contextmanager
def store_library(version: str, home: Path, *, properties: Sequence[str] = ()) -> Iterator[Program]:
    """The store library of a version, alone in a process; nothing is opened yet."""
    with Program(version, "StoreLibrary", home=home, heap_mb=512, properties=properties) as program:
        yield program
