"""One commit log file walked once: which of its records are sound, and the holes between them.

A record is sound when its lengths add up, it lies at the offset that it names, body and property
CRC are right, and a broker can read its numbers. One whose last bytes were never written is sound
where others follow, for its body is right, but no delayed one: brokers need its properties. Python
works per hole and per record whose content is wrong; sound neighbours cost nothing each.
"""

from __future__ import annotations

from dataclasses import field
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.errors import RefusedError
from rmqtool.formats import message as form
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import CODE_BY_STATUS, full_status, gap_code, is_torn
from rmqtool.log.dispatch import BAD_DELAY, ENDS_IN_ZEROS, PROPERTY_CRC_PRESENT, Dispatch, dispatch_columns
from rmqtool.log.events import (
    BAD_NUMBER,
    BODY_CRC,
    OFFSET_MISMATCH,
    PROPERTIES_UNSOUND,
    PROPERTY_CRC_BAD,
    Blank,
    CorruptRange,
    LogGap,
    TrailingZeros,
)
from rmqtool.log.frames import Frames, walk
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.repair.salvage.full_size import of_full_size
from rmqtool.repair.salvage.model import HOLES_MAX, Claim, Hole, LogFile

if TYPE_CHECKING:
    from rmqtool.log.scan_cache import ScanCache
    from rmqtool.storage.source import ByteSource

_CUT = 4
"""Besides the status bits: a record's last byte was never written. It is kept unless the log ends there."""
_GRAVEST_FIRST = (OFFSET_MISMATCH, BODY_CRC, PROPERTY_CRC_BAD, BAD_NUMBER, PROPERTIES_UNSOUND)
"""Status bits in the order in which they give an unsound record its one code.

OFFSET_MISMATCH is first, because the head of a foreign record seldom names the record that was lost there
(`owners`). PROPERTIES_UNSOUND is last, because only a record without other damage can be a torn tail.
"""
SEGMENTS_MAX = 5_000
"""Most places of one file where the store time may go back; with more, its times are not used."""
UNFINISHED_MAX = 1000
_SCHEDULE = SCHEDULE_TOPIC.encode()
_WINDOW = 16 << 20  # what is kept of a batch costs the less, the more records it has


@dataclass(slots=True)
class Segment:
    """Sound records from `start` on whose store times do not go back; `last_ms` is the last one's."""

    start: int
    last_ms: int


@dataclass
class FileScan:
    """The result of the walk over one file; offsets are physical.

    Attributes:
        file: the file.
        holes: between sound records, and before the blank that ends the file, in order.
        end: the end of the last sound record or hole before the blank; the file's start without any.
        done: whether a blank of the right size ends the file; it is at `end`.
        kept: sound records.
        misplaced: records that are right but for their stored physical offset, which is another place's.
        first_ms: store time of the first of them, 0 without one.
        first_size: bytes of the sound record that begins the file, 0 without one.
        segments: where the store time goes back.
        pending: heads of unsound records after `end`.
        code: the first problem after `end`, empty if all is zero.
        cuts: records at `end` that were kept although their last bytes were never written.
        unfinished: the first sound records whose last bytes were never written.
        damaged: the first sound records with other damage of the properties, which brokers read.
        is_torn: whether what follows `end` is a record whose writer died; set only where nothing else is.
        unreadable: ranges that could not be read.
        has_property_crc: whether records end with a property CRC; one of the file does, or it is known.
        kept_before: whether a record whose last bytes were never written was kept before that was known.
    """

    file: LogFile
    holes: list[Hole] = field(default_factory=list)
    end: int = 0
    done: bool = False
    kept: int = 0
    misplaced: int = 0
    first_ms: int = 0
    first_size: int = 0
    last_ms: int = 0
    segments: list[Segment] = field(default_factory=list)
    pending: list[Claim] = field(default_factory=list)
    code: str = ""
    cuts: list[Claim] = field(default_factory=list)
    unfinished: list[Claim] = field(default_factory=list)
    damaged: list[Claim] = field(default_factory=list)
    is_torn: bool = False
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    has_property_crc: bool = False
    kept_before: bool = False
    _last: Claim | None = None
    _times: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        self.end = self.file.file_from_offset

    # events of the walk

    def take_frames(self, frames: Frames, dispatch: Dispatch) -> bool:
        """Records of one window; whether all of them are sound."""
        if (dispatch.flags & PROPERTY_CRC_PRESENT).any():
            self.has_property_crc = True
        status, rows = full_status(frames, dispatch), frames.rows
        marks = unsound(frames, dispatch, status, has_property_crc=self.has_property_crc)
        if len(self.damaged) < UNFINISHED_MAX:
            kept = np.flatnonzero((marks == 0) & ((status & PROPERTIES_UNSOUND) != 0)).tolist()
            self.damaged += [claim_of(frames, dispatch, row) for row in kept]
        if not marks.any():
            self._keep(frames, dispatch, 0, len(rows))
            self.cuts = []
            return True
        wrong = (marks & ~np.uint8(_CUT)) != 0
        self.kept_before |= bool((marks == _CUT).any())
        self.misplaced += int(np.count_nonzero((marks & ~np.uint8(_CUT)) == OFFSET_MISMATCH))
        if len(self.unfinished) < UNFINISHED_MAX:
            cut = np.flatnonzero(~wrong & (marks != 0)).tolist()
            self.unfinished += [claim_of(frames, dispatch, row) for row in cut]
        edges = [0, *(np.flatnonzero(np.diff(wrong)) + 1).tolist(), len(rows)]
        for low, high in zip(edges, edges[1:], strict=False):
            if wrong[low]:
                self._pend(frames, dispatch, marks, low, high)
            else:
                self._keep(frames, dispatch, low, high)
                whole = np.flatnonzero(marks[low:high] == 0)
                if len(whole):
                    self.cuts, low = [], low + int(whole[-1]) + 1
                self.cuts += [claim_of(frames, dispatch, row) for row in range(low, high)]
        return False

    def take_gap(self, gap: LogGap) -> None:
        """Handle a blank, zeros or a corrupt range."""
        if isinstance(gap, Blank) and gap.ends_file:
            self._finish(gap.physical_offset)
        elif not isinstance(gap, TrailingZeros) and not self.code:
            self.code = gap_code(gap, ends_log=False)
            self.is_torn = isinstance(gap, CorruptRange) and is_torn(gap)

    # sound and unsound records

    def _pend(self, frames: Frames, dispatch: Dispatch, marks: Any, low: int, high: int) -> None:
        """Rows [low, high) are not sound: their heads may still show which queue they belong to."""
        self._count(high - low)
        for row in range(low, high):
            claim = claim_of(frames, dispatch, row)
            claim.code = next(CODE_BY_STATUS[bit] for bit in _GRAVEST_FIRST if marks[row] & bit)
            self.pending.append(claim)
        self.code = self.code or self.pending[-1].code

    def _keep(self, frames: Frames, dispatch: Dispatch, low: int, high: int) -> None:
        """Rows [low, high) are sound and follow each other."""
        rows = frames.rows
        start = int(rows["physical_offset"][low])
        if start > self.end and not self._close(start, int(rows["store_timestamp"][low])):
            # too small a hole at the file's start: the record after it becomes a part of it
            self._absorb(claim_of(frames, dispatch, low))
            low += 1
            if low == high:
                return
        if start == self.file.file_from_offset:
            self.first_size = int(rows["size"][low])
        self._clock(rows["physical_offset"][low:high], rows["store_timestamp"][low:high])
        self._last = claim_of(frames, dispatch, high - 1)
        self.end = self._last.end
        self.kept += high - low

    def _close(self, stop: int, before_ms: int) -> bool:
        """The bytes from `end` to `stop` are a hole; False when nothing can be written there."""
        hole = Hole(self.end, stop, self.code or "CL02", self.pending, self.last_ms, before_ms)
        self.pending, self.code = [], ""
        if stop - self.end < form.MIN_RECORD_SIZE and not self._take_along(hole):
            self.pending, self.code = hole.heads, hole.code
            return False
        self._add(hole)
        return True

    def _take_along(self, hole: Hole) -> bool:
        """Have a small hole begin with the record before it; False when there is none."""
        if self._last is None or self._last.end != hole.start:
            return False
        self._last.taken = True
        hole.heads.insert(0, self._last)
        hole.start = self._last.start
        self._last = None
        self.kept -= 1
        return True

    def _absorb(self, claim: Claim) -> None:
        """Make the sound record after a small hole a part of it, because no record precedes the hole."""
        claim.taken = True
        hole = Hole(self.end, claim.end, self.code or "CL02", [*self.pending, claim], self.last_ms)
        self.pending, self.code = [], ""
        self._add(hole)
        self.end = claim.end

    def _add(self, hole: Hole) -> None:
        self._count(1)
        last = self.holes[-1] if self.holes else None
        if last is not None and last.stop >= hole.start:
            last.stop, last.before_ms = hole.stop, hole.before_ms
            last.heads += hole.heads
        else:
            self.holes.append(hole)

    def _finish(self, blank: int) -> None:
        """A blank of the right size at `blank` ends the file."""
        left = blank - self.end
        if left and left < form.MIN_RECORD_SIZE:
            self.code = self.code or "CL10"  # no filler fits: a longer blank does
            return
        if left:
            self._close(blank, 0)
            self.end = blank
        self.done = True

    def drop_cuts(self) -> None:
        """The log ends here: records at its end whose last bytes were never written are torn.

        A hole right before one of them is not between sound records any more: the log ends before it.
        """
        while self.cuts and not self.done and self.cuts[-1].end == self.end:
            claim = self.cuts.pop()
            if self.unfinished and self.unfinished[-1].start == claim.start:
                self.unfinished.pop()
            self.code = claim.code = CODE_BY_STATUS[PROPERTIES_UNSOUND]
            self.pending.insert(0, claim)
            self.end, self.kept, self._last = claim.start, self.kept - 1, None
            if self.holes and self.holes[-1].stop == self.end:
                self._reopen(self.holes.pop())

    def _reopen(self, hole: Hole) -> None:
        """The last hole is part of what follows `end`; a sound record that it took along is back."""
        self.end, self.code, self.is_torn = hole.start, hole.code, False
        self.pending = [*hole.heads, *self.pending]
        if hole.heads and hole.heads[0].taken and hole.heads[0].start == hole.start:
            last = self.pending.pop(0)
            last.taken, self._last = False, last
            self.end, self.kept = last.end, self.kept + 1

    def unfinished_before(self, offset: int) -> list[Claim]:
        """The records right before an offset that would be torn, were it the log's end; in order."""
        found: list[Claim] = []
        for claim in reversed(self.unfinished):
            if claim.end == offset:
                found.insert(0, claim)
                offset = claim.start
        return found

    def make_room(self) -> None:
        """Have at least the bytes of a blank between `end` and the file's end."""
        left = self.file.full_end - self.end
        if 0 < left < form.BLANK_SIZE and self._last is not None and self._last.end == self.end:
            self._last.taken = True
            self.pending.insert(0, self._last)
            self.end = self._last.start
            self.kept -= 1
            self._last = None

    def _clock(self, offsets: np.ndarray, times: np.ndarray) -> None:
        """Note where the store time goes back for good; a single earlier time is a damaged record."""
        if not self.segments:
            self.first_ms = int(times[0])
            self.segments.append(Segment(int(offsets[0]), 0))
        known = len(self._times)
        row_times = np.concatenate([self._times, times])
        for row in (np.flatnonzero(row_times[1:] < row_times[:-1]) + 1).tolist():
            if row < known or (row >= 2 and row_times[row - 2] <= row_times[row]):
                continue
            self.segments[-1].last_ms = int(row_times[row - 1])
            if len(self.segments) < SEGMENTS_MAX:
                self.segments.append(Segment(int(offsets[row - known]), 0))
        self._times = row_times[-2:]
        self.last_ms = int(times[-1])
        self.segments[-1].last_ms = self.last_ms

    def _count(self, number: int) -> None:
        if len(self.holes) + len(self.pending) + number > HOLES_MAX:
            raise RefusedError(
                f"more than {HOLES_MAX} damaged places",
                path=self.file.path,
                hint="this is no longer a commit log of the store: move the file away",
            )


def scan_file(
    file: LogFile, source: ByteSource, stopped: Event, sound: ScanCache, *, has_property_crc: bool
) -> FileScan:
    """Walk one file. `source` is closed by the caller; where the file is sound in all, it goes to `sound`.

    With `has_property_crc` each record is known to end with a property CRC.
    """
    scan, keeping = FileScan(file, has_property_crc=has_property_crc), sound.keep(file.path)
    if file.size != file.full_size:
        keeping.drop()  # it becomes another file: the cached scan would never be used
    source = of_full_size(source, file)
    end: Blank | TrailingZeros | None = None
    for event in walk(source, file_from_offset=file.file_from_offset, window=_WINDOW):
        if stopped.is_set():
            break
        if isinstance(event, Frames):
            dispatch = dispatch_columns(event)
            if scan.take_frames(event, dispatch):
                keeping.add(event, dispatch)
            else:
                keeping.drop()
        else:
            scan.take_gap(event)
            if isinstance(event, CorruptRange) or (isinstance(event, Blank) and not event.ends_file):
                keeping.drop()  # the walk goes on after it
            else:
                end = event
    base = file.file_from_offset
    scan.unreadable = [(base + start, base + stop) for start, stop in source.unreadable]
    if scan.unreadable or stopped.is_set():
        keeping.drop()
    keeping.finish(file.size, end)
    return scan


def unsound(frames: Frames, dispatch: Dispatch, status: np.ndarray, *, has_property_crc: bool) -> np.ndarray:
    """Per row 0 for a sound record, else status bits and _CUT for what is wrong; shape (rows,), u1.

    Not all status bits count: a record that brokers can read is kept. They drop properties that they cannot
    parse, and read a delay level only in the topic of delayed messages. With `has_property_crc` every record
    should have one. `status` is `full_status`.
    """
    rows = frames.rows
    marks = status & (BODY_CRC | OFFSET_MISMATCH | PROPERTY_CRC_BAD)
    for row in np.flatnonzero(dispatch.flags & ENDS_IN_ZEROS).tolist():
        # without its real topic a delayed message blocks its level for ever on 4.x
        is_bad = has_property_crc or frames.topics[int(rows["topic_id"][row])] == _SCHEDULE
        marks[row] |= PROPERTIES_UNSOUND if is_bad else _CUT
    for row in np.flatnonzero(dispatch.flags & BAD_NUMBER).tolist():
        # a delay level is read in this topic only, the numbers of a batch everywhere
        delayed = frames.topics[int(rows["topic_id"][row])] == _SCHEDULE
        if delayed or dispatch.delay_level[row] != BAD_DELAY:
            marks[row] |= BAD_NUMBER
    return marks


def claim_of(frames: Frames, dispatch: Dispatch, row: int) -> Claim:
    """Whose record row `row` is, by its own head."""
    record = frames.rows[row]
    count = max(int(dispatch.inner_count[row]), 0)
    kind = int(record["sys_flag"]) & form.TRANSACTION_MASK
    return Claim(
        start=int(record["physical_offset"]),
        size=int(record["size"]),
        topic=frames.topics[int(record["topic_id"])],
        queue_id=int(record["queue_id"]),
        queue_offset=int(dispatch.inner_base[row] if count else record["queue_offset"]),
        count=count,
        has_queue=kind in (0, form.TRANSACTION_COMMIT),
    )  # fmt: skip
