"""How findings and progress are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rmqtool.problems import Finding

Report = Callable[[Finding], None]
"""Told about every bad place, in the order in which it is met."""


Progress = Callable[[int], None]
"""Called with the number of bytes that were just passed."""


@dataclass
class ScanCounters:
    """What was looked at on the way, selected or not.

    `first_ms` and `last_ms` are the smallest and largest store timestamp, ms since 1970; `topics`
    are those of selected records that the selection names as they are. `paused` is the physical offset
    where a walk was ended early; None: it came to its end.
    """

    records: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    topics: set[str] = field(default_factory=set)
    paused: int | None = None

    def add(self, records: int, first_ms: int, last_ms: int) -> None:
        """Counts `records` more, stored between the two times."""
        self.records += records
        self.first_ms = first_ms if self.first_ms is None else min(self.first_ms, first_ms)
        self.last_ms = last_ms if self.last_ms is None else max(self.last_ms, last_ms)
