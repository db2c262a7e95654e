"""Reads a store once, checks it, and returns all that `rmqtool report` shows.

The walk is that of `verify` within `doctor.examine`: findings, sums of records, and the verdict come from the
same bytes. What cannot be had, because the store is only a part, in use, or in a form that cannot be read,
becomes an omission.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import field
from datetime import tzinfo
from threading import Lock
from typing import TYPE_CHECKING

from rmqtool.errors import EXIT_INPUT, EXIT_OK, RmqtoolError, worst_exit_code
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.rows import Row
from rmqtool.problems import Finding
from rmqtool.read.lost_config import where_offsets_were
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.doctor.diagnosis import Examination, Omission
from rmqtool.report.doctor.examine import WholeWalk, examine
from rmqtool.report.stats import lag
from rmqtool.report.stats.overview import message_rows

if TYPE_CHECKING:
    from rmqtool.report.summary.records import WholeLog
    from rmqtool.storage.source import RateLimiter

FINDINGS_MAX = 500
"""Findings whose places are kept, for each severity; all of them are counted."""
_START_LIMIT = 4 << 30  # bytes that the prediction of a start reads besides the walk
_LAG = "the lag of consumer groups"
_SEVERITIES = ("error", "warning", "note")


class Findings:
    """Findings of a check: counts of all, and the first FINDINGS_MAX of each severity."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.exit_code = EXIT_OK
        self._kept: dict[str, list[Finding]] = {severity: [] for severity in _SEVERITIES}
        self._lock = Lock()

    def add(self, found: Finding) -> None:
        """Add one."""
        with self._lock:
            self.counts[found.problem.severity] += 1
            self.exit_code = worst_exit_code(self.exit_code, found.problem.exit_code)
            kept = self._kept[found.problem.severity]
            if len(kept) < FINDINGS_MAX:
                kept.append(found)

    def worst_first(self) -> Iterator[Finding]:
        """The findings that were kept, errors first."""
        for severity in _SEVERITIES:
            yield from self._kept[severity]


@dataclass
class Summary:
    """All that is known of a store.

    Attributes:
        examination: the verdict, what is wrong, what the starts do, and what was not looked at.
        findings: every place that is wrong.
        log: sums over the records.
        topics: per topic the values of `stats`, the most bytes first.
        lags: per group and topic the lag, the largest first; empty without consumer offsets.
        lag_known: whether the offsets of the consumer groups could be read.
    """

    examination: Examination
    findings: Findings
    log: WholeLog
    topics: list[Row] = field(default_factory=list)
    lags: list[Row] = field(default_factory=list)
    lag_known: bool = False

    @property
    def exit_code(self) -> int:
        """As that of `verify`: 1 for a warning or an error, 3 if something could not be read, otherwise 0."""
        info = self.examination.info
        unread = EXIT_INPUT if info["unsupported"] or info["unreadable"] else EXIT_OK
        return worst_exit_code(self.findings.exit_code, unread)


def summarize(
    store: Store,
    *,
    tz: tzinfo | None = None,
    jobs: int = 0,
    keep_cache: bool = False,
    limiter: RateLimiter | None = None,
    progress: Callable[[int], None] | None = None,
    now_ms: int | None = None,
) -> Summary:
    """Check a store and sum it up; nothing is changed.

    Args:
        store: opened for reading; a broker may be using it.
        tz: the zone of times in rows; None: the local one.
        jobs: threads; 0: one per processor.
        keep_cache: leave what was read in the page cache.
        limiter: bounds the rate of reading.
        progress: called with bytes of the log as they are read.
        now_ms: the present time, ms since 1970; None: of the clock.

    Raises:
        UsageError, InputError: as `verify` and `store_info`.
    """
    from rmqtool.report.summary.records import WholeLog

    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    files = store.layout.commit_log
    start = files[0].file_from_offset if files else 0
    log = WholeLog(start, max(store.end_offset(), start) if files else start, len(files))
    findings = Findings()
    walk = WholeWalk(log.observe, findings.add, keep_cache, limiter)
    examination = examine(
        store, read_limit=_START_LIMIT, now_ms=now_ms, jobs=jobs, progress=progress, walk=walk
    )
    summary = Summary(examination, findings, log)
    rows = message_rows(log.by_topic, log.topics, log.topics, tz)
    summary.topics = sorted(rows, key=lambda row: (-row["bytes"], row["topic"] or ""))
    if store.layout.kind == "store":
        _lag(store, summary, now_ms, tz)
    return summary


def _lag(store: Store, summary: Summary, now_ms: int, tz: tzinfo | None) -> None:
    """The lag of every group, by topic."""
    try:
        lags = list(lag.group_lags(store, Selection()))
    except RmqtoolError as error:
        summary.examination.omissions.append(Omission(_LAG, error.message))
        return
    if any("offsets_missing" in each.status for each in lags):
        reason = where_offsets_were(store.layout, {topic for topic, _ in store.queues})
        summary.examination.omissions.append(Omission(_LAG, reason))
        return
    lags = [each for each in lags if each.group is not None]
    broker = lag.this_broker(store, None)
    rows = lag.lag_rows(lags, ("group", "topic"), broker, now_ms, tz)
    summary.lags = [dict(row) for row in lag.worst_groups(rows)]
    summary.lag_known = True
