"""What `stats` must count, worked out again in plain Python, for tests; and running the command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

from rmqtool.message.rows import RowFormat
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.report.stats.dimensions import start_of
from rmqtool.report.stats.overview import Overview, Request, overview
from tests.support.dumps import Command, Result

Row = dict[str, Any]
NOW_MS = 1_900_000_000_000
PARTS = (50, 95, 99)


def fact_of(stored: Any) -> Row:
    """A message of `Store.messages` under the names of the Java facts."""
    from rmqtool.formats import properties

    record = stored.message
    return {
        "physicalOffset": stored.physical_offset, "storeSize": record.total_size, "topic": record.topic,
        "queueId": record.queue_id, "queueOffset": record.queue_offset, "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp, "storeTimestamp": record.store_timestamp,
        "storedBodyLength": max(record.body_length, 0),
        "properties": properties.decode(record.properties_bytes),
    }  # fmt: skip


def name_of(fact: Row, by: Sequence[str], tz: tzinfo | None = UTC) -> tuple[Any, ...]:
    """The values that say which group a record is in."""
    size = fact["storeSize"]
    found = {
        "topic": fact["topic"],
        "queue": fact["queueId"],
        "tag": fact["properties"].get("TAGS"),
        "hour": start_of(fact["storeTimestamp"], "hour", tz),
        "day": start_of(fact["storeTimestamp"], "day", tz),
        "size": 1 << (size.bit_length() - 1),
    }
    return tuple(found[name] for name in by)


FIRST_FIELDS = {"topic": "topic", "queue": "queue_id", "tag": "tag", "hour": "hour_timestamp_ms",
                "day": "day_timestamp_ms", "size": "size_from_bytes"}  # fmt: skip


def check_rows(rows: Iterable[Row], facts: Sequence[Row], by: Sequence[str], tz: tzinfo | None = UTC) -> None:
    """Every group once, with all its values: exact, percentiles within 1/256 of the nearest rank."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for fact in facts:
        groups.setdefault(name_of(fact, by, tz), []).append(fact)
    rows = list(rows)
    names = [tuple(row[FIRST_FIELDS[name]] for name in by) for row in rows]
    ordered = sorted(groups, key=lambda name: [(value is not None, value or 0) if value is None or
                     isinstance(value, int) else (True, value) for value in name])  # fmt: skip
    if tuple(by) == ("topic",):
        ordered.sort(key=lambda name: -sum(fact["storeSize"] for fact in groups[name]))
    assert names == ordered
    for name, row in zip(names, rows, strict=True):
        _check_row(row, groups[name], is_queue=set(by) == {"topic", "queue"})


def _check_row(row: Row, facts: list[Row], *, is_queue: bool) -> None:
    count = len(facts)
    assert row["count"] == count
    assert row["bytes"] == sum(fact["storeSize"] for fact in facts)
    assert row["body_bytes"] == sum(fact["storedBodyLength"] for fact in facts)
    assert row["compressed"] == sum(fact["sysFlag"] & 1 for fact in facts)
    measures = {
        ("size", "bytes"): [fact["storeSize"] for fact in facts],
        ("body", "bytes"): [fact["storedBodyLength"] for fact in facts],
        ("delay", "ms"): [fact["storeTimestamp"] - fact["bornTimestamp"] for fact in facts],
    }
    for (measure, unit), values in measures.items():
        values.sort()
        assert row[f"{measure}_min_{unit}"] == values[0]
        assert row[f"{measure}_max_{unit}"] == values[-1]
        assert row[f"{measure}_mean_{unit}"] == round(sum(values) / count, 3)
        for part in PARTS:
            exact = values[-(-count * part // 100) - 1]
            assert abs(row[f"{measure}_p{part}_{unit}"] - exact) <= abs(exact) / 256
    times = sorted(fact["storeTimestamp"] for fact in facts)
    assert (row["first_store_timestamp_ms"], row["last_store_timestamp_ms"]) == (times[0], times[-1])
    seconds = (times[-1] - times[0]) / 1000
    assert row["messages_per_s"] == (round(count / seconds, 3) if seconds >= 1 else None)
    assert row["bytes_per_s"] == (round(row["bytes"] / seconds, 3) if seconds >= 1 else None)
    for field, name in (("queue_offset", "queueOffset"), ("physical_offset", "physicalOffset")):
        values = sorted(fact[name] for fact in facts)
        low, high = ("min", "max") if field == "queue_offset" else ("first", "last")
        assert (row[f"{low}_{field}"], row[f"{high}_{field}"]) == (values[0], values[-1])
    places = sorted(fact["physicalOffset"] for fact in facts)
    steps = [after - before for before, after in zip(places, places[1:], strict=False)]
    mean = round(sum(steps) / len(steps), 3) if steps and is_queue else None
    assert row["mean_distance_bytes"] == mean
    largest = max(facts, key=lambda fact: (fact["storedBodyLength"], -fact["physicalOffset"]))
    assert row["largest_body_physical_offset"] == largest["physicalOffset"]


def look(path: Path, selection: Selection | None = None, **values: Any) -> Overview:
    """`overview` of a store with these parts of a request, all rows read; bad places fail the test."""
    values.setdefault("now_ms", NOW_MS)
    values.setdefault("form", RowFormat(tz=UTC))

    def report(finding: Any) -> None:
        if finding.problem.severity != "note":
            raise AssertionError(finding)

    with Store.open(path) as store:
        return overview(store, Request(selection or Selection(), **values), report)


def rows_of(found: Overview, name: str) -> list[Row]:
    """The rows of one section."""
    return list(next(section.rows for section in found.sections if section.name == name))


class Stats(Command):
    """Runs `rmqtool stats`."""

    NAME = "stats"

    @staticmethod
    def object(result: Result) -> Row:
        """The one JSON object of a result."""
        found: Row = json.loads(result.out)
        return found
