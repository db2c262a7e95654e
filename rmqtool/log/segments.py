"""Segments of tiered storage that are missing: the parts of the logs of queues that no file holds.

A segment is missing between two others, or if the metadata name it, and not as one that the broker has
deleted. The log of a queue with units is missing if no segment of it is there: a broker writes the log first,
and deletes both together.

Source: FlatAppendFile#recover, DefaultMetadataStore; spec 06 section 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from rmqtool.formats import tiered as form
from rmqtool.formats.consume_queue import UNIT_SIZE
from rmqtool.problems import Finding, finding
from rmqtool.storage.queue_logs.model import SPAN, Segment
from rmqtool.storage.queue_logs.view import TieredLogs
from rmqtool.storage.storage import path_at

if TYPE_CHECKING:
    from rmqtool.storage.layout import StoreLayout
    from rmqtool.storage.queue_logs.view import QueueLogs

SegmentKey = tuple[str, str, int]
"""The kind of a segment, BROKER/TOPIC/QUEUE, and its first offset."""


def name_of(logs: QueueLogs, segment: Segment) -> str:
    """The path of a segment from the folder of the copy on."""
    return path_at(segment.place).relative_to(logs.folder).as_posix()


def units_name(logs: TieredLogs, key: tuple[str, int]) -> str | None:
    """The path of a queue's units from the folder of the copy on; None if it does not have the queue."""
    folders = (queue.folder for queue in logs.found.queues if queue.key == key)
    return next(((each / form.CONSUME_QUEUE).relative_to(logs.folder).as_posix() for each in folders), None)


def gap(logs: QueueLogs, before: Segment, after: Segment) -> Finding:
    """TS01: bytes are missing between two segments."""
    return finding(
        "TS01", name_of(logs, after), 0, after.base - before.end, begins=after.base, ends_before=before.end
    )


def segments_of(logs: TieredLogs) -> dict[SegmentKey, Segment]:
    """All segments of logs, units and index."""
    found = {
        (kind, _queue_path(logs, *queue.key), segment.base): segment
        for queue in logs.found.queues
        for kind, segments in ((form.COMMIT_LOG, queue.log), (form.CONSUME_QUEUE, queue.units))
        for segment in segments
    }
    of_index = logs.found.index_segments
    return found | {
        (form.INDEX, _queue_path(logs, form.INDEX_TOPIC, 0), segment.base): segment for segment in of_index
    }


def _queue_path(logs: TieredLogs, topic: str, queue_id: int) -> str:
    """A queue as the metadata name it."""
    return f"{logs.broker.name}/{topic}/{queue_id}"


def committed_units(logs: TieredLogs, key: tuple[str, int]) -> int:
    """The offset up to which the units of a queue are written, as the metadata say; 0 without metadata.

    Of a segment that is shorter only what it has: that it is too short is TS03.
    """
    content, there = logs.metadata.content, segments_of(logs)
    queue = form.CONSUME_QUEUE, _queue_path(logs, *key)
    segments = content.segments.items() if content is not None else ()
    return max(
        (at[2] + min(said.size, there[at].size) for at, said in segments if at in there and at[:2] == queue),
        default=0,
    )


def named_and_missing(logs: TieredLogs) -> Iterator[tuple[SegmentKey, Finding]]:
    """TS04 for every segment with content that only the metadata name; nothing without metadata."""
    content, there = logs.metadata.content, segments_of(logs)
    cluster = logs.broker.parent
    above = f"{cluster.name}/" if cluster.is_relative_to(logs.folder) and cluster != logs.folder else ""
    for key, said in sorted(content.segments.items() if content is not None else ()):
        if key not in there and said.status != form.DELETED and said.size:
            kind, queue_path, base = key
            path = f"{above}{queue_path}/{kind}/{form.segment_name(base)}"
            reason = "the metadata name it, and it is missing"
            yield key, finding("TS04", path, 0, said.size, reason=reason)


def without_log(logs: TieredLogs) -> Iterator[Finding]:
    """TS01 for every queue that has units and no segment of its log, unless the metadata name one."""
    content = logs.metadata.content
    segments = content.segments if content is not None else ()
    named = {path for kind, path, _ in segments if kind == form.COMMIT_LOG}
    for queue in logs.found.queues:
        units = sum(segment.size for segment in queue.units) // UNIT_SIZE
        if units and not queue.log and _queue_path(logs, *queue.key) not in named:
            folder = (queue.folder / form.COMMIT_LOG).relative_to(logs.folder).as_posix()
            found = finding("TS01", folder, topic=queue.topic, queue_id=queue.queue_id, units=units)
            what = f"{units} units" if units > 1 else "1 unit"
            yield replace(found, message=f"the log of a queue is missing, of which {what} are there")


def missing_of_log(layout: StoreLayout) -> Iterator[tuple[int, Finding]]:
    """(place, finding) for each part of the logs that is missing; the place is where it would be, or next."""
    logs = layout.queue_logs
    if not isinstance(logs, TieredLogs):
        return
    for queue in logs.found.queues:
        for number, (before, after) in enumerate(pairwise(queue.log), 1):
            if before.end < after.base:
                yield logs.places[queue.key].start + number * SPAN, gap(logs, before, after)
    starts = {_queue_path(logs, *key): places for key, places in logs.places.items()}
    yield from ((0, each) for each in without_log(logs))
    for (kind, queue_path, base), each in named_and_missing(logs):
        if kind == form.COMMIT_LOG:
            places = starts.get(queue_path)
            yield 0 if places is None else max(places.place(base), places.start), each
