"""The history of one message from producer to consumers: steps, groups, reports of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

from rmqtool import times
from rmqtool.formats.message_id import offset_message_id
from rmqtool.log.events import StoredMessage
from rmqtool.message.rows import Row
from rmqtool.read.consumer_offsets import known_offsets
from rmqtool.read.store import Store
from rmqtool.report.trace.groups import GroupState, group_states
from rmqtool.report.trace.related import Find, finder, related, trace_records
from rmqtool.report.trace.steps import Step, steps_of, unique_key
from rmqtool.report.trace.traces import Reports, reports

FIELDS = (
    "uniq_key", "kind", "timestamp_ms", "time", "topic", "queue_id", "queue_offset", "physical_offset",
    "group", "state", "client_host", "cost_ms", "detail",
)  # fmt: skip
_TABLE_FIELDS = ("kind", "time", "topic", "queue_id", "queue_offset", "physical_offset", "group", "state",
                "client_host")  # fmt: skip


def table_fields(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns of a table of `Fate.rows`: with uniq_key if there are several, cost_ms if any."""
    several = len({row["uniq_key"] for row in rows}) > 1
    costs = any(row["cost_ms"] is not None for row in rows)
    return (*(("uniq_key",) if several else ()), *_TABLE_FIELDS, *(("cost_ms",) if costs else ()))


@dataclass(frozen=True, slots=True)
class Fate:
    """The history of a message.

    Attributes:
        uniq_key: its unique key; without one, only records that its own record names are known.
        steps: its records in the order of the log; see `steps.Step`.
        groups: consumer groups and whether they have passed it.
        reports: the reports of clients in trace records.
        unknown: facts that could not be found, as texts.
        tz: zone of the times in rows; None is the local zone.
    """

    uniq_key: str | None
    steps: tuple[Step, ...]
    groups: tuple[GroupState, ...]
    reports: Reports
    unknown: tuple[str, ...]
    tz: tzinfo | None = UTC

    def rows(self) -> list[Row]:
        """One row per step, group and report, in order of time; groups have none and follow their step."""
        rows: list[Row] = []
        for step in self.steps:
            message = step.stored.message
            rows.append(
                self._row(
                    step.kind, message.store_timestamp, topic=message.topic, queue_id=message.queue_id,
                    queue_offset=message.queue_offset, physical_offset=step.stored.physical_offset,
                    group=step.detail.get("group"), state=step.state, detail=step.detail,
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
    )
