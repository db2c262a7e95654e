"""How findings and progress are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from rmqtool.lazy_dataclass import dataclass
from rmqtool.problems import Finding

Report = Callable[[Finding], None]
"""Called with the finding of each damaged place, in the order of the scan."""


Progress = Callable[[int], None]
"""Called with the number of bytes just processed."""


@dataclass
class BatchRecords:
    """Which of the selected records are not one message each.

    `records` are batch records (BatchCQ), with their messages and topics. `fillers` are fillers of `recover`
    that have a queue, `fillers_of_no_queue` the others; a walk in plain Python counts neither.
    """

    records: int = 0
    messages: int = 0
    topics: set[str] = field(default_factory=set)
    fillers: int = 0
    fillers_of_no_queue: int = 0

    def add(self, more: BatchRecords) -> None:
        """Count these too."""
        self.records += more.records
        self.messages += more.messages
        self.topics |= more.topics
        self.fillers += more.fillers
        self.fillers_of_no_queue += more.fillers_of_no_queue


@dataclass
class ScanCounters:
    """Counters of the records that a scan has passed, selected or not.

    `records` counts them; `first_ms` and `last_ms` are their smallest and largest store timestamp, ms
    since 1970. `topics` holds the topics of selected records that the selection names literally. `paused` is
    the physical offset at which the scan was stopped early; None if it reached its end. `batches` counts the
    batch records among the selected ones.
    """

    records: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    topics: set[str] = field(default_factory=set)
    paused: int | None = None
    batches: BatchRecords = field(default_factory=BatchRecords)

    def add(self, records: int, first_ms: int, last_ms: int) -> None:
        """Counts `records` more, stored between the two times (ms since 1970)."""
        self.records += records
        self.first_ms = first_ms if self.first_ms is None else min(self.first_ms, first_ms)
        self.last_ms = last_ms if self.last_ms is None else max(self.last_ms, last_ms)
