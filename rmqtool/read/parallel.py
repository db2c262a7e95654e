"""Ranges worked on by several threads, their results in the order of the ranges.

Each thread works on one range at a time and is a few results ahead of the one who takes them, so the
memory stays bounded. A thread's exception is raised where its result would have come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2
_TICK_SECONDS = 0.2


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _End:
    pass


def in_order(
    tasks: Sequence[Task], work: Callable[[Task], Iterator[Result]], jobs: int
) -> Generator[tuple[Task, Iterator[Result]], None, None]:
    """(task, its results) of every task in order; the results are to be taken before the next task."""
    if jobs == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, work(task)
        return
    pool = _Pool(tasks, work, min(jobs, len(tasks)))
    try:
        for number, task in enumerate(tasks):
            yield task, pool.results(number)
    finally:
        pool.stop()


class _Pool(Generic[Task, Result]):
    def __init__(self, tasks: Sequence[Task], work: Callable[[Task], Iterator[Result]], jobs: int) -> None:
        self._tasks = tasks
        self._work = work
        self._stopped = Event()
        self._queues: list[Queue[Result | _Failure | _End]] = [Queue(_AHEAD) for _ in tasks]
        self._next: Queue[int] = Queue()
        for number in range(len(tasks)):
            self._next.put(number)
        self._threads = [Thread(target=self._run, daemon=True) for _ in range(jobs)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, whatever they are at."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def results(self, number: int) -> Iterator[Result]:
        """The results of one task."""
        while True:
            found = self._queues[number].get()
            if isinstance(found, _Failure):
                raise found.error
            if isinstance(found, _End):
                return
            yield found

    def _run(self) -> None:
        with suppress(Empty):
            while not self._stopped.is_set():
                number = self._next.get_nowait()
                last: _Failure | _End = _End()
                try:
                    for result in self._work(self._tasks[number]):
                        if not self._put(number, result):
                            return
                except BaseException as error:  # noqa: BLE001 - raised again by `results`
                    last = _Failure(error)
                self._put(number, last)

    def _put(self, number: int, result: Result | _Failure | _End) -> bool:
        while not self._stopped.is_set():
            with suppress(Full):
                self._queues[number].put(result, timeout=_TICK_SECONDS)
                return True
        return False
