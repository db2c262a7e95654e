"""Computes all sections that a call of `stats` requests, with as few passes over the log as possible.

One scan gives the counts by group, the largest messages, and the data of charts. In a store that a broker
uses, the ends of the queues are read first, then the log's end; no later
record is counted.

The values of a group, in the rows of `stats --by topic,queue,tag,hour,day,size`:

    count, bytes, body_bytes          messages; sizes of their records, and of their bodies as stored
    size_*_bytes, body_*_bytes        smallest, mean, percentiles (within 0.4 %, see histogram.py), largest
    delay_*_ms                        store time - born time; below 0 if the producer's clock is ahead
    messages_per_s, bytes_per_s       between the first and the last of the group; null for less than a second
    mean_distance_bytes               by queue: from the start of a message in the log to that of the next
    largest_body_physical_offset      the first message with the largest body

Sums and extremes are exact. Means and rates have three decimal places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from datetime import tzinfo
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool import times
from rmqtool.errors import EXIT_FINDINGS, EXIT_OK, RmqtoolError, UsageError, worst_exit_code
from rmqtool.findings import Progress, Report, ScanCounters
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.rows import Row, RowFormat, message_row
from rmqtool.near_names import listed
from rmqtool.read.consumer_offsets import consumer_offsets
from rmqtool.read.due_times import expired_before_due
from rmqtool.read.log_items import end_of_selection
from rmqtool.read.lost_config import configured_groups, groups_without_offsets, where_offsets_were
from rmqtool.read.selection import Selection
from rmqtool.report.stats import duplicates, lag, pending, transactions
from rmqtool.report.stats.charts import Charts, ChartSums
from rmqtool.report.stats.dimensions import FIELDS as NAME_FIELDS
from rmqtool.report.stats.dimensions import Codes, Dimension
from rmqtool.report.stats.groups import PERCENTILES, PLACES, Groups
from rmqtool.report.stats.scanner import Aggregator, Batch, scan
from rmqtool.report.stats.timeline import Timeline
from rmqtool.storage.buffers import Array

if TYPE_CHECKING:
    from rmqtool.read.store import Store
    from rmqtool.storage.layout import StoreLayout


_MEASURES = (("size", "bytes"), ("body", "bytes"), ("delay", "ms"))
VALUE_FIELDS = (
    "count", "bytes", "body_bytes", "compressed",
    *(f"{name}_{what}_{unit}" for name, unit in _MEASURES
      for what in ("min", "mean", *(f"p{part}" for part in PERCENTILES), "max")),
    "first_store_timestamp_ms", "first_store_time", "last_store_timestamp_ms", "last_store_time",
    "messages_per_s", "bytes_per_s", "min_queue_offset", "max_queue_offset", "first_physical_offset",
    "last_physical_offset", "mean_distance_bytes", "largest_body_physical_offset",
)  # fmt: skip
_TABLE_FIELDS = ("count", "bytes", "body_min_bytes", "body_mean_bytes", "body_p99_bytes", "body_max_bytes",
                 "delay_p50_ms", "delay_p99_ms", "messages_per_s")  # fmt: skip
_RATE_SECONDS_MIN = 1  # a few messages of some milliseconds would be thousands per second
_SHOWN_NAMES = {"hour": ("hour_time",), "day": ("day_time",)}


def fields(by: Sequence[str]) -> tuple[str, ...]:
    """The names of a row's fields, in order."""
    return (*(name for each in by for name in NAME_FIELDS[each]), *VALUE_FIELDS)


def table_fields(by: Sequence[str]) -> tuple[str, ...]:
    """The fields that a table shows."""
    names = (name for each in by for name in _SHOWN_NAMES.get(each, NAME_FIELDS[each]))
    return (*names, *_TABLE_FIELDS, *(("mean_distance_bytes",) if _is_by_queue(by) else ()))


def message_rows(groups: Groups, topics: Codes, tags: Codes, tz: tzinfo | None) -> Iterator[Row]:
    """One row per group, sorted by its names; see the module."""
    by = [each.name for each in groups.dimensions]
    names = dict.fromkeys(name for each in by for name in NAME_FIELDS[each])
    by_queue = _is_by_queue(by)
    for name, found in groups.ordered(topics, tags):
        count = found["count"]
        row: Row = names | name
        row |= {each: found[each] for each in ("count", "bytes", "body_bytes", "compressed")}
        sums = {"size": found["bytes"], "body": found["body_bytes"], "delay": found["delay"]}
        for measure, unit in _MEASURES:
            row[f"{measure}_min_{unit}"] = found[f"{measure}_low"]
            row[f"{measure}_mean_{unit}"] = round(sums[measure] / count, PLACES)
            for part, value in zip(PERCENTILES, found[f"{measure}_parts"], strict=True):
                row[f"{measure}_p{part}_{unit}"] = value
            row[f"{measure}_max_{unit}"] = found[f"{measure}_high"]
        first, last = found["store_timestamp_low"], found["store_timestamp_high"]
        for which, time in (("first", first), ("last", last)):
            row[f"{which}_store_timestamp_ms"] = time
            row[f"{which}_store_time"] = times.format_time(time, tz)
        seconds = (last - first) / 1000
        is_rate = seconds >= _RATE_SECONDS_MIN
        row["messages_per_s"] = round(count / seconds, PLACES) if is_rate else None
        row["bytes_per_s"] = round(found["bytes"] / seconds, PLACES) if is_rate else None
        row["min_queue_offset"], row["max_queue_offset"] = (
            found["queue_offset_low"],
            found["queue_offset_high"],
        )
        start, end = found["physical_offset_low"], found["physical_offset_high"]
        row["first_physical_offset"], row["last_physical_offset"] = start, end
        distance = round((end - start) / (count - 1), PLACES) if by_queue and count > 1 else None
        row["mean_distance_bytes"] = distance
        row["largest_body_physical_offset"] = found["largest_body_at"]
        yield row


def _is_by_queue(by: Sequence[str]) -> bool:
    return set(by) == {"topic", "queue"}


_SLACK = 4096


class Largest:
    """Keeps the `count` largest records of all batches; of equal ones the first in the log."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._sizes: Array = np.zeros(0, np.int64)
        self._places: Array = np.zeros(0, np.int64)
        self._least = 0

    def take(self, batch: Batch) -> None:
        """Add the selected records of a batch."""
        rows = batch.frames.rows[batch.chosen]
        rows = rows[rows["size"] > self._least]
        if len(rows):
            self._sizes = np.concatenate([self._sizes, rows["size"].astype(np.int64)])
            self._places = np.concatenate([self._places, rows["physical_offset"]])
            if len(self._sizes) > self._count + _SLACK:
                self._cut()

    def places(self) -> list[int]:
        """Physical offsets, the largest record's first."""
        self._cut()
        places: list[int] = self._places.tolist()
        return places

    def _cut(self) -> None:
        order = np.lexsort((self._places, -self._sizes))[: self._count]
        self._sizes, self._places = self._sizes[order], self._places[order]
        if len(self._sizes) == self._count and self._count:
            self._least = int(self._sizes[-1])


def largest_rows(store: Store, largest: Largest, form: RowFormat) -> Iterator[Row]:
    """The message rows of the largest records; one that is gone meanwhile is left out."""
    for place in largest.places():
        found = store.find(place)
        if found is not None:
            yield message_row(found.message, found.physical_offset, found.file, form)


SECTIONS = ("messages", "lag", "largest", "duplicates", "delayed", "transactions")


@dataclass(frozen=True, slots=True)
class Request:
    """The parts that are requested.

    Attributes:
        selection: which messages. For lag only its topics and queues count; delayed messages and
            transactions are those of the whole store. Its limit is that of the rows of each section.
        by: the dimensions by which messages are counted, see `dimensions.NAMES`; None: not counted.
        lag_by: `group`, and `topic` and `queue` in any order; None: no lag.
        largest: how many of the largest messages.
        duplicates, delayed, transactions: whether these are requested.
        charts: whether the data of charts is requested.
        timeline: whether messages over time are requested; charts have them.
        at_ms: a time in the past, exclusive, ms since 1970; None is now.
        now_ms: the time now, ms since 1970; ages are relative to it, or to `at_ms`.
        memory_bytes: the broker's memory; None: this machine's.
        sort: the field by which rows are sorted in descending order; None: by name, and counts by topic
            alone by bytes.
        form: zone of times, and the format of the largest messages.
    """

    selection: Selection
    by: tuple[str, ...] | None = None
    lag_by: tuple[str, ...] | None = None
    largest: int = 0
    duplicates: bool = False
    delayed: bool = False
    transactions: bool = False
    charts: bool = False
    timeline: bool = False
    at_ms: int | None = None
    now_ms: int = 0
    memory_bytes: int | None = None
    sort: str | None = None
    form: RowFormat = field(default_factory=RowFormat)

    @property
    def scans(self) -> bool:
        """Whether the log has to be read."""
        return bool(
            self.by is not None or self.largest or self.duplicates or self.transactions or self.charts
        )


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the answer: rows, all their fields, and the fields that a table shows."""

    name: str
    rows: Iterable[Row]
    fields: tuple[str, ...]
    table_fields: tuple[str, ...]


@dataclass
class Overview:
    """The answer: sections in the order of SECTIONS, notes, and the data of charts.

    `selected` is the number of selected records, if the log was read. `exit_code` is not 0 if a part could
    not be read while others were; `notes` say why. `lags` are those of the section `lag`, by queue;
    `groups_lost` is the number of groups whose offsets are lost while others have some again. `next_due`
    says when messages that wait are due; `undelivered` is how many expired before that, by level.
    """

    sections: list[Section] = field(default_factory=list)
    selected: int = 0
    exit_code: int = EXIT_OK
    notes: list[str] = field(default_factory=list)
    as_of: Row | None = None
    charts: Charts | None = None
    timeline: Timeline | None = None
    lags: list[lag.QueueLag] = field(default_factory=list)
    next_due: list[pending.NextDue] = field(default_factory=list)
    undelivered: dict[int, int] = field(default_factory=dict)
    groups_lost: int = 0


def overview(
    store: Store,
    request: Request,
    report: Report,
    progress: Progress | None = None,
    looked: ScanCounters | None = None,
) -> Overview:
    """Compute all parts of a request.

    Args:
        store: the store.
        request: the requested parts.
        report: called for each damaged place.
        progress: called with the bytes just read.
        looked: counts the scanned records.

    Raises:
        UsageError: `at_ms` together with a selection by born time, or an unknown sort field.
        InputError: a config file that is needed cannot be read.
    """
    run = _Run(store, request, report, progress, ScanCounters() if looked is None else looked)
    return run.answer()


class _Run:
    """The run of one request."""

    def __init__(
        self, store: Store, request: Request, report: Report, progress: Progress | None, looked: ScanCounters
    ) -> None:
        self.store, self.request, self.looked = store, request, looked
        self.report, self.progress = report, progress
        self.tz = request.form.tz
        self.topics, self.tags = Codes(), Codes()
        self.found = Overview()
        self.lags: list[lag.QueueLag] = []
        self.past = self._past()
        self.now_ms = request.now_ms if request.at_ms is None else request.at_ms

    def answer(self) -> Overview:
        request, found = self.request, self.found
        by_name: dict[str, Section] = {}
        if request.charts:
            by = request.by or tuple(name for name in request.lag_by or () if name != "group")
            found.charts = Charts(by or ("topic",))
        if request.lag_by is not None or request.charts:
            self._lag(by_name)
        if request.delayed:
            try:
                by_name["delayed"] = self._delayed()
            except RmqtoolError as error:
                self._do_without(
                    "delayed messages", error, is_all=not request.scans and request.lag_by is None
                )
        if request.scans:
            self._scanned(by_name)
        found.sections = [by_name[name] for name in SECTIONS if name in by_name]
        return found

    def _past(self) -> lag.Past | None:
        at_ms = self.request.at_ms
        if at_ms is None:
            return None
        if self.request.selection.time_field == "born" and (
            self.request.selection.since is not None or self.request.selection.until is not None
        ):
            raise UsageError("--at uses store times and cannot be used with --time-field born")
        then = lag.look_back(self.store, at_ms)
        self.found.notes += [f"unknown for that time: {each}" for each in then.unknown]
        self.found.as_of = {
            "timestamp_ms": at_ms,
            "time": times.format_time(at_ms, self.tz),
            "log_end": then.log_end,
            "unknown": list(then.unknown),
        }
        return then

    def _selection(self) -> Selection:
        """The selection of a scan, limited by the time in the past and the end of a live log."""
        selection = replace(self.request.selection, limit=None, to_offset=None)
        if self.past is not None:
            until = selection.until
            until = self.past.time_ms if until is None else min(until, self.past.time_ms)
            since = None if selection.since is None else min(selection.since, until)
            selection = replace(selection, since=since, until=until, time_field="store")
        stop = end_of_selection(self.store, self.request.selection)
        first = selection.from_offset
        return replace(selection, to_offset=stop if stop is None or first is None else max(stop, first))

    def _lag(self, by_name: dict[str, Section]) -> None:
        request, broker = self.request, lag.this_broker(self.store, self.request.memory_bytes)
        try:
            lags = list(lag.group_lags(self.store, request.selection, self.past))
        except RmqtoolError as error:
            is_all = request.lag_by is not None and not request.scans and not request.delayed
            self._do_without("lag", error, is_all=is_all)
            return
        if request.lag_by is not None:
            rows = lag.lag_rows(lags, request.lag_by, broker, self.now_ms, self.tz)
            topics = {topic for topic, _ in self.store.queues}
            self.found.groups_lost = len(groups_without_offsets(self.store.layout, topics))
            self.found.notes += _unread_notes(lags, self.store.layout, topics)
            chosen = request.selection
            if not (chosen.topics or chosen.exclude_topics or chosen.queues):
                self.found.notes += _without_offsets(lags, self.store.layout)
            if any(lag.QUEUE_LOST in each.status for each in lags):
                self.found.exit_code = worst_exit_code(self.found.exit_code, EXIT_FINDINGS)
            fields, table = lag.fields(request.lag_by), lag.table_fields(request.lag_by)
            by_name["lag"] = self._section("lag", rows, fields, table)
            self.found.lags = lags
        if self.found.charts is not None:
            self.lags = of_groups = [each for each in lags if each.group is not None]
            self.found.charts.lags = lag.lag_rows(of_groups, ("group",), broker, self.now_ms, self.tz)

    def _do_without(self, what: str, error: RmqtoolError, *, is_all: bool) -> None:
        """Notes that a part is missing, and why; raises `error` if no other part was requested."""
        if is_all:
            raise error
        self.found.notes.append(f"no {what}: {error.message}")
        if not isinstance(error, UsageError):  # a single file has no lag; that is not a failure
            self.found.exit_code = worst_exit_code(self.found.exit_code, error.exit_code)

    def _delayed(self) -> Section:
        waiting = list(pending.delayed(self.store, self.request.at_ms))
        if self.past is None:
            waiting += pending.timers(self.store)
        elif self.store.layout.timer_log:
            self.found.notes.append("unknown for that time: timer messages, the timer log keeps no past")
        rows = list(pending.pending_rows(waiting, self.now_ms, self.tz))
        self.found.next_due = list(pending.next_due(waiting, self.now_ms))
        self.found.undelivered = expired_before_due(self.store)
        return self._section("delayed", rows, pending.FIELDS, pending.TABLE_FIELDS)

    def _scanned(self, by_name: dict[str, Section]) -> None:
        request, selection = self.request, self._selection()
        takers: list[Aggregator] = []
        groups = biggest = halves = None
        by = request.by if self.found.charts is None else self.found.charts.by
        if by is not None:
            groups = Groups([Dimension(name, self.tz) for name in by])
            takers.append(groups)
        if request.largest:
            biggest = Largest(request.largest)
            takers.append(biggest)
        sizes, sums = Groups([Dimension("size", self.tz)]), ChartSums(self.topics, self.lags)
        if self.found.charts is not None:
            self.found.timeline = self.found.charts.timeline
            takers += [sizes, sums, self.found.timeline]
        elif request.timeline:
            self.found.timeline = Timeline()
            takers.append(self.found.timeline)
        if request.transactions:
            halves = transactions.Transactions(None if self.past is None else self.past.time_ms)
        whole = Selection(to_offset=selection.to_offset)
        if halves is not None and selection == whole:
            takers.append(halves)
        if takers:
            self._walk(selection, takers, report=self.report, progress=self.progress)
        if halves is not None and halves not in takers:
            self._walk(whole, [halves], report=self.report if not takers else None)
        rows = [] if groups is None else list(message_rows(groups, self.topics, self.tags, self.tz))
        if groups is not None and request.by is not None:
            self._messages(by_name, groups, rows, request.by)
        if self.found.charts is not None:
            self.found.charts.groups = rows
            self.found.charts.sizes = list(message_rows(sizes, self.topics, self.tags, self.tz))
            self.found.charts.queues, self.found.charts.backlog = sums.queues(), sums.backlog
        if biggest is not None:
            by_name["largest"] = self._largest(biggest)
        if halves is not None:
            by_name["transactions"] = self._transactions(halves)
        if request.duplicates:
            by_name["duplicates"] = self._duplicates(selection, reported=bool(takers))

    def _walk(
        self,
        selection: Selection,
        takers: Sequence[Aggregator],
        *,
        report: Report | None = None,
        progress: Progress | None = None,
    ) -> None:
        """One pass; only the first one reports damaged places."""
        by = self.request.by if self.found.charts is None else self.found.charts.by
        by_tag = by is not None and "tag" in by
        selected = scan(
            self.store, selection, takers, self.topics,
            tags=self.tags if by_tag else None, report=report, progress=progress,
            looked=self.looked if report is not None else None, crc=report is not None,
        )  # fmt: skip
        self.found.selected = max(self.found.selected, selected)

    def _messages(
        self, by_name: dict[str, Section], groups: Groups, rows: list[Row], by: tuple[str, ...]
    ) -> None:
        if groups.has_others:
            self.found.notes.append("there are too many groups: the row without names counts the rest")
        error = groups.relative_error
        if error > 1 / 256:
            self.found.notes.append(f"there are many groups: percentiles may be off by {error:.1%}")
        by_name["messages"] = self._section("messages", rows, fields(by), table_fields(by))

    def _largest(self, biggest: Largest) -> Section:
        from rmqtool.message.columns import NAMES
        from rmqtool.report.dump.log import TABLE_FIELDS

        rows = islice(largest_rows(self.store, biggest, self.request.form), self.request.selection.limit)
        return Section("largest", rows, NAMES, TABLE_FIELDS)

    def _transactions(self, halves: transactions.Transactions) -> Section:
        try:
            offsets = consumer_offsets(self.store)
        except RmqtoolError as error:
            self.found.notes.append(f"the progress of checks is unknown; put_back counts as open: {error}")
            offsets = {}
        if halves.unreadable_ops:
            self.found.notes.append(f"op records that cannot be read: {halves.unreadable_ops}")
        if self.past is not None:
            offsets = {}
            self.found.notes.append("unknown for that time: half messages given up; they count as open")
        rows = list(halves.rows(offsets, self.now_ms, self.tz))
        return Section("transactions", rows, transactions.FIELDS, transactions.TABLE_FIELDS)

    def _duplicates(self, selection: Selection, *, reported: bool) -> Section:
        passes = 0

        def walk(taker: Aggregator) -> None:
            nonlocal passes
            passes += 1
            is_first = passes == 1 and not reported
            self._walk(
                selection, [taker], report=self.report if is_first else None,
                progress=self.progress if is_first else None,
            )  # fmt: skip

        found = duplicates.duplicate_rows(walk, selection, self.topics, self.tz)
        rows = list(islice(found, self.request.selection.limit))
        return Section("duplicates", rows, duplicates.FIELDS, duplicates.TABLE_FIELDS)

    def _section(
        self, name: str, rows: list[Row], fields: tuple[str, ...], table: tuple[str, ...]
    ) -> Section:
        is_by_topic = name == "messages" and self.request.by == ("topic",)
        sort = self.request.sort or ("bytes" if is_by_topic else None)
        if sort is not None:
            if sort not in fields:
                if len(fields) and name == "messages":
                    raise UsageError(f"cannot sort by {sort[:40]!r}", hint=f"fields are: {', '.join(fields)}")
            else:
                rows = sorted(rows, key=partial(_fall, sort))
        return Section(name, rows[: self.request.selection.limit], fields, table)


def _unread_notes(lags: Iterable[lag.QueueLag], layout: StoreLayout, topics: Iterable[str]) -> Iterator[str]:
    """Notes on why there is no lag: no group has an offset, or the offsets are lost."""
    unread = {each.topic: "offsets_missing" in each.status for each in lags if each.group is None}
    if any(unread.values()):
        yield f"{where_offsets_were(layout, topics)}; see rmqtool verify (CF08)"
        return
    yield from (f"no group has an offset for topic {topic}" for topic in unread)


def _without_offsets(lags: Iterable[lag.QueueLag], layout: StoreLayout) -> Iterator[str]:
    """A note on the groups of subscriptionGroup.json that have neither an offset nor a retry topic here."""
    known = {each.group for each in lags if each.group is not None}
    are_lost = any("offsets_missing" in each.status for each in lags)  # retry topics were not asked then
    others = sorted(configured_groups(layout) - known)
    if others:
        is_asked = bool(known) and not are_lost
        neither = "with neither an offset nor a retry topic" if is_asked else "without any offset"
        yield f"groups of subscriptionGroup.json {neither}: {listed(others, _GROUPS_NAMED)}"


_GROUPS_NAMED = 10


def _fall(name: str, row: Row) -> tuple[bool, bool, Any]:
    """Sort key: numbers in descending order, then texts in ascending order, null last."""
    value = row.get(name)
    is_number = isinstance(value, int | float)
    return value is None, not is_number, -value if is_number and value is not None else str(value)
