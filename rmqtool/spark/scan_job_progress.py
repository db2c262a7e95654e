"""How far the jobs of a session are, from its status tracker: stages, tasks, and bytes by their share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker

_STEP_SECONDS = 0.5


class Bar(Protocol):
    """What is told; see `rmqtool.terminal.ProgressBar`."""

    def advance(self, count_bytes: int) -> None:
        """So many bytes more are done."""

    def describe(self, title: str) -> None:
        """What is being done."""


class JobProgress:
    """Adds up tasks of all stages that were seen; never falls."""

    def __init__(self, tracker: StatusTracker, bar: Bar, total_bytes: int) -> None:
        self._tracker = tracker
        self._bar = bar
        self._total_bytes = total_bytes
        self._told_bytes = 0
        self._tasks: dict[int, tuple[int, int]] = {}

    def look(self) -> None:
        """Ask the tracker once, and tell the bar."""
        active: list[int] = []
        for job_id in self._tracker.getActiveJobsIds():
            job = self._tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None else ():
                stage = self._tracker.getStageInfo(stage_id)
                if stage is not None and stage.numTasks:
                    self._tasks[stage_id] = (stage.numCompletedTasks, stage.numTasks)
                    if stage.numActiveTasks:
                        active.append(stage_id)
        done, tasks = (sum(pair[side] for pair in self._tasks.values()) for side in (0, 1))
        if active:
            completed, of_stage = self._tasks[active[-1]]
            self._bar.describe(f"spark stage {active[-1]}, task {completed} of {of_stage}")
        now = self._total_bytes * done // tasks if tasks else 0
        self._bar.advance(max(now - self._told_bytes, 0))
        self._told_bytes = max(now, self._told_bytes)


@contextmanager
def watched(context: SparkContext, bar: Bar, total_bytes: int) -> Iterator[None]:
    """While the block runs, a thread tells `bar` how far its jobs are."""
    from py4j.protocol import Py4JError

    progress, done = JobProgress(context.statusTracker(), bar, total_bytes), threading.Event()

    def watch() -> None:
        while not done.wait(_STEP_SECONDS):
            try:
                progress.look()
            except (Py4JError, OSError):  # the session has gone: the job itself tells why
                return

    thread = threading.Thread(target=watch, name="rmqtool-spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
