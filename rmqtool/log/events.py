"""Events of a walk over the commit log: records, and the ranges between them.

Both engines yield these events: `python_scan` with one `StoredMessage` per record, `frames` with `Frames`.
Offsets are physical; every range is half-open. `path` and `file`, the name as rows show it, are set by
`damage.file_events`. Nothing here needs numpy.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from rmqtool.formats.message import BLANK_SIZE, Message
from rmqtool.lazy_dataclass import dataclass

# The status bits of a record: what is wrong with it. `damage.CODE_BY_STATUS` gives the code of each.
BODY_CRC = 1
"""The body does not match its CRC. Set by the walk."""
OFFSET_MISMATCH = 2
"""The stored physical offset is not the record's place. Set by the walk."""
ENTRY_MISMATCH = 4
"""The header of the record's DLedger entry does not match the record and its place. Set by a walk that is
to check entries."""
PROPERTY_CRC_BAD = 8
"""The property CRC does not match the record. Set by `dispatch.dispatch_columns`."""
PROPERTIES_UNSOUND = 16
"""`formats.properties.sound` is False for the property string, or the record ends in zeros
(`Message.ends_in_zeros`), so that it was written only in part. Set by `dispatch.dispatch_columns`."""
BAD_NUMBER = 32
"""Java cannot parse DELAY, or INNER_BASE and INNER_NUM: the log ends here for a broker that reads them.

Set by `dispatch.dispatch_columns`.
"""
UNPACKABLE = 64
"""The body cannot be unpacked. Set where bodies are unpacked, in `message`."""
CODEC_MISSING = 128
"""The library for the body's compression is not installed. Set where bodies are unpacked, in `message`."""

_NO_PATH = Path()


class Reason(IntEnum):
    """Why the bytes at the start of a corrupt range are not a sound record."""

    ZERO = 1
    """The size and magic are zero."""
    MAGIC = 2
    """Neither a message magic nor a blank's, or fewer than 8 bytes are left."""
    SIZE = 3
    """A message magic, but the size is too small for a record or more than what is left."""
    LENGTHS = 4
    """A message magic, but the size is not the sum of the record's parts."""
    UNSOUND = 5
    """The lengths add up, but CRC or stored offset are wrong and a sound record starts inside, or
    the bytes follow a blank of the wrong size, or the record is torn."""
    UNREADABLE = 6
    """The operating system could not read the bytes."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record of the log; `status` has the bits that the walk sets, 0 is a sound record."""

    message: Message
    physical_offset: int
    path: Path = _NO_PATH
    file: str = ""
    status: int = 0

    @property
    def end(self) -> int:
        """The physical offset just after the record."""
        return self.physical_offset + self.message.total_size


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank. `size` is what it says is left of the file, `left` what is left.

    Where they are equal the walk ends: what follows the blank's 8 bytes is undefined. Where they differ the
    walk looks for the next sound record after them.
    """

    physical_offset: int
    size: int
    left: int
    path: Path = _NO_PATH
    file: str = ""

    @property
    def end(self) -> int:
        """The physical offset just after the blank's 8 bytes."""
        return self.physical_offset + BLANK_SIZE

    @property
    def ends_file(self) -> bool:
        """Whether the blank is right: its size is what is left of the file."""
        return self.size == self.left


@dataclass(frozen=True, slots=True)
class TrailingZeros:
    """All `length` bytes up to the end of the walk are zero. The last event."""

    physical_offset: int
    length: int
    path: Path = _NO_PATH
    file: str = ""

    @property
    def end(self) -> int:
        """The physical offset just after the zeros."""
        return self.physical_offset + self.length


@dataclass(frozen=True, slots=True)
class CorruptRange:
    """Bytes that are not a sound record. Made by `damage`, which decides the `code`.

    A sound record, or a blank whose size is right, follows; with `to_end` the end of the walk does.
    `code` is the problem that the bytes are, unless they are a torn record (`damage.is_torn`).
    `declared_size` is the size at the start, of a DLedger entry that of the entry (0 where too few bytes are
    left). `nonzero_end` is the
    physical offset after the last byte that is not zero, `physical_offset` where all are zero.
    `head_size` is the number of bytes that show whether a record begins: more in a DLedger log.
    """

    physical_offset: int
    length: int
    code: str
    reason: Reason
    declared_size: int
    nonzero_end: int
    to_end: bool
    path: Path = _NO_PATH
    file: str = ""
    head_size: int = BLANK_SIZE

    @property
    def end(self) -> int:
        """The physical offset just after the range."""
        return self.physical_offset + self.length


LogGap = Blank | TrailingZeros | CorruptRange
"""The events for ranges between records."""
LogEvent = StoredMessage | LogGap
