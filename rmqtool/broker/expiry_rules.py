"""Which files of a commit log go, decided from sizes, times and ratios alone: nothing is read here.

A broker looks every ten seconds whether it is time (an hour of deleteWhen) or the disk is too full, and
then deletes the oldest files, ten in a pass: those that were changed long enough ago, or any where
space is forced. It stops at the first file that stays, and the last file always does. `by_broker`
goes through these passes until one deletes nothing; `by_own_rules` is for what an operator asks for.

What follows the log (queue, index and timer log files) goes while the newest record that a file knows of
lies before the log's new start; here too the last file stays.

Source: DefaultMessageStore.CleanCommitLogService (#deleteExpiredFiles, #isSpaceToDelete, #isTimeToDelete),
MappedFileQueue#deleteExpiredFileByTime, #deleteExpiredFileByOffset, IndexService#deleteExpiredFile,
UtilAll#getDiskPartitionSpaceUsedPercent; spec 02 section 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import NamedTuple

from rmqtool.broker.expiry_settings import HOUR_MS, Settings
from rmqtool.times import format_duration

MISSING_RATIO = -1.0  # what Java takes for the use of a path that is not there
_START_RATIO = 100.0
_COUNTED = ("consumequeue", "batchconsumequeue", "index")  # DefaultMessageStore#getMajorFileSize
_HOURS_AHEAD = 24 * 7  # deleteWhen comes once a day, but for hours that a change of the clock leaves out


@dataclass(frozen=True, slots=True)
class LogFile:
    """A commit log file.

    `start` is its first physical offset; `allocated` the bytes that it takes on its disk; `mtime_ms` when
    it was changed last, ms since 1970; `disk` says which file system it is on; `first_ms` is the store time
    of its first record, None where it begins with none.
    """

    path: str
    start: int
    size: int
    allocated: int
    mtime_ms: int
    disk: int = 0
    first_ms: int | None = None

    @property
    def end(self) -> int:
        """The physical offset behind its last byte."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class FollowFile:
    """A queue, index or timer log file.

    `last_offset` is the physical offset of the last record that it knows of; None where it does not tell
    (an odd timer log unit, a file that cannot be read): then it stays.
    """

    path: str
    size: int
    allocated: int
    last_offset: int | None
    disk: int = 0
    mtime_ms: int = 0


@dataclass(frozen=True, slots=True)
class Chain:
    """The files of one queue, of the index or of the timer log, in their order."""

    kind: str
    files: tuple[FollowFile, ...]
    topic: str | None = None
    queue_id: int | None = None


class Disk(NamedTuple):
    """A file system: bytes used, and bytes that an ordinary user may still use."""

    used: int
    usable: int

    @property
    def total(self) -> int:
        """What counts as the whole: without the bytes kept for root."""
        return self.used + self.usable

    @property
    def ratio(self) -> float:
        """The part in use, rounded up to whole percents as a broker does it."""
        if self.total <= 0:
            return MISSING_RATIO
        return -(-self.used * 100 // self.total) / 100

    def freed(self, count_bytes: int) -> Disk:
        """The file system with so many bytes less in use."""
        count_bytes = min(count_bytes, self.used)
        return Disk(self.used - count_bytes, self.usable + count_bytes)


@dataclass(frozen=True, slots=True)
class Disks:
    """The file systems of a store by an id, and which of them holds what.

    `log` has one id for each folder that the broker writes commit log files to, `queue` is that of the
    consume queues. An id that is not in `by_id` is a path that does not exist.
    """

    by_id: Mapping[int, Disk]
    log: tuple[int, ...]
    queue: int

    def ratio(self, disk: int) -> float:
        """The part of a file system that is in use; -1 for a path that is not there."""
        found = self.by_id.get(disk)
        return MISSING_RATIO if found is None else found.ratio

    @property
    def log_ratio(self) -> float:
        """That of the least used folder of the commit log: the others are no longer written to."""
        return min(map(self.ratio, self.log), default=_START_RATIO)

    @property
    def usable(self) -> int:
        """Free bytes on the fullest file system of the commit log."""
        return min((self.by_id[disk].usable for disk in self.log if disk in self.by_id), default=0)

    def freed(self, files: Iterable[LogFile | FollowFile]) -> Disks:
        """The file systems without these files."""
        by_id = dict(self.by_id)
        for file in files:
            if file.disk in by_id:
                by_id[file.disk] = by_id[file.disk].freed(file.allocated)
        return replace(self, by_id=by_id)


@dataclass(frozen=True, slots=True)
class Trigger:
    """What makes a broker delete files now.

    Attributes:
        by_time: it is an hour of deleteWhen.
        by_space: a disk is above a limit: at any hour.
        forced: files go whatever their age, if one of the two above lets any go.
        disk_full: above the warning ratio: the broker refuses messages.
        reason: in words; empty where nothing does.
    """

    by_time: bool
    by_space: bool
    forced: bool
    disk_full: bool
    reason: str

    @property
    def on(self) -> bool:
        """Whether a pass deletes anything that it finds."""
        return self.by_time or self.by_space


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one file. `round` is the broker's pass that deletes it, from 1; None where it stays."""

    goes: bool
    reason: str
    round: int | None = None


def trigger(settings: Settings, disks: Disks, hour: int, *, is_5: bool, store_bytes: int = 0) -> Trigger:
    """What a pass of the broker finds.

    Args:
        settings: the broker's.
        disks: as they are.
        hour: the local hour of the broker's host, 0 to 23.
        is_5: 5.x, which decides a little differently from 4.x.
        store_bytes: sizes of all log, queue and index files; for brokers that share a disk.

    Source: CleanCommitLogService#isTimeToDelete, #isSpaceToDelete.
    """
    space = _space_of_5(settings, disks, store_bytes) if is_5 else _space_of_4(settings, disks)
    by_time = hour in settings.delete_hours
    by_space, forced, full, reason = space
    reasons = [f"{hour:02} is an hour of deleteWhen"] if by_time else []
    reasons += [reason] if reason and (by_space or forced) else []
    return Trigger(by_time, by_space, forced and settings.forcible, full, "; ".join(reasons))


class _Space(NamedTuple):
    by_space: bool
    forced: bool
    full: bool
    reason: str


def _space_of_4(settings: Settings, disks: Disks) -> _Space:
    """4.x looks at the queues' disk only where the log's is below the lowest limit.

    With diskMaxUsedSpaceRatio above the two upper ones a disk in between deletes nothing by itself, but
    makes the hour of deleteWhen take everything.
    """
    forced, full, reasons = False, False, []
    for what, ratio in (("log", disks.log_ratio), ("queue", disks.ratio(disks.queue))):
        if ratio > settings.warning_ratio or ratio <= settings.forcible_ratio:
            full = ratio > settings.warning_ratio  # in between it stays as it was
        if ratio > settings.forcible_ratio:
            forced = True
            reasons.append(_above(what, ratio, settings.forcible_ratio, forced=True))
        if ratio < 0 or ratio > settings.max_used_ratio:
            reasons = reasons or [_above(what, ratio, settings.max_used_ratio)]
            return _Space(True, forced, full, "; ".join(reasons))
    return _Space(False, forced, full, "; ".join(reasons))


def _space_of_5(settings: Settings, disks: Disks, store_bytes: int) -> _Space:
    pairs = (("log", disks.log_ratio), ("queue", disks.ratio(disks.queue)))
    for what, ratio in pairs:
        if ratio > settings.warning_ratio or ratio > settings.forcible_ratio:
            limit = min(settings.warning_ratio, settings.forcible_ratio)
            return _Space(True, True, ratio > settings.warning_ratio, _above(what, ratio, limit, forced=True))
    if settings.replicas_per_disk > 1:
        return _shared_space(settings, disks, store_bytes)
    for what, ratio in pairs:
        if ratio < 0 or ratio > settings.max_used_ratio:
            return _Space(True, False, False, _above(what, ratio, settings.max_used_ratio))
    return _Space(False, False, False, "")


def _shared_space(settings: Settings, disks: Disks, store_bytes: int) -> _Space:
    """Brokers that share a disk each have their part of it; their own files count, not the disk's use."""
    disk = min(disks.log, key=disks.ratio, default=None)
    found = disks.by_id.get(disk) if disk is not None else None
    part = found.total // settings.replicas_per_disk if found is not None else 0
    if part <= 0:
        return _Space(False, False, False, "")
    ratio = store_bytes / part
    if ratio > settings.shared_forcible_ratio:
        limit = settings.shared_forcible_ratio
        return _Space(True, True, False, _above("share of the", ratio, limit, forced=True))
    above = ratio > settings.max_used_ratio
    return _Space(above, False, False, _above("share of the", ratio, settings.max_used_ratio))


def _above(what: str, ratio: float, limit: float, *, forced: bool = False) -> str:
    if ratio < 0:
        return f"the folder on the {what} disk does not exist"
    how = ": forced at any age" if forced else ""
    return f"{what} disk {ratio:.0%} used, above {limit:.0%}{how}"


def by_broker(
    files: Sequence[LogFile],
    chains: Sequence[Chain],
    disks: Disks,
    settings: Settings,
    now_ms: int,
    zone: tzinfo | None,
    *,
    is_5: bool,
) -> tuple[list[Decision], Trigger]:
    """What a broker's passes from `now_ms` on do with each file, and what the first one finds.

    Passes follow each other until one deletes nothing. What a pass deletes, the queue and index files that
    follow included, is free for the next. `zone` is that of the broker's host; None: the local one.
    """
    counted = [chain for chain in chains if chain.kind in _COUNTED]
    store_bytes = sum(f.size for f in files) + sum(f.size for chain in counted for f in chain.files)
    first = trigger(settings, disks, local_hour(now_ms, zone), is_5=is_5, store_bytes=store_bytes)
    decisions: list[Decision] = []
    at, found, gone_before = now_ms, first, [0] * len(chains)
    for number in range(1, len(files) + 1):
        taken = _one_pass(files[len(decisions) :], found, settings, at) if found.on else []
        if not taken:
            break
        begin = len(decisions)
        decisions += (replace(decision, round=number) for decision in taken)
        gone: list[LogFile | FollowFile] = list(files[begin : len(decisions)])
        store_bytes -= sum(file.size for file in gone)
        start = files[len(decisions)].start
        for place, chain in enumerate(chains):
            count = going(chain, start)
            follow = chain.files[gone_before[place] : count]
            gone += follow
            store_bytes -= sum(file.size for file in follow if chain.kind in _COUNTED)
            gone_before[place] = count
        disks, at = disks.freed(gone), at + settings.clean_interval_ms
        found = trigger(settings, disks, local_hour(at, zone), is_5=is_5, store_bytes=store_bytes)
    rest = files[len(decisions) :]
    decisions += stay(rest, [_why_it_stays(file, found, settings, at) for file in rest[:-1]])
    return decisions, first


def _one_pass(files: Sequence[LogFile], found: Trigger, settings: Settings, now_ms: int) -> list[Decision]:
    """The files at the start of `files` that a pass deletes.

    Source: MappedFileQueue#deleteExpiredFileByTime.
    """
    taken: list[Decision] = []
    for file in files[:-1]:
        old = now_ms >= file.mtime_ms + settings.reserved_ms
        if not (old or found.forced) or len(taken) >= max(settings.batch_files, 1):
            break
        age = f"changed {ago(now_ms - file.mtime_ms)}, kept {settings.reserved_hours}h"
        if not old:
            age = f"forced by the full disk at any age ({age})"
        elif not found.by_time:
            age += "; the disk is too full to wait for deleteWhen"
        taken.append(Decision(True, age))
    return taken


def _why_it_stays(file: LogFile, found: Trigger, settings: Settings, now_ms: int) -> str:
    age = now_ms - file.mtime_ms
    text = f"changed {ago(age)}, kept {settings.reserved_hours}h"
    if age < settings.reserved_ms:
        return text
    hours = ", ".join(f"{hour:02}" for hour in settings.delete_hours) or "none"
    return f"old enough ({text}), waits for deleteWhen ({hours})"


def stay(files: Sequence[LogFile], reasons: Sequence[str]) -> list[Decision]:
    """The first file says why it stays; those behind it stay because it does, the last one anyhow."""
    decisions = [Decision(False, reason) for reason in reasons[:1]]
    decisions += (Decision(False, "follows a file that is kept") for _ in reasons[1:])
    return decisions + [Decision(False, "is the last file, which always stays")] * bool(files)


def ago(age_ms: int) -> str:
    """`3h10m ago`; `in 5m00s` for a time to come."""
    return f"{format_duration(age_ms)} ago" if age_ms >= 0 else f"in {format_duration(-age_ms)}"


def local_hour(time_ms: int, zone: tzinfo | None) -> int:
    """The hour of the day, 0 to 23. Source: UtilAll#isItTimeToDo (Calendar.HOUR_OF_DAY)."""
    return datetime.fromtimestamp(time_ms / 1000, zone).hour


def next_delete_time(settings: Settings, now_ms: int, zone: tzinfo | None) -> int | None:
    """When the broker's hour is there: now, or the start of the next one, ms; None: no hour ever comes."""
    if local_hour(now_ms, zone) in settings.delete_hours:
        return now_ms
    quarter = HOUR_MS // 4  # the finest that zones differ by
    at = now_ms - now_ms % quarter
    for _ in range(_HOURS_AHEAD * 4):
        at += quarter
        if local_hour(at, zone) in settings.delete_hours:
            return at
    return None


def going(chain: Chain, min_offset: int) -> int:
    """How many files at the start of a chain go when the log begins at `min_offset`; never the last.

    Source: MappedFileQueue#deleteExpiredFileByOffset, #deleteExpiredFileByOffsetForTimerLog,
    IndexService#deleteExpiredFile.
    """
    for count, file in enumerate(chain.files[:-1]):
        if file.last_offset is None or file.last_offset >= min_offset:
            return count
    return max(len(chain.files) - 1, 0)
