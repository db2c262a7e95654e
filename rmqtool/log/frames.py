"""The walk over a commit log file at the speed of memory: records as rows, and what lies between.

`walk` yields batches of rows (`Frames`) and the gaps of `events.py`, in the order of the file.
The rules are those of `python_scan`, which gives the same in plain Python; the loop over records
is in `frame_kernel.py`, compiled, and loaded by the first walk. What a window cannot show is seen in
the next: a record that crosses its end is walked again from its start, and a window grows to the
size of one record whose lengths add up, never beyond the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqtool.formats import ledger
from rmqtool.formats import message as form
from rmqtool.lazy_dataclass import dataclass
from rmqtool.log.damage import corrupt_range
from rmqtool.log.events import (
    BODY_CRC,
    ENTRY_MISMATCH,
    OFFSET_MISMATCH,
    Blank,
    CorruptRange,
    LogGap,
    Reason,
    TrailingZeros,
)
from rmqtool.log.python_scan import CANDIDATE_COST, blank_size, bounds, frame_lengths, look, search_budget
from rmqtool.storage.buffers import Buffers
from rmqtool.storage.source import WINDOW, ByteSource

if TYPE_CHECKING:
    from rmqtool.log.frame_kernel import Numbers

    Rows = np.ndarray[Any, np.dtype[np.void]]
    Integers = np.ndarray[Any, Any]

FRAME = np.dtype(
    [
        ("physical_offset", "i8"),  # of the file's start + the record's position, not the stored one
        ("store_timestamp", "i8"),
        ("born_timestamp", "i8"),
        ("queue_offset", "i8"),
        ("prepared_transaction_offset", "i8"),
        ("size", "i4"),
        ("queue_id", "i4"),
        ("flag", "i4"),
        ("sys_flag", "i4"),
        ("body_crc", "i4"),
        ("body_length", "i4"),
        ("reconsume_times", "i4"),
        ("topic_id", "i4"),  # index into Frames.topics
        ("topic_length", "i2"),
        ("properties_length", "i2"),
        ("version", "u1"),
        ("status", "u1"),  # bits: BODY_CRC, OFFSET_MISMATCH, ENTRY_MISMATCH
    ],
    align=True,
)
"""One record. Lengths are as stored: body and properties may be negative, which means none."""

_ROWS = 32 << 10


@dataclass(frozen=True, slots=True)
class Frames:
    """Consecutive records of one file, all inside one window.

    `topics[row["topic_id"]]` are a record's topic bytes; the numbers hold in this batch only. `data`
    is the window, `data_position` the file position of data[0]; use it before the next event is
    asked for, or copy.
    """

    rows: Rows
    topics: list[bytes]
    data: np.ndarray[Any, np.dtype[np.uint8]]
    data_position: int
    file_from_offset: int

    @property
    def physical_offset(self) -> int:
        """Where the first record begins."""
        return int(self.rows["physical_offset"][0])

    @property
    def end(self) -> int:
        """The physical offset just after the last record."""
        return int(self.rows["physical_offset"][-1]) + int(self.rows["size"][-1])

    def starts(self) -> Integers:
        """Per row, the index of the record's first byte in `data`."""
        starts: Integers = self.rows["physical_offset"] - (self.file_from_offset + self.data_position)
        return starts

    def body_starts(self) -> Integers:
        """Per row, the index of the body's first byte in `data`."""
        flags = self.rows["sys_flag"]
        growth = form.HOST_V6_SIZE - form.HOST_V4_SIZE
        heads: Integers = np.full(len(flags), form.HEAD_SIZE_V4, np.int64)
        heads += growth * ((flags & form.BORN_HOST_V6) != 0)
        heads += growth * ((flags & form.STORE_HOST_V6) != 0)
        heads += self.starts()
        return heads

    def topic_starts(self) -> Integers:
        """Per row, the index of the topic's first byte in `data`."""
        body_lengths = np.maximum(self.rows["body_length"], 0)
        starts: Integers = self.body_starts() + body_lengths + self.rows["version"]
        return starts

    def properties_starts(self) -> Integers:
        """Per row, the index of the first byte of the properties in `data`."""
        starts: Integers = self.topic_starts() + self.rows["topic_length"] + 2
        return starts

    def entry_headers(self) -> Integers:
        """Per row of a walk over a DLedger log, the header of its entry: `formats.ledger.HEADER`."""
        places = self.starts()[:, None] + np.arange(-ledger.HEADER_SIZE, 0)
        headers: Integers = self.data[places].view(ledger.HEADER.dtype)[:, 0]
        return headers

    def ends_in_zeros(self) -> Integers:
        """Per row, `Message.ends_in_zeros`: no writer ends properties, or a topic without them, so."""
        bare = self.rows["properties_length"] <= 0
        ends = self.starts() + self.rows["size"]
        last = self.data[np.where(bare, ends - 3, ends - 1)]  # before the length of the properties
        found: Integers = (last == 0) & (~bare | (self.rows["topic_length"] > 0))
        return found

    def last(self) -> Frames:
        """The last record alone."""
        return replace(self, rows=self.rows[-1:])

    def at(self, places: Integers) -> Frames:
        """The records at some places (rising) among these; the batch itself if these are all."""
        return self if len(places) == len(self.rows) else replace(self, rows=self.rows[places])

    def without_data(self) -> Frames:
        """The rows alone, with memory of their own."""
        return Frames(self.rows.copy(), self.topics, self.data[:0].copy(), 0, self.file_from_offset)

    def copied(self) -> Frames:
        """These records, by rising offset, with rows of their own and the bytes from first to last."""
        start, position = int(self.starts()[0]), self.physical_offset - self.file_from_offset
        data = self.data[start : start + self.end - self.physical_offset].copy()
        data.flags.writeable = False
        return Frames(self.rows.copy(), self.topics, data, position, self.file_from_offset)


Event = Frames | LogGap


def walk(
    source: ByteSource,
    *,
    file_from_offset: int,
    start: int = 0,
    stop: int | None = None,
    crc: bool = True,
    check_stored_offset: bool = True,
    window: int = WINDOW,
    entry_header: int = 0,
    check_entries: bool = False,
) -> Iterator[Event]:
    """Records, blanks and corrupt ranges of a commit log file, in file order.

    Args:
        source: the file; positions are bytes from its start.
        file_from_offset: physical offset of its first byte.
        start: position of the first record.
        stop: where the walk ends, the file's end when None. A record that starts before `stop` is
            read whole; zeros and corrupt ranges end there.
        crc: check body CRCs; without it BODY_CRC is never set and the search for a sound record
            goes without.
        check_stored_offset: compare each record's stored physical offset with its place.
        window: bytes that are looked at in one go.
        entry_header: bytes of the DLedger entry header before each record, `StoreFile.entry_header`. `start`
            is then the position of a record or of its entry, and a record that starts before `stop` is
            that of an entry that may.
        check_entries: set ENTRY_MISMATCH where an entry header does not match its record. Only `verify` asks:
            to a reader the record is sound, whatever precedes it.
    """
    walker = _Walker(
        source, file_from_offset, start, stop, crc, check_stored_offset, window, entry_header,
        check_entries=check_entries and entry_header > 0,
    )  # fmt: skip
    return walker.events()


@cache
def numbers() -> Numbers:
    """The numbers of the format that the kernels work with."""
    from rmqtool.log.frame_kernel import Numbers

    offsets = form.HEADS[0].offsets
    return Numbers(
        magic_v1=form.MAGIC_V1,
        magic_v2=form.MAGIC_V2,
        blank_magic=form.BLANK_MAGIC,
        blank_size=form.BLANK_SIZE,
        min_record=form.MIN_RECORD_SIZE,
        head=form.HEAD_SIZE_V4,
        born_host_v6=form.BORN_HOST_V6,
        store_host_v6=form.STORE_HOST_V6,
        host_growth=form.HOST_V6_SIZE - form.HOST_V4_SIZE,
        crc_mask=form.CRC_MASK,
        body_crc_bit=BODY_CRC,
        foreign_bit=OFFSET_MISMATCH,
        candidate_cost=CANDIDATE_COST,
        **{f"entry_{name}": ledger.HEADER.offsets[name] for name in ("size", "position", "body_length")},
        entry_magic=ledger.MAGIC,
        entry_bit=ENTRY_MISMATCH,
        file_end_magic=ledger.FILE_END_MAGIC,
        **{name: offsets[name] for name in Numbers._fields if name in offsets},
    )


class _Walker:
    """The state of one walk: where it is, the window, what the search may still cost."""

    def __init__(
        self,
        source: ByteSource,
        file_from_offset: int,
        start: int,
        stop: int | None,
        crc: bool,
        check_stored_offset: bool,
        window: int,
        entry_header: int,
        *,
        check_entries: bool,
    ) -> None:
        from rmqtool.log import frame_kernel
        from rmqtool.log.crc import crc_address, crc_tables

        self.kernel = frame_kernel
        self.source = source
        self.size = source.size
        self.file_from_offset = file_from_offset
        self.entry_header = entry_header
        self.position, self.end = bounds(source, start, stop, entry_header)
        self.accept = -1
        self.crc = crc
        self.checks = frame_kernel.Checks(crc, check_stored_offset, check_entries, crc_address())
        self.tables = crc_tables()
        self.numbers = numbers()
        self.window = max(window, form.MIN_RECORD_SIZE)
        self.base = 0
        self.data = source.window(0, 0)
        self.rows = Buffers(min(_ROWS, self.window // form.MIN_RECORD_SIZE + 1), FRAME, 2)
        self.topics = np.empty((frame_kernel.TOPICS_LIMIT, 2), np.int64)
        self.slots = np.zeros(frame_kernel.TOPIC_SLOTS, np.int32)
        self.result = np.zeros(frame_kernel.RESULT_SIZE, np.int64)
        self.result[frame_kernel.BUDGET] = search_budget(self.size)

    def events(self) -> Iterator[Event]:
        kernel = self.kernel
        while self.position < self.end:
            frames = self.batch()
            if frames is not None:
                yield frames
            stopped = int(self.result[kernel.STOPPED])
            if stopped == kernel.BLANK:
                blank = self.blank()
                yield blank
                if blank.ends_file:
                    return
                event = self.after_bad_blank()
                if event is not None:
                    yield event
            elif stopped == kernel.WINDOW and self.grow(self.position, int(self.result[kernel.NEED])):
                continue
            elif stopped == kernel.SUSPECT:
                bad = self.suspect()
                if bad is not None:
                    yield bad
            elif stopped not in (kernel.END, kernel.FULL):
                yield self.region(self.position, self.reason(stopped))

    def reason(self, stopped: int) -> Reason:
        kernel = self.kernel
        reasons = {kernel.ZERO: Reason.ZERO, kernel.SIZE: Reason.SIZE, kernel.LENGTHS: Reason.LENGTHS,
                   kernel.WINDOW: Reason.LENGTHS}  # fmt: skip
        return reasons.get(stopped, Reason.MAGIC)

    def place(self) -> Any:
        return self.kernel.WindowBounds(
            self.base, self.end, self.size, self.file_from_offset, self.accept, self.entry_header
        )

    def show(self, position: int, need: int) -> None:
        """Have [position, position + need) in the window, as far as the file goes."""
        stop = min(position + need, self.size)
        if not self.base <= position <= stop <= self.base + len(self.data):
            self.data = self.source.window(position, max(self.window, need))
            self.base = position

    def head(self, position: int) -> tuple[int, int]:
        """Size and magic of the record that a kernel has just seen; read again they may be others."""
        start = position + self.entry_header - self.base
        total, magic = form.BLANK.unpack(self.data[start : start + form.BLANK_SIZE].data)
        return total, magic

    def grow(self, position: int, need: int) -> bool:
        """Show `need` bytes for the record at `position`; False when it is long and no record at all."""
        if need > self.window:
            total, magic = self.head(position)
            start = position + self.entry_header
            if frame_lengths(self.source.read, start, total, form.VERSION_BY_MAGIC[magic]) is None:
                return False
        self.show(position, need)
        return True

    def batch(self) -> Frames | None:
        """The records from the walk's position on, as far as the window and the arrays go."""
        kernel = self.kernel
        self.show(self.position, 1)
        rows = self.rows.take()
        self.slots.fill(0)
        count = kernel.walk_window(
            self.data, self.position, self.place(), self.checks, self.tables, self.numbers,
            rows, self.topics, self.slots, self.result,
        )  # fmt: skip
        self.position = int(self.result[kernel.POSITION])
        if not count:
            return None
        starts, lengths = self.topics[: int(self.result[kernel.TOPICS])].T
        data = self.data.data  # of slices, a memoryview makes bytes sooner than an array
        topics = [
            data[start:stop].tobytes()
            for start, stop in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        ]
        return Frames(rows[:count], topics, self.data, self.base, self.file_from_offset)

    def blank(self) -> Blank:
        size = blank_size(self.seen, self.position, self.entry_header)
        return Blank(self.file_from_offset + self.position, size, self.size - self.position)

    def seen(self, position: int, length: int) -> bytes:
        """Bytes of the window."""
        start = position - self.base
        return self.data[start : start + length].tobytes()

    def after_bad_blank(self) -> CorruptRange | TrailingZeros | None:
        self.position += form.BLANK_SIZE
        if self.position >= self.end or self.search(self.position, self.position + 1) >= 0:
            return None
        reason, _ = look(self.source.read, self.position, self.size, self.entry_header)
        return self.region(self.position, reason or Reason.UNSOUND)

    def suspect(self) -> CorruptRange | None:
        """CorruptRange when a sound record starts inside the one at this position; else it is accepted."""
        position = self.position
        total, magic = self.head(position)
        start = position + self.entry_header
        parts = frame_lengths(self.source.read, start, total, form.VERSION_BY_MAGIC[magic])
        cost = CANDIDATE_COST + max(parts.body if parts else 0, 0)
        if self.result[self.kernel.BUDGET] >= cost - CANDIDATE_COST:
            sound = self.search(position + 1, min(start + total, self.end))
            if sound >= 0:
                self.result[self.kernel.BUDGET] -= cost
                return self.bad(position, Reason.UNSOUND, sound)
        self.accept = position
        return None

    def region(self, position: int, reason: Reason) -> CorruptRange | TrailingZeros:
        """The corrupt range or the zeros at `position`, where no sound record starts."""
        first = position + 1
        if reason is Reason.ZERO or self.end - position < self.entry_header + form.BLANK_SIZE:
            nonzero = self.nonzero_from(position)
            if nonzero >= self.end:
                self.position = self.end
                return TrailingZeros(self.file_from_offset + position, self.end - position)
            # the size field is the earliest byte of a record that is not zero
            first = max(first, nonzero - self.entry_header - self.numbers.magic + 1)
        return self.bad(position, reason, self.search(first, self.end))

    def bad(self, position: int, reason: Reason, sound: int) -> CorruptRange:
        stop = self.end if sound < 0 else sound
        self.position = stop
        return corrupt_range(
            self.source, self.file_from_offset, position, stop, reason, to_end=sound < 0,
            entry_header=self.entry_header,
        )  # fmt: skip

    def search(self, start: int, stop: int) -> int:
        """The first position in [start, stop) of a sound record, or of a blank of the right size; or -1."""
        kernel = self.kernel
        position = start
        while position < stop:
            head = self.entry_header + form.BLANK_SIZE
            position = max(position, self.source.data_from(position) - head + 1)
            if position + form.BLANK_SIZE > self.size:
                break
            self.show(position, head)
            found = kernel.search_window(
                self.data, position, stop, self.place(), self.checks, self.tables, self.numbers, self.result
            )
            position = int(self.result[kernel.POSITION])
            if found == kernel.FOUND:
                return position
            if found == kernel.WINDOW and not self.afford(position, int(self.result[kernel.NEED])):
                position += 1
        return -1

    def afford(self, position: int, need: int) -> bool:
        """Show a candidate's `need` bytes; False when it is long and fails before its body is read."""
        if need > self.window:
            total, magic = self.head(position)
            start = position + self.entry_header
            parts = frame_lengths(self.source.read, start, total, form.VERSION_BY_MAGIC[magic])
            budget = self.result[self.kernel.BUDGET] - CANDIDATE_COST
            if parts is None or (self.crc and parts.body > budget):
                self.result[self.kernel.BUDGET] = budget
                return False
        self.show(position, need)
        return True

    def nonzero_from(self, position: int) -> int:
        """The first position from `position` on whose byte is not zero; the walk's end when none."""
        position = self.source.data_from(position)
        while position < self.end:
            self.show(position, 1)
            found = self.base + int(self.kernel.first_nonzero(self.data, position - self.base))
            if found < self.base + len(self.data):
                return min(found, self.end)
            position = self.source.data_from(found)
        return self.end
