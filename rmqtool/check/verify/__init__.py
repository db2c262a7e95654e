"""Verify a store: every pass in order, all findings, nothing changed.

    files       the set of files: names, sizes, gaps, strays, what is out of reach
    log         every record: frame, body CRC, property CRC, stored offset, blanks, the log's end;
                entries, their index and the state of a DLedger log
    queues      every record against its consume queue unit, and every unit against its record
    index       header, chains, every key found again, every entry explained; the same for an index in RocksDB
    checkpoint  checkpoint and abort against the log
    config      the JSON files and their .bak, topics and offsets against log and queues
    timer       timer log, timer wheel, epoch file, compaction checkpoint
    tiered      the tiered copy of messages that lies in the store
    compaction  the logs of compacted topics
    bodies      every compressed body decompresses, every batch can be read; only on request. Those that do
                not match their CRC are left to `log`, which is run with it

`queues`, `index` and `bodies` work while the log is walked, so choosing one of them walks it too.
Findings are data; an exception means that nothing could be checked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rmqtool.check.verify.at_stake import (
    AtStake,
    are_all,
    by_topic,
    damaged_ranges,
    messages_at_stake,
    names_of,
)
from rmqtool.check.verify.context import Bounds, Context, Report
from rmqtool.check.verify.files import check_files
from rmqtool.errors import UnreadableError, UsageError
from rmqtool.findings import Progress
from rmqtool.problems import BY_CODE, LEDGER_CURE, Finding, leaves_ledger

if TYPE_CHECKING:
    from rmqtool.check.verify.context import Observe
    from rmqtool.check.verify.distributed import Executor
    from rmqtool.read.store import Store
    from rmqtool.storage.source import RateLimiter

DEFAULT_PASSES = ("files", "log", "queues", "index", "checkpoint", "config", "timer", "tiered", "compaction")
PASSES = (*DEFAULT_PASSES, "bodies")
_OF_LOG = {"log", "queues", "index", "bodies"}
# What can be checked of less than a store: there is nothing to compare it with.
_OF_KIND = {
    "commitlog": {"files", "log", "bodies"},
    "consumequeue": {"files", "queues"},
    "index": {"files", "index"},
    "tiered": _OF_LOG | {"files"},
    "compacted": _OF_LOG - {"index"} | {"files"},
}

_OF_COPIES = ("tiered", "compaction")

# Damage that explains what other passes leave out is reported by them when `log` was not chosen.
_ALWAYS_REPORTED = {"CL12", "CL14", "UN01"}

__all__ = [
    "DEFAULT_PASSES",
    "PASSES",
    "Bounds",
    "Report",
    "context",
    "damaged_ranges",
    "distributed",
    "log_findings",
    "files",
    "index",
    "log",
    "queue_order",
    "unit_check",
    "queues",
    "rocksdb",
    "spans",
    "state",
    "timer",
    "verify",
    "AtStake",
    "are_all",
    "by_topic",
    "messages_at_stake",
    "names_of",
]


def verify(
    store: Store,
    *,
    passes: Collection[str] = DEFAULT_PASSES,
    bounds: Bounds | None = None,
    jobs: int = 0,
    keep_cache: bool = False,
    limiter: RateLimiter | None = None,
    report: Report | None = None,
    progress: Progress | None = None,
    spread: Executor | None = None,
    observe: Observe | None = None,
) -> Iterator[Finding]:
    """Check `store` and yield what is wrong, pass by pass.

    Args:
        store: opened for reading; a running broker is tolerated (design section 5, a live store).
        passes: names from `PASSES`.
        bounds: how much of the log to check; everything by default.
        jobs: threads; 0 for one per processor.
        keep_cache: leave what was read in the page cache.
        limiter: bounds the rate of reading.
        report: filled with what was checked; complete when the iterator is exhausted.
        progress: called with bytes of the log as they are checked, from any thread.
        spread: reads log and queues on other machines, say; None for threads of this process.
        observe: called with the records of every window of the log as they are walked, from any thread; it
            copies what it keeps. Not together with `spread`.

    Raises:
        UsageError: an unknown pass.
    """
    unknown = sorted(set(passes) - set(PASSES))
    if unknown:
        raise UsageError(f"unknown pass {unknown[0]!r}", hint=f"passes: {', '.join(PASSES)}")
    report = report if report is not None else Report()
    possible = _OF_KIND.get(store.layout.kind, set(PASSES))
    if "bodies" in passes:
        passes = {*passes, "log"}
    report.passes = tuple(name for name in PASSES if name in passes and name in possible)
    report.left_out = tuple(
        name for name in PASSES if name in passes and name not in {*possible, *_OF_COPIES}
    )
    report.live = store.live
    context = Context(
        store, bounds or Bounds(), report, jobs or os.cpu_count() or 1, keep_cache, limiter,
        progress or (lambda size: None), report.live, spread=spread, observe=observe,
    )  # fmt: skip
    started = time.monotonic()
    try:
        found = _run(context, set(report.passes))
        if store.layout.kind == "tiered":
            found = map(_without_repair, found)
        elif store.layout.kind == "compacted":
            found = map(_of_compacted, found)
        elif store.layout.ledger is not None:
            found = map(_of_ledger, found)
        yield from found
    finally:
        report.seconds = time.monotonic() - started


def _without_repair(item: Finding) -> Finding:
    """The finding without a repair: none of the commands that repair a store changes a tiered copy."""
    return replace(
        item, problem=replace(item.problem, repair=None), message=item.message or item.problem.message
    )


def _of_compacted(item: Finding) -> Finding:
    """The finding with what is to be done about the logs of compacted topics, which no command repairs."""
    if item.problem.repair is None:
        return item
    return replace(item, problem=replace(item.problem, repair=BY_CODE["CC02"].repair))


def _of_ledger(item: Finding) -> Finding:
    """The finding with what is to be done in a store with a DLedger log, which no command changes."""
    if not (item.problem.code.startswith("CL") and leaves_ledger(item.problem)):
        return item
    return replace(item, problem=replace(item.problem, repair=LEDGER_CURE))


def _run(context: Context, passes: set[str]) -> Iterator[Finding]:
    from rmqtool.check.verify.state import ConfigCheck, check_checkpoint, read_checkpoint

    layout = context.layout
    context.log_start = layout.commit_log[0].file_from_offset if layout.commit_log else 0
    early = list(read_checkpoint(context))
    config = ConfigCheck(context) if "config" in passes else None
    if "files" in passes:
        yield from check_files(layout, context.store.profile, live=context.live)
        if layout.queue_logs is not None:
            from rmqtool.check.verify.queue_logs import check_segments

            yield from check_segments(layout.queue_logs)
    if passes & _OF_LOG:
        yield from _log(context, passes)
    if passes & {"checkpoint", "config"}:
        _look_at_ends(context, passes)
    if "checkpoint" in passes:
        yield from early
        yield from check_checkpoint(context)
    if config is not None:
        yield from config.run()
    if "timer" in passes:
        from rmqtool.check.verify.timer import check_timer

        yield from check_timer(context)
    if not passes.isdisjoint(_OF_COPIES):
        from rmqtool.check.verify.queue_logs import check_copies

        yield from check_copies(context, passes)


def _look_at_ends(context: Context, passes: set[str]) -> None:
    """Find what `checkpoint` and `config` compare with where the other passes do not find all of it.

    Topics of which no record was walked are those that have units.
    """
    store = context.store
    if not passes & _OF_LOG:
        newest = next(store.messages(reverse=True, damage="skip"), None)
        context.last_store_timestamp = newest.message.store_timestamp if newest is not None else 0
    walks_all = bool(passes & _OF_LOG) and not context.bounds.bounded
    if "queues" in passes and walks_all:
        return
    units: dict[str, int] = {}
    for key in store.queues:
        try:
            low, high = store.min_offset(*key), store.max_offset(*key)
        except UnreadableError:
            continue  # reported by the pass `queues`
        if "queues" not in passes:
            context.queue_ends[key] = high
        if not walks_all and high > low:
            units[key[0]] = units.get(key[0], 0) + high - low
    for topic, count in units.items():
        context.topics[topic] = max(context.topics.get(topic, 0), count)


def _log(context: Context, passes: set[str]) -> Iterator[Finding]:
    """The passes that walk the log; their modules load numpy and the kernels, so only here."""
    from rmqtool.check.verify.index import IndexCheck
    from rmqtool.check.verify.log import LogCheck
    from rmqtool.check.verify.queues import QueueCheck
    from rmqtool.check.verify.rocksdb import check_rocksdb
    from rmqtool.check.verify.unit_check import UnitCheck

    queues = QueueCheck(context) if "queues" in passes else None
    index = IndexCheck(context) if "index" in passes else None
    # Known before the threads start, for it reads files that they must not share; and in a live
    # store the ends of queues and index have to be known before the log's.
    _ = context.dispatch_from
    of_index = list(index.prepare()) if index is not None else []
    try:
        for item in LogCheck(context, queues, index, bodies="bodies" in passes).run():
            if "log" in passes or item.problem.code in _ALWAYS_REPORTED:
                yield item
        context.report.log_end = context.log_end if context.log_end >= 0 else None
        if queues is not None:
            yield from UnitCheck(context, queues).run()
            yield from check_rocksdb(context, queues.spans.queues)
            # Units that a queue lacks are findings of their own; an offset past them is none.
            for key in context.queue_ends.keys() & queues.spans.queues.keys():
                context.queue_ends[key] = max(context.queue_ends[key], queues.spans.queues[key].next)
        if index is not None:
            yield from of_index
            yield from index.finish()
    finally:
        if index is not None:
            index.close()
