"""The expiry of one store: a decision with its reason per file, and the consequences.

    with Store.open("/data/store") as store:
        expiry = plan_expiry(store, Request(now_ms))
        print([fate.path for fate in expiry.fates if fate.goes])

Nothing is changed. A store in use can be planned too, but its broker deletes files itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import tzinfo
from pathlib import Path
from typing import Any

from rmqtool.broker.expiry_rules import (
    Chain,
    Decision,
    Disks,
    FollowFile,
    LogFile,
    Trigger,
    by_broker,
    going,
    next_delete_time,
)
from rmqtool.broker.expiry_settings import Settings, settings_of
from rmqtool.errors import UnreadableError, UsageError
from rmqtool.formats.consume_queue import ext_offset, is_ext_address
from rmqtool.queue.consume_queue import ConsumeQueue
from rmqtool.read.store import Store
from rmqtool.repair.expire.forecast import Forecast, forecast
from rmqtool.repair.expire.gather import Facts, gather
from rmqtool.repair.expire.losses import Losses, losses
from rmqtool.repair.expire.own_rules import OwnRules, by_own_rules, free_afterwards
from rmqtool.repair.expire.queues import Effects, queue_effects, read_queues
from rmqtool.repair.plan import Action, Fingerprint, Plan
from rmqtool.storage.layout import StoreLayout
from rmqtool.storage.profile import Profile, WrittenBy, named
from rmqtool.times import parse_zone

_LAST = "is the last file, which always stays"


@dataclass(frozen=True)
class Request:
    """The parameters of a plan.

    Attributes:
        now_ms: the time for which to decide, ms since 1970. The disks are always the present ones.
        zone: zone of the broker's host, for the hours of deleteWhen; None: the local one.
        rules: an operator's rules; if none is given, the broker's rules apply.
        rules_of: the broker whose rules apply; None: the one that used the store last.
        read_only_folders: folders of the commit log to which the broker does not write.
    """

    now_ms: int
    zone: tzinfo | None = None
    rules: OwnRules = field(default_factory=OwnRules)
    rules_of: WrittenBy | None = None
    read_only_folders: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class FileDecision:
    """The decision for one file.

    Attributes:
        path: as `Action.path`.
        kind: commitlog, consumequeue, batchconsumequeue, consumequeue_ext, index or timerlog.
        size, allocated: its length, and its bytes on the disk.
        mtime_ms: time of its last change, ms since 1970.
        goes: whether it is deleted.
        reason: why, or why not.
        round: the broker's pass that deletes a commit log file, from 1.
        topic, queue_id: of a queue's file.
    """

    path: str
    kind: str
    size: int
    allocated: int
    mtime_ms: int
    goes: bool
    reason: str
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
        fates: the decisions for all files, in the order of deletion: commit log, queues, index, timer log.
        start_before, start_after: the log's first physical offset; -1 for a log without files.
        effects: effects on the queues.
        losses: messages that are still needed.
        forecast: when the disks are full.
        unread: files that could not be read, with the reason. They stay.
        goal: the free space that an operator's rule demands; None without that rule.
    """

    rules_of: WrittenBy
    settings: Settings
    trigger: Trigger | None
    next_delete_ms: int | None
    disks: Disks
    fates: tuple[FileDecision, ...]
    start_before: int
    start_after: int
    effects: Effects
    losses: Losses
    forecast: Forecast
    unread: tuple[tuple[str, str], ...]
    goal: Goal | None = None

    @property
    def going(self) -> tuple[FileDecision, ...]:
        """The files that are deleted, in the broker's order."""
        return tuple(fate for fate in self.fates if fate.goes)

    @property
    def freed_bytes(self) -> int:
        """Bytes on the disk that are freed."""
        return sum(fate.allocated for fate in self.going)

    def actions(self) -> tuple[Action, ...]:
        """The deletions, in the broker's order."""
        return tuple(
            Action("delete", fate.path, 0, fate.size, fate.reason, detail={"data_bytes": fate.allocated})
            for fate in self.going
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

    def request(self, read_only_folders: Iterable[Path] = ()) -> Request:
        """The request for these options. Raises UsageError for an unknown zone or broker."""
        rules = OwnRules(self.keep_hours, self.until_free, self.before_offset, self.before_ms)
        rules_of = None if self.broker is None else named(self.broker)
        return Request(self.now_ms, parse_zone(self.tz), rules, rules_of, tuple(read_only_folders))


def as_plan(expiry: Expiry, options: Options, found: Fingerprint, summary: dict[str, Any]) -> Plan:
    """The deletions as a plan without backup. `found` is the fingerprint of the store."""
    return Plan("expire", asdict(options), expiry.actions(), found, summary, keep=False)


def plan_expiry(store: Store, request: Request) -> Expiry:
    """Decide which files expire.

    Args:
        store: opened for reading.
        request: the parameters.

    Raises:
        UsageError: not a store root, or a time outside of the calendar.
        FormatError: a setting of broker.conf that a broker cannot parse.
        UnreadableError: a part of the store cannot be listed.
    """
    layout = store.layout
    check_root(layout)
    layout.check_forms(log=True)
    for path, reason in layout.unreadable:  # losses in a queue that was not listed would not be counted
        raise UnreadableError(f"cannot read: {reason}", path=path)
    rules_of = request.rules_of or store.written_by
    profile = rules_of.profile
    settings = settings_of(layout.broker_conf, profile)
    facts = gather(store, request.read_only_folders)
    before = facts.log[0].start if facts.log else -1
    queues = read_queues(store, facts.chains, before)
    tail = store.commit_log.tail(queues.newest())
    try:
        next_delete = next_delete_time(settings, request.now_ms, request.zone)
        decisions, trigger = _decide(facts, settings, request, profile, tail.end)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError("this time is outside the calendar") from error
    count = sum(decision.goes for decision in decisions)
    after = facts.log[count].start if facts.log else -1
    effects = queue_effects(store, queues, before, after)
    return Expiry(
        rules_of=rules_of,
        settings=settings,
        trigger=trigger,
        next_delete_ms=next_delete,
        disks=facts.disks,
        fates=(*map(_log_fate, facts.log, decisions), *_follow_fates(store, facts.chains, effects, after)),
        start_before=before,
        start_after=after,
        effects=effects,
        losses=_with_unread(losses(store, effects.queues, after), effects, count),
        forecast=forecast(
            facts.log, facts.chains, facts.disks, settings,
            (tail.end, tail.last.store_timestamp if tail.last is not None else None),
        ),
        unread=(*facts.unread, *effects.unread),
        goal=_goal(facts, request.rules, after),
    )  # fmt: skip


def check_root(layout: StoreLayout) -> None:
    """Raise UsageError unless the layout is that of a store root."""
    if layout.root is None:
        raise UsageError("this is not a store root", hint="name the folder that holds commitlog")


def _decide(
    facts: Facts, settings: Settings, request: Request, profile: Profile, end_offset: int
) -> tuple[list[Decision], Trigger | None]:
    if request.rules.given:
        decisions = by_own_rules(
            facts.log, facts.chains, facts.disks, request.rules, request.now_ms, end_offset
        )
        return decisions, None
    return by_broker(
        facts.log, facts.chains, facts.disks, settings, request.now_ms, request.zone, is_5=profile.has_timer
    )


def _goal(facts: Facts, rules: OwnRules, after: int) -> Goal | None:
    if rules.until_free is None:
        return None
    free = free_afterwards(facts.log, facts.chains, facts.disks, after)
    return Goal(rules.until_free, facts.disks.usable, free)


def _with_unread(found: Losses, effects: Effects, files_going: int) -> Losses:
    """The losses, with unreadable queues as unknown; none if no file is deleted."""
    if not files_going:
        return Losses()
    unread = (f"{path}: {reason}" for path, reason in effects.unread)
    return replace(found, unknown=(*found.unknown, *unread))


def _log_fate(file: LogFile, decision: Decision) -> FileDecision:
    return FileDecision(
        file.path, "commitlog", file.size, file.allocated, file.mtime_ms, decision.goes, decision.reason,
        decision.round,
    )  # fmt: skip


def _follow_fates(
    store: Store, chains: tuple[Chain, ...], effects: Effects, start: int
) -> Iterator[FileDecision]:
    """The decisions for files that follow the log; a broker deletes them only if the log starts above 0."""
    first_live = {(each.topic, each.queue_id): each.first_after for each in effects.queues}
    for chain in chains:
        count = going(chain, start) if start > 0 else 0
        for place, file in enumerate(chain.files):
            goes = place < count
            yield FileDecision(
                file.path, chain.kind, file.size, file.allocated, file.mtime_ms, goes,
                _why(chain, place, count, start), None, chain.topic, chain.queue_id,
            )  # fmt: skip
        if chain.kind == "consumequeue" and chain.topic is not None and chain.queue_id is not None:
            key = (chain.topic, chain.queue_id)
            yield from _ext_fates(store, key, first_live.get(key) if start > 0 else None)


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


def _ext_fates(store: Store, key: tuple[str, int], first_live: int | None) -> Iterator[FileDecision]:
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
        except OSError:  # a live broker has deleted it
            continue
        goes = address is not None and file.end < address
        reason = (
            f"the queue's first live unit points {'past the file' if goes else 'into the file or before it'}"
        )
        if address is None:
            reason = "the queue's first live unit has no extension"
        yield FileDecision(
            store.layout.relative(file.path), "consumequeue_ext", file.size, status.st_blocks * 512,
            status.st_mtime_ns // 1_000_000, goes, reason, None, *key,
        )  # fmt: skip
