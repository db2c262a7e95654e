"""What a walk over a commit log file yields beside sound records: blanks, zeros, bad regions.

Positions are bytes from the start of the file; every range is half-open. Nothing here needs numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from rmqtool.formats.message import Message

BODY_CRC = 1
"""Status bit: the body does not match its CRC."""
OFFSET_MISMATCH = 2
"""Status bit: the stored physical offset is not the record's place."""


class Reason(IntEnum):
    """Why the bytes at the start of a bad region are no sound record."""

    ZERO = 1
    """The size and magic are zero."""
    MAGIC = 2
    """Neither a message magic nor a blank's, or fewer than 8 bytes are left."""
    SIZE = 3
    """A message magic, but the size is too small for a record or more than what is left."""
    LENGTHS = 4
    """A message magic, but the size is not the sum of the record's parts."""
    UNSOUND = 5
    """The lengths add up, but CRC or stored offset are wrong, and a sound record starts inside or
    the bytes follow a blank of the wrong size."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record that the plain-Python walk met; `status` has the bits BODY_CRC and OFFSET_MISMATCH."""

    position: int
    status: int
    message: Message


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank at `position`. `size` is what it says, `left` what is left of the file there.

    Where they are equal the walk is done: what follows a blank is undefined. Where they differ the
    walk looks for the next sound record behind the blank's 8 bytes.
    """

    position: int
    size: int
    left: int


@dataclass(frozen=True, slots=True)
class TrailingZeros:
    """From `position` to the walk's end all `length` bytes are zero. The last event."""

    position: int
    length: int


@dataclass(frozen=True, slots=True)
class CorruptRange:
    """Bytes [position, position + length) that are no sound record.

    A sound record, or a blank whose size is right, follows; with `to_end` the walk's end does.
    `declared_size` is the i32 at `position` (0 when fewer than 4 bytes are left). `nonzero_end` is
    the position behind the last byte of the region that is not zero, `position` when all are zero.
    """

    position: int
    length: int
    reason: Reason
    declared_size: int
    nonzero_end: int
    to_end: bool

    @property
    def end(self) -> int:
        """The position behind the region."""
        return self.position + self.length
