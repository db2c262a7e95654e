"""The input of `rmqtool spark-scan`: stores and a selection as a DataFrame, and the damage in them.

Everything is read by the data source itself; each action is an ordinary Spark job over its tables:

scan_job.py            the request, the DataFrame of its messages, damage, what was pruned
scan_job_rows.py       rows of Spark as rows for the writer
scan_job_groups.py     counts: of all, by group, by topic and queue
scan_job_sql.py        queries of --sql over the tables of the source
scan_job_verify.py     the checks of `verify` as jobs, and what `rebuild` would write
scan_job_output.py     messages as files

Damage is ranges that hold no record, and records with a wrong status. Both have a text in the column
DAMAGE. Only the ranges are not messages: they have no RECORD.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from rmqtool.errors import UnreadableError, UsageError
from rmqtool.lazy_dataclass import dataclass
from rmqtool.message.columns import BY_NAME, COLUMNS
from rmqtool.problems import BY_CODE, Finding, finding
from rmqtool.queue.consume_queue import BatchConsumeQueue
from rmqtool.read.selection import Selection
from rmqtool.spark.request import OFFSET_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from rmqtool.read.access import Access
    from rmqtool.read.store import Store
    from rmqtool.spark.partitions import ScanPlan

EXPLAIN_FIELDS = (
    "store", "broker_name", "access", "files_read", "files_total", "bytes_read", "bytes_total",
    "estimated_records_read", "estimated_records_total", "partitions", "reason",
)  # fmt: skip
Report = Callable[[str, Finding], None]
"""Called with the name of a broker, and a finding on its store."""

DAMAGE = "_corrupt_record"
"""Spark's name of the column that says what is wrong: with a range, or with a record."""
RECORD = "bodyLength"
"""A column that every record has, however damaged, and no range without a record."""


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """Which messages of which stores; `limit` of the selection counts rows that are shown.

    Attributes:
        stores: paths or URLs.
        selection: see Selection; all fields count.
        broker_conf: the broker's configuration, of all stores.
        commitlog_paths: folders of the commit log, of a single store.
        read_only_paths: folders of it that a broker only reads.
    """

    stores: tuple[str, ...]
    selection: Selection = field(default_factory=Selection)
    broker_conf: str | None = None
    commitlog_paths: tuple[str, ...] = ()
    read_only_paths: tuple[str, ...] = ()

    def options(self, table: str = "messages") -> dict[str, str]:
        """The options of the source that mean the same, except times of `born`: see `messages`.

        Of another table: those that it knows.
        """
        chosen = self.selection
        values: dict[str, Any] = {
            "path": json.dumps(self.stores),
            "topics": _texts(chosen.topics),
            "excludeTopics": _texts(chosen.exclude_topics),
            "queueId": ",".join(map(str, sorted(chosen.queues))),
            "tags": _texts(chosen.tags),
            "keys": _texts(chosen.keys),
            "startingPhysicalOffset": _bound(chosen.from_offset),
            "endingPhysicalOffset": _bound(chosen.to_offset),
            "brokerConf": self.broker_conf,
            "commitlogPaths": _texts(self.commitlog_paths),
            "readOnlyCommitlogPaths": _texts(self.read_only_paths),
            "filter": None if chosen.filter is None else chosen.filter.text,
        }
        if chosen.time_field == "store":
            values |= {"startingTimestamp": chosen.since, "endingTimestamp": chosen.until}
        if table != "messages":
            from rmqtool.spark.options import OF_EVERY_TABLE, OF_UNITS

            known = {*OF_EVERY_TABLE, *(OF_UNITS if table == "units" else ())}
            values = {"table": table, **{name: value for name, value in values.items() if name in known}}
        return {name: str(value) for name, value in values.items() if value not in (None, "")}


def _bound(offset: int | None) -> int | None:
    """An offset that the source takes: one that no log can have is a bound like any, as for `dump`."""
    return None if offset is None else min(offset, OFFSET_MAX)


def _texts(values: Any) -> str:
    return json.dumps(sorted(values)) if values else ""


def spark_name(name: str) -> str:
    """Spark's name of a column, which may be given by either name. Raises UsageError for any other name."""
    if name in BY_NAME:
        return BY_NAME[name].spark_name
    low = name.lower()
    for each in (*(column.spark_name for column in COLUMNS), "brokerName"):
        if each.lower() == low or (each == "brokerName" and low == "broker_name"):
            return each
    raise UsageError(
        f"there is no column {name!r}", hint=f"the columns are {', '.join(BY_NAME)}, broker_name"
    )


def engine_name(name: str) -> str:
    """The name of a column in rows and files."""
    found = {column.spark_name: column.name for column in COLUMNS}
    return {**found, "brokerName": "broker_name"}.get(name, name)


def messages(
    session: SparkSession,
    request: ScanRequest,
    columns: Sequence[str],
    *,
    options: dict[str, str] | None = None,
) -> DataFrame:
    """The selected messages, in Spark's names; the limit is not applied.

    Args:
        session: with the source registered.
        request: which messages.
        columns: Spark names; only these are read. With `status` or DAMAGE among them, ranges that hold
            no record are rows too.
        options: of the source, besides those of the request.
    """
    chosen = request.selection
    bounded = chosen.time_field == "born" and (chosen.since is not None or chosen.until is not None)
    names = list(dict.fromkeys((*columns, "bornTimestampMs") if bounded else columns))
    values = {**request.options(), "columnSet": "full", "columns": json.dumps(names), **(options or {})}
    found = session.read.format("rocketmq-store").options(**values).load()
    if bounded:
        if chosen.since is not None:
            found = found.where(f"bornTimestampMs >= {chosen.since}")
        if chosen.until is not None:
            found = found.where(f"bornTimestampMs < {chosen.until}")
        found = found.select(*columns)
    return found


def table(session: SparkSession, request: ScanRequest, name: str, columns: Sequence[str]) -> DataFrame:
    """The rows of another table of the source; `columns` are Spark names."""
    values = {**request.options(name), "columns": json.dumps(list(columns))}
    return session.read.format("rocketmq-store").options(**values).load()


def plan(request: ScanRequest, *, columns: Sequence[str] = ("topic",)) -> ScanPlan:
    """The access to the messages; no Spark is needed.

    Raises:
        RmqtoolError: a store cannot be opened, or an option makes no sense, before anything is started.
    """
    from rmqtool.spark.options import parse_options
    from rmqtool.spark.partitions import plan_scan

    return plan_scan(parse_options({**request.options(), "columns": json.dumps(list(columns))}))


def within_log(request: ScanRequest) -> ScanRequest:
    """The request with offsets that the log has: for `dump`, and so here, others are bounds like any."""
    from rmqtool.spark.bounds import log_bounds
    from rmqtool.spark.options import parse_options
    from rmqtool.spark.stores import find_places, open_place

    chosen = request.selection
    given = parse_options(request.options())
    if (chosen.from_offset, chosen.to_offset) == (None, None) or len(places := find_places(given)) != 1:
        return request
    with open_place(places[0], given) as store:
        bounds = log_bounds(store)
    if bounds is None:
        return request
    first, stop = (
        None if value is None else min(max(value, bounds[0]), bounds[1])
        for value in (chosen.from_offset, chosen.to_offset)
    )
    return replace(request, selection=replace(chosen, from_offset=first, to_offset=stop))


def explain_rows(found: ScanPlan, stores: Sequence[tuple[str, Store]]) -> Iterator[dict[str, Any]]:
    """A row of EXPLAIN_FIELDS for every store: what is read of it, against what it has.

    Records are estimated: counted by the queues, so those that no queue has are left out; of a part of the
    log it is its share by bytes.
    """
    pieces = Counter(piece.place for piece in found.pieces)
    for each, (_, store) in zip(found.stores, stores, strict=True):
        access, total = each.access, _records(store, store.queues)
        row: dict[str, Any] = dict.fromkeys(EXPLAIN_FIELDS)
        row |= {
            "store": each.place.path,
            "broker_name": each.place.broker_name,
            "access": "none",
            "files_read": 0,
            "files_total": each.files_total,
            "bytes_read": 0,
            "bytes_total": each.bytes_total,
            "estimated_records_read": 0,
            "estimated_records_total": total,
            "partitions": pieces[each.place],
            "reason": "nothing of it can match",
        }
        if access is not None:
            names = ("files_read", "files_total", "bytes_read", "bytes_total", "reason")
            row |= {name: getattr(access, name) for name in names} | {"access": access.kind}
            assert each.request is not None
            row["estimated_records_read"] = _records_read(store, each.request.selection, access, total)
            row["reason"] += _what_is_read(access)
        yield row


def _what_is_read(access: Access) -> str:
    """Of which places the bytes are, where queues or the index name the records."""
    of_log = sum(each.bytes_read for each in access.ranges if each.via == "log")
    if access.kind == "log" or not of_log:
        return ""
    return f"; {of_log} bytes are of the log itself, where these say nothing: ends of files, newest records"


def _records(store: Store, keys: Iterable[tuple[str, int]]) -> int:
    """Records that queues point to in the log; a queue that cannot be read is left out."""
    from rmqtool.queue.light_queues import LIGHT_PREFIX

    count = 0
    for key in keys:
        if key[0].startswith(LIGHT_PREFIX):
            continue  # its units name records of other queues
        with suppress(UnreadableError):
            queue, low = store.queue(*key), store.min_offset(*key)
            if isinstance(queue, BatchConsumeQueue):  # a unit is a record of several messages
                count += max(queue.end() - (queue.number_of(low) or 0), 0)
            else:
                count += max(store.max_offset(*key) - low, 0)
    return count


def _records_read(store: Store, selection: Selection, access: Access, total: int) -> int:
    if access.kind == "index":
        return len(access.offsets)
    end, files, end_of = store.end_offset(), store.layout.commit_log, store.layout.written_end
    whole = sum(max(min(end_of(file), end) - file.file_from_offset, 0) for file in files)
    if access.kind == "queue":
        total = _records(store, access.queues)
        bounds = (selection.from_offset, selection.to_offset, selection.since, selection.until)
        if bounds == (None, None, None, None):
            return total
    inside = sum(max(min(each.stop, end) - each.start, 0) for each in access.ranges)
    return min(total, -(-total * inside // whole)) if whole else 0


# damage


@dataclass(frozen=True, slots=True)
class Bad:
    """How many ranges held no record, and how many records had a wrong status."""

    ranges: int = 0
    records: int = 0

    def __add__(self, other: Bad) -> Bad:
        """Both together."""
        return Bad(self.ranges + other.ranges, self.records + other.records)


def bad_sums() -> list[Column]:
    """The aggregates that `bad_of` reads."""
    from pyspark.sql import functions

    has_none = functions.col(RECORD).isNull()
    return [
        functions.count_if(has_none).alias("bad_ranges"),
        functions.count_if(~has_none & functions.col(DAMAGE).isNotNull()).alias("bad_records"),
    ]


def bad_of(row: Any) -> Bad:
    """The counts in a row with the aggregates of `bad_sums`; `row` is one of Spark's, or a dict."""
    return Bad(int(row["bad_ranges"]), int(row["bad_records"]))


def findings_of(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings that `dump` reports on the same bytes.

    Args:
        values: of a row, by Spark name: DAMAGE, RECORD, file, physicalOffset, size.
    """
    if values[DAMAGE] is None:
        return
    found = json.loads(values[DAMAGE])
    if values[RECORD] is None:
        place = (found["path"], found["physical_offset"], found["length"], found["detail"], found["message"])
        yield Finding(BY_CODE[found["problem"]], *place)
        return
    for code in found["status"]:
        yield finding(code, values["file"], values["physicalOffset"], values["size"])
