"""Looks at a store, as far as a limit permits.

`examine` reads heads and tails of files, the small files, and as much of the rest as a limit permits:

    always              names, sizes and gaps of files, checkpoint, config, ends of queues, headers of
                        the index, heads of the log's files, the disk, whether load() of each broker fails
    half of the limit   the newest part of the log, record by record
    what fits the rest  units of queues, entries of the index, the timer log, the start of each broker

A part is read as a whole or not at all; `Examination.omissions` names what was not looked at. The checks are
those of `verify`, the starts those of `broker.predict`, the forecast of the disk is that of `expire`.

With a `WholeWalk` log, queues, index and timer are read as a whole, in one walk, and the limit is that of the
starts alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rmqtool.check.verify import (
    are_all,
    by_topic,
    damaged_ranges,
    messages_at_stake,
    names_of,
    state,
    verify,
)
from rmqtool.check.verify import context as verify_context
from rmqtool.errors import AS_OWNER, InputError, UnreadableError, is_denied
from rmqtool.formats import index as index_format
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.formats.java import java_utf8_decode
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.problems import Finding, finding
from rmqtool.read.consumer_offsets import expired_unread
from rmqtool.read.due_times import expired_before_due
from rmqtool.read.lost_config import is_folder_lost
from rmqtool.read.store import Store
from rmqtool.read.timer_loss import may_have_lost
from rmqtool.report.doctor.diagnosis import PATHS_MAX, STORE, Diagnosis, Examination, Omission
from rmqtool.report.doctor.disk import add_disk
from rmqtool.report.doctor.findings import of_fillers, of_findings
from rmqtool.report.doctor.names import result
from rmqtool.report.doctor.starts import add_starts
from rmqtool.report.info import store_info
from rmqtool.sizes import format_size
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import allocated_bytes, read_head

if TYPE_CHECKING:
    from rmqtool.log.frames import Frames
    from rmqtool.storage.source import RateLimiter

DEFAULT_READ_LIMIT = 256 << 20
_PARTS = {"timer": "the timer log", "tiered": "the tiered copy", "compaction": "the logs of compacted topics"}
_ALL = 1 << 63
_NAMED = 3  # lost messages; of more the numbers say more
_LAG_BYTES = 64 << 20  # a running broker dispatches faster than this builds up

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class WholeWalk:
    """Reads log, queues, index and timer as a whole, and passes on what the walk sees.

    Attributes:
        observe: gets the records of every window of the log, from any thread, see `verify`.
        found: gets every finding.
        keep_cache: leave what was read in the page cache.
        limiter: bounds the rate of reading.
    """

    observe: Callable[[StoreFile, Frames], None]
    found: Callable[[Finding], None]
    keep_cache: bool = False
    limiter: RateLimiter | None = None


class _Budget:
    """Bytes that may still be read."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def take(self, count: int) -> bool:
        """Whether `count` bytes more fit; if so, they are taken."""
        fits = count <= self.left
        self.left -= count if fits else 0
        return fits


def examine(
    store: Store,
    *,
    read_limit: int = DEFAULT_READ_LIMIT,
    now_ms: int | None = None,
    jobs: int = 0,
    progress: Progress | None = None,
    walk: WholeWalk | None = None,
) -> Examination:
    """Look at everything that can be had cheaply; nothing is changed.

    Args:
        store: opened for reading; a broker may be using it.
        read_limit: the most bytes to read of the parts that grow with the store.
        now_ms: the present time, ms since 1970; None: of the clock.
        jobs: threads that read the log; 0: one per processor.
        progress: called with bytes of the log as they are read.
        walk: read everything, and pass on what the walk sees; `read_limit` then bounds the starts alone.

    Raises:
        UsageError, InputError: as `verify` and `store_info`.
    """
    started = time.monotonic()
    found = Examination(store_info(store), read_limit)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    is_live = store.live
    log = found.info["commit_log"]
    of_log = 0 if log is None else max(log["end_offset"] - log["min_offset"], 0)
    found.log_read_bytes = of_log if walk is not None else min(of_log, read_limit // 2)
    budget = _Budget(_ALL if walk is not None else read_limit - found.log_read_bytes)
    is_whole = found.log_read_bytes == of_log
    findings = [*_small_files(store, budget, found, is_whole=is_whole)]
    if walk is not None:
        for each in findings:
            walk.found(each)
    findings += _log(store, budget, found, of_log, jobs, progress, walk)
    if store.layout.kind == "store":
        ranges = damaged_ranges(findings)
        lost = (messages_at_stake(store, ranges) or []) if ranges else []
        found.lost = by_topic(lost)
        found.lost_names = list(names_of(store, lost)) if len(lost) <= _NAMED else []
        found.lost_are_all = are_all(store, lost, ranges)
        left, reported = budget.left if walk is None else read_limit, {each.path for each in findings}
        add_starts(store, found, left, is_live=is_live, reported=reported)
        add_disk(store, found, now_ms, is_live=is_live)
        _dispatch(found, is_live=is_live)
        found.missed = expired_unread(store)
        found.undelivered = expired_before_due(store)
        found.config_lost = is_folder_lost(store.layout)
    found.diagnoses += of_findings(store, findings, is_live=is_live)
    found.diagnoses += _unread(store, found, {each.path for each in findings})
    found.diagnoses += _expired(store, found)
    _lock(found)
    found.diagnoses.sort(key=lambda each: each.rank)
    found.seconds = time.monotonic() - started
    return found


def _small_files(store: Store, budget: _Budget, found: Examination, *, is_whole: bool) -> Iterator[Finding]:
    """The set of files, and timer and copies of messages if they fit.

    Unless the log is read as a whole, which shows its newest record best, the checkpoint too. What a lost
    file of the timer costs is not looked for then: that takes the whole log.
    """
    passes = ["files", *([] if is_whole else ["checkpoint"])]
    sizes = {"timer": sum(file.allocated_bytes for file in store.layout.timer_log)}
    for logs in store.layout.copies:
        name = "tiered" if logs.kind == "tiered" else "compaction"
        sizes[name] = sizes.get(name, 0) + logs.size
    for name, size in sizes.items():
        if budget.take(size):
            passes.append(name)
        else:
            _omit(found, f"{_PARTS[name]} ({format_size(size)})", name)
    is_bounded = "timer" in passes and not is_whole
    if is_bounded:
        passes.remove("timer")
    yield from verify(store, passes=passes, jobs=1)
    if is_bounded:
        with suppress(InputError):  # a finding of the pass
            if may_have_lost(store.layout):
                _omit(found, "which messages a lost timer log or timercheck costs", "timer")
        bounds = verify_context.Bounds(limit_bytes=found.log_read_bytes)
        yield from verify(store, passes=["timer"], bounds=bounds, jobs=1)


def _log(
    store: Store, budget: _Budget, found: Examination, total: int, jobs: int, progress: Progress | None,
    walk: WholeWalk | None,
) -> Iterator[Finding]:  # fmt: skip
    """The newest part of the log, queues and index: all of them if they fit, otherwise their ends.

    And the configuration, against the topics of the log too: queues may have no units yet, or be lost.

    `total` is the length of the log.
    """
    layout, size = store.layout, found.log_read_bytes
    passes = ["log", "config"]
    if size < total:
        what = f"the older {format_size(total - size)} of the commit log's {format_size(total)}"
        if not size:
            what = f"the records of the commit log ({format_size(total)})"
        _omit(found, what)
    else:
        passes.append("checkpoint")
    if layout.commit_log:
        words = ("rmqtool", "verify", STORE, "--pass", "bodies")
        found.omissions.append(
            Omission("whether bodies can be decompressed", "only their CRC is checked", words)
        )
    units = [file for queue in (*layout.unit_queues, *layout.ext_queues.values()) for file in queue.files]
    of_queues = sum(file.allocated_bytes for file in units)
    if budget.take(of_queues):
        passes.append("queues")
    elif units:
        _omit(found, f"the units of the queues ({format_size(of_queues)}): only the last ones were", "queues")
    of_index = sum(allocated_bytes(file.path, file.size) for file in layout.index_files)
    if budget.take(of_index):
        passes.append("index")
    elif layout.index_files:
        _omit(found, f"the entries of the index ({format_size(of_index)}): only the headers were", "index")
    if "queues" not in passes:
        yield from _queue_ends(store, found.info["commit_log"])
    if "index" not in passes:
        yield from _headers(store)
    bounds = verify_context.Bounds(limit_bytes=size if size < total else None)
    report = verify_context.Report()
    if walk is None:

        def observe(file: StoreFile, frames: Frames) -> None:
            found.topics.update(map(java_utf8_decode, frames.topics))

        yield from verify(
            store, passes=passes, bounds=bounds, jobs=jobs, progress=progress, observe=observe, report=report
        )
    else:
        found_by_walk = verify(
            store, passes=passes, bounds=bounds, jobs=jobs, progress=progress, observe=walk.observe,
            keep_cache=walk.keep_cache, limiter=walk.limiter, report=report,
        )  # fmt: skip
        for each in found_by_walk:
            walk.found(each)
            yield each
    found.diagnoses += of_fillers(report.fillers, "" if size >= total else " in the part that was read")


def _queue_ends(store: Store, log: dict[str, Any] | None) -> Iterator[Finding]:
    """The newest unit of every queue against the log: whether a record is where it points."""
    if log is None or store.live:
        return
    layout = store.layout
    for key, (number, unit) in store.newest_units().units.items():
        if unit.is_pre_blank or unit.physical_offset < log["min_offset"]:
            continue
        code = "CQ03" if unit.physical_offset >= log["end_offset"] else "CQ14"
        head = None if code == "CQ03" else store.head(unit.physical_offset)
        if head is None or head.stored_offset != unit.physical_offset:
            queue = layout.consume_queues.get(key) or layout.batch_queues[key]
            yield finding(code, layout.relative(queue.folder), None, queue.unit_size or UNIT_SIZE,
                          topic=key[0], queue_id=key[1], queue_offset=number,
                          unit_physical_offset=unit.physical_offset)  # fmt: skip


def _headers(store: Store) -> Iterator[Finding]:
    """The headers of the index files."""
    from rmqtool.check.verify.index import check_count, check_kept

    layout = store.layout
    context = verify_context.Context(
        store, verify_context.Bounds(), verify_context.Report(), 1, False, None, lambda size: None, store.live
    )
    list(state.read_checkpoint(context))  # reported by its own pass
    for file in layout.index_files:
        try:
            data = read_head(file.path, index_format.HEADER_SIZE)
        except UnreadableError:
            continue  # in the overview
        if data is not None and len(data) == index_format.HEADER_SIZE:
            header, name = index_format.decode_header(data), layout.relative(file.path)
            yield from check_count(name, header, layout.index_entries)
            yield from check_kept(context, name, header)


def _omit(found: Examination, what: str, part: str | None = None) -> None:
    """Note a part of the store that does not fit the limit; `part` is the pass of verify that reads it."""
    reason = f"it does not fit the limit of {format_size(found.read_limit_bytes)}"
    words = ("rmqtool", "verify", STORE) + (() if part is None else ("--pass", part))
    found.omissions.append(Omission(what, reason, words))


def _unread(store: Store, found: Examination, known: Collection[str]) -> Iterator[Diagnosis]:
    """What could not be read; `known` are the paths that a check has reported."""
    late = {store.layout.relative(path): failure.reason for path, failure in store.failures.items()}
    paths = late | {row["path"]: row["reason"] for row in found.info["unreadable"]}
    rows = [
        {"path": path, "reason": reason.removeprefix("cannot read: ")}
        for path, reason in paths.items()
        if path not in known
    ]
    if rows:
        unread = result(
            "cannot_read", "certain", rows[0]["path"], f"cannot be read: {rows[0]['reason']}",
            count=len(rows), paths=tuple(row["path"] for row in rows[:PATHS_MAX]), is_unread=True,
        )  # fmt: skip
        yield replace(unread, cure=AS_OWNER) if is_denied(rows[0]["reason"]) else unread


def _expired(store: Store, found: Examination) -> Iterator[Diagnosis]:
    """Messages that expired before groups read them, or before they were due: not damaged, but gone."""
    missed, levels, start = found.missed, found.undelivered, store.commit_log.min_offset
    if levels:
        total = sum(levels.values())
        yield result(
            "expired_undelivered", "certain", f"consumequeue/{SCHEDULE_TOPIC}",
            f"{total} delayed {'message' if total == 1 else 'messages'} expired before the delivery time: the"
            f" log begins at {start}",
            detail={"messages": total, "levels": dict(sorted(levels.items()))},
        )  # fmt: skip
    if missed:
        total = sum(missed.values())
        yield result(
            "expired_unread", "certain", "consumequeue",
            f"{total} messages expired before a group read them: the log begins at {start}",
            detail={"messages": total, "groups": dict(sorted(missed.items()))},
        )  # fmt: skip


def _dispatch(found: Examination, *, is_live: bool) -> None:
    """How far the queues of a running broker lag behind the log."""
    lag = found.info["behind"]["queues_bytes"]
    if is_live and lag is not None and lag > _LAG_BYTES:
        message = f"the queues lag {format_size(lag)} behind the commit log"
        lags = result("queues_lag", "likely", "consumequeue", message, detail={"lag_bytes": lag})
        found.diagnoses.append(lags)


def _lock(found: Examination) -> None:
    state = found.info["state"]
    if state["lock"] == "unknown" and state["lock_note"]:
        found.omissions.append(Omission("whether a broker is using the store", state["lock_note"]))
