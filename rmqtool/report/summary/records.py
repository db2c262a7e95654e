"""Records of the whole log, added up while they are in memory.

The log's files are walked by several threads at once: `WholeLog.observe` takes one window at a time, and
every sum is the same in whatever order the windows come.

    LogMap       bytes by topic, messages and store times, per equal step of the physical offset
    Classes      messages and bytes by class of a value: size of a record, delay
    Compression  compressed bodies by topic and codec, and how much smaller samples of them are
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from rmqtool.errors import FormatError, MissingCodecError
from rmqtool.formats import body
from rmqtool.formats.java import java_utf8_decode
from rmqtool.formats.message import COMPRESSION_TYPE_MASK
from rmqtool.lazy_dataclass import dataclass
from rmqtool.report.stats.dimensions import Codes, Dimension
from rmqtool.report.stats.groups import Groups
from rmqtool.report.stats.scanner import Batch
from rmqtool.report.stats.timeline import Timeline
from rmqtool.storage.buffers import Array

if TYPE_CHECKING:
    from rmqtool.log.frames import Frames
    from rmqtool.storage.layout import StoreFile

STEPS = 160
"""Steps of the map."""
TOPICS_MAX = 4096
"""Topics that the map distinguishes; all further ones are others."""
SIZE_EDGES: tuple[int, ...] = tuple(1 << power for power in range(7, 25))
"""Sizes of records in bytes, from 128 B to 16 MiB, in powers of two: class n ends before edge n."""
DELAY_EDGES: tuple[int, ...] = (
    0, 1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000,
)  # fmt: skip
"""Delays in ms; the first class is that of negative ones."""

_BIG = np.iinfo(np.int64).max
_OTHERS = 0  # column of the map: topics beyond TOPICS_MAX
_SAMPLES = 4096  # bodies decompressed in the whole log, about
_SAMPLE_MAX = 1 << 20  # stored bytes of a body that is decompressed
_PLAIN_MAX = 16 << 20


class LogMap:
    """The log in at most STEPS equal steps.

    The bytes of a record that crosses the end of a step are divided. `start` and `width` are bytes of
    physical offset; `counts`, `first_ms` and `last_ms` are per step; a step without records has no times.
    """

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.width = max(-(-(end - start) // STEPS), 1)
        steps = max(-(-(end - start) // self.width), 0)
        self.counts: Array = np.zeros(steps, np.int64)
        self.first_ms: Array = np.full(steps, _BIG, np.int64)
        self.last_ms: Array = np.full(steps, -_BIG - 1, np.int64)
        self._bytes: Array = np.zeros((steps, 16), np.int64)

    def take(self, batch: Batch) -> None:
        """Add the records of a batch."""
        records = batch.records
        if not len(records.size) or not len(self.counts):
            return
        columns = np.where(records.topics < TOPICS_MAX, records.topics + 1, _OTHERS)
        self._widen(int(columns.max()) + 1)
        at = records.physical_offset - self.start
        steps = np.clip(at // self.width, 0, len(self.counts) - 1)
        low, high = int(steps.min()), int(steps.max()) + 1
        np.add.at(self.counts, steps, 1)
        np.minimum.at(self.first_ms, steps, records.store_timestamp)
        np.maximum.at(self.last_ms, steps, records.store_timestamp)
        width = self._bytes.shape[1]
        added = np.bincount(
            (steps - low) * width + columns, records.size.astype(np.float64), (high - low) * width
        )
        self._bytes[low:high] += added.reshape(high - low, width).astype(np.int64)
        ends = at + records.size
        # At most one record crosses the end of each step.
        for place in np.flatnonzero(ends > (steps + 1) * self.width).tolist():
            self._spread(int(steps[place]), int(columns[place]), int(ends[place]))

    def bytes_of(self, topic: int) -> Array:
        """Bytes per step of the records of a topic, by its code."""
        column = topic + 1
        if not 0 < column < self._bytes.shape[1]:
            return np.zeros(len(self.counts), np.int64)
        found: Array = self._bytes[:, column]
        return found

    def bytes(self) -> Array:
        """Bytes per step of all records."""
        total: Array = self._bytes.sum(axis=1)
        return total

    def _spread(self, step: int, column: int, end: int) -> None:
        """Move the bytes of a record that lie after its step to the steps where they are."""
        while step + 1 < len(self.counts) and end > (step + 1) * self.width:
            over = end - (step + 1) * self.width
            self._bytes[step, column] -= over
            step += 1
            self._bytes[step, column] += over

    def _widen(self, columns: int) -> None:
        missing = columns - self._bytes.shape[1]
        if missing > 0:
            more = max(missing, self._bytes.shape[1])
            self._bytes = np.hstack([self._bytes, np.zeros((len(self.counts), more), np.int64)])


class Classes:
    """Messages and bytes by class of a value: class n holds values below edge n, and from edge n - 1 on."""

    def __init__(self, edges: tuple[int, ...]) -> None:
        self.edges = edges
        self._edges = np.array(edges, np.int64)
        self.counts: Array = np.zeros(len(edges) + 1, np.int64)
        self.bytes: Array = np.zeros(len(edges) + 1, np.int64)

    def add(self, values: Array, sizes: Array) -> None:
        """Add values, and the sizes of their records."""
        classes = np.searchsorted(self._edges, values, side="right")
        length = len(self.counts)
        self.counts += np.bincount(classes, minlength=length)
        self.bytes += np.bincount(classes, sizes.astype(np.float64), length).astype(np.int64)


@dataclass(slots=True)
class Codec:
    """Compressed bodies of one topic and codec; `sample_*` are those that were decompressed, in bytes."""

    count: int = 0
    stored: int = 0
    samples: int = 0
    sample_stored: int = 0
    sample_plain: int = 0
    unreadable: int = 0


class Compression:
    """Compressed bodies by (code of the topic, type bits of the sys_flag)."""

    def __init__(self, files: int) -> None:
        self.found: dict[tuple[int, int], Codec] = {}
        self._of_file = max(_SAMPLES // max(files, 1), 1)
        self._taken: dict[int, int] = {}

    def take(self, file: StoreFile, batch: Batch) -> None:
        """Add the records of a batch of a file; the first bodies of each file are decompressed."""
        records = batch.records
        marked = np.flatnonzero(records.compressed)
        if not len(marked):
            return
        flags = batch.frames.rows["sys_flag"][marked].astype(np.int64)
        keys = ((records.topics[marked] + 1) << 3) | ((flags & COMPRESSION_TYPE_MASK) >> 8)
        found, inverse = np.unique(keys, return_inverse=True)
        counts = np.bincount(inverse)
        sizes = np.bincount(inverse, records.body_length[marked].astype(np.float64))
        for key, count, size in zip(found.tolist(), counts.tolist(), sizes.tolist(), strict=True):
            codec = self._codec(key)
            codec.count += count
            codec.stored += int(size)
        taken = self._taken.get(file.file_from_offset, 0)
        chosen = marked[: self._of_file - taken]
        if len(chosen):
            self._taken[file.file_from_offset] = taken + len(chosen)
            starts = batch.frames.body_starts()
            for place, key in zip(chosen.tolist(), keys.tolist(), strict=False):
                self._sample(batch.frames, int(starts[place]), place, self._codec(key))

    def _codec(self, key: int) -> Codec:
        return self.found.setdefault(((key >> 3) - 1, key & 7), Codec())

    @staticmethod
    def _sample(frames: Frames, start: int, place: int, codec: Codec) -> None:
        row = frames.rows[place]
        length = int(row["body_length"])
        if row["status"] or not 0 < length <= _SAMPLE_MAX:
            return
        stored = bytes(frames.data[start : start + length])
        try:
            plain = body.decompress(stored, int(row["sys_flag"]), limit=_PLAIN_MAX)
        except (FormatError, MissingCodecError):
            codec.unreadable += 1
            return
        codec.samples += 1
        codec.sample_stored += length
        codec.sample_plain += len(plain)


class WholeLog:
    """All sums over the log; `observe` is called with every window, from any thread."""

    def __init__(self, start: int, end: int, files: int) -> None:
        self.topics = Codes()
        self.by_topic = Groups([Dimension("topic", None)])
        self.timeline = Timeline()
        self.map = LogMap(start, end)
        self.sizes = Classes(SIZE_EDGES)
        self.delays = Classes(DELAY_EDGES)
        self.compression = Compression(files)
        self.count = 0
        self.bytes = 0
        self._lock = Lock()

    def observe(self, file: StoreFile, frames: Frames) -> None:
        """Add the records of a window."""
        if not len(frames.rows):
            return
        with self._lock:
            names = [java_utf8_decode(topic) for topic in frames.topics]
            everything = np.ones(len(frames.rows), bool)
            batch = Batch(frames, everything, file.path.name, names, self.topics.of(names))
            records = batch.records
            self.count += len(records.size)
            self.bytes += int(records.size.sum(dtype=np.int64))
            for taker in (self.by_topic, self.timeline, self.map):
                taker.take(batch)
            self.sizes.add(records.size, records.size)
            self.delays.add(records.store_timestamp - records.born_timestamp, records.size)
            self.compression.take(file, batch)
