"""Compares two stores: a master and its slave, or a backup and its source.

    commit log   the range that both hold, byte by byte; which side is ahead, ranges on one side only
    queues       the units of the offsets that both have, by content
    config       by value, whatever the formatting

Index, checkpoint, abort and timer files are each broker's own and are not compared.
Nothing is changed. Memory does not grow with the stores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rmqtool.check.diff.carried import NOT_CARRIED
from rmqtool.check.diff.operands import Operand, ReadOptions, check_places, look_at, where
from rmqtool.errors import InputError, UnreadableError
from rmqtool.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmqtool.check.diff.config import ConfigDifference
    from rmqtool.check.diff.log import LogDifference
    from rmqtool.check.diff.offsets import CommittedOffsets
    from rmqtool.check.diff.queues import QueuesDifference
    from rmqtool.read.store import Store
    from rmqtool.storage.source import RateLimiter

__all__ = ["NOT_CARRIED", "Difference", "common_bytes", "diff", "look_at"]

_OWN_PARTS = (
    ("index", "index_files"), ("checkpoint", "checkpoint"), ("abort", "abort"), ("epoch file", "epoch"),
    ("timer log", "timer_log"), ("timer wheel", "timer_wheel"),
    ("consume queue extensions", "ext_queues"), ("compaction", "compaction_checkpoint"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """The result of a comparison; a part is None unless both sides have it.

    `offsets` are the committed offsets of two stores whose logs have parted, None for others.
    `own` are parts that are never compared. `unread` are files that could not be read: (side, path, reason).
    `vanished` are files that running brokers deleted meanwhile.
    """

    a: Operand
    b: Operand
    log: LogDifference | None
    queues: QueuesDifference | None
    config: ConfigDifference | None
    own: tuple[str, ...]
    unread: tuple[tuple[str, str, str], ...]
    vanished: tuple[str, ...]
    offsets: CommittedOffsets | None = None

    @property
    def differs(self) -> bool:
        """Whether the two sides differ in a part that both hold."""
        return self.differs_in_common or (self.config is not None and self.config.differs())

    @property
    def differs_in_common(self) -> bool:
        """As `differs`, but without the offsets of consumers and deliveries, which move all the time.

        Two logs that are not empty and have no range in common differ.
        """
        log, queues, config = self.log, self.queues, self.config
        if log is not None and (log.differs or (log.start >= log.stop and bool(log.only))):
            return True
        if queues is not None and queues.differs:
            return True
        return config is not None and config.differs(progress=False)

    @property
    def has_more(self) -> bool:
        """Whether the log or the queues of one side begin earlier or end later than the other's."""
        if self.log is not None and not self.log.is_same_extent:
            return True
        return self.queues is not None and self.queues.more + self.queues.behind > 0

    @property
    def is_continued(self) -> bool:
        """Whether the one log only continues the other: the stores have the same messages up to its start.

        Files that one side still has of the time before the other's oldest one do not count.
        """
        log = self.log
        if log is None or log.ahead is None or log.differs or log.start >= log.stop or self.unread:
            return False
        return self.queues is None or not self.queues.differs

    @property
    def messages_ahead(self) -> int | None:
        """The number of messages that the longer log has after the end of the other; None if it is unknown.

        A batch record counts as one. Of a long range, whose records are not counted, the units of the queues
        that name a record in it count, if they reach the end of the log. Between two logs without a common
        range neither has a record.
        """
        log = self.log
        if log is None or log.ahead is None or log.start > log.stop:
            return None
        side = self.a if log.ahead == "a" else self.b
        records = next(part.records for part in log.only if part.place == "after")
        if records is not None or self.queues is None:
            return records
        if side.store.dispatched_end() < side.end:
            return None
        from rmqtool.check.diff.queues import messages_from

        try:
            return messages_from(side, log.stop) or None
        except UnreadableError:
            return None

    def row(self) -> dict[str, Any]:
        """As JSON; offsets and lengths in bytes, times in ms since 1970."""
        log = self.log.row() | {"ahead_messages": self.messages_ahead} if self.log is not None else None
        return {
            "identical": not self.differs and not self.has_more,
            "identical_in_common": not self.differs_in_common,
            "a": self.a.row(),
            "b": self.b.row(),
            "commit_log": log,
            "queues": self.queues.row() if self.queues is not None else None,
            "config": self.config.row() if self.config is not None else None,
            "committed_offsets": self.offsets.row() if self.offsets is not None else None,
            "not_compared": list(self.own),
            "unread": [{"side": side, "path": path, "reason": reason} for side, path, reason in self.unread],
            "vanished": list(self.vanished),
        }


def common_bytes(a: Operand, b: Operand) -> int:
    """Bytes of the range that both commit logs span; 0 if there is none."""
    return max(min(a.end, b.end) - max(a.start, b.start, 0), 0)


def diff(
    a: Store | Operand,
    b: Store | Operand,
    *,
    limit: int = 10,
    jobs: int = 0,
    keep_cache: bool = False,
    limiter: RateLimiter | None = None,
    progress: Callable[[int], None] | None = None,
) -> Difference:
    """Compare two stores, two folders of commit log files, or two queues.

    Args:
        a: one store, opened for reading, or the result of `look_at`; a broker may be using it.
        b: the other one.
        limit: most differing ranges, queues and entries that are listed per part.
        jobs: number of threads; 0 for one per processor.
        keep_cache: leave the read pages in the page cache.
        limiter: limits the read rate.
        progress: called with the bytes of the log just compared, from any thread.

    Raises:
        InputError: the two have no part in common, for example a commit log file and a queue.
        UsageError: one is a tiered copy or the logs of compacted topics, or only one has its log in DLedger.
    """
    one, other = (side if isinstance(side, Operand) else look_at(side) for side in (a, b))
    check_places(one, other)
    reading = ReadOptions(keep_cache, limiter)
    log = queues = config = offsets = own = None
    if _has_log(one) and _has_log(other):
        from rmqtool.check.diff.log import diff_logs

        log = diff_logs(
            one, other, reading, limit=limit, jobs=jobs or os.cpu_count() or 1,
            progress=progress or (lambda size: None),
        )  # fmt: skip
    parted = log.diverged.start if log is not None and log.diverged is not None else None
    if parted is not None:
        from rmqtool.check.diff.queues import own_records

        own = own_records(one, parted), own_records(other, parted)
    if _has_queues(one) and _has_queues(other):
        from rmqtool.check.diff.queues import diff_queues

        span = None if log is None else (log.start, log.stop if parted is None else parted)
        queues = diff_queues(one, other, span, reading, limit=limit, own=own)
    if one.store.layout.kind == other.store.layout.kind == "store":
        from rmqtool.check.diff.config import diff_config

        config = diff_config(one, other, limit=limit)
        if own is not None:
            from rmqtool.check.diff.offsets import committed_offsets

            offsets = committed_offsets(one, other, *own)
    if log is None and queues is None and config is None:
        kinds = (f"{where(side.store)} is {_KINDS[side.store.layout.kind]}" for side in (one, other))
        raise InputError("nothing to compare", hint=", ".join(kinds))
    not_compared = tuple(_own(one, other, config))
    gone = [path for part in (log, queues) if part is not None for path in part.unread.gone]
    vanished = tuple(dict.fromkeys(map(str, gone))) if one.live or other.live else ()
    unread = tuple(dict.fromkeys(_unread(one, other, log, queues, config)))
    return Difference(one, other, log, queues, config, not_compared, unread, vanished, offsets)


_KINDS = {
    "store": "a store", "commitlog": "a part of a commit log", "consumequeue": "a consume queue",
    "index": "an index file",
}  # fmt: skip


def _has_log(side: Operand) -> bool:
    return side.store.layout.kind in ("store", "commitlog")


def _has_queues(side: Operand) -> bool:
    layout = side.store.layout
    return layout.kind == "consumequeue" or (layout.kind == "store" and layout.has_files_of_queues)


def _own(a: Operand, b: Operand, config: ConfigDifference | None) -> Iterator[str]:
    for name, attribute in _OWN_PARTS:
        if any(getattr(side.store.layout, attribute) for side in (a, b)):
            yield name
    if config is not None:
        yield from (f"config/{name}" for name in config.own)


def _unread(
    a: Operand,
    b: Operand,
    log: LogDifference | None,
    queues: QueuesDifference | None,
    config: ConfigDifference | None,
) -> Iterator[tuple[str, str, str]]:
    """(side, path, reason) of everything that could not be compared."""
    for letter, side in (("a", a), ("b", b)):
        for path, reason in side.unreadable:
            yield letter, path, reason
        known = {path for path, _ in side.unreadable}
        failures = ((side.name(path), failure.reason) for path, failure in side.store.failures.items())
        yield from ((letter, path, reason) for path, reason in failures if path not in known)
        for part in side.store.layout.unsupported:
            yield letter, side.name(part.path), f"{part.what} in {part.form}"
        for found in (log, queues):
            if found is None:
                continue
            for start, stop, file, reason in getattr(found.unread, letter):
                place = f" (offsets {start} to {stop})" if found is log else ""
                yield letter, side.name(file), reason + place
            if not (a.live or b.live):
                yield from ((letter, side.name(path), "it no longer exists") for path in found.unread.gone
                            if side.name(path) != str(path))  # fmt: skip
    if config is not None:
        yield from config.unread
