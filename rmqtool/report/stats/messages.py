"""The rows of `stats --by topic,queue,tag,hour,day,size`: the values per group.

    count, bytes, body_bytes          messages; sizes of their records, and of their bodies as stored
    size_*_bytes, body_*_bytes        smallest, mean, percentiles (within 0.4 %, see histogram.py), largest
    delay_*_ms                        store time - born time; below 0 if the producer's clock is ahead
    messages_per_s, bytes_per_s       between the first and the last of the group; null for a single moment
    mean_distance_bytes               by queue: from the start of a message in the log to that of the next
    largest_body_physical_offset      the first message with the largest body

Sums, extremes and means are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo

from rmqtool import times
from rmqtool.message.rows import Row
from rmqtool.report.stats.dimensions import FIELDS as NAME_FIELDS
from rmqtool.report.stats.dimensions import Codes
from rmqtool.report.stats.groups import PERCENTILES, Groups

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
            row[f"{measure}_mean_{unit}"] = sums[measure] / count
            for part, value in zip(PERCENTILES, found[f"{measure}_parts"], strict=True):
                row[f"{measure}_p{part}_{unit}"] = value
            row[f"{measure}_max_{unit}"] = found[f"{measure}_high"]
        first, last = found["store_timestamp_low"], found["store_timestamp_high"]
        for which, time in (("first", first), ("last", last)):
            row[f"{which}_store_timestamp_ms"] = time
            row[f"{which}_store_time"] = times.format_time(time, tz)
        seconds = (last - first) / 1000
        row["messages_per_s"] = count / seconds if seconds > 0 else None
        row["bytes_per_s"] = found["bytes"] / seconds if seconds > 0 else None
        row["min_queue_offset"], row["max_queue_offset"] = (
            found["queue_offset_low"],
            found["queue_offset_high"],
        )
        start, end = found["physical_offset_low"], found["physical_offset_high"]
        row["first_physical_offset"], row["last_physical_offset"] = start, end
        row["mean_distance_bytes"] = (end - start) / (count - 1) if by_queue and count > 1 else None
        row["largest_body_physical_offset"] = found["largest_body_at"]
        yield row


def _is_by_queue(by: Sequence[str]) -> bool:
    return set(by) == {"topic", "queue"}
