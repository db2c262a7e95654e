"""The file `epochFileCheckpoint` of controller mode (5.x): where each master's records begin.

    number of entries
    CRC-32 of the entry lines, line ends included, top bit cleared; 0 is not checked
    epoch-start_offset      one line for each entry

An epoch ends where the next one starts. A file without entries is never written.

Source: CheckpointFile, EpochFileCache; spec 01 section 9.11.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats.message import masked_crc
from rmqtool.formats.parts import GreedyString, NullTerminated, Struct
from rmqtool.lazy_pattern import pattern

_LINE = NullTerminated(GreedyString("ascii"), term=b"\n")
EPOCH_FILE = Struct(
    "count" / _LINE * "number of entries: a line of decimal text",
    "crc" / _LINE * "CRC-32 of the entry lines with their line ends, top bit cleared: a line of decimal text;"
    " 0: not checked",
    "entries"
    / GreedyString("ascii")
    * "a line epoch-startOffset for each entry; startOffset is a physical offset, bytes",
)
TEXT = (
    "The offset at which the records of each master start (controller mode, 5.x). An epoch ends where"
    " the next one starts."
)
_NUMBER = pattern(r"-?\d{1,10}", re.ASCII)
_ENTRY = pattern(r"(\d{1,10})-(\d{1,19})", re.ASCII)
_LINE_ENDS = pattern(r"\r\n|\n|\r")


class Entry(NamedTuple):
    """One epoch: its number and the physical offset of its first record."""

    epoch: int
    start_offset: int


def decode(data: bytes) -> list[Entry]:
    """The entries of an epoch file, in its order.

    Raises:
        FormatError: not an epoch file, or its count or CRC does not match the entries.
    """
    try:
        lines = _LINE_ENDS.split(data.decode("ascii"))
    except UnicodeDecodeError as error:
        raise FormatError("epoch file: not text") from error
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 2 or not (_NUMBER.fullmatch(lines[0]) and _NUMBER.fullmatch(lines[1])):
        raise FormatError("epoch file: the first two lines are not numbers")
    entries = []
    for line in lines[2:]:
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise FormatError(f"epoch file: {line[:40]!r} is not an entry")
        entries.append(Entry(int(match[1]), int(match[2])))
    if len(entries) != int(lines[0]):
        raise FormatError(f"epoch file: {lines[0]} entries declared, {len(entries)} found")
    crc = int(lines[1])
    line_end = "\r\n" if b"\r\n" in data else "\n"
    found = masked_crc("".join(line + line_end for line in lines[2:]).encode("ascii"))
    if crc not in (0, found):
        raise FormatError(f"epoch file: CRC {crc} declared, {found} found")
    return entries


def encode(entries: Sequence[Entry]) -> bytes:
    """The text of an epoch file, as written on systems whose line end is one line feed."""
    lines = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in entries).encode("ascii")
    return f"{len(entries)}\n{masked_crc(lines)}\n".encode("ascii") + lines


def is_ordered(entries: Sequence[Entry]) -> bool:
    """Whether epochs and start offsets both rise from entry to entry."""
    return all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(entries))


def common_end(entries: Sequence[Entry], end: int, others: Sequence[Entry], other_end: int) -> int | None:
    """Up to where two logs must be equal, by their epochs; None if they have no epoch in common.

    An epoch belongs to one master, which wrote its bytes in one order. So the logs are equal up to the
    first of the two ends of the newest epoch that both have with the same start, and may part there.

    Source: EpochFileCache#findConsistentPoint; spec 04 10.
    """
    ends = {entry: end_of for entry, end_of in _with_ends(others, other_end)}
    for entry, end_of in reversed(_with_ends(entries, end)):
        if entry in ends:
            return min(end_of, ends[entry])
    return None


def _with_ends(entries: Sequence[Entry], end: int) -> list[tuple[Entry, int]]:
    """Each epoch with its end: the next start, of the last one the end of the log."""
    starts = [entry.start_offset for entry in entries[1:]]
    return list(zip(entries, [*starts, end], strict=True)) if entries else []
