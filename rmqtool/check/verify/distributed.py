"""Verification by other processes, for example on the machines of a cluster.

What needs the whole log stays here: whether a bad region is a torn tail, what a difference is called,
what no record explains. What does not is two kinds of work, each of which travels as a picklable value
with all that it needs to know:

    LogWork      walk one commit log file, with queues and index      -> LogResult
    QueueWork    read the units of one queue, against what was claimed -> QueueResult

A `Executor` brings work to where it is done and results back, in order; `take_log` and `take_queue` add
them to the verification. So findings are the same, whoever reads.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from rmqtool.check.verify.context import Bounds, Context, Report, reason_of
from rmqtool.check.verify.log_findings import ScannedFile
from rmqtool.check.verify.spans import Key, Span
from rmqtool.errors import UnreadableError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.problems import Finding
from rmqtool.storage.counted_queues import counted_queues
from rmqtool.storage.layout import StoreFile, StoreLayout

if TYPE_CHECKING:
    from rmqtool.check.verify.log import LogCheck
    from rmqtool.check.verify.unit_check import UnitCheck, Units

Task = tuple[StoreFile, int, int]
"""A commit log file and the half-open range of positions in it that is walked."""


class Executor(Protocol):
    """Does the reading of a verification."""

    def scan_files(self, check: LogCheck, tasks: Sequence[Task]) -> Generator[ScannedFile]:
        """Yield the result of the walk over each file, in the order of `tasks`."""

    def read_queues(self, check: UnitCheck) -> Iterator[Finding]:
        """Read the units of all queues into `check`."""


@dataclass(frozen=True)
class TaskContext:
    """The properties of the verification that every task needs."""

    layout: StoreLayout
    live: bool
    keep_cache: bool
    dispatch_from: int

    @classmethod
    def of(cls, context: Context) -> TaskContext:
        """Those of a verification under way."""
        return cls(context.layout, context.live, context.keep_cache, context.dispatch_from)

    def context(self) -> Context:
        """A context of one thread, whose report is its own."""
        from rmqtool.read.store import Store

        context = Context(
            Store(self.layout), Bounds(), Report(), 1, self.keep_cache, None, lambda size: None, self.live
        )
        context.__dict__["dispatch_from"] = self.dispatch_from  # a cached property: not computed again
        return context


@dataclass
class LogResult:
    """The walk over one file; `failed` are queues and index files that could not be read, with the reason."""

    scan: ScannedFile
    failed: dict[Key, str] = field(default_factory=dict)
    failed_index: dict[str, str] = field(default_factory=dict)
    vanished: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class LogWork:
    """How files are walked: the same for all of them. `index` is what is known of the index files."""

    around: TaskContext
    queues: bool
    bodies: bool
    index: dict[str, Any] | None

    @classmethod
    def of(cls, check: LogCheck) -> LogWork:
        """The work of a verification whose index files were examined."""
        index = check.index
        names = ("files", "_sorted", "_indexed_from", "unusable")
        known = None if index is None else {name: getattr(index, name) for name in names}
        return cls(TaskContext.of(check.context), check.queues is not None, check.bodies, known)

    def scan(self, task: Task) -> LogResult:
        """Walk one file; nothing that happens to its bytes raises."""
        from rmqtool.check.verify.index import IndexCheck
        from rmqtool.check.verify.log import LogCheck
        from rmqtool.check.verify.queues import QueueCheck

        context = self.around.context()
        queues = QueueCheck(context) if self.queues else None
        index = None
        if self.index is not None:
            index = IndexCheck(context)
            vars(index).update(self.index)
        try:
            scan = LogCheck(context, queues, index, bodies=self.bodies).scan(*task)
        finally:
            if index is not None:
                index.close()
            context.store.close()
        return LogResult(
            scan,
            {key: reason_of(error) for key, error in (queues.failed if queues else {}).items()},
            {name: reason_of(error) for name, error in (index.failed if index else {}).items()},
            context.report.vanished,
        )


def take_log(check: LogCheck, result: LogResult) -> ScannedFile:
    """Add what was found besides the scan to the verification; return the scan."""
    context = check.context
    context.report.vanished |= result.vanished
    if check.queues is not None:
        for key, reason in result.failed.items():
            check.queues.failed.setdefault(key, UnreadableError(reason))
    if check.index is not None:
        for name, reason in result.failed_index.items():
            check.index.failed.setdefault(name, UnreadableError(reason))
    context.progress(result.scan.stop - result.scan.start)
    return result.scan


@dataclass(frozen=True)
class QueueTask:
    """One queue: the half-open ranges of queue offsets that records claimed, and why one was not read."""

    key: Key
    is_batch: bool
    matched: list[tuple[int, int]]
    failed: str | None
    size: int
    """Bytes of its files."""


@dataclass
class QueueResult:
    """The units in the files of one queue, and the findings on reading them."""

    key: Key
    units: Units
    findings: list[Finding]
    vanished: set[str]


@dataclass(frozen=True)
class QueueWork:
    """How queues are read: the same for all of them."""

    around: TaskContext
    bad: list[tuple[int, int]]
    covered: list[tuple[int, int]]
    log_start: int
    log_end: int

    @classmethod
    def of(cls, check: UnitCheck) -> QueueWork:
        """The work of a verification whose log was walked."""
        context = check.context
        return cls(TaskContext.of(context), context.bad, context.covered, context.log_start, context.log_end)

    def read(self, tasks: Iterable[QueueTask]) -> Iterator[QueueResult]:
        """Read queues one after the other."""
        from rmqtool.check.verify.queues import QueueCheck
        from rmqtool.check.verify.unit_check import UnitCheck

        context = self.around.context()
        context.bad, context.covered = self.bad, self.covered
        context.log_start, context.log_end = self.log_start, self.log_end
        queues = QueueCheck(context)
        check = UnitCheck(context, queues)
        layout = context.layout
        with check.reader() as reader:
            for task in tasks:
                claimed = Span(0, 0, 0, False, 0, 0, task.is_batch, matched=task.matched)
                queues.spans.queues[task.key] = claimed
                if task.failed is not None:
                    queues.failed[task.key] = UnreadableError(task.failed)
                queue = (layout.batch_queues if task.is_batch else layout.consume_queues)[task.key]
                findings = list(check.read_queue(queue, reader))
                yield QueueResult(task.key, check.units.pop(task.key), findings, context.report.vanished)
                del queues.spans.queues[task.key]
        context.store.close()


def queue_tasks(check: UnitCheck) -> Iterator[QueueTask]:
    """A task for every queue of the store, in the order in which findings are reported."""
    layout, spans = check.context.layout, check.check.spans.queues
    for queue in counted_queues(layout).values():
        span, error = spans.get(queue.key), check.check.failed.get(queue.key)
        size = sum(file.size for file in queue.files)
        failed = None if error is None else reason_of(error)
        yield QueueTask(queue.key, queue.is_batch, span.matched if span is not None else [], failed, size)


def take_queue(check: UnitCheck, result: QueueResult) -> Iterator[Finding]:
    """Add one queue to the verification; its findings."""
    check.units[result.key] = result.units
    check.context.report.units += result.units.count
    check.context.report.vanished |= result.vanished
    yield from result.findings
