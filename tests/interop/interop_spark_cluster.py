"""A real cluster: a master and two workers as processes, the package sent along, stores here and on S3.

One driver runs all steps in one session, for a session on a cluster costs half a minute; the tests
look at what it told. A worker is killed while a job runs; the last step is interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.read.store import Store
from tests import ROOT
from tests.interop.spark_servers import MARK, Cluster, S3Server, left_over, wait_until
from tests.support.programs import PATIENCE_S, dispositions
from tests.support.stores import Library

REAL, DAMAGED = "ok_540_clean", "bad_cl04_wrong_length"
_DRIVER_SECONDS = 400.0
Step = dict[str, Any]


class Driver:
    """The driver's process; `steps` are what it told so far."""

    def __init__(self, cluster: Cluster, log: Path, *arguments: str) -> None:
        self.steps: list[Step] = []
        environment = {**cluster.environment, "PYTHONPATH": str(ROOT)}
        self.log = log
        with log.open("wb") as errors, dispositions():
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.interop.spark_cluster_driver", cluster.url, *arguments],
                stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=environment, start_new_session=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.steps += map(json.loads, self.process.stdout)

    def wait_for(self, step: str) -> Step:
        """The step of that name."""

        def find() -> Step | None:
            return next((each for each in list(self.steps) if each["step"] == step), None)

        wait_until(lambda: find() or not self._reader.is_alive(), step, seconds=_DRIVER_SECONDS)
        found = find()
        told = [each["step"] for each in self.steps]
        assert found is not None, f"no {step} after {told}\n{self.log.read_text()[-4000:]}"
        return found

    def kill(self) -> None:
        """End it with the JVM that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Told:
    """What the steps told, the marks of the processes, and how the driver ended."""

    def __init__(self, driver: Driver, mark: str) -> None:
        self.steps = {each["step"]: each for each in driver.steps}
        self.code = driver.process.returncode
        self.errors = driver.log.read_text()
        self.mark = mark
        self.left: list[int] = []


@pytest.fixture(scope="module")
def told(cases: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """Everything that happens, once; all processes have ended before the first test looks at it."""
    from rmqtool.spark.session import find_java

    folder = tmp_path_factory.mktemp("cluster")
    real, damaged = cases.path(REAL), cases.path(DAMAGED)
    with S3Server(folder) as s3, Cluster(folder, find_java(), more=S3Server.KEYS) as cluster:
        url = s3.upload(real, REAL)
        driver = Driver(cluster, folder / "driver.log", str(real), str(damaged), url)
        try:
            driver.wait_for("running")
            cluster.workers[1].kill()
            driver.wait_for("endless")
            driver.process.send_signal(signal.SIGINT)
            driver.wait_for("interrupted")
            driver.process.wait(PATIENCE_S)
            found = Told(driver, cluster.mark)
            # Only master and the other worker are left of the cluster.
            servers = {server.process.pid for server in (cluster.master, cluster.workers[0]) if server}
            wait_until(lambda: set(left_over(cluster.mark)) <= servers, "executors have ended")
        finally:
            driver.kill()
    found.left = left_over(cluster.mark)
    yield found


def groups(path: Path) -> Counter[tuple[str, int]]:
    """Messages by topic and queue, by the library."""
    with Store.open(path) as store:
        return Counter((each.message.topic, each.message.queue_id) for each in store.messages())


def counted(step: Step) -> dict[tuple[str, int], int]:
    assert step["code"] == 0, step["err"]
    return {(row["topic"], row["queue_id"]): row["count"] for row in step["rows"]}


def test_executors_run_the_package_that_was_sent(told: Told) -> None:
    """Two executors, neither of which has it on its path, found it in the zip."""
    files = told.steps["places"]["files"]
    assert all("rmqtool.zip" in file for _, file in files)
    assert len({process for process, _ in files}) == 2


@pytest.mark.parametrize("step", ["local", "s3"])
def test_counts(told: Told, cases: Library, step: str) -> None:
    """On a local path and on S3 the same as here."""
    assert counted(told.steps[step]) == groups(cases.path(REAL))


def test_rows_from_s3(told: Told, cases: Library) -> None:
    """Bodies, found through the queue or the log."""
    with Store.open(cases.path(REAL)) as store:
        chosen = [each for each in store.messages() if each.message.topic == "pubRetry"][:3]
    rows = told.steps["s3 rows"]["rows"]
    assert [(row["physical_offset"], row["body"]) for row in rows] == [
        (each.physical_offset, each.message.body.decode()) for each in chosen
    ]


def _on(store: object, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings whose repair names the store."""
    return [row | {"repair": row["repair"] and row["repair"].replace("STORE", str(store))} for row in rows]


def test_findings_are_those_of_verify(told: Told, cases: Library) -> None:
    """Of a damaged store on a local path; of a sound one on S3 only what its lock cannot tell."""
    with Store.open(cases.path(DAMAGED)) as store:
        assert told.steps["verify"]["rows"] == _on(
            cases.path(DAMAGED), (each.row() for each in verify(store))
        )
    assert told.steps["verify"]["code"] == 1
    with Store.open(cases.path(REAL)) as store:
        assert told.steps["s3 verify"]["rows"] == [each.row() for each in verify(store)]


def test_a_killed_worker_changes_nothing(told: Told, cases: Library) -> None:
    """The job went on with the other one."""
    with Store.open(cases.path(REAL)) as store:
        total = sum(each.message.total_size for each in store.messages())
    assert told.steps["slow"]["sum"] == total
    assert told.steps["running"]["completed"] < told.steps["running"]["tasks"]


def test_interrupt_stops_job_and_session(told: Told) -> None:
    """Exit code 130, and nothing runs any more."""
    assert told.steps["interrupted"]["code"] == 130
    assert told.code == 130
    assert "Traceback" not in told.errors
    assert told.left == []


def test_nothing_secret_is_shown(told: Told) -> None:
    """Neither rows nor errors hold the key of S3."""
    assert S3Server.KEYS["AWS_SECRET_ACCESS_KEY"] not in json.dumps(told.steps) + told.errors
    assert MARK not in told.errors
