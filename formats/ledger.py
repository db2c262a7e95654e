"""The files of a DLedger log: entries, their index, and two text files with its state.

    data/         magic i32 | size i32 | entry_index i64 | term i64 | position i64 | channel i32
                  chain_crc i32 | body_crc i32 | body_length i32 | one record of the commit log
    index/        magic i32 | position i64 | size i32 | entry_index i64 | term i64, at 32 * entry_index
    checkpoint    endIndex, committedIndex: the newest entry, and the newest that a majority has
    currterm      currTerm, voteLeader: the state of elections

An entry is the record with 48 bytes before it. The record's own physical offset is the place of the record,
48 bytes after the entry's: queues, index and message ids use it. No entry spans two files: where one does not
fit, the 8 bytes of `FILE_END` end the file. The log ends where zeros begin.

The text files are Java properties: a line `name=value` for each.

Source: DLedgerEntry, DLedgerEntryCoder, DLedgerMmapFileStore#recover, MmapFileList#preAppend, IOUtils,
MemberState; spec 06 section 6.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rmqtool.errors import FormatError
from rmqtool.formats.declare import Layout
from rmqtool.formats.parts import GreedyString, Int32sb, Int64sb, Struct
from rmqtool.lazy_pattern import pattern

MAGIC = 1
FILE_END_MAGIC = -1

HEADER = Layout(
    "DLedger entry header",
    Struct(
        "magic" / Int32sb * "1",
        "size" / Int32sb * "bytes of the entry, this header included",
        "entry_index" / Int64sb * "number of the entry, from 0, without gaps",
        "term" / Int64sb * "term of the leader that wrote it; never falls",
        "position" / Int64sb * "the entry's own offset in the log, bytes",
        "channel" / Int32sb * "0",
        "chain_crc" / Int32sb * "0: never computed",
        "body_crc" / Int32sb * "0: never computed",
        "body_length" / Int32sb * "bytes of the record that follows",
    ),
    "The 48 bytes before each record in dledger-*/data/. The record is as in commitlog/; its physical_offset"
    " is the offset of the record, not of the entry.",
)
HEADER_SIZE = HEADER.size
assert HEADER_SIZE == 48

FILE_END = Layout(
    "DLedger end of file",
    Struct(
        "magic" / Int32sb * "-1",
        "size" / Int32sb * "bytes left in the file, these 8 included",
    ),
    "End of a file of dledger-*/data/: no further entry fits. Zeros follow.",
)

INDEX_UNIT = Layout(
    "DLedger index unit",
    Struct(
        "magic" / Int32sb * "1",
        "position" / Int64sb * "the entry's offset in the log, bytes",
        "size" / Int32sb * "bytes of the entry",
        "entry_index" / Int64sb * "number of the entry",
        "term" / Int64sb * "term of the entry",
    ),
    "One unit per entry in dledger-*/index/, at 32 times its number. A broker creates missing units again"
    " when it starts.",
)
INDEX_UNIT_SIZE = INDEX_UNIT.size
assert INDEX_UNIT_SIZE == 32

STATE = Struct(
    "lines"
    / GreedyString("ascii")
    * "a line name=value for each: endIndex and committedIndex in checkpoint, currTerm and voteLeader in"
    " currterm",
)
STATE_TEXT = (
    "The state of a DLedger log as text (Java properties). Entries above committedIndex may not be on a"
    " majority of the replicas: another leader may remove them."
)

_LINE = pattern(r"\s*([A-Za-z]+)\s*[=:]\s*(.*?)\s*")
_NUMBER = pattern(r"-?\d{1,19}", re.ASCII)


class Ends(NamedTuple):
    """The content of the file `checkpoint`; -1: no entry."""

    end_index: int
    committed_index: int


class Term(NamedTuple):
    """The content of the file `currterm`. `vote_leader` is the id of the voted leader, empty without one."""

    current_term: int
    vote_leader: str


def decode_properties(data: bytes, what: str) -> dict[str, str]:
    """The names and values of a text file; comments are left out. Raises FormatError."""
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        raise FormatError(f"{what}: not text") from error
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise FormatError(f"{what}: {line[:40]!r} is not name=value")
        found[match[1]] = match[2]
    return found


def decode_ends(data: bytes) -> Ends:
    """The content of `checkpoint`. Raises FormatError."""
    found = decode_properties(data, "checkpoint")
    return Ends(_number(found, "endIndex", "checkpoint"), _number(found, "committedIndex", "checkpoint"))


def decode_term(data: bytes) -> Term:
    """The content of `currterm`. Raises FormatError."""
    found = decode_properties(data, "currterm")
    return Term(_number(found, "currTerm", "currterm"), found.get("voteLeader", ""))


def _number(found: dict[str, str], name: str, what: str) -> int:
    text = found.get(name)
    if text is None:
        raise FormatError(f"{what}: no {name}")
    if not _NUMBER.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise FormatError(f"{what}: {name} is {text[:40]!r}, not a number")
    return int(text)
