"""The files of a commit log that a broker deletes, decided from sizes, times and ratios only.

Every ten seconds a broker checks whether it is time (an hour of deleteWhen) or the disk is too full. Then it
deletes the oldest files, ten per pass: those that were changed long enough ago, or any if deletion is
forced. It stops at the first file that stays, and the last file always stays: the one in which the log ends.
A file that begins after the end is not in the list of a broker: one that runs has allocated it in advance,
and one that starts deletes it. `by_broker` simulates these passes until one deletes nothing;
`own_rules.by_own_rules` implements the rules of an operator.

Queue, index and timer log files follow the log: a file is deleted if its newest record is before the
log's new start; here too the last file stays.

Source: DefaultMessageStore.CleanCommitLogService (#deleteExpiredFiles, #isSpaceToDelete, #isTimeToDelete),
MappedFileQueue#deleteExpiredFileByTime, #deleteExpiredFileByOffset, #truncateDirtyFiles,
AllocateMappedFileService#putRequestAndReturnMappedFile, IndexService#deleteExpiredFile,
UtilAll#getDiskPartitionSpaceUsedPercent; spec 02 section 7.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from typing import NamedTuple

from rmqtool.broker.expiry_settings import Settings
from rmqtool.lazy_dataclass import dataclass
from rmqtool.times import HOUR_MS, format_duration

_UNUSED = "begins after the newest message, and follows a file that always stays"
MISSING_RATIO = -1.0  # the ratio in Java of a path that does not exist
_START_RATIO = 100.0
_COUNTED = ("consumequeue", "batchconsumequeue", "index")  # DefaultMessageStore#getMajorFileSize
_HOURS_AHEAD = 24 * 7  # deleteWhen comes once a day, except for hours that a clock change skips


@dataclass(frozen=True, slots=True)
class LogFile:
    """A commit log file.

    `start` is its first physical offset; `allocated` its bytes on the disk; `mtime_ms` the time of its last
    change, ms since 1970; `disk` the id of its file system; `first_ms` the store time of its first record,
    None if it does not begin with one.
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
        """The physical offset after its last byte."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class FollowFile:
    """A queue, index or timer log file.

    `last_offset` is the physical offset of the last record that it refers to; None if unknown (an invalid
    timer log unit, a file that cannot be read): then the file stays.
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
    """A file system: bytes used, bytes that an ordinary user may still use, and those reserved for root."""

    used: int
    usable: int
    reserved: int = 0

    @property
    def total(self) -> int:
        """Total bytes without those reserved for root."""
        return self.used + self.usable

    @property
    def ratio(self) -> float:
        """The ratio in use, rounded up to whole percents as in a broker."""
        if self.total <= 0:
            return MISSING_RATIO
        return -(-self.used * 100 // self.total) / 100

    def freed(self, count_bytes: int) -> Disk:
        """The file system with `count_bytes` less in use."""
        count_bytes = min(count_bytes, self.used)
        return Disk(self.used - count_bytes, self.usable + count_bytes, self.reserved)


def disk_of(found: os.statvfs_result) -> Disk:
    """The file system of which the kernel says this."""
    used, reserved = found.f_blocks - found.f_bfree, max(found.f_bfree - found.f_bavail, 0)
    return Disk(*(blocks * found.f_frsize for blocks in (used, found.f_bavail, reserved)))


@dataclass(frozen=True, slots=True)
class Disks:
    """The file systems of a store by id, and which of them hold the log and the queues.

    `log` has one id for each folder to which the broker writes commit log files, `queue` is that of the
    consume queues. An id that is not in `by_id` is a path that does not exist. `archive` is the one that
    takes copies of deleted files, if any: a deletion frees nothing there.
    """

    by_id: Mapping[int, Disk]
    log: tuple[int, ...]
    queue: int
    archive: int | None = None

    def ratio(self, disk: int) -> float:
        """The ratio in use of a file system; -1 for a path that does not exist."""
        found = self.by_id.get(disk)
        return MISSING_RATIO if found is None else found.ratio

    @property
    def log_ratio(self) -> float:
        """The ratio of the least used folder of the commit log: a broker no longer writes to the others."""
        return min(map(self.ratio, self.log), default=_START_RATIO)

    @property
    def of_log(self) -> list[Disk]:
        """The file systems of the commit log."""
        return [self.by_id[disk] for disk in self.log if disk in self.by_id]

    @property
    def usable(self) -> int:
        """Free bytes on the fullest file system of the commit log."""
        return min((disk.usable for disk in self.of_log), default=0)

    def filled(self, ratio: float) -> Disks:
        """The file systems as if this part of each were in use."""
        used = {name: int(disk.total * ratio) for name, disk in self.by_id.items()}
        by_id = {
            name: Disk(used[name], disk.total - used[name], disk.reserved)
            for name, disk in self.by_id.items()
        }
        return replace(self, by_id=by_id)

    def freed(self, files: Iterable[LogFile | FollowFile]) -> Disks:
        """The file systems without these files."""
        by_id = dict(self.by_id)
        for file in files:
            if file.disk in by_id and file.disk != self.archive:
                by_id[file.disk] = by_id[file.disk].freed(file.allocated)
        return replace(self, by_id=by_id)


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a broker deletes files now.

    Attributes:
        by_time: it is an hour of deleteWhen.
        by_space: a disk is above a limit; this counts at any hour.
        forced: files are deleted whatever their age, if one of the two above is set.
        disk_full: above the warning ratio: the broker refuses messages.
        reason: as text; empty if nothing is deleted.
    """

    by_time: bool
    by_space: bool
    forced: bool
    disk_full: bool
    reason: str

    @property
    def on(self) -> bool:
        """Whether a pass deletes files."""
        return self.by_time or self.by_space


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision for one file. `round` is the pass that deletes it, from 1; None if the file stays."""

    expires: bool
    reason: str
    round: int | None = None


def trigger(settings: Settings, disks: Disks, hour: int, *, is_5: bool, store_bytes: int = 0) -> Trigger:
    """The conditions of one pass of the broker.

    Args:
        settings: the broker's.
        disks: the present file systems.
        hour: the local hour of the broker's host, 0 to 23.
        is_5: 5.x, whose rules differ slightly from those of 4.x.
        store_bytes: total size of all log, queue and index files; for brokers that share a disk.

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
    """The rule of 4.x, which checks the queues' disk only if the log's is below the lowest limit.

    If diskMaxUsedSpaceRatio is above the two upper limits, a disk in between deletes nothing by itself, but
    forces the deletion of all files at the hour of deleteWhen.
    """
    forced, full, reasons = False, False, []
    for what, ratio in (("log", disks.log_ratio), ("queue", disks.ratio(disks.queue))):
        if ratio > settings.warning_ratio or ratio <= settings.forcible_ratio:
            full = ratio > settings.warning_ratio  # unchanged in between
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
    """The rule for brokers that share a disk: each has a part of it, and only its own files count."""
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
    end_offset: int,
) -> tuple[list[Decision], Trigger]:
    """Simulate a broker's passes from `now_ms` on: a decision per file, and the first pass's trigger.

    Passes are repeated until one deletes nothing. Each pass sees the space that the previous one freed,
    including that of queue and index files. `zone` is that of the broker's host; None: the local one.
    `end_offset` is the physical offset at which the log ends.
    """
    unused = sum(file.start > end_offset for file in files[1:])
    files = files[: len(files) - unused]
    counted = [chain for chain in chains if chain.kind in _COUNTED]
    store_bytes = sum(f.size for f in files) + sum(f.size for chain in counted for f in chain.files)
    first = trigger(settings, disks, local_hour(now_ms, zone), is_5=is_5, store_bytes=store_bytes)
    decisions: list[Decision] = []
    at, found, gone_before = now_ms, first, [0] * len(chains)
    for number in range(1, len(files) + 1):
        deleted = _one_pass(files[len(decisions) :], found, settings, at) if found.on else []
        if not deleted:
            break
        begin = len(decisions)
        decisions += (replace(decision, round=number) for decision in deleted)
        gone: list[LogFile | FollowFile] = list(files[begin : len(decisions)])
        store_bytes -= sum(file.size for file in gone)
        start = files[len(decisions)].start
        for place, chain in enumerate(chains):
            count = expired_count(chain, start)
            follow = chain.files[gone_before[place] : count]
            gone += follow
            store_bytes -= sum(file.size for file in follow if chain.kind in _COUNTED)
            gone_before[place] = count
        disks, at = disks.freed(gone), at + settings.clean_interval_ms
        found = trigger(settings, disks, local_hour(at, zone), is_5=is_5, store_bytes=store_bytes)
    rest = files[len(decisions) :]
    decisions += stay(rest, [_why_it_stays(file, found, settings, at) for file in rest[:-1]])
    return [*decisions, *[Decision(False, _UNUSED)] * unused], first


def _one_pass(files: Sequence[LogFile], found: Trigger, settings: Settings, now_ms: int) -> list[Decision]:
    """The files at the start of `files` that a pass deletes.

    Source: MappedFileQueue#deleteExpiredFileByTime.
    """
    deleted: list[Decision] = []
    for file in files[:-1]:
        old = now_ms >= file.mtime_ms + settings.reserved_ms
        if not (old or found.forced) or len(deleted) >= max(settings.batch_files, 1):
            break
        age = f"changed {ago(now_ms - file.mtime_ms)}, kept {settings.reserved_hours}h"
        if not old:
            age = f"forced by the full disk at any age ({age})"
        elif not found.by_time:
            age += "; the disk is too full to wait for deleteWhen"
        deleted.append(Decision(True, age))
    return deleted


def _why_it_stays(file: LogFile, found: Trigger, settings: Settings, now_ms: int) -> str:
    age = now_ms - file.mtime_ms
    text = f"changed {ago(age)}, kept {settings.reserved_hours}h"
    if age < settings.reserved_ms:
        return text
    hours = ", ".join(f"{hour:02}" for hour in settings.delete_hours) or "none"
    return f"old enough ({text}), waits for deleteWhen ({hours})"


def stay(files: Sequence[LogFile], reasons: Sequence[str]) -> list[Decision]:
    """Decisions for files that stay: the first for its own reason, the others because they follow it."""
    decisions = [Decision(False, reason) for reason in reasons[:1]]
    decisions += (Decision(False, "follows a file that is kept") for _ in reasons[1:])
    return decisions + [Decision(False, "is the last file, which always stays")] * bool(files)


def ago(age_ms: int) -> str:
    """`3h10m ago`; `in 5m00s` for a negative age."""
    return f"{format_duration(age_ms)} ago" if age_ms >= 0 else f"in {format_duration(-age_ms)}"


def local_hour(time_ms: int, zone: tzinfo | None) -> int:
    """The hour of the day, 0 to 23. Source: UtilAll#isItTimeToDo (Calendar.HOUR_OF_DAY)."""
    return datetime.fromtimestamp(time_ms / 1000, zone).hour


def next_delete_time(settings: Settings, now_ms: int, zone: tzinfo | None) -> int | None:
    """The time of the next hour of deleteWhen, ms since 1970: now or later; None if there is none."""
    if local_hour(now_ms, zone) in settings.delete_hours:
        return now_ms
    quarter = HOUR_MS // 4  # offsets of zones are multiples of this
    at = now_ms - now_ms % quarter
    for _ in range(_HOURS_AHEAD * 4):
        at += quarter
        if local_hour(at, zone) in settings.delete_hours:
            return at
    return None


def expired_count(chain: Chain, min_offset: int) -> int:
    """How many files at the start of a chain are deleted when the log begins at `min_offset`; never the last.

    Source: MappedFileQueue#deleteExpiredFileByOffset, #deleteExpiredFileByOffsetForTimerLog,
    IndexService#deleteExpiredFile.
    """
    for count, file in enumerate(chain.files[:-1]):
        if file.last_offset is None or file.last_offset >= min_offset:
            return count
    return max(len(chain.files) - 1, 0)
