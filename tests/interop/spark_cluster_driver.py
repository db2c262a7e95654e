"""The driver that `interop_spark_cluster.py` starts: every step in one session, told as JSON lines.

python -m tests.interop.spark_cluster_driver MASTER LOCAL_STORE DAMAGED_STORE S3_STORE
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

from rmqtool.cli import main
from rmqtool.spark.session import spark_session

CONF = (
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.ui.enabled=false",
    "spark.executor.memory=512m",
    "spark.sql.shuffle.partitions=2",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
START = time.monotonic()
SLOW = "SELECT sum(CAST(a.size AS DOUBLE) * b.size * c.size) FROM messages a, messages b, messages c"


def tell(step: str, **values: Any) -> None:
    """One line for the test."""
    line = {"step": step, "seconds": round(time.monotonic() - START, 1), **values}
    sys.__stdout__.write(json.dumps(line) + "\n")
    sys.__stdout__.flush()


class _Bytes(io.TextIOWrapper):
    """Standard output that is kept."""


@contextmanager
def captured() -> Iterator[io.BytesIO]:
    """What the command writes, in place of stdout."""
    kept, sys.stdout = sys.stdout, _Bytes(io.BytesIO(), "utf-8")
    try:
        yield sys.stdout.buffer
    finally:
        sys.stdout = kept


def command(step: str, *arguments: str) -> int:
    """`rmqtool spark-scan` in this session; tells rows, errors and exit code."""
    errors = io.StringIO()
    with captured() as out, redirect_stderr(errors):
        code = main(["spark-scan", *arguments, "--tz", "UTC", "--format", "jsonl", "--quiet"])
        rows = [json.loads(line) for line in out.getvalue().splitlines()]
    tell(step, code=code, rows=rows, err=errors.getvalue())
    return code


def places(session: Any) -> list[list[str]]:
    """Where executors have the package from: [host process, file] of several tasks."""

    def look(number: int) -> list[str]:
        import os

        import rmqtool

        time.sleep(0.3)
        return [str(os.getppid()), rmqtool.__file__]

    found = session.sparkContext.parallelize(range(6), 6).map(look).collect()
    return [list(each) for each in {tuple(each) for each in found}]


def slowly(rows: Iterator[Any]) -> Iterator[int]:
    """Takes its time over every partition, so that a worker can be killed meanwhile."""
    time.sleep(0.25)
    yield sum(row["size"] for row in rows)


@contextmanager
def told_when_running(session: Any, step: str, completed: int) -> Iterator[None]:
    """Tells `step` once a stage of the block's jobs has tasks that run, and so many that are done."""
    tracker, done = session.sparkContext.statusTracker(), threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for stage_id in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None and stage.numCompletedTasks >= completed and stage.numActiveTasks:
                    tell(step, tasks=stage.numTasks, completed=stage.numCompletedTasks)
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def slow_sum(session: Any, store: str) -> int:
    """The sum of all sizes, by many tasks."""
    read = session.read.format("rocketmq-store").option("columns", "size")
    frame = read.option("maxBytesPerPartition", "128K").load(store)
    with told_when_running(session, "running", 2):
        return int(frame.rdd.mapPartitions(slowly).sum())


def run(master: str, local: str, damaged: str, s3: str) -> int:
    """All steps; the last one is interrupted by the test."""
    with spark_session(master=master, conf=CONF, driver_memory="512m") as session:
        try:
            tell("places", files=places(session))
            command("local", local, "--group-by", "topic,queue")
            command("verify", damaged, "--verify")
            command("s3", s3, "--group-by", "topic,queue")
            command("s3 verify", s3, "--verify")
            command(
                "s3 rows", s3, "--topic", "pubRetry", "--limit", "3", "--fields", "physical_offset,body,keys"
            )
            tell("slow", sum=slow_sum(session, local))
        except Exception as error:  # its text comes from the JVM, which is still there
            print(str(error)[:6000], file=sys.stderr)  # noqa: T201
            raise
        with told_when_running(session, "endless", 0):
            return command("interrupted", local, "--sql", SLOW)


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
