"""The plan of an expiry: a decision with its reason for each file of a store, and the consequences.

    with Store.open("/data/store") as store:
        expiry = plan_expiry(store, Request(now_ms))
        print([file.path for file in expiry.files if file.expires])

`plan_expiry` gathers the input of the rules (a few bytes of every file, and the state of the disks), applies
the rules, and computes the losses of the queues and a forecast of the disks. Nothing is changed. A store in
use can be planned too, but its broker deletes files itself.

The forecast says when a disk reaches each ratio if the log keeps growing at the same rate. The rate comes
from the store times of the first records of the log's files, over the last day in the log. So it does not
depend on when files were copied. Queues and index grow in proportion to the log: their bytes on the disk for
each byte of log are added. Nothing is subtracted for expired files.

Source: MappedFileQueue#deleteExpiredFileByOffset (the last unit of a queue file),
#deleteExpiredFileByOffsetForTimerLog, IndexFile#getEndPhyOffset; spec 02 7.3.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, field, replace
from datetime import tzinfo
from pathlib import Path
from typing import Any, NamedTuple

from rmqtool.broker.expiry_rules import (
    Chain,
    Decision,
    Disk,
    Disks,
    FollowFile,
    LogFile,
    Trigger,
    by_broker,
    disk_of,
    expired_count,
    next_delete_time,
)
from rmqtool.broker.expiry_settings import Settings, settings_of
from rmqtool.errors import FormatError, UnreadableError, UsageError
from rmqtool.formats import index as index_format
from rmqtool.formats import timer as timer_format
from rmqtool.formats.consume_queue import BATCH_UNIT_SIZE, UNIT_SIZE, ext_offset, is_ext_address
from rmqtool.lazy_dataclass import dataclass
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.consumer_offsets import known_offsets, offsets_are_lost
from rmqtool.read.store import Store
from rmqtool.repair.expire.losses import Effects, Losses, losses, queue_effects, read_queues
from rmqtool.repair.expire.losses import Queues as ReadQueues
from rmqtool.repair.expire.own_rules import OwnRules, by_own_rules, disks_afterwards, free_afterwards
from rmqtool.repair.plan import Action, Fingerprint, Plan
from rmqtool.repair.plan.space import above
from rmqtool.storage.layout import Queues, StoreFile, StoreLayout
from rmqtool.storage.open_files import OpenFiles
from rmqtool.storage.out_of_reach import NOT_A_FILE
from rmqtool.storage.profile import Profile, WrittenBy, named
from rmqtool.storage.roots import written_folders
from rmqtool.storage.storage import disk_bytes
from rmqtool.storage.usage import Usage, usage
from rmqtool.times import DAY_MS, parse_zone

_ABSENT = -1  # the id of a disk that no path is on


class Facts(NamedTuple):
    """The input of the rules. `unread` names files whose last record is unknown, with the reason."""

    log: tuple[LogFile, ...]
    chains: tuple[Chain, ...]
    disks: Disks
    unread: tuple[tuple[str, str], ...]


class _Reader:
    def __init__(self, store: Store) -> None:
        self.layout = store.layout
        self.unread: list[tuple[str, str]] = []

    def status(self, path: Path) -> os.stat_result | None:
        try:
            return os.lstat(path)
        except OSError as error:
            self.miss(path, error.strerror or str(error))
            return None

    def miss(self, path: Path, reason: str) -> None:
        self.unread.append((self.layout.relative(path), reason))

    def follow(self, path: Path, size: int, last_offset: int | None) -> FollowFile:
        status = self.status(path)
        name = self.layout.relative(path)
        if status is None:  # a live broker has deleted it, or its status cannot be read
            return FollowFile(name, size, 0, None, _ABSENT)
        mtime = status.st_mtime_ns // 1_000_000
        return FollowFile(name, size, disk_bytes(status), last_offset, status.st_dev, mtime)


def gather(store: Store, read_only_folders: Sequence[Path] = ()) -> Facts:
    """Gather the input of the rules, for a store root; nothing is changed.

    Args:
        store: opened for reading.
        read_only_folders: folders of the commit log to which the broker does not write: their disks do not
            count.
    """
    reader = _Reader(store)
    with OpenFiles() as files:
        chains = tuple(_chains(store, reader, files))
        log = tuple(_log_files(store, reader))
    return Facts(log, chains, _disks(store, read_only_folders), tuple(reader.unread))


def forecast_now(store: Store, settings: Settings, tail: tuple[int, int | None]) -> tuple[Forecast, Disks]:
    """The forecast of a store's disk, and the disks, without reading the files that follow the log.

    Args:
        store: a store root, opened for reading.
        settings: the broker's.
        tail: as for `forecast`.
    """
    reader, layout = _Reader(store), store.layout
    queues = () if layout.has_queues_in_rocksdb else layout.unit_queues
    sets = (queue.files for queue in (*queues, *layout.ext_queues.values()))
    chains = [Chain("", tuple(reader.follow(file.path, file.size, None) for file in files)) for files in sets]
    index = (reader.follow(file.path, file.size, None) for file in layout.index_files)
    chains.append(Chain("index", tuple(index)))
    disks = _disks(store, ())
    return forecast(tuple(_log_files(store, reader)), chains, disks, settings, tail), disks


def _log_files(store: Store, reader: _Reader) -> Iterator[LogFile]:
    for file in store.layout.commit_log:
        status = reader.status(file.path)
        if status is None:
            continue
        head = store.head(file.file_from_offset)
        first = head.store_timestamp if head is not None and head.store_timestamp > 0 else None
        mtime = status.st_mtime_ns // 1_000_000
        allocated = disk_bytes(status)
        name = store.layout.relative(file.path)
        yield LogFile(name, file.file_from_offset, file.size, allocated, mtime, status.st_dev, first)


def _chains(store: Store, reader: _Reader, files: OpenFiles) -> Iterator[Chain]:
    layout = store.layout
    if not layout.has_queues_in_rocksdb:
        yield from _queue_chains(layout.consume_queues, "consumequeue", UNIT_SIZE, reader, files)
    yield from _queue_chains(layout.batch_queues, "batchconsumequeue", BATCH_UNIT_SIZE, reader, files)
    if layout.index_files:
        ends = (_end_of_index(file.path, reader, files) for file in layout.index_files)
        made = (reader.follow(f.path, f.size, end) for f, end in zip(layout.index_files, ends, strict=True))
        yield Chain("index", tuple(made))
    if layout.timer_log:
        yield Chain("timerlog", tuple(
            reader.follow(file.path, file.size, _end_of_timer_log(file, reader, files))
            for file in layout.timer_log
        ))  # fmt: skip


def _queue_chains(
    queues: Queues, kind: str, unit_size: int, reader: _Reader, files: OpenFiles
) -> Iterator[Chain]:
    for (topic, queue_id), queue in queues.items():
        follow = []
        for place, file in enumerate(queue.files):
            # The last file always stays, whatever it refers to.
            is_last = place == len(queue.files) - 1
            end = None if is_last else _last_unit(file, unit_size, reader, files)
            follow.append(reader.follow(file.path, file.size, end))
        yield Chain(kind, tuple(follow), topic, queue_id)


def _last_unit(file: StoreFile, unit_size: int, reader: _Reader, files: OpenFiles) -> int | None:
    """The physical offset in the unit at the very end of the file, unchecked as in the broker."""
    return _number_at(file.path, file.size - unit_size, reader, files)


def _number_at(path: Path, offset: int, reader: _Reader, files: OpenFiles) -> int | None:
    if offset < 0:
        return None
    try:
        data = files.read(path, offset, 8)
    except UnreadableError as error:
        reader.miss(path, error.message)
        return None
    return int.from_bytes(data, signed=True) if len(data) == 8 else None


def _end_of_index(path: Path, reader: _Reader, files: OpenFiles) -> int | None:
    return _number_at(path, index_format.HEADER.offsets["end_physical_offset"], reader, files)


def _end_of_timer_log(file: StoreFile, reader: _Reader, files: OpenFiles) -> int | None:
    """The physical offset in the last unit of a timer log file; None if there is no unit."""
    offset = timer_format.last_unit_offset(file.size)
    if offset < 0:
        return None
    try:
        data = files.read(file.path, offset, timer_format.LOG_UNIT.size)
        return timer_format.decode_log_unit(data).physical_offset
    except UnreadableError as error:
        reader.miss(file.path, error.message)
    except FormatError:  # the broker does not delete such a file either
        return None
    return None


def _disks(store: Store, read_only_folders: Sequence[Path]) -> Disks:
    layout = store.layout
    by_id: dict[int, Disk] = {}

    def device_of(folder: Path) -> int:
        try:
            device = folder.stat().st_dev
            found = os.statvfs(folder)
        except OSError:
            return _ABSENT
        by_id[device] = disk_of(found)
        return device

    root = layout.root
    written = layout.commit_log_folders
    if root is not None:
        written = written_folders(root, written, layout.broker_conf, read_only_folders)
    queue = device_of(root / "consumequeue") if root is not None else _ABSENT
    return Disks(by_id, tuple(device_of(folder) for folder in written), queue)


WINDOW_MS = DAY_MS
"""The part of the log, up to its newest record, from which the rate is computed."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A ratio and when it is exceeded: ms from now (0: already), None if the log does not grow."""

    name: str
    ratio: float
    after_ms: int | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """How fast the store grows, and when the disk is full.

    Attributes:
        log_bytes_per_s: growth of the commit log; None if its store times give no rate.
        store_bytes_per_s: growth including queues and index.
        measured_from_ms, measured_to_ms: the store times between which the rate is measured.
        reached: the limits of the log's fullest disk.
        reserved_bytes: bytes of all files that are kept for fileReservedTime at this rate.
        hours_that_fit: how long files can be kept before the disk is above the lowest limit; None without a
            rate.
    """

    log_bytes_per_s: float | None
    store_bytes_per_s: float | None
    measured_from_ms: int | None
    measured_to_ms: int | None
    reached: tuple[Reached, ...]
    reserved_bytes: int | None
    hours_that_fit: float | None


def growth(points: Sequence[tuple[int, int]]) -> tuple[float, int, int] | None:
    """(bytes per second, first time, last time), from (physical offset, store time in ms) in the log's order.

    The window ends at the last point, whose time is the latest of all: messages that were stored again may
    end the log, with their old times. It begins at the newest point a day or more before it, or at the first.
    None for fewer than two points, or if the time or the offset does not increase.
    """
    if not points:
        return None
    end, to_ms = points[-1][0], max(time_ms for _, time_ms in points)
    start, from_ms = points[0]
    for offset, time_ms in points:
        if time_ms <= to_ms - WINDOW_MS:
            start, from_ms = offset, time_ms
    if to_ms <= from_ms or end <= start:
        return None
    return (end - start) * 1000 / (to_ms - from_ms), from_ms, to_ms


def forecast(
    log: Sequence[LogFile],
    chains: Sequence[Chain],
    disks: Disks,
    settings: Settings,
    tail: tuple[int, int | None],
) -> Forecast:
    """When the disk reaches each ratio.

    Args:
        log: the log's files.
        chains: the files that follow the log.
        disks: the present file systems.
        settings: the ratios and the hours.
        tail: the log's end, and the store time of its last record, ms; None if there is none.
    """
    points = [(file.start, file.first_ms) for file in log if file.first_ms is not None]
    end, last_ms = tail
    if last_ms:
        points.append((end, last_ms))
    found = growth(points)
    fullest = max((disk for disk in disks.log if disk in disks.by_id), key=disks.ratio, default=None)
    limits = (
        ("max_used_ratio", settings.max_used_ratio),
        ("forcible_ratio", settings.forcible_ratio),
        ("warning_ratio", settings.warning_ratio),
    )
    if found is None or fullest is None:
        reached = tuple(Reached(name, ratio, None) for name, ratio in limits)
        return Forecast(None, None, None, None, reached, None, None)
    log_rate, from_ms, to_ms = found
    log_bytes = max(end - log[0].start, 1)
    others = sum(file.allocated for chain in chains for file in chain.files if file.disk == fullest)
    rate = log_rate * (1 + others / log_bytes)
    disk = disks.by_id[fullest]
    reached = tuple(
        Reached(name, ratio, round(max(ratio * disk.total - disk.used, 0) * 1000 / rate))
        for name, ratio in limits
    )
    store_bytes = sum(file.allocated for file in log if file.disk == fullest) + others
    room = settings.max_used_ratio * disk.total - (disk.used - store_bytes)
    return Forecast(
        log_bytes_per_s=log_rate,
        store_bytes_per_s=rate,
        measured_from_ms=from_ms,
        measured_to_ms=to_ms,
        reached=reached,
        reserved_bytes=round(rate * settings.reserved_hours * 3600),
        hours_that_fit=max(room, 0) / rate / 3600,
    )


_LAST = "is the last file, which always stays"


@dataclass(frozen=True)
class Request:
    """The parameters of a plan.

    Attributes:
        now_ms: the time for which to decide, ms since 1970. The disks are always the present ones.
        zone: zone of the broker's host, for the hours of deleteWhen, and of times in reasons; None: local.
        rules: an operator's rules; if none is given, the broker's rules apply.
        rules_of: the broker whose rules apply; None: the one that used the store last.
        read_only_folders: folders of the commit log to which the broker does not write.
        disk_used_ratio: decide as if this part of each disk were in use; None: as it is.
        archive_disk: the device that takes copies of the files; None without an archive.
    """

    now_ms: int
    zone: tzinfo | None = None
    rules: OwnRules = field(default_factory=OwnRules)
    rules_of: WrittenBy | None = None
    read_only_folders: tuple[Path, ...] = ()
    disk_used_ratio: float | None = None
    archive_disk: int | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a broker would delete at another time, or with a fuller disk.

    Attributes:
        limit: the name of the setting with a limit of the disk; None for deleteWhen.
        at_ms: the next hour of deleteWhen, ms since 1970; None for a limit.
        used_ratio: one percent more than the limit; None for deleteWhen.
        log_files, freed_bytes, messages: what is deleted.
        lost: those of the messages that are still needed.
    """

    limit: str | None
    at_ms: int | None
    used_ratio: float | None
    log_files: int
    freed_bytes: int
    messages: int
    lost: Losses


@dataclass(frozen=True, slots=True)
class FileDecision:
    """The decision for one file.

    Attributes:
        path: as `Action.path`.
        kind: commitlog, consumequeue, batchconsumequeue, consumequeue_ext, index or timerlog.
        size, allocated: its length, and its bytes on the disk.
        mtime_ms: time of its last change, ms since 1970.
        expires: whether it is deleted.
        reason: why, or why not.
        round: the broker's pass that deletes a commit log file, from 1.
        disk: the device that holds it.
        topic, queue_id: of a queue's file.
    """

    path: str
    kind: str
    size: int
    allocated: int
    mtime_ms: int
    expires: bool
    reason: str
    disk: int
    round: int | None = None
    topic: str | None = None
    queue_id: int | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """Free bytes on the fullest disk of the commit log: wanted, now, and afterwards."""

    wanted: int
    before: int
    after: int

    @property
    def missing(self) -> int:
        """Bytes that are still missing afterwards."""
        return max(self.wanted - self.after, 0)


@dataclass(frozen=True)
class Expiry:
    """The files of a store that would be deleted, and the consequences.

    Attributes:
        rules_of: the broker whose rules were followed; it may be a guess.
        settings: its settings.
        trigger: why it deletes; None with an operator's rules.
        next_delete_ms: the next hour of deleteWhen, ms since 1970; None: never.
        disks: the present file systems.
        disks_after: the same without the files that are deleted.
        files: the decisions for all files, in the order of deletion: commit log, queues, index, timer log.
        start_before, start_after: the log's first physical offset; -1 for a log without files.
        effects: effects on the queues.
        losses: messages that are still needed.
        forecast: when the disks are full.
        unread: files that could not be read, with the reason. They stay.
        goal: the free space that an operator's rule demands; None without that rule.
        what_if: what would be deleted at the next hour of deleteWhen, unless files are deleted now, and above
            each limit; empty with an operator's rules.
        free_before: the physical offset before which no log file holds needed messages; `start_before` if the
            first one does. None for a log without files.
        needed: what makes the first log file that is not free needed; nothing if that is the last file.
        usage: what the store takes on its disks.
        offsets_unknown: why committed offsets are unknown, as far as they must have been there.
    """

    rules_of: WrittenBy
    settings: Settings
    trigger: Trigger | None
    next_delete_ms: int | None
    disks: Disks
    disks_after: Disks
    files: tuple[FileDecision, ...]
    start_before: int
    start_after: int
    effects: Effects
    losses: Losses
    forecast: Forecast
    unread: tuple[tuple[str, str], ...]
    goal: Goal | None = None
    what_if: tuple[WhatIf, ...] = ()
    free_before: int | None = None
    needed: Losses = field(default_factory=Losses)
    usage: tuple[Usage, ...] = ()
    offsets_unknown: tuple[str, ...] = ()

    @property
    def expired(self) -> tuple[FileDecision, ...]:
        """The files that are deleted, in the broker's order."""
        return tuple(decision for decision in self.files if decision.expires)

    @property
    def freed_bytes(self) -> int:
        """Bytes on the disks that are freed: none on the disk that takes the copies."""
        return sum(each.allocated for each in self.expired if each.disk != self.disks_after.archive)

    def actions(self) -> tuple[Action, ...]:
        """The deletions, in the broker's order."""
        return tuple(
            Action("delete", file.path, 0, file.size, file.reason, detail={"data_bytes": file.allocated})
            for file in self.expired
        )


@dataclass(frozen=True)
class Options:
    """The options of a plan, as in a plan file; see `Request` and `OwnRules`."""

    now_ms: int
    tz: str | None = None
    broker: str | None = None
    keep_hours: float | None = None
    until_free: int | None = None
    before_offset: int | None = None
    before_ms: int | None = None
    until_free_ratio: float | None = None
    disk_used_ratio: float | None = None

    def request(self, read_only_folders: Iterable[Path] = (), archive: Path | None = None) -> Request:
        """The request for these options. Raises UsageError for an unknown zone or broker."""
        rules = OwnRules(
            self.keep_hours, self.until_free, self.before_offset, self.before_ms, self.until_free_ratio
        )
        rules_of = None if self.broker is None else named(self.broker)
        zone = parse_zone(self.tz)
        device = None if archive is None else above(archive).stat().st_dev
        folders = tuple(read_only_folders)
        return Request(self.now_ms, zone, rules, rules_of, folders, self.disk_used_ratio, device)


def as_plan(expiry: Expiry, options: Options, found: Fingerprint, summary: dict[str, Any]) -> Plan:
    """The deletions as a plan without backup. `found` is the fingerprint of the store."""
    return Plan("expire", asdict(options), expiry.actions(), found, summary, keep=False)


def _check_readable(layout: StoreLayout) -> None:
    """Refuse a store of which a part is not known: losses in it would not be counted."""
    unread = (*layout.unreadable, *((path, NOT_A_FILE) for path in layout.commit_log_not_files))
    for path, reason in unread:
        raise UnreadableError(f"cannot read: {reason}", path=path)


def _check(layout: StoreLayout) -> None:
    """Refuse what is not a store root with a log that expire can read."""
    check_root(layout)
    layout.check_forms(log=True)
    layout.check_log_changes()
    _check_readable(layout)


def plan_expiry(store: Store, request: Request) -> Expiry:
    """Decide which files expire.

    Args:
        store: opened for reading.
        request: the parameters.

    Raises:
        UsageError: not a store root, or a time outside of the calendar.
        RefusedError: the log is in DLedger.
        FormatError: a setting of broker.conf that a broker cannot parse.
        UnreadableError: a part of the store cannot be listed.
    """
    _check(store.layout)
    rules_of = request.rules_of or store.written_by
    profile = rules_of.profile
    settings = settings_of(store.layout.broker_conf, profile)
    facts = gather(store, request.read_only_folders)
    if request.disk_used_ratio is not None:
        facts = facts._replace(disks=facts.disks.filled(request.disk_used_ratio))
    request = replace(request, rules=request.rules.for_disks(facts.disks))
    before = facts.log[0].start if facts.log else -1
    queues = read_queues(store, facts.chains, before)
    tail = store.commit_log.tail(queues.newest())
    try:
        next_delete = next_delete_time(settings, request.now_ms, request.zone)
        decisions, trigger = _decide(facts, settings, request, profile, tail.end)
        first_files = _FirstFiles(store, facts.log, queues)
        later = None if trigger is None or trigger.on else next_delete
        what_if = tuple(_what_if(facts, settings, request, profile, later, first_files, tail.end))
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError("this time is outside the calendar") from error
    count = sum(decision.expires for decision in decisions)
    after = facts.log[count].start if facts.log else -1
    effects = queue_effects(store, queues, before, after)
    lost = _with_unread(losses(store, effects.queues, after), effects, count)
    taken = tuple(usage(store.layout, store.note_unread))
    free_before, needed = first_files.free(*((0, count) if lost.any else (count, None)))
    return Expiry(
        rules_of=rules_of,
        settings=settings,
        trigger=trigger,
        next_delete_ms=next_delete,
        disks=facts.disks,
        disks_after=disks_afterwards(facts.log, facts.chains, _with_archive(facts.disks, request), after),
        files=(
            *map(_log_decision, facts.log, decisions),
            *_follow_decisions(store, facts.chains, effects, after),
        ),
        start_before=before, start_after=after, effects=effects, losses=lost,
        forecast=forecast(
            facts.log, facts.chains, facts.disks, settings,
            (tail.end, tail.last.store_timestamp if tail.last is not None else None),
        ),
        unread=_with_failures(store, (*facts.unread, *effects.unread)),
        goal=_goal(facts, request, after),
        what_if=what_if,
        free_before=free_before, needed=needed, usage=taken,
        offsets_unknown=tuple(known_offsets(store, needed=offsets_are_lost(store))[1]),
    )  # fmt: skip


class _FirstFiles:
    """What goes with the first log files, and which of them can be deleted without a loss."""

    def __init__(self, store: Store, log: Sequence[LogFile], queues: ReadQueues) -> None:
        self.store, self.log, self.queues = store, log, queues
        self._known: dict[int, tuple[int, Losses]] = {}

    def gone(self, count: int) -> tuple[int, Losses]:
        """The messages in the first `count` files, and those still needed; none if that is all files."""
        if not 0 < count < len(self.log):
            return 0, Losses()
        if count not in self._known:
            after = self.log[count].start
            effects = queue_effects(self.store, self.queues, self.log[0].start, after)
            lost = _with_unread(losses(self.store, effects.queues, after), effects, count)
            self._known[count] = sum(each.messages_going for each in effects.queues), lost
        return self._known[count]

    def free(self, sure: int, most: int | None) -> tuple[int | None, Losses]:
        """Where the first file that is not free begins, and what needs it; see `Expiry`.

        At least `sure` files can be deleted, and fewer than `most`. The number is found by bisection.
        """
        if not self.log:
            return None, Losses()
        low, high = sure, max((len(self.log) if most is None else most) - 1, sure)
        while low < high:
            middle = (low + high + 1) // 2
            if self.gone(middle)[1].any:
                high = middle - 1
            else:
                low = middle
        return self.log[low].start, self.gone(low + 1)[1]


def expired_followers(store: Store, start: int) -> list[FileDecision]:
    """The files of queues and index that expire when the log begins at a physical offset, in their order.

    Raises:
        UnreadableError: a file whose newest record decides cannot be read.
    """
    root = store.layout.root
    assert root is not None
    reader = _Reader(store)
    with OpenFiles() as files:
        chains = tuple(each for each in _chains(store, reader, files) if each.kind != "timerlog")
    extended = [each for each in chains if (each.topic, each.queue_id) in store.layout.ext_queues]
    effects = queue_effects(store, read_queues(store, extended, start), start, start)
    for name, reason in (*reader.unread, *effects.unread):
        raise UnreadableError(f"whether it expires is unknown: {reason}", path=root / name)
    return [each for each in _follow_decisions(store, chains, effects, start) if each.expires]


def check_root(layout: StoreLayout) -> None:
    """Raise UsageError unless the layout is that of a store root."""
    if layout.root is None or layout.kind != "store":
        raise UsageError("this is not a store root", hint="name the folder that holds commitlog")


def _decide(
    facts: Facts, settings: Settings, request: Request, profile: Profile, end_offset: int
) -> tuple[list[Decision], Trigger | None]:
    if request.rules.given:
        decisions = by_own_rules(
            facts.log, facts.chains, _with_archive(facts.disks, request), request.rules, request.now_ms,
            end_offset, request.zone,
        )  # fmt: skip
        return decisions, None
    return by_broker(
        facts.log, facts.chains, facts.disks, settings, request.now_ms, request.zone,
        is_5=profile.has_timer, end_offset=end_offset,
    )  # fmt: skip


def _what_if(
    facts: Facts,
    settings: Settings,
    request: Request,
    profile: Profile,
    later_ms: int | None,
    first_files: _FirstFiles,
    end_offset: int,
) -> Iterator[WhatIf]:
    """What the broker's rules delete at `later_ms`, if given, and with a disk above each of its limits."""
    if request.rules.given or not facts.log or not facts.disks.of_log:
        return

    def found(name: str | None, at_ms: int | None, ratio: float | None) -> WhatIf:
        then = facts if ratio is None else facts._replace(disks=facts.disks.filled(ratio))
        asked = request if at_ms is None else replace(request, now_ms=at_ms)
        decisions, _ = _decide(then, settings, asked, profile, end_offset)
        count = sum(decision.expires for decision in decisions)
        after = facts.log[count].start
        free = free_afterwards(then.log, then.chains, then.disks, after) - then.disks.usable
        return WhatIf(name, at_ms, ratio, count, free, *first_files.gone(count))

    if later_ms is not None:
        yield found(None, later_ms, None)
    for name in ("max_used_ratio", "forcible_ratio", "warning_ratio"):
        yield found(name, None, min(getattr(settings, name) + 0.01, 1.0))


def _with_archive(disks: Disks, request: Request) -> Disks:
    return replace(disks, archive=request.archive_disk)


def _goal(facts: Facts, request: Request, after: int) -> Goal | None:
    if request.rules.until_free is None:
        return None
    free = free_afterwards(facts.log, facts.chains, _with_archive(facts.disks, request), after)
    return Goal(request.rules.until_free, facts.disks.usable, free)


def _with_failures(store: Store, unread: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Unreadable files, and those that reading of the log and of config files has met."""
    failures = {store.layout.relative(path): failure.reason for path, failure in store.failures.items()}
    return tuple((failures | dict(unread)).items())


def _with_unread(found: Losses, effects: Effects, files_going: int) -> Losses:
    """The losses, with unreadable queues as unknown; none if no file is deleted."""
    if not files_going:
        return Losses()
    unread = (f"{path}: {reason}" for path, reason in effects.unread)
    return replace(found, unknown=(*found.unknown, *unread))


def _log_decision(file: LogFile, decision: Decision) -> FileDecision:
    return FileDecision(
        file.path, "commitlog", file.size, file.allocated, file.mtime_ms, decision.expires, decision.reason,
        file.disk, decision.round,
    )  # fmt: skip


def _follow_decisions(
    store: Store, chains: tuple[Chain, ...], effects: Effects, start: int
) -> Iterator[FileDecision]:
    """The decisions for files that follow the log; a broker deletes them only if the log starts above 0."""
    first_live = {(each.topic, each.queue_id): each.first_after for each in effects.queues}
    for chain in chains:
        count = expired_count(chain, start) if start > 0 else 0
        for place, file in enumerate(chain.files):
            expires = place < count
            yield FileDecision(
                file.path, chain.kind, file.size, file.allocated, file.mtime_ms, expires,
                _why(chain, place, count, start), file.disk, None, chain.topic, chain.queue_id,
            )  # fmt: skip
        if chain.kind == "consumequeue" and chain.topic is not None and chain.queue_id is not None:
            key = (chain.topic, chain.queue_id)
            yield from _extension_decisions(store, key, first_live.get(key) if start > 0 else None)


def _why(chain: Chain, place: int, count: int, start: int) -> str:
    file: FollowFile = chain.files[place]
    if place == len(chain.files) - 1:
        return _LAST
    if start <= 0:
        return "the log starts at 0"
    if place > count:
        return "follows a file that is kept"
    if file.last_offset is None:
        return "does not show its newest record"
    where = "before" if file.last_offset < start else "at or after"
    return f"its newest record, at {file.last_offset}, is {where} the log's new start, {start}"


def _extension_decisions(
    store: Store, key: tuple[str, int], first_live: int | None
) -> Iterator[FileDecision]:
    """The decisions for extension files: those before the address in the queue's first live unit are deleted.

    Source: ConsumeQueue#correctMinOffset, ConsumeQueueExt#truncateByMinAddress.
    """
    files = store.layout.ext_queues.get(key)
    queue = store.queues.get(key)
    if files is None or not files.files:
        return
    address = None
    if first_live is not None and isinstance(queue, ConsumeQueue):
        unit = queue.unit(first_live)
        if unit is not None and not unit.is_pre_blank and is_ext_address(unit.tags_code):
            address = ext_offset(unit.tags_code)
    for file in files.files:
        try:
            status = file.path.lstat()
        except FileNotFoundError:  # a live broker has deleted it
            continue
        except OSError as error:
            raise UnreadableError(f"cannot read: {error.strerror}", path=file.path) from error
        expires = address is not None and file.end < address
        where = "past the file" if expires else "into the file or before it"
        reason = f"the queue's first live unit points {where}"
        if address is None:
            reason = "the queue's first live unit has no extension"
        yield FileDecision(
            store.layout.relative(file.path), "consumequeue_ext", file.size, disk_bytes(status),
            status.st_mtime_ns // 1_000_000, expires, reason, status.st_dev, None, *key,
        )  # fmt: skip
