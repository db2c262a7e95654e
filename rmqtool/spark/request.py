"""The messages wanted of one store: a Selection, and what a Selection cannot say (the rest) with its test.

A `Request` comes from the options, from the filters that Spark pushed down, and from the store's
queues where options name queue offsets. The Selection decides how the store is read; the rest is
tested on the rows that come out, so every way to the rows gives the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field, replace
from glob import escape
from typing import TYPE_CHECKING

from rmqtool.lazy_dataclass import dataclass
from rmqtool.read.pushed import NOTHING_PUSHED, Pushed, intersect, is_empty, narrowed
from rmqtool.read.selection import Selection

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqtool.spark.options import SourceOptions
    from rmqtool.storage.buffers import Array

OFFSET_MAX = (1 << 63) - 1
_TIME_MIN, _TIME_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class QueueRange:
    """A queue and what is wanted of it: queue offsets [start, stop), store times [since, until) in ms."""

    topic: str
    queue_id: int
    start: int = 0
    stop: int = OFFSET_MAX
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class ExtraPredicate:
    """Conditions on rows besides the Selection.

    Attributes:
        topic_pattern: a regular expression that the whole topic matches.
        queues: only these queues, each with its range; None is all queues.
        start, stop: queue offsets [start, stop), of every queue.
    """

    topic_pattern: str | None = None
    queues: tuple[QueueRange, ...] | None = None
    start: int | None = None
    stop: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether every row passes."""
        return self == ExtraPredicate()

    @property
    def columns(self) -> frozenset[str]:
        """The engine columns that the test looks at."""
        names = set()
        if self.topic_pattern is not None:
            names.add("topic")
        if self.start is not None or self.stop is not None:
            names.add("queue_offset")
        if self.queues is not None:
            names |= {"topic", "queue_id", "queue_offset"}
            if any(each.since is not None or each.until is not None for each in self.queues):
                names.add("store_timestamp_ms")
        return frozenset(names)


@dataclass(frozen=True, slots=True)
class Request:
    """The messages wanted of one store; picklable."""

    selection: Selection = field(default_factory=Selection)
    rest: ExtraPredicate = field(default_factory=ExtraPredicate)

    @property
    def looks_inside(self) -> bool:
        """Whether a row must be a message to be wanted: ranges without one have no topic, time or tag."""
        return self.selection.looks_inside or not self.rest.is_empty


def topics_and_pattern(options: SourceOptions) -> tuple[frozenset[str], str | None]:
    """The globs for the topics of the options, and the pattern where globs cannot express it."""
    topics = options.topics or tuple(dict.fromkeys(name.topic for name in options.assign))
    if topics:
        return frozenset(map(escape, topics)), None
    if options.topic_pattern is None:
        return frozenset(options.topic_globs), None
    globs = globs_of_pattern(options.topic_pattern)
    return (frozenset(), options.topic_pattern) if globs is None else (globs, None)


def globs_of_pattern(pattern: str) -> frozenset[str] | None:
    """Globs for a regular expression made of plain characters, `.`, `.*` and `|` only; else None.

    A `.` does not match a line end in an expression, but `?` is any character: topics have no line ends, and
    what the broker takes for a topic is in the set of plain characters below.
    """
    if not re.fullmatch(r"[\w%.*|-]*", pattern, re.ASCII) or re.search(r"(?:^|[^.])\*", pattern):
        return None
    return frozenset(each.replace(".*", "*").replace(".", "?") for each in pattern.split("|"))


def build_request(
    options: SourceOptions,
    pushed: Pushed = NOTHING_PUSHED,
    queues: Iterable[QueueRange] | None = None,
    end: int | None = None,
) -> Request | None:
    """The request for one store; None where nothing can be wanted of it.

    Args:
        options: of the read.
        pushed: what the query's filters say.
        queues: the queues and ranges that options name, as this store has them; None: all of all.
        end: physical offset from which on nothing is read.
    """
    globs, pattern = topics_and_pattern(options)
    if pattern is not None and pushed.topics is not None:
        wanted = re.compile(pattern).fullmatch
        pushed = replace(pushed, topics=frozenset(topic for topic in pushed.topics if wanted(topic)))
    offsets = intersect((options.from_offset, options.to_offset), (None, end))
    if is_empty((options.since, options.until)) or is_empty(offsets):
        return None
    base = Selection(
        topics=globs,
        exclude_topics=options.exclude_topics,
        queues=options.queues,
        tags=options.tags,
        keys=options.keys,
        since=options.since,
        until=options.until,
        from_offset=offsets[0],
        to_offset=offsets[1],
        filter=options.filter,
    )
    selection = narrowed(base, pushed)
    if selection is None:
        return None
    ranges = None if queues is None else tuple(queues)
    if ranges is not None:
        known = selection
        ranges = tuple(
            each
            for each in ranges
            if each.start < each.stop
            and known.matches_topic(each.topic)
            and (not known.queues or each.queue_id in known.queues)
        )
        if not ranges:
            return None
        selection = replace(
            selection,
            topics=frozenset(escape(each.topic) for each in ranges),
            queues=frozenset(each.queue_id for each in ranges),
        )
    return Request(selection, ExtraPredicate(pattern, ranges, *pushed.queue_offsets))


class ExtraFilter:
    """Keeps the rows of batches that an `ExtraPredicate` wants, by whole columns; one per partition."""

    def __init__(self, rest: ExtraPredicate) -> None:
        self._rest = rest
        self._pattern = None if rest.topic_pattern is None else re.compile(rest.topic_pattern)
        self._by_topic: dict[str, list[QueueRange]] = {}
        for each in rest.queues or ():
            self._by_topic.setdefault(each.topic, []).append(each)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass; the batch has the columns `ExtraPredicate.columns`."""
        rest = self._rest
        if rest.is_empty or not len(batch):
            return batch
        import numpy as np
        import pyarrow as pa

        keep = np.ones(len(batch), np.bool_)
        if rest.start is not None or rest.stop is not None:
            offsets = _numbers(batch, "queue_offset")
            if rest.start is not None:
                keep &= offsets >= rest.start
            if rest.stop is not None:
                keep &= offsets < rest.stop
        if self._pattern is not None or rest.queues is not None:
            encoded = batch.column("topic").dictionary_encode()
            topics: list[str] = encoded.dictionary.to_pylist()
            numbers: Array = encoded.indices.to_numpy()
            if self._pattern is not None:
                wanted = [self._pattern.fullmatch(topic) is not None for topic in topics]
                keep &= np.array(wanted, np.bool_)[numbers]
            if rest.queues is not None:
                keep &= self._in_queues(batch, topics, numbers)
        return batch if keep.all() else batch.filter(pa.array(keep))

    def _in_queues(self, batch: pa.RecordBatch, topics: list[str], numbers: Array) -> Array:
        """Which rows are in one of the queues, and in its range."""
        import numpy as np

        known = [
            (number, each) for number, topic in enumerate(topics) for each in self._by_topic.get(topic, ())
        ]
        if not known:
            return np.zeros(len(batch), np.bool_)
        codes = np.array([_code(number, each.queue_id) for number, each in known], np.int64)
        order = np.argsort(codes)
        codes = codes[order]
        ranges = [known[place][1] for place in order]
        mine = (numbers.astype(np.int64) << 32) | (_numbers(batch, "queue_id") & 0xFFFFFFFF)
        places = np.minimum(np.searchsorted(codes, mine), len(codes) - 1)
        offsets = _numbers(batch, "queue_offset")
        keep = codes[places] == mine
        keep &= offsets >= np.array([each.start for each in ranges], np.int64)[places]
        keep &= offsets < np.array([each.stop for each in ranges], np.int64)[places]
        if "store_timestamp_ms" in self._rest.columns:
            times = _numbers(batch, "store_timestamp_ms")
            since = [_TIME_MIN if each.since is None else each.since for each in ranges]
            until = [_TIME_MAX if each.until is None else each.until for each in ranges]
            keep &= (times >= np.array(since, np.int64)[places]) & (times < np.array(until, np.int64)[places])
        return np.asarray(keep)


def _code(topic: int, queue_id: int) -> int:
    return (topic << 32) | (queue_id & 0xFFFFFFFF)


def _numbers(batch: pa.RecordBatch, name: str) -> Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    column: Array = pc.cast(batch.column(name), pa.int64()).to_numpy(zero_copy_only=False)
    return column
