"""Programs that tests here start and always end: a Spark standalone cluster, an S3 server.

Each has a session of its own, which is killed as a whole: by `with`, and by `atexit` where that does
not come to it. All carry a mark in their environment, by which a test finds what was left behind.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

from rmqtool.log.compiled import cache_folder
from tests.support.programs import PATIENCE_S, dispositions

MARK = "RMQTOOL_TEST_MARK"
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_PORT_TRIES = 5


class ServerError(AssertionError):
    """A program ended, or did not come up in time; the text holds the end of its log."""


def wait_until(done: Callable[[], Any], what: str, *, seconds: float = PATIENCE_S) -> Any:
    """The first true answer of `done`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = done()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise ServerError(f"after {seconds:.0f} s still not: {what}")
        time.sleep(0.05)


def free_port() -> int:
    """A port that is free now, below those that systems hand out for outgoing connections."""
    for _ in range(1000):
        port = random.SystemRandom().randrange(10_100, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise ServerError("no free port")


def left_over(mark: str) -> list[int]:
    """The processes that carry a mark, this one excepted; a zombie has ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
            marked = f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if marked and state != "Z" and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


class Server:
    """One program with a log; killed with all that it started."""

    def __init__(self, line: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("wb") as output:
            with dispositions():
                self.process = subprocess.Popen(
                    line, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    env=dict(environment), start_new_session=True,
                )  # fmt: skip
        atexit.register(self.kill)

    def text(self) -> str:
        """What it wrote."""
        return self.log.read_text("utf-8", "replace")

    def wait_for(self, ready: Callable[[], Any], what: str) -> None:
        """Until it is up. Raises ServerError where it ends before."""
        try:
            wait_until(lambda: ready() or self.process.poll() is not None, what)
        except ServerError as error:
            raise ServerError(f"{error}\n{self.text()[-3000:]}") from error
        if self.process.poll() is not None:
            raise ServerError(f"ended with {self.process.poll()}: {what}\n{self.text()[-3000:]}")

    def kill(self) -> None:
        """End it and what it started, with -9, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        atexit.unregister(self.kill)


class Cluster:
    """A standalone Spark cluster on 127.0.0.1: a master, and workers of one core each.

    `environment` is what master, workers and a driver run in; the package is not on its path.
    """

    def __init__(
        self, folder: Path, java: Path, *, workers: int = 2, more: Mapping[str, str] | None = None
    ) -> None:
        import pyspark

        self.folder = folder
        self.mark = uuid.uuid4().hex
        self._count = workers
        self.home = Path(pyspark.__file__).parent
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_PUBLIC_DNS": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            MARK: self.mark,
            **(more or {}),
        }
        kernels = cache_folder()
        if kernels is not None:  # executors take those of the tests' own processes
            self.environment["NUMBA_CACHE_DIR"] = str(kernels.parent)
        self.master: Server | None = None
        self.workers: list[Server] = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all of it."""
        for server in (*self.workers, *([self.master] if self.master is not None else [])):
            server.kill()

    def _start(self) -> None:
        for attempt in range(_PORT_TRIES):
            port = free_port()
            self.master = self._run(
                f"master{attempt}", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1",
                "--port", str(port), "--webui-port", str(free_port()),
            )  # fmt: skip
            master = self.master
            try:
                master.wait_for(lambda: "I have been elected leader" in master.text(), "the master is up")  # noqa: B023
                break
            except ServerError:
                master.kill()
                if attempt == _PORT_TRIES - 1 or "BindException" not in master.text():
                    raise
        self.url = f"spark://127.0.0.1:{port}"
        for number in range(self._count):
            self.workers.append(
                self._run(
                    f"worker{number}", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1",
                    "--webui-port", str(free_port()), "-c", "1", "-m", "1g",
                    "-d", str(self.folder / f"worker{number}"), self.url,
                )
            )  # fmt: skip
        for worker in self.workers:
            worker.wait_for(
                lambda worker=worker: "Successfully registered with master" in worker.text(), "a worker is up"
            )

    def _run(self, name: str, *line: str) -> Server:
        return Server(
            [str(self.home / "bin" / "spark-class"), *line], self.folder / f"{name}.log", self.environment
        )


class S3Server(Server):
    """moto's server on 127.0.0.1, with an empty bucket `stores`."""

    KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hidden-secret", "AWS_REGION": "us-east-1"}

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        program = "import sys; from moto.server import main; main(sys.argv[1:])"
        line = [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(self.port)]
        super().__init__(line, folder / "s3.log", {**os.environ, **self.KEYS})

    def __enter__(self) -> Self:
        try:
            self.wait_for(self._answers, "the S3 server is up")
            self.files().create_dir("stores")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _answers(self) -> bool:
        with suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{self.port}/", timeout=5):
            return True
        return False

    def files(self) -> Any:
        """The file system of the server."""
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key=self.KEYS["AWS_ACCESS_KEY_ID"], secret_key=self.KEYS["AWS_SECRET_ACCESS_KEY"],
            region="us-east-1", scheme="http", endpoint_override=f"127.0.0.1:{self.port}",
            allow_bucket_creation=True, connect_timeout=PATIENCE_S, request_timeout=PATIENCE_S,
        )  # fmt: skip

    def upload(self, folder: Path, name: str) -> str:
        """Put a store into the bucket; its URL."""
        from pyarrow.fs import LocalFileSystem, copy_files

        files = self.files()
        files.create_dir(f"stores/{name}")
        copy_files(str(folder), f"stores/{name}", LocalFileSystem(), files)
        return f"s3://stores/{name}?endpoint=http://127.0.0.1:{self.port}"
