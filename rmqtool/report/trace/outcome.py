"""The history of one message from producer to consumers: its records, the groups that consume it, its traces.

`related` finds all records of the message: they have the same unique key. A committed message names its half
message by physical offset; a retried or dead message names the first one by offset message id.

The state of each group follows from its committed offset, which is the next one to consume: the group has
consumed all messages below it, or skipped them with a filter. consumerOffset.json is written every five
seconds.

Trace records hold the reports of clients: who sent a message, who consumed it, with which result. Clients
report only if tracing is on, in batches and without guarantee: a missing report proves nothing.

Source: TraceDataEncoder, ConsumeReturnType (client 5.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import partial
from glob import escape
from typing import Any, NamedTuple

from rmqtool import times
from rmqtool.errors import FormatError, InputError, UnreadableError, UnsupportedStoreError
from rmqtool.formats import body, properties, trace
from rmqtool.formats import message as form
from rmqtool.formats.message_id import OffsetMessageId, host_text, offset_message_id
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.events import StoredMessage
from rmqtool.message.rows import Row
from rmqtool.message.system_topics import (
    DISCARDED_TOPIC,
    DLQ_PREFIX,
    HALF_TOPICS,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_system_topic,
)
from rmqtool.read.consumer_offsets import known_offsets
from rmqtool.read.lost_config import is_group_of_brokers
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.trace.steps import Offsets, Step, steps_of, unique_key
from rmqtool.storage.out_of_reach import unreadable_code

CONSUME_RESULTS = ("success", "time_out", "exception", "return_null", "failed")
"""The names that stand for context_code (ConsumeReturnType#ordinal)."""


class Reports(NamedTuple):
    """`sent`, `consumed` and `ended` (ends of transactions) in order of time; `unreadable` is a count."""

    sent: list[Row]
    consumed: list[Row]
    ended: list[Row]
    unreadable: int


def reports(records: Iterable[StoredMessage], message_ids: Iterable[str]) -> Reports:
    """The reports in trace records about the messages with these ids (unique keys or offset message ids).

    A row of `sent`: timestamp_ms, group, client_host, store_host, cost_ms, success, msg_type, topic.
    A row of `consumed`: timestamp_ms, group, client_host, request_id, retry_times, cost_ms, success, result;
    if only one of the two reports of an attempt exists, the values of the other are None.
    """
    wanted = frozenset(message_ids)
    sent: list[Row] = []
    ended: list[Row] = []
    consumed: dict[tuple[Any, ...], Row] = {}
    unreadable = 0
    for record in records:
        client = host_text(record.message.born_host)
        try:
            found = trace.decode(body.decompress(record.message.body, record.message.sys_flag))
        except InputError:
            unreadable += 1
            continue
        for each in found:
            try:
                fields = each.fields()
            except FormatError:
                unreadable += 1
                continue
            if not {fields.get("msg_id"), fields.get("offset_msg_id")} & wanted:
                continue
            place = record.physical_offset
            if each.kind == "Pub":
                sent.append(_sent(fields, client, place))
            elif each.kind == "EndTransaction":
                ended.append(_ended(fields, client, place))
            elif each.kind in ("SubBefore", "SubAfter"):
                key = (fields.get("request_id"), fields.get("msg_id"), client)
                consumed.setdefault(key, dict(_NO_ATTEMPT)).update(
                    _consumed(each.kind, fields, client, place)
                )
    return Reports(_by_time(sent), _by_time(list(consumed.values())), _by_time(ended), unreadable)


_NO_ATTEMPT: Row = dict.fromkeys(
    ("timestamp_ms", "group", "client_host", "request_id", "retry_times", "cost_ms", "success", "result",
     "physical_offset")
)  # fmt: skip


def _sent(fields: Row, client: str, place: int) -> Row:
    return {
        "timestamp_ms": fields.get("timestamp"),
        "group": fields.get("group_name"),
        "client_host": fields.get("client_host") or client,
        "store_host": fields.get("store_host"),
        "cost_ms": fields.get("cost_time"),
        "success": fields.get("success"),
        "msg_type": fields.get("msg_type"),
        "topic": fields.get("topic"),
        "physical_offset": place,
    }


def _ended(fields: Row, client: str, place: int) -> Row:
    return {
        "timestamp_ms": fields.get("timestamp"),
        "group": fields.get("group_name"),
        "client_host": client,
        "state": fields.get("transaction_state"),
        "from_check": fields.get("from_transaction_check"),
        "physical_offset": place,
    }


def _consumed(kind: str, fields: Row, client: str, place: int) -> Row:
    """The fields from one of the two reports of an attempt; a group in the later report wins."""
    row: Row = {"client_host": client, "request_id": fields.get("request_id"), "physical_offset": place}
    if fields.get("group_name"):
        row["group"] = fields["group_name"]
    if kind == "SubBefore":
        return row | {"timestamp_ms": fields.get("timestamp"), "retry_times": fields.get("retry_times")}
    code = fields.get("context_code")
    known = isinstance(code, int) and 0 <= code < len(CONSUME_RESULTS)
    return row | {
        "cost_ms": fields.get("cost_time"),
        "success": fields.get("success"),
        "result": CONSUME_RESULTS[code] if known and isinstance(code, int) else code,
    }


def _by_time(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["timestamp_ms"] is None, row["timestamp_ms"] or 0))


TRACE_PREFIX = "rmq_sys_TRACE_DATA_"
"""Prefix of trace topics in the cloud; a plain broker has RMQ_SYS_TRACE_TOPIC."""

Find = Callable[[str, Iterable[str]], Iterable[StoredMessage]]
"""Finds the messages with a key or unique key in some topics, all given literally."""


def finder(store: Store) -> Find:
    """The default way to find messages by key: through the index, else by a scan."""
    return partial(_find, store)


def _find(store: Store, key: str, topics: Iterable[str]) -> Iterator[StoredMessage]:
    from rmqtool.read.messages import message_batches

    selection = Selection(topics=[escape(topic) for topic in topics], keys=[key])
    for batch in message_batches(store, selection, columns=["physical_offset"], crc=False):
        for physical_offset in batch.column(0).to_pylist():
            found = store.find(physical_offset)
            if found is not None:
                yield found


def topics_of(store: Store) -> set[str]:
    """Every topic that has a queue."""
    return {topic for topic, _ in store.queues}


def related(store: Store, stored: StoredMessage, find: Find) -> list[StoredMessage]:
    """All records of the message to which `stored` belongs, in the order of the log, `stored` included."""
    found = {stored.physical_offset: stored}
    values = properties.decode(stored.message.properties_bytes)
    for each in _named(store, stored, values):
        found.setdefault(each.physical_offset, each)
    key = values.get(properties.UNIQ_KEY)
    if key:
        names = [stored.message.topic, *(values.get(name) for name in _TOPIC_PROPERTIES)]
        topics = {name for name in names if name}
        topics |= {SCHEDULE_TOPIC, TIMER_TOPIC, DISCARDED_TOPIC, *HALF_TOPICS}
        existing = topics_of(store)
        # Without queues the topics of the store are unknown: then search all of these.
        topics = topics & existing if existing else topics
        topics |= {topic for topic in existing if topic.startswith((RETRY_PREFIX, DLQ_PREFIX))}
        for each in find(key, sorted(topics)):
            if properties.decode(each.message.properties_bytes).get(properties.UNIQ_KEY) == key:
                found.setdefault(each.physical_offset, each)
        for each in list(found.values()):
            for other in _named(store, each, properties.decode(each.message.properties_bytes)):
                found.setdefault(other.physical_offset, other)
    return [found[place] for place in sorted(found)]


def other_messages(stored: StoredMessage, records: Sequence[StoredMessage]) -> frozenset[int]:
    """The places of those `records` that are other messages of the batch with which a message was sent.

    A client gives all messages of a batch one unique key, and a broker stores them together: they have the
    same topic, queue and times. A retried or dead message, as `stored` may be, names the first one.

    Source: DefaultMQProducer#batch, CommitLog#asyncPutMessages.
    """
    by_place = {each.physical_offset: each for each in records}
    origin = _origin(stored)
    first = stored if origin is None else by_place.get(origin, stored)
    return frozenset(
        place
        for place, each in by_place.items()
        if place != first.physical_offset and _sent_as(each) == _sent_as(first)
    )


def _sent_as(stored: StoredMessage) -> tuple[object, ...]:
    message = stored.message
    return message.topic, message.queue_id, message.born_timestamp, message.store_timestamp


def _origin(stored: StoredMessage) -> int | None:
    """The place of the first record of a retried or dead message; None if it names none."""
    values = properties.decode(stored.message.properties_bytes)
    return next(_origins(values), None)


def _origins(values: Mapping[str, str]) -> Iterator[int]:
    """The places that these properties name as that of the first record of the message."""
    for name in _ORIGIN_PROPERTIES:
        try:
            yield OffsetMessageId.decode(values.get(name, "")).physical_offset
        except InputError:
            continue


_TOPIC_PROPERTIES = (properties.REAL_TOPIC, properties.RETRY_TOPIC, properties.DLQ_ORIGIN_TOPIC)
_ORIGIN_PROPERTIES = (properties.ORIGIN_MESSAGE_ID, properties.DLQ_ORIGIN_MESSAGE_ID)


def _named(store: Store, stored: StoredMessage, values: dict[str, str]) -> Iterator[StoredMessage]:
    """Records that `stored` names by physical offset: its half message, the first message of a retry."""
    key = values.get(properties.UNIQ_KEY)
    places = []
    if stored.message.transaction_type == form.TRANSACTION_COMMIT:
        places.append(stored.message.prepared_transaction_offset)
    places += _origins(values)
    for place in places:
        found = store.find(place) if place >= 0 else None
        # Bytes from disk may name any offset: accept only a record with the same unique key.
        if found is not None and found.message.physical_offset == place:
            same = properties.decode(found.message.properties_bytes).get(properties.UNIQ_KEY)
            if same == key:
                yield found


def trace_records(store: Store, keys: Iterable[str], find: Find) -> list[StoredMessage]:
    """The trace records that name one of these message ids, in the order of the log."""
    topics = sorted(
        topic for topic in topics_of(store) if topic == trace.TRACE_TOPIC or topic.startswith(TRACE_PREFIX)
    )
    if not topics:
        return []
    found = {each.physical_offset: each for key in keys for each in find(key, topics)}
    return [found[place] for place in sorted(found)]


_CONSUMED_KINDS = frozenset({
    "stored", "committed", "delayed_delivered", "timer_delivered", "retry", "dead_letter", "inner_batch",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupState:
    """One group and one record of the message; `passed` is None if the group never committed for its queue.

    `group` is None if no group has an offset for the topic of that record.
    """

    group: str | None
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    committed_offset: int | None
    passed: bool | None


def group_states(steps: Iterable[Step], offsets: Offsets, *, is_known: bool) -> Iterator[GroupState]:
    """Every group that has committed an offset for the topic of a step from which consumers read.

    Args:
        steps: the steps of the message.
        offsets: the committed offsets.
        is_known: `offsets` is complete, so a topic without an offset was never read.
    """
    by_topic: dict[str, list[str]] = {}
    for topic, group in offsets:
        if not is_group_of_brokers(group):
            by_topic.setdefault(topic, []).append(group)
    for step in steps:
        if step.kind not in _CONSUMED_KINDS:
            continue
        message = step.stored.message
        place = message.topic, message.queue_id, message.queue_offset, step.stored.physical_offset
        is_for_groups = step.kind != "dead_letter" and not is_system_topic(message.topic)
        if is_known and is_for_groups and message.topic not in by_topic:
            yield GroupState(None, *place, None, None)
        yield from _states(offsets, by_topic.get(message.topic, ()), place)


def _states(
    offsets: Offsets, groups: Iterable[str], place: tuple[str, int, int, int]
) -> Iterator[GroupState]:
    """The state of each group for a message at (topic, queue id, queue offset, physical offset)."""
    topic, queue_id, queue_offset, _ = place
    for group in sorted(groups):
        committed = offsets[topic, group].get(queue_id)
        passed = None if committed is None else committed > queue_offset
        yield GroupState(group, *place, committed, passed)


def groups_of_lost(
    store: Store, topic: str, queue_id: int, queue_offset: int
) -> tuple[list[GroupState], list[str]]:
    """Which groups have passed a message that is lost, by their committed offsets; and what is unknown.

    If it is known that no group has an offset for its topic, there is one state, without a group.
    """
    offsets, unknown = known_offsets(store, needed=True)
    place = topic, queue_id, queue_offset, -1
    groups = [group for each, group in offsets if each == topic and not is_group_of_brokers(group)]
    found = list(_states(offsets, groups, place))
    if not found and not unknown and not is_system_topic(topic):
        found = [GroupState(None, *place, None, None)]
    return found, unknown


FIELDS = (
    "uniq_key", "kind", "timestamp_ms", "time", "topic", "queue_id", "queue_offset", "physical_offset",
    "group", "state", "client_host", "cost_ms", "detail",
)  # fmt: skip
_TABLE_FIELDS = ("kind", "time", "topic", "queue_id", "group", "state", "queue_offset", "physical_offset",
                "client_host", "cost_ms")  # fmt: skip


def table_fields(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns of a table of `Fate.rows`: those that have a value, and uniq_key if there are several."""
    several = len({row["uniq_key"] for row in rows}) > 1
    names = (name for name in _TABLE_FIELDS if any(row.get(name) is not None for row in rows))
    return (*(("uniq_key",) if several else ()), *names)


@dataclass(frozen=True, slots=True)
class Fate:
    """The history of a message.

    Attributes:
        uniq_key: its unique key; without one, only records that its own record names are known.
        steps: its records in the order of the log; see `steps.Step`.
        groups: consumer groups and whether they have passed it.
        reports: the reports of clients in trace records, of all messages of a batch.
        batch: the places of the other messages of its batch, which have the same unique key.
        unknown: facts that could not be found, as texts.
        tz: zone of the times in rows; None is the local zone.
        unreached: the places of the records that consumers need, but which their queues lack.
    """

    uniq_key: str | None
    steps: tuple[Step, ...]
    groups: tuple[GroupState, ...]
    reports: Reports
    unknown: tuple[str, ...]
    tz: tzinfo | None = UTC
    batch: frozenset[int] = frozenset()
    unreached: frozenset[int] = frozenset()

    def rows(self) -> list[Row]:
        """One row per step, group and report, in order of time; groups have none and follow their step."""
        rows: list[Row] = []
        for step in self.steps:
            message = step.stored.message
            is_unreached = step.stored.physical_offset in self.unreached
            rows.append(
                self._row(
                    step.kind, message.store_timestamp, topic=message.topic, queue_id=message.queue_id,
                    queue_offset=message.queue_offset, physical_offset=step.stored.physical_offset,
                    group=step.detail.get("group"), state=step.state,
                    detail=step.detail | {"in_queue": False} if is_unreached else step.detail,
                )
            )  # fmt: skip
            for each in self.groups:
                if each.physical_offset == step.stored.physical_offset:
                    rows.append(self._group_row(each, message.store_timestamp))
        rows += self._report_rows()
        rows.sort(key=lambda row: (row["timestamp_ms"] is None, row["timestamp_ms"] or 0))
        # A group row has no time of its own: it had the time of its step for the order only.
        return [row | {"timestamp_ms": None} if row["kind"] == "group" else row for row in rows]

    def object(self) -> Row:
        """The whole history as one JSON object."""
        rows = self.rows()
        kinds = {"group": "groups", "sent": "sent", "consumed": "consumed", "transaction_end": "ended"}
        found: Row = {"uniq_key": self.uniq_key, "steps": [], "groups": [], "sent": [], "consumed": [],
                      "ended": [], "unknown": list(self.unknown)}  # fmt: skip
        for row in rows:
            found[kinds.get(row["kind"], "steps")].append(row)
        return found

    def _group_row(self, each: GroupState, timestamp_ms: int) -> Row:
        state = {True: "passed", False: "not_passed", None: "never_committed"}[each.passed]
        detail: Row = {"committed_offset": each.committed_offset}
        if each.group is None:
            state, detail = "no_group", {"reason": f"no group has an offset for topic {each.topic}"}
        row = self._row(
            "group", timestamp_ms, topic=each.topic, queue_id=each.queue_id, queue_offset=each.queue_offset,
            physical_offset=each.physical_offset, group=each.group, state=state,
            detail=detail,
        )  # fmt: skip
        return row | {"time": None}

    def _report_rows(self) -> list[Row]:
        rows = []
        for kind, found in (
            ("sent", self.reports.sent),
            ("consumed", self.reports.consumed),
            ("transaction_end", self.reports.ended),
        ):
            for each in found:
                detail = dict(each)
                time, place = detail.pop("timestamp_ms"), detail.pop("physical_offset")
                client, group, topic = (
                    detail.pop("client_host"),
                    detail.pop("group"),
                    detail.pop("topic", None),
                )
                state = detail.get("state") or detail.get("result")
                if state is None and detail.get("success") is not None:
                    state = "success" if detail["success"] else "failed"
                rows.append(
                    self._row(
                        kind, time, topic=topic, physical_offset=place, group=group, state=state,
                        client_host=client, cost_ms=detail.pop("cost_ms", None), detail=detail,
                    )
                )  # fmt: skip
        return rows

    def _row(self, kind: str, timestamp_ms: int | None, **values: Any) -> Row:
        row: Row = dict.fromkeys(FIELDS)
        time = None if timestamp_ms is None else times.format_time(timestamp_ms, self.tz)
        head = {"uniq_key": self.uniq_key, "kind": kind, "timestamp_ms": timestamp_ms, "time": time}
        return row | head | values


def message_fate(
    store: Store,
    stored: StoredMessage,
    *,
    find: Find | None = None,
    tz: tzinfo | None = UTC,
) -> Fate:
    """The history of the message to which the record `stored` belongs.

    Args:
        store: the store that holds it.
        stored: any of its records, from `Store.get`.
        find: finds records by key in given topics; None: through the index, else by a scan.
        tz: zone of the times in rows; None is the local zone.
    """
    find = find or finder(store)
    unknown: list[str] = []
    offsets, missing = known_offsets(store, needed=True)
    unknown += [f"consumer groups: {each}" for each in missing]
    key = unique_key(stored)
    if key is None:
        unknown.append("other records of the message: it has no unique key")
    records = related(store, stored, find)
    batch = other_messages(stored, records)
    records = [each for each in records if batch.isdisjoint((each.physical_offset, _origin(each)))]
    steps = steps_of(store, records, offsets, tz)
    ids = [key] if key else []
    ids.append(offset_message_id(stored.message.store_host, stored.physical_offset))
    found = reports(trace_records(store, ids, find), ids)
    if found.unreadable:
        unknown.append(f"trace records that cannot be read: {found.unreadable}")
    if store.commit_log.min_offset > 0:
        unknown.append(f"records below physical offset {store.commit_log.min_offset}, which were deleted")
    return Fate(
        key,
        tuple(steps),
        tuple(group_states(steps, offsets, is_known=not missing)),
        found,
        tuple(unknown),
        tz,
        batch,
        unreached(store, steps),
    )


def unreached(store: Store, steps: Iterable[Step]) -> frozenset[int]:
    """The places of those records that consumers need, or that wait, for which their queues have no unit.

    Of a store in use, records that its broker has not dispatched yet do not count. Empty if the queues cannot
    be read, or belong to another log.
    """
    layout = store.layout
    is_unread = any(unreadable_code(layout, path) == "CQ15" for path, _ in layout.unreadable)
    if layout.kind != "store" or layout.queue_logs is not None or is_unread:
        return frozenset()
    found = set()
    try:
        layout.check_forms(queues=True)
        end = store.dispatched_end() if store.live else None
        for step in steps:
            place, message = step.stored.physical_offset, step.stored.message
            is_wanted = step.kind in _CONSUMED_KINDS or step.state == "waiting"
            if not is_wanted or (end is not None and place >= end):
                continue
            queue = store.queue(message.topic, message.queue_id)
            unit = None if queue is None else queue.unit(message.queue_offset)
            if unit is None or unit.physical_offset != place:
                found.add(place)
    except (UnreadableError, UnsupportedStoreError):
        return frozenset()
    return frozenset(found)
