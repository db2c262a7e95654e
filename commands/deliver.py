"""`rmqtool deliver`: delayed messages that are due, into their real queues."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqtool.commands import changes, options
from rmqtool.commands.groups import Given, Only, with_groups
from rmqtool.commands.interrupts import entering
from rmqtool.errors import (
    EXIT_FINDINGS,
    EXIT_INPUT,
    EXIT_OK,
    EXIT_REFUSED,
    FormatError,
    RefusedError,
    UsageError,
    worst_exit_code,
)
from rmqtool.lazy_dataclass import dataclass
from rmqtool.output import Output
from rmqtool.terminal import counted
from rmqtool.times import format_time, parse_time

if TYPE_CHECKING:
    from datetime import tzinfo

    from rmqtool.read.store import Store
    from rmqtool.storage.broker_conf import BrokerConf
    from rmqtool.write.schedule import Delivery
    from rmqtool.write.store_writer import StoreWriter

COLUMNS = (
    "state", "level", "queue_offset", "physical_offset", "due_timestamp_ms", "due_time", "topic", "queue_id",
    "uniq_key", "delivered_queue_offset", "delivered_physical_offset", "reason",
)  # fmt: skip
TABLE_COLUMNS = ("state", "level", "queue_offset", "due_time", "topic", "queue_id", "uniq_key")

At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Deliver what is due at this time: ISO 8601, epoch milliseconds, now, today,"
        " yesterday, 14:30 or '2h ago'. Default: now.",
    ),
]


@with_groups
def deliver(
    *,
    store: options.ProfiledStoreOptions,
    at: At = None,
    planned: Annotated[options.PlanOptions, Only("apply force")],
    create_topic: options.CreateTopic = False,
    shown: Annotated[options.RowOutput, Only("tz format json fields quiet")],
    given: Given,
) -> int:
    """Show delayed messages that are due, and deliver them.

    A message with a delay level waits in SCHEDULE_TOPIC_XXXX until a broker stores it again under its
    real topic and records that in delayOffset.json. This command does the same without a broker,
    earliest message first. If --broker-conf sets messageDelayLevel, a message that would wait longer
    than its level allows is due at once; a broker does the same after its levels were changed or its
    clock was set back. Messages of the 5.x timer wheel are not delivered.

    Shows what would be delivered; --apply delivers it. delayOffset.json is updated after the messages
    are on the device. After a crash some messages may therefore be delivered twice, as by a broker, but
    none is lost.

    If delayOffset.json cannot be parsed, or it and its .bak are missing, a broker delivers every stored
    message again. --apply is refused then. Without it the plan counts every message as not delivered, and
    standard error shows how many of the messages that are due have a copy in the log already. If the
    files are missing, --force delivers every stored message. The same holds if the .bak alone is there,
    and messages that are due by it have a copy.

    The column state says due or delivered, or names the reason why a message is not delivered.

    These messages are skipped, as by a broker, and the rest of their level is delivered:

    \b
      missing        the log no longer has the record
      half           it is a half message of a transaction
      unreadable     the record does not name its target
      illegal        no broker could store it there: the field reason says why

    These messages stop the delivery of their level:

    \b
      damaged        its body does not match its CRC; the copy would look sound
      unknown_topic  not in topics.json: no consumer finds it; see --create-topic
      refused        for example because its topic is not writable

    Exits with 0 when nothing is due, or everything was delivered; 1 when messages are due and --apply
    was not given, or messages were skipped; 2 for a usage error; 3 when something could not be read or
    written; 4 when a level stopped, or the store was not closed cleanly; 5 when the store is in use.
    """  # noqa: D301  a backspace character keeps the lines as they are
    apply, zone = planned.apply, shown.zone
    output = shown.writer(changes=apply)
    request = _Request.of(store, at, zone, create_topics=create_topic, force=planned.force)
    states: Counter[str] = Counter()

    def rows(deliveries: Iterable[Delivery]) -> Iterator[dict[str, Any]]:
        for delivery in deliveries:
            states[delivery.state] += 1
            if delivery.reason is not None:
                output.note(f"rmqtool: {_place(delivery)} is {delivery.state}: {delivery.reason}")
            yield _row(delivery, zone)

    report = _OffsetReport(output)
    with closing(_delivered(request, report) if apply else _planned(request, report)) as deliveries:
        output.write_rows(rows(deliveries), COLUMNS, TABLE_COLUMNS)
    output.note(f"rmqtool: {_summary(states, format_time(request.now_ms, zone))}{report.waiting}")
    if states["due"] and not apply and not report.is_refused:
        fixed = [] if at is None else ["--at", format_time(request.now_ms, UTC) or at]
        line = given.line(*fixed, "--apply", without=("at", "tz"))
        output.note(f"rmqtool: nothing was changed; to deliver them: {line}")
    return worst_exit_code(_exit_code(states, apply=apply), EXIT_INPUT if report.is_unknown else EXIT_OK)


@dataclass(frozen=True)
class _Request:
    store: options.ProfiledStoreOptions
    broker_conf: BrokerConf | None
    now_ms: int
    create_topics: bool
    force: bool

    @classmethod
    def of(
        cls,
        store: options.ProfiledStoreOptions,
        at: str | None,
        zone: tzinfo | None,
        *,
        create_topics: bool,
        force: bool,
    ) -> _Request:
        """Read --at and --broker-conf."""
        from rmqtool.storage.broker_conf import read_broker_conf

        clock_ms = time.time_ns() // 1_000_000
        conf = None if store.broker_conf is None else read_broker_conf(store.broker_conf)
        now_ms = clock_ms if at is None else parse_time(at, zone, clock_ms)
        return cls(store, conf, now_ms, create_topics, force)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that open the store, besides its path; broker.conf is read once."""
        return {**self.store.arguments(), "broker_conf": self.broker_conf}


class _OffsetReport:
    """Reports on delayOffset.json; `is_unknown`: the file exists and cannot be parsed.

    `is_refused`: it has said that --apply is refused. `waiting`: what is due after the messages at which
    levels stop, in words; empty if no level does.
    """

    def __init__(self, output: Output) -> None:
        self.output = output
        self.is_unknown = self.is_refused = False
        self.waiting = ""

    def offsets(self, opened: Store, delays: Sequence[int] | None, *, apply: bool) -> dict[int, int]:
        """Return the next queue offset to deliver by level.

        If delayOffset.json cannot be parsed, `apply` raises FormatError, and a plan uses no offsets.
        """
        from rmqtool.write.schedule import delivered_offsets, levels

        try:
            found = delivered_offsets(opened)
        except FormatError as error:
            if apply:
                raise
            self.is_unknown = True
            self.refused(f"{error.in_one_line}; --apply is refused")
            return {}
        for level in levels(opened, delays, found):
            if level.noted_offset > level.end_offset:
                self.output.note(
                    f"rmqtool: warning: delayOffset.json has level {level.level} delivered up to offset"
                    f" {level.noted_offset}, but its queue ends at {level.end_offset}: none of it is due"
                )
            if level.noted_offset < 0:  # as in a broker: ScheduleMessageService#correctDelayOffset
                self.output.note(
                    f"rmqtool: warning: delayOffset.json has level {level.level} delivered up to offset"
                    f" {level.noted_offset}, which is not an offset: all its messages count as not delivered"
                )
        return found

    def refused(self, text: str) -> None:
        """Say why --apply would be refused."""
        self.is_refused = True
        self.output.note(f"rmqtool: {text}")

    def again(self, opened: Store, due: Callable[[], Iterable[Delivery]]) -> RefusedError | None:
        """Return why the messages that are due should not be delivered; None if they should.

        `due` yields them, those of unknown topics too.
        """
        from rmqtool.read.delay_loss import offsets_of_bak
        from rmqtool.read.lost_config import what_happened_to
        from rmqtool.storage.config_files import DELAY_OFFSETS
        from rmqtool.write.schedule import count_again, offsets_are_lost

        has_bak = offsets_of_bak(opened.layout) is not None
        is_lost = has_bak or offsets_are_lost(opened)
        if self.is_unknown or not is_lost or not (count := sum(1 for _ in due())):
            return None
        again = count_again(opened, due())
        if has_bak and not again:
            return None
        how = (
            "delayOffset.json and its .bak are missing, so that every stored message counts as not delivered"
        )
        if has_bak:
            how = f"{what_happened_to(opened.layout, DELAY_OFFSETS)}, and its .bak is older than the log"
        evidence = (
            f"the log has a later copy of {again} under their real topic: these would be delivered again"
        )
        if not again:
            evidence = "the log has a later copy of none under their real topic"
        return RefusedError(
            f"{how}. Of {count} that are due {evidence}",
            path=opened.layout.root,
            hint="rmqtool recover makes it again if the log shows enough, or put a copy into config/; --force"
            " delivers all of them",
        )


def _planned(request: _Request, report: _OffsetReport) -> Generator[Delivery]:
    """Yield the messages that are due, from a store opened read-only."""
    from rmqtool.read.store import Store
    from rmqtool.write.opening import check_layout
    from rmqtool.write.topics import TopicTable

    with Store.open(request.store.store, **request.arguments()) as opened:
        options.note_assumed_version(report.output, opened.written_by, "--profile")
        root = opened.layout.root
        if root is None:
            raise UsageError(
                f"{request.store.store} is not a store root", hint="name the folder that contains commitlog"
            )
        if opened.live:
            report.output.note("rmqtool: a broker is using the store and delivers these messages itself")
        topics = TopicTable.load(root, opened.profile)
        knows = None if request.create_topics else topics.is_known
        due, lost = _due(request, report, opened, knows, apply=False)
        if lost is not None and not request.force:
            report.refused(f"{lost.message}; --apply is refused without --force")
        try:
            check_layout(opened.layout, root)
        except RefusedError as error:
            hint = f": {error.hint}" if error.hint else ""
            report.refused(f"{error.in_one_line}; --apply is refused{hint}")
        yield from _through(due(), request, report, opened)


def _delivered(request: _Request, report: _OffsetReport) -> Generator[Delivery]:
    """Deliver the messages that are due to their real queues; yield them."""
    from rmqtool.write.schedule import check_form, deliver
    from rmqtool.write.store_writer import StoreWriter

    with request.store.open() as opened:
        opened.layout.check_log_changes()
        check_form(opened.layout)

    def make() -> StoreWriter:
        return StoreWriter.open(request.store.store, **request.arguments())

    noting_end_of_undo = changes.end_of_undo(report.output, request.store.store)
    with entering(make) as writer, noting_end_of_undo(writer), writer.read() as opened:
        options.note_assumed_version(report.output, writer.options.written_by, "--profile")
        knows = None if request.create_topics else writer.topics.is_known
        due, lost = _due(request, report, opened, knows, apply=True)
        if lost is not None and not request.force:
            raise lost
        if lost is not None:
            report.output.note(f"rmqtool: warning: {lost.message}")
        done = deliver(writer, due(), create_topics=request.create_topics)
        yield from _through(done, request, report, opened)


def _through(
    deliveries: Iterable[Delivery], request: _Request, report: _OffsetReport, opened: Store
) -> Iterator[Delivery]:
    """Yield the deliveries; then note what waits after those at which levels stop."""
    from rmqtool.read.delay_levels import configured
    from rmqtool.storage.config_files import TOPICS
    from rmqtool.write.schedule import HELD, count_waiting

    held = []
    for delivery in deliveries:
        if delivery.state in HELD:
            held.append(delivery)
        yield delivery
    if not held:
        return
    count = count_waiting(opened, request.now_ms, configured(request.broker_conf), held)
    if count:
        stop, keep = ("stops", "keeps") if len(held) == 1 else ("stop", "keep")
        report.waiting = f"; {counted(len(held), 'level')} {stop} there and {keep} {count} more waiting"
    if any(delivery.state == "unknown_topic" for delivery in held):
        report.waiting += "; --create-topic delivers to unknown topics"
        if TOPICS not in opened.layout.config and f"{TOPICS}.bak" not in opened.layout.config:
            report.waiting += f"; topics.json is missing, see {request.store.command('recover')}"


def _due(
    request: _Request,
    report: _OffsetReport,
    opened: Store,
    knows: Callable[[str], bool] | None,
    *,
    apply: bool,
) -> tuple[Callable[[], Iterator[Delivery]], RefusedError | None]:
    """Return what yields the messages that are due, each time it is called, and why not to deliver them."""
    from rmqtool.read.delay_levels import configured
    from rmqtool.write.schedule import plan

    delays = configured(request.broker_conf)
    offsets = report.offsets(opened, delays, apply=apply)

    def due() -> Iterator[Delivery]:
        return plan(opened, request.now_ms, delays, knows=knows, offsets=offsets)

    def of_all_topics() -> Iterator[Delivery]:
        return plan(opened, request.now_ms, delays, offsets=offsets)

    return due, report.again(opened, of_all_topics)


def _place(delivery: Delivery) -> str:
    return (
        f"queue offset {delivery.queue_offset} of level {delivery.level}, the record at physical offset"
        f" {delivery.physical_offset},"
    )


def _row(delivery: Delivery, zone: tzinfo | None) -> dict[str, Any]:
    stored = delivery.stored
    return {
        "state": delivery.state,
        "level": delivery.level,
        "queue_offset": delivery.queue_offset,
        "physical_offset": delivery.physical_offset,
        "due_timestamp_ms": delivery.due_timestamp,
        "due_time": format_time(delivery.due_timestamp, zone),
        "topic": delivery.topic,
        "queue_id": delivery.queue_id,
        "uniq_key": delivery.uniq_key,
        "delivered_queue_offset": stored.queue_offset if stored is not None else None,
        "delivered_physical_offset": stored.physical_offset if stored is not None else None,
        "reason": delivery.reason,
    }


def _summary(states: Counter[str], now: str | None) -> str:
    if not states:
        return f"nothing is due at {now}"
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in sorted(states.items()))
    return f"{counts} at {now}"


def _exit_code(states: Counter[str], *, apply: bool) -> int:
    from rmqtool.write.schedule import HELD, SKIPPED

    codes = [EXIT_OK]
    if states["due"] or not SKIPPED.isdisjoint(states):
        codes.append(EXIT_FINDINGS)
    if not HELD.isdisjoint(states):
        codes.append(EXIT_REFUSED if apply else EXIT_FINDINGS)
    return worst_exit_code(*codes)
