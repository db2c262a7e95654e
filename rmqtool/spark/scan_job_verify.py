"""The checks of `rmqtool verify` as Spark jobs: the same findings, for the same code makes and judges them.

Each commit log file is a task of a first round of jobs, with its queue units and index entries; then
the queues are read, some a task. What needs the whole log is judged on the driver. Files go to the
cluster in waves, so that the driver holds the results of one wave and not of a petabyte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rmqtool.check.verify.distributed import (
    LogResult,
    LogWork,
    QueueResult,
    QueueTask,
    QueueWork,
    Task,
    queue_tasks,
    take_log,
    take_queue,
)
from rmqtool.problems import Finding
from rmqtool.spark.errors import spark_errors

if TYPE_CHECKING:
    from pyspark import SparkContext

    from rmqtool.check.verify.log import LogCheck
    from rmqtool.check.verify.log_findings import ScannedFile
    from rmqtool.check.verify.unit_check import UnitCheck

REBUILD_FIELDS = ("part", "path", "topic", "queue_id", "problems", "findings", "units", "message")
REBUILD_TABLE = ("part", "path", "problems", "units", "message")

_FILES_A_CORE = 8
_QUEUE_TASK_BYTES = 32 << 20
_QUEUE_TASK_COUNT = 256
_MENDED_BY_REBUILD = "rmqtool rebuild"
_PARTS = {"CQ": "queues", "IX": "index", "CF": "config"}

Item = TypeVar("Item")
Result = TypeVar("Result")


class SparkExecutor:
    """Does the reading of a verification on the executors of a session."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def scan_files(self, check: LogCheck, tasks: Sequence[Task]) -> Generator[ScannedFile]:
        """See Spread."""
        work = self._context.broadcast(LogWork.of(check))

        def scan(task: Task) -> LogResult:
            return work.value.scan(task)

        for result in self._map(scan, tasks):
            yield take_log(check, result)
        work.unpersist()

    def read_queues(self, check: UnitCheck) -> Iterator[Finding]:
        """See Spread."""
        work = self._context.broadcast(QueueWork.of(check))

        def read(tasks: list[QueueTask]) -> list[QueueResult]:
            return list(work.value.read(tasks))

        for results in self._map(read, list(_groups(queue_tasks(check)))):
            for result in results:
                yield from take_queue(check, result)
        work.unpersist()

    def _map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """`function` of every item, in order, a task for each."""
        wave = max(self._context.defaultParallelism, 1) * _FILES_A_CORE
        for first in range(0, len(items), wave):
            part = items[first : first + wave]
            with spark_errors():
                results: list[Any] = self._context.parallelize(part, len(part)).map(function).collect()
            yield from results


def _groups(tasks: Iterable[QueueTask]) -> Iterator[list[QueueTask]]:
    """Queues that one task reads: some megabytes of files."""
    group: list[QueueTask] = []
    size = 0
    for task in tasks:
        if group and (size + task.size > _QUEUE_TASK_BYTES or len(group) >= _QUEUE_TASK_COUNT):
            yield group
            group, size = [], 0
        group.append(task)
        size += task.size
    if group:
        yield group


def rebuild_rows(findings: Iterable[Finding]) -> Iterator[dict[str, Any]]:
    """Yield a row for each queue or file that `rmqtool rebuild` would replace, by the findings it repairs.

    `units` are those that are missing or wrong, as far as findings say so.
    """
    parts: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for each in findings:
        repair = each.problem.repair or ""
        part = _PARTS.get(each.problem.code[:2])
        if part is not None and _MENDED_BY_REBUILD in repair:
            parts[part, _place(each)].append(each)
    for (part, path), found in sorted(parts.items()):
        detail = found[0].detail
        yield {
            "part": part,
            "path": path,
            "topic": detail.get("topic"),
            "queue_id": detail.get("queue_id"),
            "problems": sorted({each.problem.code for each in found}),
            "findings": len(found),
            "units": sum(_units(each) for each in found) if part == "queues" else None,
            "message": found[0].problem.message,
        }


def _place(found: Finding) -> str:
    """The folder of a queue; the file itself of everything else."""
    topic, queue_id = found.detail.get("topic"), found.detail.get("queue_id")
    if topic is None:
        return found.path
    root = "batchconsumequeue" if found.path.startswith("batchconsumequeue/") else "consumequeue"
    return f"{root}/{topic}/{queue_id}"


def _units(found: Finding) -> int:
    first, last = found.detail.get("queue_offset"), found.detail.get("last_queue_offset")
    return last - first + 1 if isinstance(first, int) and isinstance(last, int) else 0
