"""The walk over a commit log file in plain Python: for small reads, and what the kernel is held against.

Yields what `frames.walk` yields, with one `StoredMessage` per record instead of batches. Loads neither
numpy nor numba.

The rules, at the position that the walk has come to:
  1. Zeros up to the walk's end: TrailingZeros, done. A blank: Blank; done when its size is what is left.
  2. A record whose lengths add up is a StoredMessage, also when its CRC or stored offset is wrong; but
     then what follows must look like a record, a blank, zeros or the file's end, or no sound record
     may start inside it.
  3. Anything else is a CorruptRange up to the next sound record: magic, lengths that add up, stored offset ==
     position, CRC; or up to a blank whose size is what is left of the file there.
Copies of records inside a body are never taken for records: their stored offset differs.

In a DLedger log (`entry_header`) the header of an entry precedes each record. Positions are those of
entries, events of records have the offset of the record. A wrong header hides no record, because a record
shows itself what it is. The end mark of a file is its blank.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats import ledger
from rmqtool.formats import message as form
from rmqtool.lazy_pattern import pattern
from rmqtool.log.damage import corrupt_range
from rmqtool.log.events import (
    BODY_CRC,
    ENTRY_MISMATCH,
    OFFSET_MISMATCH,
    Blank,
    CorruptRange,
    LogEvent,
    Reason,
    StoredMessage,
    TrailingZeros,
)
from rmqtool.storage.source import ByteSource, first_nonzero

CANDIDATE_COST = 4096
"""Bytes of the budget that an unsound candidate costs, besides the body that the CRC read."""

_START = struct.Struct(">ii")
_MAGICS = (form.MAGIC_V1, form.MAGIC_V2, form.BLANK_MAGIC)
_ANY_MAGIC = pattern(b"|".join(re.escape(struct.pack(">i", magic)) for magic in _MAGICS))
_RECORD_MAGIC = b"|".join(re.escape(struct.pack(">i", magic)) for magic in form.VERSION_BY_MAGIC)
_ANY_ENTRY = pattern(  # at the start of an entry, or of the end mark
    b"(?=\xff{4}|.{%d}(?:%s))" % (ledger.HEADER_SIZE + 4, _RECORD_MAGIC), re.DOTALL
)
_BLOCK = 64 << 10
_MAGIC_OFFSET = form.BLANK.offsets["magic"]

Read = Callable[[int, int], bytes]


def search_budget(size: int) -> int:
    """Bytes that failed candidates of a search may cost in a file of `size` bytes.

    It keeps a file full of plausible heads linear. Damage never comes near it: records that fail
    do not overlap, so they cost the file's size at most.
    """
    return 2 * size + (1 << 20)


class Lengths(NamedTuple):
    """The parts of a record whose lengths add up, in bytes; body and properties as stored."""

    head: int
    body: int
    topic: int
    properties: int


def frame_lengths(read: Read, position: int, total: int, version: int) -> Lengths | None:
    """The parts of the `total` bytes at `position`, of which `read` has all; None when they do not add up.

    Reads the head and the two length fields only, however long the body is.
    """
    sys_flag = int.from_bytes(read(position + form.SYS_FLAG_OFFSET, 4), signed=True)
    layout = form.head_layout(sys_flag)
    left = total - layout.size - version - 2
    if left < 0:
        return None
    body = layout.unpack(read(position, layout.size))[-1]
    left -= max(body, 0)
    if left < 0:
        return None
    at = position + layout.size + max(body, 0)
    topic = int.from_bytes(read(at, version), signed=True)
    left -= topic
    if topic < 0 or left < 0:
        return None
    properties = int.from_bytes(read(at + version + topic, 2), signed=True)
    return Lengths(layout.size, body, topic, properties) if left == max(properties, 0) else None


def look(read: Read, position: int, size: int, entry_header: int = 0) -> tuple[Reason | None, int]:
    """Classify the bytes at `position` in a file of `size` bytes, by magic and lengths.

    Returns (None, size of the record) for a record, (None, -1) for a blank, otherwise (the reason, 0).
    """
    left = size - position
    if left < form.BLANK_SIZE:
        return Reason.MAGIC, 0
    if entry_header:
        first, second = _START.unpack(read(position, form.BLANK_SIZE))
        if first == ledger.FILE_END_MAGIC and second == left:
            return None, -1
        left -= entry_header
        position += entry_header
        if left < form.BLANK_SIZE:
            return _no_entry(first, second)
    total, magic = _START.unpack(read(position, form.BLANK_SIZE))
    if magic == form.BLANK_MAGIC and not entry_header:
        return None, -1
    version = form.VERSION_BY_MAGIC.get(magic)
    if version is None:
        if entry_header:
            return _no_entry(first, second)
        return Reason.MAGIC if total or magic else Reason.ZERO, 0
    if not form.MIN_RECORD_SIZE <= total <= left:
        return Reason.SIZE, 0
    return (None, total) if frame_lengths(read, position, total, version) else (Reason.LENGTHS, 0)


def _no_entry(first: int, second: int) -> tuple[Reason | None, int]:
    """As `look`, by the first two numbers where no entry with a record is."""
    if first == ledger.FILE_END_MAGIC:
        return None, -1
    return Reason.MAGIC if first or second else Reason.ZERO, 0


def blank_size(read: Read, position: int, entry_header: int) -> int:
    """What the blank at `position` says is left of the file."""
    first, second = _START.unpack(read(position, form.BLANK_SIZE))
    return int(second if entry_header else first)


def bounds(source: ByteSource, start: int, stop: int | None, entry_header: int) -> tuple[int, int]:
    """Where a walk begins and ends, positions of a file; see `frames.walk` for the arguments.

    In a DLedger log each may also be the position of a record: the walk begins with its entry, and ends
    before it. Records that begin before `stop` are those of entries that begin before `stop - entry_header`.
    """
    end = source.size if stop is None else min(stop, source.size)
    if not entry_header:
        return start, end
    if end < source.size:
        end -= entry_header
    if (
        start >= entry_header
        and int.from_bytes(source.read(start + 4, 4), signed=True) in form.VERSION_BY_MAGIC
    ):
        start -= entry_header
    return start, end


def walk_reference(
    source: ByteSource,
    *,
    file_from_offset: int,
    start: int = 0,
    stop: int | None = None,
    crc: bool = True,
    check_stored_offset: bool = True,
    entry_header: int = 0,
    check_entries: bool = False,
) -> Iterator[LogEvent]:
    """Records, blanks and corrupt ranges from `start` on; arguments as for `frames.walk`."""
    walker = _Walk(
        source, file_from_offset, start, stop, crc, check_stored_offset, entry_header,
        check_entries=check_entries and entry_header > 0,
    )  # fmt: skip
    return walker.events()


class _Walk:
    def __init__(
        self,
        source: ByteSource,
        file_from_offset: int,
        start: int,
        stop: int | None,
        crc: bool,
        check_stored_offset: bool,
        entry_header: int,
        *,
        check_entries: bool,
    ) -> None:
        self.source = source
        self.read = _Buffer(source).read
        self.size = source.size
        self.file_from_offset = file_from_offset
        self.entry_header = entry_header
        self.check_entries = check_entries
        self.position, self.end = bounds(source, start, stop, entry_header)
        self.crc = crc
        self.check_stored_offset = check_stored_offset
        self.budget = search_budget(self.size)

    def events(self) -> Iterator[LogEvent]:
        while self.position < self.end:
            position = self.position
            reason, total = look(self.read, position, self.size, self.entry_header)
            if reason is not None:
                yield self.region(position, reason, position + 1)
            elif total >= 0:
                yield self.record(position, total)
            else:
                blank = self.blank(position)
                yield blank
                self.position += form.BLANK_SIZE
                if blank.ends_file:
                    return
                if self.position < self.end and self.search(self.position, self.position + 1) < 0:
                    reason, _ = look(self.read, self.position, self.size, self.entry_header)
                    yield self.region(self.position, reason or Reason.UNSOUND, self.position + 1)

    def blank(self, position: int) -> Blank:
        size = blank_size(self.read, position, self.entry_header)
        return Blank(self.file_from_offset + position, size, self.size - position)

    def record(self, position: int, total: int) -> StoredMessage | CorruptRange | TrailingZeros:
        start = position + self.entry_header
        try:
            message = form.decode(self.read(start, total))
        except FormatError:  # not what `look` has seen: the file became shorter, or was written over
            return self.region(position, Reason.UNSOUND, position + 1)
        status = 0
        if self.check_stored_offset and message.physical_offset != self.file_from_offset + start:
            status = OFFSET_MISMATCH
        if self.crc and message.body and form.masked_crc(message.body) != message.body_crc:
            status |= BODY_CRC
        if status and not self.leads_on(start + total) and self.budget >= len(message.body):
            sound = self.search(position + 1, min(start + total, self.end))
            if sound >= 0:
                self.budget -= CANDIDATE_COST + len(message.body)
                return self.bad(position, Reason.UNSOUND, sound)
        if self.check_entries and not self.entry_matches(position, total):
            status |= ENTRY_MISMATCH
        self.position = start + total
        return StoredMessage(message, self.file_from_offset + start, status=status)

    def entry_matches(self, position: int, total: int) -> bool:
        """Whether the entry header at `position` is that of a record of `total` bytes here."""
        magic, size, _, _, place, _, _, _, length = ledger.HEADER.unpack(
            self.read(position, ledger.HEADER_SIZE)
        )
        here = self.file_from_offset + position
        return (
            magic == ledger.MAGIC
            and size == self.entry_header + total
            and length == total
            and (place == here or not self.check_stored_offset)
        )

    def leads_on(self, position: int) -> bool:
        """Whether the end, a record's or blank's head, or zeros are at `position`, where a record ends."""
        left = self.size - position
        if left < form.BLANK_SIZE:
            return left == 0
        total, magic = _START.unpack(self.read(position, form.BLANK_SIZE))
        if self.entry_header:
            if total == ledger.FILE_END_MAGIC and magic == left:
                return True
            if not total and not magic:
                return True
            left -= self.entry_header
            if left < form.BLANK_SIZE:
                return False
            total, magic = _START.unpack(self.read(position + self.entry_header, form.BLANK_SIZE))
            return bool(magic in form.VERSION_BY_MAGIC and form.MIN_RECORD_SIZE <= total <= left)
        if magic == form.BLANK_MAGIC:
            return bool(total == left)
        if magic in form.VERSION_BY_MAGIC:
            return bool(form.MIN_RECORD_SIZE <= total <= left)
        return not total and not magic

    def region(self, position: int, reason: Reason, first: int) -> CorruptRange | TrailingZeros:
        """The corrupt range or the zeros at `position`; the next sound record is at `first` or later."""
        if reason is Reason.ZERO or self.end - position < self.entry_header + form.BLANK_SIZE:
            nonzero = first_nonzero(self.source, position, self.end)
            if nonzero >= self.end:
                self.position = self.end
                return TrailingZeros(self.file_from_offset + position, self.end - position)
            # the size field is the earliest byte of a record that is not zero
            first = max(first, nonzero - self.entry_header - _MAGIC_OFFSET + 1)
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
        block = start
        while block < stop:
            head = self.entry_header + form.BLANK_SIZE
            block = max(block, self.source.data_from(block) - head + 1)
            length = min(_BLOCK, stop - block)
            # magics of candidates that start in [block, block + length)
            before, magics = (0, _ANY_ENTRY) if self.entry_header else (_MAGIC_OFFSET, _ANY_MAGIC)
            data = self.read(block + before, length + head - before - 1)
            for match in magics.finditer(data):
                if match.start() < length and self.is_sound(block + match.start()):
                    return block + match.start()
            block += length
        return -1

    def is_sound(self, position: int) -> bool:
        """Whether a sound record, or a blank of the right size, starts where a magic was found."""
        left = self.size - position
        if left < form.BLANK_SIZE:
            return False
        total, magic = _START.unpack(self.read(position, form.BLANK_SIZE))
        if self.entry_header:
            if total == ledger.FILE_END_MAGIC and magic == left:
                return True
            position += self.entry_header
            left -= self.entry_header
            if left < form.BLANK_SIZE:
                return False
            total, magic = _START.unpack(self.read(position, form.BLANK_SIZE))
        elif magic == form.BLANK_MAGIC:
            return bool(total == left)
        if magic not in form.VERSION_BY_MAGIC or not form.MIN_RECORD_SIZE <= total <= left:
            return False  # no magic: the file has changed since the magic was found
        stored = int.from_bytes(self.read(position + form.PHYSICAL_OFFSET_OFFSET, 8), signed=True)
        if self.check_stored_offset and stored != self.file_from_offset + position:
            return False
        if self.budget < CANDIDATE_COST:
            return False
        parts = frame_lengths(self.read, position, total, form.VERSION_BY_MAGIC[magic])
        if parts and (not self.crc or parts.body <= 0):
            return True
        if parts is None or parts.body > self.budget - CANDIDATE_COST:
            self.budget -= CANDIDATE_COST
            return False
        if self.body_matches(position, parts):
            return True
        self.budget -= CANDIDATE_COST + parts.body
        return False

    def body_matches(self, position: int, parts: Lengths) -> bool:
        crc = int.from_bytes(self.read(position + form.HEADS[0].offsets["body_crc"], 4), signed=True)
        return form.masked_crc(self.read(position + parts.head, parts.body)) == crc


class _Buffer:
    """Small reads out of larger ones."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.data = b""
        self.base = 0

    def read(self, position: int, length: int) -> bytes:
        at = position - self.base
        if at < 0 or at + length > len(self.data):
            if length > _BLOCK // 2:
                return self.source.read(position, length)
            self.data = self.source.read(position, _BLOCK)
            self.base, at = position, 0
        return self.data[at : at + length]
